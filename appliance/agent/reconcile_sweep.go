package agent

import (
	"context"
	"strconv"
	"sync"
	"time"

	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

// maxReconcile is the most tasks one sweep asks about (agent protocol K); reconcilePages is how often it looks for as many,
// past those that it need not ask about.
const (
	maxReconcile   = 100
	reconcilePages = 10
)

// StartedTask is a task that has been running for long.
type StartedTask struct {
	No        int64
	ProjectNo int64
	Engine    string
	TaskID    string
	StartedAt time.Time
	// ReporterNo is the agent that last told of the task; 0: no event of it is kept. Revoked tells that it is not to come back.
	ReporterNo int64
	Revoked    bool
}

// startedPlace is where the next sweep goes on, so that tasks that truly run for long do not keep others from being asked
// about.
type startedPlace struct {
	mu    sync.Mutex
	at    time.Time
	after int64
}

// SweepStarted asks about tasks that began before the cutoff and are still `started`: each gets a reconcile_task command,
// whose answer corrects the task (agent protocol E.2, K). It asks about no more than 100 tasks and looks at no more than
// 1000, goes on behind them the next time, and returns how many commands it issued. A task whose agent answers that it is
// still started, or that it does not know, is asked about again after 10 minutes, and then after twice the time before, up to
// 6 hours.
//
// The agent asked is the one that last told of the task: another one's result store may not know it. Where that agent is
// revoked or unknown, it is the only one that can answer for the engine, if there is just one. A task that nobody can
// answer for, or that is being asked about, is passed over.
func (c *Commands) SweepStarted(ctx context.Context, before time.Time) (n int, err error) {
	c.started.mu.Lock()
	defer c.started.mu.Unlock()
	var due []question
	able := ableAgents{}
	for range reconcilePages {
		limit := maxReconcile - len(due)
		var tasks []StartedTask
		open := map[string]bool{}
		err = c.st.View(ctx, func(tx CommandReadTx) error {
			if tasks, err = tx.CommandTasksStarted(before, c.started.at, c.started.after, limit); err != nil || len(tasks) == 0 {
				return err
			}
			open, err = tx.CommandsOpenTargets("reconcile_task")
			return err
		})
		if err != nil {
			return 0, err
		}
		more, err := c.answerable(ctx, tasks, open, able)
		if err != nil {
			return 0, err
		}
		due = append(due, more...)
		if len(tasks) < limit {
			c.started.at, c.started.after = time.Time{}, 0
			c.asked.walked()
			break
		}
		last := tasks[len(tasks)-1]
		if c.started.at, c.started.after = last.StartedAt, last.No; len(due) == maxReconcile {
			break
		}
	}
	if len(due) == 0 {
		return 0, nil
	}
	by := Principal{Kind: "sweep", Name: "the appliance", Role: Operator}
	err = c.st.Update(ctx, "ask about started tasks", func(tx CommandTx) error {
		n = 0
		for _, q := range due {
			_, err := c.IssueIn(tx, by, q.request)
			switch {
			case err == nil:
				n++
				tx.AfterCommit(func() { c.asked.ask(q.task) })
			case fault.Is(err, fault.NotFound), fault.Is(err, fault.Invalid): // it changed since: the next sweep sees
			default:
				return err
			}
		}
		return nil
	})
	return n, err
}

// question is a task and the command that asks about it.
type question struct {
	task    *StartedTask
	request IssueRequest
}

// ableAgents are the agents that can be asked, by project and engine.
type ableAgents map[[2]string][]Standing

// answerable makes the commands for the tasks that somebody can answer for and that are due.
func (c *Commands) answerable(ctx context.Context, tasks []StartedTask, open map[string]bool, known ableAgents) ([]question, error) {
	var due []question
	now := c.opts.Clock.Now()
	for i := range tasks {
		t := &tasks[i]
		if !c.asked.due(t, now) || open[t.key()] {
			continue
		}
		key := [2]string{strconv.FormatInt(t.ProjectNo, 10), t.Engine}
		list, ok := known[key]
		if !ok {
			var err error
			if list, err = c.Able(ctx, t.ProjectNo, "reconcile_task", t.Engine); err != nil {
				return nil, err
			}
			known[key] = list
		}
		target, ok := whoAnswers(list, t)
		if !ok {
			continue
		}
		payload := rawjson.AppendString([]byte(`{"engine":`), t.Engine)
		payload = append(rawjson.AppendString(append(payload, `,"task_id":`...), t.TaskID), '}')
		due = append(due, question{t, IssueRequest{ProjectNo: t.ProjectNo, AgentID: target.ID, Action: "reconcile_task", Payload: payload}})
	}
	return due, nil
}

// whoAnswers chooses the agent that is asked about a task.
func whoAnswers(list []Standing, t *StartedTask) (Standing, bool) {
	var able []Standing
	for _, a := range list {
		if !a.Able {
			continue
		}
		if a.No == t.ReporterNo {
			return a, true
		}
		able = append(able, a)
	}
	if len(able) == 1 && (t.ReporterNo == 0 || t.Revoked) {
		return able[0], true
	}
	return Standing{}, false
}

// OpenTarget is the key of a target within its project.
func OpenTarget(projectNo int64, targetID string) string {
	return strconv.FormatInt(projectNo, 10) + " " + cutRunes(targetID, maxTargetID)
}
