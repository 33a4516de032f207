package directory

import (
	"context"
	"strings"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

// Room finds a room that the actor may read or is in.
func (d *Directory) Room(ctx context.Context, by room.Actor, id uuid.UUID) (r room.Room, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		r, err = readable(tx, by, id)
		return err
	})
	return r, err
}

// Filter selects rooms of a list.
type Filter struct {
	IncludeArchived bool
	Group           string // id or name; "": any
}

// Rooms returns the rooms that the actor may read or is in, by name.
func (d *Directory) Rooms(ctx context.Context, by room.Actor, f Filter) (rooms []room.Room, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		q := RoomQuery{By: by, IncludeArchived: f.IncludeArchived}
		if f.Group != "" {
			g, err := tx.DirGroup(f.Group)
			if err != nil {
				return named(err, "room group %q", f.Group)
			}
			q.GroupNo = g.No
		}
		rooms, err = tx.DirRooms(q)
		return err
	})
	return rooms, err
}

// RoomsOf returns the rooms that the agent is a member of, by name.
func (d *Directory) RoomsOf(ctx context.Context, agentNo int64, includeArchived bool) (rooms []room.Room, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		rooms, err = tx.DirRooms(RoomQuery{AgentNo: agentNo, IncludeArchived: includeArchived})
		return err
	})
	return rooms, err
}

// RoomsOfPerson returns the rooms that the person is in, by name.
func (d *Directory) RoomsOfPerson(ctx context.Context, personNo int64, includeArchived bool) (rooms []room.Room, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		rooms, err = tx.DirRooms(RoomQuery{PersonNo: personNo, IncludeArchived: includeArchived})
		return err
	})
	return rooms, err
}

// maxFound bounds what an ambiguous text is answered with.
const maxFound = 10

// Find resolves what somebody typed for a room: its id, its exact name, or the start of its id (4 hex digits or more).
// NotFound for none that the actor may read, Conflict naming the ids for several.
func (d *Directory) Find(ctx context.Context, by room.Actor, text string) (r room.Room, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		found, err := candidates(tx, text)
		if err != nil {
			return err
		}
		var ids []string
		for _, c := range found {
			if may := c.MayRead(by); !may {
				if may, err = isIn(tx, c.No, by); err != nil {
					return err
				}
				if !may {
					continue
				}
			}
			r = c
			ids = append(ids, c.ID.String())
		}
		switch len(ids) {
		case 0:
			return fault.New(fault.NotFound, "no room is called %q and no room id begins so", text)
		case 1:
			return nil
		}
		return fault.New(fault.Conflict, "%q stands for several rooms: %s", text, strings.Join(ids, ", "))
	})
	return r, err
}

func candidates(tx ReadTx, text string) ([]room.Room, error) {
	if id, err := uuid.Parse(text); err == nil {
		return tx.DirRoomsBetween(id, id, false, 1)
	}
	found, err := tx.DirRoomsNamed(text, maxFound)
	if err != nil || len(found) > 0 {
		return found, err
	}
	low, high, ok := idRange(text)
	if !ok {
		return nil, nil
	}
	return tx.DirRoomsBetween(low, high, false, maxFound)
}

// idRange returns the lowest and the highest id that begin with the hex digits of the text, in which hyphens are ignored.
func idRange(text string) (low, high uuid.UUID, ok bool) {
	digits := strings.ToLower(strings.ReplaceAll(text, "-", ""))
	if len(digits) < 4 || len(digits) > 32 || strings.Trim(digits, "0123456789abcdef") != "" {
		return low, high, false
	}
	low, err := uuid.Parse(digits + strings.Repeat("0", 32-len(digits)))
	if err != nil {
		return low, high, false
	}
	high, err = uuid.Parse(digits + strings.Repeat("f", 32-len(digits)))
	return low, high, err == nil
}
