package daemon

import (
	"slices"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/fault"
)

// eventState is the client's state after an event of the kind (2.8).
var eventState = map[pb.JobEventKind]pb.JobState{
	pb.JobEventKind_JOB_EVENT_KIND_STEP_STARTED:   pb.JobState_JOB_STATE_RUNNING,
	pb.JobEventKind_JOB_EVENT_KIND_PROGRESS:       pb.JobState_JOB_STATE_RUNNING,
	pb.JobEventKind_JOB_EVENT_KIND_STALLED:        pb.JobState_JOB_STATE_STALLED,
	pb.JobEventKind_JOB_EVENT_KIND_RESUMED:        pb.JobState_JOB_STATE_RUNNING,
	pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED: pb.JobState_JOB_STATE_ASSIGNED,
	pb.JobEventKind_JOB_EVENT_KIND_STEP_FAILED:    pb.JobState_JOB_STATE_ASSIGNED,
	pb.JobEventKind_JOB_EVENT_KIND_STEP_CANCELLED: pb.JobState_JOB_STATE_CANCELLED,
	pb.JobEventKind_JOB_EVENT_KIND_HELD:           pb.JobState_JOB_STATE_MANUAL,
}

// minorKinds keep the revision.
var minorKinds = []pb.JobEventKind{pb.JobEventKind_JOB_EVENT_KIND_PROGRESS, pb.JobEventKind_JOB_EVENT_KIND_STALLED,
	pb.JobEventKind_JOB_EVENT_KIND_RESUMED}

// terminalKinds close the lease.
var terminalKinds = []pb.JobEventKind{pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED, pb.JobEventKind_JOB_EVENT_KIND_STEP_FAILED,
	pb.JobEventKind_JOB_EVENT_KIND_STEP_CANCELLED, pb.JobEventKind_JOB_EVENT_KIND_HELD}

// emit appends an event under an open lease to the outbox and moves the job's cursor with it; a terminal kind closes the
// lease. row and lease are changed and written. fill adds what the kind needs beyond the common fields.
func (d *Daemon) emit(tx Tx, row *JobRow, lease *Lease, kind pb.JobEventKind, fill func(*pb.JobEvent)) error {
	if lease.State != pb.LeaseState_LEASE_STATE_OPEN {
		return fault.New(fault.Internal, "event %s under a lease that is not open", kind)
	}
	row.Sequence++
	if !slices.Contains(minorKinds, kind) {
		row.Revision++
	}
	row.State = eventState[kind]
	e := &pb.JobEvent{EventId: uuid.NewString(), JobId: row.ID.String(), Sequence: row.Sequence, ResultingRevision: row.Revision,
		CommandId: lease.CommandID.String(), Kind: kind, Step: lease.Step, State: row.State, Committed: row.Committed,
		OccurredAt: timestamppb.New(tx.Now())}
	if fill != nil {
		fill(e)
	}
	if err := tx.InsertEvent(e); err != nil {
		return err
	}
	if kind == pb.JobEventKind_JOB_EVENT_KIND_STEP_STARTED {
		lease.Started = true
	}
	if slices.Contains(terminalKinds, kind) {
		lease.State, lease.EndSequence = pb.LeaseState_LEASE_STATE_SETTLED, row.Sequence
	}
	if err := tx.PutLease(*lease); err != nil {
		return err
	}
	if err := tx.UpdateJob(*row); err != nil {
		return err
	}
	job := row.ID
	tx.Hint(func() { d.outboxChanged(job) })
	return nil
}

// leased reads the job and its lease; ok only while the lease is open and the job not held: then its worker may write.
func leased(tx ReadTx, job, lease uuid.UUID) (row JobRow, l Lease, ok bool, err error) {
	row, found, err := tx.Job(job)
	if err != nil || !found {
		return row, l, false, err
	}
	l, found, err = tx.Lease(lease)
	if err != nil || !found {
		return row, l, false, err
	}
	return row, l, l.State == pb.LeaseState_LEASE_STATE_OPEN && row.State != pb.JobState_JOB_STATE_MANUAL && !row.Ended, nil
}
