package appliance_test

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/config"
	"signalbox/transport"
	"signalbox/transport/roomclient"
)

// served is the text of the metrics.
func served(t *testing.T, s *appliancetest.Server) string {
	t.Helper()
	resp, err := http.Get("http://" + s.Appliance().Addresses()[transport.ListenerMetrics] + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("metrics: %d, %v", resp.StatusCode, err)
	}
	return string(text)
}

func TestRoomMetrics(t *testing.T) {
	t.Parallel()
	s := appliancetest.Start(t, appliancetest.WithFakeClock(time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)),
		appliancetest.WithConfig(func(c *config.Config) { c.Room.RetainedEvents = 64 }))
	expect := func(samples map[string]float64) {
		t.Helper()
		text := served(t, s)
		for sample, want := range samples {
			if !strings.Contains(text, "\n"+sample+" ") {
				t.Errorf("%s is not served", sample)
			} else if got := s.Metric(sample); got != want {
				t.Errorf("%s is %v, want %v", sample, got, want)
			}
		}
	}
	ann, bob := enlist(s, "ann"), enlist(s, "bob")
	plaza := seats(s, "plaza", ann, bob)
	cid := enlist(s, "cid")
	state := opening(claiming(plaza))
	first, _ := join(t, "websocket", ann, state)
	join(t, "sse", bob, opening(claiming(plaza)))
	expect(map[string]float64{
		`signalbox_room_agents`: 3, `signalbox_room_agents_connected`: 2, `signalbox_rooms`: 1,
		`signalbox_room_connections{state="attached",transport="websocket"}`: 1,
		`signalbox_room_connections{state="attached",transport="sse"}`:       1,
		`signalbox_room_connections{state="detached",transport="sse"}`:       0,
		`signalbox_room_connections{state="attached",transport="mcp"}`:       0,
		`signalbox_room_attaches_total{again="false",transport="websocket"}`: 1,
		`signalbox_room_ends_total{code="taken_over"}`:                       0,
		`signalbox_room_events_dropped_total`:                                0,
		`signalbox_room_gaps_total{reason="retention"}`:                      0,
		`signalbox_room_media_bytes`:                                         0,
		`signalbox_room_mcp_sessions`:                                        0,
		`signalbox_room_stalls_total`:                                        0,
		`signalbox_room_stall_seconds_total`:                                 0,
	})
	s.Do("POST", "/rooms/"+plaza+"/agents", map[string]any{"agent_ids": []string{cid.AgentID.String()}}, http.StatusOK, nil)
	expect(map[string]float64{`signalbox_room_items_total{kind="room_join",sender="agent"}`: 1,
		`signalbox_room_events_queued_total{kind="room_join"}`: 2})

	speak(t, s, plaza, "one")
	next(t, first, roomclient.FrameJoin, nil)
	hears(t, first, "one")
	join(t, "websocket", ann, state) // takes over
	next(t, first, roomclient.FrameEvicted, nil)
	over(t, first)
	expect(map[string]float64{
		`signalbox_room_events_queued_total{kind="message"}`:                 3,
		`signalbox_room_items_total{kind="message",sender="person"}`:         1,
		`signalbox_room_attaches_total{again="true",transport="websocket"}`:  1,
		`signalbox_room_ends_total{code="taken_over"}`:                       1,
		`signalbox_room_connections{state="attached",transport="websocket"}`: 1,
		`signalbox_room_events_delivered_total{transport="websocket"}`:       2,
	})

	for range 200 { // more than is kept
		speak(t, s, plaza, "more")
	}
	seats(s, "attic", ann)
	if dropped := s.Metric(`signalbox_room_events_dropped_total`); dropped == 0 || dropped > 600 {
		t.Errorf("%v events dropped", dropped)
	}
	join(t, "websocket", bob, opening(claiming(plaza), resuming(1)))
	join(t, "websocket", bob, opening(claiming(plaza), resuming(1<<40)))
	expect(map[string]float64{`signalbox_room_gaps_total{reason="reset"}`: 1, `signalbox_rooms`: 2})
	if n := s.Metric(`signalbox_room_gaps_total{reason="retention"}`); n < 1 {
		t.Errorf("%v gaps of retention", n)
	}
	var status struct {
		Rooms struct {
			Agents   struct{ Connected, Total int }
			Rooms    int
			Attached map[string]int
			Detached *int
			Media    *int `json:"media_bytes"`
		}
	}
	s.Do("GET", "/status", nil, http.StatusOK, &status)
	if r := status.Rooms; r.Agents.Connected != 2 || r.Agents.Total != 3 || r.Rooms != 2 || r.Attached["sse"] != 1 ||
		r.Detached == nil || *r.Detached != 0 || r.Media == nil {
		t.Errorf("status tells %+v", r)
	}
	// Nothing that strangers choose is a label.
	text := served(t, s)
	for _, line := range regexp.MustCompile(`(?m)^signalbox_rooms?[_{ ].*$`).FindAllString(text, -1) {
		for _, id := range []string{ann.AgentID.String(), plaza, state.ConnectionID, "plaza", "ann"} {
			if strings.Contains(line, id) {
				t.Errorf("%s has %s in it", line, id)
			}
		}
	}
}

func TestMCPCanBeTurnedOff(t *testing.T) {
	t.Parallel()
	for on, want := range map[bool]int{true: http.StatusUnauthorized, false: http.StatusNotFound} {
		s := appliancetest.Start(t, appliancetest.WithConfig(func(c *config.Config) { c.Room.MCP = on }))
		agent := s.RoomAgent("ann")
		for _, path := range []string{"/mcp", "/agents/" + agent.AgentID.String() + "/mcp"} {
			resp, err := s.Client().Post(s.URL()+path, "application/json", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("on %v: POST %s answers %d, want %d", on, path, resp.StatusCode, want)
			}
		}
		if n := s.Metric("signalbox_room_mcp_sessions"); n != 0 {
			t.Errorf("%v sessions", n)
		}
	}
}

func TestMCPSessionsAreCounted(t *testing.T) {
	t.Parallel()
	s := appliancetest.Start(t)
	agent := s.RoomAgent("ann")
	req, err := http.NewRequestWithContext(limit(t), "POST", s.URL()+"/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,`+
		`"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+agent.Token.Reveal())
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	for _, sample := range []string{`signalbox_room_mcp_sessions`, `signalbox_room_agents_connected`,
		`signalbox_room_connections{state="attached",transport="mcp"}`, `signalbox_room_attaches_total{again="false",transport="mcp"}`} {
		s.Eventually(sample, func() bool { return s.Metric(sample) == 1 })
	}
}
