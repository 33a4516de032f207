package fire

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/schedule"
	"signalbox/appliance/fault"
)

// Declared is what an operator declared of an agent's engines.
type Declared struct {
	AgentNo int64
	Engine  string
	By      string
	At      time.Time
}

// Buffer sums up the buffered fires of one project and engine, or of one schedule.
type Buffer struct {
	Group
	Fires  int
	Oldest time.Time // earliest scheduled_for
	Expiry time.Time // earliest expires_at
}

// ReadTx is what Fires reads. Single-row methods fail with NotFound when there is no row.
type ReadTx interface {
	agent.Reader
	CommandByNo(no int64) (agent.Command, error)
	Agents(projectNo int64, includeRevoked bool) ([]agent.Agent, error)
	AgentByID(projectNo int64, id uuid.UUID) (agent.Agent, error)

	// FireByFireID finds a fire by what the agent de-duplicates by, over all projects.
	FireByFireID(fireID uuid.UUID) (Fire, error)
	// FireOfSlot finds the fire of a slot.
	FireOfSlot(scheduleNo int64, slot time.Time) (Fire, error)
	// FireOfCommand finds the fire whose newest command it is.
	FireOfCommand(commandNo int64) (Fire, error)
	FireByNo(no int64) (Fire, error)
	// FireOfProject finds a fire by its fire_id.
	FireOfProject(projectNo int64, fireID uuid.UUID) (Fire, error)
	// FiresWithPrefix returns the fire_ids in [from, to] of the project, at most limit.
	FiresWithPrefix(projectNo int64, from, to uuid.UUID, limit int) ([]uuid.UUID, error)
	// Fires returns a page of the project's fires, newest first.
	Fires(projectNo int64, f Filter, page agent.Page) ([]Fire, error)
	// FiresOfSchedule returns the newest fires of a schedule of the project; NotFound when there is no such schedule.
	FiresOfSchedule(projectNo int64, schedule uuid.UUID, limit int) ([]Fire, error)
	// FireRuns returns the newest fires of every schedule of the project, perSchedule each and at most limit in all, newest first.
	FireRuns(projectNo int64, perSchedule, limit int) ([]Fire, error)

	// FireTargets returns agents that may take a fire of the engine (agent protocol G.3): those that report the engine
	// first, the most recently seen first, then those it is declared for.
	FireTargets(projectNo int64, engine string, limit int) ([]Target, error)
	// FireCommandsOpen counts the schedule.fire commands of an agent that have not ended.
	FireCommandsOpen(agentNo int64) (int, error)

	// PendingGroups lists the groups that have buffered fires.
	PendingGroups() ([]Group, error)
	// PendingCount counts the buffered fires.
	PendingCount() (int, error)
	// PendingOfFire finds a fire in the buffer.
	PendingOfFire(fireNo int64) (Pending, error)
	// PendingBefore tells whether fires of the schedule wait in the buffer for the engine.
	PendingBefore(scheduleNo int64, engine string) (bool, error)
	// PendingBuffers sums the buffer of the project up by engine; of one schedule when it is not 0.
	PendingBuffers(projectNo, scheduleNo int64) ([]Buffer, error)
	// PendingNextExpiry returns the earliest expires_at; the zero time when nothing is buffered.
	PendingNextExpiry() (time.Time, error)
	// PendingExpiryAfter tells whether a fire's expires_at lies after the time.
	PendingExpiryAfter(latest time.Time) (bool, error)
	// PendingExpired lists fires whose buffer time has run out at now, the earliest first.
	PendingExpired(now time.Time, limit int) ([]Pending, error)

	// DeclaredEngines lists what was declared of one agent, or of all of the project when agentNo is 0.
	DeclaredEngines(projectNo, agentNo int64) ([]Declared, error)
	ScheduleByNo(no int64) (schedule.Schedule, error)
	ScheduleByID(projectNo int64, id uuid.UUID) (schedule.Schedule, error)
	// SchedulesFailing lists enabled schedules with at least n consecutive failures.
	SchedulesFailing(n, limit int) ([]int64, error)
}

// Tx is what Fires writes through.
type Tx interface {
	agent.CommandTx
	ReadTx

	// InsertFire stores a new fire and returns its number.
	InsertFire(f Fire) (int64, error)
	// UpdateFire stores what changes of a fire, guarded by the status it had, and reports whether the guard held.
	UpdateFire(before Status, f Fire) (bool, error)
	InsertPending(p Pending) error
	DeletePending(no int64) error
	// PendingToReplay lists the buffered fires of a group behind a position, the oldest scheduled_for first, with what decides
	// about them.
	PendingToReplay(g Group, after Position, limit int) ([]Waiting, error)
	// PendingBoundExpiry brings every expires_at after the time forward to it.
	PendingBoundExpiry(latest time.Time) error
	// PruneFires removes fires that were fired before the cutoff and are not buffered among the scan rows after afterNo.
	// next is where to go on; 0 when nothing is left.
	PruneFires(afterNo int64, cutoff time.Time, scan int) (removed int, next int64, err error)

	// SetDeclaredEngines replaces what was declared of an agent.
	SetDeclaredEngines(agentNo int64, by string, engines []string) error

	// ScheduleDisable disables a schedule by itself and says why. It reports whether it was enabled.
	ScheduleDisable(no int64, reason string) (bool, error)
	// ScheduleCountFailure adds n to the schedule's consecutive failures; n 0 sets them to 0.
	ScheduleCountFailure(no int64, n int) error
}

// own sees another part's transaction as one of ours: all are the store's, and the store implements every view.
func own(tx any) (Tx, error) {
	if t, ok := tx.(Tx); ok {
		return t, nil
	}
	return nil, fault.New(fault.Internal, "transaction %T knows no fires", tx)
}
