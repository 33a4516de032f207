package roomapi

import (
	"net/http"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/timeline"
	"signalbox/transport/roomhttp"
)

// need returns the value of a required field.
func need[T any](field string, v *T) (T, error) {
	if v == nil {
		var none T
		return none, &roomhttp.ShapeError{Msg: "body." + field + ": is required"}
	}
	return *v, nil
}

// roomID reads the id of a room; a text that is none names no room.
func roomID(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil {
		return id, fault.New(fault.NotFound, "room %.80q: no such room", text)
	}
	return id, nil
}

func needRoom(v *string) (uuid.UUID, error) {
	text, err := need("room_id", v)
	if err != nil {
		return uuid.Nil, err
	}
	return roomID(text)
}

// message posts without a connection (H.8).
func (s *Server) message(w http.ResponseWriter, r *http.Request, a room.Agent) error {
	var in struct {
		RoomID   *string `json:"room_id"`
		Content  *string `json:"content"`
		ThreadID *string `json:"thread_id"`
	}
	if err := roomhttp.Decode(r, &in); err != nil {
		return err
	}
	content, err := need("content", in.Content)
	if err != nil {
		return err
	}
	id, err := needRoom(in.RoomID)
	if err != nil {
		return err
	}
	d := timeline.Draft{Actor: a.Actor(), RoomID: id, Body: content}
	if in.ThreadID != nil {
		d.ThreadID = *in.ThreadID
	}
	posted, err := s.svc.Timeline.Post(r.Context(), d)
	if err != nil {
		return err
	}
	return answer(w, r, map[string]any{"ok": true, "event_id": posted.Item.ID})
}

// typing has nobody to tell: no room is on a bridge (H.8).
func (s *Server) typing(w http.ResponseWriter, r *http.Request, a room.Agent) error {
	var in struct {
		RoomID *string `json:"room_id"`
		Typing *bool   `json:"is_typing"`
	}
	if err := roomhttp.Decode(r, &in); err != nil {
		return err
	}
	if _, err := need("is_typing", in.Typing); err != nil {
		return err
	}
	id, err := needRoom(in.RoomID)
	if err != nil {
		return err
	}
	if _, err := s.svc.Media.Member(r.Context(), a.Actor(), id); err != nil {
		return err
	}
	return answer(w, r, map[string]bool{"ok": true})
}

// The states a session reports of itself (H.8), and bounds of what comes with them.
var runtimeStates = map[string]bool{"working": true, "awaiting-input": true, "idle": true}

const (
	maxCapabilities   = 32
	maxCapabilityName = 64
)

func (s *Server) runtimeState(w http.ResponseWriter, r *http.Request, a room.Agent) error {
	var in struct {
		RoomID       *string         `json:"room_id"`
		State        *string         `json:"state"`
		ThreadID     *string         `json:"thread_id"`
		Anchor       *string         `json:"anchor_event_id"`
		Deeplink     *string         `json:"deeplink_url"`
		Detail       *string         `json:"detail"`
		Capabilities map[string]bool `json:"control_capabilities"`
	}
	if err := roomhttp.Decode(r, &in); err != nil {
		return err
	}
	state, err := need("state", in.State)
	if err != nil {
		return err
	}
	if !runtimeStates[state] {
		return &roomhttp.ShapeError{Msg: "body.state: must be working, awaiting-input or idle"}
	}
	if len(in.Capabilities) > maxCapabilities {
		return &roomhttp.ShapeError{Msg: "body.control_capabilities: has too many entries"}
	}
	for name := range in.Capabilities {
		if len(name) > maxCapabilityName {
			return &roomhttp.ShapeError{Msg: "body.control_capabilities: has a name that is too long"}
		}
	}
	id, err := needRoom(in.RoomID)
	if err != nil {
		return err
	}
	no, err := s.svc.Media.Member(r.Context(), a.Actor(), id)
	if err != nil {
		return err
	}
	s.svc.Connections.SetRuntimeState(a.No, no, state, in.Capabilities)
	return answer(w, r, map[string]bool{"ok": true})
}
