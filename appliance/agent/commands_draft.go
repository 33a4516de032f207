package agent

import (
	"bytes"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

// maxTargetID is the longest target_id that is stored (agent protocol E.1). The agent acts on the payload, so a longer
// one is cut.
const maxTargetID = 200

// ReservedKeyPrefix begins the idempotency keys of the children of bulk retries: a request that took one would stand in the
// way of a child.
const ReservedKeyPrefix = "bulk-retry:"

// CheckKey refuses an idempotency key of a request that is kept for children; nil is none.
func CheckKey(key *string) error {
	if key != nil && strings.HasPrefix(*key, ReservedKeyPrefix) {
		return fault.Field("idempotency_key", "must not begin with %s, which is kept for the commands of bulk retries", ReservedKeyPrefix)
	}
	return nil
}

// draft is a request that passed every check which needs no database.
type draft struct {
	req        IssueRequest
	spec       *ActionSpec
	doc        *rawjson.Doc // the request's payload
	targetType string
	targetID   *string

	// derived are payload fields that we filled in from what we know now: a repeat of the request may meet other values.
	derived      []string
	rejectedKeys []string // bulk-retry filter keys that were dropped
}

// newDraft checks a request against the actions table. The caller releases doc.
func newDraft(r IssueRequest) (*draft, error) {
	spec, ok := LookupAction(r.Action)
	if !ok {
		return nil, fault.Field("action", "is unknown")
	}
	if k := r.IdempotencyKey; k != nil {
		if n := utf8.RuneCountInString(*k); n < 1 || n > 200 || !utf8.ValidString(*k) || strings.ContainsRune(*k, 0) {
			return nil, fault.Field("idempotency_key", "must have 1 to 200 characters")
		}
	}
	payload := r.Payload
	if len(payload) == 0 {
		payload = []byte("{}")
	}
	doc, err := rawjson.Parse(payload)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "payload: must be a JSON object").With("field", "payload")
	}
	d := &draft{req: r, spec: spec, doc: doc, targetType: spec.TargetType}
	if err := d.check(); err != nil {
		doc.Release()
		return nil, err
	}
	return d, nil
}

func (d *draft) check() error {
	if err := d.spec.Check(d.doc.Root()); err != nil {
		return err
	}
	if d.req.TargetType != "" && d.req.TargetType != d.spec.TargetType {
		return fault.Field("target_type", "must be %s for %s", d.spec.TargetType, d.spec.Name)
	}
	natural := d.naturalTarget()
	switch given := d.req.TargetID; {
	case given == nil:
		d.targetID = natural
	case d.spec.Name == "bulk_retry":
		return fault.Field("target_id", "must be null for %s", d.spec.Name)
	case !utf8.ValidString(*given) || strings.ContainsRune(*given, 0) || utf8.RuneCountInString(*given) > maxTargetID:
		return fault.Field("target_id", "must have at most %d characters", maxTargetID)
	case natural != nil && *given != *natural:
		return fault.Field("target_id", "must agree with the payload: %q", *natural)
	default:
		d.targetID = given
	}
	return nil
}

// naturalTarget is the target_id that the payload implies; nil when it implies none.
func (d *draft) naturalTarget() *string {
	root := d.doc.Root()
	var id string
	switch d.spec.TargetField {
	case "":
		return nil
	case "task":
		engine, _ := root.Get("engine").Str()
		taskID, _ := root.Get("task_id").Str()
		id = engine + ":" + taskID
	default:
		s, ok := root.Get(d.spec.TargetField).Str()
		if !ok {
			return nil
		}
		id = s
	}
	id = cutRunes(id, maxTargetID)
	return &id
}

// retryEngine is the engine whose retry contract the receiver must state; "" outside the retry family.
func (d *draft) retryEngine() string {
	if !d.spec.RetryFamily {
		return ""
	}
	return payloadEngine(d.doc.Root())
}

// normalise makes the canonical payload that is stored: defaults filled in, inputs of ours replaced by what the agent
// is given.
func (c *Commands) normalise(tx CommandReadTx, d *draft, target *CommandAgent) ([]byte, error) {
	root := d.doc.Root()
	set := map[string][]byte{}
	for i := range d.spec.Fields {
		f := &d.spec.Fields[i]
		if f.Default != "" && root.Get(f.Name).IsAbsent() {
			set[f.Name] = []byte(f.Default)
		}
	}
	drop := ""
	switch d.spec.Name {
	case "retry_task":
		if err := d.describeTask(tx, target.ProjectNo, set); err != nil {
			return nil, err
		}
	case "purge_queue":
		drop = "observed_depth"
		c.confirmPurge(d, target, set)
	case "bulk_retry":
		set["filter"] = d.keepFilter()
	}
	return rawjson.AppendCanonicalObject(nil, root, drop, members(set)), nil
}

// members sorts the values to set as AppendCanonicalObject wants them.
func members(set map[string][]byte) []rawjson.Member {
	out := make([]rawjson.Member, 0, len(set))
	for key, value := range set {
		out = append(out, rawjson.Member{Key: key, Value: value})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Key < out[j].Key })
	return out
}

// describeTask adds what a retry tells the agent beside the request: the absolute time, and what is known of the task.
func (d *draft) describeTask(tx CommandReadTx, projectNo int64, set map[string][]byte) error {
	root := d.doc.Root()
	if delay, ok := root.Get("eta_seconds").Int64(); ok {
		set["eta"] = strconv.AppendInt(nil, tx.Now().Unix()+delay, 10)
	}
	for _, name := range [...]string{"task_name", "original_had_args", "priority"} {
		if root.Get(name).IsAbsent() {
			d.derived = append(d.derived, name)
		}
	}
	if len(d.derived) == 0 {
		return nil
	}
	engine, _ := root.Get("engine").Str()
	taskID, _ := root.Get("task_id").Str()
	task, err := tx.CommandTask(projectNo, engine, taskID)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range d.derived {
		switch name {
		case "task_name":
			set[name] = rawjson.AppendString(nil, cutRunes(task.Name, 500))
		case "original_had_args":
			set[name] = strconv.AppendBool(nil, task.HadArgs)
		case "priority":
			set[name] = rawjson.AppendString(nil, task.Priority)
		}
	}
	return nil
}

// confirmPurge computes the confirmation from the depth the operator saw (agent protocol A.5).
func (c *Commands) confirmPurge(d *draft, target *CommandAgent, set map[string][]byte) {
	root := d.doc.Root()
	depth, ok := root.Get("observed_depth").Int64()
	if !ok || !root.Get("confirm_token").IsAbsent() || c.opts.PurgeToken == nil {
		return
	}
	queue, _ := root.Get("queue").Str()
	set["confirm_token"] = rawjson.AppendString(nil, c.opts.PurgeToken(target.ProjectID, queue, depth))
}

// keepFilter is the canonical bulk-retry filter of accepted keys; it notes the others.
func (d *draft) keepFilter() []byte {
	keep := map[string][]byte{}
	d.rejectedKeys = nil
	for key, v := range d.doc.Root().Get("filter").EachMember() {
		if name := string(key); bulkFilterKeys[name] {
			keep[name] = rawjson.AppendCanonical(nil, v)
		} else if len(d.rejectedKeys) < 50 {
			d.rejectedKeys = append(d.rejectedKeys, cutRunes(name, 64))
		}
	}
	slices.Sort(d.rejectedKeys)
	return rawjson.AppendCanonicalObject(nil, rawjson.Value{}, "", members(keep))
}

// matches compares a repeat with the stored command (agent protocol E.8, case 1). A fire is the same when its target
// is: another agent may take it over.
func (d *draft) matches(stored Command, payload []byte, target CommandAgent) (bool, error) {
	if stored.Action != d.spec.Name || stored.TargetType != d.targetType || !equalText(stored.TargetID, d.targetID) {
		return false, nil
	}
	if d.spec.Name == "schedule.fire" {
		return true, nil
	}
	if stored.AgentNo != target.No {
		return false, nil
	}
	a, err := comparablePayload(stored.Payload, d.derived)
	if err != nil {
		return false, fault.Wrap(fault.Internal, err, "stored payload of command %s is not JSON", stored.ID)
	}
	b, err := comparablePayload(payload, d.derived)
	if err != nil {
		return false, fault.Wrap(fault.Internal, err, "canonical payload is not JSON")
	}
	return bytes.Equal(a, b), nil
}

// comparablePayload is a payload without what may differ between two spellings of one request: fired_at, the absolute time
// made from eta_seconds, and the fields we filled in.
func comparablePayload(payload []byte, derived []string) ([]byte, error) {
	doc, err := rawjson.Parse(payload)
	if err != nil {
		return nil, err
	}
	defer doc.Release()
	root := doc.Root()
	set := map[string][]byte{}
	if !root.Get("eta_seconds").IsAbsent() {
		set["eta"] = []byte("null")
	}
	for _, name := range derived {
		set[name] = []byte("null")
	}
	return rawjson.AppendCanonicalObject(nil, root, "fired_at", members(set)), nil
}

func equalText(a, b *string) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
