package commands

import (
	"net/http"
	"strings"

	"github.com/google/uuid"
)

func (f *fakeServer) routes() {
	f.mux = http.NewServeMux()
	handle := func(pattern string, h func(http.ResponseWriter, *http.Request)) {
		method, path, _ := strings.Cut(pattern, " ")
		f.mux.HandleFunc(method+" /api/v1"+path, h)
	}
	// locked runs a handler under the lock; streams lock for themselves.
	locked := func(pattern string, h func(http.ResponseWriter, *http.Request)) {
		handle(pattern, func(w http.ResponseWriter, r *http.Request) {
			f.mu.Lock()
			defer f.mu.Unlock()
			h(w, r)
		})
	}
	inProject := func(pattern string, h func(http.ResponseWriter, *http.Request, object)) {
		method, path, _ := strings.Cut(pattern, " ")
		locked(method+" /projects/{slug}"+path, func(w http.ResponseWriter, r *http.Request) {
			p := find(f.projects, "slug", r.PathValue("slug"))
			if p == nil || p["is_active"] != true {
				f.notFound(w, "project")
				return
			}
			h(w, r, p)
		})
	}
	f.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { f.notFound(w, "route") })
	f.serverRoutes(locked)
	f.projectRoutes(locked, inProject)
	f.commandRoutes(inProject)
	f.roomRoutes(locked)
	f.archiveRoutes(locked, handle)
	stream := func(path string, h func(http.ResponseWriter, *http.Request)) {
		handle("GET /projects/{slug}"+path, func(w http.ResponseWriter, r *http.Request) {
			f.mu.Lock()
			missing := find(f.projects, "slug", r.PathValue("slug")) == nil
			f.mu.Unlock()
			if missing {
				f.notFound(w, "project")
				return
			}
			h(w, r)
		})
	}
	stream("/commands/stream", func(w http.ResponseWriter, r *http.Request) {
		started := func() { f.finishOnWatch(r.URL.Query().Get("command_id")) }
		f.stream(w, r, started, func() []object { return f.transitions }, func(rec object) bool {
			c := rec["command"].(object)
			id := r.URL.Query().Get("command_id")
			return (id == "" || c["id"] == id) && matches(rec, r, map[string]string{"status": "status"})
		})
	})
	stream("/events/stream", func(w http.ResponseWriter, r *http.Request) {
		f.stream(w, r, func() {}, func() []object {
			recs := []object{}
			for _, e := range f.events {
				recs = append(recs, object{"type": "event", "event": e})
			}
			return recs
		}, func(rec object) bool {
			return matches(rec["event"].(object), r, map[string]string{"kind": "kind", "task_id": "task_id"})
		})
	})
}

type lockedRoute func(string, func(http.ResponseWriter, *http.Request))
type projectRoute func(string, func(http.ResponseWriter, *http.Request, object))

func (f *fakeServer) serverRoutes(locked lockedRoute) {
	locked("GET /health/ready", func(w http.ResponseWriter, _ *http.Request) {
		if len(f.degraded) > 0 {
			answer(w, 503, object{"status": "unready", "reason": f.degraded[0]})
			return
		}
		answer(w, 200, object{"status": "ok"})
	})
	locked("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		reasons := f.degraded
		if reasons == nil {
			reasons = []string{}
		}
		answer(w, 200, object{"version": "1.0.0", "started_at": now(), "epoch": f.epoch, "degraded": reasons,
			"store":    object{"path": "/data/signalbox.db", "size_bytes": 4096, "wal_bytes": 0, "schema_version": 1},
			"sessions": object{"ws": 1, "longpoll": 0}, "agents": object{"online": 1, "total": len(f.agents)},
			"commands": object{"pending": 0, "dispatched": 0}})
	})
	locked("POST /audit/verify", func(w http.ResponseWriter, _ *http.Request) {
		v := object{"ok": !f.auditBroken, "checked": 7, "first_seq": 1, "last_seq": 7, "broken": nil}
		if f.auditBroken {
			v["broken"] = object{"seq": 5, "reason": "the chain value differs"}
		}
		answer(w, 200, v)
	})
	locked("GET /audit", func(w http.ResponseWriter, r *http.Request) {
		f.page(w, r, []object{{"id": uuid.NewString(), "action": "agent.token.minted", "outcome": "allow", "occurred_at": now()}})
	})
	locked("GET /api-keys", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, f.keys) })
	locked("POST /api-keys", func(w http.ResponseWriter, r *http.Request) {
		body := readBody(r)
		k := object{"id": uuid.NewString(), "name": body["name"], "prefix": "z4k_abcd", "role": body["role"], "scopes": []string{},
			"project_id": body["project_id"], "created_at": now(), "expires_at": nil, "last_used_at": nil}
		f.keys = append(f.keys, k)
		shown := object{"token": "z4k_" + secretText()}
		for name, v := range k {
			shown[name] = v
		}
		answer(w, 201, shown)
	})
	locked("DELETE /api-keys/{id}", func(w http.ResponseWriter, r *http.Request) {
		if find(f.keys, "id", r.PathValue("id")) == nil {
			f.notFound(w, "API key")
			return
		}
		answer(w, 204, nil)
	})
}

func (f *fakeServer) projectRoutes(locked lockedRoute, inProject projectRoute) {
	locked("GET /projects", func(w http.ResponseWriter, r *http.Request) {
		out := []object{}
		for _, p := range f.projects {
			if p["is_active"] == true || r.URL.Query().Get("include_archived") == "true" {
				out = append(out, p)
			}
		}
		answer(w, 200, out)
	})
	locked("POST /projects", func(w http.ResponseWriter, r *http.Request) {
		body := readBody(r)
		slug, name := body["slug"].(string), body["name"].(string)
		if find(f.projects, "slug", slug) != nil {
			f.fail(w, reply{status: 409, code: "conflict", message: "slug is taken", details: object{"slug": slug}})
			return
		}
		answer(w, 201, f.addProject(slug, name))
	})
	locked("PATCH /projects/{slug}", func(w http.ResponseWriter, r *http.Request) {
		p := find(f.projects, "slug", r.PathValue("slug"))
		if p == nil {
			f.notFound(w, "project")
			return
		}
		for k, v := range readBody(r) {
			p[k] = v
		}
		answer(w, 200, p)
	})
	inProject("DELETE ", func(w http.ResponseWriter, _ *http.Request, p object) {
		p["is_active"] = false
		answer(w, 204, nil)
	})
	inProject("GET ", func(w http.ResponseWriter, _ *http.Request, p object) { answer(w, 200, p) })
	inProject("GET /agents", func(w http.ResponseWriter, _ *http.Request, _ object) { answer(w, 200, f.agents) })
	inProject("POST /agents", func(w http.ResponseWriter, r *http.Request, p object) {
		name := readBody(r)["name"].(string)
		if find(f.agents, "name", name) != nil {
			f.fail(w, reply{status: 409, code: "conflict", message: "name is taken", details: object{"name": name}})
			return
		}
		a := object{"id": uuid.NewString(), "project_id": p["id"], "name": name, "state": "unknown", "protocol_version": "0",
			"framework_adapter": "unknown", "engine_adapters": []string{}, "scheduler_adapters": []string{},
			"capabilities": object{}, "last_seen_at": nil, "last_connect_at": nil, "created_at": now(), "a_later_field": 1}
		f.agents = append(f.agents, a)
		answer(w, 201, object{"agent": a, "token": "tok_" + secretText(), "hmac_secret": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTEyMzQ="})
	})
	inProject("GET /agents/{id}", func(w http.ResponseWriter, r *http.Request, _ object) {
		if a := find(f.agents, "id", r.PathValue("id")); a != nil {
			answer(w, 200, a)
			return
		}
		f.notFound(w, "agent")
	})
	inProject("DELETE /agents/{id}", func(w http.ResponseWriter, r *http.Request, _ object) {
		answer(w, 204, nil)
	})
	inProject("GET /resolve", func(w http.ResponseWriter, r *http.Request, _ object) {
		list := map[string][]object{"agent": f.agents, "command": f.commands, "event": f.events}[r.URL.Query().Get("kind")]
		prefix := r.URL.Query().Get("prefix")
		ids := []string{}
		for _, o := range list {
			bare := strings.ReplaceAll(o["id"].(string), "-", "")
			if o["name"] == prefix || (len(prefix) >= 4 && strings.HasPrefix(bare, strings.ReplaceAll(prefix, "-", ""))) {
				ids = append(ids, o["id"].(string))
			}
		}
		answer(w, 200, object{"ids": ids[:min(len(ids), 10)]})
	})
	inProject("GET /events", func(w http.ResponseWriter, r *http.Request, _ object) {
		f.page(w, r, newestFirst(f.events, r, map[string]string{"kind": "kind", "engine": "engine", "task_id": "task_id"}))
	})
	inProject("GET /workers", func(w http.ResponseWriter, _ *http.Request, _ object) { answer(w, 200, []object{}) })
	inProject("GET /queues", func(w http.ResponseWriter, _ *http.Request, _ object) {
		answer(w, 200, append([]object{}, f.queues...))
	})
	inProject("GET /audit", func(w http.ResponseWriter, r *http.Request, _ object) { f.page(w, r, nil) })
	inProject("GET /tasks", func(w http.ResponseWriter, r *http.Request, _ object) { f.page(w, r, nil) })
	inProject("GET /tasks/{engine}/{id}", func(w http.ResponseWriter, r *http.Request, _ object) {
		if find(f.events, "task_id", r.PathValue("id")) == nil {
			f.notFound(w, "task")
			return
		}
		answer(w, 200, object{"engine": r.PathValue("engine"), "task_id": r.PathValue("id"), "name": "app.add", "state": "success"})
	})
}

func (f *fakeServer) commandRoutes(inProject projectRoute) {
	inProject("GET /commands", func(w http.ResponseWriter, r *http.Request, _ object) {
		f.page(w, r, newestFirst(f.commands, r, map[string]string{"status": "status", "action": "action", "agent_id": "agent_id"}))
	})
	inProject("GET /commands/{id}", func(w http.ResponseWriter, r *http.Request, _ object) {
		if c := find(f.commands, "id", r.PathValue("id")); c != nil {
			answer(w, 200, c)
			return
		}
		f.notFound(w, "command")
	})
	inProject("POST /commands", f.issue)
	inProject("POST /commands/{route}", f.issue)
	inProject("POST /commands/{id}/cancel", func(w http.ResponseWriter, r *http.Request, _ object) {
		c := find(f.commands, "id", r.PathValue("id"))
		if c == nil {
			f.notFound(w, "command")
			return
		}
		if c["status"] != "pending" && c["status"] != "dispatched" {
			f.fail(w, reply{status: 409, code: "conflict", message: "the command is finished"})
			return
		}
		f.transition(c, "cancelled", "cancelled")
		answer(w, 200, c)
	})
	inProject("GET /commands/{id}/explain", func(w http.ResponseWriter, r *http.Request, _ object) {
		c := find(f.commands, "id", r.PathValue("id"))
		if c == nil {
			f.notFound(w, "command")
			return
		}
		answer(w, 200, object{"command": c, "summary": "Pending: no session of the agent is connected.",
			"sentences":   []string{"The agent has never connected."},
			"waiting_for": "agent", "candidates": []object{{"session_id": "s-1", "transport": "ws", "worker_id": nil,
				"eligible": false, "reason": "closing"}},
			"next":       object{"what": "the command times out", "at": "2030-01-01T00:00:00Z"},
			"deliveries": []object{{"attempt": 1, "transport": "ws", "outcome": "send_failed", "reason": "socket closed"}},
			"timeline":   []object{}})
	})
}

// issue takes a command the way admission does: 404 for an unknown agent, 503 and a kept row for an offline one.
func (f *fakeServer) issue(w http.ResponseWriter, r *http.Request, p object) {
	body := readBody(r)
	agent := find(f.agents, "id", body["agent_id"].(string))
	if agent == nil {
		f.notFound(w, "agent")
		return
	}
	action, ok := body["action"].(string)
	if !ok {
		action = strings.ReplaceAll(r.PathValue("route"), "-", "_")
	}
	if key := body["idempotency_key"]; key != nil {
		for _, c := range f.commands {
			if c["idempotency_key"] == key {
				answer(w, 202, c)
				return
			}
		}
	}
	payload, ok := body["payload"]
	if !ok {
		payload = body
	}
	c := object{"id": uuid.NewString(), "project_id": p["id"], "agent_id": agent["id"], "action": action, "target_type": "task",
		"target_id": body["target_id"], "payload": payload, "status": "pending", "result": nil, "error": nil,
		"issued_at": now(), "timeout_at": now(), "idempotency_key": body["idempotency_key"]}
	f.commands = append(f.commands, c)
	f.transition(c, "issued", "pending")
	if agent["state"] != "online" {
		f.fail(w, reply{status: 503, code: "agent_offline", message: "agent is offline", details: object{"command_id": c["id"]}})
		return
	}
	if f.autoResult != "" {
		f.transition(c, f.autoResult, f.autoResult)
	}
	answer(w, 202, c)
}

func (f *fakeServer) finishOnWatch(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := find(f.commands, "id", id); c != nil && f.onWatch != "" {
		f.transition(c, f.onWatch, f.onWatch)
	}
}
