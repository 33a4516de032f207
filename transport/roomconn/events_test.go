package roomconn

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/room"
	"signalbox/transport/roomclient"
)

// raw opens a stream and returns its response, byte by byte.
func (r *rig) raw(a room.Agent, query string, header ...string) (*http.Response, *bufio.Reader) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.ctx)
	r.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.http.URL+"/agents/"+a.ID.String()+"/events?"+query, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+a.Name)
	req.Header.Set("Accept", "text/event-stream")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp, bufio.NewReader(resp.Body)
}

// block reads up to the next empty line.
func block(t *testing.T, b *bufio.Reader) string {
	t.Helper()
	var out strings.Builder
	for {
		line, err := b.ReadString('\n')
		out.WriteString(line)
		if err != nil {
			t.Fatalf("%v after %q", err, out.String())
		}
		if line == "\n" {
			return out.String()
		}
	}
}

func TestStreamByteForByte(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x := r.room("x", a)
	resp, b := r.raw(a, "connection_id=c&rooms="+x.String()+"&client=my%20tool")
	for name, want := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s %q, want %q", name, got, want)
		}
	}
	i, _ := r.reg.Get("c")
	want := fmt.Sprintf("event: connection_state\ndata: {\"connection_id\":\"c\",\"agent_id\":\"%s\",\"generation\":%d,\"scope\":\"single\","+
		"\"filter\":\"all\",\"spawn_capable\":false,\"rooms\":[\"%s\"],\"cursor\":0,\"protocol\":8,\"heartbeat_interval_seconds\":2.0,"+
		"\"server\":{\"version\":\"1.2.3\",\"contracts\":{\"agent-protocol\":{\"speaks\":8,\"accepts\":1}}},"+
		"\"client\":{\"speaks\":null,\"accepts\":null,\"artifact\":\"my tool\",\"version\":null}}\n\n", a.ID, i.Generation, x)
	if got := block(t, b); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	r.say(x, "line\nand\rmore\u2028")
	got := block(t, b)
	if !strings.HasPrefix(got, "id: 1\nevent: message\ndata: {\"type\":\"message\",\"room_id\":\""+x.String()+"\",") ||
		!strings.HasSuffix(got, ",\"sequence\":1}\n\n") || strings.Count(got, "\n") != 4 || strings.Contains(got, "\r") {
		t.Errorf("event %q", got)
	}
	if _, err := r.reg.Unsubscribe(a.No, "c", &i.Generation, x); err != nil {
		t.Fatal(err)
	}
	if got := block(t, b); got != "event: subscription_changed\ndata: {\"rooms\":[],\"reason\":\"subscription updated\"}\n\n" {
		t.Errorf("change %q", got)
	}
	r.reg.Evict("c", "enough")
	if got := block(t, b); got != "event: evicted\ndata: {\"code\":\"closed\",\"reason\":\"enough\",\"room_id\":null}\n\n" {
		t.Errorf("end %q", got)
	}
	if _, err := b.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

func TestStreamKeepalive(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	_, b := r.raw(a, "connection_id=c")
	block(t, b)
	i, _ := r.reg.Get("c")
	come := make(chan string, 1)
	go func() {
		got, err := b.Peek(len(keepalive))
		come <- fmt.Sprint(string(got), err)
	}()
	for steps := 0; ; steps++ {
		select {
		case got := <-come:
			if got != string(keepalive)+"<nil>" || steps < 8 {
				t.Errorf("got %q after %d s", got, 2*steps)
			}
			return
		default:
		}
		r.clock.Advance(2 * time.Second)
		if _, _, err := r.reg.Beat(a.No, "c", 0, &i.Generation); err != nil {
			t.Fatal(err)
		}
		r.reg.Sweep(r.clock.Now())
		runtime.Gosched()
	}
}

func TestLastEventIDWins(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x := r.room("x", a)
	for i := range 4 {
		r.say(x, fmt.Sprint(i+1))
	}
	s, st := r.sse(a, asks("c", in(x), from(1), func(o *roomclient.Open) { o.LastEventID = "2" }))
	if st.Cursor != 2 {
		t.Errorf("cursor %d", st.Cursor)
	}
	r.hears(s, "3", "4")
	c := r.refused(roomclient.DialSSE, r.config(a), asks("d", from(1), func(o *roomclient.Open) { o.LastEventID = "head" }))
	if c.Refused == nil || c.Refused.Status != 400 || !strings.Contains(string(c.Refused.Detail), "Last-Event-ID") {
		t.Errorf("%+v", c)
	}
}

func TestHeldStreamKeepsItsCursor(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x := r.room("x", a)
	for i := range 3 {
		r.say(x, fmt.Sprint(i+1))
	}
	s, st := r.sse(a, asks("c", from(0)))
	if st.Cursor != 0 || len(st.Rooms) != 0 {
		t.Errorf("state %+v", st)
	}
	r.say(x, "4")
	if _, err := r.reg.Connect(a.No, "c", "", x); err != nil {
		t.Fatal(err)
	}
	r.changed(s, x)
	r.hears(s, "1", "2", "3", "4")
}

func TestStreamBeatsAndLapse(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	s, _ := r.sse(a, asks("c"))
	r.until("the first beat", func() bool { return r.beats(s) == 1 })
	r.pass(20*time.Second, s)
	s.Silence(true)
	for range 3 {
		r.clock.BlockUntil(1)
		r.clock.Advance(2 * time.Second)
		r.reg.Sweep(r.clock.Now())
	}
	if c := r.ended(s); c.Evicted == nil || c.Evicted.Code != "heartbeat_lapsed" {
		t.Errorf("ended %+v", c)
	}
}

func TestBeatRefusals(t *testing.T) {
	r := newRig(t)
	a, b := r.agent("bot"), r.agent("other")
	_, st := r.ws(a, asks("c"))
	r.ws(a, asks("old", func(o *roomclient.Open) { o.Protocol = 1 }))
	r.ws(b, asks("theirs"))
	gone, _ := r.ws(a, asks("gone"))
	gone.Drop()
	r.until("detached", func() bool { i, _ := r.reg.Get("gone"); return !i.Attached })
	i, _ := r.reg.Get("gone")
	for _, tc := range []struct {
		body   string
		status int
		want   string
	}{
		{fmt.Sprintf(`{"connection_id":"c","cursor":0,"generation":%d}`, st.Generation), 200, `{"ok":true,"rooms":[],"cursor":0}`},
		{`{"connection_id":"old"}`, 200, `{"ok":true,"rooms":[],"cursor":0}`},
		{`{"connection_id":"c"}`, 409, `{"detail":{"code":"unfenced",`},
		{fmt.Sprintf(`{"connection_id":"c","generation":%d}`, st.Generation-1), 409, `{"detail":{"code":"taken_over",`},
		{fmt.Sprintf(`{"connection_id":"gone","generation":%d}`, i.Generation), 409, `{"detail":{"code":"no_stream",`},
		{`{"connection_id":"theirs"}`, 404, `{"detail":"`},
		{`{"connection_id":"nobody"}`, 404, `{"detail":"`},
		{``, 422, `{"detail":[{"msg":"body.connection_id`},
		{`{"connection_id":7}`, 422, `{"detail":[{"msg":"body.connection_id`},
		{`{"connection_id":"c","cursor":"x"}`, 422, `{"detail":[{"msg":"body.cursor`},
		{`{"connection_id":"c","cursor":-1}`, 422, `{"detail":[{"msg":"body.cursor`},
		{`{"connection_id":"c","generation":1.5}`, 422, `{"detail":[{"msg":"body.generation`},
		{`[]`, 422, `{"detail":[{"msg":"body`},
		{`{`, 422, `{"detail":[{"msg":"body`},
	} {
		if status, got := r.status(a, http.MethodPost, "/connection/beat", tc.body); status != tc.status || !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s: %d %s, want %d %s", tc.body, status, got, tc.status, tc.want)
		}
	}
	mismatched := r.config(a)
	mismatched.AgentID = b.ID
	var refused *roomclient.StatusError
	if _, err := mismatched.Beat(r.ctx, roomclient.BeatRequest{ConnectionID: "c"}); !asStatus(err, &refused) || refused.Status != 403 {
		t.Errorf("another's path: %v", err)
	}
	resp, err := http.Post(r.http.URL+"/agents/"+a.ID.String()+"/connection/beat", "application/json", strings.NewReader("{"))
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != 401 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") || strings.HasPrefix(string(text), "{") {
		t.Errorf("no key: %d %s %s", resp.StatusCode, resp.Header.Get("Content-Type"), text)
	}
}

func TestClaimRefusalsChangeNothing(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x, y := r.room("x", a), r.room("y", a)
	foreign := r.room("foreign")
	_, st := r.ws(a, asks("c", in(x)))
	r.ws(a, asks("sibling", in(y)))
	body := func(format string, args ...any) string {
		return fmt.Sprintf(`{"connection_id":"c","generation":%d,%s}`, st.Generation, fmt.Sprintf(format, args...))
	}
	for _, tc := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"subscribe", body(`"room_id":"%s"`, y), 409, "sibling"},
		{"subscribe", body(`"room_id":"%s"`, uuid.Nil), 404, "Room not found"},
		{"subscribe", body(`"room_id":"lobby"`), 404, "lobby"},
		{"subscribe", body(`"room_id":"%s"`, foreign), 403, foreign.String()},
		{"subscribe", body(`"takeover":true`), 422, "room_id"},
		{"subscribe", fmt.Sprintf(`{"connection_id":"c","room_id":"%s"}`, y), 409, "unfenced"},
		{"subscribe", fmt.Sprintf(`{"connection_id":"c","room_id":"%s","generation":1}`, y), 409, "taken_over"},
		{"subscribe", fmt.Sprintf(`{"connection_id":"none","room_id":"%s","generation":1}`, y), 404, "none"},
		{"unsubscribe", fmt.Sprintf(`{"connection_id":"c","room_id":"%s","generation":1}`, x), 409, "taken_over"},
		{"unsubscribe", fmt.Sprintf(`{"connection_id":"none","room_id":"%s"}`, x), 404, "none"},
		{"placements", body(`"placements":{"s1":"%s","s2":"%s"}`, x, x), 400, "twice"},
		{"placements", body(`"placements":{"s1":"%s","s2":"%s"}`, y, foreign), 403, foreign.String()},
		{"placements", body(`"placements":{"s1":"lobby"}`), 403, "lobby"},
		{"placements", body(`"placements":{"":"%s"}`, x), 422, "session"},
		{"placements", body(`"placements":[]`), 422, "placements"},
		{"placements", body(`"other":1`), 422, "placements"},
		{"placements", fmt.Sprintf(`{"connection_id":"c","placements":{"s":"%s"}}`, y), 409, "unfenced"},
	} {
		status, got := r.status(a, http.MethodPost, "/connection/"+tc.path, tc.body)
		if status != tc.status || !strings.Contains(got, tc.want) {
			t.Errorf("%s %s: %d %s, want %d %s", tc.path, tc.body, status, got, tc.status, tc.want)
		}
	}
	if i, _ := r.reg.Get("c"); len(i.Rooms) != 1 || i.Rooms[0] != x || len(i.Placements) != 0 {
		t.Errorf("changed: %+v", i)
	}
	if i, _ := r.reg.Get("sibling"); len(i.Rooms) != 1 || i.Rooms[0] != y {
		t.Errorf("changed: %+v", i)
	}
}

func TestPlacements(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x, y := r.room("x", a), r.room("y", a)
	s, st := r.ws(a, asks("c", in(x)))
	sibling, other := r.ws(a, asks("sibling"))
	cfg := r.config(a)
	if _, err := cfg.Place(r.ctx, roomclient.PlacementsRequest{ConnectionID: "sibling", Generation: &other.Generation,
		Placements: map[string]string{"theirs": y.String()}}); err != nil {
		t.Fatal(err)
	}
	r.changed(sibling, y)
	p, err := cfg.Place(r.ctx, roomclient.PlacementsRequest{ConnectionID: "c", Generation: &st.Generation,
		Placements: map[string]string{"s1": x.String(), "s2": y.String()}})
	if err != nil || len(p.Placements) != 2 || len(p.Rooms) != 2 || len(p.Released) != 1 || p.Released[0].ConnectionID != "sibling" ||
		*p.Released[0].SessionID != "theirs" {
		t.Fatalf("%+v, %v", p, err)
	}
	r.changed(s, x, y)
	var released roomclient.Released
	r.next(sibling, roomclient.FrameReleased, &released)
	if released.RoomID != y.String() || *released.SessionID != "theirs" {
		t.Errorf("released %+v", released)
	}
	r.changed(sibling)
	p, err = cfg.Place(r.ctx, roomclient.PlacementsRequest{ConnectionID: "c", Generation: &st.Generation,
		Placements: map[string]string{"s1": y.String()}})
	if err != nil || len(p.Rooms) != 1 || p.Rooms[0] != y.String() || len(p.Released) != 0 || p.Released == nil {
		t.Fatalf("%+v, %v", p, err)
	}
	r.changed(s, y)
	p, err = cfg.Place(r.ctx, roomclient.PlacementsRequest{ConnectionID: "c", Generation: &st.Generation, Placements: map[string]string{}})
	if err != nil || len(p.Rooms) != 0 || p.Placements == nil {
		t.Fatalf("%+v, %v", p, err)
	}
}

func TestCloseAndRenew(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	s, _ := r.ws(a, asks("c"))
	cfg := r.config(a)
	if held, err := cfg.RenewLease(r.ctx, "c"); held || err != nil {
		t.Errorf("renewed %v, %v", held, err)
	}
	if status, _ := r.status(a, http.MethodPost, "/leases/renew", `{}`); status != 400 {
		t.Errorf("no header: %d", status)
	}
	for _, want := range []bool{true, false} {
		if closed, err := cfg.CloseConnection(r.ctx, "c", "done"); closed != want || err != nil {
			t.Errorf("closed %v, %v", closed, err)
		}
	}
	if c := r.ended(s); c.Evicted == nil || c.Evicted.Code != "closed" || !strings.HasSuffix(c.Evicted.Reason, "done") {
		t.Errorf("ended %+v", c)
	}
}

func TestRemovedTransport(t *testing.T) {
	r := newRig(t, func(r *rig) { r.opts.RemoveSSE = true })
	a := r.agent("bot")
	c := r.refused(roomclient.DialSSE, r.config(a), asks("c"))
	if c.Refused == nil || c.Refused.Status != 410 || c.Refused.Code() != "transport_removed" {
		t.Errorf("%+v", c)
	}
	r.ws(a, asks("c"))
}

func TestHeadDoesNotOpenAStream(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	s, _ := r.ws(a, asks("c", all))
	req, _ := http.NewRequestWithContext(r.ctx, http.MethodHead, r.http.URL+"/agents/"+a.ID.String()+"/events?connection_id=c", nil)
	req.Header.Set("Authorization", "Bearer bot")
	req.Header.Set("Accept", "text/event-stream")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("answered %d", resp.StatusCode)
	}
	r.say(r.room("x", a), "hi")
	r.changed(s)
	r.hears(s, "hi")
}

func TestLongPoll(t *testing.T) {
	r := newRig(t)
	a := r.agent("bot")
	x := r.room("x", a)
	r.say(x, "one")
	r.say(x, "@bot two")
	for _, tc := range []struct {
		query  string
		status int
		want   string
	}{
		{"start_from=0", 200, `{"events":[{"event":"message","data":{"type":"message",`},
		{"start_from=0&filter=addressed", 200, `,"id":2}]}`},
		{"start_from=9", 200, `{"events":[{"event":"gap","data":{"from_sequence":9,"resumed_at":2,`},
		{"timeout=0", 200, ""},
		{"timeout=-1", 400, "timeout"},
		{"timeout=x", 400, "timeout"},
		{"timeout=NaN", 400, "timeout"},
		{"start_from=x", 400, "start_from"},
		{"filter=x", 400, "filter"},
	} {
		if status, got := r.status(a, http.MethodGet, "/events?"+tc.query, ""); status != tc.status || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %d %s", tc.query, status, got)
		}
	}
	answer := make(chan string)
	go func() {
		_, got := r.status(a, http.MethodGet, "/events?start_from=2", "")
		answer <- got
	}()
	r.clock.BlockUntil(1)
	r.say(x, "three")
	if got := <-answer; !strings.Contains(got, `"body":"three"`) {
		t.Errorf("got %s", got)
	}
	if n := len(r.reg.All()); n != 0 {
		t.Errorf("%d connections", n)
	}
}

// TestStalledStreamIsCutOff lets a client of SSE take no bytes.
func TestStalledStreamIsCutOff(t *testing.T) {
	r := newRig(t, func(r *rig) { r.opts.WriteTimeout = 200 * time.Millisecond })
	a := r.agent("bot")
	x := r.room("x", a)
	conn, err := net.Dial("tcp", r.http.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	_, _ = fmt.Fprintf(conn, "GET /agents/%s/events?connection_id=c&scope=all HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer bot\r\nAccept: text/event-stream\r\n\r\n", a.ID)
	r.until("attached", func() bool { return r.live("c") })
	r.sayMany(60, x, strings.Repeat("x", 256<<10))
	r.until("detached", func() bool { i, ok := r.reg.Get("c"); return ok && !i.Attached })
}
