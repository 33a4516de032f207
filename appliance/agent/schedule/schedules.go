package schedule

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
)

// Issuer issues commands inside a transaction; *agent.Commands is one.
type Issuer interface {
	IssueIn(tx agent.CommandTx, p agent.Principal, r agent.IssueRequest) (agent.Issued, error)
}

// Options are the settings of Schedules.
type Options struct {
	Clock clock.Clock
	// TriggerEvery is the least time between two triggers of one schedule; 0 does not throttle.
	TriggerEvery time.Duration
	// Trouble is told of failures of RunPurge, which tries again. nil tells nobody. It must not block.
	Trouble func(op string, err error)
}

// Schedules keeps schedules for people and scripts (agent protocol G.1, G.6, H.6). Its methods are safe for concurrent use;
// those that write return only when the write is durable, and have written their audit row with it.
type Schedules struct {
	st      agent.Store[Tx, ReadTx]
	starter Starter
	issuer  Issuer
	log     agent.AuditAppender
	hub     *wake.Hub
	opts    Options

	mu        sync.Mutex
	triggered map[int64]time.Time // when a schedule was triggered last, while that still matters
}

// NewSchedules returns the service.
func NewSchedules(st agent.Store[Tx, ReadTx], starter Starter, issuer Issuer, log agent.AuditAppender, hub *wake.Hub,
	opts Options) *Schedules {
	if opts.Clock == nil {
		opts.Clock = clock.System()
	}
	if opts.Trouble == nil {
		opts.Trouble = func(string, error) {}
	}
	return &Schedules{st: st, starter: starter, issuer: issuer, log: log, hub: hub, opts: opts, triggered: map[int64]time.Time{}}
}

// Shown is a schedule with what is counted for it.
type Shown struct {
	Schedule
	SkippedSlots24h int64 // slots passed over in the last 24 hours
}

// shownMisfires is how many misfires Get returns.
const shownMisfires = 20

// Get finds a schedule and its newest misfires, newest first.
func (s *Schedules) Get(ctx context.Context, projectNo int64, id uuid.UUID) (out Shown, misfires []Misfire, err error) {
	err = s.st.View(ctx, func(tx ReadTx) error {
		row, err := find(tx, projectNo, id)
		if err != nil {
			return err
		}
		if out, err = show(tx, row); err != nil {
			return err
		}
		misfires, err = tx.ScheduleMisfires(row.No, shownMisfires)
		return err
	})
	return out, misfires, err
}

// List returns a page of the project's schedules by name.
func (s *Schedules) List(ctx context.Context, projectNo int64, f Filter, page Page) (out []Shown, err error) {
	err = s.st.View(ctx, func(tx ReadTx) error {
		rows, err := tx.ScheduleList(projectNo, f, page)
		if err != nil {
			return err
		}
		out = make([]Shown, len(rows))
		for i, row := range rows {
			if out[i], err = show(tx, row); err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}

// Resolve returns ids of the project's schedules that begin with the prefix of at least 4 hex digits, or that of the
// schedule of the name; at most 10.
func (s *Schedules) Resolve(ctx context.Context, projectNo int64, text string) (ids []uuid.UUID, err error) {
	err = s.st.View(ctx, func(tx ReadTx) error {
		rows, err := tx.ScheduleIDsNamed(projectNo, text, 10)
		if err != nil || len(rows) > 0 {
			ids = rows
			return err
		}
		if from, to, ok := agent.IDRange(text); ok {
			ids, err = tx.ScheduleIDsBetween(projectNo, from, to, 10)
		}
		return err
	})
	return ids, err
}

func find(tx ReadTx, projectNo int64, id uuid.UUID) (Schedule, error) {
	row, err := tx.ScheduleByID(projectNo, id)
	if fault.Is(err, fault.NotFound) {
		return row, fault.New(fault.NotFound, "schedule not found")
	}
	return row, err
}

func show(tx ReadTx, row Schedule) (Shown, error) {
	n, err := tx.ScheduleMissed(row.No, tx.Now().Add(-24*time.Hour))
	return Shown{row, n}, err
}

// record audits a change that a principal made.
func (s *Schedules) record(tx Tx, who agent.Principal, action string, row *Schedule, more map[string]any) error {
	id := row.ID.String()
	meta := map[string]any{"name": row.Name, "scheduler": row.Scheduler}
	for k, v := range more {
		meta[k] = v
	}
	return s.log.Append(tx, audit.Entry{ProjectNo: row.ProjectNo, UserID: textOrNil(who.ID), Action: action, TargetType: "schedule",
		TargetID: &id, Result: audit.Success, Outcome: audit.Allow, Metadata: metadata(meta), SourceIP: textOrNil(who.SourceIP),
		UserAgent: textOrNil(who.UserAgent)})
}

// metadata encodes texts, numbers and lists, which cannot fail.
func metadata(m map[string]any) []byte {
	b, _ := json.Marshal(m)
	return b
}

func textOrNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// wakeAfter lets the Scheduler look again once the transaction is durable.
func (s *Schedules) wakeAfter(tx Tx) { tx.Hint(func() { s.hub.Wake(Key{}) }) }
