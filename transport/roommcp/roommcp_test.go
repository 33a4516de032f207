//lint:file-ignore SA1019 the versions of the protocol that have sessions have logging too

package roommcp_test

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"signalbox/appliance/room/connection"
	"signalbox/transport/roommcp"
)

func TestToolsAreTheOperationsAndTheWait(t *testing.T) {
	r := newRig(t)
	h := r.host("fox", false)
	if got := h.InitializeResult(); got.ServerInfo.Name != "signalbox" || got.ServerInfo.Version != "1.2.3" ||
		got.Instructions == "" {
		t.Errorf("server %+v", got)
	}
	list, err := h.ListTools(r.ctx, nil)
	r.ok("list", err)
	want := map[string]bool{"wait_for_messages": true}
	for _, op := range r.table().Operations() {
		want[op.Name] = true
	}
	names := map[string]bool{}
	for _, tool := range list.Tools {
		names[tool.Name] = true
		if schema, ok := tool.InputSchema.(map[string]any); !ok || schema["type"] != "object" || tool.Description == "" {
			t.Errorf("%s: %v", tool.Name, tool.InputSchema)
		}
	}
	if !reflect.DeepEqual(names, want) {
		t.Errorf("tools %v, want %v", names, want)
	}
}

func TestCallsRunOnTheSessionsConnection(t *testing.T) {
	r := newRig(t)
	h := r.host("fox", false)
	info := r.only(r.fox)
	if info.Scope != connection.ScopeSingle || string(info.Transport) != "mcp" || !info.Attached || info.AgentName != "fox" {
		t.Errorf("connection %+v", info)
	}
	res, text := h.call("connect_to_room", map[string]any{"room_id": r.room})
	if res.IsError || res.StructuredContent.(map[string]any)["room_id"] != r.room.String() {
		t.Fatalf("%s, structured %v", text, res.StructuredContent)
	}
	if got := r.only(r.fox); len(got.Rooms) != 1 || got.Rooms[0] != r.room {
		t.Errorf("claims %v", got.Rooms)
	}
	if res, text = h.call("list_rooms", nil); res.IsError || res.StructuredContent != nil || !strings.HasPrefix(text, "[{") {
		t.Errorf("list: %s, structured %v", text, res.StructuredContent)
	}
	if text := h.must("post_message", map[string]any{"body": "@owl hello"}); !strings.Contains(text, "event_id") {
		t.Errorf("post: %s", text)
	}
	if text := h.must("read_context", map[string]any{"limit": 5}); !strings.Contains(text, "@owl hello") {
		t.Errorf("context: %s", text)
	}
	if res, text = h.call("post_message", map[string]any{"body": "x", "nope": 1}); !res.IsError || !strings.Contains(text, "nope") {
		t.Errorf("unknown argument: %s", text)
	}
	if res, text = h.call("connect_to_room", map[string]any{"room_id": uuid.New()}); !res.IsError || !strings.Contains(text,
		"Room not found") {
		t.Errorf("unknown room: %s", text)
	}
	if _, err := h.CallTool(r.ctx, &mcp.CallToolParams{Name: "nope"}); err == nil {
		t.Error("an unknown tool was called")
	}
	r.ok("close", h.Close())
	r.eventually("connection closed", func() bool { return len(r.conns.List(r.fox.No)) == 0 && r.server.Sessions() == 0 })
}

func TestWaitHandsOverWhatConcernsTheAgentOnce(t *testing.T) {
	r := newRig(t)
	h := r.host("fox", false)
	if got := h.now(); got.Notice == "" || len(got.Rooms) != 0 || len(got.Events) != 0 {
		t.Errorf("without a room: %+v", got)
	}
	h.enter(r.room)
	r.say(r.room, "chatter")
	r.say(r.den, "@fox elsewhere")
	r.say(r.room, "@fox one")
	r.say(r.room, "@fox two")
	got := h.now()
	if !reflect.DeepEqual(got.bodies(), []string{"@fox one", "@fox two"}) || got.Unaddressed != 1 || got.More ||
		!got.Events[0].Data.Payload.Addressed ||
		got.Events[0].Data.RoomID != r.room || got.Events[0].Event != "message" {
		t.Fatalf("%+v", got)
	}
	if m := got.Events[0].Data.Missed; m == nil || m.Count == nil || *m.Count != 1 {
		t.Errorf("missed %+v", m)
	}
	if again := h.now(); len(again.Events) != 0 || again.Unaddressed != 0 || again.Cursor != got.Cursor {
		t.Errorf("again: %+v", again)
	}
	if back := h.wait(map[string]any{"timeout_seconds": 0, "after": got.Events[0].ID}); !reflect.DeepEqual(back.bodies(),
		[]string{"@fox two"}) {
		t.Errorf("again after the first: %v", back.bodies())
	}
	if ahead := h.wait(map[string]any{"timeout_seconds": 0, "after": int64(1) << 40}); ahead.Cursor != got.Cursor {
		t.Errorf("a cursor ahead moved on to %d", ahead.Cursor)
	}
	r.say(r.room, "more chatter")
	if all := h.wait(map[string]any{"timeout_seconds": 0, "include_unaddressed": true}); !reflect.DeepEqual(all.bodies(),
		[]string{"more chatter"}) {
		t.Errorf("everything: %v", all.bodies())
	}
	if info := r.only(r.fox); info.Cursor != h.now().Cursor {
		t.Errorf("the registry has cursor %d", info.Cursor)
	}
}

func TestWaitIsWokenByAMessage(t *testing.T) {
	r := newRig(t)
	h := r.host("fox", false)
	h.enter(r.room)
	done := make(chan waited, 1)
	go func() { done <- h.wait(map[string]any{"timeout_seconds": 50}) }()
	r.eventually("waiting", func() bool { return waiters(r) >= 2 }) // the beat's timer and the wait's
	if res, text := h.call("wait_for_messages", nil); !res.IsError || !strings.Contains(text, "under way") {
		t.Errorf("a second wait: %s", text)
	}
	r.say(r.room, "chatter")
	r.say(r.room, "@fox hello")
	select {
	case got := <-done:
		if !reflect.DeepEqual(got.bodies(), []string{"@fox hello"}) || got.Unaddressed != 1 {
			t.Errorf("%+v", got)
		}
	case <-r.ctx.Done():
		t.Fatal("never woken")
	}
}

// waiters counts the armed timers, once there are some.
func waiters(r *rig) int {
	n := make(chan int, 1)
	go func() { r.clk.BlockUntil(2); n <- 2 }()
	select {
	case <-n:
		return 2
	case <-time.After(10 * time.Millisecond):
		return 0
	}
}

func TestWaitEndsWithItsTime(t *testing.T) {
	r := newRig(t)
	h := r.host("fox", false)
	h.enter(r.room)
	done := make(chan waited, 1)
	go func() { done <- h.wait(map[string]any{"timeout_seconds": 3}) }()
	r.clk.BlockUntil(2)
	r.clk.Advance(3 * time.Second)
	if got := <-done; len(got.Events) != 0 || got.Notice != "" {
		t.Errorf("%+v", got)
	}
}

func TestWaitRefusesBadArguments(t *testing.T) {
	r := newRig(t)
	h := r.host("fox", false)
	for _, args := range []map[string]any{{"timeout_seconds": -1}, {"timeout_seconds": 51}, {"timeout_seconds": "x"},
		{"after": -1}, {"other": 1}} {
		if res, text := h.call("wait_for_messages", args); !res.IsError {
			t.Errorf("%v: %s", args, text)
		}
	}
}

func TestGapIsTold(t *testing.T) {
	r := newRig(t)
	h := r.host("fox", false)
	h.enter(r.room)
	for range 25 { // five more than are kept
		r.say(r.room, "@fox x")
	}
	got := h.now()
	if got.Gap == nil || len(got.Gap.Rooms) != 1 || got.Gap.Rooms[0] != r.room || len(got.Events) != 20 {
		t.Errorf("gap %+v, %d events", got.Gap, len(got.Events))
	}
	if h.now().Gap != nil {
		t.Error("the gap was told twice")
	}
}

func TestFullAnswersGoOn(t *testing.T) {
	r := newRig(t)
	h := r.host("fox", false)
	h.enter(r.room)
	for range 4 {
		r.say(r.room, "@fox "+strings.Repeat("x", 100<<10))
	}
	first, second := h.now(), h.now()
	if len(first.Events) != 3 || !first.More || len(second.Events) != 1 || second.More ||
		second.Events[0].ID != first.Events[2].ID+1 {
		t.Errorf("%d events, more %v, then %d, more %v", len(first.Events), first.More, len(second.Events), second.More)
	}
}

func TestLogNotificationsForHostsThatWantThem(t *testing.T) {
	r := newRig(t)
	h := r.host("fox", true)
	r.ok("level", h.SetLoggingLevel(r.ctx, &mcp.SetLoggingLevelParams{Level: "info"}))
	h.enter(r.room)
	r.say(r.room, "chatter")
	r.say(r.den, "@fox elsewhere")
	r.say(r.room, "@fox hello")
	select {
	case got := <-h.logs:
		b, _ := json.Marshal(got.Data)
		if got.Logger != "signalbox.rooms" || !strings.Contains(string(b), "@fox hello") {
			t.Errorf("%s: %s", got.Logger, b)
		}
	case <-r.ctx.Done():
		t.Fatal("no notification")
	}
	if got := h.now(); !reflect.DeepEqual(got.bodies(), []string{"@fox hello"}) {
		t.Errorf("the wait has %v", got.bodies())
	}
}

func TestSilentHostIsNotPresentAndComesBackWhereItWas(t *testing.T) {
	r := newRig(t, func(o *roommcp.Options) { o.Presence = 5 * time.Second })
	h := r.host("fox", false)
	h.enter(r.room)
	r.say(r.room, "@fox one")
	if got := h.now(); len(got.Events) != 1 {
		t.Fatalf("%v", got.bodies())
	}
	beats := r.only(r.fox).Beats
	r.tick(2)
	if got := r.only(r.fox).Beats; got != beats+2 {
		t.Fatalf("%d beats, want %d", got, beats+2)
	}
	r.silence()
	r.say(r.room, "@fox two")
	if got := h.now(); !reflect.DeepEqual(got.bodies(), []string{"@fox two"}) {
		t.Errorf("after the silence: %+v", got)
	}
	if got := r.only(r.fox); len(got.Rooms) != 1 || got.Rooms[0] != r.room {
		t.Errorf("claims %v", got.Rooms)
	}
	// A room that a sibling has claimed meanwhile stays with it.
	r.silence()
	_, err := r.conns.Attach(r.ctx, connection.Request{AgentNo: r.fox.No, AgentID: r.fox.ID, AgentName: "fox",
		ConnectionID: "sibling",
		Transport:    connection.WebSocket, Scope: connection.ScopeSingle, Filter: connection.FilterAll, StartHead: true,
		Rooms: []uuid.UUID{r.room}}, nil)
	r.ok("sibling", err)
	if got := h.now(); len(got.Rooms) != 0 {
		t.Errorf("took %v from the sibling", got.Rooms)
	}
}

// tick lets the sessions beat n times.
func (r *rig) tick(n int) {
	r.t.Helper()
	for range n {
		r.clk.BlockUntil(1)
		r.clk.Advance(connection.BeatEvery)
		r.clk.BlockUntil(1)
		r.conns.Sweep(r.clk.Now())
	}
}

// silence lets the sessions beat until fox counts as gone. For the server a request ends a little later than for the
// client: then the silence begins.
func (r *rig) silence() {
	r.t.Helper()
	r.eventually("gone", func() bool {
		r.tick(1)
		return len(r.conns.List(r.fox.No)) == 0
	})
}

func TestIdleSessionIsClosed(t *testing.T) {
	r := newRig(t, func(o *roommcp.Options) { o.Presence, o.Idle = time.Second, 3*time.Second })
	h := r.host("fox", false)
	r.silence()
	r.eventually("closed", func() bool {
		r.clk.Advance(2 * time.Second)
		return r.server.Sessions() == 0
	})
	if _, err := h.ListTools(r.ctx, nil); err == nil {
		t.Error("the session still answers")
	}
}

func TestOpenStreamKeepsTheHostPresent(t *testing.T) {
	r := newRig(t, func(o *roommcp.Options) { o.Presence, o.Idle = time.Second, 3*time.Second })
	r.host("fox", true)
	r.tick(4)
	r.only(r.fox)
}

func TestEvictionEndsTheSession(t *testing.T) {
	r := newRig(t)
	h := r.host("fox", false)
	r.conns.Evict(r.only(r.fox).ConnectionID, "by the operator")
	r.eventually("closed", func() bool { return r.server.Sessions() == 0 })
	if _, err := h.ListTools(r.ctx, nil); err == nil {
		t.Error("the session still answers")
	}
}

func TestDeletedAgentLosesItsSession(t *testing.T) {
	r := newRig(t)
	h := r.host("fox", false)
	r.ok("delete", r.people.DeleteAgent(r.ctx, r.operator, r.fox.ID))
	r.eventually("closed", func() bool { return r.server.Sessions() == 0 })
	if _, err := h.ListTools(r.ctx, nil); err == nil {
		t.Error("the key still works")
	}
}

func TestStoppingServerEndsWaits(t *testing.T) {
	r := newRig(t)
	h := r.host("fox", true)
	h.enter(r.room)
	done := make(chan error, 1)
	go func() {
		res, err := h.CallTool(r.ctx, &mcp.CallToolParams{Name: "wait_for_messages"})
		if err == nil && !res.IsError {
			t.Error("the wait had an answer")
		}
		done <- err
	}()
	r.clk.BlockUntil(2)
	r.ok("drain", r.server.Drain(r.ctx))
	<-done
	if r.server.Sessions() != 0 || len(r.conns.List(r.fox.No)) != 0 {
		t.Error("something stays open")
	}
	if _, err := r.connect("/mcp", r.keys["fox"], false); err == nil {
		t.Error("a new session on a stopping server")
	}
}

func TestSessionsAreBounded(t *testing.T) {
	r := newRig(t, func(o *roommcp.Options) { o.PerAgent, o.MaxSessions = 2, 3 })
	first := r.host("fox", false)
	r.clk.Advance(time.Second)
	r.host("fox", true)
	r.clk.Advance(time.Second)
	r.eventually("a third in place of the idle one", func() bool {
		h, err := r.connect("/mcp", r.keys["fox"], true)
		if err == nil {
			t.Cleanup(func() { _ = h.Close() })
		}
		return err == nil
	})
	r.eventually("the idle one made way", func() bool { return r.server.Sessions() == 2 })
	if _, err := first.ListTools(r.ctx, nil); err == nil {
		t.Error("the oldest session still answers")
	}
	r.host("owl", true)
	if _, err := r.connect("/mcp", r.keys["owl"], false); err == nil {
		t.Error("one session too many on the server")
	}
}

func TestSessionsBelongToTheirAgent(t *testing.T) {
	r := newRig(t)
	h := r.host("fox", false)
	r.host("owl", false)
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`
	post := func(path, key string, headers ...string) int {
		req, err := http.NewRequestWithContext(r.ctx, "POST", r.http.URL+path, strings.NewReader(body))
		r.ok("request", err)
		for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
			"Mcp-Session-Id": h.ID()} {
			req.Header.Set(k, v)
		}
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
			if headers[i] == "Host" {
				req.Host = headers[i+1]
			}
		}
		res, err := http.DefaultClient.Do(req)
		r.ok("post", err)
		if res.StatusCode == 401 && res.Header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("401 without a challenge")
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	own := strings.TrimPrefix(r.http.URL, "http://")
	for _, c := range []struct {
		what   string
		status int
		got    int
	}{
		{"own key", 200, post("/mcp", r.keys["fox"])},
		{"own key, own path", 200, post("/agents/"+r.fox.ID.String()+"/mcp", r.keys["fox"])},
		{"another's path", 403, post("/agents/"+r.owl.ID.String()+"/mcp", r.keys["fox"])},
		{"another's session", 403, post("/mcp", r.keys["owl"])},
		{"no key", 401, post("/mcp", "")},
		{"wrong key", 401, post("/mcp", "wrong")},
		{"unknown session", 404, post("/mcp", r.keys["fox"], "Mcp-Session-Id", "nope")},
		{"own origin", 200, post("/mcp", r.keys["fox"], "Origin", "http://"+own)},
		{"foreign origin", 403, post("/mcp", r.keys["fox"], "Origin", "http://evil.example")},
		{"null origin", 403, post("/mcp", r.keys["fox"], "Origin", "null")},
		{"rebound name", 403, post("/mcp", r.keys["fox"], "Origin", "http://evil.example", "Host", "evil.example")},
	} {
		if c.got != c.status {
			t.Errorf("%s: %d, want %d", c.what, c.got, c.status)
		}
	}
}

func TestRotatedKeyEndsAccess(t *testing.T) {
	r := newRig(t)
	h := r.host("fox", false)
	old := r.keys["fox"]
	r.rotate("fox")
	if r.keys["fox"] == old {
		t.Fatal("no new key")
	}
	if _, err := h.ListTools(r.ctx, nil); err == nil {
		t.Error("the old key still works")
	}
	r.host("fox", false)
}
