package wire

import (
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"signalbox/appliance/rawjson"
)

// Hello is what an agent says about itself when it connects (agent protocol B.3). Nothing of it is signed; the bearer
// token of the connection is what makes it believable. It owns its memory.
type Hello struct {
	ID              string // frame id
	ProtocolVersion string // compare with the constant of that name; another one is a close code of its own
	AgentVersion    string
	Framework       string
	Engines         []string
	Schedulers      []string
	Capabilities    map[string][]string // adapter to tokens, never nil
	Host            []byte              // the host object in canonical JSON, "{}" when absent
	HostName        string              // host.name, "" when absent or not a string
	WorkerID        *string             // nil for the legacy slot
	WorkerRole      *string
	WorkerPID       *int64
	WorkerStartedAt *time.Time
	RuntimeFeatures []string
}

// The limits of agent protocol B.3. Text is counted in characters.
const (
	maxVersionLen = 40
	maxHelloList  = 64
	maxWorkerID   = 128
	maxWorkerRole = 32
	maxWorkerPID  = 1<<31 - 1
)

// ParseHello reads the first message of a WebSocket connection: a frame of type hello and version 2 with a valid payload.
// Types are strict, unknown fields are ignored, ProtocolVersion is not judged. Every error is ErrMalformed or
// ErrVersionSkew and names the field and the rule; all of them refuse the connection alike. b may be reused afterwards.
func ParseHello(b []byte) (*Hello, error) {
	f, err := ParseFrame(b)
	if err != nil {
		return nil, err
	}
	defer f.Release()
	if f.Type != TypeHello {
		return nil, malformed("the first frame must be a hello, got %s", f.Type)
	}
	root := f.Doc.Root()
	if err := checkVersion(root.Get("v")); err != nil {
		return nil, err
	}
	if n := utf8.RuneCountInString(f.ID); n < 1 || n > MaxIDLen {
		return nil, malformed("id must be a string of 1 to %d characters", MaxIDLen)
	}
	if ts := root.Get("ts"); !ts.IsAbsent() {
		if _, ok := ts.Time(); !ok {
			return nil, malformed("ts must be null or a timestamp with an offset")
		}
	}
	if f.Payload.Kind() != rawjson.Object {
		return nil, malformed("payload must be an object, got %s", f.Payload.Kind())
	}
	h := &Hello{ID: f.ID}
	if err := h.read(f.Payload); err != nil {
		return nil, err
	}
	return h, nil
}

// read fills everything but ID.
func (h *Hello) read(p rawjson.Value) error {
	r := reader{obj: p}
	h.ProtocolVersion = r.required("protocol_version", maxVersionLen)
	h.AgentVersion = r.required("agent_version", maxVersionLen)
	h.Framework = r.required("framework", maxVersionLen)
	h.Engines = r.list("engines", maxHelloList)
	h.Schedulers = r.list("schedulers", maxHelloList)
	h.Capabilities = r.capabilities("capabilities")
	h.Host, h.HostName = r.host("host")
	h.WorkerID = r.optional("worker_id", maxWorkerID)
	h.WorkerRole = r.optional("worker_role", maxWorkerRole)
	h.WorkerPID = r.optionalInt("worker_pid", 0, maxWorkerPID)
	h.WorkerStartedAt = r.optionalTime("worker_started_at")
	h.RuntimeFeatures = r.list("runtime_features", maxHelloList)
	return r.err
}

// reader reads members of a payload object strictly and keeps the first failure.
type reader struct {
	obj rawjson.Value
	err error
}

func (r *reader) fail(field, format string, args ...any) {
	if r.err == nil {
		r.err = malformed("payload.%s: %s", field, fmt.Sprintf(format, args...))
	}
}

func (r *reader) text(field string, v rawjson.Value, limit int) string {
	s, ok := v.Str()
	if !ok {
		r.fail(field, "must be a string, got %s", v.Kind())
	} else if utf8.RuneCountInString(s) > limit {
		r.fail(field, "must be at most %d characters", limit)
	}
	return s
}

func (r *reader) required(field string, limit int) string {
	return r.text(field, r.obj.Get(field), limit)
}

func (r *reader) optional(field string, limit int) *string {
	v := r.obj.Get(field)
	if v.IsAbsent() {
		return nil
	}
	s := r.text(field, v, limit)
	return &s
}

func (r *reader) optionalInt(field string, low, high int64) *int64 {
	v := r.obj.Get(field)
	if v.IsAbsent() {
		return nil
	}
	n, ok := v.Int64()
	if !ok || n < low || n > high {
		r.fail(field, "must be an integer in %d..%d or null", low, high)
	}
	return &n
}

func (r *reader) optionalTime(field string) *time.Time {
	v := r.obj.Get(field)
	if v.IsAbsent() {
		return nil
	}
	t, ok := v.Time()
	if !ok {
		r.fail(field, "must be a timestamp with an offset or null")
	}
	return &t
}

// list reads a list of strings, empty when the member is missing. The result is never nil.
func (r *reader) list(field string, limit int) []string {
	v := r.obj.Get(field)
	if !v.Exists() {
		return []string{}
	}
	return r.strings(field, v, limit)
}

func (r *reader) strings(field string, v rawjson.Value, limit int) []string {
	out := []string{}
	switch {
	case v.Kind() != rawjson.Array:
		r.fail(field, "must be a list of strings, got %s", v.Kind())
		return out
	case v.Len() > limit:
		r.fail(field, "must have at most %d entries", limit)
		return out
	}
	for i, e := range v.Each() {
		s, ok := e.Str()
		if !ok {
			r.fail(field, "entry %d must be a string, got %s", i, e.Kind())
			return out
		}
		out = append(out, s)
	}
	return out
}

func (r *reader) capabilities(field string) map[string][]string {
	out := map[string][]string{}
	v := r.obj.Get(field)
	if !v.Exists() {
		return out
	}
	if v.Kind() != rawjson.Object {
		r.fail(field, "must be an object, got %s", v.Kind())
		return out
	}
	for key, tokens := range v.EachMember() {
		// The protocol sets no limit on the tokens; the frame size does.
		out[string(key)] = r.strings(field+" of an adapter", tokens, math.MaxInt)
	}
	return out
}

func (r *reader) host(field string) (canonical []byte, name string) {
	v := r.obj.Get(field)
	if !v.Exists() {
		return []byte("{}"), ""
	}
	if v.Kind() != rawjson.Object {
		r.fail(field, "must be an object, got %s", v.Kind())
		return []byte("{}"), ""
	}
	name, _ = v.Get("name").Str()
	return rawjson.AppendCanonical(nil, v), name
}
