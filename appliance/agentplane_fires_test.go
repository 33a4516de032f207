package appliance_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/config"
	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

// fireState is a fire as the API shows it.
type fireState struct {
	FireID    string  `json:"fire_id"`
	CommandID *string `json:"command_id"`
	Status    string  `json:"status"`
	ErrorCode *string `json:"error_code"`
	LatencyMS *int64  `json:"latency_ms"`
}

// scheduled makes a schedule of the engine that never comes due while a test runs, and returns its id.
func scheduled(s *appliancetest.Server, engine string) string {
	var made struct {
		ID string `json:"id"`
	}
	s.Do("POST", "/projects/default/schedules", map[string]any{"name": "report", "engine": engine, "kind": "clocked",
		"expression": "2120-01-01T00:00:00Z", "task_name": "tasks.report", "catch_up": "fire_all_missed"}, http.StatusCreated, &made)
	return made.ID
}

// trigger fires the schedule and returns its newest fire.
func trigger(s *appliancetest.Server, schedule string) fireState {
	s.Do("POST", "/projects/default/schedules/"+schedule+"/trigger", nil, http.StatusOK, nil)
	var fires []fireState
	s.Do("GET", "/projects/default/schedules/"+schedule+"/fires?limit=1", nil, http.StatusOK, &fires)
	return fires[0]
}

func fireOf(s *appliancetest.Server, f fireState) (now fireState) {
	s.Do("GET", "/projects/default/fires/"+f.FireID, nil, http.StatusOK, &now)
	return now
}

func explained(s *appliancetest.Server, path string) string {
	var e struct {
		Sentences []string `json:"sentences"`
	}
	s.Do("GET", "/projects/default/"+path+"/explain", nil, http.StatusOK, &e)
	return strings.Join(e.Sentences, "\n")
}

// fireOnce takes one schedule.fire and returns it.
func fireOnce(t *testing.T, ws *agentclient.WS, f fireState) agentclient.Command {
	t.Helper()
	c := command(t, ws)
	var parameters struct {
		FireID string `json:"fire_id"`
	}
	must(t, json.Unmarshal(c.Parameters, &parameters))
	if c.Action != "schedule.fire" || parameters.FireID != f.FireID {
		t.Fatalf("got %s with %s, want the fire %s", c.Action, c.Parameters, f.FireID)
	}
	return c
}

// Checklist 12: with a long-poll agent alone a fire is buffered, says why, and expires.
func TestFireWithALongPollAgentAlone(t *testing.T) {
	s := appliancetest.Start(t, frozen(), configure(func(c *config.Config) { c.Schedules.PendingFiresRetentionDays = 1 }))
	m := s.Mint("lp-1")
	lp := openLP(t, m.Config)
	online(t, lp)
	schedule := scheduled(s, "celery")
	f := trigger(s, schedule)
	if f.Status != "buffered" || f.CommandID != nil {
		t.Fatalf("%+v", f)
	}
	got, err := lp.Poll(t.Context(), 0, 50)
	wantCommands(t, got, err)
	for _, path := range []string{"fires/" + f.FireID, "schedules/" + schedule} {
		if text := explained(s, path); !strings.Contains(text, "Long-poll agents report no inventory") ||
			!strings.Contains(text, "signalbox agents declare-engines lp-1 celery") || !strings.Contains(text, "2026") {
			t.Errorf("%s says %s", path, text)
		}
	}
	var agent struct {
		State string   `json:"state"`
		Notes []string `json:"notes"`
	}
	s.Do("GET", "/projects/default/agents/"+m.ID.String(), nil, http.StatusOK, &agent)
	if text := strings.Join(agent.Notes, "\n"); agent.State != "online" || !strings.Contains(text, "reports no inventory") ||
		!strings.Contains(text, "1 fire of the engine celery buffered") {
		t.Errorf("the agent is %s: %s", agent.State, text)
	}
	s.Clock.Advance(24*time.Hour - time.Second)
	if f = fireOf(s, f); f.Status != "buffered" {
		t.Fatalf("%+v", f)
	}
	s.Clock.Advance(time.Second)
	s.Eventually("the expiry", func() bool { return fireOf(s, f).Status == "buffer_expired" })
	if n := s.Count(`SELECT count(*) FROM audit_log WHERE action = 'schedule.fire.buffer_expired' AND result = 'expired' AND outcome = 'failure'`); n != 1 {
		t.Errorf("%d audit rows", n)
	}
	if n := s.Count("SELECT count(*) FROM pending_fires"); n != 0 {
		t.Errorf("%d rows left in the buffer", n)
	}
}

// Checklist 12: with a WebSocket agent that lists the engine a fire is delivered and acknowledged.
func TestFireWithAWebSocketAgent(t *testing.T) {
	s := appliancetest.Start(t)
	ws := dial(t, s.Mint("ws-1").Config)
	f := trigger(s, scheduled(s, "celery"))
	if f.Status != "delivered" || f.CommandID == nil {
		t.Fatalf("%+v", f)
	}
	c := fireOnce(t, ws, f)
	if c.ID != *f.CommandID {
		t.Errorf("command %s, the fire says %s", c.ID, *f.CommandID)
	}
	answer(t, ws, wire.TypeCommandAck, c.ID, agentclient.AckPayload)
	answer(t, ws, wire.TypeCommandResult, c.ID, agentclient.ResultPayload(true, `{"task_id":"t"}`, ""))
	s.Eventually("the result", func() bool { return fireOf(s, f).Status == "acked_success" })
	if f = fireOf(s, f); f.LatencyMS == nil || f.ErrorCode != nil {
		t.Errorf("%+v", f)
	}
	if n := s.Metric(`signalbox_schedule_fires_total{status="acked_success"}`); n != 1 {
		t.Errorf("metric says %v", n)
	}
}

// Checklist 12: what is buffered is handed over when an agent that lists the engine connects, also after a restart, and not
// to one that lists another.
func TestBufferedFireIsReplayed(t *testing.T) {
	s := appliancetest.Start(t)
	schedule := scheduled(s, "celery")
	f := trigger(s, schedule)
	other := s.Mint("rq-1")
	settle(t, dial(t, s.With(other, func(c *agentclient.Config) { c.Engines, c.Capabilities = []string{"rq"}, nil })))
	if got := fireOf(s, f); got.Status != "buffered" {
		t.Fatalf("%+v", got)
	}
	if text := explained(s, "fires/"+f.FireID); !strings.Contains(text, "rq-1 lists rq") {
		t.Errorf("says %s", text)
	}
	m := s.Mint("ws-1")
	s.Restart()
	if n := s.Metric("signalbox_schedule_fires_pending"); n != 1 {
		t.Errorf("%v fires pending", n)
	}
	ws := dial(t, s.With(m, nil))
	c := fireOnce(t, ws, f)
	answer(t, ws, wire.TypeCommandResult, c.ID, agentclient.ResultPayload(false, "", "no such task"))
	s.Eventually("the result", func() bool { return fireOf(s, f).Status == "acked_failed" })
}

// An operator may declare the engines of a long-poll agent; a WebSocket agent that lists the engine is preferred.
func TestDeclaredEngines(t *testing.T) {
	s := appliancetest.Start(t)
	m := s.Mint("lp-1")
	lp := openLP(t, m.Config)
	online(t, lp)
	schedule := scheduled(s, "celery")
	f := trigger(s, schedule)
	path := "/projects/default/agents/" + m.ID.String() + "/declared-engines"
	for _, bad := range []any{map[string]any{"engines": []string{}}, map[string]any{"engines": []string{"no spaces"}}, map[string]any{}} {
		s.Do("PUT", path, bad, http.StatusUnprocessableEntity, nil)
	}
	s.Do("PUT", path, map[string]any{"engines": []string{"rq", "celery"}}, http.StatusOK, nil)
	got, err := lp.Poll(t.Context(), 30*time.Second, 50) // woken by the replay
	if err != nil || len(got) != 1 || got[0].Action != "schedule.fire" {
		t.Fatalf("%+v, %v", got, err)
	}
	up, err := lp.Upload(t.Context(), agentclient.Outgoing{Type: wire.TypeCommandResult, ID: got[0].ID,
		Payload: []byte(agentclient.ResultPayload(true, "{}", ""))})
	if err != nil || up.Accepted != 1 || fireOf(s, f).Status != "acked_success" {
		t.Fatalf("%+v, %v, %+v", up, err, fireOf(s, f))
	}
	s.Do("DELETE", path, nil, http.StatusNoContent, nil)
	s.Do("DELETE", path, nil, http.StatusNoContent, nil)
	if n := s.Count(`SELECT count(*) FROM audit_log WHERE action LIKE 'agent.engines.%'`); n != 2 {
		t.Errorf("%d audit rows, want one of the declaration and one of the end", n)
	}
}

// Agent protocol G.7: nothing of an external schedule is projected here, and every schedule event is confirmed, or an
// agent would send it for ever.
func TestScheduleEventsAreConfirmed(t *testing.T) {
	s := appliancetest.Start(t)
	ws := dial(t, s.Mint("ws-1").Config)
	for _, kind := range []string{"schedule.snapshot", "schedule.created", "schedule.updated", "schedule.deleted", "schedule.run_started",
		"schedule.run_completed", "schedule.of_tomorrow"} {
		payload := agentclient.AppendEventBatch(nil, []agentclient.Event{{Kind: kind, Engine: "celery", OccurredAt: s.Now(),
			Data: `{"frame_digest":"x","reason":"boot"}`}})
		if ack := send(t, ws, batchID(), payload); ack.Accepted+ack.Rejected == 0 {
			t.Errorf("%s: %+v", kind, ack)
		}
	}
	if n := s.Count("SELECT count(*) FROM schedules") + s.Count("SELECT count(*) FROM fires"); n != 0 {
		t.Errorf("%d rows of schedules and fires", n)
	}
}
