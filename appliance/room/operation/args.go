package operation

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
)

// arg is an argument of an operation. What is not required may be absent or null, which both mean otherwise.
type arg struct {
	name        string
	kind        kind
	required    bool
	otherwise   any // nil: null
	description string
}

// kind is the type of an argument: how a schema tells it and how a value is read.
type kind struct {
	schema string // JSON schema without braces
	rule   string // what a value must be
	read   func(json.RawMessage) (any, bool)
}

// readAs reads a value strictly as T: unknown fields of objects are refused.
func readAs[T any](raw json.RawMessage) (any, bool) {
	var v T
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		return nil, false
	}
	return v, true
}

var (
	text  = kind{`"type":"string"`, "a string", readAs[string]}
	flag  = kind{`"type":"boolean"`, "true or false", readAs[bool]}
	count = kind{`"type":"integer"`, "a whole number", readCount}
	names = kind{`"type":"array","items":{"type":"string"}`, "a list of strings", readNames}
	pairs = kind{`"type":"object","additionalProperties":{"type":"string"}`, "an object of strings", readAs[map[string]string]}
	// nothing is for arguments that other servers know and this one has no use for: only empty values are taken.
	nothing = kind{`"type":["object","array","string","boolean"]`, "empty here: this server has no such thing", readNothing}
	roles   = kind{`"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},` +
		`"exclusive":{"type":"boolean","default":false},"instructions":{"type":"string","default":""}},"required":["name"]}`,
		"a list of objects with name, exclusive and instructions", readAs[[]roleArg]}
	links = kind{`"type":"array","items":{"type":"object","properties":{"target_room_id":{"type":"string"},` +
		`"label":{"type":"string","default":""}},"required":["target_room_id"]}`,
		"a list of objects with target_room_id and label", readAs[[]linkArg]}
)

type roleArg struct {
	Name         string `json:"name"`
	Exclusive    bool   `json:"exclusive"`
	Instructions string `json:"instructions"`
}

type linkArg struct {
	Target string `json:"target_room_id"`
	Label  string `json:"label"`
}

// oneOf is a string of a closed set.
func oneOf(values ...string) kind {
	read := func(raw json.RawMessage) (any, bool) {
		v, ok := readAs[string](raw)
		return v, ok && slices.Contains(values, v.(string))
	}
	return kind{`"type":"string","enum":` + quote(values), "one of " + strings.Join(values, ", "), read}
}

// readCount also takes a whole number that is written with a fraction or an exponent, as some hosts do.
func readCount(raw json.RawMessage) (any, bool) {
	v, ok := readAs[float64](raw)
	if !ok {
		return nil, false
	}
	f := v.(float64)
	n := int(max(min(f, 1<<53), -1<<53))
	return n, float64(n) == f || f > 1<<53 || f < -1<<53
}

// readNames refuses null among the strings, which would be read as an empty one.
func readNames(raw json.RawMessage) (any, bool) {
	v, ok := readAs[[]*string](raw)
	if !ok {
		return nil, false
	}
	list := []string{}
	for _, s := range v.([]*string) {
		if s == nil {
			return nil, false
		}
		list = append(list, *s)
	}
	return list, true
}

func readNothing(raw json.RawMessage) (any, bool) {
	switch string(raw) {
	case `""`, `[]`, `{}`, `false`:
		return nil, true
	}
	return nil, false
}

// schema is the input schema of an operation: properties in the order of the table.
func (op *operation) schema() json.RawMessage {
	var b strings.Builder
	var required []string
	b.WriteString(`{"type":"object","properties":{`)
	for i, a := range op.args {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(quote(a.name) + `:` + a.schema())
		if a.required {
			required = append(required, a.name)
		}
	}
	b.WriteByte('}')
	if required != nil {
		b.WriteString(`,"required":` + quote(required))
	}
	b.WriteByte('}')
	return json.RawMessage(b.String())
}

func (a arg) schema() string {
	said := `,"description":` + quote(a.description)
	switch {
	case a.required:
		return `{` + a.kind.schema + said + `}`
	case a.otherwise == nil:
		return `{"anyOf":[{` + a.kind.schema + `},{"type":"null"}],"default":null` + said + `}`
	}
	return `{` + a.kind.schema + `,"default":` + quote(a.otherwise) + said + `}`
}

// parse checks the arguments by name, then by type, and returns those that were given.
func (op *operation) parse(raw json.RawMessage) (map[string]any, error) {
	given := map[string]json.RawMessage{}
	if len(bytes.TrimSpace(raw)) > 0 {
		if err := json.Unmarshal(raw, &given); err != nil || given == nil {
			return nil, fault.New(fault.Invalid, "the arguments of %s must be a JSON object", op.name)
		}
	}
	unexpected := ""
	for name := range given {
		if !slices.ContainsFunc(op.args, func(a arg) bool { return a.name == name }) && (unexpected == "" || name < unexpected) {
			unexpected = name
		}
	}
	if unexpected != "" || len(given) > len(op.args) {
		return nil, fault.New(fault.Invalid, "unexpected argument %.80q: %s takes %s", unexpected, op.name, op.takes()).
			With("field", unexpected)
	}
	values := map[string]any{}
	for _, a := range op.args {
		raw, ok := given[a.name]
		if isNull := ok && string(raw) == "null"; !ok || isNull && !a.required {
			if a.required {
				return nil, fault.New(fault.Invalid, "missing argument %q: %s takes %s", a.name, op.name, op.takes()).
					With("field", a.name)
			}
			if a.otherwise != nil {
				values[a.name] = a.otherwise
			}
			continue
		}
		v, ok := a.kind.read(raw)
		if !ok || string(raw) == "null" {
			return nil, fault.Field(a.name, "must be %s", a.kind.rule)
		}
		if v != nil {
			values[a.name] = v
		}
	}
	return values, nil
}

// takes names the arguments for an error.
func (op *operation) takes() string {
	if len(op.args) == 0 {
		return "no arguments"
	}
	list := make([]string, len(op.args))
	for i, a := range op.args {
		list[i] = a.name
		if a.required {
			list[i] += " (required)"
		}
	}
	return strings.Join(list, ", ")
}

// value looks at an argument; false: it was not given and has no default. An argument that the operation does not
// declare is a mistake in the table.
func value[T any](r *request, name string) (v T, given bool) {
	if !slices.ContainsFunc(r.op.args, func(a arg) bool { return a.name == name }) {
		panic("operation " + r.op.name + " has no argument " + name)
	}
	if r.read != nil {
		r.read(r.op.name, name)
	}
	if v, given := r.args[name]; given {
		return v.(T), true
	}
	return v, false
}

func (r *request) text(name string) string {
	v, _ := value[string](r, name)
	return v
}

func (r *request) flag(name string) bool {
	v, _ := value[bool](r, name)
	return v
}

func (r *request) names(name string) []string {
	v, _ := value[[]string](r, name)
	return v
}

// given is a pointer to an argument, nil when it was not given.
func given[T any](r *request, name string) *T {
	v, ok := value[T](r, name)
	if !ok {
		return nil
	}
	return &v
}

// id is an argument that names something by its id.
func (r *request) id(name string) (uuid.UUID, error) {
	id, _, err := r.optionalID(name)
	return id, err
}

func (r *request) optionalID(name string) (id uuid.UUID, given bool, err error) {
	s, ok := value[string](r, name)
	if !ok {
		return uuid.Nil, false, nil
	}
	id, err = parseID(name, s)
	return id, true, err
}

func parseID(field, s string) (uuid.UUID, error) {
	id, err := uuid.Parse(s)
	if err != nil || len(s) != 36 {
		return uuid.Nil, fault.Field(field, "must be an id, such as 0197c1de-8c5e-7b7e-b6b7-6a2c7e9b2a11; %.80q is none", s)
	}
	return id, nil
}
