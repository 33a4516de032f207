package wire

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

const fullHello = `{"v":2,"id":"hello_0123456789abcdef","ts":null,"type":"hello",
 "payload":{"protocol_version":"2","agent_version":"1.13.0","framework":"bare",
  "engines":["celery"],"schedulers":["celery-beat"],
  "capabilities":{"celery":["retry_task","cancel_task","retry_by_reference_v1"]},
  "host":{"name":"box-1"},
  "worker_id":"bare-4242-1767323045000","worker_role":"task","worker_pid":4242,
  "worker_started_at":"2026-01-02T03:04:05.000001Z",
  "runtime_features":["retry_by_reference","external_schedule_protocol_v1"]}}`

func TestParseHello(t *testing.T) {
	h, err := ParseHello([]byte(fullHello))
	if err != nil {
		t.Fatal(err)
	}
	worker, role, pid := "bare-4242-1767323045000", "task", int64(4242)
	started := time.Date(2026, 1, 2, 3, 4, 5, 1000, time.UTC)
	want := &Hello{ID: "hello_0123456789abcdef", ProtocolVersion: "2", AgentVersion: "1.13.0", Framework: "bare",
		Engines: []string{"celery"}, Schedulers: []string{"celery-beat"},
		Capabilities: map[string][]string{"celery": {"retry_task", "cancel_task", "retry_by_reference_v1"}},
		Host:         []byte(`{"name":"box-1"}`), HostName: "box-1", WorkerID: &worker, WorkerRole: &role, WorkerPID: &pid,
		WorkerStartedAt: &started, RuntimeFeatures: []string{"retry_by_reference", "external_schedule_protocol_v1"}}
	if !reflect.DeepEqual(h, want) {
		t.Errorf("got %+v", h)
	}
}

func TestParseHelloDefaults(t *testing.T) {
	h, err := ParseHello([]byte(`{"v":2,"id":"h","type":"hello","future":1,
		"payload":{"protocol_version":"1","agent_version":"","framework":"bare","worker_id":null,"worker_pid":null,"worker_role":null,"worker_started_at":null,"more":[]}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := &Hello{ID: "h", ProtocolVersion: "1", Framework: "bare", Engines: []string{}, Schedulers: []string{},
		Capabilities: map[string][]string{}, Host: []byte("{}"), RuntimeFeatures: []string{}}
	if !reflect.DeepEqual(h, want) {
		t.Errorf("got %+v", h)
	}
}

func TestParseHelloRefuses(t *testing.T) {
	list := func(n int) string { return `["` + strings.Repeat(`a","`, n-1) + `a"]` }
	text := func(n int) string { return `"` + strings.Repeat("é", n) + `"` }
	for _, c := range []struct{ field, value, says string }{
		{"protocol_version", `2`, "payload.protocol_version: must be a string, got integer"},
		{"protocol_version", ``, "payload.protocol_version: must be a string, got missing"},
		{"protocol_version", text(41), "payload.protocol_version: must be at most 40 characters"},
		{"agent_version", `null`, "payload.agent_version: must be a string, got null"},
		{"framework", `[]`, "payload.framework: must be a string, got array"},
		{"engines", `null`, "payload.engines: must be a list of strings, got null"},
		{"engines", `"celery"`, "payload.engines: must be a list of strings, got string"},
		{"engines", `["a",1]`, "payload.engines: entry 1 must be a string, got integer"},
		{"schedulers", list(65), "payload.schedulers: must have at most 64 entries"},
		{"runtime_features", list(65), "payload.runtime_features: must have at most 64 entries"},
		{"capabilities", `[]`, "payload.capabilities: must be an object, got array"},
		{"capabilities", `{"celery":"retry"}`, "payload.capabilities of an adapter: must be a list of strings, got string"},
		{"host", `"box"`, "payload.host: must be an object, got string"},
		{"worker_id", `5`, "payload.worker_id: must be a string, got integer"},
		{"worker_id", text(129), "payload.worker_id: must be at most 128 characters"},
		{"worker_role", text(33), "payload.worker_role: must be at most 32 characters"},
		{"worker_pid", `1.0`, "payload.worker_pid: must be an integer in 0..2147483647 or null"},
		{"worker_pid", `-1`, "payload.worker_pid: must be an integer"},
		{"worker_pid", `2147483648`, "payload.worker_pid: must be an integer"},
		{"worker_pid", `"1"`, "payload.worker_pid: must be an integer"},
		{"worker_pid", `true`, "payload.worker_pid: must be an integer"},
		{"worker_started_at", `"2026-01-02T03:04:05"`, "payload.worker_started_at: must be a timestamp with an offset or null"},
		{"worker_started_at", `1767323045`, "payload.worker_started_at: must be a timestamp"},
	} {
		_, err := ParseHello(helloWith(t, c.field, c.value))
		if !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s = %.30s: got %v, want %q", c.field, c.value, err, c.says)
		}
	}
	for _, c := range []struct {
		in, says string
		class    error
	}{
		{`{`, "offset 1", ErrMalformed},
		{`{"v":2,"type":"heartbeat","payload":{}}`, "must be a hello, got heartbeat", ErrMalformed},
		{strings.Replace(fullHello, `"v":2`, `"v":1`, 1), "v must be 2", ErrVersionSkew},
		{strings.Replace(fullHello, `"v":2`, `"v":"2"`, 1), "v must be an integer", ErrMalformed},
		{strings.Replace(fullHello, `"id":"hello_0123456789abcdef"`, `"id":""`, 1), "id must be a string of 1 to 64", ErrMalformed},
		{strings.Replace(fullHello, `"hello_0123456789abcdef"`, text(65), 1), "id must be a string of 1 to 64", ErrMalformed},
		{strings.Replace(fullHello, `"ts":null`, `"ts":"now"`, 1), "ts must be null or", ErrMalformed},
		{`{"v":2,"id":"h","type":"hello"}`, "payload must be an object, got missing", ErrMalformed},
	} {
		if _, err := ParseHello([]byte(c.in)); !errors.Is(err, c.class) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%.60s: got %v, want %q", c.in, err, c.says)
		}
	}
}

func TestParseHelloAcceptsTheLimits(t *testing.T) {
	for field, value := range map[string]string{
		"framework":   `"` + strings.Repeat("é", 40) + `"`,
		"worker_id":   `"` + strings.Repeat("w", 128) + `"`,
		"worker_role": `"` + strings.Repeat("r", 32) + `"`,
		"worker_pid":  "2147483647",
		"engines":     `["` + strings.Repeat(`a","`, 63) + `a"]`,
	} {
		if _, err := ParseHello(helloWith(t, field, value)); err != nil {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// helloWith is fullHello with one payload member replaced, or removed when value is empty.
func helloWith(t *testing.T, field, value string) []byte {
	t.Helper()
	var frame map[string]json.RawMessage
	var payload map[string]json.RawMessage
	if err := json.Unmarshal([]byte(fullHello), &frame); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(frame["payload"], &payload); err != nil {
		t.Fatal(err)
	}
	payload[field] = json.RawMessage(value)
	if value == "" {
		delete(payload, field)
	}
	var err error
	if frame["payload"], err = json.Marshal(payload); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(frame)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
