package operation_test

import (
	"strings"
	"testing"

	"signalbox/appliance/room/operation"
)

// foxHint and its like are what is said of agents that only their owner can address.
func hint(name string) string {
	return "only its owner can address it; open it with: signalbox roomagents policy " + name + " --open"
}

// Every operation is called with every argument it has, and gives what the protocol says. An argument that no operation
// looks at, and an operation that is not called here, fail the test.
func TestEveryOperation(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	read := map[string]bool{}
	r.OnRead(func(op, arg string) { read[op+"."+arg] = true })
	called := map[string]bool{}
	gives := func(op, args, want string) map[string]any {
		t.Helper()
		called[op] = true
		got, _ := r.gives(r.asFox(op, args), want).(map[string]any)
		return got
	}
	save := func(name string, got map[string]any, field string) {
		t.Helper()
		id, ok := got[field].(string)
		if !ok {
			t.Fatalf("no %s in %v", field, got)
		}
		r.names[name] = id
	}

	gives("list_rooms", `{"include_archived":true}`,
		`[{"room_id":"$den","name":"den","description":"of foxes","connected":true,"archived":false}]`)
	gives("list_participants", ``, `[
		{"id":"$fox","name":"fox","type":"agent","status":"live","alias":"red","note":"`+hint("fox")+`"},
		{"id":"$owl","name":"owl","type":"agent","status":"disconnected","alias":null,"note":"`+hint("owl")+`"},
		{"id":"$ann","name":"ann","type":"user","status":null,"alias":null}]`)
	save("first", gives("post_message", `{"body":"hello","thread_id":null}`, `{"event_id":"*"}`), "event_id")
	save("second", gives("post_message", `{"body":"more","thread_id":"$first"}`, `{"event_id":"*"}`), "event_id")

	gives("define_role", `{"name":"lead","exclusive":true,"instructions":"Lead."}`, `{"name":"lead","exclusive":true,"instructions":"Lead."}`)
	gives("assume_role", `{"role":"@lead"}`, `{"role":"lead","instructions":"Lead."}`)
	gives("list_roles", ``, `[{"name":"lead","exclusive":true,"instructions_preview":"Lead.",
		"held_by":[{"name":"fox","present_here":true,"session_room":"$den"}],"assumable_by_me":true}]`)
	long := strings.Repeat("é", 201)
	gives("edit_role", `{"role":"lead","exclusive":false,"instructions":"`+long+`"}`, `{"name":"lead","exclusive":false,"instructions":"`+long+`"}`)
	gives("get_role_detail", `{"role":"LEAD"}`, `{"name":"lead","exclusive":false,"instructions":"`+long+`",
		"held_by":[{"name":"fox","present_here":true,"session_room":"$den"}],"assumable_by_me":true}`)
	gives("list_roles", ``, `[{"name":"lead","exclusive":false,"instructions_preview":"`+strings.Repeat("é", 200)+`",
		"held_by":[{"name":"fox","present_here":true,"session_room":"$den"}],"assumable_by_me":true}]`)
	gives("send_targeted_message", `{"body":"act","target_names":["owl"],"target_roles":["lead"],"thread_id":"$second"}`,
		`{"event_id":"*","target_statuses":{"owl":"not_permitted","fox":"live"}}`)

	save("ref", gives("create_reference", `{"type":"url","name":"wiki","value":"https://wiki","description":"d","instructions":"i",
		"read_visibility":"public","write_visibility":"public"}`,
		`{"id":"*","type":"url","name":"wiki","value":"https://wiki","description":"d","instructions":"i"}`), "id")
	gives("attach_reference_to_room", `{"reference_id":"$ref","room_id":"$den"}`, `{"room_id":"$den","reference_id":"$ref"}`)
	wiki := `{"id":"$ref","type":"url","name":"wiki","value":"https://wiki","description":"d","instructions":"i"}`
	gives("list_references", `{"room_id":null}`, `[`+wiki+`]`)
	gives("list_all_references", ``, `[`+wiki+`]`)
	gives("list_reference_types", ``, `["*","*","*","*","*"]`)
	save("doc", gives("create_room_document", `{"name":"plan","content":"one","description":"d","instructions":"i","scope":"agent"}`,
		`{"id":"*","name":"plan","description":"d","instructions":"i","scope":"agent","created_by_agent_id":"$fox","size":3}`), "id")
	gives("update_room_document", `{"document_id":"$doc","name":"plans","content":"four","description":"e","instructions":"j"}`,
		`{"id":"$doc","name":"plans","description":"e","instructions":"j","scope":"agent","created_by_agent_id":"$fox","size":4}`)
	gives("load_internal_documents", `{"document_ids":["$doc"]}`, `[{"id":"$doc","name":"plans","description":"e","instructions":"j",
		"scope":"agent","created_by_agent_id":"$fox","size":4,"content":"four"}]`)

	gives("create_room_group", `{"name":"wood","description":"w"}`, `{"id":"*","name":"wood","description":"w"}`)
	gives("list_room_groups", ``, `[{"id":"*","name":"wood","description":"w"}]`)
	made := gives("create_room", `{"name":"lair","description":"l","agent_names":["owl","fox"],"user_names":["bob@example.org"],
		"channel_type":"channel_private","bridge_id":null,"internal_only":true,"admin_mode":false,"security_config":{},"instructions":"Hush.",
		"reference_ids":["$ref","$owl","x"],"package_ids":[],"linked_rooms":[{"target_room_id":"$den","label":"next door"}],
		"read_visibility":"private","write_visibility":null,"group_name":"wood","roles":[{"name":"scout","exclusive":true,"instructions":"Look."}],
		"include_subagents_for":["fox"],"join_event_listeners":["owl"],"aliases":{"owl":"wise"}}`,
		`{"id":"*","name":"lair","transport_room_id":"*","matrix_room_id":"*","failed_attachments":[
			{"reference_id":"$owl","error":"reference $owl not found"},{"reference_id":"x","error":"*"}]}`)
	save("lair", made, "id")
	if made["id"] != made["transport_room_id"] || made["id"] != made["matrix_room_id"] {
		t.Errorf("the ids of a new room differ: %v", made)
	}
	gives("get_room_group_detail", `{"group":"wood"}`, `{"id":"*","name":"wood","description":"w","rooms":[{"room_id":"$lair","name":"lair",
		"description":"l","channel_type":"channel_private","group":"wood","member":true,"archived":false}]}`)
	gives("list_linked_rooms", `{"room_id":"$lair"}`, `[{"target_room_id":"$den","target_room_name":"den","target_room_description":"of foxes",
		"label":"next door","access":"member"}]`)
	gives("link_rooms", `{"target_room_id":"$lair","label":"home","room_id":"$den"}`, `{"room_id":"$den","target_room_id":"$lair","label":"home"}`)
	gives("list_all_rooms", `{"include_archived":true}`, `[
		{"room_id":"$den","name":"den","description":"of foxes","channel_type":"channel_public","group":null,"member":true,"archived":false},
		{"room_id":"$lair","name":"lair","description":"l","channel_type":"channel_private","group":"wood","member":true,"archived":false}]`)
	gives("invite_agent_to_room", `{"agent_name":"cub","room_id":"$den","alias":"kid","receives_join_events":true}`,
		`{"room_id":"$den","agent_name":"cub","joined":true,"note":"`+hint("cub")+`"}`)
	gives("add_users_to_room", `{"user_names":["bob","ann"],"room_id":"$den"}`, `{"room_id":"$den","added":["bob"]}`)

	connected := gives("connect_to_room", `{"room_id":"$den","include_general_instructions":false}`, `{
		"agent_id":"$fox","room_id":"$den","name":"den","description":"of foxes","instructions":"Be quiet.",
		"participants":[
			{"id":"$cub","name":"cub","type":"agent","agent_type":null,"can_delegate":false,"can_accept":false,"status":"disconnected","room_role":null,"alias":"kid","note":"*"},
			{"id":"$fox","name":"fox","type":"agent","agent_type":null,"can_delegate":false,"can_accept":false,"status":"live","room_role":"lead","alias":"red","note":"*"},
			{"id":"$owl","name":"owl","type":"agent","agent_type":null,"can_delegate":false,"can_accept":false,"status":"disconnected","room_role":null,"alias":null,"note":"*"},
			{"id":"$ann","name":"ann","type":"user","agent_type":null,"can_delegate":false,"can_accept":false,"status":null,"room_role":null,"alias":null},
			{"id":"$bob","name":"bob","type":"user","agent_type":null,"can_delegate":false,"can_accept":false,"status":null,"room_role":null,"alias":null}],
		"reference_types":{"url":"*"},"references":[`+wiki+`],
		"documents":[{"id":"$doc","name":"plans","description":"e","instructions":"j","scope":"agent","created_by_agent_id":"$fox","size":4}],
		"packages":[],"linked_rooms":[{"target_room_id":"$lair","target_room_name":"lair","target_room_description":"l","label":"home","access":"member"}],
		"roles":[{"name":"lead","exclusive":false,"instructions_preview":"*","held_by":[{"name":"fox","present_here":true,"session_room":"$den"}],"assumable_by_me":true}],
		"warning":null}`)
	if got := connected["warning"]; got != nil {
		t.Errorf("connecting to the room it is in warns: %v", got)
	}
	history := gives("read_context", `{"limit":1,"since":"2026-01-02","before":"2026-01-03T00:00Z","room_id":"$lair"}`,
		`{"threads":[],"truncated":false,"oldest_timestamp":null}`)
	if history["truncated"] != false {
		t.Error("an empty room is truncated")
	}

	gives("update_room", `{"room_id":"$lair","name":"lair 2","description":"m","instructions":"","channel_type":"channel_public",
		"internal_only":false,"read_visibility":"public","write_visibility":"public","group_name":""}`, `{"room_id":"$lair","name":"lair 2",
		"description":"m","instructions":"","channel_type":"channel_public","owner_id":"$ann","group":null,"read_visibility":"public",
		"write_visibility":"public","internal_only":false,"archived":false,"member":true,"created_at":1767323045000,"updated_at":1767323045000}`)
	gives("archive_room", `{"room_id":"$lair"}`, `{"room_id":"$lair","archived":true}`)
	gives("unarchive_room", `{"room_id":"$lair"}`, `{"room_id":"$lair","archived":false}`)
	gives("get_room_detail", `{"room_id":"$lair"}`, `{"room_id":"$lair","name":"lair 2","description":"m","instructions":"",
		"channel_type":"channel_public","owner_id":"$ann","group":null,"read_visibility":"public","write_visibility":"public",
		"internal_only":false,"archived":false,"member":true,"created_at":1767323045000,"updated_at":1767323045000,"participants":["*","*","*"]}`)
	gives("unlink_rooms", `{"target_room_id":"$den","room_id":"$lair"}`, `{"room_id":"$lair","target_room_id":"$den","unlinked":true}`)
	gives("list_bridges", ``, `[]`)

	gives("list_agents", `{"name_prefix":"","after":"fox"}`, `{"agents":[{"id":"$owl","name":"owl","display_name":null,"description":"a owl",
		"agent_type":null,"connected":false,"note":"*"}],"more":false}`)
	gives("update_agent_detail", `{"description":"sly","display_name":"Fox","icon_url":"https://example.org/fox.png"}`, `{"id":"$fox",
		"name":"fox","display_name":"Fox","description":"sly","agent_type":null,"connected":true,"note":"*","owner":"ann","connector_type":"*",
		"connection_model":"session_addressable","can_delegate":false,"can_accept":false,"tools":[],"models":[],"created_at":1767323045000,
		"rooms":[{"room_id":"$den","name":"den","status":"live"},{"room_id":"$lair","name":"lair 2","status":"no_session"}]}`)
	gives("get_agent_detail", `{"agent_name":"cub"}`, `{"id":"$cub","name":"cub","display_name":null,"description":"a cub","agent_type":null,
		"connected":false,"note":"*","owner":"ann","connector_type":"*","connection_model":"always_on","can_delegate":false,"can_accept":false,
		"tools":[],"models":[],"created_at":1767323045000,"rooms":[{"room_id":"$den","name":"den","status":"disconnected"}]}`)

	gives("edit_role", `{"role":"lead","new_name":"boss"}`, `{"name":"boss","exclusive":false,"instructions":"*"}`)
	gives("release_role", ``, `{"released":false,"role":null}`) // the rename ended the lease
	gives("assume_role", `{"role":"boss"}`, `{"role":"boss","instructions":"*"}`)
	gives("release_role", ``, `{"released":true,"role":"boss"}`)
	gives("delete_role", `{"role":"boss"}`, `{"role":"boss","deleted":true}`)
	gives("delete_room_document", `{"document_id":"$doc"}`, `{"document_id":"$doc","deleted":true}`)

	for _, op := range r.Operations() {
		if !called[op.Name] {
			t.Errorf("%s was not called", op.Name)
		}
		for _, arg := range operation.Arguments(op.Name) {
			if !read[op.Name+"."+arg] {
				t.Errorf("%s does not look at %s", op.Name, arg)
			}
		}
	}
}
