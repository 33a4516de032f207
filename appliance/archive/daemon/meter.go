package daemon

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// meter turns what a worker reports into PROGRESS, STALLED and RESUMED events (2.8).
type meter struct {
	d    *Daemon
	w    *work
	hint chan struct{}

	mu      sync.Mutex
	latest  *pb.Progress // filled in; nil before the first report
	movedAt time.Time    // when a counter moved last, or the step began
	moved   bool         // a counter has moved since the last event
	changed bool         // something has changed since the last event

	// Of the goroutine that runs it:
	madeAt  time.Time    // of the last event
	made    *pb.Progress // that it carried: STALLED repeats it
	stalled bool
}

// newMeter starts at the last progress that an earlier call made of the lease; nil when there is none.
func newMeter(d *Daemon, w *work, made *pb.Progress) *meter {
	m := &meter{d: d, w: w, hint: make(chan struct{}, 1), movedAt: d.o.Clock.Now(), made: made,
		stalled: w.row.State == pb.JobState_JOB_STATE_STALLED}
	if m.made == nil {
		m.made = filled(w, &pb.Progress{}, m.movedAt)
	}
	return m
}

// report takes the worker's progress over. It does not block.
func (m *meter) report(p *pb.Progress) {
	m.mu.Lock()
	moved := archive.Moved(m.latest, p)
	if moved {
		m.movedAt = m.d.o.Clock.Now()
		m.moved = true
	}
	m.changed = true
	m.latest = filled(m.w, p, m.movedAt)
	m.mu.Unlock()
	poke(m.hint)
}

// filled adds what the engine knows: clamped fractions and the time of the last movement.
func filled(w *work, p *pb.Progress, movedAt time.Time) *pb.Progress {
	p.FractionComplete = archive.Clamp(p.GetFractionComplete())
	at, _ := archive.Position(w.row.Definition.GetOperation(), w.lease.Step)
	p.OverallFractionComplete = archive.Overall(w.row.Definition.GetOperation(), at, p.FractionComplete)
	p.LastContentMovementAt = timestamppb.New(movedAt)
	if p.Bytes == nil {
		p.Bytes = &pb.ByteCounters{}
	}
	b := p.Bytes
	b.LogicalDone = min(b.LogicalDone, b.LogicalTotal)
	b.Known = b.Known || b.LogicalTotal != 0 || b.AllocatedTotal != 0 || b.AllocatedDone != 0
	return p
}

// last returns the latest progress, a zero one before the first report.
func (m *meter) last() *pb.Progress {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.latest == nil {
		return filled(m.w, &pb.Progress{}, m.movedAt)
	}
	return proto.CloneOf(m.latest)
}

// completed is the progress of a step that is done: the last counters, the whole fraction.
func completed(w *work, last *pb.Progress) *pb.Progress {
	last.FractionComplete, last.BytesPerSecond = 1, 0
	return filled(w, last, last.GetLastContentMovementAt().AsTime())
}

// run makes events until ctx ends.
func (m *meter) run(ctx context.Context) {
	timer := m.d.o.Clock.NewTimer(archive.StalledAfter)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.hint:
		case <-timer.C():
		}
		now := m.d.o.Clock.Now()
		if wait := m.step(ctx, now); wait > 0 {
			timer.ResetAt(now.Add(wait))
		} else {
			timer.Stop()
		}
	}
}

// step makes the event that is due at now, if any, and returns how long from then nothing more can be due; 0: until the
// next report.
func (m *meter) step(ctx context.Context, now time.Time) time.Duration {
	m.mu.Lock()
	moved, changed, idle := m.moved, m.changed, now.Sub(m.movedAt)
	m.mu.Unlock()
	if quiet := m.d.quietFor(m.w, now); quiet > 0 {
		return quiet
	}
	switch since := now.Sub(m.madeAt); {
	case moved && m.stalled:
		return m.make(ctx, pb.JobEventKind_JOB_EVENT_KIND_RESUMED, now)
	case moved && since < archive.ProgressAtMost:
		return archive.ProgressAtMost - since
	case moved, changed && since >= archive.ProgressAtLeast:
		return m.make(ctx, pb.JobEventKind_JOB_EVENT_KIND_PROGRESS, now)
	case m.stalled:
		return 0
	case idle >= archive.StalledAfter:
		return m.make(ctx, pb.JobEventKind_JOB_EVENT_KIND_STALLED, now)
	case changed:
		return min(archive.ProgressAtLeast-since, archive.StalledAfter-idle)
	default:
		return archive.StalledAfter - idle
	}
}

// make stores an event of the kind. What could not be stored is tried again.
func (m *meter) make(ctx context.Context, kind pb.JobEventKind, now time.Time) time.Duration {
	p := m.last()
	if kind == pb.JobEventKind_JOB_EVENT_KIND_STALLED {
		p = proto.CloneOf(m.made)
	}
	m.mu.Lock()
	m.moved, m.changed = false, false
	idle := now.Sub(m.movedAt)
	m.mu.Unlock()
	made := false
	err := m.d.update(ctx, "daemon.progress", func(tx Tx) (err error) {
		made, err = m.d.progress(tx, m.w, kind, p)
		return err
	})
	m.madeAt = m.d.o.Clock.Now()
	if err != nil || !made {
		m.mu.Lock()
		m.moved, m.changed = m.moved || kind != pb.JobEventKind_JOB_EVENT_KIND_STALLED, true
		m.mu.Unlock()
		return archive.ProgressAtLeast
	}
	m.made = p
	m.stalled = kind == pb.JobEventKind_JOB_EVENT_KIND_STALLED
	if m.stalled {
		return 0
	}
	return max(archive.StalledAfter-idle, archive.ProgressAtMost)
}

// progress writes a PROGRESS, STALLED or RESUMED. At most one PROGRESS of a job is unsent: a newer one replaces it in
// place, keeping its sequence, and waits when other events have followed it. made tells whether p is on record.
func (d *Daemon) progress(tx Tx, w *work, kind pb.JobEventKind, p *pb.Progress) (made bool, err error) {
	row, l, ok, err := leased(tx, w.row.ID, w.lease.CommandID)
	if err != nil || !ok {
		return false, err
	}
	stalled := row.State == pb.JobState_JOB_STATE_STALLED
	switch {
	case kind == pb.JobEventKind_JOB_EVENT_KIND_STALLED && stalled:
		return true, nil
	case kind == pb.JobEventKind_JOB_EVENT_KIND_RESUMED && !stalled: // a RESUME of control has set RUNNING
		kind = pb.JobEventKind_JOB_EVENT_KIND_PROGRESS
	case kind == pb.JobEventKind_JOB_EVENT_KIND_PROGRESS && stalled:
		kind = pb.JobEventKind_JOB_EVENT_KIND_RESUMED
	}
	if kind == pb.JobEventKind_JOB_EVENT_KIND_PROGRESS {
		last, ok, err := tx.LastEvent(l.CommandID, kind)
		if err != nil {
			return false, err
		}
		if ok && !last.Sent {
			if last.Event.GetSequence() != row.Sequence {
				return false, nil
			}
			last.Event.Progress, last.Event.OccurredAt = p, timestamppb.New(tx.Now())
			return true, tx.ReplaceEvent(last.Event)
		}
	}
	return true, d.emit(tx, &row, &l, kind, func(e *pb.JobEvent) { e.Progress = p })
}

// quietFor is how long the job must add no PROGRESS, STALLED or RESUMED after a stale refusal (2.6).
func (d *Daemon) quietFor(w *work, now time.Time) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.quiet[w.row.ID].Sub(now)
}
