package store

import (
	"database/sql"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/registry"
	"signalbox/appliance/fault"
)

var (
	_ registry.Tx     = (*Tx)(nil)
	_ registry.ReadTx = (*ReadTx)(nil)
)

const daemonColumns = `daemon_no, id, name, role, software, major, minor, negotiated_minor, limits, generation, generation_used,
	instance_id, state_epoch, epoch_since, first_epoch, previous_epoch, paused, online, registered_at, last_seen_at, offline_at,
	clock_skew_ms, remote, created_at, forgotten_at`

func scanDaemon(scan func(...any) error) (d registry.Daemon, err error) {
	var (
		limits   []byte
		previous uuid.NullUUID
		skew     int64
	)
	err = scan(&d.No, &d.ID, &d.Name, &d.Role, &d.Software, &d.Major, &d.Minor, &d.Negotiated, &limits, &d.Generation,
		&d.GenerationUsed, &d.Instance, &d.Epoch, &d.EpochSince, &d.FirstEpoch, &previous, &d.Paused, &d.Online, &d.RegisteredAt,
		&d.LastSeenAt, &d.OfflineAt, &skew, &d.Remote, &d.CreatedAt, &d.ForgottenAt)
	if err != nil {
		return d, err
	}
	d.PreviousEpoch, d.ClockSkew = previous.UUID, time.Duration(skew)*time.Millisecond
	d.Limits = &pb.Limits{}
	return d, unmarshalStored(limits, d.Limits)
}

// RegistryDaemon implements registry.ReadTx.
func (r *reader) RegistryDaemon(daemonNo int64) (registry.Daemon, error) {
	return r.oneDaemon(`daemon_no = ?`, daemonNo)
}

// RegistryDaemonByID implements registry.ReadTx.
func (r *reader) RegistryDaemonByID(id uuid.UUID) (registry.Daemon, error) {
	return r.oneDaemon(`id = ?`, id)
}

func (r *reader) oneDaemon(condition string, arg any) (registry.Daemon, error) {
	d, err := scanDaemon(r.QueryRow(`SELECT `+daemonColumns+` FROM daemons WHERE `+condition, arg).Scan)
	if err != nil {
		return d, err
	}
	rows, err := r.Query(`SELECT name FROM daemon_capabilities WHERE daemon_no = ? ORDER BY name`, d.No)
	if err != nil {
		return d, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return d, err
		}
		d.Capabilities = append(d.Capabilities, name)
	}
	return d, rows.Err()
}

// RegistryDaemons implements registry.ReadTx.
func (r *reader) RegistryDaemons() ([]registry.Daemon, error) {
	rows, err := r.Query(`SELECT ` + daemonColumns + ` FROM daemons WHERE forgotten_at IS NULL ORDER BY name, daemon_no`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []registry.Daemon
	at := map[int64]int{}
	for rows.Next() {
		d, err := scanDaemon(rows.Scan)
		if err != nil {
			return nil, err
		}
		at[d.No] = len(list)
		list = append(list, d)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	names, err := r.Query(`SELECT daemon_no, name FROM daemon_capabilities ORDER BY daemon_no, name`)
	if err != nil {
		return nil, err
	}
	defer names.Close()
	for names.Next() {
		var no int64
		var name string
		if err := names.Scan(&no, &name); err != nil {
			return nil, err
		}
		if i, ok := at[no]; ok {
			list[i].Capabilities = append(list[i].Capabilities, name)
		}
	}
	return list, names.Err()
}

// RegistryOwner implements registry.FenceTx.
func (r *reader) RegistryOwner(daemonNo int64) (o registry.Owner, err error) {
	err = r.QueryRow(`SELECT generation, generation_used, online, paused FROM daemons WHERE daemon_no = ?`, daemonNo).
		Scan(&o.Generation, &o.Used, &o.Online, &o.Paused)
	return o, err
}

// RegistryUse implements registry.FenceTx.
func (tx *Tx) RegistryUse(daemonNo, generation int64) error {
	_, err := tx.Exec(`UPDATE daemons SET generation_used = ? WHERE daemon_no = ? AND generation_used < ?`, generation, daemonNo,
		generation)
	return err
}

// daemonValues are the values of a registration, in the order of the statements below.
func daemonValues(d *registry.Daemon) ([]any, error) {
	limits, err := marshalStored(d.Limits)
	if err != nil {
		return nil, err
	}
	return []any{d.Name, int64(d.Role), d.Software, int64(d.Major), int64(d.Minor), int64(d.Negotiated), limits, d.Generation,
		d.GenerationUsed, d.Instance, d.Epoch, d.EpochSince, d.FirstEpoch,
		uuid.NullUUID{UUID: d.PreviousEpoch, Valid: d.PreviousEpoch != uuid.Nil}, d.Paused, d.Online, d.RegisteredAt, d.LastSeenAt,
		d.OfflineAt, d.ClockSkew.Milliseconds(), d.Remote, d.ForgottenAt}, nil
}

// RegistryInsert implements registry.Tx.
func (tx *Tx) RegistryInsert(d *registry.Daemon) error {
	values, err := daemonValues(d)
	if err != nil {
		return err
	}
	res, err := tx.Exec(`INSERT INTO daemons (name, role, software, major, minor, negotiated_minor, limits, generation,
			generation_used, instance_id, state_epoch, epoch_since, first_epoch, previous_epoch, paused, online, registered_at,
			last_seen_at, offline_at, clock_skew_ms, remote, forgotten_at, id, created_at)
		VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`, append(values, d.ID, d.CreatedAt)...)
	if err != nil {
		return err
	}
	d.No = res.LastInsertID()
	return tx.setCapabilities(d)
}

// RegistryUpdate implements registry.Tx.
func (tx *Tx) RegistryUpdate(d *registry.Daemon) error {
	values, err := daemonValues(d)
	if err != nil {
		return err
	}
	_, err = tx.Exec(`UPDATE daemons SET name = ?, role = ?, software = ?, major = ?, minor = ?, negotiated_minor = ?, limits = ?,
			generation = ?, generation_used = ?, instance_id = ?, state_epoch = ?, epoch_since = ?, first_epoch = ?,
			previous_epoch = ?, paused = ?, online = ?, registered_at = ?, last_seen_at = ?, offline_at = ?, clock_skew_ms = ?,
			remote = ?, forgotten_at = ?
		WHERE daemon_no = ?`, append(values, d.No)...)
	if err != nil {
		return err
	}
	return tx.setCapabilities(d)
}

// setCapabilities touches the table only where the list has changed, for daemons reconnect more often than they change.
func (tx *Tx) setCapabilities(d *registry.Daemon) error {
	names, err := jsonText(append([]string{}, d.Capabilities...)) // a list also when there are none
	if err != nil {
		return err
	}
	if _, err := tx.Exec(`DELETE FROM daemon_capabilities WHERE daemon_no = ?1
		AND name NOT IN (SELECT value FROM json_each(?2))`, d.No, names); err != nil {
		return err
	}
	_, err = tx.Exec(`INSERT INTO daemon_capabilities (daemon_no, name) SELECT ?1, value FROM json_each(?2) WHERE true
		ON CONFLICT DO NOTHING`, d.No, names)
	return err
}

// RegistryOffline implements registry.Tx.
func (tx *Tx) RegistryOffline(daemonNo, generation int64) (bool, error) {
	res, err := tx.Exec(`UPDATE daemons SET online = 0, offline_at = ? WHERE daemon_no = ? AND generation = ? AND online = 1`,
		tx.now, daemonNo, generation)
	return res.RowsAffected() == 1, err
}

// RegistrySeen implements registry.Tx.
func (tx *Tx) RegistrySeen(seen []registry.Seen) error {
	for _, s := range seen {
		if _, err := tx.Exec(`UPDATE daemons SET last_seen_at = ?, clock_skew_ms = ? WHERE daemon_no = ? AND generation = ?`, s.At,
			s.ClockSkew.Milliseconds(), s.DaemonNo, s.Generation); err != nil {
			return err
		}
	}
	return nil
}

// RegistryResume implements registry.Tx.
func (tx *Tx) RegistryResume(daemonNo int64, epoch uuid.UUID) (bool, error) {
	res, err := tx.Exec(`UPDATE daemons SET paused = 0 WHERE daemon_no = ? AND state_epoch = ? AND paused = 1`, daemonNo, epoch)
	return res.RowsAffected() == 1, err
}

// RegistryUses implements registry.ReadTx.
func (r *reader) RegistryUses(daemonNo int64) (u registry.Uses, err error) {
	if u.Jobs, err = r.scanIDs(`SELECT j.id FROM archive_jobs j WHERE j.state < 90 AND (j.source_daemon_no = ?1
			OR j.target_daemon_no = ?1 OR EXISTS (SELECT 1 FROM archive_participants p WHERE p.job_no = j.job_no AND p.daemon_no = ?1))
		ORDER BY j.job_no LIMIT 10`, daemonNo); err != nil {
		return u, err
	}
	rows, err := r.Query(`SELECT name FROM archive_routes WHERE removed_at IS NULL
		AND (source_daemon_no = ?1 OR target_daemon_no = ?1) ORDER BY route_no LIMIT 10`, daemonNo)
	if err != nil {
		return u, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return u, err
		}
		u.Routes = append(u.Routes, name)
	}
	return u, rows.Err()
}

// RegistryForget implements registry.Tx.
func (tx *Tx) RegistryForget(daemonNo int64) error {
	for _, query := range []string{
		`UPDATE daemons SET forgotten_at = ?2, paused = 0 WHERE daemon_no = ?1`,
		`UPDATE daemon_commands SET state = 'closed', closed_at = ?2 WHERE daemon_no = ?1 AND state IN ('pending', 'sent', 'parked')`,
		`UPDATE archive_alerts SET cleared_at = ?2 WHERE daemon_no = ?1 AND cleared_at IS NULL`,
	} {
		if _, err := tx.Exec(query, daemonNo, tx.now); err != nil {
			return err
		}
	}
	_, err := tx.Exec(`DELETE FROM daemon_capabilities WHERE daemon_no = ?`, daemonNo)
	return err
}

// RegistryRaise implements registry.AlertTx.
func (tx *Tx) RegistryRaise(kind archive.AlertKind, daemonNo, jobNo int64, detail string) error {
	res, err := tx.Exec(`UPDATE archive_alerts SET detail = ?, last_at = ?, times = times + 1
		WHERE kind = ? AND coalesce(daemon_no, 0) = ? AND coalesce(job_no, 0) = ? AND cleared_at IS NULL`, detail, tx.now,
		string(kind), daemonNo, jobNo)
	if err != nil || res.RowsAffected() > 0 {
		return err
	}
	_, err = tx.Exec(`INSERT INTO archive_alerts (daemon_no, job_no, kind, detail, raised_at, last_at) VALUES (?,?,?,?,?,?)`,
		numberOrNull(daemonNo), numberOrNull(jobNo), string(kind), detail, tx.now, tx.now)
	return err
}

// RegistryClear implements registry.AlertTx.
func (tx *Tx) RegistryClear(kind archive.AlertKind, daemonNo, jobNo int64) (bool, error) {
	res, err := tx.Exec(`UPDATE archive_alerts SET cleared_at = ?
		WHERE kind = ? AND coalesce(daemon_no, 0) = ? AND coalesce(job_no, 0) = ? AND cleared_at IS NULL`, tx.now, string(kind),
		daemonNo, jobNo)
	return res.RowsAffected() > 0, err
}

// RegistryClearAlert implements registry.Tx.
func (tx *Tx) RegistryClearAlert(alertNo int64) error {
	res, err := tx.Exec(`UPDATE archive_alerts SET cleared_at = ? WHERE alert_no = ? AND cleared_at IS NULL`, tx.now, alertNo)
	if err == nil && res.RowsAffected() == 0 {
		return fault.New(fault.NotFound, "there is no open alert %d", alertNo)
	}
	return err
}

// RegistryAlerts implements registry.ReadTx.
func (r *reader) RegistryAlerts(f registry.AlertFilter) ([]registry.Alert, error) {
	rows, err := r.Query(`SELECT a.alert_no, coalesce(a.daemon_no, 0), d.id, coalesce(a.job_no, 0), j.id, a.kind, a.detail,
			a.raised_at, a.last_at, a.times, a.cleared_at
		FROM archive_alerts a LEFT JOIN daemons d ON d.daemon_no = a.daemon_no LEFT JOIN archive_jobs j ON j.job_no = a.job_no
		WHERE (?1 = 0 OR a.daemon_no = ?1) AND (?2 = 0 OR a.job_no = ?2) AND (?3 OR a.cleared_at IS NULL)
		ORDER BY a.alert_no DESC LIMIT ?4`, f.DaemonNo, f.JobNo, f.Cleared, f.Limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	list := []registry.Alert{}
	for rows.Next() {
		var a registry.Alert
		var daemon, job uuid.NullUUID
		if err := rows.Scan(&a.No, &a.DaemonNo, &daemon, &a.JobNo, &job, &a.Kind, &a.Detail, &a.RaisedAt, &a.LastAt, &a.Times,
			&a.ClearedAt); err != nil {
			return nil, err
		}
		a.DaemonID, a.JobID = daemon.UUID, job.UUID
		list = append(list, a)
	}
	return list, rows.Err()
}

// numberOrNull is 0 as NULL.
func numberOrNull(no int64) sql.NullInt64 { return sql.NullInt64{Int64: no, Valid: no != 0} }

// marshalStored is the form in which messages of the archive plane are kept: known fields in ascending order, map entries
// sorted.
func marshalStored(m proto.Message) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "encode a message for the database")
	}
	return b, nil
}

func unmarshalStored(b []byte, m proto.Message) error {
	if err := proto.Unmarshal(b, m); err != nil {
		return fault.Wrap(fault.Internal, err, "the database holds a message that cannot be read")
	}
	return nil
}
