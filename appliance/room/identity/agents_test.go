package identity_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/identity"
)

const profileJSON = `"integration_profile": {"connection_model": "session_addressable", "message_exchange": true,
	"pre_invocation_mediation": [], "custom": {"kept": 1.50},
	"task_protocol": {"can_delegate": true, "can_accept": false}, "command_capabilities": {"reset": "always"}}`

func TestBodyOfARegistration(t *testing.T) {
	t.Parallel()
	n, err := decode[identity.NewAgent](t, `{"name": "build-bot", "description": "d", "connector_type": "external",
		"display_name": null, "icon_url": "https://x.example/i.png", `+profileJSON+`, "tools": [{"name":"a","description":"b",
		"parameters":{}}], "models": [], "metadata": {"k": 1}, "overwrite": true, "unknown": [1]}`)
	if err != nil || n.Name != "build-bot" || n.DisplayName != nil || *n.IconURL != "https://x.example/i.png" || !n.Overwrite ||
		n.Profile.ConnectionModel != room.SessionAddressable || !n.Profile.TaskProtocol.CanDelegate ||
		n.Profile.Commands.Reset != room.CapabilityAlways || n.Profile.Commands.Interrupt != room.CapabilityUnsupported {
		t.Fatalf("%+v, %v", n, err)
	}
	if n, err := decode[identity.NewAgent](t, `{"name":"a","integration_profile":{"connection_model":"always_on"},"tools":null}`); err != nil || n.Tools != nil {
		t.Errorf("the least: %+v, %v", n, err)
	}
	ok := `"name":"a",` + profileJSON
	for _, c := range [][2]string{
		{`null`, "name: must be given"},
		{`[]`, "array"},
		{`{` + profileJSON + `}`, "name: must be given"},
		{`{"name":1,` + profileJSON + `}`, "name"},
		{`{"name":"a"}`, "integration_profile: must be given"},
		{`{"name":"a","integration_profile":null}`, "integration_profile: must be given"},
		{`{"name":"a","integration_profile":"x"}`, "integration_profile: must be an object"},
		{`{"name":"a","integration_profile":{}}`, "integration_profile.connection_model: must be given"},
		{`{"name":"a","integration_profile":{"connection_model":"sometimes"}}`, "integration_profile.connection_model: must be always_on"},
		{`{"name":"a","integration_profile":{"connection_model":5}}`, "integration_profile.connection_model: must not be a JSON number"},
		{`{"name":"a","integration_profile":{"connection_model":"always_on","command_capabilities":{"compact":"yes"}}}`,
			"integration_profile.command_capabilities.compact: must be unsupported"},
		{`{` + ok + `,"tools":{}}`, "tools: must be a list"},
		{`{` + ok + `,"tools":[{"name":"a"}]}`, "tools[0]: must be an object with name and description"},
		{`{` + ok + `,"models":[null]}`, "models[0]: "},
		{`{` + ok + `,"metadata":[]}`, "metadata: must be an object"},
		{`{` + ok + `,"metadata":{"k":"` + strings.Repeat("x", 70000) + `"}}`, "metadata: must have at most"},
		{`{` + ok + `,"overwrite":"yes"}`, "overwrite"},
		{`{` + ok + `,"addressing_policy":{"rules":[{"users":5}]}}`, "addressing_policy.rules[0].users: must be"},
		{`{` + ok + `,"addressing_policy":[]}`, "addressing_policy: must be an object"},
	} {
		if _, err := decode[identity.NewAgent](t, c[0]); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%.80s: %v, want %q", c[0], err, c[1])
		}
	}
}

func FuzzNewAgent(f *testing.F) {
	f.Add(`{"name":"a",` + profileJSON + `,"tools":[{"name":"a","description":"b"}],"metadata":{}}`)
	f.Add(`{"name":"a","integration_profile":{"connection_model":"always_on"},"metadata":null}`)
	f.Fuzz(func(t *testing.T, body string) {
		n, err := decode[identity.NewAgent](t, body)
		if err != nil {
			return
		}
		if n.Profile.ConnectionModel == "" || n.RawProfile == nil || len(n.RawProfile) > 64<<10 {
			t.Errorf("%+v", n)
		}
	})
}

func TestRegister(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, ada := room.WithOrigin(t.Context(), room.Origin{SourceIP: "192.0.2.9"}), r.person("ada")
	by := identity.RegistrantOf(ada)
	n, err := decode[identity.NewAgent](t, `{"name": "build-bot", "description": "d", `+profileJSON+`}`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.Register(ctx, by, n)
	if err != nil || got.Rotated || len(got.Key.Reveal()) != 43 || got.Agent.No == 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	a, err := r.AuthenticateAgent(ctx, auth(got.Key))
	if err != nil || a.ID != got.Agent.ID || a.OwnerID != ada.ID || a.OwnerAdmin || a.ConnectorType != "external" ||
		a.Profile.ConnectionModel != room.SessionAddressable || !strings.Contains(string(a.RawProfile), `"kept":1.50`) ||
		string(a.Tools) != "[]" || string(a.Metadata) != "{}" {
		t.Fatalf("%+v, %v", a, err)
	}
	if !a.Policy.OwnerOnly() || identity.OwnerOnlyHint(a) !=
		"only its owner can address it; open it with: signalbox roomagents policy build-bot --open" {
		t.Errorf("policy %+v, hint %q", a.Policy, identity.OwnerOnlyHint(a))
	}
	rows := r.audits("room_agent.")
	if len(rows) != 1 || rows[0].action != "room_agent.registered" || rows[0].user != ada.ID.String() ||
		rows[0].target != a.ID.String() || rows[0].ip != "192.0.2.9" || strings.Contains(rows[0].meta, got.Key.Reveal()) {
		t.Errorf("audit %+v", rows)
	}
	bob := r.person("bob")
	text := func(s string) *string { return &s }
	change := func(fn func(*identity.NewAgent)) identity.NewAgent { n := newAgent("x"); fn(&n); return n }
	for _, c := range []struct {
		name  string
		by    room.Person
		n     identity.NewAgent
		code  fault.Code
		words string
	}{
		{"taken", ada, newAgent("build-bot"), fault.Conflict, "name: an agent called build-bot exists already"},
		{"taken by another", bob, newAgent("build-bot"), fault.Conflict, "name: an agent called build-bot exists already"},
		{"overwriting another's", bob, change(func(n *identity.NewAgent) { n.Name, n.Overwrite = "build-bot", true }), fault.Conflict,
			"name: an agent called build-bot exists already"},
		{"everyone", ada, newAgent("everyone"), fault.Invalid, "name: "},
		{"upper case", ada, newAgent("Bot"), fault.Invalid, "name: "},
		{"trailing newline", ada, newAgent("bot\n"), fault.Invalid, "name: "},
		{"leading dash", ada, newAgent("-bot"), fault.Invalid, "name: "},
		{"empty", ada, newAgent(""), fault.Invalid, "name: "},
		{"icon", ada, change(func(n *identity.NewAgent) { n.IconURL = text("javascript:alert(1)") }), fault.Invalid, "icon_url: "},
		{"display name", ada, change(func(n *identity.NewAgent) { n.DisplayName = text("a\nb") }), fault.Invalid, "display_name: "},
		{"long display name", ada, change(func(n *identity.NewAgent) { n.DisplayName = text(strings.Repeat("x", 201)) }), fault.Invalid, "display_name: "},
		{"description", ada, change(func(n *identity.NewAgent) { n.Description = "a\x00b" }), fault.Invalid, "description: "},
		{"connector", ada, change(func(n *identity.NewAgent) { n.ConnectorType = "a\nb" }), fault.Invalid, "connector_type: "},
		{"model", ada, change(func(n *identity.NewAgent) { n.Profile.ConnectionModel = "" }), fault.Invalid, "connection_model: "},
	} {
		_, err := r.Register(ctx, identity.RegistrantOf(c.by), c.n)
		r.wants(c.name, err, c.code, c.words)
		if strings.Contains(fmt.Sprint(err), "ada") || strings.Contains(fmt.Sprint(err), ada.ID.String()) {
			t.Errorf("%s: tells whose it is: %v", c.name, err)
		}
	}
	if n := r.count("SELECT count(*) FROM room_agents"); n != 1 {
		t.Errorf("%d agents after refusals", n)
	}
	if _, err := r.AuthenticateAgent(ctx, auth(got.Key)); err != nil {
		t.Errorf("a refused overwrite touched the key: %v", err)
	}
}

func TestRotate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, ada := t.Context(), r.person("ada")
	by := identity.RegistrantOf(ada)
	icon, shown := "https://x.example/i.png", "Bot"
	first := newAgent("bot")
	first.IconURL, first.DisplayName = &icon, &shown
	old, err := r.Register(ctx, by, first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.SetPolicy(ctx, ada.Actor(), old.Agent.ID, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := r.AuthenticateAgent(ctx, auth(old.Key)); err != nil { // now it is cached
		t.Fatal(err)
	}
	r.clk.Advance(time.Second)
	again := newAgent("bot")
	again.Overwrite, again.Description, again.Profile.ConnectionModel = true, "new", room.SessionPassive
	now, err := r.Register(ctx, by, again)
	if err != nil || !now.Rotated || now.Agent.ID != old.Agent.ID || now.Agent.No != old.Agent.No {
		t.Fatalf("%+v, %v", now, err)
	}
	_, err = r.AuthenticateAgent(ctx, auth(old.Key))
	r.wants("the old key", err, fault.Unauthenticated, "unknown or revoked")
	a, err := r.AuthenticateAgent(ctx, auth(now.Key))
	if err != nil || a.Description != "new" || a.Profile.ConnectionModel != room.SessionPassive || a.IconURL != icon ||
		a.DisplayName != shown || a.Policy != nil || !a.KeySetAt.After(old.Agent.KeySetAt) || !a.CreatedAt.Equal(old.Agent.CreatedAt) {
		t.Errorf("%+v, %v", a, err)
	}
	if rows := r.audits("room_agent.rotated"); len(rows) != 1 {
		t.Errorf("audit %+v", rows)
	}
	empty := ""
	again.IconURL = &empty
	if now, err := r.Register(ctx, by, again); err != nil || now.Agent.IconURL != "" || now.Agent.DisplayName != shown {
		t.Errorf("%+v, %v", now, err)
	}
}

// However many calls are under way, none that begins after a rotation has returned gets in with the old key.
func TestRotationBesideCalls(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, by := t.Context(), identity.RegistrantOf(r.person("ada"))
	n := newAgent("bot")
	n.Overwrite = true
	now, err := r.Register(ctx, by, n)
	if err != nil {
		t.Fatal(err)
	}
	for range 30 {
		old := auth(now.Key)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						_, _ = r.AuthenticateAgent(ctx, old)
					}
				}
			})
		}
		now, err = r.Register(ctx, by, n)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.AuthenticateAgent(ctx, old); !fault.Is(err, fault.Unauthenticated) {
			t.Errorf("the old key right after its rotation: %v", err)
		}
		close(stop)
		wg.Wait()
		if _, err := r.AuthenticateAgent(ctx, old); !fault.Is(err, fault.Unauthenticated) {
			t.Errorf("the old key a moment later: %v", err)
		}
	}
}

// Failures are never cached, and what is cached goes by itself.
func TestKeyCache(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, ada := t.Context(), r.person("ada")
	got := r.agent(ada, "bot")
	if _, err := r.AuthenticateAgent(ctx, "Bearer nonsense"); err == nil {
		t.Fatal("nonsense")
	}
	if n := identity.Cached(r.Identity); n != 0 {
		t.Fatalf("%d failures cached", n)
	}
	is := func(what string, want bool) {
		t.Helper()
		_, err := r.AuthenticateAgent(ctx, auth(got.Key))
		if (err == nil) != want {
			t.Errorf("%s: %v", what, err)
		}
	}
	is("fresh", true)
	r.exec("UPDATE room_agents SET key_hash = ?", strings.Repeat("0", 64)) // behind its back
	is("cached", true)
	r.clk.Advance(5*time.Second - time.Microsecond)
	is("still cached", true)
	r.clk.Advance(time.Microsecond)
	is("no longer cached", false)
}

func TestCacheFollowsTheOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, admin, ada := t.Context(), r.operator(), r.person("ada")
	got := r.agent(ada, "bot")
	is := func(what string, want bool) {
		t.Helper()
		a, err := r.AuthenticateAgent(ctx, auth(got.Key))
		if err != nil || a.Actor().Admin != want {
			t.Errorf("%s: %+v, %v", what, a.Actor(), err)
		}
	}
	is("a user's", false)
	if _, err := r.SetRole(ctx, admin, ada.ID, room.RoleAdmin); err != nil {
		t.Fatal(err)
	}
	is("an admin's", true)
	if _, err := r.SetDisabled(ctx, admin, ada.ID, true); err != nil {
		t.Fatal(err)
	}
	is("a disabled admin's", false)
}

func TestDeleteAgent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, admin, ada, bob := t.Context(), r.operator(), r.person("ada"), r.person("bob")
	got, sibling := r.agent(ada, "bot"), r.agent(ada, "sibling")
	r.wants("by another person", r.DeleteAgent(ctx, bob.Actor(), got.Agent.ID), fault.Forbidden, "only the owner")
	r.wants("by a sibling", r.DeleteAgent(ctx, sibling.Agent.Actor(), got.Agent.ID), fault.Forbidden, "only the owner")
	r.wants("nothing", r.DeleteAgent(ctx, admin, uuid.New()), fault.NotFound, "agent not found")
	r.member(got.Agent, "den")
	boom := errors.New("boom")
	r.before = func(identity.Tx, room.Agent) error { return boom }
	if err := r.DeleteAgent(ctx, admin, got.Agent.ID); !errors.Is(err, boom) {
		t.Errorf("a hook that fails: %v", err)
	}
	if _, err := r.AuthenticateAgent(ctx, auth(got.Key)); err != nil || len(r.closed) != 0 {
		t.Fatalf("a failed deletion had an effect: %v, %v", err, r.closed)
	}
	var seen int
	r.before = func(tx identity.Tx, a room.Agent) error {
		rooms, err := tx.RoomsOfAgent(a.No)
		seen = len(rooms)
		return err
	}
	if err := r.DeleteAgent(ctx, got.Agent.Actor(), got.Agent.ID); err != nil { // the agent itself may
		t.Fatal(err)
	}
	if seen != 1 || !slices.Equal(r.closed, []int64{got.Agent.No}) {
		t.Errorf("the hook saw %d rooms, closed %v", seen, r.closed)
	}
	_, err := r.AuthenticateAgent(ctx, auth(got.Key))
	r.wants("key of a deleted agent", err, fault.Unauthenticated, "unknown or revoked")
	if n := r.count("SELECT count(*) FROM room_members"); n != 0 {
		t.Errorf("%d memberships left", n)
	}
	again := r.agent(bob, "bot")
	if again.Agent.No == got.Agent.No || again.Agent.ID == got.Agent.ID {
		t.Error("a new agent under the same name is the old one")
	}
	if n := r.count("SELECT head FROM room_agents WHERE room_agent_no = ?", again.Agent.No); n != 0 {
		t.Errorf("it is numbered from %d", n)
	}
	if rows := r.audits("room_agent.deleted"); len(rows) != 1 || rows[0].user != got.Agent.ID.String() {
		t.Errorf("audit %+v", rows)
	}
}

// member puts the agent into a new room.
func (r *rig) member(a room.Agent, name string) uuid.UUID {
	r.t.Helper()
	id := uuid.New()
	r.exec(`INSERT INTO rooms (id, name, description, instructions, channel_type, chat, read_visibility, write_visibility,
		internal_only, created_at, updated_at) VALUES (?, ?, '', '', 'channel_public', 0, 'public', 'public', 0, 0, 0)`, id, name)
	r.exec(`INSERT INTO room_members (room_no, room_agent_no, listening, joined_position, joined_at)
		VALUES ((SELECT max(room_no) FROM rooms), ?, 0, 0, 0)`, a.No)
	return id
}

// A registration may say who addresses the agent; what leaves it out keeps the policy there is (A.4).
func TestPolicyOfARegistration(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	by := identity.RegistrantOf(r.person("ada"))
	for _, c := range []struct {
		policy string // of the body, with its comma
		open   bool
	}{
		{"", false},
		{`,"addressing_policy":null`, true},
		{"", true},
		{`,"addressing_policy":{"rules":[{"users":[],"agents":[],"owner":true}]}`, false},
		{`,"addressing_policy":{"rules":[]}`, true},
	} {
		n, err := decode[identity.NewAgent](t, `{"name":"a","overwrite":true`+c.policy+`,`+profileJSON+`}`)
		if err != nil {
			t.Fatal(err)
		}
		made, err := r.Register(t.Context(), by, n)
		if err != nil {
			t.Fatal(err)
		}
		if a := made.Agent; a.Policy.OwnerOnly() == c.open {
			t.Errorf("%q: policy %+v", c.policy, a.Policy)
		}
	}
}

func TestAgentRooms(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ada := r.person("ada")
	a, b := r.agent(ada, "a").Agent, r.agent(ada, "b").Agent
	den, hall := r.member(a, "den"), r.member(a, "hall")
	r.member(b, "other")
	got, err := r.AgentRooms(t.Context(), a.No)
	if err != nil || len(got) != 2 || got[0].ID != den || got[1].ID != hall || got[1].Name != "hall" || got[0].No == 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestPolicyAndChanges(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, admin, ada, bob := t.Context(), r.operator(), r.person("ada"), r.person("bob")
	got := r.agent(ada, "bot")
	id := got.Agent.ID
	policy, err := room.ParsePolicy([]byte(`{"rules":[{"users":["` + bob.ID.String() + `"],"agents":[]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, by := range map[string]room.Actor{"another": bob.Actor(), "the agent": got.Agent.Actor()} {
		_, err := r.SetPolicy(ctx, by, id, policy)
		r.wants("policy by "+name, err, fault.Forbidden, "only the owner")
	}
	if _, err := r.AuthenticateAgent(ctx, auth(got.Key)); err != nil {
		t.Fatal(err)
	}
	for _, by := range []room.Actor{ada.Actor(), admin} {
		if _, err := r.SetPolicy(ctx, by, id, policy); err != nil {
			t.Fatal(err)
		}
	}
	a, err := r.AuthenticateAgent(ctx, auth(got.Key))
	if err != nil || a.Policy == nil || len(a.Policy.Rules) != 1 || a.Policy.OwnerOnly() || identity.OwnerOnlyHint(a) != "" {
		t.Errorf("the policy is not in force: %+v, %v", a.Policy, err)
	}
	if a, err := r.SetPolicy(ctx, ada.Actor(), id, nil); err != nil || a.Policy != nil || identity.OwnerOnlyHint(a) != "" {
		t.Errorf("%+v, %v", a.Policy, err)
	}
	if rows := r.audits("room_agent.policy.changed"); len(rows) != 3 || !strings.Contains(rows[0].meta, bob.ID.String()) ||
		!strings.Contains(rows[2].meta, "null") {
		t.Errorf("audit %+v", rows)
	}
	said, icon := "does things", "nonsense"
	a, err = r.UpdateAgent(ctx, got.Agent.Actor(), id, identity.AgentChange{Description: &said})
	if err != nil || a.Description != said {
		t.Errorf("%+v, %v", a, err)
	}
	_, err = r.UpdateAgent(ctx, bob.Actor(), id, identity.AgentChange{Description: &said})
	r.wants("change by another", err, fault.Forbidden, "only the owner")
	_, err = r.UpdateAgent(ctx, ada.Actor(), id, identity.AgentChange{IconURL: &icon})
	r.wants("icon", err, fault.Invalid, "icon_url: ")
}

func TestAgentsArePaged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ada, bob := r.person("ada"), r.person("bob")
	for _, n := range []string{"b", "a.one", "a.two", "a_x", "c"} {
		r.agent(ada, n)
	}
	r.agent(bob, "a.of-bob")
	names := func(f identity.AgentFilter) (out []string, more bool) {
		t.Helper()
		got, more, err := r.Agents(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range got {
			out = append(out, a.Name)
		}
		return out, more
	}
	for _, c := range []struct {
		f    identity.AgentFilter
		want string
		more bool
	}{
		{identity.AgentFilter{}, "a.of-bob a.one a.two a_x b c", false},
		{identity.AgentFilter{Limit: 2}, "a.of-bob a.one", true},
		{identity.AgentFilter{Limit: 2, After: "a.one"}, "a.two a_x", true},
		{identity.AgentFilter{Limit: 2, After: "a_x"}, "b c", false},
		{identity.AgentFilter{Prefix: "a."}, "a.of-bob a.one a.two", false},
		{identity.AgentFilter{Prefix: "a.", OwnerNo: ada.No}, "a.one a.two", false},
		{identity.AgentFilter{Prefix: "%"}, "", false},
		{identity.AgentFilter{OwnerNo: bob.No}, "a.of-bob", false},
	} {
		if got, more := names(c.f); strings.Join(got, " ") != c.want || more != c.more {
			t.Errorf("%+v: %v, %v", c.f, got, more)
		}
	}
	if a, err := r.AgentNamed(t.Context(), "a_x"); err != nil || a.OwnerName != "ada" {
		t.Errorf("%+v, %v", a, err)
	}
	_, err := r.AgentNamed(t.Context(), "nobody")
	r.wants("nobody", err, fault.NotFound, "agent not found")
}
