package daemon_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
)

// effect is a worker with one irreversible effect, which it finds again by the journal and by looking.
type effect struct {
	mu    sync.Mutex
	done  bool // the effect in the world outside
	times int
}

func (x *effect) Run(ctx context.Context, t *daemon.Task) (*pb.StepEvidence, error) {
	step := t.Execute.GetStep()
	entry := daemon.JournalEntry{Step: step, Index: 0, RootID: "content", Name: "films/a", State: daemon.Intent}
	if step == release && t.Job.Record == nil {
		if err := t.Commit(ctx, daemon.CommitRecord{CommitID: uuid.New(), Step: release, VerifyEvidenceSHA256: zeros}); err != nil {
			return nil, err
		}
	}
	found, ok, err := t.Job.Journal.Get(ctx, step, 0, entry.Name)
	if err != nil {
		return nil, err
	}
	if !ok {
		if err := t.Job.Journal.Put(ctx, entry); err != nil {
			return nil, err
		}
	}
	if found.State != daemon.Trashed {
		x.mu.Lock()
		if !x.done {
			x.done = true
			x.times++
		}
		x.mu.Unlock()
		entry.State = daemon.Trashed
		if err := t.Job.Journal.Put(ctx, entry); err != nil {
			return nil, err
		}
	}
	return evidence(step), nil
}

func (x *effect) Undo(context.Context, *daemon.Job, pb.CleanupPolicy) error { return nil }
func (x *effect) Close(context.Context, *daemon.Job) error                  { return nil }

// TestCrashAtEveryPoint ends the daemon at each letter of 3.7 while a RELEASE runs, starts it again on the same file, and
// lets a control that lost its connection carry on: the effect happens once and every event comes once, in order.
func TestCrashAtEveryPoint(t *testing.T) {
	t.Parallel()
	for _, point := range []daemon.Point{daemon.Received, daemon.Stored, daemon.Answered, daemon.CommitRecorded, daemon.IntentStored,
		daemon.EffectDone, daemon.EffectStored, daemon.EndStored, daemon.EventSent, daemon.AckStored} {
		t.Run(string(point), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t)
				x := &effect{}
				p := newEvict()
				crash := false
				var reached atomic.Bool
				r.options.Hooks.At = func(at daemon.Point, job uuid.UUID) error {
					if crash && at == point && job == p.id && !reached.Swap(true) {
						return errCrash
					}
					return nil
				}
				r.startWith(x)
				w := r.accept()
				p.assigned(w)
				command := p.execute(release, 1)
				r.stop()
				if err := r.ended(); err != nil {
					t.Fatal(err)
				}
				crash = true
				r.startWith(x)
				w = r.accept()
				seen := map[uint64]*pb.JobEvent{}
				w.command(command)
				for open := true; open; { // until the daemon dies
					select {
					case e := <-w.out:
						seeEvent(t, seen, e)
						if e.GetJobEvent() != nil {
							w.eventAck(p.id, e.GetJobEvent().GetSequence(), e.GetJobEvent().GetResultingRevision(), false)
						}
					case <-w.closed:
						open = false
					}
				}
				if err := r.ended(); err != errCrash {
					t.Fatalf("run: %v", err)
				}
				crash = false
				r.startWith(x)
				w = r.accept()
				list := w.request.GetActiveJobs()
				if len(list) != 1 {
					t.Fatalf("listed: %v", list)
				}
				known := slices.Contains(append(list[0].GetOpenCommandIds(), list[0].GetSettledCommandIds()...), command.GetCommandId())
				if stored := point != daemon.Received; known != stored {
					t.Errorf("command in the cursor: %v, want %v: %v", known, stored, list[0])
				}
				w.command(command) // control does not know whether it has arrived
				a := w.ack(command)
				want := pb.AckStatus_ACK_STATUS_DUPLICATE
				if point == daemon.Received {
					want = pb.AckStatus_ACK_STATUS_ACCEPTED
				}
				if a.GetStatus() != want {
					t.Errorf("ack: %v, want %v", a, want)
				}
				w.eventAck(p.id, 0, 1, true)
				var last *pb.JobEvent
				for last.GetKind() != completed {
					if o := seen[uint64(len(seen))]; o.GetKind() == completed {
						break // control has had it all before the crash
					}
					last = w.take("the events", func(e *pb.Envelope) bool { return e.GetJobEvent() != nil }).GetJobEvent()
					seeEvent(t, seen, &pb.Envelope{Payload: &pb.Envelope_JobEvent{JobEvent: last}})
				}
				for i := range uint64(len(seen)) {
					if seen[i+1] == nil {
						t.Errorf("no event %d among %d", i+1, len(seen))
					}
				}
				if x.times != 1 || !seen[uint64(len(seen))].GetCommitted() {
					t.Errorf("the effect happened %d times, last event %v", x.times, seen[uint64(len(seen))])
				}
			})
		})
	}
}

// seeEvent wants repetitions to be identical.
func seeEvent(t *testing.T, seen map[uint64]*pb.JobEvent, e *pb.Envelope) {
	t.Helper()
	ev := e.GetJobEvent()
	if ev == nil {
		return
	}
	if old := seen[ev.GetSequence()]; old != nil && !proto.Equal(old, ev) {
		t.Errorf("event %d changed from %v to %v", ev.GetSequence(), old, ev)
	}
	seen[ev.GetSequence()] = ev
}
