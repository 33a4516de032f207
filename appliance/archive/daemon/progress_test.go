package daemon_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
)

func apart(a, b *pb.JobEvent) time.Duration {
	return b.GetOccurredAt().AsTime().Sub(a.GetOccurredAt().AsTime())
}

func TestProgressEconomyOnline(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		w := r.accept()
		p := newAdopt()
		p.assigned(w)
		w.accepted(p.execute(verify, 1))
		c := r.call("run")
		p.took(w, started)
		var last *pb.JobEvent
		for n := uint64(1); n <= 5; n++ {
			c.task.Progress(bytesDone(n * 100))
			var e *pb.JobEvent
			r.until("a PROGRESS", func() bool {
				list := r.outbox(p)
				e = list[len(list)-1].Event
				return e.GetKind() == progress && e.GetProgress().GetBytes().GetLogicalDone() == n*100
			})
			if last != nil && apart(last, e) < archive.ProgressAtMost {
				t.Errorf("two PROGRESS %v apart", apart(last, e))
			}
			if got := p.took(w, progress); !proto.Equal(got, e) {
				t.Errorf("sent %v, stored %v", got, e)
			}
			last = e
		}
		if o := last.GetProgress().GetOverallFractionComplete(); o != 0.15+0.8*0.5 {
			t.Errorf("overall %v", o)
		}
	})
}

func TestProgressOfflineIsReplacedInPlace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		w := r.accept()
		p := newAdopt()
		p.assigned(w)
		w.accepted(p.execute(verify, 1))
		c := r.call("run")
		p.took(w, started)
		r.until("the acknowledgement", func() bool { return r.outbox(p)[0].Acked })
		r.cut(w)

		row := func(n int, kind pb.JobEventKind, done uint64) func() bool {
			return func() bool {
				list := r.outbox(p)
				return len(list) == n && list[n-1].Event.GetKind() == kind && list[n-1].Event.GetProgress().GetBytes().GetLogicalDone() == done
			}
		}
		for _, done := range []uint64{100, 200, 300} { // always in the one row
			c.task.Progress(bytesDone(done))
			r.until("the replaced PROGRESS", row(2, progress, done))
		}
		moved := r.outbox(p)[1].Event
		r.until("STALLED", row(3, stalled, 300))
		s := r.outbox(p)[2].Event
		if idle := s.GetOccurredAt().AsTime().Sub(moved.GetProgress().GetLastContentMovementAt().AsTime()); idle < archive.StalledAfter {
			t.Errorf("STALLED after %v", idle)
		}
		if !proto.Equal(s.GetProgress(), moved.GetProgress()) || s.GetResultingRevision() != moved.GetResultingRevision() {
			t.Errorf("STALLED %v does not repeat %v", s, moved)
		}
		// A newer time, or the same counters again, is no movement.
		c.task.Progress(bytesDone(300))
		for range 5 * 60 {
			r.clock.Advance(200 * time.Millisecond)
		}
		c.task.Progress(bytesDone(400))
		r.until("RESUMED", row(4, resumed, 400))
		// The unsent PROGRESS is not the last row any more: the next one waits, in memory, until it is sent.
		c.task.Progress(bytesDone(500))
		for range 100 {
			r.clock.Advance(time.Second)
			if list := r.outbox(p); len(list) != 4 {
				t.Fatalf("%d rows", len(list))
			}
		}
		w = r.redial()
		w.eventAck(p.id, 1, p.revision, true)
		for _, kind := range []pb.JobEventKind{progress, stalled, resumed} {
			p.took(w, kind)
		}
		r.until("the PROGRESS that waited", row(5, progress, 500))
		p.took(w, progress)
		// Once sent, a row never changes.
		before := r.outbox(p)[4]
		if !before.Sent {
			t.Error("a PROGRESS was sent without being marked")
		}
		c.task.Progress(bytesDone(600))
		r.until("a new row", row(6, progress, 600))
		if after := r.outbox(p)[4]; !proto.Equal(before.Event, after.Event) {
			t.Errorf("a sent row changed from %v to %v", before.Event, after.Event)
		}
	})
}

func TestQuietAfterAStaleRefusal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		w := r.accept()
		p := newAdopt()
		p.assigned(w)
		w.accepted(p.execute(verify, 1))
		c := r.call("run")
		p.took(w, started)
		stale := p.cancel()
		stale.Precondition.ExpectedLastEventSequence = 0
		w.command(stale)
		if a := w.ack(stale); a.GetError().GetCode() != pb.ErrorCode_ERROR_CODE_STALE_SEQUENCE {
			t.Fatalf("ack: %v", a)
		}
		refused := r.clock.Now()
		c.task.Progress(bytesDone(100))
		var e *pb.JobEvent
		r.until("the PROGRESS", func() bool {
			list := r.outbox(p)
			e = list[len(list)-1].Event
			return e.GetKind() == progress
		})
		if quiet := e.GetOccurredAt().AsTime().Sub(refused); quiet < archive.QuietAfterStale {
			t.Errorf("PROGRESS %v after the refusal", quiet)
		}
		p.took(w, progress)
		w.accepted(p.cancel()) // control's precondition matches now
	})
}

func TestConfirmedProgressIsTrimmed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const made = 1010 // a few beyond what is kept
		r := newRig(t)
		r.start()
		w := r.accept()
		p := newAdopt()
		p.assigned(w)
		x := p.execute(verify, 1)
		w.accepted(x)
		r.call("run")
		p.took(w, started)
		// Many hours of progress, as the daemon would have stored it.
		err := r.db.Update(context.Background(), "test", func(tx daemon.Tx) error {
			row, _, err := tx.Job(p.id)
			if err != nil {
				return err
			}
			for range made {
				row.Sequence++
				e := proto.CloneOf(&pb.JobEvent{EventId: uuid.NewString(), JobId: p.id.String(), Sequence: row.Sequence, ResultingRevision: row.Revision,
					CommandId: x.GetCommandId(), Kind: progress, Step: verify, State: pb.JobState_JOB_STATE_RUNNING, Progress: bytesDone(1),
					OccurredAt: timestamppb.New(epoch)})
				if err := tx.InsertEvent(e); err != nil {
					return err
				}
			}
			return tx.UpdateJob(row)
		})
		if err != nil {
			t.Fatal(err)
		}
		p.sequence += made
		w.eventAck(p.id, p.sequence, p.revision, false)
		w.noEvents()
		w.accepted(p.snapshot())
		first := w.take("the snapshot", func(e *pb.Envelope) bool { return e.GetJobSnapshot() != nil }).GetJobSnapshot()
		// The oldest rows are gone, and so is STEP_STARTED from the snapshot: it begins at the lowest row kept, without a gap.
		if lowest := first.GetEvents()[0].GetSequence(); lowest != made-1000+2 {
			t.Errorf("the snapshot begins at %d", lowest)
		}
		if list := r.outbox(p); len(list) != 1000+1 || list[0].Event.GetKind() != started {
			t.Errorf("%d rows are kept, the first is %v", len(list), list[0].Event.GetKind())
		}
	})
}

// TestSnapshotAfterARetirementHasNoGap: control has stored an event whose confirmation was lost, and has the lease retired
// for another reason. The daemon gives the event up (3.5), and no later snapshot may look as if it had never been (2.9).
func TestSnapshotAfterARetirementHasNoGap(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		w := r.accept()
		p := newAdopt()
		p.assigned(w)
		x := p.execute(verify, 1)
		w.accepted(x)
		c := r.call("run")
		p.took(w, started)
		c.task.Progress(bytesDone(100))
		p.take(w, w.event(progress)) // stored by control, and never confirmed
		w.accepted(p.reconcile(resume, x))
		w.accepted(p.execute(verify, 2))
		r.call("run")
		p.took(w, started)
		w.accepted(p.snapshot())
		s := w.take("the snapshot", func(e *pb.Envelope) bool { return e.GetJobSnapshot() != nil }).GetJobSnapshot()
		if list := s.GetEvents(); len(list) != 1 || list[0].GetSequence() != 3 {
			t.Errorf("the snapshot has %v", list)
		}
	})
}
