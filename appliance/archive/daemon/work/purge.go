package work

import (
	"context"
	"path"
	"time"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/layout"
)

// purge removes the trash of the job, entry by entry, and only what still is what was put there (daemon protocol 3.2).
func (w *Worker) purge(ctx context.Context, t *daemon.Task) (*pb.StepEvidence, error) {
	if err := w.until(ctx, t); err != nil {
		return nil, err
	}
	var files []daemon.JournalEntry
	err := t.Job.Journal.List(ctx, func(e daemon.JournalEntry) bool {
		if e.State == daemon.Trashed || e.State == daemon.Removed {
			files = append(files, e)
		}
		return true
	}, pb.JobStep_JOB_STEP_RELEASE)
	if err != nil {
		return nil, err
	}
	e := &pb.PurgeEvidence{}
	meter := newMeter(t, len(files), total(files), 0)
	for _, f := range files {
		if err := t.Confirmed(ctx); err != nil {
			return nil, err
		}
		r, err := w.root(f.RootID, "content root of the trash")
		if err != nil {
			return nil, err
		}
		if err := w.purgeOne(ctx, t, r, f, e); err != nil {
			return nil, err
		}
		meter.file(f.Size, 0)
	}
	return &pb.StepEvidence{Evidence: &pb.StepEvidence_Purge{Purge: e}}, w.purgeDirs(t.Job, files)
}

// until waits for the end of the retention by this machine's clock: for not_before, and for the whole retention after the
// RELEASE that this daemon itself made. Control sends PURGE when it is over by its own clock; whichever of the two clocks is
// behind, or was put forward, makes this wait, and never fail (daemon protocol 3.2 and 9, row 8).
func (w *Worker) until(ctx context.Context, t *daemon.Task) error {
	released, err := t.Job.Evidence(ctx, pb.JobStep_JOB_STEP_RELEASE)
	if err != nil {
		return err
	}
	left := retained(t, released.GetRelease(), w.o.Clock.Now())
	if left <= 0 {
		return nil
	}
	timer := w.o.Clock.NewTimer(left)
	defer timer.Stop()
	w.o.Reached("purge: waiting")
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// retained is how long the trash must stay from now. A release that this clock dates in the future was made at the latest now.
// Without evidence, as with a daemon whose database was lost, only control knows when the content was released.
func retained(t *daemon.Task, e *pb.ReleaseEvidence, now time.Time) time.Duration {
	left := t.Execute.GetPurge().GetNotBefore().AsTime().Sub(now)
	if e.GetReleasedAt() == nil {
		return left
	}
	keep := archive.DefaultTrashRetention
	if d := t.Job.Definition.GetPolicies().GetTrashRetention(); d != nil {
		keep = d.AsDuration()
	}
	return max(left, keep-max(now.Sub(e.ReleasedAt.AsTime()), 0))
}

// purging is the detail of an entry that PURGE is about to remove.
const purging = "purging"

func (w *Worker) purgeOne(ctx context.Context, t *daemon.Task, r *beneath.Root, entry daemon.JournalEntry, e *pb.PurgeEvidence) error {
	if entry.State == daemon.Removed {
		e.EntriesRemoved++
		e.BytesFreed += entry.Size
		return nil
	}
	st, there, err := found(r, entry.TempName)
	if err != nil {
		return err
	}
	switch began := string(entry.Detail) == purging; {
	case there && !same(entry, st), !there && !began:
		// Another file now, or somebody took it out of the trash: not ours to remove, and not removed by us.
		e.EntriesSkippedChanged++
		return nil
	case there:
		// Said before it is done, so that a process that dies between the two is not taken for somebody else's hand.
		entry.Detail = []byte(purging)
		if err := t.Job.Journal.Put(ctx, entry); err != nil {
			return err
		}
		if err := r.Unlink(entry.TempName); err != nil {
			return err
		}
	}
	w.o.Reached("purge: effect")
	entry.State = daemon.Removed
	e.EntriesRemoved++
	e.BytesFreed += entry.Size
	return t.Job.Journal.Put(ctx, entry)
}

// purgeDirs removes the emptied directories of the trash area.
func (w *Worker) purgeDirs(job *daemon.Job, files []daemon.JournalEntry) error {
	trash := layout.TrashDir(job.ID.String())
	dirs := map[string]map[string]bool{}
	for _, f := range files {
		if dirs[f.RootID] == nil {
			dirs[f.RootID] = map[string]bool{trash: true}
		}
		for d := path.Dir(f.TempName); len(d) > len(trash) && !dirs[f.RootID][d]; d = path.Dir(d) {
			dirs[f.RootID][d] = true
		}
	}
	for id, set := range dirs {
		r, err := w.root(id, "content root of the trash")
		if err != nil {
			return err
		}
		if err := removeEmpty(r, set); err != nil {
			return err
		}
	}
	return nil
}
