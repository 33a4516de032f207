package session

import (
	"bufio"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gorilla/websocket"

	"signalbox/appliance/fault"
)

// readBuffer is the per-socket buffer of incoming bytes. Larger messages are read past it, straight into a pooled
// buffer; an idle socket holds no more than this.
const readBuffer = 1 << 10

// upgrader declines compression (a window per socket costs more than it saves on small signed frames) and ignores Origin
// (the planes authenticate by bearer, never by cookie). The shared write pool keeps gorilla from allocating a write
// buffer per socket.
var upgrader = websocket.Upgrader{
	ReadBufferSize:  readBuffer,
	WriteBufferSize: readBuffer,
	WriteBufferPool: &sync.Pool{},
	CheckOrigin:     func(*http.Request) bool { return true },
	Error:           func(http.ResponseWriter, *http.Request, int, error) {},
}

// socket is the connection as gorilla sees it: after the upgrade its writes go nowhere, for the writer alone writes.
// gorilla still tries when the peer breaks the framing rules, and that attempt is how we learn of it.
type socket struct {
	net.Conn
	muted    bool        // set once, before the reader starts
	violated atomic.Bool // gorilla wanted to send a close frame of its own
}

// Write passes the upgrade response through and swallows everything later.
func (c *socket) Write(p []byte) (int, error) {
	if c.muted {
		c.violated.Store(true)
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// hijacker hands gorilla the wrapped connection, through whatever writers middleware has put around the server's.
type hijacker struct {
	http.ResponseWriter
	socket *socket
}

// Hijack takes the connection from the HTTP server.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if outer, ok := conn.(interface{ Inner() net.Conn }); ok {
		conn = outer.Inner() // what a listener wrapped around it was for the HTTP part only
	}
	h.socket = &socket{Conn: conn}
	return h.socket, rw, nil
}

// upgrade performs the WebSocket handshake. hijacked tells whether the connection is no longer the HTTP server's; when
// it is not, nothing has been written and the caller answers the error. gorilla clears the HTTP server's deadlines.
func upgrade(w http.ResponseWriter, r *http.Request, subprotocol string) (ws *websocket.Conn, conn *socket, hijacked bool, err error) {
	var header http.Header
	if subprotocol != "" {
		if !slices.Contains(websocket.Subprotocols(r), subprotocol) {
			return nil, nil, false, fault.New(fault.Incompatible, "the WebSocket handshake must offer the subprotocol %s", subprotocol)
		}
		header = http.Header{"Sec-Websocket-Protocol": {subprotocol}}
	}
	h := &hijacker{ResponseWriter: w}
	ws, err = upgrader.Upgrade(h, r, header)
	if err != nil {
		if h.socket != nil {
			_ = h.socket.Conn.Close()
			return nil, nil, true, err
		}
		return nil, nil, false, fault.Wrap(fault.Invalid, err, "not a valid WebSocket handshake")
	}
	h.socket.muted = true
	return ws, h.socket, true, nil
}
