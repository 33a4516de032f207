package roomconn

import (
	"net/http"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/transport"
	"signalbox/transport/roomhttp"
)

// headerConnection names the caller's connection (H.1).
const headerConnection = "X-Switch-Connection-Id"

// call is one authenticated request beside the streams.
type call struct {
	*http.Request
	agent room.Agent
}

// serveCall authenticates and answers. Who comes without a key learns nothing about the body.
func (v *Server) serveCall(w http.ResponseWriter, r *http.Request, handle func(*call) (any, error)) {
	a, err := v.agents.AuthenticateAgent(r.Context(), r.Header.Get("Authorization"))
	var out any
	if err == nil {
		out, err = handle(&call{r, a})
	}
	if err != nil {
		if !isRefusal(err) {
			v.logFailure(err, "a request of a room agent failed")
		}
		roomhttp.WriteError(w, r, err)
		return
	}
	transport.WriteJSON(w, r, http.StatusOK, out)
}

// read decodes the body and then compares the path with the key: the order of F.4.
func (c *call) read(body interface{ check() error }) error {
	if err := roomhttp.Decode(c.Request, body); err != nil {
		return err
	}
	if err := body.check(); err != nil {
		return err
	}
	return ownPath(c.agent, c.PathValue("agent_id"))
}

func shape(msg string) error { return &roomhttp.ShapeError{Msg: msg} }

// checkID is for the one field that every body has.
func checkID(connectionID string) error {
	if connectionID == "" {
		return shape("body.connection_id: is required, a non-empty string")
	}
	return nil
}

// beatBody is that of G.2.
type beatBody struct {
	ConnectionID string `json:"connection_id"`
	Generation   *int64 `json:"generation"`
	Cursor       int64  `json:"cursor"`
}

func (b *beatBody) check() error {
	if b.Cursor < 0 {
		return shape("body.cursor: must be a sequence number, 0 or more")
	}
	return checkID(b.ConnectionID)
}

// beat is the liveness of streams that cannot carry pongs (G.2).
func (v *Server) beat(c *call) (any, error) {
	var b beatBody
	if err := c.read(&b); err != nil {
		return nil, err
	}
	rooms, cursor, err := v.registry.Beat(c.agent.No, b.ConnectionID, b.Cursor, b.Generation)
	if err != nil {
		return nil, err
	}
	return struct {
		OK     bool        `json:"ok"`
		Rooms  []uuid.UUID `json:"rooms"`
		Cursor int64       `json:"cursor"`
	}{true, someRooms(rooms), cursor}, nil
}

// claimBody is that of subscribe and unsubscribe (F.4, F.5).
type claimBody struct {
	ConnectionID string `json:"connection_id"`
	Generation   *int64 `json:"generation"`
	RoomID       string `json:"room_id"`
	Takeover     bool   `json:"takeover"`
}

func (b *claimBody) check() error {
	if err := checkID(b.ConnectionID); err != nil {
		return err
	}
	if b.RoomID == "" {
		return shape("body.room_id: is required, the id of a room")
	}
	return nil
}

func (v *Server) subscribe(c *call) (any, error) {
	var b claimBody
	if err := c.read(&b); err != nil {
		return nil, err
	}
	var rooms roomIDs
	s, err := v.registry.Subscribe(c.Context(), c.agent.No, b.ConnectionID, b.Generation, rooms.add(b.RoomID), b.Takeover)
	if err != nil {
		return nil, rooms.respell(err)
	}
	return struct {
		OK      bool        `json:"ok"`
		Rooms   []uuid.UUID `json:"rooms"`
		Evicted *string     `json:"evicted_connection_id"`
		Warning *string     `json:"warning"`
	}{true, someRooms(s.Rooms), orNull(s.Evicted), orNull(s.Warning)}, nil
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func (v *Server) unsubscribe(c *call) (any, error) {
	var b claimBody
	if err := c.read(&b); err != nil {
		return nil, err
	}
	var named roomIDs
	rooms, err := v.registry.Unsubscribe(c.agent.No, b.ConnectionID, b.Generation, named.add(b.RoomID))
	if err != nil {
		return nil, err
	}
	return struct {
		OK    bool        `json:"ok"`
		Rooms []uuid.UUID `json:"rooms"`
	}{true, someRooms(rooms)}, nil
}

// placementsBody is that of F.6.
type placementsBody struct {
	ConnectionID string            `json:"connection_id"`
	Generation   *int64            `json:"generation"`
	Placements   map[string]string `json:"placements"`
}

func (b *placementsBody) check() error {
	if err := checkID(b.ConnectionID); err != nil {
		return err
	}
	if b.Placements == nil {
		return shape("body.placements: is required, an object of room ids by session id")
	}
	for session, roomID := range b.Placements {
		switch {
		case session == "":
			return shape("body.placements: a session id must not be empty")
		case roomID == "":
			return shape("body.placements: the room id of a session must not be empty")
		}
	}
	return nil
}

type releasedFrom struct {
	ConnectionID string    `json:"connection_id"`
	RoomID       uuid.UUID `json:"room_id"`
	SessionID    *string   `json:"session_id"`
}

func (v *Server) place(c *call) (any, error) {
	var b placementsBody
	if err := c.read(&b); err != nil {
		return nil, err
	}
	var rooms roomIDs
	placements := make(map[string]uuid.UUID, len(b.Placements))
	for session, id := range b.Placements {
		placements[session] = rooms.add(id)
	}
	p, err := v.registry.Place(c.agent.No, b.ConnectionID, b.Generation, placements)
	if err != nil {
		return nil, rooms.respell(err)
	}
	return placed(p), nil
}

func placed(p connection.Placed) any {
	released := make([]releasedFrom, len(p.Released))
	for i, r := range p.Released {
		released[i] = releasedFrom{r.ConnectionID, r.RoomID, r.SessionID}
	}
	if p.Placements == nil {
		p.Placements = map[string]uuid.UUID{}
	}
	return struct {
		OK         bool                 `json:"ok"`
		Placements map[string]uuid.UUID `json:"placements"`
		Rooms      []uuid.UUID          `json:"rooms"`
		Released   []releasedFrom       `json:"released"`
	}{true, p.Placements, someRooms(p.Rooms), released}
}

// closeBody is that of F.7.
type closeBody struct {
	ConnectionID string `json:"connection_id"`
	Reason       string `json:"reason"`
}

func (b *closeBody) check() error { return checkID(b.ConnectionID) }

// closeConnection ends a connection at its client's wish (F.7).
func (v *Server) closeConnection(c *call) (any, error) {
	var b closeBody
	if err := c.read(&b); err != nil {
		return nil, err
	}
	reason := "closed by the client"
	if b.Reason != "" {
		reason += ": " + clipBytes(b.Reason, maxDeclared)
	}
	return struct {
		OK     bool `json:"ok"`
		Closed bool `json:"closed"`
	}{true, v.registry.CloseConnection(c.agent.No, b.ConnectionID, reason)}, nil
}

// renewLease keeps a role lease fresh for holders that renew over HTTP (H.6, H.8).
func (v *Server) renewLease(c *call) (any, error) {
	if err := ownPath(c.agent, c.PathValue("agent_id")); err != nil {
		return nil, err
	}
	id := c.Header.Get(headerConnection)
	if id == "" {
		return nil, fault.Field(headerConnection, "is required: the connection that holds the lease")
	}
	return struct {
		OK   bool `json:"ok"`
		Held bool `json:"held"`
	}{true, v.registry.RenewLease(c.agent.No, id)}, nil
}
