package agent_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/store"
)

func TestForeignAndUnknownFramesChangeNothing(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	p := r.peer(agent.WebSocket)
	c := r.issue("restart_worker", restartPayload)
	r.claimOne(p)
	second := r.addAgent(r.project, "worker-2", agent.Online)
	sibling, otherProject := p, p
	sibling.AgentNo, sibling.AgentID = second.No, second.ID
	otherProject.ProjectNo++
	for _, result := range []string{"", `{"status":"success"}`} {
		for _, q := range []agent.Peer{sibling, otherProject} {
			r.apply(q, c.ID.String(), result)
		}
		for _, id := range []string{"", "hb_1", uuid.NewString(), c.ID.String() + "x"} {
			r.apply(p, id, result)
		}
	}
	if got := r.get(c); got.Status != agent.Dispatched || got.AckedAt != nil {
		t.Errorf("changed: %+v", got)
	}
	if ev := r.events(c); len(ev) != 2 {
		t.Errorf("timeline %v", ev)
	}
}

func TestAckBeforeClaim(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	p := r.peer(agent.WebSocket)
	c := r.issue("restart_worker", restartPayload)
	r.apply(p, c.ID.String(), "")
	got := r.get(c)
	if got.Status != agent.Dispatched || !got.DispatchedAt.Equal(rigStart) || !got.TimeoutAt.Equal(c.TimeoutAt) {
		t.Errorf("after the ack: %+v", got)
	}
	if res := r.claim(p, 10); len(res.Claimed) != 0 {
		t.Error("claimed after the ack")
	}
	r.apply(p, c.ID.String(), `{"status":"failed","error":"no","result":{"a":1}}`)
	if got := r.get(c); got.Status != agent.Failed || *got.Error != "no" || string(got.Result) != `{"a":1}` {
		t.Errorf("after the result: %+v", got)
	}
}

func TestResultOfAPendingCommand(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	c := r.issue("restart_worker", restartPayload)
	r.apply(r.peer(agent.WebSocket), c.ID.String(), `{"status":"success"}`)
	if got := r.get(c); got.Status != agent.Completed || got.Result != nil {
		t.Errorf("ended as %+v", got)
	}
}

func TestLateResultsChangeNothingAndCount(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	p := r.peer(agent.WebSocket)
	ctx := context.Background()
	end := map[agent.Status]func(c agent.Command){
		agent.Completed: func(c agent.Command) { r.apply(p, c.ID.String(), `{"status":"success"}`) },
		agent.Failed:    func(c agent.Command) { r.apply(p, c.ID.String(), `{"status":"failed"}`) },
		agent.Cancelled: func(c agent.Command) {
			if _, err := r.cmds.Cancel(ctx, r.by, r.project.No, c.ID); err != nil {
				t.Fatal(err)
			}
		},
		agent.TimedOut: func(agent.Command) {
			r.clock.Advance(2 * time.Minute)
			if _, err := r.cmds.SweepTimeouts(ctx); err != nil {
				t.Fatal(err)
			}
		},
	}
	for status, finish := range end {
		c := r.issue("restart_worker", restartPayload)
		r.claimOne(p)
		finish(c)
		before, audits, events := r.get(c), len(r.audits()), len(r.events(c))
		for _, result := range []string{`{"status":"success","result":{"late":1}}`, `{"status":"failed","error":"late"}`, ""} {
			r.apply(p, c.ID.String(), result)
		}
		after := r.get(c)
		if after.Status != status || string(after.Result) != string(before.Result) || !after.CompletedAt.Equal(*before.CompletedAt) {
			t.Errorf("%s: %+v became %+v", status, before, after)
		}
		if len(r.audits()) != audits || len(r.events(c)) != events {
			t.Errorf("%s: a late result was recorded", status)
		}
		if r.counts.late[status] != 2 {
			t.Errorf("%s: counted %d late results", status, r.counts.late[status])
		}
	}
}

func TestResultRules(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	p := r.peer(agent.WebSocket)
	c := r.issue("restart_worker", restartPayload)
	for payload, field := range map[string]string{
		`{}`:                "status",
		`{"status":"done"}`: "status",
		`{"status":7}`:      "status",
	} {
		err := r.applyFrame(p, c.ID.String(), payload)
		if !fault.Is(err, fault.Invalid) || fault.Details(err)["field"] != field {
			t.Errorf("%.60s: %v", payload, err)
		}
	}
	if got := r.get(c); got.Status != agent.Pending {
		t.Errorf("a refused result changed the command: %s", got.Status)
	}
	for payload, want := range map[string]agent.Status{
		`{"status":"success","result":[]}`: agent.Completed,
		`{"status":"failed","error":7}`:    agent.Failed,
	} {
		odd := r.issue("restart_worker", restartPayload)
		r.apply(p, odd.ID.String(), payload)
		if got := r.get(odd); got.Status != want || got.Result != nil || got.Error != nil {
			t.Errorf("%s ended as %+v", payload, got)
		}
	}
	r.apply(p, c.ID.String(), fmt.Sprintf(`{"status":"failed","error":%q}`, strings.Repeat("é", 8193)))
	if got := r.get(c); utf8.RuneCountInString(*got.Error) != 1024 {
		t.Errorf("%d characters kept", utf8.RuneCountInString(*got.Error))
	}
}

func TestReconcileCorrectsTheTask(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	p := r.peer(agent.WebSocket)
	for i, tc := range []struct {
		stored, result, want string
		corrected            bool
	}{
		{"started", `{"engine_state":"success","finished_at":"2026-03-01T11:00:00Z"}`, "success", true},
		{"started", `{"engine_state":"failure","exception":"Boom"}`, "failure", true},
		{"success", `{"engine_state":"pending"}`, "pending", true},
		{"started", `{"engine_state":"started"}`, "started", false},
		{"started", `{"engine_state":"unknown"}`, "started", false},
		{"started", `{"engine_state":7}`, "started", false},
		{"started", `{}`, "started", false},
	} {
		taskID := fmt.Sprint("t", i)
		r.setup(func(tx *store.Tx) error {
			_, err := tx.Exec(`INSERT INTO tasks (id, project_no, engine, task_id, name, state, priority, created_at, updated_at)
				VALUES (?, ?, 'celery', ?, 'n', ?, 'normal', 0, 0)`, uuid.New(), r.project.No, taskID, tc.stored)
			return err
		})
		c := r.issue("reconcile_task", `{"engine":"celery","task_id":"`+taskID+`"}`)
		audits := len(r.audits())
		r.apply(p, c.ID.String(), `{"status":"success","result":`+tc.result+`}`)
		var state string
		var exception *string
		var finished time.Time
		err := r.db.View(context.Background(), func(tx *store.ReadTx) error {
			return tx.QueryRow(`SELECT state, exception, finished_at FROM tasks WHERE task_id = ?`, taskID).Scan(&state, &exception, &finished)
		})
		if err != nil || state != tc.want {
			t.Errorf("%s: state %s, %v", tc.result, state, err)
		}
		if strings.Contains(tc.result, "Boom") && (exception == nil || *exception != "Boom") {
			t.Errorf("%s: exception %v", tc.result, exception)
		}
		if strings.Contains(tc.result, "finished_at") && !finished.Equal(rigStart.Add(-time.Hour)) {
			t.Errorf("%s: finished at %v", tc.result, finished)
		}
		want := []string{"command.completed"}
		if tc.corrected {
			want = append(want, "task.reconciled")
		}
		if got := r.audits()[audits:]; !slices.Equal(got, want) {
			t.Errorf("%s: audited %v", tc.result, got)
		}
	}
}

// The end of a task that comes between the question and the answer stays: what ran when the agent looked has ended since.
func TestReconcileDoesNotUndoWhatCameAfterTheQuestion(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	p := r.peer(agent.WebSocket)
	put := func(text string, args ...any) {
		r.setup(func(tx *store.Tx) error { _, err := tx.Exec(text, args...); return err })
	}
	put(`INSERT INTO tasks (id, project_no, engine, task_id, name, state, priority, created_at, updated_at)
		VALUES (?, ?, 'celery', 't1', 'n', 'started', 'normal', 0, 0)`, uuid.New(), r.project.No)
	c := r.issue("reconcile_task", `{"engine":"celery","task_id":"t1"}`)
	if _, err := r.cmds.ClaimPending(context.Background(), p, agent.ClaimRequest{Limit: 1}); err != nil {
		t.Fatal(err)
	}
	put(`UPDATE tasks SET state = 'success', updated_at = ?, finished_at = ?`, rigStart.Add(time.Hour), rigStart.Add(time.Hour))
	r.apply(p, c.ID.String(), `{"status":"success","result":{"engine_state":"started"}}`)
	var state string
	if err := r.db.View(context.Background(), func(tx *store.ReadTx) error {
		return tx.QueryRow(`SELECT state FROM tasks`).Scan(&state)
	}); err != nil || state != "success" {
		t.Errorf("state %s, %v", state, err)
	}
}

func TestReconcileOfAnUnknownTask(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	c := r.issue("reconcile_task", cancelPayload)
	r.apply(r.peer(agent.WebSocket), c.ID.String(), `{"status":"success","result":{"engine_state":"success"}}`)
	if got := r.get(c); got.Status != agent.Completed || r.rows("tasks") != 0 {
		t.Errorf("%s, %d tasks", got.Status, r.rows("tasks"))
	}
}
