package daemon

import (
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/valid"
)

// snapshotEvents bounds the events of a snapshot that are in memory; an outbox never comes near it (keptProgress).
const snapshotEvents = 50_000

// jobView is everything a JobSnapshot tells, read in one transaction.
type jobView struct {
	cursor   *pb.JobCursor
	epoch    uuid.UUID
	events   []OutboxEvent
	commands []StoredCommand
	leases   map[uuid.UUID]Lease
	evidence []*pb.StepEvidence
	journal  *pb.JournalSummary
}

// answerSnapshot sends the snapshot of a job in parts. Its events are marked as sent first: control may keep them.
func (s *session) answerSnapshot(c *pb.Command) error {
	job, err := uuid.Parse(c.GetJobId())
	if err != nil {
		return err
	}
	var v *jobView
	err = s.d.update(s.ctx, "daemon.snapshot", func(tx Tx) (err error) {
		if v, err = readJob(tx, job, c.GetRequestJobSnapshot()); err != nil || v == nil {
			return err
		}
		var fresh []uint64
		for _, e := range v.events {
			if !e.Sent {
				fresh = append(fresh, e.Event.GetSequence())
			}
		}
		return tx.MarkSent(job, fresh)
	})
	if err != nil {
		return err
	}
	id := uuid.NewString()
	if v == nil {
		return s.sendPart(&pb.JobSnapshot{CommandId: c.GetCommandId(), SnapshotId: id, LastPart: true,
			Error: valid.Detail(pb.ErrorCode_ERROR_CODE_NOT_FOUND, "the job is unknown here or has ended")})
	}
	parts, err := v.parts(c.GetCommandId(), id, s.limits)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if err := s.sendPart(p); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) sendPart(p *pb.JobSnapshot) error {
	return s.send(s.ctx, &pb.Envelope{Payload: &pb.Envelope_JobSnapshot{JobSnapshot: p}}, Bulk, "")
}

// readJob reads the view; nil when the job is not active here.
func readJob(tx ReadTx, job uuid.UUID, q *pb.RequestJobSnapshot) (*jobView, error) {
	row, ok, err := tx.Job(job)
	if err != nil || !ok || row.Ended {
		return nil, err
	}
	v := &jobView{leases: map[uuid.UUID]Lease{}}
	id, err := tx.Identity()
	if err != nil {
		return nil, err
	}
	v.epoch = id.Epoch
	if v.cursor, err = cursorOf(tx, row); err != nil {
		return nil, err
	}
	if v.events, err = tx.Events(job, max(q.GetFromSequence(), row.TrimmedThrough+1), snapshotEvents); err != nil {
		return nil, err
	}
	if v.commands, err = tx.JobCommands(job); err != nil {
		return nil, err
	}
	leases, err := tx.JobLeases(job)
	if err != nil {
		return nil, err
	}
	for _, l := range leases {
		v.leases[l.CommandID] = l
	}
	if q.GetIncludeEvidence() {
		for _, p := range archive.Plan(row.Definition.GetOperation()) {
			e, err := tx.StepEvidence(job, p.Step)
			if err != nil {
				return nil, err
			}
			if e != nil {
				v.evidence = append(v.evidence, e)
			}
		}
	}
	v.journal, err = tx.JournalSummary(job)
	return v, err
}

// record is a command as a snapshot tells it.
func (v *jobView) record(c StoredCommand) *pb.CommandRecord {
	r := &pb.CommandRecord{CommandId: c.ID.String(), PayloadSha256: c.Digest, Status: c.Status, LeaseState: pb.LeaseState_LEASE_STATE_NONE}
	if l, ok := v.leases[c.ID]; ok {
		r.LeaseState, r.Step = l.State, l.Step
	}
	return r
}

// parts splits the view so that every part stays within the limits (2.9, 5.2).
func (v *jobView) parts(command, snapshot string, limits *pb.Limits) ([]*pb.JobSnapshot, error) {
	var parts []*pb.JobSnapshot
	var p *pb.JobSnapshot
	size, count := 0, 0
	most := room(limits)
	begin := func() {
		p = &pb.JobSnapshot{CommandId: command, SnapshotId: snapshot, PartIndex: uint32(len(parts)), Cursor: v.cursor, StateEpoch: v.epoch.String()}
		parts = append(parts, p)
		size, count = 0, 0
	}
	begin()
	p.JournalSummary = v.journal
	head, err := jsonSize(p)
	if err != nil {
		return nil, err
	}
	most -= head
	fit := func(m proto.Message) error {
		n, err := jsonSize(m)
		if err != nil {
			return err
		}
		if count > 0 && (size+n > most || count >= int(limits.GetMaxChunkEntries())) {
			begin()
		}
		size += n
		count++
		return nil
	}
	for _, c := range v.commands {
		r := v.record(c)
		if err := fit(r); err != nil {
			return nil, err
		}
		p.Commands = append(p.Commands, r)
	}
	for _, e := range v.evidence {
		if err := fit(e); err != nil {
			return nil, err
		}
		p.Evidence = append(p.Evidence, e)
	}
	for _, e := range v.events {
		if err := fit(e.Event); err != nil {
			return nil, err
		}
		p.Events = append(p.Events, e.Event)
	}
	p.LastPart = true
	return parts, nil
}
