package frame

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special returns the index of the first quote, backslash or control character from data[i] on, or len(data).
func special(data []byte, i int) int {
	for i+8 <= len(data) {
		w := binary.LittleEndian.Uint64(data[i:])
		// A byte below 0x80 borrows into its highest bit if it is below ' ', or 0 after the exclusive or.
		if m := ((w - ' '*ones) | (w ^ '"'*ones - ones) | (w ^ '\\'*ones - ones)) &^ w & highs; m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
		i += 8
	}
	for i < len(data) && data[i] != '"' && data[i] != '\\' && data[i] >= ' ' {
		i++
	}
	return i
}

// text returns the index of the quote that ends a string, or where and why it is none. data[i] is the first backslash or
// control character of the string, or i is the end of data.
func (s *scanner) text(i int) (int, string) {
	for {
		switch {
		case i == len(s.data):
			return i, "the text ends inside a string"
		case s.data[i] == '"':
			return i, ""
		case s.data[i] != '\\':
			return i, "a control character in a string"
		}
		n, bad := escape(s.data[i:])
		if bad != "" {
			return i, bad
		}
		i = special(s.data, i+n)
	}
}

// escape returns the length of the escape sequence at the start of b: both halves of a surrogate pair count as one.
func escape(b []byte) (int, string) {
	if len(b) < 2 {
		return 0, "the text ends inside a string"
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2, ""
	case 'u':
		v, ok := hex4(b[2:])
		switch {
		case !ok:
			return 0, "not a JSON escape"
		case v < 0xd800 || v > 0xdfff:
			return 6, ""
		case v > 0xdbff || len(b) < 12 || b[6] != '\\' || b[7] != 'u':
			return 0, "an unpaired surrogate"
		}
		if low, ok := hex4(b[8:]); !ok || low < 0xdc00 || low > 0xdfff {
			return 0, "an unpaired surrogate"
		}
		return 12, ""
	}
	return 0, "not a JSON escape"
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var v rune
	for _, c := range b[:4] {
		switch {
		case '0' <= c && c <= '9':
			v = v<<4 | rune(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			v = v<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return v, true
}

// unescape appends the string that the escaped text stands for. The text has passed scanner.text.
func unescape(out, text []byte) []byte {
	for i := 0; i < len(text); {
		if text[i] != '\\' {
			out = append(out, text[i])
			i++
			continue
		}
		switch c := text[i+1]; c {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			v, _ := hex4(text[i+2:])
			if 0xd800 <= v && v <= 0xdbff {
				low, _ := hex4(text[i+8:])
				v = (v-0xd800)<<10 + (low - 0xdc00) + 0x10000
				i += 6
			}
			out = utf8.AppendRune(out, v)
			i += 4
		default:
			out = append(out, c)
		}
		i += 2
	}
	return out
}

// number returns the index after the number at data[i], or where and why it is none.
func (s *scanner) number(i int) (int, string) {
	const bad = "not a JSON number"
	data := s.data
	if data[i] == '-' {
		i++
	}
	from := i
	if i = s.digits(i); i == from {
		return i, bad
	}
	if data[from] == '0' && i > from+1 {
		return from + 1, bad
	}
	if i < len(data) && data[i] == '.' {
		from = i + 1
		if i = s.digits(from); i == from {
			return i, bad
		}
	}
	if i < len(data) && data[i]|0x20 == 'e' {
		i++
		if i < len(data) && (data[i] == '+' || data[i] == '-') {
			i++
		}
		from = i
		if i = s.digits(from); i == from {
			return i, bad
		}
	}
	return i, ""
}

func (s *scanner) digits(i int) int {
	for i < len(s.data) && '0' <= s.data[i] && s.data[i] <= '9' {
		i++
	}
	return i
}

// literal returns the length of the true, false or null at the start of b, 0 if there is none.
func literal(b []byte) int {
	for _, w := range [...]string{"true", "false", "null"} {
		if len(b) >= len(w) && string(b[:len(w)]) == w {
			return len(w)
		}
	}
	return 0
}

// space returns the index of the first byte from i that is no white space.
func (s *scanner) space(i int) int {
	for i < len(s.data) && (s.data[i] == ' ' || s.data[i] == '\n' || s.data[i] == '\t' || s.data[i] == '\r') {
		i++
	}
	return i
}

// invalidUTF8 returns the offset of the first byte that is not part of a valid encoding.
func invalidUTF8(data []byte) int {
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(data)
}
