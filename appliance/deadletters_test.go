package appliance_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/config"
	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

const deadPath = "/projects/default/dead-letters"

// deadListing asks for dead letters and returns the answer when it comes.
func deadListing(s *appliancetest.Server, query string) <-chan reply {
	done := make(chan reply, 1)
	go func() {
		status, body := s.Admin("GET", deadPath+query, nil)
		done <- reply{status: status, body: body}
	}()
	return done
}

// Agent protocol E.10: an agent is asked, and its answer is checked and bounded.
func TestDeadLettersAreListedByAnAgent(t *testing.T) {
	s := appliancetest.Start(t, configure(unlimited))
	m := s.Mint("a")
	if status, body := s.Admin("GET", deadPath+"?engine=celery", nil); status != 409 || !strings.Contains(string(body), `"candidates":[{`) ||
		!strings.Contains(string(body), "no session") {
		t.Errorf("nobody there: %d %s", status, body)
	}
	ws := dial(t, s.With(m, retrier))
	long := strings.Repeat("é", 600)
	for name, tc := range map[string]struct {
		success bool
		result  string
		errText string
		want    int
		say     []string
	}{
		"entries": {true, `{"entries":[{"attempts":3,"error_excerpt":"` + long + `","failed_at":"2026-01-01T00:00:00Z","queue":"mail","task_id":"t","task_name":"n"},` +
			`{"attempts":"x","task_id":"u"}],"next_cursor":"c2","total":7}`, "", 200,
			[]string{`"task_id":"t"`, `"attempts":3`, strings.Repeat("é", 512) + `"`, `"task_id":"u","task_name":null`, `"next_cursor":"c2"`, `"total":7`, `"engine":"celery"`}},
		"none":         {true, `{"entries":[]}`, "", 200, []string{`"entries":[]`, `"next_cursor":null`, `"total":null`}},
		"failed":       {false, "", "broker is down", 502, []string{"adapter_error", "broker is down"}},
		"no result":    {true, "", "", 502, []string{"no list"}},
		"no list":      {true, `{"entries":{}}`, "", 502, []string{"entries must be a list"}},
		"no task id":   {true, `{"entries":[{"queue":"q"}]}`, "", 502, []string{"task_id"}},
		"too many":     {true, `{"entries":[{"task_id":"a"},{"task_id":"b"},{"task_id":"c"}]}`, "", 502, []string{"asked for"}},
		"wrong cursor": {true, `{"entries":[],"next_cursor":"` + strings.Repeat("c", 201) + `"}`, "", 502, []string{"next_cursor"}},
	} {
		done := deadListing(s, "?engine=celery&limit=2&queue=mail&cursor=abc")
		c := command(t, ws)
		if c.Action != "dlq.list" || string(c.Parameters) != `{"cursor":"abc","engine":"celery","limit":2,"queue":"mail"}` {
			t.Fatalf("%s: command %+v", name, c)
		}
		answer(t, ws, wire.TypeCommandResult, c.ID, agentclient.ResultPayload(tc.success, tc.result, tc.errText))
		got := <-done
		if got.status != tc.want {
			t.Errorf("%s: answered %d %s", name, got.status, got.body)
		}
		for _, text := range tc.say {
			if !strings.Contains(string(got.body), text) {
				t.Errorf("%s: %s lacks %s", name, got.body, text)
			}
		}
		if name == "entries" && strings.Contains(string(got.body), strings.Repeat("é", 513)) {
			t.Error("the excerpt is not cut")
		}
	}
	issued := s.Count("SELECT count(*) FROM audit_log WHERE action = 'command.issue.dlq.list'")
	if n := s.Count("SELECT count(*) FROM audit_log WHERE action = 'dead_letters.list'"); n != 8 || issued != 8 {
		t.Errorf("%d audit rows, %d of issues", n, issued)
	}
	before := s.State()
	for _, query := range []string{"", "?engine=", "?engine=ce+lery", "?engine=celery&limit=0", "?engine=celery&limit=201", "?engine=celery&cursor=%C3%A9",
		"?engine=celery&cursor=" + strings.Repeat("c", 201), "?engine=" + strings.Repeat("e", 41)} {
		if status, body := s.Admin("GET", deadPath+query, nil); status != 422 {
			t.Errorf("%s: answered %d %s", query, status, body)
		}
	}
	if status, body := s.Admin("GET", deadPath+"?engine=rq", nil); status != 409 || !strings.Contains(string(body), "does not report the engine rq") {
		t.Errorf("another engine: %d %s", status, body)
	}
	s.Unchanged(before)
}

// Agent protocol E.10: without an answer the listing ends as 504 after 15 seconds; over long-poll it is answered too.
func TestDeadLettersWithoutAnAnswer(t *testing.T) {
	clock := appliancetest.NewJump(0)
	s := appliancetest.Start(t, configure(unlimited), appliancetest.WithClock(clock))
	m := s.Mint("a")
	lp := openLP(t, s.With(m, func(c *agentclient.Config) { c.RetryContracts = []string{"rq"} }))
	online(t, lp)
	done := deadListing(s, "?engine=rq")
	got, err := lp.Poll(t.Context(), 10*time.Second, 50)
	if err != nil || len(got) != 1 || got[0].Action != "dlq.list" {
		t.Fatalf("%v, %v", got, err)
	}
	up, err := lp.Upload(t.Context(), agentclient.Outgoing{Type: wire.TypeCommandResult, ID: got[0].ID,
		Payload: []byte(agentclient.ResultPayload(true, `{"entries":[{"task_id":"t"}]}`, ""))})
	if err != nil || up.Accepted != 1 {
		t.Fatalf("%+v, %v", up, err)
	}
	if r := <-done; r.status != http.StatusOK {
		t.Errorf("answered %d %s", r.status, r.body)
	}
	done = deadListing(s, "?engine=rq")
	if got, err := lp.Poll(t.Context(), 10*time.Second, 50); err != nil || len(got) != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	clock.By(16 * time.Second)
	if r := <-done; r.status != http.StatusGatewayTimeout || !strings.Contains(string(r.body), "command_timeout") {
		t.Errorf("answered %d %s", r.status, r.body)
	}
}

// Agent protocol E.2, K: a task that runs for too long is asked about, once at a time, by the agent that told of it; the
// answer corrects it. Nothing is asked when nobody can answer.
func TestStartedTasksAreReconciled(t *testing.T) {
	clock := appliancetest.NewJump(0)
	s := appliancetest.Start(t, configure(unlimited), configure(func(c *config.Config) { c.Agent.WSIdleTimeout = config.Duration(time.Hour) }),
		appliancetest.WithClock(clock))
	one, two := s.Mint("one"), s.Mint("two")
	inTime := func(c *agentclient.Config) { retrier(c); c.Now = clock.Now }
	ws := dial(t, s.With(one, inTime))
	send(t, ws, batchID(), started("lost", s.Now()))
	send(t, ws, batchID(), started("fine", s.Now()))
	send(t, ws, batchID(), batch("fine", s.Now()))
	sweep := func() int {
		t.Helper()
		n, err := s.Appliance().SweepStarted(t.Context())
		must(t, err)
		return n
	}
	if n := sweep(); n != 0 {
		t.Errorf("%d commands for tasks that have just begun", n)
	}
	clock.By(16 * time.Minute)
	ws.Deadline(time.Now().Add(appliancetest.Wait))
	s.Eventually("the question", func() bool {
		sweep()
		return s.Count("SELECT count(*) FROM commands WHERE action = 'reconcile_task'") > 0
	})
	if n := sweep(); n != 0 {
		t.Errorf("%d commands for a task that is being asked about", n)
	}
	c := command(t, ws)
	if c.Action != "reconcile_task" || string(c.Parameters) != `{"engine":"celery","task_id":"lost"}` {
		t.Fatalf("command %+v", c)
	}
	answer(t, ws, wire.TypeCommandResult, c.ID, agentclient.ResultPayload(true, `{"engine_state":"failure","exception":"WorkerLostError","finished_at":null}`, ""))
	if got := s.Text("SELECT state FROM tasks WHERE task_id = 'lost'"); got != "failure" {
		t.Errorf("the task is %s", got)
	}
	if n := s.Count("SELECT count(*) FROM audit_log WHERE action = 'task.reconciled'"); n != 1 {
		t.Errorf("%d audit rows", n)
	}
	send(t, ws, batchID(), started("later", s.Now()))
	must(t, ws.Close())
	s.Eventually("the session to go", func() bool { return s.Count("SELECT count(*) FROM agent_workers WHERE state = 'online'") == 0 })
	clock.By(16 * time.Minute)
	if n := sweep(); n != 0 || s.Count("SELECT count(*) FROM commands WHERE target_id = 'celery:later'") != 0 {
		t.Errorf("%d commands though the agent that told of the task is away", n)
	}
	s.Revoke(one)
	dial(t, s.With(two, inTime))
	s.Eventually("the question to the only agent that is left", func() bool {
		sweep()
		return s.Count("SELECT count(*) FROM commands WHERE action = 'reconcile_task' AND target_id = 'celery:later'") == 1
	})
}

// started is an event_batch of a task that began.
func started(taskID string, at time.Time) []byte {
	return agentclient.AppendEventBatch(nil, []agentclient.Event{{ID: uuid.New(), Kind: "task.started", Engine: "celery", TaskID: taskID,
		OccurredAt: at, Data: `{"task_name":"mail.send"}`}})
}
