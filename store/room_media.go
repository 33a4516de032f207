package store

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/media"
)

var (
	_ media.Tx     = (*Tx)(nil)
	_ media.ReadTx = (*ReadTx)(nil)
)

const mediaColumns = `room_media_no, id, room_no, sha256, size, mimetype, filename, sender_kind, sender_no, created_at`

func scanMedia(scan func(...any) error) (media.Record, error) {
	var r media.Record
	var digest []byte
	if err := scan(&r.No, &r.ID, &r.RoomNo, &digest, &r.Size, &r.Mimetype, &r.Filename, &r.SenderKind, &r.SenderNo,
		&r.CreatedAt); err != nil {
		return r, err
	}
	copy(r.Digest[:], digest)
	return r, nil
}

// MediaRoom finds a room that is not deleted.
func (r *reader) MediaRoom(id uuid.UUID) (no int64, err error) {
	err = r.QueryRow(`SELECT room_no FROM rooms WHERE id = ? AND deleted_at IS NULL`, id).Scan(&no)
	return no, err
}

// MediaMember tells whether the actor is in the room.
func (r *reader) MediaMember(roomNo int64, kind room.ActorKind, no int64) (in bool, err error) {
	query := `SELECT EXISTS (SELECT 1 FROM room_members WHERE room_no = ? AND room_agent_no = ?)`
	if kind == room.KindPerson {
		query = `SELECT EXISTS (SELECT 1 FROM room_people WHERE room_no = ? AND person_no = ?)`
	} else if kind != room.KindAgent {
		return false, nil
	}
	err = r.QueryRow(query, roomNo, no).Scan(&in)
	return in, err
}

// MediaRecord finds a file of a room by its key.
func (r *reader) MediaRecord(roomNo int64, id uuid.UUID) (media.Record, error) {
	return scanMedia(r.QueryRow(`SELECT `+mediaColumns+` FROM room_media WHERE id = ? AND room_no = ?`, id, roomNo).Scan)
}

// MediaRecords is a page of all files in the order of their numbers.
func (r *reader) MediaRecords(after int64, limit int) ([]media.Record, error) {
	rows, err := r.Query(`SELECT `+mediaColumns+` FROM room_media WHERE room_media_no > ?
		ORDER BY room_media_no LIMIT ?`, after, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []media.Record
	for rows.Next() {
		rec, err := scanMedia(rows.Scan)
		if err != nil {
			return nil, err
		}
		out = append(out, rec)
	}
	return out, rows.Err()
}

// mediaSoon is how long after its upload a file is usually named by a message.
const mediaSoon = 2 * time.Minute

// MediaNamedSoon looks among the items whose ids were made about when the file came: these begin with their time.
func (r *reader) MediaNamedSoon(m media.Record) (named bool, err error) {
	err = r.QueryRow(`SELECT EXISTS (SELECT 1 FROM room_items
		WHERE id >= ? AND id < ? AND +room_no = ? AND instr(attachments, ?) > 0)`,
		idFloor(m.CreatedAt.Add(-time.Second)), idFloor(m.CreatedAt.Add(mediaSoon)), m.RoomNo, m.ID.String()).Scan(&named)
	return named, err
}

// idFloor is the lowest id made from t on.
func idFloor(t time.Time) uuid.UUID {
	var id uuid.UUID
	ms := t.UnixMilli()
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	return id
}

// MediaNamed looks for the file among the next items of its room.
func (r *reader) MediaNamed(m media.Record, after int64, limit int) (found bool, next int64, err error) {
	err = r.QueryRow(`SELECT coalesce(max(instr(coalesce(attachments, ''), ?3) > 0), 0), coalesce(max(position), 0) FROM
		(SELECT position, attachments FROM room_items WHERE room_no = ?1 AND position > ?2 ORDER BY position LIMIT ?4)`,
		m.RoomNo, after, m.ID.String(), limit).Scan(&found, &next)
	return found, next, err
}

// MediaHasContent tells whether any row has the digest.
func (r *reader) MediaHasContent(digest [32]byte) (has bool, err error) {
	err = r.QueryRow(`SELECT EXISTS (SELECT 1 FROM room_media WHERE sha256 = ?)`, digest[:]).Scan(&has)
	return has, err
}

// MediaBytes sums the sizes of all contents, each once.
func (r *reader) MediaBytes() (n int64, err error) {
	err = r.QueryRow(`SELECT coalesce(sum(size), 0) FROM (SELECT max(size) AS size FROM room_media GROUP BY sha256)`).Scan(&n)
	return n, err
}

// MediaInsert stores a file.
func (tx *Tx) MediaInsert(m media.Record) error {
	_, err := tx.Exec(`INSERT INTO room_media (id, room_no, sha256, size, mimetype, filename, sender_kind, sender_no, created_at)
		VALUES (?,?,?,?,?,?,?,?,?)`,
		m.ID, m.RoomNo, m.Digest[:], m.Size, m.Mimetype, m.Filename, string(m.SenderKind), m.SenderNo, m.CreatedAt)
	return err
}

// MediaDelete removes the row of a file; its bytes are swept later.
func (tx *Tx) MediaDelete(no int64) error {
	res, err := tx.Exec(`DELETE FROM room_media WHERE room_media_no = ?`, no)
	if err == nil && res.RowsAffected() == 0 {
		err = fault.New(fault.NotFound, "no such file")
	}
	return err
}
