package job

import (
	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/decide"
	"signalbox/appliance/fault"
)

// CommandAcked implements command.Handler: it is called in the queue's transaction with the first answer to a command of a
// job, however late it comes (daemon protocol 2.6, 3.4).
func (e *Engine) CommandAcked(ctx command.Tx, link archive.Link, row command.Row, ack *pb.CommandAck) error {
	tx := ctx.(Tx)
	b, err := e.ofCommand(tx, row)
	if err != nil {
		return err
	}
	ev := decide.Acked{ID: row.ID, Status: pb.AckStatus_ACK_STATUS_ACCEPTED}
	event, words := EntryAcked, row.Kind.String()+" was accepted"
	detail := map[string]any{"command": row.Kind.String()}
	switch row.State {
	case command.Rejected:
		ev.Status, ev.Code = pb.AckStatus_ACK_STATUS_REJECTED, ack.GetError().GetCode()
		event, words = EntryRejected, row.Kind.String()+" was rejected"
	case command.Conflict:
		ev.Status, ev.Code = pb.AckStatus_ACK_STATUS_CONFLICT, pb.ErrorCode_ERROR_CODE_COMMAND_CONFLICT
		event, words = EntryConflict, row.Kind.String()+" met a conflict"
	}
	if row.Before == command.Parked || row.Before == command.Withdrawn || row.Before == command.Superseded {
		detail["late"] = string(row.Before)
	}
	if m := ack.GetError(); m != nil {
		detail["error"] = map[string]any{"code": codeText(m.GetCode()), "message": m.GetMessage()}
		words += ": " + m.GetMessage()
	}
	if row.Step != 0 {
		detail["step"], detail["attempt"] = stepText(row.Step), row.StepAttempt
	}
	if err := b.entry(event, row.Daemon.No, row.No, detail); err != nil {
		return err
	}
	c := cause{what: words, detail: ack.GetError(), from: row}
	if ack.GetCursor() != nil {
		if c.k, err = cursorOf(ack.GetCursor()); err != nil {
			return err
		}
	}
	var what decide.Event = ev
	if row.State == command.Conflict && row.Before != "" && row.Before.Answered() {
		// It contradicts an answer that was applied long ago.
		what = decide.ConflictSeen{Role: b.at(row.Daemon.No).Role, Code: ev.Code}
	} else {
		b.unanswer(row)
	}
	if err := b.advance(what, c); err != nil {
		return err
	}
	if row.Kind == archive.RequestJobSnapshot && row.State == command.Accepted && b.row.State == stateWaiting &&
		b.row.Wait == waitReconcile {
		b.row.RetryAt = tx.Now().Add(e.o.SnapshotWait)
		if err := tx.JobUpdate(&b.row); err != nil {
			return err
		}
	}
	if p := b.at(row.Daemon.No); p != nil && row.State == command.Accepted {
		p.ConfirmedRevision = max(p.ConfirmedRevision, int64(row.ExpectedRevision))
		p.ConfirmedSequence = max(p.ConfirmedSequence, int64(row.ExpectedSequence))
		if err := tx.JobUpdateParticipant(p); err != nil {
			return err
		}
	}
	b.done()
	return nil
}

// calm reports whether actions do nothing but let things go on as they were.
func calm(actions []decide.Action) bool {
	for _, a := range actions {
		switch a.(type) {
		case decide.Ack, decide.Resend:
		default:
			return false
		}
	}
	return true
}

// unanswer shows the row as it was before its answer: the answer is what is to be applied.
func (b *book) unanswer(row command.Row) {
	if v := b.view.Command(row.ID); v != nil {
		v.Status, v.Code = decide.Status(row.Before), codeNone
		v.Lease = pb.LeaseState_LEASE_STATE_NONE
	}
}

// ofCommand loads the job of a command.
func (e *Engine) ofCommand(tx Tx, row command.Row) (*book, error) {
	j, err := tx.JobByNo(row.JobNo)
	if err != nil {
		return nil, err
	}
	b, err := e.load(tx, j)
	if err == nil && b.at(row.Daemon.No) == nil {
		err = fault.New(fault.Internal, "command %s is for a daemon that has no part in job %s", row.ID, j.ID)
	}
	return b, err
}

// CommandExhausted implements command.Handler: the attempts are used up, and the job waits for the answer or for a person.
func (e *Engine) CommandExhausted(ctx command.Tx, row command.Row) error {
	tx := ctx.(Tx)
	b, err := e.ofCommand(tx, row)
	if err != nil {
		return err
	}
	if err := b.entry(EntryExhausted, row.Daemon.No, row.No, map[string]any{"command": row.Kind.String(),
		"attempts": row.Attempts}); err != nil {
		return err
	}
	c := cause{what: row.Kind.String() + " was sent without an answer until its attempts were used up", from: row}
	if err := b.advance(decide.Exhausted{ID: row.ID}, c); err != nil {
		return err
	}
	b.done()
	return nil
}

// decideAgain makes a new decision of 4.2 with the cursor that came with the message, or the one reported last.
func (b *book) decideAgain(a decide.DecideAgain, c cause) error {
	p := b.view.Party(a.Role)
	if p == nil {
		return fault.New(fault.Internal, "a decision about a participant that is not there")
	}
	k := c.k
	if k == nil && c.detail.GetCode() != pb.ErrorCode_ERROR_CODE_NOT_FOUND {
		k = p.Reported
	}
	return b.reconciled(decide.Input{Job: &b.view, Role: a.Role, K: k, Refused: a.Refused}, c.what)
}

// reconciled makes one decision of 4.2 and writes it.
func (b *book) reconciled(in decide.Input, what string) error {
	if err := b.current(); err != nil {
		return err
	}
	return b.decided(decide.Decide(in), in, what)
}

// decided writes a decision of 4.2.
func (b *book) decided(out decide.Outcome, in decide.Input, what string) error {
	e, row := b.e, string(out.Row)
	b.tx.AfterCommit(func() { e.observer.Decided(row) })
	was := b.row
	if err := b.apply(out, cause{what: what, input: &in}); err != nil {
		return err
	}
	p := b.part(in.Role)
	if p == nil {
		return nil
	}
	daemonNo := p.DaemonNo
	b.wakes[daemonNo] = true
	if calm(out.Actions) && was.State == b.row.State && was.Wait == b.row.Wait {
		return nil // a daemon that comes and goes must not fill the story
	}
	return b.entry(EntryReconcile, daemonNo, 0, map[string]any{"rule": row, "because": what})
}
