package daemon

import (
	"context"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame"
)

// command decides about one command in one transaction and answers after its COMMIT (2.6).
func (d *Daemon) command(ctx context.Context, s *session, f *frame.Frame) error {
	c := f.Envelope.GetCommand()
	job, _ := uuid.Parse(c.GetJobId()) // uuid.Nil for commands without a job, and for those the checks refused
	if err := d.at(Received, job); err != nil {
		return err
	}
	facts := Facts{Machine: d.machine, Refusal: f.Refusal, Partial: f.Partial, OpenQueries: s.openQueries()}
	facts.Machine.MaxJobs = min(facts.Machine.MaxJobs, int(s.limits.GetMaxActiveCursors()))
	facts.Route.Refusal = d.routeRefusal(ctx, c)
	payload, digest := frame.PayloadIdentity(c)
	facts.Digest = digest
	var out Outcome
	var ack *pb.CommandAck
	err := d.update(ctx, "daemon.command", func(tx Tx) (err error) {
		if err = readFacts(tx, c, job, &facts); err != nil {
			return err
		}
		out = Decide(c, facts)
		if out.Store {
			if err = tx.InsertCommand(StoredCommand{ID: uuid.MustParse(c.GetCommandId()), JobID: job, Payload: payload, Digest: digest,
				Unreadable: f.Partial, Status: out.Status, Error: out.Error, DecidedAt: tx.Now()}); err != nil {
				return err
			}
		}
		if err = apply(tx, out); err != nil {
			return err
		}
		ack, err = answer(tx, c, job, facts, out)
		return err
	})
	if err != nil {
		return err
	}
	if err := d.at(Stored, job); err != nil {
		return err
	}
	if out.Interrupt {
		d.interrupt(job)
	}
	d.watchQuiet(job, out)
	sent := s.send(ctx, &pb.Envelope{Payload: &pb.Envelope_CommandAck{CommandAck: ack}}, Urgent, f.Envelope.GetEnvelopeId())
	if err := d.at(Answered, job); err != nil {
		return err
	}
	d.effects(s, c, job, out)
	return sent
}

// readFacts reads what a decision about the command looks at.
func readFacts(tx ReadTx, c *pb.Command, job uuid.UUID, f *Facts) error {
	id, err := uuid.Parse(c.GetCommandId())
	if err != nil {
		return err
	}
	known, ok, err := tx.Command(id)
	if err != nil {
		return err
	}
	if ok {
		f.Known = &known
	}
	lease, ok, err := tx.Lease(id)
	if err != nil {
		return err
	}
	f.Retired = ok && lease.State == pb.LeaseState_LEASE_STATE_RETIRED
	if job != uuid.Nil {
		if f.Job, err = jobFacts(tx, job); err != nil {
			return err
		}
		if err := readNamed(tx, c, f); err != nil {
			return err
		}
	}
	active, err := tx.ActiveJobs()
	if err != nil {
		return err
	}
	f.ActiveJobs = len(active)
	return readRouteFacts(tx, c, active, f)
}

// readNamed finds the leases that a ReconcileJob names.
func readNamed(tx ReadTx, c *pb.Command, f *Facts) error {
	f.Named = map[uuid.UUID]Lease{}
	for _, text := range c.GetReconcileJob().GetRetireCommandIds() {
		id, err := uuid.Parse(text)
		if err != nil {
			continue
		}
		l, ok, err := tx.Lease(id)
		if err != nil {
			return err
		}
		if ok {
			f.Named[id] = l
		}
	}
	return nil
}

func readRouteFacts(tx ReadTx, c *pb.Command, active []JobRow, f *Facts) error {
	if f.Job != nil {
		kind, err := routeKind(tx, f.Job.Row)
		if err != nil {
			return err
		}
		f.RouteKind = kind
	}
	text, side := routeOf(c)
	id, err := uuid.Parse(text)
	if err != nil {
		return nil
	}
	row, ok, err := tx.Route(id, side)
	if err != nil {
		return err
	}
	if ok {
		f.Route.Row = &row
	}
	for _, j := range active {
		if j.Definition.GetRouteId() == text {
			f.Route.ActiveJobs++
		}
	}
	return nil
}

// routeKind returns the kind of the job's route, unset while it is unknown here.
func routeKind(tx ReadTx, row JobRow) (pb.RouteKind, error) {
	id, err := uuid.Parse(row.Definition.GetRouteId())
	if err != nil {
		return pb.RouteKind_ROUTE_KIND_UNSPECIFIED, nil
	}
	r, ok, err := tx.Route(id, row.Role)
	if err != nil || !ok {
		return pb.RouteKind_ROUTE_KIND_UNSPECIFIED, err
	}
	return r.Route.GetKind(), nil
}

// apply writes what the decision changes.
func apply(tx Tx, o Outcome) error {
	if o.NewJob != nil {
		if err := tx.InsertJob(*o.NewJob); err != nil {
			return err
		}
	}
	if o.Job != nil {
		if err := dropEvents(tx, o); err != nil {
			return err
		}
		if o.Job.Ended && o.Job.EndedAt.IsZero() {
			o.Job.EndedAt = tx.Now()
		}
		if err := tx.UpdateJob(*o.Job); err != nil {
			return err
		}
	}
	for _, l := range o.Leases {
		if err := tx.PutLease(l); err != nil {
			return err
		}
	}
	if o.AckAll {
		if _, err := tx.MarkAcked(o.Job.ID, o.Job.Sequence); err != nil {
			return err
		}
	}
	if o.Route != nil {
		return addRouteUpdate(tx, o.Route, o.Route.State, nil, nil)
	}
	return nil
}

// dropEvents removes what a ReconcileJob gives up. Control may hold an event through its cursor whose confirmation was lost:
// none of the job may be missing in a later snapshot (2.9), which begins above the highest one removed.
func dropEvents(tx Tx, o Outcome) error {
	if o.DropAbove != nil {
		if err := tx.DropAbove(o.Job.ID, *o.DropAbove); err != nil {
			return err
		}
	}
	for _, id := range o.DropEvents {
		highest, err := tx.DropUnacked(id)
		if err != nil {
			return err
		}
		o.Job.TrimmedThrough = max(o.Job.TrimmedThrough, highest)
	}
	if o.DropOutbox {
		highest, err := tx.DropOutbox(o.Job.ID)
		if err != nil {
			return err
		}
		o.Job.TrimmedThrough = max(o.Job.TrimmedThrough, highest)
	}
	return nil
}

// answer builds the acknowledgement. Its cursor is that after the decision.
func answer(tx ReadTx, c *pb.Command, job uuid.UUID, f Facts, o Outcome) (*pb.CommandAck, error) {
	ack := &pb.CommandAck{CommandId: c.GetCommandId(), Status: o.Status, StoredStatus: o.Stored, Error: o.Error,
		DecidedAt: timestamppb.New(tx.Now()), PayloadSha256: f.Digest}
	if f.Known != nil {
		ack.DecidedAt, ack.PayloadSha256 = timestamppb.New(f.Known.DecidedAt), f.Known.Digest
	}
	row, ok, err := tx.Job(job)
	if err != nil || !ok {
		return ack, err
	}
	ack.Cursor, err = cursorOf(tx, row)
	return ack, err
}

// effects does what an accepted command starts in this process.
func (d *Daemon) effects(s *session, c *pb.Command, job uuid.UUID, o Outcome) {
	switch o.Status {
	case pb.AckStatus_ACK_STATUS_CONFLICT:
		d.tell(Notice{What: WhatConflict, Job: job, Code: o.Error.GetCode()})
		return
	case pb.AckStatus_ACK_STATUS_REJECTED:
		d.tell(Notice{What: WhatCommand, Job: job, Code: o.Error.GetCode()})
		return
	case pb.AckStatus_ACK_STATUS_DUPLICATE:
		// An answer belongs to the connection that asked: one that was lost with another connection is given again.
		if o.Stored == pb.AckStatus_ACK_STATUS_ACCEPTED {
			s.answerQuery(c)
		}
		return
	}
	for _, l := range o.Leases {
		if l.State != pb.LeaseState_LEASE_STATE_OPEN {
			d.forget(l.CommandID)
		}
	}
	switch archive.KindOf(c) {
	case archive.ExecuteStep, archive.CancelJob:
		d.confirm(uuid.MustParse(c.GetCommandId()), s)
		s.allow(job)
	case archive.InventoryQuery, archive.RequestJobSnapshot:
		s.answerQuery(c)
	}
	if o.Work {
		d.kick(job)
	}
	if o.Route != nil {
		d.probe(o.Route.key())
		s.pokeRoutes()
	}
}

// watchQuiet keeps a job quiet for a while after a stale refusal, so that control's next precondition can match (2.6).
func (d *Daemon) watchQuiet(job uuid.UUID, o Outcome) {
	if job == uuid.Nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.quiet, job)
	switch code := o.Error.GetCode(); {
	case o.Status != pb.AckStatus_ACK_STATUS_REJECTED:
	case code == pb.ErrorCode_ERROR_CODE_STALE_REVISION, code == pb.ErrorCode_ERROR_CODE_STALE_SEQUENCE:
		d.quiet[job] = d.o.Clock.Now().Add(archive.QuietAfterStale)
	}
}

// confirm notes that control has confirmed the lease over the connection (3.5).
func (d *Daemon) confirm(lease uuid.UUID, s *session) {
	d.mu.Lock()
	d.confirmed[lease] = s
	d.mu.Unlock()
	d.hub.Wake(confirmKey(lease))
}

// confirmKey is the hub's key of a lease's confirmation.
type confirmKey uuid.UUID
