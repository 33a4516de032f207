package registry

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
)

const (
	// SeenEvery is how long a sign of life waits to be stored: one commit for all daemons. Nothing is decided from the
	// stored time.
	SeenEvery = 30 * time.Second
	// retryEvery is the pause before a background write that failed is tried again.
	retryEvery = time.Second
)

// Heartbeat takes a sign of life and returns its acknowledgement (daemon protocol 2.5). Stale: the generation is not
// current, or was released. Invalid: the sequence is not the next one. The first of a connection is written to the
// database, for it proves that the daemon has stored its generation; the others cost no commit.
func (r *Registry) Heartbeat(ctx context.Context, link archive.Link, hb *pb.Heartbeat) (*pb.HeartbeatAck, error) {
	now := r.clock.Now()
	r.mu.Lock()
	m := r.live[link.Daemon.No]
	if m == nil || m.link.Generation != link.Generation || m.lapsed {
		r.mu.Unlock()
		return nil, stale(link)
	}
	if hb.Sequence != m.beat+1 {
		want := m.beat + 1
		r.mu.Unlock()
		return nil, fault.Field("heartbeat.sequence", "must be %d, got %d", want, hb.Sequence)
	}
	m.beat++
	m.due = now.Add(r.opts.Liveness.OfflineThreshold)
	m.seen = Seen{DaemonNo: link.Daemon.No, Generation: link.Generation, At: now}
	if hb.SentAt != nil {
		m.seen.ClockSkew = skew(hb.SentAt.AsTime(), now)
	}
	m.dirty = true
	arm, used := r.flushAt.IsZero(), m.used
	if arm {
		r.flushAt = now.Add(SeenEvery)
	}
	r.mu.Unlock()
	if arm {
		r.rearm()
	}
	if !used {
		if err := r.store.Update(ctx, "archive.used", func(tx Tx) error { return r.Fence(tx, link) }); err != nil {
			return nil, err
		}
		r.mu.Lock()
		m.used = true
		r.mu.Unlock()
	}
	return &pb.HeartbeatAck{Sequence: hb.Sequence, ServerTime: timestamppb.New(now)}, nil
}

// rearm tells Run that an earlier time has come up.
func (r *Registry) rearm() {
	select {
	case r.poke <- struct{}{}:
	default:
	}
}

// Run marks silent daemons offline, ends pauses and stores signs of life, all on one timer, until ctx ends. It returns
// nil then, with what was not stored stored.
func (r *Registry) Run(ctx context.Context) error {
	var timer clock.Timer
	for {
		next, armed := r.tick(ctx)
		if ctx.Err() != nil {
			r.flush(context.WithoutCancel(ctx))
			return nil
		}
		var fire <-chan time.Time
		switch {
		case !armed && timer != nil:
			timer.Stop()
		case armed && timer == nil: // a timer that exists means something that waits
			timer = r.clock.NewTimer(time.Hour)
			defer timer.Stop()
			fallthrough
		case armed:
			timer.ResetAt(next)
			fire = timer.C()
		}
		select {
		case <-ctx.Done():
		case <-r.poke:
		case <-fire:
		}
	}
}

// tick does what is due and returns when to come back; armed is false when nothing is planned.
func (r *Registry) tick(ctx context.Context) (next time.Time, armed bool) {
	now := r.clock.Now()
	var lapsed []*member
	resume := map[int64]pause{}
	r.mu.Lock()
	for no, m := range r.live {
		if now.Before(m.due) || now.Before(r.retry[no]) {
			continue
		}
		m.lapsed = true
		lapsed = append(lapsed, m)
	}
	for no, p := range r.stable {
		if !now.Before(p.until) {
			resume[no] = p
		}
	}
	flush := !r.flushAt.IsZero() && !now.Before(r.flushAt)
	r.mu.Unlock()
	for _, m := range lapsed {
		r.markOffline(ctx, m, now)
	}
	for no, p := range resume {
		r.resume(ctx, no, p, now)
	}
	if flush {
		r.flush(ctx)
	}
	return r.nextTime()
}

func (r *Registry) nextTime() (next time.Time, armed bool) {
	consider := func(t time.Time) {
		if !armed || t.Before(next) {
			next, armed = t, true
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for no, m := range r.live {
		at := m.due
		if again := r.retry[no]; again.After(at) {
			at = again
		}
		consider(at)
	}
	for _, p := range r.stable {
		consider(p.until)
	}
	if !r.flushAt.IsZero() {
		consider(r.flushAt)
	}
	return next, armed
}

// markOffline releases the generation of a daemon that was silent too long and moves its jobs, in one transaction. The
// socket, if there is one, is closed after it.
func (r *Registry) markOffline(ctx context.Context, m *member, now time.Time) {
	no, generation := m.link.Daemon.No, m.link.Generation
	marked := false
	err := r.store.Update(ctx, "archive.offline", func(tx Tx) (err error) {
		if marked, err = tx.RegistryOffline(no, generation); err != nil || !marked {
			return err
		}
		for _, hook := range r.hooks.OnOffline {
			if err := hook(tx, no); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		r.mu.Lock()
		r.retry[no] = now.Add(retryEvery)
		r.mu.Unlock()
		if ctx.Err() == nil {
			r.opts.Observer.Failed("mark a daemon offline", err)
		}
		return
	}
	r.mu.Lock()
	if r.live[no] == m {
		delete(r.live, no)
	}
	delete(r.retry, no)
	sender := m.sender
	r.mu.Unlock()
	if sender != nil {
		sender.Close(Lapsed)
	}
	if marked {
		r.opts.Observer.MarkedOffline()
		r.changed(no)
	}
}

// resume ends a pause once one epoch was stable.
func (r *Registry) resume(ctx context.Context, no int64, p pause, now time.Time) {
	err := r.store.Update(ctx, "archive.resume", func(tx Tx) error {
		done, err := tx.RegistryResume(no, p.epoch)
		if err != nil || !done {
			return err
		}
		return r.ClearAlert(tx, archive.AlertDuplicateDaemon, no, 0)
	})
	r.mu.Lock()
	if r.stable[no] == p {
		if err == nil {
			delete(r.stable, no)
		} else {
			r.stable[no] = pause{p.epoch, now.Add(retryEvery)}
		}
	}
	r.mu.Unlock()
	switch {
	case err == nil:
		r.changed(no)
	case ctx.Err() == nil:
		r.opts.Observer.Failed("end the pause of a daemon", err)
	}
}

// flush stores the signs of life that are not stored yet.
func (r *Registry) flush(ctx context.Context) {
	r.mu.Lock()
	r.flushAt = time.Time{}
	var list []Seen
	for _, m := range r.live {
		if m.dirty {
			m.dirty = false
			list = append(list, m.seen)
		}
	}
	r.mu.Unlock()
	if len(list) == 0 {
		return
	}
	err := r.store.Update(ctx, "archive.seen", func(tx Tx) error { return tx.RegistrySeen(list) })
	if err == nil {
		return
	}
	r.mu.Lock()
	for _, s := range list {
		if m := r.live[s.DaemonNo]; m != nil && m.link.Generation == s.Generation {
			m.dirty = true
		}
	}
	if r.flushAt.IsZero() {
		r.flushAt = r.clock.Now().Add(SeenEvery)
	}
	r.mu.Unlock()
	if ctx.Err() == nil {
		r.opts.Observer.Failed("store when daemons were last seen", err)
	}
}
