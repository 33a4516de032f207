package transport

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"
)

// listenTCP binds host:port.
func listenTCP(name, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("bind %s listener: %w", name, err)
	}
	return l, nil
}

// maxSocketPath is what the kernel takes for a unix socket's name.
const maxSocketPath = 107

// listenUnix binds a socket that only its owner may use. A socket left behind by a process that is gone is replaced; one
// that answers is an error. The directory must keep others out for the moment between bind and chmod.
func listenUnix(path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("bind admin socket: path of %d bytes is longer than the %d a socket may have: %s",
			len(path), maxSocketPath, path)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("bind admin socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("restrict admin socket: %w", err)
	}
	return l, nil
}

func removeStale(path string) error {
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at admin socket: %w", err)
	case fi.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("bind admin socket: %s exists and is no socket", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("bind admin socket: another process serves %s", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("look at admin socket: %w", err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove stale admin socket: %w", err)
	}
	return nil
}

// headListener hands out connections that correct one answer of net/http, see headConn.
type headListener struct{ net.Listener }

// Accept waits for the next connection.
func (l headListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &headConn{Conn: conn}, nil
}

// headConn turns net/http's own refusal of an unparseable Content-Length, a bare 400 that no handler sees, into the 413
// that the protocol wants (agent protocol I.2). net/http writes that refusal straight to the connection, as exactly
// bareRefusal, before any handler of the connection runs, so what was read last is still the buffer it was read into.
type headConn struct {
	net.Conn
	last []byte
}

const bareRefusal = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request"

// Inner returns the connection below, for those who take it over.
func (c *headConn) Inner() net.Conn { return c.Conn }

// Read remembers where the bytes went; it does not copy them.
func (c *headConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 1 { // net/http watches for the end of a parked request with reads of one byte
		c.last = p[:n]
	}
	return n, err
}

// Write replaces the bare refusal when the length was the cause.
func (c *headConn) Write(p []byte) (int, error) {
	if string(p) != bareRefusal || !badContentLength(c.last) {
		return c.Conn.Write(p)
	}
	if _, err := c.Conn.Write(lengthRefusal()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// lengthRefusal is the whole response to an unparseable Content-Length.
func lengthRefusal() []byte {
	rec := &missBody{missWriter: missWriter{header: http.Header{}}}
	WriteError(rec, &http.Request{}, bodyError(reasonBadLength))
	var out bytes.Buffer
	out.WriteString("HTTP/1.1 413 Request Entity Too Large\r\nConnection: close\r\n")
	_ = rec.header.Write(&out) // a buffer takes all
	out.WriteString("\r\n")
	out.Write(rec.body.Bytes())
	return out.Bytes()
}

// badContentLength looks for a Content-Length line that is no number, or several that differ.
func badContentLength(head []byte) bool {
	first := ""
	seen := false
	for line := range bytes.Lines(head) {
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok || !bytes.EqualFold(name, []byte("Content-Length")) {
			continue
		}
		v := string(bytes.TrimSpace(value))
		if _, err := strconv.ParseUint(v, 10, 63); err != nil || seen && v != first {
			return true
		}
		first, seen = v, true
	}
	return false
}
