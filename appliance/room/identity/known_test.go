package identity_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/identity"
)

func TestKnownProfiles(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	for _, c := range []struct {
		name string
		o    identity.KnownOptions
		want room.ConnectionModel
	}{
		{"claude-code", identity.KnownOptions{}, room.SessionAddressable},
		{"claude-code", identity.KnownOptions{ChannelsEnabled: &yes}, room.SessionAddressable},
		{"claude-code", identity.KnownOptions{ChannelsEnabled: &no}, room.SessionPassive},
		{"claude-code", identity.KnownOptions{AutoSession: &yes}, room.AutoSession},
		{"claude-code", identity.KnownOptions{ChannelsEnabled: &no, AutoSession: &yes}, room.AutoSession},
		{"codex", identity.KnownOptions{}, room.SessionAddressable},
		{"opencode", identity.KnownOptions{}, room.SessionAddressable},
		{"antigravity", identity.KnownOptions{}, room.SessionPassive},
		{"cursor", identity.KnownOptions{}, room.SessionPassive},
		{"cursor", identity.KnownOptions{ChannelsEnabled: &yes}, room.SessionAddressable},
	} {
		if p, err := identity.KnownProfile(c.name, c.o); err != nil || p.ConnectionModel != c.want || !p.MessageExchange {
			t.Errorf("%s: %+v, %v, want %s", c.name, p, err, c.want)
		}
	}
	if _, err := identity.KnownProfile("gpt", identity.KnownOptions{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("unknown type: %v", err)
	}
}

func TestBodiesOfKnownTypes(t *testing.T) {
	t.Parallel()
	id := uuid.NewString()
	n, err := decode[identity.NewKnownAgent](t, `{"agent_type":"claude-code","name":"a","description":"d","options":{"auto_session":true,
		"speed":1},
		"parent_agent_id":"`+id+`","overwrite":true}`)
	if err != nil || n.Parent.String() != id || !*n.Options.AutoSession || n.Options.ChannelsEnabled != nil || !n.Overwrite {
		t.Fatalf("%+v, %v", n, err)
	}
	for _, c := range [][2]string{
		{`{"name":"a"}`, "agent_type: must be given"},
		{`{"agent_type":"codex"}`, "name: must be given"},
		{`{"agent_type":"gpt","name":"a"}`, "agent_type: must be one of antigravity, claude-code"},
		{`{"agent_type":"codex","name":"a","options":[]}`, "options: "},
		{`{"agent_type":"codex","name":"a","options":{"auto_session":1}}`, "options: "},
		{`{"agent_type":"codex","name":"a","parent_agent_id":"x"}`, "parent_agent_id: "},
	} {
		if _, err := decode[identity.NewKnownAgent](t, c[0]); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: %v, want %q", c[0], err, c[1])
		}
	}
	for _, c := range [][2]string{
		{`{"parent_agent_id":"` + id + `","subagents":[{}]}`, "agent_type: must be given"},
		{`{"agent_type":"codex","subagents":[{}]}`, "parent_agent_id: must be given"},
		{`{"agent_type":"codex","parent_agent_id":"` + id + `"}`, "subagents: "},
		{`{"agent_type":"codex","parent_agent_id":"x","subagents":[{}]}`, "parent_agent_id: "},
	} {
		if _, err := decode[identity.NewKnownAgents](t, c[0]); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: %v, want %q", c[0], err, c[1])
		}
	}
}

func TestRegisterKnownBulk(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, ada, bob := t.Context(), r.person("ada"), r.person("bob")
	by := identity.RegistrantOf(ada)
	parent, err := r.RegisterKnown(ctx, by, identity.NewKnownAgent{Type: "claude-code", Name: "boss", Description: "d"})
	if err != nil || parent.Agent.Type != "claude-code" {
		t.Fatalf("%+v, %v", parent, err)
	}
	r.agent(bob, "boss.taken")
	bulk := func(names ...string) identity.NewKnownAgents {
		n := identity.NewKnownAgents{Type: "claude-code", Parent: parent.Agent.ID}
		for _, name := range names {
			n.Children = append(n.Children, identity.NewChild{SubagentName: name, Description: "child"})
		}
		return n
	}
	for _, c := range []struct {
		name  string
		by    room.Person
		n     identity.NewKnownAgents
		code  fault.Code
		words string
	}{
		{"bad name", ada, bulk("one", "Two"), fault.Invalid, "subagents[1].subagent_name: "},
		{"twice", ada, bulk("one", "one"), fault.Invalid, "subagents[1].subagent_name: is given twice"},
		{"taken", ada, bulk("one", "taken"), fault.Conflict, "name: "},
		{"another's parent", bob, bulk("one"), fault.Invalid, "parent_agent_id: "},
		{"none", ada, bulk(), fault.Invalid, "subagents: "},
		{"too many", ada, bulk(make([]string, 201)...), fault.Invalid, "subagents: "},
	} {
		_, err := r.RegisterKnownBulk(ctx, identity.RegistrantOf(c.by), c.n)
		r.wants(c.name, err, c.code, c.words)
	}
	if n := r.count("SELECT count(*) FROM room_agents"); n != 2 {
		t.Fatalf("%d agents after refusals", n)
	}
	got, err := r.RegisterKnownBulk(ctx, by, bulk("one", "two"))
	if err != nil || len(got) != 2 || got[0].Agent.Name != "boss.one" || got[1].Agent.ParentNo != parent.Agent.No {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, g := range got {
		if a, err := r.AuthenticateAgent(ctx, auth(g.Key)); err != nil || !a.Policy.OwnerOnly() {
			t.Errorf("%+v, %v", a, err)
		}
	}
	if err := r.DeleteAgent(ctx, ada.Actor(), parent.Agent.ID); err != nil {
		t.Fatal(err)
	}
	if a, err := r.AgentNamed(ctx, "boss.one"); err != nil || a.ParentNo != 0 {
		t.Errorf("child of a deleted parent: %+v, %v", a, err)
	}
	_, err = r.RegisterKnown(ctx, by, identity.NewKnownAgent{Type: "codex", Name: "lone", Parent: parent.Agent.ID})
	r.wants("deleted parent", err, fault.Invalid, "parent_agent_id: ")
}
