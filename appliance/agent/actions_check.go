package agent

import (
	"regexp"
	"strings"
	"unicode/utf8"

	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

// Limits of a payload.
const (
	// maxOverride is the longest JSON text of each of a task's given arguments (agent protocol E.9).
	maxOverride = 64 << 10
	// maxPayload keeps a command frame, with its signature, below the smallest frame limit a peer may have set.
	maxPayload = 256 << 10
	// reservedPrefix starts the keyword arguments that only agents may set.
	reservedPrefix = "__z4j_"
	// maxBulkTaskIDs is the most tasks one bulk retry may name.
	maxBulkTaskIDs = 10000
)

// argumentFields are the fields that hold a task's arguments.
var argumentFields = map[string]bool{"override_args": true, "override_kwargs": true, "args": true, "kwargs": true}

// patterns are the compiled patterns of the actions table.
var patterns = func() map[string]*regexp.Regexp {
	m := map[string]*regexp.Regexp{}
	for i := range actionTable {
		for _, f := range actionTable[i].Fields {
			if f.Pattern != "" {
				m[f.Pattern] = regexp.MustCompile(f.Pattern)
			}
		}
	}
	return m
}()

// Check validates a payload against the action's fields. Invalid names the field and the rule.
func (a *ActionSpec) Check(payload rawjson.Value) error {
	if payload.Kind() != rawjson.Object {
		return fault.Field("payload", "must be an object")
	}
	if len(payload.Raw()) > maxPayload {
		return fault.Field("payload", "must be at most %d bytes of JSON", maxPayload)
	}
	if !a.Open {
		for key := range payload.EachRawMember() {
			if a.field(string(key)) == nil {
				return fault.Field(cutRunes(string(key), 64), "is not a field of %s", a.Name)
			}
		}
	}
	for i := range a.Fields {
		if err := a.Fields[i].check(payload.Get(a.Fields[i].Name)); err != nil {
			return err
		}
	}
	return a.checkTogether(payload)
}

// check applies the field's own rules to its value.
func (f *ActionField) check(v rawjson.Value) error {
	if v.IsAbsent() {
		if f.Required {
			return fault.Field(f.Name, "is required")
		}
		return nil
	}
	switch f.Kind {
	case KindString:
		return f.checkString(v)
	case KindInt:
		n, ok := v.Int64()
		if !ok || n < f.Min || (f.Max > 0 && n > f.Max) {
			return fault.Field(f.Name, "must be an integer from %d to %d", f.Min, f.Max)
		}
	case KindNumber:
		if n, ok := v.Float64(); !ok || n < 0 || n > 1e11 {
			return fault.Field(f.Name, "must be POSIX seconds")
		}
	case KindBool:
		if v.Kind() != rawjson.Bool {
			return fault.Field(f.Name, "must be true or false")
		}
	case KindList:
		if v.Kind() != rawjson.Array {
			return fault.Field(f.Name, "must be a list")
		}
	case KindObject:
		if v.Kind() != rawjson.Object {
			return fault.Field(f.Name, "must be an object")
		}
	case KindNull:
		return fault.Field(f.Name, "must be null")
	}
	if argumentFields[f.Name] {
		return checkArguments(f.Name, v)
	}
	return nil
}

func (f *ActionField) checkString(v rawjson.Value) error {
	s, ok := v.Str()
	if !ok {
		return fault.Field(f.Name, "must be a string")
	}
	if n := int64(utf8.RuneCountInString(s)); n < f.Min || (f.Max > 0 && n > f.Max) {
		return fault.Field(f.Name, "must have %d to %d characters", f.Min, f.Max)
	}
	if strings.ContainsRune(s, 0) {
		return fault.Field(f.Name, "must not contain NUL")
	}
	if f.Pattern != "" && !patterns[f.Pattern].MatchString(s) {
		return fault.Field(f.Name, "must match %s", f.Pattern)
	}
	return nil
}

// checkArguments holds a task's given arguments to their size and keeps reserved keys out, at every depth.
func checkArguments(field string, v rawjson.Value) error {
	if len(v.Raw()) > maxOverride {
		return fault.Field(field, "must be at most 64 KiB of JSON")
	}
	if hasReservedKey(v) {
		return fault.Field(field, "must not hold a key that starts with %s", reservedPrefix)
	}
	return nil
}

func hasReservedKey(v rawjson.Value) bool {
	switch v.Kind() {
	case rawjson.Object:
		for key, m := range v.EachRawMember() {
			if strings.HasPrefix(string(key), reservedPrefix) || hasReservedKey(m) {
				return true
			}
		}
	case rawjson.Array:
		for _, e := range v.Each() {
			if hasReservedKey(e) {
				return true
			}
		}
	}
	return false
}

// checkTogether applies the rules that look at several fields.
func (a *ActionSpec) checkTogether(payload rawjson.Value) error {
	switch a.Name {
	case "retry_task":
		if payload.Get("override_args").IsAbsent() != payload.Get("override_kwargs").IsAbsent() {
			return fault.Field("override_args", "and override_kwargs must be given both or neither")
		}
		if !payload.Get("eta").IsAbsent() && !payload.Get("eta_seconds").IsAbsent() {
			return fault.Field("eta", "and eta_seconds exclude each other")
		}
	case "bulk_retry":
		return checkBulkFilter(payload.Get("filter"))
	}
	return nil
}

// bulkFilterKeys are the filter keys that a bulk retry may carry (agent protocol E.9).
var bulkFilterKeys = map[string]bool{"task_ids": true, "engine": true, "state": true, "status": true, "queue": true,
	"name": true, "since": true, "until": true}

// checkBulkFilter checks the keys of a bulk-retry filter that are passed on. A filter without any is refused, so that
// nothing retries everything by accident.
func checkBulkFilter(filter rawjson.Value) error {
	empty := true
	for key, v := range filter.EachMember() {
		name := string(key)
		if !bulkFilterKeys[name] || v.IsNull() {
			continue
		}
		empty = false
		path := "filter." + name
		if name == "task_ids" {
			if err := checkTaskIDs(path, v); err != nil {
				return err
			}
			continue
		}
		s, ok := v.Str()
		if !ok || s == "" || utf8.RuneCountInString(s) > 500 {
			return fault.Field(path, "must be a string of 1 to 500 characters")
		}
		if name == "since" || name == "until" {
			if _, err := rawjson.ParseTimeOrUTC(s); err != nil {
				return fault.Field(path, "must be an ISO 8601 time")
			}
		}
	}
	if empty {
		return fault.Field("filter", "must hold at least one of task_ids, engine, state, status, queue, name, since, until")
	}
	return nil
}

func checkTaskIDs(path string, v rawjson.Value) error {
	if v.Kind() != rawjson.Array || v.Len() == 0 || v.Len() > maxBulkTaskIDs {
		return fault.Field(path, "must be a list of 1 to %d task ids", maxBulkTaskIDs)
	}
	for _, id := range v.Each() {
		if s, ok := id.Str(); !ok || s == "" || utf8.RuneCountInString(s) > 200 {
			return fault.Field(path, "must hold strings of 1 to 200 characters")
		}
	}
	return nil
}
