package bencode

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

func TestWellFormed(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"i0e", "i-1e", "i42e", "i9223372036854775807e", "i-9223372036854775808e",
		"0:", "3:abc", "10:0123456789", "le", "de", "li1e1:ae", "d1:ai1e1:bi2ee", "d0:i1e1:ai2ee", "d1:ale2:aadee",
	} {
		if err := valid([]byte(in), Limits{}); err != nil {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func TestMalformed(t *testing.T) {
	t.Parallel()
	for in, rule := range map[string]string{
		"":                        "unexpected end",
		"x":                       "no value",
		"i":                       "malformed",
		"ie":                      "malformed",
		"i-e":                     "malformed",
		"i01e":                    "malformed",
		"i-0e":                    "shortest",
		"i-01e":                   "malformed",
		"i+1e":                    "malformed",
		"i 1e":                    "malformed",
		"i1.5e":                   "malformed",
		"i1":                      "malformed",
		"i9223372036854775808e":   "out of range",
		"i-9223372036854775809e":  "out of range",
		"i18446744073709551616e":  "malformed",
		"i99999999999999999999e":  "malformed",
		"01:a":                    "length is malformed",
		"00:":                     "length is malformed",
		"3:ab":                    "longer than the input",
		"9999999999:a":            "longer than the input",
		"9999999999999999999:a":   "longer than the input",
		"99999999999999999999:a":  "length is malformed",
		"3abc":                    "length is malformed",
		"-1:a":                    "no value",
		"l":                       "unexpected end",
		"li1e":                    "unexpected end",
		"d":                       "unexpected end",
		"d1:a":                    "unexpected end",
		"d1:ae":                   "no value",
		"di1ei1ee":                "key is not a string",
		"d1:ai1e1:ai2ee":          "repeated",
		"d1:bi1e1:ai2ee":          "not in order",
		"d2:aai1e1:ai2ee":         "not in order",
		"i1ei2e":                  "data after",
		"le\n":                    "data after",
		"d4:infod1:bi1e1:ai1eeee": "not in order",
	} {
		err := valid([]byte(in), Limits{})
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(e.Rule, rule) || e.Limit {
			t.Errorf("%q: got %v, want %q", in, err, rule)
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in  string
		lim Limits
		ok  bool
	}{
		"depth at":       {strings.Repeat("l", 5) + strings.Repeat("e", 5), Limits{Depth: 5}, true},
		"depth over":     {strings.Repeat("l", 6) + strings.Repeat("e", 6), Limits{Depth: 5}, false},
		"depth of dicts": {strings.Repeat("d0:", 6) + "i1e" + strings.Repeat("e", 6), Limits{Depth: 5}, false},
		"entries at":     {"l" + strings.Repeat("i1e", 10) + "e", Limits{Entries: 10}, true},
		"entries over":   {"l" + strings.Repeat("i1e", 11) + "e", Limits{Entries: 10}, false},
		"bytes at":       {"3:abc", Limits{Bytes: 5}, true},
		"bytes over":     {"3:abc", Limits{Bytes: 4}, false},
		"default depth":  {strings.Repeat("l", 1_000_000), Limits{}, false},
	} {
		err := valid([]byte(c.in), c.lim)
		var e *Error
		switch {
		case c.ok && err != nil:
			t.Errorf("%s: %v", name, err)
		case !c.ok && (!errors.As(err, &e) || !e.Limit):
			t.Errorf("%s: got %v, want a limit", name, err)
		}
	}
}

func TestErrorsQuoteNothing(t *testing.T) {
	t.Parallel()
	const secret = "https://tracker.example/passkey-0123456789/announce"
	full := "d8:announce" + strconv.Itoa(len(secret)) + ":" + secret + "8:announcei1ee"
	for n := 0; n <= len(full); n++ {
		err := valid([]byte(full[:n]), Limits{})
		if err == nil {
			t.Fatalf("cut at %d: no error", n)
		}
		for _, part := range []string{"announce", "tracker", "passkey", "0123"} {
			if strings.Contains(fmt.Sprintf("%+v %v", err, err), part) {
				t.Fatalf("cut at %d: %v quotes the input", n, err)
			}
		}
	}
}

func TestDecoderGivesValuesAndSpans(t *testing.T) {
	t.Parallel()
	in := []byte("d4:infod6:lengthi7e4:name1:xe5:otherli1ei-2ee4:zzzz3:abce")
	d := NewDecoder(in, Limits{})
	var info, rest string
	var length int64
	var list []int64
	err := d.Dict(func(key []byte) error {
		switch string(key) {
		case "info":
			from := d.Offset()
			if err := d.Dict(func(key []byte) error {
				if string(key) != "length" {
					return nil
				}
				var err error
				length, err = d.Int()
				return err
			}); err != nil {
				return err
			}
			info = string(d.Slice(from, d.Offset()))
		case "other":
			return d.List(func() error {
				n, err := d.Int()
				list = append(list, n)
				return err
			})
		case "zzzz":
			b, err := d.Bytes()
			rest = string(b)
			return err
		}
		return nil
	})
	if err == nil {
		err = d.End()
	}
	if err != nil {
		t.Fatal(err)
	}
	if info != "d6:lengthi7e4:name1:xe" || length != 7 || rest != "abc" || len(list) != 2 || list[1] != -2 {
		t.Fatalf("info %q, length %d, list %v, rest %q", info, length, list, rest)
	}
}

func TestWrongKindIsAnErrorAndStays(t *testing.T) {
	t.Parallel()
	d := NewDecoder([]byte("li1ee"), Limits{})
	if _, err := d.Bytes(); err == nil {
		t.Fatal("a list was read as a string")
	}
	if _, err := d.Kind(); err == nil {
		t.Fatal("the decoder went on after an error")
	}
	if err := d.End(); err == nil {
		t.Fatal("End hides the error")
	}
	d = NewDecoder([]byte("li1ei2ee"), Limits{})
	mine := errors.New("mine")
	if err := d.List(func() error { return mine }); !errors.Is(err, mine) {
		t.Fatalf("the visitor's error was lost: %v", err)
	}
	if err := d.End(); !errors.Is(err, mine) {
		t.Fatalf("End after the visitor's error: %v", err)
	}
}

// FuzzDecoder holds the rule that what is accepted has exactly one spelling: written again, it gives the same bytes.
func FuzzDecoder(f *testing.F) {
	for _, s := range []string{"i0e", "d1:ali1e0:ed1:bi-5eee", "li1ee", "d1:bi1e1:ai1ee", "i-0e", "03:abc", "lllleeee"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if valid(in, Limits{Depth: 20, Entries: 1000}) != nil {
			return
		}
		d := NewDecoder(in, Limits{})
		out, err := rewrite(d, nil)
		if err == nil {
			err = d.End()
		}
		if err != nil {
			t.Fatalf("valid, but: %v", err)
		}
		if string(out) != string(in) {
			t.Fatalf("%q became %q", in, out)
		}
	})
}

func rewrite(d *Decoder, b []byte) ([]byte, error) {
	k, err := d.Kind()
	if err != nil {
		return nil, err
	}
	switch k {
	case Integer:
		v, err := d.Int()
		return appendInt(b, v), err
	case String:
		v, err := d.Bytes()
		return appendString(b, string(v)), err
	case List:
		b = append(b, 'l')
		err = d.List(func() error {
			var err error
			b, err = rewrite(d, b)
			return err
		})
	case Dict:
		b = append(b, 'd')
		err = d.Dict(func(key []byte) error {
			b = appendString(b, string(key))
			var err error
			b, err = rewrite(d, b)
			return err
		})
	}
	return append(b, 'e'), err
}

// valid reads data as one whole value.
func valid(data []byte, lim Limits) error {
	d := NewDecoder(data, lim)
	if err := d.Skip(); err != nil {
		return err
	}
	return d.End()
}

func appendInt(b []byte, v int64) []byte {
	return append(strconv.AppendInt(append(b, 'i'), v, 10), 'e')
}

func appendString(b []byte, s string) []byte {
	return append(append(strconv.AppendInt(b, int64(len(s)), 10), ':'), s...)
}
