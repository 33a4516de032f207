package appliance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"signalbox/appliance/room/feed"
	"signalbox/store"
)

// RoomsStampFile lies beside the database and says which one it was at the last start, and how often that was started:
// by it a start notices that the database was put back to an earlier time (rooms protocol N.5).
const RoomsStampFile = "rooms.stamp"

// roomsStamp is the content of the file.
type roomsStamp struct {
	Database string `json:"database"` // epoch of the database, which a copy made by backup does not have
	Starts   int64  `json:"starts"`
}

// recoverRooms notices a database that was restored and makes the numbering of the room agents good. It must end before
// anything is served.
//
// The order makes a crash anywhere harmless: the decision to recover is durable before the first step, the count of
// starts is raised when all is done, and the file is written last. A crash before that may have the next start do it
// once more, which only leaves a larger hole in numberings that nobody has seen.
func (a *Appliance) recoverRooms(ctx context.Context, f *feed.Feed) error {
	path := filepath.Join(a.cfg.DataDir, RoomsStampFile)
	beside, err := readRoomsStamp(path)
	if err != nil {
		return fmt.Errorf("stamp of the database: %w", err)
	}
	var inside store.RoomStamp
	if err := a.db.View(ctx, func(tx *store.ReadTx) (err error) {
		inside, err = tx.RoomStamp()
		return err
	}); err != nil {
		return fmt.Errorf("stamp of the database: %w", err)
	}
	why := restoredBecause(a.db.Epoch(), inside, beside)
	if why != "" {
		a.log.Warn().Str("because", why).Msg("the database was restored: room agents are told of a gap, and their numbering " +
			"goes on clear of the numbers issued since the copy")
	}
	if err := f.Recover(ctx, why != ""); err != nil {
		return fmt.Errorf("recover the numbering of room agents: %w", err)
	}
	stamp := roomsStamp{Database: a.db.Epoch(), Starts: inside.Starts + 1}
	if beside != nil {
		stamp.Starts = max(inside.Starts, beside.Starts) + 1
	}
	if err := a.db.Update(ctx, "rooms.start", func(tx *store.Tx) error { return tx.SetRoomStarts(stamp.Starts) }); err != nil {
		return fmt.Errorf("count the start: %w", err)
	}
	if err := writeRoomsStamp(path, stamp); err != nil {
		return fmt.Errorf("stamp of the database: %w", err)
	}
	return nil
}

// restoredBecause says why the database must have been restored, "" when it was not. beside is nil when there is no file.
// The database may be ahead of the file by the start that a crash kept from writing it.
func restoredBecause(epoch string, inside store.RoomStamp, beside *roomsStamp) string {
	switch {
	case !inside.Agents:
		return "" // there is no numbering to protect
	case beside == nil:
		return RoomsStampFile + " is not beside it"
	case beside.Database != epoch:
		return "it is a copy, or another database"
	case beside.Starts > inside.Starts:
		return "it was started more often than it knows"
	default:
		return ""
	}
}

// readRoomsStamp returns nil when there is no file, or none that says anything: then the database counts as restored,
// which costs a gap and never an event.
func readRoomsStamp(path string) (*roomsStamp, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var s roomsStamp
	if json.Unmarshal(content, &s) != nil || s.Database == "" || s.Starts < 0 {
		return nil, nil
	}
	return &s, nil
}

// writeRoomsStamp replaces the file durably, and removes what a crash within an earlier attempt has left.
func writeRoomsStamp(path string, s roomsStamp) error {
	content, err := json.Marshal(s)
	if err != nil {
		return err
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), temporary(path)))
	if err != nil {
		return err
	}
	for _, old := range left {
		if err := os.Remove(old); err != nil {
			return err
		}
	}
	return replaceFile(path, append(content, '\n'))
}
