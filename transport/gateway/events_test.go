package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/room"
	"signalbox/appliance/room/directory"
	"signalbox/appliance/room/timeline"
	"signalbox/appliance/secret"
	"signalbox/transport/gateway"
)

// sse is one event as a browser sees it; a comment has name ":".
type sse struct{ name, id, data string }

func (e sse) message(t *testing.T) chatMessage {
	t.Helper()
	var m chatMessage
	if err := json.Unmarshal([]byte(e.data), &m); err != nil || e.name != "message" {
		t.Fatalf("event %+v is no message: %v", e, err)
	}
	return m
}

// listener is an open stream.
type listener struct {
	r      *rig
	events chan sse // closed at the end of the stream
	stop   context.CancelFunc
}

func (r *rig) listen(p room.Person, after string, change ...func(*http.Request)) *listener {
	r.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	req := r.newRequest("GET", "/chats/events?after="+after, nil, append(change, with(r.cookie(p)))...)
	res, err := http.DefaultClient.Do(req.WithContext(ctx))
	r.ok("listen", err)
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
		r.t.Fatalf("listen: %d %v", res.StatusCode, res.Header)
	}
	l := &listener{r: r, events: make(chan sse, 1000), stop: stop}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(l.events)
		defer res.Body.Close()
		in := bufio.NewScanner(res.Body)
		in.Buffer(nil, 1<<20)
		var e sse
		for in.Scan() {
			field, value, _ := strings.Cut(in.Text(), ": ")
			switch field {
			case "event":
				e.name = value
			case "id":
				e.id = value
			case "data":
				e.data = value
			case "":
				if in.Text() == "" {
					l.events <- e
					e = sse{}
				} else {
					e.name, e.data = ":", value
				}
			}
		}
	}()
	r.t.Cleanup(func() { stop(); <-done })
	return l
}

// next returns the next event.
func (l *listener) next() sse {
	l.r.t.Helper()
	select {
	case e, open := <-l.events:
		if !open {
			l.r.t.Fatal("the stream ended")
		}
		return e
	case <-time.After(2 * time.Minute):
		l.r.t.Fatal("no event came")
	}
	return sse{}
}

// until returns the events before the one of the name, which it takes too.
func (l *listener) until(name string) (before []sse) {
	l.r.t.Helper()
	for {
		e := l.next()
		if e.name == name {
			return before
		}
		before = append(before, e)
	}
}

func (l *listener) wants(name string) sse {
	l.r.t.Helper()
	e := l.next()
	if e.name != name {
		l.r.t.Fatalf("event %+v, want %s", e, name)
	}
	return e
}

// ends fails the test unless the stream ends, with no further event.
func (l *listener) ends() {
	l.r.t.Helper()
	select {
	case e, open := <-l.events:
		if open {
			l.r.t.Errorf("after the end of the session: %+v", e)
		}
	case <-time.After(2 * time.Minute):
		l.r.t.Error("the stream goes on")
	}
}

func at(id uuid.UUID, seq int64) string { return fmt.Sprintf("%s:%d", id, seq) }

func TestEventsOfARoom(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.chat(r.ann, "one", r.fox)
	r.say(r.ann, id, "1", "before")
	l := r.listen(r.ann, "")
	var c chatShape
	r.ok("chat", json.Unmarshal([]byte(l.wants("chat").data), &c))
	if c.RoomID != id || c.HeadSeq != 1 || c.LastMessage.Body != "before" {
		t.Errorf("%+v", c)
	}
	l.wants("ready")
	r.say(r.ann, id, "2", "mine")
	r.reports(r.fox, id, "the fox's")
	e := l.next()
	if m := e.message(t); m.Body != "mine" || m.Seq != 2 || *m.ClientTxn != "2" || e.id != at(id, 2) {
		t.Errorf("%+v", e)
	}
	if m := l.next().message(t); m.Body != "the fox's" || m.Sender.AgentID != r.fox.ID.String() {
		t.Errorf("%+v", m)
	}
	// A room that is new to the person.
	other := r.chat(r.ann, "two", r.owl)
	if e := l.wants("chat"); !strings.Contains(e.data, other.String()) {
		t.Errorf("%+v", e)
	}
	r.reports(r.owl, other, "hoot")
	if m := l.next().message(t); m.RoomID != other || m.Seq != 1 {
		t.Errorf("%+v", m)
	}
	// A room that changes.
	r.as(r.ann, "PATCH", "/rooms/"+id.String(), `{"name":"renamed"}`).wants(200)
	if e := l.wants("chat"); !strings.Contains(e.data, `"name":"renamed"`) {
		t.Errorf("%+v", e)
	}
	r.as(r.ann, "POST", "/rooms/"+id.String()+"/archive", nil).wants(200)
	if e := l.wants("chat"); !strings.Contains(e.data, `"archived":true`) {
		t.Errorf("%+v", e)
	}
	r.as(r.ann, "DELETE", "/rooms/"+id.String(), nil).wants(200)
	if e := l.wants("chat.removed"); e.data != `{"roomId":"`+id.String()+`"}` {
		t.Errorf("%+v", e)
	}
	r.ok("leave", r.dir.RemovePerson(t.Context(), r.ann.Actor(), other, r.ann.ID))
	if e := l.wants("chat.removed"); !strings.Contains(e.data, other.String()) {
		t.Errorf("%+v", e)
	}
}

// The hint that the rooms of the person changed comes before the one of the room: the room is looked at even when the first
// was already dealt with as the second comes.
func TestChangeOfARoomInTwoHints(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.chat(r.ann, "one", r.fox)
	l := r.listen(r.ann, at(id, 0))
	l.wants("ready")
	name := "renamed"
	_, err := r.silent.Update(t.Context(), r.ann.Actor(), id, directory.RoomChange{Name: &name})
	r.ok("rename", err)
	r.chat(r.ann, "two", r.owl) // the first hint
	l.wants("chat")
	rooms, err := r.dir.RoomsOfPerson(t.Context(), r.ann.No, true)
	r.ok("rooms", err)
	for _, in := range rooms {
		if in.ID == id {
			r.hub.Wake(timeline.RoomKey{RoomNo: in.No})
		}
	}
	if e := l.wants("chat"); !strings.Contains(e.data, `"name":"renamed"`) {
		t.Errorf("%+v", e)
	}
}

// What is said while nobody listens, and while a listener comes back, is told exactly once and in order.
func TestEventsResumeWithoutLoss(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *gateway.Options) { o.StreamsEach = 100 }) // the server notices the end of each by and by
	id, quiet := r.chat(r.ann, "one", r.fox), r.chat(r.ann, "two", r.owl)
	const count = 300
	said := make(chan error, 1)
	go func() {
		for i := range count {
			_, err := r.log.Post(context.Background(), timeline.Draft{Actor: r.fox.Actor(), RoomID: id, Body: fmt.Sprint(i + 1)})
			if err != nil {
				said <- err
				return
			}
		}
		said <- nil
	}()
	seq := int64(0)
	for tries := 0; seq < count; tries++ {
		// The browser that comes back by itself repeats its first query and states the last message it saw.
		last := func(*http.Request) {}
		after := at(quiet, 0) + "," + at(id, seq)
		if tries%2 == 1 && seq > 0 {
			last, after = header("Last-Event-ID", at(id, seq)), at(quiet, 0)+","+at(id, 0)
		}
		l := r.listen(r.ann, after, last)
		ready := false
		for n := 0; n < 40 && seq < count; n++ {
			e := l.next()
			if e.name == "ready" {
				ready = true
				continue
			}
			m := e.message(t)
			if m.Seq != seq+1 || m.Body != fmt.Sprint(seq+1) {
				t.Fatalf("after %d came %d (%s), ready %v", seq, m.Seq, m.Body, ready)
			}
			seq = m.Seq
		}
		l.stop()
		for range l.events { // what was under way is lost with the connection; it comes again
		}
	}
	r.ok("posts", <-said)
	l := r.listen(r.ann, at(quiet, 0)+","+at(id, count))
	l.wants("ready")
	r.say(r.ann, quiet, "x", "end")
	if m := l.next().message(t); m.RoomID != quiet || m.Seq != 1 {
		t.Errorf("%+v", m)
	}
}

// A client that knows more than there is, or of rooms that the person is not in, is told how things are.
func TestEventsOfUnknownPositions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.chat(r.ann, "one", r.fox)
	r.say(r.ann, id, "1", "one")
	bobs := r.chat(r.bob, "one", r.owl)
	gone := uuid.New()
	l := r.listen(r.ann, strings.Join([]string{at(id, 99), at(bobs, 0), at(gone, 5)}, ","))
	before := l.until("ready")
	told := fmt.Sprint(before)
	if len(before) != 3 || before[0].name != "chat" || !strings.Contains(before[0].data, `"headSeq":1`) ||
		!strings.Contains(told, `chat.removed  {"roomId":"`+bobs.String()) || !strings.Contains(told, `chat.removed  {"roomId":"`+gone.String()) {
		t.Errorf("%+v", before)
	}
	r.say(r.bob, bobs, "1", "secret")
	r.say(r.ann, id, "2", "two")
	if m := l.next().message(t); m.RoomID != id || m.Seq != 2 {
		t.Errorf("%+v", m)
	}
}

func TestEventsRefuseBadPositions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, bad := range []string{"x", uuid.NewString(), uuid.NewString() + ":", uuid.NewString() + ":-1", uuid.NewString() + ":x", "x:1",
		uuid.NewString() + ":9007199254740992", strings.Repeat("x", 70000)} {
		r.as(r.ann, "GET", "/chats/events?after="+bad, nil).wants(400, "after: ")
	}
}

func TestPingsAndTheEndOfASession(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.listen(r.ann, "")
	l.wants("ready")
	for range 3 {
		r.clk.BlockUntil(1)
		r.clk.Advance(20 * time.Second)
		l.wants(":")
	}
	r.ok("password", r.people.SetPassword(t.Context(), r.ann.Actor(), r.ann.ID, secret.NewText("another password")))
	r.clk.BlockUntil(1)
	r.clk.Advance(20 * time.Second)
	l.ends()
}

func TestStreamsOfOnePersonAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.listen(r.ann, "")
	a.wants("ready")
	r.listen(r.ann, "").wants("ready")
	r.as(r.ann, "GET", "/chats/events", nil).wants(429, "too many event streams")
	r.listen(r.bob, "").wants("ready")
	watching := r.hub.Watchers(timeline.PersonKey{PersonNo: r.ann.No})
	if watching != 2 {
		t.Errorf("%d watchers", watching)
	}
	a.stop()
	for range a.events {
	}
	// The server notices the end by itself; when it has, there is room for another.
	for {
		req := r.newRequest("GET", "/chats/events", nil, with(r.cookie(r.ann)))
		ctx, cancel := context.WithCancel(t.Context())
		res, err := http.DefaultClient.Do(req.WithContext(ctx))
		r.ok("listen", err)
		cancel()
		_ = res.Body.Close()
		if res.StatusCode == 200 {
			return
		}
	}
}
