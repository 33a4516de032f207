package hashcache

import (
	"bytes"
	"reflect"
	"testing"

	"signalbox/appliance/fault"
)

func digested(b byte) Value { return Value{SHA256: [32]byte{b}, Digested: true} }

func proven(scope byte, good int64) Value {
	return Value{Proofs: []Proof{{Scope: [32]byte{scope}, GoodBytes: good}}}
}

func TestMergeKeepsTheNewest(t *testing.T) {
	t.Parallel()
	v := digested(1)
	for i := range byte(6) {
		v = v.Merge(proven(i, int64(i)))
	}
	v = v.Merge(proven(3, 33))
	if !v.Digested || v.SHA256[0] != 1 || len(v.Proofs) != maxProofs {
		t.Fatalf("%+v", v)
	}
	for scope, want := range map[byte]int64{2: 2, 3: 33, 4: 4, 5: 5} {
		if good, ok := v.Proof([32]byte{scope}); !ok || good != want {
			t.Errorf("scope %d: %d, %t", scope, good, ok)
		}
	}
	if _, ok := v.Proof([32]byte{1}); ok {
		t.Error("the oldest proof was kept")
	}
	if v = v.Merge(digested(9)); v.SHA256[0] != 9 || len(v.Proofs) != maxProofs {
		t.Errorf("%+v", v)
	}
}

func TestBytesRoundTrip(t *testing.T) {
	t.Parallel()
	full := digested(7)
	for i := range byte(maxProofs) {
		full = full.Merge(proven(i, 1<<40))
	}
	for _, v := range []Value{{}, digested(1), proven(1, 0), full} {
		got, err := Parse(v.Bytes())
		if err != nil || !reflect.DeepEqual(got, v) || len(v.Bytes()) > 200 {
			t.Errorf("%+v became %+v, %v", v, got, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(digested(1).Merge(proven(2, 3)).Bytes())
	f.Add([]byte{format, 0})
	f.Add([]byte{format, 1, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := Parse(b)
		if err != nil {
			if !fault.Is(err, fault.Corrupt) {
				t.Fatal(err)
			}
			return
		}
		if !bytes.Equal(v.Bytes(), b) {
			t.Fatalf("%x became %x", b, v.Bytes())
		}
	})
}

func TestMemoryForgetsOtherStates(t *testing.T) {
	t.Parallel()
	m, ctx := NewMemory(), t.Context()
	old := Key{1, 2, 3, 4, 5}
	changed := old
	changed.CtimeNS++
	get := func(k Key) (v Value, ok bool) {
		if err := m.Get(ctx, []Key{{Device: 9}, k}, func(i int, got Value) { v, ok = got, i == 1 }); err != nil {
			t.Fatal(err)
		}
		return v, ok
	}
	put := func(k Key, v Value) {
		if err := m.Put(ctx, []Entry{{k, v}}); err != nil {
			t.Fatal(err)
		}
	}
	put(old, digested(1))
	put(old, proven(2, 5))
	if v, ok := get(old); !ok || !v.Digested || len(v.Proofs) != 1 {
		t.Fatalf("%+v, %t", v, ok)
	}
	if _, ok := get(changed); ok {
		t.Fatal("a changed file is known")
	}
	put(changed, proven(3, 5))
	if _, ok := get(old); ok {
		t.Fatal("the old state is still known")
	}
	if v, ok := get(changed); !ok || v.Digested {
		t.Fatalf("the digest of another state was kept: %+v", v)
	}
}
