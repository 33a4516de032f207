package room

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
)

// Every field of a rule, admitting and denying (D.8, L.18).
func TestPolicyAdmits(t *testing.T) {
	t.Parallel()
	all, none := Selector{All: true}, Selector{}
	list := func(ids ...uuid.UUID) Selector {
		var s Selector
		for _, id := range ids {
			s.IDs = append(s.IDs, id.String())
		}
		return s
	}
	group, other := uuid.New(), uuid.New()
	in := &Room{ID: uuid.New(), GroupID: group}
	alone := &Room{ID: uuid.New()}
	a := &Agent{No: 1, ID: uuid.New(), OwnerNo: 7}
	owner := Actor{Kind: KindPerson, No: 7, ID: uuid.New(), OwnerNo: 7}
	alice := Actor{Kind: KindPerson, No: 8, ID: uuid.New(), OwnerNo: 8}
	admin := Actor{Kind: KindPerson, No: 9, ID: uuid.New(), OwnerNo: 9, Admin: true}
	sister := Actor{Kind: KindAgent, No: 2, ID: uuid.New(), OwnerNo: 7}
	stranger := Actor{Kind: KindAgent, No: 3, ID: uuid.New(), OwnerNo: 8}
	nobodys := Actor{Kind: KindAgent, No: 4, ID: uuid.New()}
	rule := func(change func(*Rule)) *Policy {
		r := Rule{Rooms: all, RoomGroups: all, Users: none, Agents: none}
		change(&r)
		return &Policy{Rules: []Rule{r}}
	}
	for _, c := range []struct {
		name string
		p    *Policy
		in   *Room
		by   Actor
		want bool
	}{
		{"no policy", nil, in, stranger, true},
		{"no rules", &Policy{}, in, stranger, true},
		{"owner-only: owner", OwnerOnly(), in, owner, true},
		{"owner-only: another person", OwnerOnly(), in, alice, false},
		{"owner-only: an admin", OwnerOnly(), in, admin, false},
		{"owner-only: an agent of the owner", OwnerOnly(), in, sister, false},
		{"owner-only: another agent", OwnerOnly(), in, stranger, false},
		{"owner-only: the platform", OwnerOnly(), in, Platform(), false},
		{"owner agents: of the owner", rule(func(r *Rule) { r.OwnerAgents = true }), in, sister, true},
		{"owner agents: of another", rule(func(r *Rule) { r.OwnerAgents = true }), in, stranger, false},
		{"owner agents: of nobody", rule(func(r *Rule) { r.OwnerAgents = true }), in, nobodys, false},
		{"owner agents: not the owner", rule(func(r *Rule) { r.OwnerAgents = true }), in, owner, false},
		{"users all", rule(func(r *Rule) { r.Users = all }), in, alice, true},
		{"users all: the platform for a person", rule(func(r *Rule) { r.Users = all }), in, Platform(), true},
		{"users all: not agents", rule(func(r *Rule) { r.Users = all }), in, stranger, false},
		{"users listed", rule(func(r *Rule) { r.Users = list(other, alice.ID) }), in, alice, true},
		{"users listed: another", rule(func(r *Rule) { r.Users = list(alice.ID) }), in, owner, false},
		{"agents all", rule(func(r *Rule) { r.Agents = all }), in, nobodys, true},
		{"agents all: not people", rule(func(r *Rule) { r.Agents = all }), in, alice, false},
		{"agents listed", rule(func(r *Rule) { r.Agents = list(stranger.ID) }), in, stranger, true},
		{"agents listed: another", rule(func(r *Rule) { r.Agents = list(stranger.ID) }), in, sister, false},
		{"an agent's id among users", rule(func(r *Rule) { r.Users = list(stranger.ID) }), in, stranger, false},
		{"room listed", rule(func(r *Rule) { r.Users, r.Rooms = all, list(in.ID) }), in, alice, true},
		{"another room", rule(func(r *Rule) { r.Users, r.Rooms = all, list(in.ID) }), alone, alice, false},
		{"no room", rule(func(r *Rule) { r.Users, r.Rooms = all, none }), in, alice, false},
		{"group listed", rule(func(r *Rule) { r.Users, r.RoomGroups = all, list(group) }), in, alice, true},
		{"group listed, room without one", rule(func(r *Rule) { r.Users, r.RoomGroups = all, list(group) }), alone, alice, false},
		{"the id of no group", rule(func(r *Rule) { r.Users, r.RoomGroups = all, list(uuid.Nil) }), alone, alice, false},
		{"owner in another room", rule(func(r *Rule) { r.Owner, r.Rooms = true, list(in.ID) }), alone, owner, false},
		{"second rule", &Policy{Rules: []Rule{OwnerOnly().Rules[0], {Rooms: all, RoomGroups: all, Users: list(alice.ID)}}}, in, alice,
			true},
	} {
		if got := c.p.Admits(c.in, c.by, a); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if OwnerOnly().Admits(in, Actor{Kind: KindPerson}, &Agent{}) {
		t.Error("nobody owns what nobody owns")
	}
}

func TestOwnerOnlyIsToldApart(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`{"rules":[{"users":[],"agents":[],"owner":true}]}`:            true,
		`{"rules":[{"users":[],"agents":[],"owner":true,"rooms":[]}]}`: true,
		`{"rules":[]}`: false,
		`{"rules":[{"users":[],"agents":[],"owner":true,"owner_agents":true}]}`:       false,
		`{"rules":[{"agents":[],"owner":true}]}`:                                      false,
		`{"rules":[{"users":[],"owner":true}]}`:                                       false,
		`{"rules":[{"users":[],"agents":[]}]}`:                                        false,
		`{"rules":[{"users":[],"agents":[],"owner":true},{"users":"*","agents":[]}]}`: false,
	} {
		p, err := ParsePolicy([]byte(text))
		if err != nil || p.OwnerOnly() != want {
			t.Errorf("%s: %v, %v", text, p.OwnerOnly(), err)
		}
	}
	if (*Policy)(nil).OwnerOnly() || !OwnerOnly().OwnerOnly() {
		t.Error("nil is open, OwnerOnly is not")
	}
}

func TestParsePolicyReads(t *testing.T) {
	t.Parallel()
	all := Selector{All: true}
	for text, want := range map[string]*Policy{
		`null`:           nil,
		`{"rules":[]}`:   {Rules: []Rule{}},
		`{"rules":[{}]}`: {Rules: []Rule{{Rooms: all, RoomGroups: all, Users: all, Agents: all}}},
		`{"rules":[{"users":[],"agents":"*","owner":true,"owner_agents":false,
			"rooms":["6F9619FF-8B86-D011-B42D-00CF4FC964FF"]}]}`: {Rules: []Rule{{
			Rooms:      Selector{IDs: []string{"6f9619ff-8b86-d011-b42d-00cf4fc964ff"}},
			RoomGroups: all, Users: Selector{IDs: []string{}}, Agents: all, Owner: true}}},
	} {
		p, err := ParsePolicy([]byte(text))
		if err != nil || !reflect.DeepEqual(p, want) {
			t.Errorf("%s: %+v, %v", text, p, err)
		}
	}
}

// A policy that is not understood to the last field must not become a wider one.
func TestParsePolicyRefuses(t *testing.T) {
	t.Parallel()
	long := `"` + uuid.NewString() + `",`
	for text, place := range map[string]string{
		``:                                     "policy:",
		`{`:                                    "policy:",
		`[]`:                                   "policy:",
		`"open"`:                               "policy:",
		`{}`:                                   "policy.rules:",
		`{"rules":null}`:                       "policy.rules:",
		`{"rules":{}}`:                         "policy.rules:",
		`{"rules":[],"more":1}`:                "policy:",
		`{"rules":[],"rules":[]}`:              "policy.rules:",
		`{"rules":[null]}`:                     "policy.rules[0]:",
		`{"rules":[{},[]]}`:                    "policy.rules[1]:",
		`{"rules":[{"user":[]}]}`:              "policy.rules[0]:",
		`{"rules":[{"users":null}]}`:           "policy.rules[0].users:",
		`{"rules":[{"users":"alice"}]}`:        "policy.rules[0].users:",
		`{"rules":[{"users":["*"]}]}`:          "policy.rules[0].users[0]:",
		`{"rules":[{"agents":[1]}]}`:           "policy.rules[0].agents[0]:",
		`{"rules":[{"rooms":[],"rooms":"*"}]}`: "policy.rules[0].rooms:",
		`{"rules":[{"owner":1}]}`:              "policy.rules[0].owner:",
		`{"rules":[{"owner_agents":null}]}`:    "policy.rules[0].owner_agents:",
		`{"rules":[{"rooms":["{6f9619ff-8b86-d011-b42d-00cf4fc964ff}"]}]}`:            "policy.rules[0].rooms[0]:",
		`{"rules":[` + strings.Repeat("{},", maxPolicyRules) + `{}]}`:                 "policy.rules:",
		`{"rules":[{"room_groups":[` + strings.Repeat(long, maxPolicyIDs) + `"x"]}]}`: "policy.rules[0].room_groups:",
	} {
		p, err := ParsePolicy([]byte(text))
		if p != nil || !fault.Is(err, fault.Invalid) || !strings.HasPrefix(fault.Message(err), place) {
			t.Errorf("%.80s: %v, %v, want a refusal of %s", text, p, err, place)
		}
	}
}

func TestPolicyInAStruct(t *testing.T) {
	t.Parallel()
	var v struct {
		Policy *Policy `json:"policy"`
	}
	if err := json.Unmarshal([]byte(`{"policy":null}`), &v); err != nil || v.Policy != nil {
		t.Errorf("null: %v, %v", v.Policy, err)
	}
	if err := json.Unmarshal([]byte(`{"policy":{"rules":[{"nope":1}]}}`), &v); !fault.Is(err, fault.Invalid) {
		t.Errorf("strict also inside: %v", err)
	}
	v.Policy = &Policy{}
	if b, err := json.Marshal(v); err != nil || string(b) != `{"policy":{"rules":[]}}` {
		t.Errorf("no rules: %s, %v", b, err)
	}
	if b, err := json.Marshal(OwnerOnly()); err != nil || string(b) !=
		`{"rules":[{"rooms":"*","room_groups":"*","users":[],"agents":[],"owner":true,"owner_agents":false}]}` {
		t.Errorf("owner-only: %s, %v", b, err)
	}
}

func FuzzParsePolicy(f *testing.F) {
	f.Add([]byte(`null`))
	f.Add([]byte(`{"rules":[{"users":[],"agents":"*","owner":true}]}`))
	f.Add([]byte(`{"rules":[{"rooms":["6f9619ff-8b86-d011-b42d-00cf4fc964ff"]},{}]}`))
	f.Add([]byte(`{"rules":[{"\u0072ooms":[]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParsePolicy(b)
		if err != nil {
			if p != nil || !fault.Is(err, fault.Invalid) {
				t.Fatalf("%v, %v", p, err)
			}
			return
		}
		again, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		q, err := ParsePolicy(again)
		if err != nil || !reflect.DeepEqual(p, q) {
			t.Fatalf("%q reads as %+v, written again %s as %+v, %v", b, p, again, q, err)
		}
	})
}
