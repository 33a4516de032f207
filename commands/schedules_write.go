package commands

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"
)

// scheduleFlags are the settable fields of a schedule; only flags that were given are sent.
type scheduleFlags struct {
	engine, task, cron, every, at, timezone, queue, priority, catchUp, source, externalID string
	args, kwargs                                                                          jsonFlag
}

func (f *scheduleFlags) add(cmd *cobra.Command) {
	f.args.kind, f.kwargs.kind = '[', '{'
	fl := cmd.Flags()
	fl.StringVar(&f.engine, "engine", "", "engine that runs the task, such as celery")
	fl.StringVar(&f.task, "task", "", "name of the task")
	fl.StringVar(&f.cron, "cron", "", `when, as crontab has it: "30 1 * * *", six fields with seconds first, or @daily`)
	fl.StringVar(&f.every, "every", "", `when, as an interval: 30s, 5m, 1h30m, 2d, or "every 15 minutes"`)
	fl.StringVar(&f.at, "at", "", "when, once: an ISO 8601 time such as 2027-06-01T08:00:00+02:00")
	fl.StringVar(&f.timezone, "timezone", "", "IANA time zone of --cron and of --at without an offset (default UTC)")
	fl.StringVar(&f.queue, "queue", "", "queue of the task; its own when absent")
	fl.Var(&oneOf{into: &f.priority, words: []string{"critical", "high", "normal", "low"}}, "priority", "critical, high, normal (default) or low")
	fl.Var(&f.args, "args", `positional arguments, a JSON list such as [1,"a"]`)
	fl.Var(&f.kwargs, "kwargs", `keyword arguments, a JSON object such as {"full":true}`)
	fl.Var(&oneOf{into: &f.catchUp, words: []string{"skip", "fire_one_missed", "fire_all_missed"}}, "catch-up",
		"what becomes of missed slots: skip, fire_one_missed (default) or fire_all_missed")
	fl.StringVar(&f.source, "source", "", "where the schedule comes from (default dashboard)")
	fl.StringVar(&f.externalID, "external-id", "", "what its own scheduler calls it, such as dcb:17 for celery-beat")
	cmd.MarkFlagsMutuallyExclusive("cron", "every", "at")
}

func (f *scheduleFlags) body(cmd *cobra.Command) map[string]any {
	body := map[string]any{}
	for _, v := range []struct {
		flag, key string
		value     any
	}{{"engine", "engine", f.engine}, {"task", "task_name", f.task}, {"timezone", "timezone", f.timezone}, {"queue", "queue", f.queue},
		{"priority", "priority", f.priority}, {"args", "args", f.args.raw}, {"kwargs", "kwargs", f.kwargs.raw}, {"catch-up", "catch_up", f.catchUp},
		{"source", "source", f.source}, {"external-id", "external_id", f.externalID}} {
		if cmd.Flags().Changed(v.flag) {
			body[v.key] = v.value
		}
	}
	for flag, timing := range map[string][2]string{"cron": {"cron", f.cron}, "every": {"interval", f.every}, "at": {"clocked", f.at}} {
		if cmd.Flags().Changed(flag) {
			body["kind"], body["expression"] = timing[0], timing[1]
		}
	}
	return body
}

func newSchedulesCreateCommand(opts *options) *cobra.Command {
	var flags scheduleFlags
	var scheduler string
	var disabled bool
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a schedule",
		Example: `  signalbox schedules create nightly --engine celery --task reports.nightly --cron "30 1 * * *" --timezone Europe/Berlin
  signalbox schedules create beat --engine rq --task app.beat --every 5m --catch-up skip --kwargs '{"full":true}'
  signalbox schedules create launch --engine celery --task app.launch --at 2027-06-01T08:00:00+02:00`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := flags.body(cmd)
			body["name"] = args[0]
			for flag, key := range map[string]string{"engine": "engine", "task": "task_name", "cron, --every or --at": "kind"} {
				if body[key] == nil {
					return usagef("--%s is required", flag)
				}
			}
			if scheduler != "" {
				body["scheduler"] = scheduler
			}
			if disabled {
				body["is_enabled"] = false
			}
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			var r record[scheduleRow]
			if err := s.post(cmd.Context(), s.path("schedules"), body, &r); err != nil {
				return err
			}
			return opts.showChanged(r)
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&scheduler, "scheduler", "", "who fires it (default signalbox, which is this server)")
	cmd.Flags().BoolVar(&disabled, "disabled", false, "create it disabled")
	return cmd
}

func newSchedulesUpdateCommand(opts *options) *cobra.Command {
	var flags scheduleFlags
	var name string
	cmd := &cobra.Command{
		Use:   "update SCHEDULE",
		Short: "Change fields of a schedule; slots count from now when its timing changes",
		Example: `  signalbox schedules update nightly --cron "0 2 * * *"
  signalbox schedules update nightly --name nightly-report --catch-up skip`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := flags.body(cmd)
			if name != "" {
				body["name"] = name
			}
			if len(body) == 0 {
				return usagef("nothing to change: give at least one flag")
			}
			s, id, err := opts.resolveSchedule(cmd, args[0])
			if err != nil {
				return err
			}
			var r record[scheduleRow]
			if err := s.do(cmd.Context(), http.MethodPatch, s.path("schedules", id), nil, body, &r); err != nil {
				return err
			}
			return opts.showChanged(r)
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&name, "name", "", "new name")
	return cmd
}

// importFlags are what import and diff share.
type importFlags struct {
	source       string
	prune, adopt bool
	confirm      confirmation // of import alone
}

func (f *importFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.source, "source", "", "source of the schedules; the file's own `source` when absent, else the name of the file")
	cmd.Flags().BoolVar(&f.prune, "prune", false, "delete the source's schedules that the file does not hold")
	cmd.Flags().BoolVar(&f.adopt, "adopt", false, "take over schedules of the same name from other sources")
}

const importHelp = `FILE is TOML or JSON, - is the standard input. It holds a list named schedules of objects with name, engine, task_name, kind,
expression and what else a schedule has; a field that is left out has its default, but is_enabled keeps what is there. It may name
its source.`

func newSchedulesDiffCommand(opts *options) *cobra.Command {
	var flags importFlags
	cmd := &cobra.Command{
		Use:   "diff FILE",
		Short: "Show what an import would change",
		Long:  "Show what an import would create, change and, with --prune, delete. Nothing changes.\n\n" + importHelp,
		Example: `  signalbox schedules diff schedules.toml
  signalbox schedules diff schedules.toml --prune --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return opts.importSchedules(cmd, args[0], ":diff", &flags)
		},
	}
	flags.add(cmd)
	return cmd
}

func newSchedulesImportCommand(opts *options) *cobra.Command {
	var flags importFlags
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Make the schedules of a source what a file says",
		Long: "Make the schedules of one source what a file says, all or nothing. Doing it again changes nothing; `schedules diff` shows what\n" +
			"it would do. --prune asks before it deletes more than half of the source's schedules.\n\n" + importHelp,
		Example: `  signalbox schedules import schedules.toml --source git
  signalbox schedules import schedules.json --prune
  signalbox schedules import empty.toml --source git --prune --yes`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return opts.importSchedules(cmd, args[0], ":import", &flags)
		},
	}
	flags.add(cmd)
	flags.confirm.add(cmd)
	return cmd
}

// importChange is what an import does with one schedule.
type importChange struct {
	Action string   `json:"action"`
	Name   string   `json:"name"`
	ID     *string  `json:"id"`
	Fields []string `json:"fields"`
}

// unconfirmed tells how many schedules an import would delete, when the server wants to be told that number.
func unconfirmed(err error) (n int, asked bool) {
	var refused *apiError
	if !errors.As(err, &refused) || refused.fault.Details["field"] != "confirm_count" {
		return 0, false
	}
	count, ok := refused.fault.Details["count"].(float64)
	return int(count), ok
}

func (o *options) importSchedules(cmd *cobra.Command, path, verb string, flags *importFlags) error {
	body, err := o.readSchedules(path)
	if err != nil {
		return err
	}
	if flags.source != "" {
		body["source"] = flags.source
	} else if body["source"] == nil {
		if path == "-" {
			return usagef("--source is required: neither a file nor its content names one")
		}
		body["source"] = filepath.Base(path)
	}
	body["prune"], body["adopt"] = flags.prune, flags.adopt
	s, err := o.newScope(cmd.Context())
	if err != nil {
		return err
	}
	var done struct {
		Changes  []record[importChange] `json:"changes"`
		Warnings []string               `json:"warnings"`
	}
	err = s.post(cmd.Context(), s.path("schedules")+verb, body, &done)
	if n, asked := unconfirmed(err); asked {
		question := fmt.Sprintf("Delete %s, more than half of the source %v?", count(n, "schedule", "schedules"), body["source"])
		if err := flags.confirm.ask(o, question); err != nil {
			return err
		}
		body["confirm_count"] = n
		err = s.post(cmd.Context(), s.path("schedules")+verb, body, &done)
	}
	if err != nil {
		return err
	}
	o.warn(done.Warnings)
	if o.json {
		return o.out.document(field{"changes", nonNil(done.Changes)}, field{"warnings", nonNil(done.Warnings)})
	}
	table, unchanged := [][]string{}, 0
	for _, c := range done.Changes {
		if c.V.Action == "unchanged" {
			unchanged++
			continue
		}
		table = append(table, []string{c.V.Action, c.V.Name, strings.Join(c.V.Fields, ", ")})
	}
	if len(table) > 0 {
		if err := o.out.table([]string{"CHANGE", "NAME", "FIELDS"}, table); err != nil {
			return err
		}
	}
	o.out.text("%d unchanged", unchanged)
	return nil
}

// maxScheduleFile bounds what is read of a file: the server takes 4 MiB.
const maxScheduleFile = 4 << 20

// readSchedules reads a file of schedules into the body of a request.
func (o *options) readSchedules(path string) (map[string]any, error) {
	var in io.Reader = o.stdio.In
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, usagef("%w", err)
		}
		defer f.Close()
		in = f
	}
	if in == nil {
		return nil, usagef("there is no standard input")
	}
	data, err := io.ReadAll(io.LimitReader(in, maxScheduleFile+1))
	if err != nil {
		return nil, usagef("%s: %w", path, err)
	}
	if len(data) > maxScheduleFile {
		return nil, usagef("%s: is larger than %d MiB", path, maxScheduleFile>>20)
	}
	body := map[string]any{}
	if trimmed := bytes.TrimSpace(data); len(trimmed) > 0 && trimmed[0] == '{' {
		raw := map[string]json.RawMessage{} // numbers are passed on as they are
		if err := json.Unmarshal(data, &raw); err != nil {
			return nil, usagef("%s: is not JSON: %w", path, err)
		}
		for key, value := range raw {
			body[key] = value
		}
		if source := ""; json.Unmarshal(raw["source"], &source) == nil {
			body["source"] = source // as TOML has it, for the question before a deletion; the server judges what is no text
		}
	} else if err := toml.Unmarshal(data, &body); err != nil {
		return nil, usagef("%s: is not TOML: %s", path, tomlProblem(err))
	}
	for key := range body {
		if key != "source" && key != "schedules" {
			return nil, usagef("%s: %q is neither source nor schedules", path, key)
		}
	}
	if body["schedules"] == nil {
		body["schedules"] = []any{}
	}
	return body, nil
}

// tomlProblem says where a TOML file is wrong.
func tomlProblem(err error) string {
	if at, ok := err.(*toml.DecodeError); ok {
		row, col := at.Position()
		return fmt.Sprintf("line %d, column %d: %s", row, col, at.Error())
	}
	return err.Error()
}
