package decide

import (
	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// hold moves the job to MANUAL by a row of 4.2.
func (d *decision) hold(code pb.ErrorCode) {
	d.manual(code)
	d.holdAll()
	kind := archive.AlertManual
	switch code {
	case codeCommit:
		kind = archive.AlertCommitConflict
	case codeLost:
		kind = archive.AlertStateLost
	}
	d.do(Alert{kind, d.p.Role, code})
}

// manual moves the job to MANUAL: unacknowledged AssignJob, CancelJob, CloseJob and ReconcileJob rows other than HOLD are
// dropped, ExecuteStep rows withdrawn; the reservation stays or is taken back.
func (c *change) manual(code pb.ErrorCode) {
	j := &c.job
	if terminal(j.State) {
		c.do(ReserveAgain{})
	} else if j.State == noState || j.State == pending {
		c.do(Reserve{})
	}
	j.State, j.Kept, j.Wait, j.Outcome, j.Code, j.EndedByPerson = manual, noState, 0, noState, code, false
	for _, role := range j.roles() {
		j.Party(role).Resuming = false
		c.dropRows(role, archive.AssignJob, archive.CancelJob, archive.CloseJob, archive.RequestJobSnapshot)
	}
	c.each(0, func(r *Command) {
		switch {
		case r.Kind == archive.ReconcileJob && r.unacked() && r.Disposition != hold:
			c.supersede(r)
		case r.Kind == archive.RequestJobSnapshot && r.Status == Accepted: // it would not be applied
			c.closeLease(r)
		}
	})
	c.withdrawSteps()
}

// holdAll sends HOLD to every participant that has the job and is not itself MANUAL.
func (c *change) holdAll() {
	for _, role := range c.job.roles() {
		if p := c.job.Party(role); c.job.has(p) && p.State != manual && !terminalEnd(p) && c.job.pendingReconcile(role) == nil {
			c.holdOne(p)
		}
	}
}

// terminalEnd reports whether the daemon says that the job has ended there.
func terminalEnd(p *Participant) bool { return p.Reported != nil && p.Reported.Ended() }

func (c *change) holdOne(p *Participant) {
	a := Reconcile{Role: p.Role, Disposition: hold, Authoritative: c.authoritativeOf(p, manual), Expected: c.job.Position,
		Definition: c.job.Definition, Code: c.job.Code}
	if a.Code == codeNone {
		a.Code = codeManual
	}
	if k := p.Reported; k != nil {
		// Under HOLD the daemon's cursor stays its own, and its own definition is what it compares.
		a.Authoritative.Position = k.Position
		a.Expected, a.Definition = a.Expected.Max(k.Position), k.Definition
	}
	c.reconcile(a)
}

// holdAll of a decision does not repeat a HOLD that the daemon just refused: its next registration brings it again.
func (d *decision) holdAll() {
	r := d.in.Refused
	if r == nil || r.Kind != archive.ReconcileJob || r.Disposition != hold {
		d.change.holdAll()
		return
	}
	for _, role := range d.job.roles() {
		if p := d.job.Party(role); role != d.p.Role && d.job.has(p) && p.State != manual && !terminalEnd(p) && d.job.pendingReconcile(role) == nil {
			d.holdOne(p)
		}
	}
}

// wait moves the job to WAITING and keeps the state it comes from; STALLED counts as RUNNING.
func (c *change) wait(reason pb.WaitReason, code pb.ErrorCode) {
	j := &c.job
	kept := j.effective()
	if kept == stalled {
		kept = running
	}
	j.State, j.Kept, j.Wait = waiting, kept, reason
	if code != codeNone && kept != cancelling { // CANCELLING keeps the error that it ends with
		j.Code = code
	}
}

// unwait returns a WAITING job to the state it kept.
func (c *change) unwait() {
	if j := &c.job; j.State == waiting {
		j.State, j.Kept, j.Wait = j.Kept, noState, 0
	}
}
