package job

import (
	"context"
	"time"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/decide"
)

// Event takes an event that arrived on the link and was validated by field (daemon protocol 2.8). An ack is to be sent; a
// nil one means that the event was dropped, set aside or refused, and that there is nothing to say now. Stale: the link no
// longer owns its daemon, and nothing was changed.
func (e *Engine) Event(ctx context.Context, link archive.Link, m *pb.JobEvent) (ack *pb.JobEventAck, err error) {
	var verdict decide.Verdict
	err = e.update(ctx, "job_event", func(tx Tx) error {
		ack, verdict = nil, decide.Verdict{Ruling: decide.Drop, Reason: "unknown job"}
		if err := e.daemons.Fence(tx, link); err != nil {
			return err
		}
		row, ok, err := tx.JobByID(idOf(m.GetJobId()))
		if err != nil || !ok {
			return err
		}
		b, err := e.load(tx, row)
		if err != nil {
			return err
		}
		if b.at(link.Daemon.No) == nil {
			verdict.Reason = "no participant"
			return nil
		}
		if verdict, err = b.arrived(link, m); err != nil {
			return err
		}
		if verdict.Ruling == decide.Accept || verdict.Ruling == decide.Repeat {
			ack = b.eventAck(false)
		}
		b.done()
		return nil
	})
	if err != nil {
		return nil, err
	}
	e.count(verdict, m)
	return ack, nil
}

func (e *Engine) count(v decide.Verdict, m *pb.JobEvent) {
	switch v.Ruling {
	case decide.Accept:
		e.observer.Accepted(m.GetKind())
	case decide.Repeat:
		e.observer.Repeated()
	case decide.Aside:
		e.observer.SetAside()
	case decide.Drop:
		e.observer.Dropped(v.Reason)
	case decide.Refuse, decide.Clash:
		e.observer.Refused(v.Code)
	}
}

// eventAck is what control has stored of the job.
func (b *book) eventAck(goAhead bool) *pb.JobEventAck {
	return &pb.JobEventAck{JobId: b.row.ID.String(), PersistedThrough: uint64(b.row.Sequence), Revision: uint64(b.row.Revision),
		GoAhead: goAhead}
}

// arrived judges an event of a participant and does what the judgement says.
func (b *book) arrived(link archive.Link, m *pb.JobEvent) (decide.Verdict, error) {
	if err := b.current(); err != nil {
		return decide.Verdict{}, err
	}
	p := b.at(link.Daemon.No)
	a := decide.Arrival{Role: p.Role, Message: m, ID: idOf(m.GetEventId()), Command: idOf(m.GetCommandId())}
	stored, ok, err := b.tx.JobEventByID(a.ID)
	if err != nil {
		return decide.Verdict{}, err
	}
	if ok {
		if a.ByID, err = parse(stored.Message, &pb.JobEvent{}); err != nil {
			return decide.Verdict{}, err
		}
	}
	if m.GetSequence() <= uint64(b.row.Sequence) {
		if stored, ok, err = b.tx.JobEvent(b.row.No, int64(m.GetSequence())); err != nil {
			return decide.Verdict{}, err
		}
		switch {
		case ok:
			if a.BySeq, err = parse(stored.Message, &pb.JobEvent{}); err != nil {
				return decide.Verdict{}, err
			}
		case isProgress(m.GetKind()) && a.ByID == nil:
			// Its row was trimmed: only those of progress ever are, and only after they were acknowledged.
			a.BySeq, a.ByID = m, m
		}
	}
	asides, err := b.tx.JobAsides(b.row.No, p.DaemonNo)
	if err != nil {
		return decide.Verdict{}, err
	}
	a.Aside = len(asides)
	v := decide.Judge(&b.view, a)
	switch v.Ruling {
	case decide.Accept:
		return v, b.happened(p, m)
	case decide.Repeat:
		return v, nil
	case decide.Aside:
		return v, b.setAside(link, asides, m)
	case decide.Refuse:
		return v, b.refused(p, m, v)
	case decide.Clash:
		return v, b.clashed(p, m, v)
	}
	return v, nil
}

func isProgress(k pb.JobEventKind) bool {
	return k == pb.JobEventKind_JOB_EVENT_KIND_PROGRESS || k == pb.JobEventKind_JOB_EVENT_KIND_STALLED ||
		k == pb.JobEventKind_JOB_EVENT_KIND_RESUMED
}

// happened stores an accepted event and what follows from it.
func (b *book) happened(p *Participant, m *pb.JobEvent) error {
	if err := b.current(); err != nil {
		return err
	}
	row, err := b.cmd(idOf(m.GetCommandId()))
	if err != nil {
		return err
	}
	raw, err := marshal(m)
	if err != nil {
		return err
	}
	if err := b.tx.JobInsertEvent(&Stored{JobNo: b.row.No, Sequence: int64(m.GetSequence()), EventID: idOf(m.GetEventId()),
		DaemonNo: p.DaemonNo, CommandNo: row.No, Kind: m.GetKind(), Message: raw, At: b.tx.Now()}); err != nil {
		return err
	}
	if keep := b.e.o.KeepProgress; m.GetSequence()%uint64(max(keep/8, 1)) == 0 {
		if err := b.tx.JobTrimEvents(b.row.No, p.DaemonNo, keep); err != nil {
			return err
		}
	}
	before, err := b.progressed(m)
	if err != nil {
		return err
	}
	if m.GetKind() == pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED {
		b.foresee(m.GetStep())
	}
	if m.GetKind() != pb.JobEventKind_JOB_EVENT_KIND_PROGRESS {
		if err := b.tellEvent(p, row.No, m); err != nil {
			return err
		}
	}
	ev, err := decide.EventOf(p.Role, m, before)
	if err != nil {
		return err
	}
	c := cause{what: kindText(m.GetKind()), detail: m.GetError(), event: m, from: row}
	if s := stepText(m.GetStep()); m.GetStep() != 0 {
		c.what = s + ": " + c.what
	}
	return b.advance(ev, c)
}

// foresee sets what the view says of time for the decision about a step that is just completed: its evidence is of now.
func (b *book) foresee(step pb.JobStep) {
	switch step {
	case pb.JobStep_JOB_STEP_VERIFY:
		b.view.VerifyFresh = verifyAge(b.def) > 0
	case pb.JobStep_JOB_STEP_RELEASE:
		b.row.RetainUntil = b.tx.Now().Add(retention(b.def))
		b.view.RetentionOver = retention(b.def) <= 0
	}
}

// progressed keeps the counters of an event and returns those before it; the displayed overall progress never goes below
// the completed steps.
func (b *book) progressed(m *pb.JobEvent) (before *pb.Progress, err error) {
	before = &pb.Progress{}
	if len(b.row.Progress) > 0 {
		if before, err = parse(b.row.Progress, before); err != nil {
			return nil, err
		}
	}
	next := m.GetProgress()
	if next == nil {
		return before, nil
	}
	if b.row.Progress, err = marshal(next); err != nil {
		return nil, err
	}
	if archive.Moved(before, next) {
		b.row.MovedAt = b.tx.Now()
	}
	b.row.Permille = int(archive.OverallPermille(b.row.Operation, b.row.Position, next.GetFractionComplete()))
	return before, nil
}

func (b *book) tellEvent(p *Participant, commandNo int64, m *pb.JobEvent) error {
	detail := map[string]any{"event": kindText(m.GetKind()), "sequence": m.GetSequence()}
	if m.GetStep() != 0 {
		detail["step"] = stepText(m.GetStep())
	}
	if m.GetCommitted() {
		detail["committed"] = true
	}
	if err := m.GetError(); err != nil {
		detail["error"] = map[string]any{"code": codeText(err.GetCode()), "retryable": err.GetRetryable(),
			"message": err.GetMessage(), "details": err.GetDetails()}
	}
	if at := m.GetOccurredAt(); at != nil {
		detail["daemon_time"] = at.AsTime().Format(time.RFC3339)
	}
	return b.entry(EntryStep, p.DaemonNo, commandNo, detail)
}

// setAside keeps an event until its command is acknowledged; a repetition takes no second row.
func (b *book) setAside(link archive.Link, asides []Aside, m *pb.JobEvent) error {
	for _, a := range asides {
		if a.Sequence == int64(m.GetSequence()) {
			return nil
		}
	}
	raw, err := marshal(m)
	if err != nil {
		return err
	}
	return b.tx.JobInsertAside(&Aside{JobNo: b.row.No, DaemonNo: link.Daemon.No, Generation: link.Generation,
		Sequence: int64(m.GetSequence()), Message: raw})
}

// takeAside judges the events that waited for the acknowledgement of a command. The daemon learns of what was stored by a
// plain ack.
func (b *book) takeAside(id [16]byte) error {
	row, err := b.cmd(id)
	if err != nil {
		return err
	}
	p := b.at(row.Daemon.No)
	asides, err := b.tx.JobAsides(b.row.No, p.DaemonNo)
	if err != nil || len(asides) == 0 {
		return err
	}
	if err := b.tx.JobDropAsides(b.row.No, p.DaemonNo); err != nil {
		return err
	}
	stored := false
	for _, a := range asides {
		peer := b.peers[p.DaemonNo]
		if a.Generation != peer.Generation {
			continue // of a connection that is gone: the daemon sends it again
		}
		m, err := parse(a.Message, &pb.JobEvent{})
		if err != nil {
			return err
		}
		link := archive.Link{Daemon: archive.DaemonRef{No: peer.No, ID: peer.ID}, Generation: peer.Generation}
		v, err := b.arrived(link, m)
		if err != nil {
			return err
		}
		b.tx.AfterCommit(func() { b.e.count(v, m) })
		stored = stored || v.Ruling == decide.Accept
	}
	if stored {
		b.ack(decide.Ack{Role: p.Role, Through: uint64(b.row.Sequence)})
	}
	return nil
}

// refused has the daemon reconciled after an event that breaks a rule.
func (b *book) refused(p *Participant, m *pb.JobEvent, v decide.Verdict) error {
	if err := b.entry(EntryRefused, p.DaemonNo, 0, map[string]any{"event": kindText(m.GetKind()), "sequence": m.GetSequence(),
		"command": m.GetCommandId(), "code": codeText(v.Code), "because": v.Reason}); err != nil {
		return err
	}
	detail := &pb.ErrorDetail{Code: v.Code, Retryable: archive.Retryable(v.Code), Message: "an event was refused: " + v.Reason}
	return b.advance(decide.EventRefused{Role: p.Role, Command: idOf(m.GetCommandId()), Code: v.Code},
		cause{what: "an event was refused: " + v.Reason, detail: detail})
}

func (b *book) clashed(p *Participant, m *pb.JobEvent, v decide.Verdict) error {
	if err := b.entry(EntryRefused, p.DaemonNo, 0, map[string]any{"event": kindText(m.GetKind()), "sequence": m.GetSequence(),
		"command": m.GetCommandId(), "code": codeText(v.Code), "because": v.Reason}); err != nil {
		return err
	}
	detail := &pb.ErrorDetail{Code: v.Code, Retryable: archive.Retryable(v.Code), Message: v.Reason}
	return b.advance(decide.ConflictSeen{Role: p.Role, Code: v.Code}, cause{what: v.Reason, detail: detail})
}
