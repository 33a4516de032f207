package store

import (
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/route"
)

var (
	_ route.Tx     = (*Tx)(nil)
	_ route.ReadTx = (*ReadTx)(nil)
)

const routeSelect = `SELECT r.route_no, r.id, r.name, r.route, r.state, r.broken, r.error, r.created_at, r.updated_at, r.removed_at,
		s.daemon_no, s.id, s.name, s.role, s.online, t.daemon_no, t.id, t.name, t.role, t.online
	FROM archive_routes r JOIN daemons s ON s.daemon_no = r.source_daemon_no JOIN daemons t ON t.daemon_no = r.target_daemon_no
	WHERE `

func scanRoute(scan func(...any) error) (v route.Route, err error) {
	var message, detail []byte
	s, t := &v.Source, &v.Target
	if err := scan(&v.No, &v.ID, &v.Name, &message, &v.State, &v.Broken, &detail, &v.CreatedAt, &v.UpdatedAt, &v.RemovedAt,
		&s.Ref.No, &s.Ref.ID, &s.Name, &s.Role, &s.Online, &t.Ref.No, &t.Ref.ID, &t.Name, &t.Role, &t.Online); err != nil {
		return v, err
	}
	v.Message = &pb.Route{}
	if _, err := pbRead(message, v.Message); err != nil {
		return v, err
	}
	v.Error, err = pbDetail(detail)
	return v, err
}

// pbDetail reads a stored ErrorDetail; nil where there is none.
func pbDetail(b []byte) (*pb.ErrorDetail, error) {
	d := &pb.ErrorDetail{}
	if ok, err := pbRead(b, d); !ok {
		return nil, err
	}
	return d, nil
}

func (r *reader) routes(where string, args ...any) ([]route.Route, error) {
	rows, err := r.Query(routeSelect+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []route.Route
	for rows.Next() {
		v, err := scanRoute(rows.Scan)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

func (r *reader) route(where string, args ...any) (route.Route, bool, error) {
	list, err := r.routes(where, args...)
	if err != nil || len(list) == 0 {
		return route.Route{}, false, err
	}
	return list[0], true, nil
}

// RouteByNo implements route.ReadTx.
func (r *reader) RouteByNo(no int64) (route.Route, bool, error) { return r.route(`r.route_no = ?`, no) }

// RouteByID implements route.ReadTx.
func (r *reader) RouteByID(id uuid.UUID) (route.Route, bool, error) { return r.route(`r.id = ?`, id) }

// RouteByName implements route.ReadTx.
func (r *reader) RouteByName(name string) (route.Route, bool, error) {
	return r.route(`r.name = ? AND r.removed_at IS NULL`, name)
}

// Routes implements route.ReadTx.
func (r *reader) Routes(removed bool, after int64, limit int) ([]route.Route, error) {
	return r.routes(`r.route_no > ? AND (? OR r.removed_at IS NULL) ORDER BY r.route_no LIMIT ?`, after, removed, limit)
}

// RoutesOf implements route.ReadTx.
func (r *reader) RoutesOf(daemonNo int64) ([]route.Route, error) {
	return r.routes(`(r.source_daemon_no = ?1 OR r.target_daemon_no = ?1) AND r.state <> ?2 ORDER BY r.route_no`, daemonNo,
		int32(pb.RouteState_ROUTE_STATE_REMOVED))
}

// RouteInsert implements route.Tx.
func (tx *Tx) RouteInsert(v *route.Route) error {
	message, err := pbBytes(v.Message)
	if err != nil {
		return err
	}
	res, err := tx.Exec(`INSERT INTO archive_routes (id, name, kind, source_daemon_no, target_daemon_no, route, state, created_at,
			updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`, v.ID, v.Name, int32(v.Message.GetKind()), v.Source.Ref.No, v.Target.Ref.No,
		message, int32(v.State), v.CreatedAt, v.UpdatedAt)
	v.No = res.LastInsertID()
	return err
}

// RouteUpdate implements route.Tx.
func (tx *Tx) RouteUpdate(v *route.Route) error {
	detail, err := pbBytes(v.Error)
	if err != nil {
		return err
	}
	_, err = tx.Exec(`UPDATE archive_routes SET state = ?, broken = ?, error = ?, updated_at = ?, removed_at = ? WHERE route_no = ?`,
		int32(v.State), v.Broken, detail, v.UpdatedAt, v.RemovedAt, v.No)
	return err
}

const routeSideSelect = `SELECT s.route_no, s.side, s.daemon_no, d.id, s.creation_command_id, s.latest_command_id,
		coalesce(c.command_no, 0), s.accepted, s.nonce, s.last_sequence, s.fresh_after, s.state, s.probe, s.error, s.quarantined,
		s.quarantine, s.asked_no, s.asked_after, s.remove_command_id, s.updated_at
	FROM archive_route_sides s JOIN daemons d ON d.daemon_no = s.daemon_no
		LEFT JOIN daemon_commands c ON c.id = s.latest_command_id
	WHERE `

func (r *reader) routeSide(where string, args ...any) (s route.Side, ok bool, err error) {
	var (
		probe, detail                []byte
		remove                       uuid.NullUUID
		last, freshAfter, askedAfter int64
	)
	err = r.QueryRow(routeSideSelect+where, args...).Scan(&s.RouteNo, &s.Role, &s.Daemon.No, &s.Daemon.ID, &s.Creation, &s.Latest,
		&s.LatestNo, &s.Accepted, &s.Nonce, &last, &freshAfter, &s.State, &probe, &detail, &s.Quarantined, &s.Quarantine, &s.AskedNo,
		&askedAfter, &remove, &s.UpdatedAt)
	if ok, err = oneRow(err); !ok {
		return s, false, err
	}
	s.LastSequence, s.FreshAfter, s.AskedAfter, s.Remove = uint64(last), uint64(freshAfter), uint64(askedAfter), remove.UUID
	if probe != nil {
		s.Probe = &pb.ProbeResult{}
		if _, err := pbRead(probe, s.Probe); err != nil {
			return s, false, err
		}
	}
	s.Error, err = pbDetail(detail)
	return s, err == nil, err
}

// RouteSide implements route.ReadTx.
func (r *reader) RouteSide(routeNo int64, role pb.ParticipantRole) (route.Side, bool, error) {
	return r.routeSide(`s.route_no = ? AND s.side = ?`, routeNo, int32(role))
}

// RouteSideOfCommand implements route.ReadTx.
func (r *reader) RouteSideOfCommand(id uuid.UUID) (route.Side, bool, error) {
	return r.routeSide(`s.latest_command_id = ?1 OR s.remove_command_id = ?1`, id)
}

// RoutePutSide implements route.Tx.
func (tx *Tx) RoutePutSide(s *route.Side) error {
	probe, err := pbBytes(s.Probe)
	if err != nil {
		return err
	}
	detail, err := pbBytes(s.Error)
	if err != nil {
		return err
	}
	_, err = tx.Exec(`INSERT INTO archive_route_sides (route_no, side, daemon_no, creation_command_id, latest_command_id, accepted,
			nonce, last_sequence, fresh_after, state, probe, error, quarantined, quarantine, asked_no, asked_after, remove_command_id,
			updated_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (route_no, side) DO UPDATE SET creation_command_id = excluded.creation_command_id,
			latest_command_id = excluded.latest_command_id, accepted = excluded.accepted, nonce = excluded.nonce,
			last_sequence = excluded.last_sequence, fresh_after = excluded.fresh_after, state = excluded.state,
			probe = excluded.probe, error = excluded.error, quarantined = excluded.quarantined, quarantine = excluded.quarantine,
			asked_no = excluded.asked_no, asked_after = excluded.asked_after, remove_command_id = excluded.remove_command_id,
			updated_at = excluded.updated_at`,
		s.RouteNo, int32(s.Role), s.Daemon.No, s.Creation, s.Latest, s.Accepted, s.Nonce, int64(s.LastSequence), int64(s.FreshAfter),
		int32(s.State), probe, detail, s.Quarantined, s.Quarantine, s.AskedNo, int64(s.AskedAfter),
		uuid.NullUUID{UUID: s.Remove, Valid: s.Remove != uuid.Nil}, s.UpdatedAt)
	return err
}

const routeUpdateSelect = `SELECT route_no, side, creation_command_id, sequence, update_id, buffered, message, received_at
	FROM archive_route_updates WHERE `

func (r *reader) routeUpdates(where string, args ...any) ([]route.Update, error) {
	rows, err := r.Query(routeUpdateSelect+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []route.Update
	for rows.Next() {
		var (
			u        = route.Update{Message: &pb.RouteUpdate{}}
			sequence int64
			message  []byte
		)
		if err := rows.Scan(&u.RouteNo, &u.Side, &u.Creation, &sequence, &u.ID, &u.Buffered, &message, &u.At); err != nil {
			return nil, err
		}
		u.Sequence = uint64(sequence)
		if _, err := pbRead(message, u.Message); err != nil {
			return nil, err
		}
		out = append(out, u)
	}
	return out, rows.Err()
}

// RouteUpdateAt implements route.ReadTx.
func (r *reader) RouteUpdateAt(s *route.Side, sequence uint64) (route.Update, bool, error) {
	return firstUpdate(r.routeUpdates(`route_no = ? AND side = ? AND creation_command_id = ? AND sequence = ?`, s.RouteNo,
		int32(s.Role), s.Creation, int64(sequence)))
}

// RouteUpdateByID implements route.ReadTx.
func (r *reader) RouteUpdateByID(s *route.Side, id uuid.UUID) (route.Update, bool, error) {
	return firstUpdate(r.routeUpdates(`route_no = ? AND side = ? AND creation_command_id = ? AND update_id = ? LIMIT 1`, s.RouteNo,
		int32(s.Role), s.Creation, id))
}

func firstUpdate(list []route.Update, err error) (route.Update, bool, error) {
	if err != nil || len(list) == 0 {
		return route.Update{}, false, err
	}
	return list[0], true, nil
}

// RouteBuffered implements route.ReadTx.
func (r *reader) RouteBuffered(s *route.Side) (n int, err error) {
	err = r.QueryRow(`SELECT count(*) FROM archive_route_updates WHERE route_no = ? AND side = ? AND creation_command_id = ?
		AND buffered = 1`, s.RouteNo, int32(s.Role), s.Creation).Scan(&n)
	return n, err
}

// RouteUpdates implements route.ReadTx.
func (r *reader) RouteUpdates(routeNo int64, role pb.ParticipantRole, limit int) ([]route.Update, error) {
	return r.routeUpdates(`route_no = ? AND side = ? AND buffered = 0 ORDER BY received_at DESC, sequence DESC LIMIT ?`, routeNo,
		int32(role), limit)
}

// RouteInsertUpdate implements route.Tx.
func (tx *Tx) RouteInsertUpdate(u *route.Update) error {
	message, err := pbBytes(u.Message)
	if err != nil {
		return err
	}
	_, err = tx.Exec(`INSERT INTO archive_route_updates (route_no, side, creation_command_id, sequence, update_id, buffered, message,
			received_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`, u.RouteNo, int32(u.Side), u.Creation, int64(u.Sequence), u.ID, u.Buffered,
		message, u.At)
	return err
}

// RouteApplyUpdate implements route.Tx.
func (tx *Tx) RouteApplyUpdate(u *route.Update) error {
	_, err := tx.Exec(`UPDATE archive_route_updates SET buffered = 0 WHERE route_no = ? AND side = ? AND creation_command_id = ?
		AND sequence = ?`, u.RouteNo, int32(u.Side), u.Creation, int64(u.Sequence))
	return err
}

// RouteFirst implements route.ReadTx.
func (r *reader) RouteFirst(s *route.Side) (sequence uint64, err error) {
	var n int64
	err = r.QueryRow(`SELECT coalesce(min(sequence), 0) FROM archive_route_updates WHERE route_no = ? AND side = ?
		AND creation_command_id = ? AND buffered = 0`, s.RouteNo, int32(s.Role), s.Creation).Scan(&n)
	return uint64(n), err
}

// RouteTrimUpdates implements route.Tx.
func (tx *Tx) RouteTrimUpdates(s *route.Side, through uint64) error {
	_, err := tx.Exec(`DELETE FROM archive_route_updates WHERE route_no = ? AND side = ? AND creation_command_id = ? AND sequence <= ?`,
		s.RouteNo, int32(s.Role), s.Creation, int64(through))
	return err
}

// RouteDropBuffered implements route.Tx.
func (tx *Tx) RouteDropBuffered(s *route.Side) error {
	_, err := tx.Exec(`DELETE FROM archive_route_updates WHERE route_no = ? AND side = ? AND creation_command_id = ? AND buffered = 1`,
		s.RouteNo, int32(s.Role), s.Creation)
	return err
}

// RouteDaemon implements route.ReadTx.
func (r *reader) RouteDaemon(id uuid.UUID) (d route.Daemon, ok bool, err error) {
	err = r.QueryRow(`SELECT daemon_no, id, name, role, online FROM daemons WHERE id = ? AND forgotten_at IS NULL`, id).
		Scan(&d.Ref.No, &d.Ref.ID, &d.Name, &d.Role, &d.Online)
	if ok, err = oneRow(err); !ok {
		return d, false, err
	}
	d.Capabilities, err = r.daemonCapabilities(d.Ref.No)
	return d, err == nil, err
}

// daemonCapabilities are what a daemon announced, sorted.
func (r *reader) daemonCapabilities(daemonNo int64) ([]string, error) {
	rows, err := r.Query(`SELECT name FROM daemon_capabilities WHERE daemon_no = ? ORDER BY name`, daemonNo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		out = append(out, name)
	}
	return out, rows.Err()
}

// RouteStorage implements route.ReadTx.
func (r *reader) RouteStorage(daemonNo int64) ([]*pb.StorageEntry, error) {
	list, err := r.InventoryStorage(daemonNo)
	var out []*pb.StorageEntry
	for _, s := range list {
		out = append(out, s.Entry)
	}
	return out, err
}

// RouteJobs implements route.ReadTx.
func (r *reader) RouteJobs(routeNo int64, limit int) ([]uuid.UUID, error) {
	return r.scanIDs(`SELECT id FROM archive_jobs WHERE route_no = ? AND state < 90 ORDER BY job_no LIMIT ?`, routeNo, limit)
}

// RouteAsking implements route.ReadTx.
func (r *reader) RouteAsking(requestNo int64) (open bool, err error) {
	err = r.QueryRow(`SELECT EXISTS (SELECT 1 FROM inventory_requests WHERE request_no = ? AND state = 'open')`, requestNo).Scan(&open)
	return open, err
}

// RouteAskingOf implements route.ReadTx.
func (r *reader) RouteAskingOf(daemonNo int64) (open bool, err error) {
	err = r.QueryRow(`SELECT EXISTS (SELECT 1 FROM inventory_requests WHERE daemon_no = ? AND state = 'open' AND scope = ?)`, daemonNo,
		int32(pb.InventoryScope_INVENTORY_SCOPE_ROUTES)).Scan(&open)
	return open, err
}

// RouteCreation implements route.ReadTx.
func (r *reader) RouteCreation(daemonNo int64, id uuid.UUID) (*pb.CreateRoute, bool, error) {
	var payload []byte
	err := r.QueryRow(`SELECT payload FROM daemon_commands WHERE id = ? AND daemon_no = ? AND kind = ?`, id, daemonNo,
		int32(archive.CreateRoute)).Scan(&payload)
	if ok, err := oneRow(err); !ok {
		return nil, false, err
	}
	c := &pb.Command{}
	_, err = pbRead(payload, c)
	return c.GetCreateRoute(), err == nil && c.GetCreateRoute() != nil, err
}

// RouteRemovals implements route.ReadTx.
func (r *reader) RouteRemovals(daemonNo int64) ([]*pb.Command, error) {
	blobs, err := r.blobs(`SELECT payload FROM daemon_commands WHERE daemon_no = ? AND kind = ? AND state IN ('pending', 'sent')
		ORDER BY command_no`, daemonNo, int32(archive.RemoveRoute))
	var out []*pb.Command
	for _, b := range blobs {
		c := &pb.Command{}
		if err := proto.Unmarshal(b, c); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, err
}

// RouteForget implements route.Tx. Routes that a job names stay with it.
func (tx *Tx) RouteForget(daemonNo int64) error {
	_, err := tx.Exec(`DELETE FROM archive_routes WHERE (source_daemon_no = ?1 OR target_daemon_no = ?1) AND removed_at IS NOT NULL
		AND NOT EXISTS (SELECT 1 FROM archive_jobs j WHERE j.route_no = archive_routes.route_no)`, daemonNo)
	return err
}
