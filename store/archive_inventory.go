package store

import (
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/inventory"
	"signalbox/appliance/fault"
)

var (
	_ inventory.Tx     = (*Tx)(nil)
	_ inventory.ReadTx = (*ReadTx)(nil)
)

// pbBytes is the stored form of a message; nil for none.
func pbBytes(m proto.Message) ([]byte, error) {
	if m == nil || !m.ProtoReflect().IsValid() {
		return nil, nil
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "a message cannot be stored")
	}
	if b == nil {
		b = []byte{} // an empty message is not none
	}
	return b, nil
}

// pbRead reads a stored message into m and reports whether there was one.
func pbRead(b []byte, m proto.Message) (bool, error) {
	if b == nil {
		return false, nil
	}
	if err := proto.Unmarshal(b, m); err != nil {
		return false, fault.Wrap(fault.Corrupt, err, "a stored message cannot be read")
	}
	return true, nil
}

// oneRow turns the NotFound of a query for one row into false.
func oneRow(err error) (bool, error) {
	if fault.Is(err, fault.NotFound) {
		return false, nil
	}
	return err == nil, err
}

const inventoryRequestColumns = `request_no, id, daemon_no, scope, purpose, query, single, state, faults, restarts, first_query,
	state_epoch, coalesce(revision, 0), entries, next_page, error, created_at, finished_at`

func scanInventoryRequest(scan func(...any) error) (r inventory.Request, err error) {
	var (
		query, detail []byte
		epoch         uuid.NullUUID
		revision      int64
	)
	if err := scan(&r.No, &r.ID, &r.DaemonNo, &r.Scope, &r.Purpose, &query, &r.Single, &r.State, &r.Faults, &r.Restarts, &r.FirstQuery, &epoch,
		&revision, &r.Entries, &r.NextPage, &detail, &r.CreatedAt, &r.FinishedAt); err != nil {
		return r, err
	}
	r.Epoch, r.Revision, r.Query = epoch.UUID, uint64(revision), &pb.InventoryQuery{}
	if _, err := pbRead(query, r.Query); err != nil {
		return r, err
	}
	r.Error = &pb.ErrorDetail{}
	ok, err := pbRead(detail, r.Error)
	if !ok {
		r.Error = nil
	}
	return r, err
}

func (r *reader) inventoryRequests(where string, args ...any) ([]inventory.Request, error) {
	rows, err := r.Query(`SELECT `+inventoryRequestColumns+` FROM inventory_requests WHERE `+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []inventory.Request
	for rows.Next() {
		q, err := scanInventoryRequest(rows.Scan)
		if err != nil {
			return nil, err
		}
		out = append(out, q)
	}
	return out, rows.Err()
}

// InventoryRequest implements inventory.ReadTx.
func (r *reader) InventoryRequest(no int64) (inventory.Request, bool, error) {
	q, err := scanInventoryRequest(r.QueryRow(`SELECT `+inventoryRequestColumns+` FROM inventory_requests WHERE request_no = ?`,
		no).Scan)
	ok, err := oneRow(err)
	return q, ok, err
}

// InventoryRequestByID implements inventory.ReadTx.
func (r *reader) InventoryRequestByID(id uuid.UUID) (inventory.Request, bool, error) {
	q, err := scanInventoryRequest(r.QueryRow(`SELECT `+inventoryRequestColumns+` FROM inventory_requests WHERE id = ?`, id).Scan)
	ok, err := oneRow(err)
	return q, ok, err
}

// InventoryOpenRequests implements inventory.ReadTx.
func (r *reader) InventoryOpenRequests(daemonNo int64) ([]inventory.Request, error) {
	if daemonNo == 0 {
		return r.inventoryRequests(`state = 'open' ORDER BY request_no`)
	}
	return r.inventoryRequests(`state = 'open' AND daemon_no = ? ORDER BY request_no`, daemonNo)
}

// InventoryInsertRequest implements inventory.Tx.
func (tx *Tx) InventoryInsertRequest(r *inventory.Request) error {
	query, err := pbBytes(r.Query)
	if err != nil {
		return err
	}
	res, err := tx.Exec(`INSERT INTO inventory_requests (id, daemon_no, scope, purpose, query, single, state, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?)`, r.ID, r.DaemonNo, int32(r.Scope), int32(r.Purpose), query, r.Single, string(r.State), r.CreatedAt)
	r.No = res.LastInsertID()
	return err
}

// InventoryUpdateRequest implements inventory.Tx.
func (tx *Tx) InventoryUpdateRequest(r *inventory.Request) error {
	detail, err := pbBytes(r.Error)
	if err != nil {
		return err
	}
	_, err = tx.Exec(`UPDATE inventory_requests SET state = ?, faults = ?, restarts = ?, first_query = ?, state_epoch = ?, revision = ?, entries = ?,
		next_page = ?, error = ?, finished_at = ? WHERE request_no = ?`, string(r.State), r.Faults, r.Restarts, r.FirstQuery,
		uuid.NullUUID{UUID: r.Epoch, Valid: r.Epoch != uuid.Nil}, int64(r.Revision), r.Entries, r.NextPage, detail, r.FinishedAt, r.No)
	return err
}

// The command is joined by its number: a query without its command is not found.
const inventoryQuerySelect = `SELECT q.query_no, q.id, q.request_no, q.daemon_no, q.command_no, c.id, q.page, q.state,
		q.generation, q.snapshot_id, q.revision, q.chunks, q.entries, q.last_index, q.content_revision, q.after_index,
		q.after_revision, q.created_at
	FROM inventory_queries q JOIN daemon_commands c ON c.command_no = q.command_no WHERE `

func scanInventoryQuery(scan func(...any) error, more ...any) (q inventory.Query, err error) {
	var (
		snapshot uuid.NullUUID
		revision int64
	)
	err = scan(append([]any{&q.No, &q.ID, &q.RequestNo, &q.DaemonNo, &q.CommandNo, &q.CommandID, &q.Page, &q.State, &q.Generation,
		&snapshot, &revision, &q.Chunks, &q.Entries, &q.LastIndex, &q.ContentRevision, &q.AfterIndex, &q.AfterRevision,
		&q.CreatedAt}, more...)...)
	q.Snapshot, q.Revision = snapshot.UUID, uint64(revision)
	return q, err
}

func (r *reader) inventoryQuery(where string, args ...any) (inventory.Query, bool, error) {
	q, err := scanInventoryQuery(func(dest ...any) error { return r.QueryRow(inventoryQuerySelect+where, args...).Scan(dest...) })
	ok, err := oneRow(err)
	return q, ok, err
}

// InventoryQuery implements inventory.ReadTx.
func (r *reader) InventoryQuery(id uuid.UUID) (inventory.Query, bool, error) {
	return r.inventoryQuery(`q.id = ?`, id)
}

// InventoryQueryByNo implements inventory.ReadTx.
func (r *reader) InventoryQueryByNo(no int64) (inventory.Query, bool, error) {
	return r.inventoryQuery(`q.query_no = ?`, no)
}

// InventoryQueryOfCommand implements inventory.ReadTx.
func (r *reader) InventoryQueryOfCommand(commandNo int64) (inventory.Query, bool, error) {
	return r.inventoryQuery(`q.command_no = ?`, commandNo)
}

// InventoryOpenQuery implements inventory.ReadTx.
func (r *reader) InventoryOpenQuery(requestNo int64) (inventory.Query, bool, error) {
	return r.inventoryQuery(`q.request_no = ? AND q.state = 'open' ORDER BY q.query_no DESC LIMIT 1`, requestNo)
}

const inventorySent = `SELECT query_no, sent FROM (SELECT q.query_no, (SELECT max(d.generation) FROM daemon_deliveries d
		WHERE d.command_no = q.command_no) AS sent
	FROM inventory_queries q WHERE q.state = 'open' AND q.daemon_no = ?) WHERE sent IS NOT NULL ORDER BY query_no`

// InventorySentQueries implements inventory.ReadTx.
func (r *reader) InventorySentQueries(daemonNo int64) ([]inventory.Sent, error) {
	rows, err := r.Query(inventorySent, daemonNo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []inventory.Sent
	for rows.Next() {
		var s inventory.Sent
		if err := rows.Scan(&s.No, &s.SentGeneration); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	for i := range out {
		q, _, err := r.InventoryQueryByNo(out[i].No)
		if err != nil {
			return nil, err
		}
		out[i].Query = q
	}
	return out, nil
}

// InventoryInsertQuery implements inventory.Tx.
func (tx *Tx) InventoryInsertQuery(q *inventory.Query) error {
	res, err := tx.Exec(`INSERT INTO inventory_queries (id, request_no, daemon_no, command_no, page, state, last_index,
			content_revision, after_index, after_revision, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, q.ID, q.RequestNo, q.DaemonNo, q.CommandNo, q.Page, string(q.State), q.LastIndex,
		q.ContentRevision, q.AfterIndex, q.AfterRevision, q.CreatedAt)
	q.No = res.LastInsertID()
	return err
}

// InventoryUpdateQuery implements inventory.Tx.
func (tx *Tx) InventoryUpdateQuery(q *inventory.Query) error {
	var finished time.Time
	if q.State != inventory.Open {
		finished = tx.now
	}
	_, err := tx.Exec(`UPDATE inventory_queries SET state = ?, generation = ?, snapshot_id = ?, revision = ?, chunks = ?, entries = ?,
		last_index = ?, content_revision = ?, finished_at = ? WHERE query_no = ?`, string(q.State), q.Generation,
		uuid.NullUUID{UUID: q.Snapshot, Valid: q.Snapshot != uuid.Nil}, int64(q.Revision), q.Chunks, q.Entries, q.LastIndex,
		q.ContentRevision, finished, q.No)
	return err
}

// InventoryEndQueries implements inventory.Tx.
func (tx *Tx) InventoryEndQueries(requestNo int64) error {
	_, err := tx.Exec(`UPDATE inventory_queries SET state = 'failed', finished_at = ? WHERE request_no = ? AND state = 'open'`,
		tx.now, requestNo)
	return err
}

// InventoryStage implements inventory.Tx.
func (tx *Tx) InventoryStage(s *inventory.Staged) error {
	_, err := tx.Exec(`INSERT INTO inventory_staging (request_no, query_no, chunk_index, daemon_no, generation, snapshot_id,
			entries, last_index, chunk) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`, s.RequestNo, s.QueryNo, s.ChunkIndex, s.DaemonNo,
		s.Generation, s.Snapshot, s.Entries, s.LastIndex, s.Chunk)
	return err
}

// InventoryDropStaged implements inventory.Tx.
func (tx *Tx) InventoryDropStaged(requestNo, queryNo int64) error {
	if queryNo == 0 {
		_, err := tx.Exec(`DELETE FROM inventory_staging WHERE request_no = ?`, requestNo)
		return err
	}
	_, err := tx.Exec(`DELETE FROM inventory_staging WHERE request_no = ? AND query_no = ?`, requestNo, queryNo)
	return err
}

// blobs runs a query for one column of bytes.
func (r *reader) blobs(query string, args ...any) ([][]byte, error) {
	rows, err := r.Query(query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out [][]byte
	for rows.Next() {
		var b []byte
		if err := rows.Scan(&b); err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, rows.Err()
}

// InventoryStaged implements inventory.ReadTx.
func (r *reader) InventoryStaged(requestNo int64, n, limit int) ([][]byte, error) {
	return r.blobs(`SELECT chunk FROM inventory_staging WHERE request_no = ? ORDER BY query_no, chunk_index LIMIT ? OFFSET ?`,
		requestNo, limit, n)
}

// InventoryTreeChunks implements inventory.ReadTx. Chunks without files are not among those of a tree that is read.
func (r *reader) InventoryTreeChunks(requestNo, from int64, limit int) ([][]byte, error) {
	return r.blobs(`SELECT chunk FROM inventory_staging WHERE request_no = ? AND last_index >= ? AND entries > 0
		ORDER BY query_no, chunk_index LIMIT ?`, requestNo, from, limit)
}

// InventoryDaemon implements inventory.ReadTx.
func (r *reader) InventoryDaemon(id uuid.UUID) (inventory.Daemon, bool, error) {
	return r.inventoryDaemon(`id = ? AND forgotten_at IS NULL`, id)
}

// InventoryDaemonByNo implements inventory.ReadTx.
func (r *reader) InventoryDaemonByNo(no int64) (inventory.Daemon, bool, error) {
	return r.inventoryDaemon(`daemon_no = ?`, no)
}

func (r *reader) inventoryDaemon(where string, arg any) (d inventory.Daemon, ok bool, err error) {
	err = r.QueryRow(`SELECT daemon_no, id, name, online FROM daemons WHERE `+where, arg).
		Scan(&d.Ref.No, &d.Ref.ID, &d.Name, &d.Online)
	ok, err = oneRow(err)
	return d, ok, err
}

// InventoryPruneRequests implements inventory.Tx.
func (tx *Tx) InventoryPruneRequests(before int64, limit int) (int64, error) {
	res, err := tx.Exec(`DELETE FROM inventory_requests WHERE request_no IN (SELECT r.request_no FROM inventory_requests r
		WHERE r.state <> 'open' AND r.created_at < ? AND NOT EXISTS (SELECT 1 FROM content_trees t WHERE t.request_no = r.request_no)
		ORDER BY r.request_no LIMIT ?)`, before, limit)
	return res.RowsAffected(), err
}

// InventoryPruneLooks implements inventory.Tx.
func (tx *Tx) InventoryPruneLooks(before int64, limit int) (int64, error) {
	const old = `(SELECT request_no FROM inventory_requests WHERE scope = ?1 AND state <> 'open' AND created_at < ?2
		ORDER BY request_no LIMIT ?3)`
	scope := int32(pb.InventoryScope_INVENTORY_SCOPE_STORAGE)
	if _, err := tx.Exec(`DELETE FROM daemon_commands WHERE job_no IS NULL AND state = 'closed' AND command_no IN
		(SELECT command_no FROM inventory_queries WHERE request_no IN `+old+`)`, scope, before, limit); err != nil {
		return 0, err
	}
	res, err := tx.Exec(`DELETE FROM inventory_requests WHERE request_no IN `+old, scope, before, limit)
	return res.RowsAffected(), err
}

// InventoryForget implements inventory.Tx.
func (tx *Tx) InventoryForget(daemonNo int64) error {
	for _, table := range []string{"content_trees", "inventory_requests", "daemon_views", "daemon_resources", "daemon_storage"} {
		if _, err := tx.Exec(`DELETE FROM `+table+` WHERE daemon_no = ?`, daemonNo); err != nil {
			return err
		}
	}
	return nil
}
