package roomclient

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Frame is one frame of a stream. ID is 0 for control frames.
type Frame struct {
	Event string          `json:"event"`
	Data  json.RawMessage `json:"data"`
	ID    int64           `json:"id"`
}

// Names of frames (D.1).
const (
	FrameState    = "connection_state"
	FrameGap      = "gap"
	FrameEvicted  = "evicted"
	FrameChanged  = "subscription_changed"
	FrameReleased = "room_released"
	FrameRefused  = "refused"
	FramePing     = "ping"
	FrameMessage  = "message"
	FrameCommand  = "command"
	FrameJoin     = "room_join"
)

// IsEvent tells whether the frame is a domain event. A frame of a name that is not known is one when it says its type
// (D.5).
func (f *Frame) IsEvent() bool {
	switch f.Event {
	case FrameMessage, FrameCommand, FrameJoin:
		return true
	case FrameState, FrameGap, FrameEvicted, FrameChanged, FrameReleased, FrameRefused, FramePing:
		return false
	}
	var data struct {
		Type *string `json:"type"`
	}
	return json.Unmarshal(f.Data, &data) == nil && data.Type != nil
}

// State is the first frame of a stream (D.2).
type State struct {
	ConnectionID string   `json:"connection_id"`
	AgentID      string   `json:"agent_id"`
	Generation   int64    `json:"generation"`
	Scope        string   `json:"scope"`
	Filter       string   `json:"filter"`
	SpawnCapable bool     `json:"spawn_capable"`
	Rooms        []string `json:"rooms"`
	Cursor       int64    `json:"cursor"`
	Protocol     int      `json:"protocol"`
	Heartbeat    float64  `json:"heartbeat_interval_seconds"`
	Server       struct {
		Version   *string `json:"version"`
		Contracts map[string]struct {
			Speaks  int `json:"speaks"`
			Accepts int `json:"accepts"`
		} `json:"contracts"`
	} `json:"server"`
	Client struct {
		Speaks   *int    `json:"speaks"`
		Accepts  *int    `json:"accepts"`
		Artifact *string `json:"artifact"`
		Version  *string `json:"version"`
	} `json:"client"`
}

// Gap says that events are missing (D.3).
type Gap struct {
	From      int64    `json:"from_sequence"`
	ResumedAt int64    `json:"resumed_at"`
	Position  int64    `json:"resumed_position"`
	Rooms     []string `json:"rooms"`
	AllRooms  bool     `json:"all_rooms"`
	Reason    string   `json:"reason"`
}

// Evicted is the last frame of a stream that the server ended (C.7).
type Evicted struct {
	Code   string  `json:"code"`
	Reason string  `json:"reason"`
	RoomID *string `json:"room_id"`
}

// Changed tells the rooms that the connection has claimed (D.3).
type Changed struct {
	Rooms  []string `json:"rooms"`
	Reason string   `json:"reason"`
}

// Released tells of a room or a session lost to another connection (D.3).
type Released struct {
	RoomID    string  `json:"room_id"`
	SessionID *string `json:"session_id"`
}

// Refused is why an open failed (B.3).
type Refused struct {
	Status int             `json:"status"`
	Detail json.RawMessage `json:"detail"`
}

// Code is the code of a detail that is an object, "" for others.
func (r *Refused) Code() string {
	if r == nil {
		return ""
	}
	return codeOf(r.Detail)
}

// Message is the detail as a text.
func (r *Refused) Message() string {
	if r == nil {
		return ""
	}
	return messageOf(r.Detail)
}

func codeOf(detail json.RawMessage) string {
	var object struct {
		Code string `json:"code"`
	}
	_ = json.Unmarshal(detail, &object)
	return object.Code
}

func messageOf(detail json.RawMessage) string {
	var text string
	if json.Unmarshal(detail, &text) == nil {
		return text
	}
	var object struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(detail, &object) == nil && object.Message != "" {
		return object.Message
	}
	return string(detail)
}

// Closed is how a stream ended. Exactly what was seen is set.
type Closed struct {
	Code    int          // close code of the server; 0: none came
	Text    string       // its text
	Opened  bool         // the socket or the response had begun
	Refused *Refused     // the frame before the close, or the body of an HTTP refusal
	Evicted *Evicted     // the last frame
	Beat    *StatusError // the answer to a beat that ended the stream (SSE)
	Err     error        // anything else: the network, this side
}

// Error names what was seen.
func (c *Closed) Error() string {
	switch {
	case c.Refused != nil:
		return fmt.Sprintf("refused %d: %s", c.Refused.Status, c.Refused.Message())
	case c.Evicted != nil:
		return fmt.Sprintf("evicted %s: %s", c.Evicted.Code, c.Evicted.Reason)
	case c.Beat != nil:
		return "beat " + c.Beat.Error()
	case c.Code != 0:
		return fmt.Sprintf("closed with %d %q", c.Code, c.Text)
	case c.Err != nil:
		return c.Err.Error()
	default:
		return "the stream ended"
	}
}

// Unwrap returns the cause.
func (c *Closed) Unwrap() error { return c.Err }

// ErrDropped ends a stream that this side has cut.
var ErrDropped = errors.New("dropped by the client")

// StatusError is an HTTP request that the server refused.
type StatusError struct {
	Status int
	Detail json.RawMessage // "detail" of the body; nil when it has none
	Body   []byte
}

// Code is the code of a detail that is an object, "" for others.
func (e *StatusError) Code() string { return codeOf(e.Detail) }

// Error names status and body.
func (e *StatusError) Error() string { return fmt.Sprintf("answered %d: %s", e.Status, e.Body) }

func statusError(status int, body []byte) *StatusError {
	var object struct {
		Detail json.RawMessage `json:"detail"`
	}
	_ = json.Unmarshal(body, &object)
	return &StatusError{Status: status, Detail: object.Detail, Body: body}
}
