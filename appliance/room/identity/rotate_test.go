package identity_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room/identity"
)

func TestRotateKeyKeepsTheRest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ada, bob := r.person("ada"), r.person("bob")
	by := identity.Registrant{Owner: ada}
	made, err := r.RegisterKnown(t.Context(), by, identity.NewKnownAgent{Type: "codex", Name: "coder", Description: "writes"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.AuthenticateAgent(t.Context(), "Bearer "+made.Key.Reveal()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.RotateKey(t.Context(), bob.Actor(), made.Agent.ID); !fault.Is(err, fault.Forbidden) {
		t.Errorf("by somebody else: %v", err)
	}
	if _, err := r.RotateKey(t.Context(), ada.Actor(), uuid.New()); !fault.Is(err, fault.NotFound) {
		t.Errorf("of nobody: %v", err)
	}
	if _, err := r.AuthenticateAgent(t.Context(), "Bearer "+made.Key.Reveal()); err != nil {
		t.Fatalf("the key after refused rotations: %v", err)
	}
	r.clk.Advance(time.Minute)
	now, err := r.RotateKey(t.Context(), r.operator(), made.Agent.ID)
	if err != nil || !now.Rotated {
		t.Fatal(now, err)
	}
	if _, err := r.AuthenticateAgent(t.Context(), "Bearer "+made.Key.Reveal()); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("the old key: %v", err)
	}
	got, err := r.AuthenticateAgent(t.Context(), "Bearer "+now.Key.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != made.Agent.ID || got.Type != "codex" || got.Description != "writes" || !got.Policy.OwnerOnly() ||
		string(got.RawProfile) != string(made.Agent.RawProfile) || !got.KeySetAt.Equal(start.Add(time.Minute)) {
		t.Errorf("after the rotation %+v, before %+v", got, made.Agent)
	}
	if rows := r.audits("room_agent.rotated"); len(rows) != 1 {
		t.Errorf("audit rows %+v", rows)
	}
}
