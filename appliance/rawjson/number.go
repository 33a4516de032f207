package rawjson

import (
	"math"
	"strconv"
	"unsafe"
)

// view reads b as a string without copying. The string must not outlive the call it is made for.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// parseFloat returns the double nearest to a valid number token, ties to even; an infinity when it overflows.
func parseFloat(tok []byte) float64 {
	if len(tok) <= maxSignificant && !hugeExponent(tok) {
		f, err := strconv.ParseFloat(view(tok), 64)
		if err != nil && !math.IsInf(f, 0) {
			return math.NaN() // not reached: the token was checked by the parser
		}
		return f
	}
	return parseLongFloat(tok)
}

// hugeExponent says whether the exponent is written with five characters or more. From there on strconv may stop
// counting, and would misread tokens whose many digits and large exponent cancel out, such as 1 with ten thousand zeros
// and e-10000.
func hugeExponent(tok []byte) bool {
	for i := len(tok) - 1; i >= 0; i-- {
		if tok[i]|0x20 == 'e' {
			return len(tok)-1-i >= 5
		}
	}
	return false
}

// maxSignificant is more than the 767 digits that can decide how a double is rounded, and less than the 800 beyond which
// strconv loses the place of the decimal point.
const maxSignificant = 770

// parseLongFloat rewrites the token as d.ddde±x with the significant digits only, then reads that.
func parseLongFloat(tok []byte) float64 {
	var short [maxSignificant + 32]byte
	out := short[:0]
	if tok[0] == '-' {
		out, tok = append(out, '-'), tok[1:]
	}
	mark := len(out)
	exp, seenPoint, sticky := 0, false, false
	i := 0
scan:
	for ; i < len(tok); i++ {
		c := tok[i]
		switch {
		case c == '.':
			seenPoint = true
			continue
		case c < '0' || c > '9':
			break scan
		case c == '0' && len(out) == mark: // leading zero
			if seenPoint {
				exp--
			}
			continue
		case len(out)-mark < maxSignificant:
			out = append(out, c)
		default:
			sticky = sticky || c != '0'
			exp++
		}
		if seenPoint {
			exp--
		}
	}
	n := len(out) - mark
	if n == 0 {
		return math.Copysign(0, float64(1-2*mark))
	}
	if sticky { // something above zero follows: keep halfway cases from looking exact
		out = append(out, '1')
		exp--
		n++
	}
	exp += writtenExponent(tok[i:])
	switch top := exp + n; { // value is 0.ddd times ten to the power of top
	case top > 400:
		return math.Inf(1 - 2*mark)
	case top < -400:
		return math.Copysign(0, float64(1-2*mark))
	}
	out = append(out, 'e')
	out = strconv.AppendInt(out, int64(exp), 10)
	f, _ := strconv.ParseFloat(view(out), 64) // only a range error is possible, and then f is an infinity
	return f
}

// maxExponent is far above what the digits of the largest text can balance, and with one more digit fits 32 bits.
const maxExponent = 190_000_000

// writtenExponent reads "", "e5" or "E-005", saturating far outside anything the digits of a text can balance.
func writtenExponent(tok []byte) int {
	if len(tok) == 0 {
		return 0
	}
	tok = tok[1:]
	sign := 1
	switch tok[0] {
	case '-':
		sign, tok = -1, tok[1:]
	case '+':
		tok = tok[1:]
	}
	e := 0
	for _, c := range tok {
		if e < maxExponent {
			e = e*10 + int(c-'0')
		}
	}
	return sign * e
}

// AppendFloat appends a finite double in the spelling of agent protocol C.4: the shortest digits that round-trip,
// plain from 1e-4 up to below 1e16 with ".0" on integral values, d.ddde±XX outside. NaN and infinities, which JSON
// cannot express, become null.
func AppendFloat(dst []byte, f float64) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(dst, "null"...)
	}
	abs := math.Abs(f)
	// 1e-4 and 1e16 are exact enough as doubles: the shortest digits of every double at or above them have a decimal
	// exponent of at least -4 and 16, of every double below them a smaller one.
	if abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	if f == math.Trunc(f) {
		dst = append(dst, '.', '0')
	}
	return dst
}
