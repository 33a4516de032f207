package commands

import (
	"context"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"
)

func newCommandsCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "commands",
		Short: "Issue, list, watch, explain and cancel commands to agents",
		Example: `  signalbox commands issue retry-task --agent web-1 --engine celery --task-id 3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10 --wait
  signalbox commands explain 7d2a`,
	}
	cmd.AddCommand(newCommandsIssueCommand(opts), newCommandsListCommand(opts), newCommandsShowCommand(opts),
		newCommandsWatchCommand(opts), newCommandsExplainCommand(opts), newCommandsCancelCommand(opts))
	return cmd
}

var commandStates = [...]string{"pending", "dispatched", "completed", "failed", "timeout", "cancelled"}

func newCommandsListCommand(opts *options) *cobra.Command {
	var f filters
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List commands, newest first",
		Example: `  signalbox commands list --state pending
  signalbox commands list --agent web-1 --action retry_task --since 2h --limit 200 --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, query, err := opts.commandQuery(cmd, &f)
			if err != nil {
				return err
			}
			since, err := f.sinceTime(opts.now())
			if err != nil {
				return err
			}
			setNonEmpty(query, "since", since)
			setNonEmpty(query, "cursor", f.cursor)
			rows, next, err := list[commandRow](cmd.Context(), s, s.path("commands"), query, f.limit)
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", rows}, field{"next_cursor", next})
			}
			names := agentNames{}
			if len(rows) > 0 {
				names = s.agentNames(cmd.Context())
			}
			table := make([][]string, 0, len(rows))
			for _, r := range rows {
				table = append(table, []string{r.V.ID, r.V.Action, targetText(r.V), r.V.Status, dash(names.of(text(r.V.AgentID))),
					opts.out.when(r.V.IssuedAt), cut(text(r.V.Error), 60)})
			}
			return opts.out.table([]string{"ID", "ACTION", "TARGET", "STATE", "AGENT", "ISSUED", "ERROR"}, table)
		},
	}
	f.addState(cmd, commandStates[:]...)
	f.addAgent(cmd, opts)
	f.addAction(cmd)
	f.addSince(cmd)
	f.addLimit(cmd)
	f.addCursor(cmd, "next_cursor of an earlier page")
	return cmd
}

// commandQuery settles the project and turns the filters that list and watch share into a query.
func (o *options) commandQuery(cmd *cobra.Command, f *filters) (*scope, url.Values, error) {
	if f.limit != 0 {
		if err := f.checkLimit(); err != nil {
			return nil, nil, err
		}
	}
	s, err := o.newScope(cmd.Context())
	if err != nil {
		return nil, nil, err
	}
	query := url.Values{}
	setNonEmpty(query, "status", f.state)
	setNonEmpty(query, "action", f.action)
	if f.agent != "" {
		id, err := s.resolve(cmd.Context(), "agent", f.agent)
		if err != nil {
			return nil, nil, err
		}
		query.Set("agent_id", id)
	}
	return s, query, nil
}

func setNonEmpty(query url.Values, key, value string) {
	if value != "" {
		query.Set(key, value)
	}
}

func targetText(c commandRow) string {
	return fmt.Sprintf("%s/%s", c.TargetType, dash(text(c.TargetID)))
}

func newCommandsShowCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "show COMMAND",
		Short: "Show one command with its payload and result",
		Example: `  signalbox commands show 7d2a
  signalbox commands show 7d2a91c4-0b0e-4b7e-9c58-5a1d0d1b7f10 --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, id, err := opts.resolveCommand(cmd, args[0])
			if err != nil {
				return opts.pointToArchive(cmd, args[0], err)
			}
			var c record[commandRow]
			if err := s.get(cmd.Context(), s.path("commands", id), nil, &c); err != nil {
				return opts.pointToArchive(cmd, args[0], err)
			}
			return opts.showCommand(cmd.Context(), s, c)
		},
	}
}

func (o *options) resolveCommand(cmd *cobra.Command, arg string) (*scope, string, error) {
	s, err := o.newScope(cmd.Context())
	if err != nil {
		return nil, "", err
	}
	id, err := s.resolve(cmd.Context(), "command", arg)
	return s, id, err
}

// agentNames are the names of a project's agents by id.
type agentNames map[string]string

// of is the name of an agent, its id where the name is not known.
func (n agentNames) of(id string) string {
	if name := n[id]; name != "" {
		return name
	}
	return id
}

// agentNames asks for the names. They only help to read: without them, ids are shown.
func (s *scope) agentNames(ctx context.Context) agentNames {
	var agents []record[agentRow]
	names := agentNames{}
	if s.get(ctx, s.path("agents"), url.Values{"include_revoked": {"true"}}, &agents) != nil {
		return names
	}
	for _, a := range agents {
		names[a.V.ID] = a.V.Name
	}
	return names
}

// agentText is the name and the id of an agent.
func (s *scope) agentText(ctx context.Context, id string) string {
	var a record[agentRow]
	if id == "" || s.get(ctx, s.path("agents", id), nil, &a) != nil || a.V.Name == "" {
		return id
	}
	return a.V.Name + " (" + id + ")"
}

func (o *options) showCommand(ctx context.Context, s *scope, c record[commandRow], more ...field) error {
	if o.json {
		return o.out.document(append([]field{{"command", c}}, more...)...)
	}
	v := c.V
	return o.out.facts(
		[2]string{"id", v.ID}, [2]string{"action", v.Action}, [2]string{"target", targetText(v)},
		[2]string{"state", v.Status}, [2]string{"agent", s.agentText(ctx, text(v.AgentID))}, [2]string{"issued by", text(v.IssuedBy)},
		[2]string{"issued", o.out.when(v.IssuedAt)}, [2]string{"dispatched", o.out.when(v.DispatchedAt)},
		[2]string{"completed", o.out.when(v.CompletedAt)}, [2]string{"times out", timeoutText(o, v)},
		[2]string{"payload", string(v.Payload)}, [2]string{"result", jsonText(v.Result)}, [2]string{"error", text(v.Error)})
}

// timeoutText is shown only while the deadline still matters.
func timeoutText(o *options, c commandRow) string {
	if c.terminal() {
		return ""
	}
	return o.out.when(c.TimeoutAt)
}

// jsonText is the text of a JSON value, "" for null.
func jsonText(raw []byte) string {
	if string(raw) == "null" {
		return ""
	}
	return string(raw)
}

func newCommandsCancelCommand(opts *options) *cobra.Command {
	var confirm confirmation
	cmd := &cobra.Command{
		Use:   "cancel COMMAND",
		Short: "Cancel a command that is not finished",
		Long: `Cancel a command that is pending or dispatched. A dispatched command may already run on its agent: cancelling it here
only settles the record, and a result that comes later changes nothing. Exit code 5 when it is already finished.`,
		Example: `  signalbox commands cancel 7d2a --yes`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, id, err := opts.resolveCommand(cmd, args[0])
			if err != nil {
				return err
			}
			if err := confirm.ask(opts, fmt.Sprintf("Cancel command %s?", id)); err != nil {
				return err
			}
			var c record[commandRow]
			if err := s.post(cmd.Context(), s.path("commands", id, "cancel"), nil, &c); err != nil {
				return err
			}
			return opts.showCommand(cmd.Context(), s, c)
		},
	}
	confirm.add(cmd)
	return cmd
}
