package appliance_test

import (
	"strings"
	"testing"
	"time"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/secret"
	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

// After a rotation an agent's token is still good and its HMAC secret is not: it connects and fails with its first frame.
// A command that may be handed over once only must not be spent on it.
func TestStaleSecretDoesNotConsumeCommands(t *testing.T) {
	s := appliancetest.Start(t)
	m := s.Mint("a")
	c := s.Issue(m, "restart-worker", restartFields())
	stale := s.With(m, func(cfg *agentclient.Config) {
		cfg.ProjectSecret = secret.NewBytes([]byte(strings.Repeat("stale", 8)))
	})
	ws, err := agentclient.DialWS(t.Context(), stale)
	must(t, err)
	if code := closed(t, guarded(t, ws)); code != 4403 {
		t.Errorf("closed with %d, want 4403", code)
	}
	if got := s.Command(m, c.ID); got.Status != "pending" {
		t.Errorf("the command is %s", got.Status)
	}
	f := receive(t, dial(t, m.Config), wire.TypeCommand)
	if f.ID != c.ID {
		t.Errorf("received %s", f.ID)
	}
	f.Release()
}

// An agent whose heartbeat is switched off may send nothing for long: it gets its commands after a moment all the same.
func TestSilentSessionGetsItsCommands(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m := s.Mint("a")
	c := s.Issue(m, "restart-worker", restartFields())
	ws := open(t, m.Config)
	must(t, ws.SendRaw(m.HelloFrame()))
	must(t, ws.AwaitAck())
	got := make(chan string, 1)
	go func() {
		f, err := ws.Receive()
		if err == nil {
			got <- f.ID
			f.Release()
		}
		close(got)
	}()
	s.Eventually("the command being handed over", func() bool {
		s.Clock.Advance(100 * time.Millisecond)
		return s.Command(m, c.ID).Status == "dispatched"
	})
	if id := <-got; id != c.ID {
		t.Errorf("received %q", id)
	}
}
