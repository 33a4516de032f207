package decide

import (
	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// Rows of the tables of section 4. RowResend, RowForeign and RowSnapshot stand for rules that the reference gives in its
// text.
const (
	RowResend   Row = "4.1"         // an unacknowledged ReconcileJob is sent again; its answer decides
	RowForeign  Row = "4.1/foreign" // the daemon is no participant of the job it lists
	Row1        Row = "4.2/1"
	Row1a       Row = "4.2/1a"
	Row2        Row = "4.2/2"
	Row3        Row = "4.2/3"
	Row4        Row = "4.2/4"
	Row5        Row = "4.2/5"
	Row6        Row = "4.2/6"
	Row7        Row = "4.2/7"
	Row7a       Row = "4.2/7a"
	Row7b       Row = "4.2/7b"
	Row9        Row = "4.2/9"
	Row10       Row = "4.2/10"
	Row11       Row = "4.2/11"
	Row12       Row = "4.2/12"
	Row13       Row = "4.2/13"
	Row13a      Row = "4.2/13a"
	Row14       Row = "4.2/14"
	Row15       Row = "4.2/15"
	Row16       Row = "4.2/16" // row 8 is a condition of this one
	Row17       Row = "4.2/17"
	Row18       Row = "4.2/18"
	Row19       Row = "4.2/19"
	RowSnapshot Row = "4.4"
)

// Decide decides about one job at one participant: 4.1, then the rows of 4.3 that record acknowledgements, then the rows
// of 4.2 from the top. It is called for every job in the union of those that the daemon lists and those that control
// believes active there, and again with the cursor of an acknowledgement or snapshot that made it necessary.
func Decide(in Input) Outcome {
	if in.Job == nil {
		return unknownJob(in)
	}
	c := begin(in.Job)
	if c.party(in.Role) == nil {
		c.do(Alert{archive.AlertStateLost, in.Role, codeUnsafe})
		return Outcome{RowForeign, c.job, c.actions}
	}
	d := &decision{change: c, in: in, p: c.party(in.Role), k: in.K}
	row := d.decide()
	d.backOff(row)
	c.settle()
	return Outcome{row, c.job, c.actions}
}

// unknownJob is rows 2 and 3 for a job that control has no row of (control restored from an old copy).
func unknownJob(in Input) Outcome {
	if in.K == nil {
		return Outcome{Row: RowForeign}
	}
	j := Job{ID: in.K.Job, Placeholder: true, Allowance: archive.StepAttempts}
	if in.Role == source || in.Role == target {
		j.Parties[in.Role-1].Role = in.Role
	} else {
		return Outcome{Row: RowForeign, Job: j}
	}
	c := begin(&j)
	c.do(MakePlaceholder{})
	d := &decision{change: c, in: in, p: c.party(in.Role), k: in.K}
	d.report()
	row := d.placeholder()
	return Outcome{row, c.job, c.actions}
}

// decision is one run through the tables.
type decision struct {
	*change
	in Input
	p  *Participant
	k  *Cursor
}

// report stores K.
func (d *decision) report() {
	p, k := d.p, d.k
	p.Reported, p.Absent, p.Online, p.Decided, p.Expecting = k, k == nil, true, false, false
	if k != nil && !k.Ended() {
		p.Closed = false // 4.6: its closing no longer counts
	}
	p.Registered = p.Registered || d.in.Registration
	if k != nil {
		p.State = k.State
	} else {
		p.State = noState
	}
}

func (d *decision) decide() Row {
	d.report()
	j, p, k := &d.job, d.p, d.k
	d.endSnapshots()

	// 4.1: an unacknowledged ReconcileJob is first sent again, not to a new or rolled-back database; without attempts left
	// the new decision takes its place.
	if r := j.pendingReconcile(p.Role); r != nil {
		if !d.in.NewEpoch && !d.in.RolledBack && r.Status != Parked {
			if r.EverSent {
				d.do(Resend{r.ID})
			}
			return RowResend
		}
		d.supersede(r)
	}
	d.record()

	if row := d.conflicts(); row != "" { // rows 1 to 7b
		return row
	}
	if k == nil {
		return d.unlisted() // rows 9 to 11, and 13 for a job that is over on both sides
	}
	switch {
	case k.State == manual && !j.EndedByPerson && !p.Resuming: // row 12
		d.hold(codeManual)
		return Row12
	case terminal(j.State): // row 13
		d.over()
		return Row13
	}
	return d.compare() // rows 13a to 19
}

// endSnapshots closes the snapshot requests whose answer is judged or can never come.
func (d *decision) endSnapshots() {
	d.each(d.p.Role, func(r *Command) {
		if r.Kind != archive.RequestJobSnapshot {
			return
		}
		switch {
		case r.Status == Accepted && (d.in.Registration || r.ID == d.in.Snapshot):
			d.closeLease(r)
		case r.unacked() && (d.in.Registration || r.ID == d.in.Snapshot && r.ID != uuid.Nil):
			d.supersede(r)
		}
	})
}

// record applies the rows of 4.3 that record acknowledgements; P takes the expected cursor of each such command.
func (d *decision) record() {
	j, p, k := &d.job, d.p, d.k
	if k == nil || j.Definition == "" || k.Definition != j.Definition {
		return
	}
	d.each(p.Role, func(r *Command) {
		switch {
		case r.Kind == archive.AssignJob && !p.Assigned && (r.unacked() || r.Status == Superseded):
			// 4.3: AssignJob not acknowledged | job listed, same digest
			d.acknowledge(r)
		case r.Kind == archive.AssignJob && r.unacked():
			d.supersede(r)
		case r.isLease() && (r.unacked() || r.Status == Withdrawn) && !r.closed() && k.Lists(r.ID):
			// 4.3: sent, not acknowledged | open or settled; withdrawn step, control CANCELLING | open
			d.acknowledge(r)
			p.Position = p.Position.Max(r.Expected)
			if r.Kind == archive.CancelJob {
				j.Undone = true
				d.closeSteps(p.Role)
			}
		}
	})
	if !p.Assigned {
		p.Assigned = true
		p.Position = p.Position.Max(Position{Revision: 1})
	}
}

// known reports whether a person ended the job and K claims no commit that control had not seen then: what a person
// decided is not decided again.
func (d *decision) known() bool {
	return d.job.EndedByPerson && terminal(d.job.State) && (d.p.Committed || !d.k.Committed)
}

// conflicts is rows 1 to 7b. It returns "" when none matches.
func (d *decision) conflicts() Row {
	j, p, k := &d.job, d.p, d.k
	if k != nil {
		known, active := d.known(), !terminal(j.State)
		undefined := j.Definition == ""
		other := d.other()
		switch {
		case !undefined && (k.Definition != j.Definition || k.Role != p.Role) && !j.EndedByPerson && (active || !k.Ended()):
			d.hold(codeUnsafe)
			return Row1
		case !undefined && k.Ended() && active:
			p.Closed = true
			d.hold(codeLost)
			return Row1a
		case undefined && !known && !(j.Placeholder && j.State == manual):
			return d.placeholder() // rows 2 and 3
		case known: // a person has decided about this claim
		case k.Committed && (j.State == cancelled || j.State == failed || !j.commitSent(p.Role)):
			d.claim()
			d.hold(codeCommit)
			return Row4
		case !k.Committed && (p.Committed || p.CommitEvidence != ""):
			d.hold(codeCommit)
			return Row5
		case k.Committed && p.Committed && k.CommitEvidence != "" && p.CommitEvidence != "" && k.CommitEvidence != p.CommitEvidence:
			d.hold(codeCommit)
			return Row6
		case k.Committed && other != nil && other.Committed:
			d.claim()
			d.hold(codeCommit)
			return Row7
		}
	}
	switch {
	case j.State == manual: // row 7a
		d.holdAll()
		return Row7a
	case k != nil && (k.State == cancelling || k.State == cancelled) && j.effective() != cancelling && !terminal(j.State):
		j.Undone = true
		d.hold(codeLost)
		return Row7b
	}
	return ""
}

// other returns the other participant, nil when there is none.
func (d *decision) other() *Participant {
	if d.p.Role == source {
		return d.party(target)
	}
	return d.party(source)
}

// claim keeps the commit claim of K although it cannot be true of this job as control knows it: from now on a daemon that
// forgets it is a conflict too.
func (d *decision) claim() {
	d.p.Committed, d.job.Committed = true, true
	if d.p.CommitEvidence == "" {
		d.p.CommitEvidence = d.k.CommitEvidence
	}
}

// placeholder is rows 2 and 3: the daemon has a job that control has no definition of.
func (d *decision) placeholder() Row {
	j, p, k := &d.job, d.p, d.k
	p.Assigned = true
	if k.Committed { // row 2
		j.Placeholder = true
		d.claim()
		d.do(Alert{archive.AlertPlaceholder, p.Role, codeLost})
		d.hold(codeLost)
		return Row2
	}
	// Row 3. What has ended already keeps its end.
	if !terminal(j.State) {
		j.Placeholder, j.State, j.Kept, j.Wait, j.Code = true, failed, noState, 0, codeLost
		d.do(Release{})
	}
	d.do(Alert{archive.AlertPlaceholder, p.Role, codeLost})
	p.Closed = k.Ended()
	if !p.Closed {
		d.abandon(codeLost)
	}
	p.Decided = true
	return Row3
}

// unlisted is rows 9 to 11: the daemon does not list a job that control believes active there.
func (d *decision) unlisted() Row {
	j, p := &d.job, d.p
	switch {
	case terminal(j.State): // over on both sides, or never there
		p.Decided = true
		d.closed(d.p)
		return Row13
	case p.WoundDown, !j.everAcked(p): // row 9; a participant that is wound down has nothing left to lose
		if j.effective() == cancelling && d.in.Refused != nil && d.in.Refused.Kind == archive.CancelJob {
			d.windDown(false) // 3.4: NOT_FOUND without ever having acknowledged the assignment
		}
		p.Decided = true
		d.inFlight()
		return Row9
	}
	row := Row10
	if d.in.NewEpoch {
		row = Row11
	}
	if p.Committed || j.irreversibleOut(p.Role) {
		d.hold(codeLost)
		return row
	}
	d.do(Alert{archive.AlertStateLost, p.Role, codeLost})
	a := Reconcile{Role: p.Role, Disposition: restore, Authoritative: d.authoritative(assigned), Retire: d.retireSet(p.Role, nil),
		Definition: j.Definition, Code: codeLost}
	if d.refusedAgain(a.Disposition, a.Expected, a.Retire) {
		d.hold(codeLost)
		return row
	}
	d.reconcile(a)
	return row
}

// over is row 13: the job has ended at control and not at the daemon.
func (d *decision) over() {
	j, p, k := &d.job, d.p, d.k
	p.Decided = true
	if k.Ended() {
		d.closed(d.p)
		return
	}
	p.Closed = false // 4.6: its closing no longer counts
	if k.OutboxFirst != 0 {
		d.do(Ack{Role: p.Role, Through: j.Sequence})
	}
	expected := j.Position.Max(k.Position)
	if k.Sequence > j.Sequence {
		// Events that control never takes: the outbox does not empty, and only the daemon's own cursor is not stale.
		expected = k.Position
	}
	refused := d.in.Refused
	again := refused != nil && refused.Kind == archive.CloseJob && refused.Expected == expected
	if j.EndedByPerson || len(k.Open) > 0 || again {
		if d.refusedAgain(abandon, j.Position.Max(k.Position), nil) {
			d.hold(refused.Code)
			return
		}
		d.dropRows(p.Role, archive.CloseJob)
		d.abandon(codeNone)
		return
	}
	var same *Command
	d.each(p.Role, func(r *Command) {
		if r.Kind == archive.CloseJob && r.unacked() {
			if r.Expected == expected && r.Final == j.State && r.Status != Parked {
				same = r
			} else {
				d.supersede(r)
			}
		}
	})
	switch {
	case same == nil:
		d.closeJob(p.Role, expected)
	case same.EverSent:
		d.do(Resend{same.ID})
	}
}

// closed notes that the job is over at the daemon, whatever ended it there.
func (c *change) closed(p *Participant) {
	p.Closed, p.Resuming = true, false
	c.dropRows(p.Role, archive.AssignJob, archive.CancelJob, archive.CloseJob, archive.ReconcileJob, archive.RequestJobSnapshot)
	if c.job.EndedByPerson {
		c.releaseWhenClosed()
	}
}

// resume makes a ReconcileJob RESUME to control's job cursor. A daemon that cancels or has cancelled would refuse it
// (2.6): CANCELLED counts as wound down (3.4), CANCELLING is held unless its undoing is known already.
func (d *decision) resume(retire []uuid.UUID, code pb.ErrorCode) {
	k, p := d.k, d.p
	switch k.State {
	case cancelled:
		d.windDown(true)
		p.Decided = true
		return
	case cancelling:
		if !p.WoundDown {
			d.hold(codeLost)
			return
		}
		p.Decided = true
		return
	}
	a := Reconcile{Role: p.Role, Disposition: resume, Authoritative: d.authoritative(assigned), Retire: retire,
		Expected: d.job.Position.Max(k.Position), Definition: d.job.Definition, Code: code}
	if d.refusedAgain(resume, a.Expected, retire) {
		d.hold(d.in.Refused.Code) // no answer to it would be another
		return
	}
	d.reconcile(a)
}

// abandon makes a ReconcileJob ABANDON. Its state is COMPLETED or FAILED (3.5): CANCELLED is told as FAILED.
func (d *decision) abandon(code pb.ErrorCode) {
	d.change.abandon(d.p, code)
}

func (c *change) abandon(p *Participant, code pb.ErrorCode) {
	final := failed
	if c.job.State == completed {
		final = completed
	}
	a := Reconcile{Role: p.Role, Disposition: abandon, Authoritative: c.authoritativeOf(p, final), Retire: nil,
		Expected: c.job.Position, Definition: c.job.Definition, Code: code}
	if k := p.Reported; k != nil {
		a.Expected, a.Definition = a.Expected.Max(k.Position), k.Definition
	}
	c.reconcile(a)
}

// refusedAgain reports whether the decision is the very one that the daemon just refused.
func (d *decision) refusedAgain(disposition pb.ReconcileDisposition, expected Position, retire []uuid.UUID) bool {
	r := d.in.Refused
	return r != nil && r.Kind == archive.ReconcileJob && r.Disposition == disposition && r.Expected == expected && sameSet(r.Retires, retire)
}

func (d *decision) authoritative(state pb.JobState) Cursor { return d.authoritativeOf(d.p, state) }

// authoritativeOf returns control's job cursor for a ReconcileJob. The commit flag never goes down by it.
func (c *change) authoritativeOf(p *Participant, state pb.JobState) Cursor {
	a := Cursor{Position: c.job.Position, Job: c.job.ID, State: state, Committed: p.Committed, Role: p.Role,
		Definition: c.job.Definition, CommitEvidence: p.CommitEvidence}
	if k := p.Reported; k != nil {
		a.Committed = a.Committed || k.Committed
		if a.CommitEvidence == "" {
			a.CommitEvidence = k.CommitEvidence
		}
		if a.Definition == "" {
			a.Definition = k.Definition
		}
	}
	a.Revision = max(a.Revision, 1)
	return a
}

// windDown notes that the participant is wound down; undone tells that it took its part back.
func (d *decision) windDown(undone bool) {
	d.p.WoundDown = true
	d.job.Undone = d.job.Undone || undone
	d.each(d.p.Role, func(r *Command) {
		switch {
		case r.isLease() && !r.closed() && (r.EverSent || r.Status == Accepted):
			d.closeLease(r)
		case r.isLease() && r.unacked():
			d.supersede(r)
		}
	})
}

// backOff waits after a rejection that a new decision found no reason for (3.4): the same command at once would be
// refused again. One that an event crossed is followed at once by another that expects the cursor behind the event.
func (d *decision) backOff(row Row) {
	j, r := &d.job, d.in.Refused
	if r == nil || row != Row14 && row != Row9 || !d.p.Decided || d.p.WoundDown {
		return
	}
	if s := j.effective(); s != running && s != stalled && s != cancelling && s != assigning {
		return
	}
	if stale(r.Code) && r.Expected != j.Position {
		return
	}
	switch r.Kind {
	case archive.ExecuteStep, archive.CancelJob, archive.AssignJob:
		d.wait(waitBackoff, r.Code)
	}
}
