package commands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"signalbox/transport/roomclient"
)

// roomReceiver is one agent with one stream. It comes back with its cursor when the stream breaks.
type roomReceiver struct {
	room     *benchRoom
	config   *roomclient.Config
	id       string // of the connection
	load     *roomLoad
	receipts *histogram
	got      atomic.Int64 // messages of the run

	mu      sync.Mutex
	stream  *roomclient.Stream
	dropped bool // by ourselves

	// Of who opens the stream, then of the reading goroutine.
	begun    bool  // a cursor is known
	cursor   int64 // number of the last event
	dialed   time.Time
	caughtUp func() // to be called once, when nothing is missing; nil: was
}

func newRoomReceiver(room *benchRoom, c *roomclient.Config) *roomReceiver {
	return &roomReceiver{room: room, config: c, id: uuid.NewString()}
}

// open opens the stream, at the head the first time, and reads its connection_state.
func (v *roomReceiver) open(ctx context.Context) error {
	o := roomclient.Current(v.id)
	o.Scope = "all"
	if v.begun {
		o.StartFrom = &v.cursor
	}
	v.dialed = time.Now()
	dial := roomclient.Dial
	if v.load.b.sse {
		dial = roomclient.DialSSE
		o.Protocol = 7 // the last that clients without the socket spoke
	}
	s, err := dial(ctx, v.config, o)
	if err != nil {
		return err
	}
	state, err := s.AwaitState(ctx)
	if err != nil {
		s.Drop()
		return err
	}
	if !v.begun {
		v.begun, v.cursor = true, state.Cursor
		s.Processed(state.Cursor)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.dropped { // meanwhile
		s.Drop()
		return roomclient.ErrDropped
	}
	v.stream = s
	return nil
}

// revive lets a receiver that was dropped open its stream again.
func (v *roomReceiver) revive() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.dropped = false
}

// drop cuts the stream; read then returns.
func (v *roomReceiver) drop() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.dropped = true
	if v.stream != nil {
		v.stream.Drop()
	}
}

// read takes events until the stream is dropped or the run over.
func (v *roomReceiver) read() {
	l := v.load
	for {
		v.mu.Lock()
		s := v.stream
		v.mu.Unlock()
		err := v.follow(s)
		if v.over() {
			return
		}
		l.broken.Add(1)
		if e := v.open(l.ctx); e != nil && !v.over() {
			l.fail(fmt.Errorf("receiver %s: its stream broke (%w) and did not open again: %w", v.config.AgentID, err, e))
			return
		}
	}
}

// over tells whether the stream is not to be opened again.
func (v *roomReceiver) over() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.dropped || v.load.ctx.Err() != nil
}

// follow takes what comes on one stream and returns how it ended.
func (v *roomReceiver) follow(s *roomclient.Stream) error {
	l := v.load
	v.look()
	for {
		f, err := s.Next(l.ctx)
		if err != nil {
			return err
		}
		switch {
		case f.Event == roomclient.FrameGap:
			var g roomclient.Gap
			if err := json.Unmarshal(f.Data, &g); err != nil {
				return errors.Join(err, errors.New("a gap that cannot be read"))
			}
			l.gaps.Add(1)
			v.cursor = g.ResumedAt
			s.ResetProcessed(v.cursor)
		case f.ID != 0:
			if f.ID != v.cursor+1 {
				l.disorder.Add(1)
			}
			v.cursor = f.ID
			s.Processed(f.ID)
			v.take(f.Data)
		}
	}
}

// take counts a message of the run.
func (v *roomReceiver) take(data []byte) {
	l := v.load
	at, ours := l.stamp(data)
	if !ours {
		return
	}
	if at >= 0 {
		v.receipts.record(time.Since(l.epoch) - at)
	}
	v.got.Add(1)
	v.look()
	v.room.received.Add(1)
	if v.room.held.Load() > 0 {
		select {
		case v.room.moved <- struct{}{}:
		default:
		}
	}
	if l.received.Add(1) == l.goal.Load() {
		select {
		case l.reached <- struct{}{}:
		default:
		}
	}
}

// look tells a storm when nothing is missing any more.
func (v *roomReceiver) look() {
	if v.caughtUp != nil && v.got.Load() >= v.room.stored.Load() {
		v.caughtUp()
		v.caughtUp = nil
	}
}
