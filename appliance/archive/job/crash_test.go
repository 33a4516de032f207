package job_test

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/job"
	"signalbox/store"
)

// errCrash ends control at a failpoint.
var errCrash = errors.New("the process is killed here")

// every is the distance, in commits, between two kills: far enough for both daemons to register and one to go on.
const every = 7

// crash kills control at each commit whose number leaves the rest at: before it, or after it and before anybody hears of it.
type crash struct {
	at    int
	after bool
	seen  int
	kills int
	dead  bool
}

func (c *crash) pass(after bool) error {
	if c.dead {
		return errCrash // nothing more is written by a dead process
	}
	if after != c.after || c.at == 0 {
		return nil
	}
	if c.seen++; c.seen%every == c.at%every {
		c.dead = true
		c.kills++
		return errCrash
	}
	return nil
}

// driver plays both daemons against a control that may die at any commit.
type driver struct {
	r       *rig
	c       *crash
	flows   map[*actor]bool
	through map[*actor]uint64
	started map[uuid.UUID]map[pb.JobStep]int // ExecuteSteps that a daemon accepted
}

func (d *driver) options(o *store.Options) {
	o.Clock = d.r.clk
	o.Hooks.BeforeCommit = func([]string) error { return d.c.pass(false) }
	o.Hooks.AfterCommitBeforeReply = func([]string) error { return d.c.pass(true) }
}

// newDriver is a rig with a job in ASSIGNING whose control dies again and again; 0: never.
func newDriver(t *testing.T, at int, after bool) (*driver, uuid.UUID) {
	t.Helper()
	r := newRig(t)
	id := r.begin()
	d := &driver{r: r, c: &crash{at: at, after: after}, flows: map[*actor]bool{}, through: map[*actor]uint64{},
		started: map[uuid.UUID]map[pb.JobStep]int{}}
	r.before.Arm(nil, 0)
	d.reopen()
	return d, id
}

// reopen starts the next control on the file.
func (d *driver) reopen() {
	d.r.t.Helper()
	d.r.db = reopen(d.r, d.options)
	d.r.boot()
	for _, a := range []*actor{d.r.nas, d.r.vault} {
		a.sending = nil
		d.flows[a] = false
	}
}

// try runs fn; when control died in it, the next one starts and true is returned.
func (d *driver) try(fn func() error) (died bool) {
	d.r.t.Helper()
	err := fn()
	if d.c.dead {
		d.c.dead = false
		d.reopen()
		return true
	}
	d.r.ok("control", err)
	return false
}

// turn has one daemon do one thing. It reports whether there was something to do.
func (d *driver) turn(a *actor, id uuid.UUID) bool {
	if a.sending == nil {
		d.flows[a] = false
		d.try(func() error {
			err := a.tryRegister()
			if err != nil {
				a.sending = nil
			}
			return err
		})
		return true
	}
	acks, err := d.r.eng.Acks(d.r.ctx(), a.link)
	d.r.ok("acks", err)
	for _, ack := range acks {
		a.took(ack)
		d.through[a] = max(d.through[a], ack.PersistedThrough)
		d.flows[a] = d.flows[a] || ack.GoAhead
	}
	var list []*pb.Command
	if d.try(func() error {
		claimed, err := a.sending.Next(d.r.ctx(), 1<<20)
		for _, c := range claimed {
			list = append(list, c.Command)
		}
		return err
	}) {
		return true // what was claimed never left
	}
	for _, c := range list {
		d.command(a, id, c)
		if a.sending == nil {
			return true
		}
	}
	if d.flows[a] && a.part(id) != nil {
		for _, ev := range a.part(id).events {
			if ev.Sequence <= d.through[a] {
				continue
			}
			d.try(func() error {
				ack, err := d.r.eng.Event(d.r.ctx(), a.link, ev)
				if err == nil && ack != nil {
					a.took(ack)
					d.through[a] = max(d.through[a], ack.PersistedThrough)
				}
				return err
			})
			return true
		}
	}
	return len(list) > 0 || len(acks) > 0
}

// command has a daemon take a command durably, then answer, then do the work.
func (d *driver) command(a *actor, id uuid.UUID, c *pb.Command) {
	fresh := a.known[c.CommandId] == nil
	ack := a.take1(c)
	if d.try(func() error { return d.r.queue.Acked(d.r.ctx(), a.link, ack) }) && a.sending == nil {
		if !fresh {
			return
		}
	}
	if !fresh {
		return
	}
	switch {
	case c.GetExecuteStep() != nil:
		d.flows[a] = a.sending != nil
		if d.started[id] == nil {
			d.started[id] = map[pb.JobStep]int{}
		}
		d.started[id][c.GetExecuteStep().GetStep()]++
		a.emit(id, startedEvent)
		a.emit(id, progressEvent)
		a.emit(id, completedEvent)
	case c.GetCancelJob() != nil:
		d.flows[a] = a.sending != nil
		a.emit(id, cancelledEvent)
	case c.GetRequestJobSnapshot() != nil && a.sending != nil:
		for _, m := range a.snapshotParts(id, func(s *pb.JobSnapshot) { s.CommandId = c.CommandId }) {
			if d.try(func() error { return d.r.eng.Snapshot(d.r.ctx(), a.link, m) }) {
				return
			}
		}
	}
}

// finish drives the job to its end.
func (d *driver) finish(id uuid.UUID) {
	d.r.t.Helper()
	for range 400 {
		busy := false
		for _, a := range []*actor{d.r.nas, d.r.vault} {
			busy = d.turn(a, id) || busy
		}
		if !busy {
			if s := d.r.show(id).State; s >= completed || s == manual {
				return
			}
			d.r.clk.Advance(20 * time.Second)
			d.r.run()
		}
	}
	d.r.t.Fatalf("the job does not end\n%s", d.r.story(id))
}

// check holds the database against what must be true of any job.
func (d *driver) check(id uuid.UUID) {
	d.r.t.Helper()
	no := d.r.show(id).No
	events, last := d.r.number(`SELECT count(*) FROM archive_events WHERE job_no = ?`, no),
		d.r.number(`SELECT last_sequence FROM archive_jobs WHERE job_no = ?`, no)
	if events != last {
		d.r.t.Errorf("%d events up to sequence %d", events, last)
	}
	if n := d.r.number(`SELECT count(*) FROM archive_reservations WHERE job_no = ? AND released_at IS NULL`, no); n != 0 {
		d.r.t.Errorf("%d reservations are left", n)
	}
}

// TestKilledAtEveryCommit kills control before or after every commit of a whole TRANSFER, ten and more times in each run
// (daemon protocol 3.7, the letters of control): the job ends all the same, and each step was done once. Every other commit
// is killed before it and the rest after it; SIGNALBOX_CRASH=all does both at each.
func TestKilledAtEveryCommit(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		for at := 1; at <= every; at++ {
			if (at%2 == 0) != after && os.Getenv("SIGNALBOX_CRASH") != "all" {
				continue
			}
			t.Run(fmt.Sprintf("commit %d after=%v", at, after), func(t *testing.T) {
				d, id := newDriver(t, at, after)
				d.finish(id)
				d.r.in(id, completed)
				d.check(id)
				for _, s := range archive.Plan(pb.JobOperation_JOB_OPERATION_TRANSFER) {
					if n := d.started[id][s.Step]; n != 1 {
						t.Errorf("%v was started %d times", s.Step, n)
					}
				}
				if d.c.kills < 5 {
					t.Errorf("only %d kills", d.c.kills)
				}
				if t.Failed() {
					t.Logf("\n%s", d.r.story(id))
				}
			})
		}
	}
}

// TestKilledWhileWindingDown is the same for a job that is cancelled during TRANSFER.
func TestKilledWhileWindingDown(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		for at := 1; at <= every; at++ {
			t.Run(fmt.Sprintf("commit %d after=%v", at, after), func(t *testing.T) {
				d, id := newDriver(t, 0, after)
				r := d.r
				r.nas.register()
				r.vault.register()
				d.flows[r.nas], d.flows[r.vault] = true, true
				r.assignAll()
				r.nas.step(id, stage)
				r.vault.accept(r.vault.one(archive.ExecuteStep))
				r.vault.does(id, startedEvent)
				d.through[r.nas], d.through[r.vault] = 2, 3
				d.c.at = at
				d.try(func() error { return r.eng.Cancel(r.ctx(), id, "no", job.By{}) })
				if s := r.show(id).State; s != cancelling && s != waiting { // it was never stored
					r.ok("cancel", r.eng.Cancel(r.ctx(), id, "no", job.By{}))
				}
				d.finish(id)
				r.in(id, cancelled)
				d.check(id)
				if d.c.kills == 0 {
					t.Error("nothing was killed")
				}
			})
		}
	}
}
