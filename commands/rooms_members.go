package commands

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// maxTextFile bounds what @FILE reads: more than any text of a room may have.
const maxTextFile = 2 << 20

// textOrFile is the text itself, or that of the file after @.
func textOrFile(flag, value string) (string, error) {
	path, ok := strings.CutPrefix(value, "@")
	if !ok {
		return value, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", usagef("%s: %w", flag, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxTextFile+1))
	if err != nil {
		return "", usagef("%s: %w", flag, err)
	}
	if len(data) > maxTextFile {
		return "", usagef("%s: %s is larger than %d bytes", flag, path, maxTextFile)
	}
	return string(data), nil
}

func newRoomsInviteCommand(opts *options) *cobra.Command {
	var (
		people    []string
		alias     string
		listening bool
		manager   bool
	)
	cmd := &cobra.Command{
		Use:   "invite ROOM [AGENT…]",
		Short: "Bring agents and people into a room",
		Long: `Bring agents and people into a room. Whoever is in it already stays as they are, apart from what the flags say.

An agent is told of what is said after it joined. Its own policy decides who may address it.`,
		Example: `  signalbox rooms invite plaza build-bot review-bot
  signalbox rooms invite plaza review-bot --alias rb --listening
  signalbox rooms invite plaza --person ben@example.com --manager`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: opts.roomThen(opts.completeRoomAgents()),
		RunE: func(cmd *cobra.Command, args []string) error {
			agents := args[1:]
			switch {
			case len(agents)+len(people) == 0:
				return usagef("nobody to invite: name agents, or people with --person")
			case alias != "" && len(agents) != 1:
				return usagef("--alias: is for one agent")
			case manager && len(people) == 0:
				return usagef("--manager: is for people; name them with --person")
			case listening && len(agents) == 0:
				return usagef("--listening: is for agents")
			}
			c, id, err := opts.clientAnd(cmd.Context(), kindRoom, args[0])
			if err != nil {
				return err
			}
			agentIDs, err := c.findAll(cmd.Context(), kindRoomAgent, agents)
			if err != nil {
				return err
			}
			personIDs, err := c.findAll(cmd.Context(), kindPerson, people)
			if err != nil {
				return err
			}
			if len(agentIDs) > 0 {
				body := map[string]any{"agent_ids": agentIDs}
				if alias != "" {
					body["alias"] = alias
				}
				if cmd.Flags().Changed("listening") {
					body["listening"] = listening
				}
				if err := c.post(cmd.Context(), roomPath("rooms", id, "agents"), body, nil); err != nil {
					return blameArchive(err, args[0])
				}
			}
			if len(personIDs) > 0 {
				body := map[string]any{"person_ids": personIDs, "manager": manager}
				if err := c.post(cmd.Context(), roomPath("rooms", id, "people"), body, nil); err != nil {
					return blameArchive(err, args[0])
				}
			}
			return opts.showRoomOf(cmd.Context(), c, id)
		},
	}
	cmd.Flags().StringArrayVar(&people, "person", nil, "person: email, name, id or unique id prefix; repeatable")
	cmd.Flags().StringVar(&alias, "alias", "", "another name to mention the agent by in this room")
	cmd.Flags().BoolVar(&listening, "listening", false, "the agents are to notice who joins later")
	cmd.Flags().BoolVar(&manager, "manager", false, "the people may manage the room's members")
	_ = cmd.RegisterFlagCompletionFunc("person", opts.completePeople())
	return cmd
}

// showRoomOf shows a room after it was changed.
func (o *options) showRoomOf(ctx context.Context, c *client, id string) error {
	var r record[roomRow]
	if err := c.get(ctx, roomPath("rooms", id), nil, &r); err != nil {
		return err
	}
	return o.showRoom(r)
}

func newRoomsRemoveCommand(opts *options) *cobra.Command {
	var people []string
	cmd := &cobra.Command{
		Use:   "remove ROOM [AGENT…]",
		Short: "Take agents and people out of a room",
		Long: `Take agents and people out of a room. An agent loses its claims on the room and the events of it that wait, without a
gap; what was said stays in the room's history.`,
		Example: `  signalbox rooms remove plaza build-bot
  signalbox rooms remove plaza --person ben@example.com --json`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: opts.roomThen(opts.completeRoomAgents()),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && len(people) == 0 {
				return usagef("nobody to remove: name agents, or people with --person")
			}
			c, id, err := opts.clientAnd(cmd.Context(), kindRoom, args[0])
			if err != nil {
				return err
			}
			agentIDs, err := c.findAll(cmd.Context(), kindRoomAgent, args[1:])
			if err != nil {
				return err
			}
			personIDs, err := c.findAll(cmd.Context(), kindPerson, people)
			if err != nil {
				return err
			}
			for _, a := range agentIDs {
				if err := c.do(cmd.Context(), http.MethodDelete, roomPath("rooms", id, "agents", a), nil, nil, nil); err != nil {
					return err
				}
			}
			for _, p := range personIDs {
				if err := c.do(cmd.Context(), http.MethodDelete, roomPath("rooms", id, "people", p), nil, nil, nil); err != nil {
					return err
				}
			}
			return opts.showRoomOf(cmd.Context(), c, id)
		},
	}
	cmd.Flags().StringArrayVar(&people, "person", nil, "person: email, name, id or unique id prefix; repeatable")
	_ = cmd.RegisterFlagCompletionFunc("person", opts.completePeople())
	return cmd
}

func newRoomsPolicyCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "policy ROOM",
		Short: "Show who may address whom in a room",
		Long: `Show who of the room may address which of its agents, by the agents' own policies. A message of somebody who may not still
arrives; it is not addressed, so an agent that acts only on what is addressed to it does nothing.`,
		Example: `  signalbox rooms policy plaza
  signalbox rooms policy plaza --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: opts.roomThen(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := opts.clientAnd(cmd.Context(), kindRoom, args[0])
			if err != nil {
				return err
			}
			var answer struct {
				Agents []record[roomPolicyRow] `json:"agents"`
			}
			if err := c.get(cmd.Context(), roomPath("rooms", id, "policy"), url.Values{}, &answer); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"room_id", id}, field{"agents", nonNil(answer.Agents)})
			}
			rows := make([][]string, 0, len(answer.Agents))
			var hints []string
			for _, a := range answer.Agents {
				var may, mayNot []string
				for _, s := range a.V.Senders {
					if s.Admitted {
						may = append(may, s.Name)
					} else {
						mayNot = append(mayNot, s.Name)
					}
				}
				rows = append(rows, []string{a.V.Name, a.V.Addressable, dash(strings.Join(may, ", ")), dash(strings.Join(mayNot, ", "))})
				if a.V.OpenCommand != nil {
					hints = append(hints, oneLine(a.V.Name+" answers to its owner only; open it to everybody with: "+*a.V.OpenCommand))
				}
			}
			if err := opts.out.table([]string{"AGENT", "ADDRESSABLE BY", "MAY ADDRESS IT", "MAY NOT"}, rows); err != nil {
				return err
			}
			for _, h := range hints {
				opts.out.say("%s", h)
			}
			return nil
		},
	}
}
