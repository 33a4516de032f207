package config

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// readFile lays the TOML file over the defaults.
func (l *loader) readFile(path string) {
	data, err := readBounded(path, maxConfigFile)
	if err != nil {
		l.problem(path, "", "read the configuration file: %s", err)
		return
	}
	l.applyTOML(path, data)
}

// applyTOML decodes the whole document first, so a syntax error changes nothing, and then sets key by key, so that
// every wrong value is reported and not only the first.
func (l *loader) applyTOML(name string, data []byte) {
	var doc map[string]any
	if err := toml.Unmarshal(data, &doc); err != nil {
		place := name
		if de := (*toml.DecodeError)(nil); errors.As(err, &de) {
			row, col := de.Position()
			place = name + ":" + strconv.Itoa(row) + ":" + strconv.Itoa(col)
		}
		l.problem(place, "", "%s", strings.TrimPrefix(err.Error(), "toml: "))
		return
	}
	f := &tomlFile{l: l, name: name, lines: keyLines(data)}
	f.table("", doc)
	slices.SortStableFunc(f.entries, func(a, b tomlEntry) int {
		if a.line != b.line {
			return a.line - b.line
		}
		return strings.Compare(a.path, b.path)
	})
	seen := map[string]string{}
	for _, e := range f.entries {
		f.set(e, seen)
	}
}

type tomlEntry struct {
	path  string
	line  int
	value any
	// known is false for a key that no setting has.
	known bool
}

// tomlFile walks one decoded document.
type tomlFile struct {
	l       *loader
	name    string
	lines   map[string]int
	entries []tomlEntry
}

// table collects the entries of one table. Sections are one level deep.
func (f *tomlFile) table(section string, doc map[string]any) {
	for k, v := range doc {
		path, known := k, !strings.ContainsAny(k, ".")
		if section != "" {
			path = section + "." + k
		}
		if sub, ok := v.(map[string]any); ok && section == "" && known && f.isSection(k) {
			f.table(k, sub)
			continue
		}
		f.entries = append(f.entries, tomlEntry{path: path, line: f.lines[path], value: v, known: known})
	}
}

func (f *tomlFile) isSection(name string) bool {
	return slices.ContainsFunc(f.l.keys, func(b binding) bool { return b.Section() == name })
}

// set assigns one entry. seen maps the path of a secret to the key that set it, to refuse both forms at once.
func (f *tomlFile) set(e tomlEntry, seen map[string]string) {
	l, org := f.l, Origin{Kind: FromFile, Name: f.name, Line: e.line}
	if b := l.byPath[e.path]; b != nil && e.known {
		if f.twice(b, e, org, seen) {
			return
		}
		l.assign(b, org, func() error { return b.setTOML(e.value) })
		return
	}
	if path, ok := strings.CutSuffix(e.path, "_file"); ok && e.known && l.byPath[path] != nil && l.byPath[path].Secret {
		b := l.byPath[path]
		file, isText := e.value.(string)
		if !isText {
			l.unread[path] = true
			l.problem(e.path, org.String(), "%s", typeError("a string", e.value))
			return
		}
		if file != "" && !f.twice(b, e, org, seen) {
			l.assignFile(b, org, file)
		}
		return
	}
	if e.known && f.isSection(e.path) {
		l.problem(e.path, org.String(), "must be a table, [%s], got %s", e.path, tomlType(e.value))
		return
	}
	l.problem(e.path, org.String(), "unknown key%s", suggestPath(e.path, l.keys))
}

// twice refuses a secret that is given both as text and as a file; an empty one does not count.
func (f *tomlFile) twice(b *binding, e tomlEntry, org Origin, seen map[string]string) bool {
	if !b.Secret || isEmptyTOML(e.value) {
		return false
	}
	if other, ok := seen[b.Path]; ok && other != e.path {
		f.l.unread[b.Path] = true
		f.l.problem(b.Path, org.String(), "%s and %s are both set; set only one", other, e.path)
		return true
	}
	seen[b.Path] = e.path
	return false
}

func isEmptyTOML(v any) bool {
	list, isList := v.([]any)
	return v == "" || isList && len(list) == 0
}

// keyLines maps each dotted key of a well-formed document to its line.
func keyLines(data []byte) map[string]int {
	lines := map[string]int{}
	var p unstable.Parser
	p.Reset(data)
	prefix := ""
	for p.NextExpression() {
		e := p.Expression()
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			prefix = recordKey(&p, e, "", lines)
		case unstable.KeyValue:
			recordValue(&p, e, prefix, lines)
		}
	}
	return lines
}

// recordValue notes a key and, for an inline table, the keys inside.
func recordValue(p *unstable.Parser, e *unstable.Node, prefix string, lines map[string]int) {
	path := recordKey(p, e, prefix, lines)
	v := e.Value()
	if v == nil || v.Kind != unstable.InlineTable {
		return
	}
	for it := v.Children(); it.Next(); {
		if child := it.Node(); child.Kind == unstable.KeyValue {
			recordValue(p, child, path, lines)
		}
	}
}

// recordKey notes the line of every part of a dotted key and returns the whole path.
func recordKey(p *unstable.Parser, e *unstable.Node, prefix string, lines map[string]int) string {
	path := prefix
	for it := e.Key(); it.Next(); {
		n := it.Node()
		if path != "" {
			path += "."
		}
		path += string(n.Data)
		if _, ok := lines[path]; !ok {
			lines[path] = p.Shape(n.Raw).Start.Line
		}
	}
	return path
}
