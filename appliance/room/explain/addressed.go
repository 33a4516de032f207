package explain

import (
	"fmt"

	"signalbox/appliance/room"
)

// Rule names what made a message addressed, or not.
type Rule string

// The rules (D.8).
const (
	RuleNotice  Rule = "notice"  // the server said it: addresses nobody
	RuleDirect  Rule = "direct"  // the room is direct
	RuleName    Rule = "name"    // it mentions the agent
	RuleAlias   Rule = "alias"   // it mentions the agent's alias in the room
	RuleRole    Rule = "role"    // it mentions the role that the agent holds
	RulePolicy  Rule = "policy"  // it means the agent, whose policy does not let the sender address it
	RuleNone    Rule = "none"    // it does not mean the agent
	RuleEarlier Rule = "earlier" // decided by names, roles or a policy that have changed since
)

// Addressed is whether the message was for the agent's notice, and the rule that said so. The value was decided when
// the message was queued; the rule is what today's names, roles and policy make of it.
type Addressed struct {
	Value bool
	Rule  Rule
	Text  string
}

// means finds the rule by which the message means the agent, RuleNone when it does not.
func (e *explanation) means() Rule {
	m := room.ReadMentions(e.Item.Body)
	switch {
	case e.Item.IsNotice():
		return RuleNotice
	case e.Room.Channel == room.ChannelDirect:
		return RuleDirect
	case m.Name(e.Agent.Name):
		return RuleName
	case e.Member != nil && m.Alias(e.Member.Alias):
		return RuleAlias
	case m.Name(e.Role):
		return RuleRole
	}
	return RuleNone
}

// addressed explains the flag of the event.
func (e *explanation) addressed() Addressed {
	rule := e.means()
	admitted := e.Agent.Policy.Admits(&e.Room, e.Sender, &e.Agent)
	name := e.Agent.Name
	if e.Queued.Flag {
		switch rule {
		case RuleDirect:
			return Addressed{true, rule, "It was addressed: the room is direct, so every line is for the agent."}
		case RuleName:
			return Addressed{true, rule, fmt.Sprintf("It was addressed: it mentions @%s.", name)}
		case RuleAlias:
			return Addressed{true, rule, fmt.Sprintf("It was addressed: it mentions @%s, which is %s in this room.", e.Member.Alias, name)}
		case RuleRole:
			return Addressed{true, rule, fmt.Sprintf("It was addressed: it mentions @%s, the role that %s holds.", e.Role, name)}
		}
		return Addressed{true, RuleEarlier, "It was addressed, by a name, an alias or a role of then that has changed since."}
	}
	switch {
	case rule == RuleNotice:
		return Addressed{false, rule, "It was not addressed: a notice of the server addresses nobody."}
	case rule == RuleNone:
		return Addressed{false, rule, fmt.Sprintf("It was not addressed: it mentions neither @%s, nor an alias or a role of it. "+
			"A reply in a thread does not address by itself, and @%s. with a full stop is another name.", name, name)}
	case !admitted && e.Agent.Policy.OwnerOnly():
		return Addressed{false, RulePolicy, fmt.Sprintf("It was not addressed, though it means %s: the agent is owner-only, and %s is not its owner. "+
			"`signalbox roomagents policy %s --open` lets everybody address it.", name, e.Item.SenderName, name)}
	case !admitted:
		return Addressed{false, RulePolicy, fmt.Sprintf("It was not addressed, though it means %s: its policy does not admit %s. "+
			"`signalbox roomagents policy %s` shows the policy.", name, e.Item.SenderName, name)}
	}
	return Addressed{false, RuleEarlier, fmt.Sprintf("It was not addressed. Today it would be: a name, a role or the policy of %s has changed since.", name)}
}
