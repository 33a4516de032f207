package agent

import (
	"context"
	"slices"
	"sort"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
)

// Standing is an agent of a project as a target for an action of an engine that nobody named an agent for.
type Standing struct {
	No       int64
	ID       uuid.UUID
	Name     string
	State    State
	Reported bool   // its inventory lists the engine; otherwise it has reported none
	Able     bool   // it can take the action now
	Reason   string // why it cannot; "" for one that can
	rank     int
}

// Able judges every agent of a project for an action of an engine, the best target first: those that reported the engine
// over a WebSocket, others that reported it, and last those that report nothing, as long-poll agents do (agent protocol
// E.5, F.8). Agents that cannot take it come behind, each with the reason.
func (c *Commands) Able(ctx context.Context, projectNo int64, action, engine string) ([]Standing, error) {
	spec, ok := LookupAction(action)
	if !ok {
		return nil, fault.Field("action", "is unknown")
	}
	var agents []CommandAgent
	err := c.st.View(ctx, func(tx CommandReadTx) (err error) {
		agents, err = tx.CommandAgents(projectNo)
		return err
	})
	if err != nil {
		return nil, err
	}
	out := make([]Standing, 0, len(agents))
	for i := range agents {
		a := &agents[i]
		s := Standing{No: a.No, ID: a.ID, Name: a.Name, State: a.State, Reported: a.ReportedInventory()}
		s.rank, s.Reason = rankFor(a, spec, engine, c.presence.Sessions(a.ID))
		s.Able = s.Reason == ""
		out = append(out, s)
	}
	sort.SliceStable(out, func(i, j int) bool {
		if out[i].Able != out[j].Able {
			return out[i].Able
		}
		return out[i].rank < out[j].rank
	})
	return out, nil
}

// Best returns the able agents of equal rank that head the list; none when nobody is able.
func Best(list []Standing) []Standing {
	n := 0
	for n < len(list) && list[n].Able && list[n].rank == list[0].rank {
		n++
	}
	return list[:n]
}

// rankFor judges one agent: 0 reported over WebSocket, 1 reported, 2 unreported. reason is "" for one that is able.
func rankFor(a *CommandAgent, spec *ActionSpec, engine string, sessions []SessionInfo) (rank int, reason string) {
	rank = 2
	if a.ReportedInventory() {
		rank = 1
		if err := admitInventory(a, spec, engine); err != nil {
			return rank, fault.Message(err)
		}
	}
	if len(sessions) == 0 {
		return rank, "agent " + a.Name + " has no session"
	}
	states := false
	for _, s := range sessions {
		contract := slices.Contains(s.RetryEngines, engine)
		states = states || contract
		if rank < 2 && s.Transport == WebSocket && (contract || !spec.RetryFamily) {
			rank = 0
		}
	}
	switch {
	case spec.RetryFamily && !states:
		return rank, "no session of agent " + a.Name + " states the retry contract of " + engine
	case rank == 2 && spec.Capability == "" && !states:
		// Nothing tells that it runs the engine at all.
		return rank, "agent " + a.Name + " reports no engines"
	}
	return rank, ""
}

// AdmitRetry applies the checks of agent protocol E.5 for a retry that gives no arguments: of the engine alone when a is
// nil, of the agent's reported inventory besides.
func AdmitRetry(a *CommandAgent, engine string) error {
	spec, _ := LookupAction("retry_task")
	if !enginePattern.MatchString(engine) {
		return fault.Field("filter.engine", "must be a name of 1..40 letters, digits, '.', '_' or '-' that starts with a letter or digit")
	}
	if a != nil && a.ReportedInventory() {
		if err := admitInventory(a, spec, engine); err != nil {
			return err
		}
	}
	if !slices.Contains(byReference, engine) {
		return fault.New(fault.Conflict, "%s cannot find the original arguments of a task: its tasks are retried one by one, with "+
			"override_args and override_kwargs", engine).With("error", "override_arguments_required").With("engine", engine)
	}
	return nil
}
