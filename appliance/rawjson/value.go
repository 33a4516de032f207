package rawjson

import (
	"bytes"
	"iter"
	"strconv"
	"unicode/utf8"
)

// Value is one value of a Doc. It is small and passed by value. The zero Value is a missing one: every method may be
// called on it and answers as for an absent member.
type Value struct {
	doc *Doc
	idx uint32
}

func (v Value) node() *node { return &v.doc.nodes[v.idx] }

// Kind returns the type of the value, Missing for the zero Value.
func (v Value) Kind() Kind {
	if v.doc == nil {
		return Missing
	}
	return v.node().kind()
}

// Exists reports whether the value is there at all; null exists.
func (v Value) Exists() bool { return v.doc != nil }

// IsNull reports whether the value is the literal null. A missing value is not null.
func (v Value) IsNull() bool { return v.Kind() == Null }

// IsAbsent reports whether the value is missing or null, which most optional fields treat alike.
func (v Value) IsAbsent() bool { return v.Kind() <= Null }

// Raw returns the bytes of the value as they were sent, not a copy, without surrounding white space; nil when missing.
func (v Value) Raw() []byte {
	if v.doc == nil {
		return nil
	}
	n := v.node()
	return v.doc.b[n.start:n.end:n.end]
}

// Offset returns the place of the value's first byte in the text.
func (v Value) Offset() int {
	if v.doc == nil {
		return -1
	}
	return int(v.node().start)
}

// Len returns the number of elements of an array, of members of an object with duplicates counted, and 0 otherwise.
func (v Value) Len() int {
	if v.doc == nil {
		return 0
	}
	return v.node().count()
}

// Bool returns the value of a boolean; ok is false for any other kind.
func (v Value) Bool() (value, ok bool) {
	if v.Kind() != Bool {
		return false, false
	}
	return v.doc.b[v.node().start] == 't', true
}

// Int64 returns the value of an integer token that fits 64 bits. 1.0 and 1e3 are not integer tokens.
func (v Value) Int64() (value int64, ok bool) {
	if v.Kind() != Int {
		return 0, false
	}
	i, err := strconv.ParseInt(view(v.Raw()), 10, 64)
	return i, err == nil
}

// Float64 returns the value of an integer or float token as the nearest double. Integers beyond the range of a double
// are not ok.
func (v Value) Float64() (value float64, ok bool) {
	switch v.Kind() {
	case Float:
		return parseFloat(v.Raw()), true
	case Int:
		f, err := strconv.ParseFloat(view(v.Raw()), 64)
		return f, err == nil
	default:
		return 0, false
	}
}

// Str returns the decoded string; ok is false for any other kind. The string is a copy.
func (v Value) Str() (value string, ok bool) {
	if v.Kind() != String {
		return "", false
	}
	n := v.node()
	if !n.escaped() {
		return string(v.doc.b[n.start+1 : n.end-1]), true
	}
	return string(appendDecoded(nil, v.doc.b[n.start+1:n.end-1])), true
}

// AppendStr appends the decoded bytes of a string; ok is false, and dst unchanged, for any other kind.
func (v Value) AppendStr(dst []byte) (out []byte, ok bool) {
	if v.Kind() != String {
		return dst, false
	}
	n := v.node()
	body := v.doc.b[n.start+1 : n.end-1]
	if !n.escaped() {
		return append(dst, body...), true
	}
	return appendDecoded(dst, body), true
}

// StrEqual reports whether the value is a string that decodes to s. It does not allocate.
func (v Value) StrEqual(s string) bool {
	return v.Kind() == String && v.doc.keyEqual(v.node(), s)
}

// Get returns the member of an object whose decoded key equals key: the last one when there are several (agent protocol
// C.3). It is Missing for an absent key and for any value that is not an object. Cost is linear in the number of
// members; walk Members once instead of calling Get for very many keys.
func (v Value) Get(key string) Value {
	if v.Kind() != Object {
		return Value{}
	}
	d := v.doc
	self := &d.nodes[v.idx]
	found := Value{}
	for k := v.idx + 1; k < self.next; k = d.nodes[k+1].next {
		if d.keyEqual(&d.nodes[k], key) {
			found = Value{doc: d, idx: k + 1}
		}
	}
	return found
}

// Has reports whether the value is an object with the member; a null member counts.
func (v Value) Has(key string) bool { return v.Get(key).Exists() }

// Index returns element i of an array, Missing when out of range. Cost is linear in i; range over Each instead of
// counting.
func (v Value) Index(i int) Value {
	if v.Kind() != Array || i < 0 || i >= v.Len() {
		return Value{}
	}
	k := v.idx + 1
	for ; i > 0; i-- {
		k = v.doc.nodes[k].next
	}
	return Value{doc: v.doc, idx: k}
}

// Each ranges over the elements of an array with their positions, and over nothing for any other kind.
func (v Value) Each() iter.Seq2[int, Value] {
	return func(yield func(int, Value) bool) {
		if v.Kind() != Array {
			return
		}
		end := v.node().next
		for i, k := 0, v.idx+1; k < end; i, k = i+1, v.doc.nodes[k].next {
			if !yield(i, Value{doc: v.doc, idx: k}) {
				return
			}
		}
	}
}

// EachRawMember ranges over every member of an object in the order sent, duplicates that a later one shadows included,
// and over nothing for any other kind. The key is decoded; it stays valid as long as the Doc and must not be changed.
func (v Value) EachRawMember() iter.Seq2[[]byte, Value] {
	return func(yield func([]byte, Value) bool) {
		if v.Kind() != Object {
			return
		}
		d, end := v.doc, v.node().next
		for k := v.idx + 1; k < end; k = d.nodes[k+1].next {
			if !yield(d.key(&d.nodes[k]), Value{doc: d, idx: k + 1}) {
				return
			}
		}
	}
}

// EachMember ranges over the members of an object with decoded keys, each key once with its last value, in the order in
// which those last values were sent; over nothing for any other kind. Keys are as in EachRawMember.
func (v Value) EachMember() iter.Seq2[[]byte, Value] {
	return func(yield func([]byte, Value) bool) {
		if v.Kind() != Object {
			return
		}
		shadowed := v.shadowed()
		for key, m := range v.EachRawMember() {
			if len(shadowed) > 0 && shadowed[m.idx] {
				continue
			}
			if !yield(key, m) {
				return
			}
		}
	}
}

// shadowed returns the value indexes of members that a later member with the same key replaces; nil when there are none.
func (v Value) shadowed() map[uint32]bool {
	if v.Len() < 2 {
		return nil
	}
	w := newWriter(v.doc)
	defer w.free()
	w.collect(v.idx)
	var out map[uint32]bool
	for i := 1; i < len(w.entries); i++ {
		if w.same(&w.entries[i-1], &w.entries[i]) {
			if out == nil {
				out = make(map[uint32]bool)
			}
			out[w.entries[i-1].keyNode+1] = true
		}
	}
	return out
}

// key returns the decoded bytes of a string node.
func (d *Doc) key(n *node) []byte {
	body := d.b[n.start+1 : n.end-1 : n.end-1]
	if !n.escaped() {
		return body
	}
	return appendDecoded(make([]byte, 0, len(body)), body)
}

// keyEqual compares the decoded string node with s without allocating.
func (d *Doc) keyEqual(n *node, s string) bool {
	body := d.b[n.start+1 : n.end-1]
	if !n.escaped() {
		return string(body) == s
	}
	if len(s) > len(body) { // decoding never grows a string
		return false
	}
	for len(body) > 0 {
		if body[0] != '\\' {
			if len(s) == 0 || s[0] != body[0] {
				return false
			}
			body, s = body[1:], s[1:]
			continue
		}
		var buf [utf8.UTFMax]byte
		r, n := unescape(body)
		c := utf8.AppendRune(buf[:0], r)
		if len(s) < len(c) || s[:len(c)] != string(c) {
			return false
		}
		body, s = body[n:], s[len(c):]
	}
	return s == ""
}

// unescape decodes the escape at the start of b, which the parser has checked, and returns its length in bytes.
func unescape(b []byte) (r rune, n int) {
	switch b[1] {
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
	default:
		return rune(b[1]), 2
	}
	high := hex4(b, 2)
	if 0xD800 <= high && high < 0xDC00 {
		return rune(0x10000 + (high-0xD800)<<10 + (hex4(b, 8) - 0xDC00)), 12
	}
	return rune(high), 6
}

// appendDecoded appends the content of a string token, given without its quotes.
func appendDecoded(dst, body []byte) []byte {
	for {
		i := bytes.IndexByte(body, '\\')
		if i < 0 {
			return append(dst, body...)
		}
		dst = append(dst, body[:i]...)
		r, n := unescape(body[i:])
		dst = utf8.AppendRune(dst, r)
		body = body[i+n:]
	}
}
