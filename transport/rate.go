package transport

import (
	"container/list"
	"net/http"
	"sync"
	"time"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
)

// Bounds of a rate bucket (agent protocol I.1).
const (
	maxRateKeys   = 10_000
	maxRateKeyLen = 120
)

// RateBucket admits at most limit hits per key within any window that slides with time. Refused hits do not count. It
// is local to the process, safe for concurrent use, and bounded: hits are kept as a ring of at most limit times per key,
// and beyond 10,000 keys with a hit in the window new keys are refused.
type RateBucket struct {
	name   string
	limit  int
	window time.Duration
	clock  clock.Clock
	epoch  time.Time

	mu   sync.Mutex
	keys map[string]*list.Element // of *hits
	used *list.List               // by newest hit, oldest first: those that have left the window are at the front
}

// hits is a ring of times since the epoch, oldest at head.
type hits struct {
	key    string
	ring   []time.Duration
	head   int
	n      int
	newest time.Duration
}

// NewRateBucket returns a bucket. name stands in the message of its refusals; a limit of zero or less admits everything.
func NewRateBucket(name string, limit int, window time.Duration, c clock.Clock) *RateBucket {
	return &RateBucket{name: name, limit: limit, window: window, clock: c, epoch: c.Now(),
		keys: map[string]*list.Element{}, used: list.New()}
}

// Allow counts a hit of the key (cut to 120 bytes) and returns nil, or returns the RateLimited error that says when to
// come back.
func (b *RateBucket) Allow(key string) error {
	if b.limit <= 0 {
		return nil
	}
	if len(key) > maxRateKeyLen {
		key = key[:maxRateKeyLen]
	}
	now := b.clock.Now().Sub(b.epoch)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expire(now)
	e, known := b.keys[key]
	if !known {
		if len(b.keys) >= maxRateKeys {
			return b.refusal(b.window)
		}
		e = b.used.PushBack(&hits{key: key})
		b.keys[key] = e
	}
	h := e.Value.(*hits)
	for h.n > 0 && now-h.ring[h.head] >= b.window {
		h.pop()
	}
	if h.n >= b.limit {
		return b.refusal(h.ring[h.head] + b.window - now)
	}
	h.push(now, b.limit)
	b.used.MoveToBack(e)
	return nil
}

// expire drops the keys whose newest hit has left the window. It runs under b.mu.
func (b *RateBucket) expire(now time.Duration) {
	for e := b.used.Front(); e != nil; e = b.used.Front() {
		h := e.Value.(*hits)
		if now-h.newest < b.window {
			return
		}
		b.used.Remove(e)
		delete(b.keys, h.key)
	}
}

// refusal is the error of a hit that may come back after wait, in whole seconds from 1 to the window.
func (b *RateBucket) refusal(wait time.Duration) error {
	seconds := min(max(ceilSeconds(wait), 1), max(ceilSeconds(b.window), 1))
	err := fault.New(fault.RateLimited, "too many requests; retry in %d seconds (%s)", seconds, b.name)
	err.Retry = time.Duration(seconds) * time.Second
	return err
}

// Middleware refuses requests whose client address has used the bucket up. The local admin socket has no address and no
// limit.
func (b *RateBucket) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !IsLocalAdmin(r.Context()) {
			if err := b.Allow(AddrKey(ClientAddr(r.Context()))); err != nil {
				WriteError(w, r, err)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func (h *hits) pop() {
	h.head = (h.head + 1) % len(h.ring)
	h.n--
}

// firstRing is the room a new key gets: most addresses connect a few times a minute.
const firstRing = 4

func (h *hits) push(at time.Duration, limit int) {
	if h.n == len(h.ring) {
		grown := make([]time.Duration, min(max(2*h.n, firstRing), limit))
		for i := range h.n {
			grown[i] = h.ring[(h.head+i)%len(h.ring)]
		}
		h.ring, h.head = grown, 0
	}
	h.ring[(h.head+h.n)%len(h.ring)] = at
	h.n++
	h.newest = at
}
