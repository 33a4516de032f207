package daemonstore

import (
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/fault"
	"signalbox/store"
)

var deterministic = proto.MarshalOptions{Deterministic: true}

// encode gives the stored form of a message.
func encode(m proto.Message) ([]byte, error) {
	b, err := deterministic.Marshal(m)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "a message cannot be stored")
	}
	return b, nil
}

// decode reads a stored message.
func decode(b []byte, into proto.Message) error {
	if err := proto.Unmarshal(b, into); err != nil {
		return fault.Wrap(fault.Corrupt, err, "a stored message cannot be read")
	}
	return nil
}

// Identity returns who this daemon is.
func (r *reader) Identity() (daemon.Identity, error) {
	var i daemon.Identity
	var initial, ceiling, stable int64
	err := r.q.QueryRow(`SELECT client_id, state_epoch, last_generation, inventory_revision, inventory_token,
		reconnect_initial, reconnect_cap, stable_reset, max_active_cursors FROM identity`).Scan(&i.ClientID, &i.Epoch,
		&i.LastGeneration, &i.InventoryRevision, &i.InventoryToken, &initial, &ceiling, &stable, &i.Reconnect.MaxActiveCursors)
	i.Reconnect.Initial = time.Duration(initial) * time.Microsecond
	i.Reconnect.Cap = time.Duration(ceiling) * time.Microsecond
	i.Reconnect.StableReset = time.Duration(stable) * time.Microsecond
	return i, err
}

// SetLastGeneration stores the generation; a lower one changes nothing.
func (t *tx) SetLastGeneration(generation uint64) error {
	return t.exec("UPDATE identity SET last_generation = max(last_generation, ?)", int64(generation))
}

// SetReconnect stores what control said about coming back.
func (t *tx) SetReconnect(r daemon.Reconnect) error {
	return t.exec("UPDATE identity SET reconnect_initial = ?, reconnect_cap = ?, stable_reset = ?, max_active_cursors = ?",
		r.Initial.Microseconds(), r.Cap.Microseconds(), r.StableReset.Microseconds(), int64(r.MaxActiveCursors))
}

// SetInventory stores the inventory's revision and the change token it stands for.
func (t *tx) SetInventory(revision uint64, token string) error {
	return t.exec("UPDATE identity SET inventory_revision = ?, inventory_token = ?", int64(revision), token)
}

const commandColumns = "command_id, job_id, payload, digest, unreadable, status, error, decided_at"

func scanCommand(scan func(...any) error) (daemon.StoredCommand, error) {
	var c daemon.StoredCommand
	var job uuid.NullUUID
	var detail []byte
	var status int32
	if err := scan(&c.ID, &job, &c.Payload, &c.Digest, &c.Unreadable, &status, &detail, &c.DecidedAt); err != nil {
		return c, err
	}
	c.JobID, c.Status = job.UUID, pb.AckStatus(status)
	if detail != nil {
		c.Error = &pb.ErrorDetail{}
		return c, decode(detail, c.Error)
	}
	return c, nil
}

// Command returns a stored command.
func (r *reader) Command(id uuid.UUID) (daemon.StoredCommand, bool, error) {
	c, err := scanCommand(r.q.QueryRow("SELECT "+commandColumns+" FROM commands WHERE command_id = ?", id).Scan)
	ok, err := found(err)
	return c, ok, err
}

// JobCommands returns the job's commands in the order of their arrival.
func (r *reader) JobCommands(job uuid.UUID) ([]daemon.StoredCommand, error) {
	rows, err := r.q.Query("SELECT "+commandColumns+" FROM commands WHERE job_id = ? ORDER BY command_no", job)
	return collect(rows, err, func(rows *store.Rows) (daemon.StoredCommand, error) { return scanCommand(rows.Scan) })
}

// InsertCommand stores a decided command.
func (t *tx) InsertCommand(c daemon.StoredCommand) error {
	var detail []byte
	if c.Error != nil {
		var err error
		if detail, err = encode(c.Error); err != nil {
			return err
		}
	}
	return t.exec("INSERT INTO commands("+commandColumns+") VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
		c.ID, nullID(c.JobID), c.Payload, c.Digest, c.Unreadable, int64(c.Status), detail, c.DecidedAt)
}

// Expire deletes what is kept only to recognise repetitions, from before the time, and what is known of files that nobody
// has asked for in a long time.
func (t *tx) Expire(before time.Time, limit int) (bool, error) {
	rows, err := t.tx.Query("SELECT job_id FROM jobs WHERE ended = 1 AND closing = 0 AND ended_at < ? ORDER BY ended_at LIMIT ?",
		before, limit)
	jobs, err := collect(rows, err, func(rows *store.Rows) (id uuid.UUID, err error) { return id, rows.Scan(&id) })
	if err != nil {
		return false, err
	}
	for _, id := range jobs {
		for _, table := range []string{"journal", "outbox", "leases", "commit_records", "commands", "jobs"} {
			if err := t.exec("DELETE FROM "+table+" WHERE job_id = ?", id); err != nil {
				return false, err
			}
		}
	}
	// What has no job (any more): queries, and commands for jobs that were not here. Those of routes stay with the route.
	res, err := t.tx.Exec(`DELETE FROM commands WHERE command_no IN (SELECT command_no FROM commands c
		WHERE c.decided_at < ? AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.job_id = c.job_id)
		AND NOT EXISTS (SELECT 1 FROM routes r WHERE r.creation_command_id = c.command_id OR r.command_id = c.command_id)
		ORDER BY command_no LIMIT ?)`, before, int64(limit)*100)
	if err != nil {
		return false, err
	}
	hashes, err := t.expireHashes(t.Now().Add(-keepUnused), limit*100)
	return len(jobs) == limit || res.RowsAffected() == int64(limit)*100 || hashes == int64(limit)*100, err
}
