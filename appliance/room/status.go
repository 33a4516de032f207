package room

// Presence is what the live connections of an agent mean for one room.
type Presence struct {
	Claimed      bool // a live connection claims the room, or a session is placed there
	SpawnCovered bool // a live connection that can start a session covers the room
	AnyLive      bool // the agent has a live connection
}

// AgentStatus is the status of an agent in a room (H.7). Coverage alone is no presence. An unknown model is told like
// always_on.
func AgentStatus(model ConnectionModel, p Presence) Status {
	switch model {
	case SessionPassive:
		return StatusAwaitingManualPoll
	case SessionAddressable:
		switch {
		case p.Claimed:
			return StatusLive
		case p.SpawnCovered:
			return StatusDormant
		}
		return StatusNoSession
	case AutoSession:
		switch {
		case p.Claimed:
			return StatusLive
		case p.AnyLive:
			return StatusDormant
		}
		return StatusDisconnected
	default:
		if p.AnyLive {
			return StatusLive
		}
		return StatusDisconnected
	}
}
