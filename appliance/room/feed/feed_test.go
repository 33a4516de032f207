package feed_test

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/feed"
	"signalbox/store"
)

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestEachMemberIsNumberedByItself(t *testing.T) {
	t.Parallel()
	r := newRig(t, feed.Options{})
	a, b, c := r.agent("a"), r.agent("b"), r.agent("c")
	plaza, attic := r.room("plaza", a, b), r.room("attic", b, c)
	r.post(plaza, 2)
	r.post(attic, 1)
	own := r.item(plaza)
	own.SenderKind, own.SenderNo = room.KindAgent, a
	r.queue(own, feed.Audience{FlagAll: true})
	for agent, want := range map[int64]int64{a: 2, b: 4, c: 1} {
		same(t, "head", r.head(agent), want)
	}
	p := r.next(r.reader(b), 0, 10)
	same(t, "numbers", sequences(p.Events), span(1, 4))
	var rooms []int64
	for _, e := range p.Events {
		rooms = append(rooms, e.Room.No)
	}
	same(t, "rooms", rooms, []int64{plaza, plaza, attic, plaza})
	if p.Events[2].Notifiable() || !p.Events[3].Notifiable() || p.Events[3].Room.ID != r.id(plaza) ||
		p.Events[3].Room.Name != "plaza" {
		t.Errorf("events: %+v", p.Events)
	}
}

func TestAFailedTransactionTakesNoNumber(t *testing.T) {
	t.Parallel()
	r := newRig(t, feed.Options{})
	a := r.agent("a")
	plaza := r.room("plaza", a)
	woken := 0
	rd := r.feed.NewReader(a, func() { woken++ })
	defer rd.Close()
	r.open(rd, feed.Start{Head: true})
	boom := errors.New("boom")
	err := r.db.Update(ctx, "test", func(tx *store.Tx) error {
		it := r.item(plaza)
		if err := storeItem(tx, &it); err != nil {
			return err
		}
		if err := r.feed.Queue(tx, r.casts[plaza], it, feed.Audience{}); err != nil {
			return err
		}
		return boom
	})
	if !errors.Is(err, boom) || woken != 0 || len(r.next(rd, 0, 10).Events) != 0 {
		t.Fatalf("%v, woken %d times", err, woken)
	}
	it := r.item(plaza)
	it.Body = "this one"
	r.queue(it, feed.Audience{})
	p := r.next(rd, 0, 10)
	same(t, "numbers", sequences(p.Events), span(1, 1))
	payload := decode(t, p.Events[0].AppendData(nil, nil))["payload"].(map[string]any)
	if payload["body"] != "this one" || woken != 1 {
		t.Errorf("%v, woken %d times", payload, woken)
	}
}

func TestFlagsAndCommandsAreEachReceiversOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, feed.Options{})
	var agents []int64
	for _, name := range []string{"a", "b", "c", "d"} {
		agents = append(agents, r.agent(name))
	}
	plaza := r.room("plaza", agents[:3]...)
	r.exec(`UPDATE room_members SET listening = 1 WHERE room_agent_no = ?`, agents[1])
	live := make([]*feed.Reader, len(agents))
	for i, a := range agents {
		live[i] = r.reader(a)
		r.open(live[i], feed.Start{Head: true})
	}
	message := r.item(plaza)
	message.Kind, message.SenderKind, message.SenderNo = room.ItemMessage, room.KindAgent, agents[2]
	r.queue(message, feed.Audience{Flagged: map[int64]bool{agents[0]: true, agents[2]: true}})
	join := r.item(plaza)
	join.Kind, join.Body = room.ItemJoin, ""
	r.queue(join, feed.Audience{FlagAll: true})
	command := r.item(plaza)
	command.Kind, command.Body = room.ItemCommand, "!reset @b"
	r.queue(command, feed.Audience{Commands: map[int64]room.Command{agents[1]: {Name: "reset", Args: `the "role"`},
		agents[3]: {Name: "reset"}}})
	only := r.item(plaza)
	r.queue(only, feed.Audience{Only: []int64{agents[0], agents[2], agents[3]}, Flagged: map[int64]bool{agents[2]: true}})
	quiet := r.item(plaza)
	quiet.Kind, quiet.Body = room.ItemJoin, ""
	r.queue(quiet, feed.Audience{Only: []int64{agents[1]}})

	type seen struct {
		Kind       string
		Flag       bool
		Notifiable bool
	}
	want := [][]seen{
		{{"message", true, true}, {"room_join", false, false}, {"message", false, false}},
		{{"message", false, false}, {"room_join", true, true}, {"command", false, false}, {"room_join", true, true}},
		{{"room_join", false, false}, {"message", true, true}},
		nil,
	}
	for i, a := range agents {
		cold := r.reader(a)
		for from, rd := range map[string]*feed.Reader{"tail": live[i], "database": cold} {
			var got []seen
			p := r.next(rd, 0, 10)
			for _, e := range p.Events {
				got = append(got, seen{e.Kind.String(), e.Flag, e.Notifiable()})
				payload := decode(t, e.AppendData(nil, nil))["payload"].(map[string]any)
				if e.Kind == room.EventCommand && (payload["command"] != "reset" || payload["args"] != `the "role"`) {
					t.Errorf("command from the %s: %v", from, payload)
				}
			}
			same(t, "events of "+string(rune('a'+i))+" from the "+from, got, want[i])
		}
	}
}

func TestQueueRefusesWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	r := newRig(t, feed.Options{})
	plaza, attic := r.room("plaza"), r.room("attic")
	for name, change := range map[string]func(*room.Item, *feed.Audience){
		"kind":        func(_ *room.Item, a *feed.Audience) { a.Kind = room.EventJoin },
		"room":        func(it *room.Item, _ *feed.Audience) { it.RoomNo = attic },
		"attachments": func(it *room.Item, _ *feed.Audience) { it.Attachments = []byte(`[{]`) },
		"no list":     func(it *room.Item, _ *feed.Audience) { it.Attachments = []byte(`{}`) },
	} {
		it, a := r.item(plaza), feed.Audience{}
		change(&it, &a)
		err := r.db.Update(ctx, "test", func(tx *store.Tx) error { return r.feed.Queue(tx, r.casts[plaza], it, a) })
		if !fault.Is(err, fault.Internal) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOpen walks the cases of E.5.
func TestOpen(t *testing.T) {
	t.Parallel()
	r := newRig(t, feed.Options{Retained: 5})
	a := r.agent("a")
	plaza, attic := r.room("plaza", a), r.room("attic", a)
	open := func(what string, after int64, want feed.Opening) {
		t.Helper()
		want.Requested, want.Head = after, r.head(a)
		same(t, what, r.open(r.reader(a), feed.Start{After: after}), want)
	}
	open("nothing yet", 0, feed.Opening{})
	open("from a numbering that is lost", 7, feed.Opening{Gaps: []feed.Gap{{From: 7, AllRooms: true, Reset: true}}})
	r.post(plaza, 2) // 1, 2
	r.post(attic, 3) // 3, 4, 5
	open("all there", 0, feed.Opening{})
	open("in the middle", 3, feed.Opening{Cursor: 3})
	open("at the head", 5, feed.Opening{Cursor: 5})
	open("above the head", 6, feed.Opening{Cursor: 5, Gaps: []feed.Gap{{From: 6, ResumedAt: 5, AllRooms: true, Reset: true}}})
	r.post(plaza, 1) // 6 pushes 1 out
	lost := feed.Gap{ResumedAt: 1, Rooms: []uuid.UUID{r.id(plaza)}}
	open("one lost", 0, feed.Opening{Cursor: 1, Gaps: []feed.Gap{lost}})
	open("just behind what is lost", 1, feed.Opening{Cursor: 1})
	r.post(attic, 3) // 9 pushes 2, 3, 4 out
	both := []uuid.UUID{r.id(plaza), r.id(attic)}
	slices.SortFunc(both, func(a, b uuid.UUID) int { return slices.Compare([]byte(a.String()), []byte(b.String())) })
	open("two rooms lost", 0, feed.Opening{Cursor: 4, Gaps: []feed.Gap{{ResumedAt: 4, Rooms: both}}})
	lost = feed.Gap{From: 2, ResumedAt: 4, Rooms: []uuid.UUID{r.id(attic)}}
	open("one room lost more", 2, feed.Opening{Cursor: 4, Gaps: []feed.Gap{lost}})
	head := r.open(r.reader(a), feed.Start{Head: true, After: 1})
	same(t, "head", head, feed.Opening{Requested: 9, Cursor: 9, Head: 9})
	same(t, "the rest", sequences(r.next(r.reader(a), 4, 200).Events), span(5, 9))
}

func TestLeavingCausesNoGap(t *testing.T) {
	t.Parallel()
	r := newRig(t, feed.Options{Retained: 4})
	a := r.agent("a")
	plaza, attic := r.room("plaza", a), r.room("attic", a)
	rd := r.reader(a)
	r.open(rd, feed.Start{Head: true})
	r.post(plaza, 3) // 1-3
	r.post(attic, 2) // 4, 5; 1 is lost
	r.post(plaza, 1) // 6; 2 is lost
	if o := r.open(r.reader(a), feed.Start{}); len(o.Gaps) != 1 {
		t.Fatalf("before leaving: %+v", o)
	}
	r.leave(plaza, a)
	same(t, "open", r.open(r.reader(a), feed.Start{}), feed.Opening{Head: 6})
	p := r.next(rd, 0, 200)
	same(t, "left", sequences(p.Events), []int64{4, 5})
	same(t, "head", p.Head, int64(6))
	// The numbers that are gone do not count against the cap: 4, 5 and two more fit.
	r.post(attic, 2)
	same(t, "four kept", sequences(r.next(r.reader(a), 0, 200).Events), []int64{4, 5, 7, 8})
	r.post(attic, 1)
	o := r.open(r.reader(a), feed.Start{})
	same(t, "fifth", o, feed.Opening{Cursor: 4, Head: 9, Gaps: []feed.Gap{{ResumedAt: 4, Rooms: []uuid.UUID{r.id(attic)}}}})
	same(t, "rest", sequences(r.next(rd, 4, 200).Events), []int64{5, 7, 8, 9})
	// Coming back makes nothing of before appear.
	r.join(plaza, a)
	r.post(plaza, 1)
	same(t, "after coming back", sequences(r.next(rd, 5, 200).Events), span(7, 10))
	r.leave(plaza, a)
	r.leave(attic, a)
	same(t, "nothing left", r.open(r.reader(a), feed.Start{}), feed.Opening{Head: 10})
	r.join(attic, a)
	r.post(attic, 1)
	same(t, "numbers go on", sequences(r.next(rd, 0, 200).Events), []int64{11})
}

func TestDeletingARoomAndAnAgent(t *testing.T) {
	t.Parallel()
	r := newRig(t, feed.Options{})
	a, b := r.agent("a"), r.agent("b")
	plaza, attic := r.room("plaza", a, b), r.room("attic", b)
	r.post(plaza, 2)
	r.post(attic, 1)
	r.post(plaza, 1)
	woken := make(chan struct{}, 9)
	rd := r.feed.NewReader(b, func() { woken <- struct{}{} })
	defer rd.Close()
	r.open(rd, feed.Start{})
	r.update(func(tx *store.Tx) error {
		if err := r.feed.ForgetRoom(tx, plaza); err != nil {
			return err
		}
		_, err := tx.Exec(`DELETE FROM room_members WHERE room_no = ?`, plaza)
		return err
	})
	<-woken
	p := r.next(rd, 0, 9)
	same(t, "left of b", sequences(p.Events), []int64{3})
	same(t, "heads", []int64{p.Head, r.head(a)}, []int64{4, 3})
	r.update(func(tx *store.Tx) error {
		if err := r.feed.ForgetAgent(tx, b); err != nil {
			return err
		}
		_, err := tx.Exec(`DELETE FROM room_members WHERE room_agent_no = ?`, b)
		if err == nil {
			_, err = tx.Exec(`DELETE FROM room_agents WHERE room_agent_no = ?`, b)
		}
		return err
	})
	if _, err := rd.Next(ctx, 3, 9); !fault.Is(err, fault.NotFound) {
		t.Errorf("reading for an agent that is gone: %v", err)
	}
	if _, err := rd.Open(ctx, feed.Start{}); !fault.Is(err, fault.NotFound) {
		t.Errorf("opening for an agent that is gone: %v", err)
	}
}

func TestAge(t *testing.T) {
	t.Parallel()
	r := newRig(t, feed.Options{Age: time.Minute})
	a := r.agent("a")
	plaza, attic := r.room("plaza", a), r.room("attic", a)
	rd := r.reader(a)
	r.open(rd, feed.Start{})
	r.post(plaza, 2)
	r.clock.Advance(time.Minute)
	r.post(attic, 1)
	same(t, "on the dot", sequences(r.next(rd, 0, 9).Events), span(1, 3))
	r.clock.Advance(time.Microsecond)
	gap := feed.Gap{ResumedAt: 2, Rooms: []uuid.UUID{r.id(plaza)}}
	check := func(when string) {
		t.Helper()
		for _, one := range []*feed.Reader{rd, r.reader(a)} {
			p := r.next(one, 0, 9)
			same(t, when+", gap", p.Gap, &gap)
			same(t, when+", events", sequences(p.Events), []int64{3})
		}
		o := r.open(r.reader(a), feed.Start{})
		same(t, when, o, feed.Opening{Cursor: 2, Head: 3, Gaps: []feed.Gap{gap}})
		through, err := r.feed.DroppedThrough(ctx, a, plaza)
		same(t, when+", dropped", []any{through, err}, []any{int64(2), nil})
		same(t, when+", head", r.head(a), int64(3))
	}
	check("before the sweep")
	n, err := r.feed.Sweep(ctx)
	same(t, "sweep", []any{n, err}, []any{2, nil})
	check("after the sweep")
	r.clock.Advance(time.Minute)
	n, err = r.feed.Sweep(ctx)
	same(t, "second sweep", []any{n, err}, []any{1, nil})
	same(t, "the head stays", r.head(a), int64(3))
	r.post(attic, 1)
	p := r.next(rd, 3, 9)
	same(t, "numbers go on", sequences(p.Events), []int64{4})
}

// TestAClockThatGoesBackKeepsEventsLonger has an event that is past its age behind one that is not (N.4).
func TestAClockThatGoesBackKeepsEventsLonger(t *testing.T) {
	t.Parallel()
	r := newRig(t, feed.Options{Age: time.Minute})
	a := r.agent("a")
	plaza := r.room("plaza", a)
	r.post(plaza, 3)
	r.exec(`UPDATE room_events SET queued_at = queued_at + 30000000 WHERE sequence = 2`)
	r.clock.Advance(70 * time.Second)
	p := r.next(r.reader(a), 0, 9)
	same(t, "before the sweep", []any{p.Gap.ResumedAt, sequences(p.Events)}, []any{int64(1), span(2, 3)})
	n, err := r.feed.Sweep(ctx)
	same(t, "sweep", []any{n, err}, []any{1, nil})
	r.clock.Advance(30 * time.Second)
	p = r.next(r.reader(a), 1, 9)
	same(t, "later", []any{p.Gap.ResumedAt, len(p.Events), p.Head}, []any{int64(3), 0, int64(3)})
}

// TestAStreamThatWaitsMissesNothing is the hold of E.4 as the feed sees it: a reader at the head that reads much later.
func TestAStreamThatWaitsMissesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, feed.Options{})
	a := r.agent("a")
	plaza := r.room("plaza", a)
	r.post(plaza, 3)
	woken := 0
	rd := r.feed.NewReader(a, func() { woken++ })
	o := r.open(rd, feed.Start{Head: true})
	r.post(plaza, 400) // more than its tail holds
	p := r.next(rd, o.Cursor, 200)
	same(t, "first page", []any{sequences(p.Events), p.Gap, woken}, []any{span(4, 203), (*feed.Gap)(nil), 400})
	p = r.next(rd, 203, 500)
	same(t, "second page", sequences(p.Events), span(204, 403))
	rd.Close()
	rd.Close()
	r.post(plaza, 1)
	same(t, "woken after Close", woken, 400)
}

// TestAgeStandsStillWhileTheServerIsDown is vector M.18 without sockets (L.25).
func TestAgeStandsStillWhileTheServerIsDown(t *testing.T) {
	t.Parallel()
	r := newRig(t, feed.Options{})
	a := r.agent("a")
	plaza := r.room("plaza", a)
	r.post(plaza, 3)
	r.restart(20 * time.Minute)
	same(t, "after 20 minutes down", r.open(r.reader(a), feed.Start{After: 1}), feed.Opening{Requested: 1, Cursor: 1, Head: 3})
	r.clock.Advance(feed.DefaultAge)
	if n, err := r.feed.Sweep(ctx); n != 0 || err != nil {
		t.Errorf("sweep: %d, %v", n, err)
	}
	same(t, "an age later", sequences(r.next(r.reader(a), 1, 9).Events), span(2, 3))
	r.clock.Advance(time.Second)
	if p := r.next(r.reader(a), 1, 9); p.Gap == nil || p.Gap.ResumedAt != 3 || len(p.Events) != 0 {
		t.Errorf("past the age: %+v", p)
	}
}

// TestSweepLeavesOthersAlone has more agents than one slice takes, and looks at the time of the next sweep.
func TestSweepLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, feed.Options{Age: time.Minute})
	var agents []int64
	r.update(func(tx *store.Tx) error {
		for i := range 300 {
			no, err := insertAgent(tx, "agent-"+uuid.NewString())
			if err != nil {
				return err
			}
			if i%3 > 0 {
				agents = append(agents, no)
			}
		}
		return nil
	})
	plaza := r.room("plaza", agents...)
	r.post(plaza, 3)
	r.clock.Advance(40 * time.Second)
	r.post(plaza, 1)
	r.clock.Advance(21 * time.Second)
	n, err := r.feed.Sweep(ctx)
	same(t, "sweep", []any{n, err}, []any{600, nil})
	r.clock.Advance(38 * time.Second)
	n, err = r.feed.Sweep(ctx)
	same(t, "too early", []any{n, err}, []any{0, nil})
	r.clock.Advance(2 * time.Second)
	n, err = r.feed.Sweep(ctx)
	same(t, "in time", []any{n, err}, []any{200, nil})
	same(t, "head", r.head(agents[199]), int64(4))
}

// TestTheCap is vector M.20 with small numbers: what is stored above the cap is never seen.
func TestTheCap(t *testing.T) {
	t.Parallel()
	r := newRig(t, feed.Options{Retained: 20})
	a := r.agent("a")
	plaza := r.room("plaza", a)
	most := int64(0)
	for n := int64(1); n <= 120; n++ {
		r.post(plaza, 1)
		o := r.open(r.reader(a), feed.Start{})
		want := max(n-20, 0)
		p := r.next(r.reader(a), o.Cursor, 200)
		if o.Cursor != want || (want > 0) != (len(o.Gaps) == 1) || p.Gap != nil {
			t.Fatalf("at %d: %+v, %+v", n, o, p.Gap)
		}
		same(t, "events", sequences(p.Events), span(want+1, n))
		_ = r.db.View(ctx, func(tx *store.ReadTx) error {
			st, err := tx.FeedState(a)
			most = max(most, st.Stored())
			return err
		})
	}
	if most > 20+64 {
		t.Errorf("%d rows were stored", most)
	}
}

func TestCountMissedAndFind(t *testing.T) {
	t.Parallel()
	r := newRig(t, feed.Options{Retained: 5})
	a := r.agent("a")
	plaza, attic := r.room("plaza", a), r.room("attic", a)
	r.post(plaza, 2)
	r.post(attic, 1)
	it := r.queue(r.item(plaza), feed.Audience{FlagAll: true})
	r.post(plaza, 1)
	count := func(what string, base, through, want int64, floor bool) {
		t.Helper()
		n, f, err := r.feed.CountMissed(ctx, a, plaza, base, through)
		same(t, what, []any{n, f, err}, []any{want, floor, nil})
	}
	count("all", 0, 5, 3, false)
	count("through the addressed one", 0, 4, 2, false)
	count("from a baseline", 1, 5, 2, false)
	q, found, err := r.feed.Find(ctx, a, it.No)
	same(t, "find", []any{q, found, err}, []any{feed.Queued{Sequence: 4, Kind: room.EventMessage, Flag: true, At: begin}, true, nil})
	r.post(attic, 4) // 1 to 4 are lost
	if _, found, err = r.feed.Find(ctx, a, it.No); found || err != nil {
		t.Errorf("found what is lost: %v", err)
	}
	through, err := r.feed.DroppedThrough(ctx, a, plaza)
	same(t, "dropped", []any{through, err}, []any{int64(4), nil})
	if _, _, err = r.feed.Find(ctx, 99, it.No); !fault.Is(err, fault.NotFound) {
		t.Errorf("no such agent: %v", err)
	}
}

func TestPagesEndEarlyWhenMessagesAreLarge(t *testing.T) {
	t.Parallel()
	r := newRig(t, feed.Options{})
	a := r.agent("a")
	plaza := r.room("plaza", a)
	for range 6 {
		it := r.item(plaza)
		it.Body = string(make([]byte, 70<<10)) // 420 KB as \u0000
		r.queue(it, feed.Audience{})
	}
	rd, after, pages := r.reader(a), int64(0), 0
	for {
		p := r.next(rd, after, 200)
		if len(p.Events) == 0 {
			break
		}
		same(t, "first of the page", p.Events[0].Sequence, after+1)
		after = p.Events[len(p.Events)-1].Sequence
		pages++
	}
	same(t, "read", []any{after, pages}, []any{int64(6), 3})
}
