package agentclient

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"signalbox/transport/wire"
)

// WS is one WebSocket session. Send may be called from any goroutine, Receive from one at a time.
type WS struct {
	AgentID   uuid.UUID
	ProjectID uuid.UUID
	SessionID string
	Heartbeat time.Duration
	MaxFrame  int

	cfg      Config
	conn     *websocket.Conn
	verifier *wire.Verifier
	mu       sync.Mutex // sign and write in one order
	signer   *wire.Signer
}

// helloTimeout is how long the published agent waits for hello_ack.
const helloTimeout = 10 * time.Second

// DialWS connects, says hello, waits for hello_ack and sends a first heartbeat, as the published agent does. A refusal is a *CloseError, or a *StatusError when the upgrade
// itself was refused.
func DialWS(ctx context.Context, cfg Config) (*WS, error) {
	w, err := OpenWS(ctx, cfg)
	if err != nil {
		return nil, err
	}
	err = w.hello()
	if err == nil {
		err = w.SendJSON(wire.TypeHeartbeat, "hb_connect", Heartbeat)
	}
	if err != nil {
		w.conn.Close()
		return nil, err
	}
	return w, nil
}

// OpenWS connects and says nothing: for those who want to send a first message of their own.
func OpenWS(ctx context.Context, cfg Config) (*WS, error) {
	dialer := websocket.Dialer{HandshakeTimeout: helloTimeout, TLSClientConfig: cfg.TLS, WriteBufferPool: writeBuffers,
		ReadBufferSize: 1 << 10, WriteBufferSize: 4 << 10}
	header := http.Header{}
	maps.Copy(header, cfg.Header)
	header.Set("Authorization", "Bearer "+cfg.Token.Reveal())
	url := "ws" + strings.TrimPrefix(cfg.base(), "http") + "/ws/agent"
	conn, resp, err := dialer.DialContext(ctx, url, header)
	if err != nil {
		if resp != nil {
			return nil, statusError(resp)
		}
		return nil, fmt.Errorf("connect: %w", err)
	}
	return &WS{cfg: cfg, conn: conn}, nil
}

var writeBuffers = &sync.Pool{}

// hello is agent protocol B.3.
func (w *WS) hello() error {
	if err := w.SendRaw(w.cfg.HelloFrame()); err != nil {
		return err
	}
	return w.AwaitAck()
}

// AwaitAck waits for the answer to a hello and binds the session to it.
func (w *WS) AwaitAck() error {
	_ = w.conn.SetReadDeadline(time.Now().Add(helloTimeout))
	data, err := w.receive()
	if err != nil {
		return err
	}
	_ = w.conn.SetReadDeadline(time.Time{})
	return w.accept(data)
}

// HelloFrame is the hello that DialWS sends.
func (c *Config) HelloFrame() []byte {
	h := wire.Hello{ID: "hello_" + strings.ReplaceAll(uuid.NewString(), "-", "")[:16], ProtocolVersion: wire.ProtocolVersion,
		AgentVersion: c.AgentVersion, Framework: "bare", Engines: c.Engines, Capabilities: c.Capabilities, RuntimeFeatures: c.Features}
	if h.AgentVersion == "" {
		h.AgentVersion = "1.13.0"
	}
	if c.WorkerID != "" {
		h.WorkerID = &c.WorkerID
	}
	return wire.AppendHello(nil, &h)
}

// accept reads hello_ack and binds the session.
func (w *WS) accept(data []byte) error {
	var ack struct {
		V       int    `json:"v"`
		Type    string `json:"type"`
		Payload struct {
			ProtocolVersion string    `json:"protocol_version"`
			AgentID         uuid.UUID `json:"agent_id"`
			ProjectID       uuid.UUID `json:"project_id"`
			SessionID       string    `json:"session_id"`
			Heartbeat       int       `json:"heartbeat_interval_seconds"` // an integer: 10.0 does not decode
			MaxFrame        int       `json:"max_frame_size_bytes"`
		} `json:"payload"`
	}
	if err := json.Unmarshal(data, &ack); err != nil {
		return fmt.Errorf("hello_ack: %w", err)
	}
	if ack.V != wire.Version || ack.Type != string(wire.TypeHelloAck) || ack.Payload.ProtocolVersion != wire.ProtocolVersion {
		return fmt.Errorf("first frame is not a hello_ack of version %d: %s", wire.Version, data)
	}
	p := ack.Payload
	w.AgentID, w.ProjectID, w.SessionID, w.MaxFrame = p.AgentID, p.ProjectID, p.SessionID, p.MaxFrame
	w.Heartbeat = time.Duration(p.Heartbeat) * time.Second
	b := wire.Binding{Secret: w.cfg.ProjectSecret, AgentID: p.AgentID, ProjectID: p.ProjectID, Session: p.SessionID}
	w.signer, w.verifier = wire.NewSigner(b), wire.NewVerifier(b)
	return nil
}

// Send signs and sends one frame. payload must be canonical; Canonical makes it so.
func (w *WS) Send(typ wire.Type, id string, payload []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.write(w.signer.Sign(w.cfg.now(), typ, id, payload))
}

// SendJSON is Send for a payload in any spelling.
func (w *WS) SendJSON(typ wire.Type, id, payload string) error {
	p, err := canonical(payload)
	if err != nil {
		return err
	}
	return w.Send(typ, id, p)
}

// SendRaw sends bytes as they are.
func (w *WS) SendRaw(frame []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.write(frame)
}

func (w *WS) write(frame []byte) error {
	if err := w.conn.WriteMessage(websocket.BinaryMessage, frame); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// Receive returns the next verified frame; the caller releases it. A close by the server is a *CloseError.
func (w *WS) Receive() (wire.Frame, error) {
	data, err := w.receive()
	if err != nil {
		return wire.Frame{}, err
	}
	f, err := wire.ParseFrame(data)
	if err != nil {
		return wire.Frame{}, err
	}
	if err := w.verifier.Verify(&f, w.cfg.now()); err != nil {
		f.Release()
		return wire.Frame{}, err
	}
	return f, nil
}

func (w *WS) receive() ([]byte, error) {
	_, data, err := w.conn.ReadMessage()
	var ce *websocket.CloseError
	switch {
	case errors.As(err, &ce):
		return nil, &CloseError{Code: ce.Code, Text: ce.Text}
	case err != nil:
		return nil, fmt.Errorf("receive: %w", err)
	}
	return data, nil
}

// Ack is the content of an event_batch_ack.
type Ack struct {
	ID                           string
	Received, Accepted, Rejected int64
}

// ReadAck reads an event_batch_ack.
func ReadAck(f *wire.Frame) Ack {
	var a Ack
	a.ID, _ = f.Payload.Get("acked_id").Str()
	a.Received, _ = f.Payload.Get("received").Int64()
	a.Accepted, _ = f.Payload.Get("accepted").Int64()
	a.Rejected, _ = f.Payload.Get("rejected").Int64()
	return a
}

// ReadCommand reads a command frame.
func ReadCommand(f *wire.Frame) (Command, error) { return readCommand(f) }

// Deadline bounds the next reads and writes; the zero time lifts the bound.
func (w *WS) Deadline(t time.Time) {
	_ = w.conn.SetReadDeadline(t)
	_ = w.conn.SetWriteDeadline(t)
}

// Conn is the socket below, for those who look at control frames or send what no agent would.
func (w *WS) Conn() *websocket.Conn { return w.conn }

// Close says goodbye and closes the socket.
func (w *WS) Close() error {
	_ = w.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""),
		time.Now().Add(time.Second))
	return w.conn.Close()
}

// Abort closes the socket without a word.
func (w *WS) Abort() error { return w.conn.NetConn().Close() }

func decodeBase64(text string) ([]byte, error) {
	text = strings.Join(strings.Fields(text), "")
	return base64.RawURLEncoding.DecodeString(strings.TrimRight(text, "="))
}

// BatchID is a frame id as the agent makes it for an event_batch.
func BatchID(n uint64) string { return "ev_" + strconv.FormatUint(n, 16) }
