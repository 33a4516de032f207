package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
)

const (
	roomKeys       = "id name description instructions channel_type chat owner group read_visibility write_visibility internal_only head archived_at created_at updated_at"
	itemKeys       = "id room_id position kind sender on_behalf_of body thread_id attachments automatic at"
	personKeys     = "id name email kind role has_password disabled_at created_at updated_at"
	connectionKeys = "connection_id agent scope filter spawn_capable cursor processed head lag generation claims placements transport " +
		"attached held last_beat_at last_beat_age_ms beats protocol declared client client_version opened_at attached_at role_lease"
	roomAgentKeys = "id name display_name icon_url description owner type connector_type connection_model command_capabilities status " +
		"connections addressable owner_only open_command reacts_to deaf policy key_set_at created_at updated_at"
)

// TestRoomShapes holds the answers to the shapes that docs/api.md tells.
func TestRoomShapes(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	p := g.plaza(false)
	g.connect(p, nil)
	item := g.said(p, "hello", "r-1")
	for path, want := range map[string]string{
		"/rooms":                                 roomKeys,
		"/rooms/" + p.room.ID:                    roomKeys + " members people roles links",
		"/room-agents":                           roomAgentKeys,
		"/people":                                personKeys,
		"/people/" + p.ben.ID:                    personKeys,
		"/connections":                           connectionKeys,
		"/connections/5d0c1c3e":                  connectionKeys,
		"/room-agents/" + p.agent.ID:             roomAgentKeys + " rooms",
		"/room-agents?room=" + p.room.ID:         roomAgentKeys,
		"/rooms/" + p.room.ID + "/messages":      itemKeys,
		"/rooms/" + p.room.ID + "/policy":        "room_id agents",
		"/room-agents/" + p.agent.ID + "/policy": "agent_id addressable owner_only open_command policy",
		"/rooms/messages/" + item.ID + "/explain?agent=" + p.agent.ID:    "item agent code summary sentences queued dropped_through addressed deliveries connections",
		"/rooms/" + p.room.ID + "/messages/stream?cursor=0&follow=false": "type cursor item",
		"/resolve?kind=room&text=plaza":                                  "matches",
	} {
		a := g.ok(http.StatusOK, "GET", path, "", nil)
		line, _, _ := strings.Cut(a.body, "\n")
		if got := keys(t, line); got != want {
			t.Errorf("GET %s:\n got %s\nwant %s", path, got, want)
		}
	}
}

// TestOwnerOnlyIsToldEverywhere: a new agent seems deaf; whoever looks at it is told why, with the one command.
func TestOwnerOnlyIsToldEverywhere(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	p := g.plaza(false)
	const command = `"open_command":"signalbox roomagents policy build-bot --open"`
	paths := []string{"/room-agents", "/room-agents/" + p.agent.ID, "/room-agents?room=" + p.room.ID, "/rooms/" + p.room.ID,
		"/rooms/" + p.room.ID + "/policy", "/room-agents/" + p.agent.ID + "/policy"}
	for _, path := range paths {
		if a := g.ok(http.StatusOK, "GET", path, "", nil); !strings.Contains(a.body, command) || !strings.Contains(a.body, `"addressable":"owner"`) {
			t.Errorf("GET %s does not say so: %s", path, a.body)
		}
	}
	a := g.ok(http.StatusOK, "GET", "/rooms/"+p.room.ID+"/policy", "", nil)
	for _, want := range []string{`"name":"operator","admitted":true`, `"name":"Ben","admitted":false`} {
		if !strings.Contains(strings.ReplaceAll(a.body, "Operator", "operator"), want) {
			t.Errorf("policy lacks %s: %s", want, a.body)
		}
	}
	g.ok(http.StatusOK, "PUT", "/room-agents/"+p.agent.ID+"/policy", `{"policy":null}`, nil)
	for _, path := range paths {
		if a := g.ok(http.StatusOK, "GET", path, "", nil); strings.Contains(a.body, command) || !strings.Contains(a.body, `"addressable":"everybody"`) {
			t.Errorf("GET %s of an open agent: %s", path, a.body)
		}
	}
	a = g.ok(http.StatusOK, "PUT", "/room-agents/"+p.agent.ID+"/policy", `{"policy":{"rules":[{"users":["`+p.ben.ID+`"],"agents":[]}]}}`, nil)
	if !strings.Contains(a.body, `"addressable":"some"`) || !strings.Contains(a.body, p.ben.ID) {
		t.Errorf("rules: %s", a.body)
	}
}

func TestDeafness(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	p := g.plaza(true)
	path := "/room-agents?room=" + p.room.ID
	deaf := func() string {
		var out []struct {
			Deaf     []reasonPublic `json:"deaf"`
			ReactsTo string         `json:"reacts_to"`
			Status   string         `json:"status"`
		}
		g.ok(http.StatusOK, "GET", path, "", &out)
		s := out[0].Status + " " + out[0].ReactsTo
		for _, r := range out[0].Deaf {
			s += " " + r.Code
		}
		return s
	}
	if got := deaf(); got != "disconnected nobody not_connected" {
		t.Errorf("without a connection: %s", got)
	}
	g.connect(p, func(q *connection.Request) { q.Scope = connection.ScopeSingle })
	if got := deaf(); got != "live nobody no_claim" {
		t.Errorf("single without a claim: %s", got)
	}
	s := g.connect(p, func(q *connection.Request) {
		q.Scope, q.Rooms = connection.ScopeSingle, []uuid.UUID{uuid.MustParse(p.room.ID)}
	})
	if got := deaf(); got != "live everybody" {
		t.Errorf("with a claim: %s", got)
	}
	s.Detach()
	if got := deaf(); got != "live nobody detached" {
		t.Errorf("detached: %s", got)
	}
}

func TestSay(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	p := g.plaza(true)
	path := "/rooms/" + p.room.ID + "/messages"
	var first, again postedPublic
	g.ok(http.StatusCreated, "POST", path, `{"body":"@build-bot hi","request_id":"r-1"}`, &first)
	if first.Item.Position == 0 || len(first.Statuses) != 1 || first.Statuses[0].Name != "build-bot" || first.Statuses[0].Status != "disconnected" {
		t.Errorf("posted %+v", first)
	}
	g.ok(http.StatusOK, "POST", path, `{"body":"@build-bot hi","request_id":"r-1"}`, &again)
	if !again.Repeated || again.Item.ID != first.Item.ID {
		t.Errorf("repeated %+v", again)
	}
	if a := g.do(g.admin, "POST", path, `{"body":"other","request_id":"r-1"}`); a.status != http.StatusConflict {
		t.Errorf("another body under the id: %d %s", a.status, a.body)
	}
	if n := first.Statuses[0].Covering; n != 0 {
		t.Errorf("%d connections cover the room of an agent that has none", n)
	}
	var ben postedPublic
	g.ok(http.StatusCreated, "POST", path, `{"body":"hi","request_id":"r-1","as":"ben@example.com"}`, &ben)
	if ben.Item.Sender.Name != "Ben" || ben.Item.ID == first.Item.ID {
		t.Errorf("as Ben: %+v", ben.Item)
	}
	if a := g.ok(http.StatusOK, "GET", "/audit?action_prefix=room_message", "", nil); strings.Count(a.body, `"room_message.said_for"`) != 1 ||
		!strings.Contains(a.body, ben.Item.ID) || !strings.Contains(a.body, `"target_id":"`+p.ben.ID+`"`) {
		t.Errorf("audit of speaking for Ben: %s", a.body)
	}
	operator := g.key(agent.NewAPIKey{Role: agent.Operator})
	if a := g.do(operator, "POST", path, `{"body":"hi","request_id":"r-2"}`); a.status != http.StatusCreated {
		t.Errorf("an operator says: %d %s", a.status, a.body)
	}
	before := g.state()
	for body, status := range map[string]int{
		`{"body":"hi","request_id":"r-3","as":"ben@example.com"}`: http.StatusForbidden, // no admin
	} {
		if a := g.do(operator, "POST", path, body); a.status != status {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
	for body, status := range map[string]int{
		`{"request_id":"r-3"}`: 422, `{"body":"hi"}`: 422, `{"body":7,"request_id":"r-3"}`: 422,
		`{"body":"hi","request_id":"r-3","as":"nobody@example.com"}`:              404,
		`{"body":"hi","request_id":"r-3","thread_id":"` + uuid.NewString() + `"}`: 422,
	} {
		if a := g.do(g.admin, "POST", path, body); a.status != status {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
	if after := g.state(); after != before {
		t.Errorf("refusals changed the database:\n%s\n%s", before, after)
	}
	g.ok(http.StatusOK, "POST", "/people/"+p.ben.ID+"/disable", "", nil)
	if a := g.do(g.admin, "POST", path, `{"body":"hi","request_id":"r-4","as":"ben@example.com"}`); a.status != http.StatusConflict {
		t.Errorf("as a disabled person: %d %s", a.status, a.body)
	}
	g.ok(http.StatusOK, "POST", "/rooms/"+p.room.ID+"/archive", "", nil)
	if a := g.do(g.admin, "POST", path, `{"body":"hi","request_id":"r-5"}`); a.status != http.StatusConflict {
		t.Errorf("in an archived room: %d %s", a.status, a.body)
	}
}

// TestSayTellsWhoHears: an agent without a session in the room hears what is said over a connection that covers it.
func TestSayTellsWhoHears(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	p := g.plaza(true)
	g.ok(http.StatusCreated, "POST", "/room-agents", `{"name":"build-bot","connection_model":"session_addressable","overwrite":true}`, nil)
	say := func(id string) statusOfPublic {
		var out postedPublic
		g.ok(http.StatusCreated, "POST", "/rooms/"+p.room.ID+"/messages", `{"body":"@build-bot hi","request_id":"`+id+`"}`, &out)
		if len(out.Statuses) != 1 || out.Statuses[0].Status != room.StatusNoSession {
			t.Fatalf("statuses %+v", out.Statuses)
		}
		return out.Statuses[0]
	}
	single := g.connect(p, func(q *connection.Request) { q.Scope = connection.ScopeSingle })
	if s := say("single"); s.Covering != 0 {
		t.Errorf("single without a claim: %+v", s)
	}
	single.Detach()
	wide := g.connect(p, func(q *connection.Request) { q.ConnectionID = "77aa0011" })
	if s := say("all"); s.Covering != 1 {
		t.Errorf("scope all: %+v", s)
	}
	wide.Detach()
	if s := say("detached"); s.Covering != 0 {
		t.Errorf("detached: %+v", s)
	}
}

// TestSayAs: whoever speaks is named by email, name or id, in any case.
func TestSayAs(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	p := g.plaza(true)
	path := "/rooms/" + p.room.ID + "/messages"
	for i, as := range []string{"BEN", "Ben@Example.com", p.ben.ID} {
		var ben postedPublic
		g.ok(http.StatusCreated, "POST", path, fmt.Sprintf(`{"body":"hi","request_id":"as-%d","as":%q}`, i, as), &ben)
		if ben.Item.Sender.Name != "Ben" {
			t.Errorf("as %s: %+v", as, ben.Item.Sender)
		}
	}
	for _, email := range []string{"one@example.com", "two@example.com"} {
		g.ok(http.StatusCreated, "POST", "/people", `{"name":"Twin","email":"`+email+`"}`, nil)
	}
	for as, want := range map[string]struct {
		status int
		text   string
	}{"zed": {404, `no person \"zed\"`}, "zed@example.com": {404, `no person \"zed@example.com\"`}, "TWIN": {409, "several people"}} {
		a := g.do(g.admin, "POST", path, `{"body":"hi","request_id":"r","as":"`+as+`"}`)
		if a.status != want.status || !strings.Contains(a.body, want.text) {
			t.Errorf("as %s: %d %s", as, a.status, a.body)
		}
	}
}

// TestRoomListNamesOwners: the list tells the owner's name as one room does.
func TestRoomListNamesOwners(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	p := g.plaza(true)
	var list []roomPublic
	var one roomPublic
	g.ok(http.StatusOK, "GET", "/rooms", "", &list)
	g.ok(http.StatusOK, "GET", "/rooms/"+p.room.ID, "", &one)
	if len(list) != 1 || list[0].Owner == nil || list[0].Owner.Name == "" || *list[0].Owner != *one.Owner {
		t.Errorf("list %+v, one %+v", list, one.Owner)
	}
}

func TestExplainRoute(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	p := g.plaza(false)
	explained := func(itemID string) itemExplanation {
		var e itemExplanation
		g.ok(http.StatusOK, "GET", "/rooms/messages/"+itemID+"/explain?agent="+p.agent.ID, "", &e)
		return e
	}
	first := g.said(p, "@build-bot hi", "r-1")
	e := explained(first.ID)
	if e.Code != "offline" || e.Queued == nil || e.Queued.Sequence != 1 || e.Addressed == nil || !e.Addressed.Value || e.Addressed.Rule != "name" {
		t.Errorf("offline: %+v", e)
	}
	var ben postedPublic
	g.ok(http.StatusCreated, "POST", "/rooms/"+p.room.ID+"/messages", `{"body":"@build-bot hi","request_id":"b","as":"ben@example.com"}`, &ben)
	if e := explained(ben.Item.ID); e.Addressed == nil || e.Addressed.Value || e.Addressed.Rule != "policy" ||
		!strings.Contains(e.Addressed.Text, "signalbox roomagents policy build-bot --open") {
		t.Errorf("owner-only: %+v", e)
	}
	s := g.connect(p, func(q *connection.Request) { q.StartHead, q.After = false, 0 })
	if e := explained(first.ID); e.Code != "waiting" || len(e.Connections) != 1 {
		t.Errorf("waiting: %+v", e)
	}
	s.Delivered(1, 1, 1)
	s.Skipped(2, 2, connection.SkipFiltered)
	s.SetCursor(2)
	if e := explained(first.ID); e.Code != "delivered" || len(e.Deliveries) != 1 || e.Deliveries[0].ConnectionID != "5d0c1c3e" {
		t.Errorf("delivered: %+v", e)
	}
	if e := explained(ben.Item.ID); e.Code != "filtered" {
		t.Errorf("filtered: %+v", e)
	}
	for i := range 7 { // more than the buffer keeps
		g.said(p, "chatter", fmt.Sprint("c-", i))
	}
	if e := explained(first.ID); e.Code != "dropped" || e.DroppedThrough < 1 || e.Queued != nil {
		t.Errorf("dropped: %+v", e)
	}
	g.ok(http.StatusNoContent, "DELETE", "/rooms/"+p.room.ID+"/agents/"+p.agent.ID, "", nil)
	if e := explained(first.ID); e.Code != "not_member" {
		t.Errorf("not a member: %+v", e)
	}
	g.ok(http.StatusOK, "POST", "/rooms/"+p.room.ID+"/agents", `{"agent_ids":["`+p.agent.ID+`"]}`, nil)
	if e := explained(first.ID); e.Code != "joined_late" {
		t.Errorf("joined late: %+v", e)
	}
}

func TestConnectionRoutes(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	p := g.plaza(true)
	name, version, speaks := "agent-runtime", "0.8.0", 8
	s := g.connect(p, func(q *connection.Request) {
		q.Rooms, q.Scope = []uuid.UUID{uuid.MustParse(p.room.ID)}, connection.ScopeSingle
		q.Declared = connection.Declaration{Speaks: &speaks, Artifact: &name, Version: &version}
	})
	g.said(p, "one", "r-1")
	g.said(p, "two", "r-2")
	s.SetCursor(1)
	var c connectionPublic
	g.ok(http.StatusOK, "GET", "/connections/5d0c1c3e", "", &c)
	if c.Head != 2 || c.Cursor != 1 || c.Lag != 1 || c.Generation != s.Generation() || len(c.Claims) != 1 || c.Claims[0].Name != "plaza" ||
		c.Protocol != 8 || *c.Client != "agent-runtime" || *c.ClientVersion != "0.8.0" || c.Agent.Name != "build-bot" || !c.Attached {
		t.Errorf("connection %+v", c)
	}
	var list []connectionPublic
	g.ok(http.StatusOK, "GET", "/connections?agent="+p.agent.ID, "", &list)
	if len(list) != 1 {
		t.Errorf("connections of the agent: %+v", list)
	}
	for _, path := range []string{"/connections?agent=" + uuid.NewString(), "/connections/other"} {
		if a := g.do(g.admin, "GET", path, ""); a.status != http.StatusNotFound {
			t.Errorf("GET %s: %d", path, a.status)
		}
	}
	g.ok(http.StatusNoContent, "DELETE", "/connections/5d0c1c3e", "", nil)
	if a := g.ok(http.StatusOK, "GET", "/audit?action_prefix=room_connection", "", nil); !strings.Contains(a.body, `"room_connection.evicted"`) ||
		!strings.Contains(a.body, "5d0c1c3e") {
		t.Errorf("audit of the eviction: %s", a.body)
	}
	if end := s.Pass().End; end == nil || end.Code != "closed" {
		t.Errorf("the evicted stream ends with %+v", end)
	}
	if a := g.do(g.admin, "DELETE", "/connections/5d0c1c3e", ""); a.status != http.StatusNotFound {
		t.Errorf("evict again: %d", a.status)
	}
}

func TestRoomAgentKeys(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	p := g.plaza(false)
	ctx := t.Context()
	var reg registeredPublic
	g.ok(http.StatusCreated, "POST", "/room-agents", `{"name":"coder","type":"codex","owner_id":"`+p.ben.ID+`"}`, &reg)
	if reg.Agent.Owner.Name != "Ben" || *reg.Agent.Type != "codex" || reg.Agent.OpenCommand == nil || reg.Rotated {
		t.Errorf("registered %+v", reg.Agent)
	}
	if _, err := g.rooms.identity.AuthenticateAgent(ctx, "Bearer "+reg.APIKey); err != nil {
		t.Error(err)
	}
	var rotated registeredPublic
	g.ok(http.StatusOK, "POST", "/room-agents/"+reg.Agent.ID+"/rotate", "", &rotated)
	if _, err := g.rooms.identity.AuthenticateAgent(ctx, "Bearer "+reg.APIKey); err == nil {
		t.Error("the old key is still good")
	}
	if _, err := g.rooms.identity.AuthenticateAgent(ctx, "Bearer "+rotated.APIKey); err != nil || *rotated.Agent.Type != "codex" {
		t.Errorf("the new key: %v, %+v", err, rotated.Agent)
	}
	var key struct {
		ID, Key string
	}
	a := g.ok(http.StatusCreated, "POST", "/registration-keys", `{"label":"laptop","person_id":"`+p.ben.ID+`"}`, &key)
	if got := keys(t, a.body); got != "id kind label person created_at revoked_at key" {
		t.Errorf("minted key: %s", got)
	}
	if by, err := g.rooms.identity.AuthenticateRegistrant(ctx, "Bearer "+key.Key); err != nil || by.Owner.Name != "Ben" {
		t.Errorf("registrant %+v, %v", by, err)
	}
	if a := g.ok(http.StatusOK, "GET", "/registration-keys", "", nil); strings.Contains(a.body, key.Key) || !strings.Contains(a.body, "laptop") {
		t.Errorf("keys: %s", a.body)
	}
	g.ok(http.StatusNoContent, "DELETE", "/registration-keys/"+key.ID, "", nil)
	if a := g.ok(http.StatusOK, "GET", "/registration-keys", "", nil); a.body != "[]\n" {
		t.Errorf("keys after revoking: %s", a.body)
	}
	g.ok(http.StatusNoContent, "DELETE", "/room-agents/"+reg.Agent.ID, "", nil)
	if a := g.do(g.admin, "GET", "/room-agents/"+reg.Agent.ID, ""); a.status != http.StatusNotFound {
		t.Errorf("deleted agent: %d", a.status)
	}
	// The audit rows name the key that acted.
	if a := g.ok(http.StatusOK, "GET", "/audit?action_prefix=room_agent", "", nil); !strings.Contains(a.body, `"source_ip":"192.0.2.1"`) ||
		strings.Contains(a.body, rotated.APIKey) {
		t.Errorf("audit: %s", a.body)
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	p := g.plaza(true)
	g.connect(p, nil)
	for query, want := range map[string]string{
		"kind=room&text=plaza": p.room.ID, "kind=room&text=" + p.room.ID: p.room.ID,
		"kind=room&text=" + strings.ReplaceAll(p.room.ID, "-", "")[:20]: p.room.ID,
		"kind=room&text=plaz": "", "kind=room&text=" + p.room.ID[:3]: "",
		"kind=room_agent&text=build-bot": p.agent.ID, "kind=person&text=ben@example.com": p.ben.ID, "kind=person&text=Ben": p.ben.ID,
		"kind=person&text=BEN": p.ben.ID, "kind=person&text=Ben@Example.com": p.ben.ID, "kind=room&text=PLAZA": "", "kind=person&text=zed": "",
		"kind=connection&text=5d0c": "5d0c1c3e", "kind=connection&text=5d0": "",
	} {
		var out struct{ Matches []namedPublic }
		g.ok(http.StatusOK, "GET", "/resolve?"+query, "", &out)
		got := ""
		if len(out.Matches) == 1 {
			got = out.Matches[0].ID
		}
		if got != want || len(out.Matches) > 1 {
			t.Errorf("%s: %+v, want %q", query, out.Matches, want)
		}
	}
	viewer := g.key(agent.NewAPIKey{Role: agent.Viewer})
	if a := g.do(viewer, "GET", "/resolve?kind=registration_key&text=laptop", ""); a.status != http.StatusForbidden {
		t.Errorf("registration keys for a viewer: %d", a.status)
	}
}
