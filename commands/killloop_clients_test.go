package commands

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

// ledger is what the clients know, whatever the server says later.
type ledger struct {
	mu       sync.Mutex
	sent     map[string]int       // event key -> times sent
	acked    map[string]bool      // event key
	issued   map[string]string    // command id -> action, answered 202 or 503 with the row kept
	executed map[string]int       // command id -> times it reached an agent as new work
	results  map[string]time.Time // command id -> when its result was first known to be acknowledged (long-poll)
	actions  map[string]string    // command id -> action, as received
	keys     map[string][]string  // idempotency key -> command ids it was answered with
	stop     atomic.Bool
}

func newLedger() *ledger {
	return &ledger{sent: map[string]int{}, acked: map[string]bool{}, issued: map[string]string{}, executed: map[string]int{},
		results: map[string]time.Time{}, actions: map[string]string{}, keys: map[string][]string{}}
}

func (l *ledger) stopIssuing() { l.stop.Store(true) }

func (l *ledger) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%d events sent, %d acknowledged; %d commands issued, %d executed, %d results acknowledged",
		len(l.sent), len(l.acked), len(l.issued), len(l.executed), len(l.results))
}

// killAgent is one agent of the kill loop. Its events are kept until they are acknowledged, like the real agent's
// buffer, and sent again under a new frame.
type killAgent struct {
	p    *process
	led  *ledger
	cfg  agentclient.Config
	id   string
	name string

	seq     int
	pending map[string]agentclient.Event // frame id -> its event
}

// again is the pause of a client whose server is away.
const again = 5 * time.Millisecond

func (a *killAgent) pause(ctx context.Context) {
	select {
	case <-time.After(again):
	case <-ctx.Done():
	}
}

func eventKey(e agentclient.Event) string { return e.TaskID + " " + e.Kind }

// fill brings the buffer to its size.
func (a *killAgent) fill(size int) {
	if a.pending == nil {
		a.pending = map[string]agentclient.Event{}
	}
	for len(a.pending) < size {
		a.seq++
		kind := [...]string{"task.received", "task.started", "task.succeeded"}[a.seq%3]
		e := agentclient.Event{ID: uuid.New(), Kind: kind, Engine: "celery", TaskID: fmt.Sprintf("%s-%d", a.name, a.seq/3),
			OccurredAt: time.Now().UTC(), Data: agentclient.DefaultData}
		a.pending[fmt.Sprintf("ev_%s_%d", a.name, a.seq)] = e
	}
	a.led.mu.Lock()
	for _, e := range a.pending {
		a.led.sent[eventKey(e)]++
	}
	a.led.mu.Unlock()
}

func (a *killAgent) ack(frames ...string) {
	a.led.mu.Lock()
	defer a.led.mu.Unlock()
	for _, id := range frames {
		if e, ok := a.pending[id]; ok {
			a.led.acked[eventKey(e)] = true
			delete(a.pending, id)
		}
	}
}

// ingest sends events until ctx ends.
func (a *killAgent) ingest(ctx context.Context, ws bool) {
	for ctx.Err() == nil {
		a.cfg.URL = a.p.baseURL()
		if ws {
			a.ingestWS(ctx)
		} else {
			a.ingestLP(ctx)
		}
		a.pause(ctx)
	}
}

func (a *killAgent) ingestWS(ctx context.Context) {
	s, err := agentclient.DialWS(ctx, a.cfg)
	if err != nil {
		return
	}
	defer s.Abort()
	for ctx.Err() == nil {
		a.fill(20)
		s.Deadline(time.Now().Add(5 * time.Second))
		due := 0
		for id, e := range a.pending {
			if s.Send(wire.TypeEventBatch, id, agentclient.AppendEventBatch(nil, []agentclient.Event{e})) != nil {
				return
			}
			due++
		}
		for ; due > 0; due-- {
			f, err := s.Receive()
			if err != nil {
				return
			}
			if f.Type == wire.TypeEventBatchAck {
				a.ack(agentclient.ReadAck(&f).ID)
			}
			f.Release()
		}
	}
}

func (a *killAgent) ingestLP(ctx context.Context) {
	s, err := agentclient.OpenLP(ctx, a.cfg)
	if err != nil {
		return
	}
	for ctx.Err() == nil {
		a.fill(20)
		var frames []agentclient.Outgoing
		var ids []string
		for id, e := range a.pending {
			frames = append(frames, agentclient.Outgoing{Type: wire.TypeEventBatch, ID: id,
				Payload: agentclient.AppendEventBatch(nil, []agentclient.Event{e})})
			ids = append(ids, id)
		}
		up, err := s.Upload(ctx, frames...)
		if err != nil {
			return
		}
		if up.Accepted == len(frames) {
			a.ack(ids...)
		}
	}
}

// execute takes commands and answers them until ctx ends.
func (a *killAgent) execute(ctx context.Context, ws bool) {
	for ctx.Err() == nil {
		a.cfg.URL = a.p.baseURL()
		if ws {
			a.executeWS(ctx)
		} else {
			a.executeLP(ctx)
		}
		a.pause(ctx)
	}
}

// run notes that a command arrived. The real agent remembers ids and runs each once; so does the count of first
// arrivals here.
func (a *killAgent) run(id, action string) {
	a.led.mu.Lock()
	defer a.led.mu.Unlock()
	a.led.executed[id]++
	a.led.actions[id] = action
}

func (a *killAgent) executeWS(ctx context.Context) {
	s, err := agentclient.DialWS(ctx, a.cfg)
	if err != nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { s.Abort() })
	defer stop()
	defer s.Abort()
	for {
		f, err := s.Receive()
		if err != nil {
			return
		}
		typ, id := f.Type, f.ID
		c, err := agentclient.ReadCommand(&f)
		f.Release()
		if typ != wire.TypeCommand || err != nil {
			continue
		}
		a.run(id, c.Action)
		if s.SendJSON(wire.TypeCommandAck, id, agentclient.AckPayload) != nil ||
			s.SendJSON(wire.TypeCommandResult, id, agentclient.ResultPayload(true, "{}", "")) != nil {
			return
		}
	}
}

func (a *killAgent) executeLP(ctx context.Context) {
	s, err := agentclient.OpenLP(ctx, a.cfg)
	if err != nil {
		return
	}
	for ctx.Err() == nil {
		cmds, err := s.Poll(ctx, 5*time.Second, 50)
		if err != nil {
			return
		}
		for _, c := range cmds {
			a.run(c.ID, c.Action)
			up, err := s.Upload(ctx, agentclient.Outgoing{Type: wire.TypeCommandAck, ID: c.ID, Payload: []byte(agentclient.AckPayload)},
				agentclient.Outgoing{Type: wire.TypeCommandResult, ID: c.ID, Payload: []byte(agentclient.ResultPayload(true, "{}", ""))})
			if err != nil {
				return
			}
			if up.Accepted == 2 {
				a.led.mu.Lock()
				if _, known := a.led.results[c.ID]; !known {
					a.led.results[c.ID] = time.Now()
				}
				a.led.mu.Unlock()
			}
		}
	}
}

// issue gives the agent commands: every third may be handed over again, the others at most once. A request whose answer
// was lost is repeated under its idempotency key.
func (a *killAgent) issue(ctx context.Context) {
	key, err := os.ReadFile(filepath.Join(a.p.dir, "admin.key"))
	if err != nil {
		a.p.t.Errorf("admin key: %v", err)
		return
	}
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for n := 0; ctx.Err() == nil && !a.led.stop.Load(); n++ {
		route, body := "restart-worker", map[string]any{"agent_id": a.id, "worker_name": "w"}
		if n%3 == 0 {
			route, body = "cancel-task", map[string]any{"agent_id": a.id, "engine": "celery", "task_id": fmt.Sprint(n)}
		}
		idempotency := fmt.Sprintf("%s-%d", a.name, n)
		body["idempotency_key"] = idempotency
		for ctx.Err() == nil {
			id, action, ok := a.post(ctx, client, strings.TrimSpace(string(key)), route, body)
			if ok {
				a.led.mu.Lock()
				a.led.issued[id] = action
				a.led.keys[idempotency] = append(a.led.keys[idempotency], id)
				a.led.mu.Unlock()
				break
			}
			a.pause(ctx)
		}
		a.pause(ctx)
	}
}

// post issues one command. An agent that is away does not matter: the row is kept.
func (a *killAgent) post(ctx context.Context, client *http.Client, key, route string, body map[string]any) (id, action string, ok bool) {
	content, err := json.Marshal(body)
	if err != nil {
		a.p.t.Errorf("encode: %v", err)
		return "", "", false
	}
	url := a.p.baseURL() + "/api/v1/projects/default/commands/" + route
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(content))
	if err != nil {
		a.p.t.Errorf("request: %v", err)
		return "", "", false
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := client.Do(req)
	if err != nil {
		return "", "", false
	}
	defer resp.Body.Close()
	var answer struct {
		ID      string         `json:"id"`
		Action  string         `json:"action"`
		Error   string         `json:"error"`
		Details map[string]any `json:"details"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return "", "", false
	}
	switch {
	case resp.StatusCode == http.StatusAccepted:
		return answer.ID, answer.Action, true
	case answer.Error == "agent_offline":
		id, _ := answer.Details["command_id"].(string)
		return id, strings.ReplaceAll(route, "-", "_"), id != ""
	}
	return "", "", false
}
