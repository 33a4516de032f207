package frame

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"sync"
	"unicode/utf8"
)

// MaxNesting is the deepest nesting of objects and arrays in a frame or file (daemon protocol 2.2, check 3).
const MaxNesting = 32

// level is one open object or array of a scan.
type level struct {
	seen  uint64              // one bit per key, by hash: a key whose bit is clear is new
	keys  int                 // index of the object's first key in scanner.keys
	large map[string]struct{} // the keys of an object with more than smallObject of them
	role  role
	array bool
}

// smallObject is the number of keys up to which an object's keys are compared one by one.
const smallObject = 64

// key is one key of an open object: its first and last eight bytes, which are all of a key of up to 16 bytes, and its
// place in data, or in unescaped if from is below zero.
type key struct {
	head, tail uint64
	from, size int32
}

// scanner is one pass over the bytes of a frame or file: checks 3 and 4, and what the later checks need to know before
// a message is built. It allocates only for escaped keys and for objects with many keys, and never more than a fixed
// multiple of the input.
type scanner struct {
	data      []byte
	levels    [MaxNesting]level
	keys      []key
	unescaped []byte // the escaped keys of the frame

	found   found
	refused *Violation // of check 4; the scan goes on, because a failure of check 3 goes first
}

// scanners keeps scanners for reuse: their levels and keys are larger than most frames.
var scanners = sync.Pool{New: func() any { return &scanner{keys: make([]key, 0, smallObject)} }}

// scan runs a scanner over data. root says what the outermost object is.
func scan(data []byte, root role, limit bounds) (found, *Violation) {
	s := scanners.Get().(*scanner)
	v := s.run(data, root, limit)
	f := s.found
	s.data, s.keys, s.unescaped, s.found, s.refused = nil, s.keys[:0], nil, found{}, nil
	for i := range s.levels {
		s.levels[i].large = nil
	}
	scanners.Put(s)
	return f, v
}

// found is what a scan learns beside the checks.
type found struct {
	payload      int32 // field number of the first payload key, 0 if none
	payloadAt    int   // its offset
	second       int32 // field number of the second payload key, 0 if none
	secondAt     int
	envelopeID   int    // offset of the value, 0 if there is none
	clientID     int    // offset of the value, 0 if there is none
	major        string // digits of version.major, empty if it is no plain number
	counts       [roles]int
	firstOver    [roles]int // offset of the element that made a count exceed its limit
	listed       int        // objects that are elements of any array
	listedOverAt int
}

// bounds are the counts a scan refuses to exceed; 0 is no bound.
type bounds struct {
	entries, cursors int
}

func (s *scanner) run(data []byte, root role, limit bounds) *Violation {
	s.data = data
	if bytes.HasPrefix(data, []byte("\xef\xbb\xbf")) {
		return violation(3, 0, "byte order mark")
	}
	if !utf8.Valid(data) {
		return violation(3, invalidUTF8(data), "not valid UTF-8")
	}
	var (
		i     = s.space(0)
		depth int
		lv    *level
		child = root
		c     byte
		bad   string
		at    int // of the last key
		end   int // of the last key
		n     int

		escaped bool // the last key has escape sequences
	)
	if len(data) > math.MaxInt32 {
		return violation(3, -1, "longer than any frame or file may be")
	}
	if i >= len(data) || data[i] != '{' {
		return violation(3, i, "not a JSON object")
	}

value: // data[i] begins a value of the role child
	if i >= len(data) {
		return violation(3, i, "the text ends inside the object")
	}
	switch c = data[i]; {
	case c == '"':
		if lv.role != roleNone && lv.array {
			s.count(lv.role, i, limit)
		}
		if i = special(data, i+1); i == len(data) || data[i] != '"' {
			if i, bad = s.text(i); bad != "" {
				return violation(3, i, bad)
			}
		}
		i++
	case c == '{' || c == '[':
		if depth == MaxNesting {
			return violation(3, i, "nested too deeply")
		}
		if c == '{' && lv != nil && lv.array {
			s.count(lv.role, i, limit)
			s.countObject(i)
		}
		lv = &s.levels[depth]
		depth++
		lv.seen, lv.keys, lv.role, lv.array = 0, len(s.keys), child, c == '['
		i = s.space(i + 1)
		if i < len(data) && data[i] == c+2 { // '}' or ']'
			goto closing
		}
		if lv.array {
			child = roleNone
			goto value
		}
		goto name
	case c == '-' || '0' <= c && c <= '9':
		if i, bad = s.number(i); bad != "" {
			return violation(3, i, bad)
		}
	default:
		if n = literal(data[i:]); n == 0 {
			return violation(3, i, "not a JSON value")
		}
		i += n
	}

after: // a value ended before i
	if i < len(data) && data[i] <= ' ' {
		i = s.space(i)
	}
	if i >= len(data) {
		return violation(3, i, "the text ends inside the object")
	}
	switch c = data[i]; {
	case c == ',':
		i++
		if i < len(data) && data[i] == ' ' {
			i++
		}
		if i < len(data) && data[i] <= ' ' {
			i = s.space(i)
		}
		if lv.array {
			child = roleNone
			goto value
		}
		goto name
	case c == '}' && !lv.array, c == ']' && lv.array:
		goto closing
	}
	return violation(3, i, "expected a comma or the end of the object or array")

closing: // data[i] closes the innermost level
	s.keys = s.keys[:lv.keys]
	if lv.large != nil {
		lv.large = nil
	}
	i++
	depth--
	if depth == 0 {
		if i = s.space(i); i != len(data) {
			return violation(3, i, "more after the object")
		}
		return s.verdict(limit)
	}
	lv = &s.levels[depth-1]
	goto after

name: // data[i] begins a key
	if i >= len(data) || data[i] != '"' {
		return violation(3, i, "expected a key")
	}
	at = i
	escaped = false
	if i = special(data, i+1); i == len(data) || data[i] != '"' {
		if i, bad = s.text(i); bad != "" {
			return violation(3, i, bad)
		}
		escaped = true
	}
	end = i
	s.add(lv, at, end, escaped)
	i++
	if i < len(data) && data[i] <= ' ' {
		i = s.space(i)
	}
	if i >= len(data) || data[i] != ':' {
		return violation(3, i, "expected a colon after a key")
	}
	i++
	if i < len(data) && data[i] <= ' ' {
		i = s.space(i)
	}
	child = roleNone
	if lv.role != roleNone {
		child = s.enter(lv.role, s.plain(at, end, escaped), at, i)
	}
	goto value
}

// add remembers the key between the quotes at data[at] and data[end] in the innermost object, or records that the object
// has it twice.
func (s *scanner) add(lv *level, at, end int, escaped bool) {
	text := s.data[at+1 : end]
	k := key{from: int32(at + 1), size: int32(len(text))}
	if escaped {
		from := len(s.unescaped)
		s.unescaped = unescape(s.unescaped, text)
		text = s.unescaped[from:]
		k.from, k.size = int32(-from-1), int32(len(text))
	}
	if lv.large != nil {
		s.addLarge(lv, k, at)
		return
	}
	switch {
	case len(text) >= 8:
		k.head = binary.LittleEndian.Uint64(text)
		k.tail = binary.LittleEndian.Uint64(text[len(text)-8:])
	case !escaped && at+9 <= len(s.data):
		k.head = binary.LittleEndian.Uint64(s.data[at+1:]) & (1<<(8*uint(k.size)) - 1)
	default:
		for j := len(text) - 1; j >= 0; j-- {
			k.head = k.head<<8 | uint64(text[j])
		}
	}
	h := (k.head ^ bits.RotateLeft64(k.tail, 29) ^ uint64(k.size)) * 0x9e3779b97f4a7c15
	bit := uint64(1) << (h >> 58)
	if lv.seen&bit != 0 && s.has(lv, k, text) {
		s.refuse(at, "a key twice in one object")
		return
	}
	lv.seen |= bit
	if len(s.keys)-lv.keys < smallObject {
		s.keys = append(s.keys, k)
		return
	}
	lv.large = make(map[string]struct{}, 4*smallObject)
	for _, o := range s.keys[lv.keys:] {
		lv.large[string(s.name(o))] = struct{}{}
	}
	s.keys = s.keys[:lv.keys]
	s.addLarge(lv, k, at)
}

// has reports whether the innermost object has the key already.
func (s *scanner) has(lv *level, k key, text []byte) bool {
	for _, o := range s.keys[lv.keys:] {
		if o.head == k.head && o.tail == k.tail && o.size == k.size && (k.size <= 16 || bytes.Equal(s.name(o), text)) {
			return true
		}
	}
	return false
}

func (s *scanner) addLarge(lv *level, k key, at int) {
	text := s.name(k)
	if _, twice := lv.large[string(text)]; twice {
		s.refuse(at, "a key twice in one object")
		return
	}
	lv.large[string(text)] = struct{}{}
}

// plain returns the text of the key between the quotes at data[at] and data[end].
func (s *scanner) plain(at, end int, escaped bool) []byte {
	if escaped {
		return unescape(nil, s.data[at+1:end])
	}
	return s.data[at+1 : end]
}

// name returns the text of a key.
func (s *scanner) name(k key) []byte {
	if k.from < 0 {
		return s.unescaped[-k.from-1:][:k.size]
	}
	return s.data[k.from:][:k.size]
}

// refuse records the first failure of check 4.
func (s *scanner) refuse(at int, reason string) {
	if s.refused == nil {
		s.refused = violation(4, at, reason)
	}
}
