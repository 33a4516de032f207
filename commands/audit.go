package commands

import (
	"net/url"
	"time"

	"github.com/spf13/cobra"
)

func newAuditCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "audit",
		Short:   "Read the audit log and verify its chain",
		Example: "  signalbox audit list --since 1d",
	}
	cmd.AddCommand(newAuditListCommand(opts), newAuditVerifyCommand(opts))
	return cmd
}

func newAuditListCommand(opts *options) *cobra.Command {
	var (
		f       filters
		outcome string
		user    string
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List audit rows, newest first",
		Long: `List audit rows, newest first: of one project when --project or SIGNALBOX_PROJECT names it, else of the whole server
with the rows that belong to no project.`,
		Example: `  signalbox audit list --since 1d
  signalbox audit list --project payments --action command.issue --outcome deny --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.checkLimit(); err != nil {
				return err
			}
			since, err := f.sinceTime(opts.now())
			if err != nil {
				return err
			}
			c, path, err := opts.auditRoute(cmd)
			if err != nil {
				return err
			}
			query := url.Values{}
			for key, value := range map[string]string{"action_prefix": f.action, "outcome": outcome, "user_id": user,
				"since": since, "cursor": f.cursor} {
				setNonEmpty(query, key, value)
			}
			rows, next, err := list[auditRow](cmd.Context(), c, path, query, f.limit)
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", rows}, field{"next_cursor", next})
			}
			table := make([][]string, 0, len(rows))
			for _, r := range rows {
				a := r.V
				table = append(table, []string{opts.out.when(a.OccurredAt), a.Action, dash(text(a.Outcome)), dash(text(a.UserID)),
					dash(text(a.SourceIP)), dash(text(a.TargetType)) + "/" + dash(text(a.TargetID)), cut(jsonText(a.Metadata), 80)})
			}
			return opts.out.table([]string{"OCCURRED", "ACTION", "OUTCOME", "BY", "FROM", "TARGET", "METADATA"}, table)
		},
	}
	cmd.Flags().StringVar(&f.action, "action", "", "only actions that start with this, such as command.issue")
	f.addSince(cmd)
	f.addLimit(cmd)
	f.addCursor(cmd, "next_cursor of an earlier page")
	cmd.Flags().StringVar(&outcome, "outcome", "", "only this outcome: allow, deny, error, failure")
	cmd.Flags().StringVar(&user, "user", "", "only rows of this user or key id")
	return cmd
}

// auditRoute is the project's route when a project was named, else the global one.
func (o *options) auditRoute(cmd *cobra.Command) (getter, string, error) {
	if o.project == "" && o.stdio.env("SIGNALBOX_PROJECT") == "" {
		c, err := o.newClient()
		return c, "/audit", err
	}
	s, err := o.newScope(cmd.Context())
	if err != nil {
		return nil, "", err
	}
	return s, s.path("audit"), nil
}

// verifyPatience is the default wait for a verdict: the server reads every row.
const verifyPatience = 10 * time.Minute

func newAuditVerifyCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "verify",
		Short: "Verify the chain of the audit log; exit code 1 names the first broken row",
		Example: `  signalbox audit verify
  signalbox audit verify --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			if !cmd.Flags().Changed("request-timeout") {
				c.timeout = verifyPatience
			}
			var v record[auditVerdict]
			if err := c.post(cmd.Context(), "/audit/verify", nil, &v); err != nil {
				return err
			}
			if opts.json {
				if err := opts.out.object("verify", v); err != nil {
					return err
				}
			} else {
				opts.out.text("checked %d rows, %s to %s", v.V.Checked, number(v.V.FirstSeq), number(v.V.LastSeq))
			}
			switch {
			case v.V.Broken != nil:
				return exitf(ExitFailed, "audit chain is broken at row %d: %s", v.V.Broken.Seq, oneLine(v.V.Broken.Reason))
			case !v.V.OK:
				return exitf(ExitFailed, "audit chain is broken")
			}
			if !opts.json {
				opts.out.text("the chain is whole")
			}
			return nil
		},
	}
}
