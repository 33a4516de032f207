// Package agentclient is the agent's side of the agent protocol: what `signalbox bench agents` loads a server with, and
// what tests talk to one with. It signs real frames and verifies the server's; it decides nothing on its own: it does not
// reconnect, retry or heartbeat.
package agentclient

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/rawjson"
	"signalbox/appliance/secret"
	"signalbox/transport/wire"
)

// Config says who connects where.
type Config struct {
	URL           string // base URL of the server, http or https
	Token         secret.Text
	ProjectSecret secret.Bytes // 32 bytes; see DecodeSecret
	TLS           *tls.Config  // nil for the system's roots
	Client        *http.Client // long-poll: shared by many agents to share connections; nil makes one
	Now           func() time.Time
	Header        http.Header // added to every request

	// What a WebSocket hello reports.
	WorkerID     string // "" is the legacy slot
	AgentVersion string
	Engines      []string
	Capabilities map[string][]string
	Features     []string

	// RetryContracts are the engines whose contract a long-poll request states.
	RetryContracts []string
}

func (c *Config) now() time.Time {
	if c.Now != nil {
		return c.Now()
	}
	return time.Now().UTC()
}

func (c *Config) base() string { return strings.TrimRight(c.URL, "/") }

// DecodeSecret reads the hmac_secret text of a minted agent.
func DecodeSecret(text string) (secret.Bytes, error) {
	raw, err := decodeBase64(text)
	if err != nil || len(raw) < 32 {
		return secret.Bytes{}, fmt.Errorf("hmac secret: must be URL-safe base64 of at least 32 bytes")
	}
	return secret.NewBytes(raw), nil
}

// CloseError is a WebSocket that the server closed.
type CloseError struct {
	Code int
	Text string
}

// Error names code and text.
func (e *CloseError) Error() string { return fmt.Sprintf("closed with %d %q", e.Code, e.Text) }

// StatusError is a long-poll request that the server refused.
type StatusError struct {
	Status     int
	Code       string // "error" of the body, "" when it has none
	RetryAfter string
	Body       []byte
}

// Error names status and code.
func (e *StatusError) Error() string {
	return fmt.Sprintf("answered %d %s: %s", e.Status, e.Code, e.Body)
}

// Event is one event record of an event_batch.
type Event struct {
	ID         uuid.UUID
	Kind       string
	Engine     string
	TaskID     string
	OccurredAt time.Time
	Data       string // JSON object; "" is {}
}

// AppendEventBatch appends the canonical payload of an event_batch.
func AppendEventBatch(dst []byte, events []Event) []byte {
	dst = append(dst, `{"events":[`...)
	for i, e := range events {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = e.append(dst)
	}
	return append(dst, `]}`...)
}

func (e *Event) append(dst []byte) []byte {
	data := e.Data
	if data == "" {
		data = "{}"
	}
	dst = append(append(dst, `{"data":`...), data...)
	dst = rawjson.AppendString(append(dst, `,"engine":`...), e.Engine)
	dst = append(append(dst, `,"id":"`...), e.ID.String()...)
	dst = rawjson.AppendString(append(dst, `","kind":`...), e.Kind)
	dst = wire.AppendTime(append(dst, `,"occurred_at":"`...), e.OccurredAt)
	dst = rawjson.AppendString(append(dst, `","task_id":`...), e.TaskID)
	return append(dst, '}')
}

// canonical brings a payload into the form that is signed.
func canonical(payload string) ([]byte, error) {
	doc, err := rawjson.Parse([]byte(payload))
	if err != nil {
		return nil, fmt.Errorf("payload: %w", err)
	}
	defer doc.Release()
	return rawjson.AppendCanonical(nil, doc.Root()), nil
}

// Heartbeat is the payload of a heartbeat that reports nothing.
const Heartbeat = `{"adapter_health":{},"buffer_size":0,"dropped_events":0,"last_flush_at":null,"telemetry_loss":null}`

// Command is a verified command frame.
type Command struct {
	ID             string
	Action         string          `json:"action"`
	Target         json.RawMessage `json:"target"`
	Parameters     json.RawMessage `json:"parameters"`
	TimeoutSeconds int             `json:"timeout_seconds"`
	IssuedBy       *string         `json:"issued_by"`
	ClaimToken     *string         `json:"delivery_claim_token"`
}

func readCommand(f *wire.Frame) (Command, error) {
	c := Command{ID: f.ID}
	if err := json.Unmarshal(f.Payload.Raw(), &c); err != nil {
		return Command{}, fmt.Errorf("command %s: %w", f.ID, err)
	}
	return c, nil
}

// AckPayload and ResultPayload are what an agent answers a command with; both carry the command's id as frame id.
const AckPayload = `{"delivery_claim_token":null}`

// ResultPayload is the payload of a command_result. result is a JSON object or "" for null.
func ResultPayload(ok bool, result, failure string) string {
	status, text := "success", "null"
	if !ok {
		status = "failed"
		text = string(rawjson.AppendString(nil, failure))
	}
	if result == "" {
		result = "null"
	}
	return `{"delivery_claim_token":null,"error":` + text + `,"result":` + result + `,"status":"` + status + `"}`
}
