package identity

import (
	"container/list"
	"net/netip"
	"sync"
	"time"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
)

// The limit on failed sign-ins. Those of one e-mail address from one network address stop guessing at one person, those
// of one network address stop trying one password on everybody. Others keep signing in meanwhile.
const (
	failWindow    = 15 * time.Minute // from the first failure
	failsOfPair   = 10
	failsOfOrigin = 100
	maxAttempts   = 10_000 // counters kept; beyond, the one that began first is forgotten
	maxRecords    = 500    // failures recorded in one window, whoever and wherever
)

// attempts counts failed sign-ins in memory. Safe for concurrent use.
type attempts struct {
	clock clock.Clock
	mu    sync.Mutex
	byKey map[attemptKey]*list.Element // of *counter
	order *list.List                   // by the start of the window, the oldest first

	records int       // failures told to be worth a record since from
	from    time.Time // start of the window they are counted in
}

// attemptKey is an e-mail address at a network address, or, with no e-mail address, a network address.
type attemptKey struct {
	email  string
	origin string
	pair   bool
}

type counter struct {
	key   attemptKey
	since time.Time
	fails int // failures, and attempts that are not decided yet
	told  bool
}

func newAttempts(c clock.Clock) *attempts {
	return &attempts{clock: c, byKey: map[attemptKey]*list.Element{}, order: list.New()}
}

// attempt is a sign-in that has begun. Exactly one of its methods is called.
type attempt struct {
	a    *attempts
	keys [2]attemptKey
}

// begin counts an attempt as failed until it is known better, so that many at once are no way past the limit.
// RateLimited when there were too many.
func (a *attempts) begin(email, addr string) (*attempt, error) {
	origin := originKey(addr)
	t := &attempt{a: a, keys: [2]attemptKey{{email: email, origin: origin, pair: true}, {origin: origin}}}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.clock.Now()
	a.expire(now)
	for i, most := range []int{failsOfPair, failsOfOrigin} {
		if e := a.byKey[t.keys[i]]; e != nil {
			if c := e.Value.(*counter); c.fails >= most {
				return nil, &fault.Error{Code: fault.RateLimited, Msg: "too many failed sign-ins, try again later",
					Retry: max(c.since.Add(failWindow).Sub(now), time.Second)}
			}
		}
	}
	for _, k := range t.keys {
		a.counter(k, now).fails++
	}
	return t, nil
}

// expire forgets windows that have passed.
func (a *attempts) expire(now time.Time) {
	for e := a.order.Front(); e != nil; e = a.order.Front() {
		if c := e.Value.(*counter); len(a.byKey) < maxAttempts && now.Sub(c.since) < failWindow {
			return
		}
		a.drop(e)
	}
}

func (a *attempts) counter(k attemptKey, now time.Time) *counter {
	if e := a.byKey[k]; e != nil {
		return e.Value.(*counter)
	}
	c := &counter{key: k, since: now}
	a.byKey[k] = a.order.PushBack(c)
	return c
}

func (a *attempts) drop(e *list.Element) {
	delete(a.byKey, e.Value.(*counter).key)
	a.order.Remove(e)
}

// succeeded forgets the failures of the person at this address.
func (t *attempt) succeeded() {
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	if e := t.a.byKey[t.keys[0]]; e != nil {
		t.a.drop(e)
	}
	t.takeBack(t.keys[1])
}

// undecided takes the attempt back: nobody learned anything from it.
func (t *attempt) undecided() {
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	for _, k := range t.keys {
		t.takeBack(k)
	}
}

func (t *attempt) takeBack(k attemptKey) {
	if e := t.a.byKey[k]; e != nil {
		if c := e.Value.(*counter); c.fails > 1 {
			c.fails--
		} else {
			t.a.drop(e)
		}
	}
}

// failed leaves the attempt counted, and tells whether it is worth a record: the first that failed in its window is,
// unless very many were already.
func (t *attempt) failed() bool {
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	if now := t.a.clock.Now(); now.Sub(t.a.from) >= failWindow {
		t.a.from, t.a.records = now, 0
	}
	e := t.a.byKey[t.keys[0]]
	if e == nil || e.Value.(*counter).told || t.a.records >= maxRecords {
		return false
	}
	t.a.records++
	e.Value.(*counter).told = true
	return true
}

// originKey is the text that a network address is counted under: that of its /64 for IPv6, where one peer has many.
func originKey(addr string) string {
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return "unknown"
	}
	a = a.Unmap().WithZone("")
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.String()
		}
	}
	return a.String()
}
