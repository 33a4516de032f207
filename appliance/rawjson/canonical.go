package rawjson

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Member is one member to set in AppendCanonicalObject.
type Member struct {
	Key   string // decoded
	Value []byte // canonical JSON, copied as it is
}

// AppendCanonical appends the canonical form of v (agent protocol C.3 and C.4): no white space, keys sorted by code
// point with the last duplicate kept, integers unchanged except -0, floats as in AppendFloat, strings with the fewest
// escapes. A missing value appends nothing.
func AppendCanonical(dst []byte, v Value) []byte {
	if v.doc == nil {
		return dst
	}
	w := newWriter(v.doc)
	dst = w.value(dst, v.idx)
	w.free()
	return dst
}

// AppendCanonicalObject appends the canonical form of the object v without the member named drop (none when empty) and
// with the members of set added, replacing those of the same key (agent protocol C.2). set must be sorted by key and
// free of duplicates. A value that is not an object is written as if it had no members.
func AppendCanonicalObject(dst []byte, v Value, drop string, set []Member) []byte {
	w := newWriter(v.doc)
	if v.Kind() == Object {
		w.collect(v.idx)
	}
	dst = append(dst, '{')
	open := len(dst)
	for i := range w.entries {
		e := &w.entries[i]
		if i+1 < len(w.entries) && w.same(e, &w.entries[i+1]) {
			continue
		}
		key := view(w.key(e))
		for len(set) > 0 && set[0].Key < key {
			dst = appendMember(dst, open, set[0])
			set = set[1:]
		}
		if len(set) > 0 && set[0].Key == key {
			dst = appendMember(dst, open, set[0])
			set = set[1:]
			continue
		}
		if drop != "" && key == drop {
			continue
		}
		if len(dst) > open {
			dst = append(dst, ',')
		}
		dst = w.member(dst, *e)
	}
	for _, m := range set {
		dst = appendMember(dst, open, m)
	}
	w.free()
	return append(dst, '}')
}

func appendMember(dst []byte, open int, m Member) []byte {
	if len(dst) > open {
		dst = append(dst, ',')
	}
	dst = AppendString(dst, m.Key)
	dst = append(dst, ':')
	return append(dst, m.Value...)
}

// Canonical parses b and returns its canonical form in new memory.
func Canonical(b []byte) ([]byte, error) {
	d, err := Parse(b)
	if err != nil {
		return nil, err
	}
	defer d.Release()
	return AppendCanonical(make([]byte, 0, len(b)), d.Root()), nil
}

// entry is one member of an object being sorted. The value node follows the key node.
type entry struct {
	prefix   uint64 // first eight bytes of the decoded key, padded with zeros: decides most comparisons
	keyNode  uint32
	off, end uint32 // decoded key in the arena; off is inText for a key without escapes
}

const inText = math.MaxUint32

// writer holds the scratch memory of canonical writing. entries is used as a stack: an object pushes its members above
// those of the objects around it and pops them when done.
type writer struct {
	doc     *Doc
	entries []entry
	arena   []byte // decoded keys
}

// maxPooledEntries bounds the scratch memory kept for reuse.
const maxPooledEntries = 1 << 13

var writerPool = sync.Pool{New: func() any { return new(writer) }}

func newWriter(d *Doc) *writer {
	w := writerPool.Get().(*writer)
	w.doc = d
	return w
}

func (w *writer) free() {
	w.doc = nil
	if cap(w.entries) > maxPooledEntries || cap(w.arena) > maxPooledEntries {
		w.entries, w.arena = nil, nil
	}
	w.entries, w.arena = w.entries[:0], w.arena[:0]
	writerPool.Put(w)
}

func (w *writer) key(e *entry) []byte {
	if e.off == inText {
		n := &w.doc.nodes[e.keyNode]
		return w.doc.b[n.start+1 : n.end-1]
	}
	return w.arena[e.off:e.end]
}

// same says whether two members have the same key. It is inlined up to the bytes beyond the prefix.
func (w *writer) same(a, b *entry) bool { return a.prefix == b.prefix && w.sameKey(a, b) }

func (w *writer) sameKey(a, b *entry) bool { return bytes.Equal(w.key(a), w.key(b)) }

// less is compare below zero, with the usual case inlined.
func (w *writer) less(a, b *entry) bool {
	return a.prefix < b.prefix || a.prefix == b.prefix && w.compare(a, b) < 0
}

func (w *writer) compare(a, b *entry) int {
	if a.prefix != b.prefix {
		if a.prefix < b.prefix {
			return -1
		}
		return 1
	}
	if c := bytes.Compare(w.key(a), w.key(b)); c != 0 {
		return c
	}
	return int(int64(a.keyNode) - int64(b.keyNode)) // the last duplicate sorts last
}

func prefixOf(key []byte) uint64 {
	if len(key) >= 8 {
		return binary.BigEndian.Uint64(key)
	}
	var p uint64
	for i, c := range key {
		p |= uint64(c) << (56 - 8*i)
	}
	return p
}

// collect pushes the members of the object at idx in canonical order, duplicates next to each other in the order sent.
func (w *writer) collect(idx uint32) {
	nodes, text := w.doc.nodes, w.doc.b
	base := len(w.entries)
	end := nodes[idx].next
	last := uint64(0)
	sorted := true // as far as prefixes tell
	for k := idx + 1; k < end; k = nodes[k+1].next {
		n := &nodes[k]
		e := entry{keyNode: k, off: inText}
		if n.escaped() {
			e.off = uint32(len(w.arena))
			w.arena = appendDecoded(w.arena, text[n.start+1:n.end-1])
			e.end = uint32(len(w.arena))
			e.prefix = prefixOf(w.arena[e.off:])
		} else if int(n.start)+9 <= len(text) {
			e.prefix = binary.BigEndian.Uint64(text[n.start+1:])
			if size := n.end - n.start - 2; size < 8 {
				e.prefix &^= math.MaxUint64 >> (8 * size)
			}
		} else {
			e.prefix = prefixOf(text[n.start+1 : n.end-1])
		}
		sorted = sorted && (e.prefix > last || len(w.entries) == base)
		last = e.prefix
		w.entries = append(w.entries, e)
	}
	if !sorted {
		w.sort(w.entries[base:])
	}
}

func (w *writer) sort(es []entry) {
	if len(es) > 24 {
		slices.SortFunc(es, func(a, b entry) int { return w.compare(&a, &b) })
		return
	}
	for i := 1; i < len(es); i++ {
		if !w.less(&es[i], &es[i-1]) {
			continue
		}
		e := es[i]
		es[i] = es[i-1]
		j := i - 1
		for ; j > 0 && w.less(&e, &es[j-1]); j-- {
			es[j] = es[j-1]
		}
		es[j] = e
	}
}

func (w *writer) value(dst []byte, idx uint32) []byte {
	n := &w.doc.nodes[idx]
	switch n.kind() {
	case Object:
		return w.object(dst, idx)
	case Array:
		return w.array(dst, idx)
	case String:
		return w.str(dst, n)
	case Float:
		return AppendFloat(dst, parseFloat(w.doc.b[n.start:n.end]))
	case Int:
		if w.negativeZero(n) {
			return append(dst, '0')
		}
	}
	return append(dst, w.doc.b[n.start:n.end]...)
}

func (w *writer) negativeZero(n *node) bool {
	return n.end-n.start == 2 && w.doc.b[n.start] == '-' && w.doc.b[n.start+1] == '0'
}

func (w *writer) array(dst []byte, idx uint32) []byte {
	end := w.doc.nodes[idx].next
	dst = append(dst, '[')
	for k := idx + 1; k < end; k = w.doc.nodes[k].next {
		if k > idx+1 {
			dst = append(dst, ',')
		}
		dst = w.value(dst, k)
	}
	return append(dst, ']')
}

func (w *writer) object(dst []byte, idx uint32) []byte {
	base, arena := len(w.entries), len(w.arena)
	w.collect(idx)
	end := len(w.entries)
	dst = append(dst, '{')
	open := len(dst)
	for i := base; i < end; i++ {
		if i+1 < end && w.same(&w.entries[i], &w.entries[i+1]) {
			continue
		}
		if len(dst) > open {
			dst = append(dst, ',')
		}
		dst = w.member(dst, w.entries[i])
	}
	w.entries, w.arena = w.entries[:base], w.arena[:arena]
	return append(dst, '}')
}

func (w *writer) member(dst []byte, e entry) []byte {
	key, value := &w.doc.nodes[e.keyNode], &w.doc.nodes[e.keyNode+1]
	if w.asSent(key, value) {
		return append(dst, w.doc.b[key.start:value.end]...)
	}
	dst = w.str(dst, key)
	dst = append(dst, ':')
	return w.value(dst, e.keyNode+1)
}

// asSent says whether the bytes of a member are canonical already: no white space around the colon, no escape to spell
// anew, and a value that is not a container or float. Most members are, and one copy writes them.
func (w *writer) asSent(key, value *node) bool {
	if key.recode() || value.recode() || value.start != key.end+1 {
		return false
	}
	switch value.kind() {
	case String, Bool, Null:
		return true
	case Int:
		return !w.negativeZero(value)
	}
	return false
}

func (w *writer) str(dst []byte, n *node) []byte {
	if !n.recode() {
		return append(dst, w.doc.b[n.start:n.end]...)
	}
	body := w.doc.b[n.start+1 : n.end-1]
	dst = append(dst, '"')
	for {
		i := bytes.IndexByte(body, '\\')
		if i < 0 {
			dst = append(dst, body...)
			return append(dst, '"')
		}
		dst = append(dst, body[:i]...)
		r, size := unescape(body[i:])
		if r < utf8.RuneSelf {
			dst = appendASCII(dst, byte(r))
		} else {
			dst = utf8.AppendRune(dst, r)
		}
		body = body[i+size:]
	}
}

const hexDigits = "0123456789abcdef"

// appendASCII appends one ASCII character of a string, escaped when the canonical form asks for it.
func appendASCII(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\b':
		return append(dst, '\\', 'b')
	case '\t':
		return append(dst, '\\', 't')
	case '\n':
		return append(dst, '\\', 'n')
	case '\f':
		return append(dst, '\\', 'f')
	case '\r':
		return append(dst, '\\', 'r')
	}
	if c < 0x20 {
		return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
	}
	return append(dst, c)
}

// AppendString appends s as a quoted JSON string in canonical spelling. Invalid UTF-8 becomes U+FFFD, so that the result
// is always a valid token.
func AppendString(dst []byte, s string) []byte {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' {
			dst = append(dst, s[from:i]...)
			dst = appendASCII(dst, c)
			from = i + 1
		}
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}
