package rawjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"a":[1,-0,1.50,1e-7,null,true,false,"\u00e9\ud83d\ude00\n\/"],"\u0061":{"":[]}}`, `"\ud800"`, `"\u0000\u001F"`, `-`, `01`,
		`[1,]`, `{"a":1,"a":2}`, "\ufeff1", ` 1e400 `, `123456789012345678901234567890`, `1E+016`, `2.4703282292062328e-324`,
		strings.Repeat("[", 20) + strings.Repeat("]", 20), "\"\xed\xa0\x80\"", `1e-10000`, `100000.5e-00003`, `{"b":0,"a":{"d":1,"c":2}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		before := bytes.Clone(in)
		d, err := Parse(in)
		if !bytes.Equal(in, before) {
			t.Fatal("Parse changed its input")
		}
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("error outside the class: %v", err)
			}
			checkRefusal(t, in, err.(*SyntaxError))
			return
		}
		defer d.Release()
		if !json.Valid(in) || !utf8.Valid(in) {
			t.Fatalf("%q is accepted, but not JSON", in)
		}
		walk(t, d.Root())
		canonical := AppendCanonical(nil, d.Root())
		again, err := Canonical(canonical)
		if err != nil || !bytes.Equal(again, canonical) {
			t.Fatalf("the canonical form is not a fixed point: %q becomes %q, %v", canonical, again, err)
		}
		checkMeaning(t, in, canonical)
		if out, changed := AppendRedacted(nil, d.Root(), func(k []byte) bool { return len(k)%2 == 1 }, `"x"`); changed && !Valid(out) {
			t.Fatalf("redaction of %q gives %q", in, out)
		}
	})
}

// checkRefusal compares with encoding/json on the rules that both have.
func checkRefusal(t *testing.T, in []byte, se *SyntaxError) {
	if se.Offset < 0 || se.Offset > len(in) {
		t.Fatalf("offset %d is outside the text", se.Offset)
	}
	switch se.Rule {
	case "invalid UTF-8", "lone surrogate escape", "float is out of range", "integer has too many digits", "nested too deep":
		return // encoding/json is not as strict
	}
	if json.Valid(in) {
		t.Fatalf("%q is JSON, but refused: %v", in, se)
	}
}

// checkMeaning decodes both texts with encoding/json.
func checkMeaning(t *testing.T, in, canonical []byte) {
	var a, b any
	if json.Unmarshal(in, &a) != nil {
		return // an integer beyond a double
	}
	if err := json.Unmarshal(canonical, &b); err != nil {
		t.Fatalf("%q: %v", canonical, err)
	}
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	// -0 as an integer loses its sign on purpose.
	if !bytes.Equal(bytes.ReplaceAll(x, []byte("-0"), []byte("0")), bytes.ReplaceAll(y, []byte("-0"), []byte("0"))) {
		t.Fatalf("%q and its canonical form %q mean %s and %s", in, canonical, x, y)
	}
}

// walk visits every value by the public methods and checks that they agree.
func walk(t *testing.T, v Value) {
	if len(v.Raw()) == 0 {
		t.Fatal("a value without bytes")
	}
	if s, ok := v.Str(); ok && (!v.StrEqual(s) || !utf8.ValidString(s)) {
		t.Fatalf("%q does not equal itself", s)
	}
	v.Int64()
	v.Float64()
	for i, e := range v.Each() {
		if i < 4 && string(v.Index(i).Raw()) != string(e.Raw()) {
			t.Fatal("Index and Each differ")
		}
		walk(t, e)
	}
	n := 0
	for key, m := range v.EachMember() {
		if n++; n < 8 && v.Get(string(key)) != m {
			t.Fatalf("Get(%q) and EachMember differ", key)
		}
	}
	for _, m := range v.EachRawMember() {
		walk(t, m)
	}
}
