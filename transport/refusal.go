package transport

import (
	"container/list"
	"sync"
	"time"

	"signalbox/appliance/clock"
)

// Bounds of the audit rows written for refused peers (agent protocol I.4).
const (
	// RefusalRowWindow is the longest back-off step of a refused agent.
	RefusalRowWindow = 600 * time.Second
	maxRefusalKeys   = 4096
)

// RefusalWindow decides which refusals are worth an audit row: the first of each action and key, and the next one once
// the window that began with that row is over. Later refusals do not extend it. One record serves all transports. Safe
// for concurrent use.
type RefusalWindow struct {
	clock  clock.Clock
	window time.Duration
	epoch  time.Time

	mu      sync.Mutex
	actions map[string]*refusals
}

// refusals are the claims of one action, oldest first in order.
type refusals struct {
	keys  map[string]*list.Element // of *RefusalClaim
	order *list.List
}

// RefusalClaim is the right to write one row.
type RefusalClaim struct {
	action, key string
	at          time.Duration
}

// NewRefusalWindow returns an empty record.
func NewRefusalWindow(c clock.Clock, window time.Duration) *RefusalWindow {
	return &RefusalWindow{clock: c, window: window, epoch: c.Now(), actions: map[string]*refusals{}}
}

// Claim takes the row of the action and key before it is written; ok is false when it was written within the window.
// When the write fails, Release the claim. Actions are the program's own names, few and fixed; of the keys the oldest is
// dropped beyond 4096.
func (w *RefusalWindow) Claim(action, key string) (claim *RefusalClaim, ok bool) {
	now := w.clock.Now().Sub(w.epoch)
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.actions[action]
	if a == nil {
		a = &refusals{keys: map[string]*list.Element{}, order: list.New()}
		w.actions[action] = a
	}
	for e := a.order.Front(); e != nil && now-e.Value.(*RefusalClaim).at >= w.window; e = a.order.Front() {
		a.drop(e)
	}
	if _, taken := a.keys[key]; taken {
		return nil, false
	}
	if len(a.keys) >= maxRefusalKeys {
		a.drop(a.order.Front())
	}
	claim = &RefusalClaim{action: action, key: key, at: now}
	a.keys[key] = a.order.PushBack(claim)
	return claim, true
}

// Release gives the row back, so that the next refusal writes it. A claim that has been dropped or replaced meanwhile is
// left alone.
func (w *RefusalWindow) Release(claim *RefusalClaim) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.actions[claim.action]
	if a == nil {
		return
	}
	if e := a.keys[claim.key]; e != nil && e.Value.(*RefusalClaim) == claim {
		a.drop(e)
	}
}

func (r *refusals) drop(e *list.Element) {
	delete(r.keys, e.Value.(*RefusalClaim).key)
	r.order.Remove(e)
}
