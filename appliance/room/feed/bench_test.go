package feed_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/room/feed"
	"signalbox/store"
)

// BenchmarkQueue queues items for a number of receivers, a commit each, and in the same run inserts the same rows with a
// prepared statement and known numbers. attached: all of them have a reader.
func BenchmarkQueue(b *testing.B) {
	for _, receivers := range []int{1, 100, 1000} {
		for _, attached := range []bool{false, true} {
			b.Run(fmt.Sprintf("receivers=%d/attached=%v", receivers, attached), func(b *testing.B) {
				r := newRig(b, feed.Options{})
				plaza, agents := crowd(r, receivers)
				if attached {
					for _, a := range agents {
						r.open(r.reader(a), feed.Start{Head: true})
					}
				}
				queued, raw := time.Duration(0), time.Duration(0)
				other := &rawEvents{agents: agents, next: map[int64]int64{}}
				rawRig := newRig(b, feed.Options{})
				crowd(rawRig, receivers)
				for b.Loop() {
					start := time.Now()
					r.queue(r.item(plaza), feed.Audience{Flagged: map[int64]bool{agents[0]: true}})
					queued += time.Since(start)
					start = time.Now()
					rawRig.update(func(tx *store.Tx) error {
						it := rawRig.item(plaza)
						if err := storeItem(tx, &it); err != nil {
							return err
						}
						return other.insert(tx, it.No, plaza)
					})
					raw += time.Since(start)
				}
				rows := float64(b.N * receivers)
				b.ReportMetric(rows/queued.Seconds(), "rows/s")
				b.ReportMetric(rows/raw.Seconds(), "raw/s")
				b.ReportMetric(raw.Seconds()/queued.Seconds(), "queue/raw")
			})
		}
	}
}

// BenchmarkQueueAtTheCap queues for receivers that have all they may keep: each event in costs one out.
func BenchmarkQueueAtTheCap(b *testing.B) {
	const receivers = 200
	r := newRig(b, feed.Options{Retained: 100})
	plaza, _ := crowd(r, receivers)
	r.post(plaza, 200)
	for b.Loop() {
		r.post(plaza, 1)
	}
	b.ReportMetric(float64(b.N*receivers)/b.Elapsed().Seconds(), "rows/s")
}

// rawEvents inserts events whose numbers it knows.
type rawEvents struct {
	agents []int64
	next   map[int64]int64
}

func (e *rawEvents) insert(tx *store.Tx, itemNo, roomNo int64) error {
	for _, a := range e.agents {
		e.next[a]++
		if _, err := tx.Exec(`INSERT INTO room_events (room_agent_no, sequence, item_no, room_no, kind, flag, command, queued_at)
			VALUES (?,?,?,?,1,0,NULL,?)`, a, e.next[a], itemNo, roomNo, tx.Now()); err != nil {
			return err
		}
	}
	return nil
}

func crowd(r *rig, n int) (roomNo int64, agents []int64) {
	r.t.Helper()
	r.update(func(tx *store.Tx) error {
		for range n {
			no, err := insertAgent(tx, "agent-"+uuid.NewString())
			if err != nil {
				return err
			}
			agents = append(agents, no)
		}
		return nil
	})
	return r.room("plaza", agents...), agents
}

// BenchmarkResume reads the newest 200 of 2,000 events, as an agent that comes back does.
func BenchmarkResume(b *testing.B) {
	r := newRig(b, feed.Options{})
	plaza, agents := crowd(r, 1)
	r.post(plaza, 2000)
	for b.Loop() {
		rd := r.feed.NewReader(agents[0], func() {})
		o := r.open(rd, feed.Start{After: 1800})
		if p := r.next(rd, o.Cursor, 200); len(p.Events) != 200 {
			b.Fatal(len(p.Events))
		}
		rd.Close()
	}
}

// BenchmarkAppendFrame writes one event, as for each receiver of an item.
func BenchmarkAppendFrame(b *testing.B) {
	r := newRig(b, feed.Options{})
	plaza, agents := crowd(r, 1)
	r.post(plaza, 1)
	p := r.next(r.reader(agents[0]), 0, 1)
	buf := []byte(nil)
	b.ReportAllocs()
	for b.Loop() {
		buf = p.Events[0].AppendFrame(buf[:0], nil)
	}
}
