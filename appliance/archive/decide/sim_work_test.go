package decide

import (
	"fmt"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// world is what the daemons do to files and backends.
type world struct {
	done     map[pb.JobStep]int // effects of COMMIT and RELEASE
	ran      map[uuid.UUID]int  // effects by command
	undone   map[pb.ParticipantRole]int
	problems []string
}

func (w *world) problem(format string, args ...any) {
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

// work does one unit of work of the job; a crash may come between two units.
func (d *model) work(faults bool) {
	j, l := d.db.job, d.openLease()
	if j == nil || j.ended || l == nil || j.state == manual {
		return
	}
	if l.kind == archive.CancelJob {
		if d.world.done[pb.JobStep_JOB_STEP_COMMIT]+d.world.done[release] > 0 && d.rolled {
			d.emit(l, held, manual, codeLost) // the look at the effect that precedes a clean-up (3.7)
			return
		}
		d.undo()
		d.emit(l, stepCancelled, cancelled, codeNone)
		return
	}
	switch {
	case l.phase == 0:
		l.phase = 1
		d.emit(l, stepStarted, running, codeNone)
	case l.phase == 1 && faults && d.rng.IntN(12) == 0:
		d.emit(l, stepFailed, assigned, []pb.ErrorCode{pb.ErrorCode_ERROR_CODE_TIMEOUT, codeSpace, pb.ErrorCode_ERROR_CODE_READ_ERROR}[d.rng.IntN(3)])
	case l.phase == 1 && d.rng.IntN(3) == 0:
		kind, state := progressed, running
		if j.state == stalled {
			kind = resumedEvent
		} else if d.rng.IntN(4) == 0 {
			kind, state = stalledEvent, stalled
		}
		d.emit(l, kind, state, codeNone)
	case l.phase == 1 && archive.Commits(l.step):
		if !d.confirmed[l.id] {
			return // 3.5: the database may be an old copy
		}
		if d.world.done[l.step] > 0 {
			d.emit(l, held, manual, codeLost)
			return
		}
		l.phase, j.committed = 2, true // the commit record
	case l.phase == 2:
		if d.world.done[l.step] == 0 {
			d.world.done[l.step]++
			d.world.ran[l.id]++
			if !d.rolled && !d.peer.rolled && d.world.undone[d.role]+d.world.undone[d.peer.role] > 0 {
				d.world.problem("%s commits although something was undone", d.name)
			}
		} else if d.world.ran[l.id] == 0 {
			d.world.problem("%s repeats the effect of another lease", d.name)
		}
		l.phase = 3
	case l.phase == 3:
		d.emit(l, stepCompleted, assigned, codeNone)
	case l.phase == 1:
		if l.step == purge && !d.confirmed[l.id] {
			return
		}
		d.world.ran[l.id]++
		if d.world.ran[l.id] > 1 && !d.rolled {
			d.world.problem("%s ran the effect of a command twice", d.name)
		}
		d.emit(l, stepCompleted, assigned, codeNone)
	}
}

// undo takes back what the job did at the daemon.
func (d *model) undo() {
	d.world.undone[d.role]++
	if d.world.done[pb.JobStep_JOB_STEP_COMMIT] > 0 || d.world.done[release] > 0 {
		d.world.problem("%s undoes after a commit", d.name)
	}
	if l := d.peer.openLease(); l != nil && archive.Commits(l.step) && !d.peer.db.job.ended && !d.peer.rolled {
		d.world.problem("%s undoes while %s may commit", d.name, d.peer.name)
	}
}
