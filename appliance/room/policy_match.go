package room

import (
	"slices"

	"github.com/google/uuid"
)

// OwnerOnly is the policy that new agents get (D.8): only the person who owns the agent may address it.
func OwnerOnly() *Policy {
	everywhere := Selector{All: true}
	return &Policy{Rules: []Rule{{Rooms: everywhere, RoomGroups: everywhere, Owner: true}}}
}

// OwnerOnly tells whether nobody but the agent's owner can be admitted, so that the agent seems deaf to all others.
func (p *Policy) OwnerOnly() bool {
	if p == nil || len(p.Rules) == 0 {
		return false
	}
	for _, r := range p.Rules {
		if !r.Users.nothing() || !r.Agents.nothing() || r.OwnerAgents || !r.Owner {
			return false
		}
	}
	return true
}

// Admits tells whether the sender may address the agent in the room (D.8). No policy and no rules admit everybody, any
// rule denies whom no rule admits. Being an admin opens nothing: the policy is the agent's, not a matter of ownership.
// What the platform says on behalf of a person counts as said by a person with no id.
func (p *Policy) Admits(in *Room, sender Actor, a *Agent) bool {
	if p == nil || len(p.Rules) == 0 {
		return true
	}
	for i := range p.Rules {
		if p.Rules[i].admits(in, sender, a) {
			return true
		}
	}
	return false
}

func (r *Rule) admits(in *Room, sender Actor, a *Agent) bool {
	if !r.Rooms.Has(in.ID) || !r.RoomGroups.Has(in.GroupID) {
		return false
	}
	owners := a.OwnerNo != 0 && sender.OwnerNo == a.OwnerNo
	if sender.Kind == KindAgent {
		return r.Agents.Has(sender.ID) || r.OwnerAgents && owners
	}
	return r.Users.Has(sender.ID) || r.Owner && owners
}

// Has tells whether the selector matches the id. uuid.Nil, which is no id, is matched by "*" alone.
func (s Selector) Has(id uuid.UUID) bool {
	return s.All || id != uuid.Nil && len(s.IDs) > 0 && slices.Contains(s.IDs, id.String())
}

func (s Selector) nothing() bool { return !s.All && len(s.IDs) == 0 }
