package gateway

import (
	"net/http"
	"time"

	"signalbox/appliance/room"
	"signalbox/appliance/room/directory"
	"signalbox/transport/roomhttp"
)

// role is a role of a room.
type role struct {
	Name         string    `json:"name"`
	Exclusive    bool      `json:"exclusive"`
	Instructions string    `json:"instructions"`
	CreatedAt    time.Time `json:"created_at"`
	UpdatedAt    time.Time `json:"updated_at"`
}

func roleOf(d room.RoleDef) role {
	return role{d.Name, d.Exclusive, d.Instructions, d.CreatedAt, d.UpdatedAt}
}

func rolesOf(list []room.RoleDef) []role {
	out := make([]role, len(list))
	for i, d := range list {
		out[i] = roleOf(d)
	}
	return out
}

// newRole is a role as a request defines it.
type newRole struct {
	Name         *string `json:"name"`
	Exclusive    bool    `json:"exclusive"`
	Instructions string  `json:"instructions"`
}

func (n newRole) role(field string) (directory.NewRole, error) {
	name, err := need(field+"name", n.Name)
	return directory.NewRole{Name: name, Exclusive: n.Exclusive, Instructions: n.Instructions}, err
}

func (s *Server) roles(w http.ResponseWriter, r *http.Request, p room.Person) error {
	found, err := s.findRoom(r, p)
	if err != nil {
		return err
	}
	list, err := s.svc.Directory.Roles(r.Context(), found.ID)
	if err != nil {
		return err
	}
	return answer(w, r, rolesOf(list))
}

func (s *Server) role(w http.ResponseWriter, r *http.Request, p room.Person) error {
	found, err := s.findRoom(r, p)
	if err != nil {
		return err
	}
	d, err := s.svc.Directory.Role(r.Context(), found.ID, r.PathValue("role"))
	if err != nil {
		return err
	}
	return answer(w, r, roleOf(d))
}

func (s *Server) createRole(w http.ResponseWriter, r *http.Request, p room.Person) error {
	id, err := pathID(r, "room")
	if err != nil {
		return err
	}
	var in newRole
	if err := roomhttp.Decode(r, &in); err != nil {
		return err
	}
	n, err := in.role("")
	if err != nil {
		return err
	}
	d, err := s.svc.Directory.DefineRole(r.Context(), p.Actor(), id, n)
	if err != nil {
		return err
	}
	return answer(w, r, roleOf(d))
}

func (s *Server) editRole(w http.ResponseWriter, r *http.Request, p room.Person) error {
	id, err := pathID(r, "room")
	if err != nil {
		return err
	}
	var in struct {
		Name         *string `json:"name"`
		Exclusive    *bool   `json:"exclusive"`
		Instructions *string `json:"instructions"`
	}
	if err := roomhttp.Decode(r, &in); err != nil {
		return err
	}
	d, err := s.svc.Directory.EditRole(r.Context(), p.Actor(), id, r.PathValue("role"),
		directory.RoleChange{Name: in.Name, Exclusive: in.Exclusive, Instructions: in.Instructions})
	if err != nil {
		return err
	}
	return answer(w, r, roleOf(d))
}

func (s *Server) deleteRole(w http.ResponseWriter, r *http.Request, p room.Person) error {
	id, err := pathID(r, "room")
	if err != nil {
		return err
	}
	if err := s.svc.Directory.DeleteRole(r.Context(), p.Actor(), id, r.PathValue("role")); err != nil {
		return err
	}
	return done(w, r)
}
