package store

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/job"
)

const peerColumns = `daemon_no, id, name, generation, online, paused, limits, negotiated_minor, registered_at, last_seen_at,
	generation_used`

func peerScan(scan func(...any) error) (p job.Peer, err error) {
	err = scan(&p.No, &p.ID, &p.Name, &p.Generation, &p.Online, &p.Paused, &p.Limits, &p.Minor, &p.RegisteredAt,
		&p.LastSeenAt, &p.GenerationUsed)
	return p, err
}

// JobPeer implements job.ReadTx.
func (r *reader) JobPeer(daemonNo int64) (job.Peer, error) {
	return peerScan(r.QueryRow(`SELECT `+peerColumns+` FROM daemons WHERE daemon_no = ?`, daemonNo).Scan)
}

// JobPeerByID implements job.ReadTx.
func (r *reader) JobPeerByID(id uuid.UUID) (job.Peer, bool, error) {
	p, err := peerScan(r.QueryRow(`SELECT `+peerColumns+` FROM daemons WHERE id = ? AND forgotten_at IS NULL`, id).Scan)
	ok, err := jobFound(err)
	return p, ok, err
}

// JobRouteNo implements job.ReadTx.
func (r *reader) JobRouteNo(id uuid.UUID) (no int64, ok bool, err error) {
	ok, err = jobFound(r.QueryRow(`SELECT route_no FROM archive_routes WHERE id = ? AND removed_at IS NULL`, id).Scan(&no))
	return no, ok, err
}

// JobRouteKind implements job.ReadTx.
func (r *reader) JobRouteKind(routeNo int64) (kind pb.RouteKind, err error) {
	err = r.QueryRow(`SELECT kind FROM archive_routes WHERE route_no = ?`, routeNo).Scan(&kind)
	return kind, err
}

const jobEventColumns = `job_no, sequence, event_id, daemon_no, command_no, kind, message, received_at`

func jobEventScan(scan func(...any) error) (e job.Stored, err error) {
	err = scan(&e.JobNo, &e.Sequence, &e.EventID, &e.DaemonNo, &e.CommandNo, &e.Kind, &e.Message, &e.At)
	return e, err
}

// JobEvent implements job.ReadTx.
func (r *reader) JobEvent(jobNo, sequence int64) (job.Stored, bool, error) {
	e, err := jobEventScan(r.QueryRow(`SELECT `+jobEventColumns+` FROM archive_events WHERE job_no = ? AND sequence = ?`,
		jobNo, sequence).Scan)
	ok, err := jobFound(err)
	return e, ok, err
}

// JobEventByID implements job.ReadTx.
func (r *reader) JobEventByID(id uuid.UUID) (job.Stored, bool, error) {
	e, err := jobEventScan(r.QueryRow(`SELECT `+jobEventColumns+` FROM archive_events WHERE event_id = ?`, id).Scan)
	ok, err := jobFound(err)
	return e, ok, err
}

// JobEvents implements job.ReadTx.
func (r *reader) JobEvents(jobNo int64) ([]job.Stored, error) {
	rows, err := r.Query(`SELECT `+jobEventColumns+` FROM archive_events WHERE job_no = ? ORDER BY sequence`, jobNo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []job.Stored
	for rows.Next() {
		e, err := jobEventScan(rows.Scan)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, rows.Err()
}

// JobInsertEvent implements job.Tx.
func (tx *Tx) JobInsertEvent(e *job.Stored) error {
	_, err := tx.Exec(`INSERT INTO archive_events (`+jobEventColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`, e.JobNo, e.Sequence,
		e.EventID, e.DaemonNo, e.CommandNo, int32(e.Kind), e.Message, e.At)
	return err
}

// JobTrimEvents implements job.Tx. The kinds are those of progress: they prove nothing.
func (tx *Tx) JobTrimEvents(jobNo, daemonNo int64, keep int) error {
	_, err := tx.Exec(`DELETE FROM archive_events WHERE job_no = ?1 AND daemon_no = ?2 AND kind IN (20, 21, 22)
		AND sequence <= coalesce((SELECT sequence FROM archive_events WHERE job_no = ?1 AND daemon_no = ?2
			AND kind IN (20, 21, 22) ORDER BY sequence DESC LIMIT 1 OFFSET ?3), 0)`, jobNo, daemonNo, keep)
	return err
}

// JobAsides implements job.ReadTx.
func (r *reader) JobAsides(jobNo, daemonNo int64) ([]job.Aside, error) {
	rows, err := r.Query(`SELECT aside_no, job_no, daemon_no, generation, sequence, message FROM archive_events_aside
		WHERE job_no = ? AND daemon_no = ? ORDER BY sequence`, jobNo, daemonNo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []job.Aside
	for rows.Next() {
		var a job.Aside
		if err := rows.Scan(&a.No, &a.JobNo, &a.DaemonNo, &a.Generation, &a.Sequence, &a.Message); err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, rows.Err()
}

// JobInsertAside implements job.Tx.
func (tx *Tx) JobInsertAside(a *job.Aside) error {
	_, err := tx.Exec(`INSERT INTO archive_events_aside (job_no, daemon_no, generation, sequence, message)
		VALUES (?, ?, ?, ?, ?)`, a.JobNo, a.DaemonNo, a.Generation, a.Sequence, a.Message)
	return err
}

// JobDropAsides implements job.Tx.
func (tx *Tx) JobDropAsides(jobNo, daemonNo int64) error {
	_, err := tx.Exec(`DELETE FROM archive_events_aside WHERE job_no = ? AND daemon_no = ?`, jobNo, daemonNo)
	return err
}

const proofColumns = `job_no, step, command_no, sha256, evidence, stored_at`

func proofScan(scan func(...any) error) (p job.Proof, err error) {
	err = scan(&p.JobNo, &p.Step, &p.CommandNo, &p.SHA256, &p.Evidence, &p.At)
	return p, err
}

// JobProof implements job.ReadTx.
func (r *reader) JobProof(jobNo int64, step int32) (job.Proof, bool, error) {
	p, err := proofScan(r.QueryRow(`SELECT `+proofColumns+` FROM archive_evidence WHERE job_no = ? AND step = ?`, jobNo,
		step).Scan)
	ok, err := jobFound(err)
	return p, ok, err
}

// JobProofs implements job.ReadTx.
func (r *reader) JobProofs(jobNo int64) ([]job.Proof, error) {
	rows, err := r.Query(`SELECT `+proofColumns+` FROM archive_evidence WHERE job_no = ? ORDER BY step`, jobNo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []job.Proof
	for rows.Next() {
		p, err := proofScan(rows.Scan)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, rows.Err()
}

// JobPutProof implements job.Tx.
func (tx *Tx) JobPutProof(p *job.Proof) error {
	_, err := tx.Exec(`INSERT INTO archive_evidence (`+proofColumns+`) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (job_no, step) DO UPDATE SET command_no = excluded.command_no, sha256 = excluded.sha256,
			evidence = excluded.evidence, stored_at = excluded.stored_at`, p.JobNo, int32(p.Step), p.CommandNo, p.SHA256,
		p.Evidence, p.At)
	return err
}

const jobPreviewColumns = `preview_no, id, request, state, draft, coalesce(job_no, 0), error`

func jobPreviewScan(scan func(...any) error) (p job.Preview, ok bool, err error) {
	ok, err = jobFound(scan(&p.No, &p.ID, &p.Request, &p.State, &p.Draft, &p.JobNo, &p.Error))
	return p, ok, err
}

// JobPreview implements job.ReadTx.
func (r *reader) JobPreview(id uuid.UUID) (job.Preview, bool, error) {
	return jobPreviewScan(r.QueryRow(`SELECT `+jobPreviewColumns+` FROM archive_previews WHERE id = ?`, id).Scan)
}

// JobPreviewOf implements job.ReadTx.
func (r *reader) JobPreviewOf(jobNo int64) (job.Preview, bool, error) {
	return jobPreviewScan(r.QueryRow(`SELECT `+jobPreviewColumns+` FROM archive_previews WHERE job_no = ?
		ORDER BY preview_no LIMIT 1`, jobNo).Scan)
}

// JobTakePreview implements job.Tx.
func (tx *Tx) JobTakePreview(previewNo, jobNo int64) error {
	_, err := tx.Exec(`UPDATE archive_previews SET job_no = ? WHERE preview_no = ?`, jobNo, previewNo)
	return err
}

// JobHolder implements job.ReadTx.
func (r *reader) JobHolder(v job.Reservation) (no int64, err error) {
	_, err = jobFound(r.QueryRow(`SELECT job_no FROM archive_reservations WHERE daemon_no = ? AND kind = ? AND name = ?
		AND released_at IS NULL`, v.DaemonNo, v.Kind, v.Name).Scan(&no))
	return no, err
}

// JobReservations implements job.ReadTx.
func (r *reader) JobReservations(jobNo int64) ([]job.Reservation, error) {
	rows, err := r.Query(`SELECT job_no, daemon_no, kind, name FROM archive_reservations WHERE job_no = ?
		AND released_at IS NULL ORDER BY reservation_no`, jobNo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []job.Reservation
	for rows.Next() {
		var v job.Reservation
		if err := rows.Scan(&v.JobNo, &v.DaemonNo, &v.Kind, &v.Name); err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

// JobReserve implements job.Tx.
func (tx *Tx) JobReserve(v job.Reservation) error {
	_, err := tx.Exec(`INSERT INTO archive_reservations (job_no, daemon_no, kind, name) VALUES (?, ?, ?, ?)`, v.JobNo,
		v.DaemonNo, v.Kind, v.Name)
	return err
}

// JobUnreserve implements job.Tx.
func (tx *Tx) JobUnreserve(v job.Reservation) error {
	_, err := tx.Exec(`UPDATE archive_reservations SET released_at = ? WHERE job_no = ? AND daemon_no = ? AND kind = ?
		AND name = ? AND released_at IS NULL`, tx.Now(), v.JobNo, v.DaemonNo, v.Kind, v.Name)
	return err
}

// JobRelease implements job.Tx.
func (tx *Tx) JobRelease(jobNo int64) error {
	_, err := tx.Exec(`UPDATE archive_reservations SET released_at = ? WHERE job_no = ? AND released_at IS NULL`, tx.Now(),
		jobNo)
	return err
}

// JobInsertEntry implements job.Tx.
func (tx *Tx) JobInsertEntry(e *job.Entry) error {
	res, err := tx.Exec(`INSERT INTO archive_timeline (job_no, daemon_no, command_no, at, event, state, detail)
		VALUES (?, ?, ?, ?, ?, ?, ?)`, e.JobNo, roomNoOrNull(e.DaemonNo), roomNoOrNull(e.CommandNo), e.At, e.Event, int32(e.State),
		string(e.Detail))
	e.No = res.LastInsertID()
	return err
}

// JobTimeline implements job.ReadTx.
func (r *reader) JobTimeline(jobNo, after int64, limit int) ([]job.Entry, error) {
	where, args := `t.entry_no > ?`, []any{after}
	if jobNo != 0 {
		where, args = `t.job_no = ? AND `+where, []any{jobNo, after}
	}
	rows, err := r.Query(`SELECT t.entry_no, t.job_no, j.id, coalesce(t.daemon_no, 0), coalesce(d.name, ''),
			coalesce(t.command_no, 0), c.id, t.at, t.event, t.state, t.detail
		FROM archive_timeline t JOIN archive_jobs j ON j.job_no = t.job_no LEFT JOIN daemons d ON d.daemon_no = t.daemon_no
			LEFT JOIN daemon_commands c ON c.command_no = t.command_no
		WHERE `+where+` ORDER BY t.entry_no LIMIT ?`, append(args, limit)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []job.Entry
	for rows.Next() {
		var e job.Entry
		var command uuid.NullUUID
		var detail string
		if err := rows.Scan(&e.No, &e.JobNo, &e.JobID, &e.DaemonNo, &e.Daemon, &e.CommandNo, &command, &e.At, &e.Event,
			&e.State, &detail); err != nil {
			return nil, err
		}
		e.CommandID, e.Detail = command.UUID, json.RawMessage(detail)
		out = append(out, e)
	}
	return out, rows.Err()
}

// JobTimelineHead implements job.ReadTx.
func (r *reader) JobTimelineHead() (no int64, err error) {
	err = r.QueryRow(`SELECT coalesce(max(entry_no), 0) FROM archive_timeline`).Scan(&no)
	return no, err
}

// metaArchiveHold holds the time, in microseconds, since which every participant must have registered.
const metaArchiveHold = `archive_hold_since`

// JobHold implements job.ReadTx.
func (r *reader) JobHold() (time.Time, error) {
	n, found, err := r.metaNumber(metaArchiveHold)
	if err != nil || !found {
		return time.Time{}, err
	}
	return time.UnixMicro(n).UTC(), nil
}

// JobSetHold implements job.Tx.
func (tx *Tx) JobSetHold(since time.Time) error {
	return tx.setMetaNumber(metaArchiveHold, since.UnixMicro())
}
