package commands

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func newConnectionsCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "connections",
		Short: "List, show and evict the live connections of room agents",
		Long: `List, show and evict the live connections of room agents. They are in memory: a restart of the server ends them all, and
clients come back by themselves.`,
		Example: `  signalbox connections list
  signalbox connections show 5d0c
  signalbox connections evict 5d0c --yes`,
	}
	cmd.AddCommand(newConnectionsListCommand(opts), newConnectionsShowCommand(opts), newConnectionsEvictCommand(opts))
	return cmd
}

func newConnectionsListCommand(opts *options) *cobra.Command {
	var agent string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List connections: what each covers, how far it has read, when it was last heard",
		Long: `List connections: scope and filter, claimed rooms, how far each has read and how far that is behind the agent's newest
event (LAG), how it is attached, when it was last heard, and the client's version.`,
		Example: `  signalbox connections list
  signalbox connections list --agent build-bot --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			query := url.Values{}
			if agent != "" {
				id, err := c.find(cmd.Context(), kindRoomAgent, agent)
				if err != nil {
					return err
				}
				query.Set("agent", id)
			}
			var conns []record[connectionRow]
			if err := c.get(cmd.Context(), "/connections", query, &conns); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", nonNil(conns)}, field{"next_cursor", nil})
			}
			rows := make([][]string, 0, len(conns))
			for _, r := range conns {
				rows = append(rows, []string{r.V.Agent.Name, r.V.Scope + "/" + r.V.Filter, dash(claimNames(r.V)), attachment(r.V),
					itoa(r.V.Cursor), itoa(r.V.Lag), beatAge(r.V), dash(clientText(r.V)), r.V.ConnectionID})
			}
			return opts.out.table([]string{"AGENT", "SCOPE/FILTER", "CLAIMS", "ATTACHED", "CURSOR", "LAG", "LAST BEAT", "CLIENT", "CONNECTION"}, rows)
		},
	}
	cmd.Flags().StringVar(&agent, "agent", "", "only of this agent: name, id or unique id prefix")
	_ = cmd.RegisterFlagCompletionFunc("agent", opts.completeRoomAgents())
	return cmd
}

func claimNames(c connectionRow) string {
	names := make([]string, 0, len(c.Claims))
	for i := range c.Claims {
		names = append(names, nameOf(&c.Claims[i]))
	}
	return strings.Join(names, ", ")
}

// attachment says over what the connection is read, and whether it waits for a claim.
func attachment(c connectionRow) string {
	switch {
	case !c.Attached:
		return "no"
	case c.Held:
		return c.Transport + ", held"
	}
	return c.Transport
}

func beatAge(c connectionRow) string {
	return (time.Duration(c.LastBeatAgeMS) * time.Millisecond).Round(100 * time.Millisecond).String()
}

func clientText(c connectionRow) string {
	return strings.TrimSpace(text(c.Client) + " " + text(c.ClientVersion))
}

func newConnectionsShowCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "show CONNECTION",
		Short: "Show one connection",
		Example: `  signalbox connections show 5d0c
  signalbox connections show 5d0c1c3e-8d0e-4f64-9b9f-3c2b7b1a0e11 --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstArg(opts.completeConnections()),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := opts.clientAnd(cmd.Context(), kindConnection, args[0])
			if err != nil {
				return err
			}
			var r record[connectionRow]
			if err := c.get(cmd.Context(), roomPath("connections", id), nil, &r); err != nil {
				return err
			}
			if opts.json {
				return opts.out.object("connection", r)
			}
			return opts.showConnection(r.V)
		},
	}
}

func (o *options) showConnection(c connectionRow) error {
	protocol, lease := itoa(c.Protocol)+" (the client declared none)", ""
	if c.Declared != nil {
		protocol = fmt.Sprintf("%d (the client speaks %d)", c.Protocol, *c.Declared)
	}
	if c.RoleLease != nil {
		lease = c.RoleLease.Role + " in " + c.RoleLease.RoomName
	}
	err := o.out.facts(
		[2]string{"connection", c.ConnectionID}, [2]string{"agent", c.Agent.Name}, [2]string{"scope", c.Scope},
		[2]string{"filter", c.Filter}, [2]string{"claims", claimNames(c)}, [2]string{"attached", attachment(c)},
		[2]string{"read up to", itoa(c.Cursor)}, [2]string{"behind", fmt.Sprintf("%d of %d", c.Lag, c.Head)},
		[2]string{"generation", itoa(c.Generation)}, [2]string{"last beat", beatAge(c) + " ago"},
		[2]string{"role", lease}, [2]string{"starts sessions", yesNo(c.SpawnCapable)}, [2]string{"client", clientText(c)},
		[2]string{"protocol", protocol}, [2]string{"opened", o.out.when(c.OpenedAt)})
	if err != nil || len(c.Placements) == 0 {
		return err
	}
	o.out.text("")
	rows := make([][]string, 0, len(c.Placements))
	for _, p := range c.Placements {
		rows = append(rows, []string{p.SessionID, dash(p.RoomName), p.RoomID})
	}
	return o.out.table([]string{"SESSION", "PLACED IN", "ROOM"}, rows)
}

func newConnectionsEvictCommand(opts *options) *cobra.Command {
	var confirm confirmation
	cmd := &cobra.Command{
		Use:   "evict CONNECTION",
		Short: "End a connection: its claims, placements and role are free at once",
		Long: `End a connection: its claims, placements and role are free at once. A healthy client opens it again by itself and resumes
after the last event it handled; to keep an agent out, rotate its key first.`,
		Example: `  signalbox connections evict 5d0c --yes
  signalbox connections evict 5d0c --yes --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstArg(opts.completeConnections()),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := opts.clientAnd(cmd.Context(), kindConnection, args[0])
			if err != nil {
				return err
			}
			if err := confirm.ask(opts, fmt.Sprintf("End connection %s?", id)); err != nil {
				return err
			}
			if err := c.do(cmd.Context(), http.MethodDelete, roomPath("connections", id), nil, nil, nil); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"connection_id", id}, field{"evicted", true})
			}
			opts.out.text("connection %s evicted", oneLine(id))
			return nil
		},
	}
	confirm.add(cmd)
	return cmd
}
