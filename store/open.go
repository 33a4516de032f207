// Package store is the only place that knows SQL. It owns one SQLite file: a write queue with group commit, a pool of
// read-only snapshots, migrations, and the upkeep of the file. DESIGN.md explains the choices.
//
// Domain files in this package are methods on *Tx (writes) and on *reader, which Tx and ReadTx embed (reads).
package store

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"modernc.org/sqlite"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
)

// Options say what to open and how. Path and Schema are required; the rest has defaults.
type Options struct {
	// Path of the database file. Its directory is created with mode 0700, the file with 0600.
	Path string
	// Schema is the text of schema.sql, the whole current schema.
	Schema string
	// Migrations holds the numbered scripts NNNN_name.sql; nil means those of store/migrations.
	Migrations fs.FS
	// ApplicationID marks the file in its header; 0 means that of the appliance's database. A program with a schema of
	// its own has an own mark, so that neither opens the other's file. At most 31 bits.
	ApplicationID uint32
	// Clock gives transactions their timestamps; nil means the system's.
	Clock clock.Clock
	// Upkeep runs the timers of the checkpointer; nil means the system's clock. It is apart from Clock so that a test
	// of domain time does not meet the store's timers.
	Upkeep clock.Clock
	// Log takes what an operator should know; the zero value is silent.
	Log zerolog.Logger
	// Readers is the number of read connections; 0 means 2. More of them starve a busy writer on a small machine.
	Readers int
	// Limits bound a batch and the queue; zero fields take their defaults.
	Limits Limits
	// Hooks are failpoints for tests.
	Hooks Hooks
	// OnFatal, when set, is called once, on the store's goroutine, when the file is damaged or its disk fails; all
	// later writes are refused. It must not block.
	OnFatal func(error)
	// Registerer takes the metrics; nil keeps them unregistered.
	Registerer prometheus.Registerer
}

// Limits bound the writer's memory and the length of one commit.
type Limits struct {
	Queue        int           // writes that may wait; more block their callers. Default 4096.
	BatchCallers int           // callers in one commit. Default 1024.
	BatchRows    int           // statements in one commit, looked at between callers. Default 2000.
	BatchBytes   int64         // argument bytes in one commit, looked at between callers. Default 8 MiB.
	BatchTime    time.Duration // age at which a batch takes no more callers. Default 50 ms.

	CheckpointBytes int64         // log size at which the background checkpoint starts. Default 8 MiB.
	IdleAfter       time.Duration // quiet time after which the log is truncated. Default 2 s.
}

// Hooks are called at the named points; nil ones are skipped. They are for tests.
type Hooks struct {
	// Queued runs on the caller's goroutine when its write is in the queue.
	Queued func(op string)
	// Viewed runs on the caller's goroutine when its read is over.
	Viewed func()
	// BeforeCommit runs with the operations about to be committed, in their order; an error fails them all, nothing applied.
	BeforeCommit func(ops []string) error
	// AfterCommitBeforeReply runs, with the same, when COMMIT succeeded and nobody knows yet; an error becomes OutcomeUnknown.
	AfterCommitBeforeReply func(ops []string) error
	// Checkpointed runs on the checkpointer's goroutine after each checkpoint: PASSIVE or TRUNCATE; complete, partial
	// or failed.
	Checkpointed func(mode, result string)
	// BeforeMigrationCommit runs inside the transaction of the migration to version.
	BeforeMigrationCommit func(version int) error
	// AfterMigrationCommit runs when the migration to version is durable.
	AfterMigrationCommit func(version int) error
}

func (o *Options) defaults() {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Upkeep == nil {
		o.Upkeep = clock.System()
	}
	if o.ApplicationID == 0 {
		o.ApplicationID = applicationID
	}
	if o.Readers <= 0 {
		o.Readers = 2
	}
	l := &o.Limits
	setDefault(&l.Queue, 4096)
	setDefault(&l.BatchCallers, 1024)
	setDefault(&l.BatchRows, 2000)
	setDefault(&l.BatchBytes, 8<<20)
	setDefault(&l.BatchTime, 50*time.Millisecond)
	setDefault(&l.CheckpointBytes, 8<<20)
	setDefault(&l.IdleAfter, 2*time.Second)
}

func setDefault[T int | int64 | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}

// DB is an open database. All methods are safe for concurrent use.
type DB struct {
	path    string
	clock   clock.Clock
	log     zerolog.Logger
	lock    *fileLock
	writer  *writer
	readers *readPool
	check   *checkpointer
	metrics *metrics
	epoch   string
	version int // of the schema
	viewed  func()

	closeOnce sync.Once
	closeErr  error
}

// processSettings are the driver's process-wide switches. fdatasync leaves out the time stamps that fsync also forces
// to disk and keeps commits just as durable. OFD locks survive somebody in this process opening and closing the
// database file, which drops classic POSIX locks. Both are refused on systems without them, which is fine.
var processSettings = sync.OnceFunc(func() {
	_, _ = sqlite.Fdatasync(true)
	_, _ = sqlite.OFDLocking(true)
})

// Open locks the file, creates or migrates it, checks it against the schema and starts the writer. The caller owns the
// DB and must Close it. An error leaves nothing open; a file that is foreign, newer than this program or in use by
// another process is refused unchanged.
func Open(ctx context.Context, o Options) (db *DB, err error) {
	o.defaults()
	processSettings()
	if o.Path, err = filepath.Abs(o.Path); err != nil {
		return nil, fmt.Errorf("database path: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(o.Path), 0o700); err != nil {
		return nil, fmt.Errorf("database directory: %w", err)
	}
	lock, err := lockFile(o.Path + ".lock")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			lock.release()
		}
	}()
	if err := finishRestore(o.Path); err != nil {
		return nil, err
	}
	if err := createFile(o.Path); err != nil {
		return nil, err
	}
	scripts, err := loadMigrations(o.Migrations)
	if err != nil {
		return nil, err
	}
	state, err := inspect(ctx, o.Path, o.ApplicationID, scripts.version())
	if err != nil {
		return nil, err
	}
	c, err := openConn(ctx, o.Path, roleWriter)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = c.close()
		}
	}()
	up := upgrade{conn: c, path: o.Path, id: o.ApplicationID, schema: o.Schema, scripts: scripts, clock: o.Clock, hooks: o.Hooks, log: o.Log}
	if err := up.run(ctx, state); err != nil {
		return nil, err
	}
	if db, err = start(ctx, o, c, lock); err != nil {
		return nil, err
	}
	db.version = scripts.version()
	return db, nil
}

// start builds the running DB on a file that is current.
func start(ctx context.Context, o Options, c *conn, lock *fileLock) (*DB, error) {
	epoch, err := loadEpoch(c)
	if err != nil {
		return nil, err
	}
	db := &DB{path: o.Path, clock: o.Clock, log: o.Log, lock: lock, epoch: epoch, viewed: o.Hooks.Viewed}
	w, err := newWriter(c, &o)
	if err != nil {
		return nil, err
	}
	db.metrics, err = newMetrics(o.Registerer, func() float64 { return float64(len(w.queue)) })
	if err != nil {
		return nil, err
	}
	w.metrics = db.metrics
	if db.readers, err = openReaders(ctx, o.Path, o.Readers); err != nil {
		return nil, err
	}
	if db.check, err = newCheckpointer(ctx, o, w, db.metrics); err != nil {
		db.readers.close()
		return nil, err
	}
	db.writer = w
	go w.run()
	go db.check.run()
	return db, nil
}

// Update runs fn in a write transaction and returns when it is durable (nil) or undone (an error). fn runs on the
// writer's goroutine, perhaps in one COMMIT with other callers: it must touch only tx, no network, no lock, no nested
// Update, and must not end its goroutine. When fn returns an error or panics, its work is undone and Update returns
// the error (Internal for a panic).
//
// Update blocks while the queue is full and until the commit. ctx counts only until fn starts: Canceled then means not
// applied. Unavailable means nothing was applied and a retry may succeed; OutcomeUnknown means read before you retry;
// Corrupt means that no write will succeed any more. op names the operation in metrics and logs: a constant.
func (db *DB) Update(ctx context.Context, op string, fn func(*Tx) error) error {
	return db.writer.do(ctx, db.writer.queue, op, fn, nil)
}

// Epoch identifies this numbering of rows: 32 hex digits, made with the file. A restored backup gets a new one, so
// positions handed out before are recognised as foreign.
func (db *DB) Epoch() string { return db.epoch }

// Trouble returns why the latest write failed as a whole: a full or failing disk, a lock of another program. nil after
// one that succeeded.
func (db *DB) Trouble() error {
	if err := db.writer.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// SchemaVersion returns the version of the schema, which is that of this program: Open has migrated the file to it.
func (db *DB) SchemaVersion() int { return db.version }

// Path is the absolute path of the database file.
func (db *DB) Path() string { return db.path }

// Close serves the writes that wait, waits for the readers at work, empties the log and gives the lock back. Writes
// and reads that come later get Unavailable. It is safe to call twice.
func (db *DB) Close() error {
	db.closeOnce.Do(func() {
		db.check.stop()
		db.writer.stop()
		db.readers.close()
		err := db.check.conn.close()
		// The last connection to close checkpoints and removes the log.
		err = errors.Join(err, db.writer.conn.close())
		db.lock.release()
		if err != nil {
			db.closeErr = fmt.Errorf("close database: %w", err)
		}
	})
	return db.closeErr
}

// createFile makes the file with a narrow mode where there is none. SQLite gives the log and the shared-memory file
// the mode of the database.
func createFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("database file: %w", err)
	}
	return f.Close()
}

// metaEpoch is the key of the epoch in table meta; the value is 16 random bytes.
const metaEpoch = "epoch"

// loadEpoch reads the epoch, and makes one for a database that has none: a new file, or a restored backup.
func loadEpoch(c *conn) (string, error) {
	if _, err := c.exec("INSERT INTO meta(key, value) VALUES(?, randomblob(16)) ON CONFLICT(key) DO NOTHING", metaEpoch); err != nil {
		return "", fmt.Errorf("write the epoch: %w", mapError(err))
	}
	var b []byte
	if err := c.sc.QueryRowContext(background, "SELECT value FROM meta WHERE key = ?", metaEpoch).Scan(&b); err != nil {
		return "", fmt.Errorf("read the epoch: %w", mapError(err))
	}
	if len(b) != 16 {
		return "", fault.Wrap(fault.Corrupt, fmt.Errorf("the epoch has %d bytes instead of 16", len(b)), "%s", codeMessage(fault.Corrupt))
	}
	return hex.EncodeToString(b), nil
}
