package agentconn

import (
	"sync"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
)

// LPLimits bound the registry of long-poll sessions (agent protocol F.7).
type LPLimits struct {
	PerAgent int           // entries of one agent, markers included
	Total    int           // entries of all agents
	Idle     time.Duration // life of an unused session since its last request, of a marker since the failure
}

// retiredFor is how long the nonce of a retired marker is refused: the life of the replay memory that went with it.
const retiredFor = 180 * time.Second

// maxRetired bounds the retired nonces kept per agent; beyond it the oldest is forgotten.
const maxRetired = 64

// Refusals of the registry. The texts are the agent's to log, nothing more.
var (
	errInvalidated = fault.New(fault.Stale, "session invalidated; reconnect with a fresh nonce and the connect probe")
	errMarked      = fault.New(fault.Stale, "agent has an invalidated session; reconnect with a fresh nonce and the connect probe")
	errRetired     = fault.New(fault.Stale, "session nonce was retired; reconnect with a fresh nonce")
	errFull        = &fault.Error{Code: fault.Unavailable, Msg: "no room for another session of this agent", Retry: time.Second}
)

// lpRegistry is the table of long-poll sessions, keyed by agent and nonce (agent protocol F.7). S is the state of a
// valid session: signer and verifier. A session is leased for the whole of each request and is neither evicted nor
// expired meanwhile. Safe for concurrent use.
type lpRegistry[S any] struct {
	limits LPLimits
	clock  clock.Clock

	mu     sync.Mutex
	agents map[uuid.UUID]*lpAgent[S]
	total  int
}

type lpAgent[S any] struct {
	entries map[string]*lpSession[S]
	markers int
	retired []retiredNonce // oldest first
}

type retiredNonce struct {
	nonce string
	at    time.Time
}

// lpSession is one entry: a valid session, or, once gone is closed, an invalidation marker or an entry that has left
// the table. Fields but State, Nonce and gone are the registry's.
type lpSession[S any] struct {
	State  S
	Nonce  string
	opened time.Time
	gone   chan struct{} // closed when the session stops being valid

	leases  int
	polls   int // leases held by claiming polls
	lastUse time.Time
	marker  bool
	failed  time.Time
	left    bool // no longer in the table
}

// Gone is closed when the session stops being valid: invalidated, retired or dropped.
func (s *lpSession[S]) Gone() <-chan struct{} { return s.gone }

// Valid tells whether requests of the session may still be served.
func (s *lpSession[S]) Valid() bool {
	select {
	case <-s.gone:
		return false
	default:
		return true
	}
}

func newLPRegistry[S any](limits LPLimits, c clock.Clock) *lpRegistry[S] {
	return &lpRegistry[S]{limits: limits, clock: c, agents: map[uuid.UUID]*lpAgent[S]{}}
}

// acquire leases the session of the agent and nonce, making it with open when the registry does not know it. probe says
// that the request is the non-claiming connect probe, the only one that retires markers. The caller must release.
func (r *lpRegistry[S]) acquire(agent uuid.UUID, nonce string, probe bool, open func() S) (*lpSession[S], error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	a := r.agents[agent]
	if a == nil {
		a = &lpAgent[S]{entries: map[string]*lpSession[S]{}}
		r.agents[agent] = a
	}
	r.expire(a, now)
	s, err := r.admit(a, nonce, probe, open, now)
	if err != nil {
		r.forget(agent, a)
		return nil, err
	}
	s.leases++
	s.lastUse = now
	return s, nil
}

// admit applies the table of F.7.
func (r *lpRegistry[S]) admit(a *lpAgent[S], nonce string, probe bool, open func() S, now time.Time) (*lpSession[S], error) {
	s := a.entries[nonce]
	switch {
	case s != nil && s.marker:
		return nil, errInvalidated
	case a.markers > 0 && (!probe || s != nil):
		return nil, errMarked
	case s != nil:
		return s, nil
	case a.isRetired(nonce):
		return nil, errRetired
	}
	if a.markers > 0 {
		r.retireMarkers(a, now)
	}
	if !r.makeRoom(a, now) {
		return nil, errFull
	}
	s = &lpSession[S]{State: open(), Nonce: nonce, opened: now, gone: make(chan struct{})}
	a.entries[nonce] = s
	r.total++
	return s, nil
}

// release ends a lease.
func (r *lpRegistry[S]) release(s *lpSession[S]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.leases--
	s.lastUse = r.clock.Now()
}

// polling counts the claiming polls that a session holds, for those who ask who could take a command.
func (r *lpRegistry[S]) polling(s *lpSession[S], by int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.polls += by
}

// invalidate turns the session into a marker after a signature failure. Requests that hold it see Gone.
func (r *lpRegistry[S]) invalidate(agent uuid.UUID, s *lpSession[S]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.left || s.marker {
		return
	}
	s.marker, s.failed = true, r.clock.Now()
	r.agents[agent].markers++
	close(s.gone)
}

// drop removes every session of the agent, for a revocation.
func (r *lpRegistry[S]) drop(agent uuid.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.agents[agent]
	if a == nil {
		return
	}
	for _, s := range a.entries {
		r.remove(a, s)
	}
	r.forget(agent, a)
}

// size returns how many entries the table holds.
func (r *lpRegistry[S]) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total
}

// lpInfo is what others may know of a session.
type lpInfo struct {
	nonce           string
	opened, lastUse time.Time
	polling         bool
}

// sessions lists the valid sessions of the agent.
func (r *lpRegistry[S]) sessions(agent uuid.UUID, each func(*lpSession[S], lpInfo)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.agents[agent]
	if a == nil {
		return
	}
	r.expire(a, r.clock.Now())
	for _, s := range a.entries {
		if !s.marker {
			each(s, lpInfo{nonce: s.Nonce, opened: s.opened, lastUse: s.lastUse, polling: s.polls > 0})
		}
	}
	r.forget(agent, a)
}

// expire drops what has been idle for too long. Leased entries stay.
func (r *lpRegistry[S]) expire(a *lpAgent[S], now time.Time) {
	for _, s := range a.entries {
		since := s.lastUse
		if s.marker {
			since = s.failed
		}
		if s.leases == 0 && now.Sub(since) >= r.limits.Idle {
			r.remove(a, s)
		}
	}
	for len(a.retired) > 0 && now.Sub(a.retired[0].at) >= retiredFor {
		a.retired = a.retired[1:]
	}
}

// makeRoom evicts, when a limit is reached, the oldest idle valid session of this agent; another agent's is never
// touched. It reports whether there is room now.
func (r *lpRegistry[S]) makeRoom(a *lpAgent[S], now time.Time) bool {
	if r.total >= r.limits.Total { // others' sessions may have idled out unseen
		for id, other := range r.agents {
			r.expire(other, now)
			if other != a {
				r.forget(id, other)
			}
		}
	}
	if len(a.entries) < r.limits.PerAgent && r.total < r.limits.Total {
		return true
	}
	var oldest *lpSession[S]
	for _, s := range a.entries {
		if s.leases == 0 && !s.marker && (oldest == nil || s.lastUse.Before(oldest.lastUse)) {
			oldest = s
		}
	}
	if oldest == nil {
		return false
	}
	r.remove(a, oldest)
	return len(a.entries) < r.limits.PerAgent && r.total < r.limits.Total
}

func (r *lpRegistry[S]) retireMarkers(a *lpAgent[S], now time.Time) {
	for _, s := range a.entries {
		if s.marker {
			r.remove(a, s)
			a.retired = append(a.retired, retiredNonce{s.Nonce, now})
		}
	}
	if over := len(a.retired) - maxRetired; over > 0 {
		a.retired = a.retired[over:]
	}
}

func (r *lpRegistry[S]) remove(a *lpAgent[S], s *lpSession[S]) {
	delete(a.entries, s.Nonce)
	r.total--
	s.left = true
	if s.marker {
		a.markers--
	} else {
		close(s.gone)
	}
}

// forget drops an agent of whom nothing is left.
func (r *lpRegistry[S]) forget(agent uuid.UUID, a *lpAgent[S]) {
	if len(a.entries) == 0 && len(a.retired) == 0 {
		delete(r.agents, agent)
	}
}

func (a *lpAgent[S]) isRetired(nonce string) bool {
	for _, n := range a.retired {
		if n.nonce == nonce {
			return true
		}
	}
	return false
}
