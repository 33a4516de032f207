package api

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
)

// url fills the placeholders of a route: an existing project, and ids that do not exist, so that no request of the
// matrix changes anything.
func (rt *route) url(slug string) string {
	return strings.NewReplacer("{slug}", slug, "{id}", uuid.NewString(), "{agent}", uuid.NewString(),
		"{person}", uuid.NewString(), "{target}", uuid.NewString(), "{role}", "none", "{engine}", "celery", "{task_id}", "none").
		Replace(rt.path) + map[bool]string{true: "?follow=false"}[strings.HasSuffix(rt.path, "/stream")]
}

// admitted tells whether an answer came from behind the check of rights.
func admitted(status int) bool {
	return status != http.StatusUnauthorized && status != http.StatusForbidden
}

// TestRights asks every route with every role, and with every scope that is and is not its own.
func TestRights(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	type holder struct {
		name   string
		key    string
		role   agent.Role
		scopes []string
		bound  bool
	}
	var holders []holder
	for _, role := range []agent.Role{agent.Viewer, agent.Auditor, agent.Operator, agent.Admin} {
		for _, scopes := range [][]string{{"admin:*"}, agent.DefaultScopes(role), {"home:read", "projects:read", "agents:read",
			"commands:read", "tasks:read", "workers:read", "queues:read", "audit:read", "auth:read"}, {"notifications:write"}} {
			n := agent.NewAPIKey{Role: role, Scopes: scopes}
			holders = append(holders, holder{"all projects", g.key(n), role, scopes, false})
			n.ProjectID = &g.project.ID
			holders = append(holders, holder{"bound", g.key(n), role, scopes, true})
		}
	}
	for _, rt := range routes() {
		if rt.method == "DELETE" && rt.path == "/projects/{slug}" {
			continue // it would archive: TestProjects
		}
		if got := g.do("", rt.method, rt.url("one"), ""); got.status != http.StatusUnauthorized ||
			got.header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%s %s without a key: %d %v", rt.method, rt.path, got.status, got.header)
		}
		for _, h := range holders {
			want := mayCall(rt, h.role, h.scopes, h.bound)
			got := g.do(h.key, rt.method, rt.url("one"), "")
			if admitted(got.status) != want {
				t.Errorf("%s %s by %s %s %v: %d, want admitted %v: %s", rt.method, rt.path, h.name, h.role, h.scopes,
					got.status, want, got.body)
			}
			if rt.where == inProject && h.bound {
				if got := g.do(h.key, rt.method, rt.url("two"), ""); rt.resource != "" && got.status != http.StatusForbidden {
					t.Errorf("%s %s by a key of another project: %d", rt.method, rt.path, got.status)
				}
			}
		}
		if rt.where == inProject {
			for _, slug := range []string{"nobody", "UPPER", "%20", "a"} {
				if got := g.do(g.admin, rt.method, rt.url(slug), "{}"); got.status != http.StatusNotFound {
					t.Errorf("%s %s of project %q: %d", rt.method, rt.path, slug, got.status)
				}
			}
		}
	}
}

// mayCall is agent protocol H.1 in another spelling than the code's.
func mayCall(rt route, role agent.Role, scopes []string, bound bool) bool {
	if rt.local {
		return false // no key, whatever it may do
	}
	if rt.where == anywhere || rt.resource == "" {
		return true
	}
	if bound && rt.where == everywhere {
		return false
	}
	resource := rt.resource
	if resource == "events" || resource == "failures" {
		resource = "tasks"
	}
	scoped := slices.Contains(scopes, "admin:*") || slices.Contains(scopes, resource+":write") ||
		!rt.write && slices.Contains(scopes, resource+":read")
	able := map[agent.Role][]agent.Role{
		agent.Viewer:   {agent.Viewer, agent.Auditor, agent.Operator, agent.Admin},
		agent.Operator: {agent.Operator, agent.Admin},
		agent.Admin:    {agent.Admin},
		agent.Auditor:  {agent.Auditor, agent.Admin},
	}[rt.role]
	return scoped && slices.Contains(able, role)
}

// TestTable holds the table to the sections of the protocol that have no test of their own.
func TestTable(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, rt := range routes() {
		name := rt.method + " " + rt.path
		if seen[name] {
			t.Errorf("%s is there twice", name)
		}
		seen[name] = true
		if rt.doc.group == "" || rt.doc.answer == "" || rt.role == "" {
			t.Errorf("%s lacks group, answer or role", name)
		}
		if rt.where == inProject != strings.HasPrefix(rt.path, "/projects/{slug}") && rt.method != "DELETE" {
			t.Errorf("%s: the project of the path is not the one of the right", name)
		}
		if rt.write && rt.method == "GET" {
			t.Errorf("%s: a GET writes", name)
		}
	}
	for _, name := range []string{"retry-task", "cancel-task", "requeue-dead-letter", "bulk-retry", "purge-queue",
		"restart-worker", "pool-resize", "add-consumer", "cancel-consumer", "rate-limit"} {
		if !seen["POST /projects/{slug}/commands/"+name] {
			t.Errorf("no route for %s", name)
		}
	}
}

func TestUnknownPath(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	for _, path := range []string{"/nothing", "/projects/one/nothing", "/projects/one/agents/x/y/z"} {
		a := g.do(g.admin, "GET", path, "")
		if a.status != http.StatusNotFound || !strings.Contains(a.body, `"error":"not_found"`) ||
			a.header.Get("Content-Type") != "application/json" {
			t.Errorf("GET %s: %d %s", path, a.status, a.body)
		}
	}
	if a := g.do(g.admin, "PUT", "/projects", ""); a.status != http.StatusMethodNotAllowed || a.header.Get("Allow") == "" {
		t.Errorf("PUT /projects: %d %v", a.status, a.header)
	}
	a := g.do(g.admin, "GET", "/whoami", "")
	if id := a.header.Get("X-Request-Id"); !strings.HasPrefix(id, "req_") {
		t.Errorf("request id %q", id)
	}
	a = g.do(g.admin, "GET", "/projects/none", "")
	if id := a.header.Get("X-Request-Id"); !strings.Contains(a.body, `"request_id":"`+id+`"`) {
		t.Errorf("request id %q is not in %s", id, a.body)
	}
}
