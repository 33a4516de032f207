package schedule

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
)

// Origin says what made a fire.
type Origin string

// The origins.
const (
	OriginSlot    Origin = "slot"     // the slot came due
	OriginCatchUp Origin = "catch_up" // a missed slot, by the schedule's catch_up
	OriginTrigger Origin = "trigger"  // a person or script asked for it
)

// NewFire asks for one fire of a schedule.
type NewFire struct {
	Schedule     Schedule // as it is in the transaction, before the fire is counted
	Origin       Origin
	SlotAt       *time.Time // nil for OriginTrigger
	ScheduledFor time.Time  // the slot, or the time of the trigger
	FireID       uuid.UUID  // never nil: for a slot it is SlotFireID, so that a repeat is recognised
	By           agent.Principal
}

// Fired is what became of it.
type Fired struct {
	FireID    uuid.UUID
	Buffered  bool       // no agent can take it now
	CommandID *uuid.UUID // of the schedule.fire command; nil when buffered
	Repeated  bool       // the fire, or one of the same slot, was there already: nothing was stored
}

// Starter makes fires. StartFire runs inside the caller's transaction and stores everything through it; tx is a *store.Tx
// and can be asserted to the Starter's own interface. It counts nothing on the schedule: the caller does that. A fire whose
// id or slot is there already is no error but Repeated.
type Starter interface {
	StartFire(tx Tx, f NewFire) (Fired, error)
	// TriggeredAs finds the fire that a trigger of the schedule made under the id; nil when nothing has the id. Conflict
	// naming fire_id when it is that of another schedule's fire or of a slot's.
	TriggeredAs(tx Tx, scheduleNo int64, fireID uuid.UUID) (*Fired, error)
}

// fireSpace is the name space of the ids of slots' fires.
var fireSpace = uuid.MustParse("6b1f2a6e-6a34-5d0c-9a53-2f3f0c2d9b41")

// SlotFireID is the id of the fire of a slot: a UUID (version 5) of the schedule and the slot, so that two decisions on one
// slot make one fire.
func SlotFireID(schedule uuid.UUID, slot time.Time) uuid.UUID {
	return uuid.NewSHA1(fireSpace, append(schedule[:], slot.UTC().Format(time.RFC3339Nano)...))
}
