package agent

import "sync"

// maxTaskHints bounds the tasks remembered between transactions; with their names they take a few megabytes.
const maxTaskHints = 1 << 14

// taskHints remembers recently written tasks as they were committed, so that the next event of a task need not look for
// it. It is a hint: a task may have changed or gone since, so a write based on it is guarded by what was remembered, and
// starts over from the stored row when the guard does not hold. Safe for concurrent use.
type taskHints struct {
	mu sync.Mutex
	m  map[taskHintKey]TaskHead
}

type taskHintKey struct {
	projectNo int64
	task      taskKey
}

func (h *taskHints) get(projectNo int64, key taskKey) (TaskHead, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	head, ok := h.m[taskHintKey{projectNo, key}]
	return head, ok
}

// put remembers rows that were committed.
func (h *taskHints) put(projectNo int64, rows []*taskRow) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, row := range rows {
		if len(h.m) >= maxTaskHints {
			h.shrink()
		}
		h.m[taskHintKey{projectNo, taskKey{row.task.Engine, row.task.TaskID}}] = headOf(&row.task)
	}
}

// shrink forgets an eighth, whichever the map gives first.
func (h *taskHints) shrink() {
	n := maxTaskHints / 8
	for key := range h.m {
		delete(h.m, key)
		if n--; n == 0 {
			return
		}
	}
}

func headOf(t *Task) TaskHead {
	return TaskHead{No: t.No, Name: t.Name, State: t.State, Priority: t.Priority, ReceivedAt: t.ReceivedAt,
		StartedAt: t.StartedAt, FinishedAt: t.FinishedAt}
}

// taskRow is a task in a transaction: read at most once, written at most once at its end.
type taskRow struct {
	task   Task
	isNew  bool
	listed bool // among those to write
	set    TaskFields
	hint   *TaskHead    // the row is believed to be like this; nil: it was read, or is new
	events []*TaskEvent // applied to a believed row, to be applied again to the stored one if need be
}

func (row *taskRow) load(h TaskHead) {
	t := &row.task
	t.No, t.Name, t.State, t.Priority = h.No, h.Name, h.State, h.Priority
	t.ReceivedAt, t.StartedAt, t.FinishedAt = h.ReceivedAt, h.StartedAt, h.FinishedAt
}

// eventOfTask stores an event that names a task, and returns the task's row: nil for an unknown kind without one.
func (w *ingest) eventOfTask(ev *ingestEvent) (row *taskRow, added bool, err error) {
	if row, err = w.taskOf(ev); err != nil {
		return nil, false, err
	}
	ev.TaskNo = row.task.No
	missing := row.task.No == 0
	if missing && ev.known {
		// The row of a new task is written at the end, with all that this transaction's events say. Its number is
		// needed now, for the event to carry, and is used up only if the event is new.
		if ev.TaskNo, err = w.freeTaskNo(); err != nil {
			return nil, false, err
		}
	}
	if added, err = w.tx.InsertEvent(&ev.NewEvent); err != nil || !added {
		return nil, false, err
	}
	if missing {
		if !ev.known {
			return nil, true, nil
		}
		row.task.No = w.nextNo
		w.nextNo++
		w.begin(row, &ev.task)
	}
	if !row.listed {
		row.listed = true
		w.order = append(w.order, row)
	}
	return row, true, nil
}

// taskOf returns the row of the event's task: of this transaction, as it is remembered, or as it is stored, in this
// order. A row without a number is not stored yet.
func (w *ingest) taskOf(ev *ingestEvent) (*taskRow, error) {
	key := taskKey{ev.Engine, ev.TaskID}
	if row := w.tasks[key]; row != nil {
		return row, nil
	}
	row := &taskRow{task: Task{Engine: ev.Engine, TaskID: ev.TaskID}}
	h, remembered := w.r.hints.get(ev.ProjectNo, key)
	if remembered {
		row.hint = &h
	} else {
		var err error
		if h, err = w.tx.FindTask(ev.ProjectNo, ev.Engine, ev.TaskID); err != nil {
			return nil, err
		}
	}
	row.load(h)
	w.tasks[key] = row
	return row, nil
}

// begin makes the row a new one, as its first event has it.
func (w *ingest) begin(row *taskRow, e *TaskEvent) {
	t := NewTask(*e)
	t.No, t.ID, t.Engine, t.TaskID, t.CreatedAt = row.task.No, w.r.taskID.next(w.now), row.task.Engine, row.task.TaskID, w.now
	row.task, row.isNew = t, true
}

func (w *ingest) freeTaskNo() (int64, error) {
	if w.nextNo == 0 {
		var err error
		if w.nextNo, err = w.tx.NextTaskNo(); err != nil {
			return 0, err
		}
	}
	return w.nextNo, nil
}

// project applies an event to its task.
func (w *ingest) project(row *taskRow, e *TaskEvent) {
	var set TaskFields
	row.task, set = ProjectTask(row.task, *e, w.now)
	row.set |= set
	if row.hint != nil {
		row.events = append(row.events, e)
	}
}

// flushTasks writes the task rows that changed, new ones in the order of their numbers.
func (w *ingest) flushTasks() error {
	for _, row := range w.order {
		if err := w.flushTask(row); err != nil {
			return err
		}
		if row.set != 0 || row.isNew {
			w.written = append(w.written, row)
		}
	}
	// A command's result may change a task row: what comes after it reads again.
	w.order = w.order[:0]
	clear(w.tasks)
	w.nextNo = 0
	return nil
}

func (w *ingest) flushTask(row *taskRow) error {
	row.task.UpdatedAt = w.now
	if row.hint != nil {
		if len(row.events) == 0 { // of unknown kinds only
			return nil
		}
		held := false
		var err error
		if row.set != 0 {
			if held, err = w.tx.UpdateTask(&row.task, row.set, row.hint); err != nil {
				return err
			}
		}
		if held {
			return nil
		}
		if err := w.startOver(row); err != nil {
			return err
		}
	}
	if row.isNew {
		return w.tx.InsertTask(w.g.peer.ProjectNo, &row.task)
	}
	if row.set == 0 {
		return nil
	}
	_, err := w.tx.UpdateTask(&row.task, row.set, nil)
	return err
}

// startOver applies the events to the row as it is stored, after what was remembered of it proved wrong or could not be
// checked by a write. A task that was deleted begins anew under its old number, which its events carry already.
func (w *ingest) startOver(row *taskRow) error {
	h, err := w.tx.FindTask(w.g.peer.ProjectNo, row.task.Engine, row.task.TaskID)
	if err != nil {
		return err
	}
	events, no := row.events, row.task.No
	*row = taskRow{task: Task{No: no, Engine: row.task.Engine, TaskID: row.task.TaskID}}
	switch {
	case h.No == 0:
		w.begin(row, events[0])
	case h.No != no:
		if err := w.tx.RelinkEvents(no, h.No); err != nil {
			return err
		}
		fallthrough
	default:
		row.load(h)
	}
	for _, e := range events {
		w.project(row, e)
	}
	row.task.UpdatedAt = w.now
	return nil
}
