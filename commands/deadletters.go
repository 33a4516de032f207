package commands

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"signalbox/appliance/fault"
)

type deadLetterRow struct {
	TaskID       string  `json:"task_id"`
	TaskName     *string `json:"task_name"`
	Queue        *string `json:"queue"`
	FailedAt     *string `json:"failed_at"`
	ErrorExcerpt *string `json:"error_excerpt"`
	Attempts     *int64  `json:"attempts"`
}

type deadLetterPage struct {
	Entries    []record[deadLetterRow] `json:"entries"`
	NextCursor *string                 `json:"next_cursor"`
	Total      *int64                  `json:"total"`
}

func newDeadLettersCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dead-letters",
		Short: "List dead letters as an agent sees them now, and put them back",
		Example: `  signalbox dead-letters list --engine rq
  signalbox dead-letters requeue rq 3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10 --wait`,
	}
	cmd.AddCommand(newDeadLettersListCommand(opts), newDeadLettersRequeueCommand(opts))
	return cmd
}

func newDeadLettersListCommand(opts *options) *cobra.Command {
	var engine, queue, cursor string
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Ask an agent for an engine's dead letters",
		Long: `Ask an agent for an engine's dead letters, as they are now: the server keeps none. An agent that reports to list them is
asked, otherwise one that reports nothing, as long-poll agents do. Exit code 5 when no agent can answer, with the reason for
each; 7 when none answered within 15 seconds; 1 when the agent failed.`,
		Example: `  signalbox dead-letters list --engine rq
  signalbox dead-letters list --engine celery --queue mail --limit 20 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 || limit > 200 {
				return usagef("--limit: must be between 1 and 200, got %d", limit)
			}
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			query := url.Values{"engine": {engine}, "limit": {itoa(limit)}}
			setNonEmpty(query, "queue", queue)
			setNonEmpty(query, "cursor", cursor)
			var p record[deadLetterPage]
			if err := s.get(cmd.Context(), s.path("dead-letters"), query, &p); err != nil {
				return explainCandidates(err)
			}
			if opts.json {
				return opts.out.object("dead_letters", p)
			}
			rows := make([][]string, 0, len(p.V.Entries))
			for _, e := range p.V.Entries {
				rows = append(rows, []string{e.V.TaskID, dash(text(e.V.TaskName)), dash(text(e.V.Queue)), number(e.V.Attempts),
					dash(text(e.V.FailedAt)), cut(text(e.V.ErrorExcerpt), 80)})
			}
			if err := opts.out.table([]string{"TASK", "NAME", "QUEUE", "ATTEMPTS", "FAILED", "ERROR"}, rows); err != nil {
				return err
			}
			if p.V.NextCursor != nil {
				opts.out.say("more with --cursor %s", *p.V.NextCursor)
			}
			return nil
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&engine, "engine", "", "engine, such as celery")
	fs.StringVar(&queue, "queue", "", "only this queue (default: all)")
	fs.IntVar(&limit, "limit", 100, "most entries, 1 to 200")
	fs.StringVar(&cursor, "cursor", "", "next_cursor of an earlier page")
	mustRequire(cmd, "engine")
	return cmd
}

// explainCandidates adds to a refusal why each agent cannot answer.
func explainCandidates(err error) error {
	list, _ := fault.Details(err)["candidates"].([]any)
	var reasons []string
	for _, c := range list {
		m, _ := c.(map[string]any)
		if reason, ok := m["reason"].(string); ok {
			reasons = append(reasons, oneLine(reason))
		}
	}
	if len(reasons) == 0 {
		return err
	}
	return fmt.Errorf("%w:\n  %s", err, strings.Join(reasons, "\n  "))
}

func newDeadLettersRequeueCommand(opts *options) *cobra.Command {
	var agentName string
	var wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "requeue ENGINE TASK_ID...",
		Short: "Put dead letters back on their queues",
		Long: `Put dead letters back on their queues: one command for each task. Without --agent it is the one agent that reports to be able
to. The exit code is 0 when every command was issued, with --wait when every one completed; 1 when one failed; 7 when one did
not end within --timeout; 8 when the agent is offline and keeps them pending.`,
		Example: `  signalbox dead-letters requeue rq 3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10 77ab0c5e-6b1d-4f0a-8a3e-1c2d3e4f5a6b --wait
  signalbox dead-letters requeue celery 3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10 --agent web-1 --json`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if timeout <= 0 {
				return usagef("--timeout: must be positive, got %s", timeout)
			}
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			agentID, err := s.requeuer(cmd.Context(), agentName, args[0])
			if err != nil {
				return err
			}
			return opts.requeue(cmd.Context(), s, agentID, args[0], args[1:], wait, timeout)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&agentName, "agent", "", "agent: name, id or unique id prefix (default: the one that reports it can)")
	fs.BoolVar(&wait, "wait", false, "wait for the results")
	durationVar(fs, &timeout, "timeout", time.Minute, "longest wait of --wait, for all of them")
	_ = cmd.RegisterFlagCompletionFunc("agent", opts.completeAgents)
	return cmd
}

// requeuer is the agent named, or the only one that reports to requeue dead letters of the engine; without any that does,
// the project's only agent.
func (s *scope) requeuer(ctx context.Context, name, engine string) (string, error) {
	if name != "" {
		return s.resolve(ctx, "agent", name)
	}
	var agents []record[agentRow]
	if err := s.get(ctx, s.path("agents"), nil, &agents); err != nil {
		return "", err
	}
	var able []agentRow
	for _, a := range agents {
		if slices.Contains(a.V.Capabilities[engine], "requeue_dead_letter") {
			able = append(able, a.V)
		}
	}
	online := able[:0:0]
	for _, a := range able {
		if a.State == "online" {
			online = append(online, a)
		}
	}
	switch {
	case len(online) == 1:
		return online[0].ID, nil
	case len(able) == 1:
		return able[0].ID, nil
	case len(able) > 1:
		names := make([]string, 0, len(able))
		for _, a := range able {
			names = append(names, fmt.Sprintf("%s (%s)", a.Name, a.State))
		}
		return "", usagef("--agent: %d agents can requeue dead letters of %s, name one of\n  %s", len(able), engine, strings.Join(names, "\n  "))
	}
	return s.theAgent(ctx, "")
}

// requeued is what became of one task.
type requeued struct {
	TaskID  string              `json:"task_id"`
	Command *record[commandRow] `json:"command"`
	Error   *string             `json:"error"`
}

// requeue issues a command for each task, waits for all if asked to, and sums up.
func (o *options) requeue(ctx context.Context, s *scope, agentID, engine string, tasks []string, wait bool, timeout time.Duration) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	out := make([]requeued, 0, len(tasks))
	offline := false
	for _, id := range tasks {
		body := map[string]any{"agent_id": agentID, "engine": engine, "task_id": id}
		var c record[commandRow]
		err := s.post(ctx, s.path("commands", "requeue-dead-letter"), body, &c)
		if fault.Is(err, fault.AgentOffline) {
			offline = true
			c, err = s.keptCommand(ctx, err)
		}
		if err != nil && len(tasks) == 1 {
			return err
		}
		r := requeued{TaskID: id, Command: &c}
		if err != nil {
			text := err.Error()
			r = requeued{TaskID: id, Error: &text}
		}
		out = append(out, r)
	}
	if wait {
		waitCtx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		for i := range out {
			if err := o.awaitCommand(waitCtx, s, out[i].Command); err != nil && waitCtx.Err() == nil {
				return err
			}
		}
	}
	if err := o.showRequeued(out); err != nil {
		return err
	}
	return requeueExit(out, wait, offline)
}

// awaitCommand follows a command until it has ended or ctx has.
func (o *options) awaitCommand(ctx context.Context, s *scope, c *record[commandRow]) error {
	if c == nil || c.V.terminal() || ctx.Err() != nil {
		return nil
	}
	follow := &stream{client: s.client, path: s.path("commands", "stream"), query: url.Values{"command_id": {c.V.ID}}, follow: true,
		delay: o.retryDelay, notice: o.out.say, opened: func(ctx context.Context) error { return s.recheck(ctx, c) }}
	return follow.run(ctx, func(*streamRecord) error { return s.recheck(ctx, c) })
}

func (o *options) showRequeued(out []requeued) error {
	if o.json {
		return o.out.object("items", out)
	}
	rows := make([][]string, 0, len(out))
	for _, r := range out {
		row := []string{r.TaskID, "not issued", "-", text(r.Error)}
		if r.Command != nil {
			c := r.Command.V
			row = []string{r.TaskID, c.Status, c.ID, text(c.Error)}
		}
		rows = append(rows, row)
	}
	return o.out.table([]string{"TASK", "STATE", "COMMAND", "ERROR"}, rows)
}

// requeueExit is the exit of a requeue: the worst of what became of its tasks.
func requeueExit(out []requeued, wait, offline bool) error {
	refused, failed, open := 0, 0, 0
	for _, r := range out {
		switch {
		case r.Command == nil:
			refused++
		case r.Command.V.Status == "failed" || r.Command.V.Status == "cancelled":
			failed++
		case r.Command.V.Status != "completed":
			open++
		}
	}
	switch {
	case refused+failed > 0:
		return exitf(ExitFailed, "%d of %d dead letters were not put back", refused+failed, len(out))
	case wait && open > 0:
		return exitf(ExitTimeout, "%d of %d dead letters were not answered for in time", open, len(out))
	case offline:
		return exitf(ExitDegraded, "the agent is offline: the commands stay pending")
	}
	return nil
}
