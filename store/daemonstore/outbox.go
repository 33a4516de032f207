package daemonstore

import (
	"strings"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/fault"
	"signalbox/store"
)

func scanEvent(scan func(...any) error) (daemon.OutboxEvent, error) {
	var o daemon.OutboxEvent
	var event []byte
	if err := scan(&event, &o.Sent, &o.Acked); err != nil {
		return o, err
	}
	o.Event = &pb.JobEvent{}
	return o, decode(event, o.Event)
}

func (r *reader) events(query string, args ...any) ([]daemon.OutboxEvent, error) {
	rows, err := r.q.Query(query, args...)
	return collect(rows, err, func(rows *store.Rows) (daemon.OutboxEvent, error) { return scanEvent(rows.Scan) })
}

// Events returns events of the job from the sequence on.
func (r *reader) Events(job uuid.UUID, from uint64, limit int) ([]daemon.OutboxEvent, error) {
	return r.events("SELECT event, sent, acked FROM outbox WHERE job_id = ? AND sequence >= ? ORDER BY sequence LIMIT ?",
		job, int64(from), limit)
}

// UnackedEvents returns unconfirmed events of the job from the sequence on.
func (r *reader) UnackedEvents(job uuid.UUID, from uint64, limit int) ([]daemon.OutboxEvent, error) {
	return r.events("SELECT event, sent, acked FROM outbox WHERE job_id = ? AND sequence >= ? AND acked = 0 ORDER BY sequence LIMIT ?",
		job, int64(from), limit)
}

// UnackedCommands returns the command IDs of the job's unconfirmed events.
func (r *reader) UnackedCommands(job uuid.UUID) ([]uuid.UUID, error) {
	rows, err := r.q.Query("SELECT DISTINCT command_id FROM outbox WHERE job_id = ? AND acked = 0", job)
	return collect(rows, err, func(rows *store.Rows) (id uuid.UUID, err error) { return id, rows.Scan(&id) })
}

// LastEvent returns the newest event of the lease, of one of the kinds when any is named.
func (r *reader) LastEvent(command uuid.UUID, kinds ...pb.JobEventKind) (daemon.OutboxEvent, bool, error) {
	query, args := "SELECT event, sent, acked FROM outbox WHERE command_id = ?", []any{command}
	if len(kinds) > 0 {
		query += " AND kind IN (?" + strings.Repeat(", ?", len(kinds)-1) + ")"
		for _, k := range kinds {
			args = append(args, int64(k))
		}
	}
	o, err := scanEvent(r.q.QueryRow(query+" ORDER BY sequence DESC LIMIT 1", args...).Scan)
	ok, err := found(err)
	return o, ok, err
}

// StepEvidence returns the newest evidence of the step, nil when there is none.
func (r *reader) StepEvidence(job uuid.UUID, step pb.JobStep) (*pb.StepEvidence, error) {
	o, err := scanEvent(r.q.QueryRow(`SELECT event, sent, acked FROM outbox WHERE job_id = ? AND step = ? AND kind = ?
		ORDER BY sequence DESC LIMIT 1`, job, int64(step), int64(pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED)).Scan)
	if ok, err := found(err); !ok {
		return nil, err
	}
	return o.Event.GetEvidence(), nil
}

// OutboxDepth counts the unconfirmed events.
func (r *reader) OutboxDepth() (uint64, error) {
	var n uint64
	return n, r.q.QueryRow("SELECT count(*) FROM outbox INDEXED BY outbox_unacked WHERE acked = 0").Scan(&n)
}

// InsertEvent stores a new event.
func (t *tx) InsertEvent(e *pb.JobEvent) error {
	job, command, err := eventIDs(e)
	if err != nil {
		return err
	}
	b, err := encode(e)
	if err != nil {
		return err
	}
	return t.exec("INSERT INTO outbox(job_id, sequence, command_id, kind, step, event, sent, acked) VALUES(?, ?, ?, ?, ?, ?, 0, 0)",
		job, int64(e.GetSequence()), command, int64(e.GetKind()), int64(e.GetStep()), b)
}

// ReplaceEvent replaces an event that was never sent.
func (t *tx) ReplaceEvent(e *pb.JobEvent) error {
	job, _, err := eventIDs(e)
	if err != nil {
		return err
	}
	b, err := encode(e)
	if err != nil {
		return err
	}
	res, err := t.tx.Exec("UPDATE outbox SET event = ? WHERE job_id = ? AND sequence = ? AND kind = ? AND sent = 0", b, job,
		int64(e.GetSequence()), int64(e.GetKind()))
	if err == nil && res.RowsAffected() == 0 {
		return fault.New(fault.Conflict, "event %d of job %s was sent and cannot change", e.GetSequence(), job)
	}
	return err
}

func eventIDs(e *pb.JobEvent) (job, command uuid.UUID, err error) {
	if job, err = uuid.Parse(e.GetJobId()); err == nil {
		command, err = uuid.Parse(e.GetCommandId())
	}
	if err != nil {
		return job, command, fault.Wrap(fault.Internal, err, "an event without its UUIDs")
	}
	return job, command, nil
}

// MarkSent marks events as sent.
func (t *tx) MarkSent(job uuid.UUID, sequences []uint64) error {
	for _, s := range sequences {
		if err := t.exec("UPDATE outbox SET sent = 1 WHERE job_id = ? AND sequence = ?", job, int64(s)); err != nil {
			return err
		}
	}
	return nil
}

// MarkAcked marks the job's events up to the sequence as confirmed.
func (t *tx) MarkAcked(job uuid.UUID, through uint64) (int64, error) {
	res, err := t.tx.Exec("UPDATE outbox SET acked = 1, sent = 1 WHERE job_id = ? AND sequence <= ? AND acked = 0", job, int64(through))
	return res.RowsAffected(), err
}

// DropUnacked removes the unconfirmed events of the lease and returns the highest sequence removed.
func (t *tx) DropUnacked(command uuid.UUID) (uint64, error) {
	return t.dropUnconfirmed("command_id", command)
}

// DropOutbox removes every unconfirmed event of the job and returns the highest sequence removed, 0 when none.
func (t *tx) DropOutbox(job uuid.UUID) (uint64, error) {
	return t.dropUnconfirmed("job_id", job)
}

// dropUnconfirmed removes the unconfirmed events whose column has the value and returns the highest sequence removed.
func (t *tx) dropUnconfirmed(column string, value uuid.UUID) (uint64, error) {
	which, highest := column+" = ? AND acked = 0", uint64(0)
	err := t.tx.QueryRow("SELECT coalesce(max(sequence), 0) FROM outbox WHERE "+which, value).Scan(&highest)
	if err != nil || highest == 0 {
		return 0, err
	}
	return highest, t.exec("DELETE FROM outbox WHERE "+which, value)
}

// DropAbove removes the job's events above the sequence.
func (t *tx) DropAbove(job uuid.UUID, sequence uint64) error {
	return t.exec("DELETE FROM outbox WHERE job_id = ? AND sequence > ?", job, int64(sequence))
}

// TrimEvents drops confirmed PROGRESS, STALLED and RESUMED events beyond the newest keep.
func (t *tx) TrimEvents(job uuid.UUID, keep int) (uint64, error) {
	const kinds = "kind IN (20, 21, 22)" // PROGRESS, STALLED, RESUMED
	var through uint64
	err := t.tx.QueryRow("SELECT sequence FROM outbox WHERE job_id = ? AND acked = 1 AND "+kinds+
		" ORDER BY sequence DESC LIMIT 1 OFFSET ?", job, keep).Scan(&through)
	if ok, err := found(err); !ok {
		return 0, err
	}
	return through, t.exec("DELETE FROM outbox WHERE job_id = ? AND acked = 1 AND "+kinds+" AND sequence <= ?", job, int64(through))
}
