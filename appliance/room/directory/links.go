package directory

import (
	"context"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
)

const maxLabel = 200

// NewLink links a room to another.
type NewLink struct {
	Target uuid.UUID
	Label  string // what the other room is to this one
}

// Link makes a link from a room to another, or gives the one that is there a new label. It needs write access to the
// first and read access to the second.
func (d *Directory) Link(ctx context.Context, by room.Actor, id uuid.UUID, l NewLink) error {
	return d.st.Update(ctx, "link rooms", func(tx Tx) error {
		r, err := writable(tx, by, id)
		if err != nil {
			return err
		}
		if err := setLink(tx, by, r, l, ""); err != nil {
			return err
		}
		return d.record(ctx, tx, by, "room.linked", "room", id, map[string]any{"target": l.Target.String(), "label": l.Label})
	})
}

func setLink(tx Tx, by room.Actor, r room.Room, l NewLink, field string) error {
	prefix := ""
	if field != "" {
		prefix = field + "."
	}
	if err := checkText(prefix+"label", l.Label, 0, maxLabel); err != nil {
		return err
	}
	target, err := readable(tx, by, l.Target)
	if err != nil {
		return fieldOf(err, prefix+"target_room_id")
	}
	if target.No == r.No {
		return fault.Field(prefix+"target_room_id", "a room cannot be linked to itself")
	}
	return tx.DirSetLink(r.No, target.No, l.Label)
}

// Unlink removes a link. NotFound when there is none.
func (d *Directory) Unlink(ctx context.Context, by room.Actor, id, target uuid.UUID) error {
	return d.st.Update(ctx, "unlink rooms", func(tx Tx) error {
		r, err := writable(tx, by, id)
		if err != nil {
			return err
		}
		to, err := roomFor(tx, target)
		if err != nil {
			return fieldOf(err, "target_room_id")
		}
		was, err := tx.DirDeleteLink(r.No, to.No)
		if err != nil {
			return err
		}
		if !was {
			return fault.New(fault.NotFound, "room %q has no link to room %q", r.Name, to.Name)
		}
		return d.record(ctx, tx, by, "room.unlinked", "room", id, map[string]any{"target": target.String()})
	})
}

// LinkView is a link as somebody sees it (H.4).
type LinkView struct {
	Link
	Member bool // the agent, or the person, is in the target
	// Readable tells whether name and description may be shown.
	Readable bool
}

// Links returns the links from a room that the actor may read or is in.
func (d *Directory) Links(ctx context.Context, by room.Actor, id uuid.UUID) (links []LinkView, err error) {
	err = d.st.View(ctx, func(tx ReadTx) error {
		r, err := readable(tx, by, id)
		if err != nil {
			return err
		}
		list, err := tx.DirLinks(r.No)
		if err != nil {
			return err
		}
		links = make([]LinkView, len(list))
		for i, l := range list {
			links[i].Link = l
			if links[i].Member, err = memberOf(tx, by, l.Target.No); err != nil {
				return err
			}
			links[i].Readable = links[i].Member || l.Target.MayRead(by)
		}
		return nil
	})
	return links, err
}

// memberOf tells whether the actor itself is in the room.
func memberOf(tx ReadTx, by room.Actor, roomNo int64) (in bool, err error) {
	switch by.Kind {
	case room.KindAgent:
		return tx.DirAgentIn(roomNo, by.No)
	case room.KindPerson:
		in, _, err = tx.DirPersonIn(roomNo, by.No)
	}
	return in, err
}
