// Package identity keeps who takes part in rooms: people, the keys that register agents, and agents with their own keys.
// It says who a credential proves. Section names in comments are those of the rooms protocol.
package identity

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/secret"
)

// ReadTx is what the Identity reads. Single-row methods fail with NotFound when there is no row.
type ReadTx interface {
	room.Reader
	RoomPersonByID(id uuid.UUID) (room.Person, error)
	RoomPersonByNo(no int64) (room.Person, error)
	// RoomPersonOfKind finds the operator or the bootstrap person.
	RoomPersonOfKind(kind room.PersonKind) (room.Person, error)
	// RoomPersonSecrets finds what a sign-in is checked against, by the e-mail address in lower case.
	RoomPersonSecrets(email string) (room.Person, Secrets, error)
	// RoomPersonSessions returns a person and the time before which its cookies are void.
	RoomPersonSessions(id uuid.UUID) (room.Person, time.Time, error)
	// RoomPeople returns at most limit people above number after, in the order they were made.
	RoomPeople(after int64, limit int) ([]room.Person, error)
	// RoomPeopleNamed returns at most limit people of exactly this name.
	RoomPeopleNamed(name string, limit int) ([]room.Person, error)

	// RoomKeyByHash finds a registration key that is not revoked, with the hash it is stored under.
	RoomKeyByHash(hash string) (Key, string, error)
	RoomKeyByID(id uuid.UUID) (Key, error)
	// RoomKeys returns the keys in the order they were made: of one person, or all when personNo is 0.
	RoomKeys(personNo int64, includeRevoked bool) ([]Key, error)

	// RoomAgentByHash finds an agent by the hash of its key, with the hash it is stored under.
	RoomAgentByHash(hash string) (room.Agent, string, error)
	RoomAgentByID(id uuid.UUID) (room.Agent, error)
	RoomAgentByNo(no int64) (room.Agent, error)
	RoomAgentByName(name string) (room.Agent, error)
	// RoomAgents returns at most limit agents by name that match the filter.
	RoomAgents(f AgentFilter, limit int) ([]room.Agent, error)
	// RoomsOfAgent returns the rooms that the agent is a member of, by number.
	RoomsOfAgent(agentNo int64) ([]room.Ref, error)
}

// Tx is what the Identity writes through.
type Tx interface {
	room.Writer
	ReadTx
	audit.Tx
	// InsertRoomPerson stores a person and returns its number; Conflict when the e-mail address is taken.
	InsertRoomPerson(p room.Person, s Secrets) (int64, error)
	// UpdateRoomPerson stores name, role and whether the person is disabled.
	UpdateRoomPerson(p room.Person) error
	// SetRoomPersonPassword stores a password hash.
	SetRoomPersonPassword(personNo int64, hash string) error
	// SetRoomPersonSessions voids the cookies that were issued before the time.
	SetRoomPersonSessions(personNo int64, after time.Time) error
	InsertRoomKey(k Key, hash string) error
	// RevokeRoomKey revokes a live key and reports whether it was live.
	RevokeRoomKey(id uuid.UUID) (bool, error)
	// InsertRoomAgent stores an agent and returns its number; Conflict when the name is taken.
	InsertRoomAgent(a room.Agent, keyHash string) (int64, error)
	// UpdateRoomAgent stores every changeable field of the agent but its key.
	UpdateRoomAgent(a room.Agent) error
	// SetRoomAgentKey replaces the key of an agent.
	SetRoomAgentKey(agentNo int64, keyHash string) error
	// DeleteRoomAgent removes the agent and its memberships.
	DeleteRoomAgent(agentNo int64) error
}

// Secrets are what a person's sign-in is checked against.
type Secrets struct {
	PasswordHash  string    // PHC form; "": cannot sign in
	SessionsAfter time.Time // cookies issued before are void
}

// Keys are the master secrets: Current makes and proves, Previous only prove, newest first.
type Keys struct {
	Current  secret.Bytes
	Previous []secret.Bytes
}

// Options are the Identity's settings.
type Options struct {
	Clock clock.Clock // nil is the system's
	// OnDelete removes what other parts keep of an agent, inside the transaction that deletes it, while its memberships
	// are still there. nil removes nothing.
	OnDelete func(tx Tx, a room.Agent) error
	// Closed is told, after COMMIT and on the writer's goroutine, that an agent is gone and its connections must end
	// (A.4). nil tells nobody.
	Closed func(agentNo int64, why string)
	// Trouble is told of a failure that its caller is not. nil tells nobody. It must not block.
	Trouble func(op string, err error)
	// Hashers is how many passwords are hashed at once; each takes about 19 MiB. 0 is 2.
	Hashers int
}

// Identity keeps people, keys and agents. Its methods are safe for concurrent use; those that write return only when the
// write is durable, and have written their audit row with it. Whoever acts is named by a room.Actor; the origin of the
// request comes from the context (room.WithOrigin).
type Identity struct {
	st       room.Store[Tx, ReadTx]
	log      *audit.Log
	clock    clock.Clock
	opts     Options
	sessions sessions
	hasher   *hasher
	attempts *attempts
	cache    *keyCache
}

// New returns an Identity on the store.
func New(st room.Store[Tx, ReadTx], log *audit.Log, keys Keys, o Options) *Identity {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.OnDelete == nil {
		o.OnDelete = func(Tx, room.Agent) error { return nil }
	}
	if o.Closed == nil {
		o.Closed = func(int64, string) {}
	}
	if o.Trouble == nil {
		o.Trouble = func(string, error) {}
	}
	return &Identity{st: st, log: log, clock: o.Clock, opts: o, sessions: newSessions(keys),
		hasher: newHasher(o.Hashers), attempts: newAttempts(o.Clock), cache: newKeyCache(o.Clock)}
}

// record audits a change.
func (d *Identity) record(ctx context.Context, tx Tx, by room.Actor, action, targetType string, target uuid.UUID,
	metadata map[string]any) error {
	return d.append(ctx, tx, by, audit.Entry{Action: action, TargetType: targetType, TargetID: textOrNil(target.String()),
		Result: audit.Success, Outcome: audit.Allow}, metadata)
}

// append adds an audit row of the actor and the request's origin.
func (d *Identity) append(ctx context.Context, tx Tx, by room.Actor, e audit.Entry, metadata map[string]any) error {
	if metadata != nil {
		meta, err := json.Marshal(metadata)
		if err != nil {
			return fault.Wrap(fault.Internal, err, "encode audit metadata of %s", e.Action)
		}
		e.Metadata = meta
	}
	from := room.OriginOf(ctx)
	who := from.Principal
	if who == "" && by.ID != uuid.Nil {
		who = by.ParticipantID()
	}
	e.UserID, e.SourceIP, e.UserAgent = textOrNil(who), textOrNil(from.SourceIP), textOrNil(from.UserAgent)
	return d.log.Append(tx, e)
}

// newID makes an id in the order of time.
func newID() (uuid.UUID, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return id, fault.Wrap(fault.Internal, err, "make an id")
	}
	return id, nil
}

// textOrNil is nil for the empty text.
func textOrNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// named makes a NotFound that says what was not found, and passes any other error.
func named(err error, what string) error {
	if fault.Is(err, fault.NotFound) {
		return fault.Wrap(fault.NotFound, errors.Unwrap(err), "%s not found", what)
	}
	return err
}
