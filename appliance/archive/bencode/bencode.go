// Package bencode reads bencoded data of strangers: strictly, in one pass, without copying and within limits.
//
// Strict means: integers and string lengths have one spelling (no sign but a leading minus, no leading zero, no minus
// zero), dictionary keys are strings in strictly ascending byte order, and nothing follows the value. Two readers of
// the same bytes can therefore not see different content, and an infohash names one content only.
//
// Errors give an offset and a rule and never quote the input: a torrent file carries announce URLs, which are secrets
// (daemon protocol 8.7).
package bencode

import (
	"bytes"
	"fmt"
)

// Kind is the type of a value.
type Kind uint8

// The four kinds of a bencoded value.
const (
	Integer Kind = iota + 1
	String
	List
	Dict
)

// Limits bound what a Decoder accepts. A zero field means its default.
type Limits struct {
	Bytes   int // longest input; default 100 MiB
	Depth   int // deepest nesting of lists and dictionaries; default 64
	Entries int // list elements and dictionary pairs in all; default 8,000,000
}

const (
	defaultBytes   = 100 << 20
	defaultDepth   = 64
	defaultEntries = 8_000_000
)

func (l Limits) withDefaults() Limits {
	if l.Bytes <= 0 {
		l.Bytes = defaultBytes
	}
	if l.Depth <= 0 {
		l.Depth = defaultDepth
	}
	if l.Entries <= 0 {
		l.Entries = defaultEntries
	}
	return l
}

// Error is a broken rule at a byte offset. It holds nothing of the input.
type Error struct {
	Offset int
	Rule   string
	Limit  bool // a limit was passed; the input may be well-formed
}

// Error returns "bencode: <rule> at byte <offset>".
func (e *Error) Error() string { return fmt.Sprintf("bencode: %s at byte %d", e.Rule, e.Offset) }

// Decoder reads one value from front to back. Its methods consume the next value; after an error it stays where it is
// and every further call returns an error. It is not safe for concurrent use.
type Decoder struct {
	data    []byte
	pos     int
	depth   int
	entries int
	lim     Limits
	err     error
}

// NewDecoder reads data, which must not change while slices returned by the decoder are in use.
func NewDecoder(data []byte, lim Limits) *Decoder {
	d := &Decoder{data: data, lim: lim.withDefaults()}
	if len(data) > d.lim.Bytes {
		d.err = &Error{Offset: d.lim.Bytes, Rule: fmt.Sprintf("more than %d bytes", d.lim.Bytes), Limit: true}
	}
	return d
}

// Offset is the place of the next value. Offsets before and after a read span its exact bytes.
func (d *Decoder) Offset() int { return d.pos }

// Slice returns the exact bytes between two offsets, not copied.
func (d *Decoder) Slice(from, to int) []byte { return d.data[from:to:to] }

// Fail records a rule broken by the value that begins at offset, for callers that check more than the syntax.
func (d *Decoder) Fail(offset int, rule string) error {
	return d.fail(offset, rule)
}

func (d *Decoder) fail(offset int, rule string) error {
	if d.err == nil {
		d.err = &Error{Offset: offset, Rule: rule}
	}
	return d.err
}

func (d *Decoder) limit(rule string) error {
	if d.err == nil {
		d.err = &Error{Offset: d.pos, Rule: rule, Limit: true}
	}
	return d.err
}

// Kind tells the kind of the next value without consuming it.
func (d *Decoder) Kind() (Kind, error) {
	if d.err != nil {
		return 0, d.err
	}
	if d.pos >= len(d.data) {
		return 0, d.fail(d.pos, "unexpected end")
	}
	switch c := d.data[d.pos]; {
	case c == 'i':
		return Integer, nil
	case c == 'l':
		return List, nil
	case c == 'd':
		return Dict, nil
	case c >= '0' && c <= '9':
		return String, nil
	}
	return 0, d.fail(d.pos, "no value begins here")
}

func (d *Decoder) want(k Kind, rule string) error {
	got, err := d.Kind()
	if err != nil {
		return err
	}
	if got != k {
		return d.fail(d.pos, rule)
	}
	return nil
}

// Int reads an integer that fits 64 bits.
func (d *Decoder) Int() (int64, error) {
	if err := d.want(Integer, "an integer is expected"); err != nil {
		return 0, err
	}
	start, p := d.pos, d.pos+1
	negative := p < len(d.data) && d.data[p] == '-'
	if negative {
		p++
	}
	magnitude, next, ok := d.digits(p)
	if !ok || next >= len(d.data) || d.data[next] != 'e' {
		return 0, d.fail(start, "an integer is malformed")
	}
	const minMagnitude = uint64(1) << 63
	switch {
	case negative && (magnitude == 0 || magnitude > minMagnitude), !negative && magnitude >= minMagnitude:
		return 0, d.fail(start, "an integer is out of range or not in its shortest form")
	}
	d.pos = next + 1
	if negative {
		return -int64(magnitude), nil // also right for 1<<63, which wraps to itself
	}
	return int64(magnitude), nil
}

// digits reads a decimal number in its one spelling. It refuses what does not fit 64 bits.
func (d *Decoder) digits(p int) (value uint64, next int, ok bool) {
	start := p
	for p < len(d.data) && d.data[p] >= '0' && d.data[p] <= '9' {
		if p-start >= 19 { // 19 digits always fit
			return 0, p, false
		}
		value = value*10 + uint64(d.data[p]-'0')
		p++
	}
	if p == start || (d.data[start] == '0' && p-start > 1) {
		return 0, p, false
	}
	return value, p, true
}

// Bytes reads a string. The slice shares the input's memory.
func (d *Decoder) Bytes() ([]byte, error) {
	if err := d.want(String, "a string is expected"); err != nil {
		return nil, err
	}
	n, p, ok := d.digits(d.pos)
	if !ok || p >= len(d.data) || d.data[p] != ':' {
		return nil, d.fail(d.pos, "a string length is malformed")
	}
	p++
	if n > uint64(len(d.data)-p) {
		return nil, d.fail(d.pos, "a string is longer than the input")
	}
	end := p + int(n)
	d.pos = end
	return d.data[p:end:end], nil
}

// List reads a list. element is called with the decoder at each element and may consume it; what it leaves is skipped.
func (d *Decoder) List(element func() error) error {
	if err := d.want(List, "a list is expected"); err != nil {
		return err
	}
	return d.container(func() error { return d.visit(element) })
}

// Dict reads a dictionary. value is called with the decoder at the value of each key and may consume it; what it
// leaves is skipped. The key shares the input's memory.
func (d *Decoder) Dict(value func(key []byte) error) error {
	if err := d.want(Dict, "a dictionary is expected"); err != nil {
		return err
	}
	var last []byte
	first := true
	return d.container(func() error {
		at := d.pos
		if err := d.want(String, "a dictionary key is not a string"); err != nil {
			return err
		}
		key, err := d.Bytes()
		if err != nil {
			return err
		}
		if !first {
			switch bytes.Compare(last, key) {
			case 0:
				return d.fail(at, "a dictionary key is repeated")
			case 1:
				return d.fail(at, "dictionary keys are not in order")
			}
		}
		first, last = false, key
		return d.visit(func() error { return value(key) })
	})
}

// container walks to the closing mark and calls item at each element.
func (d *Decoder) container(item func() error) error {
	if d.depth >= d.lim.Depth {
		return d.limit(fmt.Sprintf("nesting deeper than %d", d.lim.Depth))
	}
	d.depth++
	d.pos++
	for {
		if d.pos >= len(d.data) {
			return d.fail(d.pos, "unexpected end")
		}
		if d.data[d.pos] == 'e' {
			d.pos++
			d.depth--
			return nil
		}
		if d.entries >= d.lim.Entries {
			return d.limit(fmt.Sprintf("more than %d entries", d.lim.Entries))
		}
		d.entries++
		if err := item(); err != nil {
			return err
		}
	}
}

// visit calls fn and skips the value if fn did not read it.
func (d *Decoder) visit(fn func() error) error {
	at := d.pos
	if err := fn(); err != nil {
		if d.err == nil {
			d.err = err
		}
		return err
	}
	if d.err != nil {
		return d.err
	}
	if d.pos == at {
		return d.Skip()
	}
	return nil
}

// Skip reads the next value, checks it as strictly as the other methods and forgets it.
func (d *Decoder) Skip() error {
	k, err := d.Kind()
	if err != nil {
		return err
	}
	switch k {
	case Integer:
		_, err = d.Int()
	case String:
		_, err = d.Bytes()
	case List:
		err = d.List(func() error { return nil })
	case Dict:
		err = d.Dict(func([]byte) error { return nil })
	}
	return err
}

// End requires that everything was read without an error.
func (d *Decoder) End() error {
	if d.err != nil {
		return d.err
	}
	if d.pos != len(d.data) {
		return d.fail(d.pos, "data after the value")
	}
	return nil
}
