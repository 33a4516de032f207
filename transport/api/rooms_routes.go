package api

import "signalbox/appliance/agent"

// The groups of the rooms plane in docs/api.md.
const (
	groupRooms       = "Rooms"
	groupSaid        = "Messages of rooms"
	groupRoomAgents  = "Agents of rooms"
	groupConnections = "Connections of room agents"
	groupPeople      = "People"
)

func roomsRoutes() []route {
	read := func(method, path string, handle handler, d doc) route {
		d.group = groupRooms
		return route{method: method, path: path, where: everywhere, resource: roomsResource, role: agent.Viewer, handle: handle, doc: d}
	}
	write := func(method, path string, handle handler, d doc) route {
		d.group = groupRooms
		return route{method: method, path: path, where: everywhere, resource: roomsResource, write: true, role: agent.Operator, handle: handle, doc: d}
	}
	const visibilities = "`read_visibility` and `write_visibility` public or private"
	return []route{
		read("GET", "/resolve", (*API).resolveNamed, doc{query: "`kind` room, room_agent, person, connection or registration_key (admin); `text`: a whole " +
			"name, email or id (people in any case), or at least 4 hex digits of the beginning of an id",
			answer: "200 `{matches: [{id, name}]}`, at most 10; the beginnings of ids only when nothing matches whole"}),
		read("GET", "/rooms", (*API).listRooms, doc{query: "`include_archived=true`, `group` id or name", answer: "200 array of Room, by name"}),
		write("POST", "/rooms", (*API).createRoom, doc{body: "`name`; optional `description`, `instructions`, `channel_type` channel_public or " +
			"channel_private, " + visibilities + ", `group`, `agent_ids`, `person_ids`, `listening`, `request_id` (idempotency key)",
			answer: "201 RoomDetail. The operator person owns it and is in it"}),
		read("GET", "/rooms/{id}", (*API).getRoom, doc{answer: "200 RoomDetail"}),
		write("PATCH", "/rooms/{id}", (*API).updateRoom, doc{body: "any of `name`, `description`, `instructions`, `group`, " + visibilities, answer: "200 RoomDetail"}),
		write("POST", "/rooms/{id}/archive", (*API).archiveRoom, doc{answer: "200 RoomDetail, also when repeated; nothing can be said in it any more"}),
		write("POST", "/rooms/{id}/unarchive", (*API).unarchiveRoom, doc{answer: "200 RoomDetail, also when repeated"}),
		write("DELETE", "/rooms/{id}", (*API).deleteRoom, doc{answer: "204; its history goes too"}),
		write("POST", "/rooms/{id}/agents", (*API).inviteAgents, doc{body: "`agent_ids`; optional `alias` (one agent), `listening`", answer: "200 RoomDetail. " +
			"Who was in it already stays, with the alias and listening given"}),
		write("PATCH", "/rooms/{id}/agents/{agent}", (*API).patchMember, doc{body: "`alias` (null takes it away), `listening`", answer: "200 RoomDetail"}),
		write("DELETE", "/rooms/{id}/agents/{agent}", (*API).removeAgent, doc{answer: "204; its events of the room go without a gap"}),
		write("POST", "/rooms/{id}/people", (*API).addPeople, doc{body: "`person_ids`; optional `manager`", answer: "200 RoomDetail"}),
		write("DELETE", "/rooms/{id}/people/{person}", (*API).removePerson, doc{answer: "204"}),
		read("GET", "/rooms/{id}/roles", (*API).listRoles, doc{answer: "200 array of `{name, exclusive, instructions, held_by: [{id, name}], created_at, updated_at}`"}),
		write("POST", "/rooms/{id}/roles", (*API).defineRole, doc{body: "`name`; optional `instructions`, `exclusive`", answer: "201 the role; 409 for a taken name"}),
		write("PATCH", "/rooms/{id}/roles/{role}", (*API).editRole, doc{body: "any of `name`, `instructions`, `exclusive`", answer: "200 the role"}),
		write("DELETE", "/rooms/{id}/roles/{role}", (*API).deleteRole, doc{answer: "204; whoever holds it loses it"}),
		read("GET", "/rooms/{id}/links", (*API).listLinks, doc{answer: "200 array of `{target_room_id, target_room_name, label, created_at}`"}),
		write("POST", "/rooms/{id}/links", (*API).addLink, doc{body: "`target_room_id`; optional `label`, which replaces that of a link that is there", answer: "201 the link"}),
		write("DELETE", "/rooms/{id}/links/{target}", (*API).removeLink, doc{answer: "204"}),
		read("GET", "/rooms/{id}/policy", (*API).roomPolicy, doc{answer: "200 `{room_id, agents: [{agent_id, name, addressable: everybody|owner|some, open_command, " +
			"senders: [{kind, id, name, admitted}]}]}`: who of the room may address which of its agents"}),
	}
}

func saidRoutes() []route {
	return []route{
		{method: "GET", path: "/rooms/{id}/messages", where: everywhere, resource: roomsResource, role: agent.Viewer, handle: (*API).listItems,
			doc: doc{group: groupSaid, query: "`after` or `before` a position, `limit` clamped to 200; neither: the newest",
				answer: "200 `{items: [RoomItem], head, more}`, oldest first"}},
		{method: "POST", path: "/rooms/{id}/messages", where: everywhere, resource: roomsResource, write: true, role: agent.Operator, handle: (*API).say,
			doc: doc{group: groupSaid, body: "`body`, `request_id` (idempotency key); optional `thread_id` (any message of the thread), `as` (a person's email, name or id; admin): who speaks, " +
				"otherwise the operator person. A body that begins with ! is a command",
				answer: "201 `{item, repeated, statuses: [{agent_id, name, status, covering}], answers: [RoomItem]}`, `covering` counts the attached connections that cover the room; 200 when the request was known; 403 when the speaker is not in " +
					"the room; 409 in an archived room, and for another body under the request id"}},
		{method: "GET", path: "/rooms/{id}/messages/stream", where: everywhere, resource: roomsResource, role: agent.Viewer, handle: (*API).streamItems,
			doc: doc{group: groupSaid, query: "`cursor`, `follow` (true); without `cursor`, `last`: begin with that many of the newest", answer: "200 NDJSON, see Streams"}},
		{method: "GET", path: "/rooms/messages/{id}/explain", where: everywhere, resource: roomsResource, role: agent.Viewer, handle: (*API).explainItem,
			doc: doc{group: groupSaid, query: "`agent`: its id", answer: "200 `{item, agent, code, summary, sentences, queued: null | {sequence, kind, flag, at}, dropped_through, " +
				"addressed: null | {value, rule, text}, deliveries: [{connection_id, generation, transport, outcome, at}], connections: [{connection_id, state, text}]}`. " +
				"`code`: delivered, waiting, filtered, not_covered, gap, passed, offline, own_post, not_member, joined_late, not_for_it, dropped or not_kept"}},
	}
}

func roomAgentRoutes() []route {
	read := func(path string, handle handler, d doc) route {
		d.group = groupRoomAgents
		return route{method: "GET", path: path, where: everywhere, resource: roomsResource, role: agent.Viewer, handle: handle, doc: d}
	}
	write := func(method, path string, handle handler, d doc) route {
		d.group = groupRoomAgents
		return route{method: method, path: path, where: everywhere, resource: roomsResource, write: true, role: agent.Admin, handle: handle, doc: d}
	}
	return []route{
		read("/room-agents", (*API).listRoomAgents, doc{query: "`room` id: the agents of this room as they stand there", answer: "200 array of RoomAgent, by name"}),
		write("POST", "/room-agents", (*API).registerRoomAgent, doc{body: "`name`; optional `description`, `display_name`, `icon_url`, `owner_id` (a person; default the operator), " +
			"`open` (everybody may address it), `overwrite` (new key and profile for one of this name and owner), and one of `type` (claude-code, codex, opencode, " +
			"antigravity, cursor), `connection_model` (session_addressable), `integration_profile`",
			answer: "201 `{agent, api_key, rotated}`; the key is shown this once; 409 for a taken name"}),
		read("/room-agents/{id}", (*API).getRoomAgent, doc{answer: "200 RoomAgent and `rooms: [{id, name, alias, listening, status, reacts_to, deaf}]`"}),
		write("POST", "/room-agents/{id}/rotate", (*API).rotateRoomAgent, doc{answer: "200 `{agent, api_key, rotated}`; the key before is refused at once"}),
		write("DELETE", "/room-agents/{id}", (*API).deleteRoomAgent, doc{answer: "204; its connections end, what waited for it goes"}),
		read("/room-agents/{id}/policy", (*API).getPolicy, doc{answer: "200 `{agent_id, addressable, owner_only, open_command, policy}`"}),
		write("PUT", "/room-agents/{id}/policy", (*API).setPolicy, doc{body: "`policy`: null (everybody) or `{rules: [{rooms, room_groups, users, agents, owner, owner_agents}]}`",
			answer: "200 the same"}),
		{method: "GET", path: "/registration-keys", where: everywhere, resource: roomsResource, role: agent.Admin, handle: (*API).listRegistrationKeys,
			doc: doc{group: groupRoomAgents, query: "`include_revoked=true`", answer: "200 array of `{id, kind, label, person: {id, name}, created_at, revoked_at}`"}},
		write("POST", "/registration-keys", (*API).mintRegistrationKey, doc{body: "optional `kind` registration or bootstrap, `label`, `person_id` (who owns what it registers; default the operator)",
			answer: "201 the key's row and `key`, which is shown this once"}),
		write("DELETE", "/registration-keys/{id}", (*API).revokeRegistrationKey, doc{answer: "204 revoked, also when repeated; its agents stay"}),
	}
}

func connectionRoutes() []route {
	return []route{
		{method: "GET", path: "/connections", where: everywhere, resource: roomsResource, role: agent.Viewer, handle: (*API).listConnections,
			doc: doc{group: groupConnections, query: "`agent`: id", answer: "200 array of Connection"}},
		{method: "GET", path: "/connections/{id}", where: everywhere, resource: roomsResource, role: agent.Viewer, handle: (*API).getConnection,
			doc: doc{group: groupConnections, answer: "200 Connection"}},
		{method: "DELETE", path: "/connections/{id}", where: everywhere, resource: roomsResource, write: true, role: agent.Operator, handle: (*API).evictConnection,
			doc: doc{group: groupConnections, answer: "204; its claims, placements and role are free, and a healthy client opens it again"}},
	}
}

func peopleRoutes() []route {
	write := func(method, path string, handle handler, d doc) route {
		d.group = groupPeople
		return route{method: method, path: path, where: everywhere, resource: "users", write: true, role: agent.Admin, handle: handle, doc: d}
	}
	return []route{
		{method: "GET", path: "/people", where: everywhere, resource: "users", role: agent.Viewer, handle: (*API).listPeople,
			doc: doc{group: groupPeople, answer: "200 array of Person"}},
		write("POST", "/people", (*API).createPerson, doc{body: "`name`, `email`; optional `password`, `role` user or admin", answer: "201 Person; 409 for a taken email"}),
		{method: "GET", path: "/people/{id}", where: everywhere, resource: "users", role: agent.Viewer, handle: (*API).getPerson,
			doc: doc{group: groupPeople, answer: "200 Person"}},
		write("PUT", "/people/{id}/password", (*API).setPassword, doc{body: "`password`", answer: "204; its sessions end"}),
		write("PUT", "/people/{id}/role", (*API).setPersonRole, doc{body: "`role` user or admin", answer: "200 Person"}),
		write("POST", "/people/{id}/disable", (*API).disablePerson, doc{answer: "200 Person, also when repeated; its sessions end"}),
		write("POST", "/people/{id}/enable", (*API).enablePerson, doc{answer: "200 Person, also when repeated"}),
	}
}
