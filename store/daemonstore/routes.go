package daemonstore

import (
	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/fault"
	"signalbox/store"
)

const routeColumns = `route_id, side, route, creation_command_id, command_id, probe_nonce, last_sequence, acked_sequence, state,
	remove_provisioned`

func scanRoute(scan func(...any) error) (daemon.RouteRow, error) {
	var r daemon.RouteRow
	var side, state int32
	var route []byte
	if err := scan(&r.ID, &side, &route, &r.CreationCommandID, &r.CommandID, &r.ProbeNonce, &r.LastSequence, &r.AckedSequence,
		&state, &r.RemoveProvisioned); err != nil {
		return r, err
	}
	r.Side, r.State, r.Route = pb.ParticipantRole(side), pb.RouteState(state), &pb.Route{}
	return r, decode(route, r.Route)
}

// Route returns one side of a route.
func (r *reader) Route(id uuid.UUID, side pb.ParticipantRole) (daemon.RouteRow, bool, error) {
	row, err := scanRoute(r.q.QueryRow("SELECT "+routeColumns+" FROM routes WHERE route_id = ? AND side = ?", id, int64(side)).Scan)
	ok, err := found(err)
	return row, ok, err
}

// Routes returns all routes, oldest first.
func (r *reader) Routes() ([]daemon.RouteRow, error) {
	rows, err := r.q.Query("SELECT " + routeColumns + " FROM routes ORDER BY route_no")
	return collect(rows, err, func(rows *store.Rows) (daemon.RouteRow, error) { return scanRoute(rows.Scan) })
}

// RouteUpdates returns the route's updates from the sequence on.
func (r *reader) RouteUpdates(id uuid.UUID, side pb.ParticipantRole, from uint64) ([]*pb.RouteUpdate, error) {
	rows, err := r.q.Query("SELECT update_blob FROM route_outbox WHERE route_id = ? AND side = ? AND sequence >= ? ORDER BY sequence",
		id, int64(side), int64(from))
	return collect(rows, err, func(rows *store.Rows) (*pb.RouteUpdate, error) {
		var b []byte
		if err := rows.Scan(&b); err != nil {
			return nil, err
		}
		u := &pb.RouteUpdate{}
		return u, decode(b, u)
	})
}

// PutRoute inserts or replaces one side of a route.
func (t *tx) PutRoute(r daemon.RouteRow) error {
	route, err := encode(r.Route)
	if err != nil {
		return err
	}
	return t.exec("INSERT INTO routes("+routeColumns+`) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT(route_id, side) DO UPDATE SET route = excluded.route, command_id = excluded.command_id,
		probe_nonce = excluded.probe_nonce, last_sequence = excluded.last_sequence, acked_sequence = excluded.acked_sequence,
		state = excluded.state, remove_provisioned = excluded.remove_provisioned`,
		r.ID, int64(r.Side), route, r.CreationCommandID, r.CommandID, r.ProbeNonce, int64(r.LastSequence), int64(r.AckedSequence),
		int64(r.State), r.RemoveProvisioned)
}

// TrimRouteUpdates deletes the updates of the side through the sequence.
func (t *tx) TrimRouteUpdates(id uuid.UUID, side pb.ParticipantRole, through uint64) error {
	return t.exec("DELETE FROM route_outbox WHERE route_id = ? AND side = ? AND sequence <= ?", id, int64(side), int64(through))
}

// InsertRouteUpdate stores a new update.
func (t *tx) InsertRouteUpdate(u *pb.RouteUpdate) error {
	id, err := uuid.Parse(u.GetRouteId())
	if err != nil {
		return fault.Wrap(fault.Internal, err, "a route update without its UUID")
	}
	b, err := encode(u)
	if err != nil {
		return err
	}
	return t.exec("INSERT INTO route_outbox(route_id, side, sequence, update_blob) VALUES(?, ?, ?, ?)",
		id, int64(u.GetSide()), int64(u.GetSequence()), b)
}
