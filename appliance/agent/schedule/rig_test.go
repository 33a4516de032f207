package schedule_test

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/schedule"
	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/secret"
	"signalbox/appliance/wake"
	"signalbox/store"
	"signalbox/store/storetest"
)

// rig is a project with schedules on a real database and a clock that tests move.
type rig struct {
	t       testing.TB
	db      *store.DB
	st      *counted
	clock   *clock.Fake
	hub     *wake.Hub
	starter *ledger
	issuer  *issuer
	sched   *schedule.Schedules
	runner  *schedule.Scheduler
	opts    schedule.SchedulerOptions
	counts  *counter
	project agent.Project
	by      agent.Principal
	options []storetest.Option
	purged  func(op string, err error) // told of trouble of the purge; nil fails nothing
}

var start = time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)

func newRig(t testing.TB, options ...storetest.Option) *rig {
	t.Helper()
	r := &rig{t: t, clock: clock.NewFake(start), hub: wake.New(), starter: &ledger{}, issuer: &issuer{}, counts: &counter{missed: map[schedule.MisfireReason]int64{}},
		by: agent.LocalPrincipal()}
	r.options = append(options, func(o *store.Options) { o.Clock = r.clock })
	r.db = storetest.Open(t, r.options...)
	r.opts = schedule.SchedulerOptions{Clock: r.clock, CatchUpRate: math.MaxInt, Observer: r.counts,
		Trouble: func(op string, err error) { t.Logf("%s: %v", op, err) }}
	r.project = agent.Project{ID: uuid.New(), Slug: "plant", Name: "plant", Environment: "production", Timezone: "UTC", RetentionDays: 30,
		IsActive: true, DefaultSchedulerOwner: "z4j-scheduler", CreatedAt: start, UpdatedAt: start}
	r.update(func(tx *store.Tx) (err error) { r.project.No, err = tx.InsertProject(r.project); return err })
	r.restart()
	return r
}

// restart begins anew with what the database holds.
func (r *rig) restart() {
	log := audit.New(audit.NewKeys(secret.NewBytes([]byte("0123456789abcdef0123456789abcdef"))))
	st := &counted{Store: store.Bind[schedule.Tx, schedule.ReadTx](r.db)}
	r.st = st
	r.sched = schedule.NewSchedules(st, r.starter, r.issuer, log, r.hub, schedule.Options{Clock: r.clock, TriggerEvery: 5 * time.Second,
		Trouble: func(op string, err error) {
			if r.purged != nil {
				r.purged(op, err)
			}
		}})
	r.runner = schedule.NewScheduler(st, r.starter, log, r.hub, r.opts)
}

func (r *rig) update(fn func(tx *store.Tx) error) {
	r.t.Helper()
	if err := r.db.Update(context.Background(), "set up", fn); err != nil {
		r.t.Fatal(err)
	}
}

// define makes a definition.
func define(name string, kind schedule.Kind, expression string, how schedule.CatchUp) schedule.Definition {
	return schedule.Definition{Name: name, Engine: "celery", Kind: kind, Expression: expression, TaskName: "tasks.tick", CatchUp: how}
}

func (r *rig) create(d schedule.Definition) schedule.Schedule {
	r.t.Helper()
	s, err := r.sched.Create(context.Background(), r.by, r.project, d)
	if err != nil {
		r.t.Fatalf("create %s: %v", d.Name, err)
	}
	return s.Schedule
}

func (r *rig) get(s schedule.Schedule) (schedule.Shown, []schedule.Misfire) {
	r.t.Helper()
	got, misfires, err := r.sched.Get(context.Background(), r.project.No, s.ID)
	if err != nil {
		r.t.Fatal(err)
	}
	return got, misfires
}

// step decides what is due.
func (r *rig) step() time.Time {
	r.t.Helper()
	next, err := r.runner.Step(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	return next
}

// run moves the clock from one wake-up of the scheduler to the next until the time.
func (r *rig) run(until time.Time) {
	r.t.Helper()
	for {
		next := r.step()
		if next.IsZero() || next.After(until) {
			r.clock.Advance(until.Sub(r.clock.Now()))
			return
		}
		r.clock.Advance(next.Sub(r.clock.Now()))
	}
}

// made is a stored fire.
type made struct {
	slot   time.Time
	origin schedule.Origin
}

func (r *rig) fires(s schedule.Schedule) (out []made) {
	r.t.Helper()
	err := r.db.View(context.Background(), func(tx *store.ReadTx) error {
		rows, err := tx.Query(`SELECT slot_at, origin FROM fires WHERE schedule_no = ? ORDER BY fire_no`, s.No)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var f made
			if err := rows.Scan(&f.slot, &f.origin); err != nil {
				return err
			}
			out = append(out, f)
		}
		return rows.Err()
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func (r *rig) audits() (out []string) {
	r.t.Helper()
	err := r.db.View(context.Background(), func(tx *store.ReadTx) error {
		rows, err := tx.AuditRows(0, 1000)
		for _, row := range rows {
			out = append(out, row.Action)
		}
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// ledger is a Starter that stores bare fires, as the real one does for what concerns slots: one for each slot.
type ledger struct {
	refuse map[int64]error // by schedule
}

func (l *ledger) StartFire(tx schedule.Tx, f schedule.NewFire) (schedule.Fired, error) {
	if err := l.refuse[f.Schedule.No]; err != nil {
		return schedule.Fired{}, err
	}
	var slot any
	if f.SlotAt != nil {
		slot = *f.SlotAt
	}
	res, err := any(tx).(*store.Tx).Exec(`INSERT INTO fires (id, fire_id, schedule_no, project_no, origin, slot_at, status, scheduled_for, fired_at)
		VALUES (?, ?, ?, ?, ?, ?, 'pending', ?, ?) ON CONFLICT DO NOTHING`, uuid.New(), f.FireID, f.Schedule.No, f.Schedule.ProjectNo,
		string(f.Origin), slot, f.ScheduledFor, tx.Now())
	return schedule.Fired{FireID: f.FireID, Repeated: res.RowsAffected() == 0}, err
}

func (l *ledger) TriggeredAs(tx schedule.Tx, scheduleNo int64, fireID uuid.UUID) (*schedule.Fired, error) {
	n := 0
	err := any(tx).(*store.Tx).QueryRow(`SELECT count(*) FROM fires WHERE fire_id = ? AND schedule_no = ?`, fireID, scheduleNo).Scan(&n)
	if err != nil || n == 0 {
		return nil, err
	}
	return &schedule.Fired{FireID: fireID, Repeated: true}, nil
}

// issuer notes what commands were asked for.
type issuer struct{ requests []agent.IssueRequest }

func (i *issuer) IssueIn(_ agent.CommandTx, _ agent.Principal, r agent.IssueRequest) (agent.Issued, error) {
	i.requests = append(i.requests, r)
	return agent.Issued{Command: agent.Command{ID: uuid.New()}}, nil
}

// counter is an Observer.
type counter struct {
	fired  int
	missed map[schedule.MisfireReason]int64
}

func (c *counter) Fired(uuid.UUID, schedule.Origin, time.Duration, bool) { c.fired++ }
func (c *counter) Misfired(_ uuid.UUID, reason schedule.MisfireReason, n int64) {
	c.missed[reason] += n
}

func wantFault(t testing.TB, err error, code fault.Code, field string) {
	t.Helper()
	if fault.CodeOf(err) != code || field != "" && fault.Details(err)["field"] != field {
		t.Errorf("got %v (%v), want %s of %q", err, fault.Details(err), code, field)
	}
}

var errOdd = errors.New("odd")

// counted counts the transactions of a store.
type counted struct {
	agent.Store[schedule.Tx, schedule.ReadTx]
	calls atomic.Int64
}

func (c *counted) reset() { c.calls.Store(0) }

func (c *counted) Update(ctx context.Context, op string, fn func(schedule.Tx) error) error {
	c.calls.Add(1)
	return c.Store.Update(ctx, op, fn)
}

func (c *counted) View(ctx context.Context, fn func(schedule.ReadTx) error) error {
	c.calls.Add(1)
	return c.Store.View(ctx, fn)
}
