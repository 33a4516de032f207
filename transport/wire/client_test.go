package wire

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestHelloRoundTrip(t *testing.T) {
	want, err := ParseHello([]byte(fullHello))
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseHello(AppendHello(nil, want))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	bare := &Hello{ID: "h", ProtocolVersion: "2", AgentVersion: "1", Framework: "f", HostName: `a"b`,
		Capabilities: map[string][]string{"a": nil, "b": {"x", "y"}}}
	got, err = ParseHello(AppendHello(nil, bare))
	if err != nil || got.HostName != bare.HostName || len(got.Capabilities) != 2 || got.WorkerID != nil {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestHelloAckRoundTrip(t *testing.T) {
	want := HelloAck{BrainVersion: "1.13.0", AgentID: uuid.UUID{1}, ProjectID: uuid.UUID{2}, SessionID: uuid.UUID{3},
		Heartbeat: 10 * time.Second, MaxFrameBytes: 1 << 20}
	ack := AppendHelloAck(nil, testNow, want)
	got, err := ParseHelloAck(ack)
	if err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, c := range []struct {
		old, new, says string
		class          error
	}{
		{`"v":2`, `"v":1`, "v must be 2", ErrVersionSkew},
		{`hello_ack`, `hello`, "must be a hello_ack, got hello", ErrMalformed},
		{`"protocol_version":"2"`, `"protocol_version":"3"`, `payload.protocol_version: must be "2"`, ErrMalformed},
		{`"heartbeat_interval_seconds":10`, `"heartbeat_interval_seconds":10.0`, "payload.heartbeat_interval_seconds: must be an integer", ErrMalformed},
		{`"max_frame_size_bytes":1048576`, `"max_frame_size_bytes":1023`, "payload.max_frame_size_bytes: must be an integer in 1024..67108864", ErrMalformed},
		{want.AgentID.String(), strings.ToUpper("0A000000-0000-0000-0000-000000000000"), "payload.agent_id: must be a lowercase UUID", ErrMalformed},
		{`"session_id":"` + want.SessionID.String() + `"`, `"session_id":7`, "payload.session_id: must be a string, got integer", ErrMalformed},
		{`{"v"`, `["v"`, "offset", ErrMalformed},
	} {
		changed := strings.Replace(string(ack), c.old, c.new, 1)
		if changed == string(ack) {
			t.Fatalf("%s is not in the frame", c.old)
		}
		if _, err := ParseHelloAck([]byte(changed)); !errors.Is(err, c.class) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %q", c.new, err, c.says)
		}
	}
}

// TestConversation plays both ends of a session: the same two types serve both directions, each with its own numbers.
func TestConversation(t *testing.T) {
	agentSigner, agentVerifier := NewSigner(testBinding), NewVerifier(testBinding)
	brainSigner, brainVerifier := NewSigner(testBinding), NewVerifier(testBinding)
	for i := range 3 {
		up := mustParse(t, agentSigner.Sign(testNow, TypeEventBatch, "ev_1", []byte(`{"events":[]}`)))
		if err := brainVerifier.Verify(up, testNow.Add(time.Second)); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		down := mustParse(t, brainSigner.Sign(testNow, TypeEventBatchAck, EventBatchAckID(up.ID), AppendEventBatchAck(nil, up.ID, 0, 0)))
		if err := agentVerifier.Verify(down, testNow); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		if !down.Payload.Get("acked_id").StrEqual("ev_1") || down.Seq != int64(i+1) {
			t.Errorf("round %d: got %s", i, down.Raw())
		}
	}
}
