package commands

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"
)

// scheduleRow is a schedule.
type scheduleRow struct {
	ID                  string          `json:"id"`
	Engine              string          `json:"engine"`
	Scheduler           string          `json:"scheduler"`
	Name                string          `json:"name"`
	TaskName            string          `json:"task_name"`
	Kind                string          `json:"kind"`
	Expression          string          `json:"expression"`
	Timezone            string          `json:"timezone"`
	Queue               *string         `json:"queue"`
	Priority            string          `json:"priority"`
	Args                json.RawMessage `json:"args"`
	Kwargs              json.RawMessage `json:"kwargs"`
	IsEnabled           bool            `json:"is_enabled"`
	LastRunAt           *time.Time      `json:"last_run_at"`
	NextRunAt           *time.Time      `json:"next_run_at"`
	TotalRuns           int64           `json:"total_runs"`
	ExternalID          *string         `json:"external_id"`
	CatchUp             string          `json:"catch_up"`
	Source              string          `json:"source"`
	SourceHash          *string         `json:"source_hash"`
	ConsecutiveFailures int             `json:"consecutive_failures"`
	SkippedSlots24h     int64           `json:"skipped_slots_24h"`
	DisabledReason      *string         `json:"disabled_reason"`
	CreatedAt           *time.Time      `json:"created_at"`
	UpdatedAt           *time.Time      `json:"updated_at"`

	Misfires []misfireRow `json:"misfires"`
	Fire     *firedRow    `json:"fire"`
	Warnings []string     `json:"warnings"`
}

// misfireRow is a run of slots that were passed over.
type misfireRow struct {
	At        *time.Time `json:"at"`
	FirstSlot *time.Time `json:"first_slot"`
	LastSlot  *time.Time `json:"last_slot"`
	Slots     int64      `json:"slots"`
	Reason    string     `json:"reason"`
}

// firedRow is what a trigger did.
type firedRow struct {
	FireID    string  `json:"fire_id"`
	CommandID *string `json:"command_id"`
	Buffered  bool    `json:"buffered"`
}

// openFire is a fire of a schedule, as far as show needs it.
type openFire struct {
	FireID       string     `json:"fire_id"`
	Status       string     `json:"status"`
	ScheduledFor *time.Time `json:"scheduled_for"`
}

func newSchedulesCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schedules",
		Short: "Fire tasks at times: create, list, trigger, import and change schedules",
		Long: `Fire tasks at times. Signalbox is the scheduler: it submits the task of a schedule to an online agent that runs the engine
whenever a slot of the schedule comes due, once for each slot, also across restarts. Slots that were missed are caught up with as
the schedule says. A SCHEDULE is a name, an id or the beginning of one.`,
		Example: `  signalbox schedules create nightly --engine celery --task reports.nightly --cron "30 1 * * *" --timezone Europe/Berlin
  signalbox schedules list
  signalbox schedules show nightly`,
	}
	cmd.AddCommand(newSchedulesCreateCommand(opts), newSchedulesListCommand(opts), newSchedulesShowCommand(opts), newSchedulesExplainCommand(opts),
		newSchedulesUpdateCommand(opts), newSchedulesEnableCommand(opts, true), newSchedulesEnableCommand(opts, false),
		newSchedulesTriggerCommand(opts), newSchedulesDeleteCommand(opts), newSchedulesImportCommand(opts), newSchedulesDiffCommand(opts),
		newSchedulesResyncCommand(opts))
	return cmd
}

func newSchedulesListCommand(opts *options) *cobra.Command {
	var f filters
	var engine, scheduler, source string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List schedules by name",
		Example: `  signalbox schedules list
  signalbox schedules list --state disabled --engine celery --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.checkLimit(); err != nil {
				return err
			}
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			query := url.Values{}
			for key, value := range map[string]string{"engine": engine, "scheduler": scheduler, "source": source, "cursor": f.cursor} {
				setNonEmpty(query, key, value)
			}
			if f.state != "" {
				query.Set("enabled", fmt.Sprint(f.state == "enabled"))
			}
			rows, next, err := list[scheduleRow](cmd.Context(), s, s.path("schedules"), query, f.limit)
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", rows}, field{"next_cursor", next})
			}
			table := make([][]string, 0, len(rows))
			for _, r := range rows {
				v := r.V
				table = append(table, []string{v.Name, enabledText(v.IsEnabled), v.Engine, v.TaskName, v.Kind + " " + v.Expression,
					opts.out.when(v.NextRunAt), opts.out.when(v.LastRunAt), itoa(v.SkippedSlots24h), shortID(v.ID)})
			}
			return opts.out.table([]string{"NAME", "STATE", "ENGINE", "TASK", "TIMING", "NEXT", "LAST", "MISSED 24H", "ID"}, table)
		},
	}
	f.addState(cmd, "enabled", "disabled")
	cmd.Flags().StringVar(&engine, "engine", "", "only this engine, such as celery")
	cmd.Flags().StringVar(&scheduler, "scheduler", "", "only schedules of this scheduler, such as signalbox")
	cmd.Flags().StringVar(&source, "source", "", "only schedules of this source, such as that of an import")
	f.addLimit(cmd)
	f.addCursor(cmd, "next_cursor of an earlier page")
	return cmd
}

func enabledText(enabled bool) string {
	if enabled {
		return "enabled"
	}
	return "disabled"
}

// resolveSchedule makes the scope and finds the schedule that an argument means.
func (o *options) resolveSchedule(cmd *cobra.Command, arg string) (*scope, string, error) {
	s, err := o.newScope(cmd.Context())
	if err != nil {
		return nil, "", err
	}
	id, err := s.resolve(cmd.Context(), "schedule", arg)
	return s, id, err
}

func newSchedulesShowCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "show SCHEDULE",
		Short: "Show a schedule, its fires that have not ended, and the slots that it missed",
		Example: `  signalbox schedules show nightly
  signalbox schedules show 5d1a --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, id, err := opts.resolveSchedule(cmd, args[0])
			if err != nil {
				return err
			}
			var r record[scheduleRow]
			if err := s.get(cmd.Context(), s.path("schedules", id), nil, &r); err != nil {
				return err
			}
			open, err := s.openFires(cmd.Context(), id)
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"schedule", r}, field{"open_fires", open})
			}
			return opts.showSchedule(&r.V, values(open))
		},
	}
}

// lookedFires is how many of the newest fires are searched for those that have not ended.
const lookedFires = 1000

// openFires are the fires that have not ended, newest first.
func (s *scope) openFires(ctx context.Context, id string) ([]record[openFire], error) {
	var all []record[openFire]
	if err := s.get(ctx, s.path("schedules", id, "fires"), url.Values{"limit": {fmt.Sprint(lookedFires)}}, &all); err != nil {
		return nil, err
	}
	open := []record[openFire]{}
	for _, f := range all {
		switch f.V.Status {
		case "acked_success", "acked_failed", "failed", "buffer_expired":
		default:
			open = append(open, f)
		}
	}
	return open, nil
}

func (o *options) showSchedule(v *scheduleRow, open []openFire) error {
	state := enabledText(v.IsEnabled)
	if reason := text(v.DisabledReason); reason != "" {
		state += ": " + reason
	}
	failures, missed := "", ""
	if v.ConsecutiveFailures > 0 {
		failures = itoa(int64(v.ConsecutiveFailures))
	}
	if v.SkippedSlots24h > 0 {
		missed = itoa(v.SkippedSlots24h)
	}
	if err := o.out.facts([2]string{"name", v.Name}, [2]string{"id", v.ID}, [2]string{"state", state},
		[2]string{"timing", v.Kind + " " + v.Expression}, [2]string{"timezone", v.Timezone}, [2]string{"catch up", v.CatchUp},
		[2]string{"engine", v.Engine}, [2]string{"task", v.TaskName}, [2]string{"queue", text(v.Queue)}, [2]string{"priority", v.Priority},
		[2]string{"args", string(v.Args)}, [2]string{"kwargs", string(v.Kwargs)}, [2]string{"scheduler", v.Scheduler},
		[2]string{"external id", text(v.ExternalID)}, [2]string{"source", v.Source}, [2]string{"source hash", text(v.SourceHash)},
		[2]string{"next run", o.out.when(v.NextRunAt)}, [2]string{"last run", o.out.when(v.LastRunAt)}, [2]string{"runs", itoa(v.TotalRuns)},
		[2]string{"failures in a row", failures}, [2]string{"missed in 24h", missed},
		[2]string{"created", o.out.when(v.CreatedAt)}, [2]string{"updated", o.out.when(v.UpdatedAt)}); err != nil {
		return err
	}
	if len(open) > 0 {
		o.out.text("\nFires that have not ended, newest first; no later slot waits for them:")
		table := make([][]string, 0, len(open))
		for _, f := range open[:min(len(open), 20)] {
			table = append(table, []string{f.FireID, f.Status, o.out.when(f.ScheduledFor)})
		}
		if err := o.out.table([]string{"FIRE", "STATE", "SCHEDULED FOR"}, table); err != nil {
			return err
		}
	}
	if len(v.Misfires) == 0 {
		return nil
	}
	o.out.text("\nSlots that were missed, newest first:")
	table := make([][]string, 0, len(v.Misfires))
	for _, m := range v.Misfires {
		table = append(table, []string{o.out.when(m.At), itoa(m.Slots), o.out.when(m.FirstSlot), o.out.when(m.LastSlot), m.Reason})
	}
	return o.out.table([]string{"DECIDED", "SLOTS", "FIRST", "LAST", "WHY"}, table)
}

// warn tells what the server warned of.
func (o *options) warn(warnings []string) {
	for _, w := range warnings {
		o.out.say("warning: %s", w)
	}
}

// showChanged shows a schedule after a change.
func (o *options) showChanged(r record[scheduleRow]) error {
	o.warn(r.V.Warnings)
	if o.json {
		return o.out.object("schedule", r)
	}
	return o.showSchedule(&r.V, nil)
}

func newSchedulesEnableCommand(opts *options, enable bool) *cobra.Command {
	verb, short := "disable", "Disable a schedule: what comes due then is not missed"
	if enable {
		verb, short = "enable", "Enable a schedule: slots count from now"
	}
	return &cobra.Command{
		Use:     verb + " SCHEDULE",
		Short:   short,
		Example: "  signalbox schedules " + verb + " nightly",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, id, err := opts.resolveSchedule(cmd, args[0])
			if err != nil {
				return err
			}
			var r record[scheduleRow]
			if err := s.post(cmd.Context(), s.path("schedules", id, verb), nil, &r); err != nil {
				return err
			}
			if enable {
				opts.warn(r.V.Warnings)
			}
			if opts.json {
				return opts.out.object("schedule", r)
			}
			opts.out.text("%s is %s; next run %s", oneLine(r.V.Name), enabledText(r.V.IsEnabled), opts.out.when(r.V.NextRunAt))
			return nil
		},
	}
}

func newSchedulesTriggerCommand(opts *options) *cobra.Command {
	var fireID string
	cmd := &cobra.Command{
		Use:   "trigger SCHEDULE",
		Short: "Fire a schedule once, now, beside its slots",
		Example: `  signalbox schedules trigger nightly
  signalbox schedules trigger nightly --fire-id 3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10 --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, id, err := opts.resolveSchedule(cmd, args[0])
			if err != nil {
				return err
			}
			body := map[string]any{}
			if fireID != "" {
				body["fire_id"] = fireID
			}
			var r record[scheduleRow]
			if err := s.post(cmd.Context(), s.path("schedules", id, "trigger"), body, &r); err != nil {
				return err
			}
			switch f := r.V.Fire; {
			case opts.json:
				return opts.out.object("schedule", r)
			case f == nil:
				opts.out.text("%s: the scheduler %s was told to fire it", oneLine(r.V.Name), oneLine(r.V.Scheduler))
			case f.Buffered:
				opts.out.text("%s: fire %s waits for an online agent that lists the engine %s", oneLine(r.V.Name), f.FireID, oneLine(r.V.Engine))
			default:
				opts.out.text("%s: fire %s is command %s", oneLine(r.V.Name), f.FireID, dash(text(f.CommandID)))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&fireID, "fire-id", "", "UUID of the fire: repeating the command with it makes no second fire")
	return cmd
}

func newSchedulesDeleteCommand(opts *options) *cobra.Command {
	var confirm confirmation
	var forget bool
	cmd := &cobra.Command{
		Use:   "delete SCHEDULE",
		Short: "Delete a schedule with the history of its fires",
		Long: `Delete a schedule with the history of its fires. A schedule of another scheduler is deleted there too, through an online agent
that lists the scheduler; --forget removes the record here alone.`,
		Example: `  signalbox schedules delete nightly --yes`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, id, err := opts.resolveSchedule(cmd, args[0])
			if err != nil {
				return err
			}
			if err := confirm.ask(opts, fmt.Sprintf("Delete schedule %s with its fires?", args[0])); err != nil {
				return err
			}
			query := url.Values{}
			if forget {
				query.Set("forget", "true")
			}
			if err := s.do(cmd.Context(), http.MethodDelete, s.path("schedules", id), query, nil, nil); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"id", id}, field{"deleted", true})
			}
			opts.out.text("schedule %s deleted", oneLine(args[0]))
			return nil
		},
	}
	confirm.add(cmd)
	cmd.Flags().BoolVar(&forget, "forget", false, "of another scheduler's: remove the record here alone")
	return cmd
}

func newSchedulesResyncCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:     "resync",
		Short:   "Ask the scheduler adapters of every online agent for all their schedules",
		Example: "  signalbox schedules resync",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			var done record[struct {
				Agents     int `json:"agents_dispatched"`
				Schedulers int `json:"schedulers_observed"`
			}]
			if err := s.post(cmd.Context(), s.path("schedules")+":resync", nil, &done); err != nil {
				return err
			}
			if opts.json {
				return opts.out.object("resync", done)
			}
			opts.out.text("%d agents were asked, for %d schedulers", done.V.Agents, done.V.Schedulers)
			return nil
		},
	}
}
