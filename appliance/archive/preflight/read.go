package preflight

import (
	"context"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/archive/inventory"
	"signalbox/appliance/fault"
)

// Wait blocks until the preview has ended, or ctx has.
func (p *Preflight) Wait(ctx context.Context, id uuid.UUID) (Preview, error) {
	w := p.o.Hub.Watch(PreviewKey{id})
	defer w.Stop()
	for {
		v, err := p.Show(ctx, id)
		if err != nil || v.State != Running {
			return v, err
		}
		select {
		case <-w.C():
		case <-ctx.Done():
			return v, fault.Wrap(fault.Canceled, context.Cause(ctx), "the preview was not waited for")
		}
	}
}

// Show reads a preview; NotFound without it.
func (p *Preflight) Show(ctx context.Context, id uuid.UUID) (Preview, error) {
	var v Preview
	err := p.store.View(ctx, func(tx ReadTx) (err error) {
		ok := false
		if v, ok, err = tx.PreviewByID(id); err == nil && !ok {
			err = fault.New(fault.NotFound, "there is no preview %s", id)
		}
		return err
	})
	return v, err
}

// List reads previews, newest first; before is the number of the last one of the page before, 0 for the newest.
func (p *Preflight) List(ctx context.Context, before int64, limit int) ([]Preview, error) {
	var out []Preview
	err := p.store.View(ctx, func(tx ReadTx) (err error) {
		out, err = tx.Previews(before, min(max(limit, 1), 200))
		return err
	})
	return out, err
}

// Files reads a page of a preview's plan, the files after the index; -1 for the first page.
func (p *Preflight) Files(ctx context.Context, id uuid.UUID, after int64, limit int) ([]PlannedFile, error) {
	var out []PlannedFile
	err := p.store.View(ctx, func(tx ReadTx) error {
		v, ok, err := tx.PreviewByID(id)
		if err == nil && !ok {
			err = fault.New(fault.NotFound, "there is no preview %s", id)
		}
		if err != nil {
			return err
		}
		out, err = tx.PreviewFiles(v.No, after, min(max(limit, 1), inventory.MaxPage))
		return err
	})
	return out, err
}

// keepPreviews is how long previews are kept that no job was started from.
const keepPreviews = 30 * 24 * time.Hour

// Prune deletes previews of more than 30 days ago that no job was started from, and returns how many.
func (p *Preflight) Prune(ctx context.Context) (int, error) {
	total := 0
	for {
		var n int64
		err := p.o.Upkeep.Update(ctx, "prune previews", func(tx Tx) (err error) {
			n, err = tx.PreviewPrune(tx.Now().Add(-keepPreviews), 1)
			return err
		})
		total += int(n)
		if err != nil || n == 0 || ctx.Err() != nil {
			return total, err
		}
	}
}
