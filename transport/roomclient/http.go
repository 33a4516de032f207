package roomclient

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// sideTimeout bounds requests beside the stream (J.5).
const sideTimeout = 4 * time.Second

// HeaderConnection and HeaderSession bind an operation to a room (H.1).
const (
	HeaderConnection = "X-Switch-Connection-Id"
	HeaderSession    = "X-Switch-Session-Id"
)

func (c *Config) agentURL(path string) string {
	return c.base() + "/agents/" + c.AgentID.String() + path
}

// BeatRequest is the body of a beat (G.2).
type BeatRequest struct {
	ConnectionID string `json:"connection_id"`
	Cursor       int64  `json:"cursor"`
	Generation   *int64 `json:"generation"`
}

// BeatAnswer is the server's view of the connection.
type BeatAnswer struct {
	OK     bool     `json:"ok"`
	Rooms  []string `json:"rooms"`
	Cursor int64    `json:"cursor"`
}

// Beat proves that the holder of a stream is alive (G.2). Errors of the server are *StatusError.
func (c *Config) Beat(ctx context.Context, b BeatRequest) (BeatAnswer, error) {
	var out BeatAnswer
	return out, c.post(ctx, "/connection/beat", b, nil, &out)
}

// ClaimRequest is the body of subscribe and unsubscribe (F.4, F.5).
type ClaimRequest struct {
	ConnectionID string `json:"connection_id"`
	RoomID       string `json:"room_id"`
	Takeover     bool   `json:"takeover"`
	Generation   *int64 `json:"generation"`
}

// ClaimAnswer tells what is claimed now.
type ClaimAnswer struct {
	OK      bool     `json:"ok"`
	Rooms   []string `json:"rooms"`
	Evicted *string  `json:"evicted_connection_id"`
	Warning *string  `json:"warning"`
}

// Subscribe claims a room (F.4).
func (c *Config) Subscribe(ctx context.Context, r ClaimRequest) (ClaimAnswer, error) {
	var out ClaimAnswer
	return out, c.post(ctx, "/connection/subscribe", r, nil, &out)
}

// Unsubscribe gives a room up (F.5).
func (c *Config) Unsubscribe(ctx context.Context, r ClaimRequest) (ClaimAnswer, error) {
	var out ClaimAnswer
	return out, c.post(ctx, "/connection/unsubscribe", r, nil, &out)
}

// PlacementsRequest states the whole set of a connection's placements (F.6).
type PlacementsRequest struct {
	ConnectionID string            `json:"connection_id"`
	Placements   map[string]string `json:"placements"`
	Generation   *int64            `json:"generation"`
}

// PlacementsAnswer tells what is placed and claimed now, and what others lost.
type PlacementsAnswer struct {
	OK         bool              `json:"ok"`
	Placements map[string]string `json:"placements"`
	Rooms      []string          `json:"rooms"`
	Released   []struct {
		ConnectionID string  `json:"connection_id"`
		RoomID       string  `json:"room_id"`
		SessionID    *string `json:"session_id"`
	} `json:"released"`
}

// Place states the placements (F.6).
func (c *Config) Place(ctx context.Context, r PlacementsRequest) (PlacementsAnswer, error) {
	var out PlacementsAnswer
	return out, c.post(ctx, "/connection/placements", r, nil, &out)
}

// CloseConnection ends a connection (F.7).
func (c *Config) CloseConnection(ctx context.Context, connectionID, reason string) (closed bool, err error) {
	var out struct {
		Closed bool `json:"closed"`
	}
	err = c.post(ctx, "/connection/close", map[string]string{"connection_id": connectionID, "reason": reason}, nil, &out)
	return out.Closed, err
}

// RenewLease keeps a role lease fresh (H.8).
func (c *Config) RenewLease(ctx context.Context, connectionID string) (held bool, err error) {
	var out struct {
		Held bool `json:"held"`
	}
	err = c.post(ctx, "/leases/renew", struct{}{}, http.Header{HeaderConnection: {connectionID}}, &out)
	return out.Held, err
}

// Caller names the connection, and the session on it, that an operation is called for. Both may be "".
type Caller struct{ ConnectionID, SessionID string }

// Op calls an operation and decodes its result into result, unless that is nil (H.1).
func (c *Config) Op(ctx context.Context, who Caller, name string, args, result any) error {
	h := http.Header{}
	if who.ConnectionID != "" {
		h.Set(HeaderConnection, who.ConnectionID)
	}
	if who.SessionID != "" {
		h.Set(HeaderSession, who.SessionID)
	}
	if args == nil {
		args = struct{}{}
	}
	var out struct {
		Result json.RawMessage `json:"result"`
	}
	if err := c.post(ctx, "/ops/"+url.PathEscape(name), args, h, &out); err != nil || result == nil {
		return err
	}
	return json.Unmarshal(out.Result, result)
}

// Operation is one entry of the list of operations.
type Operation struct {
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
}

// Operations lists what Op can call (H.1).
func (c *Config) Operations(ctx context.Context) (map[string]Operation, error) {
	var out struct {
		Operations map[string]Operation `json:"operations"`
	}
	return out.Operations, c.do(ctx, http.MethodGet, c.agentURL("/ops"), nil, nil, &out)
}

// Do sends a request below the endpoint with the agent's key. body and out may be nil; body is sent as JSON unless it is
// a []byte.
func (c *Config) Do(ctx context.Context, method, path string, body any, h http.Header, out any) error {
	raw, ok := body.([]byte)
	if !ok && body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			return err
		}
	}
	return c.do(ctx, method, c.base()+path, raw, h, out)
}

func (c *Config) post(ctx context.Context, path string, body any, h http.Header, out any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, sideTimeout)
	defer cancel()
	return c.do(ctx, http.MethodPost, c.agentURL(path), raw, h, out)
}

func (c *Config) do(ctx context.Context, method, target string, body []byte, h http.Header, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = c.header()
	for name, values := range h {
		req.Header[name] = values
	}
	if body != nil && req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.client().Do(req)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, req.URL.Path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, req.URL.Path, err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return statusError(resp.StatusCode, answer)
	}
	if out == nil || len(answer) == 0 {
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("%s %s: answer: %w", method, req.URL.Path, err)
	}
	return nil
}
