package rawjson

import (
	"errors"
	"math/big"
	"strings"
	"testing"
)

// TestCanonicalNumbers holds the table of agent protocol C.4.
func TestCanonicalNumbers(t *testing.T) {
	nines := strings.Repeat("0", 10000)
	for _, c := range []struct{ in, want string }{
		{"1.0", "1.0"}, {"1.00", "1.0"}, {"1e0", "1.0"},
		{"0e0", "0.0"}, {"0E+5", "0.0"}, {"1e-400", "0.0"},
		{"-0.0", "-0.0"}, {"-0e0", "-0.0"}, {"-1e-400", "-0.0"},
		{"9007199254740993.0", "9007199254740992.0"},
		{"9999999999999998.0", "9999999999999998.0"},
		{"0.00009999999999999999", "9.999999999999999e-05"},
		{"1E+016", "1e+16"},
		{"2.4703282292062327e-324", "0.0"},
		{"2.4703282292062328e-324", "5e-324"},
		{"0.1", "0.1"}, {"0.0001", "0.0001"},
		{"0.00001", "1e-05"}, {"1e-5", "1e-05"},
		{"1e-7", "1e-07"}, {"0.0000001", "1e-07"},
		{"1e15", "1000000000000000.0"}, {"1000000000000000.0", "1000000000000000.0"},
		{"1e16", "1e+16"}, {"10000000000000000.0", "1e+16"},
		{"123456789.123456789", "123456789.12345679"},
		{"5e-324", "5e-324"},
		{"1.7976931348623157e308", "1.7976931348623157e+308"},
		{"9007199254740993", "9007199254740993"},
		{"123456789012345678901234567890", "123456789012345678901234567890"},
		{"-0", "0"}, {"0", "0"}, {"-1", "-1"}, {"-5.5", "-5.5"},
		{strings.Repeat("9", MaxIntDigits), strings.Repeat("9", MaxIntDigits)},
		{"-" + strings.Repeat("9", MaxIntDigits), "-" + strings.Repeat("9", MaxIntDigits)},
		// Digits and exponent that balance each other, beyond where the exponent alone would over- or underflow.
		{"1" + nines + "e-10000", "1.0"}, {"-1" + nines + "e-0010000", "-1.0"},
		{"0." + nines + "25e10001", "2.5"}, {"1" + nines + ".5e-10001", "0.1"},
		{"0e99999", "0.0"}, {"-0.0e-99999999999999999999", "-0.0"}, {"1e-99999999999999999999", "0.0"},
		{"1e00000000000000000000000000016", "1e+16"},
		{"1" + strings.Repeat("0", 900) + "e-900", "1.0"}, {"1" + strings.Repeat("0", 900) + ".0e-900", "1.0"},
		{"1" + strings.Repeat("0", 899) + "1e-900", "1.0"},
		// Halfway between 1 and the next double; one more digit far out decides upwards.
		{"1.00000000000000011102230246251565404236316680908203125e+00000", "1.0"},
		{"1.00000000000000011102230246251565404236316680908203125" + nines + "1e+00000", "1.0000000000000002"},
	} {
		got, err := Canonical([]byte(c.in))
		if err != nil || string(got) != c.want {
			t.Errorf("%.60s: got %.60s, %v; want %.60s", c.in, got, err, c.want)
		}
		again, err := Canonical(got)
		if err != nil || string(again) != string(got) {
			t.Errorf("%.60s: canonical form changes when written again: %.60s, %v", c.in, again, err)
		}
	}
}

func TestLongFloatsAgreeWithExactArithmetic(t *testing.T) {
	for _, tok := range []string{"12345678901234567890.5e-00010", "4.9406564584124654e-000324", "2.4703282292062327e-00324",
		"2.4703282292062328e-00324", "1797693134862315.7e+00293", strings.Repeat("123", 900) + "e-02600", "0.000001234e-00001"} {
		want, _, err := big.ParseFloat(tok, 10, 20000, big.ToNearestEven)
		if err != nil {
			t.Fatal(err)
		}
		f, _ := want.Float64()
		if got := parseFloat([]byte(tok)); got != f {
			t.Errorf("%.40s: got %v, want %v", tok, got, f)
		}
	}
}

func TestCanonicalText(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"white space", " \t\r\n{ \"a\" : [ 1 , true , null ] } \n", `{"a":[1,true,null]}`},
		{"key order by code point", `{"😀":1,"ﬁ":2,"Z":3,"a":4,"":5}`, `{"":5,"Z":3,"a":4,"ﬁ":2,"😀":1}`},
		{"keys with a common start", `{"abcdefghi":1,"abcdefgh":2,"abcdefgh\u0000":3}`, `{"abcdefgh":2,"abcdefgh\u0000":3,"abcdefghi":1}`},
		{"escapes decoded", `"\/\u0041\u003c\ud83d\ude00\u00e9\u2028\u007f"`, "\"/A<😀é\u2028\x7f\""},
		{"short escapes", `"\u0008\u0009\u000a\u000C\u000d\u0022\u005c"`, `"\b\t\n\f\r\"\\"`},
		{"control escapes in lower case", `"\u001F\u0000\u000B"`, `"\u001f\u0000\u000b"`},
		{"escapes already canonical", `"\b\t\n\f\r\"\\\u001f"`, `"\b\t\n\f\r\"\\\u001f"`},
		{"characters left raw", `"<>&/'` + "\u2028\u2029\x7f" + `"`, `"<>&/'` + "\u2028\u2029\x7f" + `"`},
		{"duplicates, last wins", `{"a":1,"b":2,"\u0061":{"x":1,"x":[2]}}`, `{"a":{"x":[2]},"b":2}`},
		{"duplicates, earlier is larger", `{"a":{"deep":[1,2,3]},"a":null}`, `{"a":null}`},
		{"escaped keys sort decoded", `{"\u0062":1,"a":2,"\u0041":3}`, `{"A":3,"a":2,"b":1}`},
		{"empty containers", `[{},[],"",{"":[]}]`, `[{},[],"",{"":[]}]`},
		{"nested order", `{"b":{"d":1,"c":{"f":1,"e":2}},"a":[{"z":1,"y":2}]}`, `{"a":[{"y":2,"z":1}],"b":{"c":{"e":2,"f":1},"d":1}}`},
	} {
		got, err := Canonical([]byte(c.in))
		if err != nil || string(got) != c.want {
			t.Errorf("%s: got %s, %v; want %s", c.name, got, err, c.want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct {
		in, rule string
		at       int
	}{
		{"", "unexpected end of text", 0},
		{"  ", "unexpected end of text", 2},
		{"\ufeff{}", "expected a value", 0},
		{"{} x", "data after the value", 3},
		{"1 2", "data after the value", 2},
		{"\v1", "expected a value", 0},
		{"[1,\u00a02]", "expected a value", 3},
		{"tru", "unknown literal", 0},
		{"nul1", "unknown literal", 0},
		{"truex", "data after the value", 4},
		{"NaN", "expected a value", 0},
		{"Infinity", "expected a value", 0},
		{"-Infinity", "expected a digit", 1},
		{"+1", "expected a value", 0},
		{"01", "leading zero", 0},
		{"-01", "leading zero", 1},
		{"00", "leading zero", 0},
		{".5", "expected a value", 0},
		{"1.", "expected a digit after '.'", 2},
		{"1.e3", "expected a digit after '.'", 2},
		{"1e", "expected a digit in the exponent", 2},
		{"1e+", "expected a digit in the exponent", 3},
		{"-", "expected a digit", 1},
		{"0x10", "data after the value", 1},
		{"1_000", "data after the value", 1},
		{"1e309", "float is out of range", 0},
		{"-1.8e308", "float is out of range", 0},
		{"1e99999999999999999999", "float is out of range", 0},
		{strings.Repeat("9", 309) + ".0", "float is out of range", 0},
		{strings.Repeat("9", MaxIntDigits+1), "integer has too many digits", 0},
		{"[-" + strings.Repeat("9", MaxIntDigits+1) + "]", "integer has too many digits", 1},
		{"[1,]", "trailing comma", 3},
		{"[,1]", "expected a value", 1},
		{"[1 2]", "expected ',' or ']'", 3},
		{"[1", "unexpected end of text", 2},
		{"[", "unexpected end of text", 1},
		{"[1}", "expected ',' or ']'", 2},
		{"]", "expected a value", 0},
		{`{"a":1,}`, "trailing comma", 7},
		{`{,"a":1}`, "expected a string as member name", 1},
		{`{a:1}`, "expected a string as member name", 1},
		{`{"a" 1}`, "expected ':'", 5},
		{`{"a"}`, "expected ':'", 4},
		{`{"a":}`, "expected a value", 5},
		{`{"a":1 "b":2}`, "expected ',' or '}'", 7},
		{`{"a":1]`, "expected ',' or '}'", 6},
		{`{"a"`, "unexpected end of text", 4},
		{`{"a":`, "unexpected end of text", 5},
		{`{"a":1`, "unexpected end of text", 6},
		{`{`, "unexpected end of text", 1},
		{`{"a":1,`, "unexpected end of text", 7},
		{`'a'`, "expected a value", 0},
		{`"a`, "unterminated string", 2},
		{`"a\`, "unterminated string", 2},
		{"\"a\nb\"", "control character in a string", 2},
		{"\"0123456789\x00\"", "control character in a string", 11},
		{"\"\x1f\"", "control character in a string", 1},
		{`"\a"`, "unknown escape", 1},
		{`"\'"`, "unknown escape", 1},
		{`"\U0041"`, "unknown escape", 1},
		{`"\u12"`, `\u needs four hex digits`, 1},
		{`"\u12g4"`, `\u needs four hex digits`, 1},
		{`"\u+123"`, `\u needs four hex digits`, 1},
		{`"\ud800"`, "lone surrogate escape", 1},
		{`"\ud800\u0041"`, "lone surrogate escape", 1},
		{`"\ud83d\ud83d\ude00"`, "lone surrogate escape", 1},
		{`"\ud83dx"`, "lone surrogate escape", 1},
		{`"x\udc00"`, "lone surrogate escape", 2},
		{`{"\udfff":1,"a":2}`, "lone surrogate escape", 2},
		{"\"\xff\"", "invalid UTF-8", 1},
		{"\"\xc0\x80\"", "invalid UTF-8", 1},
		{"\"\xed\xa0\x80\"", "invalid UTF-8", 1},
		{"\"é\xe2\x80\"", "invalid UTF-8", 3},
		{strings.Repeat("[", MaxDepth+1) + strings.Repeat("]", MaxDepth+1), "nested too deep", MaxDepth},
		{strings.Repeat(`{"a":`, MaxDepth+1) + "1" + strings.Repeat("}", MaxDepth+1), "nested too deep", 5 * MaxDepth},
	} {
		d, err := Parse([]byte(c.in))
		var se *SyntaxError
		if d != nil || !errors.Is(err, ErrMalformed) || !errors.As(err, &se) {
			t.Errorf("%.40q: got %v, %v; want a syntax error", c.in, d, err)
			continue
		}
		if se.Rule != c.rule || se.Offset != c.at {
			t.Errorf("%.40q: got %q at %d, want %q at %d", c.in, se.Rule, se.Offset, c.rule, c.at)
		}
	}
}

func TestParseAcceptsFullDepth(t *testing.T) {
	for _, in := range []string{
		strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth),
		strings.Repeat(`{"a":`, MaxDepth) + "1" + strings.Repeat("}", MaxDepth),
	} {
		got, err := Canonical([]byte(in))
		if err != nil || string(got) != in {
			t.Errorf("%.20s: %v", in, err)
		}
	}
}
