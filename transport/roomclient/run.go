package roomclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Why a client gave up for good (J.4).
const (
	StopTakenOver = "taken_over"
	StopRejected  = "credentials_rejected"
	StopReserved  = "reserved_code" // worker_capability_obsolete and the like (B.3)
)

// Pauses between attempts (J.4).
const (
	firstPause  = time.Second
	steadyAfter = 30 * time.Second // a stream that lasted this long resets the pauses
	fastWindow  = 60 * time.Second // after 1012
	fastLow     = 250 * time.Millisecond
	fastHigh    = 750 * time.Millisecond
)

// Handler is told of what comes. Its methods run one at a time, on the goroutine of Run; nil ones are skipped. While
// one runs, pings are answered with the older cursor (J.3).
type Handler struct {
	Connected func(State)
	// Event handles a domain event; afterwards it counts as processed. Gap likewise. An error ends the stream, and the
	// client comes back for it.
	Event    func(context.Context, Frame) error
	Gap      func(context.Context, Gap) error
	Changed  func(Changed)
	Released func(Released)
	// Ended follows the end of every stream, and every open that failed.
	Ended func(Ending)
}

// Ending is how one stream ended and what the client does next.
type Ending struct {
	Transport Transport
	Closed    Closed
	Stop      string   // why the client gives up; "" when it comes back
	Dropped   []string // rooms that cannot be served and are not asked for any more
	Pause     time.Duration
}

// Client is a whole client of revision 8 (J): it opens the socket, falls back to SSE, resumes, and gives up when it must.
type Client struct {
	Config  Config
	Open    Open // of the first attempt; ConnectionID is required
	Handler Handler
	SSEOnly bool // a client from before the socket

	mu     sync.Mutex
	stream *Stream
	rooms  []string
	cursor int64
	saved  bool // the cursor may be 0 and still be sent
	gen    *int64
	sse    bool // stays on SSE
}

// Stream is the open stream, nil between two.
func (c *Client) Stream() *Stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stream
}

// Cursor is the highest event handled.
func (c *Client) Cursor() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cursor
}

// Generation is that of the last connection_state, nil before the first.
func (c *Client) Generation() *int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gen
}

// Run stays connected until ctx ends or the client must stop for good. It returns the last ending.
func (c *Client) Run(ctx context.Context) Ending {
	c.mu.Lock()
	c.rooms, c.gen = slices.Clone(c.Open.Rooms), c.Open.ExpectedGeneration
	if c.Open.StartFrom != nil {
		c.cursor, c.saved = *c.Open.StartFrom, true
	}
	c.mu.Unlock()
	p := pacer{cfg: &c.Config}
	for {
		began := c.Config.clock().Now()
		end := c.once(ctx)
		if ctx.Err() != nil {
			end.Stop = "stopped"
		} else {
			p.decide(&end, c.declared(), c.Config.clock().Now().Sub(began), began)
		}
		c.drop(end.Dropped)
		if c.Handler.Ended != nil {
			c.Handler.Ended(end)
		}
		if end.Stop != "" || !c.pause(ctx, end.Pause) {
			return end
		}
	}
}

func (c *Client) pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := c.Config.clock().NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *Client) declared() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.rooms)
}

func (c *Client) drop(rooms []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rooms = slices.DeleteFunc(c.rooms, func(id string) bool { return slices.Contains(rooms, id) })
}

// next is what the next attempt asks for (J.2).
func (c *Client) next() Open {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.Open
	o.Rooms, o.ExpectedGeneration, o.StartFrom = slices.Clone(c.rooms), c.gen, nil
	if c.cursor > 0 || c.saved {
		at := c.cursor
		o.StartFrom = &at
	}
	return o
}

// once opens a stream and follows it to its end.
func (c *Client) once(ctx context.Context) Ending {
	o := c.next()
	s, t, err := c.dial(ctx, o)
	if err != nil {
		var closed *Closed
		if !errors.As(err, &closed) {
			closed = &Closed{Err: err}
		}
		return Ending{Transport: t, Closed: *closed}
	}
	c.mu.Lock()
	c.stream = s
	c.mu.Unlock()
	stop := context.AfterFunc(ctx, s.Drop)
	closed := c.follow(ctx, s)
	stop()
	s.Drop()
	c.mu.Lock()
	c.stream = nil
	c.mu.Unlock()
	return Ending{Transport: t, Closed: closed}
}

// dial opens the socket, and at once SSE when that does not open (J.2).
func (c *Client) dial(ctx context.Context, o Open) (*Stream, Transport, error) {
	c.mu.Lock()
	sse := c.sse || c.SSEOnly
	c.mu.Unlock()
	if !sse {
		s, err := Dial(ctx, &c.Config, o)
		if err == nil {
			return s, WebSocket, nil
		}
		if ctx.Err() != nil {
			return nil, WebSocket, err
		}
	}
	if o.StartFrom != nil && *o.StartFrom > 0 {
		o.LastEventID = strconv.FormatInt(*o.StartFrom, 10)
	}
	s, err := DialSSE(ctx, &c.Config, o)
	var closed *Closed
	if errors.As(err, &closed) && closed.Refused.Code() == "transport_removed" && !c.SSEOnly {
		c.mu.Lock()
		c.sse = false
		c.mu.Unlock()
		if sse { // straight to the socket (G.1)
			s, err = Dial(ctx, &c.Config, o)
			return s, WebSocket, err
		}
	}
	return s, SSE, err
}

// follow handles frames until the stream ends (J.3).
func (c *Client) follow(ctx context.Context, s *Stream) Closed {
	for {
		f, err := s.Next(ctx)
		if err == nil {
			err = c.handle(ctx, s, f)
		}
		var closed *Closed
		switch {
		case err == nil:
		case errors.As(err, &closed):
			return *closed
		default:
			return Closed{Opened: true, Err: err}
		}
	}
}

func (c *Client) handle(ctx context.Context, s *Stream, f Frame) error {
	switch f.Event {
	case FrameState:
		return with(f, c.connected(s))
	case FrameGap:
		return with(f, func(g Gap) error {
			if g.ResumedAt < 0 || g.ResumedAt >= 1<<53 {
				return fmt.Errorf("gap: resumed_at %d is no sequence number", g.ResumedAt)
			}
			if c.Handler.Gap != nil {
				if err := c.Handler.Gap(ctx, g); err != nil {
					return err
				}
			}
			c.moveTo(s, g.ResumedAt)
			return nil
		})
	case FrameChanged:
		return with(f, func(ch Changed) error {
			c.adopt(ch.Rooms)
			if c.Handler.Changed != nil {
				c.Handler.Changed(ch)
			}
			return nil
		})
	case FrameReleased:
		return with(f, func(r Released) error {
			if c.Handler.Released != nil {
				c.Handler.Released(r)
			}
			return nil
		})
	}
	if !f.IsEvent() {
		return nil
	}
	if c.Handler.Event != nil {
		if err := c.Handler.Event(ctx, f); err != nil {
			return err
		}
	}
	s.Processed(f.ID)
	c.mu.Lock()
	c.cursor = max(c.cursor, f.ID)
	c.mu.Unlock()
	return nil
}

func with[T any](f Frame, do func(T) error) error {
	var v T
	if err := json.Unmarshal(f.Data, &v); err != nil {
		return fmt.Errorf("%s: %w", f.Event, err)
	}
	return do(v)
}

func (c *Client) connected(s *Stream) func(State) error {
	return func(st State) error {
		c.mu.Lock()
		c.gen = &st.Generation
		c.sse = s.Transport == SSE && st.Protocol < Revision
		c.mu.Unlock()
		c.adopt(st.Rooms)
		if c.Handler.Connected != nil {
			c.Handler.Connected(st)
		}
		return nil
	}
}

// adopt makes the server's list of rooms the declared one.
func (c *Client) adopt(rooms []string) {
	if rooms == nil {
		return
	}
	c.mu.Lock()
	c.rooms = slices.Clone(rooms)
	c.mu.Unlock()
}

// moveTo sets the cursor, downwards too.
func (c *Client) moveTo(s *Stream, cursor int64) {
	s.ResetProcessed(cursor)
	c.mu.Lock()
	c.cursor = cursor
	c.mu.Unlock()
}

// pacer decides what follows an ending (J.4).
type pacer struct {
	cfg       *Config
	pause     time.Duration // of the last attempt; 0: none
	fastUntil time.Time
}

// reserved are final for any client (B.3).
var reserved = []string{"worker_capability_obsolete", "worker_capability_required", "upgrade_required", "hosted_worker_only"}

// decide fills in the rest of an ending of a stream that began then and lasted so long.
func (p *pacer) decide(e *Ending, declared []string, lasted time.Duration, began time.Time) {
	status, refused := statusOf(&e.Closed)
	code := refused.Code()
	switch {
	case e.Closed.Evicted != nil && (e.Closed.Evicted.Code == "taken_over" || e.Closed.Evicted.Code == "launch_superseded"):
		e.Stop = StopTakenOver
	case status == 401, e.Closed.Beat != nil && status == 403:
		e.Stop = StopRejected
	case status == 403 || status == 404 && e.Closed.Beat == nil:
		for _, id := range declared {
			if strings.Contains(refused.Message(), id) {
				e.Dropped = append(e.Dropped, id)
			}
		}
		if len(e.Dropped) == 0 && status == 403 {
			e.Stop = StopRejected
		}
	case status == 409 && code == "taken_over":
		e.Stop = StopTakenOver
	case slices.Contains(reserved, code):
		e.Stop = StopReserved
	}
	if e.Stop != "" || len(e.Dropped) > 0 {
		return
	}
	now := began.Add(lasted)
	if e.Closed.Code == 1012 {
		p.fastUntil = now.Add(fastWindow)
	}
	if now.Before(p.fastUntil) {
		e.Pause = p.jitter(fastLow, fastHigh)
		return
	}
	if lasted >= steadyAfter || p.pause == 0 {
		p.pause = firstPause
	} else {
		p.pause = min(2*p.pause, maxPause)
	}
	e.Pause = p.pause
}

func (p *pacer) jitter(low, high time.Duration) time.Duration {
	if p.cfg.Jitter != nil {
		return p.cfg.Jitter(low, high)
	}
	return low + rand.N(high-low+1)
}

// statusOf is the status an ending stands for, 0 for none: from the close code, the answer of an open, or that of a beat.
func statusOf(c *Closed) (int, *Refused) {
	switch {
	case c.Beat != nil:
		return c.Beat.Status, &Refused{Status: c.Beat.Status, Detail: c.Beat.Detail}
	case c.Code >= 4000 && c.Code < 5000:
		return c.Code - 4000, c.Refused
	case c.Refused != nil:
		return c.Refused.Status, c.Refused
	}
	return 0, nil
}
