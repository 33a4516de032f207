package inventory

import (
	"context"
	"errors"
	"time"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// faulted ends an answer that breaks a rule. The request begins anew once (daemon protocol 9, row 10).
func (i *Inventory) faulted(tx Tx, r *Request, detail *pb.ErrorDetail) error {
	if r.Faults >= maxFaults {
		return i.end(tx, r, Failed, detail)
	}
	r.Faults++
	return i.again(tx, r)
}

// refused ends an answer that the daemon ended itself. When the inventory changed under a request that is content with any
// revision, it begins anew.
func (i *Inventory) refused(tx Tx, r *Request, q *Query, detail *pb.ErrorDetail) error {
	stale := detail.GetCode() == pb.ErrorCode_ERROR_CODE_STALE_REVISION && r.Query.GetExpectedRevision() == 0 ||
		detail.GetCode() == pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT && q.Page > 0 && r.Query.GetExpectedContentRevision() == ""
	if r.Single && r.Query.GetPageToken() != "" {
		stale = false // the token is bound to the revision that is gone
	}
	if stale && r.Restarts < maxRestarts {
		r.Restarts++
		return i.again(tx, r)
	}
	return i.end(tx, r, Failed, detail)
}

// again drops what was staged and asks for the first page with a new query and a new command.
func (i *Inventory) again(tx Tx, r *Request) error {
	if err := i.drop(tx, r); err != nil {
		return err
	}
	d, ok, err := tx.InventoryDaemonByNo(r.DaemonNo)
	if err != nil || !ok {
		return err
	}
	r.Entries, r.NextPage, r.Revision = 0, "", 0
	if err := tx.InventoryUpdateRequest(r); err != nil {
		return err
	}
	i.freeSlot(tx, r.DaemonNo)
	return i.send(tx, d.Ref, r, Query{AfterIndex: -1})
}

// drop ends the open query of the request, closes its command and deletes everything that was staged.
func (i *Inventory) drop(tx Tx, r *Request) error {
	q, ok, err := tx.InventoryOpenQuery(r.No)
	if err != nil {
		return err
	}
	if ok {
		if err := i.o.Commands.Close(tx, q.CommandNo); err != nil {
			return err
		}
		i.expectNothing(tx, q.No)
	}
	if err := tx.InventoryEndQueries(r.No); err != nil {
		return err
	}
	return tx.InventoryDropStaged(r.No, 0)
}

// end ends the request.
func (i *Inventory) end(tx Tx, r *Request, state State, detail *pb.ErrorDetail) error {
	if state == Failed {
		if err := i.drop(tx, r); err != nil {
			return err
		}
	}
	r.State, r.Error, r.FinishedAt = state, detail, tx.Now()
	if err := tx.InventoryUpdateRequest(r); err != nil {
		return err
	}
	i.freeSlot(tx, r.DaemonNo)
	no, daemonNo, scope, entries := r.No, r.DaemonNo, r.Scope, r.Entries
	tx.Hint(func() {
		i.o.Hub.Wake(archive.QueryKey(no))
		if state == Complete {
			i.o.Hub.Wake(ViewKey{daemonNo})
		}
	})
	tx.AfterCommit(func() {
		if state == Complete {
			i.o.Observer.Completed(scope, entries)
			return
		}
		i.o.Observer.Ended(scope, detail.GetCode())
	})
	return nil
}

// freeSlot has the daemon's connection look for the next query to send.
func (i *Inventory) freeSlot(tx Tx, daemonNo int64) {
	tx.Hint(func() { i.o.Hub.Wake(archive.DaemonKey(daemonNo)) })
}

// outlives tells whether the request is asked again by itself after its connection or process has ended: nobody waits for
// those who could ask again.
func outlives(r *Request) bool {
	return r.Scope == pb.InventoryScope_INVENTORY_SCOPE_ROUTES || r.Purpose == pb.InventoryPurpose_INVENTORY_PURPOSE_RECONCILIATION
}

// interrupted ends a request whose connection has ended in the middle of its answer (daemon protocol 9, row 9).
func (i *Inventory) interrupted(tx Tx, r *Request, message string) error {
	if outlives(r) {
		return i.again(tx, r)
	}
	return i.end(tx, r, Failed, &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_TIMEOUT, Retryable: true, Message: message})
}

// detachTimeout bounds the write after a disconnect: whoever closed the socket does not wait for it for long.
const detachTimeout = 10 * time.Second

// OnDetach is told that the socket of a link has ended. Answers it owed are discarded; questions that were not sent yet
// stay. What cannot be stored now is made up for by the next registration, or when the daemon is marked offline.
func (i *Inventory) OnDetach(link archive.Link) {
	ctx, cancel := context.WithTimeout(context.Background(), detachTimeout)
	defer cancel()
	err := i.store.Update(ctx, "inventory disconnect", func(tx Tx) error { return i.cut(tx, link.Daemon.No, link.Generation) })
	if err != nil {
		i.o.Observer.Trouble("discard the answers of a closed connection", err)
	}
}

// OnRegister is told of a registration within its transaction: answers that earlier connections owed will not come.
func (i *Inventory) OnRegister(tx Tx, link archive.Link) error {
	return i.cut(tx, link.Daemon.No, link.Generation-1)
}

// Reread asks anew for what is stored of a daemon that came with another or an older database (daemon protocol 4.6): its
// resources and its storage, as far as a full view of them was ever stored. Trees are fetched when they are needed.
func (i *Inventory) Reread(tx Tx, daemon archive.DaemonRef) error {
	views, err := tx.InventoryViews(daemon.No)
	if err != nil {
		return err
	}
	for _, v := range views {
		if v.Scope != pb.InventoryScope_INVENTORY_SCOPE_RESOURCES && v.Scope != pb.InventoryScope_INVENTORY_SCOPE_STORAGE {
			continue
		}
		_, err := i.Ask(tx, daemon, &pb.InventoryQuery{Scope: v.Scope}, pb.InventoryPurpose_INVENTORY_PURPOSE_RECONCILIATION)
		if err != nil && !errors.Is(err, ErrBusy) {
			return err
		}
	}
	return nil
}

// cut ends what was sent under the generation or an earlier one.
func (i *Inventory) cut(tx Tx, daemonNo, generation int64) error {
	sent, err := tx.InventorySentQueries(daemonNo)
	if err != nil {
		return err
	}
	for _, q := range sent {
		if max(q.Generation, q.SentGeneration) > generation {
			continue
		}
		r, ok, err := tx.InventoryRequest(q.RequestNo)
		if err == nil && ok {
			err = i.interrupted(tx, &r, "the connection ended before the answer was complete")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// OnOffline is told, in its transaction, that a daemon was marked offline. Questions that somebody waits for fail; others
// wait for the daemon.
func (i *Inventory) OnOffline(tx Tx, daemonNo int64) error {
	open, err := tx.InventoryOpenRequests(daemonNo)
	if err != nil {
		return err
	}
	for _, r := range open {
		if !outlives(&r) {
			err = i.end(tx, &r, Failed, &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_UNAVAILABLE, Retryable: true,
				Message: "the daemon went offline before it answered"})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// OnForget deletes what is kept of a daemon that is forgotten.
func (i *Inventory) OnForget(tx Tx, daemonNo int64) error { return tx.InventoryForget(daemonNo) }

// Accepted is told that a daemon has durably accepted the query of the command; the answer is due.
func (i *Inventory) Accepted(tx Tx, link archive.Link, commandNo int64) error {
	q, ok, err := tx.InventoryQueryOfCommand(commandNo)
	if err != nil || !ok || q.State != Open {
		return err
	}
	if q.Chunks == 0 {
		i.expectBy(tx, q.No, FirstChunk)
	}
	return nil
}

// Rejected is told that a daemon has refused the query of the command.
func (i *Inventory) Rejected(tx Tx, commandNo int64, detail *pb.ErrorDetail) error {
	if detail.GetCode() == 0 {
		detail = &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_INTERNAL, Message: "the daemon refused the query without a reason"}
	}
	return i.endOf(tx, commandNo, detail)
}

// Exhausted is told that the command was sent as often as it may be and not answered.
func (i *Inventory) Exhausted(tx Tx, commandNo int64) error {
	return i.endOf(tx, commandNo, &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_TIMEOUT, Retryable: true,
		Message: "the daemon did not acknowledge the query"})
}

func (i *Inventory) endOf(tx Tx, commandNo int64, detail *pb.ErrorDetail) error {
	q, ok, err := tx.InventoryQueryOfCommand(commandNo)
	if err != nil || !ok || q.State != Open {
		return err
	}
	r, ok, err := tx.InventoryRequest(q.RequestNo)
	if err != nil || !ok || r.State != Open {
		return err
	}
	return i.end(tx, &r, Failed, detail)
}

// maySend reports whether the query of the command may go out now: a daemon has at most MaxOpen to answer at a time
// (5.2), and one that has ended is not sent.
func (i *Inventory) maySend(tx ReadTx, commandNo int64) (bool, error) {
	q, ok, err := tx.InventoryQueryOfCommand(commandNo)
	if err != nil || !ok || q.State != Open {
		return false, err
	}
	sent, err := tx.InventorySentQueries(q.DaemonNo)
	if err != nil {
		return false, err
	}
	for _, s := range sent {
		if s.No == q.No {
			return true, nil // a resend takes no further slot
		}
	}
	return len(sent) < MaxOpen, nil
}
