package directory

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// Introduction names a person for a room, by id, or by email or name.
type Introduction struct {
	PersonID uuid.UUID // uuid.Nil: by Name
	Name     string
	Manager  bool
}

func (in Introduction) person(tx ReadTx) (room.Person, error) {
	if in.PersonID != uuid.Nil {
		p, err := tx.RoomPersonByID(in.PersonID)
		return p, named(err, "person %s", in.PersonID)
	}
	found, err := tx.DirPeopleNamed(in.Name, 2)
	switch {
	case err != nil:
		return room.Person{}, err
	case len(found) == 0:
		return room.Person{}, fault.New(fault.NotFound, "person %q not found", in.Name)
	case len(found) > 1:
		return room.Person{}, fault.New(fault.Conflict, "several people are called %q; use the email", in.Name)
	}
	return found[0], nil
}

// people resolves introductions, each person once.
func people(tx ReadTx, list []Introduction, field string) (found []room.PersonMember, err error) {
	for i, in := range list {
		p, err := in.person(tx)
		if err == nil && p.DisabledAt != nil {
			err = fault.New(fault.NotFound, "person %q is disabled and", p.Email)
		}
		if err != nil {
			return nil, fieldOf(err, indexed(field, i))
		}
		if !slices.ContainsFunc(found, func(m room.PersonMember) bool { return m.Person.No == p.No }) {
			found = append(found, room.PersonMember{Person: p, Manager: in.Manager})
		}
	}
	return found, nil
}

// foundPeople writes the people who are in a room from its beginning: a person who makes it is its manager.
func (d *Directory) foundPeople(tx Tx, by room.Actor, r room.Room, list []Introduction) error {
	if by.Kind == room.KindPerson {
		list = slices.Concat([]Introduction{{PersonID: by.ID, Manager: true}}, list)
	}
	members, err := people(tx, list, "people")
	if err != nil {
		return err
	}
	for _, m := range members {
		if err := tx.DirInsertPerson(r.No, m.Person.No, m.Manager); err != nil {
			return err
		}
	}
	return nil
}

// AddPeople brings people into a room and returns those who were not in it before. A person who is in it already and is
// introduced as a manager becomes one. Write access to the room is enough; managers are made only by its owner, its
// managers and admins.
func (d *Directory) AddPeople(ctx context.Context, by room.Actor, id uuid.UUID,
	list []Introduction) ([]room.PersonMember, error) {
	if len(list) == 0 || len(list) > maxInvited {
		return nil, fault.Field("people", "must name 1 to %d people", maxInvited)
	}
	var added []room.PersonMember
	err := d.st.Update(ctx, "add people to room", func(tx Tx) error {
		added = nil
		r, err := writable(tx, by, id)
		if err != nil {
			return err
		}
		if err := notArchived(r); err != nil {
			return err
		}
		managing, err := manages(tx, by, r)
		if err != nil {
			return err
		}
		found, err := people(tx, list, "people")
		if err != nil {
			return err
		}
		var names []string
		var actors []room.Actor
		for _, m := range found {
			if m.Manager && !managing {
				return fault.New(fault.Forbidden, "only the owner of room %q, its managers or an admin may make managers", r.Name)
			}
			joined, changed, err := addPerson(tx, r, m)
			if err != nil {
				return err
			}
			if joined {
				added, actors = append(added, m), append(actors, m.Person.Actor())
			}
			if changed {
				names = append(names, m.Person.Email)
			}
		}
		if len(names) == 0 {
			return nil
		}
		if err := d.log.Joined(tx, r.No, actors...); err != nil {
			return err
		}
		if err := d.changed(tx, r.No); err != nil {
			return err
		}
		return d.record(ctx, tx, by, "room.people_added", "room", id, map[string]any{"people": some(names)})
	})
	if err != nil {
		return nil, err
	}
	return added, nil
}

func addPerson(tx Tx, r room.Room, m room.PersonMember) (joined, changed bool, err error) {
	in, manager, err := tx.DirPersonIn(r.No, m.Person.No)
	switch {
	case err != nil:
		return false, false, err
	case in && (manager || !m.Manager):
		return false, false, nil
	case in:
		return false, true, tx.DirSetManager(r.No, m.Person.No, true)
	}
	return true, true, tx.DirInsertPerson(r.No, m.Person.No, m.Manager)
}

// RemovePerson takes a person out of a room: themselves, or by owner, manager or admin. NotFound when not in it.
func (d *Directory) RemovePerson(ctx context.Context, by room.Actor, id, personID uuid.UUID) error {
	return d.st.Update(ctx, "remove person from room", func(tx Tx) error {
		r, p, err := personFor(tx, by, id, personID)
		if err != nil {
			return err
		}
		if err := d.changed(tx, r.No); err != nil { // while the person is still in it
			return err
		}
		if err := tx.DirDeletePerson(r.No, p.No); err != nil {
			return err
		}
		return d.record(ctx, tx, by, "room.person_removed", "room", id, map[string]any{"person": p.Email})
	})
}

// personFor finds a person in the room whom the actor may remove.
func personFor(tx ReadTx, by room.Actor, id, personID uuid.UUID) (r room.Room, p room.Person, err error) {
	if r, err = roomFor(tx, id); err != nil {
		return r, p, err
	}
	managing, err := manages(tx, by, r)
	if err != nil {
		return r, p, err
	}
	if self := by.Kind == room.KindPerson && by.ID == personID; !managing && !self {
		return r, p, fault.New(fault.Forbidden,
			"people in room %q may be removed only by its owner, its managers, themselves or an admin", r.Name)
	}
	if p, err = tx.RoomPersonByID(personID); err != nil {
		return r, p, named(err, "person %s", personID)
	}
	in, _, err := tx.DirPersonIn(r.No, p.No)
	if err == nil && !in {
		err = fault.New(fault.NotFound, "person %q in room %q not found", p.Name, r.Name)
	}
	return r, p, err
}

// SetManager makes a person in the room a manager, or no longer one. Owner, managers and admins may do it.
func (d *Directory) SetManager(ctx context.Context, by room.Actor, id, personID uuid.UUID, manager bool) error {
	return d.st.Update(ctx, "set room manager", func(tx Tx) error {
		r, err := roomFor(tx, id)
		if err != nil {
			return err
		}
		managing, err := manages(tx, by, r)
		if err != nil {
			return err
		}
		if !managing {
			return fault.New(fault.Forbidden, "only the owner of room %q, its managers or an admin may make managers", r.Name)
		}
		_, p, err := personFor(tx, by, id, personID)
		if err != nil {
			return err
		}
		if err := tx.DirSetManager(r.No, p.No, manager); err != nil {
			return err
		}
		if err := d.changed(tx, r.No); err != nil {
			return err
		}
		return d.record(ctx, tx, by, "room.manager_set", "room", id, map[string]any{"person": p.Email, "value": manager})
	})
}

// Manages tells whether the actor decides about the people in the room (canManage of I): its owner, a manager of it, an
// admin.
func (d *Directory) Manages(ctx context.Context, by room.Actor, id uuid.UUID) (ok bool, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		r, err := roomFor(tx, id)
		if err != nil {
			return err
		}
		ok, err = manages(tx, by, r)
		return err
	})
	return ok, err
}

// PersonIn tells whether the person is in the room.
func (d *Directory) PersonIn(ctx context.Context, roomNo, personNo int64) (in bool, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		in, _, err = tx.DirPersonIn(roomNo, personNo)
		return err
	})
	return in, err
}
