package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"signalbox/appliance/rawjson"
)

func readHeartbeatText(t *testing.T, text string) Heartbeat {
	t.Helper()
	doc, err := rawjson.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return readHeartbeat(doc.Root())
}

func jsonString(s string) string { return string(rawjson.AppendString(nil, s)) }

func TestHeartbeatDefaults(t *testing.T) {
	for _, text := range []string{`{}`, `{"buffer_size":-1,"dropped_events":10000001,"last_flush_at":5,"telemetry_loss":[],
		"adapter_health":[]}`, `{"buffer_size":"1","adapter_health":{"celery.queue_depths":"{broken","celery.worker_details":"7",
		"queue_depths":"{\"a\":1}",".queue_depths":"{\"a\":1}","celery.queue_depths2":"{\"a\":1}"}}`, `null`} {
		h := readHeartbeatText(t, text)
		if h.Loss != nil || h.Depths != nil || h.Workers != nil {
			t.Errorf("%s: %+v", text, h)
		}
	}
}

func TestHeartbeatQueueDepths(t *testing.T) {
	h := readHeartbeatText(t, `{"buffer_size":7,"dropped_events":2,"last_flush_at":"2026-01-02T03:04:05Z","adapter_health":{
		"my.engine.queue_depths":`+jsonString(`{"a":3,"b":-1,"c":1.0,"":4,"d":"5","e":0}`)+`}}`)
	if got := fmt.Sprint(h.Depths); got != "[{my.engine a 3} {my.engine e 0}]" {
		t.Errorf("depths %s", got)
	}
	var b strings.Builder
	for i := range maxQueueDepths + 10 {
		fmt.Fprintf(&b, `,"q%d":1`, i)
	}
	h = readHeartbeatText(t, `{"adapter_health":{"e.queue_depths":`+jsonString("{"+b.String()[1:]+"}")+`}}`)
	if len(h.Depths) != maxQueueDepths {
		t.Errorf("%d depths", len(h.Depths))
	}
	full := jsonString("{" + b.String()[1:] + "}")
	b.Reset()
	for i := range 6 {
		fmt.Fprintf(&b, `,"e%d.queue_depths":%s`, i, full)
	}
	h = readHeartbeatText(t, `{"adapter_health":{`+b.String()[1:]+`}}`)
	if len(h.Depths) != maxHeartbeatQueues {
		t.Errorf("%d depths of six engines", len(h.Depths))
	}
	b.Reset()
	for i := range maxHealthKeys {
		fmt.Fprintf(&b, `"k%d":"x",`, i)
	}
	h = readHeartbeatText(t, `{"adapter_health":{`+b.String()+`"e.queue_depths":"{\"a\":1}"}}`)
	if len(h.Depths) != 0 {
		t.Error("a key beyond the 256th was read")
	}
}

func TestHeartbeatWorkerDetails(t *testing.T) {
	details := `{"celery@a":{"stats":{"pid":42,"pool":{"max-concurrency":8,"processes":[1,2]}},"active":[{},{}],
		"active_queues":[{"name":"q1"},"q2",3],"conf":{"timezone":"UTC","broker_url":"amqp://u:p@h","accept_content":["json"],
		"task_time_limit":null,"task_default_queue":"` + strings.Repeat("x", 2000) + `"}},
		"celery@b":{"stats":{"pool":{"processes":[1,2,3]}},"active":-1},"bad":7}`
	h := readHeartbeatText(t, `{"adapter_health":{"celery.worker_details":`+jsonString(details)+`}}`)
	if len(h.Workers) != 2 {
		t.Fatalf("%d workers", len(h.Workers))
	}
	a, b := h.Workers[0], h.Workers[1]
	if a.Engine != "celery" || a.Name != "celery@a" || *a.PID != 42 || *a.Concurrency != 8 || *a.Active != 2 ||
		fmt.Sprint(a.Queues) != "[q1 q2]" || a.Metadata != `{"accept_content":["json"],"task_time_limit":null,"timezone":"UTC"}` {
		t.Errorf("a: %+v", a)
	}
	if b.PID != nil || *b.Concurrency != 3 || b.Active != nil || b.Queues != nil || b.Metadata != "" {
		t.Errorf("b: %+v", b)
	}
}

func TestTelemetryLoss(t *testing.T) {
	h := readHeartbeatText(t, `{"telemetry_loss":{"buffer_id":"b","runtime_id":"r","event_records":3,"other_frames":-1,
		"command_results":9007199254740992,"secret":"x","adapter_events":{"celery":2,"rq":"no"}}}`)
	if h.Loss == nil || h.Loss.BufferID != "b" || h.Loss.RuntimeID != "r" ||
		h.Loss.Payload != `{"buffer_id":"b","runtime_id":"r","event_records":3,"adapter_events":{"celery":2}}` {
		t.Errorf("%+v", h.Loss)
	}
	for _, text := range []string{`{"telemetry_loss":{"buffer_id":"b"}}`, `{"telemetry_loss":{"buffer_id":"","runtime_id":"r"}}`,
		`{"telemetry_loss":{"buffer_id":"` + strings.Repeat("b", 65) + `","runtime_id":"r"}}`} {
		if h := readHeartbeatText(t, text); h.Loss != nil {
			t.Errorf("%s: %+v", text, h.Loss)
		}
	}
}

func TestStatusLimiterCountsPerConnection(t *testing.T) {
	l := statusLimiter{seen: map[statusKey]statusCount{}}
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	a, b := Peer{AgentNo: 1, Session: "a"}, Peer{AgentNo: 1, Session: "b"}
	for i := range maxStatusPerMinute {
		if !l.allow(a, now) {
			t.Fatalf("frame %d refused", i+1)
		}
	}
	if l.allow(a, now.Add(59*time.Second)) {
		t.Error("frame 13 of a minute kept")
	}
	if !l.allow(b, now) {
		t.Error("another connection refused")
	}
	if !l.allow(a, now.Add(time.Minute)) {
		t.Error("the next minute refused")
	}
	for i := range maxStatusConnections + 10 {
		l.allow(Peer{AgentNo: int64(i + 10)}, now)
	}
	if len(l.seen) > maxStatusConnections {
		t.Errorf("%d connections remembered", len(l.seen))
	}
}
