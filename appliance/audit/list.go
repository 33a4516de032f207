package audit

import (
	"context"
	"time"
)

// Filter chooses rows (agent protocol H.7). Zero fields choose all.
type Filter struct {
	ProjectNo    int64 // one project; 0: every project and the rows without one
	ActionPrefix string
	Outcome      string
	UserID       string
	Since        time.Time // rows at or after
}

// window is how many row numbers one snapshot looks through: a filter that matches little must not hold a snapshot
// while the whole log is read.
const window = 20_000

// exportPage is how many rows of an export are in memory at once.
const exportPage = 500

// List returns up to limit rows that match, newest first, starting below row number before; 0 starts at the newest.
func (l *Log) List(ctx context.Context, st Store, f Filter, before int64, limit int) ([]Record, error) {
	out := make([]Record, 0, min(limit, exportPage))
	for high, more := before, true; more && len(out) < limit; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		err := st.View(ctx, func(tx ReadTx) error {
			rows, low, err := listWindow(tx, f, high, limit-len(out))
			out = append(out, rows...)
			high, more = low, low > 0
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// listWindow looks through one window below row number high, or below the end for 0. It returns where the next window
// ends, 0 when no older row can match.
func listWindow(tx ReadTx, f Filter, high int64, limit int) (rows []Record, low int64, err error) {
	last, _, err := tx.LastAudit()
	if err != nil {
		return nil, 0, err
	}
	if high <= 0 || high > last {
		high = last + 1
	}
	low = max(1, high-window)
	if rows, err = tx.AuditRecords(f, low, high, limit); err != nil {
		return nil, 0, err
	}
	first, _, err := tx.AuditAt(1)
	if err != nil || first >= low {
		return rows, 0, err
	}
	// The log is in order of time: what lies below the window is not younger than its first row.
	_, at, err := tx.AuditAt(low)
	if err != nil || at.Before(f.Since) {
		return rows, 0, err
	}
	return rows, low, nil
}

// Export calls fn for each row that matches, newest first, at most MaxExport of them. No transaction is open while fn
// runs. An error of fn ends the export and is returned.
func (l *Log) Export(ctx context.Context, st Store, f Filter, fn func(*Record) error) error {
	before := int64(0)
	for left := MaxExport; left > 0; {
		rows, err := l.List(ctx, st, f, before, min(left, exportPage))
		if err != nil || len(rows) == 0 {
			return err
		}
		for i := range rows {
			if err := fn(&rows[i]); err != nil {
				return err
			}
		}
		left -= len(rows)
		before = rows[len(rows)-1].No
	}
	return nil
}
