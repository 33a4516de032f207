package rawjson

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"unsafe"
)

func parse(t testing.TB, s string) Value {
	t.Helper()
	d, err := Parse([]byte(s))
	if err != nil {
		t.Fatalf("%.60s: %v", s, err)
	}
	return d.Root()
}

func TestKinds(t *testing.T) {
	root := parse(t, `{"null":null,"bool":true,"int":-12,"float":1.5,"string":"é","array":[1,2],"object":{"a":1}}`)
	want := map[string]Kind{"null": Null, "bool": Bool, "int": Int, "float": Float, "string": String, "array": Array,
		"object": Object, "absent": Missing}
	for key, kind := range want {
		v := root.Get(key)
		if v.Kind() != kind {
			t.Errorf("%s: got %v", key, v.Kind())
		}
		if v.Exists() != (kind != Missing) || root.Has(key) != v.Exists() || v.IsNull() != (kind == Null) ||
			v.IsAbsent() != (kind == Null || kind == Missing) {
			t.Errorf("%s: presence is wrong", key)
		}
		_, isBool := v.Bool()
		_, isInt := v.Int64()
		_, isNumber := v.Float64()
		_, isString := v.Str()
		if isBool != (kind == Bool) || isInt != (kind == Int) || isNumber != (kind == Int || kind == Float) || isString != (kind == String) {
			t.Errorf("%s: a reader of another kind answered", key)
		}
	}
	if got := string(root.Get("array").Raw()); got != "[1,2]" {
		t.Errorf("raw array: %s", got)
	}
	if root.Len() != 7 || root.Get("array").Len() != 2 || root.Get("string").Len() != 0 {
		t.Error("lengths are wrong")
	}
	if v := root.Get("array").Index(1); string(v.Raw()) != "2" {
		t.Errorf("index 1: %s", v.Raw())
	}
	for _, i := range []int{-1, 2} {
		if root.Get("array").Index(i).Exists() {
			t.Errorf("index %d exists", i)
		}
	}
}

func TestMissingAnswersEverything(t *testing.T) {
	var v Value
	for range v.Each() {
		t.Error("an element of nothing")
	}
	for range v.EachMember() {
		t.Error("a member of nothing")
	}
	if v.Get("a").Get("b").Index(0).Exists() || v.Raw() != nil || v.Len() != 0 || v.StrEqual("") || v.Offset() != -1 {
		t.Error("a missing value has content")
	}
	if out := AppendCanonical([]byte("x"), v); string(out) != "x" {
		t.Errorf("canonical form of nothing: %s", out)
	}
	if out, changed := AppendRedacted([]byte("x"), v, func([]byte) bool { return true }, "0"); changed || string(out) != "x" {
		t.Errorf("redaction of nothing: %s", out)
	}
	if out := AppendCanonicalObject(nil, v, "", []Member{{"a", []byte("1")}}); string(out) != `{"a":1}` {
		t.Errorf("set on nothing: %s", out)
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		in  string
		i   int64
		ok  bool
		f   float64
		fok bool
	}{
		{"0", 0, true, 0, true}, {"-0", 0, true, 0, true},
		{"9223372036854775807", math.MaxInt64, true, math.MaxInt64, true},
		{"-9223372036854775808", math.MinInt64, true, math.MinInt64, true},
		{"9223372036854775808", 0, false, 9223372036854775808, true},
		{"1.0", 0, false, 1, true}, {"1e2", 0, false, 100, true},
		{"9" + strings.Repeat("0", 400), 0, false, 0, false},
	} {
		v := parse(t, c.in)
		if i, ok := v.Int64(); ok != c.ok || ok && i != c.i {
			t.Errorf("%.30s: Int64 gives %d, %v", c.in, i, ok)
		}
		if f, ok := v.Float64(); ok != c.fok || ok && f != c.f {
			t.Errorf("%.30s: Float64 gives %v, %v", c.in, f, ok)
		}
	}
}

func TestStrings(t *testing.T) {
	for in, want := range map[string]string{
		`""`: "", `"a"`: "a", `"é😀"`: "é😀", `"\u00e9\ud83d\ude00\n\/\\\""`: "é😀\n/\\\"", `"\u0000x"`: "\x00x",
		`"tail\t"`: "tail\t", `"\b\f\r"`: "\b\f\r", `"\ufffd\ufeff"`: "\ufffd\ufeff",
	} {
		v := parse(t, in)
		if got, ok := v.Str(); !ok || got != want {
			t.Errorf("%s: Str gives %q", in, got)
		}
		if got, ok := v.AppendStr([]byte("x")); !ok || string(got) != "x"+want {
			t.Errorf("%s: AppendStr gives %q", in, got)
		}
		if !v.StrEqual(want) || v.StrEqual(want+"x") || want != "" && v.StrEqual(want[:len(want)-1]) {
			t.Errorf("%s: StrEqual is wrong", in)
		}
		again := parse(t, string(AppendString(nil, want)))
		if got, _ := again.Str(); got != want {
			t.Errorf("%s: AppendString reads back as %q", in, got)
		}
		if w := string(AppendString(nil, want)); w != string(AppendCanonical(nil, v)) {
			t.Errorf("%s: AppendString writes %s, the canonical form is %s", in, w, AppendCanonical(nil, v))
		}
	}
	if got := string(AppendString(nil, "a\xffb\xed\xa0\x80")); !Valid([]byte(got)) || !strings.Contains(got, "\ufffd") {
		t.Errorf("invalid UTF-8 is written as %q", got)
	}
}

func TestDuplicateMembers(t *testing.T) {
	root := parse(t, `{"a":1,"b":2,"\u0061":3,"c":4,"b":5,"\u0063":null}`)
	for key, want := range map[string]string{"a": "3", "b": "5", "c": "null"} {
		if got := string(root.Get(key).Raw()); got != want {
			t.Errorf("%s: got %s, want the last, %s", key, got, want)
		}
	}
	list := func(members func(func([]byte, Value) bool)) string {
		var b strings.Builder
		for key, v := range members {
			fmt.Fprintf(&b, "%s=%s ", key, v.Raw())
		}
		return b.String()
	}
	if got := list(root.EachRawMember()); got != "a=1 b=2 a=3 c=4 b=5 c=null " {
		t.Errorf("raw members: %s", got)
	}
	if got := list(root.EachMember()); got != "a=3 b=5 c=null " {
		t.Errorf("members: %s", got)
	}
	for range root.EachMember() {
		break
	}
	for range parse(t, "[1,2]").Each() {
		break
	}
}

func TestRedact(t *testing.T) {
	match := func(key []byte) bool { return strings.Contains(string(key), "pass") }
	const mask = `"[REDACTED]"`
	for _, c := range []struct{ name, in, want string }{
		{"nothing to do", `{ "a" : 1e-7, "b" : ["pass", {"c":"\u0041"}] }`, ""},
		{"scalar", `"pass"`, ""},
		{"array", `[1, {"pass":2}, 3]`, `[1, {"pass":"[REDACTED]"}, 3]`},
		{"keeps every other byte", `{ "a" : 1e-7 , "password" : { "x" : [1] } , "z":"\u0041" }`, `{ "a" : 1e-7 , "password" : "[REDACTED]" , "z":"\u0041" }`},
		{"deep", `{"a":[[{"b":{"pass":1}}]]}`, `{"a":[[{"b":{"pass":"[REDACTED]"}}]]}`},
		{"shadowed duplicates", `{"pass":"one","pass":"two","p\u0061ss":"three"}`, `{"pass":"[REDACTED]","pass":"[REDACTED]","p\u0061ss":"[REDACTED]"}`},
		{"inside a shadowed object", `{"a":{"pass":1},"a":2}`, `{"a":{"pass":"[REDACTED]"},"a":2}`},
		{"not inside a replaced value", `{"pass":{"pass":1}}`, `{"pass":"[REDACTED]"}`},
	} {
		v := parse(t, c.in)
		got, changed := AppendRedacted([]byte("x"), v, match, mask)
		switch {
		case c.want == "" && (changed || string(got) != "x"):
			t.Errorf("%s: changed to %s", c.name, got)
		case c.want != "" && (!changed || string(got) != "x"+c.want):
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
	inner, changed := AppendRedacted(nil, parse(t, ` [0, {"pass":1} ] `).Index(1), match, mask)
	if !changed || string(inner) != `{"pass":"[REDACTED]"}` {
		t.Errorf("part of a text: %s", inner)
	}
}

func TestEdit(t *testing.T) {
	v := parse(t, `{"s":"long text","n":[ "another long text", "ok", 5 ],"\u006b":{"s":"yet more text"}}`)
	var keys []string
	got, changed := AppendEdited(nil, v, func(key []byte, v Value) (string, bool) {
		if key != nil {
			keys = append(keys, string(key))
		}
		s, ok := v.Str()
		return `"cut"`, ok && len(s) > 5
	})
	if want := `{"s":"cut","n":[ "cut", "ok", 5 ],"\u006b":{"s":"cut"}}`; !changed || string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if strings.Join(keys, " ") != "s n k s" {
		t.Errorf("keys offered: %v", keys)
	}
}

func TestCanonicalObjectSetAndDrop(t *testing.T) {
	set := []Member{{"b", []byte("true")}, {"d", []byte(`"x"`)}, {"é", []byte("[]")}}
	for _, c := range []struct{ in, drop, want string }{
		{`{}`, "h", `{"b":true,"d":"x","é":[]}`},
		{`{"z":1,"c":2,"a":3,"h":4}`, "h", `{"a":3,"b":true,"c":2,"d":"x","z":1,"é":[]}`},
		{`{"h":1,"\u0068":2,"i":1.50}`, "h", `{"b":true,"d":"x","i":1.5,"é":[]}`},
		{`{"b":1,"d":{"x":1},"d":2,"\u00e9":0}`, "", `{"b":true,"d":"x","é":[]}`},
		{`{"":1,"h":{"b":1,"a":2}}`, "", `{"":1,"b":true,"d":"x","h":{"a":2,"b":1},"é":[]}`},
	} {
		if got := string(AppendCanonicalObject(nil, parse(t, c.in), c.drop, set)); got != c.want {
			t.Errorf("%s without %q: got %s, want %s", c.in, c.drop, got, c.want)
		}
	}
}

// TestHostileObject holds 50,000 keys twice: everything that looks for duplicates must stay far from quadratic, which would
// take minutes here and run into the test timeout.
func TestHostileObject(t *testing.T) {
	const n = 50_000
	for _, key := range []string{`"%d"`, `"\u0061%d"`, `"same prefix, decided late %d"`} {
		var b strings.Builder
		b.WriteByte('{')
		for i := range n {
			fmt.Fprintf(&b, key+`:0,`, (i*7919)%n)
		}
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, key+`:1`, (i*7907)%n)
		}
		b.WriteByte('}')
		root := parse(t, b.String())
		members := 0
		for _, v := range root.EachMember() {
			if string(v.Raw()) != "1" {
				t.Fatal("a shadowed member was yielded")
			}
			members++
		}
		again := parse(t, string(AppendCanonical(nil, root)))
		if members != n || again.Len() != n {
			t.Errorf("%s: %d members, %d in the canonical form", key, members, again.Len())
		}
	}
}

// TestConcurrentReaders reads one Doc from several goroutines; the race detector judges.
func TestConcurrentReaders(t *testing.T) {
	root := parse(t, `{"b":[1,{"d":1.0,"c":"\u0041"}],"\u0061":null}`)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				if got := string(AppendCanonical(nil, root)); got != `{"a":null,"b":[1,{"c":"A","d":1.0}]}` {
					t.Errorf("got %s", got)
				}
				if !root.Get("a").IsNull() {
					t.Error("a is not null")
				}
			}
		})
	}
	wg.Wait()
}

func TestReleaseAllowsReuse(t *testing.T) {
	var none *Doc
	none.Release()
	for i := range 100 {
		d, err := Parse(fmt.Appendf(nil, `{"n":%d,"list":[%s1]}`, i, strings.Repeat("0,", i)))
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := d.Root().Get("n").Int64(); int(n) != i || d.Root().Get("list").Len() != i+1 {
			t.Fatalf("round %d reads %d", i, n)
		}
		d.Release()
	}
}

func TestErrorsAndKindsPrint(t *testing.T) {
	_, err := Parse([]byte(`{"secret":"value",}`))
	if got := err.Error(); got != "malformed JSON at offset 18: trailing comma" {
		t.Errorf("got %q", got)
	}
	if Valid([]byte("[1,]")) || !Valid([]byte(" [1] ")) {
		t.Error("Valid is wrong")
	}
	for k, want := range []string{"missing", "null", "boolean", "integer", "float", "string", "array", "object", "unknown"} {
		if got := Kind(k).String(); got != want {
			t.Errorf("kind %d prints as %s", k, got)
		}
	}
}

func TestAppendFloat(t *testing.T) {
	for want, f := range map[string]float64{"null": math.NaN(), "-0.0": math.Copysign(0, -1), "1.0": 1, "1e-05": 1e-5,
		"1e+16": 1e16, "9999999999999998.0": 9999999999999998} {
		if got := string(AppendFloat(nil, f)); got != want {
			t.Errorf("%v: got %s, want %s", f, got, want)
		}
	}
	if got := string(AppendFloat(nil, math.Inf(-1))); got != "null" {
		t.Errorf("infinity: got %s", got)
	}
}

func TestParseAtMost(t *testing.T) {
	for text, values := range map[string]int{`1`: 1, `[]`: 1, `[1,2,3]`: 4, `{"a":1,"b":[]}`: 5, `{"a":{"b":{"c":null}}}`: 7} {
		for limit := range values + 2 {
			doc, err := ParseAtMost([]byte(text), limit)
			if len(text) > 2 && (err == nil) != (limit >= values) {
				t.Errorf("%s with at most %d values: %v", text, limit, err)
			}
			if err != nil && !errors.Is(err, ErrMalformed) {
				t.Errorf("%s: %v", text, err)
			}
			if err == nil {
				if size := doc.Size(); size != len(text)+values*int(unsafe.Sizeof(node{})) {
					t.Errorf("%s takes %d bytes", text, size)
				}
				doc.Release()
			}
		}
	}
}
