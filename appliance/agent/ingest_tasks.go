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
	set    TaskFields
	hint   *TaskHead    // the row is believed to be like this; nil: it was read, or is new
	events []*TaskEvent // applied to a believed row, to be applied again to the stored one if need be
}

func (row *taskRow) load(h TaskHead) {
	t := &row.task
	t.No, t.Name, t.State, t.Priority = h.No, h.Name, h.State, h.Priority
	t.ReceivedAt, t.StartedAt, t.FinishedAt = h.ReceivedAt, h.StartedAt, h.FinishedAt
}

func storedRow(ev *ingestEvent, h TaskHead) *taskRow {
	row := &taskRow{task: Task{Engine: ev.Engine, TaskID: ev.TaskID}}
	row.load(h)
	return row
}

// eventOfTask stores an event that names a task, and returns the task's row: nil for an unknown kind without one. The
// first event of a task in a transaction finds the task while it is inserted, unless the task is remembered.
func (w *ingest) eventOfTask(ev *ingestEvent) (row *taskRow, added bool, err error) {
	key := taskKey{ev.Engine, ev.TaskID}
	row = w.tasks[key]
	if row == nil {
		if h, ok := w.r.hints.get(ev.ProjectNo, key); ok {
			row = storedRow(ev, h)
			row.hint = &h
		}
	}
	if row != nil {
		ev.TaskNo = row.task.No
		added, err = w.tx.InsertEvent(&ev.NewEvent)
	} else {
		row, added, err = w.findTask(ev)
	}
	if err != nil || !added || row == nil {
		return nil, added, err
	}
	if w.tasks[key] == nil {
		w.tasks[key] = row
		w.order = append(w.order, row)
	}
	return row, true, nil
}

// findTask stores the event together with the number of its task.
func (w *ingest) findTask(ev *ingestEvent) (row *taskRow, added bool, err error) {
	if ev.known {
		// The row of a new task is written at the end, with all that this transaction's events say. Its number is
		// needed now, for the event to carry, and is used up only if the event is new.
		if ev.TaskNo, err = w.freeTaskNo(); err != nil {
			return nil, false, err
		}
	}
	no, added, err := w.tx.InsertEventOfTask(&ev.NewEvent)
	if err != nil || !added || no == 0 {
		return nil, added, err
	}
	if no != ev.TaskNo {
		h, err := w.tx.TaskHead(no)
		if err != nil {
			return nil, false, err
		}
		return storedRow(ev, h), true, nil
	}
	w.nextNo++
	row = &taskRow{task: Task{No: no, Engine: ev.Engine, TaskID: ev.TaskID}}
	w.begin(row, &ev.task)
	return row, true, nil
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
