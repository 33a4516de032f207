package agent

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"

	"github.com/google/uuid"
)

// maxTouchNotes bounds the rows whose last write is remembered.
const maxTouchNotes = 1 << 14

// touchNotes remembers when rows that every event touches were last written, so that busy rows are written about once a
// second instead of in every commit. It is a hint: forgetting costs a write, and it learns only of committed ones.
// Safe for concurrent use.
type touchNotes struct {
	mu sync.Mutex
	at map[touchKey]touchNote
}

// touchKey names a worker row (worker is true), a queue row, or, with an empty engine, a worker slot of an agent, whose
// number then stands for the project's.
type touchKey struct {
	no     int64
	worker bool
	engine string
	name   string
}

type touchNote struct {
	at    time.Time
	state string
}

type noted struct {
	key  touchKey
	note touchNote
}

// fresh tells whether the row was written with the same state less than a second before.
func (t *touchNotes) fresh(n noted) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	last, ok := t.at[n.key]
	ago := n.note.at.Sub(last.at)
	return ok && last.state == n.note.state && ago >= 0 && ago < seenEvery
}

func (t *touchNotes) remember(ns []noted) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range ns {
		if last, ok := t.at[n.key]; ok && n.note.at.Before(last.at) && last.at.Sub(n.note.at) < seenEvery {
			continue // more than that is a clock that was set back
		}
		if len(t.at) >= maxTouchNotes {
			clear(t.at)
		}
		t.at[n.key] = n.note
	}
}

// timeOrderedIDs makes UUIDv7 that never decrease: the id of a task row is its place in the list of tasks. Safe for
// concurrent use.
type timeOrderedIDs struct {
	mu   sync.Mutex
	last uint64 // milliseconds since 1970, then 12 bits of fraction
}

// next returns an id of the given time, or of the smallest later place when that one is taken.
func (g *timeOrderedIDs) next(now time.Time) (id uuid.UUID) {
	micros := uint64(max(now.UnixMicro(), 0))
	place := micros/1000<<12 | micros%1000*4096/1000
	g.mu.Lock()
	if place <= g.last {
		place = g.last + 1
	}
	g.last = place
	g.mu.Unlock()
	_, _ = rand.Read(id[8:]) // never fails: the runtime ends the process instead
	binary.BigEndian.PutUint64(id[:8], place>>12<<16|place&0xfff)
	id[6] |= 0x70
	id[8] = id[8]&0x3f | 0x80
	return id
}

// firstTaskID is the smallest id that next gives for a time: the bound between older and newer task rows.
func firstTaskID(at time.Time) (id uuid.UUID) {
	millis := uint64(max(at.UnixMilli(), 0))
	binary.BigEndian.PutUint64(id[:8], millis<<16)
	id[6] |= 0x70
	id[8] = 0x80
	return id
}
