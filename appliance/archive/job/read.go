package job

import (
	"context"
	"math"
	"strconv"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
)

// Bounds of one page.
const (
	MaxPage     = 500
	defaultPage = 50
	pageOfStory = 200
)

// Filter selects jobs. Zero fields select all.
type Filter struct {
	States    []pb.JobState
	Open      bool      // only jobs that have not ended; not together with States
	Daemon    uuid.UUID // source or target
	Operation pb.JobOperation

	DaemonNo int64 // set by List from Daemon
}

// openStates are the states of a job that has not ended.
var openStates = []pb.JobState{pb.JobState_JOB_STATE_PENDING, pb.JobState_JOB_STATE_PREFLIGHT,
	pb.JobState_JOB_STATE_ASSIGNING, pb.JobState_JOB_STATE_RUNNING, pb.JobState_JOB_STATE_STALLED,
	pb.JobState_JOB_STATE_WAITING, pb.JobState_JOB_STATE_CANCELLING, pb.JobState_JOB_STATE_MANUAL}

// Listed is one job of a list, with the names a person knows.
type Listed struct {
	Job
	Source, Target Peer      // zero where the job has none
	Parent         uuid.UUID // uuid.Nil: none
	Step           pb.JobStep
	Steps          int
}

// Page is one page of a list; Next is empty on the last.
type Page struct {
	Jobs []Listed
	Next string
}

// List returns jobs, newest first. The cursor is empty or the Next of the page before; limit 0 is 50, at most 500.
func (e *Engine) List(ctx context.Context, f Filter, cursor string, limit int) (p Page, err error) {
	before, err := parseCursor(cursor, math.MaxInt64)
	if err != nil {
		return p, err
	}
	if f.Open {
		f.States = openStates
	}
	limit = pageLimit(limit)
	err = e.st.View(ctx, func(tx ReadTx) error {
		p = Page{}
		if f.Daemon != uuid.Nil {
			peer, ok, err := tx.JobPeerByID(f.Daemon)
			if err != nil {
				return err
			}
			if !ok {
				return fault.New(fault.NotFound, "no daemon %s", f.Daemon)
			}
			f.DaemonNo = peer.No
		}
		jobs, err := tx.JobList(f, before, limit+1)
		if err != nil {
			return err
		}
		if len(jobs) > limit {
			jobs = jobs[:limit]
			p.Next = strconv.FormatInt(jobs[limit-1].No, 10)
		}
		for i := range jobs {
			l, err := listed(tx, jobs[i])
			if err != nil {
				return err
			}
			p.Jobs = append(p.Jobs, l)
		}
		return nil
	})
	return p, err
}

func pageLimit(n int) int {
	if n <= 0 {
		return defaultPage
	}
	return min(n, MaxPage)
}

func parseCursor(s string, none int64) (int64, error) {
	if s == "" {
		return none, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, fault.Field("cursor", "not one that a page gave")
	}
	return n, nil
}

func listed(tx ReadTx, j Job) (l Listed, err error) {
	l.Job = j
	if j.SourceNo != 0 {
		if l.Source, err = tx.JobPeer(j.SourceNo); err != nil {
			return l, err
		}
	}
	if j.TargetNo != 0 {
		if l.Target, err = tx.JobPeer(j.TargetNo); err != nil {
			return l, err
		}
	}
	if j.ParentNo != 0 {
		parent, err := tx.JobByNo(j.ParentNo)
		if err != nil {
			return l, err
		}
		l.Parent = parent.ID
	}
	plan := stepsOf(j.Operation)
	l.Steps = len(plan)
	if j.Position < len(plan) && j.Definition != nil {
		l.Step = plan[j.Position]
	}
	return l, nil
}

// Counts returns how many jobs are in each state that any is in.
func (e *Engine) Counts(ctx context.Context) (map[pb.JobState]int64, error) {
	out := map[pb.JobState]int64{}
	err := e.st.View(ctx, func(tx ReadTx) error {
		clear(out)
		counts, err := tx.JobCounts()
		for state, n := range counts {
			out[pb.JobState(state)] = n
		}
		return err
	})
	return out, err
}

// Timeline returns a job's story, oldest first. The cursor is empty or the Next of the page before; Next is never empty,
// so that a reader can come back for what happens later.
func (e *Engine) Timeline(ctx context.Context, id uuid.UUID, cursor string, limit int) (entries []Entry, next string,
	err error) {
	after, err := parseCursor(cursor, 0)
	if err != nil {
		return nil, "", err
	}
	err = e.st.View(ctx, func(tx ReadTx) error {
		j, err := find(tx, id)
		if err != nil {
			return err
		}
		entries, err = tx.JobTimeline(j.No, after, pageLimit(limit))
		return err
	})
	if n := len(entries); n > 0 {
		after = entries[n-1].No
	}
	return entries, strconv.FormatInt(after, 10), err
}

func find(tx ReadTx, id uuid.UUID) (Job, error) {
	j, ok, err := tx.JobByID(id)
	if err == nil && !ok {
		err = fault.New(fault.NotFound, "no job %s", id)
	}
	return j, err
}

// Watch follows the changes of one job, or of all. It must be stopped. Not safe for concurrent use.
type Watch struct {
	e     *Engine
	jobNo int64
	after int64
	hint  *wake.Watch
}

// Change is what a Watch gives: the entries since the last one, at most a page of them, and the job as it is now.
type Change struct {
	Entries []Entry
	Cursor  string
	Job     Listed // zero for a Watch of all jobs
	More    bool   // another page is there at once
}

// Watch begins to follow a job, or all of them for uuid.Nil. With a cursor it begins after the entry that the cursor
// names; without one, with the job's first entry, or for all jobs with what happens from now on.
func (e *Engine) Watch(ctx context.Context, id uuid.UUID, cursor string) (*Watch, error) {
	after, err := parseCursor(cursor, 0)
	if err != nil {
		return nil, err
	}
	w := &Watch{e: e, after: after}
	err = e.st.View(ctx, func(tx ReadTx) error {
		head, err := tx.JobTimelineHead()
		if err != nil {
			return err
		}
		if after > head {
			return fault.New(fault.Stale, "cursor: %d is beyond the last entry; the database was restored, begin anew", after)
		}
		if id != uuid.Nil {
			j, err := find(tx, id)
			w.jobNo = j.No
			return err
		}
		if cursor == "" {
			w.after = head
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if w.jobNo != 0 {
		w.hint = e.hub.Watch(archive.JobKey(w.jobNo))
	} else {
		w.hint = e.hub.Watch(archive.JobsKey{})
	}
	return w, nil
}

// C receives when there may be something new since the last Next: a hint, also for progress, which has no entry.
func (w *Watch) C() <-chan struct{} { return w.hint.C() }

// Stop ends the watch.
func (w *Watch) Stop() { w.hint.Stop() }

// Next reads what is new without waiting.
func (w *Watch) Next(ctx context.Context) (c Change, err error) {
	err = w.e.st.View(ctx, func(tx ReadTx) error {
		c = Change{}
		if c.Entries, err = tx.JobTimeline(w.jobNo, w.after, pageOfStory); err != nil || w.jobNo == 0 {
			return err
		}
		j, err := tx.JobByNo(w.jobNo)
		if err != nil {
			return err
		}
		c.Job, err = listed(tx, j)
		return err
	})
	if err != nil {
		return c, err
	}
	if n := len(c.Entries); n > 0 {
		w.after = c.Entries[n-1].No
		c.More = n == pageOfStory
	}
	c.Cursor = strconv.FormatInt(w.after, 10)
	return c, nil
}
