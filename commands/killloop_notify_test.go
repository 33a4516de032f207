package commands

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

// taskFailure is the failure of a task of the name, which is a cause of its own.
func taskFailure(name string) agentclient.Event {
	return agentclient.Event{ID: uuid.New(), Kind: "task.failed", Engine: "celery", TaskID: uuid.NewString(), OccurredAt: time.Now().UTC(),
		Data: `{"exception":"ValueError: no","task_name":"` + name + `"}`}
}

// tell sends an event until it is acknowledged, as agents do, also when the server is killed and starts again.
func tell(ctx context.Context, p *process, cfg agentclient.Config, e agentclient.Event) {
	for ctx.Err() == nil {
		cfg.URL = p.baseURL()
		if s, err := agentclient.DialWS(ctx, cfg); err == nil {
			s.Deadline(time.Now().Add(5 * time.Second))
			acked := tellOver(s, e)
			s.Abort()
			if acked {
				return
			}
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
		}
	}
}

// tellOver sends an event over a session and reports whether it was acknowledged.
func tellOver(s *agentclient.WS, e agentclient.Event) bool {
	if s.Send(wire.TypeEventBatch, "ev_"+uuid.NewString(), agentclient.AppendEventBatch(nil, []agentclient.Event{e})) != nil {
		return false
	}
	for {
		f, err := s.Receive()
		if err != nil {
			return false
		}
		acked := f.Type == wire.TypeEventBatchAck
		f.Release()
		if acked {
			return true
		}
	}
}

// inbox is a receiver of webhooks that accepts everything and notes the ids.
type inbox struct {
	*httptest.Server
	mu  sync.Mutex
	got map[string]int             // id -> times it came
	ids map[string]map[string]bool // name of the task -> ids that told of it

	came chan struct{} // holds one when a message came
}

func newInbox(t *testing.T) *inbox {
	in := &inbox{got: map[string]int{}, ids: map[string]map[string]bool{}, came: make(chan struct{}, 1)}
	in.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		var body struct {
			ID   string `json:"id"`
			Name string `json:"name"`
		}
		if err != nil || json.Unmarshal(text, &body) != nil || r.Header.Get("webhook-id") != body.ID {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		in.mu.Lock()
		defer in.mu.Unlock()
		in.got[body.ID]++
		if in.ids[body.Name] == nil {
			in.ids[body.Name] = map[string]bool{}
		}
		in.ids[body.Name][body.ID] = true
		select {
		case in.came <- struct{}{}:
		default: // one is told already
		}
	}))
	t.Cleanup(in.Close)
	return in
}

// await waits until each of the tasks was told of.
func (in *inbox) await(t *testing.T, names ...string) {
	t.Helper()
	late := time.After(2 * time.Minute)
	for _, name := range names {
		for !in.told(name) {
			select {
			case <-in.came:
			case <-late:
				t.Fatalf("nobody was told of %s", name)
			}
		}
	}
}

func (in *inbox) told(name string) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.ids[name]) > 0
}

// TestKillLoopNotifications kills the real binary with SIGKILL at random instants while tasks fail and a receiver is told of
// them. In the end every failure has been told under one id, and each message that the outbox holds has come.
func TestKillLoopNotifications(t *testing.T) {
	kills := fewerKills(t)
	p := newProcess(t, buildBinary(t))
	p.args = []string{"--agent-rate-limits=false"}
	p.start()
	in := newInbox(t)
	if out, err := p.cli("notifications", "channels", "create", "ops", "--kind", "webhook", "--url", in.URL); err != nil {
		t.Fatalf("channel: %v: %s", err, out)
	}
	const most = 40 // failures of one life: a rule keeps 50 kinds apart
	cfg := p.mint("worker").cfg
	var sent []string
	for life := range kills {
		// A rule of its own for each life.
		if out, err := p.cli("notifications", "rules", "create", fmt.Sprintf("life-%d", life), "--trigger", "task_failed",
			"--pattern", fmt.Sprintf("life-%d.*", life), "--group", "1h", "--channel", "ops"); err != nil {
			t.Fatalf("rule: %v: %s", err, out)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		first, done := make(chan struct{}), make(chan []string, 1)
		var killed atomic.Bool
		go func() {
			var names []string
			for i := 0; i < most && !killed.Load(); i++ {
				name := fmt.Sprintf("life-%d.task-%d", life, i)
				tell(ctx, p, cfg, taskFailure(name))
				if names = append(names, name); i == 0 {
					close(first)
				}
			}
			done <- names
		}()
		select {
		case <-first:
		case <-ctx.Done():
			t.Fatal("the first failure was not acknowledged")
		}
		p.kill(time.Duration(rand.Int64N(int64(60 * time.Millisecond))))
		killed.Store(true)
		p.start()
		sent = append(sent, <-done...) // the last of them was sent again after the start
		if ctx.Err() != nil {
			t.Fatal("a failure was not acknowledged")
		}
		cancel()
	}
	in.await(t, sent...)
	p.awaitNoneWaits()
	p.stop()
	in.check(t, filepath.Join(p.dir, "signalbox.db"), sent)
}

// awaitNoneWaits waits until the outbox is empty. What was killed on its way is sent at the start; nothing waits for a retry.
func (p *process) awaitNoneWaits() {
	p.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; {
		out, err := p.cli("notifications", "list", "--state", "pending")
		var page struct {
			Items []json.RawMessage `json:"items"`
		}
		if err != nil || json.Unmarshal(out, &page) != nil {
			p.t.Fatalf("list: %v: %s", err, out)
		}
		if len(page.Items) == 0 {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("messages still wait: %s", out)
		}
		<-time.After(100 * time.Millisecond)
	}
}

func (in *inbox) check(t *testing.T, path string, sent []string) {
	t.Helper()
	in.mu.Lock()
	defer in.mu.Unlock()
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var rows, delivered int
	if err := db.QueryRow(`SELECT count(*), count(*) FILTER (WHERE state = 'delivered') FROM notifications`).Scan(&rows, &delivered); err != nil {
		t.Fatal(err)
	}
	calls := 0
	for _, n := range in.got {
		calls += n
	}
	t.Logf("%d failures, %d messages, %d ids in %d calls", len(sent), rows, len(in.got), calls)
	if rows != len(sent) || delivered != rows || len(in.got) != rows {
		t.Errorf("%d failures made %d messages, %d of them delivered; %d ids came", len(sent), rows, delivered, len(in.got))
	}
	for _, name := range sent {
		if n := len(in.ids[name]); n != 1 {
			t.Errorf("%s was told under %d ids", name, n)
		}
	}
}
