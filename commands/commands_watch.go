package commands

import (
	"github.com/spf13/cobra"
)

// streamFlags are common to commands that follow a stream.
type streamFlags struct {
	cursor string
	follow bool
	limit  int
}

func (f *streamFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.cursor, "cursor", "", "go on after this cursor; 0 starts at the oldest kept record (default: from now on)")
	cmd.Flags().BoolVar(&f.follow, "follow", true, "wait for more; --follow=false ends after what is there")
	cmd.Flags().IntVar(&f.limit, "limit", 0, "end after this many records; 0: no limit")
}

// stream makes the stream of a path with the flags applied. Without --follow and --cursor "from now on" would be nothing
// at all, so everything kept is meant.
func (f *streamFlags) stream(s *scope, path string) (*stream, error) {
	if f.limit < 0 {
		return nil, usagef("--limit: must not be negative, got %d", f.limit)
	}
	cursor := f.cursor
	if cursor == "" && !f.follow {
		cursor = "0"
	}
	return &stream{client: s.client, path: path, cursor: cursor, follow: f.follow, explain: s.blameProject}, nil
}

const streamLong = `

A lost connection is taken up again after the last record seen. At the end the last cursor is written to stderr; --cursor
goes on from there. A gap record says that records in between are no longer kept. Interrupting is a normal end: exit code 0.`

func newCommandsWatchCommand(opts *options) *cobra.Command {
	var (
		f filters
		w streamFlags
	)
	cmd := &cobra.Command{
		Use:   "watch [COMMAND]",
		Short: "Follow the state changes of one or all commands",
		Long: `Follow the state changes of commands: of one from its beginning until it is finished, or of all that match from now on.` +
			streamLong,
		Example: `  signalbox commands watch 7d2a
  signalbox commands watch --agent web-1 --json
  signalbox commands watch --cursor 0 --follow=false --state failed --json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, query, err := opts.commandQuery(cmd, &f)
			if err != nil {
				return err
			}
			st, err := w.stream(s, s.path("commands", "stream"))
			if err != nil {
				return err
			}
			st.query = query
			one := len(args) == 1
			if one {
				id, err := s.resolve(cmd.Context(), "command", args[0])
				if err != nil {
					return err
				}
				query.Set("command_id", id)
				if st.cursor == "" {
					st.cursor = "0"
				}
			}
			return opts.follow(cmd.Context(), st, w.limit, func(rec *streamRecord) error {
				if err := opts.showTransition(rec); err != nil {
					return err
				}
				if one && rec.Type == "transition" && (commandRow{Status: rec.Status}).terminal() {
					return errStop
				}
				return nil
			})
		},
	}
	w.add(cmd)
	f.addState(cmd, commandStates[:]...)
	f.addAgent(cmd, opts)
	f.addAction(cmd)
	return cmd
}

func (o *options) showTransition(rec *streamRecord) error {
	if o.json {
		return o.out.ndjson(rec)
	}
	if rec.Type == "gap" {
		o.out.say("gap: %s", gapText(rec.Reason))
		return nil
	}
	c := rec.Command.V
	line := o.out.stamp(rec.At) + "  " + shortID(c.ID) + "  " + pad(rec.word(), 11) + "  " + pad(rec.Status, 10) + "  " +
		oneLine(c.Action+" "+targetText(c))
	switch msg := text(c.Error); {
	case text(rec.Detail) != "":
		line += ": " + cut(oneLine(text(rec.Detail)), 80)
	case msg != "" && rec.Status == c.Status && c.terminal():
		// The row is as it stands now: its error belongs to the last transition only.
		line += ": " + cut(oneLine(msg), 80)
	}
	o.out.text("%s", line)
	return nil
}
