package commands

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// fakeRooms is the rooms plane of the fake: faithful in shapes, statuses and who may address whom, not in delivery.
type fakeRooms struct {
	people      []object
	agents      []object // policies: key "policy", nil for open
	rooms       []object
	items       map[string][]object // of each room
	keys        []object
	connections []object
	posted      map[string]object // by request id
	covering    int               // connections that hear what is addressed
	loseAnswers int               // store this many posts and break the connection instead of answering
}

func newFakeRooms() *fakeRooms {
	r := &fakeRooms{items: map[string][]object{}, posted: map[string]object{}, rooms: []object{}, agents: []object{},
		keys: []object{}, connections: []object{}}
	r.people = []object{fakePerson("Operator", "operator@localhost", "admin", "operator")}
	return r
}

func fakePerson(name, email, role, kind string) object {
	return object{"id": uuid.NewString(), "name": name, "email": email, "role": role, "kind": kind, "has_password": false,
		"disabled_at": nil, "created_at": now(), "updated_at": now()}
}

func named(o object) object { return object{"id": o["id"], "name": o["name"]} }

// showAgent is an agent as answers show it.
func (r *fakeRooms) showAgent(a object) object {
	out := object{"connections": 0, "status": "no_session", "deaf": []object{{"code": "not_connected", "text": "it has no live connection"}}}
	for k, v := range a {
		out[k] = v
	}
	out["reacts_to"], out["owner_only"] = "nobody", a["policy"] != nil
	out["addressable"], out["open_command"] = "owner", "signalbox roomagents policy "+a["name"].(string)+" --open"
	if a["policy"] == nil {
		out["reacts_to"], out["owner_only"] = "nobody", a["policy"] != nil
		out["addressable"], out["open_command"] = "everybody", nil
	} else {
		out["deaf"] = append(out["deaf"].([]object), object{"code": "owner_only", "text": "only Operator can address it; open it to everybody with: " +
			out["open_command"].(string)})
	}
	rooms := []object{}
	for _, room := range r.rooms {
		for _, m := range room["members"].([]object) {
			if m["agent_id"] == a["id"] {
				rooms = append(rooms, object{"id": room["id"], "name": room["name"], "alias": m["alias"], "listening": m["listening"],
					"status": "no_session", "reacts_to": "nobody", "deaf": out["deaf"]})
			}
		}
	}
	out["rooms"] = rooms
	return out
}

func ownerOnlyPolicy() object {
	return object{"rules": []object{{"rooms": "*", "room_groups": "*", "users": []string{}, "agents": []string{}, "owner": true, "owner_agents": false}}}
}

func (f *fakeServer) roomRoutes(locked lockedRoute) {
	r := f.rooms
	one := func(pattern string, list *[]object, what string, h func(http.ResponseWriter, *http.Request, object)) {
		locked(pattern, func(w http.ResponseWriter, req *http.Request) {
			o := find(*list, "id", req.PathValue("id"))
			if o == nil {
				f.notFound(w, what)
				return
			}
			h(w, req, o)
		})
	}
	locked("GET /resolve", func(w http.ResponseWriter, req *http.Request) {
		kind, text := req.URL.Query().Get("kind"), req.URL.Query().Get("text")
		lists := map[string][]object{"room": r.rooms, "room_agent": r.agents, "person": r.people, "registration_key": r.keys, "connection": r.connections}
		matches := []object{}
		for _, o := range lists[kind] {
			id, _ := o["id"].(string)
			name, _ := o["name"].(string)
			if kind == "registration_key" {
				name, _ = o["label"].(string)
			}
			if kind == "connection" {
				id, name = o["connection_id"].(string), ""
			}
			bare := strings.ReplaceAll(id, "-", "")
			if name == text || kind == "person" && (strings.EqualFold(name, text) || strings.EqualFold(asText(o["email"]), text)) || id == text || len(text) >= 4 && strings.HasPrefix(bare, strings.ReplaceAll(text, "-", "")) {
				matches = append(matches, object{"id": id, "name": name})
			}
		}
		answer(w, 200, object{"matches": matches})
	})
	f.peopleRoutes(locked, one)
	f.roomAgentRoutes(locked, one)
	f.roomsRoutes(locked, one)
	f.saidRoutes(locked, one)
	locked("GET /connections", func(w http.ResponseWriter, req *http.Request) {
		out := []object{}
		for _, c := range r.connections {
			if want := req.URL.Query().Get("agent"); want == "" || c["agent"].(object)["id"] == want {
				out = append(out, c)
			}
		}
		answer(w, 200, out)
	})
	locked("GET /connections/{id}", func(w http.ResponseWriter, req *http.Request) {
		if c := find(r.connections, "connection_id", req.PathValue("id")); c != nil {
			answer(w, 200, c)
			return
		}
		f.notFound(w, "connection")
	})
	locked("DELETE /connections/{id}", func(w http.ResponseWriter, req *http.Request) {
		for i, c := range r.connections {
			if c["connection_id"] == req.PathValue("id") {
				r.connections = append(r.connections[:i], r.connections[i+1:]...)
				answer(w, 204, nil)
				return
			}
		}
		f.notFound(w, "connection")
	})
}

type oneRoute func(pattern string, list *[]object, what string, h func(http.ResponseWriter, *http.Request, object))

func (f *fakeServer) peopleRoutes(locked lockedRoute, one oneRoute) {
	r := f.rooms
	locked("GET /people", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, r.people) })
	locked("POST /people", func(w http.ResponseWriter, req *http.Request) {
		body := readBody(req)
		if find(r.people, "email", body["email"].(string)) != nil {
			f.fail(w, reply{status: 409, code: "conflict", message: "email: is taken"})
			return
		}
		p := fakePerson(body["name"].(string), body["email"].(string), body["role"].(string), "person")
		p["has_password"] = body["password"] != nil
		r.people = append(r.people, p)
		answer(w, 201, p)
	})
	one("GET /people/{id}", &r.people, "person", func(w http.ResponseWriter, _ *http.Request, p object) { answer(w, 200, p) })
	one("PUT /people/{id}/password", &r.people, "person", func(w http.ResponseWriter, req *http.Request, p object) {
		if len(readBody(req)["password"].(string)) < 8 {
			f.fail(w, reply{status: 422, code: "validation_error", message: "password: must have 8 to 1024 characters"})
			return
		}
		p["has_password"] = true
		answer(w, 204, nil)
	})
	one("PUT /people/{id}/role", &r.people, "person", func(w http.ResponseWriter, req *http.Request, p object) {
		p["role"] = readBody(req)["role"]
		answer(w, 200, p)
	})
	one("POST /people/{id}/disable", &r.people, "person", func(w http.ResponseWriter, _ *http.Request, p object) {
		p["disabled_at"] = now()
		answer(w, 200, p)
	})
	one("POST /people/{id}/enable", &r.people, "person", func(w http.ResponseWriter, _ *http.Request, p object) {
		p["disabled_at"] = nil
		answer(w, 200, p)
	})
}

func (f *fakeServer) roomAgentRoutes(locked lockedRoute, one oneRoute) {
	r := f.rooms
	locked("GET /room-agents", func(w http.ResponseWriter, req *http.Request) {
		out := []object{}
		for _, a := range r.agents {
			shown := r.showAgent(a)
			room := req.URL.Query().Get("room")
			in := room == ""
			for _, o := range shown["rooms"].([]object) {
				in = in || o["id"] == room
			}
			if in {
				out = append(out, shown)
			}
		}
		answer(w, 200, out)
	})
	locked("POST /room-agents", func(w http.ResponseWriter, req *http.Request) {
		body := readBody(req)
		name := body["name"].(string)
		a := find(r.agents, "name", name)
		if a != nil && body["overwrite"] != true {
			f.fail(w, reply{status: 409, code: "conflict", message: "name: an agent called " + name + " exists already", details: object{"name": name}})
			return
		}
		if a == nil {
			a = object{"id": uuid.NewString(), "name": name, "policy": ownerOnlyPolicy()}
			r.agents = append(r.agents, a)
		}
		if body["open"] == true {
			a["policy"] = nil
		}
		a["owner"] = named(r.people[0])
		if p := find(r.people, "id", asText(body["owner_id"])); p != nil {
			a["owner"] = named(p)
		}
		a["description"], a["connection_model"], a["type"] = body["description"], "session_addressable", body["type"]
		a["command_capabilities"] = object{"reset": "unsupported", "compact": "unsupported", "interrupt": "unsupported"}
		a["created_at"], a["key_set_at"] = now(), now()
		answer(w, 201, object{"agent": r.showAgent(a), "api_key": "sk_" + secretText()})
	})
	one("GET /room-agents/{id}", &r.agents, "agent", func(w http.ResponseWriter, _ *http.Request, a object) { answer(w, 200, r.showAgent(a)) })
	one("POST /room-agents/{id}/rotate", &r.agents, "agent", func(w http.ResponseWriter, _ *http.Request, a object) {
		answer(w, 200, object{"agent": r.showAgent(a), "api_key": "sk_" + secretText()})
	})
	locked("DELETE /room-agents/{id}", func(w http.ResponseWriter, req *http.Request) {
		for i, a := range r.agents {
			if a["id"] == req.PathValue("id") {
				r.agents = append(r.agents[:i], r.agents[i+1:]...)
				answer(w, 204, nil)
				return
			}
		}
		f.notFound(w, "agent")
	})
	policy := func(w http.ResponseWriter, a object) {
		shown := r.showAgent(a)
		if a["policy"] != nil && shown["addressable"] == "owner" && len(a["policy"].(object)["rules"].([]object)) > 1 {
			shown["addressable"] = "some"
		}
		answer(w, 200, object{"agent_id": a["id"], "addressable": shown["addressable"], "open_command": shown["open_command"], "policy": a["policy"]})
	}
	one("GET /room-agents/{id}/policy", &r.agents, "agent", func(w http.ResponseWriter, _ *http.Request, a object) { policy(w, a) })
	one("PUT /room-agents/{id}/policy", &r.agents, "agent", func(w http.ResponseWriter, req *http.Request, a object) {
		p := readBody(req)["policy"]
		if p == nil {
			a["policy"] = nil
		} else if rules, ok := p.(object)["rules"].([]any); ok && len(rules) == 1 {
			a["policy"] = ownerOnlyPolicy()
		} else {
			f.fail(w, reply{status: 422, code: "validation_error", message: "policy.rules: must be a list"})
			return
		}
		policy(w, a)
	})
	locked("GET /registration-keys", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, r.keys) })
	locked("POST /registration-keys", func(w http.ResponseWriter, req *http.Request) {
		body := readBody(req)
		k := object{"id": uuid.NewString(), "kind": body["kind"], "label": body["label"], "person": named(r.people[0]),
			"created_at": now(), "revoked_at": nil}
		r.keys = append(r.keys, k)
		shown := object{"key": "rk_" + secretText()}
		for name, v := range k {
			shown[name] = v
		}
		answer(w, 201, shown)
	})
	locked("DELETE /registration-keys/{id}", func(w http.ResponseWriter, req *http.Request) {
		if find(r.keys, "id", req.PathValue("id")) == nil {
			f.notFound(w, "registration key")
			return
		}
		answer(w, 204, nil)
	})
}

func asText(v any) string {
	s, _ := v.(string)
	return s
}

func (f *fakeServer) roomsRoutes(locked lockedRoute, one oneRoute) {
	r := f.rooms
	join := func(room object, ids any, alias any, listening any, told bool) {
		list, _ := ids.([]any)
		for _, id := range list {
			a := find(r.agents, "id", asText(id))
			if a == nil || find(room["members"].([]object), "agent_id", asText(id)) != nil {
				continue
			}
			shown := r.showAgent(a)
			room["members"] = append(room["members"].([]object), object{"agent_id": a["id"], "name": a["name"], "alias": alias,
				"listening": listening == true, "role": nil, "status": "no_session", "addressable": shown["addressable"],
				"open_command": shown["open_command"], "reacts_to": shown["reacts_to"], "deaf": shown["deaf"], "joined_at": now()})
			if told {
				f.addItem(room, "room_join", object{"kind": "agent", "id": a["id"], "name": a["name"]}, "", nil)
			}
		}
	}
	add := func(room object, ids any, manager any) {
		list, _ := ids.([]any)
		for _, id := range list {
			if p := find(r.people, "id", asText(id)); p != nil && find(room["people"].([]object), "person_id", asText(id)) == nil {
				room["people"] = append(room["people"].([]object), object{"person_id": p["id"], "name": p["name"], "email": p["email"],
					"manager": manager == true, "joined_at": now()})
			}
		}
	}
	locked("GET /rooms", func(w http.ResponseWriter, req *http.Request) {
		out := []object{}
		for _, room := range r.rooms {
			if room["archived_at"] == nil || req.URL.Query().Get("include_archived") == "true" {
				out = append(out, room)
			}
		}
		answer(w, 200, out)
	})
	locked("POST /rooms", func(w http.ResponseWriter, req *http.Request) {
		body := readBody(req)
		room := object{"id": uuid.NewString(), "name": body["name"], "description": "", "instructions": "", "channel_type": "channel_public",
			"read_visibility": "public", "write_visibility": "public", "owner": named(r.people[0]), "head": 0, "archived_at": nil,
			"created_at": now(), "updated_at": now(), "members": []object{}, "people": []object{}, "roles": []object{}, "links": []object{}}
		for _, k := range []string{"description", "instructions", "channel_type", "read_visibility", "write_visibility"} {
			if body[k] != nil {
				room[k] = body[k]
			}
		}
		r.rooms = append(r.rooms, room)
		add(room, []any{r.people[0]["id"]}, true)
		add(room, body["person_ids"], false)
		join(room, body["agent_ids"], nil, body["listening"], false)
		answer(w, 201, room)
	})
	one("GET /rooms/{id}", &r.rooms, "room", func(w http.ResponseWriter, _ *http.Request, room object) { answer(w, 200, room) })
	one("PATCH /rooms/{id}", &r.rooms, "room", func(w http.ResponseWriter, req *http.Request, room object) {
		for k, v := range readBody(req) {
			if k == "group" {
				v = nil // the fake has no groups
			}
			room[k] = v
		}
		answer(w, 200, room)
	})
	for verb, at := range map[string]bool{"archive": true, "unarchive": false} {
		one("POST /rooms/{id}/"+verb, &r.rooms, "room", func(w http.ResponseWriter, _ *http.Request, room object) {
			room["archived_at"] = nil
			if at {
				room["archived_at"] = now()
			}
			answer(w, 200, room)
		})
	}
	one("DELETE /rooms/{id}", &r.rooms, "room", func(w http.ResponseWriter, _ *http.Request, room object) {
		for i := range r.rooms {
			if r.rooms[i]["id"] == room["id"] {
				r.rooms = append(r.rooms[:i], r.rooms[i+1:]...)
				break
			}
		}
		answer(w, 204, nil)
	})
	one("POST /rooms/{id}/agents", &r.rooms, "room", func(w http.ResponseWriter, req *http.Request, room object) {
		body := readBody(req)
		join(room, body["agent_ids"], body["alias"], body["listening"], true)
		answer(w, 200, object{})
	})
	one("POST /rooms/{id}/people", &r.rooms, "room", func(w http.ResponseWriter, req *http.Request, room object) {
		body := readBody(req)
		add(room, body["person_ids"], body["manager"])
		answer(w, 200, object{})
	})
	drop := func(list, key, value string) func(http.ResponseWriter, *http.Request, object) {
		return func(w http.ResponseWriter, req *http.Request, room object) {
			rows := room[list].([]object)
			for i, row := range rows {
				if row[key] == req.PathValue(value) {
					room[list] = append(rows[:i:i], rows[i+1:]...)
					answer(w, 204, nil)
					return
				}
			}
			f.notFound(w, value)
		}
	}
	one("DELETE /rooms/{id}/agents/{agent}", &r.rooms, "room", drop("members", "agent_id", "agent"))
	one("DELETE /rooms/{id}/people/{person}", &r.rooms, "room", drop("people", "person_id", "person"))
	one("DELETE /rooms/{id}/roles/{role}", &r.rooms, "room", drop("roles", "name", "role"))
	one("DELETE /rooms/{id}/links/{target}", &r.rooms, "room", drop("links", "target_room_id", "target"))
	one("GET /rooms/{id}/roles", &r.rooms, "room", func(w http.ResponseWriter, _ *http.Request, room object) { answer(w, 200, room["roles"]) })
	one("POST /rooms/{id}/roles", &r.rooms, "room", func(w http.ResponseWriter, req *http.Request, room object) {
		role := readBody(req)
		role["held_by"] = []object{}
		room["roles"] = append(room["roles"].([]object), role)
		answer(w, 201, role)
	})
	one("PATCH /rooms/{id}/roles/{role}", &r.rooms, "room", func(w http.ResponseWriter, req *http.Request, room object) {
		role := find(room["roles"].([]object), "name", req.PathValue("role"))
		if role == nil {
			f.notFound(w, "role")
			return
		}
		for k, v := range readBody(req) {
			role[k] = v
		}
		answer(w, 200, role)
	})
	one("GET /rooms/{id}/links", &r.rooms, "room", func(w http.ResponseWriter, _ *http.Request, room object) { answer(w, 200, room["links"]) })
	one("POST /rooms/{id}/links", &r.rooms, "room", func(w http.ResponseWriter, req *http.Request, room object) {
		body := readBody(req)
		target := find(r.rooms, "id", asText(body["target_room_id"]))
		if target == nil {
			f.notFound(w, "room")
			return
		}
		link := object{"target_room_id": target["id"], "target_room_name": target["name"], "label": body["label"]}
		room["links"] = append(room["links"].([]object), link)
		answer(w, 201, link)
	})
	one("GET /rooms/{id}/policy", &r.rooms, "room", func(w http.ResponseWriter, _ *http.Request, room object) {
		agents := []object{}
		for _, m := range room["members"].([]object) {
			a := find(r.agents, "id", m["agent_id"].(string))
			shown := r.showAgent(a)
			senders := []object{}
			for _, p := range room["people"].([]object) {
				senders = append(senders, object{"kind": "person", "id": p["person_id"], "name": p["name"],
					"admitted": a["policy"] == nil || a["owner"].(object)["id"] == p["person_id"]})
			}
			agents = append(agents, object{"agent_id": a["id"], "name": a["name"], "addressable": shown["addressable"],
				"open_command": shown["open_command"], "senders": senders})
		}
		answer(w, 200, object{"room_id": room["id"], "agents": agents})
	})
}

// addItem puts an item into a room's log.
func (f *fakeServer) addItem(room object, kind string, sender object, body string, thread any) object {
	id := room["id"].(string)
	item := object{"id": uuid.NewString(), "room_id": id, "position": len(f.rooms.items[id]) + 1, "kind": kind, "sender": sender,
		"on_behalf_of": nil, "body": body, "thread_id": thread, "attachments": []object{}, "automatic": false, "at": now()}
	f.rooms.items[id] = append(f.rooms.items[id], object{"type": "item", "item": item})
	room["head"] = len(f.rooms.items[id])
	f.wake()
	return item
}

// saidRoutes are posts, pages, the stream and explanations.
func (f *fakeServer) saidRoutes(locked lockedRoute, one oneRoute) {
	r := f.rooms
	one("POST /rooms/{id}/messages", &r.rooms, "room", func(w http.ResponseWriter, req *http.Request, room object) {
		body := readBody(req)
		p := r.people[0]
		if as := asText(body["as"]); as != "" {
			if p = find(r.people, "id", as); p == nil {
				f.notFound(w, "person")
				return
			}
		}
		if find(room["people"].([]object), "person_id", p["id"].(string)) == nil {
			f.fail(w, reply{status: 403, code: "forbidden", message: p["name"].(string) + " is not in this room"})
			return
		}
		if room["archived_at"] != nil {
			f.fail(w, reply{status: 409, code: "conflict", message: "room " + room["id"].(string) + " is archived"})
			return
		}
		if old := r.posted[asText(body["request_id"])]; old != nil {
			old["repeated"] = true
			answer(w, 200, old)
			return
		}
		kind := "message"
		if strings.HasPrefix(asText(body["body"]), "!") {
			kind = "command"
		}
		item := f.addItem(room, kind, object{"kind": "person", "id": p["id"], "name": p["name"]}, asText(body["body"]), body["thread_id"])
		statuses := []object{}
		for _, m := range room["members"].([]object) {
			if strings.Contains(asText(body["body"]), "@"+m["name"].(string)) && m["open_command"] == nil {
				statuses = append(statuses, object{"agent_id": m["agent_id"], "name": m["name"], "status": "no_session", "covering": r.covering})
			}
		}
		posted := object{"item": item, "repeated": false, "statuses": statuses, "answers": []object{}}
		r.posted[asText(body["request_id"])] = posted
		if r.loseAnswers > 0 {
			r.loseAnswers--
			panic(http.ErrAbortHandler)
		}
		answer(w, 201, posted)
	})
	one("GET /rooms/{id}/messages", &r.rooms, "room", func(w http.ResponseWriter, req *http.Request, room object) {
		after, _ := strconv.Atoi(req.URL.Query().Get("after"))
		all := r.items[room["id"].(string)]
		items := []object{}
		for _, rec := range all[min(max(after, 0), len(all)):] {
			items = append(items, rec["item"].(object))
		}
		answer(w, 200, object{"items": items, "head": len(all)})
	})
	f.mux.HandleFunc("GET /api/v1/rooms/{id}/messages/stream", func(w http.ResponseWriter, req *http.Request) {
		f.mu.Lock()
		missing := find(r.rooms, "id", req.PathValue("id")) == nil
		all := r.items[req.PathValue("id")]
		f.mu.Unlock()
		if missing {
			f.notFound(w, "room")
			return
		}
		q := req.URL.Query()
		if last, _ := strconv.Atoi(q.Get("last")); last > 0 && q.Get("cursor") == "" {
			q.Set("cursor", f.cursor(max(0, len(all)-last)))
			req.URL.RawQuery = q.Encode()
		}
		f.stream(w, req, func() {}, func() []object { return r.items[req.PathValue("id")] }, func(object) bool { return true })
	})
	locked("GET /rooms/messages/{id}/explain", func(w http.ResponseWriter, req *http.Request) {
		agent := find(r.agents, "id", req.URL.Query().Get("agent"))
		for _, all := range r.items {
			for _, rec := range all {
				item := rec["item"].(object)
				if item["id"] == req.PathValue("id") && agent != nil {
					answer(w, 200, object{"item": item, "agent": named(agent), "code": "offline", "summary": "Kept: no live connection.",
						"sentences": []string{"It was queued as number 1."}, "connections": []object{}})
					return
				}
			}
		}
		f.notFound(w, "message")
	})
}
