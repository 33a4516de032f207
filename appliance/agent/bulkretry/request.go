package bulkretry

import (
	"crypto/sha256"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

// MaxTasks is the most tasks one bulk retry takes (agent protocol E.9), DefaultMax what it takes when nothing is said.
const (
	MaxTasks   = 10000
	DefaultMax = 1000
)

// Filter chooses tasks. Zero fields do not filter.
type Filter struct {
	TaskIDs []string // whole ids inside their engines
	Engine  string
	State   string
	Queue   string
	Name    string
	Since   time.Time // first heard of at or after
	Until   time.Time // first heard of before; in a request the zero time is the moment of the start
}

// Request asks for a bulk retry.
type Request struct {
	ProjectNo      int64
	ProjectID      uuid.UUID
	AgentID        uuid.UUID // the nil UUID: any that can
	Filter         Filter
	RejectedKeys   []string // keys of the filter that were dropped
	Max            int
	IdempotencyKey *string
	// ConfirmCount is the number of tasks that the caller means to retry; nil says nothing.
	ConfirmCount *int
	DryRun       bool

	until time.Time // Filter.Until, or the moment that stands for it
}

// ParseRequest reads the body of POST /bulk-retry-requests: {filter, max?, agent_id?, idempotency_key?, dry_run?,
// confirm_count?}. Keys of the filter that are not accepted are dropped and noted. Invalid names the field and the rule.
func ParseRequest(body []byte) (r Request, err error) {
	doc, err := rawjson.Parse(body)
	if err != nil {
		return r, fault.Wrap(fault.Invalid, err, "body: must be a JSON object").With("field", "body")
	}
	defer doc.Release()
	root := doc.Root()
	if root.Kind() != rawjson.Object {
		return r, fault.Field("body", "must be a JSON object")
	}
	r.Max = DefaultMax
	for key, v := range root.EachMember() {
		if err := r.member(string(key), v); err != nil {
			return r, err
		}
	}
	if root.Get("filter").IsAbsent() {
		return r, fault.Field("filter", "is required")
	}
	return r, nil
}

func (r *Request) member(name string, v rawjson.Value) error {
	switch name {
	case "filter":
		return r.filter(v)
	case "max":
		return intMember(name, v, 1, MaxTasks, func(n int) { r.Max = n })
	case "confirm_count":
		return intMember(name, v, 0, MaxTasks, func(n int) { r.ConfirmCount = &n })
	case "agent_id":
		if v.IsNull() {
			return nil
		}
		text, _ := v.Str()
		id, err := uuid.Parse(text)
		if err != nil {
			return fault.Field(name, "must be a UUID")
		}
		r.AgentID = id
	case "idempotency_key":
		if v.IsNull() {
			return nil
		}
		key, ok := v.Str()
		if n := utf8.RuneCountInString(key); !ok || n < 1 || n > 200 || !plain(key) {
			return fault.Field(name, "must have 1 to 200 characters")
		}
		r.IdempotencyKey = &key
	case "dry_run":
		if v.IsNull() {
			return nil
		}
		dry, ok := v.Bool()
		if !ok {
			return fault.Field(name, "must be true or false")
		}
		r.DryRun = dry
	default:
		return fault.Field(cut(name, 64), "is not a field of this request")
	}
	return nil
}

func intMember(name string, v rawjson.Value, least, most int, set func(int)) error {
	if v.IsNull() {
		return nil
	}
	n, ok := v.Int64()
	if !ok || n < int64(least) || n > int64(most) {
		return fault.Field(name, "must be an integer from %d to %d", least, most)
	}
	set(int(n))
	return nil
}

// filter reads the accepted keys. A filter without any is refused, so that nothing retries everything by accident.
func (r *Request) filter(v rawjson.Value) error {
	if v.Kind() != rawjson.Object {
		return fault.Field("filter", "must be an object")
	}
	f, some, state, status := &r.Filter, false, "", ""
	for key, m := range v.EachMember() {
		name := string(key)
		into, known := map[string]*string{"engine": &f.Engine, "state": &state, "status": &status, "queue": &f.Queue, "name": &f.Name}[name]
		times, isTime := map[string]*time.Time{"since": &f.Since, "until": &f.Until}[name]
		switch {
		case name != "task_ids" && !known && !isTime:
			if len(r.RejectedKeys) < 50 {
				r.RejectedKeys = append(r.RejectedKeys, cut(name, 64))
			}
			continue
		case m.IsNull():
			continue
		}
		some = true
		if name == "task_ids" {
			if err := f.taskIDs(m); err != nil {
				return err
			}
			continue
		}
		s, ok := m.Str()
		if !ok || s == "" || utf8.RuneCountInString(s) > 500 || !plain(s) {
			return fault.Field("filter."+name, "must be a string of 1 to 500 characters")
		}
		if known {
			*into = s
			continue
		}
		at, err := rawjson.ParseTimeOrUTC(s)
		if err != nil {
			return fault.Field("filter."+name, "must be an ISO 8601 time")
		}
		*times = at
	}
	slices.Sort(r.RejectedKeys)
	if !some {
		return fault.Field("filter", "must hold at least one of task_ids, engine, state, status, queue, name, since, until")
	}
	if state != "" && status != "" && state != status {
		return fault.Field("filter.status", "is another word for state and must agree with it")
	}
	f.State = state + status
	if state != "" {
		f.State = state
	}
	if f.State == "" {
		f.State = agent.TaskFailure
	}
	if !slices.Contains(agent.TaskStates(), f.State) {
		return fault.Field("filter.state", "must be a state of a task, such as failure")
	}
	return nil
}

// taskIDs reads the list without its repetitions.
func (f *Filter) taskIDs(v rawjson.Value) error {
	if v.Kind() != rawjson.Array || v.Len() == 0 || v.Len() > MaxTasks {
		return fault.Field("filter.task_ids", "must be a list of 1 to %d task ids", MaxTasks)
	}
	seen := make(map[string]bool, v.Len())
	for _, e := range v.Each() {
		s, ok := e.Str()
		if !ok || s == "" || utf8.RuneCountInString(s) > 200 || !plain(s) {
			return fault.Field("filter.task_ids", "must hold strings of 1 to 200 characters")
		}
		if !seen[s] {
			seen[s] = true
			f.TaskIDs = append(f.TaskIDs, s)
		}
	}
	return nil
}

// appendFilter appends the filter in canonical form; ids are the task ids or, where they are rows already, their number.
func (f *Filter) appendFilter(dst []byte, ids bool) []byte {
	dst = append(dst, '{')
	text := func(name, s string) {
		if s != "" {
			dst = append(rawjson.AppendString(append(dst, name...), s), ',')
		}
	}
	instant := func(name string, at time.Time) {
		if !at.IsZero() {
			text(name, rawjson.FormatTime(at))
		}
	}
	text(`"engine":`, f.Engine)
	text(`"name":`, f.Name)
	text(`"queue":`, f.Queue)
	instant(`"since":`, f.Since)
	text(`"state":`, f.State)
	if n := len(f.TaskIDs); n > 0 && !ids {
		dst = append(strconv.AppendInt(append(dst, `"task_ids_count":`...), int64(n), 10), ',')
	} else if n > 0 {
		dst = append(dst, `"task_ids":[`...)
		for _, id := range f.TaskIDs {
			dst = append(rawjson.AppendString(dst, id), ',')
		}
		dst = append(dst, `],`...)
	}
	instant(`"until":`, f.Until)
	if dst[len(dst)-1] == ',' {
		dst = dst[:len(dst)-1]
	}
	return append(dst, '}')
}

// digest identifies what is asked for: a repeat under one key must ask for the same.
func (r *Request) digest() []byte {
	text := r.Filter.appendFilter(nil, true)
	text = strconv.AppendInt(append(text, " max "...), int64(r.Max), 10)
	text = append(append(text, " agent "...), r.AgentID.String()...)
	sum := sha256.Sum256(text)
	return sum[:]
}

// plain tells whether a text can be stored and compared.
func plain(s string) bool { return utf8.ValidString(s) && !slices.Contains([]byte(s), 0) }

// cut shortens a text to n characters.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n])
}

// retryPayload is the payload of a child; the rest is known of the stored task.
func retryPayload(engine, taskID string) []byte {
	b := rawjson.AppendString([]byte(`{"engine":`), engine)
	b = rawjson.AppendString(append(b, `,"task_id":`...), taskID)
	return append(b, '}')
}
