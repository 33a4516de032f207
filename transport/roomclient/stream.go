package roomclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// Transport is how a stream is carried.
type Transport string

// The transports.
const (
	WebSocket Transport = "websocket"
	SSE       Transport = "sse"
)

// Stream is one open stream. Frames are read as they come, whatever the consumer does, so that pings are answered in the
// middle of an event (J.3); what is not consumed waits in memory. Safe for concurrent use.
type Stream struct {
	Transport Transport
	Open      Open

	cfg     *Config
	ctx     context.Context
	cancel  context.CancelCauseFunc
	cut     func() // breaks the connection off
	answer  func(cursor int64) error
	onState func(State) // runs once, on the reading goroutine

	processed atomic.Int64
	silent    atomic.Bool
	pings     atomic.Int64
	alive     atomic.Int64

	mu     sync.Mutex
	queue  []Frame
	state  *State
	closed Closed
	ended  bool
	ready  chan struct{} // has room for one hint
	done   chan struct{} // closed at the end
}

func newStream(cfg *Config, open Open, t Transport) *Stream {
	s := &Stream{Transport: t, Open: open, cfg: cfg, ready: make(chan struct{}, 1), done: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	if open.StartFrom != nil {
		s.processed.Store(*open.StartFrom)
	}
	return s
}

// Next returns the next frame, pings aside. After the last one it returns how the stream ended, a *Closed.
func (s *Stream) Next(ctx context.Context) (Frame, error) {
	for {
		s.mu.Lock()
		if len(s.queue) > 0 {
			f := s.queue[0]
			s.queue[0] = Frame{}
			if s.queue = s.queue[1:]; len(s.queue) == 0 {
				s.queue = nil
			}
			s.mu.Unlock()
			return f, nil
		}
		if s.ended {
			c := s.closed
			s.mu.Unlock()
			return Frame{}, &c
		}
		s.mu.Unlock()
		select {
		case <-s.ready:
		case <-s.done:
		case <-ctx.Done():
			return Frame{}, context.Cause(ctx)
		}
	}
}

// NextEvent returns the next domain event, dropping what is none.
func (s *Stream) NextEvent(ctx context.Context) (Frame, error) {
	for {
		f, err := s.Next(ctx)
		if err != nil || f.IsEvent() {
			return f, err
		}
	}
}

// Await returns the next frame of the name, dropping the others.
func (s *Stream) Await(ctx context.Context, name string) (Frame, error) {
	for {
		f, err := s.Next(ctx)
		if err != nil {
			return f, fmt.Errorf("waiting for %s: %w", name, err)
		}
		if f.Event == name {
			return f, nil
		}
	}
}

// AwaitState returns the first frame, which must be a connection_state.
func (s *Stream) AwaitState(ctx context.Context) (State, error) {
	f, err := s.Next(ctx)
	if err != nil {
		return State{}, err
	}
	if f.Event == FrameRefused { // what follows it tells more
		if _, err = s.Next(ctx); err != nil {
			return State{}, err
		}
	}
	if f.Event != FrameState {
		return State{}, fmt.Errorf("the first frame is %s, not %s", f.Event, FrameState)
	}
	var st State
	return st, json.Unmarshal(f.Data, &st)
}

// Processed says that everything up to the cursor has been handled; pongs and beats carry the highest (C.5).
func (s *Stream) Processed(cursor int64) {
	for {
		old := s.processed.Load()
		if cursor <= old || s.processed.CompareAndSwap(old, cursor) {
			return
		}
	}
}

// ResetProcessed sets the cursor, downwards too: after a gap (J.3).
func (s *Stream) ResetProcessed(cursor int64) { s.processed.Store(cursor) }

// Cursor is what the next pong or beat carries.
func (s *Stream) Cursor() int64 { return s.processed.Load() }

// Silence stops the answers to pings, and the beats, or lets them go on.
func (s *Stream) Silence(yes bool) { s.silent.Store(yes) }

// Pings is how many pings have come.
func (s *Stream) Pings() int64 { return s.pings.Load() }

// Beats is how many signs of life were given: pongs sent, or beats accepted (C.3).
func (s *Stream) Beats() int64 { return s.alive.Load() }

// Silent tells whether the stream was silenced.
func (s *Stream) Silent() bool { return s.silent.Load() }

// Done is closed when the stream has ended; frames may still wait.
func (s *Stream) Done() <-chan struct{} { return s.done }

// State is the connection_state, nil before it has come.
func (s *Stream) State() *State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// Drop cuts the connection without a goodbye.
func (s *Stream) Drop() { s.end(Closed{Err: ErrDropped}) }

// Pong answers a ping that nobody sent, on the WebSocket.
func (s *Stream) Pong(cursor int64) error {
	if s.answer == nil {
		return errors.New("no pongs on this transport")
	}
	return s.answer(cursor)
}

// took handles one frame on the reading goroutine. An error ends the stream.
func (s *Stream) took(f Frame) {
	switch f.Event {
	case FramePing:
		s.pings.Add(1)
		if s.answer != nil && !s.silent.Load() {
			if s.answer(s.processed.Load()) == nil { // a broken socket is found by reading
				s.alive.Add(1)
			}
		}
		return
	case FrameState:
		var st State
		if json.Unmarshal(f.Data, &st) == nil {
			s.mu.Lock()
			first := s.state == nil
			s.state = &st
			s.mu.Unlock()
			if first && s.onState != nil {
				s.onState(st)
			}
		}
	case FrameEvicted:
		var e Evicted
		if json.Unmarshal(f.Data, &e) == nil {
			s.mu.Lock()
			s.closed.Evicted = &e
			s.mu.Unlock()
		}
	case FrameRefused:
		var r Refused
		if json.Unmarshal(f.Data, &r) == nil {
			s.mu.Lock()
			s.closed.Refused = &r
			s.mu.Unlock()
		}
	}
	s.mu.Lock()
	if !s.ended || s.closed.Err == nil { // a dropped stream says nothing more
		s.queue = append(s.queue, f)
	}
	s.mu.Unlock()
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// end records how the stream ended, once, and closes it.
func (s *Stream) end(c Closed) {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.ended = true
	s.closed.Code, s.closed.Text, s.closed.Beat, s.closed.Err = c.Code, c.Text, c.Beat, c.Err
	s.closed.Opened = true
	s.mu.Unlock()
	s.cancel(&c)
	s.cut()
	close(s.done)
}
