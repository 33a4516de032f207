package roomconn

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"signalbox/appliance/fault"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/feed"
)

const (
	// readBatch is the most events of one read (K).
	readBatch = 200
	// pageBytes is about the most that is written at once: a ping waits behind one page (C.3).
	pageBytes = 16 << 10
	// heartbeat is the ping interval as connection_state tells it (D.2).
	heartbeat = "2.0"
)

// The two situations of a gap, for people (D.3).
const (
	reasonReset    = "numbering reset: the server's numbering of this agent was lost or rolled back, as after a restored database"
	reasonRetained = "retention: events after the cursor are older than what the server keeps"
)

// page is a batch of frames that is written before the next one is asked for. Its memory is used again.
type page struct {
	frames [][]byte
	buf    []byte
	bytes  int
}

var pages = sync.Pool{New: func() any { return &page{} }}

// release gives the page back; nil is none.
func (w *page) release() {
	if w == nil || cap(w.buf) > 4*pageBytes || cap(w.frames) > 2*readBatch {
		return
	}
	clear(w.frames)
	w.frames, w.buf, w.bytes = w.frames[:0], w.buf[:0], 0
	pages.Put(w)
}

func (w *page) add(frame []byte) {
	w.frames = append(w.frames, frame)
	w.bytes += len(frame)
}

// pump is the delivery loop of one attach (E.4), without its waits: whoever drives it calls next until it has nothing,
// and then again when it is woken or after the wait that it returned. It is for one goroutine.
type pump struct {
	srv    *Server
	stream *connection.Stream
	reader *feed.Reader
	enc    encoder
	info   connection.Info

	cursor  int64        // read cursor
	pending []feed.Event // rest of the page that was read last
}

// open decides where the stream begins and returns its first frames: connection_state, then the gaps (E.5). A held
// stream begins at the head; keep leaves it at the cursor that was asked for, as SSE does (G.1).
func (p *pump) open(ctx context.Context, start feed.Start, keep bool) (*page, error) {
	o, err := p.reader.Open(ctx, start)
	if err != nil {
		return nil, err
	}
	p.cursor = o.Cursor
	if !keep && p.stream.Held() {
		p.cursor = o.Head
	}
	p.stream.ResetCursor(p.cursor)
	p.info = p.stream.State()
	w := pages.Get().(*page)
	if err := p.control(w, frameState, p.state()); err != nil {
		return nil, err
	}
	for i := range o.Gaps {
		if err := p.gap(w, &o.Gaps[i]); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (p *pump) state() stateData {
	declared := p.info.Declared.Normal()
	version := &p.srv.opts.Version
	if *version == "" {
		version = nil
	}
	return stateData{
		ConnectionID: p.info.ConnectionID, AgentID: p.info.AgentID, Generation: p.stream.Generation(),
		Scope: string(p.info.Scope), Filter: string(p.info.Filter), SpawnCapable: p.info.SpawnCapable,
		Rooms: someRooms(p.info.Rooms), Cursor: p.cursor, Protocol: p.info.Protocol, Heartbeat: json.RawMessage(heartbeat),
		Server: serverInfo{version, map[string]contract{"agent-protocol": {connection.Speaks, connection.Accepts}}},
		Client: clientInfo{declared.Speaks, declared.Accepts, declared.Artifact, declared.Version},
	}
}

func (p *pump) control(w *page, name string, data any) error {
	frame, err := p.enc.control(name, data)
	if err != nil {
		return err
	}
	w.add(frame)
	return nil
}

// gap writes one and reads on behind it.
func (p *pump) gap(w *page, g *feed.Gap) error {
	data := gapData{From: g.From, ResumedAt: g.ResumedAt, ResumedPosition: g.ResumedAt, Rooms: someRooms(g.Rooms),
		AllRooms: g.AllRooms, Reason: reasonRetained}
	if g.Reset {
		data.Rooms, data.Reason = someRooms(p.stream.Info().Rooms), reasonReset
		p.srv.registry.ResetBaselines(p.info.AgentNo)
	} else {
		p.stream.Skipped(g.From+1, g.ResumedAt, connection.SkipGap)
	}
	p.srv.metrics.Gap(g.Reset)
	return p.control(w, frameGap, data)
}

// next returns the frames that follow, about maxBytes at most; nil when there is nothing for now, or when end says that
// the stream is over: its frame is then the last. wait is after how long to call again at the latest.
func (p *pump) next(ctx context.Context, maxBytes int) (w *page, end *connection.End, wait time.Duration, err error) {
	w = pages.Get().(*page)
	defer func() {
		if err != nil || len(w.frames) == 0 {
			w.release()
			w = nil
		}
	}()
	for {
		held := p.stream.Held() // before the pass: the claim that ends it is told before what it lets through
		pass := p.stream.Pass()
		if pass.End != nil {
			return w, pass.End, 0, p.control(w, frameEvicted, evicted(pass.End))
		}
		if err := p.announce(w, &pass); err != nil {
			return w, nil, 0, err
		}
		drained := true
		if !held {
			if drained, err = p.deliver(ctx, w, maxBytes); err != nil {
				return w, nil, 0, err
			}
		}
		if drained || len(w.frames) > 0 {
			return w, nil, pass.Deadline, nil
		}
	}
}

func evicted(e *connection.End) evictedData {
	return evictedData{Code: e.Code, Reason: e.Reason, RoomID: e.RoomID}
}

// announce writes the control frames that are due, in the order of D.4.
func (p *pump) announce(w *page, pass *connection.Pass) error {
	for _, r := range pass.Released {
		if err := p.control(w, frameReleased, releasedData{r.RoomID, r.SessionID}); err != nil {
			return err
		}
	}
	if !pass.Changed {
		return nil
	}
	return p.control(w, frameChanged, changedData{someRooms(pass.Rooms), reasonChanged})
}

// deliver reads one page and writes what fits. It returns true when nothing is left to read.
func (p *pump) deliver(ctx context.Context, w *page, maxBytes int) (drained bool, err error) {
	if len(p.pending) == 0 {
		read, err := p.reader.Next(ctx, p.cursor, readBatch)
		switch {
		case fault.Is(err, fault.NotFound): // the agent was deleted, and the registry is being told
			return true, nil
		case err != nil:
			return false, err
		}
		if read.Gap != nil {
			if err := p.gap(w, read.Gap); err != nil {
				return false, err
			}
			p.advance(read.Gap.ResumedAt)
		}
		if len(read.Events) == 0 {
			p.advance(read.Head)
			return true, nil
		}
		p.pending = read.Events
	}
	n := 0
	for n < len(p.pending) && w.bytes < maxBytes {
		if err := p.one(ctx, w, &p.pending[n]); err != nil {
			return false, err
		}
		n++
	}
	if p.pending = p.pending[n:]; len(p.pending) == 0 {
		p.pending = nil
	}
	return false, nil
}

// one writes an event or passes it over. What it covers is asked now, not when the page was read (E.4).
func (p *pump) one(ctx context.Context, w *page, e *feed.Event) error {
	covered, err := p.stream.CoversQueued(ctx, e.Room.No)
	if err != nil {
		return err
	}
	if !covered {
		p.advance(e.Sequence)
		p.stream.Skipped(e.Sequence, e.Sequence, connection.SkipNotCovered)
		return nil
	}
	notifiable := e.Notifiable()
	if !notifiable && p.info.Filter == connection.FilterAddressed {
		p.advance(e.Sequence)
		p.stream.Skipped(e.Sequence, e.Sequence, connection.SkipFiltered)
		return nil
	}
	var m *feed.Missed
	if notifiable {
		if m, err = p.missed(ctx, e); err != nil {
			return err
		}
	}
	from := len(w.buf)
	w.buf = p.enc.event(slices.Grow(w.buf, e.Size()+96), e, m)
	w.add(w.buf[from:len(w.buf):len(w.buf)])
	p.advance(e.Sequence)
	p.stream.Delivered(e.Sequence, e.Sequence, 1)
	p.srv.metrics.Delivered(p.info.Transport)
	return nil
}

func (p *pump) advance(cursor int64) {
	if cursor > p.cursor {
		p.cursor = cursor
		p.stream.SetCursor(cursor)
	}
}

// missed counts what the agent has not caught up on (D.10).
func (p *pump) missed(ctx context.Context, e *feed.Event) (*feed.Missed, error) {
	base, ok := p.stream.Baseline(e.Room.No)
	if !ok {
		return &feed.Missed{Reason: "unknown: the numbering was reset, or the room has just been left"}, nil
	}
	n, floor, err := p.srv.feed.CountMissed(ctx, p.info.AgentNo, e.Room.No, base, e.Sequence)
	if err != nil {
		return nil, err
	}
	m := &feed.Missed{Count: n, Known: true}
	if floor {
		m.Reason = "at least: older messages are past retention"
	}
	return m, nil
}

// close ends the attach; the connection stays, detached, unless another stream holds it by now.
func (p *pump) close() {
	p.reader.Close()
	p.stream.Detach()
}
