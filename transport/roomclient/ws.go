package roomclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// handshakeTimeout bounds the opening of a socket.
const handshakeTimeout = 10 * time.Second

var writeBuffers = &sync.Pool{}

// SocketURL is where the stream is opened (section 0).
func (c *Config) SocketURL(o *Open) string {
	return "ws" + strings.TrimPrefix(c.base(), "http") + "/agents/" + c.AgentID.String() + "/connection/ws?" + o.Query()
}

// Dial opens the WebSocket. Refusals come afterwards, as a frame and a close code (B.3); an error is a *Closed of a
// socket that did not open.
func Dial(ctx context.Context, cfg *Config, o Open) (*Stream, error) {
	dialer := websocket.Dialer{HandshakeTimeout: handshakeTimeout, TLSClientConfig: cfg.TLS, WriteBufferPool: writeBuffers,
		ReadBufferSize: 1 << 10, WriteBufferSize: 1 << 10, Proxy: http.ProxyFromEnvironment}
	conn, resp, err := dialer.DialContext(ctx, cfg.SocketURL(&o), cfg.header())
	if err != nil {
		if resp != nil {
			body, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
			_ = resp.Body.Close()
			return nil, &Closed{Err: statusError(resp.StatusCode, body)}
		}
		return nil, &Closed{Err: fmt.Errorf("connect: %w", err)}
	}
	s := newStream(cfg, o, WebSocket)
	var writing sync.Mutex
	s.cut = func() { _ = conn.Close() }
	s.answer = pongs(conn, &writing)
	go s.readSocket(conn)
	return s, nil
}

// pongs returns the function that sends one.
func pongs(conn *websocket.Conn, writing *sync.Mutex) func(int64) error {
	return func(cursor int64) error {
		frame := append(strconv.AppendInt([]byte(`{"type":"pong","cursor":`), cursor, 10), '}')
		writing.Lock()
		defer writing.Unlock()
		_ = conn.SetWriteDeadline(time.Now().Add(handshakeTimeout))
		return conn.WriteMessage(websocket.TextMessage, frame)
	}
}

func (s *Stream) readSocket(conn *websocket.Conn) {
	for {
		typ, data, err := conn.ReadMessage()
		if err != nil {
			s.end(socketEnd(err))
			return
		}
		var f Frame
		if err := json.Unmarshal(data, &f); err != nil || typ != websocket.TextMessage {
			s.end(Closed{Err: fmt.Errorf("a frame that is no JSON object: %w", errors.Join(err, errNotText))})
			return
		}
		s.took(f)
	}
}

var errNotText = errors.New("frames are text messages of one JSON object")

func socketEnd(err error) Closed {
	var ce *websocket.CloseError
	if errors.As(err, &ce) && ce.Code != websocket.CloseAbnormalClosure {
		return Closed{Code: ce.Code, Text: ce.Text}
	}
	return Closed{Err: err}
}
