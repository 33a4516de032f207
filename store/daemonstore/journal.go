package daemonstore

import (
	"encoding/binary"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/fault"
	"signalbox/store"
)

const journalColumns = `step, idx, name, root_id, temp_name, temp_root_id, method, device, inode, size, mtime_ns, sha256, state, detail`

func scanEntry(scan func(...any) error) (daemon.JournalEntry, error) {
	var e daemon.JournalEntry
	var step, method int32
	var device, inode []byte
	if err := scan(&step, &e.Index, &e.Name, &e.RootID, &e.TempName, &e.TempRootID, &method, &device, &inode, &e.Size, &e.MtimeNs,
		&e.SHA256, &e.State, &e.Detail); err != nil {
		return e, err
	}
	e.Step, e.Method = pb.JobStep(step), pb.MaterializeMethod(method)
	if len(device) != 8 || len(inode) != 8 {
		return e, fault.New(fault.Corrupt, "a journal entry has no device or inode")
	}
	e.Device, e.Inode = binary.BigEndian.Uint64(device), binary.BigEndian.Uint64(inode)
	return e, nil
}

// wide is the stored form of a number that uses all 64 bits.
func wide(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// JournalEntry returns one entry by its key.
func (r *reader) JournalEntry(job uuid.UUID, step pb.JobStep, index int64, name string) (daemon.JournalEntry, bool, error) {
	e, err := scanEntry(r.q.QueryRow("SELECT "+journalColumns+" FROM journal WHERE job_id = ? AND step = ? AND idx = ? AND name = ?",
		job, int64(step), index, name).Scan)
	ok, err := found(err)
	return e, ok, err
}

// JournalPage returns entries after the key of the entry.
func (r *reader) JournalPage(job uuid.UUID, after *daemon.JournalEntry, limit int) ([]daemon.JournalEntry, error) {
	var step, index int64 = -1, 0
	name := ""
	if after != nil {
		step, index, name = int64(after.Step), after.Index, after.Name
	}
	rows, err := r.q.Query("SELECT "+journalColumns+` FROM journal WHERE job_id = ? AND (step, idx, name) > (?, ?, ?)
		ORDER BY step, idx, name LIMIT ?`, job, step, index, name, limit)
	return collect(rows, err, func(rows *store.Rows) (daemon.JournalEntry, error) { return scanEntry(rows.Scan) })
}

// JournalSummary counts the job's entries by state.
func (r *reader) JournalSummary(job uuid.UUID) (*pb.JournalSummary, error) {
	s := &pb.JournalSummary{}
	err := r.q.QueryRow(`SELECT count(*) FILTER (WHERE state = 'intent'), count(*) FILTER (WHERE state = 'built'),
		count(*) FILTER (WHERE state = 'published'), count(*) FILTER (WHERE state = 'rolled_back'),
		count(*) FILTER (WHERE state = 'trashed') FROM journal WHERE job_id = ?`, job).
		Scan(&s.Intents, &s.Built, &s.Published, &s.RolledBack, &s.Trashed)
	return s, err
}

// PutJournal inserts entries, or replaces those with the same key.
func (t *tx) PutJournal(job uuid.UUID, entries []daemon.JournalEntry) error {
	for _, e := range entries {
		if err := t.exec("INSERT INTO journal(job_id, "+journalColumns+`) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT(job_id, step, idx, name) DO UPDATE SET root_id = excluded.root_id, temp_name = excluded.temp_name,
			temp_root_id = excluded.temp_root_id, method = excluded.method, device = excluded.device, inode = excluded.inode,
			size = excluded.size, mtime_ns = excluded.mtime_ns, sha256 = excluded.sha256, state = excluded.state,
			detail = excluded.detail`,
			job, int64(e.Step), e.Index, e.Name, e.RootID, e.TempName, e.TempRootID, int64(e.Method), wide(e.Device), wide(e.Inode),
			int64(e.Size), e.MtimeNs, e.SHA256, string(e.State), e.Detail); err != nil {
			return err
		}
	}
	return nil
}
