package timeline

import (
	"context"
	"fmt"
	"strings"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/feed"
)

// outcome is what a typed command does, worked out on a scene.
type outcome struct {
	told    map[int64]room.Command // agents that get an event
	replies []reply
}

// postTyped carries out what a person typed (D.7). The item is kept in the log as it was typed; only the agents that a
// command is for get an event of it.
//
// What the command asks of the directory happens before the item is stored: when the answer is there, it was done, and
// when storing fails, doing it again changes nothing.
func (t *Timeline) postTyped(ctx context.Context, d Draft, name, args string) (Posted, error) {
	var s scene
	err := t.store.View(ctx, func(tx ReadTx) (err error) {
		s, err = t.enter(tx, d)
		return err
	})
	if err != nil {
		return Posted{}, err
	}
	if s.first != nil {
		return Posted{Item: s.first.item, Answers: s.first.answers, Repeated: true, Statuses: map[int64]room.Status{}}, nil
	}
	decide, err := t.plan(ctx, d, &s, name, args)
	if err != nil {
		return Posted{}, err
	}
	var out Posted
	told := map[int64]bool{}
	err = t.store.Update(ctx, "room_command", func(tx Tx) error {
		out = Posted{}
		clear(told)
		s, err := t.enter(tx, d)
		if err != nil {
			return err
		}
		out.cast = s.cast
		if s.first != nil {
			out.Item, out.Answers, out.Repeated = s.first.item, s.first.answers, true
			return nil
		}
		o := decide(&s)
		for no := range o.told {
			told[no] = true
		}
		out.Item, err = t.append(tx, s.cast, &s.spot, s.item(d, room.ItemCommand), func(room.Item) feed.Audience {
			return feed.Audience{Commands: o.told}
		})
		if err != nil {
			return err
		}
		out.Answers, err = t.answer(tx, &s, out.Item, o.replies)
		return err
	})
	if err != nil {
		return Posted{}, err
	}
	out.Statuses = t.statuses(out.cast, told)
	return out, nil
}

// plan prepares the outcome outside the transaction; the function it returns only decides.
func (t *Timeline) plan(ctx context.Context, d Draft, s *scene, name, args string) (func(*scene) outcome, error) {
	if command, everyAgent, ok := room.AgentCommand(name); ok {
		return t.planAgentCommand(s, command, everyAgent, args), nil
	}
	var text string
	var err error
	switch name {
	case "help":
		text = helpText
	case "roles":
		text = t.rolesText(s.cast)
	case "list-agents":
		text = t.agentsText(s.cast)
	case "invite-agent":
		text, err = t.inviteAgent(ctx, d, s, args)
	case "set-alias":
		text, err = t.setAlias(ctx, d, s, args)
	default:
		text = fmt.Sprintf("There is no command !%s. Type !help for those there are.", shorten(name))
	}
	return func(*scene) outcome { return outcome{replies: []reply{{body: text}}} }, err
}

// planAgentCommand samples what the live connections say about a command for agents.
func (t *Timeline) planAgentCommand(s *scene, command string, everyAgent bool, args string) func(*scene) outcome {
	held := t.presence.RoleHolders(s.cast.Room.No)
	target := room.ParseTarget(args)
	meant := func(m *room.Member) bool { return everyAgent || target.Is(m, held[m.Agent.No]) }
	ready := map[int64]bool{}
	for i := range s.cast.Members {
		m := &s.cast.Members[i]
		if a := &m.Agent; meant(m) && a.Profile.Commands.Of(command) == room.CapabilitySessionDependent {
			ready[a.No] = t.presence.Status(a.No, a.Profile.ConnectionModel, s.cast.Room.No) == room.StatusLive &&
				t.presence.ControlCapabilities(a.No, s.cast.Room.No)[command]
		}
	}
	return func(s *scene) outcome {
		o := outcome{told: map[int64]room.Command{}}
		for i := range s.cast.Members {
			m := &s.cast.Members[i]
			if !meant(m) {
				continue
			}
			a := &m.Agent
			capability := a.Profile.Commands.Of(command)
			switch {
			case !a.Policy.Admits(&s.cast.Room, s.actor, a):
				o.replies = append(o.replies, refusal(m, s.actor))
			case capability == room.CapabilityAlways, capability == room.CapabilitySessionDependent && ready[a.No]:
				o.told[a.No] = room.Command{Name: command, Args: commandArgs(command, args, held[a.No])}
				o.replies = append(o.replies, reply{m, fmt.Sprintf("%s: %s requested by %s.", a.Name, command, s.actor.Name),
					"got the request to " + command})
			case capability == room.CapabilitySessionDependent:
				o.replies = append(o.replies, reply{m, fmt.Sprintf("%s has no live session here that obeys !%s.", a.Name, command),
					"have no live session here that obeys !" + command})
			default:
				o.replies = append(o.replies, reply{m, fmt.Sprintf("%s does not support !%s.", a.Name, command),
					"do not support !" + command})
			}
		}
		if len(o.replies) == 0 {
			o.replies = []reply{{body: nobodyText(command, everyAgent, target)}}
		}
		return o
	}
}

// commandArgs are the args of the event (D.7).
func commandArgs(command, typed, role string) string {
	if command == room.CommandInterrupt {
		return typed
	}
	return role
}

func nobodyText(command string, everyAgent bool, target room.Target) string {
	switch {
	case everyAgent:
		return "There is no agent in this room."
	case target.Nobody():
		return fmt.Sprintf("Say whom: !%s @agent, or !%s-all-agents.", command, command)
	}
	return fmt.Sprintf("No agent in this room has the name, alias or role %s.", shorten(target.String()))
}

const helpText = `Commands:
!reset @agent, !compact @agent, !interrupt @agent: an agent by its name, alias or role
!reset-all-agents, !compact-all-agents, !interrupt-all-agents
!list-agents: the agents of this room and how they are
!roles: the roles of this room and who holds them
!set-alias @agent alias: another name to mention an agent by, in this room; without alias: takes it away
!invite-agent name: adds an agent to this room
!help: this`

func (t *Timeline) rolesText(cast *room.Cast) string {
	if len(cast.Roles) == 0 {
		return "This room has no roles."
	}
	held := t.presence.RoleHolders(cast.Room.No)
	var b strings.Builder
	b.WriteString("Roles of this room:")
	for _, role := range cast.Roles {
		var by []string
		for i := range cast.Members {
			if a := &cast.Members[i].Agent; strings.EqualFold(held[a.No], role) {
				by = append(by, a.Name)
			}
		}
		b.WriteString("\n" + role + ": ")
		if len(by) == 0 {
			b.WriteString("free")
		} else {
			b.WriteString("held by " + strings.Join(by, ", "))
		}
	}
	return b.String()
}

// maxListed bounds the agents that !list-agents tells of.
const maxListed = 100

func (t *Timeline) agentsText(cast *room.Cast) string {
	if len(cast.Members) == 0 {
		return "There is no agent in this room."
	}
	var b strings.Builder
	b.WriteString("Agents of this room:")
	for i := range cast.Members {
		if i == maxListed {
			fmt.Fprintf(&b, "\nand %d more", len(cast.Members)-i)
			break
		}
		m := &cast.Members[i]
		b.WriteString("\n" + m.Agent.Name)
		if m.Alias != "" {
			b.WriteString(", alias " + m.Alias)
		}
		b.WriteString(": " + string(t.presence.Status(m.Agent.No, m.Agent.Profile.ConnectionModel, cast.Room.No)))
	}
	return b.String()
}

const noDirectoryText = "This is not available here."

func (t *Timeline) inviteAgent(ctx context.Context, d Draft, s *scene, args string) (string, error) {
	name := strings.TrimPrefix(args, "@")
	switch {
	case name == "" || strings.ContainsAny(name, " \t\n"):
		return "Say whom: !invite-agent name.", nil
	case t.directory == nil:
		return noDirectoryText, nil
	}
	if err := t.directory.InviteAgent(ctx, s.actor, d.RoomID, name); err != nil {
		return said(err)
	}
	return fmt.Sprintf("%s is in this room.", name), nil
}

func (t *Timeline) setAlias(ctx context.Context, d Draft, s *scene, args string) (string, error) {
	fields := strings.Fields(args)
	if len(fields) == 0 || len(fields) > 2 || !strings.HasPrefix(fields[0], "@") {
		return "Say it like this: !set-alias @agent alias.", nil
	}
	if t.directory == nil {
		return noDirectoryText, nil
	}
	target, alias := room.ParseTarget(fields[0]), ""
	if len(fields) == 2 {
		alias = strings.TrimPrefix(fields[1], "@")
	}
	for i := range s.cast.Members {
		m := &s.cast.Members[i]
		if !target.Is(m, "") {
			continue
		}
		if _, err := t.directory.SetAlias(ctx, s.actor, d.RoomID, m.Agent.ID, alias); err != nil {
			return said(err)
		}
		if alias == "" {
			return fmt.Sprintf("%s has no alias here.", m.Agent.Name), nil
		}
		return fmt.Sprintf("%s is also called %s here.", m.Agent.Name, alias), nil
	}
	return nobodyText("", false, target), nil
}

// said turns a refusal that the person can understand into the answer; any other error stays one.
func said(err error) (string, error) {
	switch fault.CodeOf(err) {
	case fault.Invalid, fault.Conflict, fault.Forbidden, fault.NotFound:
		return "That was refused: " + fault.Message(err) + ".", nil
	}
	return "", err
}

// shorten keeps an echo of what was typed short.
func shorten(s string) string {
	const most = 80
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
