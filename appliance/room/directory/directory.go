// Package directory keeps rooms and what belongs to them: who is in them and under which alias, the definitions of their
// roles, links, references, documents and groups. Section names in comments are those of the rooms protocol.
//
// A change of membership is one transaction: the row, the room_join item with its events or the removal of what waited
// (N.2). What is kept in memory, claims and leases, follows after COMMIT and before the caller is answered.
package directory

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/audit"
	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/timeline"
	"signalbox/appliance/wake"
)

// Log writes room_join items (D.7); the timeline is one.
type Log interface {
	// Joined appends the items and queues their events for the other members. The rows of all who join are there already.
	Joined(tx LogTx, roomNo int64, who ...room.Actor) error
}

// Queue removes what waits for members who leave (C.7); the feed is one.
type Queue interface {
	Forget(tx QueueTx, agentNo, roomNo int64) error
	// ForgetRoom does it for every member; it is called before the members' rows go.
	ForgetRoom(tx QueueTx, roomNo int64) error
}

// Changes is told of committed changes that free or widen what connections hold in memory. It is called on the writer's
// goroutine and must be brief.
type Changes interface {
	Joined(agentNo int64, r room.Ref)
	Left(agentNo, roomNo int64)
	RoleGone(roomNo int64, role string)
}

// Parts are what the Directory works with.
type Parts struct {
	Store room.Store[Tx, ReadTx]
	// Upkeep is the store's lane of maintenance, for PurgeDeleted.
	Upkeep  room.Store[Tx, ReadTx]
	Audit   *audit.Log
	Log     Log
	Queue   Queue
	Changes Changes
	Hub     *wake.Hub
}

// Directory keeps rooms and what belongs to them. Its methods are safe for concurrent use; those that write return only
// when the write is durable, and have written their audit row with it.
type Directory struct {
	st, upkeep room.Store[Tx, ReadTx]
	audit      *audit.Log
	log        Log
	queue      Queue
	changes    Changes
	hub        *wake.Hub
}

// New returns a Directory of the parts; all of them are needed.
func New(p Parts) *Directory {
	return &Directory{st: p.Store, upkeep: p.Upkeep, audit: p.Audit, log: p.Log, queue: p.Queue, changes: p.Changes,
		hub: p.Hub}
}

// MaxDocument is the largest document of a room, in bytes (K).
const MaxDocument = 1 << 20

// Limits of texts, in characters. The names' are the schema's.
const (
	maxName         = 200
	maxDescription  = 4096
	maxInstructions = 65536
	maxValue        = 65536
	maxListed       = 100  // names in one audit row, and roles and the like that a room begins with
	maxFounders     = 5000 // agents, and people, that a room begins with
)

// record audits a change. Whoever did it is named by the credential that the request came with, else by participant id.
func (d *Directory) record(ctx context.Context, tx Tx, by room.Actor, action, targetType string, target uuid.UUID,
	metadata map[string]any) error {
	meta := map[string]any{"actor": string(by.Kind), "actor_name": by.Name}
	for k, v := range metadata {
		meta[k] = v
	}
	b, err := json.Marshal(meta)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode audit metadata of %s", action)
	}
	from := room.OriginOf(ctx)
	who := from.Principal
	if who == "" {
		who = by.ParticipantID()
	}
	return d.audit.Append(tx, audit.Entry{UserID: &who, Action: action, TargetType: targetType,
		TargetID: textOrNil(target.String()), Result: audit.Success, Outcome: audit.Allow, Metadata: b,
		SourceIP: textOrNil(from.SourceIP), UserAgent: textOrNil(from.UserAgent)})
}

// textOrNil is nil for the empty text.
func textOrNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// changed hints, once the transaction is durable or may be, the people in the room who watch their rooms, and then whoever watches
// its log: somebody who was removed must notice that first, since what was said later may be of the same commit.
func (d *Directory) changed(tx Tx, roomNo int64) error {
	people, err := tx.DirPeopleOf(roomNo)
	if err != nil {
		return err
	}
	tx.Hint(func() {
		for _, no := range people {
			d.hub.Wake(timeline.PersonKey{PersonNo: no})
		}
		d.hub.Wake(timeline.RoomKey{RoomNo: roomNo})
	})
	return nil
}

// roomFor finds a room that is not deleted.
func roomFor(tx ReadTx, id uuid.UUID) (room.Room, error) {
	r, err := tx.DirRoom(id)
	return r, named(err, "room %s", id)
}

// readable is roomFor for somebody who may read the room: by the ownership rule (A.6), or by being in it.
func readable(tx ReadTx, by room.Actor, id uuid.UUID) (room.Room, error) {
	r, err := roomFor(tx, id)
	if err != nil || r.MayRead(by) {
		return r, err
	}
	in, err := isIn(tx, r.No, by)
	if err == nil && !in {
		err = fault.New(fault.Forbidden, "room %s is private", id)
	}
	return r, err
}

// writable is roomFor for somebody who may write to the room: by the ownership rule (A.6), or as its manager.
func writable(tx ReadTx, by room.Actor, id uuid.UUID) (room.Room, error) {
	r, err := roomFor(tx, id)
	if err != nil {
		return r, err
	}
	ok, err := mayWrite(tx, by, r)
	if err == nil && !ok {
		err = fault.New(fault.Forbidden, "room %q may be changed only by its owner, its managers or an admin", r.Name)
	}
	return r, err
}

func mayWrite(tx ReadTx, by room.Actor, r room.Room) (bool, error) {
	if r.MayWrite(by) {
		return true, nil
	}
	return isManager(tx, by, r)
}

// manages tells whether the actor decides about the people in the room: owner, admin or manager. A visibility that lets
// everybody write is not enough.
func manages(tx ReadTx, by room.Actor, r room.Room) (bool, error) {
	if r.MayDelete(by) {
		return true, nil
	}
	return isManager(tx, by, r)
}

func isManager(tx ReadTx, by room.Actor, r room.Room) (bool, error) {
	if by.OwnerNo == 0 {
		return false, nil
	}
	_, manager, err := tx.DirPersonIn(r.No, by.OwnerNo)
	return manager, err
}

// isIn tells whether the actor, or the person whose rights it has, is in the room.
func isIn(tx ReadTx, roomNo int64, by room.Actor) (bool, error) {
	if by.Kind == room.KindAgent {
		if in, err := tx.DirAgentIn(roomNo, by.No); err != nil || in {
			return in, err
		}
	}
	if by.OwnerNo == 0 {
		return false, nil
	}
	in, _, err := tx.DirPersonIn(roomNo, by.OwnerNo)
	return in, err
}

// notArchived refuses what an archived room does not take.
func notArchived(r room.Room) error {
	if r.ArchivedAt != nil {
		return fault.New(fault.Conflict, "room %q is archived; unarchive it first", r.Name)
	}
	return nil
}

// checkText checks a text field: valid UTF-8 without NUL, between least and most characters, not blank when least is
// above zero.
func checkText(field, s string, least, most int) error {
	switch {
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		return fault.Field(field, "must be valid UTF-8 text without NUL")
	case least > 0 && strings.TrimSpace(s) == "":
		return fault.Field(field, "must not be empty")
	case utf8.RuneCountInString(s) > most:
		return fault.Field(field, "must have at most %d characters", most)
	}
	return nil
}

// checkName checks what people and agents see as the name of something: one line, without what a terminal would obey.
func checkName(field, s string) error {
	if err := checkText(field, s, 1, maxName); err != nil {
		return err
	}
	if strings.ContainsFunc(s, unicode.IsControl) {
		return fault.Field(field, "must be one line of text without control characters")
	}
	return nil
}

// checkVisibility checks a pair (A.6) and fills in what is empty.
func checkVisibility(read, write *room.Visibility, otherwise room.Visibility) error {
	for _, v := range []struct {
		field string
		value *room.Visibility
	}{{"read_visibility", read}, {"write_visibility", write}} {
		switch *v.value {
		case "":
			*v.value = otherwise
		case room.Public, room.Private:
		default:
			return fault.Field(v.field, "must be public or private")
		}
	}
	if *write == room.Public && *read != room.Public {
		return fault.Field("write_visibility", "must be private when read_visibility is private")
	}
	return nil
}

// named makes a NotFound that says what was not found, and passes any other error.
func named(err error, format string, args ...any) error {
	if fault.Is(err, fault.NotFound) {
		return fault.Wrap(fault.NotFound, errors.Unwrap(err), format+" not found", args...)
	}
	return err
}

// newID makes an id that sorts by its time.
func newID() (uuid.UUID, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return uuid.Nil, fault.Wrap(fault.Internal, err, "make an id")
	}
	return id, nil
}

// some cuts a list of names for the audit log.
func some(names []string) []string { return names[:min(len(names), maxListed)] }
