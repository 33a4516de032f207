package directory

import (
	"context"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// CreateGroup makes a group of rooms; its name is unique. Anybody may: a group gives no rights.
func (d *Directory) CreateGroup(ctx context.Context, by room.Actor, name, description string) (g Group, err error) {
	if err := checkName("name", name); err != nil {
		return Group{}, err
	}
	if _, err := uuid.Parse(name); err == nil {
		return Group{}, fault.Field("name", "must not look like an id")
	}
	if err := checkText("description", description, 0, maxDescription); err != nil {
		return Group{}, err
	}
	g = Group{Name: name, Description: description, OwnerNo: by.OwnerNo}
	if g.ID, err = newID(); err != nil {
		return Group{}, err
	}
	err = d.st.Update(ctx, "create room group", func(tx Tx) (err error) {
		g.CreatedAt = tx.Now()
		if g.No, err = tx.DirInsertGroup(g); err != nil {
			if fault.Is(err, fault.Conflict) {
				return fault.Wrap(fault.Conflict, err, "name: room group %q is there already", name)
			}
			return err
		}
		return d.record(ctx, tx, by, "room_group.created", "room_group", g.ID, map[string]any{"name": name})
	})
	return g, err
}

// Groups returns the room groups by name.
func (d *Directory) Groups(ctx context.Context) (list []Group, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		list, err = tx.DirGroups()
		return err
	})
	return list, err
}

// Group finds a room group by id or by name, with those of its rooms that the actor may read or is in.
func (d *Directory) Group(ctx context.Context, by room.Actor, idOrName string) (g Group, rooms []room.Room, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		if g, err = tx.DirGroup(idOrName); err != nil {
			return named(err, "room group %q", idOrName)
		}
		rooms, err = tx.DirRooms(RoomQuery{By: by, GroupNo: g.No, IncludeArchived: true})
		return err
	})
	return g, rooms, err
}
