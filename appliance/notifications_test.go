package appliance_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/appliancetest"
	"signalbox/transport/agentclient"
)

// hook is a real receiver of webhooks that refuses, stalls or takes what it is sent.
type hook struct {
	*httptest.Server
	mu     sync.Mutex
	status int
	taken  []map[string]any // bodies that were accepted
	calls  int
	gate   chan struct{} // not nil: requests wait until it is closed
}

func newHook(t *testing.T) *hook {
	h := &hook{status: 200}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		var body map[string]any
		_ = json.Unmarshal(text, &body)
		h.mu.Lock()
		status, gate := h.status, h.gate
		h.calls++
		h.mu.Unlock()
		if gate != nil {
			select {
			case <-gate:
			case <-r.Context().Done():
				return
			}
		}
		if status < 300 {
			h.mu.Lock()
			h.taken = append(h.taken, body)
			h.mu.Unlock()
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hook) become(status int, gate chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status, h.gate = status, gate
}

func (h *hook) accepted() []map[string]any {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]map[string]any(nil), h.taken...)
}

func (h *hook) called() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls
}

// TestNotifications: a failed event that an agent sends again and again is told once, through a receiver that fails, stalls
// and recovers, over a restart; and neither the log nor the database shows what is secret.
func TestNotifications(t *testing.T) {
	t.Parallel()
	log, clock := &lockedBuffer{}, appliancetest.NewJump(0)
	s := appliancetest.Start(t, configure(unlimited), appliancetest.WithLog(log), appliancetest.WithClock(clock))
	h := newHook(t)
	const token = "token-that-nobody-may-see"
	const base = "/projects/default/notifications"
	var channel, rule struct {
		ID string `json:"id"`
	}
	s.Do("POST", base+"/channels", map[string]any{"name": "ops", "kind": "webhook",
		"settings": map[string]any{"url": h.URL + "/" + token, "secret": token + "-to-sign"}}, 201, &channel)
	s.Do("POST", base+"/rules", map[string]any{"name": "failures", "trigger": "task_failed", "channels": []string{channel.ID},
		"group_seconds": 3600}, 201, &rule)
	h.become(503, nil)
	gate, refused := make(chan struct{}), 1
	m := s.Mint("worker")
	m.Config.Now = clock.Now
	payload := failedBatch()
	failed := func() {
		m.Config.URL = s.URL()
		ws := dial(t, m.Config)
		for range 3 {
			send(t, ws, batchID(), payload)
		}
		_ = ws.Close()
	}
	failed()
	for _, wait := range []time.Duration{13 * time.Second, 37 * time.Second} { // 10 s and 30 s, each a fifth more or less
		s.Eventually("the receiver refuses, and that is noted", func() bool {
			return s.Count(`SELECT sum(attempts) FROM notifications WHERE state = 'pending'`) == h.called() && h.called() > 0
		})
		if wait > 30*time.Second {
			h.become(200, gate)
		}
		clock.By(wait)
		s.Eventually("it is tried again", func() bool { return h.called() > refused })
		refused = h.called()
	}
	failed() // stored and acknowledged all the same
	s.Restart()
	failed()
	h.become(200, nil)
	close(gate)
	s.Eventually("the message is delivered", func() bool {
		return s.Count(`SELECT count(*) FROM notifications WHERE state = 'delivered'`) == 1
	})
	if n := s.Count(`SELECT count(*) FROM notifications`); n != 1 {
		t.Errorf("%d messages", n)
	}
	if n := s.Count(`SELECT sum(collected) FROM notification_groups`); n != 0 {
		t.Errorf("%d more were collected from replays", n)
	}
	for _, body := range h.accepted() {
		if body["type"] != "task_failed" || body["collected"] != 1.0 || body["id"] != h.accepted()[0]["id"] {
			t.Errorf("told %v", body)
		}
	}
	if s.Metric(`z4j_notifications_sent_total{channel="webhook"}`) < 1 {
		t.Error("the message was not counted")
	}
	for _, name := range []string{s.DatabasePath(), s.DatabasePath() + "-wal"} {
		if content, err := os.ReadFile(name); err == nil && strings.Contains(string(content), token) {
			t.Errorf("%s shows the secret", name)
		}
	}
	if strings.Contains(log.String(), token) {
		t.Error("the log shows the secret")
	}
}

func failedBatch() []byte {
	return agentclient.AppendEventBatch(nil, []agentclient.Event{{ID: uuid.New(), Kind: "task.failed", Engine: "celery", TaskID: "t-1",
		OccurredAt: time.Now().UTC(), Data: `{"exception":"ValueError: no","task_name":"app.mail"}`}})
}

// lockedBuffer is a log that may be written and read at once.
type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
