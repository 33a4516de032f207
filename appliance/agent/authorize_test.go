package agent

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
)

var (
	projectA = uuid.MustParse("3f2b8c1e-6a4d-4e7f-9b10-2c5d7e8f9a01")
	projectB = uuid.MustParse("4f2b8c1e-6a4d-4e7f-9b10-2c5d7e8f9a02")
)

// TestAuthorizeTable walks role × needed role × scope × access × project against a second statement of the rules.
func TestAuthorizeTable(t *testing.T) {
	t.Parallel()
	// level[role] lists the needs that the role meets; who may write at all is apart.
	meets := map[Role][]Role{
		Viewer:   {Viewer},
		Operator: {Viewer, Operator},
		Admin:    {Viewer, Operator, Admin, Auditor},
		Auditor:  {Viewer, Auditor},
		"":       {},
		"root":   {},
	}
	writers := map[Role]bool{Operator: true, Admin: true}
	scopes := []struct {
		scope       string
		read, write bool // for tasks
	}{
		{"tasks:read", true, false}, {"tasks:write", true, true}, {"admin:*", true, true},
		{"agents:write", false, false}, {"tasks:*", false, false}, {"*", false, false}, {"tasks", false, false}, {"", false, false},
	}
	projects := []struct {
		name        string
		bound, asks *uuid.UUID
		ok          bool
	}{
		{"unbound, global", nil, nil, true}, {"unbound, project", nil, &projectA, true},
		{"bound, same", &projectA, &projectA, true}, {"bound, other", &projectA, &projectB, false},
		{"bound, global", &projectA, nil, false},
	}
	resources := []string{"tasks", "events", "stats", "dead-letters"}
	count := 0
	for role, met := range meets {
		for _, need := range []Role{Viewer, Operator, Admin, Auditor, "", "root"} {
			for _, s := range scopes {
				for _, p := range projects {
					for _, write := range []bool{false, true} {
						for _, resource := range resources {
							want := p.ok && slices.Contains(met, need) && (s.read && !write || s.write && write)
							if write && (need == Viewer || need == Auditor) {
								want = want && writers[role]
							}
							who := Principal{Role: role, Scopes: []string{s.scope}, ProjectID: p.bound}
							err := Authorize(who, resource, write, need, p.asks)
							if (err == nil) != want || err != nil && !fault.Is(err, fault.Forbidden) {
								t.Errorf("role %q need %q scope %q %s write %v %s: got %v, want allowed %v",
									role, need, s.scope, p.name, write, resource, err, want)
							}
							count++
						}
					}
				}
			}
		}
	}
	if count != 6*6*8*5*2*4 {
		t.Errorf("%d cases", count)
	}
}

func TestDefaultScopesFitTheRole(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		role     Role
		resource string
		write    bool
		need     Role
		ok       bool
	}{
		{Viewer, "tasks", false, Viewer, true}, {Viewer, "events", false, Viewer, true}, {Viewer, "commands", true, Operator, false},
		{Viewer, "audit", false, Auditor, false}, {Viewer, "users", false, Viewer, false},
		{Operator, "commands", true, Operator, true}, {Operator, "dead-letters", true, Operator, true},
		{Operator, "rooms", true, Operator, true}, {Operator, "users", false, Viewer, false}, {Viewer, "rooms", false, Viewer, true},
		{Operator, "agents", true, Admin, false}, {Operator, "audit", false, Auditor, false},
		{Admin, "agents", true, Admin, true}, {Admin, "audit", false, Auditor, true}, {Admin, "projects", true, Admin, true},
		{Auditor, "audit", false, Auditor, true}, {Auditor, "tasks", false, Viewer, true}, {Auditor, "tasks", true, Operator, false},
	} {
		who := Principal{Role: tc.role, Scopes: DefaultScopes(tc.role)}
		if err := Authorize(who, tc.resource, tc.write, tc.need, nil); (err == nil) != tc.ok {
			t.Errorf("%+v: %v", tc, err)
		}
	}
	if DefaultScopes("root") != nil {
		t.Error("an unknown role has scopes")
	}
	for _, r := range []Role{Viewer, Operator, Admin, Auditor} {
		if err := checkScopes(DefaultScopes(r)); err != nil {
			t.Errorf("%s: %v", r, err)
		}
	}
	if err := checkScopes(AllScopes()); err != nil || len(AllScopes()) != 31 {
		t.Errorf("%d scopes: %v", len(AllScopes()), err)
	}
}

func TestScopesAreChecked(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "tasks", "tasks:", "tasks:*", ":read", "events:read", "admin:read", "*", "tasks:read ", "Tasks:read"} {
		if err := checkScopes([]string{bad}); !fault.Is(err, fault.Invalid) || !strings.HasPrefix(fault.Message(err), "scopes: ") {
			t.Errorf("%q: got %v", bad, err)
		}
	}
	if err := checkScopes(slices.Repeat([]string{"tasks:read"}, 65)); !fault.Is(err, fault.Invalid) {
		t.Errorf("65 scopes: got %v", err)
	}
}

func TestNobodyGrantsMoreThanTheyHave(t *testing.T) {
	t.Parallel()
	admin := LocalPrincipal()
	boundAdmin := Principal{Role: Admin, Scopes: []string{"admin:*"}, ProjectID: &projectA}
	narrow := Principal{Role: Admin, Scopes: []string{"auth:write", "tasks:read"}}
	operator := Principal{Role: Operator, Scopes: DefaultScopes(Operator)}
	for _, tc := range []struct {
		name    string
		who     Principal
		role    Role
		scopes  []string
		project *uuid.UUID
		ok      bool
	}{
		{"admin gives all", admin, Admin, []string{"admin:*"}, nil, true},
		{"admin gives auditor", admin, Auditor, DefaultScopes(Auditor), &projectA, true},
		{"bound admin in its project", boundAdmin, Admin, []string{"admin:*"}, &projectA, true},
		{"bound admin in another", boundAdmin, Viewer, nil, &projectB, false},
		{"bound admin everywhere", boundAdmin, Viewer, nil, nil, false},
		{"narrow admin gives what it has", narrow, Admin, []string{"tasks:read", "auth:read"}, nil, true},
		{"narrow admin gives write for read", narrow, Admin, []string{"tasks:write"}, nil, false},
		{"narrow admin gives admin:*", narrow, Admin, []string{"admin:*"}, nil, false},
		{"operator gives admin", operator, Admin, []string{"tasks:read"}, nil, false},
		{"operator gives auditor", operator, Auditor, []string{"tasks:read"}, nil, false},
		{"operator gives viewer", operator, Viewer, DefaultScopes(Viewer), nil, true},
	} {
		err := mayGrant(tc.who, tc.role, tc.scopes, tc.project)
		if (err == nil) != tc.ok || err != nil && !fault.Is(err, fault.Forbidden) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
