package explain

import (
	"fmt"

	"signalbox/appliance/room"
)

// Reason is why an agent would not react to a message, or not to everybody's.
type Reason struct {
	Code string
	Text string
}

// The codes of reasons.
const (
	DeafNotMember    = "not_member"    // in no room, or not in this one
	DeafNotConnected = "not_connected" // no live connection
	DeafManualPoll   = "manual_poll"   // it looks only when its session asks
	DeafDetached     = "detached"      // no connection has a stream attached
	DeafNoClaim      = "no_claim"      // no connection covers the room
	DeafFilter       = "filter"        // only what is addressed comes through: no commands, no chatter
	DeafOwnerOnly    = "owner_only"    // only its owner may address it
	DeafPolicy       = "policy"        // its policy admits some
)

// Whom an agent may be addressed by, and whom it would react to now.
const (
	ByEverybody = "everybody"
	ByOwner     = "owner"
	BySome      = "some"
	ByNobody    = "nobody"
)

// Addressable says who may address the agent by its policy (D.8).
func Addressable(a *room.Agent) string {
	switch {
	case a.Policy.OwnerOnly():
		return ByOwner
	case a.Policy == nil || len(a.Policy.Rules) == 0:
		return ByEverybody
	}
	return BySome
}

// OpenCommand is the one command that lets everybody address an agent that only its owner can; "" for others.
func OpenCommand(a *room.Agent) string {
	if Addressable(a) != ByOwner {
		return ""
	}
	return "signalbox roomagents policy " + a.Name + " --open"
}

// Hearing is how an agent stands to a room, or with Room nil to all its rooms.
type Hearing struct {
	Agent       *room.Agent
	Room        *room.Room
	Member      bool         // of the room; of any room
	Connections []Connection // Covers: of the room; of any room
}

// Deaf says why the agent would not react to a message, in the order in which one would look: membership, connection,
// coverage, filter, policy. It also returns whom it would react to now.
func Deaf(h Hearing) (reasons []Reason, reactsTo string) {
	add := func(code, format string, args ...any) {
		reasons = append(reasons, Reason{code, fmt.Sprintf(format, args...)})
	}
	reactsTo = Addressable(h.Agent)
	if !h.Member {
		reactsTo = ByNobody
		if h.Room != nil {
			add(DeafNotMember, "it is not in room %s; bring it in with: signalbox rooms invite %s %s", h.Room.Name, shellWord(h.Room.Name), h.Agent.Name)
		} else {
			add(DeafNotMember, "it is in no room; bring it into one with: signalbox rooms invite ROOM %s", h.Agent.Name)
		}
	}
	attached, covering, all := 0, 0, 0
	for i := range h.Connections {
		c := &h.Connections[i]
		if !c.Attached {
			continue
		}
		attached++
		if c.Covers {
			covering++
			if !c.Addressed {
				all++
			}
		}
	}
	passive := h.Agent.Profile.ConnectionModel == room.SessionPassive
	switch {
	case passive && covering == 0:
		reactsTo = ByNobody
		add(DeafManualPoll, "events do not reach it by themselves: it looks when its session asks")
	case len(h.Connections) == 0:
		reactsTo = ByNobody
		add(DeafNotConnected, "it has no live connection")
	case attached == 0:
		reactsTo = ByNobody
		add(DeafDetached, "none of its connections has a stream attached; what is said waits")
	case covering == 0 && h.Member:
		reactsTo = ByNobody
		add(DeafNoClaim, "its connections are single and have not claimed %s; it has to call connect_to_room", h.place())
	case covering > 0 && all == 0:
		add(DeafFilter, "its connections pass only what is addressed to it: commands such as !reset do not reach it")
	}
	switch Addressable(h.Agent) {
	case ByOwner:
		owner := h.Agent.OwnerName
		if owner == "" {
			owner = "its owner"
		}
		add(DeafOwnerOnly, "only %s can address it; open it to everybody with: %s", owner, OpenCommand(h.Agent))
	case BySome:
		add(DeafPolicy, "its policy admits only some; show it with: signalbox roomagents policy %s", h.Agent.Name)
	}
	return reasons, reactsTo
}

func (h *Hearing) place() string {
	if h.Room != nil {
		return "room " + h.Room.Name
	}
	return "any room"
}
