package commands

import (
	"net/url"

	"github.com/spf13/cobra"
)

func newRoomsExplainCommand(opts *options) *cobra.Command {
	var agent string
	cmd := &cobra.Command{
		Use:   "explain MESSAGE",
		Short: "Say what became of a message for an agent: queued, addressed, delivered, or why not",
		Long: `Say what became of a message for an agent: whether it was queued and under which number, whether it was addressed and by
which rule, over which connection it went and when; and if it did not arrive, why: not in the room then, its own post, filtered,
not covered by its connections, still waiting, dropped by retention, or refused by the agent's policy.

MESSAGE is its id, or ROOM:POSITION as rooms tail shows it. Deliveries are remembered in memory for a while only.`,
		Example: `  signalbox rooms explain plaza:12 --agent build-bot
  signalbox rooms explain 01932d1f-0000-7000-8000-000000000001 --agent build-bot --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if agent == "" {
				return usagef("--agent: name the agent that is asked about")
			}
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			id, err := c.findItem(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			agentID, err := c.find(cmd.Context(), kindRoomAgent, agent)
			if err != nil {
				return err
			}
			var e record[itemExplanation]
			if err := c.get(cmd.Context(), roomPath("rooms", "messages", id, "explain"), url.Values{"agent": {agentID}}, &e); err != nil {
				return err
			}
			if opts.json {
				return opts.out.object("explanation", e)
			}
			opts.out.text("%s\n", printable(e.V.Summary))
			for _, sentence := range e.V.Sentences {
				opts.out.text("%s", printable(sentence))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&agent, "agent", "", "the agent that is asked about: name, id or unique id prefix")
	_ = cmd.RegisterFlagCompletionFunc("agent", opts.completeRoomAgents())
	return cmd
}
