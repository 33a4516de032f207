//lint:file-ignore SA1019 the versions of the protocol that have sessions have logging too

package roommcp_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/directory"
	"signalbox/appliance/room/feed"
	"signalbox/appliance/room/identity"
	"signalbox/appliance/room/operation"
	"signalbox/appliance/room/timeline"
	"signalbox/appliance/secret"
	"signalbox/appliance/wake"
	"signalbox/store"
	"signalbox/store/storetest"
	"signalbox/transport"
	"signalbox/transport/roommcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is the endpoint on real parts and a real database, behind a real HTTP server. Its clock stands still unless moved.
// fox and owl are in the room, den is another room of fox.
type rig struct {
	t         *testing.T
	ctx       context.Context
	clk       *clock.Fake
	db        *store.DB
	people    *identity.Identity
	rooms     *directory.Directory
	log       *timeline.Timeline
	conns     *connection.Registry
	feed      *feed.Feed
	server    *roommcp.Server
	http      *httptest.Server
	operator  room.Actor
	ann       room.Person
	fox, owl  room.Agent
	keys      map[string]string
	room, den uuid.UUID
}

func newRig(t *testing.T, change ...func(*roommcp.Options)) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	r := &rig{t: t, ctx: ctx, clk: clock.NewFake(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), keys: map[string]string{}}
	r.db = storetest.Open(t, func(o *store.Options) { o.Clock = r.clk })
	master := secret.NewBytes([]byte(strings.Repeat("m", 32)))
	log := audit.New(audit.NewKeys(master))
	hub := wake.New()
	r.feed = feed.New(store.Bind[feed.Tx, feed.ReadTx](r.db), feed.Options{Clock: r.clk, Retained: 20})
	r.people = identity.New(store.Bind[identity.Tx, identity.ReadTx](r.db), log, identity.Keys{Current: master},
		identity.Options{Clock: r.clk, OnDelete: func(tx identity.Tx, a room.Agent) error {
			wide := tx.(directory.Tx)
			if err := r.rooms.AgentDeleted(wide, a.No); err != nil {
				return err
			}
			return r.feed.ForgetAgent(wide, a.No)
		}, Closed: func(no int64, why string) { r.conns.AgentClosed(no, why) }})
	r.conns = connection.New(r.people, connection.Options{Clock: r.clk})
	r.log = timeline.New(store.Bind[timeline.Tx, timeline.ReadTx](r.db), r.feed, r.conns, hub, timeline.Options{})
	r.rooms = directory.New(directory.Parts{Store: store.Bind[directory.Tx, directory.ReadTx](r.db),
		Upkeep: store.BindUpkeep[directory.Tx, directory.ReadTx](r.db), Audit: log, Log: r.log, Queue: r.feed, Changes: r.conns,
		Hub: hub})

	operator, err := r.people.Operator(ctx)
	r.ok("operator", err)
	r.operator = operator.Actor()
	r.operator.Admin = true
	r.ann, err = r.people.CreatePerson(ctx, r.operator, identity.NewPerson{Name: "ann", Email: "ann@example.org"})
	r.ok("ann", err)
	r.fox, r.owl = r.agent("fox"), r.agent("owl")
	r.room, r.den = r.newRoom("ops", "fox", "owl"), r.newRoom("den", "fox", "owl")

	o := roommcp.Options{Version: "1.2.3", Clock: r.clk, Log: zerolog.Nop()}
	for _, f := range change {
		f(&o)
	}
	r.server = roommcp.New(roommcp.Services{Identity: r.people, Operations: r.table(), Connections: r.conns, Feed: r.feed}, o)
	mux := http.NewServeMux()
	r.server.Routes(mux)
	metrics, err := transport.NewMetrics(prometheus.NewRegistry())
	r.ok("metrics", err)
	r.http = httptest.NewServer(transport.Front{Log: zerolog.Nop(), Metrics: metrics,
		Bodies: transport.NewBodies(func(*http.Request) int64 { return 1 << 20 },
			func(*http.Request) bool { return false })}.Wrap(transport.Mux(mux)))
	t.Cleanup(func() {
		r.ok("drain", r.server.Drain(context.WithoutCancel(r.ctx)))
		r.http.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return r
}

func (r *rig) table() *operation.Table {
	return operation.New(operation.Services{Directory: r.rooms, Identity: r.people, Timeline: r.log, Feed: r.feed,
		Connections: r.conns})
}

func (r *rig) ok(what string, err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
}

// agent registers an agent that everybody may address.
func (r *rig) agent(name string) room.Agent {
	r.t.Helper()
	got, err := r.people.Register(r.ctx, identity.RegistrantOf(r.ann), identity.NewAgent{Name: name,
		Profile: room.Profile{ConnectionModel: room.AlwaysOn, Commands: identity.NoCommands()}})
	r.ok(name, err)
	a, err := r.people.SetPolicy(r.ctx, r.operator, got.Agent.ID, nil)
	r.ok(name, err)
	r.keys[name] = got.Key.Reveal()
	return a
}

func (r *rig) newRoom(name string, agents ...string) uuid.UUID {
	r.t.Helper()
	n := directory.NewRoom{Name: name}
	for _, a := range agents {
		n.Agents = append(n.Agents, directory.Invitation{Name: a})
	}
	made, err := r.rooms.Create(r.ctx, r.operator, n)
	r.ok(name, err)
	return made.ID
}

// say posts as owl.
func (r *rig) say(roomID uuid.UUID, body string) {
	r.t.Helper()
	_, err := r.log.Post(r.ctx, timeline.Draft{Actor: r.owl.Actor(), RoomID: roomID, Body: body})
	r.ok("post", err)
}

// bearer adds a key to every request.
type bearer struct{ key string }

func (b bearer) RoundTrip(q *http.Request) (*http.Response, error) {
	q = q.Clone(q.Context())
	q.Header.Set("Authorization", "Bearer "+b.key)
	return http.DefaultTransport.RoundTrip(q)
}

// host is an MCP host with a session.
type host struct {
	*mcp.ClientSession
	r    *rig
	logs chan *mcp.LoggingMessageParams
}

func (r *rig) connect(path, key string, stream bool) (*host, error) {
	h := &host{r: r, logs: make(chan *mcp.LoggingMessageParams, 16)}
	client := mcp.NewClient(&mcp.Implementation{Name: "host", Version: "9"}, &mcp.ClientOptions{
		LoggingMessageHandler: func(_ context.Context, q *mcp.LoggingMessageRequest) { h.logs <- q.Params }})
	var err error
	h.ClientSession, err = client.Connect(r.ctx, &mcp.StreamableClientTransport{Endpoint: r.http.URL + path,
		HTTPClient: &http.Client{Transport: bearer{key}}, DisableStandaloneSSE: !stream, MaxRetries: -1}, nil)
	return h, err
}

// host opens a session of the agent; stream keeps a GET stream open.
func (r *rig) host(name string, stream bool) *host {
	r.t.Helper()
	h, err := r.connect("/mcp", r.keys[name], stream)
	r.ok("connect "+name, err)
	r.t.Cleanup(func() { _ = h.Close() })
	return h
}

// call calls a tool and returns its text, and whether it is an error.
func (h *host) call(tool string, args any) (*mcp.CallToolResult, string) {
	h.r.t.Helper()
	res, err := h.CallTool(h.r.ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	h.r.ok(tool, err)
	return res, res.Content[0].(*mcp.TextContent).Text
}

// must is call that wants success.
func (h *host) must(tool string, args any) string {
	h.r.t.Helper()
	res, text := h.call(tool, args)
	if res.IsError {
		h.r.t.Fatalf("%s: %s", tool, text)
	}
	return text
}

// waited is an answer of wait_for_messages.
type waited struct {
	Rooms  []uuid.UUID `json:"connected_room_ids"`
	Events []struct {
		Event string `json:"event"`
		ID    int64  `json:"id"`
		Data  struct {
			RoomID  uuid.UUID `json:"room_id"`
			Payload struct {
				Addressed bool   `json:"addressed"`
				Body      string `json:"body"`
			} `json:"payload"`
			Missed *struct {
				Count *int64 `json:"count"`
			} `json:"missed"`
		} `json:"data"`
	} `json:"events"`
	Unaddressed int    `json:"unaddressed"`
	Notice      string `json:"notice"`
	More        bool   `json:"more"`
	Cursor      int64  `json:"cursor"`
	Gap         *struct {
		AllRooms bool        `json:"all_rooms"`
		Rooms    []uuid.UUID `json:"room_ids"`
	} `json:"gap"`
}

func (w waited) bodies() (out []string) {
	for _, e := range w.Events {
		out = append(out, e.Data.Payload.Body)
	}
	return out
}

func (h *host) wait(args map[string]any) (w waited) {
	h.r.t.Helper()
	h.r.ok("answer", json.Unmarshal([]byte(h.must("wait_for_messages", args)), &w))
	return w
}

// now is wait without waiting.
func (h *host) now() waited { return h.wait(map[string]any{"timeout_seconds": 0}) }

func (h *host) enter(roomID uuid.UUID) {
	h.r.t.Helper()
	h.must("connect_to_room", map[string]any{"room_id": roomID})
}

// only is the one connection of the agent.
func (r *rig) only(a room.Agent) connection.Info {
	r.t.Helper()
	list := r.conns.List(a.No)
	if len(list) != 1 {
		r.t.Fatalf("%d connections, want 1", len(list))
	}
	return list[0]
}

// eventually looks again until the condition holds.
func (r *rig) eventually(what string, holds func() bool) {
	r.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("never: %s", what)
		}
	}
}

// rotate gives an agent a new key.
func (r *rig) rotate(name string) {
	r.t.Helper()
	got, err := r.people.Register(r.ctx, identity.RegistrantOf(r.ann), identity.NewAgent{Name: name, Overwrite: true,
		Profile: room.Profile{ConnectionModel: room.AlwaysOn, Commands: identity.NoCommands()}})
	r.ok(name, err)
	r.keys[name] = got.Key.Reveal()
}
