package store

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// role is what a connection is for; it decides its pragmas.
type role int

const (
	// roleWriter is the one connection that writes.
	roleWriter role = iota
	// roleReader is a connection of the read pool.
	roleReader
	// roleCheckpoint moves the write-ahead log into the database file, beside the writer.
	roleCheckpoint
	// roleInspect looks at a file that may not be ours: it must not change a byte of it.
	roleInspect
)

const (
	// busyTimeout is how long a connection waits for a lock of another process (a backup tool, the sqlite3 shell).
	// Inside the process the write queue leaves nothing to wait for.
	busyTimeout = 5 * time.Second
	// checkpointBusyTimeout bounds how long a TRUNCATE checkpoint waits for readers while it keeps the writer out.
	checkpointBusyTimeout = 50 * time.Millisecond
	// autoCheckpointPages is the size of the log, in pages of 4 KiB, from which a COMMIT itself checkpoints. The
	// background checkpointer acts earlier; this is the net below it.
	autoCheckpointPages = 4000
	// journalSizeLimit is what the log file shrinks to when it restarts after a burst.
	journalSizeLimit = 64 << 20
	// writerCacheKiB is the page cache of the writer. It holds the hot index pages of the busiest tables.
	writerCacheKiB = 16 << 10
	// readerCacheKiB is the page cache of one reader. Each commit empties it, so more only costs time: beside a busy
	// writer 1 MB was measured at 2.4 times the rate of 8 MB.
	readerCacheKiB = 2 << 10
)

// pragma is one setting: how it is written in the DSN and what reading it back must give.
type pragma struct {
	name string
	set  string
	want string
}

// pragmas lists the settings of a role. They go in the DSN because set by a statement they would reach one connection
// only; each is read back after opening, because SQLite ignores a pragma it does not understand.
func (r role) pragmas() []pragma {
	if r == roleInspect {
		return []pragma{{"busy_timeout", millis(busyTimeout), millis(busyTimeout)}}
	}
	timeout, cache := busyTimeout, readerCacheKiB
	switch r {
	case roleWriter:
		cache = writerCacheKiB
	case roleCheckpoint:
		timeout = checkpointBusyTimeout
	}
	p := []pragma{
		{"busy_timeout", millis(timeout), millis(timeout)},
		// FULL syncs the log at every COMMIT: what was acknowledged survives a power cut. NORMAL is 4 % faster when
		// commits are grouped and loses the last ones.
		{"synchronous", "FULL", "2"},
		// Off is SQLite's default, for compatibility with files of 2009.
		{"foreign_keys", "ON", "1"},
		// Sorts and materialised views stay off the disk: nothing is left behind in a temporary directory.
		{"temp_store", "MEMORY", "2"},
		// Negative means KiB instead of pages.
		{"cache_size", "-" + strconv.Itoa(cache), "-" + strconv.Itoa(cache)},
		// A memory-mapped file turns an I/O error into SIGBUS, which kills the process.
		{"mmap_size", "0", "0"},
		// Functions with side effects cannot be called from a schema that somebody else wrote.
		{"trusted_schema", "OFF", "0"},
	}
	switch r {
	case roleWriter:
		p = append(p,
			// Readers do not block the writer, and one fsync makes a commit durable. Stored in the file.
			pragma{"journal_mode", "WAL", "wal"},
			pragma{"wal_autocheckpoint", strconv.Itoa(autoCheckpointPages), strconv.Itoa(autoCheckpointPages)},
			pragma{"journal_size_limit", strconv.Itoa(journalSizeLimit), strconv.Itoa(journalSizeLimit)},
		)
	case roleCheckpoint:
		p = append(p, pragma{"journal_size_limit", strconv.Itoa(journalSizeLimit), strconv.Itoa(journalSizeLimit)})
	case roleReader:
		// Belt and braces beside mode=ro: it also refuses to write temporary tables and attached files.
		p = append(p, pragma{"query_only", "ON", "1"})
	}
	return p
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// dsn builds the data source name of a role for an absolute path.
func dsn(path string, r role) string {
	q := url.Values{}
	// "text" is a string literal only where the quotes are single: a misspelled column is an error, not a constant.
	q.Set("_dqs", "0")
	// Refuse to write to the schema table or to turn the journal off.
	q.Set("_defensive", "1")
	// An error text left over from an earlier statement is not reported with a new code.
	q.Set("_error_rc", "1")
	switch r {
	case roleReader, roleInspect:
		q.Set("mode", "ro")
	default:
		q.Set("mode", "rw")
		// A transaction that will write takes the lock at BEGIN; upgrading later can fail half way.
		q.Set("_txlock", "immediate")
	}
	if r == roleWriter {
		// Takes effect on an empty file only. Pages freed by retention can be given back in slices.
		q.Set("_auto_vacuum", "INCREMENTAL")
	}
	for _, p := range r.pragmas() {
		q.Add("_pragma", p.name+"("+p.set+")")
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}

// dsnPlain opens a copy for finishing touches, with SQLite's defaults.
func dsnPlain(path string) string {
	return (&url.URL{Scheme: "file", Path: path, RawQuery: "mode=rw"}).String()
}

// verifyPragmas reads every setting of the role back from one connection.
func verifyPragmas(ctx context.Context, c *sql.Conn, r role) error {
	for _, p := range r.pragmas() {
		var got string
		if err := c.QueryRowContext(ctx, "PRAGMA "+p.name).Scan(&got); err != nil {
			return fmt.Errorf("read back pragma %s: %w", p.name, mapError(err))
		}
		if !strings.EqualFold(got, p.want) {
			return fmt.Errorf("pragma %s is %s after setting it to %s", p.name, got, p.set)
		}
	}
	return nil
}
