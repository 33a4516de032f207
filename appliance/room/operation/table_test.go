package operation_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/directory"
	"signalbox/appliance/room/operation"
)

// The names of H.3 and of the groups of H.6 that are served; clients know them.
var protocolNames = []string{"list_rooms", "connect_to_room", "list_participants", "post_message", "send_targeted_message", "read_context",
	"create_room", "update_room", "get_room_detail", "list_all_rooms", "invite_agent_to_room", "add_users_to_room", "archive_room",
	"unarchive_room", "list_bridges", "list_roles", "get_role_detail", "define_role", "edit_role", "delete_role", "assume_role",
	"release_role", "list_references", "list_all_references", "list_reference_types", "create_reference", "attach_reference_to_room",
	"load_internal_documents", "create_room_document", "update_room_document", "delete_room_document", "list_linked_rooms", "link_rooms",
	"unlink_rooms", "list_room_groups", "create_room_group", "get_room_group_detail", "list_agents", "get_agent_detail", "update_agent_detail"}

type schema struct {
	Type       any               `json:"type"`
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
	AnyOf      []schema          `json:"anyOf"`
	Default    json.RawMessage   `json:"default"`
	Items      *schema           `json:"items"`
	Enum       []string          `json:"enum"`
	Additional any               `json:"additionalProperties"`
	Said       string            `json:"description"`
}

func TestSchemas(t *testing.T) {
	t.Parallel()
	table := operation.New(operation.Services{})
	var ops map[string]struct {
		Description string          `json:"description"`
		Schema      json.RawMessage `json:"input_schema"`
	}
	if err := json.Unmarshal(table.Schemas(), &ops); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, info := range table.Operations() {
		names = append(names, info.Name)
		got := ops[info.Name]
		if !bytes.Equal(got.Schema, info.InputSchema) || got.Description != info.Description || info.Group == "" {
			t.Errorf("%s: GET ops and the list differ", info.Name)
		}
		if len(info.Description) < 40 || len(info.Description) > 700 || strings.Contains(info.Description, "  ") {
			t.Errorf("%s: description of %d bytes: %q", info.Name, len(info.Description), info.Description)
		}
		var s schema
		d := json.NewDecoder(bytes.NewReader(info.InputSchema))
		d.DisallowUnknownFields()
		if err := d.Decode(&s); err != nil || s.Type != "object" || s.Properties == nil {
			t.Errorf("%s: schema %s: %v", info.Name, info.InputSchema, err)
			continue
		}
		for name, p := range s.Properties {
			required := slices.Contains(s.Required, name)
			switch {
			case !regexp.MustCompile(`^[a-z_]+$`).MatchString(name) || p.Said == "":
				t.Errorf("%s.%s: %+v", info.Name, name, p)
			case required && (p.Default != nil || p.Type == nil):
				t.Errorf("%s.%s is required and has the default %s", info.Name, name, p.Default)
			case !required && p.Default == nil, !required && string(p.Default) == "null" && (len(p.AnyOf) != 2 || p.AnyOf[1].Type != "null"):
				t.Errorf("%s.%s is not required and has no default, or one that it does not take: %+v", info.Name, name, p)
			}
		}
		if args := operation.Arguments(info.Name); len(args) != len(s.Properties) {
			t.Errorf("%s: %d properties for %d arguments", info.Name, len(s.Properties), len(args))
		}
	}
	if !slices.Equal(names, protocolNames) {
		t.Errorf("operations are\n%v\nwant\n%v", names, protocolNames)
	}
	if got := string(ops["list_bridges"].Schema); got != `{"type":"object","properties":{}}` {
		t.Errorf("no arguments: %s", got)
	}
	want := `{"type":"object","properties":{"body":{"type":"string","description":"*"},"thread_id":{"anyOf":[{"type":"string"},` +
		`{"type":"null"}],"default":null,"description":"*"}},"required":["body"]}`
	got := regexp.MustCompile(`"description":"(?:[^"\\]|\\.)*"`).ReplaceAllString(string(ops["post_message"].Schema), `"description":"*"`)
	if got != want {
		t.Errorf("post_message: %s\nwant %s", got, want)
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	text := operation.Markdown()
	for _, info := range operation.New(operation.Services{}).Operations() {
		_, section, found := strings.Cut(text, "\n### `"+info.Name+"`\n")
		section, _, _ = strings.Cut(section, "\n### ")
		if !found || !strings.Contains(section, info.Description) || !strings.Contains(section, "\n\nResult: ") && !strings.Contains(section, "In a room. Result: ") {
			t.Errorf("%s is not documented: %q", info.Name, section)
		}
		if strings.Contains(section, "In a room. ") != info.RoomBound {
			t.Errorf("%s: in a room? %v", info.Name, info.RoomBound)
		}
		for _, arg := range operation.Arguments(info.Name) {
			if !strings.Contains(section, "\n| `"+arg+"` | ") {
				t.Errorf("%s.%s is not documented", info.Name, arg)
			}
		}
	}
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "| ") && strings.Count(strings.ReplaceAll(line, `\|`, ""), "|") != 5 {
			t.Errorf("line %d is no row of a table: %s", i+1, line)
		}
	}
}

func TestArgumentsAreCheckedBeforeAnythingElse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, c := range []struct {
		op, args string
		code     fault.Code
		words    string
	}{
		{"nothing", `{}`, fault.NotFound, "nothing"},
		{"post_message", `{"body":"x","text":"y"}`, fault.Invalid, `unexpected argument "text": post_message takes body (required), thread_id`},
		{"list_bridges", `{"x":1}`, fault.Invalid, `unexpected argument "x": list_bridges takes no arguments`},
		{"list_bridges", `{"":1}`, fault.Invalid, `unexpected argument ""`},
		{"post_message", `{}`, fault.Invalid, `missing argument "body"`},
		{"post_message", ``, fault.Invalid, `missing argument "body"`},
		{"post_message", `{"body":null}`, fault.Invalid, "body: must be a string"},
		{"post_message", `{"body":7}`, fault.Invalid, "body: must be a string"},
		{"post_message", `{"body":["x"]}`, fault.Invalid, "body: must be a string"},
		{"post_message", `{"body":"x","thread_id":7}`, fault.Invalid, "thread_id: must be a string"},
		{"post_message", `[]`, fault.Invalid, "JSON object"},
		{"post_message", `null`, fault.Invalid, "JSON object"},
		{"post_message", `{`, fault.Invalid, "JSON object"},
		{"list_rooms", `{"include_archived":"yes"}`, fault.Invalid, "include_archived: must be true or false"},
		{"read_context", `{"limit":"5"}`, fault.Invalid, "limit: must be a whole number"},
		{"read_context", `{"limit":1.5}`, fault.Invalid, "limit: must be a whole number"},
		{"send_targeted_message", `{"body":"x","target_names":"owl"}`, fault.Invalid, "target_names: must be a list of strings"},
		{"send_targeted_message", `{"body":"x","target_names":["owl",null]}`, fault.Invalid, "target_names: must be a list of strings"},
		{"create_room", `{"name":"n","description":"d","agent_names":["fox"],"channel_type":"direct"}`, fault.Invalid, "channel_type: must be one of channel_public, channel_private"},
		{"create_room", `{"name":"n","description":"d","agent_names":["fox"],"roles":[{"title":"x"}]}`, fault.Invalid, "roles: must be a list of objects"},
		{"create_room", `{"name":"n","description":"d","agent_names":["fox"],"linked_rooms":["$den"]}`, fault.Invalid, "linked_rooms: must be a list of objects"},
		{"create_room", `{"name":"n","description":"d","agent_names":["fox"],"aliases":{"fox":1}}`, fault.Invalid, "aliases: must be an object of strings"},
		{"create_room", `{"name":"n","description":"d","agent_names":["fox"],"bridge_id":"b1"}`, fault.Invalid, "bridge_id: must be empty"},
		{"create_room", `{"name":"n","description":"d","agent_names":["fox"],"package_ids":["p"]}`, fault.Invalid, "package_ids: must be empty"},
		{"create_room", `{"name":"n","description":"d","agent_names":["fox"],"admin_mode":true}`, fault.Invalid, "admin_mode: must be empty"},
	} {
		r.refuses(r.asFox(c.op, c.args), c.code, c.words)
	}
	for _, args := range []string{`{"limit":500.0}`, `{"limit":1e2}`, `{"limit":-5}`, `{"limit":1e300}`, `{"limit":null}`} {
		r.do(r.asFox("read_context", args))
	}
}

func TestDomainRefusalsAreBadInput(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	unknown := uuid.NewString()
	shut := r.room(directory.NewRoom{Name: "shut", Agents: []directory.Invitation{{Name: "cub"}}, ReadVisibility: room.Private, WriteVisibility: room.Private})
	r.names["shut"] = shut.ID.String()
	doc, err := r.dir.CreateDocument(r.ctx(), r.ann.Actor(), shut.ID, directory.NewDocument{Name: "secret", Content: "x"})
	r.ok("document", err)
	r.names["doc"] = doc.ID.String()
	r.do(r.asFox("define_role", `{"name":"lead"}`))
	for _, c := range []struct {
		op, args, words string
	}{
		{"connect_to_room", `{"room_id":"` + unknown + `"}`, unknown},
		{"connect_to_room", `{"room_id":"den"}`, "room_id: must be an id"},
		{"connect_to_room", `{"room_id":"{` + r.names["den"] + `}"}`, "room_id: must be an id"},
		{"get_room_detail", `{"room_id":"` + unknown + `"}`, "not found"},
		{"post_message", `{"body":"x","thread_id":"` + unknown + `"}`, "thread_id"},
		{"post_message", `{"body":""}`, "body"},
		{"send_targeted_message", `{"body":"x"}`, "at least one target"},
		{"send_targeted_message", `{"body":"x","target_names":["zoe"]}`, "zoe is nobody in this room; participants: fox (red), owl, ann"},
		{"send_targeted_message", `{"body":"x","target_roles":["boss"]}`, "boss is no role of this room"},
		{"read_context", `{"since":"yesterday"}`, "since: must be a time in ISO 8601"},
		{"read_context", `{"before":"2026-02-30"}`, "before: must be a time in ISO 8601"},
		{"read_context", `{"room_id":"x"}`, "room_id: must be an id"},
		{"define_role", `{"name":"LEAD"}`, "there already"},
		{"define_role", `{"name":"two words"}`, "white space"},
		{"define_role", `{"name":"red"}`, `alias of agent "fox"`},
		{"edit_role", `{"role":"boss"}`, `role "boss"`},
		{"delete_role", `{"role":"boss"}`, `role "boss"`},
		{"assume_role", `{"role":"boss"}`, `role "boss"`},
		{"get_role_detail", `{"role":"boss"}`, `role "boss"`},
		{"create_room", `{"name":"n","description":"d","agent_names":[]}`, "at least one agent"},
		{"create_room", `{"name":"n","description":"d","agent_names":["fox","zoe"]}`, `agents[1]: agent "zoe" not found`},
		{"create_room", `{"name":"n","description":"d","agent_names":["fox"],"aliases":{"owl":"x"}}`, `aliases: "owl" is not among agent_names`},
		{"create_room", `{"name":"n","description":"d","agent_names":["fox"],"aliases":{"fox":"a b"}}`, "aliases[fox]: must match"},
		{"create_room", `{"name":"n","description":"d","agent_names":["fox"],"join_event_listeners":["owl"]}`, `join_event_listeners: "owl"`},
		{"create_room", `{"name":"n","description":"d","agent_names":["fox"],"linked_rooms":[{"target_room_id":"x"}]}`, "linked_rooms[0].target_room_id"},
		{"create_room", `{"name":"n","description":"d","agent_names":["fox"],"write_visibility":"public","read_visibility":"private"}`, "write_visibility"},
		{"create_room", `{"name":"n","description":"d","agent_names":["fox"],"group_name":"zoo"}`, `room group "zoo"`},
		{"update_room", `{"name":""}`, "name: must not be empty"},
		{"invite_agent_to_room", `{"agent_name":"zoe"}`, `agent_name: there is no agent "zoe"`},
		{"invite_agent_to_room", `{"agent_name":"cub","alias":"a b"}`, "alias: must match"},
		{"invite_agent_to_room", `{"agent_name":"cub","alias":"owl"}`, "the name of agent owl"},
		{"add_users_to_room", `{"user_names":[]}`, "people: must name"},
		{"add_users_to_room", `{"user_names":["zoe"]}`, `person "zoe"`},
		{"archive_room", `{"room_id":"` + unknown + `"}`, "not found"},
		{"create_reference", `{"type":"U R L","name":"n","value":"v"}`, "type: must match"},
		{"attach_reference_to_room", `{"reference_id":"` + unknown + `"}`, "not found"},
		{"load_internal_documents", `{"document_ids":["` + unknown + `"]}`, "there is no document"},
		{"load_internal_documents", `{"document_ids":["x"]}`, "document_ids: must be an id"},
		{"load_internal_documents", `{"document_ids":["$doc"]}`, "there is no document"}, // of another room
		{"create_room_document", `{"name":"","content":"x"}`, "name: must not be empty"},
		{"create_room_document", `{"name":"n","content":"` + strings.Repeat("x", 1<<20+1) + `"}`, "content: must have at most 1048576 bytes"},
		{"update_room_document", `{"document_id":"` + unknown + `","name":"x"}`, "not found"},
		{"delete_room_document", `{"document_id":"` + unknown + `"}`, "not found"},
		{"link_rooms", `{"target_room_id":"$den"}`, "itself"},
		{"unlink_rooms", `{"target_room_id":"$shut"}`, "no link"},
		{"create_room_group", `{"name":""}`, "name"},
		{"get_room_group_detail", `{"group":"zoo"}`, `room group "zoo"`},
		{"get_agent_detail", `{"agent_name":"zoe"}`, `agent_name: there is no agent "zoe"`},
		{"update_agent_detail", `{"icon_url":"javascript:alert(1)"}`, "icon_url"},
	} {
		r.refuses(r.asFox(c.op, c.args), fault.Invalid, c.words)
	}
	for op, args := range map[string]string{"get_room_detail": `{"room_id":"$shut"}`, "read_context": `{"room_id":"$shut"}`,
		"update_room": `{"room_id":"$shut","name":"x"}`, "archive_room": `{"room_id":"$shut"}`, "invite_agent_to_room": `{"room_id":"$shut","agent_name":"owl"}`,
		"add_users_to_room": `{"room_id":"$shut","user_names":["bob"]}`, "list_references": `{"room_id":"$shut"}`,
		"list_linked_rooms": `{"room_id":"$shut"}`, "link_rooms": `{"room_id":"$shut","target_room_id":"$den"}`,
		"update_room_document": `{"document_id":"$doc","name":"x"}`, "delete_room_document": `{"document_id":"$doc"}`} {
		r.refuses(r.asOwl(op, args), fault.Forbidden, "")
	}
	r.refuses(r.asOwl("connect_to_room", `{"room_id":"$shut"}`), fault.Invalid, "not a member of room $shut")
}

func TestWhichRoomAnOperationActsIn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lair := r.room(directory.NewRoom{Name: "lair", Agents: []directory.Invitation{{Name: "fox"}}})
	r.names["lair"] = lair.ID.String()
	post := func(c operation.Call) operation.Call {
		c.Name, c.Args = "post_message", json.RawMessage(`{"body":"x"}`)
		return c
	}
	fox := operation.Call{Agent: r.fox, ConnectionID: "c2", HasConnection: true}
	r.attach(r.fox, "c2")

	r.refuses(post(operation.Call{Agent: r.fox}), fault.Invalid, "connect_to_room")
	r.refuses(post(operation.Call{Agent: r.fox, SessionID: "s"}), fault.Invalid, "session needs a connection")
	r.refuses(operation.Call{Agent: r.fox, SessionID: "s", Name: "list_rooms"}, fault.Invalid, "session needs a connection")
	r.refuses(post(fox), fault.Invalid, "not connected: call connect_to_room first")
	for _, id := range []string{"gone", "", "c2 "} { // 409: the id and "is not open"
		for _, op := range []string{"post_message", "list_rooms", "list_bridges", "assume_role", "connect_to_room"} {
			args := map[string]string{"post_message": `{"body":"x"}`, "assume_role": `{"role":"x"}`, "connect_to_room": `{"room_id":"$den"}`}[op]
			r.refuses(operation.Call{Agent: r.fox, ConnectionID: id, HasConnection: true, Name: op, Args: json.RawMessage(r.fill(args))},
				fault.Conflict, id+" is not open")
		}
	}
	r.refuses(post(operation.Call{Agent: r.owl, ConnectionID: "c2", HasConnection: true}), fault.Conflict, "c2 is not open")

	connect := func(c operation.Call, id string) any {
		c.Name, c.Args = "connect_to_room", json.RawMessage(r.fill(`{"room_id":"`+id+`"}`))
		return r.do(c).(map[string]any)["warning"]
	}
	if w := connect(fox, "$lair"); w != nil {
		t.Errorf("a free room was taken with the warning %v", w)
	}
	r.do(post(fox))
	if n := r.items(lair.No); n != 1 {
		t.Errorf("%d items in the connected room", n)
	}
	if w, ok := connect(fox, "$den").(string); !ok || !strings.Contains(w, "c1") {
		t.Errorf("taking a room from a live sibling warns %v", w)
	}
	r.refuses(post(operation.Call{Agent: r.fox, ConnectionID: "c1", HasConnection: true}), fault.Invalid, "not connected")

	session := fox
	session.SessionID = "s1"
	r.refuses(post(session), fault.Invalid, `session "s1" is not connected`)
	connect(session, "$den")
	other := fox
	other.SessionID = "s2"
	connect(other, "$lair")
	r.refuses(post(fox), fault.Invalid, "in 2 rooms")
	r.do(post(other))
	if n := r.items(lair.No); n != 2 {
		t.Errorf("%d items in the room of the session", n)
	}
	for c, want := range map[*operation.Call][]bool{&session: {true, false}, &fox: {true, true}, {Agent: r.fox}: {true, true}} {
		list := *c
		list.Name = "list_rooms"
		rooms := r.do(list).([]any)
		for i, m := range rooms {
			if m.(map[string]any)["connected"] != want[i] {
				t.Errorf("connected of %+v: %v", list, rooms)
			}
		}
	}

	// Without a connection the context is returned and nothing claimed.
	before := r.state()
	if got := connect(operation.Call{Agent: r.owl}, "$den"); got != nil || before != r.state() {
		t.Errorf("a call without a connection claims: %v", got)
	}
}

func (r *rig) items(roomNo int64) int {
	r.t.Helper()
	list, _, err := r.log.Since(r.ctx(), roomNo, 0, 100)
	r.ok("items", err)
	return len(list)
}

func TestGeneralInstructions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	get := func(args string) string {
		return r.do(r.asFox("connect_to_room", args)).(map[string]any)["instructions"].(string)
	}
	long, short := get(`{"room_id":"$den"}`), get(`{"room_id":"$den","include_general_instructions":false}`)
	if short != "Be quiet." || !strings.HasSuffix(long, "\n\nBe quiet.") || len(long) < 500 {
		t.Errorf("instructions %q, %q", short, long)
	}
}

func TestExclusiveRoles(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.attach(r.owl, "o1", r.den.ID)
	owl := func(op, args string) operation.Call {
		c := r.asOwl(op, args)
		c.ConnectionID, c.HasConnection = "o1", true
		return c
	}
	r.do(r.asFox("define_role", `{"name":"lead","exclusive":true}`))
	r.do(r.asFox("define_role", `{"name":"scout"}`))
	r.do(r.asFox("assume_role", `{"role":"LEAD"}`)) // kept as it is defined
	r.refuses(r.asFox("assume_role", `{"role":"scout"}`), fault.Invalid, `already holds role "lead"`)
	r.refuses(owl("assume_role", `{"role":"lead"}`), fault.Invalid, "held by fox")
	r.gives(owl("list_roles", ``), `[
		{"name":"lead","exclusive":true,"instructions_preview":"","held_by":[{"name":"fox","present_here":true,"session_room":"$den"}],"assumable_by_me":false},
		{"name":"scout","exclusive":false,"instructions_preview":"","held_by":[],"assumable_by_me":true}]`)
	lair := r.room(directory.NewRoom{Name: "lair", Agents: []directory.Invitation{{Name: "fox"}}})
	r.names["lair"] = lair.ID.String()
	r.do(r.asFox("connect_to_room", `{"room_id":"$lair"}`)) // the lease stays when its holder moves
	r.gives(owl("get_role_detail", `{"role":"lead"}`), `{"name":"lead","exclusive":true,"instructions":"",
		"held_by":[{"name":"fox","present_here":false,"session_room":"$lair"}],"assumable_by_me":false}`)
	r.do(r.asFox("release_role", ``))
	r.gives(owl("assume_role", `{"role":"lead"}`), `{"role":"lead","instructions":""}`)
	r.refuses(r.asOwl("assume_role", `{"role":"lead"}`), fault.Invalid, "connect_to_room")
}

func TestDocumentsAreLoadedInBounds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.SetLoadBytes(400)
	for range 5 {
		r.do(r.asFox("create_room_document", `{"name":"big","content":"`+strings.Repeat("x", 100)+`"}`))
	}
	list := r.do(r.asFox("load_internal_documents", ``)).([]any)
	var loaded []bool
	for _, d := range list {
		loaded = append(loaded, d.(map[string]any)["content"] != nil)
	}
	if !slices.Equal(loaded, []bool{true, true, true, true, false}) {
		t.Errorf("loaded %v", loaded)
	}
	last := list[4].(map[string]any)["id"].(string)
	again := r.do(r.asFox("load_internal_documents", `{"document_ids":["`+last+`","`+last+`"]}`)).([]any)
	if len(again) != 1 || again[0].(map[string]any)["content"] == nil {
		t.Error("the one that did not fit was not loaded by its id")
	}
}

// What the store fails at is no bad input of the caller's.
func TestFailuresAreNotBlamedOnTheCaller(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.ok("close", r.db.Close())
	_, err := r.Call(r.ctx(), r.asFox("post_message", `{"body":"x"}`))
	if !fault.Is(err, fault.Unavailable) && !errors.Is(err, r.ctx().Err()) {
		t.Errorf("%v (%s)", err, fault.CodeOf(err))
	}
}
