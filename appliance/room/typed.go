package room

import (
	"strings"
	"unicode"
)

// ParseTyped reads what a person typed: a text whose first character is ! is a command and not a message (D.7). The
// name comes in lower case and without the !, and may be empty or unknown; args is the rest, trimmed.
func ParseTyped(text string) (name, args string, ok bool) {
	text, ok = strings.CutPrefix(strings.TrimSpace(text), "!")
	if !ok {
		return "", "", false
	}
	end := strings.IndexFunc(text, unicode.IsSpace)
	if end < 0 {
		return strings.ToLower(text), "", true
	}
	return strings.ToLower(text[:end]), strings.TrimSpace(text[end:]), true
}

// The commands that reach agents (D.7).
const (
	CommandReset     = "reset"
	CommandCompact   = "compact"
	CommandInterrupt = "interrupt"
)

const allAgents = "-all-agents"

// AgentCommand tells which command for agents a typed name stands for, and whether it is for every agent in the room.
func AgentCommand(name string) (command string, everyAgent, ok bool) {
	command, everyAgent = strings.CutSuffix(name, allAgents)
	switch command {
	case CommandReset, CommandCompact, CommandInterrupt:
		return command, everyAgent, true
	}
	return "", false, false
}

// Of is what the agent declared about the command.
func (c CommandCapabilities) Of(command string) Capability {
	var declared Capability
	switch command {
	case CommandReset:
		declared = c.Reset
	case CommandCompact:
		declared = c.Compact
	case CommandInterrupt:
		declared = c.Interrupt
	}
	if declared == "" {
		return CapabilityUnsupported
	}
	return declared
}

// Target is whom a typed command names: the first @token of its arguments. The zero value is nobody.
type Target struct{ raw, bare string }

// ParseTarget finds the target in the arguments of a typed command.
func ParseTarget(args string) Target {
	return Target{raw: firstToken(args), bare: firstToken(emphasis.Replace(args))}
}

func firstToken(args string) string {
	for rest := range ats(args) {
		if end := strings.IndexFunc(rest, unicode.IsSpace); end >= 0 {
			rest = rest[:end]
		}
		if rest != "" && rest[0] != '@' {
			return rest
		}
	}
	return ""
}

// Nobody tells whether no token names anybody.
func (t Target) Nobody() bool { return t.bare == "" && t.raw == "" }

// String is the token as it was typed, without the @.
func (t Target) String() string { return t.raw }

// Is tells whether the target is the member, by its name, its alias, or the role it live-holds in the room.
func (t Target) Is(member *Member, role string) bool {
	return startsWithName(t.bare, member.Agent.Name) || startsWithName(t.raw, member.Alias) ||
		startsWithName(t.bare, role) && !strings.EqualFold(role, EveryoneName)
}
