package appliancetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/google/uuid"

	"signalbox/appliance/secret"
	"signalbox/transport/roomclient"
)

// RoomAgent registers an agent of rooms that everybody may address and returns what it connects with.
func (s *Server) RoomAgent(name string) roomclient.Config {
	s.t.Helper()
	var r struct {
		Agent struct {
			ID uuid.UUID `json:"id"`
		} `json:"agent"`
		Key string `json:"api_key"`
	}
	s.Do("POST", "/room-agents", map[string]any{"name": name, "open": true}, http.StatusCreated, &r)
	return roomclient.Config{Endpoint: s.base, Token: secret.NewText(r.Key), AgentID: r.Agent.ID, HTTP: s.client}
}

// Room makes a room with the agents in it.
func (s *Server) Room(name string, agents ...roomclient.Config) uuid.UUID {
	s.t.Helper()
	ids := make([]uuid.UUID, len(agents))
	for i, a := range agents {
		ids[i] = a.AgentID
	}
	var r struct {
		ID uuid.UUID `json:"id"`
	}
	s.Do("POST", "/rooms", map[string]any{"name": name, "agent_ids": ids}, http.StatusCreated, &r)
	return r.ID
}

// Said is an item of a room as far as tests read it.
type Said struct {
	ID       uuid.UUID `json:"id"`
	Position int64     `json:"position"`
}

// Say posts as the operator person. It may be called from any goroutine.
func (s *Server) Say(roomID uuid.UUID, body string) (Said, error) {
	var out struct {
		Item Said `json:"item"`
	}
	return out.Item, s.Try("POST", "/rooms/"+roomID.String()+"/messages",
		map[string]string{"body": body, "request_id": uuid.NewString()}, &out)
}

// Try is Do from any goroutine: an answer that is no success is an error.
func (s *Server) Try(method, path string, body, out any) error {
	content, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(method, "http://localhost/api/v1"+path, bytes.NewReader(content))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.admin.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fmt.Errorf("%s %s: answered %d: %s", method, path, resp.StatusCode, answer)
	}
	if out == nil || len(answer) == 0 {
		return nil
	}
	return json.Unmarshal(answer, out)
}
