package inventory

import (
	"context"
	"time"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/fault"
)

// Start ends what the process before left open: its connections are gone, and so are those who waited. Requests that
// nobody waits for begin anew. Call it before the first daemon may register.
func (i *Inventory) Start(ctx context.Context) error {
	return i.store.Update(ctx, "inventory restart", func(tx Tx) error {
		open, err := tx.InventoryOpenRequests(0)
		if err != nil {
			return err
		}
		for _, r := range open {
			if outlives(&r) {
				err = i.again(tx, &r)
			} else {
				err = i.end(tx, &r, Failed, &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_UNAVAILABLE, Retryable: true,
					Message: "control was restarted before the answer was complete"})
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// expectBy has the query time out after d unless something is heard of it.
func (i *Inventory) expectBy(tx Tx, queryNo int64, d time.Duration) {
	tx.Hint(func() {
		i.mu.Lock()
		i.due[queryNo] = i.o.Clock.Now().Add(d)
		i.mu.Unlock()
		i.moved()
	})
}

// expectNothing ends the time-out of the query: not when it is unknown whether the query has ended, for a time-out that finds
// it ended does nothing.
func (i *Inventory) expectNothing(tx Tx, queryNo int64) {
	tx.AfterCommit(func() {
		i.mu.Lock()
		delete(i.due, queryNo)
		i.mu.Unlock()
	})
}

func (i *Inventory) moved() {
	select {
	case i.move <- struct{}{}:
	default:
	}
}

// Run times answers out until ctx ends: one timer for all of them.
func (i *Inventory) Run(ctx context.Context) error {
	timer := i.o.Clock.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next, late := i.late()
		for _, no := range late {
			if err := i.timeOut(ctx, no); err != nil && ctx.Err() == nil {
				i.o.Observer.Trouble("time out of an inventory query", err)
				i.retryLater(no)
			}
		}
		if len(late) > 0 {
			continue
		}
		timer.Stop()
		if !next.IsZero() {
			timer.ResetAt(next)
		}
		select {
		case <-timer.C():
		case <-i.move:
		case <-ctx.Done():
			return nil
		}
	}
}

// late takes the queries whose time is over out of the table and tells when the next one is due.
func (i *Inventory) late() (next time.Time, late []int64) {
	now := i.o.Clock.Now()
	i.mu.Lock()
	defer i.mu.Unlock()
	for no, at := range i.due {
		switch {
		case !at.After(now):
			late = append(late, no)
			delete(i.due, no)
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	return next, late
}

// retryLater puts a query back whose time-out could not be stored.
func (i *Inventory) retryLater(queryNo int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.due[queryNo] = i.o.Clock.Now().Add(ChunkIdle)
}

// timeOut discards an answer whose next part did not come in time, unless it came while we waited for the writer.
func (i *Inventory) timeOut(ctx context.Context, queryNo int64) error {
	return i.store.Update(ctx, "inventory time-out", func(tx Tx) error {
		i.mu.Lock()
		_, heard := i.due[queryNo]
		i.mu.Unlock()
		if heard {
			return nil
		}
		q, ok, err := tx.InventoryQueryByNo(queryNo)
		if err != nil || !ok || q.State != Open {
			return err
		}
		r, ok, err := tx.InventoryRequest(q.RequestNo)
		if err != nil || !ok || r.State != Open {
			return err
		}
		message := "no part of the answer came within " + FirstChunk.String()
		if q.Chunks > 0 {
			message = "the next part of the answer did not come within " + ChunkIdle.String()
		}
		return i.end(tx, &r, Failed, &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_TIMEOUT, Retryable: true, Message: message})
	})
}

// Retention of what nobody needs any more.
const (
	keepRequests = 7 * 24 * time.Hour
	keepLooks    = time.Hour
	pruneSlice   = 50
)

// Prune deletes ended requests after a week, those for the storage after an hour, with their commands, and absent resources
// that no active job refers to, in slices of small transactions. It returns how many rows went. Requests for the storage go
// early because every job that waits for space makes one each minute, for as long as the disk stays full, and each replaces
// what the one before has told.
func (i *Inventory) Prune(ctx context.Context) (int, error) {
	total := 0
	for {
		var n int64
		err := i.o.Upkeep.Update(ctx, "prune inventory", func(tx Tx) error {
			gone, err := tx.InventoryPruneAbsent(pruneSlice)
			if err != nil {
				return err
			}
			n = gone
			gone, err = tx.InventoryPruneRequests(tx.Now().Add(-keepRequests).UnixMicro(), pruneSlice)
			if err != nil {
				return err
			}
			n += gone
			gone, err = tx.InventoryPruneLooks(tx.Now().Add(-keepLooks).UnixMicro(), pruneSlice)
			n += gone
			return err
		})
		total += int(n)
		if err != nil || n == 0 {
			return total, err
		}
		if ctx.Err() != nil {
			return total, fault.Wrap(fault.Canceled, context.Cause(ctx), "pruning was ended")
		}
	}
}
