package store

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/timeline"
)

var (
	_ timeline.Tx     = (*Tx)(nil)
	_ timeline.ReadTx = (*ReadTx)(nil)
)

// TimelineSpot finds the end of the log of a room by the room's id; NotFound when there is no such room.
func (r *reader) TimelineSpot(id uuid.UUID) (timeline.Spot, error) {
	return scanSpot(r.QueryRow(`SELECT r.room_no, r.cast_revision, r.last_position, i.created_at FROM rooms r
		LEFT JOIN room_items i ON i.room_no = r.room_no AND i.position = r.last_position
		WHERE r.id = ? AND r.deleted_at IS NULL`, id))
}

// TimelineSpotOf is TimelineSpot by the room's number.
func (r *reader) TimelineSpotOf(roomNo int64) (timeline.Spot, error) {
	return scanSpot(r.QueryRow(`SELECT r.room_no, r.cast_revision, r.last_position, i.created_at FROM rooms r
		LEFT JOIN room_items i ON i.room_no = r.room_no AND i.position = r.last_position
		WHERE r.room_no = ? AND r.deleted_at IS NULL`, roomNo))
}

func scanSpot(row *Row) (timeline.Spot, error) {
	var s timeline.Spot
	err := row.Scan(&s.RoomNo, &s.CastRevision, &s.Position, &s.At)
	return s, err
}

// TimelineCastRevision reads the revision that a cached cast is held against.
func (r *reader) TimelineCastRevision(roomNo int64) (int64, error) {
	var revision int64
	err := r.QueryRow(`SELECT cast_revision FROM rooms WHERE room_no = ?`, roomNo).Scan(&revision)
	return revision, err
}

// TimelineCast reads a room with its members and roles: only what the room's cast_revision covers, and what never changes.
func (r *reader) TimelineCast(roomNo int64) (*room.Cast, error) {
	c := &room.Cast{}
	var groupNo *int64
	var groupID uuid.NullUUID
	var archived time.Time
	err := r.QueryRow(`SELECT r.room_no, r.id, r.name, r.channel_type, r.chat, r.room_group_no, g.id, r.archived_at,
		r.cast_revision, r.created_at FROM rooms r LEFT JOIN room_groups g ON g.room_group_no = r.room_group_no
		WHERE r.room_no = ?`, roomNo).Scan(&c.Room.No, &c.Room.ID, &c.Room.Name, &c.Room.Channel, &c.Room.Chat, &groupNo,
		&groupID, &archived, &c.Room.CastRevision, &c.Room.CreatedAt)
	if err != nil {
		return nil, err
	}
	if groupNo != nil {
		c.Room.GroupNo, c.Room.GroupID = *groupNo, groupID.UUID
	}
	c.Room.ArchivedAt = nonZero(archived)
	if c.Members, err = r.timelineMembers(roomNo); err != nil {
		return nil, err
	}
	c.Roles, err = r.timelineRoles(roomNo)
	return c, err
}

func (r *reader) timelineMembers(roomNo int64) ([]room.Member, error) {
	var n int
	if err := r.QueryRow(`SELECT count(*) FROM room_members WHERE room_no = ?`, roomNo).Scan(&n); err != nil {
		return nil, err
	}
	rows, err := r.Query(`SELECT a.room_agent_no, a.id, a.name, a.owner_no, p.id, a.connection_model, a.profile, a.policy,
		m.alias, m.listening, m.joined_position, m.joined_at
		FROM room_members m JOIN room_agents a ON a.room_agent_no = m.room_agent_no
		LEFT JOIN people p ON p.person_no = a.owner_no WHERE m.room_no = ? ORDER BY m.room_agent_no`, roomNo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	// Most agents of a room have one of few profiles and policies: each text is read once, and its policy shared.
	profiles, policies := map[string]room.Profile{}, map[string]*room.Policy{}
	out := make([]room.Member, 0, n)
	for rows.Next() {
		var m room.Member
		var ownerNo *int64
		var ownerID uuid.NullUUID
		var profile string
		var policy, alias *string
		a := &m.Agent
		if err := rows.Scan(&a.No, &a.ID, &a.Name, &ownerNo, &ownerID, &a.Profile.ConnectionModel, &profile, &policy,
			&alias, &m.Listening, &m.JoinedPosition, &m.JoinedAt); err != nil {
			return nil, err
		}
		read, known := profiles[profile]
		if !known {
			if err := fromJSON(profile, &read); err != nil {
				return nil, err
			}
			profiles[profile] = read
		}
		read.ConnectionModel = a.Profile.ConnectionModel
		a.Profile = read
		if policy != nil {
			if a.Policy, known = policies[*policy]; !known {
				if a.Policy, err = room.ParsePolicy([]byte(*policy)); err != nil {
					return nil, fault.Wrap(fault.Internal, err, "read the policy of agent %s", a.ID)
				}
				policies[*policy] = a.Policy
			}
		}
		if ownerNo != nil {
			a.OwnerNo, a.OwnerID = *ownerNo, ownerID.UUID
		}
		if alias != nil {
			m.Alias = *alias
		}
		out = append(out, m)
	}
	return out, rows.Err()
}

func (r *reader) timelineRoles(roomNo int64) ([]string, error) {
	rows, err := r.Query(`SELECT name FROM room_roles WHERE room_no = ? ORDER BY name`, roomNo)
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

// TimelineHasPerson tells whether the person is in the room.
func (r *reader) TimelineHasPerson(roomNo, personNo int64) (bool, error) {
	var in bool
	err := r.QueryRow(`SELECT EXISTS (SELECT 1 FROM room_people WHERE room_no = ? AND person_no = ?)`, roomNo, personNo).
		Scan(&in)
	return in, err
}

// TimelinePeople returns the names of the people in the room, by name.
func (r *reader) TimelinePeople(roomNo int64) ([]string, error) {
	rows, err := r.Query(`SELECT p.name FROM room_people m JOIN people p ON p.person_no = m.person_no WHERE m.room_no = ?
		ORDER BY p.name`, roomNo)
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

const timelineColumns = `i.item_no, i.room_no, i.position, i.id, i.kind, i.sender_kind, i.sender_no, i.sender_id,
	i.sender_name, i.on_behalf_of, i.body, i.thread_root_no, t.id, i.attachments, i.automatic, i.request_id, i.created_at`

// A root that does not exist any more cannot be: the join finds one for every item in a thread.
const timelineFrom = ` FROM room_items i LEFT JOIN room_items t ON t.item_no = i.thread_root_no `

// timelineRow is where an item's columns are scanned to.
type timelineRow struct {
	item                             room.Item
	onBehalf, attachments, requestID *string
	threadNo                         *int64
	threadID                         uuid.NullUUID
}

func (w *timelineRow) dest(more ...any) []any {
	i := &w.item
	return append([]any{&i.No, &i.RoomNo, &i.Position, &i.ID, &i.Kind, &i.SenderKind, &i.SenderNo, &i.SenderID, &i.SenderName,
		&w.onBehalf, &i.Body, &w.threadNo, &w.threadID, &w.attachments, &i.Automatic, &w.requestID, &i.At}, more...)
}

func (w *timelineRow) get() room.Item {
	i := w.item
	if w.onBehalf != nil {
		i.OnBehalfOf = *w.onBehalf
	}
	if w.attachments != nil {
		i.Attachments = json.RawMessage(*w.attachments)
	}
	if w.requestID != nil {
		i.RequestID = *w.requestID
	}
	if w.threadNo != nil {
		i.ThreadNo, i.ThreadID = *w.threadNo, w.threadID.UUID
	}
	return i
}

// timelinePage reads at most limit items, and fewer, but at least one, where their texts together reach
// timeline.MaxReadBytes. more tells that the query has further ones.
func (r *reader) timelinePage(limit int, query string, args ...any) (items []room.Item, more bool, err error) {
	rows, err := r.Query(`SELECT `+timelineColumns+timelineFrom+query+` LIMIT ?`, append(args, limit+1)...)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	items = []room.Item{}
	for size := 0; rows.Next(); {
		if len(items) == limit || size >= timeline.MaxReadBytes {
			return items, true, nil
		}
		var w timelineRow
		if err := rows.Scan(w.dest()...); err != nil {
			return nil, false, err
		}
		items = append(items, w.get())
		size += len(w.item.Body) + len(items[len(items)-1].Attachments)
	}
	return items, false, rows.Err()
}

// TimelineItem finds an item of any room that is not deleted; NotFound when there is none.
func (r *reader) TimelineItem(id uuid.UUID) (room.Item, error) {
	var w timelineRow
	err := r.QueryRow(`SELECT `+timelineColumns+timelineFrom+`JOIN rooms r ON r.room_no = i.room_no
		WHERE i.id = ? AND r.deleted_at IS NULL`, id).Scan(w.dest()...)
	return w.get(), err
}

// TimelineRequest finds what the poster made of a request id in the room, with the digest of its payload.
func (r *reader) TimelineRequest(roomNo int64, kind room.ActorKind, no int64, requestID string) (room.Item, []byte, error) {
	var w timelineRow
	var digest []byte
	err := r.QueryRow(`SELECT `+timelineColumns+`, i.request_digest`+timelineFrom+
		`WHERE i.room_no = ? AND i.sender_kind = ? AND i.sender_no = ? AND i.request_id = ?`, roomNo, kind, no, requestID).
		Scan(w.dest(&digest)...)
	return w.get(), digest, err
}

// TimelineForward returns items of a room above a position, oldest first.
func (r *reader) TimelineForward(roomNo, after int64, limit int) ([]room.Item, error) {
	items, _, err := r.timelinePage(limit, `WHERE i.room_no = ? AND i.position > ? ORDER BY i.position`, roomNo, after)
	return items, err
}

// TimelineBackward returns items of a room from one position down to another, both included, newest first.
func (r *reader) TimelineBackward(roomNo, from, downTo int64, limit int) (items []room.Item, more bool, err error) {
	return r.timelinePage(limit, `WHERE i.room_no = ? AND i.position BETWEEN ? AND ? ORDER BY i.position DESC`,
		roomNo, downTo, from)
}

// TimelineEntries is TimelineBackward without commands, which are no part of the history (rooms protocol H.5).
func (r *reader) TimelineEntries(roomNo, from, downTo int64, limit int) (items []room.Item, more bool, err error) {
	return r.timelinePage(limit, `WHERE i.room_no = ? AND i.position BETWEEN ? AND ? AND i.kind <> 'command'
		ORDER BY i.position DESC`, roomNo, downTo, from)
}

// TimelineItemsByNo returns the items with the numbers, newest first.
func (r *reader) TimelineItemsByNo(nos []int64) ([]room.Item, error) {
	list, err := jsonText(nos)
	if err != nil {
		return nil, err
	}
	items, _, err := r.timelinePage(len(nos), `WHERE i.item_no IN (SELECT value FROM json_each(?)) ORDER BY i.item_no DESC`, list)
	return items, err
}

// TimelineAt tells when the item at a position of a room was made.
func (r *reader) TimelineAt(roomNo, position int64) (time.Time, error) {
	var at time.Time
	err := r.QueryRow(`SELECT created_at FROM room_items WHERE room_no = ? AND position = ?`, roomNo, position).Scan(&at)
	return at, err
}

// AppendTimelineItem stores an item at its position, moves the end of the room's log there, and returns its number.
func (tx *Tx) AppendTimelineItem(i room.Item, digest []byte) (int64, error) {
	if _, err := tx.Exec(`UPDATE rooms SET last_position = ? WHERE room_no = ?`, i.Position, i.RoomNo); err != nil {
		return 0, err
	}
	var threadNo, attachments, sum any
	if digest != nil {
		sum = digest
	}
	if i.ThreadNo != 0 {
		threadNo = i.ThreadNo
	}
	if i.Attachments != nil {
		attachments = string(i.Attachments)
	}
	res, err := tx.Exec(`INSERT INTO room_items (room_no, position, id, kind, sender_kind, sender_no, sender_id, sender_name,
		on_behalf_of, body, thread_root_no, attachments, automatic, request_id, request_digest, created_at)
		VALUES (?,?,?,?,?,?,?,?,nullif(?,''),?,?,?,?,nullif(?,''),?,?)`,
		i.RoomNo, i.Position, i.ID, i.Kind, i.SenderKind, i.SenderNo, i.SenderID, i.SenderName, i.OnBehalfOf, i.Body,
		threadNo, attachments, i.Automatic, i.RequestID, sum, i.At)
	return res.LastInsertID(), err
}
