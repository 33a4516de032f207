// Package operation is the table of operations that agents call (H of the rooms protocol; section names in comments are
// those of it). One table drives dispatch, the schemas of `GET ops`, MCP tools and the documentation, so that they
// cannot drift apart.
package operation

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/directory"
	"signalbox/appliance/room/identity"
	"signalbox/appliance/room/timeline"
)

// Identity finds and changes agents; *identity.Identity is one.
type Identity interface {
	AgentNamed(ctx context.Context, name string) (room.Agent, error)
	Agents(ctx context.Context, f identity.AgentFilter) (list []room.Agent, more bool, err error)
	UpdateAgent(ctx context.Context, by room.Actor, id uuid.UUID, c identity.AgentChange) (room.Agent, error)
}

// Timeline speaks and reads in rooms; *timeline.Timeline is one.
type Timeline interface {
	Post(ctx context.Context, d timeline.Draft) (timeline.Posted, error)
	PostTargeted(ctx context.Context, d timeline.Draft, t timeline.Targets) (timeline.Posted, map[string]string, error)
	History(ctx context.Context, actor room.Actor, q timeline.HistoryQuery) (timeline.History, error)
}

// Feed tells the last number of an agent's events; *feed.Feed is one.
type Feed interface {
	Head(ctx context.Context, agentNo int64) (int64, error)
}

// Connections are the live connections; *connection.Registry is one.
type Connections interface {
	Require(agentNo int64, id string) error
	Locate(agentNo int64, id, session string) (room.Ref, error)
	Connect(agentNo int64, id, session string, roomID uuid.UUID) (connection.Connected, error)
	List(agentNo int64) []connection.Info
	Presence(agentNo, roomNo int64) room.Presence
	Status(agentNo int64, m room.ConnectionModel, roomNo int64) room.Status
	AssumeRole(agentNo int64, id string, roomID uuid.UUID, role string, exclusive bool) error
	ReleaseRole(agentNo int64) (connection.Lease, bool)
	HeldRole(agentNo int64) (connection.Lease, bool)
	RoleHolders(roomNo int64) map[int64]string
	Leases(roomNo int64) []connection.Lease
	SetBaseline(agentNo, roomNo, at int64)
}

// Services are what the operations work with; all of them are needed.
type Services struct {
	Directory   *directory.Directory
	Identity    Identity
	Timeline    Timeline
	Feed        Feed
	Connections Connections
}

// operation is one entry of the table.
type operation struct {
	name, group, description string
	args                     []arg
	result                   string // for the documentation
	// bound operations act in the room that the call is bound to (H.2).
	bound bool
	run   func(*request) (any, error)
}

// Table is the table of operations. It never changes; safe for concurrent use.
type Table struct {
	svc       Services
	byName    map[string]*operation
	schemas   json.RawMessage
	loadBytes int // content that one call of load_internal_documents returns
	// read is told of every argument that an operation looks at; nil outside of tests.
	read func(op, arg string)
}

// New returns the table on the services.
func New(s Services) *Table {
	t := &Table{svc: s, byName: make(map[string]*operation, len(operations)), loadBytes: 4 << 20}
	for i := range operations {
		t.byName[operations[i].name] = &operations[i]
	}
	t.schemas = schemas()
	return t
}

// operations is the table, in the order in which it is shown.
var operations = table(coreOperations, roomOperations, roleOperations, referenceOperations, documentOperations, linkOperations,
	groupOperations, agentOperations)

func table(groups ...[]operation) (all []operation) {
	for _, g := range groups {
		all = append(all, g...)
	}
	return all
}

// Info is what may be known of an operation.
type Info struct {
	Name, Group, Description string
	InputSchema              json.RawMessage // a JSON schema of type object
	RoomBound                bool            // acts in the room that the call is bound to (H.2)
}

// Operations lists the table in its order.
func (t *Table) Operations() []Info {
	list := make([]Info, len(operations))
	for i := range operations {
		op := &operations[i]
		list[i] = Info{op.name, op.group, op.description, op.schema(), op.bound}
	}
	return list
}

// Schemas is the "operations" object of `GET ops` (H.1). It must not be changed.
func (t *Table) Schemas() json.RawMessage { return t.schemas }

func schemas() json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('{')
	for i := range operations {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(quote(operations[i].name) + `:{"description":` + quote(operations[i].description) + `,"input_schema":`)
		b.Write(operations[i].schema())
		b.WriteByte('}')
	}
	b.WriteByte('}')
	return b.Bytes()
}

// Call is one call of an operation by an agent.
type Call struct {
	Agent         room.Agent
	ConnectionID  string // with HasConnection: the header X-Switch-Connection-Id
	SessionID     string // "": no session selector
	HasConnection bool
	Name          string
	Args          json.RawMessage // a JSON object; empty is {}
}

// Call checks and runs an operation and returns its result, to be encoded as JSON (H.1). NotFound means that there is no
// such operation, Conflict that the connection is not open: a domain's own refusals of these kinds are told as Invalid.
// Nothing is changed by a call that is refused.
func (t *Table) Call(ctx context.Context, c Call) (any, error) {
	op := t.byName[c.Name]
	if op == nil {
		return nil, fault.New(fault.NotFound, "there is no operation %.80q", c.Name)
	}
	if c.SessionID != "" && !c.HasConnection {
		return nil, fault.New(fault.Invalid, "a session needs a connection: send the connection id header beside the session's")
	}
	given, err := op.parse(c.Args)
	if err != nil {
		return nil, err
	}
	r := &request{Table: t, ctx: ctx, op: op, Call: c, args: given, actor: c.Agent.Actor()}
	if c.HasConnection {
		if err := t.svc.Connections.Require(c.Agent.No, c.ConnectionID); err != nil {
			return nil, err
		}
	}
	if op.bound {
		if r.room, err = r.locate(); err != nil {
			return nil, refusal(err)
		}
	}
	result, err := op.run(r)
	if err != nil {
		return nil, refusal(err)
	}
	return result, nil
}

// request is a call that runs.
type request struct {
	*Table
	Call
	ctx   context.Context
	op    *operation
	args  map[string]any
	actor room.Actor
	room  room.Ref // of bound operations
}

// direct is an error of the connections: its kind is the answer's.
type direct struct{ error }

// refusal is a domain's error as an operation tells it.
func refusal(err error) error {
	if d, ok := err.(direct); ok {
		return d.error
	}
	switch code := fault.CodeOf(err); code {
	case fault.NotFound, fault.Conflict:
		return fault.Wrap(fault.Invalid, err, "%s", fault.Message(err))
	}
	return err
}

// locate finds the room that the call is bound to (H.2).
func (r *request) locate() (room.Ref, error) {
	id := ""
	if r.HasConnection {
		id = r.ConnectionID
	}
	ref, err := r.svc.Connections.Locate(r.Agent.No, id, r.SessionID)
	if err != nil {
		return ref, direct{err}
	}
	return ref, nil
}

// roomID is the room that the argument names, else the one that the call is bound to.
func (r *request) roomID(name string) (uuid.UUID, error) {
	id, given, err := r.optionalID(name)
	if err != nil || given {
		return id, err
	}
	ref, err := r.locate()
	return ref.ID, err
}

// quote is a text as JSON, without the escapes for HTML.
func quote(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // texts, booleans and numbers of the table
	return strings.TrimSuffix(b.String(), "\n")
}
