package job

import (
	"context"
	"sync"
	"time"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/decide"
)

// ack has a JobEventAck sent to a participant after the commit.
func (b *book) ack(a decide.Ack) {
	p := b.part(a.Role)
	if p == nil {
		return
	}
	e, jobNo, daemonNo, generation := b.e, b.row.No, p.DaemonNo, b.peers[p.DaemonNo].Generation
	b.wakes[daemonNo] = true
	b.tx.AfterCommit(func() { e.acks.add(daemonNo, generation, jobNo, a.GoAhead) })
}

// acks are the JobEventAcks that connections are still to be sent. They belong to a generation: a new connection gets new
// ones, from the decisions of its registration.
type acks struct {
	mu sync.Mutex
	m  map[int64]*owed // by daemon
}

type owed struct {
	generation int64
	jobs       map[int64]*goAhead
}

// goAhead is one of them; sent is zero until it was handed out.
type goAhead struct {
	goAhead bool
	sent    time.Time
}

func (a *acks) init() { a.m = map[int64]*owed{} }

func (a *acks) add(daemonNo, generation, jobNo int64, ahead bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.m[daemonNo]
	if o == nil || o.generation < generation {
		o = &owed{generation: generation, jobs: map[int64]*goAhead{}}
		a.m[daemonNo] = o
	}
	if o.generation > generation {
		return
	}
	if g := o.jobs[jobNo]; g != nil && g.goAhead && g.sent.IsZero() {
		return // one that says more is there already
	}
	o.jobs[jobNo] = &goAhead{goAhead: ahead}
}

// due lists the jobs whose ack is to be sent on the connection now.
func (a *acks) due(link archive.Link, now time.Time, retry time.Duration) map[int64]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.m[link.Daemon.No]
	if o == nil || o.generation != link.Generation {
		return nil
	}
	var out map[int64]bool
	for no, g := range o.jobs {
		if g.sent.IsZero() || !now.Before(g.sent.Add(retry)) {
			if out == nil {
				out = map[int64]bool{}
			}
			out[no] = g.goAhead
		}
	}
	return out
}

// sent notes what was handed out; again are those to be repeated. It returns whether any is.
func (a *acks) sent(link archive.Link, handed, again map[int64]bool, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.m[link.Daemon.No]
	if o == nil || o.generation != link.Generation {
		return
	}
	for no := range handed {
		g := o.jobs[no]
		switch {
		case g == nil || !g.sent.IsZero() && g.sent.After(now):
		case again[no]:
			g.sent = now
		default:
			delete(o.jobs, no)
		}
	}
	if len(o.jobs) == 0 {
		delete(a.m, link.Daemon.No)
	}
}

// next is the earliest time at which one is to be repeated, by daemon; zero when none is.
func (a *acks) next(retry time.Duration, now time.Time) (at time.Time, due []int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for daemonNo, o := range a.m {
		for _, g := range o.jobs {
			if g.sent.IsZero() {
				continue // the connection was woken when it was added
			}
			t := g.sent.Add(retry)
			if !now.Before(t) {
				due = append(due, daemonNo)
				break
			}
			if at.IsZero() || t.Before(at) {
				at = t
			}
		}
	}
	return at, due
}

// Acks returns the JobEventAcks to send on the link now: go-aheads after a decision of reconciliation, and acks for events
// that were stored later than they came. It is asked whenever archive.DaemonKey is woken, which the engine does when one is
// to be repeated; without any it reads nothing (daemon protocol 4.5).
func (e *Engine) Acks(ctx context.Context, link archive.Link) (list []*pb.JobEventAck, err error) {
	now := e.clock.Now()
	due := e.acks.due(link, now, e.o.CommandRetry)
	if len(due) == 0 {
		return nil, nil
	}
	again := map[int64]bool{}
	err = e.st.View(ctx, func(tx ReadTx) error {
		list = nil
		for no, ahead := range due {
			row, err := tx.JobByNo(no)
			if err != nil {
				return err
			}
			parts, err := tx.JobParticipants(no)
			if err != nil {
				return err
			}
			for _, p := range parts {
				if p.DaemonNo != link.Daemon.No || ahead && p.Decided != link.Generation {
					continue // it became undecided again: another decision will say more
				}
				list = append(list, &pb.JobEventAck{JobId: row.ID.String(), PersistedThrough: uint64(row.Sequence),
					Revision: uint64(row.Revision), GoAhead: ahead})
				if again[no], err = e.repeats(tx, row, p, ahead); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	e.acks.sent(link, due, again, now)
	e.timer.poke()
	return list, nil
}

// repeats tells whether a go-ahead is to be said again: a lease is open and nothing of the job has arrived since.
func (e *Engine) repeats(tx ReadTx, row Job, p Participant, ahead bool) (bool, error) {
	if !ahead || !p.Expecting {
		return false, nil
	}
	cmds, err := tx.DaemonCommandsOfJob(row.No)
	if err != nil {
		return false, err
	}
	for _, c := range cmds {
		if c.Daemon.No == p.DaemonNo && c.State == command.Accepted && c.Lease == pb.LeaseState_LEASE_STATE_OPEN {
			return true, nil
		}
	}
	return false, nil
}
