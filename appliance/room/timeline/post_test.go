package timeline_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/feed"
	"signalbox/appliance/room/timeline"
	"signalbox/store"
	"signalbox/store/storetest"
)

// M 5, M 28, N.2: one item, one event for every other member agent, decided for each.
func TestAPostReachesEveryOtherMember(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{})
	alice := r.person("alice")
	a, b, outside := r.agent("agent", alice), r.agent("build-bot", alice), r.agent("outside", alice)
	in := r.room(room.ChannelPublic, alice, a, b)
	r.presence.live = map[int64]room.Status{a.No: room.StatusLive}
	watch := r.hub.Watch(timeline.RoomKey{RoomNo: in.No})
	defer watch.Stop()
	reader := r.feed.NewReader(a.No, func() {})
	defer reader.Close()
	if _, err := reader.Open(ctx, feed.Start{Head: true}); err != nil {
		t.Fatal(err)
	}

	p := r.say(in, alice, "@agent hi")
	if p.Item.Position != 1 || p.Item.SenderName != "alice" || p.Item.SenderID != alice.ID.String() || p.Item.At != begin ||
		len(p.Answers) != 0 || p.Repeated || len(p.Statuses) != 1 || p.Statuses[a.No] != room.StatusLive {
		t.Errorf("posted %+v", p)
	}
	select {
	case <-watch.C():
	default:
		t.Error("watchers of the room were not woken")
	}
	if got := r.events(a); len(got) != 1 || got[0].sequence != 1 || !got[0].flag || got[0].kind != room.EventMessage {
		t.Errorf("agent: %+v", got)
	}
	if got := r.events(b); len(got) != 1 || got[0].flag {
		t.Errorf("build-bot: %+v", got)
	}
	page, err := reader.Next(ctx, 0, 10)
	if err != nil || len(page.Events) != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
	var data struct {
		Payload struct {
			Addressed          bool
			Sender, Body       string
			SenderName         string `json:"sender_name"`
			MessageID          string `json:"message_id"`
			Timestamp          int64
			ThreadID, OnBehalf *string
		}
	}
	if err := json.Unmarshal(page.Events[0].AppendData(nil, nil), &data); err != nil {
		t.Fatal(err)
	}
	if d := data.Payload; !d.Addressed || d.Sender != alice.ID.String() || d.SenderName != "alice" || d.Body != "@agent hi" ||
		d.MessageID != p.Item.ID.String() || d.Timestamp != begin.UnixMilli() {
		t.Errorf("on the wire %+v", d)
	}

	own := r.post(timeline.Draft{Actor: a, RoomID: in.ID, Body: "@build-bot @agent done"})
	if got := r.events(a); len(got) != 1 {
		t.Errorf("its own post is echoed: %+v", got)
	}
	if got := r.events(b); len(got) != 2 || !got[1].flag || got[1].sequence != 2 {
		t.Errorf("build-bot: %+v", got)
	}
	if own.Item.SenderKind != room.KindAgent || own.Item.Position != 2 || !own.Item.At.After(p.Item.At) {
		t.Errorf("own %+v", own.Item)
	}
	if got := r.events(outside); len(got) != 0 {
		t.Errorf("an agent outside got %+v", got)
	}
	if got, err := r.log.Item(ctx, own.Item.ID); err != nil || got.No != own.Item.No || got.Body != own.Item.Body {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestRefusedPostsChangeNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{MaxBody: 100})
	alice, eve := r.person("alice"), r.person("eve")
	a, stranger := r.agent("agent", alice), r.agent("stranger", alice)
	in, other := r.room(room.ChannelPublic, alice, a), r.room(room.ChannelPublic, alice)
	archived, deleted := r.room(room.ChannelPublic, alice, a), r.room(room.ChannelPublic, alice, a)
	elsewhere := r.say(other, alice, "elsewhere").Item.ID.String()
	r.exec(`UPDATE rooms SET archived_at = 1 WHERE room_no = ?`, archived.No)
	r.exec(`UPDATE rooms SET deleted_at = 1 WHERE room_no = ?`, deleted.No)
	before := r.counts()
	nowhere := uuid.New()
	for _, c := range []struct {
		name string
		d    timeline.Draft
		code fault.Code
		text string
	}{
		{"empty", timeline.Draft{Actor: alice, RoomID: in.ID}, fault.Invalid, "body: "},
		{"blank", timeline.Draft{Actor: alice, RoomID: in.ID, Body: " \n"}, fault.Invalid, "body: "},
		{"long", timeline.Draft{Actor: alice, RoomID: in.ID, Body: strings.Repeat("x", 101)}, fault.Invalid, "body: "},
		{"not UTF-8", timeline.Draft{Actor: alice, RoomID: in.ID, Body: "\xff"}, fault.Invalid, "body: "},
		{"long request id", timeline.Draft{Actor: alice, RoomID: in.ID, Body: "x", RequestID: strings.Repeat("x", 201)},
			fault.Invalid, "requestId: "},
		{"speaking for another", timeline.Draft{Actor: a, RoomID: in.ID, Body: "x", OnBehalfOf: "alice"}, fault.Invalid,
			"on_behalf_of: "},
		{"many files", timeline.Draft{Actor: a, RoomID: in.ID, Attachments: make([]room.Attachment, 101)}, fault.Invalid,
			"attachments: "},
		{"no such room", timeline.Draft{Actor: alice, RoomID: nowhere, Body: "x"}, fault.NotFound, nowhere.String()},
		{"deleted room", timeline.Draft{Actor: alice, RoomID: deleted.ID, Body: "x"}, fault.NotFound, deleted.ID.String()},
		{"agent outside", timeline.Draft{Actor: stranger, RoomID: in.ID, Body: "x"}, fault.Forbidden, in.ID.String()},
		{"person outside", timeline.Draft{Actor: eve, RoomID: in.ID, Body: "x"}, fault.Forbidden, in.ID.String()},
		{"command from outside", timeline.Draft{Actor: eve, RoomID: in.ID, Body: "!help"}, fault.Forbidden, in.ID.String()},
		{"archived room", timeline.Draft{Actor: a, RoomID: archived.ID, Body: "x"}, fault.Conflict, archived.ID.String()},
		{"command in an archived room", timeline.Draft{Actor: alice, RoomID: archived.ID, Body: "!help"}, fault.Conflict, ""},
		{"thread of no id", timeline.Draft{Actor: a, RoomID: in.ID, Body: "x", ThreadID: "$abc"}, fault.Invalid, "thread_id: "},
		{"unknown thread", timeline.Draft{Actor: a, RoomID: in.ID, Body: "x", ThreadID: nowhere.String()}, fault.Invalid,
			"thread_id: "},
		{"thread of another room", timeline.Draft{Actor: alice, RoomID: in.ID, Body: "x", ThreadID: elsewhere}, fault.Invalid,
			"thread_id: "},
	} {
		_, err := r.log.Post(ctx, c.d)
		if fault.CodeOf(err) != c.code || !strings.Contains(fault.Message(err), c.text) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if got := r.counts(); got != before {
		t.Errorf("rows changed from %v to %v", before, got)
	}
}

func TestThreadsAreFlat(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{})
	alice := r.person("alice")
	a := r.agent("agent", alice)
	in := r.room(room.ChannelPublic, alice, a)
	root := r.say(in, alice, "root").Item
	reply := r.post(timeline.Draft{Actor: a, RoomID: in.ID, Body: "reply", ThreadID: root.ID.String()}).Item
	deep := r.post(timeline.Draft{Actor: alice, RoomID: in.ID, Body: "deeper", ThreadID: strings.ToUpper(reply.ID.String())}).Item
	if root.ThreadNo != 0 || root.ThreadID != uuid.Nil {
		t.Errorf("root %+v", root)
	}
	for _, it := range r.items(in)[1:] {
		if it.ThreadNo != root.No || it.ThreadID != root.ID {
			t.Errorf("%q is in thread %s", it.Body, it.ThreadID)
		}
	}
	if deep.ThreadID != root.ID {
		t.Errorf("told %s", deep.ThreadID)
	}
	if got := r.events(a); len(got) != 2 || got[1].flag { // a reply to its own message addresses nobody
		t.Errorf("%+v", got)
	}
}

func TestRequestsAreRepeated(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{})
	alice, bob := r.person("alice"), r.person("bob")
	a := r.agent("agent", bob)
	r.policy(a, room.OwnerOnly())
	in, other := r.room(room.ChannelPublic, alice, bob, a), r.room(room.ChannelPublic, alice, bob)
	d := timeline.Draft{Actor: alice, RoomID: in.ID, Body: "@agent hi", RequestID: "r1"}
	first := r.post(d)
	r.say(in, bob, "between")
	before := r.counts()

	again := r.post(d)
	if !again.Repeated || again.Item.ID != first.Item.ID || again.Item.At != first.Item.At || len(again.Answers) != 1 ||
		again.Answers[0].ID != first.Answers[0].ID || first.Repeated {
		t.Errorf("again %+v\nfirst %+v", again, first)
	}
	for name, change := range map[string]func(*timeline.Draft){
		"body":    func(d *timeline.Draft) { d.Body = "@agent hi!" },
		"thread":  func(d *timeline.Draft) { d.ThreadID = first.Item.ID.String() },
		"files":   func(d *timeline.Draft) { d.Attachments = []room.Attachment{{Filename: "a"}} },
		"command": func(d *timeline.Draft) { d.Body = "!help" },
	} {
		other := d
		change(&other)
		_, err := r.log.Post(ctx, other)
		if room.RefusedCode(err) != room.CodeRequestReused || fault.CodeOf(err) != fault.Conflict {
			t.Errorf("another %s: %v", name, err)
		}
	}
	if got := r.counts(); got != before {
		t.Errorf("rows changed from %v to %v", before, got)
	}
	d.Actor = bob
	if p := r.post(d); p.Repeated {
		t.Error("request ids of two people met")
	}
	d.Actor, d.RoomID = alice, other.ID
	if p := r.post(d); p.Repeated {
		t.Error("request ids in two rooms met")
	}

	help := timeline.Draft{Actor: alice, RoomID: in.ID, Body: "!help", RequestID: "r2"}
	cmd := r.post(help)
	r.exec(`UPDATE rooms SET archived_at = 1 WHERE room_no = ?`, in.No)
	if p := r.post(help); !p.Repeated || p.Item.ID != cmd.Item.ID || len(p.Answers) != 1 || p.Answers[0].ID != cmd.Answers[0].ID {
		t.Errorf("a command repeated in an archived room: %+v", p)
	}
	r.exec(`DELETE FROM room_people WHERE person_no = ? AND room_no = ?`, alice.No, in.No)
	if _, err := r.log.Post(ctx, help); !fault.Is(err, fault.Forbidden) {
		t.Errorf("repeated from outside: %v", err)
	}
}

// D.8: delivered unaddressed, with one automatic reply as the agent that brings about nothing more.
func TestARefusedSenderIsAnswered(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{})
	olga, alice := r.person("olga"), r.person("alice")
	a, b := r.agent("agent", olga), r.agent("build-bot", alice)
	r.policy(a, room.OwnerOnly())
	r.policy(b, room.OwnerOnly())
	in := r.room(room.ChannelDirect, olga, alice, a, b)

	p := r.say(in, alice, "hi")
	if len(p.Answers) != 1 {
		t.Fatalf("answers %+v", p.Answers)
	}
	answer := p.Answers[0]
	if !answer.Automatic || answer.SenderKind != room.KindAgent || answer.SenderNo != a.No || answer.ThreadID != p.Item.ID ||
		answer.Position != 2 || !strings.Contains(answer.Body, "alice may not direct agent") {
		t.Errorf("answer %+v", answer)
	}
	if got := r.events(a); len(got) != 1 || got[0].flag {
		t.Errorf("agent: %+v", got)
	}
	if got := r.events(b); len(got) != 2 || !got[0].flag || got[1].flag {
		t.Errorf("build-bot: %+v", got)
	}
	if len(p.Statuses) != 1 {
		t.Errorf("statuses %v", p.Statuses)
	}
	if p := r.say(in, olga, "hi"); len(p.Answers) != 1 || p.Answers[0].SenderNo != b.No {
		t.Errorf("olga: %+v", p.Answers)
	}
	// An agent of alice's speaks with its own kind, not as alice.
	if p := r.say(in, b, "hi"); len(p.Answers) != 1 || p.Answers[0].SenderNo != a.No {
		t.Errorf("build-bot: %+v", p.Answers)
	}
	if p := r.say(in, room.Platform(), "maintenance at noon"); len(p.Answers) != 0 || len(p.Statuses) != 0 ||
		p.Item.SenderName != "signalbox" {
		t.Errorf("the platform: %+v", p)
	}
	p = r.post(timeline.Draft{Actor: room.Platform(), RoomID: in.ID, Body: "hi", OnBehalfOf: "alice"})
	if len(p.Answers) != 2 || p.Item.SenderName != "alice" || p.Item.OnBehalfOf != "alice" {
		t.Errorf("the platform for alice: %+v", p)
	}
}

func TestManyRefusalsAreToldTogether(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{})
	alice := r.person("alice")
	in := r.room(room.ChannelDirect, alice)
	for i := range 20 {
		a := r.agent(fmt.Sprintf("a%d", i), room.Actor{})
		r.policy(a, room.OwnerOnly())
		r.add(in, a)
	}
	p := r.say(in, alice, "hi")
	if len(p.Answers) != 16 {
		t.Fatalf("%d answers", len(p.Answers))
	}
	last := p.Answers[15]
	if last.SenderKind != room.KindPlatform || !last.Automatic || !strings.Contains(last.Body, "5 may not be directed by alice") {
		t.Errorf("last %+v", last)
	}
}

// N.2: a failed commit leaves nothing of a post, also not in memory.
func TestAFailedCommitAppliesNothing(t *testing.T) {
	t.Parallel()
	var point storetest.Failpoint
	r := newRig(t, timeline.Options{}, storetest.WithBeforeCommit(&point))
	alice := r.person("alice")
	a := r.agent("agent", room.Actor{})
	r.policy(a, room.OwnerOnly())
	in := r.room(room.ChannelPublic, alice, a)
	r.say(in, alice, "warm")
	before := r.counts()
	watch := r.hub.Watch(timeline.RoomKey{RoomNo: in.No})
	defer watch.Stop()
	boom := errors.New("boom")
	for _, body := range []string{"@agent hi", "!reset @agent"} {
		point.Arm(boom, 1)
		d := timeline.Draft{Actor: alice, RoomID: in.ID, Body: body, RequestID: body}
		if _, err := r.log.Post(ctx, d); !errors.Is(err, boom) {
			t.Fatalf("%s: %v", body, err)
		}
		if got := r.counts(); got != before {
			t.Errorf("%s: rows changed from %v to %v", body, before, got)
		}
		select {
		case <-watch.C():
			t.Errorf("%s: woken without a commit", body)
		default:
		}
	}
	p := r.post(timeline.Draft{Actor: alice, RoomID: in.ID, Body: "@agent hi", RequestID: "@agent hi"})
	if p.Repeated || p.Item.Position != 2 || len(p.Answers) != 1 {
		t.Errorf("afterwards %+v", p)
	}
}

// E.2: whatever is said at once, each agent gets every item of others once, and each room in its order.
func TestConcurrentPostsKeepTheOrderOfTheRoom(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{})
	var agents []room.Actor
	for i := range 4 {
		agents = append(agents, r.agent(fmt.Sprintf("a%d", i), room.Actor{}))
	}
	rooms := []room.Ref{r.room(room.ChannelPublic, agents...), r.room(room.ChannelPublic, agents[:3]...)}
	const each = 25
	var wg sync.WaitGroup
	for i, a := range agents {
		for j, in := range rooms {
			if j == 1 && i == 3 {
				continue
			}
			wg.Go(func() {
				for n := range each {
					if _, err := r.log.Post(ctx, timeline.Draft{Actor: a, RoomID: in.ID, Body: fmt.Sprint(n)}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	for j, in := range rooms {
		items := r.items(in)
		if want := each * (4 - j); len(items) != want {
			t.Fatalf("room %d has %d items, want %d", j, len(items), want)
		}
		next := map[int64]int{}
		for i, it := range items {
			if it.Position != int64(i)+1 || i > 0 && it.At.UnixMilli() <= items[i-1].At.UnixMilli() {
				t.Fatalf("item %d at %d, %s after %s", i, it.Position, it.At, items[max(i-1, 0)].At)
			}
			if it.Body != fmt.Sprint(next[it.SenderNo]) {
				t.Fatalf("agent %d said %s where %d was due", it.SenderNo, it.Body, next[it.SenderNo])
			}
			next[it.SenderNo]++
		}
	}
	for i, a := range agents {
		got := r.eventRooms(a)
		want := 3 * each
		if i < 3 {
			want += 2 * each
		}
		if len(got) != want {
			t.Errorf("agent %d has %d events, want %d", i, len(got), want)
		}
		last := map[int64]int64{}
		for n, e := range got {
			if e.sequence != int64(n)+1 || e.position <= last[e.room] || e.sender == a.No {
				t.Fatalf("agent %d: event %d is %+v after position %d", i, n, e, last[e.room])
			}
			last[e.room] = e.position
		}
	}
}

type roomEvent struct{ sequence, room, position, sender int64 }

func (r *rig) eventRooms(a room.Actor) (out []roomEvent) {
	r.t.Helper()
	err := r.db.View(ctx, func(tx *store.ReadTx) error {
		rows, err := tx.Query(`SELECT e.sequence, e.room_no, i.position, i.sender_no FROM room_events e
			JOIN room_items i ON i.item_no = e.item_no WHERE e.room_agent_no = ? ORDER BY e.sequence`, a.No)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var e roomEvent
			if err := rows.Scan(&e.sequence, &e.room, &e.position, &e.sender); err != nil {
				return err
			}
			out = append(out, e)
		}
		return rows.Err()
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// Answers of something else are none of a request's, even next to it.
func TestARepeatedRequestHasItsOwnAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{})
	alice := r.person("alice")
	in := r.room(room.ChannelPublic, alice)
	d := timeline.Draft{Actor: alice, RoomID: in.ID, Body: "hi", RequestID: "r"}
	r.post(d)
	r.update(func(tx *store.Tx) error {
		cast, err := r.log.Cast(tx, in.No)
		if err != nil {
			return err
		}
		_, err = r.log.Append(tx, cast, timeline.NewItem{Kind: room.ItemMessage, Sender: room.Platform(), Body: "notice", Automatic: true},
			noAudience)
		return err
	})
	if p := r.post(d); !p.Repeated || len(p.Answers) != 0 {
		t.Errorf("%+v", p)
	}
}

// What a connection knows of its agent may be old: the room knows better.
func TestASenderIsCalledAsTheRoomKnowsIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{})
	alice, bob := r.person("alice"), r.person("bob")
	a, b := r.agent("agent", alice), r.agent("build-bot", bob)
	all := room.Selector{All: true}
	r.policy(b, &room.Policy{Rules: []room.Rule{{Rooms: all, RoomGroups: all, OwnerAgents: true}}})
	in := r.room(room.ChannelPublic, a, b)
	r.exec(`UPDATE room_agents SET name = 'renamed', owner_no = ? WHERE room_agent_no = ?`, bob.No, a.No)
	p := r.say(in, a, "@build-bot hi")
	if p.Item.SenderName != "renamed" || len(p.Statuses) != 1 || len(p.Answers) != 0 {
		t.Errorf("%+v", p)
	}
}
