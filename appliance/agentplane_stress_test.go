package appliance_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/config"
	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

// Agent protocol B.6: a full queue stops the reading and drops nothing; acknowledgements come in the order of arrival.
func TestFullIngestQueueHoldsThePeerBack(t *testing.T) {
	s := appliancetest.Start(t, frozen(), configure(func(c *config.Config) { c.Agent.WSIngestQueue = 16 }))
	ws := dial(t, s.Mint("a").Config)
	settle(t, ws)
	release := make(chan struct{})
	s.Faults.BeforeCommit(func([]string) { <-release })
	const n = 300
	sent := make(chan error, 1)
	dispatched := s.Faults.Queued("dispatch frames")
	go func() {
		for i := range n {
			if err := ws.Send(wire.TypeEventBatch, fmt.Sprint("ev_", i), batch(fmt.Sprint("t-", i), epoch)); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	s.Faults.AwaitQueued(t, "dispatch frames", dispatched+1)
	close(release)
	for i := range n {
		f := receive(t, ws, wire.TypeEventBatchAck)
		if ack := agentclient.ReadAck(&f); ack.ID != fmt.Sprint("ev_", i) || ack.Accepted != 1 {
			t.Fatalf("acknowledgement %d: %+v", i, ack)
		}
		f.Release()
	}
	must(t, <-sent)
	if got := s.Count("SELECT count(*) FROM events"); got != n {
		t.Errorf("%d events", got)
	}
}

// Workers of one agent that come, take commands, go without a word or answer, and come back: every command that may be
// handed over again is completed in the end, whatever the order of events.
func TestNoCommandIsLostInReconnects(t *testing.T) {
	for name, polling := range map[string]bool{"sockets": false, "sockets and polls": true} {
		t.Run(name, func(t *testing.T) { reconnects(t, polling) })
	}
}

func reconnects(t *testing.T, polling bool) {
	s := appliancetest.Start(t, configure(unlimited), configure(func(c *config.Config) {
		c.Agent.CommandTimeout = config.Duration(time.Hour) // no command may end by its time, however slow the machine is
	}))
	m := s.Mint("a")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for w := range 3 {
		cfg := s.With(m, func(c *agentclient.Config) { c.WorkerID = fmt.Sprint("w", w%2) }) // two of them fight for a slot
		random := rand.New(rand.NewPCG(1, uint64(w)))
		wg.Go(func() {
			for ctx.Err() == nil {
				flaky(ctx, cfg, random)
			}
		})
	}
	if polling {
		lp := s.With(m, nil)
		wg.Go(func() { pollAndAnswer(ctx, lp) })
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
	const n = 20
	for i := range n {
		s.Issue(m, "cancel-task", cancelFields(fmt.Sprint("t-", i)))
	}
	s.Eventually("the end of every command", func() bool {
		return s.Count("SELECT count(*) FROM commands WHERE status = 'completed'") == n
	})
	cancel()
	wg.Wait()
	s.Eventually("every slot going offline", func() bool {
		return s.Count("SELECT count(*) FROM agent_workers WHERE state = 'online'") == 0
	})
}

// flaky is one connection: it answers some commands and then goes, sometimes before it has acknowledged one.
func flaky(ctx context.Context, cfg agentclient.Config, random *rand.Rand) {
	ws, err := agentclient.DialWS(ctx, cfg)
	if err != nil {
		return
	}
	defer ws.Abort()
	for range 3 + random.IntN(6) {
		ws.Deadline(time.Now().Add(time.Second))
		f, err := ws.Receive()
		if err != nil {
			return
		}
		id, typ := f.ID, f.Type
		f.Release()
		if typ != wire.TypeCommand {
			continue
		}
		if random.IntN(6) == 0 {
			return
		}
		// No ack before it: a socket that dies may lose the one and not the other, and a command that was acknowledged is
		// the agent's until its deadline.
		if ws.SendJSON(wire.TypeCommandResult, id, agentclient.ResultPayload(true, "", "")) != nil {
			return
		}
	}
	_ = ws.Close()
}

// pollAndAnswer is the same agent over long-poll.
func pollAndAnswer(ctx context.Context, cfg agentclient.Config) {
	lp, err := agentclient.OpenLP(ctx, cfg)
	if err != nil {
		return
	}
	for ctx.Err() == nil {
		got, err := lp.Poll(ctx, 5*time.Second, 1)
		if err != nil {
			return
		}
		for _, c := range got {
			if _, err := lp.Upload(ctx, agentclient.Outgoing{Type: wire.TypeCommandAck, ID: c.ID, Payload: []byte(agentclient.AckPayload)},
				agentclient.Outgoing{Type: wire.TypeCommandResult, ID: c.ID, Payload: []byte(agentclient.ResultPayload(true, "", ""))}); err != nil {
				return
			}
		}
	}
}
