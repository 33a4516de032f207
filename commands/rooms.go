package commands

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
)

func newRoomsCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rooms",
		Short: "Make rooms, decide who is in them, speak, listen, and ask what became of a message",
		Long: `Make rooms, decide who is in them, speak, listen, and ask what became of a message.

A room is named by its name, its id or a unique beginning of its id. You speak and own rooms as the operator person,
which the server makes at its first start; rooms say --as EMAIL speaks as somebody else.`,
		Example: `  signalbox rooms create plaza --agent build-bot
  signalbox rooms say plaza '@build-bot status?'
  signalbox rooms tail plaza
  signalbox rooms explain plaza:12 --agent build-bot`,
	}
	cmd.AddCommand(newRoomsCreateCommand(opts), newRoomsListCommand(opts), newRoomsShowCommand(opts), newRoomsUpdateCommand(opts),
		newRoomsInviteCommand(opts), newRoomsRemoveCommand(opts), newRoomsArchiveCommand(opts), newRoomsUnarchiveCommand(opts),
		newRoomsDeleteCommand(opts), newRoomsPolicyCommand(opts), newRoomsRolesCommand(opts), newRoomsLinksCommand(opts),
		newRoomsSayCommand(opts), newRoomsTailCommand(opts), newRoomsChatCommand(opts), newRoomsExplainCommand(opts))
	return cmd
}

func newRoomsListCommand(opts *options) *cobra.Command {
	var archived bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List rooms",
		Example: `  signalbox rooms list
  signalbox rooms list --archived --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			query := url.Values{}
			if archived {
				query.Set("include_archived", "true")
			}
			var rooms []record[roomRow]
			if err := c.get(cmd.Context(), "/rooms", query, &rooms); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", nonNil(rooms)}, field{"next_cursor", nil})
			}
			rows := make([][]string, 0, len(rooms))
			for _, r := range rooms {
				rows = append(rows, []string{r.V.Name, r.V.state(), r.V.ChannelType, visibility(r.V), itoa(r.V.Head),
					opts.out.when(&r.V.CreatedAt), r.V.ID})
			}
			return opts.out.table([]string{"NAME", "STATE", "TYPE", "VISIBLE TO", "ITEMS", "CREATED", "ID"}, rows)
		},
	}
	cmd.Flags().BoolVar(&archived, "archived", false, "include archived rooms")
	return cmd
}

// visibility says who beside the owner may read and write.
func visibility(r roomRow) string {
	switch {
	case r.ReadVisibility != "public":
		return "owner"
	case r.WriteVisibility != "public":
		return "all, owner edits"
	}
	return "all"
}

func newRoomsShowCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "show ROOM",
		Short: "Show one room: who is in it and whether they would react, roles, links, instructions",
		Example: `  signalbox rooms show plaza
  signalbox rooms show 0193 --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: opts.roomThen(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := opts.clientAnd(cmd.Context(), kindRoom, args[0])
			if err != nil {
				return err
			}
			var r record[roomRow]
			if err := c.get(cmd.Context(), roomPath("rooms", id), nil, &r); err != nil {
				return err
			}
			return opts.showRoom(r)
		},
	}
}

func (o *options) showRoom(r record[roomRow]) error {
	if o.json {
		return o.out.object("room", r)
	}
	err := o.out.facts(
		[2]string{"name", r.V.Name}, [2]string{"id", r.V.ID}, [2]string{"description", r.V.Description},
		[2]string{"state", r.V.state()}, [2]string{"type", r.V.ChannelType}, [2]string{"visible to", visibility(r.V)},
		[2]string{"owner", nameOf(r.V.Owner)}, [2]string{"group", nameOf(r.V.Group)}, [2]string{"items", itoa(r.V.Head)},
		[2]string{"created", o.out.when(&r.V.CreatedAt)})
	if err != nil {
		return err
	}
	if err := o.showMembers(r.V.Members); err != nil {
		return err
	}
	if len(r.V.People) > 0 {
		o.out.text("")
		rows := make([][]string, 0, len(r.V.People))
		for _, p := range r.V.People {
			rows = append(rows, []string{p.Name, p.Email, yesNo(p.Manager), o.out.when(p.JoinedAt)})
		}
		if err := o.out.table([]string{"PERSON", "EMAIL", "MANAGER", "JOINED"}, rows); err != nil {
			return err
		}
	}
	if len(r.V.Roles) > 0 {
		o.out.text("")
		if err := o.showRoles(r.V.Roles); err != nil {
			return err
		}
	}
	if len(r.V.Links) > 0 {
		o.out.text("")
		if err := o.showLinks(r.V.Links); err != nil {
			return err
		}
	}
	if r.V.Instructions != "" {
		o.out.text("\nInstructions:\n%s", printable(r.V.Instructions))
	}
	return nil
}

// whoWord says of whom a room agent takes messages, in the words of tables: REACHED BY is who reaches it as things are now, which
// is nobody while it has no connection.
func whoWord(who string) string {
	switch who {
	case "owner":
		return "its owner"
	case "some":
		return "some (see policy)"
	}
	return who
}

func (o *options) showMembers(members []roomMember) error {
	if len(members) == 0 {
		return nil
	}
	o.out.text("")
	rows := make([][]string, 0, len(members))
	for _, m := range members {
		rows = append(rows, []string{m.Name, dash(text(m.Alias)), m.Status, whoWord(m.ReactsTo), dash(text(m.Role)), yesNo(m.Listening),
			o.out.when(m.JoinedAt)})
	}
	if err := o.out.table([]string{"AGENT", "ALIAS", "STATUS", "REACHED BY", "ROLE", "HEARS JOINS", "JOINED"}, rows); err != nil {
		return err
	}
	for _, m := range members {
		o.adviseDeaf(m.Name, m.Deaf)
	}
	return nil
}

// adviseDeaf says on stderr why an agent would not react.
func (o *options) adviseDeaf(name string, reasons []deafReason) {
	for _, r := range reasons {
		o.out.say("%s: %s", oneLine(name), oneLine(r.Text))
	}
}

func nameOf(n *idName) string {
	if n == nil {
		return ""
	}
	if n.Name == "" {
		return n.ID
	}
	return n.Name
}

// roomFlags are the settable fields of a room; only flags that were given are sent.
type roomFlags struct {
	name, description, instructions, channel, read, write, group string
}

func (f *roomFlags) add(cmd *cobra.Command) {
	visibilities := []string{"public", "private"}
	cmd.Flags().StringVar(&f.description, "description", "", "what the room is for")
	cmd.Flags().StringVar(&f.instructions, "instructions", "", "what agents are told when they connect to the room; @FILE reads a file")
	cmd.Flags().StringVar(&f.group, "group", "", "group that exists, name or id; agents make them with create_room_group; \"\": none")
	cmd.Flags().Var(&oneOf{into: &f.read, words: visibilities}, "read", "who may read: public or private (the owner and admins); a new room is public")
	cmd.Flags().Var(&oneOf{into: &f.write, words: visibilities}, "write", "who may change it and invite, not who may speak: public or private; a new room is public")
	_ = cmd.RegisterFlagCompletionFunc("read", cobra.FixedCompletions(visibilities, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("write", cobra.FixedCompletions(visibilities, cobra.ShellCompDirectiveNoFileComp))
}

func (f *roomFlags) body(cmd *cobra.Command) (map[string]any, error) {
	body := map[string]any{}
	set := func(flag, key string, value any) {
		if cmd.Flags().Changed(flag) {
			body[key] = value
		}
	}
	instructions, err := textOrFile("--instructions", f.instructions)
	if err != nil {
		return nil, err
	}
	set("name", "name", f.name)
	set("description", "description", f.description)
	set("instructions", "instructions", instructions)
	set("type", "channel_type", f.channel)
	set("group", "group", f.group)
	set("read", "read_visibility", f.read)
	set("write", "write_visibility", f.write)
	return body, nil
}

func newRoomsCreateCommand(opts *options) *cobra.Command {
	var (
		flags          roomFlags
		agents, people []string
		listening      bool
	)
	channels := []string{"channel_public", "channel_private"}
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a room with agents and people in it",
		Long: `Create a room. It belongs to the operator person, who is in it and can speak at once.

Agents are told of what is said from now on; each agent's own policy decides who may address it (rooms policy).`,
		Example: `  signalbox rooms create plaza --agent build-bot --agent review-bot
  signalbox rooms create ops --type channel_private --read private --write private --person ben@example.com
  signalbox rooms create docs --instructions @docs-room.md --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			body, err := flags.body(cmd)
			if err != nil {
				return err
			}
			c, err := opts.newClient()
			if err != nil {
				return err
			}
			body["name"] = args[0]
			if body["agent_ids"], err = c.findAll(cmd.Context(), kindRoomAgent, agents); err != nil {
				return err
			}
			if body["person_ids"], err = c.findAll(cmd.Context(), kindPerson, people); err != nil {
				return err
			}
			if listening {
				body["listening"] = true
			}
			var r record[roomRow]
			if err := c.post(cmd.Context(), "/rooms", body, &r); err != nil {
				return err
			}
			if err := opts.showRoom(r); err != nil {
				return err
			}
			opts.adviseNamesakes(cmd.Context(), c, r.V.ID, r.V.Name)
			return nil
		},
	}
	flags.add(cmd)
	cmd.Flags().Var(&oneOf{into: &flags.channel, words: channels}, "type",
		strings.Join(channels, " or ")+": what agents are told; --read decides who may read (default channel_public)")
	cmd.Flags().StringArrayVar(&agents, "agent", nil, "agent to invite: name, id or unique id prefix; repeatable")
	cmd.Flags().StringArrayVar(&people, "person", nil, "person to add: email, name, id or unique id prefix; repeatable")
	cmd.Flags().BoolVar(&listening, "listening", false, "the agents are to notice who joins later")
	_ = cmd.RegisterFlagCompletionFunc("type", cobra.FixedCompletions(channels, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("agent", opts.completeRoomAgents())
	_ = cmd.RegisterFlagCompletionFunc("person", opts.completePeople())
	return cmd
}

func newRoomsUpdateCommand(opts *options) *cobra.Command {
	var flags roomFlags
	cmd := &cobra.Command{
		Use:   "update ROOM",
		Short: "Change a room's name, description, instructions or visibility",
		Example: `  signalbox rooms update plaza --description 'where builds are discussed'
  signalbox rooms update plaza --instructions @plaza.md --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: opts.roomThen(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			body, err := flags.body(cmd)
			if err != nil {
				return err
			}
			if len(body) == 0 {
				return usagef("nothing to change: give at least one of the flags")
			}
			c, id, err := opts.clientAnd(cmd.Context(), kindRoom, args[0])
			if err != nil {
				return err
			}
			var r record[roomRow]
			if err := c.do(cmd.Context(), http.MethodPatch, roomPath("rooms", id), nil, body, &r); err != nil {
				return err
			}
			return opts.showRoom(r)
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&flags.name, "name", "", "new name, 1 to 200 characters")
	return cmd
}

// roomVerb is a command that does one thing to a room and shows it.
type roomVerb struct {
	name, short, long, done string
}

// newRoomVerbCommand makes archive and unarchive.
func newRoomVerbCommand(opts *options, v roomVerb) *cobra.Command {
	return &cobra.Command{
		Use:               v.name + " ROOM",
		Short:             v.short,
		Long:              v.long,
		Example:           fmt.Sprintf("  signalbox rooms %s plaza\n  signalbox rooms %s plaza --json", v.name, v.name),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: opts.roomThen(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := opts.clientAnd(cmd.Context(), kindRoom, args[0])
			if err != nil {
				return err
			}
			var r record[roomRow]
			if err := c.post(cmd.Context(), roomPath("rooms", id, v.name), nil, &r); err != nil {
				return err
			}
			if opts.json {
				return opts.out.object("room", r)
			}
			opts.out.text("room %s %s", oneLine(r.V.Name), v.done)
			return nil
		},
	}
}

func newRoomsArchiveCommand(opts *options) *cobra.Command {
	return newRoomVerbCommand(opts, roomVerb{name: "archive", short: "Close a room to new messages, and keep it",
		long: "Close a room to new messages. Members, claims and history stay; unarchive opens it again.", done: "archived"})
}

func newRoomsUnarchiveCommand(opts *options) *cobra.Command {
	return newRoomVerbCommand(opts, roomVerb{name: "unarchive", short: "Open an archived room again",
		long: "Open an archived room again, with the members and the history it has.", done: "open again"})
}

func newRoomsDeleteCommand(opts *options) *cobra.Command {
	var confirm confirmation
	cmd := &cobra.Command{
		Use:   "delete ROOM",
		Short: "Delete a room with its history",
		Long: `Delete a room: its members lose it at once, their events of it go without a gap, and its history is removed. To keep the
history, archive it instead.`,
		Example: `  signalbox rooms delete plaza --yes
  signalbox rooms delete 0193 --yes --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: opts.roomThen(nil),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := opts.clientAnd(cmd.Context(), kindRoom, args[0])
			if err != nil {
				return err
			}
			if err := confirm.ask(opts, fmt.Sprintf("Delete room %s with its history? This cannot be undone.", args[0])); err != nil {
				return err
			}
			if err := c.do(cmd.Context(), http.MethodDelete, roomPath("rooms", id), nil, nil, nil); err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"room_id", id}, field{"deleted", true})
			}
			opts.out.text("room %s deleted", id)
			return nil
		},
	}
	confirm.add(cmd)
	return cmd
}
