package commands

import (
	"fmt"
	"net/http"
	"net/url"
	"sort"
	"strings"

	"github.com/spf13/cobra"
)

func newAgentsCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "agents",
		Short:   "Mint, list, show and revoke agents, and show their signing secret",
		Example: "  signalbox agents list",
	}
	cmd.AddCommand(newAgentsMintCommand(opts), newAgentsListCommand(opts), newAgentsShowCommand(opts), newAgentsSecretCommand(opts),
		newAgentsDeclareCommand(opts), newAgentsRevokeCommand(opts))
	return cmd
}

func newAgentsListCommand(opts *options) *cobra.Command {
	var (
		f       filters
		revoked bool
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List agents",
		Example: `  signalbox agents list
  signalbox agents list --state online --project payments --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.checkLimit(); err != nil {
				return err
			}
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			query := url.Values{}
			if revoked {
				query.Set("include_revoked", "true")
			}
			var all []record[agentRow]
			if err := s.get(cmd.Context(), s.path("agents"), query, &all); err != nil {
				return err
			}
			agents := keep(all, f.limit, func(a agentRow) bool { return f.state == "" || a.State == f.state })
			if opts.json {
				return opts.out.document(field{"items", agents}, field{"next_cursor", nil})
			}
			rows := make([][]string, 0, len(agents))
			for _, a := range agents {
				rows = append(rows, []string{a.V.Name, agentState(a.V), dash(strings.Join(a.V.EngineAdapters, ",")),
					dash(text(a.V.HostName)), dash(text(a.V.AgentVersion)), opts.out.when(a.V.LastSeenAt), a.V.ID})
			}
			return opts.out.table([]string{"NAME", "STATE", "ENGINES", "HOST", "VERSION", "LAST SEEN", "ID"}, rows)
		},
	}
	f.addState(cmd, "online", "offline", "unknown")
	f.addLimit(cmd)
	cmd.Flags().BoolVar(&revoked, "revoked", false, "include revoked agents")
	return cmd
}

// keep filters a list the server sends whole, up to limit rows.
func keep[T any](all []record[T], limit int, match func(T) bool) []record[T] {
	kept := []record[T]{}
	for _, r := range all {
		if len(kept) < limit && match(r.V) {
			kept = append(kept, r)
		}
	}
	return kept
}

func agentState(a agentRow) string {
	if a.RevokedAt != nil {
		return "revoked"
	}
	return a.State
}

func newAgentsShowCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "show AGENT",
		Short: "Show one agent with its live sessions",
		Example: `  signalbox agents show web-1
  signalbox agents show 3f1c --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstArg(opts.completeAgents),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			id, err := s.resolve(cmd.Context(), "agent", args[0])
			if err != nil {
				return err
			}
			var a record[agentRow]
			if err := s.get(cmd.Context(), s.path("agents", id), nil, &a); err != nil {
				return err
			}
			if opts.json {
				return opts.out.object("agent", a)
			}
			return opts.showAgent(a.V)
		},
	}
}

func (o *options) showAgent(a agentRow) error {
	err := o.out.facts(
		[2]string{"name", a.Name}, [2]string{"id", a.ID}, [2]string{"state", agentState(a)},
		[2]string{"host", text(a.HostName)},
		[2]string{"agent version", strings.TrimSpace(text(a.AgentVersion) + " " + bracket(text(a.VersionStatus)))},
		[2]string{"protocol", a.ProtocolVersion}, [2]string{"framework", a.FrameworkAdapter},
		[2]string{"engines", strings.Join(a.EngineAdapters, ", ")},
		[2]string{"declared engines", strings.Join(a.DeclaredEngines, ", ")},
		[2]string{"schedulers", strings.Join(a.SchedulerAdapters, ", ")},
		[2]string{"capabilities", capabilityText(a.Capabilities)},
		[2]string{"features", strings.Join(a.RuntimeFeatures, ", ")},
		[2]string{"last seen", o.out.when(a.LastSeenAt)}, [2]string{"last connect", o.out.when(a.LastConnectAt)},
		[2]string{"created", o.out.when(&a.CreatedAt)})
	if err != nil {
		return err
	}
	for i, note := range a.Notes {
		if i == 0 {
			o.out.text("")
		}
		o.out.text("%s", printable(note))
	}
	if len(a.Sessions) == 0 {
		return nil
	}
	o.out.text("")
	rows := make([][]string, 0, len(a.Sessions))
	for _, s := range a.Sessions {
		rows = append(rows, []string{s.Transport, dash(text(s.WorkerID)), dash(text(s.WorkerRole)), dash(s.RemoteAddr),
			o.out.when(s.ConnectedAt), o.out.when(s.LastFrameAt), s.SessionID})
	}
	return o.out.table([]string{"TRANSPORT", "WORKER", "ROLE", "REMOTE", "CONNECTED", "LAST FRAME", "SESSION"}, rows)
}

func bracket(s string) string {
	if s == "" {
		return ""
	}
	return "(" + s + ")"
}

func capabilityText(caps map[string][]string) string {
	adapters := make([]string, 0, len(caps))
	for name := range caps {
		adapters = append(adapters, name)
	}
	sort.Strings(adapters)
	parts := make([]string, 0, len(adapters))
	for _, name := range adapters {
		parts = append(parts, name+": "+strings.Join(caps[name], " "))
	}
	return strings.Join(parts, "; ")
}

func newAgentsSecretCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "secret AGENT",
		Short: "Show the signing secret an agent must be configured with now",
		Long: `Show the signing secret (Z4J_HMAC_SECRET) that an agent must be configured with now.

After the master secret was rotated an agent's token goes on working and its signing secret does not: give the agent this
one and restart it. All agents of a project have the same. Showing it leaves an audit row.`,
		Example: `  signalbox agents secret web-1
  signalbox agents secret web-1 --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstArg(opts.completeAgents),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			id, err := s.resolve(cmd.Context(), "agent", args[0])
			if err != nil {
				return err
			}
			var answer struct {
				HMACSecret string `json:"hmac_secret"`
			}
			if err := s.post(cmd.Context(), s.path("agents", id, "hmac-secret"), nil, &answer); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"agent_id", id}, field{"hmac_secret", answer.HMACSecret})
			}
			opts.out.text("export Z4J_HMAC_SECRET=%s", shellQuote(answer.HMACSecret))
			return nil
		},
	}
}

func newAgentsRevokeCommand(opts *options) *cobra.Command {
	var confirm confirmation
	cmd := &cobra.Command{
		Use:   "revoke AGENT",
		Short: "Revoke an agent's token for good and close its connections",
		Example: `  signalbox agents revoke web-1 --yes
  signalbox agents revoke 3f1c --yes --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstArg(opts.completeAgents),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			id, err := s.resolve(cmd.Context(), "agent", args[0])
			if err != nil {
				return err
			}
			if err := confirm.ask(opts, fmt.Sprintf("Revoke agent %s of project %s? This cannot be undone.", args[0], s.slug)); err != nil {
				return err
			}
			if err := s.do(cmd.Context(), http.MethodDelete, s.path("agents", id), nil, nil, nil); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"agent_id", id}, field{"revoked", true})
			}
			opts.out.text("agent %s revoked", id)
			return nil
		},
	}
	confirm.add(cmd)
	return cmd
}
