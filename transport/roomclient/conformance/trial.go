package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"signalbox/transport/roomclient"
)

// trial is one vector being replayed. Its methods end the vector when the server does not do what the rule says.
type trial struct {
	*runner
	ctx     context.Context
	streams []*stream
	opened  []openedID
	notes   []string
}

// openedID is a connection that may still be open.
type openedID struct {
	by *agent
	id string
}

// verdict is how a vector ended; play recovers it from a panic, which is how it leaves the vector from any depth.
type verdict struct {
	outcome    Outcome
	rule, text string
}

// play runs the vector.
func (t *trial) play(run func(*trial)) (v verdict) {
	defer func() {
		switch e := recover().(type) {
		case nil:
			v = verdict{outcome: Passed, text: strings.Join(t.notes, "; ")}
		case verdict:
			v = e
		default:
			panic(e)
		}
	}()
	run(t)
	return v
}

// fail ends the vector: the rule was broken.
func (t *trial) fail(rule, format string, args ...any) {
	panic(verdict{Failed, rule, fmt.Sprintf(format, args...)})
}

// broken ends the vector: it could not be brought to its end.
func (t *trial) broken(doing string, err error) {
	text := doing + ": " + err.Error()
	if t.ctx.Err() != nil {
		text = "no answer in time: " + text
	}
	panic(verdict{Failed, "", text})
}

// skip ends the vector without a judgement.
func (t *trial) skip(why string) { panic(verdict{outcome: Skipped, text: why}) }

// note tells what a vector that passed has left out.
func (t *trial) note(text string) {
	if !slices.Contains(t.notes, text) {
		t.notes = append(t.notes, text)
	}
}

// check fails the vector unless the condition holds.
func (t *trial) check(ok bool, rule, format string, args ...any) {
	if !ok {
		t.fail(rule, format, args...)
	}
}

// close gives back what the vector holds. A connection that cannot be closed is remembered until it must have lapsed.
func (t *trial) close() {
	for _, s := range t.streams {
		s.Drop()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), 10*time.Second)
	defer cancel()
	for _, o := range t.opened {
		if _, err := o.by.CloseConnection(ctx, o.id, "the conformance runner is done with it"); err != nil {
			t.lapses = t.opts.Clock.Now().Add(lapseMost)
		}
	}
}

// What C.3 says of time, with what a slow network may add.
const (
	pingEvery  = 2 * time.Second
	lapseLeast = 5500 * time.Millisecond
	lapseMost  = 9 * time.Second
)

// pass lets time pass while the open streams stay alive.
func (t *trial) pass(d time.Duration) {
	var err error
	if t.opts.Pass != nil {
		live := make([]*roomclient.Stream, 0, len(t.streams))
		for _, s := range t.streams {
			live = append(live, s.Stream)
		}
		err = t.opts.Pass(t.ctx, d, live)
	} else {
		timer := t.opts.Clock.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C():
		case <-t.ctx.Done():
			err = context.Cause(t.ctx)
		}
	}
	if err != nil {
		t.broken("waiting", err)
	}
}

// room makes a room of a and b.
func (t *trial) room() string { return t.roomOf(t.a, t.b) }

func (t *trial) roomOf(by *agent, others ...*agent) string {
	id, err := t.newRoom(t.ctx, by, others...)
	if err != nil {
		t.broken("make a room", err)
	}
	return id
}

// say posts as b.
func (t *trial) say(roomID string, bodies ...string) {
	for _, body := range bodies {
		t.sayAs(t.b, roomID, body)
	}
}

func (t *trial) sayAs(who *agent, roomID, body string) {
	if err := t.post(who, roomID, body); err != nil {
		t.broken("post", err)
	}
}

func (t *trial) post(who *agent, roomID, body string) error {
	return who.Do(t.ctx, http.MethodPost, "/agents/"+who.id()+"/message", map[string]string{"room_id": roomID,
		"content": body}, nil, nil)
}

// needOpen skips the vector when b may not address a, and says why.
func (t *trial) needOpen() {
	if !t.mayAddress() {
		t.skip(t.policy.why)
	}
}

// mayAddress asks the server whether b may address a (H.3): a may be open to its owner alone (D.8).
func (t *trial) mayAddress() bool {
	if t.policy.asked {
		return t.policy.open
	}
	roomID := t.room()
	s := t.ws(t.b, t.named(""))
	t.op(t.b, s.Open.ConnectionID, "connect_to_room", map[string]string{"room_id": roomID}, nil)
	var out struct {
		Statuses map[string]string `json:"target_statuses"`
	}
	t.op(t.b, s.Open.ConnectionID, "send_targeted_message", map[string]any{"body": "may I?",
		"target_names": []string{t.a.name}}, &out)
	t.policy = policy{asked: true, open: out.Statuses[t.a.name] != "not_permitted", why: "agent is owner-only"}
	return t.policy.open
}

// op calls an operation that must succeed.
func (t *trial) op(by *agent, connectionID, name string, args, result any) {
	if err := by.Op(t.ctx, roomclient.Caller{ConnectionID: connectionID}, name, args, result); err != nil {
		t.answeredInstead("H.1", "operation "+name, err)
	}
}

func (t *trial) answeredInstead(rule, what string, err error) {
	var refused *roomclient.StatusError
	if errors.As(err, &refused) {
		t.fail(rule, "%s: %v", what, err)
	}
	t.broken(what, err)
}

// statusOf is the refusal of a request; it must have the status.
func (t *trial) statusOf(err error, status int, rule, what string) *roomclient.StatusError {
	if err == nil {
		t.fail(rule, "%s: was done, want %d", what, status)
	}
	var refused *roomclient.StatusError
	if !errors.As(err, &refused) {
		t.broken(what, err)
	}
	t.check(refused.Status == status, rule, "%s: %v, want %d", what, refused, status)
	return refused
}

func (t *trial) subscribe(s *stream, roomID string, takeover bool) (roomclient.ClaimAnswer, error) {
	return s.by.Subscribe(t.ctx, roomclient.ClaimRequest{ConnectionID: s.Open.ConnectionID, RoomID: roomID, Takeover: takeover,
		Generation: &s.state.Generation})
}

// claim subscribes, which must succeed.
func (t *trial) claim(s *stream, roomID string, takeover bool) roomclient.ClaimAnswer {
	out, err := t.subscribe(s, roomID, takeover)
	if err != nil {
		t.answeredInstead("F.4", "subscribe", err)
	}
	return out
}

// claims asks what the connection has claimed (C.6).
func (t *trial) claims(s *stream) []string {
	out, err := s.by.Beat(t.ctx, roomclient.BeatRequest{ConnectionID: s.Open.ConnectionID, Cursor: s.Cursor(),
		Generation: &s.state.Generation})
	if err != nil {
		t.answeredInstead("G.2", "beat of a stream that is open", err)
	}
	return out.Rooms
}

// head is the last sequence number of the agent.
func (t *trial) head(by *agent) int64 {
	s := t.ws(by, t.named("", all))
	at := s.state.Cursor
	s.Drop()
	return at
}

// each runs fn n times, some at once. The first error ends it.
func (t *trial) each(n int, fn func(i int) error) error {
	ctx, cancel := context.WithCancelCause(t.ctx)
	defer cancel(nil)
	next := make(chan int)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range next {
				if err := fn(i); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}

// same compares two lists of rooms in any order.
func same(got, want []string) bool {
	got, want = slices.Clone(got), slices.Clone(want)
	slices.Sort(got)
	slices.Sort(want)
	return slices.Equal(got, want)
}

func short(b []byte) string {
	if len(b) > 200 {
		return string(b[:200]) + "…"
	}
	return string(b)
}
