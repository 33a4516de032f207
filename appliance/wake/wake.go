// Package wake carries hints from committed writes to whoever waits for them.
//
// A hint says "look again", never what changed: the database is the truth, and a watcher reads it from its own cursor.
// Hints coalesce, cost no memory for a slow watcher, and are sent only after COMMIT. Watch first, then read, then wait:
// in that order no change can fall between the read and the wait.
package wake

import "sync"

// Hub joins keys to their watchers. The zero value is not usable; call New. Safe for concurrent use.
type Hub struct {
	mu       sync.Mutex
	watchers map[any]map[*Watch]struct{}
}

// New returns an empty hub.
func New() *Hub { return &Hub{watchers: map[any]map[*Watch]struct{}{}} }

// Watch is one watcher of one key. It must be stopped.
type Watch struct {
	hub  *Hub
	key  any
	c    chan struct{}
	call func() // instead of c: see Notify
}

// Watch registers a watcher of the key. Keys are comparable values of the caller's own types, so that two users of one
// hub cannot collide.
func (h *Hub) Watch(key any) *Watch {
	return h.add(&Watch{hub: h, key: key, c: make(chan struct{}, 1)})
}

// Notify registers a function that is called on every Wake of the key, for the peers that are too many to keep a
// goroutine waiting each. The function runs under the hub's lock: it must return at once and must not call the hub.
func (h *Hub) Notify(key any, call func()) *Watch {
	return h.add(&Watch{hub: h, key: key, call: call})
}

func (h *Hub) add(w *Watch) *Watch {
	key := w.key
	h.mu.Lock()
	defer h.mu.Unlock()
	set := h.watchers[key]
	if set == nil {
		set = map[*Watch]struct{}{}
		h.watchers[key] = set
	}
	set[w] = struct{}{}
	return w
}

// C receives after at least one Wake since the last receive. It is nil for a watch made by Notify.
func (w *Watch) C() <-chan struct{} { return w.c }

// Stop ends the watch. Safe to call twice.
func (w *Watch) Stop() {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	set := w.hub.watchers[w.key]
	delete(set, w)
	if len(set) == 0 {
		delete(w.hub.watchers, w.key)
	}
}

// Wake hints every watcher of the key. It never blocks.
func (h *Hub) Wake(key any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers[key] {
		if w.call != nil {
			w.call()
			continue
		}
		select {
		case w.c <- struct{}{}:
		default: // a hint is already waiting
		}
	}
}

// Watchers returns how many watchers the key has.
func (h *Hub) Watchers(key any) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.watchers[key])
}
