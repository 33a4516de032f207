package commands

import (
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// fireRow is a fire of a schedule.
type fireRow struct {
	ID           string     `json:"id"`
	FireID       string     `json:"fire_id"`
	ScheduleID   string     `json:"schedule_id"`
	ScheduleName string     `json:"schedule_name"`
	Engine       string     `json:"engine"`
	Origin       string     `json:"origin"`
	SlotAt       *time.Time `json:"slot_at"`
	CommandID    *string    `json:"command_id"`
	Status       string     `json:"status"`
	ScheduledFor *time.Time `json:"scheduled_for"`
	FiredAt      *time.Time `json:"fired_at"`
	AckedAt      *time.Time `json:"acked_at"`
	LatencyMS    *int64     `json:"latency_ms"`
	FinishedAt   *time.Time `json:"finished_at"`
	ErrorCode    *string    `json:"error_code"`
	ErrorMessage *string    `json:"error_message"`
}

var fireStates = [...]string{"buffered", "delivered", "failed", "acked_success", "acked_failed", "buffer_expired"}

func newFiresCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fires",
		Short: "List, show and explain fires of schedules",
		Long: `List, show and explain fires of schedules.

A fire goes to an online agent that lists the schedule's engine, as a schedule.fire command. Without such an agent it is
buffered, and handed over when one comes; what the schedule's catch_up leaves out is dropped then. After the buffer time it
ends as buffer_expired. Agents that connect over long-poll report no engines: ` + "`signalbox agents declare-engines AGENT ENGINE`" + ` tells them.`,
		Example: `  signalbox fires list --state buffered
  signalbox fires explain 7d2a`,
	}
	cmd.AddCommand(newFiresListCommand(opts), newFiresShowCommand(opts), newFiresExplainCommand(opts))
	return cmd
}

func newFiresListCommand(opts *options) *cobra.Command {
	var (
		f        filters
		schedule string
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List fires, newest first",
		Example: `  signalbox fires list --state buffered
  signalbox fires list --schedule nightly-report --since 7d --limit 200 --json`,
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
			query := url.Values{}
			setNonEmpty(query, "status", f.state)
			setNonEmpty(query, "since", since)
			setNonEmpty(query, "cursor", f.cursor)
			if schedule != "" {
				id, err := s.resolve(cmd.Context(), "schedule", schedule)
				if err != nil {
					return err
				}
				query.Set("schedule_id", id)
			}
			rows, next, err := list[fireRow](cmd.Context(), s, s.path("fires"), query, f.limit)
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", rows}, field{"next_cursor", next})
			}
			table := make([][]string, 0, len(rows))
			for _, r := range rows {
				table = append(table, []string{shortID(r.V.FireID), r.V.ScheduleName, r.V.Status, r.V.Origin, opts.out.when(r.V.ScheduledFor),
					dash(latencyText(r.V.LatencyMS)), dash(cut(text(r.V.ErrorMessage), 60))})
			}
			return opts.out.table([]string{"FIRE", "SCHEDULE", "STATE", "ORIGIN", "FOR", "LATENCY", "ERROR"}, table)
		},
	}
	f.addState(cmd, fireStates[:]...)
	cmd.Flags().StringVar(&schedule, "schedule", "", "only this schedule: name, id or unique id prefix")
	f.addSince(cmd)
	f.addLimit(cmd)
	f.addCursor(cmd, "next_cursor of an earlier page")
	return cmd
}

func latencyText(ms *int64) string {
	if ms == nil {
		return ""
	}
	return (time.Duration(*ms) * time.Millisecond).String()
}

// resolveFire makes the scope and finds the fire that an argument means.
func (o *options) resolveFire(ctx context.Context, arg string) (*scope, string, error) {
	s, err := o.newScope(ctx)
	if err != nil {
		return nil, "", err
	}
	id, err := s.resolve(ctx, "fire", arg)
	return s, id, err
}

func newFiresShowCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "show FIRE",
		Short: "Show one fire",
		Example: `  signalbox fires show 7d2a
  signalbox fires show 7d2a --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, id, err := opts.resolveFire(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var f record[fireRow]
			if err := s.get(cmd.Context(), s.path("fires", id), nil, &f); err != nil {
				return err
			}
			if opts.json {
				return opts.out.object("fire", f)
			}
			v := f.V
			return opts.out.facts(
				[2]string{"fire", v.FireID}, [2]string{"schedule", v.ScheduleName + " (" + v.ScheduleID + ")"}, [2]string{"engine", v.Engine},
				[2]string{"state", v.Status}, [2]string{"origin", v.Origin}, [2]string{"scheduled for", opts.out.when(v.ScheduledFor)},
				[2]string{"fired", opts.out.when(v.FiredAt)}, [2]string{"acked", opts.out.when(v.AckedAt)},
				[2]string{"latency", latencyText(v.LatencyMS)}, [2]string{"finished", opts.out.when(v.FinishedAt)},
				[2]string{"command", text(v.CommandID)}, [2]string{"error", strings.TrimSpace(text(v.ErrorMessage) + " " + bracket(text(v.ErrorCode)))})
		},
	}
}

// fireExplanation says where a fire stands and why.
type fireExplanation struct {
	Summary    string   `json:"summary"`
	Sentences  []string `json:"sentences"`
	Candidates []struct {
		Name     string   `json:"name"`
		State    string   `json:"state"`
		Engines  []string `json:"engines"`
		Declared bool     `json:"declared"`
		Eligible bool     `json:"eligible"`
		Reason   string   `json:"reason"`
	} `json:"candidates"`
	Next *nextStep `json:"next"`
}

type nextStep struct {
	What string     `json:"what"`
	At   *time.Time `json:"at"`
}

func newFiresExplainCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "explain FIRE",
		Short: "Say what a fire waits for, which agents could take it, and what happens next",
		Long: `Say in sentences where a fire stands: what it waits for, which agents of the project could take it and why each of them
can or cannot, what happens next and when. Of a fire that was handed over, the command is explained too.`,
		Example: `  signalbox fires explain 7d2a
  signalbox fires explain 7d2a --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, id, err := opts.resolveFire(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var e record[fireExplanation]
			if err := s.get(cmd.Context(), s.path("fires", id, "explain"), nil, &e); err != nil {
				return err
			}
			if opts.json {
				return opts.out.object("explanation", e)
			}
			return opts.showFireExplanation(e.V)
		},
	}
}

func (o *options) showFireExplanation(e fireExplanation) error {
	o.saySentences(e.Summary, e.Sentences)
	if len(e.Candidates) > 0 {
		o.out.text("\nAgents of the project:")
		rows := make([][]string, 0, len(e.Candidates))
		for _, c := range e.Candidates {
			engines := strings.Join(c.Engines, ",")
			if c.Declared {
				engines += " (declared)"
			}
			rows = append(rows, []string{c.Name, c.State, dash(engines), yesNo(c.Eligible), c.Reason})
		}
		if err := o.out.table([]string{"AGENT", "STATE", "ENGINES", "ELIGIBLE", "REASON"}, rows); err != nil {
			return err
		}
	}
	o.sayNext(e.Next)
	return nil
}

func (o *options) saySentences(summary string, sentences []string) {
	o.out.text("%s", printable(summary))
	if len(sentences) == 0 {
		return
	}
	o.out.text("")
	for _, sentence := range sentences {
		o.out.text("%s", printable(sentence))
	}
}

func (o *options) sayNext(next *nextStep) {
	if next == nil || next.What == "" {
		return
	}
	at := ""
	if next.At != nil {
		at = ", " + o.out.when(next.At)
	}
	o.out.text("\nNext: %s%s", printable(next.What), at)
}

// newSchedulesExplainCommand explains the fires of a schedule.
func newSchedulesExplainCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "explain SCHEDULE",
		Short: "Say whether and when a schedule fires, and what its buffered fires wait for",
		Long: `Say in sentences whether and when a schedule fires, how its last fires ended, how far it is from its circuit breaker, and
what its buffered fires wait for.`,
		Example: `  signalbox schedules explain nightly-report
  signalbox schedules explain 3f1c --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			id, err := s.resolve(cmd.Context(), "schedule", args[0])
			if err != nil {
				return err
			}
			var e record[struct {
				Summary   string    `json:"summary"`
				Sentences []string  `json:"sentences"`
				Next      *nextStep `json:"next"`
			}]
			if err := s.get(cmd.Context(), s.path("schedules", id, "explain"), nil, &e); err != nil {
				return err
			}
			if opts.json {
				return opts.out.object("explanation", e)
			}
			opts.saySentences(e.V.Summary, e.V.Sentences)
			opts.sayNext(e.V.Next)
			return nil
		},
	}
}
