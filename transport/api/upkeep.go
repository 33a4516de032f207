package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"signalbox/appliance/audit"
	"signalbox/appliance/fault"
	"signalbox/transport"
)

// maxPath is the longest path that Linux takes.
const maxPath = 4096

// errUpkeep answers while other upkeep is at work.
var errUpkeep = &fault.Error{Code: fault.Unavailable, Msg: "another backup, check or vacuum is at work", Retry: 5 * time.Second}

// doUpkeep runs fn alone, until the caller goes away or the server drains, and says how long it took.
func (a *API) doUpkeep(c *call, fn func(ctx context.Context) error) (seconds float64, err error) {
	if !a.upkeep.TryLock() {
		return 0, errUpkeep
	}
	defer a.upkeep.Unlock()
	ctx, cancel := transport.Parked(c.Context())
	defer cancel()
	start := a.opts.Clock.Now()
	if err := fn(ctx); err != nil {
		if errors.Is(context.Cause(ctx), transport.ErrDraining) {
			return 0, fault.Wrap(fault.Unavailable, err, "the server is stopping, the work was given up")
		}
		return 0, err
	}
	return a.opts.Clock.Now().Sub(start).Seconds(), nil
}

type backupPublic struct {
	Path      string  `json:"path"`
	SizeBytes int64   `json:"size_bytes"`
	Seconds   float64 `json:"seconds"`
}

// backup copies the database to a path on this machine.
func (a *API) backup(w http.ResponseWriter, c *call) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	path := b.required("path")
	if len(b.items) == 0 {
		checkBackupPath(b, path)
	}
	if err := b.err(); err != nil {
		return err
	}
	path = filepath.Clean(path)
	out := backupPublic{Path: path}
	out.Seconds, err = a.doUpkeep(c, func(ctx context.Context) error {
		if err := a.Upkeep.Backup(ctx, path); err != nil {
			return err
		}
		info, err := os.Stat(path)
		if err == nil {
			out.SizeBytes = info.Size()
			err = a.recordBackup(c, out)
		}
		if err != nil { // a copy that nobody knows of must not lie around
			return errors.Join(err, os.Remove(path))
		}
		return nil
	})
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, out)
}

func checkBackupPath(b *body, path string) {
	switch info, err := os.Stat(filepath.Dir(path)); {
	case !filepath.IsAbs(path):
		b.bad("path", "must be absolute")
	case len(path) > maxPath:
		b.bad("path", "must have at most %d bytes", maxPath)
	case err != nil || !info.IsDir():
		b.bad("path", "there is no directory %s that the server can see", filepath.Dir(filepath.Clean(path)))
	}
}

// recordBackup writes the audit row: a copy holds everything that was ever reported.
func (a *API) recordBackup(c *call, out backupPublic) error {
	metadata, err := json.Marshal(map[string]any{"path": out.Path, "size_bytes": out.SizeBytes})
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode the audit row of a backup")
	}
	target := "signalbox"
	e := audit.Entry{UserID: &c.who.ID, Action: "backup.created", TargetType: "database", TargetID: &target,
		Result: audit.Success, Outcome: audit.Allow, Metadata: metadata}
	if c.who.UserAgent != "" {
		e.UserAgent = &c.who.UserAgent
	}
	return a.Audit.Append(context.WithoutCancel(c.Context()), e)
}

type checkPublic struct {
	OK            bool     `json:"ok"`
	Quick         bool     `json:"quick"`
	SchemaVersion int      `json:"schema_version"`
	Seconds       float64  `json:"seconds"`
	Problems      []string `json:"problems"`
}

// checkDatabase reads the whole database and tells what is wrong with it.
func (a *API) checkDatabase(w http.ResponseWriter, c *call) error {
	q := c.query()
	out := checkPublic{Quick: q.flag("quick", false), SchemaVersion: a.Upkeep.SchemaVersion()}
	if err := q.err(); err != nil {
		return err
	}
	var err error
	out.Seconds, err = a.doUpkeep(c, func(ctx context.Context) (err error) {
		out.Problems, err = a.Upkeep.IntegrityCheck(ctx, out.Quick)
		return err
	})
	if err != nil {
		return err
	}
	out.OK, out.Problems = len(out.Problems) == 0, texts(out.Problems)
	return reply(w, c, http.StatusOK, out)
}

type vacuumPublic struct {
	BytesBefore int64   `json:"bytes_before"`
	BytesAfter  int64   `json:"bytes_after"`
	Seconds     float64 `json:"seconds"`
}

// vacuumDatabase gives free pages back to the file system, in slices between other writes.
func (a *API) vacuumDatabase(w http.ResponseWriter, c *call) error {
	var out vacuumPublic
	var err error
	out.Seconds, err = a.doUpkeep(c, func(ctx context.Context) (err error) {
		if out.BytesBefore, _, err = a.Upkeep.Space(ctx); err != nil {
			return err
		}
		if err = a.Upkeep.Vacuum(ctx); err != nil {
			return err
		}
		out.BytesAfter, _, err = a.Upkeep.Space(ctx)
		return err
	})
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, out)
}
