package appliance_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/config"
	"signalbox/appliance/secret"
	"signalbox/transport/roomclient"
)

// refusing is an appliance with agents, rooms and connections that no refusal may change.
type refusing struct {
	*appliancetest.Server
	t                             *testing.T
	bot, other                    *roomclient.Config
	key                           secret.Text // registers agents of the operator
	plaza, yard, closed, archived string      // bot is not in closed
	mine, sibling, idle, theirs   string      // connections; theirs is other's
	generation                    int64       // of mine
	before                        appliancetest.State
	connections                   string
	strangersKey                  secret.Text // registers agents of somebody else
	message                       string      // in plaza
	streams                       []*roomclient.Stream
	unknown                       string
}

func newRefusing(t *testing.T) *refusing {
	t.Helper()
	s := appliancetest.Start(t, frozen(), configure(func(c *config.Config) { c.Room.MediaSize, c.Room.MessageSize = 4<<10, 4<<10 }))
	r := &refusing{Server: s, t: t, bot: enlist(s, "bot"), other: enlist(s, "other"), key: registrationKey(s), unknown: uuid.NewString()}
	r.plaza, r.yard = seats(s, "plaza", r.bot, r.other), seats(s, "yard", r.bot)
	var out struct {
		ID uuid.UUID `json:"id"`
	}
	s.Do("POST", "/rooms", map[string]any{"name": "closed", "agent_ids": []uuid.UUID{r.other.AgentID}, "read_visibility": "private",
		"write_visibility": "private"}, http.StatusCreated, &out)
	r.closed = out.ID.String()
	r.archived = seats(s, "archived", r.bot)
	s.Do("POST", "/rooms/"+r.archived+"/archive", nil, http.StatusOK, nil)
	s.Do("POST", "/rooms/"+r.plaza+"/roles", map[string]any{"name": "lead", "exclusive": true}, http.StatusCreated, nil)
	var person struct {
		ID string `json:"id"`
	}
	s.Do("POST", "/people", map[string]string{"name": "Eve", "email": "eve@example.com"}, http.StatusCreated, &person)
	var key struct {
		Key string `json:"key"`
	}
	s.Do("POST", "/registration-keys", map[string]string{"person_id": person.ID}, http.StatusCreated, &key)
	r.strangersKey = secret.NewText(key.Key)
	r.message = say(t, s, uuid.MustParse(r.plaza), "hello").ID.String()
	for id, open := range map[*string]struct {
		by    *roomclient.Config
		rooms []string
	}{&r.mine: {r.bot, []string{r.plaza}}, &r.sibling: {r.bot, []string{r.yard}}, &r.idle: {r.bot, nil}, &r.theirs: {r.other, []string{r.plaza}}} {
		o := opening(claiming(open.rooms...))
		*id = o.ConnectionID
		st, state := join(t, "websocket", open.by, o)
		r.streams = append(r.streams, st)
		if id == &r.mine {
			r.generation = state.Generation
		}
	}
	// The role is held by other, so that it cannot be assumed.
	if err := r.other.Op(limit(t), roomclient.Caller{ConnectionID: r.theirs}, "assume_role", map[string]string{"role": "lead"}, nil); err != nil {
		t.Fatal(err)
	}
	r.before, r.connections = s.State(), r.list()
	return r
}

// list is what is connected and claimed, as the operator sees it.
func (r *refusing) list() string {
	_, body := r.Admin("GET", "/connections", nil)
	return string(body)
}

// unchanged checks that nothing has changed since newRefusing, in the database and in memory.
func (r *refusing) unchanged(t *testing.T) {
	t.Helper()
	r.Unchanged(r.before)
	if after := r.list(); after != r.connections {
		t.Errorf("connections changed:\n%s\nwere\n%s", after, r.connections)
	}
}

// ask is one request as it stands.
type ask struct {
	method, path string
	body         any // a string or []byte is sent as it is
	key          *secret.Text
	header       map[string]string
}

func (r *refusing) send(t *testing.T, a ask) reply {
	t.Helper()
	var content io.Reader
	switch b := a.body.(type) {
	case nil:
	case string:
		content = strings.NewReader(b)
	case []byte:
		content = bytes.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		content = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(limit(t), a.method, r.URL()+a.path, content)
	if err != nil {
		t.Fatal(err)
	}
	key := &r.bot.Token
	if a.key != nil {
		key = a.key
	}
	if !key.IsZero() {
		req.Header.Set("Authorization", "Bearer "+key.Reveal())
	}
	if content != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, value := range a.header {
		req.Header.Set(name, value)
	}
	return exchange(t, r.Server, req)
}

// refusal is a request and what it must be answered with.
type refusal struct {
	name string
	ask
	status int
	words  string // in the body
}

// refuse makes the requests and looks after each whether it changed something.
func (r *refusing) refuse(cases []refusal) {
	r.t.Helper()
	for _, tc := range cases {
		r.t.Run(tc.name, func(t *testing.T) {
			r.refused(t, tc)
			r.unchanged(t)
		})
	}
}

// refused makes the request and checks the answer.
func (r *refusing) refused(t *testing.T, tc refusal) {
	t.Helper()
	got := r.send(t, tc.ask)
	if got.status != tc.status || !strings.Contains(string(got.body), tc.words) {
		t.Errorf("%s: answered %d %s, want %d %s", tc.name, got.status, got.body, tc.status, tc.words)
	}
	kind := got.header.Get("Content-Type")
	if json := strings.HasPrefix(kind, "application/json") && json.Valid(got.body); json == (tc.status == http.StatusUnauthorized) {
		t.Errorf("%s: a %d has the type %q: %s", tc.name, got.status, kind, got.body)
	}
	if tc.status != http.StatusUnauthorized && !strings.HasPrefix(string(got.body), `{"detail":`) {
		t.Errorf("%s: the body is no detail: %s", tc.name, got.body)
	}
}

func (r *refusing) path(rest string) string { return "/agents/" + r.bot.AgentID.String() + rest }

// post is a request of bot. Fields are JSON.
func (r *refusing) post(path string, body any) ask {
	return ask{method: "POST", path: r.path(path), body: body}
}

// op is a call of an operation through a connection.
func (r *refusing) op(connection, name string, args any) ask {
	a := r.post("/ops/"+name, args)
	if connection != "" {
		a.header = map[string]string{"X-Switch-Connection-Id": connection}
	}
	return a
}

type object = map[string]any

// B.2 and G.1: every refusal of an open, on both transports, changes nothing.
func TestRoomOpenRefusals(t *testing.T) {
	r := newRefusing(t)
	extra := func(name, value string) func(*roomclient.Open) {
		return func(o *roomclient.Open) { o.Extra = map[string][]string{name: {value}} }
	}
	of := func(id string, change ...func(*roomclient.Open)) roomclient.Open {
		o := opening(change...)
		o.ConnectionID = id
		return o
	}
	revisions := func(speaks, accepts string) func(*roomclient.Open) {
		return func(o *roomclient.Open) {
			o.Extra = map[string][]string{"protocol": {speaks}, "protocol_accepts": {accepts}}
		}
	}
	for _, tc := range []struct {
		name   string
		open   roomclient.Open
		status int
		words  string
	}{
		{"no connection id", roomclient.Open{}, 400, "required"},
		{"an empty connection id", of("", extra("connection_id", "")), 400, "connection_id"},
		{"scope multi", opening(extra("scope", "multi")), 400, "multi"},
		{"filter none", opening(extra("filter", "none")), 400, "none"},
		{"start_from -1", opening(extra("start_from", "-1")), 400, "start_from"},
		{"start_from 2^53", opening(extra("start_from", "9007199254740992")), 400, "start_from"},
		{"start_from 1e3", opening(extra("start_from", "1e3")), 400, "start_from"},
		{"expected_generation text", opening(extra("expected_generation", "last")), 400, "expected_generation"},
		{"spawn_capable yes", opening(extra("spawn_capable", "yes")), 400, "spawn_capable"},
		{"protocol text", opening(extra("protocol", "eight")), 400, "protocol"},
		{"protocol_accepts text", opening(extra("protocol_accepts", "1.0")), 400, "protocol_accepts"},
		{"a client behind", opening(revisions("0", "0")), 409, "update the Switch agent runtime"},
		{"a server behind", opening(revisions("9", "9")), 409, "update switch-core"},
		{"a floor above the top", opening(revisions("3", "5")), 409, "agent-protocol"},
		{"an id of another agent", of(r.theirs, claiming(r.plaza)), 409, "not open"},
		{"a stale generation", of(r.mine, fencing(r.generation-1), claiming(r.yard)), 409, "taken_over"},
		{"a generation of the future", of(r.mine, fencing(r.generation+1<<30)), 409, "taken_over"},
		{"a room that is not there", opening(claiming(r.unknown)), 403, r.unknown},
		{"a room that the agent is not in", opening(claiming(r.closed)), 403, r.closed},
		{"the second of two rooms", opening(claiming(r.yard, r.closed)), 403, r.closed},
		{"a reattach with a bad room", of(r.mine, fencing(r.generation), claiming(r.yard, r.unknown)), 403, r.unknown},
		{"a reattach of another scope with a bad room", of(r.mine, covering, claiming(r.unknown)), 403, r.unknown},
		{"a room that is no id", opening(claiming("lobby")), 403, "lobby"},
	} {
		for via := range carriers {
			t.Run(tc.name+" over "+via, func(t *testing.T) {
				refused := turnedAway(t, via, r.bot, tc.open, tc.status)
				if !strings.Contains(string(refused.Detail), tc.words) {
					t.Errorf("detail %s, want %s in it", refused.Detail, tc.words)
				}
				r.unchanged(t)
			})
		}
	}
	t.Run("Last-Event-ID text", func(t *testing.T) {
		o := opening(resuming(0))
		o.LastEventID = "x"
		turnedAway(t, "sse", r.bot, o, 400)
		r.unchanged(t)
	})
	t.Run("the path of another agent", func(t *testing.T) {
		cfg := *r.bot
		cfg.AgentID = r.other.AgentID
		for via := range carriers {
			turnedAway(t, via, &cfg, opening(), 403)
		}
		r.unchanged(t)
	})
	for what, key := range map[string]secret.Text{"no key": {}, "a wrong key": secret.NewText("wrong"), "a registration key": r.key} {
		t.Run(what, func(t *testing.T) {
			cfg := *r.bot
			cfg.Token = key
			st, err := roomclient.Dial(limit(t), &cfg, opening())
			if err != nil {
				t.Fatalf("the upgrade failed: %v", err)
			}
			t.Cleanup(st.Drop)
			if c := over(t, st); c.Code != 4401 || c.Refused != nil || c.Text == "" {
				t.Errorf("ended with %+v, want 4401 and no frame", c)
			}
			turnedAway(t, "sse", &cfg, opening(), 401)
			r.unchanged(t)
		})
	}
	t.Run("streams have seen nothing", func(t *testing.T) { r.quiet(t) })
}

// quiet checks that the streams of the connections have had nothing to tell but what the making of them brought.
func (r *refusing) quiet(t *testing.T) {
	t.Helper()
	say(t, r.Server, uuid.MustParse(r.plaza), "end")
	for _, st := range r.streams {
		if !slices.Contains(st.Open.Rooms, r.plaza) {
			continue
		}
		for heard := false; !heard; {
			f, err := st.Next(limit(t))
			if err != nil {
				t.Fatal(err)
			}
			switch f.Event {
			case roomclient.FrameMessage:
				heard = strings.Contains(string(f.Data), `"body":"end"`)
			default:
				t.Errorf("a stream was told %s %s", f.Event, f.Data)
			}
		}
	}
}

// F.4 to F.7, G.2 and the leases of H.8.
func TestRoomClaimRefusals(t *testing.T) {
	r := newRefusing(t)
	var cases []refusal
	add := func(name string, a ask, status int, words string) {
		cases = append(cases, refusal{name, a, status, words})
	}
	with := func(fields object) object {
		out := object{"connection_id": r.mine, "generation": r.generation}
		for k, v := range fields {
			out[k] = v
			if v == nil {
				delete(out, k)
			}
		}
		return out
	}
	none := secret.Text{}
	for path, fields := range map[string]object{"beat": {"cursor": 0}, "subscribe": {"room_id": r.plaza}, "unsubscribe": {"room_id": r.plaza},
		"placements": {"placements": object{"s1": r.plaza}}} {
		route := "/connection/" + path
		change := func(more object) object {
			out := with(fields)
			for k, v := range more {
				out[k] = v
				if v == nil {
					delete(out, k)
				}
			}
			return out
		}
		noKey := r.post(route, with(fields))
		noKey.key = &none
		add(path+" without a key", noKey, 401, "")
		registration := r.post(route, with(fields))
		registration.key = &r.key
		add(path+" with a registration key", registration, 401, "")
		others := r.post(route, with(fields))
		others.path = "/agents/" + r.other.AgentID.String() + route
		add(path+" on another's path", others, 403, "agent")
		add(path+" without a body", r.post(route, ""), 422, "connection_id")
		add(path+" of no JSON", r.post(route, "{"), 422, "JSON")
		add(path+" of a list", r.post(route, "[]"), 422, "JSON")
		add(path+" with a number for an id", r.post(route, change(object{"connection_id": 7})), 422, "connection_id")
		add(path+" with a text for a generation", r.post(route, change(object{"generation": "x"})), 422, "generation")
		add(path+" with half a generation", r.post(route, change(object{"generation": 1.5})), 422, "generation")
		add(path+" of an unknown connection", r.post(route, change(object{"connection_id": r.unknown})), 404, r.unknown)
		add(path+" of another agent's connection", r.post(route, change(object{"connection_id": r.theirs})), 404, r.theirs)
		add(path+" with a stale generation", r.post(route, change(object{"generation": r.generation - 1})), 409, `"code":"taken_over"`)
		add(path+" without a generation", r.post(route, change(object{"generation": nil})), 409, `"code":"unfenced"`)
	}
	add("beat with a text for a cursor", r.post("/connection/beat", with(object{"cursor": "x"})), 422, "cursor")
	add("subscribe without a room", r.post("/connection/subscribe", with(nil)), 422, "room_id")
	add("subscribe with a text for takeover", r.post("/connection/subscribe", with(object{"room_id": r.yard, "takeover": "yes"})), 422, "takeover")
	add("subscribe to a sibling's room", r.post("/connection/subscribe", with(object{"room_id": r.yard})), 409, r.sibling)
	add("subscribe to a room that is not there", r.post("/connection/subscribe", with(object{"room_id": r.unknown, "takeover": true})), 404, r.unknown)
	add("subscribe to a room that is no id", r.post("/connection/subscribe", with(object{"room_id": "lobby"})), 404, "lobby")
	add("subscribe to a stranger's room", r.post("/connection/subscribe", with(object{"room_id": r.closed, "takeover": true})), 403, r.closed)
	add("unsubscribe without a room", r.post("/connection/unsubscribe", with(nil)), 422, "room_id")
	place := func(p any) ask { return r.post("/connection/placements", with(object{"placements": p})) }
	add("no placements", r.post("/connection/placements", with(nil)), 422, "placements")
	add("placements of a list", place([]string{}), 422, "placements")
	add("placements of a number", place(object{"s1": 7}), 422, "placements")
	add("placements with a nameless session", place(object{"": r.yard}), 422, "session")
	add("placements of a room twice", place(object{"s1": r.yard, "s2": r.yard}), 400, "twice")
	add("placements of a room twice, spelt otherwise", place(object{"s1": r.yard, "s2": strings.ToUpper(r.yard)}), 400, "twice")
	add("placements in a stranger's room", place(object{"s1": r.yard, "s2": r.closed}), 403, r.closed)
	add("placements in a room that is not there", place(object{"s1": r.yard, "s2": r.unknown}), 403, r.unknown)
	add("placements in no room", place(object{"s1": r.yard, "s2": "lobby"}), 403, "lobby")
	add("close without an id", r.post("/connection/close", object{}), 422, "connection_id")
	add("renew without a connection", r.post("/leases/renew", object{}), 400, "X-Switch-Connection-Id")
	r.refuse(cases)
	for _, id := range []string{r.unknown, r.theirs} {
		a := r.send(t, r.post("/connection/close", object{"connection_id": id}))
		if a.status != 200 || string(bytes.TrimSpace(a.body)) != `{"ok":true,"closed":false}` {
			t.Errorf("close of a connection that is not ours: %d %s", a.status, a.body)
		}
	}
	r.unchanged(t)
	r.quiet(t)
}

// A.3, A.4 and H.8: registering, deleting, posting and files.
func TestRoomRouteRefusals(t *testing.T) {
	r := newRefusing(t)
	none, wrong := secret.Text{}, secret.NewText("wrong")
	profile := object{"connection_model": "always_on"}
	register := func(key *secret.Text, fields object) ask {
		body := object{"name": "fresh", "description": "", "integration_profile": profile}
		for k, v := range fields {
			body[k] = v
		}
		return ask{method: "POST", path: "/agents", body: body, key: key}
	}
	upload := func(roomID string, files ...[]byte) ask {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		for i, f := range files {
			part, err := w.CreateFormFile("files", fmt.Sprintf("f%d.txt", i))
			if err == nil {
				_, err = part.Write(f)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		_ = w.WriteField("caption", "look")
		_ = w.Close()
		return ask{method: "POST", path: r.path("/rooms/" + roomID + "/media"), body: b.Bytes(), header: map[string]string{"Content-Type": w.FormDataContentType()}}
	}
	message := func(fields object) ask { return r.post("/message", fields) }
	small, big := []byte("small"), bytes.Repeat([]byte("x"), 5<<10)
	othersPath := "/agents/" + r.other.AgentID.String()
	r.refuse([]refusal{
		{"register without a key", register(&none, nil), 401, ""},
		{"register with a wrong key", register(&wrong, nil), 401, ""},
		{"register with an agent's key", register(nil, nil), 401, ""},
		{"register with a bad name", register(&r.key, object{"name": "Fresh"}), 400, "name"},
		{"register with a newline", register(&r.key, object{"name": "fresh\n"}), 400, "name"},
		{"register everyone", register(&r.key, object{"name": "everyone"}), 400, "name"},
		{"register with a bad icon", register(&r.key, object{"icon_url": "javascript:alert(1)"}), 400, "icon_url"},
		{"register with a bad display name", register(&r.key, object{"display_name": strings.Repeat("x", 5000)}), 400, "display_name"},
		{"register without a profile", register(&r.key, object{"integration_profile": nil}), 422, "integration_profile"},
		{"register with an unknown model", register(&r.key, object{"integration_profile": object{"connection_model": "often"}}), 422, "connection_model"},
		{"register with a number for a name", register(&r.key, object{"name": 7}), 422, "name"},
		{"register with a bad policy", register(&r.key, object{"addressing_policy": object{"rules": 7}}), 422, "addressing_policy"},
		{"register a taken name", register(&r.key, object{"name": "bot"}), 409, "bot"},
		{"register a taken name of another owner", register(&r.strangersKey, object{"name": "bot", "overwrite": true}), 409, "bot"},
		{"register of no JSON", ask{method: "POST", path: "/agents", body: "{", key: &r.key}, 422, "JSON"},
		{"register an unknown type", ask{method: "POST", path: "/agents/register-known", key: &r.key,
			body: object{"agent_type": "robot", "name": "fresh", "options": object{}}}, 422, "agent_type"},
		{"register children of a stranger", ask{method: "POST", path: "/agents/register-known-bulk", key: &r.strangersKey, body: object{
			"agent_type": "codex", "parent_agent_id": r.bot.AgentID, "options": object{}, "subagents": []object{{"subagent_name": "x"}}}}, 400, "parent_agent_id"},

		{"delete without a key", ask{method: "DELETE", path: r.path(""), key: &none}, 401, ""},
		{"delete another", ask{method: "DELETE", path: othersPath}, 403, "agent"},
		{"delete what is not there", ask{method: "DELETE", path: "/agents/" + r.unknown}, 404, "agent"},

		{"version without a key", ask{method: "GET", path: "/version", key: &none}, 401, ""},
		{"operations of another", ask{method: "GET", path: othersPath + "/ops"}, 403, "agent"},
		{"operations without a key", ask{method: "GET", path: r.path("/ops"), key: &none}, 401, ""},

		{"message without a room", message(object{"content": "x"}), 422, "room_id"},
		{"message without content", message(object{"room_id": r.plaza}), 422, "content"},
		{"an empty message", message(object{"room_id": r.plaza, "content": ""}), 400, "body"},
		{"a message beyond the limit", message(object{"room_id": r.plaza, "content": string(big)}), 400, "4096"},
		{"a message to a stranger's room", message(object{"room_id": r.closed, "content": "x"}), 403, ""},
		{"a message to a room that is not there", message(object{"room_id": r.unknown, "content": "x"}), 404, r.unknown},
		{"a message to no room", message(object{"room_id": "lobby", "content": "x"}), 404, "lobby"},
		{"a message to an archived room", message(object{"room_id": r.archived, "content": "x"}), 409, "archived"},
		{"a message on another's path", ask{method: "POST", path: othersPath + "/message", body: object{"room_id": r.plaza, "content": "x"}}, 403, "agent"},

		{"typing without a room", r.post("/typing", object{"is_typing": true}), 422, "room_id"},
		{"typing without saying so", r.post("/typing", object{"room_id": r.plaza}), 422, "is_typing"},
		{"typing in a stranger's room", r.post("/typing", object{"room_id": r.closed, "is_typing": true}), 403, ""},
		{"typing in a room that is not there", r.post("/typing", object{"room_id": r.unknown, "is_typing": true}), 404, ""},

		{"a state that is none", r.post("/runtime-state", object{"room_id": r.plaza, "state": "asleep"}), 422, "state"},
		{"no state", r.post("/runtime-state", object{"room_id": r.plaza}), 422, "state"},
		{"a state in a stranger's room", r.post("/runtime-state", object{"room_id": r.closed, "state": "idle"}), 403, ""},

		{"no file", upload(r.plaza), 400, "file"},
		{"an empty file among others", upload(r.plaza, small, nil), 400, "empty"},
		{"a file beyond the limit among others", upload(r.plaza, small, big), 400, ""},
		{"a file to a stranger's room", upload(r.closed, small), 403, ""},
		{"a file to a room that is not there", upload(r.unknown, small), 404, ""},
		{"a file to an archived room", upload(r.archived, small), 409, "archived"},
		{"a file that is no form", ask{method: "POST", path: r.path("/rooms/" + r.plaza + "/media"), body: "x"}, 400, ""},
		{"a download without a key of media", ask{method: "GET", path: r.path("/rooms/" + r.plaza + "/media")}, 400, "mxc"},
		{"a download that is not there", ask{method: "GET", path: r.path("/rooms/" + r.plaza + "/media?mxc=mxc%3A%2F%2Fx%2Fy")}, 404, ""},
		{"a download from a stranger's room", ask{method: "GET", path: r.path("/rooms/" + r.closed + "/media?mxc=x")}, 403, ""},
	})
	r.quiet(t)
}
