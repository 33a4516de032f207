package identity

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/secret"
)

// The addresses of the two people the server makes itself. Nobody receives mail there.
const (
	OperatorEmail  = "operator@localhost"
	BootstrapEmail = "bootstrap@localhost"
)

// peoplePage is how many people one snapshot reads.
const peoplePage = 500

// NewPerson asks for a person.
type NewPerson struct {
	Name, Email string
	Password    secret.Text // empty: the person cannot sign in until one is set
	Role        room.Role   // "": user
}

// CreatePerson makes a person. Only an admin may. Invalid for a bad field, Conflict when the e-mail address is taken.
func (d *Identity) CreatePerson(ctx context.Context, by room.Actor, n NewPerson) (room.Person, error) {
	if err := adminOnly(by); err != nil {
		return room.Person{}, err
	}
	p := room.Person{Kind: room.PersonOrdinary, Name: strings.TrimSpace(n.Name), Role: n.Role}
	if p.Role == "" {
		p.Role = room.RoleUser
	}
	err := checkLine("name", p.Name, 1, maxName)
	if err == nil {
		p.Email, err = cleanEmail(n.Email)
	}
	if err == nil {
		err = checkRole(p.Role)
	}
	if err != nil {
		return room.Person{}, err
	}
	var s Secrets
	if !n.Password.IsZero() {
		if s.PasswordHash, err = d.hashNew(ctx, n.Password); err != nil {
			return room.Person{}, err
		}
	}
	if p.ID, err = newID(); err != nil {
		return room.Person{}, err
	}
	err = d.st.Update(ctx, "create person", func(tx Tx) error { return d.insertPerson(ctx, tx, by, &p, s) })
	if err != nil {
		return room.Person{}, err
	}
	return p, nil
}

// insertPerson stores a person and its audit row.
func (d *Identity) insertPerson(ctx context.Context, tx Tx, by room.Actor, p *room.Person, s Secrets) error {
	p.CreatedAt, p.UpdatedAt = tx.Now(), tx.Now()
	s.SessionsAfter, p.HasPassword = tx.Now(), s.PasswordHash != ""
	var err error
	if p.No, err = tx.InsertRoomPerson(*p, s); fault.Is(err, fault.Conflict) {
		return fault.Wrap(fault.Conflict, err, "email: a person with this address exists already")
	}
	if err != nil {
		return err
	}
	return d.record(ctx, tx, by, "person.created", "person", p.ID,
		map[string]any{"kind": p.Kind, "role": p.Role, "name": p.Name})
}

// Operator returns the person that whoever holds the admin socket or an operator API key speaks as, and makes it when it
// is not there yet: an admin who cannot sign in until given a password.
func (d *Identity) Operator(ctx context.Context) (room.Person, error) {
	return d.personOfKind(ctx, room.PersonOperator)
}

func (d *Identity) personOfKind(ctx context.Context, kind room.PersonKind) (p room.Person, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		p, err = tx.RoomPersonOfKind(kind)
		return err
	})
	if !fault.Is(err, fault.NotFound) {
		return p, err
	}
	err = d.st.Update(ctx, "create "+string(kind), func(tx Tx) (err error) {
		p, err = d.ensurePerson(ctx, tx, kind)
		return err
	})
	return p, err
}

// ensurePerson returns one of the people the server makes itself, making it when it is not there.
func (d *Identity) ensurePerson(ctx context.Context, tx Tx, kind room.PersonKind) (room.Person, error) {
	p, err := tx.RoomPersonOfKind(kind)
	if !fault.Is(err, fault.NotFound) {
		return p, err
	}
	// Neither is an admin: their agents would be too (A.6), and make themselves at home in every private room.
	p = room.Person{Kind: kind, Name: "Operator", Email: OperatorEmail, Role: room.RoleUser}
	if kind == room.PersonBootstrap {
		p.Name, p.Email = "Bootstrap", BootstrapEmail
	}
	if p.ID, err = newID(); err != nil {
		return p, err
	}
	return p, d.insertPerson(ctx, tx, room.Platform(), &p, Secrets{})
}

// Person finds a person by its id.
func (d *Identity) Person(ctx context.Context, id uuid.UUID) (p room.Person, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		p, err = tx.RoomPersonByID(id)
		return named(err, "person")
	})
	return p, err
}

// People returns everybody in the order they were made.
func (d *Identity) People(ctx context.Context) ([]room.Person, error) {
	out := []room.Person{}
	for after := int64(0); ; {
		var page []room.Person
		err := d.st.View(ctx, func(tx ReadTx) (err error) {
			page, err = tx.RoomPeople(after, peoplePage)
			return err
		})
		if err != nil {
			return nil, err
		}
		out = append(out, page...)
		if len(page) < peoplePage {
			return out, nil
		}
		after = page[len(page)-1].No
	}
}

// PersonNamed finds a person by id, by e-mail address, or by a name that only one has. NotFound when there is none,
// Conflict when the name is not unique.
func (d *Identity) PersonNamed(ctx context.Context, text string) (p room.Person, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		if id, bad := uuid.Parse(text); bad == nil {
			p, err = tx.RoomPersonByID(id)
			return err
		}
		if email, bad := cleanEmail(text); bad == nil {
			p, _, err = tx.RoomPersonSecrets(email)
			return err
		}
		found, err := tx.RoomPeopleNamed(text, 2)
		switch {
		case err != nil:
			return err
		case len(found) == 0:
			return fault.New(fault.NotFound, "person not found")
		case len(found) > 1:
			return fault.New(fault.Conflict, "several people are called %q: use the e-mail address or the id", text)
		}
		p = found[0]
		return nil
	})
	return p, named(err, "person")
}

// SetPassword gives a person a password, which voids every cookie of that person. An admin or the person itself may.
func (d *Identity) SetPassword(ctx context.Context, by room.Actor, id uuid.UUID, password secret.Text) error {
	if !by.Admin && (by.Kind != room.KindPerson || by.ID != id) {
		return fault.New(fault.Forbidden, "only an admin sets somebody else's password")
	}
	hash, err := d.hashNew(ctx, password)
	if err != nil {
		return err
	}
	return d.changePerson(ctx, "set password", id, func(tx Tx, p *room.Person) error {
		if err := tx.SetRoomPersonPassword(p.No, hash); err != nil {
			return err
		}
		if err := d.endSessions(tx, p); err != nil {
			return err
		}
		return d.record(ctx, tx, by, "person.password.set", "person", id, map[string]any{"name": p.Name})
	})
}

// SetRole makes a person an admin or an ordinary user. It holds from the person's next request on. Only an admin may;
// operator and bootstrap person never are one.
func (d *Identity) SetRole(ctx context.Context, by room.Actor, id uuid.UUID, role room.Role) (p room.Person, err error) {
	if err := adminOnly(by); err != nil {
		return p, err
	}
	if err := checkRole(role); err != nil {
		return p, err
	}
	err = d.changePerson(ctx, "set role", id, func(tx Tx, found *room.Person) error {
		p = *found
		switch {
		case p.Role == role:
			return nil
		case p.Kind != room.PersonOrdinary:
			return fault.Field("role", "the %s person is never an admin, for its agents would have its rights", p.Kind)
		}
		was := p.Role
		p.Role = role
		if err := d.updatePerson(tx, &p); err != nil {
			return err
		}
		return d.record(ctx, tx, by, "person.role.changed", "person", id,
			map[string]any{"name": p.Name, "from": was, "to": role})
	})
	return p, err
}

// SetDisabled shuts a person out, or lets it in again. A disabled person is refused from the next request on, its keys
// register nothing, and its agents, which go on, have no admin's rights. Only an admin may; the operator cannot be
// disabled.
func (d *Identity) SetDisabled(ctx context.Context, by room.Actor, id uuid.UUID, disabled bool) (p room.Person, err error) {
	if err := adminOnly(by); err != nil {
		return p, err
	}
	err = d.changePerson(ctx, "disable person", id, func(tx Tx, found *room.Person) error {
		p = *found
		if (p.DisabledAt != nil) == disabled {
			return nil
		}
		if p.Kind == room.PersonOperator {
			return fault.Field("disabled", "the operator cannot be disabled")
		}
		action, at := "person.enabled", (*time.Time)(nil)
		if disabled {
			now := tx.Now()
			action, at = "person.disabled", &now
		}
		p.DisabledAt = at
		if err := d.updatePerson(tx, &p); err != nil {
			return err
		}
		if err := d.endSessions(tx, &p); err != nil {
			return err
		}
		return d.record(ctx, tx, by, action, "person", id, map[string]any{"name": p.Name})
	})
	return p, err
}

// changePerson runs fn on a person inside a transaction.
func (d *Identity) changePerson(ctx context.Context, op string, id uuid.UUID, fn func(Tx, *room.Person) error) error {
	return d.st.Update(ctx, op, func(tx Tx) error {
		p, err := tx.RoomPersonByID(id)
		if err != nil {
			return named(err, "person")
		}
		return fn(tx, &p)
	})
}

// updatePerson stores a person whose rights changed; what was cached of its agents is dropped.
func (d *Identity) updatePerson(tx Tx, p *room.Person) error {
	p.UpdatedAt = tx.Now()
	tx.Hint(d.cache.clear)
	return tx.UpdateRoomPerson(*p)
}

func adminOnly(by room.Actor) error {
	if !by.Admin {
		return fault.New(fault.Forbidden, "only an admin may do this")
	}
	return nil
}

func checkRole(r room.Role) error {
	if r != room.RoleUser && r != room.RoleAdmin {
		return fault.Field("role", "must be user or admin")
	}
	return nil
}
