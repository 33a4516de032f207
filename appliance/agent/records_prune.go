package agent

import (
	"context"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
)

// day is the unit of retention.
const day = 24 * time.Hour

// BulkDeleteTasks removes task rows of a project and returns how many. Their events stay in the log until retention. It
// works in slices, so an error may leave some of them deleted; repeating it is safe. Tasks that arrive meanwhile are
// left alone. Invalid for more than 1000 ids, for no condition at all, and for ids beside a filter.
func (r *Records) BulkDeleteTasks(ctx context.Context, projectNo int64, d BulkDelete) (deleted int, err error) {
	filtered := d.Filter != TaskFilter{}
	switch {
	case len(d.IDs) > maxBulkDeleteIDs:
		return 0, fault.Field("task_ids", "at most %d are allowed, got %d", maxBulkDeleteIDs, len(d.IDs))
	case len(d.IDs) > 0 && filtered:
		return 0, fault.Field("task_ids", "must not stand beside a filter")
	case len(d.IDs) == 0 && !filtered:
		return 0, fault.Field("task_ids", "needed when no filter is given")
	}
	if err := d.Filter.check(); err != nil {
		return 0, err
	}
	if len(d.IDs) > 0 {
		return r.deleteByID(ctx, projectNo, d.IDs)
	}
	return r.deleteFiltered(ctx, projectNo, d.Filter)
}

// deleteFiltered searches on snapshots, so that only the deletes themselves keep the writer, and walks through the tasks
// once. What has changed since it was found is checked again.
func (r *Records) deleteFiltered(ctx context.Context, projectNo int64, f TaskFilter) (deleted int, err error) {
	var after uuid.UUID
	newest := firstTaskID(r.clock.Now().Add(time.Second))
	for {
		var ids []uuid.UUID
		err := r.st.View(ctx, func(tx RecordsReadTx) (err error) {
			ids, err = tx.TaskIDs(projectNo, f, after, newest, pruneSlice)
			return err
		})
		if err != nil || len(ids) == 0 {
			return deleted, err
		}
		after = ids[len(ids)-1]
		n := 0
		err = r.st.Update(ctx, "bulk delete tasks", func(tx RecordsTx) (err error) {
			n, err = tx.DeleteTasks(projectNo, f, ids)
			return err
		})
		if err != nil {
			return deleted, err
		}
		if deleted += n; len(ids) < pruneSlice {
			return deleted, nil
		}
	}
}

func (r *Records) deleteByID(ctx context.Context, projectNo int64, ids []uuid.UUID) (deleted int, err error) {
	for len(ids) > 0 {
		slice := ids[:min(len(ids), pruneSlice)]
		ids = ids[len(slice):]
		n := 0
		err := r.st.Update(ctx, "bulk delete tasks", func(tx RecordsTx) error {
			n = 0
			for _, id := range slice {
				found, err := tx.DeleteTask(projectNo, id)
				if err != nil {
					return err
				}
				if found {
					n++
				}
			}
			return nil
		})
		if err != nil {
			return deleted, err
		}
		deleted += n
	}
	return deleted, nil
}

// cutoff is the time before which a project's records are too old: the smaller of its own retention and the global one.
func (r *Records) cutoff(p ProjectRetention) time.Time {
	days := r.days
	if p.Days > 0 {
		days = min(days, p.Days)
	}
	return r.clock.Now().Add(-time.Duration(days) * day)
}

// PruneEvents removes one slice of events that are past their retention. more tells that another call has work to do; the
// caller decides how much time passes between two.
func (r *Records) PruneEvents(ctx context.Context) (removed int, more bool, err error) {
	var due []ProjectRetention
	err = r.st.View(ctx, func(tx RecordsReadTx) error {
		projects, err := tx.Retention()
		if err != nil {
			return err
		}
		for _, p := range projects {
			found, err := tx.EventsExpired(p.ProjectNo, r.cutoff(p))
			if err != nil {
				return err
			}
			if found {
				due = append(due, p)
			}
		}
		return nil
	})
	if err != nil || len(due) == 0 {
		return 0, false, err
	}
	p := due[0]
	err = r.st.Update(ctx, "prune events", func(tx RecordsTx) (err error) {
		removed, err = tx.PruneEvents(p.ProjectNo, r.cutoff(p), pruneSlice)
		return err
	})
	return removed, err == nil && (len(due) > 1 || removed == pruneSlice), err
}

// pruneCursor is where the walk over the old tasks of all projects stands.
type pruneCursor struct {
	projectNo int64
	after     uuid.UUID
}

// PruneTasks looks at one slice of tasks that are older than their retention and removes those that have not changed
// since and have no events left. more is false when the walk over all projects has come to its end; the next call starts
// it anew. The walk's place is kept in memory only. One caller at a time.
func (r *Records) PruneTasks(ctx context.Context) (removed int, more bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var projects []ProjectRetention
	err = r.st.View(ctx, func(tx RecordsReadTx) (err error) {
		projects, err = tx.Retention()
		return err
	})
	if err != nil {
		return 0, false, err
	}
	for i, p := range projects { // ascending by number
		if p.ProjectNo < r.tasks.projectNo {
			continue
		}
		after := r.tasks.after
		if p.ProjectNo != r.tasks.projectNo {
			after = uuid.Nil
		}
		cutoff := r.cutoff(p)
		var next uuid.UUID
		err := r.st.Update(ctx, "prune tasks", func(tx RecordsTx) (err error) {
			removed, next, err = tx.PruneTasks(p.ProjectNo, cutoff, after, firstTaskID(cutoff), pruneSlice)
			return err
		})
		if err != nil {
			return 0, false, err
		}
		if next != uuid.Nil {
			r.tasks = pruneCursor{p.ProjectNo, next}
			return removed, true, nil
		}
		r.tasks = pruneCursor{projectNo: p.ProjectNo + 1}
		if i+1 < len(projects) {
			return removed, true, nil
		}
	}
	r.tasks = pruneCursor{}
	return removed, false, nil
}

// PruneAgentStatus removes one slice of what agents said of themselves and their surroundings that is past the global
// retention: status samples, figures of lost telemetry, and workers and queues not heard of since. Where each pod brings
// a worker name of its own, those rows would otherwise only ever grow in number.
func (r *Records) PruneAgentStatus(ctx context.Context) (removed int, more bool, err error) {
	cutoff := r.cutoff(ProjectRetention{})
	err = r.st.Update(ctx, "prune agent status", func(tx RecordsTx) error {
		removed, more = 0, false
		for _, prune := range []func(time.Time, int) (int, error){tx.PruneAgentStatus, tx.PruneTelemetryLosses, tx.PruneWorkers} {
			n, err := prune(cutoff, pruneSlice)
			if err != nil {
				return err
			}
			removed += n
			more = more || n == pruneSlice
		}
		return nil
	})
	return removed, err == nil && more, err
}

// workerSilence is how long a worker may be quiet before its state is unknown. Engines that report workers do so every
// few seconds; of others only tasks tell.
const workerSilence = 5 * time.Minute

// SweepWorkers marks workers unknown of whom nothing was heard for a while, and returns how many: an event or a heartbeat
// makes them online again. It writes nothing when there are none.
func (r *Records) SweepWorkers(ctx context.Context) (n int, err error) {
	before := r.clock.Now().Add(-workerSilence)
	var any bool
	if err := r.st.View(ctx, func(tx RecordsReadTx) (err error) { any, err = tx.AnyWorkerSilent(before); return err }); err != nil || !any {
		return 0, err
	}
	for {
		changed := 0
		err := r.st.Update(ctx, "silence workers", func(tx RecordsTx) (err error) {
			changed, err = tx.SilenceWorkers(before, pruneSlice)
			return err
		})
		n += changed
		if err != nil || changed < pruneSlice {
			return n, err
		}
	}
}
