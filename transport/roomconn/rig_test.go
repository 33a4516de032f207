package roomconn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/feed"
	"signalbox/appliance/secret"
	"signalbox/store"
	"signalbox/store/storetest"
	"signalbox/transport"
	"signalbox/transport/roomclient"
	"signalbox/transport/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var begin = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// rig is a server on a real database, behind a real HTTP server. Its clock stands still unless moved.
type rig struct {
	t      testing.TB
	ctx    context.Context
	clock  *clock.Fake
	db     *store.DB
	feed   *feed.Feed
	reg    *connection.Registry
	group  *session.Group
	server *Server
	http   *httptest.Server
	broken atomic.Bool  // reads fail
	reads  atomic.Int64 // of the feed, that have ended
	agents map[string]room.Agent
	casts  map[uuid.UUID]*room.Cast
	posts  int
	opts   Options
	feedO  feed.Options
}

// breakable is the feed's store, whose reads can be made to fail.
type breakable struct {
	store.Bound[feed.Tx, feed.ReadTx]
	broken *atomic.Bool
	reads  *atomic.Int64
}

func (b breakable) View(ctx context.Context, fn func(feed.ReadTx) error) error {
	defer b.reads.Add(1)
	if b.broken.Load() {
		return errors.New("the disk is on fire")
	}
	return b.Bound.View(ctx, fn)
}

// dbRooms tells the registry who is where.
type dbRooms struct {
	store.Bound[roomsOf, roomsOf]
}

type roomsOf interface {
	RoomsOfAgent(agentNo int64) ([]room.Ref, error)
}

func (d dbRooms) AgentRooms(ctx context.Context, agentNo int64) (refs []room.Ref, err error) {
	err = d.View(ctx, func(tx roomsOf) error {
		refs, err = tx.RoomsOfAgent(agentNo)
		return err
	})
	return refs, err
}

type option func(*rig)

func newRig(t testing.TB, opts ...option) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	r := &rig{t: t, ctx: ctx, clock: clock.NewFake(begin), agents: map[string]room.Agent{}, casts: map[uuid.UUID]*room.Cast{},
		opts: Options{Version: "1.2.3"}}
	for _, o := range opts {
		o(r)
	}
	r.db = storetest.Open(t, func(o *store.Options) { o.Clock = r.clock })
	r.feedO.Clock, r.feedO.Start = r.clock, r.clock.Now()
	r.feed = feed.New(breakable{store.Bind[feed.Tx, feed.ReadTx](r.db), &r.broken, &r.reads}, r.feedO)
	r.reg = connection.New(dbRooms{store.Bind[roomsOf, roomsOf](r.db)}, connection.Options{Clock: r.clock, Version: "1.2.3",
		RoomExists: func(_ context.Context, id uuid.UUID) (bool, error) { return r.casts[id] != nil, nil }})
	var err error
	if r.group, err = session.NewGroup(r.clock, zerolog.Nop(), nil); err != nil {
		t.Fatal(err)
	}
	r.server = New(r.group, Services{Agents: r, Registry: r.reg, Feed: r.feed, Clock: r.clock, Log: zerolog.Nop()}, r.opts)
	mux := http.NewServeMux()
	r.server.Routes(mux)
	r.http = httptest.NewServer(transport.Mux(mux))
	t.Cleanup(func() {
		r.http.CloseClientConnections()
		r.http.Close()
		http.DefaultClient.CloseIdleConnections()
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = r.group.Drain(ended, 0)
		r.group.Close()
		r.server.Close()
	})
	return r
}

// AuthenticateAgent knows the names of the agents as their keys.
func (r *rig) AuthenticateAgent(_ context.Context, authorization string) (room.Agent, error) {
	key, ok := strings.CutPrefix(authorization, "Bearer ")
	if a, known := r.agents[key]; ok && known {
		return a, nil
	}
	return room.Agent{}, fault.New(fault.Unauthenticated, "missing or invalid agent key")
}

func (r *rig) update(fn func(tx *store.Tx) error) {
	r.t.Helper()
	if err := r.db.Update(r.ctx, "test", fn); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) agent(name string) room.Agent {
	r.t.Helper()
	a := room.Agent{ID: uuid.New(), Name: name}
	r.update(func(tx *store.Tx) error {
		res, err := tx.Exec(`INSERT INTO room_agents (id, name, description, connector_type, connection_model, profile, tools,
			models, metadata, key_hash, key_set_at, created_at, updated_at)
			VALUES (?,?,'','generic','always_on','{}','[]','[]','{}',?,0,0,0)`, a.ID, name, fmt.Sprintf("%064s", name))
		a.No = res.LastInsertID()
		return err
	})
	r.agents[name] = a
	return a
}

func (r *rig) room(name string, members ...room.Agent) uuid.UUID {
	r.t.Helper()
	cast := &room.Cast{Room: room.Room{ID: uuid.New(), Name: name, Channel: room.ChannelPublic}}
	r.update(func(tx *store.Tx) error {
		res, err := tx.Exec(`INSERT INTO rooms (id, name, description, instructions, channel_type, chat, read_visibility,
			write_visibility, internal_only, created_at, updated_at) VALUES (?,?,'','','channel_public',0,'public','public',0,0,0)`,
			cast.Room.ID, name)
		cast.Room.No = res.LastInsertID()
		return err
	})
	r.casts[cast.Room.ID] = cast
	for _, m := range members {
		r.join(cast.Room.ID, m)
	}
	return cast.Room.ID
}

func (r *rig) join(roomID uuid.UUID, a room.Agent) {
	r.t.Helper()
	ref := r.casts[roomID].Room.Ref()
	r.update(func(tx *store.Tx) error {
		_, err := tx.Exec(`INSERT INTO room_members (room_no, room_agent_no, listening, joined_position, joined_at)
			VALUES (?,?,0,0,0)`, ref.No, a.No)
		tx.AfterCommit(func() { r.reg.Joined(a.No, ref) })
		return err
	})
}

func (r *rig) leave(roomID uuid.UUID, a room.Agent) {
	r.t.Helper()
	ref := r.casts[roomID].Room.Ref()
	r.update(func(tx *store.Tx) error {
		if err := r.feed.Forget(tx, a.No, ref.No); err != nil {
			return err
		}
		_, err := tx.Exec(`DELETE FROM room_members WHERE room_no = ? AND room_agent_no = ?`, ref.No, a.No)
		tx.AfterCommit(func() { r.reg.Left(a.No, ref.No) })
		return err
	})
}

// say queues a message with the body; it is addressed to everybody when the body begins with @.
func (r *rig) say(roomID uuid.UUID, body string) {
	r.t.Helper()
	r.queue(roomID, room.ItemMessage, body, feed.Audience{FlagAll: strings.HasPrefix(body, "@")})
}

func (r *rig) queue(roomID uuid.UUID, kind room.ItemKind, body string, a feed.Audience) {
	r.t.Helper()
	r.update(func(tx *store.Tx) error { return r.put(tx, roomID, kind, body, a) })
}

// sayMany says the same n times, in one transaction.
func (r *rig) sayMany(n int, roomID uuid.UUID, body string) {
	r.t.Helper()
	r.update(func(tx *store.Tx) (err error) {
		for range n {
			if err == nil {
				err = r.put(tx, roomID, room.ItemMessage, body, feed.Audience{})
			}
		}
		return err
	})
}

func (r *rig) put(tx *store.Tx, roomID uuid.UUID, kind room.ItemKind, body string, a feed.Audience) error {
	r.posts++
	it := room.Item{RoomNo: r.casts[roomID].Room.No, Position: int64(r.posts), ID: uuid.New(), Kind: kind,
		SenderKind: room.KindPerson, SenderNo: 1, SenderID: "person-1", SenderName: "alice", Body: body, At: r.clock.Now()}
	res, err := tx.Exec(`INSERT INTO room_items (room_no, position, id, kind, sender_kind, sender_no, sender_id,
		sender_name, body, automatic, created_at) VALUES (?,?,?,?,?,?,?,?,?,0,?)`, it.RoomNo, it.Position, it.ID,
		string(it.Kind), string(it.SenderKind), it.SenderNo, it.SenderID, it.SenderName, it.Body, it.At)
	if err != nil {
		return err
	}
	it.No = res.LastInsertID()
	return r.feed.Queue(tx, r.casts[roomID], it, a)
}

func (r *rig) config(a room.Agent) *roomclient.Config {
	return &roomclient.Config{Endpoint: r.http.URL, Token: secret.NewText(a.Name), AgentID: a.ID, Clock: r.clock}
}

// asks is an Open of a client of revision 8.
func asks(id string, change ...func(*roomclient.Open)) roomclient.Open {
	o := roomclient.Current(id)
	for _, f := range change {
		f(&o)
	}
	return o
}

func all(o *roomclient.Open) { o.Scope = "all" }

func addressed(o *roomclient.Open) { o.Filter = "addressed" }

func from(n int64) func(*roomclient.Open) { return func(o *roomclient.Open) { o.StartFrom = &n } }

func fence(g int64) func(*roomclient.Open) {
	return func(o *roomclient.Open) { o.ExpectedGeneration = &g }
}

func in(rooms ...uuid.UUID) func(*roomclient.Open) {
	return func(o *roomclient.Open) {
		for _, id := range rooms {
			o.Rooms = append(o.Rooms, id.String())
		}
	}
}

func extra(name, value string) func(*roomclient.Open) {
	return func(o *roomclient.Open) {
		if o.Extra == nil {
			o.Extra = map[string][]string{}
		}
		o.Extra.Set(name, value)
	}
}

// dialer opens a stream of one of the transports.
type dialer func(context.Context, *roomclient.Config, roomclient.Open) (*roomclient.Stream, error)

// open opens a stream that must be admitted.
func (r *rig) open(dial dialer, a room.Agent, o roomclient.Open) (*roomclient.Stream, roomclient.State) {
	r.t.Helper()
	s, err := dial(r.ctx, r.config(a), o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(s.Drop)
	st, err := s.AwaitState(r.ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return s, st
}

func (r *rig) ws(a room.Agent, o roomclient.Open) (*roomclient.Stream, roomclient.State) {
	r.t.Helper()
	s, st := r.open(roomclient.Dial, a, o)
	r.pinged(st.Generation)
	return s, st
}

// pinged waits until the stream of the generation gets pings: the clock may move from then on.
func (r *rig) pinged(generation int64) {
	r.t.Helper()
	p := r.server.pings
	r.until("pings", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, slot := range p.slots {
			for _, k := range slot {
				if k.pump.stream.Generation() == generation {
					return true
				}
			}
		}
		return false
	})
}

func (r *rig) sse(a room.Agent, o roomclient.Open) (*roomclient.Stream, roomclient.State) {
	r.t.Helper()
	return r.open(roomclient.DialSSE, a, o)
}

// refused opens a stream that must be refused and returns how it ended.
func (r *rig) refused(dial dialer, cfg *roomclient.Config, o roomclient.Open) roomclient.Closed {
	r.t.Helper()
	s, err := dial(r.ctx, cfg, o)
	if err == nil {
		r.t.Cleanup(s.Drop)
		_, err = s.AwaitState(r.ctx)
	}
	var c *roomclient.Closed
	if !errors.As(err, &c) {
		r.t.Fatalf("admitted, or %v", err)
	}
	return *c
}

// ended returns how the stream ended, dropping what still came.
func (r *rig) ended(s *roomclient.Stream) roomclient.Closed {
	r.t.Helper()
	for {
		_, err := s.Next(r.ctx)
		var c *roomclient.Closed
		if errors.As(err, &c) {
			return *c
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

// next is the next frame, which must have the name.
func (r *rig) next(s *roomclient.Stream, name string, into any) roomclient.Frame {
	r.t.Helper()
	f, err := s.Next(r.ctx)
	if err != nil {
		r.t.Fatalf("waiting for %s: %v", name, err)
	}
	if f.Event != name {
		r.t.Fatalf("got %s %s, want %s", f.Event, f.Data, name)
	}
	if into != nil {
		if err := json.Unmarshal(f.Data, into); err != nil {
			r.t.Fatal(err)
		}
	}
	return f
}

// message is what tests read of a domain event.
type message struct {
	Type     string    `json:"type"`
	RoomID   uuid.UUID `json:"room_id"`
	Sequence int64     `json:"sequence"`
	Payload  struct {
		Addressed bool   `json:"addressed"`
		Body      string `json:"body"`
	} `json:"payload"`
	Missed *struct {
		Count  *int64  `json:"count"`
		Reason *string `json:"reason"`
	} `json:"missed"`
}

// hears checks that the next frames are messages with the bodies.
func (r *rig) hears(s *roomclient.Stream, bodies ...string) (last message) {
	r.t.Helper()
	for _, want := range bodies {
		var m message
		f := r.next(s, roomclient.FrameMessage, &m)
		if m.Payload.Body != want || f.ID != m.Sequence {
			r.t.Fatalf("got %d %q (id %d), want %q", m.Sequence, m.Payload.Body, f.ID, want)
		}
		s.Processed(f.ID)
		last = m
	}
	return last
}

// changed checks that the next frame is a subscription_changed with the rooms.
func (r *rig) changed(s *roomclient.Stream, rooms ...uuid.UUID) {
	r.t.Helper()
	var c roomclient.Changed
	r.next(s, roomclient.FrameChanged, &c)
	if want := ids(rooms...); !slices.Equal(c.Rooms, want) || c.Reason == "" {
		r.t.Fatalf("subscription_changed %v %q, want %v", c.Rooms, c.Reason, want)
	}
}

func ids(rooms ...uuid.UUID) []string {
	out := []string{}
	for _, id := range rooms {
		out = append(out, id.String())
	}
	slices.Sort(out)
	return out
}

// until waits for a state that nothing reports.
func (r *rig) until(what string, reached func() bool) {
	r.t.Helper()
	for !reached() {
		if r.ctx.Err() != nil {
			r.t.Fatal("never: " + what)
		}
		runtime.Gosched()
	}
}

// pass moves the clock on in steps of the sweep, which it runs. The streams named answer every ping meanwhile.
func (r *rig) pass(d time.Duration, alive ...*roomclient.Stream) {
	r.t.Helper()
	for ; d > 0; d -= connection.SweepEvery {
		timers := 0
		for _, s := range alive {
			if s.Transport == roomclient.SSE { // its own, for the next beat, and the server's
				timers += 2
			}
		}
		r.clock.BlockUntil(timers)
		before := make([]int64, len(alive))
		for i, s := range alive {
			before[i] = r.beats(s)
		}
		r.clock.Advance(min(d, connection.SweepEvery))
		for i, s := range alive {
			r.until("a beat", func() bool { return r.beats(s) > before[i] })
		}
		r.reg.Sweep(r.clock.Now())
	}
}

func (r *rig) beats(s *roomclient.Stream) int64 {
	i, _ := r.reg.Get(s.Open.ConnectionID)
	return i.Beats
}

// live tells whether the connection lives.
func (r *rig) live(id string) bool {
	_, ok := r.reg.Get(id)
	return ok
}

// status makes a request with the agent's key and returns status and body.
func (r *rig) status(a room.Agent, method, path, body string) (int, string) {
	r.t.Helper()
	var out json.RawMessage
	err := r.config(a).Do(r.ctx, method, "/agents/"+a.ID.String()+path, []byte(body), nil, &out)
	var refused *roomclient.StatusError
	if errors.As(err, &refused) {
		return refused.Status, string(refused.Body)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return http.StatusOK, strings.TrimSpace(string(out))
}

func asStatus[T error](err error, to *T) bool { return errors.As(err, to) }
