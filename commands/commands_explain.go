package commands

import (
	"github.com/spf13/cobra"
)

func newCommandsExplainCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "explain COMMAND",
		Short: "Say why a command waits, who could take it, and what happens next",
		Long: `Say in sentences where a command stands: why it waits, who could take it, what happens next and when, and every attempt
to hand it over. Commands to archive daemons and archive jobs are explained, too: of those, each attempt names the generation
of the connection that it was made on. A beginning of an id must be unique among all of them.`,
		Example: `  signalbox commands explain 7d2a
  signalbox commands explain 7d2a --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := opts.onAnyPlane(cmd, args[0])
			switch {
			case err != nil:
				return err
			case at.kind == planeDaemonCommand:
				return opts.explainDaemonCommand(cmd.Context(), at.client, at.id)
			case at.kind == planeJob:
				return opts.explainJob(cmd.Context(), at.client, at.id)
			}
			s, id := at.scope, at.id
			var e record[explanation]
			if err := s.get(cmd.Context(), s.path("commands", id, "explain"), nil, &e); err != nil {
				return err
			}
			if opts.json {
				return opts.out.object("explanation", e)
			}
			return opts.showExplanation(e.V)
		},
	}
}

func (o *options) showExplanation(e explanation) error {
	o.out.text("%s", printable(e.Summary))
	if len(e.Sentences) > 0 {
		o.out.text("")
		for _, sentence := range e.Sentences {
			o.out.text("%s", printable(sentence))
		}
	}
	if len(e.Candidates) > 0 {
		o.out.text("\nWho could take it:")
		rows := make([][]string, 0, len(e.Candidates))
		for _, c := range e.Candidates {
			rows = append(rows, []string{c.Transport, dash(text(c.WorkerID)), c.SessionID, yesNo(c.Eligible), c.Reason})
		}
		if err := o.out.table([]string{"TRANSPORT", "WORKER", "SESSION", "ELIGIBLE", "REASON"}, rows); err != nil {
			return err
		}
	}
	if e.Next != nil && e.Next.What != "" {
		at := ""
		if e.Next.At != nil {
			at = ", " + o.out.when(e.Next.At)
		}
		o.out.text("\nNext: %s%s", printable(e.Next.What), at)
	}
	return o.showDeliveries(e.Deliveries)
}

func (o *options) showDeliveries(deliveries []delivery) error {
	if len(deliveries) == 0 {
		return nil
	}
	o.out.text("\nDeliveries:")
	rows := make([][]string, 0, len(deliveries))
	for _, d := range deliveries {
		rows = append(rows, []string{dash(itoa(d.Attempt)), d.Transport, dash(text(d.WorkerID)), d.Outcome,
			o.out.when(d.ClaimedAt), o.out.when(d.SentAt), o.out.when(d.AckedAt), o.out.when(d.FinishedAt), text(d.Reason)})
	}
	return o.out.table([]string{"ATTEMPT", "TRANSPORT", "WORKER", "OUTCOME", "CLAIMED", "SENT", "ACKED", "FINISHED", "REASON"}, rows)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
