package decide

import (
	"slices"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	"signalbox/appliance/fault"

	pb "signalbox/appliance/archive/archivepb"
)

func nonNil(id uuid.UUID) []uuid.UUID {
	if id == uuid.Nil {
		return nil
	}
	return []uuid.UUID{id}
}

// acked applies a stored acknowledgement. A late one counts whatever became of the row: it is what the daemon did.
func (c *change) acked(e Acked) error {
	r := c.job.Command(e.ID)
	if r == nil {
		return fault.Field("command", "is unknown")
	}
	p := c.party(r.Role)
	if p == nil {
		return fault.Field("command", "belongs to no participant of the job")
	}
	if r.Status == Accepted || r.Status == Rejected || r.Status == Conflicted || r.Status == Closed {
		return nil // said before, or found in the daemon's cursor
	}
	if e.Cursor != nil {
		p.Reported, p.State, p.Absent = e.Cursor, e.Cursor.State, false
	}
	switch e.Status {
	case pb.AckStatus_ACK_STATUS_ACCEPTED:
		over, replaced := r.closed(), r.Status == Superseded || r.Status == Withdrawn
		r.Status = Accepted
		if r.Kind == archive.RequestJobSnapshot && replaced { // its snapshot came before, or nobody waits for it any more
			c.closeLease(r)
			return nil
		}
		if !over { // a lease that is settled or retired by now has nothing more to say
			c.accepted(r, p, e.Cursor)
		}
	case pb.AckStatus_ACK_STATUS_REJECTED:
		r.Status, r.Code = Rejected, e.Code
		if e.Code == codeNotFound {
			p.Reported, p.Absent, p.State = nil, true, noState
		}
		c.rejected(r, p)
	case pb.AckStatus_ACK_STATUS_CONFLICT: // any | CONFLICT | MANUAL | alert
		r.Status = Conflicted
		c.conflict(r.Role, codeCommand)
	default:
		return fault.Field("status", "must be ACCEPTED, REJECTED or CONFLICT")
	}
	return nil
}

func (c *change) accepted(r *Command, p *Participant, k *Cursor) {
	j := &c.job
	if r.isLease() {
		r.Lease = leaseOpen
		if s := j.effective(); k != nil && !k.Lists(r.ID) && s != manual && !terminal(s) {
			// It was accepted once and is neither open nor settled there: row 13a (control may be the old copy).
			p.Position, p.Decided = p.Position.Max(r.Expected), false
			c.do(DecideAgain{Role: r.Role})
			return
		}
	}
	switch r.Kind {
	case archive.AssignJob: // ASSIGNING | all AssignJob acknowledged ACCEPTED | RUNNING: settle looks at all
		p.Assigned, p.Absent = true, false
		if k == nil {
			p.State = assigned
		}
		p.Position = p.Position.Max(Position{Revision: 1})
	case archive.ExecuteStep:
		p.Position = p.Position.Max(r.Expected)
		if k == nil {
			p.State = running
		}
		c.do(TakeAside{r.ID})
	case archive.CancelJob:
		p.Position = p.Position.Max(r.Expected)
		j.Undone = true
		if k == nil {
			p.State = cancelling
		}
		c.closeSteps(r.Role)
		c.do(TakeAside{r.ID})
		if s := j.effective(); s != cancelling && s != manual && !terminal(s) {
			p.Decided = false // it undoes what the job goes on with: row 7b
			c.do(DecideAgain{Role: r.Role})
		}
	case archive.CloseJob:
		c.ended(r, p)
	case archive.ReconcileJob:
		c.reconciled(r, p)
	}
}

// reconciled applies an acknowledged ReconcileJob: exactly the named leases are retired.
func (c *change) reconciled(r *Command, p *Participant) {
	j := &c.job
	switch r.Disposition {
	case resume, restore:
		named := r.Retires
		c.each(p.Role, func(l *Command) {
			if l.isLease() && !l.closed() && l.ID != uuid.Nil && slices.Contains(named, l.ID) {
				c.retire(l)
			}
		})
		p.Position = r.Position
		p.Assigned, p.Absent, p.Resuming, p.Decided = true, false, false, false
		c.do(DropAside{p.Role})
		c.do(DecideAgain{Role: p.Role}) // 4.5: the go-ahead follows
	case hold:
		p.State = manual
		if j.State != manual && !terminal(j.State) {
			p.Decided = false
			c.do(DecideAgain{Role: p.Role})
		}
	case abandon:
		c.each(p.Role, func(l *Command) {
			if l.isLease() && !l.closed() && (l.EverSent || l.Status == Accepted) {
				c.retire(l)
			}
		})
		c.do(DropAside{p.Role})
		c.ended(r, p)
	}
}

// ended notes that the daemon ended the job by a CloseJob or an ABANDON.
func (c *change) ended(r *Command, p *Participant) {
	j := &c.job
	c.closed(p)
	if p.Reported != nil && (!terminal(j.State) || r.Kind == archive.ReconcileJob && p.Reported.Committed && !p.Committed) {
		p.Decided = false // row 1a; or row 4, a commit that the person who ended the job did not know of
		c.do(DecideAgain{Role: p.Role})
	}
}

// rejected applies a rejection.
func (c *change) rejected(r *Command, p *Participant) {
	j := &c.job
	refused := &Refused{Kind: r.Kind, Disposition: r.Disposition, Expected: r.Expected, Retires: r.Retires, Code: r.Code}
	switch s := j.effective(); {
	case terminal(s):
		if r.Code == codeNotFound { // nothing is left to end there
			c.closed(p)
			return
		}
		p.Decided = false
		c.do(DecideAgain{r.Role, refused})
	case s == manual:
		p.Decided = false
		c.do(DecideAgain{r.Role, refused})
	case r.Kind == archive.AssignJob && s == assigning && !stale(r.Code) && !j.Committed:
		// ASSIGNING | a REJECTED acknowledgement other than STALE_* | CANCELLING (FAILED) | wind-down
		c.startWindDown(failed, r.Code)
	case decidable(r.Code) && !(r.Kind == archive.AssignJob && s == assigning && !stale(r.Code)):
		// any active | REJECTED with STALE_*, NOT_FOUND, BUSY, UNSAFE_STATE or COMMIT_CONFLICT | decide again (4.2) with the
		// cursor of the acknowledgement
		p.Decided = false
		c.do(DecideAgain{r.Role, refused})
	case s == cancelling && (r.Kind == archive.AssignJob || r.Kind == archive.ExecuteStep): // one thing less to undo
	case j.Committed || s == cancelling:
		// any active | REJECTED with another code | MANUAL if committed. A job that is winding down has no other way out.
		c.conflict(r.Role, r.Code)
	default: // any active | REJECTED with another code | CANCELLING (FAILED) | wind-down
		c.startWindDown(failed, r.Code)
	}
}

// stale reports whether the code is one of STALE_*. STALE_FINGERPRINT is about content: no cursor explains it.
func stale(code pb.ErrorCode) bool {
	return code == codeRevision || code == codeSequence || code == codeLease || code == codeGeneration
}

// decidable reports whether the cursor of a rejection with the code may explain it.
func decidable(code pb.ErrorCode) bool {
	return stale(code) || code == codeNotFound || code == codeBusy || code == codeUnsafe || code == codeCommit
}
