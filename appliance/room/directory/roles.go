package directory

import (
	"context"
	"strings"
	"unicode"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// NewRole defines a role.
type NewRole struct {
	Name         string
	Exclusive    bool // held by one agent at a time
	Instructions string
}

// RoleChange is what EditRole changes; nil leaves a field as it is.
type RoleChange struct {
	Name         *string
	Exclusive    *bool
	Instructions *string
}

// checkRole checks a definition (H.6); the name must be free in the room, case aside, among roles and aliases. no is the
// role's number, 0 for a new one.
func checkRole(tx ReadTx, r room.Room, role room.RoleDef, prefix string) error {
	if err := checkName(prefix+"name", role.Name); err != nil {
		return err
	}
	if strings.ContainsFunc(role.Name, unicode.IsSpace) {
		return fault.Field(prefix+"name", "must not contain white space")
	}
	if strings.EqualFold(role.Name, room.EveryoneName) {
		return fault.Field(prefix+"name", "%s is the mention of the whole room and cannot be a role", room.EveryoneName)
	}
	if err := checkText(prefix+"instructions", role.Instructions, 0, maxInstructions); err != nil {
		return err
	}
	old, err := tx.DirRole(r.No, role.Name)
	if err == nil && old.No != role.No {
		return fault.New(fault.Conflict, "%sname: role %q is there already in this room", prefix, old.Name)
	}
	if err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	_, aliased, err := tx.DirNamesIn(r.No, role.Name)
	if err == nil && aliased != "" {
		err = fault.New(fault.Conflict, "%sname: %q is the alias of agent %q in this room", prefix, role.Name, aliased)
	}
	return err
}

func insertRole(tx Tx, r room.Room, n NewRole, field string) error {
	prefix := ""
	if field != "" {
		prefix = field + "."
	}
	role := room.RoleDef{RoomNo: r.No, Name: n.Name, Exclusive: n.Exclusive, Instructions: n.Instructions,
		CreatedAt: tx.Now(), UpdatedAt: tx.Now()}
	if err := checkRole(tx, r, role, prefix); err != nil {
		return err
	}
	return tx.DirInsertRole(role)
}

// DefineRole adds a role to a room.
func (d *Directory) DefineRole(ctx context.Context, by room.Actor, id uuid.UUID, n NewRole) (role room.RoleDef, err error) {
	err = d.st.Update(ctx, "define role", func(tx Tx) error {
		r, err := writable(tx, by, id)
		if err != nil {
			return err
		}
		if err := insertRole(tx, r, n, ""); err != nil {
			return err
		}
		if role, err = tx.DirRole(r.No, n.Name); err != nil {
			return err
		}
		if err := d.changed(tx, r.No); err != nil {
			return err
		}
		return d.record(ctx, tx, by, "room.role_defined", "room", id, map[string]any{"role": n.Name, "exclusive": n.Exclusive})
	})
	return role, err
}

// EditRole changes a role. Under a new name nobody holds it any more: leases are held by name, and who asked for the old
// one did not ask for this.
func (d *Directory) EditRole(ctx context.Context, by room.Actor, id uuid.UUID, name string,
	c RoleChange) (role room.RoleDef, err error) {
	err = d.st.Update(ctx, "edit role", func(tx Tx) error {
		r, err := writable(tx, by, id)
		if err != nil {
			return err
		}
		if role, err = roleFor(tx, r, name); err != nil {
			return err
		}
		old := role
		if c.Name != nil {
			role.Name = *c.Name
		}
		if c.Exclusive != nil {
			role.Exclusive = *c.Exclusive
		}
		if c.Instructions != nil {
			role.Instructions = *c.Instructions
		}
		if role == old {
			return nil
		}
		role.UpdatedAt = tx.Now()
		if err := checkRole(tx, r, role, ""); err != nil {
			return err
		}
		if err := tx.DirUpdateRole(role); err != nil {
			return err
		}
		if role.Name != old.Name {
			tx.AfterCommit(func() { d.changes.RoleGone(r.No, old.Name) })
		}
		if err := d.changed(tx, r.No); err != nil {
			return err
		}
		return d.record(ctx, tx, by, "room.role_edited", "room", id, map[string]any{"role": old.Name, "new_name": role.Name,
			"exclusive": role.Exclusive})
	})
	return role, err
}

// DeleteRole removes a role and ends its leases.
func (d *Directory) DeleteRole(ctx context.Context, by room.Actor, id uuid.UUID, name string) error {
	return d.st.Update(ctx, "delete role", func(tx Tx) error {
		r, err := writable(tx, by, id)
		if err != nil {
			return err
		}
		role, err := roleFor(tx, r, name)
		if err != nil {
			return err
		}
		if err := tx.DirDeleteRole(role.No); err != nil {
			return err
		}
		tx.AfterCommit(func() { d.changes.RoleGone(r.No, role.Name) })
		if err := d.changed(tx, r.No); err != nil {
			return err
		}
		return d.record(ctx, tx, by, "room.role_deleted", "room", id, map[string]any{"role": role.Name})
	})
}

// Role finds a role of a room by name, case aside. It asks for no right: the caller has found the room by one that does.
func (d *Directory) Role(ctx context.Context, id uuid.UUID, name string) (role room.RoleDef, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		r, err := roomFor(tx, id)
		if err != nil {
			return err
		}
		role, err = roleFor(tx, r, name)
		return err
	})
	return role, err
}

// Roles returns the roles of a room by name. It asks for no right, as Role.
func (d *Directory) Roles(ctx context.Context, id uuid.UUID) (roles []room.RoleDef, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		r, err := roomFor(tx, id)
		if err != nil {
			return err
		}
		roles, err = tx.DirRoles(r.No)
		return err
	})
	return roles, err
}

func roleFor(tx ReadTx, r room.Room, name string) (room.RoleDef, error) {
	role, err := tx.DirRole(r.No, name)
	return role, named(err, "role %q in room %q", name, r.Name)
}
