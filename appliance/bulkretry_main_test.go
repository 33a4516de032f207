package appliance_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/config"
	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

const bulkPath = "/projects/default/bulk-retry-requests"

// bulkRetry is what these tests read of a bulk retry.
type bulkRetry struct {
	ID         string  `json:"id"`
	Status     string  `json:"status"`
	Total      int     `json:"total"`
	Waiting    int     `json:"waiting"`
	InFlight   int     `json:"in_flight"`
	Completed  int     `json:"completed"`
	Failed     int     `json:"failed"`
	TimedOut   int     `json:"timeout"`
	Cancelled  int     `json:"cancelled"`
	WaitingFor *string `json:"waiting_for"`
	Error      *string `json:"error"`
}

// retrier makes an agent say that it can retry tasks of celery.
func retrier(c *agentclient.Config) {
	c.WorkerID, c.Engines = "w1", []string{"celery"}
	c.Capabilities = map[string][]string{"celery": {"retry_task", "cancel_task", "bulk_retry", "retry_by_reference_v1", "list_dead_letters"}}
}

// failTasks reports tasks with ids from prefix-0 on as failed.
func failTasks(t *testing.T, ws *agentclient.WS, prefix string, n int, at time.Time) {
	t.Helper()
	for from := 0; from < n; from += 250 {
		var events []agentclient.Event
		for i := from; i < min(from+250, n); i++ {
			events = append(events, agentclient.Event{ID: uuid.New(), Kind: "task.failed", Engine: "celery",
				TaskID: fmt.Sprintf("%s-%d", prefix, i), OccurredAt: at, Data: `{"exception":"ValueError('x')","queue":"mail","task_name":"mail.send"}`})
		}
		send(t, ws, batchID(), agentclient.AppendEventBatch(nil, events))
	}
}

// worker executes retries: it counts what it is asked to retry and answers.
type worker struct {
	mu    sync.Mutex
	seen  map[string]int
	done  map[string]string // command id: payload of the result
	count chan int
}

func newWorker() *worker {
	return &worker{seen: map[string]int{}, done: map[string]string{}, count: make(chan int, 10000)}
}

// run serves a session until it ends, after it has said again what it said before: an agent does so when it reconnects.
func (w *worker) run(ws *agentclient.WS) {
	w.mu.Lock()
	for id, result := range w.done {
		_ = ws.SendJSON(wire.TypeCommandResult, id, result)
	}
	w.mu.Unlock()
	for {
		f, err := ws.Receive()
		if err != nil {
			return
		}
		if f.Type != wire.TypeCommand {
			f.Release()
			continue
		}
		c, err := agentclient.ReadCommand(&f)
		f.Release()
		if err != nil {
			return
		}
		result := agentclient.ResultPayload(true, `{"new_task_id":"n"}`, "")
		w.mu.Lock()
		w.seen[string(c.Target)]++
		w.done[c.ID] = result
		n := len(w.done)
		w.mu.Unlock()
		_ = ws.SendJSON(wire.TypeCommandAck, c.ID, agentclient.AckPayload)
		_ = ws.SendJSON(wire.TypeCommandResult, c.ID, result)
		w.count <- n
	}
}

// await waits until the worker has been given n retries.
func (w *worker) await(t *testing.T, n int) {
	t.Helper()
	for deadline := time.After(appliancetest.Wait); ; {
		select {
		case got := <-w.count:
			if got >= n {
				return
			}
		case <-deadline:
			t.Fatalf("the agent was not given %d retries", n)
		}
	}
}

// Agent protocol E.9, L14: 500 failed tasks, the server restarted in the middle: each is retried exactly once.
func TestBulkRetryGoesOnThroughARestart(t *testing.T) {
	s := appliancetest.Start(t, configure(unlimited))
	m := s.Mint("a")
	cfg := s.With(m, retrier)
	reporter := dial(t, cfg)
	failTasks(t, reporter, "t", 500, s.Now())
	must(t, reporter.Close())
	w := newWorker()
	var b bulkRetry
	s.Do("POST", bulkPath, map[string]any{"filter": map[string]any{"engine": "celery"}, "max": 1000, "confirm_count": 500}, http.StatusAccepted, &b)
	if b.Total != 500 || b.Status != "pending" {
		t.Fatalf("started %+v", b)
	}
	first := dial(t, cfg)
	go w.run(first)
	w.await(t, 150)
	s.Restart()
	go w.run(dial(t, s.With(m, retrier)))
	w.await(t, 500)
	s.Eventually("the end of the bulk retry", func() bool {
		s.Do("GET", bulkPath+"/"+b.ID, nil, http.StatusOK, &b)
		return b.Status != "dispatched"
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	for target, n := range w.seen {
		if n != 1 {
			t.Errorf("%s was retried %d times", target, n)
		}
	}
	// A server that goes down waits for the answers of what it has handed over: nothing is lost with the socket.
	if len(w.seen) != 500 || b.Completed != 500 || b.Status != "completed" {
		t.Errorf("%d tasks retried, counts %+v", len(w.seen), b)
	}
	const taken = "FROM commands WHERE parent_no IS NOT NULL AND action = 'retry_task' AND dispatched_at IS NOT NULL"
	if n, tasks := s.Count("SELECT count(*) "+taken), s.Count("SELECT count(DISTINCT target_id) "+taken); n != 500 || tasks != 500 {
		t.Errorf("%d children of %d tasks were handed over", n, tasks)
	}
}

// A commit that fails and an outcome that nobody knows, at every write of a start: nothing half is left, and a repeat under
// the key makes one bulk retry.
func TestBulkRetryStartIsWholeOrNothing(t *testing.T) {
	s := appliancetest.Start(t, configure(unlimited))
	m := s.Mint("a")
	ws := dial(t, s.With(m, retrier))
	failTasks(t, ws, "t", 1200, s.Now())
	must(t, ws.Close())
	body := map[string]any{"filter": map[string]any{"state": "failure"}, "max": 10000, "confirm_count": 1200, "idempotency_key": "k"}
	s.Eventually("the agent's slot going offline", func() bool { return s.Count("SELECT count(*) FROM agent_workers WHERE state = 'online'") == 0 })
	for at := 1; at <= 3; at++ {
		writes := 0
		s.Faults.BeforeCommit(func(ops []string) {
			if slices.Contains(ops, "write bulk retry") {
				if writes++; writes == at {
					s.Faults.FailCommits(appliancetest.ErrDatabase)
				}
			}
		})
		if status, answer := s.Admin("POST", bulkPath, body); status < 500 {
			t.Errorf("write %d: answered %d %s", at, status, answer)
		}
		s.Faults.BeforeCommit(nil)
		s.Faults.FailCommits(nil)
		if n := s.Count("SELECT count(*) FROM bulk_retries WHERE command_no IS NOT NULL") + s.Count("SELECT count(*) FROM commands"); n != 0 {
			t.Errorf("write %d: %d rows are seen", at, n)
		}
		s.Restart() // what could not be discarded is removed
		if n := s.Count("SELECT count(*) FROM bulk_retries") + s.Count("SELECT count(*) FROM bulk_retry_tasks"); n != 0 {
			t.Errorf("write %d: %d rows are left", at, n)
		}
	}
	var one, two bulkRetry
	s.Do("POST", bulkPath, body, http.StatusAccepted, &one)
	s.Do("POST", bulkPath, body, http.StatusAccepted, &two)
	if one.ID != two.ID || one.Total != 1200 {
		t.Errorf("%+v and %+v", one, two)
	}
	body["max"] = 5000
	if status, answer := s.Admin("POST", bulkPath, body); status != 409 {
		t.Errorf("another request under the key: %d %s", status, answer)
	}
}

// Agent protocol E.9: what is refused, and what a dry run says.
func TestBulkRetryRefusals(t *testing.T) {
	s := appliancetest.Start(t, configure(unlimited))
	m := s.Mint("a")
	ws := dial(t, s.With(m, retrier))
	failTasks(t, ws, "t", 150, s.Now())
	send(t, ws, batchID(), batch("fine", s.Now()))
	type fields = map[string]any
	before := s.State()
	var plan struct {
		Count       int              `json:"count"`
		MustConfirm bool             `json:"must_confirm"`
		Tasks       []map[string]any `json:"tasks"`
		Rejected    []string         `json:"rejected_keys"`
	}
	s.Do("POST", bulkPath, fields{"filter": fields{"queue": "mail", "shoe": 1}, "dry_run": true}, http.StatusOK, &plan)
	if plan.Count != 150 || !plan.MustConfirm || len(plan.Tasks) != 20 || len(plan.Rejected) != 1 {
		t.Errorf("plan %+v", plan)
	}
	s.Unchanged(before)
	for name, tc := range map[string]struct {
		want int
		body fields
		say  string
	}{
		"no filter":       {400, fields{}, "filter"},
		"empty filter":    {400, fields{"filter": fields{}}, "at least one of"},
		"unknown only":    {400, fields{"filter": fields{"shoe": 1}}, "at least one of"},
		"list":            {400, fields{"filter": []int{}}, "object"},
		"bad time":        {400, fields{"filter": fields{"since": "yesterday"}}, "ISO 8601"},
		"bad state":       {400, fields{"filter": fields{"state": "sad"}}, "state"},
		"words differ":    {400, fields{"filter": fields{"state": "failure", "status": "success"}}, "agree"},
		"unknown id":      {400, fields{"filter": fields{"task_ids": []string{"t-1", "nobody"}}}, "nobody"},
		"other state":     {400, fields{"filter": fields{"task_ids": []string{"fine"}}}, "success"},
		"matches nothing": {400, fields{"filter": fields{"name": "other"}}, "matches no task"},
		"max 0":           {422, fields{"filter": fields{"engine": "celery"}, "max": 0}, "max"},
		"max 10001":       {422, fields{"filter": fields{"engine": "celery"}, "max": 10001}, "max"},
		"unknown field":   {422, fields{"filter": fields{"engine": "celery"}, "shoe": 1}, "shoe"},
		"bad agent":       {422, fields{"filter": fields{"engine": "celery"}, "agent_id": "x"}, "UUID"},
		"no such agent":   {404, fields{"filter": fields{"engine": "celery"}, "agent_id": uuid.NewString()}, "agent"},
		"not confirmed":   {409, fields{"filter": fields{"engine": "celery"}}, "150"},
		"wrong number":    {409, fields{"filter": fields{"engine": "celery"}, "confirm_count": 149}, "150"},
	} {
		status, answer := s.Admin("POST", bulkPath, tc.body)
		if status != tc.want || !strings.Contains(string(answer), tc.say) {
			t.Errorf("%s: answered %d %s", name, status, answer)
		}
	}
	if n := s.Count("SELECT count(*) FROM audit_log WHERE action = 'command.bulk_retry.refused'"); n != 3 {
		t.Errorf("%d audit rows of refused requests", n)
	}
	if n := s.Count("SELECT count(*) FROM commands") + s.Count("SELECT count(*) FROM bulk_retries"); n != 0 {
		t.Errorf("%d rows of refused requests", n)
	}
	// The route from before answers 410 for task ids, and sends one command otherwise.
	status, answer := s.Admin("POST", "/projects/default/commands/bulk-retry", withAgent(m, fields{"filter": fields{"engine": "celery", "task_ids": []string{"t-1"}}}))
	if status != 410 || !strings.Contains(string(answer), "bulk-retry-requests") {
		t.Errorf("answered %d %s", status, answer)
	}
	s.Issue(m, "bulk-retry", fields{"filter": fields{"engine": "celery", "state": "failure"}})
	if c := command(t, ws); c.Action != "bulk_retry" {
		t.Errorf("got %s", c.Action)
	}
	s.Do("POST", bulkPath, fields{"filter": fields{"queue": "mail", "shoe": 1}, "confirm_count": 150}, http.StatusAccepted, nil)
	if n := s.Count("SELECT count(*) FROM audit_log WHERE action = 'command.bulk_retry.filter_keys_rejected'"); n != 1 {
		t.Errorf("%d audit rows of dropped keys", n)
	}
	// What is under way is left out of the next one.
	var next struct {
		Count   int    `json:"count"`
		LeftOut int    `json:"left_out"`
		Until   string `json:"until"`
	}
	s.Do("POST", bulkPath, fields{"filter": fields{"queue": "mail"}, "dry_run": true}, http.StatusOK, &next)
	if _, err := time.Parse(time.RFC3339Nano, next.Until); next.Count != 0 || next.LeftOut != 150 || err != nil {
		t.Errorf("the next plan %+v", next)
	}
	if status, answer := s.Admin("POST", bulkPath, fields{"filter": fields{"queue": "mail"}}); status != 400 ||
		!strings.Contains(string(answer), "150 tasks whose retry is under way") {
		t.Errorf("the same again: %d %s", status, answer)
	}
	for path, body := range map[string]fields{
		bulkPath:                                {"filter": fields{"queue": "mail"}},
		"/projects/default/commands/retry-task": withAgent(m, fields{"engine": "celery", "task_id": "t-1"}),
	} {
		body["idempotency_key"] = "bulk-retry:x:1"
		if status, answer := s.Admin("POST", path, body); status != 422 || !strings.Contains(string(answer), "must not begin with bulk-retry:") {
			t.Errorf("%s with a key of children: %d %s", path, status, answer)
		}
	}
}

// Agent protocol F.6, F.8: children come before older commands, over long-poll only under the contracts header; an agent
// that reports nothing is used when it states the contract and no other can.
func TestBulkRetryChildrenComeFirst(t *testing.T) {
	s := appliancetest.Start(t, configure(unlimited))
	reporter, poller := s.Mint("reporter"), s.Mint("poller")
	ws := dial(t, s.With(reporter, retrier))
	failTasks(t, ws, "t", 3, s.Now())
	must(t, ws.Close())
	s.Eventually("the session to go", func() bool { return s.Count("SELECT count(*) FROM agent_workers WHERE state = 'online'") == 0 })
	var b bulkRetry
	s.Do("POST", bulkPath, map[string]any{"filter": map[string]any{"name": "mail.send"}}, http.StatusAccepted, &b)
	if b.WaitingFor == nil || !strings.Contains(*b.WaitingFor, "has no session") {
		t.Errorf("started, and does not say what it waits for: %+v", b)
	}
	lp := openLP(t, s.With(poller, func(c *agentclient.Config) { c.RetryContracts = nil }))
	online(t, lp)
	older := s.Issue(poller, "restart-worker", restartFields())
	got, err := lp.Poll(t.Context(), 0, 50)
	wantCommands(t, got, err, older.ID)
	older = s.Issue(poller, "restart-worker", restartFields())
	stating := openLP(t, s.With(poller, func(c *agentclient.Config) { c.RetryContracts = []string{"celery"} }))
	online(t, stating)
	// The first poll states the contract. What it finds is the older command, unless the children are there already.
	first, err := stating.Poll(t.Context(), 0, 1)
	if err != nil || len(first) != 1 || first[0].ID != older.ID {
		t.Fatalf("%v, %v", first, err)
	}
	older = s.Issue(poller, "restart-worker", restartFields())
	s.Eventually("children", func() bool { return s.Count("SELECT count(*) FROM commands WHERE parent_no IS NOT NULL") == 3 })
	if bare, err := lp.Poll(t.Context(), 0, 50); err != nil || len(bare) != 1 || bare[0].ID != older.ID {
		t.Fatalf("without the header: %v, %v", bare, err)
	}
	older = s.Issue(poller, "restart-worker", restartFields())
	all, err := stating.Poll(t.Context(), 0, 50)
	if err != nil || len(all) != 4 || all[3].ID != older.ID {
		t.Fatalf("%v, %v", all, err)
	}
	for _, c := range all[:3] {
		if c.Action != "retry_task" {
			t.Errorf("got %s before the children", c.Action)
		}
	}
	var e struct {
		Sentences []string `json:"sentences"`
	}
	s.Do("GET", "/projects/default/commands/"+all[1].ID+"/explain", nil, http.StatusOK, &e)
	if text := strings.Join(e.Sentences, " "); !strings.Contains(text, "child 2 of 3 of bulk retry "+b.ID) {
		t.Errorf("explained as %s", text)
	}
	s.Do("GET", "/projects/default/commands/"+b.ID+"/explain", nil, http.StatusOK, &e)
	if text := strings.Join(e.Sentences, " "); !strings.Contains(text, "waits for 3 of its children") {
		t.Errorf("explained as %s", text)
	}
	var page struct {
		Items []struct {
			Position int    `json:"position"`
			Status   string `json:"status"`
		} `json:"items"`
		Next *string `json:"next_cursor"`
	}
	s.Do("GET", bulkPath+"/"+b.ID+"/tasks?limit=2", nil, http.StatusOK, &page)
	if len(page.Items) != 2 || page.Next == nil {
		t.Fatalf("page %+v", page)
	}
	s.Do("GET", bulkPath+"/"+b.ID+"/tasks?limit=2&cursor="+*page.Next, nil, http.StatusOK, &page)
	if len(page.Items) != 1 || page.Items[0].Position != 3 || page.Items[0].Status != "issued" {
		t.Fatalf("second page %+v", page)
	}
}

// A cancel gives up what nobody has taken; what an agent has goes on and is counted.
func TestBulkRetryCancelAndTimeout(t *testing.T) {
	s := appliancetest.Start(t, configure(func(c *config.Config) { unlimited(c); c.Agent.BulkRetryMaxInFlight = 2 }))
	m := s.Mint("a")
	ws := dial(t, s.With(m, retrier))
	failTasks(t, ws, "t", 5, s.Now())
	var b bulkRetry
	s.Do("POST", bulkPath, map[string]any{"filter": map[string]any{"engine": "celery"}}, http.StatusAccepted, &b)
	one, two := command(t, ws), command(t, ws)
	s.Do("POST", bulkPath+"/"+b.ID+"/cancel", nil, http.StatusOK, &b)
	if b.Status != "cancelled" || b.Cancelled != 3 || b.InFlight != 2 {
		t.Errorf("cancelled %+v", b)
	}
	answer(t, ws, wire.TypeCommandResult, one.ID, agentclient.ResultPayload(true, `{}`, ""))
	answer(t, ws, wire.TypeCommandResult, two.ID, agentclient.ResultPayload(false, "", "no such task"))
	s.Do("GET", bulkPath+"/"+b.ID, nil, http.StatusOK, &b)
	if b.Completed != 1 || b.Failed != 1 || b.Status != "cancelled" {
		t.Errorf("after the answers %+v", b)
	}
	if status, answer := s.Admin("POST", bulkPath+"/"+b.ID+"/cancel", nil); status != 409 ||
		!strings.Contains(string(answer), "bulk retry "+b.ID+" is cancelled") {
		t.Errorf("answered %d %s", status, answer)
	}
	settle(t, ws)
}

// A parent outlives the time of an ordinary command and ends when nothing was answered for its own; what was never handed
// over is cancelled.
func TestBulkRetryParentTimeout(t *testing.T) {
	clock := appliancetest.NewJump(0)
	s := appliancetest.Start(t, configure(unlimited), appliancetest.WithClock(clock))
	m := s.Mint("a")
	ws := dial(t, s.With(m, retrier))
	failTasks(t, ws, "t", 2, s.Now())
	must(t, ws.Close())
	s.Eventually("the session to go", func() bool { return s.Count("SELECT count(*) FROM agent_workers WHERE state = 'online'") == 0 })
	var b bulkRetry
	s.Do("POST", bulkPath, map[string]any{"filter": map[string]any{"engine": "celery"}}, http.StatusAccepted, &b)
	s.Issue(m, "restart-worker", restartFields())
	clock.By(5 * time.Minute)
	s.Eventually("the ordinary command's end", func() bool { return s.Count("SELECT count(*) FROM commands WHERE status = 'timeout'") == 1 })
	s.Do("GET", bulkPath+"/"+b.ID, nil, http.StatusOK, &b)
	if b.Status != "pending" || b.Waiting != 2 {
		t.Errorf("after five minutes %+v", b)
	}
	clock.By(11 * time.Minute)
	s.Eventually("the end", func() bool {
		s.Do("GET", bulkPath+"/"+b.ID, nil, http.StatusOK, &b)
		return b.Status == "timeout"
	})
	if b.Cancelled != 2 || b.Error == nil || !strings.Contains(*b.Error, "no session") {
		text, _ := json.Marshal(b)
		t.Errorf("ended as %s", text)
	}
}
