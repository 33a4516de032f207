package commands

import (
	"net/url"

	"github.com/spf13/cobra"
)

func newEventsCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "events",
		Short:   "List and follow the events that agents report",
		Example: "  signalbox events tail",
	}
	cmd.AddCommand(newEventsListCommand(opts), newEventsTailCommand(opts))
	return cmd
}

// eventFilters narrow both the list and the tail.
type eventFilters struct {
	engine, taskID, kind string
	filters
}

func (f *eventFilters) add(cmd *cobra.Command, o *options) {
	cmd.Flags().StringVar(&f.engine, "engine", "", "only this engine, such as celery")
	cmd.Flags().StringVar(&f.taskID, "task-id", "", "only the task with this whole id")
	cmd.Flags().StringVar(&f.kind, "kind", "", "only this kind, such as task.failed")
	f.addAgent(cmd, o)
}

func (f *eventFilters) query(cmd *cobra.Command, s *scope) (url.Values, error) {
	query := url.Values{}
	setNonEmpty(query, "engine", f.engine)
	setNonEmpty(query, "task_id", f.taskID)
	setNonEmpty(query, "kind", f.kind)
	if f.agent != "" {
		id, err := s.resolve(cmd.Context(), "agent", f.agent)
		if err != nil {
			return nil, err
		}
		query.Set("agent_id", id)
	}
	return query, nil
}

func newEventsListCommand(opts *options) *cobra.Command {
	var f eventFilters
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List events, newest first",
		Example: `  signalbox events list --kind task.failed --since 1h
  signalbox events list --engine celery --task-id 3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10 --json`,
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
			query, err := f.query(cmd, s)
			if err != nil {
				return err
			}
			setNonEmpty(query, "since", since)
			setNonEmpty(query, "cursor", f.cursor)
			rows, next, err := list[eventRow](cmd.Context(), s, s.path("events"), query, f.limit)
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", rows}, field{"next_cursor", next})
			}
			return opts.eventTable(rows)
		},
	}
	f.add(cmd, opts)
	f.addSince(cmd)
	f.addLimit(cmd)
	f.addCursor(cmd, "next_cursor of an earlier page")
	return cmd
}

func (o *options) eventTable(rows []record[eventRow]) error {
	table := make([][]string, 0, len(rows))
	for _, r := range rows {
		table = append(table, []string{o.out.when(r.V.OccurredAt), r.V.Kind, r.V.Engine, dash(r.V.TaskID), cut(string(r.V.Payload), 100)})
	}
	return o.out.table([]string{"OCCURRED", "KIND", "ENGINE", "TASK", "DATA"}, table)
}

func newEventsTailCommand(opts *options) *cobra.Command {
	var (
		f eventFilters
		w streamFlags
	)
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Follow events as they are stored",
		Long:  "Follow events as they are stored." + streamLong,
		Example: `  signalbox events tail
  signalbox events tail --kind task.failed --json
  signalbox events tail --since 15m
  signalbox events tail --cursor 1f2e3d4c.812 --follow=false --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			since, err := f.sinceTime(opts.now())
			if err != nil {
				return err
			}
			if since != "" && w.cursor == "" {
				w.cursor = "0" // what happened since then is in the log already
			}
			st, err := w.stream(s, s.path("events", "stream"))
			if err != nil {
				return err
			}
			if st.query, err = f.query(cmd, s); err != nil {
				return err
			}
			setNonEmpty(st.query, "since", since)
			return opts.follow(cmd.Context(), st, w.limit, opts.showEvent)
		},
	}
	w.add(cmd)
	f.add(cmd, opts)
	f.addSince(cmd)
	return cmd
}

func (o *options) showEvent(rec *streamRecord) error {
	if o.json {
		return o.out.ndjson(rec)
	}
	if rec.Type == "gap" {
		o.out.say("gap: %s", gapText(rec.Reason))
		return nil
	}
	e, err := rec.event()
	if err != nil {
		return err
	}
	o.out.text("%s  %s  %s  %s  %s", o.out.stamp(e.OccurredAt), pad(oneLine(e.Kind), 15), oneLine(e.Engine),
		dash(oneLine(e.TaskID)), cut(oneLine(string(e.Payload)), 120))
	return nil
}
