package agent

import (
	"sync"
	"time"

	"signalbox/appliance/rawjson"
)

const (
	// maxStatusPerMinute is how many agent_status frames of one connection are kept per minute (agent protocol D.3).
	maxStatusPerMinute = 12
	statusWindow       = time.Minute
	// maxStatusBytes is the largest agent_status kept, in bytes; a real one has a few hundred.
	maxStatusBytes = 16 << 10
	// maxStatusConnections bounds the connections whose rate is remembered.
	maxStatusConnections = 1 << 16
)

// AgentStatusSample is one agent_status frame (agent protocol D.3).
type AgentStatusSample struct {
	AgentNo    int64
	CapturedAt time.Time // the frame's time
	ReceivedAt time.Time
	Payload    string // JSON object as it arrived, redacted
}

// statusLimiter counts agent_status frames per connection in fixed windows of a minute. Safe for concurrent use.
type statusLimiter struct {
	mu   sync.Mutex
	seen map[statusKey]statusCount
}

type statusKey struct {
	agentNo   int64
	transport Transport
	session   string
	worker    string
}

type statusCount struct {
	since time.Time
	n     int
}

// allow counts one frame and tells whether it is to be kept.
func (l *statusLimiter) allow(p Peer, now time.Time) bool {
	key := statusKey{p.AgentNo, p.Transport, p.Session, p.Worker}
	l.mu.Lock()
	defer l.mu.Unlock()
	c, ok := l.seen[key]
	if !ok || now.Sub(c.since) >= statusWindow || now.Before(c.since) {
		if !ok && len(l.seen) >= maxStatusConnections {
			l.sweep(now)
		}
		c = statusCount{since: now}
	}
	c.n++
	l.seen[key] = c
	return c.n <= maxStatusPerMinute
}

// sweep forgets ended windows, and everything when all are running: the limit then starts anew for everybody, which
// costs a few rows.
func (l *statusLimiter) sweep(now time.Time) {
	for key, c := range l.seen {
		if now.Sub(c.since) >= statusWindow {
			delete(l.seen, key)
		}
	}
	if len(l.seen) >= maxStatusConnections {
		clear(l.seen)
	}
}

// readAgentStatus reads an agent_status payload. ok is false when nothing of it can be kept.
func readAgentStatus(p rawjson.Value, r *Redactor) (payload string, loss *TelemetryLoss, ok bool) {
	if p.Kind() != rawjson.Object || len(p.Raw()) > maxStatusBytes {
		return "", nil, false
	}
	return r.Text(p), readTelemetryLoss(p.Get("telemetry_loss")), true
}
