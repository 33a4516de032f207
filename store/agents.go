package store

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
)

const agentColumns = `a.agent_no, a.id, a.project_no, p.id, a.name, a.protocol_version, a.framework_adapter,
	a.engine_adapters, a.scheduler_adapters, a.capabilities, a.state, a.host, coalesce(a.agent_version, ''),
	a.runtime_features, a.last_seen_at, a.last_connect_at, a.revoked_at, a.created_at`

const fromAgents = ` FROM agents a JOIN projects p ON p.project_no = a.project_no`

// inActiveProject holds for agents that may take part; the table is named agents.
const inActiveProject = ` AND agents.revoked_at IS NULL AND EXISTS
	(SELECT 1 FROM projects p WHERE p.project_no = agents.project_no AND p.is_active = 1)`

// agentRow is where an agent's columns are scanned to.
type agentRow struct {
	a                            agent.Agent
	engines, schedulers, caps    string
	features                     *string
	seen, connect, revoked, made time.Time
}

func (r *agentRow) dest() []any {
	a := &r.a
	return []any{&a.No, &a.ID, &a.ProjectNo, &a.ProjectID, &a.Name, &a.ProtocolVersion, &a.FrameworkAdapter,
		&r.engines, &r.schedulers, &r.caps, &a.State, &a.Host, &a.AgentVersion,
		&r.features, &r.seen, &r.connect, &r.revoked, &r.made}
}

func (r *agentRow) agent() (agent.Agent, error) {
	a := &r.a
	a.LastSeenAt, a.LastConnectAt, a.RevokedAt, a.CreatedAt = nonZero(r.seen), nonZero(r.connect), nonZero(r.revoked), r.made
	if r.features != nil {
		if err := fromJSON(*r.features, &a.RuntimeFeatures); err != nil {
			return agent.Agent{}, err
		}
	}
	for _, c := range []struct {
		text string
		into any
	}{{r.engines, &a.EngineAdapters}, {r.schedulers, &a.SchedulerAdapters}, {r.caps, &a.Capabilities}} {
		if err := fromJSON(c.text, c.into); err != nil {
			return agent.Agent{}, err
		}
	}
	return *a, nil
}

func (r *reader) agents(query string, args ...any) ([]agent.Agent, error) {
	rows, err := r.Query(query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []agent.Agent{}
	for rows.Next() {
		var row agentRow
		if err := rows.Scan(row.dest()...); err != nil {
			return nil, err
		}
		a, err := row.agent()
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, rows.Err()
}

// AgentByTokenHash finds a live agent and its project.
func (r *reader) AgentByTokenHash(hash string) (agent.Agent, agent.Project, error) {
	var a agentRow
	var p projectRow
	err := r.QueryRow(`SELECT `+agentColumns+`, `+projectColumns+fromAgents+
		` WHERE a.token_hash = ? AND a.revoked_at IS NULL`, hash).Scan(append(a.dest(), p.dest()...)...)
	if err != nil {
		return agent.Agent{}, agent.Project{}, err
	}
	found, err := a.agent()
	if err != nil {
		return agent.Agent{}, agent.Project{}, err
	}
	project, err := p.project()
	return found, project, err
}

// AgentByID finds an agent of the project, also when it is revoked.
func (r *reader) AgentByID(projectNo int64, id uuid.UUID) (agent.Agent, error) {
	var a agentRow
	err := r.QueryRow(`SELECT `+agentColumns+fromAgents+` WHERE a.id = ? AND a.project_no = ?`, id, projectNo).
		Scan(a.dest()...)
	if err != nil {
		return agent.Agent{}, err
	}
	return a.agent()
}

// AgentNameTaken tells whether a live agent of the project has the name.
func (r *reader) AgentNameTaken(projectNo int64, name string) (taken bool, err error) {
	err = r.QueryRow(`SELECT EXISTS (SELECT 1 FROM agents WHERE project_no = ? AND name = ? AND revoked_at IS NULL)`,
		projectNo, name).Scan(&taken)
	return taken, err
}

// Agents returns the agents of the project by name.
func (r *reader) Agents(projectNo int64, includeRevoked bool) ([]agent.Agent, error) {
	if includeRevoked {
		return r.agents(`SELECT `+agentColumns+fromAgents+` WHERE a.project_no = ? ORDER BY a.name, a.agent_no`, projectNo)
	}
	return r.agents(`SELECT `+agentColumns+fromAgents+
		` WHERE a.project_no = ? AND a.revoked_at IS NULL ORDER BY a.name`, projectNo)
}

// CountAgents counts the live agents of all projects.
func (r *reader) CountAgents() (c agent.AgentCounts, err error) {
	err = r.QueryRow(`SELECT coalesce(sum(state = 'online'), 0), count(*) FROM agents WHERE revoked_at IS NULL`).
		Scan(&c.Online, &c.Total)
	return c, err
}

// LiveAgentNos returns the numbers of the project's live agents.
func (r *reader) LiveAgentNos(projectNo int64) ([]int64, error) {
	return r.numbers(`SELECT agent_no FROM agents WHERE project_no = ? AND revoked_at IS NULL`, projectNo)
}

// AgentIDsBetween returns ids of the project's live agents in [from, to], at most limit.
func (r *reader) AgentIDsBetween(projectNo int64, from, to uuid.UUID, limit int) ([]uuid.UUID, error) {
	return r.scanIDs(`SELECT id FROM agents WHERE id BETWEEN ? AND ? AND project_no = ? AND revoked_at IS NULL
		ORDER BY id LIMIT ?`, from, to, projectNo, limit)
}

// AgentIDsNamed returns the id of the project's live agent of the name, if there is one.
func (r *reader) AgentIDsNamed(projectNo int64, name string) ([]uuid.UUID, error) {
	return r.scanIDs(`SELECT id FROM agents WHERE project_no = ? AND name = ? AND revoked_at IS NULL`, projectNo, name)
}

// AgentAccess tells whether the agent is revoked and whether its project is active.
func (r *reader) AgentAccess(agentNo int64) (a agent.AgentAccess, err error) {
	err = r.QueryRow(`SELECT a.id, p.id, a.revoked_at IS NOT NULL, p.is_active`+fromAgents+` WHERE a.agent_no = ?`, agentNo).
		Scan(&a.ID, &a.ProjectID, &a.Revoked, &a.ProjectActive)
	return a, err
}

// AgentSamples returns the newest status samples of the agent, newest first.
func (r *reader) AgentSamples(agentNo int64, limit int) ([]agent.AgentSample, error) {
	rows, err := r.Query(`SELECT captured_at, received_at, payload FROM agent_status WHERE agent_no = ?
		ORDER BY status_no DESC LIMIT ?`, agentNo, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []agent.AgentSample{}
	for rows.Next() {
		var s agent.AgentSample
		if err := rows.Scan(&s.CapturedAt, &s.ReceivedAt, &s.Payload); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, rows.Err()
}

// SilentAgents returns how many online agents were last heard before the time, or are said to be heard in the future,
// which only a clock that was set back explains; it counts no further than limit.
func (r *reader) SilentAgents(before time.Time, limit int) (n int, err error) {
	err = r.QueryRow(`SELECT count(*) FROM (SELECT 1 FROM agents WHERE state = 'online' AND last_seen_at < ?
		UNION ALL SELECT 1 FROM agents WHERE state = 'online' AND last_seen_at > ? LIMIT ?)`, before, r.now, limit).Scan(&n)
	return n, err
}

// StaleAgents returns live agents that have been offline since before the time, at most limit.
func (r *reader) StaleAgents(offlineBefore time.Time, limit int) ([]agent.Agent, error) {
	return r.agents(`SELECT `+agentColumns+fromAgents+` WHERE a.state = 'offline' AND a.offline_since < ?
		AND a.revoked_at IS NULL ORDER BY a.agent_no LIMIT ?`, offlineBefore, limit)
}

// InsertAgent stores a minted agent and returns its number.
func (tx *Tx) InsertAgent(a agent.Agent, tokenHash string) (int64, error) {
	res, err := tx.Exec(`INSERT INTO agents (id, project_no, name, token_hash, protocol_version, framework_adapter,
		engine_adapters, scheduler_adapters, capabilities, state, host, created_at, updated_at)
		VALUES (?,?,?,?,?,?,'[]','[]','{}',?,?,?,?)`,
		a.ID, a.ProjectNo, a.Name, tokenHash, a.ProtocolVersion, a.FrameworkAdapter, string(a.State), string(a.Host),
		a.CreatedAt, a.CreatedAt)
	return res.LastInsertID(), err
}

// RevokeAgent revokes a live agent, ends its presence, and reports whether it was live.
func (tx *Tx) RevokeAgent(agentNo int64) (bool, error) {
	now := tx.Now()
	res, err := tx.Exec(`UPDATE agents SET revoked_at = ?, updated_at = ?,
		offline_since = CASE state WHEN 'online' THEN ? ELSE offline_since END,
		state = CASE state WHEN 'online' THEN 'offline' ELSE state END
		WHERE agent_no = ? AND revoked_at IS NULL`, now, now, now, agentNo)
	if err != nil || res.RowsAffected() == 0 {
		return false, err
	}
	_, err = tx.Exec(`UPDATE agent_workers SET state = 'offline', updated_at = ? WHERE agent_no = ? AND state = 'online'`,
		now, agentNo)
	return true, err
}

// SetAgentOnline stores a hello of a live agent of an active project and reports whether there is one.
func (tx *Tx) SetAgentOnline(agentNo int64, h agent.Hello) (bool, error) {
	engines, err := jsonList(h.Engines)
	if err != nil {
		return false, err
	}
	schedulers, err := jsonList(h.Schedulers)
	if err != nil {
		return false, err
	}
	features, err := jsonList(h.RuntimeFeatures)
	if err != nil {
		return false, err
	}
	caps := "{}"
	if h.Capabilities != nil {
		if caps, err = jsonText(h.Capabilities); err != nil {
			return false, err
		}
	}
	host := "{}"
	if len(h.Host) > 0 {
		host = string(h.Host)
	}
	now := tx.Now()
	res, err := tx.Exec(`UPDATE agents SET state = 'online', offline_since = NULL, last_connect_at = ?, last_seen_at = ?,
		protocol_version = ?, framework_adapter = ?, engine_adapters = ?, scheduler_adapters = ?, capabilities = ?,
		host = ?, agent_version = ?, runtime_features = ?, updated_at = ? WHERE agent_no = ?`+inActiveProject,
		now, now, h.ProtocolVersion, h.Framework, engines, schedulers, caps, host, h.AgentVersion, features, now, agentNo)
	return res.RowsAffected() > 0, err
}

// SetAgentOffline ends an agent's presence unless its last connection is another than that of connectedAt.
func (tx *Tx) SetAgentOffline(agentNo int64, connectedAt time.Time) error {
	_, err := tx.Exec(`UPDATE agents SET state = 'offline', offline_since = ?, updated_at = ?
		WHERE agent_no = ? AND state <> 'offline' AND last_connect_at = ?`, tx.Now(), tx.Now(), agentNo, connectedAt)
	return err
}

// TouchAgent records that a live agent of an active project was heard now, and reports whether that brought it online.
func (tx *Tx) TouchAgent(agentNo int64) (promoted bool, err error) {
	res, err := tx.Exec(`UPDATE agents SET last_seen_at = ? WHERE agent_no = ? AND state = 'online'`+inActiveProject, tx.Now(), agentNo)
	if err != nil || res.RowsAffected() > 0 {
		return false, err
	}
	res, err = tx.Exec(`UPDATE agents SET state = 'online', offline_since = NULL,
		last_seen_at = ? WHERE agent_no = ?`+inActiveProject, tx.Now(), agentNo)
	return res.RowsAffected() > 0, err
}

// SetAgentFeatures stores the runtime features that a live agent stated.
func (tx *Tx) SetAgentFeatures(agentNo int64, features []string) error {
	text, err := jsonList(features)
	if err != nil {
		return err
	}
	_, err = tx.Exec(`UPDATE agents SET runtime_features = ?, updated_at = ? WHERE agent_no = ? AND revoked_at IS NULL`,
		text, tx.Now(), agentNo)
	return err
}

// SetSilentOffline ends the presence of at most limit agents last heard before the time. Who is said to be heard in the
// future is heard now: its silence counts from here.
func (tx *Tx) SetSilentOffline(before time.Time, limit int) (int, error) {
	if _, err := tx.Exec(`UPDATE agents SET last_seen_at = ? WHERE state = 'online' AND last_seen_at > ?`, tx.Now(),
		tx.Now()); err != nil {
		return 0, err
	}
	res, err := tx.Exec(`UPDATE agents SET state = 'offline', offline_since = ?, updated_at = ? WHERE agent_no IN
		(SELECT agent_no FROM agents WHERE state = 'online' AND last_seen_at < ? ORDER BY last_seen_at LIMIT ?)`,
		tx.Now(), tx.Now(), before, limit)
	return int(res.RowsAffected()), err
}
