package commands

import (
	"net/http"
	"strings"

	"github.com/spf13/cobra"
)

func newRoomsRolesCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "roles",
		Short: "Define, list, change and delete the roles of a room",
		Long: `Define, list, change and delete the roles of a room. Agents take and give up roles themselves; while one holds a role, a
mention of the role addresses it.`,
		Example: `  signalbox rooms roles define plaza reviewer --instructions 'Review each change before it is merged.'
  signalbox rooms roles list plaza`,
	}
	cmd.AddCommand(newRolesListCommand(opts), newRolesDefineCommand(opts), newRolesEditCommand(opts), newRolesDeleteCommand(opts))
	return cmd
}

func newRolesListCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "list ROOM",
		Short: "List the roles of a room and who holds them now",
		Example: `  signalbox rooms roles list plaza
  signalbox rooms roles list plaza --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: opts.roomThen(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := opts.clientAnd(cmd.Context(), kindRoom, args[0])
			if err != nil {
				return err
			}
			var roles []record[roomRole]
			if err := c.get(cmd.Context(), roomPath("rooms", id, "roles"), nil, &roles); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", nonNil(roles)}, field{"next_cursor", nil})
			}
			return opts.showRoles(values(roles))
		},
	}
}

func (o *options) showRoles(roles []roomRole) error {
	rows := make([][]string, 0, len(roles))
	for _, r := range roles {
		var holders []string
		for _, h := range r.HeldBy {
			holders = append(holders, h.Name)
		}
		rows = append(rows, []string{r.Name, yesNo(r.Exclusive), dash(strings.Join(holders, ", ")), dash(cut(r.Instructions, 80))})
	}
	return o.out.table([]string{"ROLE", "EXCLUSIVE", "HELD BY", "INSTRUCTIONS"}, rows)
}

func newRolesDefineCommand(opts *options) *cobra.Command {
	var (
		instructions string
		exclusive    bool
	)
	cmd := &cobra.Command{
		Use:   "define ROOM ROLE",
		Short: "Define a role that agents of the room can take",
		Example: `  signalbox rooms roles define plaza reviewer --instructions 'Review each change before it is merged.'
  signalbox rooms roles define plaza lead --exclusive --json`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: opts.roomThen(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			words, err := textOrFile("--instructions", instructions)
			if err != nil {
				return err
			}
			c, id, err := opts.clientAnd(cmd.Context(), kindRoom, args[0])
			if err != nil {
				return err
			}
			body := map[string]any{"name": args[1], "instructions": words, "exclusive": exclusive}
			var r record[roomRole]
			if err := c.post(cmd.Context(), roomPath("rooms", id, "roles"), body, &r); err != nil {
				return err
			}
			return opts.showRole(r)
		},
	}
	cmd.Flags().StringVar(&instructions, "instructions", "", "what the agent that takes the role is told; @FILE reads a file")
	cmd.Flags().BoolVar(&exclusive, "exclusive", false, "one agent at a time may hold it")
	return cmd
}

func (o *options) showRole(r record[roomRole]) error {
	if o.json {
		return o.out.object("role", r)
	}
	return o.showRoles([]roomRole{r.V})
}

func newRolesEditCommand(opts *options) *cobra.Command {
	var (
		name, instructions string
		exclusive          bool
	)
	cmd := &cobra.Command{
		Use:   "edit ROOM ROLE",
		Short: "Change a role",
		Example: `  signalbox rooms roles edit plaza reviewer --instructions @reviewer.md
  signalbox rooms roles edit plaza lead --exclusive=false --json`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: opts.roomThen(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{}
			words, err := textOrFile("--instructions", instructions)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("name") {
				body["name"] = name
			}
			if cmd.Flags().Changed("instructions") {
				body["instructions"] = words
			}
			if cmd.Flags().Changed("exclusive") {
				body["exclusive"] = exclusive
			}
			if len(body) == 0 {
				return usagef("nothing to change: give at least one of the flags")
			}
			c, id, err := opts.clientAnd(cmd.Context(), kindRoom, args[0])
			if err != nil {
				return err
			}
			var r record[roomRole]
			if err := c.do(cmd.Context(), http.MethodPatch, roomPath("rooms", id, "roles", args[1]), nil, body, &r); err != nil {
				return err
			}
			return opts.showRole(r)
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "new name")
	cmd.Flags().StringVar(&instructions, "instructions", "", "new instructions; @FILE reads a file")
	cmd.Flags().BoolVar(&exclusive, "exclusive", false, "one agent at a time may hold it")
	return cmd
}

func newRolesDeleteCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "delete ROOM ROLE",
		Short: "Delete a role; whoever holds it loses it",
		Example: `  signalbox rooms roles delete plaza reviewer
  signalbox rooms roles delete plaza reviewer --json`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: opts.roomThen(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := opts.clientAnd(cmd.Context(), kindRoom, args[0])
			if err != nil {
				return err
			}
			if err := c.do(cmd.Context(), http.MethodDelete, roomPath("rooms", id, "roles", args[1]), nil, nil, nil); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"room_id", id}, field{"role", args[1]}, field{"deleted", true})
			}
			opts.out.text("role %s deleted", oneLine(args[1]))
			return nil
		},
	}
}
