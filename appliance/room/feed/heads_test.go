package feed_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"signalbox/appliance/room"
	"signalbox/appliance/room/feed"
	"signalbox/store"
)

// numbers are the sequences that wait for the agent.
func (r *rig) numbers(agentNo int64) []int64 {
	r.t.Helper()
	rd := r.feed.NewReader(agentNo, nil)
	defer rd.Close()
	return sequences(r.next(rd, 0, 1000).Events)
}

var errUndo = errors.New("undo")

// tryPost queues an item in a transaction that fails afterwards.
func (r *rig) tryPost(roomNo int64, a feed.Audience) error {
	it := r.item(roomNo)
	return r.db.Update(context.Background(), "test", func(tx *store.Tx) error {
		if err := storeItem(tx, &it); err != nil {
			return err
		}
		if err := r.feed.Queue(tx, r.casts[roomNo], it, a); err != nil {
			return err
		}
		return errUndo
	})
}

// A number that was noted in a transaction that failed is issued again: there is no hole, and no number twice.
func TestNumbersOfAFailedTransactionAreIssuedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, feed.Options{})
	a, b := r.agent("a"), r.agent("b")
	plaza, den := r.room("plaza", a, b), r.room("den", b)
	r.post(plaza, 2)
	for range 2 {
		if err := r.tryPost(plaza, feed.Audience{}); !errors.Is(err, errUndo) {
			t.Fatal(err)
		}
		if err := r.tryPost(den, feed.Audience{Only: []int64{b}}); !errors.Is(err, errUndo) {
			t.Fatal(err)
		}
		r.post(den, 1) // has the item number that was rolled back
	}
	r.post(plaza, 1)
	if got := r.numbers(a); !slices.Equal(got, span(1, 3)) {
		t.Errorf("a has %v", got)
	}
	if got := r.numbers(b); !slices.Equal(got, span(1, 5)) {
		t.Errorf("b has %v", got)
	}
}

// Posts that fail and posts that do not, many in one commit.
func TestNumbersInACommitOfWhichSomeFail(t *testing.T) {
	t.Parallel()
	r := newRig(t, feed.Options{})
	agents := []int64{r.agent("a"), r.agent("b"), r.agent("c")}
	rooms := []int64{r.room("one", agents...), r.room("two", agents[1:]...), r.room("three", agents[:1]...)}
	const posters, each = 8, 60
	var wg sync.WaitGroup
	var mu sync.Mutex
	want := map[int64]int64{}
	for n := range posters {
		wg.Go(func() {
			for i := range each {
				in := (n + i) % len(rooms)
				mu.Lock()
				it := r.item(rooms[in])
				mu.Unlock()
				undo := (n*each+i)%3 == 0
				err := r.db.Update(ctx, "test", func(tx *store.Tx) error {
					if err := storeItem(tx, &it); err != nil {
						return err
					}
					if err := r.feed.Queue(tx, r.casts[it.RoomNo], it, feed.Audience{}); err != nil {
						return err
					}
					if undo {
						return errUndo
					}
					return nil
				})
				if undo != (err != nil) {
					t.Errorf("undo %t: %v", undo, err)
				}
				if err == nil {
					mu.Lock()
					for _, no := range [][]int64{agents, agents[1:], agents[:1]}[in] {
						want[no]++
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	for _, no := range agents {
		if got := r.numbers(no); !slices.Equal(got, span(1, want[no])) {
			t.Errorf("agent %d has %d numbers, want 1 to %d: %v", no, len(got), want[no], got)
		}
	}
}

// What the numbers that are known do not decide: who is a member, who listens to joins, who made the item.
func TestKnownNumbersKeepTheAudience(t *testing.T) {
	t.Parallel()
	r := newRig(t, feed.Options{})
	a, b, c := r.agent("a"), r.agent("b"), r.agent("c")
	plaza := r.room("plaza", a, b)
	r.post(plaza, 1)
	r.exec(`UPDATE room_members SET listening = 1 WHERE room_agent_no = ?`, b)
	join := r.item(plaza)
	join.Kind, join.SenderKind, join.SenderNo, join.Body = room.ItemJoin, room.KindAgent, c, ""
	r.join(plaza, c)
	r.queue(join, feed.Audience{})
	for no, want := range map[int64]bool{a: false, b: true} {
		q, found, err := r.feed.Find(ctx, no, r.lastItem())
		if err != nil || !found || q.Flag != want || q.Sequence != 2 {
			t.Errorf("agent %d: %+v %t %v", no, q, found, err)
		}
	}
	r.leave(plaza, a)
	own := r.item(plaza)
	own.SenderKind, own.SenderNo = room.KindAgent, b
	r.queue(own, feed.Audience{Flagged: map[int64]bool{c: true}})
	if got := r.numbers(a); len(got) != 0 {
		t.Errorf("who left has %v", got)
	}
	if got := r.numbers(b); !slices.Equal(got, span(1, 2)) {
		t.Errorf("who said it has %v", got)
	}
	q, found, err := r.feed.Find(ctx, c, r.lastItem())
	if err != nil || !found || !q.Flag || q.Sequence != 1 {
		t.Errorf("who was addressed: %+v %t %v", q, found, err)
	}
	r.join(plaza, a)
	r.post(plaza, 1)
	if got := r.numbers(a); !slices.Equal(got, []int64{3}) {
		t.Errorf("who came back has %v", got)
	}
}

// More receivers than one statement takes, and not a multiple of it.
func TestKnownNumbersOfManyReceivers(t *testing.T) {
	t.Parallel()
	r := newRig(t, feed.Options{})
	plaza, agents := crowd(r, 64*2+8*3+5)
	addressed := map[int64]bool{agents[0]: true, agents[70]: true, agents[len(agents)-1]: true}
	r.post(plaza, 1)
	it := r.queue(r.item(plaza), feed.Audience{Flagged: addressed})
	for _, no := range agents {
		q, found, err := r.feed.Find(ctx, no, it.No)
		if err != nil || !found || q.Sequence != 2 || q.Flag != addressed[no] || q.Kind != room.EventMessage || q.At != r.clock.Now() {
			t.Fatalf("agent %d: %+v %t %v", no, q, found, err)
		}
	}
}

func (r *rig) lastItem() (no int64) {
	r.t.Helper()
	if err := r.db.View(ctx, func(tx *store.ReadTx) error {
		return tx.QueryRow(`SELECT max(item_no) FROM room_items`).Scan(&no)
	}); err != nil {
		r.t.Fatal(err)
	}
	return no
}
