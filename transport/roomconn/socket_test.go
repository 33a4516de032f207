package roomconn

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/feed"
	"signalbox/appliance/secret"
	"signalbox/transport/roomclient"
	"signalbox/transport/session"
)

func TestStateIsFirstAndTheServersAnswer(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x := r.room("x", a)
	r.say(x, "before")
	s, st := r.ws(a, asks("c1", all, func(o *roomclient.Open) { o.SpawnCapable = true }))
	if st.Cursor != 1 || len(st.Rooms) != 0 || st.Rooms == nil || st.Scope != "all" || st.Filter != "all" || !st.SpawnCapable ||
		st.ConnectionID != "c1" || st.AgentID != a.ID.String() || st.Protocol != 8 || st.Heartbeat != 2 || st.Generation == 0 {
		t.Errorf("state %+v", st)
	}
	if c := st.Client; *c.Speaks != 8 || *c.Accepts != 1 || *c.Artifact != "agent-runtime" || *c.Version != "0.8.0" {
		t.Errorf("client %+v", c)
	}
	if v := st.Server; *v.Version != "1.2.3" || v.Contracts["agent-protocol"].Speaks != 8 || v.Contracts["agent-protocol"].Accepts != 1 {
		t.Errorf("server %+v", v)
	}
	r.say(x, "@bot hi")
	m := r.hears(s, "@bot hi")
	if m.Sequence != 2 || !m.Payload.Addressed || m.RoomID != x || m.Missed == nil || *m.Missed.Count != 0 {
		t.Errorf("message %+v", m)
	}
	_, st = r.ws(a, roomclient.Open{ConnectionID: "c2", Scope: "all"})
	if st.Client.Speaks != nil || st.Client.Accepts != nil || st.Client.Artifact != nil || st.Client.Version != nil || st.Protocol != 8 {
		t.Errorf("undeclared client %+v, protocol %d", st.Client, st.Protocol)
	}
}

func TestRefusals(t *testing.T) {
	r := newRig(t)
	a, b := r.agent("bot"), r.agent("other")
	x, gone := r.room("x", a), uuid.New()
	_, held := r.ws(a, asks("mine", in(x)))
	r.ws(b, asks("theirs", all))
	for _, tc := range []struct {
		name   string
		open   roomclient.Open
		status int
		detail string
	}{
		{"nothing", roomclient.Open{}, 400, "connection_id"},
		{"long id", asks(strings.Repeat("x", 300)), 400, "connection_id"},
		{"scope", asks("c", extra("scope", "multi")), 400, `multi`},
		{"empty scope", asks("c", extra("scope", "")), 400, "scope"},
		{"filter", asks("c", extra("filter", "none")), 400, "filter"},
		{"start", asks("c", extra("start_from", "-1")), 400, "start_from"},
		{"start beyond", asks("c", extra("start_from", "9007199254740992")), 400, "start_from"},
		{"generation", asks("c", extra("expected_generation", "x")), 400, "expected_generation"},
		{"spawn", asks("c", extra("spawn_capable", "maybe")), 400, "spawn_capable"},
		{"protocol", asks("c", extra("protocol", "8.5")), 400, "protocol"},
		{"scope before the others", asks("c", extra("scope", "x"), extra("start_from", "x"), extra("protocol", "99")), 400, "scope"},
		{"start before protocol", asks("c", extra("start_from", "x"), extra("protocol", "99"), extra("protocol_accepts", "99")), 400, "start_from"},
		{"client behind", asks("c", extra("protocol", "0"), extra("protocol_accepts", "0")), 409, `"remedy":"update the Switch agent runtime"`},
		{"server behind", asks("c", extra("protocol", "9"), extra("protocol_accepts", "9")), 409, `"remedy":"update switch-core"`},
		{"protocol before the owner", asks("theirs", extra("protocol", "9"), extra("protocol_accepts", "9")), 409, "agent-protocol"},
		{"another's", asks("theirs"), 409, "is not open"},
		{"stale", asks("mine", fence(held.Generation-1)), 409, `"code":"taken_over"`},
		{"stale before rooms", asks("mine", fence(held.Generation-1), in(gone)), 409, `"code":"taken_over"`},
		{"no room", asks("c", in(x, gone)), 403, gone.String()},
		{"no uuid", asks("c", extra("rooms", x.String()+",Lobby")), 403, "Lobby"},
		{"upper case", asks("c", extra("rooms", strings.ToUpper(gone.String()))), 403, strings.ToUpper(gone.String())},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := r.refused(roomclient.Dial, r.config(a), tc.open)
			if c.Refused == nil || c.Refused.Status != tc.status || c.Code != 4000+tc.status || !strings.Contains(string(c.Refused.Detail), tc.detail) {
				t.Errorf("socket: %+v, want %d %s", c, tc.status, tc.detail)
			}
			c = r.refused(roomclient.DialSSE, r.config(a), tc.open)
			if c.Refused == nil || c.Refused.Status != tc.status || !strings.Contains(string(c.Refused.Detail), tc.detail) {
				t.Errorf("stream: %+v, want %d %s", c, tc.status, tc.detail)
			}
		})
	}
	if i, _ := r.reg.Get("mine"); i.Generation != held.Generation || !i.Attached || !slices.Equal(i.Rooms, []uuid.UUID{x}) {
		t.Errorf("refusals changed %+v", i)
	}
	if n := len(r.reg.List(a.No)); n != 1 {
		t.Errorf("%d connections after refusals", n)
	}
}

func TestRefusedKeysAndPaths(t *testing.T) {
	r := newRig(t)
	a, b := r.agent("bot"), r.agent("other")
	for _, key := range []string{"", "nobody"} {
		cfg := r.config(a)
		cfg.Token = secret.NewText(key)
		c := r.refused(roomclient.Dial, cfg, roomclient.Open{}) // the key comes before the parameters
		if c.Code != 4401 || c.Refused != nil || c.Text == "" {
			t.Errorf("key %q: %+v, want 4401 and no frame", key, c)
		}
		c = r.refused(roomclient.DialSSE, cfg, roomclient.Open{})
		if c.Refused == nil || c.Refused.Status != 401 || c.Refused.Detail != nil {
			t.Errorf("key %q on SSE: %+v, want a 401 with a text", key, c)
		}
	}
	cfg := r.config(a)
	cfg.AgentID = b.ID
	if c := r.refused(roomclient.Dial, cfg, asks("c")); c.Code != 4403 || c.Refused == nil {
		t.Errorf("another's path: %+v", c)
	}
	if c := r.refused(roomclient.DialSSE, cfg, asks("c")); c.Refused == nil || c.Refused.Status != 403 {
		t.Errorf("another's path on SSE: %+v", c)
	}
	resp, err := http.Get(r.http.URL + "/agents/" + a.ID.String() + "/connection/ws?connection_id=c")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusUpgradeRequired || resp.Header.Get("Upgrade") != "websocket" {
		t.Errorf("no upgrade: %d", resp.StatusCode)
	}
}

func TestThirtyTwoConnections(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	for i := range connection.MaxLive {
		r.ws(a, asks(fmt.Sprint("c", i), all))
	}
	c := r.refused(roomclient.Dial, r.config(a), asks("one more"))
	if c.Code != 4409 || c.Refused.Code() != "" {
		t.Errorf("the 33rd: %+v", c)
	}
	r.ws(a, asks("c7", all))
}

func TestPingsAndLapse(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x := r.room("x", a)
	s, st := r.ws(a, asks("c", in(x)))
	r.pass(60*time.Second, s)
	if n := s.Pings(); n < 28 || n > 32 {
		t.Errorf("%d pings in a minute", n)
	}
	s.Silence(true)
	r.pass(6 * time.Second)
	c := r.ended(s)
	if c.Evicted == nil || c.Evicted.Code != "heartbeat_lapsed" || !strings.HasPrefix(c.Evicted.Reason, "heartbeat lapsed") || c.Code != 1000 {
		t.Fatalf("ended %+v", c)
	}
	if r.live("c") {
		t.Error("a lapsed connection lives")
	}
	_, other := r.ws(a, asks("sibling", in(x)))
	if !slices.Equal(other.Rooms, ids(x)) {
		t.Errorf("rooms %v", other.Rooms)
	}
	_, again := r.ws(a, asks("c", fence(st.Generation)))
	if again.Generation <= other.Generation {
		t.Errorf("generation %d after %d", again.Generation, other.Generation)
	}
}

// TestLapseIsSeenBetweenSweeps lets only the stream's own timer find out.
func TestLapseIsSeenBetweenSweeps(t *testing.T) {
	r := newRig(t)
	s, _ := r.ws(r.agent("bot"), asks("c"))
	s.Silence(true)
	for range 2 {
		r.clock.Advance(connection.SweepEvery)
		r.reg.Sweep(r.clock.Now())
	}
	r.clock.Advance(connection.SweepEvery)
	if c := r.ended(s); c.Evicted == nil || c.Evicted.Code != "heartbeat_lapsed" {
		t.Fatalf("ended %+v", c)
	}
}

func TestWhatIsNoPongIsIgnored(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	cfg, o := r.config(a), asks("c")
	ws, resp, err := websocket.DefaultDialer.Dial(cfg.SocketURL(&o), http.Header{"Authorization": {"Bearer bot"}})
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	defer func() { _ = ws.Close() }()
	for _, text := range []string{"", "{", "null", "[]", `"pong"`, `{"type":"PONG"}`, `{"type":1}`, `{"cursor":1}`, "\xff"} {
		_ = ws.WriteMessage(websocket.TextMessage, []byte(text))
	}
	_ = ws.WriteMessage(websocket.BinaryMessage, []byte(`{"type":"pong","cursor":0}`))
	_ = ws.WriteMessage(websocket.TextMessage, []byte(`{"type":"pong","cursor":-4,"generation":1}`))
	r.until("one beat", func() bool { i, _ := r.reg.Get("c"); return i.Beats == 1 })
	_ = ws.WriteMessage(websocket.TextMessage, []byte(`{"pad":"`+strings.Repeat("x", maxFrame)+`"}`))
	for err == nil {
		_, _, err = ws.ReadMessage()
	}
	if !websocket.IsCloseError(err, 1009) {
		t.Errorf("a frame of 64 KiB: %v", err)
	}
	r.until("detached", func() bool { i, ok := r.reg.Get("c"); return ok && !i.Attached })
}

func TestPongsCarryWhatWasHandled(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x := r.room("x", a)
	s, _ := r.ws(a, asks("c", in(x)))
	r.say(x, "one")
	r.say(x, "two")
	f := r.next(s, roomclient.FrameMessage, nil)
	r.pass(4*time.Second, s) // mid-event
	if i, _ := r.reg.Get("c"); i.Processed != 0 || i.Cursor != 2 {
		t.Errorf("mid-event: processed %d, cursor %d", i.Processed, i.Cursor)
	}
	s.Processed(f.ID)
	r.pass(2*time.Second, s)
	if i, _ := r.reg.Get("c"); i.Processed != 1 {
		t.Errorf("processed %d", i.Processed)
	}
	s.Processed(99) // beyond what was written: counts as alive, moves nothing
	r.pass(2*time.Second, s)
	if i, _ := r.reg.Get("c"); i.Processed != 1 || i.Cursor != 2 {
		t.Errorf("processed %d, cursor %d after a report from beyond", i.Processed, i.Cursor)
	}
}

func TestResumeAfterADrop(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x := r.room("x", a)
	s, st := r.ws(a, asks("c", in(x)))
	r.say(x, "one")
	last := r.hears(s, "one")
	s.Drop()
	r.until("detached", func() bool { i, ok := r.reg.Get("c"); return ok && !i.Attached })
	for _, body := range []string{"two", "three", "four"} {
		r.say(x, body)
	}
	s, again := r.ws(a, asks("c", from(last.Sequence), fence(st.Generation)))
	if again.Cursor != last.Sequence || !slices.Equal(again.Rooms, ids(x)) || again.Generation <= st.Generation {
		t.Errorf("state %+v", again)
	}
	r.hears(s, "two", "three", "four")
	r.say(x, "five")
	r.hears(s, "five")
}

func TestTakeover(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x := r.room("x", a)
	first, st := r.ws(a, asks("c", in(x)))
	second, _ := r.ws(a, asks("c", fence(st.Generation)))
	c := r.ended(first)
	if c.Evicted == nil || c.Evicted.Code != "taken_over" || !strings.HasPrefix(c.Evicted.Reason, "another stream attached") || c.Code != 1000 {
		t.Fatalf("ended %+v", c)
	}
	refused := r.refused(roomclient.Dial, r.config(a), asks("c", fence(st.Generation)))
	if refused.Refused.Code() != "taken_over" || refused.Code != 4409 {
		t.Errorf("stale generation: %+v", refused)
	}
	r.say(x, "hi")
	r.hears(second, "hi")
	r.until("the first to unwind", func() bool { return r.server.plane.Count() == 1 })
	if i, _ := r.reg.Get("c"); !i.Attached {
		t.Error("the old stream detached the new one")
	}
}

func TestHeldSocket(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x := r.room("x", a)
	for i := range 3 {
		r.say(x, fmt.Sprint(i))
	}
	s, st := r.ws(a, asks("c", from(0)))
	if st.Cursor != 3 || len(st.Rooms) != 0 {
		t.Fatalf("state %+v", st)
	}
	for i := range 5 {
		r.say(x, fmt.Sprint(3+i))
	}
	r.pass(4*time.Second, s)
	if _, err := r.reg.Connect(a.No, "c", "", x); err != nil {
		t.Fatal(err)
	}
	r.changed(s, x)
	r.hears(s, "3", "4", "5", "6", "7")
	s, st = r.ws(a, asks("c", from(0), in(x)))
	if st.Cursor != 0 {
		t.Errorf("cursor %d", st.Cursor)
	}
	r.hears(s, "0", "1", "2", "3", "4", "5", "6", "7")
}

func TestSingleHasOneRoomAtATime(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x, y := r.room("x", a), r.room("y", a)
	s, st := r.ws(a, asks("c", in(x)))
	r.say(y, "in y")
	r.until("passed over", func() bool { i, _ := r.reg.Get("c"); return i.Cursor == 1 })
	got, err := r.config(a).Subscribe(r.ctx, roomclient.ClaimRequest{ConnectionID: "c", RoomID: y.String(), Generation: &st.Generation})
	if err != nil || !slices.Equal(got.Rooms, ids(y)) || got.Evicted != nil || got.Warning != nil {
		t.Fatalf("%+v, %v", got, err)
	}
	r.changed(s, y)
	r.say(y, "later")
	r.hears(s, "later")
	s, _ = r.ws(a, asks("c", from(0), in(y)))
	r.hears(s, "in y", "later")
	_, st = r.ws(a, asks("new", in(x, y)))
	if !slices.Equal(st.Rooms, ids(y)) {
		t.Errorf("rooms %v, want the last", st.Rooms)
	}
}

func TestAllYieldsToASingle(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x := r.room("x", a)
	wide, _ := r.ws(a, asks("wide", all))
	narrow, _ := r.ws(a, asks("narrow", in(x)))
	r.changed(wide)
	r.say(x, "one")
	r.hears(narrow, "one")
	r.until("passed over", func() bool { i, _ := r.reg.Get("wide"); return i.Cursor == 1 })
	narrow.Silence(true)
	r.pass(6*time.Second, wide)
	r.ended(narrow)
	r.changed(wide)
	r.say(x, "two")
	r.hears(wide, "two")
}

func TestSubscribeAndLoser(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x := r.room("x", a)
	holder, _ := r.ws(a, asks("holder", in(x)))
	old, _ := r.ws(a, asks("old", func(o *roomclient.Open) { o.Protocol = 5 }))
	_, st := r.ws(a, asks("c"))
	cfg := r.config(a)
	q := roomclient.ClaimRequest{ConnectionID: "c", RoomID: x.String(), Generation: &st.Generation}
	var refused *roomclient.StatusError
	if _, err := cfg.Subscribe(r.ctx, q); !asStatus(err, &refused) || refused.Status != 409 || !strings.Contains(string(refused.Detail), "holder") {
		t.Fatalf("%v", err)
	}
	q.Takeover = true
	got, err := cfg.Subscribe(r.ctx, q)
	if err != nil || got.Evicted == nil || *got.Evicted != "holder" || got.Warning == nil || !strings.Contains(*got.Warning, "holder") {
		t.Fatalf("%+v, %v", got, err)
	}
	var released roomclient.Released
	r.next(holder, roomclient.FrameReleased, &released)
	if released.RoomID != x.String() || released.SessionID != nil {
		t.Errorf("released %+v", released)
	}
	r.changed(holder)
	i, _ := r.reg.Get("old")
	if _, err := cfg.Subscribe(r.ctx, roomclient.ClaimRequest{ConnectionID: "old", RoomID: x.String(), Takeover: true, Generation: &i.Generation}); err != nil {
		t.Fatal(err)
	}
	r.changed(old, x)
	if _, err := cfg.Subscribe(r.ctx, q); err != nil {
		t.Fatal(err)
	}
	r.changed(old) // revision 5: no room_released
	un, err := cfg.Unsubscribe(r.ctx, q)
	if err != nil || len(un.Rooms) != 0 || un.Rooms == nil {
		t.Fatalf("%+v, %v", un, err)
	}
	if _, err := cfg.Unsubscribe(r.ctx, q); err != nil {
		t.Errorf("a room not held: %v", err)
	}
}

func TestGapAtOpenAndWhileOpen(t *testing.T) {
	r := newRig(t, func(r *rig) { r.feedO.Retained = 3 })
	a := r.agent("bot")
	x := r.room("x", a)
	for i := range 5 {
		r.say(x, fmt.Sprint(i+1))
	}
	s, st := r.ws(a, asks("c", from(1), in(x)))
	var g roomclient.Gap
	r.next(s, roomclient.FrameGap, &g)
	if g.From != 1 || g.ResumedAt != 2 || g.Position != 2 || g.AllRooms || !slices.Equal(g.Rooms, ids(x)) || st.Cursor != 2 {
		t.Errorf("gap %+v, cursor %d", g, st.Cursor)
	}
	r.hears(s, "3", "4", "5")
	if ds := r.reg.Deliveries(a.No, 2); len(ds) != 1 || ds[0].Skip != connection.SkipGap {
		t.Errorf("deliveries %+v", ds)
	}
	held, _ := r.ws(a, asks("held"))
	for i := range 4 {
		r.say(x, fmt.Sprint(i+6))
	}
	r.hears(s, "6", "7", "8", "9")
	if _, err := r.reg.Connect(a.No, "held", "", x); err != nil {
		t.Fatal(err)
	}
	r.changed(held, x)
	r.next(held, roomclient.FrameGap, &g)
	if g.From != 5 || g.ResumedAt != 6 {
		t.Errorf("gap while open %+v", g)
	}
	r.hears(held, "7", "8", "9")
}

func TestResetGap(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x := r.room("x", a)
	r.say(x, "one")
	s, st := r.ws(a, asks("c", from(500), in(x)))
	var g roomclient.Gap
	r.next(s, roomclient.FrameGap, &g)
	if g.From != 500 || g.ResumedAt != 1 || !g.AllRooms || !slices.Equal(g.Rooms, ids(x)) || st.Cursor != 1 {
		t.Errorf("gap %+v, cursor %d", g, st.Cursor)
	}
	r.pass(2*time.Second, s) // the pong still carries 500
	r.say(x, "@bot two")
	m := r.hears(s, "@bot two")
	if m.Missed == nil || m.Missed.Count != nil || m.Missed.Reason == nil {
		t.Errorf("missed after a reset: %+v", m.Missed)
	}
}

func TestFilterAddressed(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x := r.room("x", a)
	s, _ := r.ws(a, asks("c", all, addressed))
	r.sayMany(450, x, "chatter")
	r.queue(x, room.ItemCommand, "!reset @bot", feed.Audience{Commands: map[int64]room.Command{a.No: {Name: "reset"}}})
	r.say(x, "@bot hi")
	m := r.hears(s, "@bot hi")
	if m.Sequence != 452 || m.Missed == nil || m.Missed.Count == nil || *m.Missed.Count != 450 {
		t.Errorf("%+v %+v", m, m.Missed)
	}
	ds := r.reg.Deliveries(a.No, 100)
	if len(ds) != 1 || ds[0].Skip != connection.SkipFiltered {
		t.Errorf("deliveries %+v", ds)
	}
}

func TestLeavingARoomEndsItsEvents(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x, y := r.room("x", a), r.room("y", a)
	s, _ := r.ws(a, asks("c", all))
	r.leave(x, a)
	r.changed(s)
	r.say(y, "still here")
	r.hears(s, "still here")
	r.reg.AgentClosed(a.No, "the agent was deleted")
	if c := r.ended(s); c.Evicted == nil || c.Evicted.Code != "closed" || c.Evicted.Reason != "the agent was deleted" || c.Code != 1000 {
		t.Errorf("ended %+v", c)
	}
}

func TestShutdownSays1012(t *testing.T) {
	r := newRig(t)
	s, _ := r.ws(r.agent("bot"), asks("c"))
	ctx, cancel := context.WithTimeout(r.ctx, 2*time.Minute)
	defer cancel()
	if err := r.group.Drain(ctx, 0); err != nil {
		t.Fatal(err)
	}
	if c := r.ended(s); c.Code != 1012 || c.Evicted != nil {
		t.Errorf("ended %+v", c)
	}
}

func TestFailedReadSays1011AndLeavesTheConnection(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x := r.room("x", a)
	s, st := r.ws(a, asks("c", in(x)))
	r.broken.Store(true)
	r.say(x, "@bot hi") // counting what was missed reads the database
	if c := r.ended(s); c.Code != 1011 || c.Evicted != nil {
		t.Errorf("ended %+v", c)
	}
	r.until("detached", func() bool { i, ok := r.reg.Get("c"); return ok && !i.Attached })
	if c := r.refused(roomclient.Dial, r.config(a), asks("d")); c.Code != 1011 || c.Refused != nil {
		t.Errorf("open: %+v", c)
	}
	if c := r.refused(roomclient.DialSSE, r.config(a), asks("e")); c.Refused == nil || c.Refused.Status != 500 || strings.Contains(string(c.Refused.Detail), "fire") {
		t.Errorf("stream: %+v", c)
	}
	r.broken.Store(false)
	s, _ = r.ws(a, asks("c", from(0), fence(st.Generation)))
	r.hears(s, "@bot hi")
}

// TestStalledReaderDelaysNobody lets one client take no bytes.
func TestStalledReaderDelaysNobody(t *testing.T) {
	r := newRig(t, func(r *rig) { r.opts.WriteTimeout = 3 * time.Second }) // on a busy machine the quick one may need as long
	a := r.agent("bot")
	x := r.room("x", a)
	cfg, o := r.config(a), asks("stalled", all)
	d := websocket.Dialer{NetDialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err == nil {
			err = c.(*net.TCPConn).SetReadBuffer(4 << 10)
		}
		return c, err
	}}
	ws, resp, err := d.Dial(cfg.SocketURL(&o), http.Header{"Authorization": {"Bearer bot"}})
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	defer func() { _ = ws.Close() }()
	stalled := r.session("stalled")
	quick, _ := r.ws(a, asks("quick", all))
	body := strings.Repeat("x", 256<<10)
	for range 60 {
		r.say(x, body)
		r.next(quick, roomclient.FrameMessage, nil)
		if q := stalled.QueuedBytes(); q > 64<<10 {
			t.Fatalf("%d bytes queued", q)
		}
	}
	<-stalled.Done()
	if got := stalled.Reason(); got != session.WriteFailed {
		t.Errorf("closed for %v", got)
	}
	if i, ok := r.reg.Get("stalled"); !ok || i.Attached {
		t.Errorf("afterwards %+v", i)
	}
}

func (r *rig) session(connectionID string) (s *session.Session) {
	r.t.Helper()
	r.until("the connection", func() bool { i, ok := r.reg.Get(connectionID); return ok && i.Attached })
	r.until("the session", func() bool { return len(r.group.Sessions()) == 1 })
	return r.group.Sessions()[0]
}

// TestPingsDoNotQueueBehindBulk replays much to a client while its pings come due.
func TestPingsDoNotQueueBehindBulk(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x := r.room("x", a)
	r.sayMany(400, x, strings.Repeat("x", 32<<10))
	cfg, o := r.config(a), asks("c", from(0), all)
	ws, resp, err := websocket.DefaultDialer.Dial(cfg.SocketURL(&o), http.Header{"Authorization": {"Bearer bot"}})
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	defer func() { _ = ws.Close() }()
	r.session("c")
	i, _ := r.reg.Get("c")
	r.pinged(i.Generation)
	r.clock.Advance(connection.BeatEvery)
	for n := 0; ; n++ {
		_, data, err := ws.ReadMessage()
		if err != nil {
			t.Fatal(err)
		}
		if string(data) == string(pingFrame) {
			if n >= 400 {
				t.Errorf("the ping came behind %d frames", n)
			}
			return
		}
	}
}
