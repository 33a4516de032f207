package rawjson

import (
	"encoding/binary"
	"math"
	"math/bits"
	"unicode/utf8"
)

// Parse reads one JSON text by the input grammar of agent protocol C.3: RFC 8259 and nothing beside it, valid UTF-8
// without a byte order mark, no lone surrogate escapes, at most MaxDepth levels, integers of at most MaxIntDigits digits,
// no float that overflows a double, nothing but white space after the value. Every error is a *SyntaxError.
//
// The Doc refers to b; the caller must leave b unchanged while the Doc is in use.
func Parse(b []byte) (*Doc, error) { return ParseAtMost(b, math.MaxInt) }

// ParseAtMost is Parse for texts whose shape is known: one with more than limit values, member names counted, is refused.
// A value takes 16 bytes of memory beside the text, so a text of tiny values costs many times its length.
func ParseAtMost(b []byte, limit int) (*Doc, error) {
	if len(b) > maxInput {
		return nil, &SyntaxError{Offset: maxInput, Rule: "text is too long"}
	}
	if !utf8.Valid(b) {
		return nil, &SyntaxError{Offset: invalidUTF8At(b), Rule: "invalid UTF-8"}
	}
	d := docPool.Get().(*Doc)
	p := parser{b: b, nodes: d.nodes[:0], limit: limit}
	i := p.space(0)
	i = p.value(i, 0)
	if i >= 0 {
		if i = p.space(i); i < len(b) {
			i = p.fail(i, "data after the value")
		}
	}
	d.nodes = p.nodes
	if i < 0 {
		d.Release()
		return nil, &SyntaxError{Offset: p.errAt, Rule: p.rule}
	}
	d.b = b
	return d, nil
}

func invalidUTF8At(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(b)
}

// parser methods take an offset and return the offset after what they read, or -1 after fail.
type parser struct {
	b     []byte
	nodes []node
	limit int // most nodes
	errAt int
	rule  string
}

const tooMany = "more values than are allowed here"

func (p *parser) fail(at int, rule string) int {
	p.errAt, p.rule = at, rule
	return -1
}

// space returns the offset of the first byte at or after i that is not white space. The common case is inlined.
func (p *parser) space(i int) int {
	if i < len(p.b) && p.b[i] > ' ' {
		return i
	}
	return p.skipSpace(i)
}

func (p *parser) skipSpace(i int) int {
	for i < len(p.b) {
		switch p.b[i] {
		case ' ', '\t', '\n', '\r':
			i++
		default:
			return i
		}
	}
	return i
}

// leaf appends a node without children.
func (p *parser) leaf(info uint32, start, end int) {
	p.nodes = append(p.nodes, node{start: uint32(start), end: uint32(end), next: uint32(len(p.nodes) + 1), info: info})
}

func (p *parser) value(i, depth int) int {
	if i >= len(p.b) {
		return p.fail(i, "unexpected end of text")
	}
	switch p.b[i] {
	case '"':
		return p.str(i)
	case '{':
		return p.object(i, depth+1)
	case '[':
		return p.array(i, depth+1)
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return p.number(i)
	case 't':
		return p.literal(i, "true", Bool)
	case 'f':
		return p.literal(i, "false", Bool)
	case 'n':
		return p.literal(i, "null", Null)
	default:
		return p.fail(i, "expected a value")
	}
}

func (p *parser) literal(i int, word string, kind Kind) int {
	if len(p.b)-i < len(word) || string(p.b[i:i+len(word)]) != word {
		return p.fail(i, "unknown literal")
	}
	p.leaf(uint32(kind), i, i+len(word))
	return i + len(word)
}

func (p *parser) array(start, depth int) int {
	if depth > MaxDepth {
		return p.fail(start, "nested too deep")
	}
	self := len(p.nodes)
	p.leaf(uint32(Array), start, start)
	count := uint32(0)
	i := p.space(start + 1)
	if i < len(p.b) && p.b[i] == ']' {
		return p.closeContainer(self, i, count)
	}
	for {
		if i = p.value(i, depth); i < 0 {
			return -1
		}
		if len(p.nodes) > p.limit {
			return p.fail(i, tooMany)
		}
		count++
		i = p.space(i)
		if i >= len(p.b) {
			return p.fail(i, "unexpected end of text")
		}
		switch p.b[i] {
		case ',':
			i = p.space(i + 1)
			if i < len(p.b) && p.b[i] == ']' {
				return p.fail(i, "trailing comma")
			}
		case ']':
			return p.closeContainer(self, i, count)
		default:
			return p.fail(i, "expected ',' or ']'")
		}
	}
}

func (p *parser) object(start, depth int) int {
	if depth > MaxDepth {
		return p.fail(start, "nested too deep")
	}
	self := len(p.nodes)
	p.leaf(uint32(Object), start, start)
	count := uint32(0)
	i := p.space(start + 1)
	if i < len(p.b) && p.b[i] == '}' {
		return p.closeContainer(self, i, count)
	}
	for {
		if i = p.member(i, depth); i < 0 {
			return -1
		}
		if len(p.nodes) > p.limit {
			return p.fail(i, tooMany)
		}
		count++
		i = p.space(i)
		if i >= len(p.b) {
			return p.fail(i, "unexpected end of text")
		}
		switch p.b[i] {
		case ',':
			i = p.space(i + 1)
			if i < len(p.b) && p.b[i] == '}' {
				return p.fail(i, "trailing comma")
			}
		case '}':
			return p.closeContainer(self, i, count)
		default:
			return p.fail(i, "expected ',' or '}'")
		}
	}
}

func (p *parser) member(i, depth int) int {
	if i >= len(p.b) {
		return p.fail(i, "unexpected end of text")
	}
	if p.b[i] != '"' {
		return p.fail(i, "expected a string as member name")
	}
	if i = p.str(i); i < 0 {
		return -1
	}
	i = p.space(i)
	if i >= len(p.b) {
		return p.fail(i, "unexpected end of text")
	}
	if p.b[i] != ':' {
		return p.fail(i, "expected ':'")
	}
	return p.value(p.space(i+1), depth)
}

// closeContainer completes the node at index self, whose closing bracket is at i.
func (p *parser) closeContainer(self, i int, count uint32) int {
	n := &p.nodes[self]
	n.end = uint32(i + 1)
	n.next = uint32(len(p.nodes))
	n.info |= count << countShift
	return i + 1
}

const (
	lows  = 0x0101010101010101
	highs = 0x8080808080808080
)

// plain returns the offset of the first quote, backslash or control byte at or after i, or len(b).
func plain(b []byte, i int) int {
	for i+8 <= len(b) {
		w := binary.LittleEndian.Uint64(b[i:])
		quote := w ^ (lows * '"')
		slash := w ^ (lows * '\\')
		// The usual "has a zero byte" trick, three times over. A borrow can only raise a false mark above a true one,
		// so the lowest mark is always right.
		hit := ((quote-lows)&^quote | (slash-lows)&^slash | (w-lows*0x20)&^w) & highs
		if hit != 0 {
			return i + bits.TrailingZeros64(hit)/8
		}
		i += 8
	}
	for i < len(b) && b[i] != '"' && b[i] != '\\' && b[i] >= 0x20 {
		i++
	}
	return i
}

// str reads the string whose opening quote is at start.
func (p *parser) str(start int) int {
	b, info := p.b, uint32(String)
	i := start + 1
	for {
		i = plain(b, i)
		if i >= len(b) {
			return p.fail(i, "unterminated string")
		}
		switch b[i] {
		case '"':
			p.leaf(info, start, i+1)
			return i + 1
		case '\\':
			var canonical bool
			if i, canonical = p.escape(i); i < 0 {
				return -1
			}
			info |= flagEscaped
			if !canonical {
				info |= flagRecode
			}
		default:
			return p.fail(i, "control character in a string")
		}
	}
}

// escape reads the escape whose backslash is at i and says whether the canonical form spells it the same way.
func (p *parser) escape(i int) (next int, canonical bool) {
	if i+1 >= len(p.b) {
		return p.fail(i, "unterminated string"), false
	}
	switch p.b[i+1] {
	case '"', '\\', 'b', 'f', 'n', 'r', 't':
		return i + 2, true
	case '/':
		return i + 2, false
	case 'u':
	default:
		return p.fail(i, "unknown escape"), false
	}
	r := hex4(p.b, i+2)
	switch {
	case r < 0:
		return p.fail(i, `\u needs four hex digits`), false
	case 0xD800 <= r && r < 0xDC00:
		if i+7 < len(p.b) && p.b[i+6] == '\\' && p.b[i+7] == 'u' {
			if low := hex4(p.b, i+8); 0xDC00 <= low && low < 0xE000 {
				return i + 12, false
			}
		}
		return p.fail(i, "lone surrogate escape"), false
	case 0xDC00 <= r && r < 0xE000:
		return p.fail(i, "lone surrogate escape"), false
	case r < 0x20:
		return i + 6, canonicalControl(rune(r), p.b[i+5])
	}
	return i + 6, false
}

// canonicalControl says whether \u00xx is how the canonical form writes the control character r, whose last hex digit
// was spelled last.
func canonicalControl(r rune, last byte) bool {
	switch r {
	case '\b', '\t', '\n', '\f', '\r':
		return false
	}
	return last < 'A' || last > 'F'
}

// hex4 reads four hex digits at i, or returns -1.
func hex4(b []byte, i int) int {
	if i+4 > len(b) {
		return -1
	}
	r := 0
	for _, c := range b[i : i+4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | int(c)
	}
	return r
}

func (p *parser) digits(i int) int {
	for i < len(p.b) && '0' <= p.b[i] && p.b[i] <= '9' {
		i++
	}
	return i
}

func (p *parser) number(start int) int {
	b, i := p.b, start
	if b[i] == '-' {
		i++
	}
	first := i
	if i = p.digits(i); i == first {
		return p.fail(i, "expected a digit")
	}
	whole := i - first
	if b[first] == '0' && whole > 1 {
		return p.fail(first, "leading zero")
	}
	kind, hasExp := Int, false
	if i < len(b) && b[i] == '.' {
		kind = Float
		frac := i + 1
		if i = p.digits(frac); i == frac {
			return p.fail(i, "expected a digit after '.'")
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		kind, hasExp = Float, true
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		exp := i
		if i = p.digits(exp); i == exp {
			return p.fail(i, "expected a digit in the exponent")
		}
	}
	if kind == Int && whole > MaxIntDigits {
		return p.fail(start, "integer has too many digits")
	}
	// Without an exponent, fewer than 309 digits before the point cannot overflow.
	if kind == Float && (hasExp || whole >= 309) && math.IsInf(parseFloat(b[start:i]), 0) {
		return p.fail(start, "float is out of range")
	}
	p.leaf(uint32(kind), start, i)
	return i
}
