package daemon

import (
	"context"
	"slices"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/fault"
)

// journal is the Journal of one job.
type journal struct {
	d   *Daemon
	job uuid.UUID
}

// Bounds of an entry and of a page.
const (
	maxJournalName   = 4096
	maxJournalDetail = 4 << 10
	journalPage      = 200
)

// Put inserts or replaces the entries in one transaction.
func (j *journal) Put(ctx context.Context, entries ...JournalEntry) error {
	effect := false
	for i, e := range entries {
		switch {
		case e.Name == "" || len(e.Name) > maxJournalName || len(e.TempName) > maxJournalName:
			return fault.Field("journal", "entry %d: a name must have 1 to %d bytes", i, maxJournalName)
		case len(e.Detail) > maxJournalDetail:
			return fault.Field("journal", "entry %d: the detail must have at most %d bytes", i, maxJournalDetail)
		}
		effect = effect || e.State != Intent
	}
	if effect {
		if err := j.d.at(EffectDone, j.job); err != nil {
			return err
		}
	}
	if err := j.d.update(ctx, "daemon.journal", func(tx Tx) error { return tx.PutJournal(j.job, entries) }); err != nil {
		return err
	}
	if effect {
		return j.d.at(EffectStored, j.job)
	}
	return j.d.at(IntentStored, j.job)
}

// List calls fn for the entries of the steps until it returns false.
func (j *journal) List(ctx context.Context, fn func(JournalEntry) bool, steps ...pb.JobStep) error {
	var after *JournalEntry
	for {
		var page []JournalEntry
		err := j.d.o.Store.View(ctx, func(tx ReadTx) (err error) {
			page, err = tx.JournalPage(j.job, after, journalPage)
			return err
		})
		if err != nil {
			return err
		}
		for _, e := range page {
			if (len(steps) == 0 || slices.Contains(steps, e.Step)) && !fn(e) {
				return nil
			}
		}
		if len(page) < journalPage {
			return nil
		}
		after = &page[len(page)-1]
	}
}

// Get returns one entry by its key.
func (j *journal) Get(ctx context.Context, step pb.JobStep, index int64, name string) (e JournalEntry, ok bool, err error) {
	err = j.d.o.Store.View(ctx, func(tx ReadTx) (err error) {
		e, ok, err = tx.JournalEntry(j.job, step, index, name)
		return err
	})
	return e, ok, err
}
