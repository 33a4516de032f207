package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/rawjson"
)

// vectorPeer is the project of agent protocol C.9.
var vectorPeer = Peer{ProjectNo: 1, ProjectID: uuid.MustParse("3f2b8c1e-6a4d-4e7f-9b10-2c5d7e8f9a01"), AgentNo: 1}

func newTestRedactor(t testing.TB, extra ...string) *Redactor {
	t.Helper()
	r, err := NewRedactor(extra)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func decodeText(t testing.TB, now time.Time, text string) (ingestEvent, bool) {
	t.Helper()
	doc, err := rawjson.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return newEventDecoder(vectorPeer, now, newTestRedactor(t)).decode(doc.Root())
}

func TestEventIdentityVectors(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 10, 0, time.UTC)
	for _, c := range []struct{ name, event, id, at string }{
		{"task", `{"kind":"task.succeeded","engine":"celery","task_id":"t-1","occurred_at":"2026-01-02T03:04:05.25Z"}`,
			"4355ffe0-7951-5160-b8c5-01ff040bd1b0", "2026-01-02T03:04:05Z"},
		{"task, another agent id and offset", `{"id":"11111111-1111-4111-8111-111111111111","kind":"task.succeeded",
			"engine":"rq","task_id":"t-1","occurred_at":"2026-01-02T04:04:05.999999+01:00"}`,
			"4355ffe0-7951-5160-b8c5-01ff040bd1b0", "2026-01-02T03:04:05Z"},
		{"no task", `{"id":"0b7f3c52-8f0e-4a43-9a38-5b1d2f3c4d5e","kind":"worker.online","engine":"celery",
			"occurred_at":"2026-01-02T03:04:05.25Z"}`, "6a794bd0-750a-5bfa-81f5-2979955cf994", "2026-01-02T03:04:05.25Z"},
		{"no task, id in capitals", `{"id":"0B7F3C52-8F0E-4A43-9A38-5B1D2F3C4D5E","kind":"worker.online","engine":"celery",
			"task_id":"","occurred_at":"2026-01-02T03:04:05.25Z"}`, "6a794bd0-750a-5bfa-81f5-2979955cf994", "2026-01-02T03:04:05.25Z"},
		{"time replaced: the agent's id counts", `{"id":"0b7f3c52-8f0e-4a43-9a38-5b1d2f3c4d5e","kind":"task.sent",
			"engine":"celery","task_id":"t-1","occurred_at":"soon"}`, "6a794bd0-750a-5bfa-81f5-2979955cf994", "2026-01-02T03:04:10Z"},
	} {
		ev, ok := decodeText(t, now, c.event)
		if !ok {
			t.Errorf("%s: skipped", c.name)
			continue
		}
		if ev.ID.String() != c.id {
			t.Errorf("%s: id %s, want %s", c.name, ev.ID, c.id)
		}
		if got := ev.OccurredAt.Format(time.RFC3339Nano); got != c.at {
			t.Errorf("%s: occurred_at %s, want %s", c.name, got, c.at)
		}
	}
}

func TestEventIdentityAgreesWithTheGeneralForm(t *testing.T) {
	for _, name := range []string{"", "x", strings.Repeat("ü", 400)} {
		if got, want := nameUUID([]byte(name)), uuid.NewSHA1(EventNamespace, []byte(name)); got != want {
			t.Errorf("%.10q: %s, want %s", name, got, want)
		}
	}
}

func TestEventWithoutIdentityIsRandom(t *testing.T) {
	const text = `{"id":"not a uuid","kind":"worker.online","engine":"celery","occurred_at":"2026-01-02T03:04:05Z"}`
	now := time.Date(2026, 1, 2, 3, 4, 10, 0, time.UTC)
	a, _ := decodeText(t, now, text)
	b, _ := decodeText(t, now, text)
	if a.ID == b.ID || a.ID.Version() != 4 || a.ID.Variant() != uuid.RFC4122 {
		t.Errorf("ids %s and %s", a.ID, b.ID)
	}
}

func TestEventTimeRules(t *testing.T) {
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name, at string
		replaced bool
	}{
		{"now", `"2026-06-01T12:00:00Z"`, false},
		{"60 s ahead", `"2026-06-01T12:01:00Z"`, false},
		{"more than 60 s ahead", `"2026-06-01T12:01:00.000001Z"`, true},
		{"400 days old", `"2025-04-27T12:00:00Z"`, false},
		{"older than 400 days", `"2025-04-27T11:59:59.999999Z"`, true},
		{"no time", `""`, true},
		{"a number", `1767323045`, true},
		{"null", `null`, true},
	} {
		ev, ok := decodeText(t, now, `{"kind":"worker.online","engine":"e","occurred_at":`+c.at+`}`)
		if !ok || ev.TimeReplaced != c.replaced {
			t.Errorf("%s: replaced %v, want %v", c.name, ev.TimeReplaced, c.replaced)
		}
		if c.replaced && !ev.OccurredAt.Equal(now) {
			t.Errorf("%s: occurred_at %s, want now", c.name, ev.OccurredAt)
		}
	}
}

func TestEventSkipRules(t *testing.T) {
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	long := func(n int) string { return `"` + strings.Repeat("ö", n) + `"` }
	for _, c := range []struct {
		name, event string
		ok          bool
		kind        string
	}{
		{"whole", `{"kind":"task.sent","engine":"e","task_id":"t"}`, true, "task.sent"},
		{"unknown kind", `{"kind":"task.exploded","engine":"e"}`, true, "unknown"},
		{"engine of 40", `{"kind":"task.sent","engine":` + long(40) + `}`, true, "task.sent"},
		{"engine of 41", `{"kind":"task.sent","engine":` + long(41) + `}`, false, ""},
		{"no engine", `{"kind":"task.sent"}`, false, ""},
		{"empty engine", `{"kind":"task.sent","engine":""}`, false, ""},
		{"engine not a string", `{"kind":"task.sent","engine":7}`, false, ""},
		{"empty kind", `{"kind":"","engine":"e"}`, false, ""},
		{"no kind", `{"engine":"e"}`, false, ""},
		{"task id of 200", `{"kind":"task.sent","engine":"e","task_id":` + long(200) + `}`, true, "task.sent"},
		{"task id of 201", `{"kind":"task.sent","engine":"e","task_id":` + long(201) + `}`, false, ""},
		{"task id not a string", `{"kind":"task.sent","engine":"e","task_id":5}`, false, ""},
		{"task id null", `{"kind":"task.sent","engine":"e","task_id":null}`, true, "task.sent"},
		{"data not an object", `{"kind":"task.sent","engine":"e","data":[1]}`, true, "task.sent"},
		{"not an object", `["kind"]`, false, ""},
		{"last duplicate counts", `{"kind":"","kind":"task.sent","engine":"e"}`, true, "task.sent"},
	} {
		ev, ok := decodeText(t, now, c.event)
		if ok != c.ok || (ok && ev.Kind != c.kind) {
			t.Errorf("%s: %v %q, want %v %q", c.name, ok, ev.Kind, c.ok, c.kind)
		}
	}
}

func TestParseTime(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"},
		{"2026-01-02t03:04:05z", "2026-01-02T03:04:05Z"},
		{"2026-01-02 03:04:05", "2026-01-02T03:04:05Z"},
		{"2026-01-02T03:04:05.123456789Z", "2026-01-02T03:04:05.123456Z"},
		{"2026-01-02T03:04:05.1", "2026-01-02T03:04:05.1Z"},
		{"2026-01-02T03:04:05+05:30", "2026-01-01T21:34:05Z"},
		{"2026-01-02T03:04:05-0530", "2026-01-02T08:34:05Z"},
		{"2026-01-02T03:04:05-05", "2026-01-02T08:04:05Z"},
		{"2026-01-02T03:04", "2026-01-02T03:04:00Z"},
		{"20260102T030405Z", "2026-01-02T03:04:05Z"},
		{"2026-01-02", "2026-01-02T00:00:00Z"},
		{"2024-02-29T00:00:00Z", "2024-02-29T00:00:00Z"},
		{"2025-02-29T00:00:00Z", ""},
		{"2026-13-02T03:04:05Z", ""},
		{"2026-01-32T03:04:05Z", ""},
		{"2026-01-02T24:00:00Z", ""},
		{"2026-01-02T03:04:60Z", ""},
		{"2026-01-02T03:04:05.Z", ""},
		{"2026-01-02T03:04:05Zx", ""},
		{"2026-01-02T03:04:05+99:00", ""},
		{"2026-01-02T", ""},
		{"0000-01-02", ""},
		{"", ""},
		{"now", ""},
	} {
		got, ok := ParseTime(c.in)
		text := ""
		if ok {
			text = got.Format(time.RFC3339Nano)
		}
		if text != c.want {
			t.Errorf("%q: %q, want %q", c.in, text, c.want)
		}
	}
}

func TestOnlyTheFirst5000EventsAreRead(t *testing.T) {
	const one = `{"kind":"task.sent","engine":"e"},`
	doc, err := rawjson.Parse([]byte(`{"events":[` + strings.Repeat(one, maxEventBatch) + one[:len(one)-1] + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	r := &Router{redact: newTestRedactor(t), obs: noObserver{}}
	j := r.prepare(newEventDecoder(vectorPeer, time.Now(), r.redact), vectorPeer, &Frame{Type: FrameEventBatch, Payload: doc.Root()})
	if j.out.Received != 5001 || len(j.events) != 5000 || j.out.Verdict != Durable {
		t.Errorf("received %d, read %d, verdict %d", j.out.Received, len(j.events), j.out.Verdict)
	}
}

// FuzzEventBatch feeds any bytes to the whole reading of an event_batch: it must not panic, and what it lets through
// must keep the rules that the database relies on.
func FuzzEventBatch(f *testing.F) {
	f.Add([]byte(`{"events":[{"kind":"task.sent","engine":"e","task_id":"t","occurred_at":"2026-01-02T03:04:05Z","data":{"a":1}}]}`))
	f.Add([]byte(`{"events":[{"kind":"x","engine":"e","data":{"password":{"a":[1]},"kwargs":{"\u0074oken":1}}},null,3]}`))
	f.Add([]byte(`{"events":null}`))
	r := newTestRedactor(f)
	router := &Router{redact: r, obs: noObserver{}, status: statusLimiter{seen: map[statusKey]statusCount{}}}
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, b []byte) {
		doc, err := rawjson.Parse(b)
		if err != nil {
			return
		}
		dec := newEventDecoder(vectorPeer, now, r)
		for _, typ := range []string{FrameEventBatch, FrameHeartbeat, FrameAgentStatus} {
			j := router.prepare(dec, vectorPeer, &Frame{Type: typ, Payload: doc.Root()})
			for i := range j.events {
				ev := &j.events[i]
				if !rawjson.Valid([]byte(ev.Payload)) || ev.Payload[0] != '{' {
					t.Errorf("payload %q is not an object", ev.Payload)
				}
				if ev.Engine == "" || knownKinds[ev.Kind] == "" || ev.ID == uuid.Nil {
					t.Errorf("event %+v", ev.NewEvent)
				}
				if ev.OccurredAt.After(now.Add(maxEventLead)) || ev.OccurredAt.Before(now.Add(-maxEventAge-time.Second)) {
					t.Errorf("occurred_at %s", ev.OccurredAt)
				}
			}
			for _, w := range j.heartbeat.Workers {
				if w.Metadata != "" && !rawjson.Valid([]byte(w.Metadata)) {
					t.Errorf("metadata %q", w.Metadata)
				}
			}
			if j.loss != nil && !rawjson.Valid([]byte(j.loss.Payload)) {
				t.Errorf("loss %q", j.loss.Payload)
			}
		}
	})
}
