package agent

import (
	"strconv"
	"strings"

	"signalbox/appliance/rawjson"
)

const (
	// maxHealthKeys is how many keys of adapter_health are read (agent protocol D.3).
	maxHealthKeys = 256
	// maxQueueDepths is how many entries of one queue_depths are read.
	maxQueueDepths = 1024
	// maxWorkerDetails bounds the worker rows that one heartbeat may touch.
	maxWorkerDetails = 1024
	// maxWorkerQueues bounds the queue names kept for one worker.
	maxWorkerQueues = 256
	// maxConfValue is the longest conf value kept, in bytes.
	maxConfValue = 1024
	// maxHeartbeatQueues bounds the queue rows that one heartbeat may touch, whatever the number of its engines.
	maxHeartbeatQueues = 4 * maxQueueDepths
)

// workerConfKeys is the allowlist of agent protocol D.3: what of a worker's conf may be kept as metadata. Other keys may
// hold broker URLs and secrets.
var workerConfKeys = []string{"task_serializer", "result_serializer", "accept_content", "task_default_queue",
	"worker_concurrency", "worker_prefetch_multiplier", "worker_max_tasks_per_child", "worker_max_memory_per_child",
	"task_acks_late", "task_reject_on_worker_lost", "task_time_limit", "task_soft_time_limit", "broker_pool_limit",
	"broker_heartbeat", "timezone", "enable_utc"}

// Heartbeat is what a heartbeat frame says of others than its sender's buffer, as far as it could be read (agent protocol
// D.3). Unreadable parts are left out; a heartbeat is never refused. The figures of the buffer itself come again in
// agent_status, whose history is kept.
type Heartbeat struct {
	Loss    *TelemetryLoss
	Depths  []QueueDepth
	Workers []WorkerDetails
}

// QueueDepth is one gauge of `<engine>.queue_depths`.
type QueueDepth struct {
	Engine string
	Queue  string
	Depth  int64
}

// WorkerDetails is one entry of `<engine>.worker_details`.
type WorkerDetails struct {
	Engine      string
	Name        string
	PID         *int64
	Concurrency *int64
	Active      *int64
	Queues      []string // nil: not reported
	Metadata    string   // JSON object of the allowed conf keys; "" when conf was not reported
}

// TelemetryLoss is what an agent says it lost of one buffer, the figures since its runtime started (agent protocol D.3).
type TelemetryLoss struct {
	BufferID  string
	RuntimeID string
	Payload   string // JSON object of the fields that were in range
}

// readHeartbeat reads the payload of a heartbeat frame.
func readHeartbeat(p rawjson.Value) Heartbeat {
	h := Heartbeat{Loss: readTelemetryLoss(p.Get("telemetry_loss"))}
	n := 0
	for key, v := range p.Get("adapter_health").EachMember() {
		if n++; n > maxHealthKeys {
			break
		}
		dot := strings.LastIndexByte(string(key), '.')
		if dot <= 0 || v.Kind() != rawjson.String {
			continue
		}
		engine, what := string(key[:dot]), string(key[dot+1:])
		if cutChars(engine, maxEngineChars) != engine {
			continue
		}
		switch what {
		case "queue_depths":
			inner(v, func(doc rawjson.Value) { h.Depths = readQueueDepths(h.Depths, engine, doc) })
		case "worker_details":
			inner(v, func(doc rawjson.Value) { h.Workers = readWorkerDetails(h.Workers, engine, doc) })
		}
	}
	return h
}

// inner parses the JSON text inside a string and hands it to read; unparseable text is ignored.
func inner(v rawjson.Value, read func(rawjson.Value)) {
	text, _ := v.AppendStr(nil)
	doc, err := rawjson.Parse(text)
	if err != nil {
		return
	}
	defer doc.Release()
	read(doc.Root())
}

func readQueueDepths(out []QueueDepth, engine string, doc rawjson.Value) []QueueDepth {
	n := 0
	for key, v := range doc.EachMember() {
		if n++; n > maxQueueDepths || len(out) >= maxHeartbeatQueues {
			break
		}
		name := string(key)
		depth, ok := v.Int64()
		if !ok || depth < 0 || depth > maxExactInt || name == "" || cutChars(name, maxRowNameChars) != name {
			continue
		}
		out = append(out, QueueDepth{Engine: engine, Queue: name, Depth: depth})
	}
	return out
}

func readWorkerDetails(out []WorkerDetails, engine string, doc rawjson.Value) []WorkerDetails {
	for key, v := range doc.EachMember() {
		if len(out) >= maxWorkerDetails {
			break
		}
		name := string(key)
		if v.Kind() != rawjson.Object || name == "" || cutChars(name, maxRowNameChars) != name {
			continue
		}
		w := WorkerDetails{Engine: engine, Name: name, Queues: readQueueNames(v.Get("active_queues"))}
		stats := v.Get("stats")
		pool := stats.Get("pool")
		w.PID = optionalInt(stats.Get("pid"))
		w.Concurrency = optionalInt(pool.Get("max-concurrency"))
		if processes := pool.Get("processes"); w.Concurrency == nil && processes.Kind() == rawjson.Array {
			count := int64(processes.Len())
			w.Concurrency = &count
		}
		switch active := v.Get("active"); active.Kind() {
		case rawjson.Array:
			count := int64(active.Len())
			w.Active = &count
		default:
			w.Active = optionalInt(active)
		}
		w.Metadata = readWorkerConf(v.Get("conf"))
		out = append(out, w)
	}
	return out
}

// readQueueNames reads a list of queue names, or of objects with a name.
func readQueueNames(v rawjson.Value) []string {
	if v.Kind() != rawjson.Array {
		return nil
	}
	names := []string{}
	for i, q := range v.Each() {
		if i >= maxWorkerQueues {
			break
		}
		if q.Kind() == rawjson.Object {
			q = q.Get("name")
		}
		if name := rowName(q); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// readWorkerConf builds the metadata object from the allowed keys, values as they arrived.
func readWorkerConf(conf rawjson.Value) string {
	if conf.Kind() != rawjson.Object {
		return ""
	}
	b := []byte{'{'}
	for _, key := range workerConfKeys {
		v := conf.Get(key)
		if !v.Exists() || len(v.Raw()) > maxConfValue {
			continue
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = rawjson.AppendString(b, key)
		b = append(b, ':')
		b = append(b, v.Raw()...)
	}
	return string(append(b, '}'))
}

// lossCounts are the counters of telemetry_loss.
var lossCounts = []string{"capacity_evicted_frames", "content_rejected_frames", "event_records", "command_results",
	"other_frames", "unclassified_frames"}

const (
	maxLossName     = 64 // characters of buffer_id and runtime_id
	maxLossAdapters = 32 // keys of adapter_events
	maxLossKeyBytes = 256
)

// readTelemetryLoss reads a telemetry_loss object; nil when it has no usable identity.
func readTelemetryLoss(v rawjson.Value) *TelemetryLoss {
	buffer, ok := boundedString(v.Get("buffer_id"), maxLossName)
	runtime, ok2 := boundedString(v.Get("runtime_id"), maxLossName)
	if !ok || !ok2 || buffer == "" || runtime == "" {
		return nil
	}
	b := rawjson.AppendString([]byte(`{"buffer_id":`), buffer)
	b = rawjson.AppendString(append(b, `,"runtime_id":`...), runtime)
	for _, key := range lossCounts {
		if n := optionalInt(v.Get(key)); n != nil {
			b = rawjson.AppendString(append(b, ','), key)
			b = strconv.AppendInt(append(b, ':'), *n, 10)
		}
	}
	b = append(b, `,"adapter_events":{`...)
	n := 0
	for key, count := range v.Get("adapter_events").EachMember() {
		c := optionalInt(count)
		if c == nil || len(key) > maxLossKeyBytes {
			continue
		}
		if n++; n > maxLossAdapters {
			break
		}
		if n > 1 {
			b = append(b, ',')
		}
		b = rawjson.AppendString(b, string(key))
		b = strconv.AppendInt(append(b, ':'), *c, 10)
	}
	return &TelemetryLoss{BufferID: buffer, RuntimeID: runtime, Payload: string(append(b, "}}"...))}
}

// optionalInt returns an integer in 0..2^53-1, nil for everything else.
func optionalInt(v rawjson.Value) *int64 {
	n, ok := v.Int64()
	if !ok || n < 0 || n > maxExactInt {
		return nil
	}
	return &n
}
