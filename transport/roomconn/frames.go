package roomconn

import (
	"encoding/json"

	"github.com/google/uuid"

	"signalbox/appliance/room/feed"
	"signalbox/transport"
)

// The control frames (D.1).
const (
	frameState    = "connection_state"
	frameGap      = "gap"
	frameEvicted  = "evicted"
	frameChanged  = "subscription_changed"
	frameReleased = "room_released"
	frameRefused  = "refused"
)

// pingFrame is every ping there is (C.3).
var pingFrame = []byte(`{"event":"ping","data":{}}`)

// contract is the range of revisions the server serves (B.4).
type contract struct {
	Speaks  int `json:"speaks"`
	Accepts int `json:"accepts"`
}

type serverInfo struct {
	Version   *string             `json:"version"`
	Contracts map[string]contract `json:"contracts"`
}

// clientInfo echoes what the client declared.
type clientInfo struct {
	Speaks   *int    `json:"speaks"`
	Accepts  *int    `json:"accepts"`
	Artifact *string `json:"artifact"`
	Version  *string `json:"version"`
}

// stateData is the first frame of every stream (D.2).
type stateData struct {
	ConnectionID string          `json:"connection_id"`
	AgentID      uuid.UUID       `json:"agent_id"`
	Generation   int64           `json:"generation"`
	Scope        string          `json:"scope"`
	Filter       string          `json:"filter"`
	SpawnCapable bool            `json:"spawn_capable"`
	Rooms        []uuid.UUID     `json:"rooms"`
	Cursor       int64           `json:"cursor"`
	Protocol     int             `json:"protocol"`
	Heartbeat    json.RawMessage `json:"heartbeat_interval_seconds"`
	Server       serverInfo      `json:"server"`
	Client       clientInfo      `json:"client"`
}

// gapData says that events are missing (D.3, E.5).
type gapData struct {
	From            int64       `json:"from_sequence"`
	ResumedAt       int64       `json:"resumed_at"`
	ResumedPosition int64       `json:"resumed_position"`
	Rooms           []uuid.UUID `json:"rooms"`
	AllRooms        bool        `json:"all_rooms"`
	Reason          string      `json:"reason"`
}

type evictedData struct {
	Code   string     `json:"code"`
	Reason string     `json:"reason"`
	RoomID *uuid.UUID `json:"room_id"`
}

type changedData struct {
	Rooms  []uuid.UUID `json:"rooms"`
	Reason string      `json:"reason"`
}

// reasonChanged is the one reason a subscription_changed has ever had.
const reasonChanged = "subscription updated"

type releasedData struct {
	RoomID    uuid.UUID `json:"room_id"`
	SessionID *string   `json:"session_id"`
}

type refusedData struct {
	Status int `json:"status"`
	Detail any `json:"detail"`
}

// someRooms makes an empty list of nothing: clients read rooms as a list.
func someRooms(ids []uuid.UUID) []uuid.UUID {
	if ids == nil {
		return []uuid.UUID{}
	}
	return ids
}

// encoder writes frames in the form of one transport.
type encoder interface {
	// control is a frame without a number.
	control(name string, data any) ([]byte, error)
	// event appends a domain event.
	event(dst []byte, e *feed.Event, m *feed.Missed) []byte
}

// socketFrames are those of the WebSocket: one JSON object each (D.1).
type socketFrames struct{}

func (socketFrames) control(name string, data any) ([]byte, error) {
	body, err := transport.EncodeJSON(data)
	if err != nil {
		return nil, err
	}
	dst := make([]byte, 0, len(body)+len(name)+24)
	dst = append(dst, `{"event":"`...)
	dst = append(dst, name...)
	dst = append(dst, `","data":`...)
	dst = append(dst, body...)
	return append(dst, '}'), nil
}

func (socketFrames) event(dst []byte, e *feed.Event, m *feed.Missed) []byte {
	return e.AppendFrame(dst, m)
}

// streamFrames are Server-Sent Events with bare line feeds (G.1). JSON keeps line ends inside of strings escaped, so
// the data is one line.
type streamFrames struct{}

func (streamFrames) control(name string, data any) ([]byte, error) {
	body, err := transport.EncodeJSON(data)
	if err != nil {
		return nil, err
	}
	dst := make([]byte, 0, len(body)+len(name)+18)
	dst = append(dst, "event: "...)
	dst = append(dst, name...)
	dst = append(dst, "\ndata: "...)
	dst = append(dst, body...)
	return append(dst, "\n\n"...), nil
}

func (streamFrames) event(dst []byte, e *feed.Event, m *feed.Missed) []byte {
	return e.AppendSSE(dst, m)
}

// keepalive is written on a stream that has been silent for a while (G.1).
var keepalive = []byte(": keepalive\n\n")
