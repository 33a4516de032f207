package store

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const benchInsert = "INSERT INTO items(name, at, data) VALUES('bench', ?, ?)"

var benchData = make([]byte, 200)

func benchUpdate(tx *Tx) error {
	_, err := tx.Exec(benchInsert, int64(1), benchData)
	return err
}

// submit runs n single-row updates from the number of submitters and returns rows per second.
func submitRows(b *testing.B, db *DB, submitters, n int) float64 {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	start := time.Now()
	for range submitters {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := db.Update(context.Background(), "bench", benchUpdate); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(n) / time.Since(start).Seconds()
}

// rawRows inserts n rows with prepared statements on a bare connection, in transactions of the size, and returns rows
// per second: what the store is held against.
func rawRows(b *testing.B, n, size int) float64 {
	b.Helper()
	path := filepath.Join(b.TempDir(), "raw.db")
	if err := createFile(path); err != nil {
		b.Fatal(err)
	}
	c, err := openConn(context.Background(), path, roleWriter)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = c.close() }()
	if err := c.script(testSchema); err != nil {
		b.Fatal(err)
	}
	var stmts []*sql.Stmt
	for _, q := range []string{sqlBegin, benchInsert, sqlCommit} {
		s, err := c.sc.PrepareContext(background, q)
		if err != nil {
			b.Fatal(err)
		}
		stmts = append(stmts, s)
	}
	must := func(_ sql.Result, err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	start := time.Now()
	for done := 0; done < n; done += size {
		must(stmts[0].ExecContext(background))
		for range min(size, n-done) {
			must(stmts[1].ExecContext(background, int64(1), benchData))
		}
		must(stmts[2].ExecContext(background))
	}
	return float64(n) / time.Since(start).Seconds()
}

// appendSyncs appends 4 KiB and syncs, n times, and returns the rate: the floor of any durable commit.
func appendSyncs(b *testing.B, n int) float64 {
	b.Helper()
	f, err := os.Create(filepath.Join(b.TempDir(), "append"))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	block := make([]byte, 4096)
	start := time.Now()
	for range n {
		if _, err := f.Write(block); err != nil {
			b.Fatal(err)
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
	}
	return float64(n) / time.Since(start).Seconds()
}

// withUpkeep has the log checkpointed as in production.
func withUpkeep(o *Options) { o.Upkeep = nil }

// BenchmarkUpdate is one durable row per operation, by the number of callers at the same time.
func BenchmarkUpdate(b *testing.B) {
	for _, submitters := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprint(submitters), func(b *testing.B) {
			db := openTest(b, withUpkeep)
			b.ResetTimer()
			b.ReportMetric(submitRows(b, db, submitters, b.N), "rows/s")
		})
	}
}

// BenchmarkRatios measures, in one run, the figures whose ratios are the goals: what 1,000 callers get over one (at
// least 15), one caller's commits over bare synced appends (at least 0.70), and grouped callers over a bare batched
// insert of the same rows.
func BenchmarkRatios(b *testing.B) {
	const single, many = 1500, 40000
	for b.Loop() {
		db := openTest(b, withUpkeep)
		one := submitRows(b, db, 1, single)
		thousand := submitRows(b, db, 1000, many)
		raw := rawRows(b, many, 500)
		syncs := appendSyncs(b, single)
		b.ReportMetric(thousand/one, "thousand/one")
		b.ReportMetric(one/syncs, "commit/append")
		b.ReportMetric(thousand/raw, "grouped/raw")
		b.ReportMetric(one, "one/s")
		b.ReportMetric(thousand, "thousand/s")
		b.ReportMetric(raw, "raw/s")
		b.ReportMetric(syncs, "append/s")
	}
}

// BenchmarkView is one point read per operation.
func BenchmarkView(b *testing.B) {
	db := openTest(b, withUpkeep)
	fill(b, db, 1000)
	for b.Loop() {
		err := db.View(context.Background(), func(tx *ReadTx) error {
			var name string
			return tx.QueryRow("SELECT name FROM items WHERE id = ?", 500).Scan(&name)
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen is a start on an existing database, with the comparison of its schema.
func BenchmarkOpen(b *testing.B) {
	o := tempOptions(b)
	for b.Loop() {
		db, err := Open(context.Background(), o)
		if err != nil {
			b.Fatal(err)
		}
		if err := db.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
