// Package rawjson reads strict RFC 8259 JSON at the byte level and keeps every token as it was sent.
//
// A parsed Doc is a flat array of nodes that point into the caller's bytes. Nothing is copied or converted until asked
// for, so a signature can be checked over exactly what arrived: unknown keys, absent versus null, and the spelling of
// numbers all survive. AppendCanonical writes the one spelling that is signed (agent protocol C.3 and C.4).
//
// Parsing takes time linear in the input. Canonical writing, and everything that has to find duplicate keys, takes
// O(n log n), so an object of a hundred thousand keys is as harmless as any other input of its size.
package rawjson

import (
	"errors"
	"fmt"
	"sync"
)

// MaxDepth is the deepest nesting of arrays and objects that Parse accepts (agent protocol C.3).
const MaxDepth = 512

// MaxIntDigits is the longest integer token, in digits without the sign (agent protocol C.3: longer ones cannot be read
// by the agent software).
const MaxIntDigits = 4300

// maxInput is the longest text, twice the largest frame that the protocol can agree on. Below it the elements of one
// container can be counted in the 26 bits that a node has for them.
const maxInput = 1<<27 - 1

// maxPooledNodes bounds what a released Doc keeps: about 1 MB. Larger ones are left to the collector.
const maxPooledNodes = 1 << 16

// ErrMalformed is the class of every error that Parse returns.
var ErrMalformed = errors.New("malformed JSON")

// SyntaxError says which rule the input broke and where. It matches ErrMalformed under errors.Is and never quotes the
// input, so it may be logged and sent to strangers.
type SyntaxError struct {
	Offset int    // byte offset of the offending byte or token
	Rule   string // the rule that was broken
}

// Error returns "malformed JSON at offset 12: trailing comma".
func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%v at offset %d: %s", ErrMalformed, e.Offset, e.Rule)
}

// Is reports whether target is ErrMalformed.
func (e *SyntaxError) Is(target error) bool { return target == ErrMalformed }

// Kind is the type of a JSON value.
type Kind uint8

// The kinds. Missing is the kind of the zero Value: an absent member. Int is a number token without '.', 'e' or 'E';
// every other number is a Float.
const (
	Missing Kind = iota
	Null
	Bool
	Int
	Float
	String
	Array
	Object
)

var kindNames = [...]string{"missing", "null", "boolean", "integer", "float", "string", "array", "object"}

// String returns the name used in error messages, such as "integer".
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// The info word of a node: kind in the low bits, two flags, and the count of a container above them.
const (
	kindMask    = 1<<4 - 1
	flagEscaped = 1 << 4 // string: holds at least one escape
	flagRecode  = 1 << 5 // string: holds an escape that is not spelled canonically
	countShift  = 6
)

// node is one token, 16 bytes. An object is followed by its members as key node, value subtree, key node, and so on.
type node struct {
	start, end uint32 // bytes of the token or of the whole container
	next       uint32 // index of the node after this subtree
	info       uint32 // kind, flags, and for a container the elements or members (duplicates counted)
}

const nodeSize = 16

func (n *node) kind() Kind    { return Kind(n.info & kindMask) }
func (n *node) escaped() bool { return n.info&flagEscaped != 0 }
func (n *node) recode() bool  { return n.info&flagRecode != 0 }
func (n *node) count() int    { return int(n.info >> countShift) }

// Doc is a parsed text. It keeps a reference to the bytes given to Parse, which must not change while the Doc or any
// Value of it is in use. A Doc may be read by several goroutines at once.
type Doc struct {
	b     []byte
	nodes []node
}

var docPool = sync.Pool{New: func() any { return new(Doc) }}

// Root returns the top-level value.
func (d *Doc) Root() Value { return Value{doc: d, idx: 0} }

// Bytes returns the text that was parsed, not a copy.
func (d *Doc) Bytes() []byte { return d.b }

// Size returns the bytes of memory that the Doc takes, its text included.
func (d *Doc) Size() int { return len(d.b) + len(d.nodes)*nodeSize }

// Release hands the memory of the Doc back for reuse. The Doc and all its Values must not be used afterwards, by any
// goroutine. Calling it is optional; a nil Doc is allowed.
func (d *Doc) Release() {
	if d == nil {
		return
	}
	d.b = nil
	if cap(d.nodes) > maxPooledNodes {
		d.nodes = nil
	}
	d.nodes = d.nodes[:0]
	docPool.Put(d)
}

// Valid reports whether b is a text that Parse accepts.
func Valid(b []byte) bool {
	d, err := Parse(b)
	if err != nil {
		return false
	}
	d.Release()
	return true
}
