package api

import (
	"net/http"

	"signalbox/appliance/room"
	"signalbox/appliance/room/identity"
	"signalbox/appliance/secret"
)

// personPublic is a person without its password.
type personPublic struct {
	ID          string          `json:"id"`
	Name        string          `json:"name"`
	Email       string          `json:"email"`
	Kind        room.PersonKind `json:"kind"`
	Role        room.Role       `json:"role"`
	HasPassword bool            `json:"has_password"`
	DisabledAt  *stamp          `json:"disabled_at"`
	CreatedAt   stamp           `json:"created_at"`
	UpdatedAt   stamp           `json:"updated_at"`
}

func showPerson(p *room.Person) personPublic {
	return personPublic{p.ID.String(), p.Name, p.Email, p.Kind, p.Role, p.HasPassword, maybe(p.DisabledAt), stamp(p.CreatedAt),
		stamp(p.UpdatedAt)}
}

func (a *API) listPeople(w http.ResponseWriter, c *call) error {
	ctx, _, err := a.operator(c) // so that it is there to be listed
	if err != nil {
		return err
	}
	people, err := a.Rooms.Identity.People(ctx)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, each(people, showPerson))
}

func (a *API) createPerson(w http.ResponseWriter, c *call) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	n := identity.NewPerson{Name: b.required("name"), Email: b.required("email"), Role: room.Role(orEmpty(b.text("role"))),
		Password: secret.NewText(orEmpty(b.text("password")))}
	if err := b.err(); err != nil {
		return err
	}
	ctx, by, err := a.operator(c)
	if err != nil {
		return err
	}
	p, err := a.Rooms.Identity.CreatePerson(ctx, by, n)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusCreated, showPerson(&p))
}

func (a *API) getPerson(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	p, err := a.Rooms.Identity.Person(c.Context(), id)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, showPerson(&p))
}

func (a *API) setPassword(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	password := b.required("password")
	if err := b.err(); err != nil {
		return err
	}
	ctx, by, err := a.operator(c)
	if err != nil {
		return err
	}
	if err := a.Rooms.Identity.SetPassword(ctx, by, id, secret.NewText(password)); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *API) setPersonRole(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	role := room.Role(b.required("role"))
	if err := b.err(); err != nil {
		return err
	}
	ctx, by, err := a.operator(c)
	if err != nil {
		return err
	}
	p, err := a.Rooms.Identity.SetRole(ctx, by, id, role)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, showPerson(&p))
}

func (a *API) disablePerson(w http.ResponseWriter, c *call) error { return a.setDisabled(w, c, true) }

func (a *API) enablePerson(w http.ResponseWriter, c *call) error { return a.setDisabled(w, c, false) }

func (a *API) setDisabled(w http.ResponseWriter, c *call, disabled bool) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	ctx, by, err := a.operator(c)
	if err != nil {
		return err
	}
	p, err := a.Rooms.Identity.SetDisabled(ctx, by, id, disabled)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, showPerson(&p))
}
