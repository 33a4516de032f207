package room

import (
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

// Limits of a policy. The protocol states none.
const (
	maxPolicyRules = 100
	maxPolicyIDs   = 1000 // of one selector
	maxPolicyBytes = 1 << 20
)

// ParsePolicy reads an addressing policy as it arrives: null, or {"rules": [...]} (D.8). Whatever a reader could take
// for a restriction must be one: unknown fields, fields given twice and values of another type are Invalid, and the
// error names the place. null gives nil.
func ParsePolicy(b []byte) (*Policy, error) {
	doc, err := rawjson.ParseAtMost(b, maxPolicyBytes)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "policy: must be JSON of at most %d bytes", maxPolicyBytes)
	}
	defer doc.Release()
	root := doc.Root()
	if root.IsNull() {
		return nil, nil
	}
	if root.Kind() != rawjson.Object {
		return nil, fault.Field("policy", "must be an object with the field rules, or null")
	}
	if err := checkMembers("policy", root, "rules"); err != nil {
		return nil, err
	}
	rules := root.Get("rules")
	if rules.Kind() != rawjson.Array {
		return nil, fault.Field("policy.rules", "must be a list")
	}
	if rules.Len() > maxPolicyRules {
		return nil, fault.Field("policy.rules", "must have at most %d rules", maxPolicyRules)
	}
	p := &Policy{Rules: make([]Rule, 0, rules.Len())}
	for i, v := range rules.Each() {
		r, err := parseRule(fmt.Sprintf("policy.rules[%d]", i), v)
		if err != nil {
			return nil, err
		}
		p.Rules = append(p.Rules, r)
	}
	return p, nil
}

func parseRule(path string, v rawjson.Value) (Rule, error) {
	r := Rule{}
	if v.Kind() != rawjson.Object {
		return r, fault.Field(path, "must be an object")
	}
	err := checkMembers(path, v, "rooms", "room_groups", "users", "agents", "owner", "owner_agents")
	for _, s := range []struct {
		name string
		into *Selector
	}{{"rooms", &r.Rooms}, {"room_groups", &r.RoomGroups}, {"users", &r.Users}, {"agents", &r.Agents}} {
		if err == nil {
			*s.into, err = parseSelector(path+"."+s.name, v.Get(s.name))
		}
	}
	for _, f := range []struct {
		name string
		into *bool
	}{{"owner", &r.Owner}, {"owner_agents", &r.OwnerAgents}} {
		if given := v.Get(f.name); err == nil && given.Exists() {
			var ok bool
			if *f.into, ok = given.Bool(); !ok {
				err = fault.Field(path+"."+f.name, "must be true or false")
			}
		}
	}
	return r, err
}

func parseSelector(path string, v rawjson.Value) (Selector, error) {
	if !v.Exists() {
		return Selector{All: true}, nil
	}
	if v.StrEqual("*") {
		return Selector{All: true}, nil
	}
	if v.Kind() != rawjson.Array {
		return Selector{}, fault.Field(path, `must be "*" or a list of ids`)
	}
	if v.Len() > maxPolicyIDs {
		return Selector{}, fault.Field(path, "must have at most %d ids", maxPolicyIDs)
	}
	s := Selector{IDs: make([]string, 0, v.Len())}
	for i, e := range v.Each() {
		text, ok := e.Str()
		id, err := uuid.Parse(text)
		if !ok || err != nil || len(text) != len(uuid.Nil.String()) {
			return Selector{}, fault.Field(path+"["+strconv.Itoa(i)+"]", "must be an id, which is a UUID")
		}
		s.IDs = append(s.IDs, id.String())
	}
	return s, nil
}

// checkMembers refuses fields that are not of the object and those given twice.
func checkMembers(path string, v rawjson.Value, names ...string) error {
	seen := make(map[string]bool, len(names))
	for _, n := range names {
		seen[n] = false
	}
	for key := range v.EachRawMember() {
		given, known := seen[string(key)]
		switch {
		case !known:
			return fault.Field(path, "has the unknown field %q", shorten(string(key), 64))
		case given:
			return fault.Field(path+"."+string(key), "is given twice")
		}
		seen[string(key)] = true
	}
	return nil
}

// shorten cuts a text to so many runes.
func shorten(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n]) + "…"
}

// MarshalJSON writes the policy with every field, as ParsePolicy reads it.
func (p Policy) MarshalJSON() ([]byte, error) {
	rules := p.Rules
	if rules == nil {
		rules = []Rule{}
	}
	return json.Marshal(map[string][]Rule{"rules": rules})
}

// UnmarshalJSON is ParsePolicy; a JSON null leaves a policy without rules.
func (p *Policy) UnmarshalJSON(b []byte) error {
	parsed, err := ParsePolicy(b)
	if err != nil {
		return err
	}
	*p = Policy{}
	if parsed != nil {
		*p = *parsed
	}
	return nil
}

// MarshalJSON writes "*" or the list of ids.
func (s Selector) MarshalJSON() ([]byte, error) {
	if s.All {
		return []byte(`"*"`), nil
	}
	if s.IDs == nil {
		return []byte("[]"), nil
	}
	return json.Marshal(s.IDs)
}
