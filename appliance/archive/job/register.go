package job

import (
	"math"
	"strconv"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/decide"
	"signalbox/appliance/archive/registry"
)

// OnRegister is the registry's hook: every job that the daemon lists, and every one that control believes active there, is
// decided in the transaction of the registration, before anything else is sent (daemon protocol 4.1, 4.2). It returns
// control's cursor of each, in the order of the jobs' numbers.
func (e *Engine) OnRegister(rtx registry.Tx, link archive.Link, cursors []*pb.JobCursor, found registry.Rollback) (
	[]*pb.JobCursor, error) {
	tx := rtx.(Tx)
	if found.Control {
		// This database is an old copy: until every participant has registered since this process started, nobody knows
		// what was already commanded (4.6).
		if err := tx.JobSetHold(e.started); err != nil {
			return nil, err
		}
	}
	tx.Hint(func() { e.parts.drop(link.Daemon.No, link.Generation) })
	believed, err := tx.JobsAt(link.Daemon.No)
	if err != nil {
		return nil, err
	}
	listed := map[int64]*decide.Cursor{}
	var unknown []*decide.Cursor
	order := believed
	for _, m := range cursors {
		k, err := cursorOf(m)
		if err != nil {
			return nil, err
		}
		row, ok, err := tx.JobByID(k.Job)
		if err != nil {
			return nil, err
		}
		if !ok {
			unknown = append(unknown, k)
			continue
		}
		if _, twice := listed[row.No]; !twice {
			listed[row.No] = k
			order = appendNew(order, row.No)
		}
	}
	if err := e.forgetDecisions(tx, order, link); err != nil {
		return nil, err
	}
	var views []*pb.JobCursor
	limit := int(link.Limits.GetMaxActiveCursors())
	add := func(b *book) error {
		if err := b.current(); err != nil {
			return err
		}
		p := b.at(link.Daemon.No)
		if p == nil || limit > 0 && len(views) >= limit || b.row.Digest == "" && len(p.Reported) == 0 {
			return nil // the schema wants a definition's digest: a job that is not defined yet has no cursor
		}
		c := decide.View(&b.view, p.Role)
		views = append(views, c.Message())
		return nil
	}
	for _, no := range order {
		row, err := tx.JobByNo(no)
		if err != nil {
			return nil, err
		}
		b, err := e.register(tx, row, link, listed[no], found)
		if err != nil {
			return nil, err
		}
		if err := add(b); err != nil {
			return nil, err
		}
	}
	for _, k := range unknown {
		b, err := e.unknown(tx, link, k, found)
		if err != nil {
			return nil, err
		}
		if err := add(b); err != nil {
			return nil, err
		}
	}
	return views, nil
}

func appendNew(list []int64, no int64) []int64 {
	for _, n := range list {
		if n == no {
			return list
		}
	}
	return append(list, no)
}

// forgetDecisions makes every job of the daemon undecided before the first is decided: a decision about one must not open
// the way for commands of another.
func (e *Engine) forgetDecisions(tx Tx, jobs []int64, link archive.Link) error {
	for _, no := range jobs {
		parts, err := tx.JobParticipants(no)
		if err != nil {
			return err
		}
		for i := range parts {
			if p := &parts[i]; p.DaemonNo == link.Daemon.No {
				p.Decided, p.Expecting = 0, false
				if err := tx.JobUpdateParticipant(p); err != nil {
					return err
				}
			}
		}
		// What was set aside came on a connection that is gone: the daemon sends it again.
		if err := tx.JobDropAsides(no, link.Daemon.No); err != nil {
			return err
		}
	}
	return nil
}

// register decides one known job at a daemon that has just registered.
func (e *Engine) register(tx Tx, row Job, link archive.Link, k *decide.Cursor, found registry.Rollback) (*book, error) {
	b, err := e.load(tx, row)
	if err != nil {
		return nil, err
	}
	p := b.at(link.Daemon.No)
	switch {
	case p != nil:
	case k != nil && b.part(k.Role) == nil && (b.daemonOf(k.Role) == link.Daemon.No ||
		b.row.Placeholder && b.row.Digest == "" && b.daemonOf(k.Role) == 0):
		// Control had not assigned the job yet, or knows it only from its other daemon: it has an old copy.
		if p, err = b.join(link.Daemon.No, k.Role); err != nil {
			return nil, err
		}
	default:
		return b, e.foreign(b, link)
	}
	p.Epoch = link.Epoch
	role := p.Role
	for _, q := range b.parts {
		b.wakes[q.DaemonNo] = true // what waited for this registration may go now, also to the others (4.6)
	}
	in := decide.Input{Job: &b.view, Role: role, K: k, Registration: true, NewEpoch: found.NewEpoch, RolledBack: found.Daemon}
	if row.State == statePending || row.State == statePreflight || row.State == stateWaiting && row.Kept == statePreflight {
		if k == nil {
			return b, e.registeredEarly(b, p, link)
		}
	}
	if err := b.reconciled(in, "the daemon registered"); err != nil {
		return nil, err
	}
	b.done()
	return b, nil
}

// foreign notes that a daemon lists a job of other daemons. Nothing is decided or sent: no cursor of it says anything about
// the job.
func (e *Engine) foreign(b *book, link archive.Link) error {
	return e.daemons.RaiseAlert(b.tx, archive.AlertStateLost, link.Daemon.No, b.row.No,
		"the daemon lists a job in which it has no part")
}

// registeredEarly is register for a job that the daemon cannot have: nothing was assigned yet. A preflight that waits for
// the daemon runs again.
func (e *Engine) registeredEarly(b *book, p *Participant, link archive.Link) error {
	p.Decided = link.Generation
	if err := b.tx.JobUpdateParticipant(p); err != nil {
		return err
	}
	if err := b.refresh(); err != nil {
		return err
	}
	if b.row.State == stateWaiting && b.row.Wait == waitOffline {
		if err := b.advance(decide.Cleared{}, cause{what: "the daemon registered"}); err != nil {
			return err
		}
	}
	b.done()
	return nil
}

// join makes a daemon a participant of a job.
func (b *book) join(daemonNo int64, role pb.ParticipantRole) (*Participant, error) {
	if err := b.know(daemonNo); err != nil {
		return nil, err
	}
	p := Participant{JobNo: b.row.No, DaemonNo: daemonNo, Role: role}
	if err := b.tx.JobInsertParticipant(&p); err != nil {
		return nil, err
	}
	b.parts = append(b.parts, p)
	if role == roleSource && b.row.SourceNo == 0 {
		b.row.SourceNo = daemonNo
	}
	if role == roleTarget && b.row.TargetNo == 0 {
		b.row.TargetNo = daemonNo
	}
	return b.at(daemonNo), b.refresh()
}

// unknown decides a job that only the daemon knows: a placeholder stands for it (4.2 rows 2, 3).
func (e *Engine) unknown(tx Tx, link archive.Link, k *decide.Cursor, found registry.Rollback) (*book, error) {
	b := &book{e: e, tx: tx, rtx: tx, peers: map[int64]Peer{}, wakes: map[int64]bool{}}
	var err error
	if b.hold, err = tx.JobHold(); err != nil {
		return nil, err
	}
	if err := b.know(link.Daemon.No); err != nil {
		return nil, err
	}
	b.row = Job{ID: k.Job, Title: "unknown job of daemon " + strconv.Quote(b.peers[link.Daemon.No].Name), Request: `{}`,
		Allowance: archive.StepAttempts, CreatedAt: tx.Now()}
	b.parts = []Participant{{DaemonNo: link.Daemon.No, Role: k.Role, Epoch: link.Epoch}}
	if k.Role == roleSource {
		b.row.SourceNo = link.Daemon.No
	} else {
		b.row.TargetNo = link.Daemon.No
	}
	in := decide.Input{Role: k.Role, K: k, Registration: true, NewEpoch: found.NewEpoch, RolledBack: found.Daemon}
	if err := b.reconciled(in, "the daemon has a job that control does not know"); err != nil {
		return nil, err
	}
	b.done()
	return b, nil
}

// makePlaceholder inserts the row and the participant of a job that only a daemon knows.
func (b *book) makePlaceholder() error {
	b.row.Placeholder = true
	if err := b.tx.JobInsert(&b.row); err != nil {
		return err
	}
	for i := range b.parts {
		b.parts[i].JobNo = b.row.No
		if err := b.tx.JobInsertParticipant(&b.parts[i]); err != nil {
			return err
		}
	}
	return b.entry(EntryCreated, b.parts[0].DaemonNo, 0, map[string]any{"placeholder": true})
}

// OnOffline is the registry's hook: jobs in which the daemon must act next wait for it; none fails.
func (e *Engine) OnOffline(rtx registry.Tx, daemonNo int64) error {
	tx := rtx.(Tx)
	tx.Hint(func() { e.parts.drop(daemonNo, math.MaxInt64) })
	jobs, err := tx.JobsAt(daemonNo)
	if err != nil {
		return err
	}
	for _, no := range jobs {
		row, err := tx.JobByNo(no)
		if err != nil {
			return err
		}
		if isTerminal(row.State) || row.State == statePending {
			continue
		}
		b, err := e.load(tx, row)
		if err != nil {
			return err
		}
		p := b.at(daemonNo)
		c := cause{what: "daemon " + b.peers[daemonNo].Name + " is offline"}
		if err := b.advance(decide.Offline{Role: p.Role}, c); err != nil {
			return err
		}
		b.done()
	}
	return nil
}
