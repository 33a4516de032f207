package commands

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// schemaVersion numbers the shape of the JSON documents. It is raised when a field changes its meaning or goes away.
const schemaVersion = 1

// printer writes results in the form the caller asked for and remembers whether a document was written.
type printer struct {
	stdio Stdio
	opts  *options
	wrote bool
}

// document writes fields as one JSON object. The values are marshalled in order after schema_version.
func (p *printer) document(fields ...field) error {
	p.wrote = true
	line, err := encodeObject(fields)
	if err != nil {
		return err
	}
	if p.stdio.IsTerminal {
		var buf bytes.Buffer
		if err := json.Indent(&buf, line, "", "  "); err != nil {
			return fmt.Errorf("indent document: %w", err)
		}
		line = buf.Bytes()
	}
	return p.writeLine(line)
}

// object writes a document with one field.
func (p *printer) object(name string, value any) error { return p.document(field{name, value}) }

func (p *printer) writeLine(line []byte) error {
	if _, err := p.stdio.Out.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}

// field is one member of a document; the order of fields is kept.
type field struct {
	name  string
	value any
}

func encodeObject(fields []field) ([]byte, error) {
	var buf bytes.Buffer
	fmt.Fprintf(&buf, `{"schema_version":%d`, schemaVersion)
	for _, f := range fields {
		value, err := marshal(f.value)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", f.name, err)
		}
		fmt.Fprintf(&buf, ",%q:", f.name)
		buf.Write(value)
	}
	buf.WriteByte('}')
	return buf.Bytes(), nil
}

// marshal encodes on one line and leaves <, > and & as they are: the output is for programs, not for a page.
func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(buf.Bytes(), "\n"), nil
}

// say writes a line of talk to stderr.
func (p *printer) say(format string, args ...any) {
	fmt.Fprintln(p.stdio.Err, printable(fmt.Sprintf(format, args...)))
}

// table writes aligned columns. Rows hold one cell a column.
func (p *printer) table(header []string, rows [][]string) error {
	p.wrote = true
	return writeTable(p.stdio.Out, header, rows)
}

func writeTable(out io.Writer, header []string, rows [][]string) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	if len(header) > 0 {
		fmt.Fprintln(w, strings.Join(header, "\t"))
	}
	for _, row := range rows {
		for i, cell := range row {
			row[i] = oneLine(cell)
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// facts writes "name: value" lines with the values aligned. Empty values and absent times are left out.
func (p *printer) facts(pairs ...[2]string) error {
	rows := make([][]string, 0, len(pairs))
	for _, pair := range pairs {
		if pair[1] != "" && pair[1] != "-" {
			rows = append(rows, []string{pair[0] + ":", pair[1]})
		}
	}
	return p.table(nil, rows)
}

// text writes a line of result.
func (p *printer) text(format string, args ...any) {
	p.wrote = true
	fmt.Fprintf(p.stdio.Out, format+"\n", args...)
}

// oneLine makes text from a peer safe to print in a table cell: control characters, which could move the cursor or set
// colours on the reader's terminal, and those that turn the direction of what follows, which could make a name read as
// another one, become spaces or question marks.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r' || r == '\u2028' || r == '\u2029': // the last two separate lines and paragraphs
			return ' '
		case r < 0x20 || (r >= 0x7f && r < 0xa0), r >= '\u202a' && r <= '\u202e', r >= '\u2066' && r <= '\u2069':
			return '?'
		}
		return r
	}, s)
}

// printable is oneLine that keeps line breaks and tabs.
func printable(s string) string {
	lines := strings.Split(strings.ReplaceAll(s, "\r\n", "\n"), "\n")
	for i, line := range lines {
		lines[i] = oneLine(line)
	}
	return strings.Join(lines, "\n")
}

// cut shortens a cell to n characters.
func cut(s string, n int) string {
	runes := []rune(s)
	if len(runes) <= n {
		return s
	}
	return string(runes[:n-1]) + "…"
}

// wireTime is RFC 3339 in UTC with the server's precision, always of one width.
const wireTime = "2006-01-02T15:04:05.000000Z"

// when formats a time: relative on a terminal, RFC 3339 when piped, "-" when absent.
func (p *printer) when(t *time.Time) string {
	if t == nil || t.IsZero() {
		return "-"
	}
	if !p.stdio.IsTerminal {
		return t.UTC().Format(wireTime)
	}
	return relative(t.Sub(p.opts.now()))
}

// relative words a distance from now: "in 5s", "3m ago".
func relative(d time.Duration) string {
	switch {
	case d > time.Second:
		return "in " + roughly(d)
	case d > -time.Second:
		return "now"
	}
	return roughly(-d) + " ago"
}

func roughly(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}

// dash shows "-" for an empty cell so that columns stay countable in pipes.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// stamp is the time of a stream line: the clock on a terminal, RFC 3339 when piped.
func (p *printer) stamp(t *time.Time) string {
	if t == nil {
		return "-"
	}
	if p.stdio.IsTerminal {
		return t.Local().Format("15:04:05.000")
	}
	return t.UTC().Format(wireTime)
}

// shortID is the part of an id that people read: its first eight digits. It is enough for any command that takes an id.
func shortID(id string) string {
	if len(id) > 8 {
		return id[:8]
	}
	return id
}

// pad fills a cell of a stream line, whose columns cannot be measured ahead.
func pad(s string, width int) string { return fmt.Sprintf("%-*s", width, s) }

func itoa[N int | int64](n N) string { return fmt.Sprint(n) }

// number shows an optional count, "-" when unknown.
func number(n *int64) string {
	if n == nil {
		return "-"
	}
	return itoa(*n)
}

func formatFloat(f float64) string { return fmt.Sprintf("%.3f", f) }
