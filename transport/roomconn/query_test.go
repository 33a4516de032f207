package roomconn

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room/connection"
)

func TestParseOpening(t *testing.T) {
	x, y := uuid.New(), uuid.New()
	o, err := parseOpening("connection_id=c&scope=all&filter=addressed&start_from=12&rooms="+x.String()+",,+"+y.String()+","+x.String()+
		"&expected_generation=7&spawn_capable=True&protocol=6&client=tool&client_version=1", "")
	if err != nil {
		t.Fatal(err)
	}
	if o.connectionID != "c" || o.scope != connection.ScopeAll || o.filter != connection.FilterAddressed || o.startHead || o.after != 12 ||
		*o.expected != 7 || !o.spawnCapable || *o.declared.Speaks != 6 || o.declared.Accepts != nil || *o.declared.Artifact != "tool" {
		t.Errorf("%+v", o)
	}
	if len(o.rooms.ids) != 2 || o.rooms.ids[0] != x || o.rooms.ids[1] != y {
		t.Errorf("rooms %v", o.rooms.ids)
	}
	o, err = parseOpening("connection_id=c", "")
	if err != nil || o.scope != connection.ScopeSingle || o.filter != connection.FilterAll || !o.startHead || o.expected != nil ||
		o.spawnCapable || o.declared != (connection.Declaration{}) || o.rooms.ids != nil {
		t.Errorf("defaults %+v, %v", o, err)
	}
	if o, err = parseOpening("connection_id=c&start_from=x", "5"); err != nil || o.startHead || o.after != 5 {
		t.Errorf("Last-Event-ID: %+v, %v", o, err)
	}
}

func TestParseValues(t *testing.T) {
	for _, tc := range []struct {
		query string
		ok    bool
	}{
		{"start_from=head", true}, {"start_from=", true}, {"start_from=0", true}, {"start_from=9007199254740991", true},
		{"start_from=9007199254740992", false}, {"start_from=-1", false}, {"start_from=%2B1", false}, {"start_from=1.0", false},
		{"start_from=0x1", false}, {"start_from=99999999999999999999999999999999999999", false}, {"start_from=Head", false},
		{"expected_generation=-3", true}, {"expected_generation=", false}, {"expected_generation=%2B3", false},
		{"expected_generation=1e3", false}, {"expected_generation=9223372036854775808", false},
		{"spawn_capable=1", true}, {"spawn_capable=0", true}, {"spawn_capable=FALSE", true}, {"spawn_capable=", false}, {"spawn_capable=yes", false},
		{"protocol=99999999999", true}, {"protocol=-5", true}, {"protocol=", false}, {"protocol_accepts=x", false},
		{"scope=single", true}, {"scope=Single", false}, {"scope=", false}, {"filter=all", true}, {"filter=", false},
		{"rooms=", true}, {"rooms=,,", true}, {"rooms=anything", true}, {"rooms=%zz", false}, {"a;b=c", false},
	} {
		_, err := parseOpening("connection_id=c&"+tc.query, "")
		if (err == nil) != tc.ok {
			t.Errorf("%s: %v", tc.query, err)
		}
		if err != nil && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), ":")) {
			t.Errorf("%s: %v names no field", tc.query, err)
		}
	}
}

func TestRoomIDsAreSpeltAsTheClientDid(t *testing.T) {
	var r roomIDs
	id := uuid.New()
	upper := r.add(strings.ToUpper(id.String()))
	if upper != id {
		t.Fatalf("%v is not %v", upper, id)
	}
	lobby := r.add("lobby")
	if r.add("lobby") != lobby || len(r.ids) != 2 {
		t.Errorf("repeats stay: %v", r.ids)
	}
	err := r.respell(fault.New(fault.Forbidden, "Room not found: %s, %s", id, lobby))
	if want := "Room not found: " + strings.ToUpper(id.String()) + ", lobby"; fault.Message(err) != want {
		t.Errorf("got %q, want %q", fault.Message(err), want)
	}
	for _, other := range []string{"{" + id.String() + "}", "urn:uuid:" + id.String(), strings.ReplaceAll(id.String(), "-", "")} {
		if r.add(other) == id {
			t.Errorf("%q is taken for %v", other, id)
		}
	}
}

func TestWantsStream(t *testing.T) {
	for accept, want := range map[string]bool{"text/event-stream": true, "text/html, Text/Event-Stream;q=0.5": true, "*/*": false, "": false,
		"application/json": false} {
		if got := wantsStream(http.Header{"Accept": {accept}}); got != want {
			t.Errorf("%q: %v", accept, got)
		}
	}
}

func TestParsePong(t *testing.T) {
	for _, tc := range []struct {
		text   string
		cursor int64
		ok     bool
	}{
		{`{"type":"pong","cursor":4813}`, 4813, true},
		{` { "cursor" : 7 , "type" : "pong" } `, 7, true},
		{`{"type":"pong"}`, 0, true},
		{`{"type":"pong","cursor":null}`, 0, true},
		{`{"type":"pong","cursor":-1}`, 0, true},
		{`{"type":"pong","cursor":"5"}`, 0, true},
		{`{"type":"pong","cursor":1.5}`, 0, true},
		{`{"type":"pong","cursor":99999999999999999999}`, 0, true},
		{`{"type":"pong","cursor":3,"generation":9}`, 3, true},
		{`{"Type":"pong","cursor":3}`, 0, false},
		{`{"type":"ping"}`, 0, false},
		{`{"type":null}`, 0, false},
		{`[{"type":"pong"}]`, 0, false},
		{`{"type":"pong"`, 0, false},
		{``, 0, false},
	} {
		if cursor, ok := parsePong([]byte(tc.text)); cursor != tc.cursor || ok != tc.ok {
			t.Errorf("%s: %d, %v", tc.text, cursor, ok)
		}
	}
}

func FuzzParseOpening(f *testing.F) {
	f.Add("connection_id=c&scope=all&start_from=3&rooms=a,b&protocol=8&protocol_accepts=1", "")
	f.Add("connection_id=%ff&client=%ff", "12")
	f.Fuzz(func(t *testing.T, query, last string) {
		o, err := parseOpening(query, last)
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatalf("%v is no bad input", err)
			}
			return
		}
		if o.connectionID == "" || len(o.connectionID) > maxConnectionID || o.after < 0 || o.after > maxNumber || o.startHead && o.after != 0 {
			t.Fatalf("%+v", o)
		}
		if last != "" && strconv.FormatInt(o.after, 10) != strings.TrimLeft(last, "0") && o.after != 0 {
			t.Fatalf("Last-Event-ID %q became %d", last, o.after)
		}
		seen := map[uuid.UUID]bool{}
		for _, id := range o.rooms.ids {
			if seen[id] {
				t.Fatal("a room twice")
			}
			seen[id] = true
		}
		if q, _ := url.ParseQuery(query); q.Get("rooms") == "" && len(o.rooms.ids) > 0 {
			t.Fatal("rooms from nowhere")
		}
	})
}

func FuzzParsePong(f *testing.F) {
	f.Add([]byte(`{"type":"pong","cursor":4813}`))
	f.Add([]byte(`{"type":"pong","cursor":-1e9}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if cursor, ok := parsePong(data); cursor < 0 || cursor != 0 && !ok {
			t.Fatalf("%q: %d, %v", data, cursor, ok)
		}
	})
}
