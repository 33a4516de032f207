package audit

import (
	"context"
	"crypto/hmac"
	"time"
)

// Reason says how the chain is broken. The texts are shown to people and scripts.
type Reason string

// The reasons, in the order in which Verify looks for them at one row.
const (
	RowMissing  Reason = "row_missing"  // a number is skipped: the row was deleted
	UnknownKey  Reason = "unknown_key"  // made under a secret that is neither current nor previous
	OutOfOrder  Reason = "out_of_order" // the row does not belong here, and is older than the row before it
	RowChanged  Reason = "row_changed"  // content, or the mac of this row or of the row before it, was changed
	TailCut     Reason = "tail_cut"     // rows at the end are missing
	MarkChanged Reason = "mark_changed" // the record of where the log begins or ends was changed or removed
)

// verifyPage is how many rows one snapshot covers: some 5 ms, so that the write-ahead log can be reset in between.
const verifyPage = 500

// Broken is the first place where the chain does not hold.
type Broken struct {
	No     int64 // row, or the number that is missing
	Reason Reason
}

// Report is what Verify found.
type Report struct {
	Checked int64 // rows that hold
	FirstNo int64 // first row checked; 0: none
	LastNo  int64 // last row checked; 0: none
	Broken  *Broken
}

// OK reports whether the whole chain holds.
func (r Report) OK() bool { return r.Broken == nil }

// walk is the state of one verification.
type walk struct {
	report Report
	last   int64 // number of the row before the next one
	mac    []byte
	at     time.Time
}

func (w *walk) broken(no int64, why Reason) { w.report.Broken = &Broken{No: no, Reason: why} }

// Verify walks the chain from the anchor to where the log ends now, a page a snapshot, and stops at the first row that
// does not hold. Rows may be appended and pruned meanwhile. The error is the store's or the context's; a broken chain
// is a report, not an error.
func (l *Log) Verify(ctx context.Context, st Store) (Report, error) {
	var end int64
	var tail *Broken
	err := st.View(ctx, func(tx ReadTx) (err error) {
		end, tail, err = l.checkTail(tx)
		return err
	})
	if err != nil {
		return Report{}, err
	}
	w := walk{mac: genesis[:]}
	for more := true; more && w.report.Broken == nil; {
		if err := ctx.Err(); err != nil {
			return w.report, err
		}
		err := st.View(ctx, func(tx ReadTx) (err error) {
			more, err = l.checkPage(tx, &w, end)
			return err
		})
		if err != nil {
			return w.report, err
		}
	}
	if w.report.Broken == nil {
		w.report.Broken = tail
	}
	return w.report, nil
}

// CheckEnd looks at the last row only: the cheap question whether this database was written under a secret that we have.
// nil when the end holds, also when there is no row.
func (l *Log) CheckEnd(ctx context.Context, st Store) (broken *Broken, err error) {
	err = st.View(ctx, func(tx ReadTx) error {
		end, why, err := l.checkTail(tx)
		if end > 0 {
			broken = why
		}
		return err
	})
	return broken, err
}

// checkTail compares the last row with the head, in one snapshot. end is the number of the last row.
func (l *Log) checkTail(tx ReadTx) (end int64, broken *Broken, err error) {
	b, err := tx.AuditHead()
	if err != nil {
		return 0, nil, err
	}
	end, mac, err := l.last(tx)
	if err != nil {
		return 0, nil, err
	}
	head, why := l.keys.checkMark(labelHead, b)
	switch {
	case why != "":
		return end, &Broken{No: end, Reason: why}, nil
	case head.no > end:
		return end, &Broken{No: end + 1, Reason: TailCut}, nil
	case head.no < end:
		// Rows beyond the head, or a head that was removed or put back from an older copy.
		return end, &Broken{No: head.no + 1, Reason: MarkChanged}, nil
	case !hmac.Equal(head.mac, mac):
		return end, &Broken{No: end, Reason: RowChanged}, nil
	}
	return end, nil, nil
}

// checkPage checks the next page of rows up to number end.
func (l *Log) checkPage(tx ReadTx, w *walk, end int64) (more bool, err error) {
	b, err := tx.AuditAnchor()
	if err != nil {
		return false, err
	}
	anchor, why := l.keys.checkMark(labelAnchor, b)
	if why != "" {
		w.broken(anchor.no, why)
		return false, nil
	}
	if anchor.no > w.last { // the beginning, or retention went past us
		w.last, w.mac, w.at = anchor.no, append([]byte(nil), anchor.mac...), time.Time{}
	}
	rows, err := tx.AuditRows(w.last, verifyPage)
	if err != nil {
		return false, err
	}
	for i := range rows {
		if rows[i].No > end {
			return false, nil
		}
		if why := l.checkRow(&rows[i], w); why != "" {
			if why == RowMissing {
				w.broken(w.last+1, why)
			} else {
				w.broken(rows[i].No, why)
			}
			return false, nil
		}
	}
	return len(rows) == verifyPage, nil
}

// checkRow checks one row against the row before it and moves on to it when it holds.
func (l *Log) checkRow(r *Row, w *walk) Reason {
	if r.No != w.last+1 {
		return RowMissing
	}
	k := l.keys.byID(r.KeyID)
	if k == nil {
		return UnknownKey
	}
	if !hmac.Equal(k.mac(r, w.mac), r.Mac) {
		if r.At.Before(w.at) {
			return OutOfOrder
		}
		return RowChanged
	}
	w.last, w.mac, w.at = r.No, r.Mac, r.At
	w.report.Checked++
	w.report.LastNo = r.No
	if w.report.FirstNo == 0 {
		w.report.FirstNo = r.No
	}
	return ""
}
