package config

import "time"

func bindRoom(r *Room) []binding {
	return []binding{
		key("room.retained_events", intValue{&r.RetainedEvents, 64, 1000000},
			"Most events that wait for one room agent; the oldest beyond it are dropped and reported to the agent as a gap.",
			"Raise it when agents in busy rooms are away for long; each event takes some 50 bytes, its text is kept once."),
		key("room.retained_age", durationValue{&r.RetainedAge, seconds(10), 30 * 24 * time.Hour},
			"How long an event waits for a room agent; time in which the server is down does not count.",
			"Raise it when agents are away for longer; what is dropped stays in the room's history."),
		key("room.message_size", sizeValue{&r.MessageSize, KiB, 16 * MiB},
			"Largest body of a message in a room.",
			"Lower it to keep rooms readable; an event carries the whole body to every agent."),
		key("room.media_size", sizeValue{&r.MediaSize, KiB, GiB},
			"Largest attachment of a message; an upload with a larger one is refused whole.",
			"Raise it to share larger files."),
		key("room.media_total", sizeValue{&r.MediaTotal, 0, 0},
			"What all attachments together may take on the disk; 0 means no bound.",
			"Set it to what the data directory's disk can spare."),
		key("room.sse", boolValue{&r.SSE},
			"Serves the event stream and beat of clients from before the WebSocket.",
			"Turn it off once no such client is left; they are then told that the transport is gone."),
		key("room.mcp", boolValue{&r.MCP},
			"Serves rooms to hosts that speak MCP over HTTP, at /mcp, with the keys of room agents.",
			"Turn it off when no agent connects that way; the route is then unknown."),
	}
}
