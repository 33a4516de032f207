package store

import (
	"strings"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/inventory"
)

// InventoryView implements inventory.ReadTx.
func (r *reader) InventoryView(daemonNo int64, scope pb.InventoryScope) (inventory.View, bool, error) {
	list, err := r.inventoryViews(`daemon_no = ? AND scope = ?`, daemonNo, int32(scope))
	if err != nil || len(list) == 0 {
		return inventory.View{}, false, err
	}
	return list[0], true, nil
}

// InventoryViews implements inventory.ReadTx.
func (r *reader) InventoryViews(daemonNo int64) ([]inventory.View, error) {
	return r.inventoryViews(`daemon_no = ?`, daemonNo)
}

func (r *reader) inventoryViews(where string, args ...any) ([]inventory.View, error) {
	rows, err := r.Query(`SELECT daemon_no, scope, state_epoch, revision, request_no, entries, committed_at FROM daemon_views
		WHERE `+where+` ORDER BY scope`, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []inventory.View
	for rows.Next() {
		var (
			v        inventory.View
			revision int64
		)
		if err := rows.Scan(&v.DaemonNo, &v.Scope, &v.Epoch, &revision, &v.RequestNo, &v.Entries, &v.CommittedAt); err != nil {
			return nil, err
		}
		v.Revision = uint64(revision)
		out = append(out, v)
	}
	return out, rows.Err()
}

// InventoryPutView implements inventory.Tx.
func (tx *Tx) InventoryPutView(v inventory.View) error {
	_, err := tx.Exec(`INSERT INTO daemon_views (daemon_no, scope, state_epoch, revision, request_no, entries, committed_at)
		VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT DO UPDATE SET state_epoch = excluded.state_epoch, revision = excluded.revision,
			request_no = excluded.request_no, entries = excluded.entries, committed_at = excluded.committed_at`,
		v.DaemonNo, int32(v.Scope), v.Epoch, int64(v.Revision), v.RequestNo, v.Entries, v.CommittedAt)
	return err
}

const resourceSelect = `SELECT r.resource_no, r.daemon_no, d.id, r.summary, r.revision, r.first_query, r.absent, r.seen_at
	FROM daemon_resources r JOIN daemons d ON d.daemon_no = r.daemon_no`

func scanResource(scan func(...any) error) (v inventory.Resource, err error) {
	var (
		summary  []byte
		revision int64
	)
	if err := scan(&v.No, &v.DaemonNo, &v.DaemonID, &summary, &revision, &v.FirstQuery, &v.Absent, &v.SeenAt); err != nil {
		return v, err
	}
	v.Revision, v.Summary = uint64(revision), &pb.ResourceSummary{}
	_, err = pbRead(summary, v.Summary)
	return v, err
}

// InventoryResource implements inventory.ReadTx.
func (r *reader) InventoryResource(daemonNo int64, resourceID string) (inventory.Resource, bool, error) {
	v, err := scanResource(r.QueryRow(resourceSelect+` WHERE r.daemon_no = ? AND r.resource_id = ?`, daemonNo, resourceID).Scan)
	ok, err := oneRow(err)
	return v, ok, err
}

// InventoryResources implements inventory.ReadTx.
func (r *reader) InventoryResources(f inventory.Filter, after inventory.Place, limit int) ([]inventory.Resource, error) {
	where, args := []string{`(r.name, r.resource_no) > (?, ?)`}, []any{after.Name, after.No}
	if f.DaemonNo != 0 {
		where, args = append(where, `r.daemon_no = ?`), append(args, f.DaemonNo)
	}
	if f.Text != "" {
		where, args = append(where, `r.name LIKE ? ESCAPE '\'`), append(args, "%"+likeText(f.Text)+"%")
	}
	if id := f.Identity; id != nil {
		var any []string
		for _, c := range []struct{ column, value string }{{"infohash_v1", id.GetInfohashV1()}, {"infohash_v2", id.GetInfohashV2()},
			{"tree", id.GetTreeFingerprint()}} {
			if c.value != "" {
				any, args = append(any, `r.`+c.column+` = ?`), append(args, c.value)
			}
		}
		if len(any) == 0 {
			return nil, nil
		}
		where = append(where, `(`+strings.Join(any, ` OR `)+`)`)
	}
	if !f.Absent {
		where = append(where, `r.absent = 0`)
	}
	rows, err := r.Query(resourceSelect+` WHERE `+strings.Join(where, ` AND `)+` ORDER BY r.name, r.resource_no LIMIT ?`,
		append(args, limit)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []inventory.Resource
	for rows.Next() {
		v, err := scanResource(rows.Scan)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

// likeText escapes what LIKE would read as a pattern.
func likeText(s string) string {
	return strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(s)
}

// InventoryPutResource implements inventory.Tx.
func (tx *Tx) InventoryPutResource(v *inventory.Resource) error {
	summary, err := pbBytes(v.Summary)
	if err != nil {
		return err
	}
	ref := v.Summary.GetResource()
	_, err = tx.Exec(`INSERT INTO daemon_resources (daemon_no, resource_id, name, infohash_v1, infohash_v2, tree, summary, revision,
			first_query, seen_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (daemon_no, resource_id) DO UPDATE SET name = excluded.name, infohash_v1 = excluded.infohash_v1,
			infohash_v2 = excluded.infohash_v2, tree = excluded.tree, summary = excluded.summary, revision = excluded.revision,
			first_query = excluded.first_query, absent = 0, seen_at = excluded.seen_at`,
		v.DaemonNo, ref.GetResourceId(), inventory.NameOf(v.Summary), ref.GetIdentity().GetInfohashV1(),
		ref.GetIdentity().GetInfohashV2(), ref.GetIdentity().GetTreeFingerprint(), summary, int64(v.Revision), v.FirstQuery, v.SeenAt)
	return err
}

// InventoryMarkAbsent implements inventory.Tx.
func (tx *Tx) InventoryMarkAbsent(daemonNo, firstQuery int64) (int64, error) {
	res, err := tx.Exec(`UPDATE daemon_resources SET absent = 1 WHERE daemon_no = ? AND first_query < ? AND absent = 0`, daemonNo, firstQuery)
	return res.RowsAffected(), err
}

// InventoryMarkAbsentOnes implements inventory.Tx.
func (tx *Tx) InventoryMarkAbsentOnes(daemonNo, firstQuery int64, ids []string) error {
	for _, id := range ids {
		if _, err := tx.Exec(`UPDATE daemon_resources SET absent = 1 WHERE daemon_no = ? AND resource_id = ? AND first_query < ?`,
			daemonNo, id, firstQuery); err != nil {
			return err
		}
	}
	return nil
}

// InventoryTree implements inventory.ReadTx.
func (r *reader) InventoryTree(daemonNo int64, resourceID string) (inventory.Tree, bool, error) {
	var (
		t        = inventory.Tree{DaemonNo: daemonNo, ResourceID: resourceID, Header: &pb.ContentTree{}}
		header   []byte
		revision int64
	)
	err := r.QueryRow(`SELECT tree_no, content_revision, header, files, state_epoch, revision, request_no, fetched_at
		FROM content_trees WHERE daemon_no = ? AND resource_id = ?`, daemonNo, resourceID).
		Scan(&t.No, &t.ContentRevision, &header, &t.Files, &t.Epoch, &revision, &t.RequestNo, &t.FetchedAt)
	ok, err := oneRow(err)
	if !ok {
		return t, false, err
	}
	t.Revision = uint64(revision)
	_, err = pbRead(header, t.Header)
	return t, err == nil, err
}

// InventoryPutTree implements inventory.Tx.
func (tx *Tx) InventoryPutTree(t *inventory.Tree) (former int64, err error) {
	header, err := pbBytes(t.Header)
	if err != nil {
		return 0, err
	}
	if _, err := oneRow(tx.QueryRow(`SELECT request_no FROM content_trees WHERE daemon_no = ? AND resource_id = ?`, t.DaemonNo,
		t.ResourceID).Scan(&former)); err != nil {
		return 0, err
	}
	_, err = tx.Exec(`INSERT INTO content_trees (daemon_no, resource_id, content_revision, header, files, state_epoch, revision,
			request_no, fetched_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (daemon_no, resource_id) DO UPDATE SET content_revision = excluded.content_revision, header = excluded.header,
			files = excluded.files, state_epoch = excluded.state_epoch, revision = excluded.revision,
			request_no = excluded.request_no, fetched_at = excluded.fetched_at`,
		t.DaemonNo, t.ResourceID, t.ContentRevision, header, t.Files, t.Epoch, int64(t.Revision), t.RequestNo, t.FetchedAt)
	return former, err
}

// InventoryStorage implements inventory.ReadTx.
func (r *reader) InventoryStorage(daemonNo int64) ([]inventory.Storage, error) {
	rows, err := r.Query(`SELECT entry, seen_at FROM daemon_storage WHERE daemon_no = ? ORDER BY root_id`, daemonNo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []inventory.Storage
	for rows.Next() {
		s := inventory.Storage{Entry: &pb.StorageEntry{}}
		var entry []byte
		if err := rows.Scan(&entry, &s.SeenAt); err != nil {
			return nil, err
		}
		if _, err := pbRead(entry, s.Entry); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, rows.Err()
}

// InventoryReplaceStorage implements inventory.Tx.
func (tx *Tx) InventoryReplaceStorage(daemonNo int64, entries []*pb.StorageEntry) error {
	if _, err := tx.Exec(`DELETE FROM daemon_storage WHERE daemon_no = ?`, daemonNo); err != nil {
		return err
	}
	for _, e := range entries {
		b, err := pbBytes(e)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(`INSERT INTO daemon_storage (daemon_no, root_id, entry, seen_at) VALUES (?, ?, ?, ?)
			ON CONFLICT DO UPDATE SET entry = excluded.entry`, daemonNo, e.GetRootId(), b, tx.now); err != nil {
			return err
		}
	}
	return nil
}

// absentFree selects the resources that may go: absent, and named by no active job.
const absentFree = `SELECT r.resource_no FROM daemon_resources r WHERE r.absent = 1
	AND NOT EXISTS (SELECT 1 FROM archive_reservations v WHERE v.released_at IS NULL AND v.daemon_no = r.daemon_no
		AND (v.kind = 'resource' AND v.name = r.resource_id OR v.kind = 'infohash_v1' AND v.name = r.infohash_v1
			OR v.kind = 'infohash_v2' AND v.name = r.infohash_v2 OR v.kind = 'tree' AND v.name = r.tree))
	ORDER BY r.resource_no LIMIT ?`

// InventoryPruneAbsent implements inventory.Tx. One tree a transaction at most: its chunks may be many.
func (tx *Tx) InventoryPruneAbsent(limit int) (int64, error) {
	numbers, err := tx.numbers(absentFree, limit)
	if err != nil {
		return 0, err
	}
	var gone int64
	for _, no := range numbers {
		var tree int64
		_, err := oneRow(tx.QueryRow(`SELECT t.request_no FROM content_trees t JOIN daemon_resources r
			ON r.daemon_no = t.daemon_no AND r.resource_id = t.resource_id WHERE r.resource_no = ?`, no).Scan(&tree))
		if err != nil {
			return gone, err
		}
		if tree != 0 {
			if _, err := tx.Exec(`DELETE FROM content_trees WHERE request_no = ?`, tree); err != nil {
				return gone, err
			}
			if _, err := tx.Exec(`DELETE FROM inventory_requests WHERE request_no = ?`, tree); err != nil {
				return gone, err
			}
		}
		if _, err := tx.Exec(`DELETE FROM daemon_resources WHERE resource_no = ?`, no); err != nil {
			return gone, err
		}
		gone++
		if tree != 0 {
			break
		}
	}
	return gone, nil
}
