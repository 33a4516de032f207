package commands

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// bulkFilter are the flags that choose tasks.
type bulkFilter struct {
	engine, state, queue, name, since, until string
	taskIDs                                  []string
}

func (f *bulkFilter) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.engine, "engine", "", "only tasks of this engine, such as celery; needed when tasks of several match")
	fs.StringVar(&f.state, "state", "", "tasks in this state (default: failure)")
	fs.StringVar(&f.queue, "queue", "", "only tasks of this queue")
	fs.StringVar(&f.name, "name", "", "only tasks of this name")
	fs.StringVar(&f.since, "since", "", "only tasks first heard of since then: a duration back from now (90s, 15m, 2h, 7d) or an RFC 3339 time")
	fs.StringVar(&f.until, "until", "", "only tasks first heard of before then: as --since (default: now)")
	fs.StringArrayVar(&f.taskIDs, "task-id", nil, "only the task with this whole id, or ENGINE:TASK_ID; repeat for more")
	cmd.MarkFlagsOneRequired("engine", "state", "queue", "name", "since", "until", "task-id")
}

func (f *bulkFilter) body(now time.Time) (map[string]any, error) {
	body := withoutEmpty(map[string]any{"engine": f.engine, "state": f.state, "queue": f.queue, "name": f.name})
	for name, text := range map[string]string{"since": f.since, "until": f.until} {
		if text == "" {
			continue
		}
		at, err := parseSince(text, now)
		if err != nil {
			return nil, err
		}
		body[name] = at.UTC().Format(time.RFC3339Nano)
	}
	if len(f.taskIDs) > 0 {
		engine, ids, err := bareTaskIDs(f.engine, f.taskIDs)
		if err != nil {
			return nil, err
		}
		body["task_ids"] = ids
		if engine != "" {
			body["engine"] = engine
		}
	}
	return body, nil
}

// retryable are the engines that a bulk retry knows.
var retryable = []string{"celery", "rq", "dramatiq"}

// bareTaskIDs takes the engine off ids that are written as `tasks list` shows them, ENGINE:TASK_ID.
func bareTaskIDs(engine string, args []string) (string, []string, error) {
	ids := make([]string, 0, len(args))
	for _, arg := range args {
		if head, tail, ok := strings.Cut(arg, ":"); ok && tail != "" && slices.Contains(retryable, head) {
			if engine != "" && engine != head {
				return "", nil, usagef("--task-id: %q is not of the engine %s; all tasks must be of one", arg, engine)
			}
			engine, arg = head, tail
		}
		ids = append(ids, arg)
	}
	return engine, ids, nil
}

// bulkPlan is what a dry run says.
type bulkPlan struct {
	Count      int     `json:"count"`
	More       bool    `json:"more"`
	LeftOut    int     `json:"left_out"`
	Until      string  `json:"until"`
	WaitingFor *string `json:"waiting_for"`
	Engine     *string `json:"engine"`
	Tasks      []struct {
		TaskID     string     `json:"task_id"`
		TaskName   string     `json:"task_name"`
		Queue      *string    `json:"queue"`
		State      string     `json:"state"`
		FinishedAt *time.Time `json:"finished_at"`
	} `json:"tasks"`
}

func (p *bulkPlan) leftOut() string {
	return fmt.Sprintf("%d left out: their retry is under way or has succeeded since they failed", p.LeftOut)
}

func newBulkRetriesStartCommand(opts *options) *cobra.Command {
	var (
		filter    bulkFilter
		confirm   confirmation
		agentName string
		key       string
		most      int
		exactly   int
		dryRun    bool
		wait      bool
	)
	cmd := &cobra.Command{
		Use:   "start",
		Short: "Retry every task that a filter matches",
		Long: `Retry every task that a filter matches: the server settles which ones these are, writes them down, and has each retried by a
command of its own, a few at a time, until every one was answered for. It goes on when the server or an agent restarts.

First the tasks are counted and shown, the oldest first; nothing is written yet. --dry-run ends there. --count N starts only
when exactly N tasks match, for scripts that have looked before.

A bulk retry retries a task at most once: where an agent took the command and did not answer, the task is reported as timeout
and not tried again. What a retry makes is a new task; the old one stays in its state. A task whose retry by another bulk retry is
under way or has succeeded is left out, so that the same filter retries nothing twice; once it failed again it is retried
again. Tasks first heard of after the count are not part of it: see --until.

While no agent can retry them the bulk retry waits, and says why. With --wait the exit code is 0 when every task was retried, 1
when some were not, 7 when it timed out.`,
		Example: `  signalbox bulk-retries start --engine celery --name app.mail --since 2h --dry-run
  signalbox bulk-retries start --engine celery --queue mail --wait
  signalbox bulk-retries start --task-id 3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10 --agent web-1 --yes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			chosen, err := filter.body(opts.now())
			if err != nil {
				return err
			}
			if most < 1 || most > 10000 {
				return usagef("--max: must be between 1 and 10000, got %d", most)
			}
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			body := map[string]any{"filter": chosen, "max": most}
			if agentName != "" {
				if body["agent_id"], err = s.resolve(cmd.Context(), "agent", agentName); err != nil {
					return err
				}
			}
			body["dry_run"] = true
			var plan record[bulkPlan]
			if err := s.post(cmd.Context(), s.path("bulk-retry-requests"), body, &plan); err != nil {
				return err
			}
			if dryRun {
				if opts.json {
					return opts.out.object("plan", plan)
				}
				return opts.showPlan(plan.V)
			}
			if cmd.Flags().Changed("count") && exactly != plan.V.Count {
				return exitf(ExitConflict, "%s, not %d: nothing is retried", matching(plan.V.Count), exactly)
			}
			if plan.V.Count == 0 && key == "" {
				if n := plan.V.LeftOut; n > 0 {
					return notFound("no task matches but %d whose retry is under way or has succeeded", n)
				}
				return notFound("no task matches")
			}
			if !confirm.yes {
				opts.out.say("%s", opts.planText(plan.V))
			}
			if err := confirm.ask(opts, fmt.Sprintf("Retry %s?", count(plan.V.Count, "task", "tasks"))); err != nil {
				return err
			}
			delete(body, "dry_run")
			body["confirm_count"] = plan.V.Count
			if key != "" {
				body["idempotency_key"] = key
			} else if plan.V.Until != "" {
				chosen["until"] = plan.V.Until // what was counted; under a key a repeat must ask for the same
			}
			var b record[bulkRetryRow]
			if err := s.post(cmd.Context(), s.path("bulk-retry-requests"), body, &b); err != nil {
				return err
			}
			if !wait {
				return opts.showBulkRetry(b)
			}
			return opts.watchBulkRetry(cmd.Context(), s, b)
		},
	}
	filter.add(cmd)
	confirm.add(cmd)
	fs := cmd.Flags()
	fs.StringVar(&agentName, "agent", "", "agent that retries them: name, id or unique id prefix (default: any that can)")
	fs.StringVar(&key, "idempotency-key", "", "repeat-safe key, 1 to 200 characters, unique in the project")
	fs.IntVar(&most, "max", 1000, "most tasks to retry, 1 to 10000; the oldest are taken")
	fs.IntVar(&exactly, "count", 0, "start only when exactly this many tasks match")
	fs.BoolVar(&dryRun, "dry-run", false, "count and show the tasks, and retry none")
	fs.BoolVar(&wait, "wait", false, "show the progress and wait for the end")
	_ = cmd.RegisterFlagCompletionFunc("agent", opts.completeAgents)
	return cmd
}

func matching(n int) string { return count(n, "task matches", "tasks match") }

func (o *options) planText(p bulkPlan) string {
	s := matching(p.Count)
	if p.More {
		s += "; more do, the oldest are taken: see --max"
	}
	if p.LeftOut > 0 {
		s += "; " + p.leftOut()
	}
	for i, t := range p.Tasks {
		if i == 5 {
			s += fmt.Sprintf("\n  … and %d more", p.Count-i)
			break
		}
		s += fmt.Sprintf("\n  %s  %s", oneLine(t.TaskID), oneLine(t.TaskName))
	}
	return s
}

func (o *options) showPlan(p bulkPlan) error {
	more := ""
	if p.More {
		more = " (and more: the oldest are taken, see --max)"
	}
	o.out.text("would retry %s%s", count(p.Count, "task", "tasks"), more)
	if p.LeftOut > 0 {
		o.out.text("%s", p.leftOut())
	}
	if p.WaitingFor != nil {
		o.out.text("they would wait: %s", oneLine(*p.WaitingFor))
	}
	if len(p.Tasks) == 0 {
		return nil
	}
	rows := make([][]string, 0, len(p.Tasks))
	for _, t := range p.Tasks {
		rows = append(rows, []string{t.TaskID, t.TaskName, dash(text(t.Queue)), t.State, o.out.when(t.FinishedAt)})
	}
	if err := o.out.table([]string{"TASK", "NAME", "QUEUE", "STATE", "FINISHED"}, rows); err != nil {
		return err
	}
	if n := p.Count - len(p.Tasks); n > 0 {
		o.out.text("… and %d more", n)
	}
	return nil
}
