package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/rawjson"
)

// TestProjectTaskTable walks every state × kind × order of times and compares with the rules of agent protocol D.6 as
// the table states them, not as the code does.
func TestProjectTaskTable(t *testing.T) {
	base := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	wants := map[string]string{kindReceived: TaskReceived, kindStarted: TaskStarted, kindSucceeded: TaskSuccess,
		kindFailed: TaskFailure, kindRetried: TaskRetry, kindRevoked: TaskRevoked}
	terminal := map[string]bool{TaskSuccess: true, TaskFailure: true, TaskRevoked: true}
	orders := []struct {
		name   string
		offset time.Duration
	}{{"older", -time.Second}, {"same", 0}, {"newer", time.Second}}
	for _, state := range TaskStates() {
		for kind := range knownKinds {
			for _, order := range orders {
				stored := base
				cur := Task{State: state, Priority: "high", StartedAt: &stored}
				got, _ := ProjectTask(cur, TaskEvent{Kind: kind, At: base.Add(order.offset)}, base.Add(time.Hour))
				want := state
				if next, ok := wants[kind]; ok {
					switch {
					case terminal[next] && !terminal[state]:
						want = next
					case !terminal[next] && terminal[state]:
					case order.offset >= 0:
						want = next
					}
				}
				if got.State != want {
					t.Errorf("%s + %s (%s): %s, want %s", state, kind, order.name, got.State, want)
				}
				if got.Priority != "high" {
					t.Errorf("%s + %s: priority changed to %s", state, kind, got.Priority)
				}
			}
		}
	}
}

func TestProjectTaskReadsFutureTimesAsNow(t *testing.T) {
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	future := now.Add(time.Hour)
	cur := Task{State: TaskReceived, ReceivedAt: &future}
	if got, _ := ProjectTask(cur, TaskEvent{Kind: kindStarted, At: now}, now); got.State != TaskStarted {
		t.Errorf("event of now: %s", got.State)
	}
	if got, _ := ProjectTask(cur, TaskEvent{Kind: kindStarted, At: now.Add(-time.Second)}, now); got.State != TaskReceived {
		t.Errorf("event before now: %s", got.State)
	}
}

func TestProjectTaskFields(t *testing.T) {
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	at := now.Add(-time.Minute)
	text, ms := "boom", int64(12)
	full := Task{Name: "named", Queue: &text, State: TaskSuccess, Priority: "low", Args: []byte("[1]"), Exception: &text,
		Traceback: &text, Result: []byte("1"), RuntimeMS: &ms}

	got, set := ProjectTask(full, TaskEvent{Kind: kindReceived, At: at, Queue: "q", ParentID: "p", RootID: "r"}, now)
	if set != TaskFieldReceived || !got.ReceivedAt.Equal(at) || *got.Queue != "q" || *got.ParentTaskID != "p" ||
		*got.RootTaskID != "r" || got.Name != "named" || string(got.Args) != "[1]" {
		t.Errorf("received: %+v set %b", got, set)
	}
	got, set = ProjectTask(full, TaskEvent{Kind: kindStarted, At: at, Worker: "w"}, now)
	if set != TaskFieldStarted || !got.StartedAt.Equal(at) || *got.WorkerName != "w" || got.State != TaskSuccess {
		t.Errorf("started: %+v set %b", got, set)
	}
	got, set = ProjectTask(full, TaskEvent{Kind: kindSucceeded, At: at, Result: []byte("2")}, now)
	if set != TaskFieldFinished|TaskFieldOutcome|TaskFieldException || string(got.Result) != "2" || got.Exception != nil ||
		got.Traceback != nil || got.RuntimeMS != nil || !got.FinishedAt.Equal(at) {
		t.Errorf("succeeded: %+v set %b", got, set)
	}
	other := "other"
	got, set = ProjectTask(full, TaskEvent{Kind: kindFailed, At: at, Exception: &other}, now)
	if set != TaskFieldState|TaskFieldFinished|TaskFieldException || *got.Exception != "other" || got.Traceback != nil ||
		string(got.Result) != "1" || got.State != TaskFailure {
		t.Errorf("failed: %+v set %b", got, set)
	}
	got, set = ProjectTask(Task{State: TaskStarted}, TaskEvent{Kind: kindRetried, At: at, RetryCount: 3, Priority: "critical"}, now)
	if set != TaskFieldState|TaskFieldRetry|TaskFieldPriority || got.RetryCount != 3 || got.Priority != "critical" {
		t.Errorf("retried: %+v set %b", got, set)
	}
	got, set = ProjectTask(Task{State: TaskPending}, TaskEvent{Kind: kindRejected, At: at}, now)
	if set != 0 || got.State != TaskPending {
		t.Errorf("rejected: %+v set %b", got, set)
	}
	if n := NewTask(TaskEvent{}); n.Name != "unknown" || n.State != TaskPending || n.Priority != "normal" || n.Queue != nil {
		t.Errorf("new: %+v", n)
	}
}

func TestReadTaskEvent(t *testing.T) {
	read := func(kind, data string) TaskEvent {
		doc, err := rawjson.Parse([]byte(data))
		if err != nil {
			t.Fatal(err)
		}
		return readTaskEvent(kind, "t-1", time.Time{}, doc.Root())
	}
	e := read(kindReceived, `{"task_name":"n","queue":"q","worker":"w","priority":"high","parent_task_id":"t-1",
		"root_task_id":"r","args":[1.0, 2],"kwargs":null,"result":5}`)
	if e.Name != "n" || e.Queue != "q" || e.Worker != "w" || e.Priority != "high" || e.ParentID != "" || e.RootID != "r" ||
		string(e.Args) != "[1.0, 2]" || e.Kwargs != nil || e.Result != nil {
		t.Errorf("received: %+v", e)
	}
	e = read(kindFailed, `{"exception":{"type":"E"},"traceback":"`+strings.Repeat("é", 9000)+`","priority":"urgent"}`)
	if *e.Exception != `{"type":"E"}` || len([]rune(*e.Traceback)) != maxFailureChars || e.Priority != "" {
		t.Errorf("failed: %v %d", *e.Exception, len([]rune(*e.Traceback)))
	}
	for data, want := range map[string]int64{`{"runtime_ms":12}`: 12, `{"runtime_ms":12.5}`: 13, `{"runtime_ms":-1}`: -1,
		`{"runtime_ms":"12"}`: -1, `{"runtime_ms":1e300}`: -1} {
		got := int64(-1)
		if e := read(kindSucceeded, data); e.RuntimeMS != nil {
			got = *e.RuntimeMS
		}
		if got != want {
			t.Errorf("%s: %d, want %d", data, got, want)
		}
	}
	if e := read(kindRetried, `{"retry_count":99999999999}`); e.RetryCount != 0 {
		t.Errorf("retry_count %d", e.RetryCount)
	}
}

func TestTaskIDsAreInOrder(t *testing.T) {
	var g timeOrderedIDs
	now := time.UnixMicro(1767323045123456).UTC()
	var last uuid.UUID
	for i := range 10000 {
		id := g.next(now.Add(time.Duration(i/100) * time.Microsecond))
		if i > 0 && strings.Compare(id.String(), last.String()) <= 0 {
			t.Fatalf("%s after %s", id, last)
		}
		if id.Version() != 7 || id.Variant() != uuid.RFC4122 {
			t.Fatalf("version %d", id.Version())
		}
		last = id
	}
	early := new(timeOrderedIDs).next(now)
	if lo := firstTaskID(now); lo.String() > early.String() {
		t.Errorf("bound %s above %s", lo, early)
	}
	if hi := firstTaskID(now.Add(time.Millisecond)); hi.String() <= early.String() {
		t.Errorf("bound %s not above %s", hi, early)
	}
}
