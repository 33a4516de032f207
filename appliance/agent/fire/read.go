package fire

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
)

// Limits of lists of fires (agent protocol H.6).
const (
	MaxOfSchedule = 1000
	MaxRuns       = 500  // of each schedule
	maxRunRows    = 5000 // of one answer
	maxResolved   = 10
)

// Get returns a fire of the project by its fire_id; NotFound when there is none.
func (f *Fires) Get(ctx context.Context, projectNo int64, fireID uuid.UUID) (fire Fire, err error) {
	err = f.st.View(ctx, func(tx ReadTx) error {
		fire, err = tx.FireOfProject(projectNo, fireID)
		return named(err, "fire not found")
	})
	return fire, err
}

// Place is the cursor of a fire: when it was fired and, in the form of an id, its number, which tells fires of one moment
// apart. So a page goes on where the one before ended, also when retention has removed that fire.
func (f *Fire) Place() agent.Cursor {
	c := agent.Cursor{At: f.FiredAt}
	binary.BigEndian.PutUint64(c.ID[8:], uint64(f.No))
	return c
}

// PlaceNo is the number in a cursor of fires.
func PlaceNo(c agent.Cursor) int64 { return int64(binary.BigEndian.Uint64(c.ID[8:]) & math.MaxInt64) }

// List returns a page of the project's fires, newest first. Its cursors are those of Fire.Place.
func (f *Fires) List(ctx context.Context, projectNo int64, filter Filter, page agent.Page) (fires []Fire, err error) {
	if filter.Status != "" && !filter.Status.Valid() {
		return nil, fault.Field("status", "must be pending, accepted, buffered, delivered, failed, acked_success, acked_failed or buffer_expired")
	}
	err = f.st.View(ctx, func(tx ReadTx) error {
		fires, err = tx.Fires(projectNo, filter, page)
		return err
	})
	return fires, err
}

// OfSchedule returns the newest fires of a schedule, newest first; NotFound when the project has no such schedule.
func (f *Fires) OfSchedule(ctx context.Context, projectNo int64, schedule uuid.UUID, limit int) (fires []Fire, err error) {
	err = f.st.View(ctx, func(tx ReadTx) error {
		fires, err = tx.FiresOfSchedule(projectNo, schedule, limit)
		return named(err, "schedule not found")
	})
	return fires, err
}

// Runs returns the newest fires of every schedule of the project, perSchedule each and at most 5000 in all,
// newest first.
func (f *Fires) Runs(ctx context.Context, projectNo int64, perSchedule int) (fires []Fire, err error) {
	err = f.st.View(ctx, func(tx ReadTx) error {
		fires, err = tx.FireRuns(projectNo, perSchedule, maxRunRows)
		return err
	})
	return fires, err
}

// Resolve returns the fire_ids of the project that start with the hex digits of prefix, at most 10.
func (f *Fires) Resolve(ctx context.Context, projectNo int64, prefix string) (ids []uuid.UUID, err error) {
	from, to, ok := agent.IDRange(prefix)
	if !ok {
		return nil, nil
	}
	err = f.st.View(ctx, func(tx ReadTx) error {
		ids, err = tx.FiresWithPrefix(projectNo, from, to, maxResolved)
		return err
	})
	return ids, err
}

// Waiting returns how many fires are buffered, over all projects.
func (f *Fires) Waiting(ctx context.Context) (n int, err error) {
	err = f.st.View(ctx, func(tx ReadTx) error {
		n, err = tx.PendingCount()
		return err
	})
	return n, err
}

// named gives NotFound the words for strangers and leaves other errors alone.
func named(err error, text string) error {
	if fault.Is(err, fault.NotFound) {
		return fault.New(fault.NotFound, "%s", text)
	}
	return err
}
