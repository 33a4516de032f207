package audit

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/secret"
)

func testKeys(s string) Keys { return NewKeys(secret.NewBytes([]byte(strings.Repeat(s, 32)))) }

func fullRow() Row {
	text := func(s string) *string { return &s }
	return Row{No: 7, EventID: uuid.MustParse("3f2b8c1e-6a4d-4e7f-9b10-2c5d7e8f9a01"), ProjectNo: 3, UserID: text("user"),
		Action: "thing.done", TargetType: "thing", TargetID: text("target"), Result: Success, Outcome: Allow,
		Metadata: []byte(`{"a":1}`), SourceIP: text("192.0.2.1"), UserAgent: text("curl/8"),
		At: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), KeyID: "0123abcd", Mac: bytes.Repeat([]byte{1}, macBytes)}
}

// mutations returns every way to change one field of a row a little: each bit of each byte, one byte less, one more, and
// NULL. A field of a kind it does not know fails the test, so that a new column cannot stay outside the mac unnoticed.
func mutations(t *testing.T, r Row) map[string][]Row {
	t.Helper()
	out := map[string][]Row{}
	kind := reflect.TypeFor[Row]()
	for i := range kind.NumField() {
		name := kind.Field(i).Name
		add := func(v any) {
			c := r
			reflect.ValueOf(&c).Elem().Field(i).Set(reflect.ValueOf(v))
			out[name] = append(out[name], c)
		}
		switch v := reflect.ValueOf(r).Field(i).Interface().(type) {
		case int64:
			for bit := range 64 {
				add(v ^ 1<<bit)
			}
		case uuid.UUID:
			for _, b := range flips(v[:]) {
				add(uuid.UUID(b))
			}
		case string:
			for _, b := range variants([]byte(v)) {
				add(string(b))
			}
		case *string:
			add((*string)(nil))
			for _, b := range variants([]byte(*v)) {
				s := string(b)
				add(&s)
			}
		case []byte:
			for _, b := range variants(v) {
				add(b)
			}
		case time.Time:
			for bit := range 62 {
				add(time.UnixMicro(v.UnixMicro() ^ 1<<bit))
			}
		default:
			t.Fatalf("field %s of a kind that the mac does not know", name)
		}
	}
	return out
}

func flips(b []byte) [][]byte {
	var out [][]byte
	for i := range b {
		for bit := range 8 {
			c := bytes.Clone(b)
			c[i] ^= 1 << bit
			out = append(out, c)
		}
	}
	return out
}

func variants(b []byte) [][]byte {
	return append(flips(b), b[:len(b)-1], append(bytes.Clone(b), 0), nil)
}

func TestMacCoversEveryBitOfEveryColumn(t *testing.T) {
	t.Parallel()
	k := testKeys("a").current()
	r, prev := fullRow(), bytes.Repeat([]byte{9}, macBytes)
	want := k.mac(&r, prev)
	for field, rows := range mutations(t, r) {
		for _, m := range rows {
			if bytes.Equal(k.mac(&m, prev), want) != (field == "Mac") {
				t.Errorf("%s: %+v", field, m)
			}
		}
	}
	for _, p := range variants(prev) {
		if bytes.Equal(k.mac(&r, p), want) {
			t.Errorf("the mac before it: %x", p)
		}
	}
	if other := testKeys("b").current(); bytes.Equal(other.mac(&r, prev), want) {
		t.Error("another key makes the same mac")
	}
}

// TestMacIsUnambiguous moves bytes between neighbouring columns: their concatenation stays, the mac must not.
func TestMacIsUnambiguous(t *testing.T) {
	t.Parallel()
	k := testKeys("a").current()
	seen := map[string]string{}
	empty := ""
	for name, change := range map[string]func(*Row){
		"as it is":          func(*Row) {},
		"byte moved right":  func(r *Row) { r.Action, r.TargetType = "thing.don", "ething" },
		"byte moved left":   func(r *Row) { r.Action, r.TargetType = "thing.donet", "hing" },
		"all moved":         func(r *Row) { r.Action, r.TargetType = "", "thing.donething" },
		"null user":         func(r *Row) { r.UserID = nil },
		"empty user":        func(r *Row) { r.UserID = &empty },
		"null target":       func(r *Row) { r.TargetID = nil },
		"target for user":   func(r *Row) { r.UserID, r.TargetID = r.TargetID, r.UserID },
		"no project":        func(r *Row) { r.ProjectNo = 0 },
		"mac-like metadata": func(r *Row) { r.Metadata = append(r.Metadata, genesis[:]...) },
	} {
		r := fullRow()
		change(&r)
		mac := string(k.mac(&r, genesis[:]))
		if other, ok := seen[mac]; ok {
			t.Errorf("%s has the mac of %s", name, other)
		}
		seen[mac] = name
	}
}

// TestChainVector holds the encoding still: another mac for the same row would break every database that exists.
func TestChainVector(t *testing.T) {
	t.Parallel()
	k := testKeys("a").current()
	r := fullRow()
	r.KeyID = k.id
	got := map[string]string{"key id": k.id, "mac": hex.EncodeToString(k.mac(&r, genesis[:])),
		"head": hex.EncodeToString(k.seal(labelHead, 7, genesis[:]))}
	for name, want := range map[string]string{
		"key id": "a12c7673",
		"mac":    "5cd2009c6d3753b3224cf83a02c7f48074125ce79bdff3b8a288d4ab43472d66",
		"head":   "4c835e44b86ce6d458314cd978bee9e8eb499a292f1cfb5a1c57c0ca7b588db8",
	} {
		if got[name] != want {
			t.Errorf("%s: got %s, want %s", name, got[name], want)
		}
	}
}

func TestMarks(t *testing.T) {
	t.Parallel()
	keys := testKeys("a")
	mac := bytes.Repeat([]byte{7}, macBytes)
	good := keys.newMark(labelHead, 42, mac)
	if m, why := keys.checkMark(labelHead, good); why != "" || m.no != 42 || !bytes.Equal(m.mac, mac) {
		t.Fatalf("%+v, %s", m, why)
	}
	if m, why := keys.checkMark(labelHead, nil); why != "" || m.no != 0 {
		t.Errorf("no mark: %+v, %s", m, why)
	}
	if _, why := keys.checkMark(labelAnchor, good); why != MarkChanged {
		t.Errorf("head used as anchor: %q", why)
	}
	if _, why := testKeys("b").checkMark(labelHead, good); why != UnknownKey {
		t.Errorf("another key: %q", why)
	}
	for _, bad := range append(variants(good), []byte{}) {
		if bad == nil {
			continue // no mark at all
		}
		if _, why := keys.checkMark(labelHead, bad); why == "" {
			t.Errorf("accepted %x", bad)
		}
	}
}
