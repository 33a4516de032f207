package commands

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// failureRow is a group of failed tasks.
type failureRow struct {
	ID              string      `json:"id"`
	CatchAll        bool        `json:"catch_all"`
	Engine          string      `json:"engine"`
	TaskName        string      `json:"task_name"`
	ExceptionClass  string      `json:"exception_class"`
	Frames          []string    `json:"frames"`
	State           string      `json:"state"`
	StateBy         *string     `json:"state_by"`
	StateAt         *time.Time  `json:"state_at"`
	Reopened        int         `json:"reopened"`
	Failures        int64       `json:"failures"`
	FirstSeenAt     *time.Time  `json:"first_seen_at"`
	LastSeenAt      *time.Time  `json:"last_seen_at"`
	SampleTaskID    string      `json:"sample_task_id"`
	SampleException string      `json:"sample_exception"`
	SampleTraceback *string     `json:"sample_traceback"`
	Latest          []failedRow `json:"latest"`
}

// failedRow is one failure of a group.
type failedRow struct {
	Engine     string     `json:"engine"`
	TaskID     string     `json:"task_id"`
	OccurredAt *time.Time `json:"occurred_at"`
	TaskName   *string    `json:"task_name"`
	TaskState  *string    `json:"task_state"`
}

// otherFailures is what the group is called that takes what lies beyond the cap of groups.
const otherFailures = "(all further kinds)"

func newFailuresCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "failures",
		Short: "Group failed tasks by what failed and where",
		Long: `Group failed tasks by what failed and where.

Failures of one task belong together when they raise the same class of exception in the same place of the code; messages,
line numbers and where the code is installed make no difference. A group is open until somebody resolves or ignores it. A
failure that happens after a group was resolved opens it again; an ignored group stays ignored and is counted on.`,
		Example: `  signalbox failures list --state open
  signalbox failures show 5d1a
  signalbox failures resolve 5d1a`,
	}
	cmd.AddCommand(newFailuresListCommand(opts), newFailuresShowCommand(opts),
		newFailuresStateCommand(opts, "resolve", "Say that a group is mended",
			"Say that a group is mended. A failure that happens later opens it again."),
		newFailuresStateCommand(opts, "ignore", "Say that a group does not matter",
			"Say that a group does not matter. Its failures are counted on; it stays ignored, and nobody is notified of it."),
		newFailuresStateCommand(opts, "reopen", "Take back that a group is resolved or ignored",
			"Take back that a group is resolved or ignored."))
	return cmd
}

func newFailuresListCommand(opts *options) *cobra.Command {
	var (
		f            filters
		engine, name string
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List groups of failed tasks, the last seen first",
		Example: `  signalbox failures list --state open
  signalbox failures list --name billing.charge --since 1d --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.checkLimit(); err != nil {
				return err
			}
			since, err := f.sinceTime(opts.now())
			if err != nil {
				return err
			}
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			query := map[string][]string{}
			for key, value := range map[string]string{"state": f.state, "engine": engine, "task_name": name, "since": since,
				"cursor": f.cursor} {
				setNonEmpty(query, key, value)
			}
			rows, next, err := list[failureRow](cmd.Context(), s, s.path("failures"), query, f.limit)
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", rows}, field{"next_cursor", next})
			}
			table := make([][]string, 0, len(rows))
			for _, r := range rows {
				g := r.V
				task, where := g.Engine+":"+g.TaskName, "-"
				if len(g.Frames) > 0 {
					where = g.Frames[0]
				}
				if g.CatchAll {
					task = otherFailures
				}
				table = append(table, []string{shortID(g.ID), g.State, itoa(g.Failures), opts.out.when(g.LastSeenAt), task,
					dash(g.ExceptionClass), cut(where, 60)})
			}
			return opts.out.table([]string{"GROUP", "STATE", "FAILURES", "LAST SEEN", "TASK", "EXCEPTION", "WHERE"}, table)
		},
	}
	f.addState(cmd, "open", "resolved", "ignored")
	f.addSince(cmd)
	f.addLimit(cmd)
	f.addCursor(cmd, "next_cursor of an earlier page")
	cmd.Flags().StringVar(&engine, "engine", "", "only this engine, such as celery")
	cmd.Flags().StringVar(&name, "name", "", "only this task name")
	return cmd
}

// resolveFailure makes the scope and finds the group that an argument means.
func (o *options) resolveFailure(ctx context.Context, arg string) (*scope, string, error) {
	s, err := o.newScope(ctx)
	if err != nil {
		return nil, "", err
	}
	id, err := s.resolve(ctx, "failure", arg)
	return s, id, err
}

func newFailuresShowCommand(opts *options) *cobra.Command {
	var latest int
	cmd := &cobra.Command{
		Use:   "show GROUP",
		Short: "Show a group with its newest failures",
		Example: `  signalbox failures show 5d1a
  signalbox failures show 5d1a --latest 200 --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if latest < 0 || latest > 500 {
				return usagef("--latest: must be between 0 and 500, got %d", latest)
			}
			s, id, err := opts.resolveFailure(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var g record[failureRow]
			query := map[string][]string{"latest": {fmt.Sprint(latest)}}
			if err := s.get(cmd.Context(), s.path("failures", id), query, &g); err != nil {
				return err
			}
			if opts.json {
				return opts.out.object("failure", g)
			}
			return opts.showFailure(&g.V)
		},
	}
	cmd.Flags().IntVar(&latest, "latest", 20, "most failures to show, newest first; 0 for none")
	return cmd
}

func (o *options) showFailure(g *failureRow) error {
	task := g.Engine + ":" + g.TaskName
	if g.CatchAll {
		task = otherFailures
	}
	state := g.State
	if by := text(g.StateBy); by != "" {
		state += " by " + by
	}
	reopened := ""
	if g.Reopened > 0 {
		reopened = itoa(g.Reopened)
	}
	if err := o.out.facts([2]string{"group", g.ID}, [2]string{"task", task}, [2]string{"exception", g.ExceptionClass},
		[2]string{"where", strings.Join(g.Frames, ", called by ")}, [2]string{"state", state},
		[2]string{"since", o.out.when(g.StateAt)}, [2]string{"reopened", reopened}, [2]string{"failures", itoa(g.Failures)},
		[2]string{"first seen", o.out.when(g.FirstSeenAt)}, [2]string{"last seen", o.out.when(g.LastSeenAt)},
		[2]string{"newest", g.SampleTaskID}, [2]string{"message", g.SampleException}); err != nil {
		return err
	}
	if tb := text(g.SampleTraceback); tb != "" {
		o.out.text("\n%s", printable(tb))
	}
	if len(g.Latest) == 0 {
		return nil
	}
	o.out.text("\nFailures, newest first; `signalbox tasks show TASK` tells more of one:")
	table := make([][]string, 0, len(g.Latest))
	for _, f := range g.Latest {
		table = append(table, []string{o.out.when(f.OccurredAt), f.Engine + ":" + f.TaskID, dash(text(f.TaskName)),
			dash(text(f.TaskState))})
	}
	return o.out.table([]string{"FAILED", "TASK", "NAME", "STATE NOW"}, table)
}

func newFailuresStateCommand(opts *options, verb, short, long string) *cobra.Command {
	return &cobra.Command{
		Use:     verb + " GROUP",
		Short:   short,
		Long:    long,
		Example: "  signalbox failures " + verb + " 5d1a\n  signalbox failures " + verb + " 5d1a --json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, id, err := opts.resolveFailure(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var g record[failureRow]
			if err := s.post(cmd.Context(), s.path("failures", id, verb), nil, &g); err != nil {
				return err
			}
			if opts.json {
				return opts.out.object("failure", g)
			}
			opts.out.text("%s  %s  %s:%s  %s", shortID(g.V.ID), g.V.State, oneLine(g.V.Engine), oneLine(g.V.TaskName),
				dash(oneLine(g.V.ExceptionClass)))
			return nil
		},
	}
}
