package session

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
)

// Options are the settings of one plane; all its sessions share them. Zero means the default named, except where zero
// switches something off.
type Options struct {
	Kind     string      // metric label and log field; required
	Outgoing MessageType // of Send and sources; Binary
	// Subprotocol, when set, must be among those that the peer offers, and is the one answered.
	Subprotocol string
	// MaxMessage is the largest message accepted, in bytes; 1 MiB. The next byte closes as Oversize.
	MaxMessage int
	// QueueBytes and QueueFrames bound what waits to be written; 4 MiB and 1024. One frame above QueueBytes is taken
	// when nothing else waits.
	QueueBytes, QueueFrames int
	// MaxSessions bounds the sessions of the plane, handshakes included; 0 is no bound.
	MaxSessions int
	// IdleTimeout closes as Idle after that long without an application message; pings and pongs do not count. 0 is off.
	IdleTimeout time.Duration
	// PingInterval and PongWait: pings are spread over the interval, and neither message nor pong for PongWait after one
	// closes as Unresponsive. An interval of 0 is off; a wait of 0 is the interval.
	PingInterval, PongWait time.Duration
	// WriteTimeout bounds one socket write; 10 s.
	WriteTimeout time.Duration
	// CloseWait bounds the whole closing: flush, close frame, the peer's answer; 5 s.
	CloseWait time.Duration
	// CleanupTimeout bounds OnClose's context; 10 s.
	CleanupTimeout time.Duration
	// Codes are the plane's close codes and texts; reasons it leaves out get the engine's.
	Codes map[Reason]CloseCode
}

func (o *Options) setDefaults() {
	orDefault(&o.Outgoing, Binary)
	orDefault(&o.MaxMessage, 1<<20)
	orDefault(&o.QueueBytes, 4<<20)
	orDefault(&o.QueueFrames, 1024)
	orDefault(&o.PongWait, o.PingInterval)
	orDefault(&o.WriteTimeout, 10*time.Second)
	orDefault(&o.CloseWait, 5*time.Second)
	orDefault(&o.CleanupTimeout, 10*time.Second)
}

func orDefault[T comparable](p *T, d T) {
	var zero T
	if *p == zero {
		*p = d
	}
}

// Group owns all live sessions of the process, of whatever plane: their goroutines, their timer, their count. Use one
// and close it after Drain.
type Group struct {
	clock   clock.Clock
	log     zerolog.Logger
	metrics *metrics
	sweep   *sweep
	stop    context.CancelFunc // ends the sweep
	swept   chan struct{}

	mu       sync.Mutex
	planes   []*Plane
	sessions map[*Session]struct{}
	lastID   uint64
	stopping bool
	empty    chan struct{} // closed when stopping and no session is left
}

// NewGroup starts a group. Its metrics are registered with reg: signalbox_sessions, signalbox_session_queue_bytes,
// signalbox_session_closes_total, signalbox_session_panics_total.
func NewGroup(c clock.Clock, log zerolog.Logger, reg prometheus.Registerer) (*Group, error) {
	g := &Group{clock: c, log: log, sweep: newSweep(c), sessions: map[*Session]struct{}{},
		swept: make(chan struct{}), empty: make(chan struct{})}
	var err error
	if g.metrics, err = newMetrics(g, reg); err != nil {
		return nil, fmt.Errorf("register session metrics: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g.stop = cancel
	go func() {
		defer close(g.swept)
		g.sweep.run(ctx)
	}()
	return g, nil
}

// Plane accepts the sessions of one kind.
type Plane struct {
	group *Group
	opts  Options
	live  int // under group.mu
}

// NewPlane adds a kind of session. The kind must be new to the group.
func (g *Group) NewPlane(o Options) *Plane {
	o.setDefaults()
	p := &Plane{group: g, opts: o}
	g.mu.Lock()
	g.planes = append(g.planes, p)
	g.mu.Unlock()
	g.metrics.prepare(o.Kind)
	return p
}

// code is what the peer is told for a reason.
func (p *Plane) code(r Reason) CloseCode {
	if c, ok := p.opts.Codes[r]; ok {
		return c
	}
	return CloseCode{Code: policies[r].code, Text: policies[r].text}
}

// errStopping and errFull refuse before the upgrade, while an HTTP answer is still possible.
var (
	errStopping = &fault.Error{Code: fault.Unavailable, Msg: "going down, try again", Retry: time.Second}
	errFull     = &fault.Error{Code: fault.Unavailable, Msg: "too many sessions, try again later", Retry: 5 * time.Second}
)

// Accept upgrades the request and starts the session, whose reader runs open. It returns at once and the HTTP handler
// must then return too, which frees what the server holds for the request: open must not use the request's context. peer
// is the client's address for the log. An error is a *fault.Error to be rendered as an HTTP response: no session exists.
func (p *Plane) Accept(w http.ResponseWriter, r *http.Request, peer string, open OpenFunc) error {
	s := &Session{plane: p, peer: peer, heapPos: notInHeap, done: make(chan struct{}), flushed: make(chan struct{})}
	if err := p.group.admit(s); err != nil {
		return err
	}
	ws, conn, hijacked, err := upgrade(w, r, p.opts.Subprotocol)
	if err != nil {
		p.group.forget(s)
		if !hijacked {
			return err
		}
		p.group.log.Debug().Err(err).Str("kind", p.opts.Kind).Str("peer", peer).Msg("upgrade broke off")
		return nil
	}
	s.begin(ws, conn)
	go s.run(open)
	return nil
}

// begin completes an admitted session with its socket, before any other goroutine can reach it.
func (s *Session) begin(ws *websocket.Conn, conn *socket) {
	g := s.plane.group
	s.ws, s.conn = ws, conn
	ws.SetPingHandler(s.onPing)
	ws.SetPongHandler(s.onPong)
	ws.SetCloseHandler(func(int, string) error { return nil }) // the answer is the writer's business
	s.opened = g.clock.Now()
	now := g.sweep.now()
	s.heard.Store(now)
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	if every := int64(s.plane.opts.PingInterval); every > 0 {
		s.nextPing = now + 1 + rand.Int64N(every)
	}
	g.mu.Lock()
	g.sessions[s] = struct{}{}
	stopping := g.stopping
	g.mu.Unlock()
	if stopping { // Drain began between admission and now and has not seen us
		s.drainAt.Store(now)
	}
	if next := s.check(now); next != 0 {
		g.sweep.schedule(s, next)
	}
}

// admit counts a session in before its upgrade, so that Drain waits for it.
func (g *Group) admit(s *Session) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := s.plane
	if g.stopping {
		return errStopping
	}
	if p.opts.MaxSessions > 0 && p.live >= p.opts.MaxSessions {
		return errFull
	}
	p.live++
	g.lastID++
	s.id = g.lastID
	return nil
}

// forget counts a session out.
func (g *Group) forget(s *Session) {
	g.sweep.release(s)
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.sessions, s)
	s.plane.live--
	g.signalEmpty()
}

// signalEmpty runs under g.mu.
func (g *Group) signalEmpty() {
	if !g.stopping {
		return
	}
	for _, p := range g.planes {
		if p.live > 0 {
			return
		}
	}
	select {
	case <-g.empty:
	default:
		close(g.empty)
	}
}

// Count is the number of sessions of the plane, handshakes included.
func (p *Plane) Count() int {
	p.group.mu.Lock()
	defer p.group.mu.Unlock()
	return p.live
}

// Sessions returns the live sessions of all planes, oldest first.
func (g *Group) Sessions() []*Session {
	g.mu.Lock()
	all := make([]*Session, 0, len(g.sessions))
	for s := range g.sessions {
		all = append(all, s)
	}
	g.mu.Unlock()
	slices.SortFunc(all, func(a, b *Session) int { return int(int64(a.id) - int64(b.id)) })
	return all
}

// ErrDrainForced is a drain whose deadline passed: the sockets left were closed under their sessions.
var ErrDrainForced = errors.New("sessions closed by force")

// Drain refuses new sessions, closes all as Draining at random times within spread (so that they do not come back in
// one wave), and waits until the last one has ended. When ctx ends first, it closes the sockets that are left and
// returns ErrDrainForced; handlers that ignore their context may then still run. Call it once.
func (g *Group) Drain(ctx context.Context, spread time.Duration) error {
	g.mu.Lock()
	g.stopping = true
	g.signalEmpty()
	g.mu.Unlock()
	now := g.sweep.now()
	for _, s := range g.Sessions() {
		at := now
		if spread > 0 {
			at += rand.Int64N(int64(spread))
		}
		s.drainAt.Store(at)
		g.sweep.schedule(s, at)
	}
	select {
	case <-g.empty:
		return nil
	case <-ctx.Done():
	}
	left := g.Sessions()
	for _, s := range left {
		s.Close(Draining)
		s.kill()
	}
	select {
	case <-g.empty:
		if len(left) == 0 {
			return nil
		}
	case <-time.After(forceGrace):
	}
	return fmt.Errorf("%w: %d of them", ErrDrainForced, len(left))
}

// forceGrace is how long a drain waits for goroutines whose sockets it has closed.
const forceGrace = time.Second

// Close stops the group's timer goroutine and forgets its metrics. Sessions must have ended.
func (g *Group) Close() {
	g.stop()
	<-g.swept
	g.metrics.unregister()
}

// panicked logs and counts a panic of a handler or source.
func (p *Plane) panicked(s *Session, v any, stack []byte) {
	p.group.metrics.panics.WithLabelValues(p.opts.Kind).Inc()
	p.group.log.Error().Str("kind", p.opts.Kind).Uint64("session", s.id).Str("peer", s.peer).
		Interface("panic", v).Bytes("stack", stack).Msg("panic in a session handler")
}

// ended counts and logs the end of a session.
func (p *Plane) ended(s *Session, c Closed) {
	g := p.group
	defer g.forget(s) // last: whoever waits for the drain may then read the counts
	g.metrics.closes.WithLabelValues(p.opts.Kind, c.Reason.String()).Inc()
	s.mu.Lock()
	principal := s.principal
	s.mu.Unlock()
	e := g.log.Info().Str("kind", p.opts.Kind).Uint64("session", s.id).Str("peer", s.peer).
		Stringer("reason", c.Reason).Dur("age_ms", c.Age).
		Uint64("messages_in", s.messagesIn.Load()).Uint64("messages_out", s.messagesOut.Load())
	if principal != "" {
		e = e.Str("principal", principal)
	}
	if c.PeerCode != 0 {
		e = e.Int("peer_code", c.PeerCode)
	}
	e.Err(c.Err).Msg("session closed")
}
