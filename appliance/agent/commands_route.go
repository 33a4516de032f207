package agent

import (
	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

// ParseRoute reads the body of one of the routes of agent protocol E.9, such as "retry-task": the common fields
// agent_id and idempotency_key, and beside them the fields of the action. The caller adds the project.
//
// Errors: NotFound for an unknown route, Invalid naming field and rule.
func ParseRoute(route string, body []byte) (IssueRequest, error) {
	spec := routeAction(route)
	if spec == nil {
		return IssueRequest{}, fault.New(fault.NotFound, "no such command route")
	}
	doc, root, err := parseBody(body)
	if err != nil {
		return IssueRequest{}, err
	}
	defer doc.Release()
	r, err := commonFields(root)
	if err != nil {
		return IssueRequest{}, err
	}
	set := map[string][]byte{}
	if route == poolResize {
		if spec, err = resize(root, set); err != nil {
			return IssueRequest{}, err
		}
	}
	for key, v := range root.EachMember() {
		name := string(key)
		if name == "agent_id" || name == "idempotency_key" || set[name] != nil {
			continue
		}
		set[name] = v.Raw()
	}
	r.Action = spec.Name
	r.Payload = rawjson.AppendCanonicalObject(nil, rawjson.Value{}, "", members(set))
	return r, nil
}

// ParseGeneric reads the body of POST /commands: {agent_id, action, target_type?, target_id?, payload?,
// idempotency_key?} for any action of the table.
func ParseGeneric(body []byte) (IssueRequest, error) {
	doc, root, err := parseBody(body)
	if err != nil {
		return IssueRequest{}, err
	}
	defer doc.Release()
	r, err := commonFields(root)
	if err != nil {
		return IssueRequest{}, err
	}
	for key, v := range root.EachMember() {
		ok := true
		switch string(key) {
		case "agent_id", "idempotency_key":
		case "action":
			r.Action, ok = v.Str()
		case "target_type":
			if !v.IsNull() {
				r.TargetType, ok = v.Str()
			}
		case "target_id":
			r.TargetID, ok = optionalText(v)
		case "payload":
			if !v.IsNull() {
				r.Payload, ok = append([]byte(nil), v.Raw()...), v.Kind() == rawjson.Object
			}
		default:
			return IssueRequest{}, fault.Field(cutRunes(string(key), 64), "is not a field of this request")
		}
		if !ok {
			return IssueRequest{}, fault.Field(string(key), "has the wrong type")
		}
	}
	if r.Action == "" {
		return IssueRequest{}, fault.Field("action", "is required")
	}
	return r, nil
}

// routeAction is the first action of a route; nil for an unknown route.
func routeAction(route string) *ActionSpec {
	for i := range actionTable {
		if route != "" && actionTable[i].Route == route {
			return &actionTable[i]
		}
	}
	return nil
}

func parseBody(body []byte) (*rawjson.Doc, rawjson.Value, error) {
	doc, err := rawjson.Parse(body)
	if err != nil {
		return nil, rawjson.Value{}, fault.Wrap(fault.Invalid, err, "body: must be a JSON object").With("field", "body")
	}
	if doc.Root().Kind() != rawjson.Object {
		doc.Release()
		return nil, rawjson.Value{}, fault.Field("body", "must be a JSON object")
	}
	return doc, doc.Root(), nil
}

// commonFields reads what every issue request has.
func commonFields(root rawjson.Value) (r IssueRequest, err error) {
	text, ok := root.Get("agent_id").Str()
	if !ok {
		return r, fault.Field("agent_id", "is required and must be a UUID")
	}
	if r.AgentID, err = uuid.Parse(text); err != nil {
		return r, fault.Field("agent_id", "must be a UUID")
	}
	if r.IdempotencyKey, ok = optionalText(root.Get("idempotency_key")); !ok {
		return r, fault.Field("idempotency_key", "must be a string")
	}
	return r, nil
}

// optionalText is nil for an absent value; ok is false for one that is not a string.
func optionalText(v rawjson.Value) (s *string, ok bool) {
	if v.IsAbsent() {
		return nil, true
	}
	text, ok := v.Str()
	return &text, ok
}

// resize chooses the action of pool-resize by the sign of delta and puts the positive delta into set.
func resize(root rawjson.Value, set map[string][]byte) (*ActionSpec, error) {
	delta, ok := root.Get("delta").Int64()
	if !ok || delta == 0 || delta < -100 || delta > 100 {
		return nil, fault.Field("delta", "must be an integer from -100 to 100 and not 0")
	}
	name := "pool_grow"
	digits := root.Get("delta").Raw()
	if delta < 0 {
		name, digits = "pool_shrink", digits[1:]
	}
	set["delta"] = digits
	spec, _ := LookupAction(name)
	return spec, nil
}
