package roomapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/transport/roomapi"
)

func TestEveryAgentRouteWantsItsOwnKey(t *testing.T) {
	r := newRig(t)
	own, other := "/agents/"+r.fox.ID.String(), "/agents/"+r.owl.ID.String()
	for _, route := range []struct{ method, rest string }{
		{"GET", "/ops"}, {"POST", "/ops/echo"}, {"POST", "/message"}, {"POST", "/typing"}, {"POST", "/runtime-state"},
		{"GET", "/rooms/" + r.room.String() + "/media?mxc=x"}, {"POST", "/rooms/" + r.room.String() + "/media"}, {"DELETE", ""},
	} {
		for what, key := range map[string]string{"no key": "", "wrong key": "wrong", "registration key": r.regKey} {
			a := r.do(route.method, own+route.rest, key, "")
			if a.status != http.StatusUnauthorized || !strings.HasPrefix(a.header.Get("Content-Type"), "text/plain") ||
				strings.HasPrefix(a.body, "{") {
				t.Errorf("%s %s with %s: %d %s %s", route.method, route.rest, what, a.status, a.header.Get("Content-Type"), a.body)
			}
		}
		r.want(route.method+" "+route.rest+" of another agent", r.do(route.method, other+route.rest, r.keys["fox"], ""), 403,
			"another agent's")
	}
	r.want("version", r.do("GET", "/version", "", ""), 401, "")
	r.want("registration", r.do("POST", "/agents", r.keys["fox"], `{}`), 401, "")
	if n := r.count(`SELECT count(*) FROM room_agents`); n != 2 {
		t.Errorf("%d agents, want 2", n)
	}
}

func TestVersion(t *testing.T) {
	r := newRig(t)
	a := r.do("GET", "/version", r.keys["fox"], "")
	want := `{"version":"1.2.3","contracts":{"agent-protocol":{"speaks":8,"accepts":1}}}`
	if a.status != 200 || strings.TrimSpace(a.body) != want {
		t.Errorf("%d %s, want %s", a.status, a.body, want)
	}
}

const profile = `"integration_profile":{"connection_model":"always_on","message_exchange":true}`

func TestRegistration(t *testing.T) {
	r := newRig(t)
	first := r.do("POST", "/agents", r.regKey, `{"name":"bot","description":"d",`+profile+`}`)
	r.want("first", first, 200, `"api_key"`)
	id, key := first.json(t)["id"].(string), first.json(t)["api_key"].(string)
	if len(key) != 43 {
		t.Errorf("a key of %d characters", len(key))
	}
	r.want("ops with the new key", r.do("GET", "/agents/"+id+"/ops", key, ""), 200, "echo")
	r.want("again", r.do("POST", "/agents", r.regKey, `{"name":"bot","description":"d",`+profile+`}`), 409, "detail")
	again := r.do("POST", "/agents", r.regKey, `{"name":"bot","description":"d","overwrite":true,`+profile+`}`)
	r.want("overwrite", again, 200, id)
	r.want("old key", r.do("GET", "/agents/"+id+"/ops", key, ""), 401, "")
	r.want("bad name", r.do("POST", "/agents", r.regKey, `{"name":"Bot!",`+profile+`}`), 400, "name")
	r.want("no name", r.do("POST", "/agents", r.regKey, `{`+profile+`}`), 422, "name")
	r.want("no profile", r.do("POST", "/agents", r.regKey, `{"name":"x"}`), 422, "integration_profile")
	r.want("no JSON", r.do("POST", "/agents", r.regKey, `{`), 422, "JSON")
	r.want("wrong type", r.do("POST", "/agents", r.regKey, `{"name":1,`+profile+`}`), 422, "name")

	known := r.do("POST", "/agents/register-known", r.regKey,
		`{"agent_type":"claude-code","name":"cc","description":"","options":{}}`)
	r.want("known", known, 200, `"api_key"`)
	r.want("unknown type", r.do("POST", "/agents/register-known", r.regKey,
		`{"agent_type":"x","name":"cc2","options":{}}`), 422, "agent_type")
	bulk := r.do("POST", "/agents/register-known-bulk", r.regKey, fmt.Sprintf(`{"agent_type":"claude-code","parent_agent_id":%q,
		"options":{},"subagents":[{"subagent_name":"a"},{"subagent_name":"b"}]}`, known.json(t)["id"]))
	r.want("bulk", bulk, 200, "cc.b")
	if agents := bulk.json(t)["agents"].([]any); len(agents) != 2 {
		t.Errorf("%d agents", len(agents))
	}
}

func TestDeleteAgent(t *testing.T) {
	r := newRig(t)
	key := r.keys["fox"]
	r.want("unknown", r.do("DELETE", "/agents/"+uuid.NewString(), key, ""), 404, "no such agent")
	r.want("not an id", r.do("DELETE", "/agents/fox", key, ""), 404, "no such agent")
	r.want("another's", r.do("DELETE", "/agents/"+r.owl.ID.String(), key, ""), 403, "another agent's")
	r.want("own", r.do("DELETE", "/agents/"+r.fox.ID.String(), key, ""), 200, `{"ok":true}`)
	r.want("again", r.do("DELETE", "/agents/"+r.fox.ID.String(), key, ""), 401, "")
	if n := r.count(`SELECT count(*) FROM room_members`); n != 0 {
		t.Errorf("%d members stay", n)
	}
}

func TestOperations(t *testing.T) {
	r := newRig(t)
	path, key := "/agents/"+r.fox.ID.String()+"/ops", r.keys["fox"]
	list := r.do("GET", path, key, "").json(t)
	echo := list["operations"].(map[string]any)["echo"].(map[string]any)
	if got := echo["input_schema"].(map[string]any)["type"]; got != "object" {
		t.Errorf("schemas %v", list)
	}
	r.ops.result = map[string]any{"x": []int{1}}
	a := r.do("POST", path+"/echo", key, ` {"n":12345678901234567890} `, roomapi.HeaderConnection, "c1", roomapi.HeaderSession, "s1")
	r.want("call", a, 200, `{"result":{"x":[1]}}`)
	c := r.ops.last
	if c.Agent.No != r.fox.No || c.ConnectionID != "c1" || !c.HasConnection || c.SessionID != "s1" || c.Name != "echo" ||
		string(c.Args) != `{"n":12345678901234567890}` {
		t.Errorf("called with %+v", c)
	}
	r.ops.result = nil
	r.want("no body", r.do("POST", path+"/echo", key, ""), 200, `{"result":null}`)
	if string(r.ops.last.Args) != "{}" || r.ops.last.HasConnection {
		t.Errorf("called with %+v", r.ops.last)
	}
	r.want("unknown", r.do("POST", path+"/nope", key, "{}"), 404, "nope")
	for _, body := range []string{"{", "[]", "null", `"x"`, `{}{}`, "1"} {
		r.want("body "+body, r.do("POST", path+"/echo", key, body), 422, "detail")
	}
	for _, h := range []string{roomapi.HeaderSession, roomapi.HeaderSessionHost, roomapi.HeaderEpoch} {
		r.want(h, r.do("POST", path+"/echo", key, "{}", h, "s"), 400, roomapi.HeaderConnection)
	}
	for _, e := range []struct {
		err    error
		status int
		words  string
	}{
		{fault.Field("body", "is missing"), 400, `{"detail":"body: is missing"}`},
		{fault.New(fault.Forbidden, "no"), 403, `{"detail":"no"}`},
		{fault.New(fault.Conflict, "connection c1 is not open"), 409, "c1 is not open"},
		{fault.New(fault.RateLimited, "slow"), 429, "slow"},
		{room.Refuse(room.CodeTakenOver, "taken"), 409, `{"detail":{"code":"taken_over","message":"taken"}}`},
		{fmt.Errorf("secret cause"), 500, `{"detail":"internal error"}`},
	} {
		r.ops.err = e.err
		r.want(e.err.Error(), r.do("POST", path+"/echo", key, "{}"), e.status, e.words)
	}
}

func TestMessage(t *testing.T) {
	r := newRig(t)
	path, key := "/agents/"+r.fox.ID.String()+"/message", r.keys["fox"]
	body := func(id any, content string) string {
		b, _ := json.Marshal(map[string]any{"room_id": id, "content": content})
		return string(b)
	}
	a := r.do("POST", path, key, body(r.room, "hello"))
	r.want("post", a, 200, `"ok":true`)
	id := uuid.MustParse(a.json(t)["event_id"].(string))
	it, err := r.log.Item(t.Context(), id)
	if err != nil || it.Body != "hello" || it.SenderName != "fox" {
		t.Errorf("%+v, %v", it, err)
	}
	r.want("unknown room", r.do("POST", path, key, body(uuid.New(), "x")), 404, "detail")
	r.want("no room id", r.do("POST", path, key, body("x", "x")), 404, "detail")
	r.want("stranger", r.do("POST", "/agents/"+r.owl.ID.String()+"/message", r.keys["owl"], body(r.room, "x")), 403, "detail")
	r.want("empty", r.do("POST", path, key, body(r.room, "")), 400, "body")
	r.want("no content", r.do("POST", path, key, `{"room_id":"`+r.room.String()+`"}`), 422, "content")
	r.want("no room", r.do("POST", path, key, `{"content":"x"}`), 422, "room_id")
	r.want("type", r.do("POST", path, key, `{"room_id":1,"content":"x"}`), 422, "room_id")
	if n := r.count(`SELECT count(*) FROM room_items`); n != 1 {
		t.Errorf("%d items, want 1", n)
	}
}

func TestTypingAndRuntimeState(t *testing.T) {
	r := newRig(t)
	own, key := "/agents/"+r.fox.ID.String(), r.keys["fox"]
	typing := func(id any) string { return fmt.Sprintf(`{"room_id":"%v","is_typing":true}`, id) }
	r.want("typing", r.do("POST", own+"/typing", key, typing(r.room)), 200, `{"ok":true}`)
	r.want("unknown room", r.do("POST", own+"/typing", key, typing(uuid.New())), 404, "detail")
	r.want("stranger", r.do("POST", "/agents/"+r.owl.ID.String()+"/typing", r.keys["owl"], typing(r.room)), 403, "detail")
	r.want("shape", r.do("POST", own+"/typing", key, `{"room_id":"`+r.room.String()+`"}`), 422, "is_typing")

	_, err := r.conns.Attach(t.Context(), connection.Request{AgentNo: r.fox.No, AgentID: r.fox.ID, ConnectionID: "c",
		Scope: connection.ScopeSingle, Filter: connection.FilterAll, Transport: connection.WebSocket, Rooms: []uuid.UUID{r.room},
		StartHead: true}, nil)
	r.ok("attach", err)
	state := func(state string, id any) string {
		return fmt.Sprintf(`{"room_id":"%v","state":%q,"thread_id":null,"detail":"x","control_capabilities":{"reset":true}}`, id, state)
	}
	r.want("state", r.do("POST", own+"/runtime-state", key, state("working", r.room)), 200, `{"ok":true}`)
	no, err := r.media.Member(t.Context(), r.fox.Actor(), r.room)
	r.ok("member", err)
	if got := r.conns.ControlCapabilities(r.fox.No, no); !got["reset"] {
		t.Errorf("capabilities %v", got)
	}
	r.want("bad state", r.do("POST", own+"/runtime-state", key, state("dancing", r.room)), 422, "state")
	r.want("stranger", r.do("POST", "/agents/"+r.owl.ID.String()+"/runtime-state", r.keys["owl"], state("idle", r.room)), 403,
		"detail")
	r.want("no room", r.do("POST", own+"/runtime-state", key, `{"state":"idle"}`), 422, "room_id")
}

func TestIsUpload(t *testing.T) {
	for target, want := range map[string]bool{
		"POST /agents/a/rooms/r/media":   true,
		"GET /agents/a/rooms/r/media":    false,
		"POST /agents/a/rooms/r/media/x": false,
		"POST /agents/a/message":         false,
		"POST /x/a/rooms/r/media":        false,
	} {
		method, path, _ := strings.Cut(target, " ")
		if got := roomapi.IsUpload(httptest.NewRequest(method, path, nil)); got != want {
			t.Errorf("%s: %v", target, got)
		}
	}
}
