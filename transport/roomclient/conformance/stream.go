package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/transport/roomclient"
)

// named is an Open of a client of revision 8 under a new connection id, or the one given.
func (t *trial) named(id string, change ...func(*roomclient.Open)) roomclient.Open {
	if id == "" {
		id = uuid.NewString()
	}
	o := roomclient.Current(id)
	for _, f := range change {
		f(&o)
	}
	return o
}

func all(o *roomclient.Open) { o.Scope = "all" }

func from(n int64) func(*roomclient.Open) { return func(o *roomclient.Open) { o.StartFrom = &n } }

func fence(g int64) func(*roomclient.Open) {
	return func(o *roomclient.Open) { o.ExpectedGeneration = &g }
}

func in(rooms ...string) func(*roomclient.Open) { return func(o *roomclient.Open) { o.Rooms = rooms } }

func revision(speaks, accepts int) func(*roomclient.Open) {
	return func(o *roomclient.Open) { o.Protocol, o.ProtocolAccepts = speaks, accepts }
}

// undeclared is a client that tells nothing of itself.
func undeclared(o *roomclient.Open) {
	o.Protocol, o.ProtocolAccepts, o.Artifact, o.Version = 0, 0, "", ""
}

// dialer opens a stream of one of the transports.
type dialer func(context.Context, *roomclient.Config, roomclient.Open) (*roomclient.Stream, error)

// transport is a name and its dialer.
type transport struct {
	name string
	dial dialer
}

// transports are those the server has, the socket first.
func (t *trial) transports() []transport {
	out := []transport{{"websocket", roomclient.Dial}}
	if t.sse {
		return append(out, transport{"sse", roomclient.DialSSE})
	}
	t.note("this server has removed SSE: only the socket was asked")
	return out
}

// stream is an open stream.
type stream struct {
	*roomclient.Stream
	t     *trial
	by    *agent
	state roomclient.State
}

// ws opens a socket that must be admitted.
func (t *trial) ws(by *agent, o roomclient.Open) *stream { return t.open(roomclient.Dial, by, o) }

func (t *trial) open(dial dialer, by *agent, o roomclient.Open) *stream {
	s := t.attach(dial, by, o)
	st, err := s.AwaitState(t.ctx)
	if err != nil {
		t.refusedInstead(err)
	}
	s.state = st
	t.check(st.ConnectionID == o.ConnectionID && st.AgentID == by.id(), "D.2",
		"connection_state is of connection %q of agent %q", st.ConnectionID, st.AgentID)
	t.check(st.Rooms != nil, "D.2", "connection_state has no list of rooms")
	return s
}

func (t *trial) attach(dial dialer, by *agent, o roomclient.Open) *stream {
	raw, err := dial(t.ctx, &by.Config, o)
	if err != nil {
		t.refusedInstead(err)
	}
	s := &stream{Stream: raw, t: t, by: by}
	t.streams = append(t.streams, s)
	t.opened = append(t.opened, openedID{by, o.ConnectionID})
	return s
}

func (t *trial) refusedInstead(err error) {
	var c *roomclient.Closed
	if errors.As(err, &c) && (c.Refused != nil || c.Code != 0) {
		t.fail("B.2", "an open that is in order was refused: %v", err)
	}
	t.broken("open a stream", err)
}

// refused opens a stream that must be refused with the status, by a frame and a close code or an HTTP status (B.3).
func (t *trial) refused(dial dialer, by *agent, o roomclient.Open, status int, rule, what string) *roomclient.Refused {
	c := t.ending(dial, by, o, rule, what)
	t.check(c.Refused != nil, "B.3", "%s: no refusal was told, but: %v", what, c)
	t.check(c.Refused.Status == status, rule, "%s: refused with %d (%s), want %d", what, c.Refused.Status, c.Refused.Message(),
		status)
	if c.Opened {
		t.check(c.Code == 4000+status, "B.3", "%s: closed with %d, want %d", what, c.Code, 4000+status)
	}
	t.check(len(c.Refused.Detail) > 0 && string(c.Refused.Detail) != "null", "B.3", "%s: the refusal has no detail", what)
	return c.Refused
}

// ending opens a stream that must not be admitted and returns how it ended.
func (t *trial) ending(dial dialer, by *agent, o roomclient.Open, rule, what string) *roomclient.Closed {
	s, err := dial(t.ctx, &by.Config, o)
	if err == nil {
		defer s.Drop()
		_, err = s.AwaitState(t.ctx)
	}
	if err == nil {
		t.opened = append(t.opened, openedID{by, o.ConnectionID})
		t.fail(rule, "%s: was admitted", what)
	}
	var c *roomclient.Closed
	if !errors.As(err, &c) {
		t.broken(what, err)
	}
	if c.Refused == nil && c.Code == 0 {
		var status *roomclient.StatusError
		if errors.As(err, &status) { // a client cannot read it there
			t.fail("B.3", "%s: refused by failing the upgrade, with %d", what, status.Status)
		}
		t.broken(what, err)
	}
	return c
}

// frame is the next frame, which must have the name.
func (s *stream) frame(rule, name string, into any) roomclient.Frame {
	f, err := s.Next(s.t.ctx)
	s.expect(f, err, rule, name, into)
	return f
}

// expect judges what Next has returned.
func (s *stream) expect(f roomclient.Frame, err error, rule, name string, into any) {
	var closed *roomclient.Closed
	switch {
	case errors.As(err, &closed):
		s.t.fail(rule, "instead of %s the stream ended: %v", name, err)
	case err != nil:
		s.t.fail(rule, "%s did not come in time", name)
	case f.Event != name:
		s.t.fail(rule, "got %s %s, want %s", f.Event, short(f.Data), name)
	}
	if into != nil {
		if err := json.Unmarshal(f.Data, into); err != nil {
			s.t.fail("D.1", "%s: %v in %s", name, err, short(f.Data))
		}
	}
}

// event is what is read of a message.
type event struct {
	Type     string `json:"type"`
	RoomID   string `json:"room_id"`
	Sequence int64  `json:"sequence"`
	Payload  struct {
		Addressed *bool  `json:"addressed"`
		Body      string `json:"body"`
		Sender    string `json:"sender_name"`
		MessageID string `json:"message_id"`
		Timestamp int64  `json:"timestamp"`
	} `json:"payload"`
}

// message is the next frame, which must be a message with the body. It counts as processed then.
func (s *stream) message(rule, body string) event {
	e, id := s.unread(rule, body)
	s.Processed(id)
	return e
}

// unread is message without processing it.
func (s *stream) unread(rule, body string) (event, int64) {
	var e event
	f := s.frame(rule, roomclient.FrameMessage, &e)
	s.t.check(e.Payload.Body == body, rule, "got the message %q, want %q", e.Payload.Body, body)
	s.t.check(f.ID == e.Sequence && f.ID > 0, "D.1", "id %d of a message is not its sequence %d", f.ID, e.Sequence)
	s.t.check(e.Type == roomclient.FrameMessage && e.Payload.Addressed != nil, "D.6", "a message lacks type or addressed")
	return e, f.ID
}

// messages are the next frames, which must be these.
func (s *stream) messages(rule string, bodies ...string) (last event) {
	for _, body := range bodies {
		last = s.message(rule, body)
	}
	return last
}

// changed is the next frame, which must be a subscription_changed with the rooms.
func (s *stream) changed(rule string, rooms ...string) {
	var c roomclient.Changed
	s.frame(rule, roomclient.FrameChanged, &c)
	s.t.check(same(c.Rooms, rooms), rule, "subscription_changed tells the rooms %v, want %v", c.Rooms, rooms)
}

// quiet checks that nothing has come.
func (s *stream) quiet(rule, when string) {
	ctx, cancel := context.WithCancel(s.t.ctx)
	cancel()
	f, err := s.Next(ctx)
	var closed *roomclient.Closed
	switch {
	case err == nil:
		s.t.fail(rule, "%s: got %s %s, want nothing", when, f.Event, short(f.Data))
	case errors.As(err, &closed):
		s.t.fail(rule, "%s: the stream ended: %v", when, err)
	}
}

// evicted is the end of the stream, with the code, which must be all that still comes. Over SSE a beat may be the first to
// meet the end: then nil is returned.
func (s *stream) evicted(rule, code string) *roomclient.Evicted {
	f, err := s.Next(s.t.ctx)
	var closed *roomclient.Closed
	if errors.As(err, &closed) && closed.Beat != nil && closed.Beat.Code() == code {
		return nil
	}
	var e roomclient.Evicted
	s.expect(f, err, rule, roomclient.FrameEvicted, &e)
	s.t.check(e.Code == code, "C.7", "evicted with the code %q, want %q", e.Code, code)
	f, err = s.Next(s.t.ctx)
	if !errors.As(err, &closed) {
		s.t.fail("D.3", "evicted was not the last frame: %s came, %v", f.Event, err)
	}
	if s.Transport == roomclient.WebSocket {
		s.t.check(closed.Code == 1000, "C.7", "after evicted the socket was closed with %d, want 1000", closed.Code)
	}
	return &e
}

// lapse stops the signs of life and waits for what must follow (C.3).
func (s *stream) lapse() {
	t := s.t
	for before := s.Beats(); s.Beats() == before; { // just after a beat, so that its time is known
		t.pass(50 * time.Millisecond)
		select {
		case <-s.Done():
			t.fail("C.3", "the stream ended while it was answered: %v", s.closedBy())
		default:
		}
	}
	s.Silence(true)
	began := t.opts.Clock.Now()
	for done := false; !done; {
		select {
		case <-s.Done():
			done = true
		default:
			t.check(t.opts.Clock.Now().Sub(began) <= lapseMost, "C.3", "no beat for %v, and not evicted", lapseMost)
			t.pass(250 * time.Millisecond)
		}
	}
	took := t.opts.Clock.Now().Sub(began)
	e := s.evicted("C.3", "heartbeat_lapsed")
	t.check(took >= lapseLeast, "C.3", "evicted %v after the last beat, want 6 to 8 s", took.Round(time.Millisecond))
	t.check(e == nil || strings.HasPrefix(e.Reason, "heartbeat lapsed"), "D.3",
		"the reason of a lapse is %q and does not start with \"heartbeat lapsed\"", reasonOf(e))
}

func reasonOf(e *roomclient.Evicted) string {
	if e == nil {
		return ""
	}
	return e.Reason
}

func (s *stream) closedBy() error {
	for {
		if _, err := s.Next(s.t.ctx); err != nil {
			return err
		}
	}
}

// set gives a parameter a value that the fields of an Open cannot say.
func set(o *roomclient.Open, name string, value int) {
	if o.Extra == nil {
		o.Extra = map[string][]string{}
	}
	o.Extra.Set(name, fmt.Sprint(value))
}
