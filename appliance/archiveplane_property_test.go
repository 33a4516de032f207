package appliance_test

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/appliancetest"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
)

// What every run has to do.
const (
	propTransfers = 5 // every second one a move
	propAdoptions = 2
	propTroubles  = 18
)

// TestArchivePlaneProperties lets two daemons work for one control, all of them real but for the work on files, while
// messages are lost, repeated, delayed and reordered, connections end, processes die between any two writes, databases
// fail and jobs are cancelled; in every third run a daemon's database is also deleted or replaced by an older copy. Then
// there is peace, and every job must come to its end with each effect brought about once.
//
// ARCHIVE_PROPERTY_SEED sets the first seed, ARCHIVE_PROPERTY_RUNS how many follow.
func TestArchivePlaneProperties(t *testing.T) {
	t.Parallel()
	first, runs := uint64(1), uint64(4)
	for name, to := range map[string]*uint64{"ARCHIVE_PROPERTY_SEED": &first, "ARCHIVE_PROPERTY_RUNS": &runs} {
		if text := os.Getenv(name); text != "" {
			n, err := strconv.ParseUint(text, 10, 32)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			*to = n
			if name == "ARCHIVE_PROPERTY_SEED" && os.Getenv("ARCHIVE_PROPERTY_RUNS") == "" {
				runs = 1
			}
		}
	}
	for seed := first; seed < first+runs; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			f := newPropFleet(t, seed)
			for _, phase := range []struct {
				name string
				run  func()
			}{{"begin", f.begin}, {"trouble", func() { f.trouble(seed%3 == 0) }}, {"peace", f.peace}, {"judge", f.judge}} {
				at, messages := time.Now(), f.traffic.Load()
				phase.run()
				t.Logf("%s: %v, %d moves, %v by the clock", phase.name, time.Since(at).Round(time.Millisecond), f.traffic.Load()-messages,
					f.Clock.Now().Sub(epoch).Round(time.Second))
			}
		})
	}
}

var propPoints = []daemon.Point{daemon.Received, daemon.Stored, daemon.Answered, daemon.IntentStored, daemon.EffectDone, daemon.EffectStored,
	daemon.EndStored, daemon.EventSent, daemon.AckStored, daemon.CommitRecorded}

// trouble makes everything go wrong that can.
func (f *propFleet) trouble(tamper bool) {
	f.net.setNoisy(true)
	f.world.setNoisy(true)
	f.startJobs()
	for range propTroubles {
		if !f.crashed.Load() && !slices.ContainsFunc(f.jobs(), func(j propRow) bool { return !j.ended() }) {
			break
		}
		mark := f.traffic.Load() + uint64(20+f.rng.IntN(100))
		late := f.Clock.Now().Add(2 * time.Minute) // nobody may be there who could send any
		f.until("messages", func() bool { return f.traffic.Load() >= mark || f.crashed.Load() || f.Clock.Now().After(late) })
		d := f.daemons[f.rng.IntN(len(f.daemons))]
		switch x := f.rng.IntN(100); {
		case f.crashed.Load():
			f.recover()
		case x < 20:
			f.net.cut(d)
		case x < 50:
			d.dieAt(propPoints[f.rng.IntN(len(propPoints))], 1+f.rng.IntN(4))
		case x < 60:
			f.commits.Store(int64(1 + f.rng.IntN(20))) // then control dies
		case x < 68:
			f.Faults.LoseReplies(appliancetest.ErrDatabase)
		case x < 76:
			d.away.Store(!d.away.Load())
		case x < 90:
			f.cancelOne()
		case d.db != nil:
			d.halt()
			f.replaceSome(d, tamper)
		}
		f.attend()
		if f.rng.IntN(3) > 0 {
			f.Faults.LoseReplies(nil)
			for _, d := range f.daemons {
				d.away.Store(false)
				if d.died() {
					d.start()
				}
			}
		}
	}
}

// replaceSome replaces the database of a daemon that is down now and then, if that is part of the run, and keeps copies.
func (f *propFleet) replaceSome(d *propDaemon, tamper bool) {
	switch x := f.rng.IntN(6); {
	case !tamper:
	case x == 0:
		d.replace(false)
	case x < 3 && d.copied:
		d.replace(true)
	default:
		d.keepCopy()
	}
}

// recover starts control anew after its database has died.
func (f *propFleet) recover() {
	f.t.Helper()
	f.unread(f.DatabasePath())
	f.Signal()
	_ = f.Ended() // whatever it says: it could not write
	f.Faults.LoseReplies(nil)
	f.Faults.FailCommits(nil)
	f.crashed.Store(false)
	f.commits.Store(0)
	f.Restart()
	f.found()
}

// cancelOne cancels a job; it may be too late for that.
func (f *propFleet) cancelOne() {
	f.t.Helper()
	if list := f.jobs(); len(list) > 0 && !f.crashed.Load() {
		f.Attempt("POST", "/jobs/"+list[f.rng.IntN(len(list))].ID.String()+"/cancel")
	}
}

// attend is the person who looks after the jobs that wait for one.
func (f *propFleet) attend() {
	f.t.Helper()
	for _, j := range f.jobs() {
		if f.crashed.Load() {
			return
		}
		switch {
		case j.State == pb.JobState_JOB_STATE_WAITING && (j.Wait == pb.WaitReason_WAIT_REASON_COMMAND_UNACKED || j.Wait == pb.WaitReason_WAIT_REASON_OPERATOR_HOLD):
			f.Attempt("POST", "/jobs/"+j.ID.String()+"/retry")
		case j.State == pb.JobState_JOB_STATE_MANUAL && !f.tampered.Load():
			f.t.Errorf("job %s is held, and no database was replaced: %s\n%s", j.ID, j.Error, f.storyOf(j.ID))
			f.t.FailNow()
		}
	}
}

// peace ends the trouble and waits until every job has come to its end.
func (f *propFleet) peace() {
	f.t.Helper()
	f.net.setNoisy(false)
	f.world.setNoisy(false)
	f.commits.Store(0)
	if f.crashed.Load() {
		f.recover()
	}
	f.Faults.LoseReplies(nil)
	for _, d := range f.daemons {
		d.away.Store(false)
		d.dieAt(0, 0)
		if d.died() {
			d.start()
		}
	}
	turns := 0
	f.until("the end of all jobs", func() bool {
		if turns++; turns%60 != 0 {
			return false
		}
		f.attend()
		f.resolve()
		if turns%600 == 0 {
			f.renew()
		}
		return f.settled()
	})
}

// renew has the daemons register again while one was not told that a job has ended: the attempts of its CloseJob are used up,
// nobody grants new ones to a job that has ended, and the next registration brings another command.
func (f *propFleet) renew() {
	f.t.Helper()
	if f.number(f.DatabasePath(), propUntold) > 0 {
		for _, d := range f.daemons {
			f.net.cut(d)
		}
	}
}

// resolve decides about held jobs as a person would who looks at both machines.
func (f *propFleet) resolve() {
	f.t.Helper()
	for _, j := range f.jobs() {
		if j.State != pb.JobState_JOB_STATE_MANUAL {
			continue
		}
		if j.Error == "" {
			f.t.Errorf("job %s is held and nothing says why\n%s", j.ID, f.storyOf(j.ID))
		}
		decision := "abandon"
		if f.world.effective(j.ID) {
			decision = "complete"
		}
		status, body := f.Admin("POST", "/jobs/"+j.ID.String()+"/resolve", map[string]any{"decision": decision, "reason": "looked at both"})
		if status != http.StatusOK && status != http.StatusConflict && status != http.StatusServiceUnavailable {
			f.t.Errorf("resolve: %d %s", status, body)
		}
	}
}

// effective tells whether the job's result stands.
func (w *propWorld) effective(id uuid.UUID) bool {
	stands := w.effects(id).stands
	_, committed := stands[pb.JobStep_JOB_STEP_COMMIT]
	_, released := stands[pb.JobStep_JOB_STEP_RELEASE]
	return committed || released
}
