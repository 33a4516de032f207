package connection

import (
	"sync"
	"time"
)

// ringSize is how many runs of events one agent's record keeps: some 8 KiB. Neighbours merge, so a stream that delivers
// everything takes one entry.
const ringSize = 128

// Skip is why events were passed over.
type Skip string

// The reasons. Empty: not passed over, but written.
const (
	SkipNotCovered Skip = "not_covered"
	SkipFiltered   Skip = "filtered"
	SkipGap        Skip = "gap"
)

// Delivery is what one stream did with a run of events.
type Delivery struct {
	ConnectionID string
	Generation   int64
	Transport    Transport
	First, Last  int64 // sequence numbers
	Count        int   // events written, of the numbers from First to Last
	Skip         Skip
	At           time.Time // of the last of them
}

// ring is the bounded record of an agent's deliveries. It has a lock of its own: streams write it without waiting for
// claims.
type ring struct {
	mu   sync.Mutex
	runs []Delivery // oldest at next, once full
	next int
}

func (g *ring) add(d Delivery) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.runs); n > 0 {
		last := &g.runs[(g.next+n-1)%n]
		if last.Generation == d.Generation && last.Skip == d.Skip && last.Last+1 == d.First {
			last.Last, last.Count, last.At = d.Last, last.Count+d.Count, d.At
			return
		}
	}
	if len(g.runs) < ringSize {
		g.runs = append(g.runs, d)
		return
	}
	g.runs[g.next] = d
	g.next = (g.next + 1) % ringSize
}

// about returns the runs that contain the sequence, oldest first.
func (g *ring) about(sequence int64) []Delivery {
	g.mu.Lock()
	defer g.mu.Unlock()
	var found []Delivery
	for i := range g.runs {
		if d := g.runs[(g.next+i)%len(g.runs)]; d.First <= sequence && sequence <= d.Last {
			found = append(found, d)
		}
	}
	return found
}

// Delivered records for explain that the stream was written count events, numbered from first to last. Runs without
// holes make the record exact.
func (s *Stream) Delivered(first, last int64, count int) { s.record(first, last, count, "") }

// Skipped records that the stream passed over the numbers from first to last.
func (s *Stream) Skipped(first, last int64, why Skip) { s.record(first, last, 0, why) }

func (s *Stream) record(first, last int64, count int, why Skip) {
	a := s.conn.agent
	a.ring.add(Delivery{ConnectionID: s.conn.id, Generation: s.generation, Transport: s.transport,
		First: first, Last: last, Count: count, Skip: why, At: a.reg.clock.Now()})
}

// Deliveries returns what is still recorded about the agent's event, oldest first. The record is in memory and bounded:
// nothing recorded proves nothing.
func (r *Registry) Deliveries(agentNo, sequence int64) []Delivery {
	a := r.agentOf(agentNo)
	if a == nil {
		return nil
	}
	return a.ring.about(sequence)
}
