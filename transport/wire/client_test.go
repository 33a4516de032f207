package wire

import (
	"reflect"
	"testing"
	"time"
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
