package api

import (
	"bufio"
	"net/http"

	"signalbox/appliance/agent"
	"signalbox/transport"
)

// listChunk is how many rows of a page are in memory at once: a row may have a megabyte.
const listChunk = 50

// list is the answer of every paged route (agent protocol H.3).
type list[T any] struct {
	Items      []T     `json:"items"`
	NextCursor *string `json:"next_cursor"`
}

// lister reads a list and shows its rows.
type lister[R, T any] struct {
	read  func(agent.Page) ([]R, error)
	show  func(*R) T
	place func(*R) agent.Cursor
}

// serveList answers with a page. A large one is read and written in chunks.
func serveList[R, T any](a *API, w http.ResponseWriter, c *call, page agent.Page, l lister[R, T]) error {
	rows, err := l.read(agent.Page{Limit: min(page.Limit, listChunk), After: page.After})
	if err != nil {
		return err
	}
	if page.Limit <= listChunk || len(rows) < listChunk {
		return reply(w, c, http.StatusOK, list[T]{each(rows, l.show), l.next(rows, page.Limit)})
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if err := l.writeChunks(bufio.NewWriterSize(w, streamBuffer), rows, page.Limit); err != nil {
		a.cutOff(c, err)
	}
	return nil
}

// next is the cursor after the rows: a full page has one, even when no row follows.
func (l lister[R, T]) next(rows []R, limit int) *string {
	if len(rows) == 0 || len(rows) < limit {
		return nil
	}
	next := encodeCursor(l.place(&rows[len(rows)-1]))
	return &next
}

// writeChunks writes the page that begins with these rows.
func (l lister[R, T]) writeChunks(out *bufio.Writer, rows []R, limit int) error {
	_, _ = out.WriteString(`{"items":`) // errors of a bufio.Writer stay until Flush
	sep := byte('[')
	for left := limit; len(rows) > 0; {
		for i := range rows {
			item, err := transport.EncodeJSON(l.show(&rows[i]))
			if err != nil {
				return err
			}
			_ = out.WriteByte(sep)
			_, _ = out.Write(item)
			sep = ','
		}
		last := l.place(&rows[len(rows)-1])
		if left -= len(rows); left <= 0 {
			_, _ = out.WriteString(`],"next_cursor":"` + encodeCursor(last) + `"}` + "\n")
			return out.Flush()
		}
		if len(rows) < listChunk {
			break
		}
		var err error
		if rows, err = l.read(agent.Page{Limit: min(left, listChunk), After: last}); err != nil {
			return err
		}
	}
	_, _ = out.WriteString(`],"next_cursor":null}` + "\n")
	return out.Flush()
}

// pages reads the whole list for an export.
func (l lister[R, T]) pages() pages {
	var after agent.Cursor
	return func(limit int) ([]any, error) {
		rows, err := l.read(agent.Page{Limit: limit, After: after})
		if err != nil || len(rows) == 0 {
			return nil, err
		}
		after = l.place(&rows[len(rows)-1])
		return each(rows, func(r *R) any { return l.show(r) }), nil
	}
}

// each shows every row; the result is never nil.
func each[R, T any](rows []R, show func(*R) T) []T {
	out := make([]T, len(rows))
	for i := range rows {
		out[i] = show(&rows[i])
	}
	return out
}
