//go:build interop

package commands

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestInterop runs a published agent, unchanged, in a real Celery worker against the real binary, and asks both sides
// what happened. Each scenario runs over both transports, each time with a server, a Redis, a worker and an agent of
// its own. `make interop` runs it.
func TestInterop(t *testing.T) {
	tools := findTools(t)
	scenarios := []struct {
		name  string
		run   func(r *rig)
		plain bool // without TLS, where the agent accepts that
	}{
		{"outage", outage, false}, // first: it waits the longest
		{"revoke", revoke, false},
		{"tasks and commands", tasksAndCommands, true},
		{"restarts", restarts, false},
		{"secret rotation", secretRotation, false},
	}
	for _, scenario := range scenarios {
		for _, transport := range []string{overWS, overLongPoll} {
			t.Run(scenario.name+" over "+transport, func(t *testing.T) {
				t.Parallel()
				scenario.run(newRig(t, tools, transport, scenario.plain))
			})
		}
	}
}

// tasksAndCommands: what the worker does is shown, what the operator orders is done, and an idle agent stays online.
func tasksAndCommands(r *rig) {
	since := time.Now()
	r.checkInventory()
	r.checkTasks()
	r.checkWorkerAndQueue()
	r.checkCancel()
	r.checkRetry()
	if r.transport == overLongPoll {
		r.checkBench()
	}
	r.checkStaysOnline(since)
	r.checkWaitsForAgent()
}

// checkInventory: a hello is stored; a long-poll agent has none and tells its features only.
func (r *rig) checkInventory() {
	r.t.Helper()
	a := r.showAgent()
	if a.Name != agentName || len(a.Sessions) != 1 || a.Sessions[0].Transport != r.transport {
		r.t.Fatalf("agent is shown as %+v", a)
	}
	if !slices.Contains(a.RuntimeFeatures, "retry_by_reference") {
		r.t.Errorf("runtime features are %v", a.RuntimeFeatures)
	}
	if r.transport == overLongPoll {
		if len(a.EngineAdapters) != 0 || a.LastConnectAt != nil {
			r.t.Errorf("a long-poll agent has the inventory %v, connected %v", a.EngineAdapters, a.LastConnectAt)
		}
		return
	}
	if !slices.Equal(a.EngineAdapters, []string{"celery"}) || a.FrameworkAdapter != "bare" || a.ProtocolVersion != "2" ||
		a.LastConnectAt == nil {
		r.t.Errorf("hello is stored as %+v", a)
	}
	for _, token := range []string{"cancel_task", "retry_task", "retry_by_reference_v1"} {
		if !slices.Contains(a.Capabilities["celery"], token) {
			r.t.Errorf("capabilities are %v, want %s among them", a.Capabilities, token)
		}
	}
	if version := text(a.AgentVersion); !strings.HasPrefix(version, "1.13.") {
		r.t.Errorf("agent version is %q", version)
	}
	if host := text(a.HostName); host != agentName {
		r.t.Errorf("host name is %q", host)
	}
}

// checkTasks: for every task the server's state is Celery's own.
func (r *rig) checkTasks() {
	r.t.Helper()
	var tasks []celeryTask
	for i := range 20 {
		tasks = append(tasks, newTask("app.add", i, 1))
	}
	for i := range 5 {
		tasks = append(tasks, newTask("app.check", -1-i), newTask("app.flaky", i))
	}
	r.send(tasks...)
	results := r.awaitCelery(tasks)
	shown := r.awaitSameStates(tasks, results)
	for _, task := range tasks {
		row, res := shown[task.ID], results[task.ID]
		if row.Name != task.Name || row.StartedAt == nil || row.FinishedAt == nil {
			r.t.Errorf("task %s %s is shown as %+v", task.ID, task.Name, row)
		}
		switch task.Name {
		case "app.add":
			// Celery's events carry results as Python prints them.
			if want, _ := json.Marshal(res.Value); strings.Trim(string(row.Result), `"`) != string(want) {
				r.t.Errorf("task %s: result %s, Celery has %s", task.ID, row.Result, want)
			}
		case "app.check":
			if text(row.Exception) != "ValueError" || !strings.Contains(text(row.Traceback), "ValueError: negative: -") {
				r.t.Errorf("task %s: exception %q, traceback %q", task.ID, text(row.Exception), text(row.Traceback))
			}
		case "app.flaky":
			if n := len(r.executions(task.ID)); n != 2 {
				r.t.Errorf("task %s ran %d times, want 2", task.ID, n)
			}
		}
	}
	retried := countByTask(r.events("task.retried"))
	for _, task := range tasks {
		want := 0
		if task.Name == "app.flaky" {
			want = 1
		}
		if retried[task.ID] != want {
			r.t.Errorf("task %s %s: %d events task.retried, want %d", task.ID, task.Name, retried[task.ID], want)
		}
	}
}

// awaitSameStates waits until the server shows each task in the state that Celery ended it in.
func (r *rig) awaitSameStates(tasks []celeryTask, results map[string]celeryResult) map[string]taskRow {
	r.t.Helper()
	states := map[string]string{"SUCCESS": "success", "FAILURE": "failure", "REVOKED": "revoked"}
	var shown map[string]taskRow
	r.eventually("the server shows the states of Celery", func() (bool, any) {
		shown = r.tasks()
		different := map[string]string{}
		for _, task := range tasks {
			if row := shown[task.ID]; row.State != states[results[task.ID].State] {
				different[task.ID] = row.State + ", Celery has " + results[task.ID].State
			}
		}
		return len(different) == 0, different
	})
	return shown
}

func countByTask(events []eventRow) map[string]int {
	count := make(map[string]int, len(events))
	for _, e := range events {
		count[e.TaskID]++
	}
	return count
}

func (r *rig) checkWorkerAndQueue() {
	r.t.Helper()
	var workers struct {
		Items []workerRow `json:"items"`
	}
	r.eventually("the worker is listed with its details", func() (bool, any) {
		r.cli(&workers, "workers")
		if len(workers.Items) != 1 {
			return false, workers
		}
		w := workers.Items[0]
		return strings.HasPrefix(w.Name, "w1@") && w.State == "online" && w.Engine == "celery" && w.LastHeartbeat != nil &&
			w.Concurrency != nil && *w.Concurrency == 1 && slices.Contains(w.Queues, "interop"), workers
	})
	var queues struct {
		Items []queueRow `json:"items"`
	}
	r.cli(&queues, "queues")
	if !slices.ContainsFunc(queues.Items, func(q queueRow) bool { return q.Name == "interop" && q.Engine == "celery" }) {
		r.t.Errorf("queues are %+v", queues.Items)
	}
}

// issued is what `commands issue --wait` shows.
type issued struct {
	Command  commandRow `json:"command"`
	TimedOut bool       `json:"timed_out"`
}

// issue issues a command to the agent by name and waits for its end.
func (r *rig) issue(want int, verb string, args ...string) issued {
	r.t.Helper()
	args = append([]string{"commands", "issue", verb, "--agent", agentName, "--engine", "celery", "--wait"}, args...)
	out, code, stderr := r.tryCLI(args...)
	var doc issued
	if err := json.Unmarshal(out, &doc); err != nil || code != want {
		r.t.Fatalf("%s: exit code %d, want %d: %s%s", strings.Join(args, " "), code, want, stderr, out)
	}
	return doc
}

// checkCancel revokes a task that runs and one that waits behind it.
func (r *rig) checkCancel() {
	r.t.Helper()
	running, waiting := newTask("app.slow", 600), newTask("app.slow", 601)
	r.send(running)
	r.eventually("the slow task runs", func() (bool, any) { return len(r.executions(running.ID)) == 1, nil })
	r.send(waiting)
	var last issued
	for _, task := range []celeryTask{waiting, running} {
		last = r.issue(ExitOK, "cancel-task", "--task-id", task.ID, "--yes")
		if last.Command.Status != "completed" {
			r.t.Errorf("cancel_task ended as %+v", last.Command)
		}
	}
	tasks := []celeryTask{running, waiting}
	results := r.awaitCelery(tasks)
	for _, task := range tasks {
		if results[task.ID].State != "REVOKED" {
			r.t.Errorf("Celery has the cancelled task as %+v", results[task.ID])
		}
	}
	r.awaitSameStates(tasks, results)
	if n := len(r.executions(waiting.ID)); n != 0 {
		r.t.Errorf("the cancelled task that waited ran %d times", n)
	}
	r.checkExplanation(last.Command.ID)
}

func (r *rig) checkExplanation(id string) {
	r.t.Helper()
	var doc struct {
		Explanation explanation `json:"explanation"`
	}
	r.cli(&doc, "commands", "explain", id)
	e := doc.Explanation
	if e.Summary == "" || len(e.Sentences) == 0 || e.Command.V.Status != "completed" || e.WaitingFor != nil {
		r.t.Errorf("explanation is %+v", e)
	}
	if len(e.Deliveries) != 1 || e.Deliveries[0].Transport != r.transport || e.Deliveries[0].AckedAt == nil ||
		e.Deliveries[0].FinishedAt == nil {
		r.t.Errorf("deliveries are %+v, want one over %s, acked and finished", e.Deliveries, r.transport)
	}
}

// checkRetry runs a failed task again with other arguments; without them the agent refuses, as Celery kept none.
func (r *rig) checkRetry() {
	r.t.Helper()
	failed := newTask("app.check", -7)
	r.send(failed)
	r.awaitSameStates([]celeryTask{failed}, r.awaitCelery([]celeryTask{failed}))
	done := r.issue(ExitOK, "retry-task", "--task-id", failed.ID, "--args", "[41]", "--kwargs", "{}")
	var result struct {
		NewTaskID string `json:"new_task_id"`
		TaskName  string `json:"task_name"`
	}
	if err := json.Unmarshal(done.Command.Result, &result); err != nil || result.NewTaskID == "" || result.TaskName != "app.check" {
		r.t.Fatalf("retry_task ended with %s: %v", done.Command.Result, err)
	}
	again := []celeryTask{{ID: result.NewTaskID}}
	results := r.awaitCelery(again)
	if res := results[result.NewTaskID]; res.State != "SUCCESS" || res.Value != 41.0 {
		r.t.Errorf("Celery has the retried task as %+v", res)
	}
	r.awaitSameStates(again, results)
	if ran := r.executions(result.NewTaskID); len(ran) != 1 || len(ran[0].Args) != 1 || ran[0].Args[0] != 41.0 {
		r.t.Errorf("the retried task ran as %+v", ran)
	}
	refused := r.issue(ExitFailed, "retry-task", "--task-id", failed.ID)
	if refused.Command.Status != "failed" || !strings.Contains(text(refused.Command.Error), "override_args") {
		r.t.Errorf("a retry without arguments ended as %s: %s", refused.Command.Status, text(refused.Command.Error))
	}
}

// checkStaysOnline: beyond the offline time-out (30 s) only heartbeats kept the agent online, on its first session.
func (r *rig) checkStaysOnline(since time.Time) {
	r.t.Helper()
	first := time.Now()
	r.eventually("heartbeats arrive for longer than the offline time-out", func() (bool, any) {
		a := r.showAgent()
		if a.State != "online" {
			r.t.Fatalf("agent turned %s while idle", a.State)
		}
		return a.LastSeenAt != nil && a.LastSeenAt.Sub(first) > 35*time.Second, a
	})
	if lines := r.logLines("disconnected"); len(lines) != 0 {
		r.t.Errorf("the agent was disconnected within %v: %v", time.Since(since), lines)
	}
}

// checkWaitsForAgent: a command issued while the worker is down waits, says for what, and is done when the worker is back.
func (r *rig) checkWaitsForAgent() {
	r.t.Helper()
	r.worker.stop()
	want := ExitOK // a long-poll agent counts as online until it has been silent for the offline time-out
	if r.transport == overWS {
		want = ExitDegraded
		r.eventually("the agent is offline", func() (bool, any) {
			a := r.showAgent()
			return a.State == "offline" && len(a.Sessions) == 0, a
		})
	}
	args := []string{"commands", "issue", "cancel-task", "--agent", agentName, "--engine", "celery", "--task-id", "nowhere", "--yes"}
	out, code, stderr := r.tryCLI(args...)
	var doc issued
	if err := json.Unmarshal(out, &doc); err != nil || code != want || doc.Command.Status != "pending" {
		r.t.Fatalf("issue to an absent agent: exit code %d, want %d: %s%s", code, want, stderr, out)
	}
	var why struct {
		Explanation explanation `json:"explanation"`
	}
	r.cli(&why, "commands", "explain", doc.Command.ID)
	if why.Explanation.WaitingFor == nil || len(why.Explanation.Deliveries) != 0 {
		r.t.Errorf("explanation of a waiting command is %+v", why.Explanation)
	}
	r.startWorker()
	r.eventually("the command is done", func() (bool, any) {
		r.cli(&doc, "commands", "show", doc.Command.ID)
		return doc.Command.Status == "completed", doc
	})
	r.checkExplanation(doc.Command.ID)
}

// checkBench: the load generator works over TLS on both transports, from outside.
func (r *rig) checkBench() {
	r.t.Helper()
	for _, transport := range []string{overWS, overLongPoll} {
		cmd := exec.Command(r.server.binary, "bench", "agents", "--server", r.server.url, "--ca-file", r.caFile,
			"--api-key-file", filepath.Join(r.server.dir, "admin.key"), "--transport", transport, "--agents", "3",
			"--duration", "2s", "--commands", "20", "--json")
		cmd.Env = []string{"HOME=" + r.dir}
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		var doc struct {
			Transport string       `json:"transport"`
			Ingest    ingestResult `json:"ingest"`
			Commands  struct {
				Issued int `json:"issued"`
			} `json:"commands"`
		}
		if err == nil {
			err = json.Unmarshal(out, &doc)
		}
		if err != nil {
			r.t.Errorf("bench agents over %s: %v: %s%s", transport, err, stderr.String(), out)
			continue
		}
		if doc.Transport != transport || doc.Ingest.Acked == 0 || doc.Commands.Issued != 20 {
			r.t.Errorf("bench agents over %s: %s", transport, out)
		}
		r.t.Logf("bench agents over %s: %s", transport, out)
	}
}
