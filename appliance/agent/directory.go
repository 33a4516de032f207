package agent

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/audit"
	"signalbox/appliance/fault"
	"signalbox/appliance/secret"
	"signalbox/appliance/wake"
)

// DirectoryReadTx is what the Directory reads. Single-row methods fail with NotFound when there is no row.
type DirectoryReadTx interface {
	Reader

	ProjectBySlug(slug string) (Project, error)
	ProjectByID(id uuid.UUID) (Project, error)
	// Projects returns projects by slug.
	Projects(includeArchived bool) ([]Project, error)
	CountProjects() (active, total int, err error)

	// AgentByTokenHash finds a live agent and its project.
	AgentByTokenHash(hash string) (Agent, Project, error)
	// AgentByID finds an agent of the project, also when it is revoked.
	AgentByID(projectNo int64, id uuid.UUID) (Agent, error)
	// AgentNameTaken tells whether a live agent of the project has the name.
	AgentNameTaken(projectNo int64, name string) (bool, error)
	// Agents returns the agents of the project by name.
	Agents(projectNo int64, includeRevoked bool) ([]Agent, error)
	CountAgents() (AgentCounts, error)
	// LiveAgentNos returns the numbers of the project's live agents.
	LiveAgentNos(projectNo int64) ([]int64, error)
	// AgentIDsBetween returns ids of the project's live agents in [from, to], at most limit.
	AgentIDsBetween(projectNo int64, from, to uuid.UUID, limit int) ([]uuid.UUID, error)
	// AgentIDsNamed returns the id of the project's live agent of the name, if there is one.
	AgentIDsNamed(projectNo int64, name string) ([]uuid.UUID, error)
	// AgentAccess tells whether the agent is revoked and whether its project is active.
	AgentAccess(agentNo int64) (AgentAccess, error)
	// AgentSlots returns the worker slots of one agent, or of every live agent of the project when agentNo is 0: at most
	// limit of them, the latest connected first.
	AgentSlots(projectNo, agentNo int64, limit int) ([]AgentWorker, error)
	// AgentSamples returns the newest status samples of the agent, newest first.
	AgentSamples(agentNo int64, limit int) ([]AgentSample, error)
	// AgentLosses returns what the agent says it lost, the most recently changed first.
	AgentLosses(agentNo int64, limit int) ([]AgentLoss, error)
	// SilentAgents returns how many online agents were last heard before the time, counting no further than limit.
	SilentAgents(before time.Time, limit int) (int, error)
	// StaleAgents returns live agents that have been offline since before the time, at most limit.
	StaleAgents(offlineBefore time.Time, limit int) ([]Agent, error)

	APIKeyByHash(hash string) (APIKey, string, error)
	APIKeyByID(id uuid.UUID) (APIKey, error)
	// APIKeys returns the keys that are not revoked, by name; all of them, or those bound to the project.
	APIKeys(project *uuid.UUID) ([]APIKey, error)
	APIKeyIDsBetween(from, to uuid.UUID, project *uuid.UUID, limit int) ([]uuid.UUID, error)
	// AnyAPIKey tells whether a key was ever made.
	AnyAPIKey() (bool, error)
}

// DirectoryTx is what the Directory writes through.
type DirectoryTx interface {
	Writer
	DirectoryReadTx
	audit.Tx

	// InsertProject stores a project and returns its number; Conflict when the slug is taken.
	InsertProject(p Project) (int64, error)
	// UpdateProject stores every changeable field of the project.
	UpdateProject(p Project) error

	// InsertAgent stores a minted agent and returns its number.
	InsertAgent(a Agent, tokenHash string) (int64, error)
	// RevokeAgent revokes a live agent and reports whether it was live.
	RevokeAgent(agentNo int64) (bool, error)
	// SetAgentOnline stores a hello of a live agent of an active project and reports whether there is one.
	SetAgentOnline(agentNo int64, h Hello) (bool, error)
	// SetSlotOnline inserts or updates the worker slot of a hello.
	SetSlotOnline(agentNo int64, id uuid.UUID, h Hello) error
	// SetSlotOffline ends a slot unless a connection newer than connectedAt has it.
	SetSlotOffline(agentNo int64, worker string, connectedAt time.Time) error
	// SetAgentOffline ends an agent's presence unless it connected after connectedAt.
	SetAgentOffline(agentNo int64, connectedAt time.Time) error
	// SetAllSlotsOffline ends every slot and returns how many were online.
	SetAllSlotsOffline() (int, error)
	// DeleteSlots removes at most limit offline slots last seen before the time.
	DeleteSlots(before time.Time, limit int) (int, error)
	// TouchAgent records that a live agent of an active project was heard now, and reports whether that brought it online.
	TouchAgent(agentNo int64) (promoted bool, err error)
	// SetAgentFeatures stores the runtime features that a live agent stated.
	SetAgentFeatures(agentNo int64, features []string) error
	// SetSilentOffline ends the presence of at most limit agents last heard before the time.
	SetSilentOffline(before time.Time, limit int) (int, error)

	InsertAPIKey(k APIKey, hash string) error
	// TouchAPIKey moves the key's last use to now unless it is after notBefore already.
	TouchAPIKey(id uuid.UUID, notBefore time.Time) error
	// RevokeAPIKey revokes a live key and reports whether it was live.
	RevokeAPIKey(id uuid.UUID) (bool, error)
}

// AgentAccess is whether an agent may take part.
type AgentAccess struct {
	ID            uuid.UUID
	ProjectID     uuid.UUID
	Revoked       bool
	ProjectActive bool
}

// AgentCounts counts live agents of all projects.
type AgentCounts struct{ Online, Total int }

// AgentLoss is what an agent says it lost of one buffer and run (agent protocol D.3).
type AgentLoss struct {
	BufferID, RuntimeID string
	FirstAt, UpdatedAt  time.Time
	Payload             []byte // JSON object of the figures
}

// AgentSample is one stored agent_status frame (agent protocol D.3).
type AgentSample struct {
	CapturedAt time.Time // the agent's time
	ReceivedAt time.Time
	Payload    []byte // JSON object as it arrived
}

// SecretSet are the master secrets: Current makes and proves, Previous only prove, newest first.
type SecretSet struct {
	Current  secret.Bytes
	Previous []secret.Bytes
}

// AuditKeys derives the keys of the audit chain.
func (s SecretSet) AuditKeys() audit.Keys { return audit.NewKeys(s.Current, s.Previous...) }

// each calls fn for every secret, the current one first, until fn returns true or an error.
func (s SecretSet) each(fn func(secret.Bytes) (bool, error)) error {
	if done, err := fn(s.Current); done || err != nil {
		return err
	}
	for _, p := range s.Previous {
		if done, err := fn(p); done || err != nil {
			return err
		}
	}
	return nil
}

// DirectoryOptions are the Directory's settings. Zero values take the defaults of agent protocol K.
type DirectoryOptions struct {
	OfflineTimeout time.Duration // silence after which an agent is offline; 0 is 30 s
	StalePruneDays int           // days offline after which an agent is revoked; 0 never prunes
	// Trouble is told of a failure that its caller is not: today only a last use of an API key that was not recorded.
	// nil tells nobody. It must not block.
	Trouble func(op string, err error)
	// ProjectChanged is called inside the transaction that renames, archives or activates a project; nil: nobody.
	ProjectChanged func(tx DirectoryTx, p Project) error
}

// Directory keeps projects, agents, their liveness and API keys, and says who a credential proves. Its methods are safe
// for concurrent use; those that write return only when the write is durable, and have written their audit row with it.
type Directory struct {
	st      Store[DirectoryTx, DirectoryReadTx]
	secrets SecretSet
	log     *audit.Log
	hub     *wake.Hub
	opts    DirectoryOptions
}

// NewDirectory returns a Directory on the store.
func NewDirectory(st Store[DirectoryTx, DirectoryReadTx], secrets SecretSet, log *audit.Log, hub *wake.Hub,
	opts DirectoryOptions) *Directory {
	if opts.OfflineTimeout <= 0 {
		opts.OfflineTimeout = 30 * time.Second
	}
	if opts.Trouble == nil {
		opts.Trouble = func(string, error) {}
	}
	if opts.ProjectChanged == nil {
		opts.ProjectChanged = func(DirectoryTx, Project) error { return nil }
	}
	return &Directory{st: st, secrets: secrets, log: log, hub: hub, opts: opts}
}

// RecordRefusal writes an audit row about somebody who was turned away (agent protocol I.4). Which refusals get a row is
// the caller's to decide.
func (d *Directory) RecordRefusal(ctx context.Context, e audit.Entry) error {
	return d.st.Update(ctx, "audit refusal", func(tx DirectoryTx) error { return d.log.Append(tx, e) })
}

// record audits a change that a principal made.
func (d *Directory) record(tx DirectoryTx, who Principal, action string, projectNo int64, targetType, targetID string,
	metadata map[string]any) error {
	meta, err := json.Marshal(metadata)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode audit metadata of %s", action)
	}
	if metadata == nil {
		meta = nil
	}
	return d.log.Append(tx, audit.Entry{
		ProjectNo: projectNo, UserID: textOrNil(who.ID), Action: action, TargetType: targetType, TargetID: &targetID,
		Result: audit.Success, Outcome: audit.Allow, Metadata: meta,
		SourceIP: textOrNil(who.SourceIP), UserAgent: textOrNil(who.UserAgent),
	})
}

// wakeAfter hints the sessions of the agents once the transaction is durable.
func (d *Directory) wakeAfter(tx DirectoryTx, agents ...int64) {
	tx.Hint(func() {
		for _, no := range agents {
			d.hub.Wake(AgentKey(no))
		}
	})
}

// textOrNil is nil for the empty text.
func textOrNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// named makes a NotFound that says what was not found, and passes any other error.
func named(err error, what string) error {
	if fault.Is(err, fault.NotFound) {
		return fault.Wrap(fault.NotFound, errors.Unwrap(err), "%s not found", what)
	}
	return err
}
