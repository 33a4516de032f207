package schedule

import "time"

// limits bound one decision.
type limits struct {
	grace time.Duration // a slot late by less is on time
	most  int           // slots that fire_all_missed fires at most: the newest
	fires int           // slots to fire now at most, at least 1: the rest stays due
	scan  int           // slots to look at, above most
}

// planned is one slot to fire.
type planned struct {
	slot   time.Time
	origin Origin
}

// plan is what becomes of the slots that are due.
type plan struct {
	fires     []planned // oldest first
	misfire   *Misfire  // slots before them that are passed over
	decidedAt time.Time
	next      *time.Time // the next slot, maybe due already; nil: none
	looked    int        // slots looked at
}

// decide looks at the slots in (decided, now], oldest first, and says what becomes of them.
//
// While no slot is late by the grace or more, every one is fired. When one is, the schedule was held up, and catch_up rules:
// only the newest slot is still fired as usual if it is on time, and of the others skip fires none, fire_one_missed none but
// the newest of all, fire_all_missed all, up to the cap. What is not fired is a misfire.
//
// More slots than are looked at, or than may be fired now, are left for the next decision: a slot is decided when, and only
// when, decidedAt has passed it.
func decide(t Timing, how CatchUp, decided, now time.Time, lim limits) plan {
	slots, more := upTo(t, decided, now, lim.scan)
	if len(slots) == 0 {
		return plan{decidedAt: decided, next: following(t, decided)}
	}
	late := func(slot time.Time) bool { return now.Sub(slot) >= lim.grace }
	drop, reason := 0, MisfireReason("")
	switch newest := slots[len(slots)-1]; {
	case !late(slots[0]):
	case how == FireAll:
		drop, reason = max(len(slots)-lim.most, 0), MisfireCap
	case how == FireOne && more:
		drop, reason = len(slots), MisfireOne
	case how == FireOne:
		drop, reason = len(slots)-1, MisfireOne
	case more || late(newest):
		drop, reason = len(slots), MisfireSkip
	default:
		drop, reason = len(slots)-1, MisfireSkip
	}
	p := plan{decidedAt: decided, looked: len(slots)}
	if drop > 0 {
		p.misfire = &Misfire{FirstSlot: slots[0], LastSlot: slots[drop-1], Slots: int64(drop), Reason: reason}
		p.decidedAt = slots[drop-1]
	}
	fire := slots[drop:]
	if how == FireAll && more && drop > 0 {
		fire = nil // which of them are beyond the cap, the next look will tell
	}
	for _, slot := range fire[:min(len(fire), lim.fires)] {
		origin := OriginSlot
		if late(slot) {
			origin = OriginCatchUp
		}
		p.fires = append(p.fires, planned{slot, origin})
		p.decidedAt = slot
	}
	p.next = following(t, p.decidedAt)
	return p
}

// upTo lists the slots in (after, now], at most limit, and whether there are more.
func upTo(t Timing, after, now time.Time, limit int) (slots []time.Time, more bool) {
	for {
		next, ok := t.Next(after)
		if !ok || next.After(now) {
			return slots, false
		}
		if len(slots) == limit {
			return slots, true
		}
		slots = append(slots, next)
		after = next
	}
}

// following is the next slot; nil when there is none.
func following(t Timing, after time.Time) *time.Time {
	if next, ok := t.Next(after); ok {
		return &next
	}
	return nil
}
