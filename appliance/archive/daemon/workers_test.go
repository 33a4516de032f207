package daemon_test

import (
	"context"
	"reflect"
	"strings"
	"sync"
	"testing"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/valid"
)

// crowd counts how many steps are at work for each root.
type crowd struct {
	mu   sync.Mutex
	now  map[string]int
	most map[string]int
	gate chan struct{} // one token ends one call
	in   chan string
}

func (c *crowd) Run(ctx context.Context, t *daemon.Task) (*pb.StepEvidence, error) {
	root := t.Job.Definition.GetDestination().GetContentRootId()
	c.mu.Lock()
	c.now[root]++
	c.most[root] = max(c.most[root], c.now[root])
	c.mu.Unlock()
	c.in <- root
	defer func() {
		c.mu.Lock()
		c.now[root]--
		c.mu.Unlock()
	}()
	select {
	case <-c.gate:
		return evidence(t.Execute.GetStep()), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *crowd) Undo(context.Context, *daemon.Job, pb.CleanupPolicy) error { return nil }
func (c *crowd) Close(context.Context, *daemon.Job) error                  { return nil }

func TestOneVerifyPerRoot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		c := &crowd{now: map[string]int{}, most: map[string]int{}, gate: make(chan struct{}), in: make(chan string, 10)}
		r.startWith(c)
		w := r.accept()
		for _, root := range []string{"a", "a", "a", "b"} {
			d := definition(pb.JobOperation_JOB_OPERATION_ADOPT)
			d.Source.ClientId, d.TargetClientId, d.Destination.ContentRootId = self.String(), self.String(), root
			p := newPlan(d, pb.ParticipantRole_PARTICIPANT_ROLE_TARGET)
			p.assigned(w)
			w.accepted(p.execute(verify, 1))
		}
		// One of each root is at work at a time, and the two roots do not wait for each other.
		if got := map[string]bool{await(t, "a step", c.in): true, await(t, "a step", c.in): true}; !got["a"] || !got["b"] {
			t.Errorf("at work at first: %v", got)
		}
		for range 2 {
			c.gate <- struct{}{}
		}
		for range 2 {
			await(t, "the next step", c.in)
			c.gate <- struct{}{}
		}
		for range 4 {
			w.event(completed)
		}
		if want := map[string]int{"a": 1, "b": 1}; !reflect.DeepEqual(c.most, want) {
			t.Errorf("at a time: %v, want %v", c.most, want)
		}
	})
}

// TestPurgesThatWaitHoldNobodyUp has every PURGE wait for its retention, as by a clock that is behind.
func TestPurgesThatWaitHoldNobodyUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		c := &crowd{now: map[string]int{}, most: map[string]int{}, gate: make(chan struct{}), in: make(chan string, 10)}
		r.startWith(c)
		w := r.accept()
		for range 4 {
			p := newEvict()
			p.assigned(w)
			w.accepted(p.execute(purge, 1))
			await(t, "a purge", c.in)
		}
		p := newAdopt()
		p.assigned(w)
		w.accepted(p.execute(materialize, 1))
		await(t, "a step beside the purges", c.in)
	})
}

// broken panics.
type broken struct{ crowd }

func (*broken) Run(context.Context, *daemon.Task) (*pb.StepEvidence, error) {
	panic("an index is wrong")
}

func TestPanicsFailTheStepAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.startWith(&broken{})
		w := r.accept()
		p := newAdopt()
		p.assigned(w)
		w.accepted(p.execute(materialize, 1))
		p.took(w, started)
		e := p.took(w, failed)
		if e.GetError().GetCode() != pb.ErrorCode_ERROR_CODE_INTERNAL || strings.Contains(e.GetError().GetMessage(), "index") {
			t.Errorf("event: %v", e)
		}
		r.kill() // the notice comes after the event's commit
		if told := r.notices.String(); !strings.Contains(told, "an index is wrong") {
			t.Errorf("the cause is not told: %s", told)
		}
	})
}

func TestUndoThatOnlyAPersonCanJudge(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		w := r.accept()
		p := newAdopt()
		p.assigned(w)
		cancel := p.cancel()
		w.accepted(cancel)
		r.call("undo").end <- result{err: &daemon.Held{Detail: valid.Detail(pb.ErrorCode_ERROR_CODE_STATE_LOST, "content is active without a record")}}
		e := p.take(w, w.event(held)) // and it is never confirmed
		if e.GetCommandId() != cancel.GetCommandId() || e.GetState() != pb.JobState_JOB_STATE_MANUAL || e.GetError().GetCode() != pb.ErrorCode_ERROR_CODE_STATE_LOST {
			t.Errorf("event: %v", e)
		}
		// Names may be gone: the job is not resumed, but a person can end it.
		c := p.reconcile(resume)
		w.command(c)
		if a := w.ack(c); a.GetError().GetCode() != pb.ErrorCode_ERROR_CODE_UNSAFE_STATE {
			t.Errorf("resume: %v", a)
		}
		if a := w.accepted(p.reconcile(abandon)); a.GetCursor().GetState() != pb.JobState_JOB_STATE_FAILED {
			t.Errorf("abandon: %v", a)
		}
		// Control may have stored what is dropped without a confirmation: the row says that it is missing (2.9).
		var row daemon.JobRow
		if err := r.db.View(context.Background(), func(tx daemon.ReadTx) (err error) { row, _, err = tx.Job(p.id); return err }); err != nil {
			t.Fatal(err)
		}
		if list := r.outbox(p); len(list) != 0 || row.TrimmedThrough != e.GetSequence() {
			t.Errorf("trimmed through %d, want %d: %v", row.TrimmedThrough, e.GetSequence(), list)
		}
	})
}

func TestJournalOfAJob(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		w := r.accept()
		p := newAdopt()
		p.assigned(w)
		w.accepted(p.execute(materialize, 1))
		c := r.call("run")
		j, ctx := c.job.Journal, context.Background()
		var entries []daemon.JournalEntry
		for i := range 450 {
			step := materialize
			if i%3 == 0 {
				step = verify
			}
			entries = append(entries, daemon.JournalEntry{Step: step, Index: int64(i), Name: "n", RootID: "r", State: daemon.Intent})
		}
		if err := j.Put(ctx, entries...); err != nil {
			t.Fatal(err)
		}
		for name, e := range map[string]daemon.JournalEntry{"no name": {Step: verify, State: daemon.Intent},
			"a long name":   {Step: verify, Name: strings.Repeat("n", 4097), State: daemon.Intent},
			"a long detail": {Step: verify, Name: "n", Detail: make([]byte, 4097), State: daemon.Intent}} {
			if err := j.Put(ctx, entries[0], e); err == nil {
				t.Errorf("%s was taken", name)
			}
		}
		count := map[pb.JobStep]int{}
		last := int64(-1)
		err := j.List(ctx, func(e daemon.JournalEntry) bool {
			count[e.Step]++
			if e.Index <= last {
				t.Errorf("entry %d after %d", e.Index, last)
			}
			last = e.Index
			e.State = daemon.Built // an entry may be written while the list is read
			if err := j.Put(ctx, e); err != nil {
				t.Error(err)
			}
			return true
		}, materialize)
		if err != nil || count[materialize] != 300 || count[verify] != 0 {
			t.Errorf("listed %v, %v", count, err)
		}
		seen := 0
		if err := j.List(ctx, func(daemon.JournalEntry) bool { seen++; return seen < 10 }); err != nil || seen != 10 {
			t.Errorf("%d entries until the end that was asked for, %v", seen, err)
		}
		if e, ok, err := j.Get(ctx, materialize, 1, "n"); !ok || err != nil || e.State != daemon.Built {
			t.Errorf("got %+v, %v, %v", e, ok, err)
		}
		c.end <- result{evidence: evidence(materialize)}
	})
}
