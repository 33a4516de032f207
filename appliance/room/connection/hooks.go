package connection

import (
	"signalbox/appliance/room"
)

// Joined says that the agent is in the room now. Like all hooks it is called after COMMIT, in commit order, and touches
// memory only.
func (r *Registry) Joined(agentNo int64, ref room.Ref) {
	a := r.agentOf(agentNo)
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.unlock()
	a.note(ref.No, change{ref, true})
	if a.members != nil {
		a.join(ref)
		a.membersChanged()
	}
}

// Left says that the agent is not in the room any more: the claim on it, the placement in it, a role lease there and what
// was remembered of it go, without a room_released (C.7).
func (r *Registry) Left(agentNo, roomNo int64) {
	a := r.agentOf(agentNo)
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.unlock()
	a.note(roomNo, change{})
	delete(a.baselines, roomNo)
	delete(a.runtime, roomNo)
	r.leases.left(agentNo, roomNo)
	if holder := a.claims[roomNo]; holder != nil {
		a.release(holder, roomNo)
	}
	if a.members != nil {
		a.leave(roomNo)
		a.membersChanged()
	}
}

// note keeps a change for the loads that run (load).
func (a *agent) note(roomNo int64, c change) {
	if a.loads == 0 {
		return
	}
	if a.changes == nil {
		a.changes = map[int64]change{}
	}
	a.changes[roomNo] = c
}

// AgentClosed ends every connection of the agent for good, code closed, and forgets the agent (A.4). Later attaches are
// refused.
func (r *Registry) AgentClosed(agentNo int64, why string) {
	r.mu.Lock()
	r.closed[agentNo] = struct{}{}
	a := r.agents[agentNo]
	delete(r.agents, agentNo)
	r.mu.Unlock()
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.unlock()
	a.closed = true
	for _, c := range a.conns {
		a.close(c, End{Code: room.CodeClosed, Reason: why})
	}
	r.leases.drop(agentNo)
	clear(a.baselines)
}

// RoleGone ends the leases on a role that was deleted.
func (r *Registry) RoleGone(roomNo int64, role string) { r.leases.roleGone(roomNo, role) }
