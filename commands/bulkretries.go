package commands

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// bulkRetryRow is a bulk retry as the server shows it.
type bulkRetryRow struct {
	ID         string     `json:"id"`
	Status     string     `json:"status"`
	Engine     string     `json:"engine"`
	AgentID    *string    `json:"agent_id"`
	Total      int        `json:"total"`
	Waiting    int        `json:"waiting"`
	InFlight   int        `json:"in_flight"`
	Completed  int        `json:"completed"`
	Failed     int        `json:"failed"`
	TimedOut   int        `json:"timeout"`
	Refused    int        `json:"refused"`
	Cancelled  int        `json:"cancelled"`
	WaitingFor *string    `json:"waiting_for"`
	Error      *string    `json:"error"`
	IssuedBy   *string    `json:"issued_by"`
	CreatedAt  *time.Time `json:"created_at"`
	EndedAt    *time.Time `json:"ended_at"`
	TimeoutAt  *time.Time `json:"timeout_at"`
}

func (b *bulkRetryRow) terminal() bool { return commandRow{Status: b.Status}.terminal() }

// progress is the counts in words, those that are 0 left out.
func (b *bulkRetryRow) progress() string {
	s := fmt.Sprintf("%d of %d retried", b.Completed, b.Total)
	for _, part := range []struct {
		n    int
		word string
	}{{b.Failed, "failed"}, {b.TimedOut, "timed out"}, {b.Refused, "refused"}, {b.Cancelled, "cancelled"}, {b.InFlight, "under way"},
		{b.Waiting, "waiting"}} {
		if part.n > 0 {
			s += fmt.Sprintf(", %d %s", part.n, part.word)
		}
	}
	if b.WaitingFor != nil && !b.terminal() {
		s += ": " + *b.WaitingFor
	}
	return s
}

func newBulkRetriesCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bulk-retries",
		Short: "Retry many tasks, each with a command of its own, through restarts",
		Example: `  signalbox bulk-retries start --engine celery --name app.mail --since 2h --dry-run
  signalbox bulk-retries watch 7d2a`,
	}
	cmd.AddCommand(newBulkRetriesStartCommand(opts), newBulkRetriesListCommand(opts), newBulkRetriesShowCommand(opts),
		newBulkRetriesWatchCommand(opts), newBulkRetriesCancelCommand(opts))
	return cmd
}

func newBulkRetriesListCommand(opts *options) *cobra.Command {
	var f filters
	var open bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List bulk retries, newest first",
		Example: `  signalbox bulk-retries list --open
  signalbox bulk-retries list --limit 10 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.checkLimit(); err != nil {
				return err
			}
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			query := url.Values{}
			if open {
				query.Set("open", "true")
			}
			setNonEmpty(query, "cursor", f.cursor)
			rows, next, err := list[bulkRetryRow](cmd.Context(), s, s.path("bulk-retry-requests"), query, f.limit)
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", rows}, field{"next_cursor", next})
			}
			table := make([][]string, 0, len(rows))
			for _, r := range rows {
				table = append(table, []string{r.V.ID, r.V.Engine, r.V.Status, opts.out.when(r.V.CreatedAt), cut(r.V.progress(), 100)})
			}
			return opts.out.table([]string{"ID", "ENGINE", "STATE", "STARTED", "PROGRESS"}, table)
		},
	}
	cmd.Flags().BoolVar(&open, "open", false, "only those that have not ended")
	f.addLimit(cmd)
	f.addCursor(cmd, "next_cursor of an earlier page")
	return cmd
}

// resolveBulkRetry settles the project and the id of a bulk retry, which is that of its command.
func (o *options) resolveBulkRetry(cmd *cobra.Command, arg string) (*scope, string, error) {
	s, err := o.newScope(cmd.Context())
	if err != nil {
		return nil, "", err
	}
	id, err := s.resolveAs(cmd.Context(), "command", "bulk retry", arg)
	return s, id, err
}

func (o *options) showBulkRetry(b record[bulkRetryRow]) error {
	if o.json {
		return o.out.object("bulk_retry", b)
	}
	v := b.V
	return o.out.facts([2]string{"id", v.ID}, [2]string{"state", v.Status}, [2]string{"engine", v.Engine}, [2]string{"agent", text(v.AgentID)},
		[2]string{"progress", v.progress()}, [2]string{"issued by", text(v.IssuedBy)}, [2]string{"started", o.out.when(v.CreatedAt)},
		[2]string{"ended", o.out.when(v.EndedAt)}, [2]string{"error", text(v.Error)})
}

// bulkTaskRow is one task of a bulk retry.
type bulkTaskRow struct {
	Position  int     `json:"position"`
	TaskID    string  `json:"task_id"`
	TaskName  string  `json:"task_name"`
	Status    string  `json:"status"`
	CommandID *string `json:"command_id"`
	Error     *string `json:"error"`
}

func newBulkRetriesShowCommand(opts *options) *cobra.Command {
	var f filters
	var tasks bool
	cmd := &cobra.Command{
		Use:   "show BULK_RETRY",
		Short: "Show one bulk retry with its counts, or its tasks",
		Long: `Show one bulk retry with its counts; with --tasks, its tasks and how each stands. A task that is cancelled was never handed
to an agent and can be retried again; one that timed out was, and may have been retried: look before you retry it.`,
		Example: `  signalbox bulk-retries show 7d2a
  signalbox bulk-retries show 7d2a --tasks --state timeout --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.checkLimit(); err != nil {
				return err
			}
			s, id, err := opts.resolveBulkRetry(cmd, args[0])
			if err != nil {
				return err
			}
			if !tasks && f.state == "" {
				var b record[bulkRetryRow]
				if err := s.get(cmd.Context(), s.path("bulk-retry-requests", id), nil, &b); err != nil {
					return err
				}
				return opts.showBulkRetry(b)
			}
			query := url.Values{}
			setNonEmpty(query, "status", f.state)
			setNonEmpty(query, "cursor", f.cursor)
			rows, next, err := list[bulkTaskRow](cmd.Context(), s, s.path("bulk-retry-requests", id, "tasks"), query, f.limit)
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", rows}, field{"next_cursor", next})
			}
			table := make([][]string, 0, len(rows))
			for _, r := range rows {
				table = append(table, []string{itoa(r.V.Position), r.V.TaskID, r.V.TaskName, r.V.Status, dash(text(r.V.CommandID)),
					cut(text(r.V.Error), 80)})
			}
			return opts.out.table([]string{"NO", "TASK", "NAME", "STATE", "COMMAND", "ERROR"}, table)
		},
	}
	cmd.Flags().BoolVar(&tasks, "tasks", false, "show the tasks")
	f.addState(cmd, "waiting", "issued", "completed", "failed", "timeout", "refused", "cancelled")
	f.addLimit(cmd)
	f.addCursor(cmd, "next_cursor of an earlier page of --tasks")
	return cmd
}

func newBulkRetriesWatchCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "watch BULK_RETRY",
		Short: "Follow a bulk retry until its end",
		Long: `Follow a bulk retry until its end: a line each time its counts changed. The exit code is 0 when every task was retried, 1 when
some were not, 7 when it timed out. Interrupting leaves it going.`,
		Example: `  signalbox bulk-retries watch 7d2a
  signalbox bulk-retries watch 7d2a --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, id, err := opts.resolveBulkRetry(cmd, args[0])
			if err != nil {
				return err
			}
			var b record[bulkRetryRow]
			if err := s.get(cmd.Context(), s.path("bulk-retry-requests", id), nil, &b); err != nil {
				return err
			}
			return opts.watchBulkRetry(cmd.Context(), s, b)
		},
	}
}

// bulkProgressEvery is the least time between two lines of progress.
const bulkProgressEvery = 500 * time.Millisecond

// watchBulkRetry shows progress: the stream of commands says when to look again.
func (o *options) watchBulkRetry(ctx context.Context, s *scope, b record[bulkRetryRow]) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	shown, last := "", time.Time{}
	show := func() error {
		last = o.now()
		if line := b.V.Status + " " + b.V.progress(); line == shown {
			return nil
		} else {
			shown = line
		}
		if o.json {
			line, err := marshal(b)
			if err != nil {
				return err
			}
			o.out.wrote = true
			return o.out.writeLine(line)
		}
		o.out.text("%s  %s", shortID(b.V.ID), oneLine(b.V.progress()))
		return nil
	}
	look := func(ctx context.Context) error {
		var latest record[bulkRetryRow]
		if err := s.get(ctx, s.path("bulk-retry-requests", b.V.ID), nil, &latest); err != nil {
			return err
		}
		b = latest
		if err := show(); err != nil {
			return err
		}
		if b.V.terminal() {
			return errStop
		}
		return nil
	}
	if err := show(); err != nil {
		return err
	}
	if !b.V.terminal() {
		follow := &stream{client: s.client, path: s.path("commands", "stream"), query: url.Values{}, follow: true, delay: o.retryDelay,
			notice: o.out.say, opened: look}
		err := follow.run(ctx, func(rec *streamRecord) error {
			if rec.Command.V.ID != b.V.ID && o.now().Sub(last) < bulkProgressEvery {
				return nil
			}
			return look(ctx)
		})
		if ctx.Err() != nil {
			return exitf(ExitFailed, "stopped watching; bulk retry %s goes on", b.V.ID)
		}
		if err != nil {
			return err
		}
	}
	switch b.V.Status {
	case "completed":
		return nil
	case "timeout":
		return exitf(ExitTimeout, "bulk retry %s timed out: %s", b.V.ID, oneLine(text(b.V.Error)))
	case "cancelled":
		return exitf(ExitFailed, "bulk retry %s was cancelled: %s", b.V.ID, b.V.progress())
	}
	exit := exitf(ExitFailed, "bulk retry %s: %s", b.V.ID, oneLine(text(b.V.Error)))
	exit.hint = "`signalbox bulk-retries show " + b.V.ID + " --tasks --state failed` says why"
	return exit
}

func newBulkRetriesCancelCommand(opts *options) *cobra.Command {
	var confirm confirmation
	cmd := &cobra.Command{
		Use:   "cancel BULK_RETRY",
		Short: "Cancel what a bulk retry has not handed over yet",
		Long: `Cancel a bulk retry: tasks that wait and commands that no agent has taken are given up. What an agent has goes on, and is
still counted. Exit code 5 when it has ended.`,
		Example: `  signalbox bulk-retries cancel 7d2a --yes`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, id, err := opts.resolveBulkRetry(cmd, args[0])
			if err != nil {
				return err
			}
			if err := confirm.ask(opts, fmt.Sprintf("Cancel bulk retry %s?", id)); err != nil {
				return err
			}
			var b record[bulkRetryRow]
			if err := s.post(cmd.Context(), s.path("bulk-retry-requests", id, "cancel"), nil, &b); err != nil {
				return err
			}
			return opts.showBulkRetry(b)
		},
	}
	confirm.add(cmd)
	return cmd
}
