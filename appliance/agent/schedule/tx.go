package schedule

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/audit"
)

// Filter narrows a list. Zero fields do not filter.
type Filter struct {
	Engine    string
	Scheduler string
	Source    string
	Enabled   *bool
}

// Page asks for one page of a list, by name.
type Page struct {
	Limit     int
	AfterName string // start after this name and id; "" is the beginning
	AfterID   uuid.UUID
}

// Controller is an online agent that lists a scheduler adapter.
type Controller struct {
	AgentID    uuid.UUID
	Schedulers []string
}

// ReadTx is what schedules read. Single-row methods fail with NotFound when there is no row.
type ReadTx interface {
	agent.Reader
	// ScheduleByNo finds a schedule by its number.
	ScheduleByNo(no int64) (Schedule, error)
	// ScheduleByID finds a schedule of the project.
	ScheduleByID(projectNo int64, id uuid.UUID) (Schedule, error)
	// ScheduleByName finds a schedule by its name in its project and scheduler.
	ScheduleByName(projectNo int64, scheduler, name string) (Schedule, error)
	// ScheduleList returns a page by name and id.
	ScheduleList(projectNo int64, f Filter, page Page) ([]Schedule, error)
	// ScheduleIDsBetween returns ids of the project's schedules in [from, to], at most limit.
	ScheduleIDsBetween(projectNo int64, from, to uuid.UUID, limit int) ([]uuid.UUID, error)
	// ScheduleIDsNamed returns the ids of the project's schedules of the name, at most limit.
	ScheduleIDsNamed(projectNo int64, name string, limit int) ([]uuid.UUID, error)
	// SchedulesDue returns enabled schedules of ours that are due, the earliest next slot first.
	SchedulesDue(q DueQuery) ([]Due, error)
	// ScheduleNextRun returns the earliest next slot that lies after the time; the zero time when there is none.
	ScheduleNextRun(after time.Time) (time.Time, error)
	// SchedulesAhead returns schedules of ours that are decided beyond the time, above the number, at most limit.
	SchedulesAhead(beyond time.Time, aboveNo int64, limit int) ([]Schedule, error)
	// ScheduleMissed returns how many slots of a schedule were passed over since the time.
	ScheduleMissed(scheduleNo int64, since time.Time) (int64, error)
	// ScheduleMisfires returns the newest misfires of a schedule, newest first.
	ScheduleMisfires(scheduleNo int64, limit int) ([]Misfire, error)
	// SchedulesDeleted lists schedules that were deleted and have left something, at most limit.
	SchedulesDeleted(limit int) ([]int64, error)
	// ScheduleControllers returns the online agents of the project that list a scheduler adapter, the most recently seen
	// first.
	ScheduleControllers(projectNo int64) ([]Controller, error)
}

// DueQuery asks for schedules whose next slot lies in (After, UpTo].
type DueQuery struct {
	After, UpTo time.Time // the zero After is the beginning
	FireAll     *bool     // only those whose catch_up is, or is not, fire_all_missed; nil: any
	Limit       int
}

// Due is a schedule that has come due.
type Due struct {
	Schedule      Schedule
	ProjectActive bool
}

// Tx is what schedules write through.
type Tx interface {
	agent.Writer
	ReadTx
	audit.Tx
	// InsertSchedule stores a schedule and returns its number; Conflict when the name is taken.
	InsertSchedule(s Schedule) (int64, error)
	// UpdateSchedule stores every changeable field.
	UpdateSchedule(s Schedule) error
	// DeleteSchedule takes a schedule away for every read of it and of its fires; its name is free.
	DeleteSchedule(no int64) error
	// PurgeSchedule removes at most limit rows that a deleted schedule has left, and the schedule itself when none is; gone
	// says that nothing is left.
	PurgeSchedule(no int64, limit int) (removed int, gone bool, err error)
	// ScheduleDecided stores what a decision changes: DecidedAt, NextRunAt, LastRunAt and TotalRuns.
	ScheduleDecided(s Schedule) error
	// ScheduleDisable disables a schedule by itself and says why. It reports whether it was enabled.
	ScheduleDisable(no int64, reason string) (bool, error)
	// ScheduleCountFailure adds n to the schedule's consecutive failures; n 0 sets them to 0.
	ScheduleCountFailure(no int64, n int) error
	// InsertMisfire records slots that were passed over.
	InsertMisfire(m Misfire) error
	// PruneMisfires removes at most limit misfires older than the time and returns how many.
	PruneMisfires(before time.Time, limit int) (int, error)
}
