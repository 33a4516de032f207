package roommcp

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/feed"
)

// Bounds of one answer and of one read.
const (
	maxEvents     = 50
	maxEventBytes = 256 << 10
	readBatch     = 200
)

// gapNotice is a loss, as told to the model.
type gapNotice struct {
	Rooms    []uuid.UUID `json:"room_ids"`
	AllRooms bool        `json:"all_rooms"`
	Reason   string      `json:"reason"`
}

// delivery is the answer of wait_for_messages.
type delivery struct {
	Rooms  []uuid.UUID       `json:"connected_room_ids"`
	Events []json.RawMessage `json:"events"`           // frames of D.1
	Unread int               `json:"unaddressed"`      // messages passed over because they are not addressed to the agent
	Gap    *gapNotice        `json:"gap,omitempty"`    // events were lost: read_context has the messages
	Notice string            `json:"notice,omitempty"` // what the model should know
	More   bool              `json:"more"`             // more is waiting
	Cursor int64             `json:"cursor"`
}

// empty tells that there is nothing worth an answer yet.
func (d *delivery) empty() bool { return len(d.Events) == 0 && d.Gap == nil && d.Notice == "" }

// meet notes a gap for the next answer. The lock is held.
func (c *session) meet(g *feed.Gap) {
	c.srv.opts.Metrics.Gap(g.Reset)
	n := &gapNotice{Rooms: g.Rooms, AllRooms: g.AllRooms,
		Reason: "events are older than what the server keeps; read_context still has the messages"}
	if g.Reset {
		n.Reason = "the server's numbering of events was reset, as after a restored database; read_context has what there is"
		c.srv.svc.Connections.ResetBaselines(c.agentNo)
	}
	if n.Rooms == nil {
		n.Rooms = []uuid.UUID{}
	}
	if c.gap != nil && (c.gap.AllRooms || !n.AllRooms) { // the wider one says all
		return
	}
	c.gap = n
}

// take reads what is there for the agent, and moves on behind it. after, when it is not negative, goes back to an
// earlier answer. everything takes messages that are not addressed to the agent too.
func (c *session) take(ctx context.Context, after int64, everything bool) (*delivery, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stream == nil {
		return nil, fault.New(fault.Unavailable, "not connected any more: try again")
	}
	p := c.stream.Pass()
	if p.End != nil {
		reason := p.End.Reason
		c.lost()
		return nil, fault.New(fault.Conflict, "the connection of this session was ended: %s", reason)
	}
	d := &delivery{Rooms: c.stream.Info().Rooms, Events: []json.RawMessage{}, Cursor: c.cursor}
	if d.Rooms == nil {
		d.Rooms = []uuid.UUID{}
	}
	c.rooms = d.Rooms
	if len(p.Released) > 0 && len(d.Rooms) == 0 {
		d.Notice = "another connection of this agent took the room; call connect_to_room to be in one again"
	}
	if c.stream.Held() {
		return d, nil
	}
	cursor := c.cursor
	if after >= 0 && after < cursor {
		cursor = after
	}
	if err := c.fill(ctx, d, cursor, everything); err != nil {
		return nil, err
	}
	d.Gap, c.gap = c.gap, nil
	c.cursor = d.Cursor
	c.stream.SetCursor(d.Cursor)
	return d, nil
}

// fill reads page after page until the answer is full or nothing is left.
func (c *session) fill(ctx context.Context, d *delivery, cursor int64, everything bool) error {
	size := 0
	for {
		if ctx.Err() != nil {
			return fault.Wrap(fault.Canceled, context.Cause(ctx), "the call was given up")
		}
		page, err := c.reader.Next(ctx, cursor, readBatch)
		if err != nil {
			return err
		}
		if page.Gap != nil {
			c.meet(page.Gap)
			cursor = page.Gap.ResumedAt
		}
		if len(page.Events) == 0 {
			d.Cursor = max(cursor, page.Head)
			return nil
		}
		for i := range page.Events {
			e := &page.Events[i]
			if len(d.Events) == maxEvents || size > maxEventBytes {
				d.More, d.Cursor = true, cursor
				return nil
			}
			frame, err := c.frame(ctx, e, everything)
			if err != nil {
				return err
			}
			cursor = e.Sequence
			if frame != nil {
				d.Events = append(d.Events, frame)
				size += len(frame)
			} else if e.Kind == room.EventMessage && c.stream.Covers(e.Room.No) {
				d.Unread++
			}
		}
	}
}

// frame is the event as it is handed over, nil when it is passed over: not in a covered room, or nothing to react to
// (J.7).
func (c *session) frame(ctx context.Context, e *feed.Event, everything bool) (json.RawMessage, error) {
	covered, err := c.stream.CoversQueued(ctx, e.Room.No)
	if err != nil {
		return nil, err
	}
	if !covered {
		c.stream.Skipped(e.Sequence, e.Sequence, connection.SkipNotCovered)
		return nil, nil
	}
	if !everything && !worth(e) {
		c.stream.Skipped(e.Sequence, e.Sequence, connection.SkipFiltered)
		return nil, nil
	}
	var m *feed.Missed
	if e.Notifiable() {
		if m, err = c.missed(ctx, e); err != nil {
			return nil, err
		}
	}
	c.stream.Delivered(e.Sequence, e.Sequence, 1)
	c.srv.opts.Metrics.Delivered(Transport)
	return e.AppendFrame(make([]byte, 0, e.Size()+96), m), nil
}

// worth tells what a host reacts to: addressed messages, joins it listens to, and commands (J.7).
func worth(e *feed.Event) bool { return e.Notifiable() || e.Kind == room.EventCommand }

// missed counts what the agent has not caught up on (D.10).
func (c *session) missed(ctx context.Context, e *feed.Event) (*feed.Missed, error) {
	base, known := c.stream.Baseline(e.Room.No)
	if !known {
		return &feed.Missed{Reason: "the numbering was reset"}, nil
	}
	n, floor, err := c.srv.svc.Feed.CountMissed(ctx, c.agentNo, e.Room.No, base, e.Sequence)
	if err != nil {
		return nil, err
	}
	m := &feed.Missed{Count: n, Known: true}
	if floor {
		m.Reason = "at least: older messages are past retention"
	}
	return m, nil
}

// wait is take that lasts until there is something, or the time is over.
func (c *session) wait(ctx context.Context, after int64, everything bool, limit time.Duration) (*delivery, error) {
	select {
	case c.waiting <- struct{}{}:
		defer func() { <-c.waiting }()
	default:
		return nil, fault.New(fault.Conflict, "another wait_for_messages of this session is under way")
	}
	unread := 0
	timer := c.srv.opts.Clock.NewTimer(limit)
	defer timer.Stop()
	for {
		d, err := c.take(ctx, after, everything)
		if err != nil {
			return nil, err
		}
		unread += d.Unread
		d.Unread, after = unread, -1
		if !d.empty() {
			return d, nil
		}
		select {
		case <-c.news:
		case <-timer.C():
			if len(d.Rooms) == 0 {
				d.Notice = "you are connected to no room, so nothing can be addressed to you: call connect_to_room first"
			}
			return d, nil
		case <-ctx.Done():
			return nil, fault.Wrap(fault.Canceled, context.Cause(ctx), "the call was given up")
		case <-c.ctx.Done():
			return nil, context.Cause(c.ctx)
		}
	}
}

// startNotifying begins to tell events as log notifications, from now on: the client has set a log level. It moves no
// cursor: a wait hands over the same events.
func (c *session) startNotifying(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.notifying || c.ctx.Err() != nil {
		return nil
	}
	news := make(chan struct{}, 1)
	r := c.srv.svc.Feed.NewReader(c.agentNo, func() { kick(news) })
	o, err := r.Open(ctx, feed.Start{Head: true})
	if err != nil {
		r.Close()
		return err
	}
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	if c.srv.sessions[c.mcp.ID()] != c { // over by now
		r.Close()
		return nil
	}
	c.notifying = true
	c.srv.running.Add(1)
	go func() {
		defer c.srv.running.Done()
		defer r.Close()
		for cursor := o.Cursor; ; {
			select {
			case <-c.ctx.Done():
				return
			case <-news:
				cursor = c.tell(r, cursor)
			}
		}
	}()
	return nil
}

// tell sends what is new as log notifications, and returns how far it came. A host that does not read its stream delays
// only this.
func (c *session) tell(r *feed.Reader, cursor int64) int64 {
	for c.ctx.Err() == nil {
		page, err := r.Next(c.ctx, cursor, readBatch)
		if err != nil {
			c.srv.log(err).Int64("agent_no", c.agentNo).Msg("events not read for notifications")
			return cursor
		}
		if page.Gap != nil {
			cursor = page.Gap.ResumedAt
		}
		if len(page.Events) == 0 {
			return max(cursor, page.Head)
		}
		for i := range page.Events {
			e := &page.Events[i]
			cursor = e.Sequence
			if !worth(e) || !c.covers(e.Room.No) {
				continue
			}
			// Without an open stream it goes nowhere; a wait has it all.
			//lint:ignore SA1019 the versions of the protocol that have sessions have logging too
			_ = c.mcp.Log(c.ctx, &mcp.LoggingMessageParams{Logger: "signalbox.rooms", Level: "notice",
				Data: json.RawMessage(e.AppendFrame(nil, nil))})
		}
	}
	return cursor
}

// covers tells whether the session is in the room now.
func (c *session) covers(roomNo int64) bool {
	c.mu.Lock()
	stream := c.stream
	c.mu.Unlock()
	return stream != nil && stream.Covers(roomNo)
}
