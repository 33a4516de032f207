package store

import (
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/room"
	"signalbox/appliance/room/directory"
)

var (
	_ directory.Tx     = (*Tx)(nil)
	_ directory.ReadTx = (*ReadTx)(nil)
)

const dirRoomColumns = `r.room_no, r.id, r.name, r.description, r.instructions, r.channel_type, r.chat,
	coalesce(r.owner_no, 0), p.id, coalesce(r.room_group_no, 0), g.id, coalesce(g.name, ''), r.read_visibility,
	r.write_visibility, r.internal_only, r.last_position, r.cast_revision, r.archived_at, r.created_at, r.updated_at`

const dirRoomJoins = ` LEFT JOIN people p ON p.person_no = r.owner_no
	LEFT JOIN room_groups g ON g.room_group_no = r.room_group_no`

const fromDirRooms = ` FROM rooms r` + dirRoomJoins

// dirRoomRow is where a room's columns are scanned to.
type dirRoomRow struct {
	r            room.Room
	owner, group uuid.NullUUID
	archived     time.Time
}

func (d *dirRoomRow) dest() []any {
	r := &d.r
	return []any{&r.No, &r.ID, &r.Name, &r.Description, &r.Instructions, &r.Channel, &r.Chat, &r.OwnerNo, &d.owner,
		&r.GroupNo, &d.group, &r.GroupName, &r.ReadVisibility, &r.WriteVisibility, &r.InternalOnly, &r.LastPosition,
		&r.CastRevision, &d.archived, &r.CreatedAt, &r.UpdatedAt}
}

func (d *dirRoomRow) room() room.Room {
	d.r.OwnerID, d.r.GroupID, d.r.ArchivedAt = d.owner.UUID, d.group.UUID, nonZero(d.archived)
	return d.r
}

func (r *reader) dirRooms(query string, args ...any) ([]room.Room, error) {
	rows, err := r.Query(query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []room.Room{}
	for rows.Next() {
		var row dirRoomRow
		if err := rows.Scan(row.dest()...); err != nil {
			return nil, err
		}
		out = append(out, row.room())
	}
	return out, rows.Err()
}

// DirRoom finds a room that is not deleted.
func (r *reader) DirRoom(id uuid.UUID) (room.Room, error) {
	var row dirRoomRow
	err := r.QueryRow(`SELECT `+dirRoomColumns+fromDirRooms+` WHERE r.id = ? AND r.deleted_at IS NULL`, id).Scan(row.dest()...)
	return row.room(), err
}

// DirRoomsBetween returns rooms whose ids lie in [from, to], at most limit; with deleted ones when asked to.
func (r *reader) DirRoomsBetween(from, to uuid.UUID, deleted bool, limit int) ([]room.Room, error) {
	return r.dirRooms(`SELECT `+dirRoomColumns+fromDirRooms+` WHERE r.id BETWEEN ? AND ? AND (? OR r.deleted_at IS NULL)
		ORDER BY r.id LIMIT ?`, from, to, deleted, limit)
}

// DirRoomsNamed returns the rooms of exactly the name, at most limit.
func (r *reader) DirRoomsNamed(name string, limit int) ([]room.Room, error) {
	return r.dirRooms(`SELECT `+dirRoomColumns+fromDirRooms+` WHERE r.name = ? AND r.deleted_at IS NULL
		ORDER BY r.room_no LIMIT ?`, name, limit)
}

// DirRooms returns rooms by name.
func (r *reader) DirRooms(q directory.RoomQuery) ([]room.Room, error) {
	from, where, args := fromDirRooms, []string{`r.deleted_at IS NULL`}, []any{}
	switch {
	case q.AgentNo != 0:
		from = ` FROM room_members m JOIN rooms r ON r.room_no = m.room_no` + dirRoomJoins
		where, args = append(where, `m.room_agent_no = ?`), append(args, q.AgentNo)
	case q.PersonNo != 0:
		from = ` FROM room_people m JOIN rooms r ON r.room_no = m.room_no` + dirRoomJoins
		where, args = append(where, `m.person_no = ?`), append(args, q.PersonNo)
	case !q.By.Admin:
		agent := int64(0)
		if q.By.Kind == room.KindAgent {
			agent = q.By.No
		}
		where = append(where, `(r.read_visibility = 'public' OR r.owner_no = ?
			OR EXISTS (SELECT 1 FROM room_members m WHERE m.room_no = r.room_no AND m.room_agent_no = ?)
			OR EXISTS (SELECT 1 FROM room_people m WHERE m.room_no = r.room_no AND m.person_no = ?))`)
		args = append(args, q.By.OwnerNo, agent, q.By.OwnerNo)
	}
	if q.GroupNo != 0 {
		where, args = append(where, `r.room_group_no = ?`), append(args, q.GroupNo)
	}
	if !q.IncludeArchived {
		where = append(where, `r.archived_at IS NULL`)
	}
	return r.dirRooms(`SELECT `+dirRoomColumns+from+` WHERE `+strings.Join(where, ` AND `)+` ORDER BY r.name, r.room_no`, args...)
}

// DirDeleted returns the numbers of rooms that were deleted, at most limit.
func (r *reader) DirDeleted(limit int) ([]int64, error) {
	return r.numbers(`SELECT room_no FROM rooms WHERE deleted_at IS NOT NULL ORDER BY room_no LIMIT ?`, limit)
}

// DirInsertRoom stores a room and returns its number.
func (tx *Tx) DirInsertRoom(r room.Room) (int64, error) {
	res, err := tx.Exec(`INSERT INTO rooms (id, name, description, instructions, channel_type, chat, owner_no, room_group_no,
		read_visibility, write_visibility, internal_only, created_at, updated_at) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)`,
		r.ID, r.Name, r.Description, r.Instructions, string(r.Channel), r.Chat, dirNoOrNull(r.OwnerNo), dirNoOrNull(r.GroupNo),
		string(r.ReadVisibility), string(r.WriteVisibility), r.InternalOnly, r.CreatedAt, r.UpdatedAt)
	return res.LastInsertID(), err
}

// DirUpdateRoom stores every changeable field of the room.
func (tx *Tx) DirUpdateRoom(r room.Room) error {
	_, err := tx.Exec(`UPDATE rooms SET name = ?, description = ?, instructions = ?, channel_type = ?, room_group_no = ?,
		read_visibility = ?, write_visibility = ?, internal_only = ?, archived_at = ?, updated_at = ? WHERE room_no = ?`,
		r.Name, r.Description, r.Instructions, string(r.Channel), dirNoOrNull(r.GroupNo), string(r.ReadVisibility),
		string(r.WriteVisibility), r.InternalOnly, orNull(r.ArchivedAt), r.UpdatedAt, r.No)
	return err
}

// DirDeleteRoom removes members, people, roles, links and uses of references of the room and marks it deleted.
func (tx *Tx) DirDeleteRoom(roomNo int64) error {
	for _, stmt := range []string{
		`DELETE FROM room_members WHERE room_no = ?`,
		`DELETE FROM room_people WHERE room_no = ?`,
		`DELETE FROM room_roles WHERE room_no = ?`,
		`DELETE FROM room_links WHERE room_no = ?`,
		`DELETE FROM room_links WHERE target_room_no = ?`,
		`DELETE FROM room_reference_uses WHERE room_no = ?`,
	} {
		if _, err := tx.Exec(stmt, roomNo); err != nil {
			return err
		}
	}
	_, err := tx.Exec(`UPDATE rooms SET deleted_at = ?, updated_at = ? WHERE room_no = ?`, tx.Now(), tx.Now(), roomNo)
	return err
}

// DirPurgeRoom removes at most limit rows of what a deleted room leaves, its log newest first so that threads go before
// their roots, and the room itself at last.
func (tx *Tx) DirPurgeRoom(roomNo int64, limit int) (removed int, done bool, err error) {
	for _, stmt := range []string{
		`DELETE FROM room_items WHERE item_no IN
			(SELECT item_no FROM room_items WHERE room_no = ? ORDER BY position DESC LIMIT ?)`,
		`DELETE FROM room_documents WHERE room_document_no IN
			(SELECT room_document_no FROM room_documents WHERE room_no = ? LIMIT ?)`,
		`DELETE FROM room_media WHERE room_media_no IN (SELECT room_media_no FROM room_media WHERE room_no = ? LIMIT ?)`,
	} {
		res, err := tx.Exec(stmt, roomNo, limit-removed)
		if err != nil {
			return removed, false, err
		}
		if removed += int(res.RowsAffected()); removed == limit {
			return removed, false, nil
		}
	}
	res, err := tx.Exec(`DELETE FROM rooms WHERE room_no = ? AND deleted_at IS NOT NULL`, roomNo)
	return removed + int(res.RowsAffected()), true, err
}

// dirNoOrNull is nil, which is bound as NULL, for 0.
func dirNoOrNull(no int64) *int64 {
	if no == 0 {
		return nil
	}
	return &no
}

const dirGroupColumns = `g.room_group_no, g.id, g.name, g.description, coalesce(g.owner_no, 0), g.created_at`

func dirGroupDest(g *directory.Group) []any {
	return []any{&g.No, &g.ID, &g.Name, &g.Description, &g.OwnerNo, &g.CreatedAt}
}

// DirGroup finds a group by id or by name.
func (r *reader) DirGroup(idOrName string) (g directory.Group, err error) {
	if id, perr := uuid.Parse(idOrName); perr == nil {
		err = r.QueryRow(`SELECT `+dirGroupColumns+` FROM room_groups g WHERE g.id = ?`, id).Scan(dirGroupDest(&g)...)
		return g, err
	}
	err = r.QueryRow(`SELECT `+dirGroupColumns+` FROM room_groups g WHERE g.name = ?`, idOrName).Scan(dirGroupDest(&g)...)
	return g, err
}

// DirGroups returns the groups by name.
func (r *reader) DirGroups() ([]directory.Group, error) {
	rows, err := r.Query(`SELECT ` + dirGroupColumns + ` FROM room_groups g ORDER BY g.name`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []directory.Group{}
	for rows.Next() {
		var g directory.Group
		if err := rows.Scan(dirGroupDest(&g)...); err != nil {
			return nil, err
		}
		out = append(out, g)
	}
	return out, rows.Err()
}

// DirInsertGroup stores a group and returns its number.
func (tx *Tx) DirInsertGroup(g directory.Group) (int64, error) {
	res, err := tx.Exec(`INSERT INTO room_groups (id, name, description, owner_no, created_at) VALUES (?,?,?,?,?)`,
		g.ID, g.Name, g.Description, dirNoOrNull(g.OwnerNo), g.CreatedAt)
	return res.LastInsertID(), err
}
