package identity

import (
	"context"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/secret"
)

// KeyKind sets apart the two kinds of keys that register agents (A.1).
type KeyKind string

// The kinds of keys.
const (
	KeyRegistration KeyKind = "registration" // what it registers belongs to the person it was made for
	KeyBootstrap    KeyKind = "bootstrap"    // what it registers belongs to the bootstrap person
)

// maxKeyLabel is the longest label of a key, in characters.
const maxKeyLabel = 200

// Key is a key that registers agents. Its text exists only where it was made.
type Key struct {
	ID         uuid.UUID
	Kind       KeyKind
	Label      string
	PersonNo   int64
	PersonID   uuid.UUID
	PersonName string
	CreatedAt  time.Time
	RevokedAt  *time.Time
}

// NewKey asks for a key.
type NewKey struct {
	Kind  KeyKind
	Label string
	// For is the person that will own what the key registers; uuid.Nil: whoever asks. Only an admin asks for others.
	// A bootstrap key belongs to the bootstrap person, and For must be uuid.Nil.
	For uuid.UUID
}

// CreateKey makes a key and returns it with its text, which exists only here. Invalid for a bad field, Forbidden for a
// bootstrap key or a key of another person unless an admin asks.
func (d *Identity) CreateKey(ctx context.Context, by room.Actor, n NewKey) (Key, secret.Text, error) {
	if err := d.mayCreateKey(by, &n); err != nil {
		return Key{}, secret.Text{}, err
	}
	id, err := newID()
	if err != nil {
		return Key{}, secret.Text{}, err
	}
	k := Key{ID: id, Kind: n.Kind, Label: n.Label}
	text := secret.NewRoomKey()
	err = d.st.Update(ctx, "create registration key", func(tx Tx) error {
		owner, err := d.keyOwner(ctx, tx, by, n)
		if err != nil {
			return err
		}
		k.PersonNo, k.PersonID, k.PersonName, k.CreatedAt = owner.No, owner.ID, owner.Name, tx.Now()
		if err := tx.InsertRoomKey(k, secret.RoomKeyHash(text.Reveal())); err != nil {
			return err
		}
		return d.record(ctx, tx, by, "registration_key.created", "registration_key", k.ID,
			map[string]any{"kind": k.Kind, "label": k.Label, "person_id": owner.ID.String()})
	})
	if err != nil {
		return Key{}, secret.Text{}, err
	}
	return k, text, nil
}

func (d *Identity) mayCreateKey(by room.Actor, n *NewKey) error {
	if err := checkLine("label", n.Label, 0, maxKeyLabel); err != nil {
		return err
	}
	switch n.Kind {
	case KeyRegistration:
		if n.For == uuid.Nil {
			if by.Kind != room.KindPerson {
				return fault.New(fault.Forbidden, "only a person makes a registration key for itself")
			}
			n.For = by.ID
		}
		if n.For != by.ID && !by.Admin {
			return fault.New(fault.Forbidden, "only an admin makes a registration key for somebody else")
		}
	case KeyBootstrap:
		if n.For != uuid.Nil {
			return fault.Field("for", "must be absent: what a bootstrap key registers belongs to the bootstrap person")
		}
		if !by.Admin {
			return fault.New(fault.Forbidden, "only an admin makes a bootstrap key")
		}
	default:
		return fault.Field("kind", "must be registration or bootstrap")
	}
	return nil
}

func (d *Identity) keyOwner(ctx context.Context, tx Tx, by room.Actor, n NewKey) (room.Person, error) {
	if n.Kind == KeyBootstrap {
		return d.ensurePerson(ctx, tx, room.PersonBootstrap)
	}
	p, err := tx.RoomPersonByID(n.For)
	if fault.Is(err, fault.NotFound) {
		return p, fault.Field("for", "must be the id of a person")
	}
	if err == nil && p.DisabledAt != nil {
		err = fault.New(fault.Conflict, "%s is disabled and gets no key", p.Name)
	}
	return p, err
}

// Keys returns keys in the order they were made: those of one person, or all when personNo is 0.
func (d *Identity) Keys(ctx context.Context, personNo int64, includeRevoked bool) ([]Key, error) {
	var out []Key
	err := d.st.View(ctx, func(tx ReadTx) (err error) {
		out, err = tx.RoomKeys(personNo, includeRevoked)
		return err
	})
	return out, err
}

// RevokeKey ends a key for good; the agents it registered stay. Revoking it again changes nothing. NotFound for a key that
// does not exist or, to others than admins, is somebody else's.
func (d *Identity) RevokeKey(ctx context.Context, by room.Actor, id uuid.UUID) error {
	return d.st.Update(ctx, "revoke registration key", func(tx Tx) error {
		k, err := tx.RoomKeyByID(id)
		if err == nil && !by.Admin && k.PersonNo != by.OwnerNo {
			return fault.New(fault.NotFound, "registration key not found")
		}
		if err != nil {
			return named(err, "registration key")
		}
		live, err := tx.RevokeRoomKey(id)
		if err != nil || !live {
			return err
		}
		return d.record(ctx, tx, by, "registration_key.revoked", "registration_key", id,
			map[string]any{"kind": k.Kind, "label": k.Label, "person_id": k.PersonID.String()})
	})
}
