package agent

import (
	"math"
	"time"
	"unicode/utf8"

	"signalbox/appliance/rawjson"
)

// The states of a task (agent protocol D.6). Success, failure and revoked are the terminal tier. No event sets rejected
// or unknown.
const (
	TaskPending  = "pending"  // in by creation, before any event that sets a state
	TaskReceived = "received" // in by task.received
	TaskStarted  = "started"  // in by task.started
	TaskSuccess  = "success"  // in by task.succeeded; terminal
	TaskFailure  = "failure"  // in by task.failed; terminal
	TaskRetry    = "retry"    // in by task.retried
	TaskRevoked  = "revoked"  // in by task.revoked; terminal
	TaskRejected = "rejected"
	TaskUnknown  = "unknown"
)

// TaskStates lists the states a task row may have, for filters and help texts.
func TaskStates() []string {
	return []string{TaskPending, TaskReceived, TaskStarted, TaskSuccess, TaskFailure, TaskRetry, TaskRevoked, TaskRejected,
		TaskUnknown}
}

// TaskPriorities lists the priorities a task may have.
func TaskPriorities() []string { return []string{"critical", "high", "normal", "low"} }

const (
	// maxFailureChars is where exception and traceback are cut (agent protocol D.6).
	maxFailureChars = 8192
	// maxTaskNameChars is where a task name is cut: a name is a label, not a place for data.
	maxTaskNameChars = 500
	// unknownName is the name of a task nobody has named.
	unknownName = "unknown"
	// maxExactInt is the largest integer that every JSON reader keeps exactly.
	maxExactInt = 1<<53 - 1
)

// TaskEvent is what one event says of its task. Absent values are zero.
type TaskEvent struct {
	Kind       string
	At         time.Time
	Name       string // data.task_name
	Queue      string
	Worker     string
	Priority   string
	ParentID   string
	RootID     string
	Args       []byte // JSON as it arrived, redacted
	Kwargs     []byte
	Result     []byte
	Exception  *string
	Message    *string // of the exception, where the agent reports it beside the class; no column has it
	Traceback  *string
	RetryCount int
	RuntimeMS  *int64
}

// TaskFields says which groups of a task's columns an event wrote. It lets the store write no more than that.
type TaskFields uint16

// The groups of columns.
const (
	TaskFieldState     TaskFields = 1 << iota // state
	TaskFieldReceived                         // received_at, args, kwargs, queue, name, parent_task_id, root_task_id
	TaskFieldStarted                          // started_at, worker_name
	TaskFieldFinished                         // finished_at
	TaskFieldOutcome                          // result, runtime_ms
	TaskFieldException                        // exception, traceback
	TaskFieldRetry                            // retry_count
	TaskFieldPriority                         // priority
)

// TaskTerminal tells whether the state is of the terminal tier.
func TaskTerminal(state string) bool {
	return state == TaskSuccess || state == TaskFailure || state == TaskRevoked
}

// NewTask is the row an event creates when its task has none.
func NewTask(e TaskEvent) Task {
	t := Task{Name: unknownName, State: TaskPending, Priority: "normal"}
	if e.Name != "" {
		t.Name = e.Name
	}
	if e.Queue != "" {
		t.Queue = &e.Queue
	}
	return t
}

// taskStateOf is the state a kind asks for; "" when it asks for none.
func taskStateOf(kind string) string {
	switch kind {
	case kindReceived:
		return TaskReceived
	case kindStarted:
		return TaskStarted
	case kindSucceeded:
		return TaskSuccess
	case kindFailed:
		return TaskFailure
	case kindRetried:
		return TaskRetry
	case kindRevoked:
		return TaskRevoked
	}
	return ""
}

// ProjectTask applies an event to a task (agent protocol D.6) and tells what it wrote. now bounds stored times that lie in
// the future.
//
// A terminal event beats a non-terminal state whatever the times, and never the other way round. Within a tier an event
// older than the latest stored time leaves the state alone. Everything but the state is written in any case; a value
// that the event does not carry leaves a known one in place, except where the event's kind clears it.
func ProjectTask(t Task, e TaskEvent, now time.Time) (Task, TaskFields) {
	var set TaskFields
	if next := taskStateOf(e.Kind); next != "" && taskMayMove(&t, next, e.At, now) && t.State != next {
		t.State = next
		set |= TaskFieldState
	}
	at := e.At
	switch e.Kind {
	case kindReceived:
		t.ReceivedAt = &at
		set |= TaskFieldReceived
		projectReceived(&t, &e)
	case kindStarted:
		t.StartedAt = &at
		set |= TaskFieldStarted
		keepString(&t.WorkerName, e.Worker)
	case kindSucceeded:
		t.FinishedAt, t.Result, t.RuntimeMS, t.Exception, t.Traceback = &at, e.Result, e.RuntimeMS, nil, nil
		set |= TaskFieldFinished | TaskFieldOutcome | TaskFieldException
	case kindFailed:
		t.FinishedAt, t.Exception, t.Traceback = &at, e.Exception, e.Traceback
		set |= TaskFieldFinished | TaskFieldException
	case kindRetried:
		t.RetryCount = e.RetryCount
		set |= TaskFieldRetry
	case kindRevoked:
		t.FinishedAt = &at
		set |= TaskFieldFinished
	}
	if e.Priority != "" && e.Priority != t.Priority {
		t.Priority = e.Priority
		set |= TaskFieldPriority
	}
	return t, set
}

func projectReceived(t *Task, e *TaskEvent) {
	if e.Name != "" {
		t.Name = e.Name
	}
	keepString(&t.Queue, e.Queue)
	keepString(&t.ParentTaskID, e.ParentID)
	keepString(&t.RootTaskID, e.RootID)
	if e.Args != nil {
		t.Args = e.Args
	}
	if e.Kwargs != nil {
		t.Kwargs = e.Kwargs
	}
}

// keepString sets *p unless s is empty.
func keepString(p **string, s string) {
	if s != "" {
		*p = &s
	}
}

// taskMayMove is the precedence rule.
func taskMayMove(t *Task, next string, at, now time.Time) bool {
	if from, to := TaskTerminal(t.State), TaskTerminal(next); from != to {
		return to
	}
	var latest time.Time
	for _, p := range [...]*time.Time{t.FinishedAt, t.StartedAt, t.ReceivedAt} {
		if p == nil {
			continue
		}
		v := *p
		if v.After(now) {
			v = now
		}
		if v.After(latest) {
			latest = v
		}
	}
	return !at.Before(latest)
}

// readTaskEvent takes from an event's redacted data what the projection of its task needs.
func readTaskEvent(kind, taskID string, at time.Time, data rawjson.Value) TaskEvent {
	e := TaskEvent{Kind: kind, At: at}
	if taskID == "" || kind == kindUnknown {
		return e
	}
	for key, v := range data.EachRawMember() {
		switch string(key) {
		case "task_name":
			e.Name, _ = v.Str()
			e.Name = cutChars(e.Name, maxTaskNameChars)
		case "queue":
			e.Queue = rowName(v)
		case "worker":
			e.Worker = rowName(v)
		case "priority":
			e.Priority = readPriority(v)
		case "parent_task_id":
			e.ParentID = relatedTask(v, taskID)
		case "root_task_id":
			e.RootID = relatedTask(v, taskID)
		case "args":
			e.Args = keepJSON(kind == kindReceived, v)
		case "kwargs":
			e.Kwargs = keepJSON(kind == kindReceived, v)
		case "result":
			e.Result = keepJSON(kind == kindSucceeded, v)
		case "exception":
			e.Exception = failureText(kind == kindFailed, v)
		case "exception_message":
			e.Message = failureText(kind == kindFailed, v)
		case "traceback":
			e.Traceback = failureText(kind == kindFailed, v)
		case "retry_count":
			if n, ok := v.Int64(); ok && n >= 0 && n <= math.MaxInt32 {
				e.RetryCount = int(n)
			}
		case "runtime_ms":
			e.RuntimeMS = readMillis(v)
		}
	}
	return e
}

func readPriority(v rawjson.Value) string {
	for _, p := range [...]string{"normal", "high", "low", "critical"} {
		if v.StrEqual(p) {
			return p
		}
	}
	return ""
}

func relatedTask(v rawjson.Value, taskID string) string {
	s, ok := boundedString(v, maxTaskIDChars)
	if !ok || s == taskID {
		return ""
	}
	return s
}

// keepJSON copies the bytes of a value; null and absent are nil.
func keepJSON(want bool, v rawjson.Value) []byte {
	if !want || v.IsAbsent() {
		return nil
	}
	return append([]byte(nil), v.Raw()...)
}

// failureText reads an exception or traceback. What is not a string is kept as its JSON text.
func failureText(want bool, v rawjson.Value) *string {
	if !want || v.IsAbsent() {
		return nil
	}
	s, ok := v.Str()
	if !ok {
		s = string(v.Raw())
	}
	s = cutChars(s, maxFailureChars)
	return &s
}

// readMillis reads a duration; agents send whole or fractional milliseconds.
func readMillis(v rawjson.Value) *int64 {
	f, ok := v.Float64()
	if !ok || f < 0 || f > maxExactInt {
		return nil
	}
	n := int64(math.Round(f))
	return &n
}

// cutChars cuts s to at most n characters.
func cutChars(s string, n int) string {
	if len(s) <= n || utf8.RuneCountInString(s) <= n {
		return s
	}
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}
