package store

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/feed"
)

var (
	_ feed.Tx     = (*Tx)(nil)
	_ feed.ReadTx = (*ReadTx)(nil)
)

// FeedState implements feed.ReadTx.
func (r *reader) FeedState(agentNo int64) (st feed.State, err error) {
	err = r.QueryRow(`SELECT a.head, a.floor, a.holes, coalesce(e.sequence, 0), e.queued_at,
			coalesce((SELECT max(sequence) FROM room_events WHERE room_agent_no = a.room_agent_no), 0),
			coalesce((SELECT max(dropped_through) FROM room_dropped WHERE room_agent_no = a.room_agent_no), 0)
		FROM room_agents a LEFT JOIN room_events e ON e.room_agent_no = a.room_agent_no
			AND e.sequence = (SELECT min(sequence) FROM room_events WHERE room_agent_no = a.room_agent_no)
		WHERE a.room_agent_no = ?`, agentNo).
		Scan(&st.Head, &st.Floor, &st.Holes, &st.Oldest, &st.OldestAt, &st.Newest, &st.Dropped)
	return st, err
}

// FeedNth implements feed.ReadTx.
func (r *reader) FeedNth(agentNo, n int64) (sequence int64, err error) {
	err = r.QueryRow(`SELECT sequence FROM room_events WHERE room_agent_no = ? ORDER BY sequence LIMIT 1 OFFSET ?`,
		agentNo, n-1).Scan(&sequence)
	return sequence, err
}

// FeedFirstSince implements feed.ReadTx.
func (r *reader) FeedFirstSince(agentNo int64, at time.Time) (int64, error) {
	return r.feedNumber(`SELECT sequence FROM room_events WHERE room_agent_no = ? AND queued_at >= ?
		ORDER BY sequence LIMIT 1`, agentNo, at)
}

// FeedLast implements feed.ReadTx.
func (r *reader) FeedLast(agentNo, through int64) (int64, error) {
	return r.feedNumber(`SELECT sequence FROM room_events WHERE room_agent_no = ? AND sequence <= ?
		ORDER BY sequence DESC LIMIT 1`, agentNo, through)
}

// FeedLastOfRoom implements feed.ReadTx.
func (r *reader) FeedLastOfRoom(agentNo, roomNo, through int64) (int64, error) {
	return r.feedNumber(`SELECT sequence FROM room_events WHERE room_agent_no = ? AND room_no = ? AND sequence <= ?
		ORDER BY sequence DESC LIMIT 1`, agentNo, roomNo, through)
}

// FeedDroppedThrough implements feed.ReadTx.
func (r *reader) FeedDroppedThrough(agentNo, roomNo int64) (int64, error) {
	return r.feedNumber(`SELECT dropped_through FROM room_dropped WHERE room_agent_no = ? AND room_no = ?`, agentNo, roomNo)
}

// FeedMissed implements feed.ReadTx.
func (r *reader) FeedMissed(agentNo, roomNo, base, through int64) (int64, error) {
	return r.feedNumber(`SELECT count(*) FROM room_events WHERE room_agent_no = ? AND sequence > ? AND sequence <= ?
		AND room_no = ? AND kind = 1 AND flag = 0`, agentNo, base, through, roomNo)
}

// feedNumber runs a query for one number, 0 where there is none.
func (r *reader) feedNumber(query string, args ...any) (n int64, err error) {
	err = r.QueryRow(query, args...).Scan(&n)
	if fault.Is(err, fault.NotFound) {
		return 0, nil
	}
	return n, err
}

const feedColumns = `sequence, item_no, room_no, kind, flag, command, queued_at`

// feedScan reads the columns of an event.
func feedScan(scan func(...any) error) (s feed.Stored, err error) {
	var command *string
	if err := scan(&s.Sequence, &s.ItemNo, &s.RoomNo, &s.Kind, &s.Flag, &command, &s.QueuedAt); err != nil {
		return s, err
	}
	if command != nil {
		var c [2]string
		err = fromJSON(*command, &c)
		s.Command = &room.Command{Name: c[0], Args: c[1]}
	}
	return s, err
}

// FeedPage implements feed.ReadTx.
func (r *reader) FeedPage(agentNo, after int64, limit int) ([]feed.Stored, error) {
	rows, err := r.Query(`SELECT `+feedColumns+` FROM room_events WHERE room_agent_no = ? AND sequence > ?
		ORDER BY sequence LIMIT ?`, agentNo, after, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []feed.Stored
	for rows.Next() {
		s, err := feedScan(rows.Scan)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, rows.Err()
}

// FeedFind implements feed.ReadTx.
func (r *reader) FeedFind(agentNo, itemNo int64) (feed.Stored, bool, error) {
	s, err := feedScan(r.QueryRow(`SELECT `+feedColumns+` FROM room_events WHERE room_agent_no = ? AND item_no = ?
		ORDER BY sequence LIMIT 1`, agentNo, itemNo).Scan)
	if fault.Is(err, fault.NotFound) {
		return feed.Stored{}, false, nil
	}
	return s, err == nil, err
}

// FeedLost implements feed.ReadTx.
func (r *reader) FeedLost(agentNo, after, cutoff int64) ([]uuid.UUID, error) {
	return r.scanIDs(`SELECT r.id FROM room_members m JOIN rooms r ON r.room_no = m.room_no
		WHERE m.room_agent_no = ?1 AND (
			EXISTS (SELECT 1 FROM room_dropped d WHERE d.room_agent_no = ?1 AND d.room_no = m.room_no AND d.dropped_through > ?2)
			OR m.room_no IN (SELECT e.room_no FROM room_events e WHERE e.room_agent_no = ?1 AND e.sequence > ?2 AND e.sequence <= ?3))`,
		agentNo, after, cutoff)
}

// FeedItem implements feed.ReadTx.
func (r *reader) FeedItem(itemNo int64) (it room.Item, err error) {
	var onBehalfOf, attachments *string
	var thread uuid.NullUUID
	err = r.QueryRow(`SELECT i.item_no, i.room_no, i.position, i.id, i.kind, i.sender_kind, i.sender_no, i.sender_id, i.sender_name,
			i.on_behalf_of, i.body, t.id, i.attachments, i.created_at
		FROM room_items i LEFT JOIN room_items t ON t.item_no = i.thread_root_no WHERE i.item_no = ?`, itemNo).
		Scan(&it.No, &it.RoomNo, &it.Position, &it.ID, &it.Kind, &it.SenderKind, &it.SenderNo, &it.SenderID, &it.SenderName,
			&onBehalfOf, &it.Body, &thread, &attachments, &it.At)
	if err != nil {
		return it, err
	}
	it.ThreadID = thread.UUID
	if onBehalfOf != nil {
		it.OnBehalfOf = *onBehalfOf
	}
	if attachments != nil {
		it.Attachments = json.RawMessage(*attachments)
	}
	return it, nil
}

// FeedWhere implements feed.ReadTx.
func (r *reader) FeedWhere(roomNo int64) (w feed.Where, err error) {
	w.Room.No = roomNo
	err = r.QueryRow(`SELECT id, name, channel_type FROM rooms WHERE room_no = ?`, roomNo).Scan(&w.Room.ID, &w.Room.Name, &w.Channel)
	return w, err
}

// FeedOldest implements feed.ReadTx.
func (r *reader) FeedOldest(after int64, limit int) ([]feed.OldestOf, error) {
	rows, err := r.Query(`SELECT a.room_agent_no,
			(SELECT e.queued_at FROM room_events e WHERE e.room_agent_no = a.room_agent_no ORDER BY e.sequence LIMIT 1)
		FROM room_agents a WHERE a.room_agent_no > ? ORDER BY a.room_agent_no LIMIT ?`, after, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []feed.OldestOf
	for rows.Next() {
		var o feed.OldestOf
		if err := rows.Scan(&o.AgentNo, &o.At); err != nil {
			return nil, err
		}
		out = append(out, o)
	}
	return out, rows.Err()
}

// FeedAgents implements feed.ReadTx.
func (r *reader) FeedAgents(after int64, limit int) ([]int64, error) {
	return r.numbers(`SELECT room_agent_no FROM room_agents WHERE room_agent_no > ? ORDER BY room_agent_no LIMIT ?`, after, limit)
}

// FeedRoomAgents implements feed.ReadTx.
func (r *reader) FeedRoomAgents(roomNo int64) ([]int64, error) {
	return r.numbers(`SELECT room_agent_no FROM room_members WHERE room_no = ? ORDER BY room_agent_no`, roomNo)
}

// feedInsert numbers an event for each member that the condition admits. The select reads the table it writes to, so
// SQLite collects the numbers before it writes the first row.
func feedInsert(flag, condition string) string {
	return `INSERT INTO room_events (room_agent_no, sequence, item_no, room_no, kind, flag, command, queued_at)
		SELECT m.room_agent_no, 1 + max(a.head,
				coalesce((SELECT max(e.sequence) FROM room_events e WHERE e.room_agent_no = m.room_agent_no), 0)),
			?2, ?1, ?3, ` + flag + `, ?5, ?6
		FROM room_members m JOIN room_agents a ON a.room_agent_no = m.room_agent_no
		WHERE m.room_no = ?1 AND ` + condition + `
		RETURNING room_agent_no, sequence, flag`
}

// Of flag, the fourth parameter is a constant or a list of agents; of the condition, the seventh is an agent.
var (
	feedInsertAll       = feedInsert(`?4`, `m.room_agent_no <> ?7`)
	feedInsertListening = feedInsert(`m.listening + 0 * ?4`, `m.room_agent_no <> ?7`)
	feedInsertSome      = feedInsert(`m.room_agent_no IN (SELECT value FROM json_each(?4))`, `m.room_agent_no <> ?7`)
	feedInsertOne       = feedInsert(`?4`, `m.room_agent_no = ?7`)
	feedInsertOneJoin   = feedInsert(`m.listening + 0 * ?4`, `m.room_agent_no = ?7`)
)

// FeedInsert implements feed.Tx.
func (tx *Tx) FeedInsert(dst []feed.Placed, r feed.Row, flags feed.Flags) ([]feed.Placed, error) {
	query, flag := feedInsertAll, any(flags.All)
	switch {
	case flags.Listening:
		query, flag = feedInsertListening, 0
	case !flags.All && len(flags.Some) > 0:
		query, flag = feedInsertSome, jsonNumbers(flags.Some)
	}
	return tx.feedPlace(dst, query, r.RoomNo, r.ItemNo, int(r.Kind), flag, nil, tx.now, r.Except)
}

// FeedInsertOne implements feed.Tx.
func (tx *Tx) FeedInsertOne(dst []feed.Placed, r feed.Row, agentNo int64, flags feed.Flags,
	c *room.Command) ([]feed.Placed, error) {
	if agentNo == r.Except {
		return dst, nil
	}
	query := feedInsertOne
	if flags.Listening {
		query = feedInsertOneJoin
	}
	var command *string
	if c != nil {
		text, err := jsonText([2]string{c.Name, c.Args})
		if err != nil {
			return nil, err
		}
		command = &text
	}
	return tx.feedPlace(dst, query, r.RoomNo, r.ItemNo, int(r.Kind), flags.All && !flags.Listening, command, tx.now, agentNo)
}

func (tx *Tx) feedPlace(dst []feed.Placed, query string, args ...any) ([]feed.Placed, error) {
	rows, err := tx.Query(query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var p feed.Placed
	into := []any{&p.AgentNo, &p.Sequence, &p.Flag}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		dst = append(dst, p)
	}
	tx.rows += len(dst)
	return dst, rows.Err()
}

// FeedMembers implements feed.ReadTx.
func (r *reader) FeedMembers(roomNo int64) ([]feed.Member, error) {
	rows, err := r.Query(`SELECT room_agent_no, listening FROM room_members WHERE room_no = ? ORDER BY room_agent_no`, roomNo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var (
		out []feed.Member
		m   feed.Member
	)
	into := []any{&m.AgentNo, &m.Listening}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, rows.Err()
}

// FeedItemIs implements feed.ReadTx.
func (r *reader) FeedItemIs(itemNo int64, id uuid.UUID) (bool, error) {
	n, err := r.feedNumber(`SELECT 1 FROM room_items WHERE item_no = ? AND id = ?`, itemNo, id)
	return n == 1, err
}

// feedChunks are how many rows one statement inserts, largest first.
var feedChunks = []struct {
	rows  int
	query string
}{{64, feedInsertRows(64)}, {8, feedInsertRows(8)}, {1, feedInsertRows(1)}}

// feedInsertRows inserts n rows of one item: after what they have in common come agent, number and flag of each. The
// parameters have no numbers: to the driver those are names, which it would look up one by one. OR FAIL spares SQLite the
// copy of each page that it would keep to undo half a statement: an error here ends the whole transaction anyway.
func feedInsertRows(n int) string {
	return `INSERT OR FAIL INTO room_events (item_no, room_no, kind, queued_at, room_agent_no, sequence, flag, command)
		SELECT ?, ?, ?, ?, column1, column2, column3, NULL FROM (VALUES (?,?,?)` + strings.Repeat(`,(?,?,?)`, n-1) + `)`
}

// FeedInsertPlaced implements feed.Tx.
func (tx *Tx) FeedInsertPlaced(r feed.Row, placed []feed.Placed) error {
	args := make([]any, 0, 4+3*min(len(placed), feedChunks[0].rows))
	for _, chunk := range feedChunks {
		for len(placed) >= chunk.rows {
			args = append(args[:0], r.ItemNo, r.RoomNo, int64(r.Kind), tx.now.UnixMicro())
			for _, p := range placed[:chunk.rows] {
				args = append(args, p.AgentNo, p.Sequence, p.Flag)
			}
			if _, err := tx.Exec(chunk.query, args...); err != nil {
				return err
			}
			tx.rows += chunk.rows - 1
			placed = placed[chunk.rows:]
		}
	}
	return nil
}

// jsonNumbers is the list as JSON text.
func jsonNumbers(list []int64) string {
	var b strings.Builder
	b.WriteByte('[')
	for i, n := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(n, 10))
	}
	b.WriteByte(']')
	return b.String()
}

// FeedMark implements feed.Tx.
func (tx *Tx) FeedMark(agentNo, through int64) error {
	_, err := tx.Exec(`INSERT INTO room_dropped (room_agent_no, room_no, dropped_through)
		SELECT room_agent_no, room_no, max(sequence) FROM room_events WHERE room_agent_no = ? AND sequence <= ? GROUP BY room_no
		ON CONFLICT DO UPDATE SET dropped_through = max(dropped_through, excluded.dropped_through)`, agentNo, through)
	return err
}

// FeedDelete implements feed.Tx.
func (tx *Tx) FeedDelete(agentNo, through int64) (int64, error) {
	res, err := tx.Exec(`DELETE FROM room_events WHERE room_agent_no = ? AND sequence <= ?`, agentNo, through)
	return res.RowsAffected(), err
}

// FeedDeleteRoom implements feed.Tx.
func (tx *Tx) FeedDeleteRoom(agentNo, roomNo int64) (int64, error) {
	if _, err := tx.Exec(`DELETE FROM room_dropped WHERE room_agent_no = ? AND room_no = ?`, agentNo, roomNo); err != nil {
		return 0, err
	}
	res, err := tx.Exec(`DELETE FROM room_events WHERE room_agent_no = ? AND room_no = ?`, agentNo, roomNo)
	return res.RowsAffected(), err
}

// FeedDeleteAgent implements feed.Tx.
func (tx *Tx) FeedDeleteAgent(agentNo int64) error {
	if _, err := tx.Exec(`DELETE FROM room_dropped WHERE room_agent_no = ?`, agentNo); err != nil {
		return err
	}
	_, err := tx.Exec(`DELETE FROM room_events WHERE room_agent_no = ?`, agentNo)
	return err
}

// FeedSetNumbers implements feed.Tx.
func (tx *Tx) FeedSetNumbers(agentNo, head, floor, holes int64) error {
	_, err := tx.Exec(`UPDATE room_agents SET head = ?, floor = ?, holes = ? WHERE room_agent_no = ?`, head, floor, holes, agentNo)
	return err
}
