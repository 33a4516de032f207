package audit

import (
	"context"
	"time"

	"signalbox/appliance/fault"
)

// Reader is what Append and the readers of the log share.
type Reader interface {
	Now() time.Time
	// LastAudit returns number and mac of the last row; 0 and nil when there is none.
	LastAudit() (no int64, mac []byte, err error)
	// AuditAnchor and AuditHead return the stored mark; nil when there is none.
	AuditAnchor() ([]byte, error)
	AuditHead() ([]byte, error)
}

// ReadTx is the snapshot that the log is read from.
type ReadTx interface {
	Reader
	// AuditRows returns up to limit rows above number after, oldest first.
	AuditRows(after int64, limit int) ([]Row, error)
	// AuditRecords returns up to limit rows that match, with low <= number < high, newest first.
	AuditRecords(f Filter, low, high int64, limit int) ([]Record, error)
	// AuditAt returns number and time of the lowest row numbered no or above; 0 and the zero time when there is none.
	AuditAt(no int64) (int64, time.Time, error)
}

// Tx is the write transaction that a row is appended in.
type Tx interface {
	Reader
	InsertAudit(r *Row) error
	SetAuditHead(mark []byte) error
}

// PruneTx is the write transaction that retention works in.
type PruneTx interface {
	Tx
	// OldestAudits returns the last of the oldest limit rows that lies before the first of them written at or after
	// the time; 0 when there is none.
	OldestAudits(before time.Time, limit int) (no int64, mac []byte, err error)
	// DeleteAudits removes every row up to and including number no, and says how many there were.
	DeleteAudits(no int64) (int64, error)
	SetAuditAnchor(mark []byte) error
}

// Store runs the transactions of the log's own methods.
type Store interface {
	Update(ctx context.Context, op string, fn func(PruneTx) error) error
	View(ctx context.Context, fn func(ReadTx) error) error
}

// Log writes and checks the chain. It holds keys and nothing else: the chain's head lives in the database, where it
// rolls back with the transaction that moved it. Safe for concurrent use.
type Log struct{ keys Keys }

// New returns a log under the keys.
func New(keys Keys) *Log { return &Log{keys: keys} }

// Append adds one row at the end of the chain, in the caller's transaction. It costs one indexed read and two writes.
// An error is the store's, or Internal for an entry that misses what every entry has.
func (l *Log) Append(tx Tx, e Entry) error {
	r, err := e.row()
	if err != nil {
		return err
	}
	no, prev, err := l.last(tx)
	if err != nil {
		return err
	}
	if no >= maxRowNo {
		return fault.New(fault.Internal, "the audit log has no numbers left")
	}
	k := l.keys.current()
	r.No, r.At, r.KeyID = no+1, tx.Now(), k.id
	r.Mac = k.mac(&r, prev)
	if err := tx.InsertAudit(&r); err != nil {
		return err
	}
	return tx.SetAuditHead(l.keys.newMark(labelHead, r.No, r.Mac))
}

// last returns where the chain ends: its last row, else what retention left, else nothing. It does not judge: a broken
// anchor is Verify's to report, and must not stop the appliance from recording more.
func (l *Log) last(tx Reader) (no int64, mac []byte, err error) {
	no, mac, err = tx.LastAudit()
	if err != nil || no > 0 {
		return no, mac, err
	}
	b, err := tx.AuditAnchor()
	if err != nil {
		return 0, nil, err
	}
	if m, ok := parseMark(b); ok {
		return m.no, m.mac, nil
	}
	return 0, genesis[:], nil
}

// Prune removes the rows that were written before the time, oldest first and at most batch in one transaction, and moves
// the anchor along. It returns how many went, also beside an error.
func (l *Log) Prune(ctx context.Context, st Store, before time.Time, batch int) (removed int64, err error) {
	batch = max(batch, 1)
	for {
		n, err := l.pruneBatch(ctx, st, before, batch)
		removed += n
		if err != nil || n < int64(batch) {
			return removed, err
		}
	}
}

func (l *Log) pruneBatch(ctx context.Context, st Store, before time.Time, batch int) (removed int64, err error) {
	var any bool
	err = st.View(ctx, func(tx ReadTx) error {
		_, at, err := tx.AuditAt(1)
		any = !at.IsZero() && at.Before(before)
		return err
	})
	if err != nil || !any {
		return 0, err
	}
	err = st.Update(ctx, "prune audit", func(tx PruneTx) error {
		removed = 0
		no, mac, err := tx.OldestAudits(before, batch)
		if err != nil || no == 0 {
			return err
		}
		if removed, err = tx.DeleteAudits(no); err != nil {
			return err
		}
		return tx.SetAuditAnchor(l.keys.newMark(labelAnchor, no, mac))
	})
	if err != nil {
		return 0, err
	}
	return removed, nil
}
