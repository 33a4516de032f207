package session

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
)

func TestLimitsOfOneSession(t *testing.T) {
	t.Parallel()
	open, sessions := capture(echo)
	r := newRig(t, Options{MaxMessage: 64, QueueFrames: 4, QueueBytes: 1 << 20}, open)
	wide := r.dial()
	(<-sessions).SetLimits(1000, 0, 0)
	narrow := r.dial()
	<-sessions
	big := strings.Repeat("x", 1000)
	send(t, wide, big)
	wantMessage(t, wide, big)
	send(t, wide, big+"x")
	wantClose(t, wide, 1009, "message too large")
	send(t, narrow, big[:65]) // the plane's limit still holds for others
	wantClose(t, narrow, 1009, "message too large")
}

func TestQueueLimitsOfOneSession(t *testing.T) {
	t.Parallel()
	open, sessions := capture(echo)
	r := newRig(t, Options{QueueFrames: 100, QueueBytes: 1 << 20}, open)
	r.dial()
	s := <-sessions
	s.SetLimits(0, 2, 0)
	g := r.conns.latest().hold()
	data := bytes.Repeat([]byte("x"), 10)
	if err := s.Send(data); err != nil {
		t.Fatal(err)
	}
	<-g.entered // the first frame is being written and still counts
	if err := s.Send(data); err != nil {
		t.Fatal(err)
	}
	if err := s.Send(data); !errors.Is(err, ErrSlow) {
		t.Fatalf("third of two frames: %v", err)
	}
	if s.Reason() != Slow {
		t.Fatal(s.Reason())
	}
	close(g.open)
}

func TestSubprotocol(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{Subprotocol: "plain.v2"}, echo)
	url := "ws" + strings.TrimPrefix(r.srv.URL, "http")
	for _, offered := range [][]string{nil, {"other"}, {"plain.v1", "PLAIN.v2"}} {
		d := websocket.Dialer{Subprotocols: offered}
		_, resp, err := d.DialContext(context.Background(), url, nil)
		if err == nil || resp == nil || resp.StatusCode != http.StatusBadRequest {
			t.Fatalf("%v: %v", offered, err)
		}
		_ = resp.Body.Close()
	}
	d := websocket.Dialer{Subprotocols: []string{"plain.v3", "plain.v2"}}
	c, resp, err := d.DialContext(context.Background(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	defer func() { _ = c.Close() }()
	if c.Subprotocol() != "plain.v2" {
		t.Fatalf("answered %q", c.Subprotocol())
	}
	send(t, c, "hello")
	wantMessage(t, c, "hello")
}
