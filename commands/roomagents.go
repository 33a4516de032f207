package commands

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
)

func newRoomAgentsCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "roomagents",
		Short: "Register, list, show and delete agents of rooms, their keys, and who may address them",
		Long: `Register, list, show and delete agents of rooms, their keys, and who may address them. A room agent is named by its name,
its id or a unique beginning of its id. Agents of task queues are another thing: see agents.`,
		Example: `  signalbox roomagents register build-bot --out build-bot.env
  signalbox roomagents policy build-bot --open
  signalbox roomagents list --room plaza`,
	}
	cmd.AddCommand(newRoomAgentsRegisterCommand(opts), newRoomAgentsRotateCommand(opts), newRoomAgentsListCommand(opts),
		newRoomAgentsShowCommand(opts), newRoomAgentsDeleteCommand(opts), newRoomAgentsPolicyCommand(opts), newRoomAgentsKeysCommand(opts))
	return cmd
}

func newRoomAgentsListCommand(opts *options) *cobra.Command {
	var room string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List agents with their live status, and why one would not react",
		Long: `List agents with their live status, in one room with --room: who may address each by its policy, and whom it would react to
as things stand. Why that is not everybody goes to stderr: it is not connected, in no room, its connections do not cover
the room, it is owner-only.`,
		Example: `  signalbox roomagents list
  signalbox roomagents list --room plaza --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			query := url.Values{}
			if room != "" {
				id, err := c.find(cmd.Context(), kindRoom, room)
				if err != nil {
					return err
				}
				query.Set("room", id)
			}
			var agents []record[roomAgentRow]
			if err := c.get(cmd.Context(), "/room-agents", query, &agents); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", nonNil(agents)}, field{"next_cursor", nil})
			}
			rows := make([][]string, 0, len(agents))
			for _, a := range agents {
				rows = append(rows, []string{a.V.Name, a.V.Status, dash(nameOf(a.V.Owner)), whoWord(a.V.Addressable), whoWord(a.V.ReactsTo),
					itoa(a.V.Connections), a.V.ID})
			}
			if err := opts.out.table([]string{"NAME", "STATUS", "OWNER", "ADDRESSABLE BY", "REACHED BY", "CONNECTIONS", "ID"}, rows); err != nil {
				return err
			}
			for _, a := range agents {
				opts.adviseDeaf(a.V.Name, a.V.Deaf)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&room, "room", "", "the agents of this room, and their status in it")
	_ = cmd.RegisterFlagCompletionFunc("room", opts.completeRooms())
	return cmd
}

func newRoomAgentsShowCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "show AGENT",
		Short: "Show one agent, the rooms it is in, and why it would not react there",
		Example: `  signalbox roomagents show build-bot
  signalbox roomagents show 0193 --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstArg(opts.completeRoomAgents()),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := opts.clientAnd(cmd.Context(), kindRoomAgent, args[0])
			if err != nil {
				return err
			}
			var a record[roomAgentRow]
			if err := c.get(cmd.Context(), roomPath("room-agents", id), nil, &a); err != nil {
				return err
			}
			if opts.json {
				return opts.out.object("room_agent", a)
			}
			return opts.showRoomAgent(a.V)
		},
	}
}

func (o *options) showRoomAgent(a roomAgentRow) error {
	err := o.out.facts(
		[2]string{"name", a.Name}, [2]string{"display name", text(a.DisplayName)}, [2]string{"id", a.ID},
		[2]string{"description", a.Description}, [2]string{"owner", nameOf(a.Owner)}, [2]string{"status", a.Status},
		[2]string{"connections", itoa(a.Connections)}, [2]string{"addressable by", a.Addressable},
		[2]string{"type", text(a.Type)}, [2]string{"connection model", a.ConnectionModel},
		[2]string{"commands", fmt.Sprintf("reset %s, compact %s, interrupt %s", a.Commands["reset"], a.Commands["compact"], a.Commands["interrupt"])},
		[2]string{"key set", o.out.when(a.KeySetAt)}, [2]string{"created", o.out.when(a.CreatedAt)})
	if err != nil {
		return err
	}
	if len(a.Rooms) > 0 {
		o.out.text("")
		rows := make([][]string, 0, len(a.Rooms))
		for _, r := range a.Rooms {
			rows = append(rows, []string{r.Name, dash(text(r.Alias)), r.Status, yesNo(r.Listening), whoWord(r.ReactsTo), r.ID})
		}
		if err := o.out.table([]string{"ROOM", "ALIAS", "STATUS", "HEARS JOINS", "REACHED BY", "ID"}, rows); err != nil {
			return err
		}
	}
	o.adviseDeaf(a.Name, a.Deaf)
	for _, r := range a.Rooms {
		for _, d := range r.Deaf {
			if !mentions(a.Deaf, d.Code) {
				o.out.say("%s in %s: %s", oneLine(a.Name), oneLine(r.Name), oneLine(d.Text))
			}
		}
	}
	return nil
}

func mentions(reasons []deafReason, code string) bool {
	for _, r := range reasons {
		if r.Code == code {
			return true
		}
	}
	return false
}

func newRoomAgentsDeleteCommand(opts *options) *cobra.Command {
	var confirm confirmation
	cmd := &cobra.Command{
		Use:   "delete AGENT",
		Short: "Delete an agent: its key, its memberships, what waits for it",
		Long: `Delete an agent: its key is refused at once, its connections end, its memberships and what waits for it go. What it said
stays in the rooms. Its name is free again, for another agent.`,
		Example: `  signalbox roomagents delete build-bot --yes
  signalbox roomagents delete 0193 --yes --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstArg(opts.completeRoomAgents()),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := opts.clientAnd(cmd.Context(), kindRoomAgent, args[0])
			if err != nil {
				return err
			}
			if err := confirm.ask(opts, fmt.Sprintf("Delete room agent %s? This cannot be undone.", args[0])); err != nil {
				return err
			}
			if err := c.do(cmd.Context(), http.MethodDelete, roomPath("room-agents", id), nil, nil, nil); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"room_agent_id", id}, field{"deleted", true})
			}
			opts.out.text("room agent %s deleted", id)
			return nil
		},
	}
	confirm.add(cmd)
	return cmd
}

// agentPolicy is who may address an agent.
type agentPolicy struct {
	AgentID     string          `json:"agent_id"`
	Addressable string          `json:"addressable"`
	OpenCommand *string         `json:"open_command"`
	Policy      json.RawMessage `json:"policy"`
}

func newRoomAgentsPolicyCommand(opts *options) *cobra.Command {
	var (
		open, ownerOnly bool
		file            string
	)
	cmd := &cobra.Command{
		Use:   "policy AGENT",
		Short: "Show or set who may address an agent",
		Long: `Show or set who may address an agent. A new agent answers to its owner only; --open lets everybody address it, --owner-only
takes that back, and --file sets rules.

A policy is {"rules": […]}. A rule has rooms, room_groups, users and agents, each "*" or a list of ids (default "*"), owner
(the agent's owner) and owner_agents (agents of the same owner), both false by default. A sender is admitted when a rule
matches room and group, and the list of the sender's kind or an owner field. No rules admit everybody. Without a flag the
policy is shown; its output with --json is what --file takes, under "policy".`,
		Example: `  signalbox roomagents policy build-bot
  signalbox roomagents policy build-bot --open
  signalbox roomagents policy build-bot --file policy.json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: firstArg(opts.completeRoomAgents()),
		RunE: func(cmd *cobra.Command, args []string) error {
			var rules json.RawMessage
			change := true
			ways := 0
			for _, flag := range []string{"open", "owner-only", "file"} {
				if cmd.Flags().Changed(flag) {
					ways++
				}
			}
			switch {
			case ways > 1:
				return usagef("--open, --owner-only and --file exclude each other: an agent has one policy")
			case open:
				rules = json.RawMessage("null")
			case ownerOnly:
				rules = json.RawMessage(`{"rules":[{"users":[],"agents":[],"owner":true}]}`)
			case file != "":
				text, err := textOrFile("--file", "@"+file)
				if err != nil {
					return err
				}
				if !json.Valid([]byte(text)) {
					return usagef("--file: %s is no JSON", file)
				}
				rules = json.RawMessage(text)
			default:
				change = false
			}
			c, id, err := opts.clientAnd(cmd.Context(), kindRoomAgent, args[0])
			if err != nil {
				return err
			}
			path := roomPath("room-agents", id, "policy")
			var p record[agentPolicy]
			if change {
				err = c.do(cmd.Context(), http.MethodPut, path, nil, map[string]any{"policy": rules}, &p)
			} else {
				err = c.get(cmd.Context(), path, nil, &p)
			}
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.object("policy", p)
			}
			opts.out.text("%s is addressable by: %s", oneLine(args[0]), p.V.Addressable)
			if p.V.OpenCommand != nil {
				opts.out.say("open it to everybody with: %s", *p.V.OpenCommand)
			}
			if p.V.Addressable == "some" {
				opts.out.text("%s", printable(string(p.V.Policy)))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&open, "open", false, "let everybody address it")
	cmd.Flags().BoolVar(&ownerOnly, "owner-only", false, "let only its owner address it")
	cmd.Flags().StringVar(&file, "file", "", "JSON file with the rules")
	return cmd
}
