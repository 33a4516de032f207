package connection

import (
	"maps"

	"signalbox/appliance/room"
)

// Presence is what the agent's live connections mean for the room (H.7).
func (r *Registry) Presence(agentNo, roomNo int64) room.Presence {
	a := r.agentOf(agentNo)
	if a == nil {
		return room.Presence{}
	}
	a.mu.Lock()
	defer a.unlock()
	a.lapse(r.now())
	p := room.Presence{AnyLive: len(a.conns) > 0, Claimed: a.claims[roomNo] != nil}
	if !p.AnyLive {
		return p
	}
	v := a.look()
	for _, c := range a.conns {
		if c.stream.spawn && v.covers(c, c.stream.scope, roomNo) {
			p.SpawnCovered = true
		}
	}
	return p
}

// Status is how the agent is told to be in the room (H.7).
func (r *Registry) Status(agentNo int64, m room.ConnectionModel, roomNo int64) room.Status {
	return room.AgentStatus(m, r.Presence(agentNo, roomNo))
}

// runtimeState is the last report of the session that works for the agent in a room (H.8).
type runtimeState struct {
	state        string
	capabilities map[string]bool
	holder       string // the connection that had the room claimed; "" when none had
}

// SetRuntimeState keeps what a session reported for the room. It counts only while the agent has live connections and is
// in the room; otherwise nothing is kept.
func (r *Registry) SetRuntimeState(agentNo, roomNo int64, state string, capabilities map[string]bool) {
	a := r.agentOf(agentNo)
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.unlock()
	a.lapse(r.now())
	if _, in := a.members[roomNo]; !in || len(a.conns) == 0 {
		return
	}
	s := runtimeState{state: state, capabilities: maps.Clone(capabilities)}
	if holder := a.claims[roomNo]; holder != nil {
		s.holder = holder.id
	}
	if a.runtime == nil {
		a.runtime = map[int64]runtimeState{}
	}
	a.runtime[roomNo] = s
}

// RuntimeState returns the last report for the room, false when there is none or another connection has taken the room
// since: what another session reported says nothing about this one.
func (r *Registry) RuntimeState(agentNo, roomNo int64) (state string, capabilities map[string]bool, ok bool) {
	a := r.agentOf(agentNo)
	if a == nil {
		return "", nil, false
	}
	a.mu.Lock()
	defer a.unlock()
	a.lapse(r.now())
	s, ok := a.runtime[roomNo]
	if holder := a.claims[roomNo]; !ok || holder != nil && s.holder != "" && s.holder != holder.id {
		return "", nil, false
	}
	return s.state, maps.Clone(s.capabilities), true
}

// ControlCapabilities returns the control_capabilities of the last report for the room; nil when there is none (D.7).
func (r *Registry) ControlCapabilities(agentNo, roomNo int64) map[string]bool {
	_, capabilities, _ := r.RuntimeState(agentNo, roomNo)
	return capabilities
}

// baseline is from where on missed messages of a room are counted (D.10).
type baseline struct {
	at    int64
	known bool
}

// cover sets the baseline of a room that has none yet.
func (a *agent) cover(roomNo, at int64) {
	if _, set := a.baselines[roomNo]; !set {
		a.baselines[roomNo] = baseline{at, true}
	}
}

// Baseline returns from which sequence on missed messages of the room are counted (D.10). false: unknown, there is none
// or the numbering was reset.
func (r *Registry) Baseline(agentNo, roomNo int64) (at int64, known bool) {
	a := r.agentOf(agentNo)
	if a == nil {
		return 0, false
	}
	a.mu.Lock()
	defer a.unlock()
	b := a.baselines[roomNo]
	return b.at, b.known
}

// Baseline is the registry's for the stream's agent. A room that the stream covers and that has none yet gets the cursor
// that the stream's reading started from.
func (s *Stream) Baseline(roomNo int64) (at int64, known bool) {
	a := s.conn.agent
	a.mu.Lock()
	defer a.unlock()
	if a.look().covers(s.conn, s.scope, roomNo) && s.end.Load() == nil {
		a.cover(roomNo, s.opened.Load())
	}
	b := a.baselines[roomNo]
	return b.at, b.known
}

// SetBaseline moves the baseline of the room forward: its connected reader has caught up to there. at is the head from
// before the read of the history.
func (r *Registry) SetBaseline(agentNo, roomNo, at int64) {
	a := r.agentOf(agentNo)
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.unlock()
	if _, in := a.members[roomNo]; !in {
		return
	}
	if b := a.baselines[roomNo]; !b.known || at > b.at {
		a.baselines[roomNo] = baseline{at, true}
	}
}

// ResetBaselines makes the baselines of all the agent's rooms unknown: its numbering was reset (D.10).
func (r *Registry) ResetBaselines(agentNo int64) {
	a := r.agentOf(agentNo)
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.unlock()
	for no := range a.members {
		a.baselines[no] = baseline{}
	}
	for no := range a.baselines {
		a.baselines[no] = baseline{}
	}
}
