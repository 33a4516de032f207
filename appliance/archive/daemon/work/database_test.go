package work_test

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
	"signalbox/store/daemonstore"
)

// database is a journal in a daemon's real database.
type database struct {
	db  *daemonstore.DB
	job uuid.UUID
}

func (d *database) Put(ctx context.Context, list ...daemon.JournalEntry) error {
	return d.db.Update(ctx, "test.journal", func(tx daemon.Tx) error { return tx.PutJournal(d.job, list) })
}

func (d *database) List(ctx context.Context, fn func(daemon.JournalEntry) bool, steps ...pb.JobStep) error {
	var after *daemon.JournalEntry
	for {
		var page []daemon.JournalEntry
		if err := d.db.View(ctx, func(tx daemon.ReadTx) (err error) {
			page, err = tx.JournalPage(d.job, after, 7)
			return err
		}); err != nil {
			return err
		}
		for _, e := range page {
			if (len(steps) == 0 || slices.Contains(steps, e.Step)) && !fn(e) {
				return nil
			}
		}
		if len(page) < 7 {
			return nil
		}
		after = &page[len(page)-1]
	}
}

func (d *database) Get(ctx context.Context, step pb.JobStep, index int64, name string) (e daemon.JournalEntry, ok bool, err error) {
	err = d.db.View(ctx, func(tx daemon.ReadTx) (err error) {
		e, ok, err = tx.JournalEntry(d.job, step, index, name)
		return err
	})
	return e, ok, err
}

// openDatabases gives both machines the databases in their directories.
func (r *rig) openDatabases(first bool) (closeAll func()) {
	r.t.Helper()
	var open []*daemonstore.DB
	for _, s := range []*side{r.src, r.dst} {
		db, err := daemonstore.Open(r.t.Context(), daemonstore.Options{Path: filepath.Join(s.dir, "daemon.db"), ClientID: s.id, Log: zerolog.Nop()})
		must(r.t, err)
		open = append(open, db)
		id := uuid.MustParse(r.def.GetJobId())
		if first {
			must(r.t, db.Update(r.t.Context(), "test.job", func(tx daemon.Tx) error {
				return tx.InsertJob(daemon.JobRow{ID: id, Definition: r.def, Digest: archive.DefinitionDigest(r.def), Revision: 1,
					Role: r.job(s).Role, State: pb.JobState_JOB_STATE_ASSIGNED})
			}))
		}
		s.journal, s.cache = &database{db, id}, db.HashCache()
	}
	return func() {
		for _, db := range open {
			must(r.t, db.Close())
		}
	}
}

// TestKillWithARealDatabase is the test of every point with what a daemon keeps its journal and its cache in, at some of
// the points: the database itself is opened anew after the kill.
func TestKillWithARealDatabase(t *testing.T) {
	for _, c := range scenes {
		t.Run(c.name, func(t *testing.T) {
			for n := 3; ; n += 71 {
				r, source, target := c.prepare(t)
				done := r.openDatabases(true)
				stop := &stopper{n: n}
				for _, s := range []*side{r.src, r.dst} {
					s.start(stop)
				}
				list, at := plan(r.def), 0
				for ; at < len(list); at++ {
					if _, err := r.run(list[at]); stop.stopped() {
						delete(r.where(list[at]).evidence, list[at])
						break
					} else if err != nil {
						t.Fatal(err)
					}
				}
				done()
				done = r.openDatabases(false)
				for _, s := range []*side{r.src, r.dst} {
					s.start(nil)
				}
				r.steps(list[at:]...)
				r.close()
				c.check(t, r, source, target)
				r.noLeftovers()
				done()
				if t.Failed() {
					t.Fatalf("killed at change %d, %s", n, stop.what())
				}
				if at == len(list) {
					return
				}
			}
		})
	}
}
