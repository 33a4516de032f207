package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/timeline"
	"signalbox/appliance/wake"
	"signalbox/transport"
)

// Timing and size of an event stream (I).
const (
	pingEvery    = 20 * time.Second
	writeTimeout = 30 * time.Second
	eventPage    = 100 // items read at once
	maxAfter     = 64 << 10
)

// streams counts event streams: each holds a goroutine and a place in the hub for every room.
type streams struct {
	mu         sync.Mutex
	all, each  int
	open       int
	openPerson map[int64]int
}

func newStreams(all, each int) *streams {
	return &streams{all: all, each: each, openPerson: map[int64]int{}}
}

// take admits one more stream of the person; done gives its place back.
func (t *streams) take(personNo int64) (done func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open >= t.all || t.openPerson[personNo] >= t.each {
		return nil, &fault.Error{Code: fault.RateLimited, Msg: "too many event streams are open", Retry: pingEvery}
	}
	t.open++
	t.openPerson[personNo]++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.open--
		if t.openPerson[personNo]--; t.openPerson[personNo] == 0 {
			delete(t.openPerson, personNo)
		}
	}, nil
}

// parseAfter reads room:seq,… of the query, and the position that a browser that came back by itself states in
// Last-Event-ID: that of the last message alone, so that the other rooms go on from the query.
func parseAfter(r *http.Request) (map[uuid.UUID]int64, error) {
	text := r.URL.Query().Get("after")
	if len(text) > maxAfter {
		return nil, fault.Field("after", "must have at most %d bytes", maxAfter)
	}
	out := map[uuid.UUID]int64{}
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		id, seq, ok := parsePosition(part)
		if !ok {
			return nil, fault.Field("after", "must be a list of room:seq, a room id and a position in its log")
		}
		out[id] = seq
	}
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		if id, seq, ok := parsePosition(last); ok {
			out[id] = max(out[id], seq)
		}
	}
	return out, nil
}

func parsePosition(text string) (id uuid.UUID, seq int64, ok bool) {
	roomText, seqText, ok := strings.Cut(text, ":")
	if !ok {
		return id, 0, false
	}
	id, err := uuid.Parse(roomText)
	if err != nil {
		return id, 0, false
	}
	seq, err = strconv.ParseInt(seqText, 10, 64)
	return id, seq, err == nil && seq >= 0 && seq < 1<<53
}

// events streams what happens in the rooms of a person to a browser (I): chat for a room that is new to it or changed,
// message, chat.removed, and ready when it has been told everything up to now.
func (s *Server) events(w http.ResponseWriter, r *http.Request, p room.Person) error {
	after, err := parseAfter(r)
	if err != nil {
		return err
	}
	leave, err := s.streams.take(p.No)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := transport.Parked(r.Context())
	defer cancel()
	e := &eventStream{srv: s, who: p, cookie: cookieOf(r), w: w, rc: http.NewResponseController(w), hint: make(chan struct{}, 1),
		rooms: map[int64]*followed{}, dirty: map[int64]bool{}, after: after}
	defer e.close()
	e.person = s.svc.Hub.Notify(timeline.PersonKey{PersonNo: p.No}, e.roomsChanged)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	if err := e.run(ctx); err != nil && ctx.Err() == nil {
		s.logStream(r, err)
	}
	return nil
}

// logStream notes why a stream ended that could have gone on. The browser comes back.
func (s *Server) logStream(r *http.Request, err error) {
	level := zerolog.WarnLevel
	if errors.Is(err, errGone) || fault.Is(err, fault.Unauthenticated) || fault.Is(err, fault.Forbidden) {
		level = zerolog.DebugLevel
	}
	s.opts.Log.WithLevel(level).Err(err).Str("request", transport.RequestID(r.Context())).Msg("an event stream of a person broke off")
}

// errGone is a client that takes no more.
var errGone = errors.New("the client is gone")

// eventStream is one stream. It belongs to the request's goroutine; only the hints come from elsewhere.
type eventStream struct {
	srv    *Server
	who    room.Person
	cookie string
	w      http.ResponseWriter
	rc     *http.ResponseController
	person *wake.Watch
	rooms  map[int64]*followed
	after  map[uuid.UUID]int64 // where the client wants to go on; only for rooms not followed yet
	buf    []byte
	seen   int // changes of the person's rooms that were noticed

	hint    chan struct{}
	mu      sync.Mutex
	dirty   map[int64]bool // rooms whose log or whose looks may have changed
	changed bool           // the rooms of the person may have changed
}

// followed is a room that the stream tells of.
type followed struct {
	id    uuid.UUID
	watch *wake.Watch
	seq   int64  // told up to here
	looks string // the chat as it was told, without its last message
	seen  int    // how many changes of the person's rooms had been noticed when looks was read
}

// close ends the watches.
func (e *eventStream) close() {
	e.person.Stop()
	for _, f := range e.rooms {
		f.watch.Stop()
	}
}

// roomsChanged and roomTouched are called under the hub's lock.
func (e *eventStream) roomsChanged() {
	e.mu.Lock()
	e.changed = true
	e.mu.Unlock()
	e.nudge()
}

func (e *eventStream) roomTouched(roomNo int64) {
	e.mu.Lock()
	e.dirty[roomNo] = true
	e.mu.Unlock()
	e.nudge()
}

func (e *eventStream) nudge() {
	select {
	case e.hint <- struct{}{}:
	default:
	}
}

// take returns what was touched since the last call.
func (e *eventStream) take() (dirty []int64, changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for no := range e.dirty {
		dirty = append(dirty, no)
	}
	clear(e.dirty)
	slices.Sort(dirty)
	changed, e.changed = e.changed, false
	return dirty, changed
}

// run tells everything up to now, then what comes, until the client is gone, its session over, or ctx done.
func (e *eventStream) run(ctx context.Context) error {
	if err := e.pass(ctx, nil, true); err != nil {
		return err
	}
	e.after = nil // rooms that come later begin at their head
	e.event("ready", "", struct{}{})
	if err := e.flush(); err != nil {
		return err
	}
	timer := e.srv.opts.Clock.NewTimer(pingEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-e.hint:
			dirty, changed := e.take()
			if err := e.pass(ctx, dirty, changed); err != nil {
				return err
			}
		case <-timer.C():
			if err := e.ping(ctx, timer); err != nil {
				return err
			}
		}
	}
}

// ping keeps the stream open, and ends it when the cookie is no longer good.
func (e *eventStream) ping(ctx context.Context, timer clock.Timer) error {
	if _, err := e.srv.svc.Identity.AuthenticatePerson(ctx, e.cookie); err != nil {
		return err
	}
	e.buf = append(e.buf, ": ping\n\n"...)
	timer.Reset(pingEvery)
	return e.flush()
}

// pass tells of the touched rooms, and of all of them when the person's rooms may have changed. The two hints of one change
// may come in two passes, the person's first: a room that is touched after a change is looked at even so.
func (e *eventStream) pass(ctx context.Context, dirty []int64, changed bool) error {
	if changed {
		e.seen++
	}
	if changed || slices.ContainsFunc(dirty, e.unseen) {
		if err := e.refresh(ctx, dirty); err != nil {
			return err
		}
	}
	for _, no := range dirty {
		if f := e.rooms[no]; f != nil {
			if err := e.catchUp(ctx, no, f); err != nil {
				return err
			}
		}
	}
	return e.flush()
}

// unseen reports whether the person's rooms changed since the room was looked at.
func (e *eventStream) unseen(no int64) bool {
	f := e.rooms[no]
	return f != nil && f.seen != e.seen
}

// refresh compares the rooms of the person with those that are followed, and looks again at the touched ones.
func (e *eventStream) refresh(ctx context.Context, dirty []int64) error {
	rooms, err := e.srv.svc.Directory.RoomsOfPerson(ctx, e.who.No, true)
	if err != nil {
		return err
	}
	in := make(map[int64]bool, len(rooms))
	for _, r := range rooms {
		in[r.No] = true
		f := e.rooms[r.No]
		switch {
		case f == nil:
			err = e.follow(ctx, r)
		case slices.Contains(dirty, r.No):
			err = e.look(ctx, r, f)
		}
		if err != nil && !fault.Is(err, fault.NotFound) { // deleted in between: the next hint is on its way
			return err
		}
	}
	for no, f := range e.rooms {
		if !in[no] {
			f.watch.Stop()
			delete(e.rooms, no)
			e.removed(f.id)
		}
	}
	for id := range e.after {
		if !slices.ContainsFunc(rooms, func(r room.Room) bool { return r.ID == id }) {
			e.removed(id)
		}
	}
	return e.flush()
}

func (e *eventStream) removed(id uuid.UUID) {
	e.event("chat.removed", "", map[string]uuid.UUID{"roomId": id})
}

// follow begins with a room: from where the client is, or, when it does not know the room or knows more than there is, with
// the room itself and its head.
func (e *eventStream) follow(ctx context.Context, r room.Room) error {
	no := r.No
	f := &followed{id: r.ID, watch: e.srv.svc.Hub.Notify(timeline.RoomKey{RoomNo: no}, func() { e.roomTouched(no) })}
	c, err := e.srv.chatOf(ctx, r, e.who)
	if err != nil {
		f.watch.Stop()
		return err
	}
	e.rooms[no] = f
	f.looks, f.seen = looks(c), e.seen
	seq, known := e.after[r.ID]
	if known && seq <= c.HeadSeq {
		f.seq = seq
		return e.catchUp(ctx, no, f)
	}
	f.seq = c.HeadSeq
	e.event("chat", "", c)
	return e.flush()
}

// look tells of a room again when it looks different.
func (e *eventStream) look(ctx context.Context, r room.Room, f *followed) error {
	c, err := e.srv.chatOf(ctx, r, e.who)
	if err != nil {
		return err
	}
	f.seen = e.seen
	if now := looks(c); now != f.looks {
		f.looks = now
		e.event("chat", "", c)
	}
	return nil
}

// looks is a chat without what is told by messages.
func looks(c chat) string {
	c.HeadSeq, c.LastMessage = 0, nil
	b, _ := json.Marshal(c) // it has nothing that cannot be encoded
	return string(b)
}

// catchUp tells the messages after the ones that were told, page by page.
func (e *eventStream) catchUp(ctx context.Context, no int64, f *followed) error {
	for {
		items, head, err := e.srv.svc.Timeline.Since(ctx, no, f.seq, eventPage)
		if fault.Is(err, fault.NotFound) { // the room is gone, which comes as a change of the person's rooms
			return nil
		}
		if err != nil {
			return err
		}
		for _, it := range items {
			m, err := messageOf(f.id, it, e.who)
			if err != nil {
				return err
			}
			e.event("message", f.id.String()+":"+strconv.FormatInt(it.Position, 10), m)
			f.seq = it.Position
		}
		if err := e.flush(); err != nil {
			return err
		}
		if len(items) == 0 || f.seq >= head {
			return nil
		}
	}
}

// event adds one event to what is written next.
func (e *eventStream) event(name, id string, v any) {
	b, err := transport.EncodeJSON(v)
	if err != nil { // none of ours can fail
		return
	}
	e.buf = append(append(append(e.buf, "event: "...), name...), '\n')
	if id != "" {
		e.buf = append(append(append(e.buf, "id: "...), id...), '\n')
	}
	e.buf = append(append(append(e.buf, "data: "...), b...), "\n\n"...)
}

// flush writes what was added.
func (e *eventStream) flush() error {
	if len(e.buf) == 0 {
		return nil
	}
	_ = e.rc.SetWriteDeadline(time.Now().Add(writeTimeout)) // the kernel's time, whatever the clock is
	_, err := e.w.Write(e.buf)
	if e.buf = e.buf[:0]; cap(e.buf) > 256<<10 {
		e.buf = nil
	}
	if err == nil {
		err = e.rc.Flush()
	}
	if err != nil {
		return errors.Join(errGone, err)
	}
	return nil
}
