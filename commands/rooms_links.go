package commands

import (
	"net/http"

	"github.com/spf13/cobra"
)

func newRoomsLinksCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "links",
		Short: "List, add and remove the links of a room to others",
		Long: `List, add and remove the links of a room to others. An agent that connects to a room is shown its links, with a note on
those it is no member of.`,
		Example: `  signalbox rooms links add plaza archive-room --label 'older discussions'
  signalbox rooms links list plaza`,
	}
	cmd.AddCommand(newLinksListCommand(opts), newLinksAddCommand(opts), newLinksRemoveCommand(opts))
	return cmd
}

func newLinksListCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "list ROOM",
		Short: "List the rooms that a room links to",
		Example: `  signalbox rooms links list plaza
  signalbox rooms links list plaza --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: opts.roomThen(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := opts.clientAnd(cmd.Context(), kindRoom, args[0])
			if err != nil {
				return err
			}
			var links []record[roomLink]
			if err := c.get(cmd.Context(), roomPath("rooms", id, "links"), nil, &links); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", nonNil(links)}, field{"next_cursor", nil})
			}
			return opts.showLinks(values(links))
		},
	}
}

func (o *options) showLinks(links []roomLink) error {
	rows := make([][]string, 0, len(links))
	for _, l := range links {
		rows = append(rows, []string{l.TargetRoomName, dash(l.Label), l.TargetRoomID})
	}
	return o.out.table([]string{"LINKS TO", "LABEL", "ID"}, rows)
}

func newLinksAddCommand(opts *options) *cobra.Command {
	var label string
	cmd := &cobra.Command{
		Use:   "add ROOM TARGET",
		Short: "Link a room to another",
		Example: `  signalbox rooms links add plaza archive-room --label 'older discussions'
  signalbox rooms links add plaza archive-room --json`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: opts.roomThen(opts.completeRooms()),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			ids, err := c.findAll(cmd.Context(), kindRoom, args)
			if err != nil {
				return err
			}
			body := map[string]any{"target_room_id": ids[1], "label": label}
			var l record[roomLink]
			if err := c.post(cmd.Context(), roomPath("rooms", ids[0], "links"), body, &l); err != nil {
				return err
			}
			if opts.json {
				return opts.out.object("link", l)
			}
			return opts.showLinks([]roomLink{l.V})
		},
	}
	cmd.Flags().StringVar(&label, "label", "", "what the other room is to this one")
	return cmd
}

func newLinksRemoveCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "remove ROOM TARGET",
		Short: "Remove a link",
		Example: `  signalbox rooms links remove plaza archive-room
  signalbox rooms links remove plaza archive-room --json`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: opts.roomThen(opts.completeRooms()),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			ids, err := c.findAll(cmd.Context(), kindRoom, args)
			if err != nil {
				return err
			}
			if err := c.do(cmd.Context(), http.MethodDelete, roomPath("rooms", ids[0], "links", ids[1]), nil, nil, nil); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"room_id", ids[0]}, field{"target_room_id", ids[1]}, field{"deleted", true})
			}
			opts.out.text("link removed")
			return nil
		},
	}
}
