package appliance_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"signalbox/transport/roomclient"
)

// schemaOf is what is read of an operation's schema.
type schemaOf struct {
	Properties map[string]struct {
		Type  any   `json:"type"`
		AnyOf []any `json:"anyOf"`
	} `json:"properties"`
	Required []string `json:"required"`
}

// H.1, H.2: whatever operation is called wrongly, by its own schema, is refused before it does anything.
func TestRoomOperationArgumentRefusals(t *testing.T) {
	r := newRefusing(t)
	ops, err := r.bot.Operations(limit(t))
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, name := range slices.Sorted(maps.Keys(ops)) {
		var cases []refusal
		add := func(name string, a ask, status int, words string) {
			cases = append(cases, refusal{name, a, status, words})
		}
		var s schemaOf
		if err := json.Unmarshal(ops[name].InputSchema, &s); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		full := object{}
		for _, arg := range s.Required {
			full[arg] = "x" // which may be of the wrong type: it is not looked at before what is tested
		}
		with := func(arg string, value any) object {
			out := maps.Clone(full)
			out[arg] = value
			return out
		}
		add(name+" with an argument it has not", r.op(r.mine, name, with("colour", "red")), 400, "colour")
		add(name+" with a list", r.op(r.mine, name, "[]"), 422, "object")
		add(name+" with torn JSON", r.op(r.mine, name, "{"), 422, "object")
		add(name+" through a connection that is not there", r.op(r.unknown, name, properly(s)), 409, "is not open")
		add(name+" through another agent's connection", r.op(r.theirs, name, properly(s)), 409, r.theirs+" is not open")
		session := r.op("", name, properly(s))
		session.header = map[string]string{"X-Switch-Session-Id": "s1"}
		add(name+" for a session without a connection", session, 400, "X-Switch-Connection-Id")
		for _, arg := range s.Required {
			less := maps.Clone(full)
			delete(less, arg)
			add(name+" without "+arg, r.op(r.mine, name, less), 400, arg)
			add(name+" with null for "+arg, r.op(r.mine, name, with(arg, nil)), 400, "must be")
		}
		for arg := range s.Properties {
			values := properly(s)
			values[arg] = json.RawMessage(`{"a":[1]}`)
			add(name+" with an object for "+arg, r.op(r.mine, name, values), 400, arg)
		}
		t.Run(name, func(t *testing.T) {
			for _, tc := range cases {
				r.refused(t, tc)
			}
			r.unchanged(t)
		})
		count += len(cases)
	}
	if len(ops) < 40 || count < 8*len(ops) {
		t.Errorf("only %d refusals of %d operations", count, len(ops))
	}
	r.quiet(t)
}

// properly gives every required argument a value of its type.
func properly(s schemaOf) object {
	out := object{}
	for _, arg := range s.Required {
		switch s.Properties[arg].Type {
		case "array":
			out[arg] = []string{"x"}
		case "object":
			out[arg] = object{}
		case "integer":
			out[arg] = 1
		case "boolean":
			out[arg] = true
		default:
			out[arg] = "x"
		}
	}
	return out
}

// H.2 to H.6: what the domain refuses, as clients see it.
func TestRoomOperationRefusals(t *testing.T) {
	r := newRefusing(t)
	session := func(a ask, id string) ask {
		a.header["X-Switch-Session-Id"] = id
		return a
	}
	say := object{"body": "x"}
	target := func(fields object) object {
		out := object{"body": "x"}
		maps.Copy(out, fields)
		return out
	}
	create := func(fields object) object {
		out := object{"name": "n", "description": "d", "agent_names": []string{"bot"}}
		maps.Copy(out, fields)
		return out
	}
	big := strings.Repeat("x", 5<<10)
	r.refuse([]refusal{
		{"an operation that is not there", r.op(r.mine, "fly", object{}), 404, "fly"},
		{"an operation of another", ask{method: "POST", path: "/agents/" + r.other.AgentID.String() + "/ops/list_rooms", body: object{}}, 403, "agent"},
		{"post without a connection", r.op("", "post_message", say), 400, "connect_to_room"},
		{"post without a room", r.op(r.idle, "post_message", say), 400, "connect_to_room"},
		{"post for a session that is nowhere", session(r.op(r.mine, "post_message", say), "s1"), 400, "s1"},
		{"participants without a room", r.op(r.idle, "list_participants", object{}), 400, "connect_to_room"},
		{"context without a room", r.op(r.idle, "read_context", object{}), 400, "connect_to_room"},

		{"connect to a stranger's room", r.op(r.idle, "connect_to_room", object{"room_id": r.closed}), 400, r.closed},
		{"connect to a room that is not there", r.op(r.idle, "connect_to_room", object{"room_id": r.unknown}), 400, r.unknown},
		{"connect to no room", r.op(r.idle, "connect_to_room", object{"room_id": "lobby"}), 400, "room_id"},
		{"connect a session to a stranger's room", session(r.op(r.mine, "connect_to_room", object{"room_id": r.closed}), "s1"), 400, r.closed},

		{"post nothing", r.op(r.mine, "post_message", object{"body": ""}), 400, "body"},
		{"post too much", r.op(r.mine, "post_message", object{"body": big}), 400, "body"},
		{"post in an unknown thread", r.op(r.mine, "post_message", object{"body": "x", "thread_id": r.unknown}), 400, "thread_id"},
		{"post in no thread", r.op(r.mine, "post_message", object{"body": "x", "thread_id": "x"}), 400, "thread_id"},

		{"no target", r.op(r.mine, "send_targeted_message", target(nil)), 400, "target"},
		{"empty targets", r.op(r.mine, "send_targeted_message", target(object{"target_names": []string{}, "target_roles": []string{}})), 400, "target"},
		{"an unknown name", r.op(r.mine, "send_targeted_message", target(object{"target_names": []string{"other", "zoe"}})), 400, "bot"},
		{"an unknown role", r.op(r.mine, "send_targeted_message", target(object{"target_roles": []string{"boss"}})), 400, "boss"},
		{"everyone within a thread", r.op(r.mine, "send_targeted_message", target(object{"target_names": []string{"everyone"},
			"thread_id": r.message})), 400, "everyone"},

		{"since yesterday", r.op(r.mine, "read_context", object{"since": "yesterday"}), 400, "since"},
		{"before the 30th of February", r.op(r.mine, "read_context", object{"before": "2026-02-30T00:00:00Z"}), 400, "before"},
		{"a stranger's context", r.op(r.mine, "read_context", object{"room_id": r.closed}), 403, ""},

		{"a room of nobody", r.op(r.mine, "create_room", create(object{"agent_names": []string{}})), 400, "agent"},
		{"a room with a stranger", r.op(r.mine, "create_room", create(object{"agent_names": []string{"bot", "zoe"}})), 400, "zoe"},
		{"a room without a name", r.op(r.mine, "create_room", create(object{"name": ""})), 400, "name"},
		{"a direct room", r.op(r.mine, "create_room", create(object{"channel_type": "direct"})), 400, "channel_type"},
		{"a room on a bridge", r.op(r.mine, "create_room", create(object{"bridge_id": "b1"})), 400, "bridge_id"},
		{"a room to write but not to read", r.op(r.mine, "create_room", create(object{"read_visibility": "private",
			"write_visibility": "public"})), 400, "write_visibility"},
		{"a room with two roles of a name", r.op(r.mine, "create_room", create(object{"roles": []object{{"name": "x"}, {"name": "X"}}})), 400, "x"},
		{"a room whose alias is a name", r.op(r.mine, "create_room", create(object{"agent_names": []string{"bot", "other"},
			"aliases": object{"bot": "other"}})), 400, "other"},
		{"a room with a link to nowhere", r.op(r.mine, "create_room", create(object{"linked_rooms": []object{{"target_room_id": r.unknown}}})), 400, r.unknown},
		{"archive what is not there", r.op(r.mine, "archive_room", object{"room_id": r.unknown}), 400, ""},
		{"invite nobody", r.op(r.mine, "invite_agent_to_room", object{"agent_name": "zoe"}), 400, "zoe"},
		{"invite under a taken alias", r.op(r.sibling, "invite_agent_to_room", object{"agent_name": "other", "alias": "bot"}), 400, "bot"},
		{"invite into an archived room", r.op(r.mine, "invite_agent_to_room", object{"agent_name": "other", "room_id": r.archived}), 400, "archived"},

		{"a role that is there", r.op(r.mine, "define_role", object{"name": "lead"}), 400, "lead"},
		{"a role with a space", r.op(r.mine, "define_role", object{"name": "team lead"}), 400, "name"},
		{"assume a role that is not there", r.op(r.mine, "assume_role", object{"role": "boss"}), 400, "boss"},
		{"assume a role that another holds", r.op(r.mine, "assume_role", object{"role": "lead"}), 400, "lead"},
		{"edit a role that is not there", r.op(r.mine, "edit_role", object{"role": "boss", "exclusive": true}), 400, "boss"},
		{"delete a role that is not there", r.op(r.mine, "delete_role", object{"role": "boss"}), 400, "boss"},

		{"link a room to itself", r.op(r.mine, "link_rooms", object{"target_room_id": r.plaza}), 400, ""},
		{"unlink what is not linked", r.op(r.mine, "unlink_rooms", object{"target_room_id": r.yard}), 400, ""},
		{"attach a reference that is not there", r.op(r.mine, "attach_reference_to_room", object{"reference_id": r.unknown}), 400, ""},
		{"update a document that is not there", r.op(r.mine, "update_room_document", object{"document_id": r.unknown, "content": "x"}), 400, ""},
		{"an icon that is a script", r.op(r.mine, "update_agent_detail", object{"icon_url": "javascript:alert(1)"}), 400, "icon_url"},
	})
	r.quiet(t)
	// And yet all of it works when it is asked for as it should be.
	if err := r.bot.Op(limit(t), roomclient.Caller{ConnectionID: r.mine}, "post_message", say, nil); err != nil {
		t.Error(err)
	}
}
