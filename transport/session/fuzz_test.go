package session

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/iotest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"

	"signalbox/appliance/clock"
)

// pipeWriter is a response writer whose connection is one end of a pipe.
type pipeWriter struct {
	http.ResponseWriter
	conn net.Conn
}

func (w *pipeWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return w.conn, bufio.NewReadWriter(bufio.NewReader(w.conn), bufio.NewWriter(w.conn)), nil
}

// masked is a client's frame.
func masked(head byte, payload string) []byte {
	b := []byte{head}
	switch n := len(payload); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	default:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	}
	b = append(b, 1, 2, 3, 4)
	for i := range len(payload) {
		b = append(b, payload[i]^byte(1+i%4))
	}
	return b
}

// FuzzPeerBytes feeds a session whatever a stranger may send: it ends, in order, without a panic, and no message above
// the cap reaches the handler.
func FuzzPeerBytes(f *testing.F) {
	f.Add(masked(0x81, "hello"))
	f.Add(append(masked(0x01, "frag"), masked(0x80, "ment")...))
	f.Add(append(masked(0x89, "ping"), masked(0x88, "\x03\xe8bye")...))
	f.Add(masked(0x82, string(make([]byte, 200))))
	f.Add([]byte{0x81, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0})
	f.Add([]byte{0xf1, 0x00})
	g, err := NewGroup(clock.NewFake(time.Unix(0, 0)), zerolog.Nop(), nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(g.Close)
	const limit = 100
	p := g.NewPlane(Options{Kind: "fuzz", MaxMessage: limit})
	f.Fuzz(func(t *testing.T, data []byte) {
		ours, theirs := net.Pipe()
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		for k, v := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket",
			"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="} {
			r.Header.Set(k, v)
		}
		sessions := make(chan *Session, 1)
		read := make(chan struct{})
		go func() {
			defer close(read)
			_, _ = io.Copy(io.Discard, theirs)
		}()
		err := p.Accept(&pipeWriter{httptest.NewRecorder(), ours}, r, "",
			func(_ context.Context, s *Session) (Handler, error) {
				sessions <- s
				return funcs{message: func(_ context.Context, _ MessageType, data []byte) error {
					if len(data) > limit {
						t.Errorf("message of %d bytes", len(data))
					}
					return s.Send(append([]byte(nil), data...))
				}}, nil
			})
		if err != nil {
			t.Fatal(err)
		}
		s := <-sessions
		_, _ = theirs.Write(data)
		_ = theirs.Close()
		<-s.Done()
		<-read
		if n := testutil.ToFloat64(g.metrics.panics.WithLabelValues("fuzz")); n != 0 {
			t.Fatalf("%v panics", n)
		}
	})
}

func TestReadCapped(t *testing.T) {
	broken := errors.New("broken")
	for _, tc := range []struct {
		name string
		r    io.Reader
		want string
		err  error
	}{
		{"empty", bytes.NewReader(nil), "", nil},
		{"below", bytes.NewReader([]byte("1234567")), "1234567", nil},
		{"at the cap", bytes.NewReader([]byte("12345678")), "12345678", nil},
		{"one above", bytes.NewReader([]byte("123456789")), "", errOversize},
		{"byte by byte", iotest.OneByteReader(bytes.NewReader([]byte("12345678"))), "12345678", nil},
		{"far above, byte by byte", iotest.OneByteReader(bytes.NewReader(make([]byte, 100))), "", errOversize},
		{"data with the end", iotest.DataErrReader(bytes.NewReader([]byte("123"))), "123", nil},
		{"above, data with the end", iotest.DataErrReader(bytes.NewReader([]byte("123456789"))), "", errOversize},
		{"broken", io.MultiReader(bytes.NewReader([]byte("12")), iotest.ErrReader(broken)), "", broken},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, room := range []int{0, 1, 8, 64} {
				got, err := readCapped(tc.r, make([]byte, 0, room), 8)
				if s, ok := tc.r.(*bytes.Reader); ok {
					_, _ = s.Seek(0, io.SeekStart)
				}
				if !errors.Is(err, tc.err) || err == nil && string(got) != tc.want {
					t.Fatalf("room %d: %q, %v", room, got, err)
				}
				if len(got) > 9 {
					t.Fatalf("room %d: read %d bytes past a cap of 8", room, len(got))
				}
				if _, ok := tc.r.(*bytes.Reader); !ok {
					break // cannot be read twice
				}
			}
		})
	}
}
