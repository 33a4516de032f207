package store

import (
	"fmt"
	"strconv"

	"signalbox/appliance/fault"
)

// Keys in table meta of what tells a restored database (rooms protocol N.5); the values are decimal digits. The other
// half of the stamp is the epoch, which a copy made by Backup does not have.
const (
	metaStarts     = "rooms_starts"     // how often this database was started
	metaRecovering = "rooms_recovering" // the last agent that a recovery has done; there while one is running
)

// RoomStamp is what a database tells of itself at a start.
type RoomStamp struct {
	Starts     int64 // 0: never counted
	Recovering bool  // a recovery was interrupted
	Agents     bool  // there are room agents, so there are numberings to protect
}

// RoomStamp reads the stamp.
func (r *reader) RoomStamp() (s RoomStamp, err error) {
	if s.Starts, _, err = r.metaNumber(metaStarts); err != nil {
		return s, err
	}
	if _, s.Recovering, err = r.metaNumber(metaRecovering); err != nil {
		return s, err
	}
	err = r.QueryRow(`SELECT EXISTS (SELECT 1 FROM room_agents)`).Scan(&s.Agents)
	return s, err
}

// SetRoomStarts stores how often the database was started.
func (tx *Tx) SetRoomStarts(n int64) error { return tx.setMetaNumber(metaStarts, n) }

// FeedRecovery implements feed.ReadTx.
func (r *reader) FeedRecovery() (throughAgent int64, running bool, err error) {
	return r.metaNumber(metaRecovering)
}

// FeedSetRecovery implements feed.Tx.
func (tx *Tx) FeedSetRecovery(throughAgent int64) error {
	return tx.setMetaNumber(metaRecovering, throughAgent)
}

// FeedEndRecovery implements feed.Tx.
func (tx *Tx) FeedEndRecovery() error {
	_, err := tx.Exec(`DELETE FROM meta WHERE key = ?`, metaRecovering)
	return err
}

func (r *reader) metaNumber(key string) (n int64, found bool, err error) {
	var b []byte
	err = r.QueryRow(`SELECT value FROM meta WHERE key = ?`, key).Scan(&b)
	if fault.Is(err, fault.NotFound) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	if n, err = strconv.ParseInt(string(b), 10, 64); err != nil || n < 0 {
		return 0, false, fault.Wrap(fault.Corrupt, fmt.Errorf("%s in meta is %q", key, b), "%s", codeMessage(fault.Corrupt))
	}
	return n, true, nil
}

func (tx *Tx) setMetaNumber(key string, n int64) error {
	_, err := tx.Exec(`INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value`,
		key, strconv.AppendInt(nil, n, 10))
	return err
}
