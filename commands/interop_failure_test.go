//go:build interop

package commands

import (
	"crypto/rand"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// outageLength is how long the server is down in the outage scenario; SIGNALBOX_INTEROP_OUTAGE sets it.
func outageLength(t *testing.T) time.Duration {
	t.Helper()
	value := os.Getenv("SIGNALBOX_INTEROP_OUTAGE")
	if value == "" {
		return time.Minute
	}
	d, err := time.ParseDuration(value)
	if err != nil || d <= 0 {
		t.Fatalf("SIGNALBOX_INTEROP_OUTAGE: must be a positive duration, got %q", value)
	}
	return d
}

// outage: what happens while the server is down is told when it is back.
func outage(r *rig) {
	length := outageLength(r.t)
	before := []celeryTask{newTask("app.add", 1, 1)}
	r.send(before...)
	r.awaitSameStates(before, r.awaitCelery(before))
	r.server.stop()
	down := time.Now()
	var during []celeryTask
	for i := range 40 {
		during = append(during, newTask("app.add", i, 2), newTask("app.check", -1-i))
	}
	r.send(during...)
	results := r.awaitCelery(during)
	r.awaitLog(1, "z4j agent disconnected")
	<-time.After(length - time.Since(down))
	up := time.Now()
	r.server.start()
	r.awaitOnline()
	shown := r.awaitSameStates(during, results)
	for _, task := range during {
		if at := shown[task.ID].FinishedAt; at == nil || at.After(up) {
			r.t.Errorf("task %s, which ended during the outage, is shown as finished at %v", task.ID, at)
		}
	}
	r.checkOneEnd(during, results)
	if done := r.issue(ExitFailed, "retry-task", "--task-id", during[1].ID); done.Command.Status != "failed" {
		r.t.Errorf("a command after the outage ended as %+v", done.Command)
	}
}

// checkOneEnd: every task has one terminal event.
func (r *rig) checkOneEnd(tasks []celeryTask, results map[string]celeryResult) {
	r.t.Helper()
	succeeded, failed := countByTask(r.events("task.succeeded")), countByTask(r.events("task.failed"))
	for _, task := range tasks {
		wantSucceeded, wantFailed := 1, 0
		if results[task.ID].State == "FAILURE" {
			wantSucceeded, wantFailed = 0, 1
		}
		if succeeded[task.ID] != wantSucceeded || failed[task.ID] != wantFailed {
			r.t.Errorf("task %s ended as %s and has %d events task.succeeded and %d task.failed", task.ID,
				results[task.ID].State, succeeded[task.ID], failed[task.ID])
		}
	}
}

// restarts: the server is killed and stopped while tasks flow.
func restarts(r *rig) {
	var tasks []celeryTask
	for range 400 { // some must be left when the agent is back from the second restart
		tasks = append(tasks, newTask("app.slow", 0.05))
	}
	r.send(tasks...)
	for i, end := range []func(){func() { r.server.kill(0) }, r.server.stop, func() { r.server.kill(0) }} {
		want := 50 * (i + 1)
		r.eventually("more tasks end", func() (bool, any) {
			n := len(r.events("task.succeeded"))
			return n >= want, n
		})
		end()
		r.server.start()
	}
	if done := len(r.events("task.succeeded")); done == len(tasks) {
		r.t.Error("all tasks had ended before the last restart")
	}
	results := r.awaitCelery(tasks)
	r.awaitSameStates(tasks, results)
	r.checkOneEnd(tasks, results)
	for _, kind := range []string{"task.received", "task.started"} {
		count := countByTask(r.events(kind))
		for _, task := range tasks {
			if count[task.ID] != 1 {
				r.t.Errorf("task %s has %d events %s", task.ID, count[task.ID], kind)
			}
		}
	}
	r.awaitOnline()
	if lines := r.logLines("z4j agent disconnected"); len(lines) == 0 {
		r.t.Error("the agent did not notice any restart")
	}
	var verdict struct {
		Audit auditVerdict `json:"audit"`
	}
	r.cli(&verdict, "audit", "verify")
}

// revoke: a revoked agent is turned away, keeps the pace of a refused one, and adds nothing any more.
func revoke(r *rig) {
	before := []celeryTask{newTask("app.add", 1, 1)}
	r.send(before...)
	r.awaitSameStates(before, r.awaitCelery(before))
	var done struct {
		Revoked bool `json:"revoked"`
	}
	r.cli(&done, "agents", "revoke", agentName, "--yes")
	if !done.Revoked {
		r.t.Error("agents revoke did not say revoked")
	}
	first := r.awaitLog(1, "z4j agent auth rejected")[0]
	if r.transport == overWS {
		r.awaitLog(1, "4003")
	}
	after := []celeryTask{newTask("app.add", 2, 1)}
	r.send(after...)
	if res := r.awaitCelery(after)[after[0].ID]; res.State != "SUCCESS" {
		r.t.Errorf("a worker with a revoked agent ended a task as %+v", res)
	}
	second := r.awaitLog(1, "disconnect retry #2 (auth)")[0]
	third := r.awaitLog(1, "disconnect retry #3 (auth)")[0]
	r.checkPause(first, second, 10*time.Second)
	r.checkPause(second, third, 20*time.Second)
	for id, row := range r.tasks() {
		if id != before[0].ID {
			r.t.Errorf("a revoked agent added the task %+v", row)
		}
	}
	for _, kind := range []string{"task.received", "task.started", "task.succeeded"} {
		if n := countByTask(r.events(kind))[after[0].ID]; n != 0 {
			r.t.Errorf("a revoked agent added %d events %s", n, kind)
		}
	}
	refusals := 1 // one for all attempts; long-poll writes none
	if r.transport == overLongPoll {
		refusals = 0
	}
	if rows := r.auditRows("agent.auth.bearer_failed"); len(rows) != refusals {
		r.t.Errorf("the attempts of a revoked agent left %d audit rows, want %d: %+v", len(rows), refusals, rows)
	}
	if a := r.showAgent(); a.RevokedAt == nil || len(a.Sessions) != 0 {
		r.t.Errorf("the revoked agent is shown as %+v", a)
	}
}

// checkPause: between the two lines of the agent's log lies the pause that the agent documents, with its jitter of 30 %,
// and what the attempt itself took.
func (r *rig) checkPause(earlier, later string, pause time.Duration) {
	r.t.Helper()
	took := r.logTime(later).Sub(r.logTime(earlier))
	if took < pause || took > pause*13/10+10*time.Second {
		r.t.Errorf("the agent paused %v, want %v and up to 30 %% more:\n%s\n%s", took, pause, earlier, later)
	}
}

// logTime reads the time of a line of Celery's log: "[2030-01-02 03:04:05,678: INFO/MainProcess] ...".
func (r *rig) logTime(line string) time.Time {
	r.t.Helper()
	stamp, _, _ := strings.Cut(strings.TrimPrefix(line, "["), ": ")
	at, err := time.Parse("2006-01-02 15:04:05,000", stamp)
	if err != nil {
		r.t.Fatalf("log line %q: %v", line, err)
	}
	return at
}

// secretRotation: after the master secret was rotated the token still opens the door, but what the agent signs with its
// old secret is refused, until the agent gets the new one.
func secretRotation(r *rig) {
	before := []celeryTask{newTask("app.add", 1, 1)}
	r.send(before...)
	r.awaitSameStates(before, r.awaitCelery(before))
	old, err := os.ReadFile(filepath.Join(r.server.dir, "secret.key"))
	if err != nil {
		r.t.Fatal(err)
	}
	fresh := make([]byte, 32)
	_, _ = rand.Read(fresh)
	r.server.stop()
	during := []celeryTask{newTask("app.add", 2, 1)}
	r.send(during...)
	r.awaitCelery(during)
	r.server.env = []string{"SIGNALBOX_SECRET=" + base64.RawURLEncoding.EncodeToString(fresh),
		"SIGNALBOX_PREVIOUS_SECRETS=" + strings.TrimSpace(string(old))}
	r.server.start()
	// The token is taken, the frames are not. One refusal must do: under Python 3.11 the agent may stay in a session that
	// ends while its first heartbeat is made, and comes back with its worker only.
	if r.transport == overWS {
		r.awaitLog(2, "z4j agent connected to")
		r.awaitLog(1, "4403")
	} else {
		r.awaitLog(2, "z4j agent long-poll connected")
		r.awaitLog(1, `"HTTP/1.1 409 Conflict"`)
	}
	if shown := r.tasks(); len(shown) != 1 {
		r.t.Errorf("frames with a stale signature added tasks: %+v", shown)
	}
	// The secret is the project's, so minting any agent tells it. What the agent had not delivered stays behind: its buffer
	// belongs to the secret it was written under.
	r.agent.Env["Z4J_HMAC_SECRET"] = r.mint("worker-2").Env["Z4J_HMAC_SECRET"]
	r.restartWorker()
	r.awaitOnline()
	after := []celeryTask{newTask("app.add", 3, 1)}
	r.send(after...)
	r.awaitSameStates(after, r.awaitCelery(after))
	r.checkOneEnd(after, r.awaitCelery(after))
}
