package api

import (
	"context"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/bulkretry"
	"signalbox/appliance/agent/failure"
	"signalbox/appliance/agent/fire"
	"signalbox/appliance/agent/schedule"
	"signalbox/appliance/audit"
	"signalbox/appliance/secret"
	"signalbox/appliance/wake"
)

// Directory keeps projects, agents and API keys; *agent.Directory is one.
type Directory interface {
	AuthenticateAPIKey(ctx context.Context, authorizationHeader string) (agent.Principal, error)
	RecordRefusal(ctx context.Context, e audit.Entry) error

	GetProject(ctx context.Context, slug string, includeArchived bool) (agent.Project, error)
	ListProjects(ctx context.Context, includeArchived bool) ([]agent.Project, error)
	CreateProject(ctx context.Context, who agent.Principal, n agent.NewProject) (agent.Project, error)
	UpdateProject(ctx context.Context, who agent.Principal, slug string, p agent.ProjectPatch) (agent.Project, error)
	ActivateProject(ctx context.Context, who agent.Principal, slug string) (agent.Project, error)
	ArchiveProject(ctx context.Context, who agent.Principal, slug string) error

	ListAgents(ctx context.Context, projectNo int64, includeRevoked bool) ([]agent.Agent, error)
	GetAgent(ctx context.Context, projectNo int64, id uuid.UUID) (agent.Agent, error)
	MintAgent(ctx context.Context, who agent.Principal, slug, name string) (agent.Minted, error)
	RevokeAgent(ctx context.Context, who agent.Principal, slug string, id uuid.UUID) error
	AgentSecret(ctx context.Context, who agent.Principal, slug string, id uuid.UUID) (secret.Text, error)
	AgentHealth(ctx context.Context, projectNo int64, id uuid.UUID) ([]agent.AgentSample, error)
	AgentLosses(ctx context.Context, projectNo int64, id uuid.UUID) ([]agent.AgentLoss, error)
	AgentWorkers(ctx context.Context, projectNo int64, id uuid.UUID) ([]agent.AgentWorker, error)
	CountAgents(ctx context.Context) (agent.AgentCounts, error)
	ResolveAgents(ctx context.Context, projectNo int64, text string) ([]uuid.UUID, error)

	CreateAPIKey(ctx context.Context, who agent.Principal, n agent.NewAPIKey) (agent.APIKey, secret.Text, error)
	ListAPIKeys(ctx context.Context, who agent.Principal) ([]agent.APIKey, error)
	RevokeAPIKey(ctx context.Context, who agent.Principal, id uuid.UUID) error
	ResolveAPIKeys(ctx context.Context, who agent.Principal, prefix string) ([]uuid.UUID, error)
}

// Commands issues, ends and explains commands; *agent.Commands is one.
type Commands interface {
	Issue(ctx context.Context, who agent.Principal, r agent.IssueRequest) (agent.Issued, error)
	Cancel(ctx context.Context, who agent.Principal, projectNo int64, id uuid.UUID) (agent.Command, error)
	Get(ctx context.Context, projectNo int64, id uuid.UUID) (agent.Command, error)
	List(ctx context.Context, projectNo int64, f agent.CommandFilter, page agent.Page) ([]agent.Command, error)
	Resolve(ctx context.Context, projectNo int64, prefix string) ([]uuid.UUID, error)
	Deliveries(ctx context.Context, projectNo int64, id uuid.UUID) ([]agent.Delivery, error)
	Timeline(ctx context.Context, projectNo int64, id uuid.UUID) ([]agent.Transition, error)
	Explain(ctx context.Context, projectNo int64, id uuid.UUID) (agent.Explanation, error)
	ListDeadLetters(ctx context.Context, who agent.Principal, r agent.DeadLetterRequest) (agent.DeadLetters, error)
	Head(ctx context.Context, projectNo int64) (agent.StreamBounds, error)
	StreamSince(ctx context.Context, projectNo, after int64, f agent.StreamFilter, limit int) (agent.StreamPage, error)
	Counts(ctx context.Context) (agent.CommandCounts, error)
}

// BulkRetries retries many tasks; *bulkretry.Service is one.
type BulkRetries interface {
	Start(ctx context.Context, who agent.Principal, r bulkretry.Request) (bulkretry.Started, error)
	Get(ctx context.Context, projectNo int64, id uuid.UUID) (bulkretry.BulkRetry, error)
	List(ctx context.Context, projectNo int64, open bool, page agent.Page) ([]bulkretry.BulkRetry, error)
	Tasks(ctx context.Context, projectNo int64, id uuid.UUID, status bulkretry.TaskStatus, after, limit int) ([]bulkretry.TaskRow, error)
	Cancel(ctx context.Context, who agent.Principal, projectNo int64, id uuid.UUID) (bulkretry.BulkRetry, error)
}

// Records reads and deletes what agents reported; *agent.Records is one.
type Records interface {
	ListEvents(ctx context.Context, projectNo int64, f agent.EventFilter, page agent.Page) ([]agent.Event, error)
	StreamEvents(ctx context.Context, projectNo, after int64, f agent.EventFilter, limit int) (agent.EventStream, error)
	EventBounds(ctx context.Context, projectNo int64) (agent.EventBounds, error)
	ListTasks(ctx context.Context, projectNo int64, f agent.TaskFilter, page agent.Page) ([]agent.Task, error)
	GetTask(ctx context.Context, projectNo int64, engine, taskID string) (agent.Task, error)
	TaskTree(ctx context.Context, projectNo int64, engine, taskID string) (agent.TaskTree, error)
	BulkDeleteTasks(ctx context.Context, projectNo int64, d agent.BulkDelete) (int, error)
	ListWorkers(ctx context.Context, projectNo int64) ([]agent.Worker, error)
	GetWorker(ctx context.Context, projectNo int64, id uuid.UUID) (agent.Worker, error)
	ListQueues(ctx context.Context, projectNo int64) ([]agent.Queue, error)
}

// Schedules keeps schedules; *schedule.Schedules does.
type Schedules interface {
	List(ctx context.Context, projectNo int64, f schedule.Filter, page schedule.Page) ([]schedule.Shown, error)
	Get(ctx context.Context, projectNo int64, id uuid.UUID) (schedule.Shown, []schedule.Misfire, error)
	Resolve(ctx context.Context, projectNo int64, text string) ([]uuid.UUID, error)
	Create(ctx context.Context, who agent.Principal, p agent.Project, d schedule.Definition) (schedule.Shown, error)
	Update(ctx context.Context, who agent.Principal, projectNo int64, id uuid.UUID, patch schedule.Patch) (schedule.Shown, error)
	Delete(ctx context.Context, who agent.Principal, projectNo int64, id uuid.UUID, forget bool) error
	SetEnabled(ctx context.Context, who agent.Principal, projectNo int64, id uuid.UUID, enabled bool) (schedule.Shown, error)
	Trigger(ctx context.Context, who agent.Principal, projectNo int64, id, fireID uuid.UUID) (schedule.Triggered, error)
	Diff(ctx context.Context, p agent.Project, in schedule.Import) ([]schedule.ImportChange, error)
	Apply(ctx context.Context, who agent.Principal, p agent.Project, in schedule.Import) ([]schedule.ImportChange, error)
	Resync(ctx context.Context, who agent.Principal, projectNo int64) (schedule.Resynced, error)
}

// Failures groups failed tasks; *failure.Service does.
type Failures interface {
	List(ctx context.Context, projectNo int64, f failure.Filter, page agent.Page) ([]failure.Group, error)
	Show(ctx context.Context, projectNo int64, id uuid.UUID, limit int) (failure.Group, []failure.Failure, error)
	Resolve(ctx context.Context, projectNo int64, prefix string) ([]uuid.UUID, error)
	SetState(ctx context.Context, who agent.Principal, projectNo int64, id uuid.UUID, to failure.State) (failure.Group, error)
}

// Fires shows and explains fires of schedules, and keeps what is declared of agents' engines; *fire.Fires does.
type Fires interface {
	List(ctx context.Context, projectNo int64, f fire.Filter, page agent.Page) ([]fire.Fire, error)
	Get(ctx context.Context, projectNo int64, fireID uuid.UUID) (fire.Fire, error)
	OfSchedule(ctx context.Context, projectNo int64, schedule uuid.UUID, limit int) ([]fire.Fire, error)
	Runs(ctx context.Context, projectNo int64, perSchedule int) ([]fire.Fire, error)
	Resolve(ctx context.Context, projectNo int64, prefix string) ([]uuid.UUID, error)
	Explain(ctx context.Context, projectNo int64, fireID uuid.UUID) (fire.Explanation, error)
	ExplainSchedule(ctx context.Context, projectNo int64, id uuid.UUID) (fire.ScheduleExplanation, error)
	Warnings(ctx context.Context, projectNo int64, engines ...string) ([]string, error)
	AgentNotes(ctx context.Context, projectNo int64, agentID uuid.UUID) ([]string, fire.Declaration, error)
	Declaration(ctx context.Context, projectNo int64, agentID uuid.UUID) (fire.Declaration, error)
	Declare(ctx context.Context, who agent.Principal, projectNo int64, agentID uuid.UUID, engines []string) (fire.Declaration, error)
}

var (
	_ Directory = (*agent.Directory)(nil)
	_ Commands  = (*agent.Commands)(nil)
	_ Records   = (*agent.Records)(nil)
	_ Failures  = (*failure.Service)(nil)
	_ Schedules = (*schedule.Schedules)(nil)
	_ Fires     = (*fire.Fires)(nil)
)

// AuditLog reads the audit log; BindAudit makes one.
type AuditLog interface {
	// List returns up to limit rows that match, newest first, below row number before; 0 starts at the newest.
	List(ctx context.Context, f audit.Filter, before int64, limit int) ([]audit.Record, error)
	Append(ctx context.Context, e audit.Entry) error
	Verify(ctx context.Context) (audit.Report, error)
}

type boundAudit struct {
	log *audit.Log
	st  audit.Store
}

// BindAudit joins the log to the store that it reads.
func BindAudit(log *audit.Log, st audit.Store) AuditLog { return boundAudit{log, st} }

func (b boundAudit) List(ctx context.Context, f audit.Filter, before int64, limit int) ([]audit.Record, error) {
	return b.log.List(ctx, b.st, f, before, limit)
}

func (b boundAudit) Append(ctx context.Context, e audit.Entry) error {
	return b.st.Update(ctx, "audit", func(tx audit.PruneTx) error { return b.log.Append(tx, e) })
}

func (b boundAudit) Verify(ctx context.Context) (audit.Report, error) { return b.log.Verify(ctx, b.st) }

// System tells how the process and its store are.
type System interface {
	Status(ctx context.Context) (Status, error)
}

// Upkeep copies and looks after the database; *store.DB does.
type Upkeep interface {
	// Backup makes a durable copy at an absolute path; after an error there is none.
	Backup(ctx context.Context, path string) error
	// IntegrityCheck returns what is wrong with the database.
	IntegrityCheck(ctx context.Context, quick bool) ([]string, error)
	// Vacuum gives free pages back to the file system.
	Vacuum(ctx context.Context) error
	// Space is the size of the database and how much of it is free.
	Space(ctx context.Context) (size, free int64, err error)
	SchemaVersion() int
}

// Status is the part of GET /status that no service knows.
type Status struct {
	Version       string
	StartedAt     time.Time
	StorePath     string
	StoreBytes    int64
	WALBytes      int64
	SchemaVersion int
	WebSockets    int      // live sessions
	LongPolls     int      // live sessions
	RoomAgents    int64    // registered
	Rooms         int64    // archived ones too
	MediaBytes    int64    // files of messages
	Degraded      []string // reasons; empty is healthy
}

// Services are what the surface speaks to. All but Archive are needed.
type Services struct {
	BulkRetries   BulkRetries
	Directory     Directory
	Commands      Commands
	Records       Records
	Failures      Failures
	Schedules     Schedules
	Fires         Fires
	Audit         AuditLog
	Presence      agent.Presence
	System        System
	Upkeep        Upkeep
	Hub           *wake.Hub
	Rooms         RoomServices
	Notifications Notifications
	Archive       Archive // may be empty: then the routes of the archive plane answer that it is turned off
}
