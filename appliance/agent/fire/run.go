package fire

import (
	"context"
	"maps"
	"time"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
)

// Run replays buffered fires as soon as an agent can take them and ends those whose buffer time runs out, until ctx ends.
// It is woken by agents that come online, by commands that end, and by new fires; besides, it looks at the interval while
// anything is buffered, and sleeps when nothing is. Failures go to Options.Trouble and are tried again. Run it once.
func (f *Fires) Run(ctx context.Context) {
	w := newWatcher(f)
	defer w.stop()
	timer := f.opts.Clock.NewTimer(0)
	defer timer.Stop()
	every := false
	for {
		select {
		case <-f.buffer.kick:
			timer.Stop() // it is set anew after the turn
		case <-timer.C():
			every = true
		case <-ctx.Done():
			return
		}
		next, err := w.turn(ctx, every || w.overdue())
		every = false
		if err != nil && ctx.Err() == nil && !fault.Is(err, fault.Canceled) {
			f.opts.Trouble("replay fires", err)
			f.buffer.again()
			next = f.opts.Clock.Now().Add(f.opts.ReplayInterval)
		}
		if next.IsZero() {
			timer.Stop()
			continue
		}
		timer.ResetAt(next)
	}
}

// again asks for everything to be read anew, without a hint: the timer is set.
func (b *buffer) again() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reread = true
}

// watcher is what Run has in view.
type watcher struct {
	fires   *Fires
	groups  map[Group]bool
	watches map[int64]*wake.Watch // by project: told when an agent of it comes online
	rests   map[Group]*pass       // walks that the next turn goes on with
	sweep   time.Time             // when every group is looked at again, whatever is hinted until then
}

func newWatcher(f *Fires) *watcher {
	return &watcher{fires: f, groups: map[Group]bool{}, watches: map[int64]*wake.Watch{}, rests: map[Group]*pass{}}
}

// overdue tells whether it is time to look at every group. A time that lies further ahead than the interval was set by a clock
// that was ahead.
func (w *watcher) overdue() bool {
	now := w.fires.opts.Clock.Now()
	return !now.Before(w.sweep) || w.sweep.After(now.Add(w.fires.opts.ReplayInterval))
}

func (w *watcher) stop() {
	for _, watch := range w.watches {
		watch.Stop()
	}
}

// turn does what is to be done now and returns when to come again by time alone; the zero time when only an event can
// bring something. every looks at every group, whatever was hinted.
func (w *watcher) turn(ctx context.Context, every bool) (next time.Time, err error) {
	f, b := w.fires, &w.fires.buffer
	if every {
		w.sweep = f.opts.Clock.Now().Add(f.opts.ReplayInterval)
	}
	b.mu.Lock()
	due, reread := b.due, b.reread
	b.due, b.reread, b.expiry = map[int64]bool{}, false, time.Time{}
	b.mu.Unlock()
	defer func() {
		if err == nil {
			return
		}
		b.mu.Lock()
		maps.Copy(b.due, due)
		b.mu.Unlock()
	}()
	n, err := f.Expired(ctx)
	if err != nil {
		return time.Time{}, err
	}
	fresh := map[Group]bool{}
	if reread || n > 0 {
		if fresh, err = w.reread(ctx); err != nil {
			return time.Time{}, err
		}
	}
	for g := range w.groups {
		if !every && !due[g.ProjectNo] && !fresh[g] {
			continue
		}
		if err := w.replay(ctx, g); err != nil {
			return time.Time{}, err
		}
	}
	w.drop()
	return w.sleep(ctx)
}

// reread takes the groups from the database and returns those that were not in view. Every group counts as unknown until
// it is in view: a fire that is buffered meanwhile asks for another turn.
func (w *watcher) reread(ctx context.Context) (fresh map[Group]bool, err error) {
	b := &w.fires.buffer
	b.mu.Lock()
	b.known = map[Group]bool{}
	b.mu.Unlock()
	var groups []Group
	if err := w.fires.st.View(ctx, func(tx ReadTx) (err error) {
		groups, err = tx.PendingGroups()
		return err
	}); err != nil {
		return nil, err
	}
	now, fresh := map[Group]bool{}, map[Group]bool{}
	for _, g := range groups {
		now[g], fresh[g] = true, !w.groups[g]
		if project := g.ProjectNo; w.watches[project] == nil {
			w.watches[project] = w.fires.hub.Notify(agent.AgentsOnline(project), func() { b.eligible(project) })
		}
	}
	w.groups = now
	b.mu.Lock()
	maps.Copy(b.known, now)
	b.mu.Unlock()
	return fresh, nil
}

// replay hands over what it can of a group, and loses sight of the group when nothing is left.
func (w *watcher) replay(ctx context.Context, g Group) error {
	b := &w.fires.buffer
	b.mu.Lock()
	delete(b.known, g) // a fire that is buffered from here on is news, and so is a command that ends
	b.full[g.ProjectNo] = true
	b.mu.Unlock()
	rest := w.rests[g]
	delete(w.rests, g)
	done, err := w.fires.replayGroup(ctx, g, rest)
	if err != nil {
		return err
	}
	if done.rest != nil {
		w.rests[g] = done.rest
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !done.full {
		delete(b.full, g.ProjectNo)
	}
	if done.left {
		b.known[g] = true
	} else {
		delete(w.groups, g)
	}
	return nil
}

// drop ends the watches of projects that have nothing buffered.
func (w *watcher) drop() {
	for project, watch := range w.watches {
		used := false
		for g := range w.groups {
			used = used || g.ProjectNo == project
		}
		if !used {
			watch.Stop()
			delete(w.watches, project)
		}
	}
}

// sleep is when the next turn is due by time.
func (w *watcher) sleep(ctx context.Context) (next time.Time, err error) {
	f := w.fires
	if len(w.groups) == 0 {
		return time.Time{}, nil
	}
	if err := f.st.View(ctx, func(tx ReadTx) (err error) {
		next, err = tx.PendingNextExpiry()
		return err
	}); err != nil {
		return time.Time{}, err
	}
	f.buffer.mu.Lock()
	if f.buffer.expiry.IsZero() || next.Before(f.buffer.expiry) {
		f.buffer.expiry = next
	}
	f.buffer.mu.Unlock()
	if next.IsZero() || w.sweep.Before(next) {
		next = w.sweep
	}
	return next, nil
}
