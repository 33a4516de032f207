package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
)

// TestRefusals sends one bad input each and checks status, the field that the detail array names, and that the database
// is as before.
func TestRefusals(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.online()
	cmd := g.issue("t-1")
	long := func(n int) string { return strings.Repeat("x", n) }
	ag := `"agent_id":"` + g.agent.ID.String() + `"`
	for _, c := range []struct {
		method, path, body string
		status             int
		loc                string // where, then field
	}{
		{"POST", "/projects", ``, 422, "body"},
		{"POST", "/projects", `[]`, 422, "body"},
		{"POST", "/projects", `{"slug":"abc","name":"n",}`, 422, "body"},
		{"POST", "/projects", `{"name":"n"}`, 422, "body slug"},
		{"POST", "/projects", `{"slug":"abc"}`, 422, "body name"},
		{"POST", "/projects", `{"slug":7,"name":"n"}`, 422, "body slug"},
		{"POST", "/projects", `{"slug":"-abc","name":"n"}`, 409, ""},
		{"POST", "/projects", `{"slug":"one","name":"n"}`, 409, ""},
		{"POST", "/projects", `{"slug":"abc","name":"` + long(201) + `"}`, 422, "body name"},
		{"POST", "/projects", `{"slug":"abc","name":"n","retention_days":0}`, 422, "body retention_days"},
		{"POST", "/projects", `{"slug":"abc","name":"n","retention_days":1.5}`, 422, "body retention_days"},
		{"POST", "/projects", `{"slug":"abc","name":"n","allowed_schedulers":"z"}`, 422, "body allowed_schedulers"},
		{"POST", "/projects", `{"slug":"abc","name":"n","allowed_schedulers":[1]}`, 422, "body allowed_schedulers"},
		{"PATCH", "/projects/one", `{"timezone":"%"}`, 422, "body timezone"},
		{"PATCH", "/projects/one", `{"slug":"two"}`, 409, ""},
		{"PATCH", "/projects/one", `{"is_active":false}`, 422, "body is_active"},
		{"PATCH", "/projects/one", `{"is_active":"yes"}`, 422, "body is_active"},
		{"PATCH", "/projects/one", `{"is_active":true,"name":"new"}`, 422, "body is_active"},
		{"GET", "/projects?include_archived=maybe", ``, 422, "query include_archived"},
		{"POST", "/projects/one/agents", `{}`, 422, "body name"},
		{"POST", "/projects/one/agents", `{"name":""}`, 422, "body name"},
		{"POST", "/projects/one/agents", `{"name":"worker-1"}`, 409, ""},
		{"DELETE", "/projects/one/agents/7", ``, 422, "path id"},
		{"DELETE", "/projects/one/agents/" + uuid.NewString(), ``, 404, ""},
		{"GET", "/projects/one/agents/" + uuid.NewString() + "/health", ``, 404, ""},
		{"GET", "/projects/one/agents?include_revoked=2", ``, 422, "query include_revoked"},
		{"POST", "/api-keys", `{"role":"viewer"}`, 422, "body name"},
		{"POST", "/api-keys", `{"name":"k"}`, 422, "body role"},
		{"POST", "/api-keys", `{"name":"k","role":null,"scopes":["tasks:read"]}`, 422, "body role"},
		{"POST", "/api-keys", `{"name":"k","role":"root"}`, 422, "body role"},
		{"POST", "/api-keys", `{"name":"k","role":"viewer","scopes":["all"]}`, 422, "body scopes"},
		{"POST", "/api-keys", `{"name":"k","role":"viewer","expires_in_days":3651}`, 422, "body expires_in_days"},
		{"POST", "/api-keys", `{"name":"k","role":"viewer","project_id":"one"}`, 422, "body project_id"},
		{"POST", "/api-keys", `{"name":"k","role":"viewer","project_id":"` + uuid.NewString() + `"}`, 422, "body project_id"},
		{"DELETE", "/api-keys/x", ``, 422, "path id"},
		{"DELETE", "/api-keys/" + uuid.NewString(), ``, 404, ""},
		{"GET", "/projects/one/resolve?prefix=abcd", ``, 422, "query kind"},
		{"GET", "/projects/one/resolve?kind=agent", ``, 422, "query prefix"},
		{"GET", "/projects/one/resolve?kind=moon&prefix=abcd", ``, 422, "query kind"},

		{"POST", "/projects/one/commands/cancel-task", `{"engine":"celery","task_id":"t"}`, 422, "body agent_id"},
		{"POST", "/projects/one/commands/cancel-task", `{"agent_id":"x","engine":"celery","task_id":"t"}`, 422, "body agent_id"},
		{"POST", "/projects/one/commands/cancel-task", `{"agent_id":"` + uuid.NewString() + `","engine":"celery","task_id":"t"}`, 404, ""},
		{"POST", "/projects/one/commands/cancel-task", `{` + ag + `,"task_id":"t"}`, 422, "body engine"},
		{"POST", "/projects/one/commands/cancel-task", `{` + ag + `,"engine":"rq","task_id":"t"}`, 422, "admission"},
		{"POST", "/projects/one/commands/cancel-task", `{` + ag + `,"engine":"celery","task_id":""}`, 422, "body task_id"},
		{"POST", "/projects/one/commands/cancel-task", `{` + ag + `,"engine":"celery","task_id":"t","idempotency_key":""}`, 422, "body idempotency_key"},
		{"POST", "/projects/one/commands/retry-task", `{` + ag + `,"engine":"celery","task_id":"t","override_args":[]}`, 422, "body override_args"},
		{"POST", "/projects/one/commands/retry-task", `{` + ag + `,"engine":"celery","task_id":"t","eta_seconds":86401}`, 422, "body eta_seconds"},
		{"POST", "/projects/one/commands/bulk-retry", `{` + ag + `,"filter":{"engine":"celery"},"max":0}`, 422, "body max"},
		{"POST", "/projects/one/commands/bulk-retry", `{` + ag + `,"filter":{}}`, 400, "body filter"},
		{"POST", "/projects/one/commands/pool-resize", `{` + ag + `,"worker_name":"w","delta":0}`, 422, "body delta"},
		{"POST", "/projects/one/commands/rate-limit", `{` + ag + `,"task_name":"t","rate":"01/s"}`, 422, "body rate"},
		{"POST", "/projects/one/commands", `{` + ag + `,"payload":{}}`, 422, "body action"},
		{"POST", "/projects/one/commands", `{` + ag + `,"action":"format_disk"}`, 422, "body action"},
		{"POST", "/projects/one/commands", `{` + ag + `,"action":"cancel_task","payload":7}`, 422, "body payload"},
		{"POST", "/projects/one/commands", `{` + ag + `,"action":"cancel_task","when":1}`, 422, "body when"},
		{"POST", "/projects/one/commands/" + uuid.NewString() + "/cancel", ``, 404, ""},
		{"GET", "/projects/one/commands/xyz", ``, 422, "path id"},
		{"GET", "/projects/one/commands/" + uuid.NewString() + "/explain", ``, 404, ""},
		{"GET", "/projects/two/commands/" + cmd.String(), ``, 404, ""},
		{"GET", "/projects/one/commands?status=lost", ``, 422, "query status"},
		{"GET", "/projects/one/commands?agent_id=1", ``, 422, "query agent_id"},
		{"GET", "/projects/one/commands?since=yesterday", ``, 422, "query since"},
		{"GET", "/projects/one/commands?limit=0", ``, 422, "query limit"},
		{"GET", "/projects/one/commands?limit=5001", ``, 422, "query limit"},
		{"GET", "/projects/one/commands?limit=ten", ``, 422, "query limit"},
		{"GET", "/projects/one/commands/stream?cursor=abc", ``, 422, "query cursor"},
		{"GET", "/projects/one/commands/stream?cursor=01234567.-1", ``, 422, "query cursor"},
		{"GET", "/projects/one/events/stream?follow=perhaps", ``, 422, "query follow"},
		{"GET", "/projects/one/events?engine=" + long(41), ``, 422, "query engine"},
		{"GET", "/projects/one/events?task_id=", ``, 422, "query task_id"},
		{"GET", "/projects/one/tasks?state=dancing", ``, 422, "query state"},
		{"GET", "/projects/one/tasks?engine=celery", ``, 422, "query engine"},
		{"GET", "/projects/one/tasks?priority=urgent", ``, 422, "query priority"},
		{"GET", "/projects/one/tasks?format=ods", ``, 422, "query format"},
		{"GET", "/projects/one/tasks?format=csv&fields=name,shoe", ``, 422, "query fields"},
		{"GET", "/projects/one/tasks?format=csv&fields=name,name", ``, 422, "query fields"},
		{"GET", "/projects/one/tasks?fields=name", ``, 422, "query fields"},
		{"GET", "/projects/one/tasks/celery/none", ``, 404, ""},
		{"GET", "/projects/one/tasks/celery/none/tree", ``, 404, ""},
		{"GET", "/projects/one/workers/" + uuid.NewString(), ``, 404, ""},
		{"POST", "/projects/one/tasks/bulk-delete", `{}`, 422, "body task_ids"},
		{"POST", "/projects/one/tasks/bulk-delete", `{"task_ids":["x"]}`, 422, "body task_ids"},
		{"POST", "/projects/one/tasks/bulk-delete", `{"filter_stat":"failure"}`, 422, "body filter_stat"},
		{"POST", "/projects/one/tasks/bulk-delete", `{"filter_state":"gone"}`, 422, "body filter_state"},
		{"POST", "/projects/one/tasks/bulk-delete", `{"filter_since":"x"}`, 422, "body filter_since"},
		{"POST", "/projects/one/tasks/bulk-delete", `{"task_ids":[` + strings.TrimSuffix(strings.Repeat(`"a",`, 1001), ",") + `]}`, 422, "body task_ids"},
		{"GET", "/projects/one/audit?action_prefix=" + long(81), ``, 422, "query action_prefix"},
		{"GET", "/audit?outcome=" + long(21), ``, 422, "query outcome"},
	} {
		name := c.method + " " + c.path + " " + cut(c.body, 80)
		before := g.state()
		a := g.do(g.admin, c.method, c.path, c.body)
		if a.status != c.status {
			t.Errorf("%s: %d, want %d: %s", name, a.status, c.status, a.body)
			continue
		}
		if after := g.state(); after != before {
			t.Errorf("%s changed\n%s to\n%s", name, before, after)
		}
		if c.status == http.StatusUnprocessableEntity || c.status == http.StatusBadRequest {
			checkDetail(t, name, a.body, strings.Fields(c.loc))
		}
	}
}

// checkDetail holds a 422 to the field it must name; "admission" is the object that a refused command gets instead (agent
// protocol E.5).
func checkDetail(t *testing.T, name, text string, loc []string) {
	t.Helper()
	if len(loc) == 1 && loc[0] == "admission" {
		var env struct {
			Detail struct {
				Error, Engine, Action string
				AgentID               string `json:"agent_id"`
			}
		}
		if err := json.Unmarshal([]byte(text), &env); err != nil || env.Detail.Error == "" || env.Detail.Engine == "" ||
			env.Detail.Action == "" || env.Detail.AgentID == "" {
			t.Errorf("%s: %v: %s", name, err, text)
		}
		return
	}
	var env struct {
		Error   string
		Message string
		Detail  []struct {
			Loc []string
			Msg string
		}
	}
	if err := json.Unmarshal([]byte(text), &env); err != nil {
		t.Fatalf("%s: %v: %s", name, err, text)
	}
	if env.Error != "validation_error" || len(env.Detail) == 0 || env.Detail[0].Msg == "" ||
		!slices.Equal(env.Detail[0].Loc[:min(len(loc), len(env.Detail[0].Loc))], loc) {
		t.Errorf("%s: detail names %+v, want %v", name, env, loc)
	}
}

// TestEveryProblemIsNamed sends several bad fields at once.
func TestEveryProblemIsNamed(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	a := g.do(g.admin, "GET", "/projects/one/tasks?limit=0&state=x&since=y", "")
	for _, field := range []string{"limit", "state", "since"} {
		if !strings.Contains(a.body, `"loc":["query","`+field+`"]`) {
			t.Errorf("%s is not named in %s", field, a.body)
		}
	}
}

func TestNobodyGivesMoreThanTheyHave(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	bound := g.key(agent.NewAPIKey{Role: agent.Admin, ProjectID: &g.project.ID})
	before := g.state()
	for _, body := range []string{`{"name":"k","role":"admin"}`,
		fmt.Sprintf(`{"name":"k","role":"viewer","project_id":%q}`, uuid.New())} {
		if a := g.do(bound, "POST", "/api-keys", body); a.status != http.StatusForbidden {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
	if g.state() != before {
		t.Error("a refused key was made")
	}
	a := g.do(bound, "POST", "/api-keys", fmt.Sprintf(`{"name":"k","role":"viewer","project_id":%q}`, g.project.ID))
	if a.status != http.StatusCreated {
		t.Errorf("a key of its own project: %d %s", a.status, a.body)
	}
	a = g.ok(http.StatusCreated, "POST", "/api-keys", `{"name":"k","scopes":["tasks:read"]}`, nil)
	if !strings.Contains(a.body, `"role":"admin","scopes":["tasks:read"]`) {
		t.Errorf("a key by scopes alone: %s", a.body)
	}
}

// TestRoomRefusals is TestRefusals for the rooms plane.
func TestRoomRefusals(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	p := g.plaza(false)
	room, none := "/rooms/"+p.room.ID, "/rooms/"+uuid.NewString()
	before := g.state()
	for _, c := range []struct {
		method, path, body string
		status             int
		field              string
	}{
		{"POST", "/rooms", `{}`, 422, "name"},
		{"POST", "/rooms", `{"name":""}`, 422, "name"},
		{"POST", "/rooms", `{"name":7}`, 422, "name"},
		{"POST", "/rooms", `{"name":"x","channel_type":"lobby"}`, 422, "channel_type"},
		{"POST", "/rooms", `{"name":"x","read_visibility":"private","write_visibility":"public"}`, 422, "write_visibility"},
		{"POST", "/rooms", `{"name":"x","agent_ids":["y"]}`, 422, "agent_ids"},
		{"POST", "/rooms", `{"name":"x","agent_ids":["` + uuid.NewString() + `"]}`, 422, "agent_ids[0]"},
		{"POST", "/rooms", `{"name":"x","listening":"yes"}`, 422, "listening"},
		{"GET", none, ``, 404, ""},
		{"GET", "/rooms/x", ``, 422, "id"},
		{"GET", "/rooms?include_archived=7", ``, 422, "include_archived"},
		{"PATCH", room, `{"name":""}`, 422, "name"},
		{"PATCH", none, `{"name":"x"}`, 404, ""},
		{"POST", none + "/archive", ``, 404, ""},
		{"DELETE", none, ``, 404, ""},
		{"POST", room + "/agents", `{}`, 422, "agent_ids"},
		{"POST", room + "/agents", `{"agent_ids":["` + uuid.NewString() + `"]}`, 422, "agent_ids[0]"},
		{"POST", room + "/agents", `{"agent_ids":["` + p.agent.ID + `","` + uuid.NewString() + `"],"alias":"b"}`, 422, "alias"},
		{"POST", room + "/agents", `{"agent_ids":["` + p.agent.ID + `"],"alias":"no spaces"}`, 422, "alias"},
		{"PATCH", room + "/agents/" + p.agent.ID, `{}`, 422, "alias"},
		{"PATCH", room + "/agents/" + uuid.NewString(), `{"listening":true}`, 404, ""},
		{"DELETE", room + "/agents/" + uuid.NewString(), ``, 404, ""},
		{"POST", room + "/people", `{"person_ids":[]}`, 422, "person_ids"},
		{"POST", room + "/people", `{"person_ids":["` + uuid.NewString() + `"]}`, 422, "person_ids[0]"},
		{"DELETE", room + "/people/" + uuid.NewString(), ``, 404, ""},
		{"POST", room + "/roles", `{}`, 422, "name"},
		{"POST", room + "/roles", `{"name":"two words"}`, 422, "name"},
		{"PATCH", room + "/roles/none", `{"exclusive":true}`, 404, ""},
		{"DELETE", room + "/roles/none", ``, 404, ""},
		{"POST", room + "/links", `{}`, 422, "target_room_id"},
		{"POST", room + "/links", `{"target_room_id":"` + uuid.NewString() + `"}`, 422, "target_room_id"},
		{"DELETE", room + "/links/" + uuid.NewString(), ``, 422, "target_room_id"},
		{"GET", room + "/messages?limit=0", ``, 422, "limit"},
		{"GET", room + "/messages?after=-1", ``, 422, "after"},
		{"GET", room + "/messages?after=1&before=2", ``, 422, "before"},
		{"GET", room + "/messages/stream?cursor=x", ``, 422, "cursor"},
		{"GET", room + "/messages/stream?last=x", ``, 422, "last"},
		{"GET", none + "/messages/stream?follow=false", ``, 404, ""},
		{"GET", "/rooms/messages/" + uuid.NewString() + "/explain", ``, 422, "agent"},
		{"GET", "/rooms/messages/" + uuid.NewString() + "/explain?agent=" + p.agent.ID, ``, 404, ""},
		{"POST", "/room-agents", `{}`, 422, "name"},
		{"POST", "/room-agents", `{"name":"Not Good"}`, 422, "name"},
		{"POST", "/room-agents", `{"name":"everyone"}`, 422, "name"},
		{"POST", "/room-agents", `{"name":"build-bot"}`, 409, ""},
		{"POST", "/room-agents", `{"name":"x","connection_model":"sometimes"}`, 422, "connection_model"},
		{"POST", "/room-agents", `{"name":"x","type":"codex","connection_model":"always_on"}`, 422, "type"},
		{"POST", "/room-agents", `{"name":"x","type":"shoe"}`, 422, "type"},
		{"POST", "/room-agents", `{"name":"x","owner_id":"` + uuid.NewString() + `"}`, 422, "owner_id"},
		{"PUT", "/room-agents/" + p.agent.ID + "/policy", `{}`, 422, "policy"},
		{"PUT", "/room-agents/" + p.agent.ID + "/policy", `{"policy":[]}`, 422, "policy"},
		{"PUT", "/room-agents/" + p.agent.ID + "/policy", `{"policy":{"rules":[{"everybody":true}]}}`, 422, "policy.rules[0]"},
		{"PUT", "/room-agents/" + uuid.NewString() + "/policy", `{"policy":null}`, 404, ""},
		{"POST", "/registration-keys", `{"kind":"master"}`, 422, "kind"},
		{"POST", "/registration-keys", `{"person_id":"` + uuid.NewString() + `"}`, 422, "person_id"},
		{"POST", "/people", `{"name":"x"}`, 422, "email"},
		{"POST", "/people", `{"name":"x","email":"none"}`, 422, "email"},
		{"POST", "/people", `{"name":"x","email":"ben@example.com"}`, 409, ""},
		{"POST", "/people", `{"name":"x","email":"x@example.com","role":"root"}`, 422, "role"},
		{"POST", "/people", `{"name":"x","email":"x@example.com","password":"short"}`, 422, "password"},
		{"PUT", "/people/" + p.ben.ID + "/password", `{}`, 422, "password"},
		{"PUT", "/people/" + p.ben.ID + "/role", `{"role":"root"}`, 422, "role"},
		{"POST", "/people/" + uuid.NewString() + "/disable", ``, 404, ""},
		{"GET", "/resolve?kind=shoe&text=x", ``, 422, "kind"},
		{"GET", "/resolve?kind=room", ``, 422, "text"},
	} {
		a := g.do(g.admin, c.method, c.path, c.body)
		var env struct {
			Details map[string]any `json:"details"`
		}
		_ = json.Unmarshal([]byte(a.body), &env)
		if field := fmt.Sprint(env.Details["field"]); a.status != c.status || c.field != "" && field != c.field {
			t.Errorf("%s %s %s: %d %s, want %d about %q", c.method, c.path, c.body, a.status, a.body, c.status, c.field)
		}
		if strings.Contains(a.body, `"short"`) {
			t.Errorf("%s %s: a password is in the answer: %s", c.method, c.path, a.body)
		}
	}
	if after := g.state(); after != before {
		t.Errorf("refusals changed the database:\n%s\n%s", before, after)
	}
}
