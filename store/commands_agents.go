package store

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
)

// CommandProject finds a project by number, or by slug when no is 0, archived or not.
func (r *reader) CommandProject(no int64, slug string) (p agent.CommandProject, err error) {
	where, key := `project_no = ?`, any(no)
	if no == 0 {
		where, key = `slug = ?`, slug
	}
	err = r.QueryRow(`SELECT project_no, id, is_active FROM projects WHERE `+where, key).Scan(&p.No, &p.ID, &p.Active)
	return p, err
}

// CommandAgent finds an agent of the project, also when it is revoked.
func (r *reader) CommandAgent(projectNo int64, id uuid.UUID) (agent.CommandAgent, error) {
	return r.commandAgent(`a.id = ? AND a.project_no = ?`, id, projectNo)
}

// CommandAgentByNo finds an agent by its number, also when it is revoked.
func (r *reader) CommandAgentByNo(agentNo int64) (agent.CommandAgent, error) {
	return r.commandAgent(`a.agent_no = ?`, agentNo)
}

func (r *reader) commandAgent(where string, args ...any) (agent.CommandAgent, error) {
	var a agent.CommandAgent
	var engines, capabilities string
	var seen, connected, revoked time.Time
	err := r.QueryRow(`SELECT a.agent_no, a.id, a.name, a.project_no, p.id, p.is_active, a.state, a.last_seen_at,
		a.last_connect_at, a.revoked_at, a.engine_adapters, a.capabilities`+fromAgents+` WHERE `+where, args...).
		Scan(&a.No, &a.ID, &a.Name, &a.ProjectNo, &a.ProjectID, &a.ProjectActive, &a.State, &seen, &connected, &revoked,
			&engines, &capabilities)
	if err != nil {
		return agent.CommandAgent{}, err
	}
	a.LastSeenAt, a.LastConnectAt, a.RevokedAt = nonZero(seen), nonZero(connected), nonZero(revoked)
	if err := fromJSON(engines, &a.Engines); err != nil {
		return agent.CommandAgent{}, err
	}
	return a, fromJSON(capabilities, &a.Capabilities)
}

// CommandAgentAlive tells whether the agent is revoked or its project archived.
func (r *reader) CommandAgentAlive(agentNo int64) (revoked, archived bool, err error) {
	err = r.QueryRow(`SELECT a.revoked_at IS NOT NULL, p.is_active = 0`+fromAgents+` WHERE a.agent_no = ?`, agentNo).
		Scan(&revoked, &archived)
	return revoked, archived, err
}

// CommandTask finds what a retry tells the agent of the task it retries.
func (r *reader) CommandTask(projectNo int64, engine, taskID string) (t agent.CommandTask, err error) {
	var args, kwargs *string
	err = r.QueryRow(`SELECT name, priority, args, kwargs FROM tasks WHERE project_no = ? AND engine = ? AND task_id = ?`,
		projectNo, engine, taskID).Scan(&t.Name, &t.Priority, &args, &kwargs)
	t.HadArgs = holdsArguments(args, "[]") || holdsArguments(kwargs, "{}")
	return t, err
}

// holdsArguments tells whether reported arguments are anything beside nothing.
func holdsArguments(text *string, empty string) bool {
	return text != nil && *text != empty && *text != "null"
}
