package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"signalbox/appliance/fault"
)

// compareSchema refuses a live schema that differs from schema.sql, with a diff: a script that was forgotten, or a
// hand at work in the file, is found at the start and not by the first statement that trips over it.
func compareSchema(ctx context.Context, c *conn, schema string) error {
	live, err := readSchema(ctx, c.sc)
	if err != nil {
		return fmt.Errorf("read the live schema: %w", err)
	}
	want, err := wantedSchema(ctx, schema)
	if err != nil {
		return fmt.Errorf("schema.sql: %w", err)
	}
	if diff := diffSchemas(want, live); diff != "" {
		return fault.New(fault.Conflict, "the schema of the database differs from schema.sql (- expected, + found):\n%s", diff)
	}
	return nil
}

// wantedSchema applies the text to an empty database in memory.
func wantedSchema(ctx context.Context, schema string) (map[string]string, error) {
	db, err := sql.Open("sqlite", "file::memory:?_dqs=0")
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	c, err := db.Conn(ctx)
	if err != nil {
		return nil, mapError(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.ExecContext(background, schema); err != nil {
		return nil, mapError(err)
	}
	return readSchema(ctx, c)
}

// readSchema gives "type name" → normalised SQL.
func readSchema(ctx context.Context, c *sql.Conn) (map[string]string, error) {
	rows, err := c.QueryContext(ctx, `SELECT type, name, coalesce(sql, '') FROM sqlite_schema WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\'`)
	if err != nil {
		return nil, mapError(err)
	}
	defer func() { _ = rows.Close() }()
	out := map[string]string{}
	for rows.Next() {
		var kind, name, text string
		if err := rows.Scan(&kind, &name, &text); err != nil {
			return nil, mapError(err)
		}
		out[kind+" "+name] = normaliseSQL(text)
	}
	return out, mapError(rows.Err())
}

// diffSchemas lists every object that is missing, unexpected or different, sorted; "" when there is none.
func diffSchemas(want, live map[string]string) string {
	names := map[string]bool{}
	for n := range want {
		names[n] = true
	}
	for n := range live {
		names[n] = true
	}
	sorted := make([]string, 0, len(names))
	for n := range names {
		sorted = append(sorted, n)
	}
	slices.Sort(sorted)
	var b strings.Builder
	for _, n := range sorted {
		w, inWant := want[n]
		l, inLive := live[n]
		if inWant == inLive && w == l {
			continue
		}
		fmt.Fprintf(&b, "%s\n", n)
		if inWant {
			fmt.Fprintf(&b, "  - %s\n", w)
		}
		if inLive {
			fmt.Fprintf(&b, "  + %s\n", l)
		}
	}
	return b.String()
}

// normaliseSQL removes what does not change a definition: comments, white space, and the quotes that ALTER TABLE puts
// around a plain name. Text inside quotes stays as it is.
func normaliseSQL(text string) string {
	var out []byte
	space := false
	emit := func(tok string) {
		if space && len(out) > 0 && isWord(out[len(out)-1]) && isWord(tok[0]) {
			out = append(out, ' ')
		}
		space = false
		out = append(out, tok...)
	}
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			space = true
			i++
		case strings.HasPrefix(text[i:], "--"):
			i = endOf(text, i, "\n")
			space = true
		case strings.HasPrefix(text[i:], "/*"):
			i = endOf(text, i+2, "*/")
			space = true
		case c == '\'' || c == '"' || c == '`':
			end := endOfQuoted(text, i)
			tok := text[i:end]
			plain := c != '\'' && isPlainName(tok[1:max(len(tok)-1, 1)])
			if plain { // without its quotes the name needs a space on both sides
				tok = tok[1 : len(tok)-1]
				space = true
			}
			emit(tok)
			space = plain
			i = end
		default:
			emit(text[i : i+1])
			i++
		}
	}
	return string(out)
}

func endOf(text string, from int, mark string) int {
	if n := strings.Index(text[from:], mark); n >= 0 {
		return from + n + len(mark)
	}
	return len(text)
}

// endOfQuoted returns the index behind the closing quote; a doubled quote is part of the text.
func endOfQuoted(text string, from int) int {
	q := text[from]
	for i := from + 1; i < len(text); i++ {
		if text[i] != q {
			continue
		}
		if i+1 < len(text) && text[i+1] == q {
			i++
			continue
		}
		return i + 1
	}
	return len(text)
}

func isWord(c byte) bool {
	return c == '_' || c == '\'' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

func isPlainName(s string) bool {
	for i := range len(s) {
		if !isWord(s[i]) || s[i] == '\'' {
			return false
		}
	}
	return s != "" && (s[0] < '0' || s[0] > '9')
}
