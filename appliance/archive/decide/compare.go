package decide

import (
	"slices"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
)

// compare is rows 13a to 19: the job is active on both sides and neither holds a claim against the other.
func (d *decision) compare() Row {
	j, p, k := &d.job, d.p, d.k
	ahead, behind := k.Ahead(p.Position), p.Position.Ahead(k.Position)
	flag := k.Committed && !p.Committed // row 8

	var missing []uuid.UUID
	d.each(p.Role, func(r *Command) {
		if r.open() && !k.Lists(r.ID) {
			missing = append(missing, r.ID)
		}
	})
	if (d.in.RolledBack || len(missing) > 0) && !ahead && !flag { // row 13a
		if j.irreversibleOut(p.Role) {
			d.hold(codeLost)
			return Row13a
		}
		if len(missing) > 0 {
			d.do(Alert{archive.AlertStateLost, p.Role, codeLost})
			d.resume(union(missing, union(k.Open, k.Settled)), codeLost)
			return Row13a
		}
	}
	switch {
	case !ahead && !behind && !flag && k.Committed == p.Committed:
		return d.equal()
	case ahead && behind:
		d.hold(codeLost)
		return Row15
	case ahead || flag: // row 16, with row 8
		if r := d.in.Refused; r != nil && r.Kind == archive.ReconcileJob && r.Code != codeCommit && r.Expected == j.Position.Max(k.Position) {
			d.hold(r.Code) // it refused what follows a snapshot that is not valid
			return Row16
		}
		if r := d.in.Refused; r != nil && r.Kind == archive.RequestJobSnapshot {
			// Only a job that has ended there refuses it (2.6). Ended as CANCELLED it is wound down as well as can be.
			if k.State == cancelled && j.effective() == cancelling {
				d.windDown(true)
				p.Decided = true
				d.closed(p)
			} else {
				d.hold(r.Code)
			}
			return Row16
		}
		if j.openSnapshot(p.Role) == nil {
			d.do(RequestSnapshot{p.Role})
			d.add(Command{Role: p.Role, Kind: archive.RequestJobSnapshot})
		}
		return Row16
	case behind && k.OutboxFirst == 0:
		d.resume(d.retireSet(p.Role, k), codeSequence)
		return Row17
	case behind: // row 18
		if k.Committed || slices.ContainsFunc(k.Settled, func(id uuid.UUID) bool {
			r := j.Command(id)
			return r == nil || r.Kind != archive.CancelJob // its terminal event may carry evidence
		}) {
			d.hold(codeEvent)
			return Row18
		}
		d.resume(d.retireSet(p.Role, k), codeEvent)
		return Row18
	}
	d.do(Alert{archive.AlertUndecided, p.Role, codeUnsafe})
	d.hold(codeUnsafe)
	return Row19
}

// equal is row 14: 4.3, then normal delivery.
func (d *decision) equal() Row {
	j, p, k := &d.job, d.p, d.k
	if k.State == cancelled && j.effective() == cancelling && !p.WoundDown {
		d.windDown(true) // its STEP_CANCELLED will not come: the cursors are equal
	}
	if stray := d.stray(); len(stray) > 0 {
		if k.OutboxFirst != 0 {
			stray = union(stray, union(k.Open, k.Settled)) // or the daemon refuses for their events (2.6, BUSY)
		}
		d.resume(stray, codeLease)
		return Row14
	}
	if p.Resuming {
		d.resumeHeld()
		return Row14
	}
	p.Decided = true
	d.inFlight()
	p.Expecting = true
	d.do(Ack{Role: p.Role, Through: j.Sequence, GoAhead: true})
	return Row14
}

// stray returns the ids in K's lists that 4.3 wants retired: retired or superseded here, or unknown.
func (d *decision) stray() []uuid.UUID {
	var out []uuid.UUID
	undoing := d.k.State == cancelling || d.k.State == cancelled
	for _, id := range union(d.k.Open, d.k.Settled) {
		open := slices.Contains(d.k.Open, id)
		r := d.job.Command(id)
		switch {
		case r == nil || r.Role != d.p.Role || !r.isLease(): // 4.3: unknown to control
			out = append(out, id)
		case r.open(): // 4.3: acknowledged, open: keep, or wait for the event
		case r.Lease == leaseSettled && (!open || undoing): // 4.3: closed | settled; a CancelJob closed it
		default: // 4.3: retired or superseded; rejected, or closed here and open there
			out = append(out, id)
		}
	}
	return out
}

// inFlight is the rest of 4.3: what was sent and did not arrive is sent again while attempts remain. What was never sent
// goes out by itself; withdrawn rows stay as they are; rows without attempts make the job wait.
func (d *decision) inFlight() {
	d.each(d.p.Role, func(r *Command) {
		if r.Status == Sent && (r.isLease() || r.Kind == archive.AssignJob) {
			d.do(Resend{r.ID})
		}
	})
}

// resumeHeld lets a daemon go on after a person resumed the job: the cursors are equal, the daemon is held.
func (d *decision) resumeHeld() {
	k := d.k
	if k.OutboxFirst != 0 {
		d.do(Ack{Role: d.p.Role, Through: d.job.Sequence})
	}
	var retire []uuid.UUID
	d.each(d.p.Role, func(r *Command) {
		if r.unclosed() && !k.Lists(r.ID) {
			retire = append(retire, r.ID)
		}
	})
	d.resume(retire, codeManual)
}
