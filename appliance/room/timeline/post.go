package timeline

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/feed"
)

// Limits of a draft beside the body's.
const (
	maxAttachments = 100
	maxShortText   = 200 // bytes of a request id and of on_behalf_of
)

// Draft is what somebody wants to say in a room.
type Draft struct {
	Actor       room.Actor
	RoomID      uuid.UUID
	Body        string
	ThreadID    string // of any message in the thread; "": top level
	Attachments []room.Attachment
	RequestID   string // idempotency key of the actor in this room; "": none
	OnBehalfOf  string // of a platform message: whom it speaks for
	RefuseNew   error  // what a new message is refused with; a known request is answered all the same. nil: nothing
}

// Posted is what became of a draft.
type Posted struct {
	Item     room.Item
	Statuses map[int64]room.Status // of the agents addressed, or told a command, by number; as of now, none of a repeated command
	Repeated bool                  // the request was known: Item and Answers are the first answer
	Answers  []room.Item           // what the server said to it in the same transaction

	refused map[int64]bool // agents meant whose policy refuses the sender
	held    map[int64]string
	cast    *room.Cast
}

// Post says something in a room, in one transaction: the item, its events and the automatic answers to it. The actor
// must be a member (Forbidden, naming the room), and the room must not be archived (Conflict). A text of a person that
// starts with ! and has no attachments is a command (D.7).
//
// A request id makes it idempotent: the same draft again gives the first answer, even after the room was archived; a
// different one is refused with room.CodeRequestReused.
func (t *Timeline) Post(ctx context.Context, d Draft) (Posted, error) {
	if err := t.check(d); err != nil {
		return Posted{}, err
	}
	if d.Actor.Kind == room.KindPerson && len(d.Attachments) == 0 {
		if name, args, ok := room.ParseTyped(d.Body); ok {
			return t.postTyped(ctx, d, name, args)
		}
	}
	return t.postMessage(ctx, d)
}

func (t *Timeline) postMessage(ctx context.Context, d Draft) (Posted, error) {
	held, err := t.roleHolders(ctx, d.RoomID)
	if err != nil {
		return Posted{}, err
	}
	var out Posted
	var addressed map[int64]bool
	err = t.store.Update(ctx, "room_post", func(tx Tx) error {
		out = Posted{}
		s, err := t.enter(tx, d)
		if err != nil {
			return err
		}
		out.cast = s.cast
		if s.first != nil {
			out.Item, out.Answers, out.Repeated = s.first.item, s.first.answers, true
			a := room.Address(s.cast, out.Item, s.actor, held)
			addressed, out.refused = a.Addressed, set(a.Refused)
			return nil
		}
		var a room.Addressing
		out.Item, err = t.append(tx, s.cast, &s.spot, s.item(d, room.ItemMessage), func(it room.Item) feed.Audience {
			a = room.Address(s.cast, it, s.actor, held)
			return feed.Audience{Flagged: a.Addressed}
		})
		if err != nil {
			return err
		}
		addressed, out.refused = a.Addressed, set(a.Refused)
		out.Answers, err = t.answer(tx, &s, out.Item, refusals(s.cast, a.Refused, s.actor))
		return err
	})
	if err != nil {
		return Posted{}, err
	}
	out.held = held
	out.Statuses = t.statuses(out.cast, addressed)
	return out, nil
}

// check applies the rules of a draft that need no database.
func (t *Timeline) check(d Draft) error {
	switch {
	case strings.TrimSpace(d.Body) == "" && len(d.Attachments) == 0:
		return fault.Field("body", "must not be empty")
	case len(d.Body) > t.maxBody:
		return fault.Field("body", "must be at most %d bytes", t.maxBody)
	case !utf8.ValidString(d.Body):
		return fault.Field("body", "must be UTF-8")
	case len(d.Attachments) > maxAttachments:
		return fault.Field("attachments", "must be at most %d", maxAttachments)
	case len(d.RequestID) > maxShortText || !utf8.ValidString(d.RequestID):
		return fault.Field("requestId", "must be at most %d bytes of UTF-8", maxShortText)
	case len(d.OnBehalfOf) > maxShortText || !utf8.ValidString(d.OnBehalfOf):
		return fault.Field("on_behalf_of", "must be at most %d bytes of UTF-8", maxShortText)
	case d.OnBehalfOf != "" && d.Actor.Kind != room.KindPlatform:
		return fault.Field("on_behalf_of", "only the platform speaks for somebody")
	}
	return nil
}

// scene is a room as a draft finds it.
type scene struct {
	cast   *room.Cast
	spot   Spot
	actor  room.Actor // as the room knows it now
	root   thread     // the thread that the draft goes to
	digest []byte     // of the draft, when it has a request id
	first  *answered  // the request is known
}

type thread struct {
	no int64
	id uuid.UUID
}

type answered struct {
	item    room.Item
	answers []room.Item
}

// enter finds the room and checks that the draft may be posted there, in the order: room, membership, repetition,
// archived, RefuseNew, thread. A repeated request is returned as such before the last three are looked at.
func (t *Timeline) enter(tx ReadTx, d Draft) (scene, error) {
	s := scene{actor: d.Actor}
	var err error
	if s.spot, err = tx.TimelineSpot(d.RoomID); err != nil {
		return s, noRoom(err, d.RoomID)
	}
	if s.cast, err = t.castAt(tx, s.spot.RoomNo, s.spot.CastRevision); err != nil {
		return s, err
	}
	if s.actor, err = t.member(tx, s.cast, d.Actor); err != nil {
		return s, err
	}
	if d.RequestID != "" {
		if s.digest, err = digest(d); err != nil {
			return s, err
		}
		if s.first, err = repeated(tx, &s, d.RequestID); err != nil || s.first != nil {
			return s, err
		}
	}
	if s.cast.Room.ArchivedAt != nil {
		return s, fault.New(fault.Conflict, "room %s is archived", d.RoomID)
	}
	if d.RefuseNew != nil {
		return s, d.RefuseNew
	}
	s.root, err = threadRoot(tx, s.spot.RoomNo, d.ThreadID)
	return s, err
}

// item is what the draft becomes.
func (s *scene) item(d Draft, kind room.ItemKind) NewItem {
	return NewItem{Kind: kind, Sender: s.actor, OnBehalfOf: d.OnBehalfOf, Body: d.Body, ThreadNo: s.root.no,
		ThreadID: s.root.id, Attachments: d.Attachments, RequestID: d.RequestID, Digest: s.digest}
}

func noRoom(err error, id uuid.UUID) error {
	if fault.Is(err, fault.NotFound) {
		return fault.Wrap(fault.NotFound, err, "room %s does not exist", id)
	}
	return err
}

// member returns the actor as it is now, or Forbidden. The platform is at home everywhere.
func (t *Timeline) member(tx ReadTx, cast *room.Cast, a room.Actor) (room.Actor, error) {
	switch a.Kind {
	case room.KindPlatform:
		return a, nil
	case room.KindAgent:
		if m := memberOf(cast, a.No); m != nil {
			a.Name, a.OwnerNo = m.Agent.Name, m.Agent.OwnerNo
			return a, nil
		}
	case room.KindPerson:
		in, err := tx.TimelineHasPerson(cast.Room.No, a.No)
		if err != nil || in {
			return a, err
		}
	}
	return a, fault.New(fault.Forbidden, "%s is not a member of room %s", a.Name, cast.Room.ID)
}

func threadRoot(tx ReadTx, roomNo int64, threadID string) (thread, error) {
	if threadID == "" {
		return thread{}, nil
	}
	unknown := fault.Field("thread_id", "%.80q is no message of this room", threadID)
	id, err := uuid.Parse(threadID)
	if err != nil {
		return thread{}, unknown
	}
	it, err := tx.TimelineItem(id)
	switch {
	case fault.Is(err, fault.NotFound), err == nil && it.RoomNo != roomNo:
		return thread{}, unknown
	case err != nil:
		return thread{}, err
	}
	return rootOf(it), nil
}

// rootOf is the thread that a reply to the item belongs to: threads are flat.
func rootOf(it room.Item) thread {
	if it.ThreadNo != 0 {
		return thread{it.ThreadNo, it.ThreadID}
	}
	return thread{it.No, it.ID}
}

// digest stands for all of a draft that a repetition must have in common with it.
func digest(d Draft) ([]byte, error) {
	b, err := json.Marshal([]any{1, d.Body, d.ThreadID, d.Attachments, d.OnBehalfOf})
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "encode the payload of a request")
	}
	sum := sha256.Sum256(b)
	return sum[:], nil
}

// repeated finds the first answer to a request; nil when the request is new.
func repeated(tx ReadTx, s *scene, requestID string) (*answered, error) {
	it, stored, err := tx.TimelineRequest(s.spot.RoomNo, s.actor.Kind, s.actor.No, requestID)
	if fault.Is(err, fault.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if subtle.ConstantTimeCompare(stored, s.digest) != 1 {
		return nil, room.Refuse(room.CodeRequestReused, "requestId was used in this room for something else")
	}
	// The answers follow their cause at once, being of one transaction with it.
	next, err := tx.TimelineForward(it.RoomNo, it.Position, maxAnswers)
	if err != nil {
		return nil, err
	}
	n := 0
	for n < len(next) && next[n].Automatic && next[n].ThreadNo == rootOf(it).no {
		n++
	}
	return &answered{it, next[:n]}, nil
}

// roleHolders samples who live-holds which role. A room that was not used lately is looked up first.
func (t *Timeline) roleHolders(ctx context.Context, roomID uuid.UUID) (map[int64]string, error) {
	no, known := t.casts.number(roomID)
	if !known {
		err := t.store.View(ctx, func(tx ReadTx) error {
			spot, err := tx.TimelineSpot(roomID)
			if err != nil {
				return noRoom(err, roomID)
			}
			no = spot.RoomNo
			_, err = t.castAt(tx, spot.RoomNo, spot.CastRevision)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return t.presence.RoleHolders(no), nil
}

// statuses tells how the agents are, as of now.
func (t *Timeline) statuses(cast *room.Cast, agents map[int64]bool) map[int64]room.Status {
	out := make(map[int64]room.Status, len(agents))
	for no := range agents {
		if m := memberOf(cast, no); m != nil {
			out[no] = t.presence.Status(no, m.Agent.Profile.ConnectionModel, cast.Room.No)
		}
	}
	return out
}

func set(nos []int64) map[int64]bool {
	out := make(map[int64]bool, len(nos))
	for _, no := range nos {
		out[no] = true
	}
	return out
}
