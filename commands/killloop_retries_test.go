package commands

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

// maxRetryKills bounds the loop: each kill takes a bulk retry some way further.
const maxRetryKills = 10

// retryLedger is what the agents of the loop know of retries.
type retryLedger struct {
	mu      sync.Mutex
	retried map[string]int    // task -> times that an agent was told to retry it
	said    map[string]string // command id -> result, said again at each connect
	away    map[string]bool   // tasks whose agent fails to retry them
	told    chan struct{}     // holds one when retried changed
}

// TestKillLoopBulkRetry kills the real binary with SIGKILL at random instants while a bulk retry is started and carried on,
// and compares what the agents were told with what the database holds in the end: no task was retried twice, every one is
// accounted for, and after the last kill it goes on by itself.
func TestKillLoopBulkRetry(t *testing.T) {
	kills := min(fewerKills(t), maxRetryKills)
	const tasks, inFlight = 300, 8
	p := newProcess(t, buildBinary(t))
	p.args = []string{"--agent-rate-limits=false", "--agent-command-timeout=3s", "--agent-command-timeout-sweep=1s",
		"--agent-redispatch-min-interval=1s", "--agent-redispatch-window=2s",
		fmt.Sprintf("--agent-bulk-retry-max-in-flight=%d", inFlight)}
	p.start()
	led := &retryLedger{retried: map[string]int{}, said: map[string]string{}, away: map[string]bool{"celery:t-7": true},
		told: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var clients sync.WaitGroup
	for i := range 2 {
		m := p.mint(fmt.Sprintf("worker-%d", i))
		m.cfg.Capabilities = map[string][]string{"celery": {"retry_task", "retry_by_reference_v1"}}
		if i == 0 {
			m.failTasks(t, tasks)
		}
		clients.Go(func() {
			for ctx.Err() == nil {
				led.serve(ctx, m.cfg)
				select {
				case <-time.After(again):
				case <-ctx.Done():
				}
			}
		})
	}
	begun := make(chan string, 1)
	clients.Go(func() { // repeats the start until it has heard the answer
		defer close(begun)
		for ctx.Err() == nil {
			out, err := p.cli("bulk-retries", "start", "--engine", "celery", "--name", "tasks.broken", "--yes", "--idempotency-key", "loop")
			if b, ok := readBulkRetry(out); err == nil && ok {
				begun <- b.ID
				return
			}
		}
	})
	for range kills / 2 { // around the start
		p.kill(time.Duration(rand.Int64N(int64(400 * time.Millisecond))))
		p.start()
	}
	id := <-begun
	for n := range kills - kills/2 { // in the middle
		led.await(t, (n+1)*tasks/(kills+2))
		p.kill(time.Duration(rand.Int64N(int64(30 * time.Millisecond))))
		p.start()
	}
	b := p.awaitBulkRetry(id)
	cancel()
	clients.Wait()
	p.stop()
	t.Logf("%d kills: %s", kills, b.progress())
	led.check(t, filepath.Join(p.dir, "signalbox.db"), tasks, inFlight*(kills+1))
}

// failTasks reports tasks t-0 and on as failed, and returns when they are stored.
func (m *mintedAgent) failTasks(t *testing.T, n int) {
	t.Helper()
	s, err := agentclient.DialWS(context.Background(), m.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Abort()
	var events []agentclient.Event
	for i := range n {
		events = append(events, agentclient.Event{ID: uuid.New(), Kind: "task.failed", Engine: "celery", TaskID: fmt.Sprintf("t-%d", i),
			OccurredAt: time.Now().UTC(), Data: `{"exception":"ValueError('x')","task_name":"tasks.broken"}`})
	}
	if err := s.Send(wire.TypeEventBatch, "failures", agentclient.AppendEventBatch(nil, events)); err != nil {
		t.Fatal(err)
	}
	for {
		f, err := s.Receive()
		if err != nil {
			t.Fatal(err)
		}
		acked := f.Type == wire.TypeEventBatchAck
		f.Release()
		if acked {
			return
		}
	}
}

// awaitBulkRetry waits until a bulk retry has ended and nothing of it is under way.
func (p *process) awaitBulkRetry(id string) (b bulkRetryRow) {
	p.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); <-time.After(200 * time.Millisecond) {
		out, err := p.cli("bulk-retries", "show", id)
		var ok bool
		if b, ok = readBulkRetry(out); err != nil || !ok {
			p.t.Fatalf("show: %v: %s", err, out)
		}
		if b.terminal() && b.InFlight == 0 {
			return b
		}
	}
	p.t.Errorf("two minutes after the last kill the bulk retry is %s: %s", b.Status, b.progress())
	return b
}

func readBulkRetry(out []byte) (b bulkRetryRow, ok bool) {
	var doc struct {
		BulkRetry bulkRetryRow `json:"bulk_retry"`
	}
	err := json.Unmarshal(out, &doc)
	return doc.BulkRetry, err == nil && doc.BulkRetry.ID != ""
}

// serve retries what it is told to over one session, after it has said again what it said before.
func (l *retryLedger) serve(ctx context.Context, cfg agentclient.Config) {
	s, err := agentclient.DialWS(ctx, cfg)
	if err != nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { s.Abort() })
	defer stop()
	defer s.Abort()
	l.mu.Lock()
	said := make(map[string]string, len(l.said))
	for id, result := range l.said {
		said[id] = result
	}
	l.mu.Unlock()
	for id, result := range said {
		if s.SendJSON(wire.TypeCommandResult, id, result) != nil {
			return
		}
	}
	for {
		f, err := s.Receive()
		if err != nil {
			return
		}
		typ, id := f.Type, f.ID
		c, err := agentclient.ReadCommand(&f)
		f.Release()
		if typ != wire.TypeCommand || err != nil || c.Action != "retry_task" {
			continue
		}
		result := l.retry(id, string(c.Target))
		<-time.After(time.Duration(rand.Int64N(int64(10 * time.Millisecond)))) // the work
		if s.SendJSON(wire.TypeCommandAck, id, agentclient.AckPayload) != nil || s.SendJSON(wire.TypeCommandResult, id, result) != nil {
			return
		}
	}
}

// await waits until the agents have been told to retry n tasks.
func (l *retryLedger) await(t *testing.T, n int) {
	t.Helper()
	for deadline := time.After(2 * time.Minute); ; {
		l.mu.Lock()
		have := len(l.retried)
		l.mu.Unlock()
		if have >= n {
			return
		}
		select {
		case <-l.told:
		case <-deadline:
			t.Fatalf("the agents were told to retry %d tasks in two minutes, want %d", have, n)
		}
	}
}

// retry notes that a task is retried, and makes the result.
func (l *retryLedger) retry(commandID, target string) string {
	var to struct {
		ID string `json:"id"`
	}
	_ = json.Unmarshal([]byte(target), &to)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.retried[to.ID]++
	select {
	case l.told <- struct{}{}:
	default:
	}
	l.said[commandID] = agentclient.ResultPayload(!l.away[to.ID], `{"new_task_id":"n"}`, "")
	return l.said[commandID]
}

// check compares the database with the ledger. lost is the most tasks that may have been handed over in a kill and end as
// timeout.
func (l *retryLedger) check(t *testing.T, path string, total, lost int) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.Query(`SELECT 'celery:' || t.task_id, t.status, (SELECT count(*) FROM commands c WHERE c.action = 'retry_task' AND
		c.target_id = 'celery:' || t.task_id AND c.dispatched_at IS NOT NULL) FROM bulk_retry_tasks t`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	counts := map[string]int{}
	for rows.Next() {
		var task, status string
		var handed int
		if err := rows.Scan(&task, &status, &handed); err != nil {
			t.Fatal(err)
		}
		counts[status]++
		n := l.retried[task]
		delete(l.retried, task)
		switch {
		case n > 1 || handed > 1:
			t.Errorf("%s was handed over %d times, and its agent told to retry it %d times", task, handed, n)
		case n > handed:
			t.Errorf("the agent was told to retry %s, and that is not stored", task)
		case (status == "completed" || status == "failed") && n != 1, status == "failed" && !l.away[task]:
			t.Errorf("%s is %s and was retried %d times", task, status, n)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if counts["completed"]+counts["failed"]+counts["timeout"] != total || counts["timeout"] > lost || len(l.retried) > 0 {
		t.Errorf("tasks %v of %d; %d retried that are not of it", counts, total, len(l.retried))
	}
	var bulkRetries, counted int
	var verdict string
	if err := db.QueryRow(`SELECT count(*), sum(completed + failed + timed_out) FROM bulk_retries`).Scan(&bulkRetries, &counted); err != nil ||
		bulkRetries != 1 || counted != total {
		t.Errorf("%d bulk retries with %d tasks that have ended, %v", bulkRetries, counted, err)
	}
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&verdict); err != nil || !strings.EqualFold(verdict, "ok") {
		t.Errorf("integrity_check: %q %v", verdict, err)
	}
}
