package directory

import (
	"context"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// maxType is the longest type of a reference, in bytes.
const maxType = 40

// NewReference is what CreateReference makes a reference of.
type NewReference struct {
	Type, Name                      string
	Description, Instructions       string
	Value                           string
	ReadVisibility, WriteVisibility room.Visibility // "": public
}

// ReferenceChange is what UpdateReference changes; nil leaves a field as it is.
type ReferenceChange struct {
	Type, Name, Description, Instructions, Value *string
}

func checkReference(r Reference) error {
	for i := range len(r.Type) {
		c := r.Type[i]
		alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '.' && c != '_' && c != '-') {
			return fault.Field("type", "must match [a-z0-9][a-z0-9._-]*")
		}
	}
	if r.Type == "" || len(r.Type) > maxType {
		return fault.Field("type", "must have 1 to %d characters", maxType)
	}
	if err := checkName("name", r.Name); err != nil {
		return err
	}
	if err := checkText("description", r.Description, 0, maxDescription); err != nil {
		return err
	}
	if err := checkText("instructions", r.Instructions, 0, maxInstructions); err != nil {
		return err
	}
	return checkText("value", r.Value, 1, maxValue)
}

// CreateReference makes a reference. Its owner is the actor's; it is in no room yet.
func (d *Directory) CreateReference(ctx context.Context, by room.Actor, n NewReference) (Reference, error) {
	r := Reference{Type: n.Type, Name: n.Name, Description: n.Description, Instructions: n.Instructions, Value: n.Value,
		OwnerNo: by.OwnerNo, ReadVisibility: n.ReadVisibility, WriteVisibility: n.WriteVisibility}
	if err := checkReference(r); err != nil {
		return Reference{}, err
	}
	if err := checkVisibility(&r.ReadVisibility, &r.WriteVisibility, room.Public); err != nil {
		return Reference{}, err
	}
	if by.OwnerNo == 0 && !by.Admin && r.WriteVisibility != room.Public {
		return Reference{}, fault.Field("write_visibility",
			"must be public for a reference that nobody owns: its maker has no owner")
	}
	var err error
	if r.ID, err = newID(); err != nil {
		return Reference{}, err
	}
	err = d.st.Update(ctx, "create reference", func(tx Tx) (err error) {
		r.CreatedAt, r.UpdatedAt = tx.Now(), tx.Now()
		if r.No, err = tx.DirInsertReference(r); err != nil {
			return err
		}
		return d.record(ctx, tx, by, "reference.created", "reference", r.ID, map[string]any{"name": r.Name, "type": r.Type})
	})
	return r, err
}

// UpdateReference changes a reference; it needs write access to it.
func (d *Directory) UpdateReference(ctx context.Context, by room.Actor, id uuid.UUID,
	c ReferenceChange) (r Reference, err error) {
	err = d.st.Update(ctx, "update reference", func(tx Tx) error {
		if r, err = referenceFor(tx, id); err != nil {
			return err
		}
		if !r.owned().MayWrite(by) {
			return fault.New(fault.Forbidden, "reference %q may be changed only by its owner or an admin", r.Name)
		}
		for _, f := range []struct{ from, to *string }{{c.Type, &r.Type}, {c.Name, &r.Name},
			{c.Description, &r.Description}, {c.Instructions, &r.Instructions}, {c.Value, &r.Value}} {
			if f.from != nil {
				*f.to = *f.from
			}
		}
		if err := checkReference(r); err != nil {
			return err
		}
		r.UpdatedAt = tx.Now()
		if err := tx.DirUpdateReference(r); err != nil {
			return err
		}
		return d.record(ctx, tx, by, "reference.updated", "reference", id, map[string]any{"name": r.Name})
	})
	return r, err
}

// DeleteReference removes a reference from every room. Owner or admin.
func (d *Directory) DeleteReference(ctx context.Context, by room.Actor, id uuid.UUID) error {
	return d.st.Update(ctx, "delete reference", func(tx Tx) error {
		r, err := referenceFor(tx, id)
		if err != nil {
			return err
		}
		if !r.owned().MayDelete(by) {
			return fault.New(fault.Forbidden, "reference %q may be deleted only by its owner or an admin", r.Name)
		}
		if err := tx.DirDeleteReference(r.No); err != nil {
			return err
		}
		return d.record(ctx, tx, by, "reference.deleted", "reference", id, map[string]any{"name": r.Name})
	})
}

// Attach puts a reference into a room, where its agents see it: it needs write access to the room and read access to the
// reference. Twice is once.
func (d *Directory) Attach(ctx context.Context, by room.Actor, id, reference uuid.UUID) error {
	return d.st.Update(ctx, "attach reference", func(tx Tx) error {
		r, err := writable(tx, by, id)
		if err != nil {
			return err
		}
		ref, err := readableReference(tx, by, reference)
		if err != nil {
			return err
		}
		if err := tx.DirAttach(r.No, ref.No); err != nil {
			return err
		}
		return d.record(ctx, tx, by, "room.reference_attached", "room", id, map[string]any{"reference": ref.Name,
			"reference_id": reference.String()})
	})
}

// Detach takes a reference out of a room. NotFound when it is not in it.
func (d *Directory) Detach(ctx context.Context, by room.Actor, id, reference uuid.UUID) error {
	return d.st.Update(ctx, "detach reference", func(tx Tx) error {
		r, err := writable(tx, by, id)
		if err != nil {
			return err
		}
		ref, err := referenceFor(tx, reference)
		if err != nil {
			return err
		}
		was, err := tx.DirDetach(r.No, ref.No)
		if err != nil {
			return err
		}
		if !was {
			return fault.New(fault.NotFound, "reference %q is not attached to room %q", ref.Name, r.Name)
		}
		return d.record(ctx, tx, by, "room.reference_detached", "room", id, map[string]any{"reference": ref.Name,
			"reference_id": reference.String()})
	})
}

// Reference finds a reference that the actor may read.
func (d *Directory) Reference(ctx context.Context, by room.Actor, id uuid.UUID) (r Reference, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		r, err = readableReference(tx, by, id)
		return err
	})
	return r, err
}

// References returns the references that the actor may read, by name.
func (d *Directory) References(ctx context.Context, by room.Actor) (list []Reference, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		list, err = tx.DirReferences(0, by)
		return err
	})
	return list, err
}

// ReferencesOf returns the references attached to a room that the actor may read or is in, by name.
func (d *Directory) ReferencesOf(ctx context.Context, by room.Actor, id uuid.UUID) (list []Reference, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		r, err := readable(tx, by, id)
		if err != nil {
			return err
		}
		list, err = tx.DirReferences(r.No, by)
		return err
	})
	return list, err
}

func referenceFor(tx ReadTx, id uuid.UUID) (Reference, error) {
	r, err := tx.DirReference(id)
	return r, named(err, "reference %s", id)
}

func readableReference(tx ReadTx, by room.Actor, id uuid.UUID) (Reference, error) {
	r, err := referenceFor(tx, id)
	if err == nil && !r.owned().MayRead(by) {
		err = fault.New(fault.Forbidden, "reference %s is private", id)
	}
	return r, err
}
