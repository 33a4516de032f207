//go:build interop

package commands

import (
	"database/sql"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite"
)

// TestInteropSchedules fires schedules of the real binary through published agents, in a real Celery worker and a real RQ
// worker. Executions are counted in Redis.
func TestInteropSchedules(t *testing.T) {
	tools := findTools(t)
	for _, engine := range []string{"celery", "rq"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			r := newRigOf(t, &rig{transport: overWS, tools: tools, engine: engine}, true)
			r.checkFires()
			r.checkExpiry()
		})
	}
	t.Run("schedules of others", func(t *testing.T) {
		t.Parallel()
		r := newRigOf(t, &rig{transport: overWS, tools: tools, engine: "celery"}, true)
		r.checkForeignSchedulers()
	})
}

// rest sends a request of the local administrator, which must succeed.
func (r *rig) rest(method, path string, body, out any) {
	r.t.Helper()
	opts := newOptions(Stdio{}, Assets{})
	opts.dataDir, opts.requestTimeout = r.server.dir, 2*time.Minute
	c, err := opts.newClient()
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.http.CloseIdleConnections()
	if err := c.do(r.t.Context(), method, path, nil, body, out); err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
}

// runs returns how often the counting tasks ran, by key.
func (r *rig) runs() map[string]int {
	r.t.Helper()
	var answer struct {
		Runs map[string]int `json:"runs"`
	}
	r.drive(map[string]any{"op": "runs"}, &answer)
	return answer.Runs
}

// fireSeen is a fire as REST shows it.
type fireSeen struct {
	FireID       string     `json:"fire_id"`
	Status       string     `json:"status"`
	ScheduledFor time.Time  `json:"scheduled_for"`
	AckedAt      *time.Time `json:"acked_at"`
	ErrorMessage *string    `json:"error_message"`
}

const schedulesPath = "/projects/default/schedules"

// schedule makes a schedule whose task counts its runs under the name, and returns its path.
func (r *rig) schedule(name, every string) string {
	r.t.Helper()
	task := map[string]string{"celery": "app.count", "rq": "rq_jobs.count"}[r.engine]
	var made struct {
		ID string `json:"id"`
	}
	r.rest("POST", schedulesPath, map[string]any{"name": name, "engine": r.engine, "kind": "interval", "expression": every,
		"task_name": task, "queue": "interop", "args": []any{name}, "catch_up": "fire_all_missed"}, &made)
	return schedulesPath + "/" + made.ID
}

// fired returns the fires of a schedule, newest first, and how many are in each status.
func (r *rig) fired(path string) ([]fireSeen, map[string]int) {
	r.t.Helper()
	var rows []fireSeen
	r.rest("GET", path+"/fires?limit=1000", nil, &rows)
	count := map[string]int{}
	for _, f := range rows {
		count[f.Status]++
	}
	return rows, count
}

// settle disables a schedule and waits until each of its fires has succeeded and ran.
func (r *rig) settle(path, name string) []fireSeen {
	r.t.Helper()
	r.rest("POST", path+"/disable", nil, nil)
	var rows []fireSeen
	r.eventually("every fire of "+name+" ran once and is acked_success", func() (bool, any) {
		var count map[string]int
		rows, count = r.fired(path)
		ran := r.runs()[name]
		return count["acked_success"] == len(rows) && ran == len(rows), map[string]any{"fires": count, "ran": ran, "rows": rows}
	})
	return rows
}

// checkFires: fires are delivered and run; while the worker is down they wait in the buffer, and are replayed when it returns.
func (r *rig) checkFires() {
	r.t.Helper()
	path := r.schedule("tick", "1s")
	r.eventually("three fires are acked", func() (bool, any) {
		_, count := r.fired(path)
		return count["acked_success"] >= 3, count
	})
	first := len(r.settle(path, "tick"))
	r.worker.stop()
	r.eventually("the agent is offline", func() (bool, any) {
		a := r.showAgent()
		return a.State == "offline", a
	})
	r.rest("POST", path+"/enable", nil, nil)
	var buffered string
	r.eventually("three fires wait in the buffer", func() (bool, any) {
		rows, count := r.fired(path)
		if count["buffered"] < 3 {
			return false, count
		}
		buffered = rows[0].FireID
		return true, nil
	})
	var why struct {
		Summary   string   `json:"summary"`
		Sentences []string `json:"sentences"`
	}
	r.rest("GET", "/projects/default/fires/"+buffered+"/explain", nil, &why)
	if text := strings.Join(append(why.Sentences, why.Summary), " "); !strings.Contains(text, r.engine) {
		r.t.Errorf("a buffered fire is explained as %q", text)
	}
	r.startWorker()
	r.awaitOnline()
	r.eventually("the buffer is replayed", func() (bool, any) {
		_, count := r.fired(path)
		return count["buffered"] == 0, count
	})
	rows := r.settle(path, "tick")
	if len(rows) < first+3 {
		r.t.Errorf("%d fires after %d and a buffer of three", len(rows), first)
	}
	slots := map[time.Time]bool{}
	for _, f := range rows {
		if slots[f.ScheduledFor] {
			r.t.Errorf("the slot %v was fired twice", f.ScheduledFor)
		}
		slots[f.ScheduledFor] = true
		if f.AckedAt == nil {
			r.t.Errorf("fire %+v has no time of its ack", f)
		}
	}
}

// checkExpiry: a fire that nobody took within the retention ends as buffer_expired and never runs. The retention is of days,
// so the stored time is put back while the server is down.
func (r *rig) checkExpiry() {
	r.t.Helper()
	r.worker.stop()
	r.eventually("the agent is offline", func() (bool, any) {
		a := r.showAgent()
		return a.State == "offline", a
	})
	path := r.schedule("late", "1h")
	r.rest("POST", path+"/trigger", nil, nil)
	r.eventually("the fire waits", func() (bool, any) {
		_, count := r.fired(path)
		return count["buffered"] == 1, count
	})
	r.server.stop()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(r.server.dir, "signalbox.db"))
	if err != nil {
		r.t.Fatal(err)
	}
	week := (8 * 24 * time.Hour).Microseconds()
	_, err = db.Exec(`UPDATE pending_fires SET expires_at = expires_at - ?, enqueued_at = enqueued_at - ?`, week, week)
	if err := db.Close(); err != nil {
		r.t.Fatal(err)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.server.start()
	r.eventually("the fire has expired", func() (bool, any) {
		rows, count := r.fired(path)
		return count["buffer_expired"] == 1, rows
	})
	r.startWorker()
	r.awaitOnline()
	next := r.schedule("after", "1s")
	r.eventually("later fires run", func() (bool, any) { return r.runs()["after"] > 1, nil })
	r.settle(next, "after")
	if n := r.runs()["late"]; n != 0 {
		r.t.Errorf("an expired fire ran %d times", n)
	}
	if rows := r.auditRows("schedule.fire.buffer_expired"); len(rows) != 1 {
		r.t.Errorf("%d audit rows of the expiry, want one", len(rows))
	}
}

// checkForeignSchedulers: agents with scheduler adapters tell of no schedule by themselves, at their start, when one changes
// and when they are asked for all; nothing of that is refused.
func (r *rig) checkForeignSchedulers() {
	r.t.Helper()
	other := r.mint("schedulers")
	env := r.pythonEnv()
	for name, value := range other.Env {
		env = append(env, name+"="+value)
	}
	env = append(env, "Z4J_TRANSPORT="+overWS, "Z4J_HOME="+filepath.Join(r.dir, "schedulers"))
	r.startDaemon("schedulers", r.tools.python, env, "schedulers.py")
	var shown struct {
		Agent struct {
			State             string   `json:"state"`
			SchedulerAdapters []string `json:"scheduler_adapters"`
		} `json:"agent"`
	}
	r.eventually("the agent of the schedulers is online", func() (bool, any) {
		r.cli(&shown, "agents", "show", other.Agent.ID)
		return shown.Agent.State == "online", shown
	})
	if got := slices.Sorted(slices.Values(shown.Agent.SchedulerAdapters)); !slices.Equal(got, []string{"apscheduler", "celery-beat"}) {
		r.t.Errorf("scheduler adapters are %v", got)
	}
	for _, scheduler := range shown.Agent.SchedulerAdapters {
		var done issued
		r.cli(&done, "commands", "issue", "schedule-resync", "--agent", other.Agent.ID, "--scheduler", scheduler, "--wait")
		if done.Command.Status != "completed" {
			r.t.Errorf("schedule.resync of %s ended as %+v", scheduler, done.Command)
		}
	}
	var page struct {
		Items []eventRow `json:"items"`
	}
	r.cli(&page, "events", "list", "--agent", other.Agent.ID, "--limit", "1000")
	kinds := map[string]int{}
	for _, e := range page.Items {
		kinds[e.Kind]++
	}
	if len(kinds) != 0 {
		r.t.Errorf("the agent told of %v", kinds)
	}
}

// TestInteropBulkRetry retries 500 failed tasks of a real Celery worker, and restarts the server in the middle: each task that
// was answered ran once more, none ran twice more, and what is unknown is told as timeout.
func TestInteropBulkRetry(t *testing.T) {
	t.Parallel()
	r := newRigOf(t, &rig{transport: overWS, tools: findTools(t), engine: "celery", workerEnv: []string{"INTEROP_EXTENDED=1"}}, true)
	const many = 500
	var tasks []celeryTask
	for i := range many {
		tasks = append(tasks, newTask("app.once", "key-"+itoa(i)))
	}
	r.send(tasks...)
	r.eventually("all tasks are shown as failed", func() (bool, any) {
		failed := 0
		for _, row := range r.tasks() {
			if row.State == "failure" {
				failed++
			}
		}
		return failed == many, failed
	})
	const path = "/projects/default/bulk-retry-requests"
	type bulk struct {
		ID        string `json:"id"`
		Status    string `json:"status"`
		Total     int    `json:"total"`
		Completed int    `json:"completed"`
		Failed    int    `json:"failed"`
		TimedOut  int    `json:"timeout"`
		Refused   int    `json:"refused"`
		InFlight  int    `json:"in_flight"`
	}
	var b bulk
	r.rest("POST", path, map[string]any{"filter": map[string]any{"engine": "celery", "state": "failure", "name": "app.once"}, "max": many,
		"confirm_count": many}, &b)
	if b.Total != many {
		t.Fatalf("bulk retry of %+v", b)
	}
	get := func() { r.rest("GET", path+"/"+b.ID, nil, &b) }
	r.eventually("a fifth is retried", func() (bool, any) { get(); return b.Completed > many/5, b })
	if b.Completed >= many*4/5 {
		t.Errorf("the restart comes too late: %+v", b)
	}
	r.server.stop()
	r.server.start()
	r.within(3*time.Minute, "the bulk retry has ended", func() (bool, any) {
		get()
		return b.Status != "pending" && b.Status != "dispatched", b
	})
	// The server waited for the answers to what it had handed over before it went.
	if b.Completed != many {
		t.Errorf("bulk retry ended as %+v", b)
	}
	ran := map[int]int{}
	r.eventually("every task ran again", func() (bool, any) {
		ran = map[int]int{}
		for _, n := range r.runs() {
			ran[n]++
		}
		return ran[2] >= many, ran
	})
	if ran[2] != many {
		t.Errorf("tasks by how often they ran: %v, bulk retry %+v", ran, b)
	}
}
