package agent

import (
	"crypto/rand"
	"crypto/sha1"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/rawjson"
)

// EventNamespace is the namespace of event identities (agent protocol D.5).
var EventNamespace = uuid.MustParse("c4d2c84e-2f0a-4b6c-9c5b-1d6f9a1e7c2a")

const (
	// maxEventBatch is how many events of one event_batch are read; the rest is left to the sender (agent protocol D.3).
	maxEventBatch = 5000
	// maxEngineChars and maxTaskIDChars are the limits of agent protocol D.4, in characters.
	maxEngineChars = 40
	maxTaskIDChars = 200
	// maxEventAge and maxEventLead bound a believable occurred_at (agent protocol D.5).
	maxEventAge  = 400 * 24 * time.Hour
	maxEventLead = 60 * time.Second
	// maxRowNameChars bounds the names of workers and queues that events may create rows for: longer ones are data, not
	// names, and would make the rows unusable.
	maxRowNameChars = 255
)

// kindUnknown is how a kind outside the table is stored.
const kindUnknown = "unknown"

// The kinds that the projection looks at.
const (
	kindSent      = "task.sent"
	kindReceived  = "task.received"
	kindStarted   = "task.started"
	kindSucceeded = "task.succeeded"
	kindFailed    = "task.failed"
	kindRetried   = "task.retried"
	kindRevoked   = "task.revoked"
	kindRejected  = "task.rejected"

	kindWorkerOffline = "worker.offline"
)

// knownKinds is the table of agent protocol D.4. The values are the keys again, so that a stored kind never keeps the
// bytes of a frame alive.
var knownKinds = func() map[string]string {
	m := map[string]string{}
	for _, k := range []string{kindSent, kindReceived, kindStarted, kindSucceeded, kindFailed, kindRetried, kindRevoked,
		kindRejected, "worker.online", kindWorkerOffline, "worker.heartbeat", "queue.depth_report", "schedule.run_started",
		"schedule.run_completed", "schedule.created", "schedule.updated", "schedule.deleted", "schedule.snapshot",
		kindUnknown} {
		m[k] = k
	}
	return m
}()

// NewEvent is an event that is ready to be stored.
type NewEvent struct {
	No         int64 // set by InsertEvent; positions are never given twice
	ID         uuid.UUID
	ProjectNo  int64
	AgentNo    int64
	TaskNo     int64 // 0: none
	Engine     string
	TaskID     string
	Kind       string
	OccurredAt time.Time // stored form: whole seconds for events with a task id
	// TimeReplaced tells that OccurredAt is ours: the sender's was unusable, so identity holds without it (agent
	// protocol L35).
	TimeReplaced bool
	Payload      string // JSON object, redacted
}

// ingestEvent is a decoded event: what is stored and what it says of tasks, workers and queues.
type ingestEvent struct {
	NewEvent
	known bool // the kind is one of the table, "unknown" not counted
	task  TaskEvent
	at    time.Time // occurred_at before truncation
	queue string    // "" when absent or unusable
	wrk   string    // data.worker, likewise
}

// eventDecoder turns the events of one peer into rows. It is used by one goroutine; it holds scratch memory.
type eventDecoder struct {
	peer    Peer
	project string // text of the project id, as identities spell it
	now     time.Time
	redact  *Redactor
	scratch []byte
	name    []byte
}

func newEventDecoder(p Peer, now time.Time, r *Redactor) *eventDecoder {
	return &eventDecoder{peer: p, project: p.ProjectID.String(), now: now.UTC().Truncate(time.Microsecond), redact: r}
}

// decode reads one event (agent protocol D.5, steps 1 to 4). ok is false when the event is to be skipped.
func (d *eventDecoder) decode(v rawjson.Value) (ev ingestEvent, ok bool) {
	if v.Kind() != rawjson.Object {
		return ev, false
	}
	var id, kind, engine, taskID, occurred, data rawjson.Value
	for key, m := range v.EachRawMember() { // the last duplicate wins, as everywhere (agent protocol C.3)
		switch string(key) {
		case "id":
			id = m
		case "kind":
			kind = m
		case "engine":
			engine = m
		case "task_id":
			taskID = m
		case "occurred_at":
			occurred = m
		case "data":
			data = m
		}
	}
	if ev.Engine, ok = boundedString(engine, maxEngineChars); !ok || ev.Engine == "" {
		return ev, false
	}
	if !taskID.IsAbsent() {
		if ev.TaskID, ok = boundedString(taskID, maxTaskIDChars); !ok {
			return ev, false
		}
	}
	kindText, _ := kind.Str()
	if kindText == "" {
		return ev, false
	}
	if ev.Kind, ok = knownKinds[kindText]; !ok {
		ev.Kind = kindUnknown
	}
	ev.known = ev.Kind != kindUnknown
	ev.ProjectNo, ev.AgentNo = d.peer.ProjectNo, d.peer.AgentNo
	d.when(&ev, occurred)
	d.identify(&ev, id)
	d.content(&ev, data)
	return ev, true
}

// when settles occurred_at: an unusable time becomes now.
func (d *eventDecoder) when(ev *ingestEvent, v rawjson.Value) {
	text, _ := v.Str()
	at, ok := ParseTime(text)
	if !ok || at.Before(d.now.Add(-maxEventAge)) || at.After(d.now.Add(maxEventLead)) {
		ev.at, ev.OccurredAt, ev.TimeReplaced = d.now, d.now, true
		return
	}
	ev.at, ev.OccurredAt = at, at
}

// identify gives the event its identity (agent protocol D.5 step 4, L35).
func (d *eventDecoder) identify(ev *ingestEvent, id rawjson.Value) {
	var agentID uuid.UUID
	var valid bool
	if text, ok := id.Str(); ok {
		var err error
		agentID, err = uuid.Parse(text)
		valid = err == nil
	}
	b := append(d.name[:0], d.project...)
	switch {
	case ev.TaskID != "" && !(ev.TimeReplaced && valid):
		sec := ev.at.Unix() // floors: never before 1970, step 3 has replaced such times
		ev.OccurredAt = time.Unix(sec, 0).UTC()
		b = append(b, ':')
		b = append(b, ev.TaskID...)
		b = append(b, ':')
		b = append(b, ev.Kind...)
		b = append(b, ':')
		b = appendInt(b, sec)
		ev.ID = nameUUID(b)
	case valid:
		b = append(b, ':')
		b = append(b, agentID.String()...)
		ev.ID = nameUUID(b)
	default:
		_, _ = rand.Read(ev.ID[:]) // never fails: the runtime ends the process instead
		ev.ID[6] = ev.ID[6]&0x0f | 0x40
		ev.ID[8] = ev.ID[8]&0x3f | 0x80
	}
	d.name = b
}

// content redacts the event's data and reads what the projection needs from the redacted form.
func (d *eventDecoder) content(ev *ingestEvent, data rawjson.Value) {
	if data.Kind() != rawjson.Object {
		ev.Payload = "{}"
		ev.task = TaskEvent{Kind: ev.Kind, At: ev.at}
		return
	}
	out, changed := d.redact.Append(d.scratch[:0], data)
	d.scratch = out
	if changed {
		ev.Payload = string(out)
		doc, err := rawjson.Parse(out)
		if err != nil {
			// The redacted form is made from a valid one by replacing whole values: it cannot be malformed. Were it,
			// storing nothing is the safe answer.
			ev.Payload = "{}"
			ev.task = TaskEvent{Kind: ev.Kind, At: ev.at}
			return
		}
		defer doc.Release()
		data = doc.Root()
	} else {
		ev.Payload = string(data.Raw())
	}
	ev.read(data)
}

// read takes from data what the projections need.
func (ev *ingestEvent) read(data rawjson.Value) {
	ev.task = readTaskEvent(ev.Kind, ev.TaskID, ev.at, data)
	ev.queue = rowName(data.Get("queue"))
	ev.wrk = rowName(data.Get("worker"))
}

// rowName returns a string that may name a worker or queue row, "" for everything else.
func rowName(v rawjson.Value) string {
	s, ok := boundedString(v, maxRowNameChars)
	if !ok {
		return ""
	}
	return s
}

// boundedString returns a string of at most max characters.
func boundedString(v rawjson.Value, max int) (string, bool) {
	s, ok := v.Str()
	if !ok || (len(s) > max && utf8.RuneCountInString(s) > max) {
		return "", false
	}
	return s, true
}

// nameUUID is UUIDv5(EventNamespace, name), without the allocations of the general form.
func nameUUID(name []byte) (id uuid.UUID) {
	var stack [512]byte
	b := append(stack[:0], EventNamespace[:]...)
	b = append(b, name...)
	sum := sha1.Sum(b)
	copy(id[:], sum[:])
	id[6] = id[6]&0x0f | 0x50
	id[8] = id[8]&0x3f | 0x80
	return id
}

func appendInt(b []byte, n int64) []byte {
	if n < 0 {
		b = append(b, '-')
		n = -n
	}
	var digits [20]byte
	i := len(digits)
	for {
		i--
		digits[i] = byte('0' + n%10)
		if n /= 10; n == 0 {
			return append(b, digits[i:]...)
		}
	}
}
