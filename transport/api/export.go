package api

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"signalbox/appliance/audit"
)

const (
	exportPage = listChunk
	// exportBuffer is what is written to the peer at once.
	exportBuffer = 32 << 10
)

// exportSpec is what a request wants exported.
type exportSpec struct {
	format  string // csv, json or xlsx
	columns []string
	index   []int // of the columns in the row's struct
}

// pages returns the next rows of an export, none at its end.
type pages func(limit int) ([]any, error)

// columns are the JSON names of a row type, in order.
type columns struct {
	names []string
	index map[string]int
}

func columnsOf(row any) columns {
	t := reflect.TypeOf(row)
	c := columns{index: map[string]int{}}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		c.names = append(c.names, name)
		c.index[name] = i
	}
	return c
}

var (
	taskColumns  = columnsOf(taskPublic{})
	auditColumns = columnsOf(auditPublic{})
)

// exportForm reads format and fields; nil when the request asks for a list.
func exportForm(q *query, cols columns) *exportSpec {
	if !q.values.Has("format") {
		if q.values.Has("fields") {
			q.bad("fields", "needs a format: csv, json or xlsx")
		}
		return nil
	}
	form := &exportSpec{format: q.oneOf("format", "csv", "json", "xlsx"), columns: cols.names}
	if q.values.Get("fields") != "" {
		form.columns = strings.Split(q.values.Get("fields"), ",")
	}
	for i, name := range form.columns {
		at, ok := cols.index[name]
		if !ok || slices.Contains(form.columns[:i], name) {
			q.bad("fields", "must be different names of %s, separated by commas", strings.Join(cols.names, ", "))
			return form
		}
		form.index = append(form.index, at)
	}
	return form
}

// export writes at most 50,000 rows (agent protocol H.7), newest first. Rows are read a page at a time, so that a slow
// reader holds no snapshot and no more than one page.
func (a *API) export(w http.ResponseWriter, c *call, name string, form *exportSpec, next pages) error {
	done, err := a.streams.take(c.who.ID)
	if err != nil {
		return err
	}
	defer done()
	rows, err := next(exportPage)
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", exportTypes[form.format])
	h.Set("Content-Disposition", `attachment; filename="`+name+`.`+form.format+`"`)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	out := newExportWriter(w, form)
	for left := audit.MaxExport; len(rows) > 0; {
		if err := writeRows(out, form, rows[:min(len(rows), left)]); err != nil {
			a.cutOff(c, err)
		}
		if left -= len(rows); left <= 0 || len(rows) < exportPage {
			break
		}
		if rows, err = next(min(left, exportPage)); err != nil {
			a.cutOff(c, err)
		}
	}
	if err := out.end(); err != nil {
		a.cutOff(c, err)
	}
	return nil
}

// exportTypes are the media types of the formats.
var exportTypes = map[string]string{
	"csv":  "text/csv; charset=utf-8",
	"json": "application/json",
	"xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}

// exportWriter writes rows in one format. Cells are JSON.
type exportWriter interface {
	row(cells []json.RawMessage) error
	end() error
}

func newExportWriter(w http.ResponseWriter, form *exportSpec) exportWriter {
	buf := bufio.NewWriterSize(w, exportBuffer)
	switch form.format {
	case "csv":
		return newCSVExport(buf, form.columns)
	case "xlsx":
		return newXLSXExport(buf, form.columns)
	default:
		return &jsonExport{columns: form.columns, buf: buf}
	}
}

func writeRows(out exportWriter, form *exportSpec, rows []any) error {
	for _, row := range rows {
		v := reflect.ValueOf(row)
		cells := make([]json.RawMessage, len(form.index))
		for i, at := range form.index {
			cell, err := exportCell(v.Field(at).Interface())
			if err != nil {
				return err
			}
			cells[i] = cell
		}
		if err := out.row(cells); err != nil {
			return err
		}
	}
	return nil
}

type csvExport struct {
	buf *bufio.Writer
	csv *csv.Writer
}

func newCSVExport(buf *bufio.Writer, columns []string) *csvExport {
	out := &csvExport{buf: buf, csv: csv.NewWriter(buf)}
	_ = out.csv.Write(columns) // its error stays in the writer for end
	return out
}

func (e *csvExport) row(cells []json.RawMessage) error {
	record := make([]string, len(cells))
	for i, cell := range cells {
		record[i] = csvCell(cell)
	}
	return e.csv.Write(record)
}

func (e *csvExport) end() error {
	e.csv.Flush()
	if err := e.csv.Error(); err != nil {
		return err
	}
	return e.buf.Flush()
}

type jsonExport struct {
	columns []string
	buf     *bufio.Writer
	begun   bool
}

func (e *jsonExport) row(cells []json.RawMessage) error {
	sep := byte('[')
	if e.begun {
		sep = ','
	}
	e.begun = true
	for i, cell := range cells {
		_ = e.buf.WriteByte(sep)
		if i == 0 {
			_ = e.buf.WriteByte('{')
		}
		_, _ = e.buf.WriteString(`"` + e.columns[i] + `":`)
		_, _ = e.buf.Write(cell)
		sep = ','
	}
	return e.buf.WriteByte('}') // errors of a bufio.Writer stay
}

func (e *jsonExport) end() error {
	if !e.begun {
		_ = e.buf.WriteByte('[')
	}
	_, _ = e.buf.WriteString("]\n")
	return e.buf.Flush()
}

// exportCell is a field as JSON; stored JSON stays as it is.
func exportCell(field any) (json.RawMessage, error) {
	stored, ok := field.(json.RawMessage)
	switch {
	case !ok:
		return json.Marshal(field)
	case len(stored) == 0:
		return json.RawMessage("null"), nil
	}
	return stored, nil
}

// csvCell is a JSON value as a cell: texts without quotes, null empty, all else as JSON. A text that a spreadsheet would
// run as a formula gets an apostrophe in front: these texts come from strangers.
func csvCell(cell json.RawMessage) string {
	switch cell[0] {
	case 'n':
		return ""
	case '"':
		var s string
		_ = json.Unmarshal(cell, &s) // we encoded it
		if s != "" && strings.IndexByte("=+-@\t\r", s[0]) >= 0 {
			s = "'" + s
		}
		return s
	}
	return string(cell)
}
