package agent

import (
	"context"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/secret"
)

// Minted is a new agent with its credentials, which exist only here: the database keeps a hash of the token and nothing
// of the secret.
type Minted struct {
	Agent      Agent
	Token      secret.Text // bearer token
	HMACSecret secret.Text // the project's signing secret as agents are configured with it; the same for all of them
}

// MintAgent creates an agent of an active project (agent protocol A.4). NotFound for the project, Invalid for the name,
// Conflict with details.name when a live agent has it.
func (d *Directory) MintAgent(ctx context.Context, who Principal, slug, name string) (Minted, error) {
	if err := checkLabel("name", name); err != nil {
		return Minted{}, err
	}
	id, err := newID()
	if err != nil {
		return Minted{}, err
	}
	m := Minted{Token: secret.NewToken()}
	hash := secret.TokenHash(d.secrets.Current.Reveal(), m.Token.Reveal())
	err = d.st.Update(ctx, "mint agent", func(tx DirectoryTx) error {
		p, err := projectBySlug(tx, slug, false)
		if err != nil {
			return err
		}
		if taken, err := tx.AgentNameTaken(p.No, name); err != nil {
			return err
		} else if taken {
			return fault.New(fault.Conflict, "name: a live agent of this project has it").With("name", name)
		}
		m.Agent = mintedAgent(p, id, name)
		m.Agent.CreatedAt = tx.Now()
		if m.Agent.No, err = tx.InsertAgent(m.Agent, hash); err != nil {
			return err
		}
		return d.record(tx, who, "agent.token.minted", p.No, "agent", id.String(), map[string]any{"name": name})
	})
	if err != nil {
		return Minted{}, err
	}
	m.HMACSecret = secret.HMACSecretText(secret.ProjectSecret(d.secrets.Current.Reveal(), m.Agent.ProjectID))
	return m, nil
}

// mintedAgent is an agent nobody has heard of yet (agent protocol A.1).
func mintedAgent(p Project, id uuid.UUID, name string) Agent {
	return Agent{
		ID: id, ProjectNo: p.No, ProjectID: p.ID, Name: name, ProtocolVersion: "0", FrameworkAdapter: "unknown",
		EngineAdapters: []string{}, SchedulerAdapters: []string{}, Capabilities: map[string][]string{},
		State: Unknown, Host: []byte("{}"),
	}
}

// AgentSecret shows the signing secret that a live agent must be configured with now: the way on after the master secret was
// rotated, when tokens go on and signing secrets do not (agent protocol A.3). It leaves an audit row. NotFound for the
// project, and for an agent that does not exist or is revoked.
func (d *Directory) AgentSecret(ctx context.Context, who Principal, slug string, id uuid.UUID) (secret.Text, error) {
	var text secret.Text
	err := d.st.Update(ctx, "show agent secret", func(tx DirectoryTx) error {
		p, err := projectBySlug(tx, slug, false)
		if err != nil {
			return err
		}
		a, err := tx.AgentByID(p.No, id)
		if err != nil {
			return named(err, "agent")
		}
		if a.RevokedAt != nil {
			return fault.New(fault.NotFound, "agent: is revoked")
		}
		text = secret.HMACSecretText(secret.ProjectSecret(d.secrets.Current.Reveal(), p.ID))
		return d.record(tx, who, "agent.secret.shown", p.No, "agent", id.String(), map[string]any{"name": a.Name})
	})
	return text, err
}

// RevokeAgent ends an agent for good: its token is unknown from now on, its sessions are woken to end, its name is
// free. Revoking it again changes nothing. NotFound for the project or the agent.
func (d *Directory) RevokeAgent(ctx context.Context, who Principal, slug string, id uuid.UUID) error {
	return d.st.Update(ctx, "revoke agent", func(tx DirectoryTx) error {
		p, err := projectBySlug(tx, slug, false)
		if err != nil {
			return err
		}
		a, err := tx.AgentByID(p.No, id)
		if err != nil {
			return named(err, "agent")
		}
		return d.revoke(tx, who, a, "agent.token.revoked", map[string]any{"name": a.Name})
	})
}

func (d *Directory) revoke(tx DirectoryTx, who Principal, a Agent, action string, meta map[string]any) error {
	live, err := tx.RevokeAgent(a.No)
	if err != nil || !live {
		return err
	}
	d.wakeAfter(tx, a.No)
	return d.record(tx, who, action, a.ProjectNo, "agent", a.ID.String(), meta)
}

// ListAgents returns the agents of the project by name, the live ones or all.
func (d *Directory) ListAgents(ctx context.Context, projectNo int64, includeRevoked bool) ([]Agent, error) {
	var out []Agent
	err := d.st.View(ctx, func(tx DirectoryReadTx) (err error) {
		out, err = tx.Agents(projectNo, includeRevoked)
		return err
	})
	return out, err
}

// GetAgent finds an agent of the project, also when it is revoked.
func (d *Directory) GetAgent(ctx context.Context, projectNo int64, id uuid.UUID) (Agent, error) {
	var a Agent
	err := d.st.View(ctx, func(tx DirectoryReadTx) (err error) {
		a, err = tx.AgentByID(projectNo, id)
		return named(err, "agent")
	})
	return a, err
}

// CountAgents counts the live agents of all projects.
func (d *Directory) CountAgents(ctx context.Context) (AgentCounts, error) {
	var c AgentCounts
	err := d.st.View(ctx, func(tx DirectoryReadTx) (err error) {
		c, err = tx.CountAgents()
		return err
	})
	return c, err
}

// maxSlots bounds one list of worker slots. An agent has at most 64 connected ones; the rest are old.
const maxSlots = 1000

// AgentWorkers returns the worker slots of one agent, or of all live agents of the project for uuid.Nil, the latest
// connected first and at most 1,000 (agent protocol B.5).
func (d *Directory) AgentWorkers(ctx context.Context, projectNo int64, id uuid.UUID) ([]AgentWorker, error) {
	var out []AgentWorker
	err := d.st.View(ctx, func(tx DirectoryReadTx) error {
		var no int64
		if id != uuid.Nil {
			a, err := tx.AgentByID(projectNo, id)
			if err != nil {
				return named(err, "agent")
			}
			no = a.No
		}
		var err error
		out, err = tx.AgentSlots(projectNo, no, maxSlots)
		return err
	})
	return out, err
}

// healthSamples is how many samples AgentHealth returns (agent protocol H.4).
const healthSamples = 100

// AgentHealth returns the newest 100 status samples of an agent, newest first.
func (d *Directory) AgentHealth(ctx context.Context, projectNo int64, id uuid.UUID) ([]AgentSample, error) {
	return ofAgent(ctx, d, projectNo, id, func(tx DirectoryReadTx, agentNo int64) ([]AgentSample, error) {
		return tx.AgentSamples(agentNo, healthSamples)
	})
}

// ofAgent reads what belongs to one agent of the project; NotFound when there is no such agent.
func ofAgent[T any](ctx context.Context, d *Directory, projectNo int64, id uuid.UUID, read func(DirectoryReadTx, int64) ([]T, error)) (out []T, err error) {
	err = d.st.View(ctx, func(tx DirectoryReadTx) error {
		a, err := tx.AgentByID(projectNo, id)
		if err != nil {
			return named(err, "agent")
		}
		out, err = read(tx, a.No)
		return err
	})
	return out, err
}

// maxLosses bounds AgentLosses: an agent has a buffer a process, and each run of it figures of its own.
const maxLosses = 100

// AgentLosses returns what the agent says it lost, the most recently changed first.
func (d *Directory) AgentLosses(ctx context.Context, projectNo int64, id uuid.UUID) ([]AgentLoss, error) {
	return ofAgent(ctx, d, projectNo, id, func(tx DirectoryReadTx, agentNo int64) ([]AgentLoss, error) {
		return tx.AgentLosses(agentNo, maxLosses)
	})
}
