package timeline_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/timeline"
	"signalbox/store"
)

// shape writes threads as root(reply,reply), in order.
func shape(h timeline.History) string {
	var threads []string
	for _, th := range h.Threads {
		s := label(th.Root.Item)
		if th.Root.Elided {
			s = "?"
		}
		var replies []string
		for _, it := range th.Replies {
			replies = append(replies, label(it))
		}
		if len(replies) > 0 {
			s += "(" + strings.Join(replies, ",") + ")"
		}
		threads = append(threads, s)
	}
	return strings.Join(threads, " ")
}

func label(it room.Item) string {
	if it.Kind == room.ItemJoin {
		return "+" + it.SenderName
	}
	return it.Body
}

func (r *rig) history(by room.Actor, q timeline.HistoryQuery) timeline.History {
	r.t.Helper()
	h, err := r.log.History(ctx, by, q)
	if err != nil {
		r.t.Fatal(err)
	}
	return h
}

// H.5, entry by entry.
func TestHistory(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{})
	alice := r.person("alice")
	a, late := r.agent("agent", alice), r.agent("late", alice)
	in := r.room(room.ChannelPublic, alice, a)
	at := map[string]time.Time{}
	ids := map[string]string{}
	say := func(body, thread string) {
		r.clock.Advance(time.Minute)
		p := r.post(timeline.Draft{Actor: alice, RoomID: in.ID, Body: body, ThreadID: ids[thread]})
		at[body], ids[body] = p.Item.At, p.Item.ID.String()
	}
	if h := r.history(a, timeline.HistoryQuery{RoomID: in.ID, Limit: 50}); len(h.Threads) != 0 || h.Truncated || !h.Oldest.IsZero() {
		t.Errorf("of an empty room: %+v", h)
	}
	say("one", "")
	say("two", "")
	say("1a", "one")
	say("!help", "") // with an answer in its thread
	say("three", "")
	say("2a", "two")
	say("1b", "1a")
	r.clock.Advance(time.Minute)
	r.update(func(tx *store.Tx) error {
		if err := addMember(tx, in.No, late); err != nil {
			return err
		}
		return r.log.Joined(tx, in.No, late)
	})

	ptr := func(t time.Time) *time.Time { return &t }
	for _, c := range []struct {
		name      string
		q         timeline.HistoryQuery
		want      string
		truncated bool
		oldest    string
	}{
		{"all", timeline.HistoryQuery{Limit: 50}, "?(HELP) three two(2a) one(1a,1b) +late", false, "one"},
		{"exactly all", timeline.HistoryQuery{Limit: 8}, "?(HELP) three two(2a) one(1a,1b) +late", false, "one"},
		{"all but one, whose root is fetched", timeline.HistoryQuery{Limit: 7}, "?(HELP) three two(2a) one(1a,1b) +late", true, "two"},
		{"three", timeline.HistoryQuery{Limit: 3}, "two(2a) one(1b) +late", true, "2a"},
		{"limit too small", timeline.HistoryQuery{Limit: -1}, "+late", true, ""},
		{"before, not included", timeline.HistoryQuery{Limit: 50, Before: ptr(at["2a"])}, "two one(1a) ?(HELP) three", false, "one"},
		{"before, in between", timeline.HistoryQuery{Limit: 2, Before: ptr(at["2a"].Add(time.Second))}, "three two(2a)", true, "three"},
		{"before everything", timeline.HistoryQuery{Limit: 50, Before: ptr(at["one"])}, "", false, ""},
		{"before the end of time", timeline.HistoryQuery{Limit: 1, Before: ptr(begin.Add(9000 * time.Hour))}, "+late", true, ""},
		{"since, included", timeline.HistoryQuery{Limit: 50, Since: ptr(at["2a"])}, "two(2a) one(1b) +late", false, "2a"},
		{"since, in between", timeline.HistoryQuery{Limit: 50, Since: ptr(at["2a"].Add(1))}, "one(1b) +late", false, "1b"},
		{"since, too many", timeline.HistoryQuery{Limit: 1, Since: ptr(at["2a"])}, "+late", true, ""},
		{"since the future", timeline.HistoryQuery{Limit: 50, Since: ptr(begin.Add(time.Hour))}, "", false, ""},
		{"between", timeline.HistoryQuery{Limit: 50, Since: ptr(at["two"]), Before: ptr(at["three"])}, "two one(1a) ?(HELP)", false, "two"},
		{"nothing between", timeline.HistoryQuery{Limit: 50, Since: ptr(at["three"]), Before: ptr(at["two"])}, "", false, ""},
	} {
		c.q.RoomID = in.ID
		for _, by := range []room.Actor{a, late, alice} { // neither the buffer nor the join limits it
			h := r.history(by, c.q)
			got := shape(h)
			if i := strings.Index(got, "Commands:"); i >= 0 {
				got = got[:i] + "HELP" + got[i+strings.IndexByte(got[i:], ')'):]
			}
			if got != c.want || h.Truncated != c.truncated {
				t.Errorf("%s: %s, truncated %v, want %s", c.name, got, h.Truncated, c.want)
			}
			if c.oldest != "" && h.Oldest != at[c.oldest] {
				t.Errorf("%s: oldest %s, want %s", c.name, h.Oldest, at[c.oldest])
			}
		}
	}
}

func TestHistoryIsForMembers(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{})
	alice, eve, admin := r.person("alice"), r.person("eve"), r.person("admin")
	admin.Admin = true
	stranger := r.agent("stranger", admin)
	stranger.Admin = true
	in := r.room(room.ChannelPublic, alice)
	r.say(in, alice, "hi")
	for _, by := range []room.Actor{eve, stranger} {
		_, err := r.log.History(ctx, by, timeline.HistoryQuery{RoomID: in.ID})
		if !fault.Is(err, fault.Forbidden) || !strings.Contains(fault.Message(err), in.ID.String()) {
			t.Errorf("%s: %v", by.Name, err)
		}
	}
	if h := r.history(admin, timeline.HistoryQuery{RoomID: in.ID}); shape(h) != "hi" {
		t.Errorf("admin: %s", shape(h))
	}
	if _, err := r.log.History(ctx, alice, timeline.HistoryQuery{RoomID: uuid.New()}); !fault.Is(err, fault.NotFound) {
		t.Errorf("no such room: %v", err)
	}
}

// A client pages by whole milliseconds. However fast things were said, it must see each of them once.
func TestPagingByTimeSeesEverythingOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{})
	alice := r.person("alice")
	in := r.room(room.ChannelPublic, alice)
	const n = 61
	for i := range n {
		r.say(in, alice, fmt.Sprint(i)) // at one moment of the clock
	}
	var got []string
	q := timeline.HistoryQuery{RoomID: in.ID, Limit: 7}
	for {
		h := r.history(alice, q)
		for _, th := range slices.Backward(h.Threads) {
			got = append(got, th.Root.Item.Body)
		}
		if !h.Truncated {
			break
		}
		oldest := time.UnixMilli(h.Oldest.UnixMilli()).UTC()
		q.Before = &oldest
	}
	for i, body := range got {
		if body != fmt.Sprint(n-1-i) {
			t.Fatalf("entry %d is %s: %v", i, body, got)
		}
	}
	if len(got) != n {
		t.Fatalf("%d of %d entries", len(got), n)
	}
}

func TestHistoryIsClamped(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{})
	alice := r.person("alice")
	in := r.room(room.ChannelPublic, alice)
	r.update(func(tx *store.Tx) error {
		cast, err := r.log.Cast(tx, in.No)
		for i := 0; err == nil && i < timeline.MaxHistory+1; i++ {
			_, err = r.log.Append(tx, cast, timeline.NewItem{Kind: room.ItemMessage, Sender: alice, Body: fmt.Sprint(i)}, noAudience)
		}
		return err
	})
	h := r.history(alice, timeline.HistoryQuery{RoomID: in.ID, Limit: 9999})
	if len(h.Threads) != timeline.MaxHistory || !h.Truncated || h.Threads[0].Root.Item.Body != "1" {
		t.Errorf("%d threads, %v, from %s", len(h.Threads), h.Truncated, h.Threads[0].Root.Item.Body)
	}
}

// A few hundred of the largest bodies are not in memory for one request: pages end early, and say so.
func TestReadsAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{})
	alice := r.person("alice")
	in := r.room(room.ChannelPublic, alice)
	const size, n = 256 << 10, 40
	r.update(func(tx *store.Tx) error {
		cast, err := r.log.Cast(tx, in.No)
		var roots []room.Item
		for i := 0; err == nil && i < 2*n; i++ {
			item := timeline.NewItem{Kind: room.ItemMessage, Sender: alice, Body: strings.Repeat("x", size)}
			if i >= n { // small answers, each to a large root
				item.Body, item.ThreadNo, item.ThreadID = "small", roots[i-n].No, roots[i-n].ID
			}
			var it room.Item
			it, err = r.log.Append(tx, cast, item, noAudience)
			roots = append(roots, it)
		}
		return err
	})
	most := timeline.MaxReadBytes/size + 1
	h := r.history(alice, timeline.HistoryQuery{RoomID: in.ID, Limit: n})
	whole := 0
	for _, th := range h.Threads {
		if !th.Root.Elided {
			whole++
		}
	}
	if len(h.Threads) != n || whole == 0 || whole > most || !h.Truncated {
		t.Errorf("%d threads, %d with their root, truncated %v", len(h.Threads), whole, h.Truncated)
	}
	seen := 0
	for before, pages := h.Oldest, 0; ; pages++ {
		at := before.Truncate(time.Millisecond)
		h := r.history(alice, timeline.HistoryQuery{RoomID: in.ID, Limit: 500, Before: &at})
		seen += len(h.Threads)
		if len(h.Threads) > most || pages > n {
			t.Fatalf("a page of %d, %d pages", len(h.Threads), pages)
		}
		if before = h.Oldest; !h.Truncated {
			break
		}
	}
	if seen != n {
		t.Errorf("%d of %d entries by pages", seen, n)
	}
	items, more, err := r.log.Before(ctx, in.No, n+1, 200)
	if err != nil || !more || len(items) == 0 || len(items) > most || items[len(items)-1].Position != n {
		t.Errorf("before: %d items, more %v, %v", len(items), more, err)
	}
	items, _, err = r.log.Since(ctx, in.No, 0, 200)
	if err != nil || len(items) == 0 || len(items) > most || items[0].Position != 1 {
		t.Errorf("since: %d items, %v", len(items), err)
	}
}

func TestPagesByPosition(t *testing.T) {
	t.Parallel()
	r := newRig(t, timeline.Options{})
	alice := r.person("alice")
	in, other := r.room(room.ChannelPublic, alice), r.room(room.ChannelPublic, alice)
	for i := range 5 {
		r.say(in, alice, fmt.Sprint(i+1))
		r.say(other, alice, "elsewhere")
	}
	r.say(in, alice, "!help") // 6, with its answer 7
	bodies := func(items []room.Item) string {
		var out []string
		for _, it := range items {
			out = append(out, fmt.Sprint(it.Position))
			if it.RoomNo != in.No {
				t.Errorf("an item of room %d", it.RoomNo)
			}
		}
		return strings.Join(out, " ")
	}
	for _, c := range []struct {
		after int64
		limit int
		want  string
	}{{0, 3, "1 2 3"}, {3, 100, "4 5 6 7"}, {6, 0, "7"}, {7, 10, ""}, {99, 10, ""}, {-5, 2, "1 2"}} {
		items, head, err := r.log.Since(ctx, in.No, c.after, c.limit)
		if err != nil || head != 7 || bodies(items) != c.want {
			t.Errorf("since %d: %s, head %d, %v", c.after, bodies(items), head, err)
		}
	}
	for _, c := range []struct {
		before int64
		limit  int
		want   string
		more   bool
	}{{0, 3, "5 6 7", true}, {5, 2, "3 4", true}, {3, 2, "1 2", false}, {3, 3, "1 2", false}, {1, 3, "", false}, {99, 7, "1 2 3 4 5 6 7", false},
		{3, 0, "2", true}} {
		items, more, err := r.log.Before(ctx, in.No, c.before, c.limit)
		if err != nil || more != c.more || bodies(items) != c.want {
			t.Errorf("before %d: %s, more %v, %v", c.before, bodies(items), more, err)
		}
	}
	if _, _, err := r.log.Since(ctx, 999, 0, 10); !fault.Is(err, fault.NotFound) {
		t.Errorf("since, no room: %v", err)
	}
	if _, _, err := r.log.Before(ctx, 999, 0, 10); !fault.Is(err, fault.NotFound) {
		t.Errorf("before, no room: %v", err)
	}
	if _, err := r.log.Item(ctx, uuid.New()); !fault.Is(err, fault.NotFound) {
		t.Errorf("no item: %v", err)
	}
	r.exec(`UPDATE rooms SET deleted_at = 1 WHERE room_no = ?`, in.No)
	if _, _, err := r.log.Since(ctx, in.No, 0, 10); !fault.Is(err, fault.NotFound) {
		t.Errorf("since, deleted room: %v", err)
	}
}
