package roomclient

import (
	"encoding/json"
	"slices"
	"testing"
	"time"
)

func refused(status int, detail string) *Refused {
	return &Refused{Status: status, Detail: json.RawMessage(detail)}
}

func TestDecide(t *testing.T) {
	const id = "0b0e7b9e-0000-4000-8000-000000000001"
	for _, tc := range []struct {
		name    string
		closed  Closed
		lasted  time.Duration
		stop    string
		dropped []string
		pause   time.Duration
	}{
		{"bad key", Closed{Code: 4401, Opened: true}, 0, StopRejected, nil, 0},
		{"bad room", Closed{Code: 4403, Refused: refused(403, `"Room not found: `+id+`"`)}, 0, "", []string{id}, 0},
		{"missing room", Closed{Code: 4404, Refused: refused(404, `"Room not found: `+id+`"`)}, 0, "", []string{id}, 0},
		{"forbidden", Closed{Code: 4403, Refused: refused(403, `"not a member"`)}, 0, StopRejected, nil, 0},
		{"forbidden without a word", Closed{Code: 4403}, 0, StopRejected, nil, 0},
		{"stale", Closed{Code: 4409, Refused: refused(409, `{"code":"taken_over","message":"m"}`)}, 0, StopTakenOver, nil, 0},
		{"too many", Closed{Code: 4409, Refused: refused(409, `"too many"`)}, 0, "", nil, time.Second},
		{"worker", Closed{Code: 4409, Refused: refused(409, `{"code":"hosted_worker_only"}`)}, 0, StopReserved, nil, 0},
		{"parameter", Closed{Code: 4400, Refused: refused(400, `"scope"`)}, 0, "", nil, time.Second},
		{"evicted", Closed{Code: 1000, Evicted: &Evicted{Code: "taken_over"}}, time.Hour, StopTakenOver, nil, 0},
		{"lapsed", Closed{Code: 1000, Evicted: &Evicted{Code: "heartbeat_lapsed"}}, time.Hour, "", nil, time.Second},
		{"restart", Closed{Code: 1012}, time.Hour, "", nil, fastLow},
		{"failed", Closed{Code: 1011}, 0, "", nil, time.Second},
		{"broken", Closed{Err: ErrDropped}, 0, "", nil, time.Second},
		{"SSE bad key", Closed{Refused: refused(401, ``)}, 0, StopRejected, nil, 0},
		{"beat unknown", Closed{Beat: &StatusError{Status: 404}}, 0, "", nil, time.Second},
		{"beat taken over", Closed{Beat: &StatusError{Status: 409, Detail: json.RawMessage(`{"code":"taken_over"}`)}}, 0, StopTakenOver, nil, 0},
		{"beat no stream", Closed{Beat: &StatusError{Status: 409, Detail: json.RawMessage(`{"code":"no_stream"}`)}}, 0, "", nil, time.Second},
		{"beat forbidden", Closed{Beat: &StatusError{Status: 403}}, 0, StopRejected, nil, 0},
	} {
		p := pacer{cfg: &Config{Jitter: func(low, _ time.Duration) time.Duration { return low }}}
		e := Ending{Closed: tc.closed}
		p.decide(&e, []string{"other", id}, tc.lasted, time.Unix(0, 0))
		if e.Stop != tc.stop || !slices.Equal(e.Dropped, tc.dropped) || e.Pause != tc.pause {
			t.Errorf("%s: stop %q, dropped %v, pause %v", tc.name, e.Stop, e.Dropped, e.Pause)
		}
	}
}

func TestPausesDoubleAndReset(t *testing.T) {
	p := pacer{cfg: &Config{Jitter: func(_, high time.Duration) time.Duration { return high }}}
	at := time.Unix(1000, 0)
	var got []time.Duration
	step := func(code int, lasted time.Duration) {
		e := Ending{Closed: Closed{Code: code}}
		p.decide(&e, nil, lasted, at)
		at = at.Add(lasted + e.Pause)
		got = append(got, e.Pause)
	}
	for range 7 {
		step(1011, 0)
	}
	step(1000, 29*time.Second)
	step(1000, 30*time.Second)
	step(1011, 0)
	step(1012, time.Second)
	step(0, 0) // still inside of the fast window
	step(0, fastWindow)
	want := []time.Duration{1, 2, 4, 8, 16, 30, 30, 30, 1, 2}
	for i := range want {
		want[i] *= time.Second
	}
	want = append(want, fastHigh, fastHigh, time.Second)
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestIsEvent(t *testing.T) {
	for _, tc := range []struct {
		frame Frame
		want  bool
	}{
		{Frame{Event: "message"}, true},
		{Frame{Event: "ping", Data: json.RawMessage(`{"type":"x"}`)}, false},
		{Frame{Event: "news", Data: json.RawMessage(`{"type":"news"}`)}, true},
		{Frame{Event: "news", Data: json.RawMessage(`{"type":1}`)}, false},
		{Frame{Event: "news", Data: json.RawMessage(`{}`)}, false},
	} {
		if got := tc.frame.IsEvent(); got != tc.want {
			t.Errorf("%s %s: %v", tc.frame.Event, tc.frame.Data, got)
		}
	}
}

func TestQuery(t *testing.T) {
	zero, g := int64(0), int64(9)
	o := Current("c")
	o.StartFrom, o.ExpectedGeneration, o.Rooms, o.SpawnCapable = &zero, &g, []string{"a", "b"}, true
	o.Extra = map[string][]string{"protocol": {"6"}}
	const want = "client=agent-runtime&client_version=0.8.0&connection_id=c&expected_generation=9&protocol=6&protocol_accepts=1" +
		"&rooms=a%2Cb&spawn_capable=true&start_from=0"
	if got := o.Query(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	c := Config{Endpoint: "https://host/prefix/"}
	if got := c.SocketURL(&Open{ConnectionID: "c"}); got != "wss://host/prefix/agents/00000000-0000-0000-0000-000000000000/connection/ws?connection_id=c" {
		t.Error(got)
	}
}
