package frame

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/valid/validtest"
)

func seeds(f *testing.F) {
	f.Helper()
	envelopes := validtest.Envelopes()
	for _, name := range slices.Sorted(maps.Keys(envelopes)) {
		b, err := Marshal(envelopes[name])
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, s := range []string{"", "{}", " {} ", "[]", "{}{}", `{"a":1,"a":2}`, `{"a":{"b":[{"c":null}]}}`, `{"a":"\ud83d\ude00"}`, `{"a":"\ud83d"}`,
		`{"\u0061":1,"a":2}`, "{\"a\":\"\xff\"}", "\xef\xbb\xbf{}", `{"a":-0.1e+7}`, `{"a":01}`, `{"a":1e}`, `{"a":tru}`, `{"a":"` + strings.Repeat("x", 70) + `"}`,
		strings.Repeat(`{"a":[`, 16) + strings.Repeat("]}", 16), strings.Repeat(`{"a":`, 33) + "1" + strings.Repeat("}", 33)} {
		f.Add([]byte(s))
	}
}

// reference is what checks 3 and 4 say of an input by a generic parser, slowly.
func reference(data []byte) (check int) {
	if !utf8.Valid(data) || bytes.HasPrefix(data, []byte("\xef\xbb\xbf")) || !json.Valid(data) {
		return 3
	}
	d := json.NewDecoder(bytes.NewReader(data))
	type object struct {
		keys   map[string]bool
		key    bool // a key comes next
		object bool
	}
	var open []*object
	for {
		tok, err := d.Token()
		if err == io.EOF {
			return check
		}
		if err != nil {
			return 3
		}
		var top *object
		if len(open) > 0 {
			top = open[len(open)-1]
		}
		switch tok := tok.(type) {
		case json.Delim:
			switch tok {
			case '{', '[':
				if top == nil && tok != '{' {
					return 3
				}
				if top != nil {
					top.key = true
				}
				open = append(open, &object{keys: make(map[string]bool), key: true, object: tok == '{'})
				if len(open) > MaxNesting {
					return 3
				}
			default:
				open = open[:len(open)-1]
			}
		case string:
			if top == nil {
				return 3
			}
			if top.object && top.key {
				if top.keys[tok] {
					check = 4
				}
				top.keys[tok] = true
				top.key = false
				continue
			}
			top.key = true
		default:
			if top == nil {
				return 3
			}
			top.key = true
		}
	}
}

// FuzzScan compares the scan with a generic parser. That one turns an unpaired surrogate into U+FFFD, so inputs with
// surrogate escapes are only held to the rest.
func FuzzScan(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		_, v := scan(data, roleNone, bounds{})
		got := 0
		if v != nil {
			got = v.Check
			if v.Offset < 0 || v.Offset > len(data) {
				t.Fatalf("offset %d in %d bytes", v.Offset, len(data))
			}
			if v.Reason == "an unpaired surrogate" || v.Reason == "more list elements than their length allows" {
				return
			}
		}
		if want := reference(data); got != want {
			t.Fatalf("%q: check %d (%v), a generic parser says %d", data, got, v, want)
		}
	})
}

// FuzzDecode holds every input to: no panic; a violation that quotes nothing; and what is accepted comes back from its
// own encoding.
func FuzzDecode(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, o := range []Options{
			{From: FromClient}, {From: FromControl}, {From: FromClient, Registered: true}, {From: FromControl, Registered: true},
			{From: FromControl, Registered: true, PeerMinor: 1},
		} {
			got, v := Decode(data, o)
			if v != nil {
				if got != nil || v.Check < 3 || v.Check > 8 || v.Offset > len(data) {
					t.Fatalf("%v, %v", got, v)
				}
				continue
			}
			b, err := Marshal(got.Envelope)
			if err != nil {
				t.Fatal(err)
			}
			again, v := Decode(b, o)
			if v != nil || !proto.Equal(again.Envelope, got.Envelope) || (again.Refusal == nil) != (got.Refusal == nil) && !got.Partial {
				t.Fatalf("%q comes back as %v, %v", data, again, v)
			}
			if Digest(got.Envelope) != Digest(again.Envelope) {
				t.Fatal("two digests of one message")
			}
		}
	})
}

// FuzzFaults holds the walk along the schema to what the parser says: where the walk finds nothing unknown the lenient
// parser loses nothing.
func FuzzFaults(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, v := scan(data, roleNone, bounds{}); v != nil {
			return
		}
		e := new(pb.Envelope)
		walk := schemaFaults(data, e.ProtoReflect().Descriptor())
		strict := protojson.Unmarshal(data, e)
		clean := walk == faults{-1, -1, -1, -1, -1}
		if strict == nil && !clean {
			t.Fatalf("%q is strictly parsed, but %+v", data, walk)
		}
		lenient := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, new(pb.Envelope))
		if strict != nil && lenient == nil && clean {
			t.Fatalf("%q is only leniently parsed, but the walk finds nothing: %v", data, strict)
		}
		if strict != nil {
			if at := position(data, strict); at > len(data) {
				t.Fatalf("position %d in %d bytes", at, len(data))
			}
		}
	})
}
