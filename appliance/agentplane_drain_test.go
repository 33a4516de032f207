package appliance_test

import (
	"fmt"
	"testing"
	"time"

	"signalbox/appliance/appliancetest"
	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

// Going down closes sockets with 1001 and answers parked polls at once, empty; what was acknowledged is there after the
// restart, what was not is taken when it comes again, and commands that nobody acknowledged go out again.
func TestGracefulDrain(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m, pollster := s.Mint("a"), s.Mint("b")
	ws := dial(t, m.Config)
	lp := openLP(t, pollster.Config)
	online(t, lp)
	stored := batchID()
	send(t, ws, stored, batch("t-0", s.Now()))
	issued := s.Issue(m, "cancel-task", cancelFields("t-0"))
	command(t, ws)
	done := park(t, s, lp, 60*time.Second, 50)

	s.Signal()
	sent := map[string][]byte{} // races with the drain on purpose: either acknowledged or not
	for i := range 20 {
		id, payload := batchID(), batch(fmt.Sprint("late-", i), s.Now())
		if ws.Send(wire.TypeEventBatch, id, payload) != nil {
			break
		}
		sent[id] = payload
	}
	acked := map[string]bool{}
	code := make(chan int, 1)
	go func() {
		for {
			f, err := ws.Receive()
			if err != nil {
				ce, _ := err.(*agentclient.CloseError)
				if ce == nil {
					ce = &agentclient.CloseError{}
				}
				code <- ce.Code
				return
			}
			acked[agentclient.ReadAck(&f).ID] = true
			f.Release()
		}
	}()
	if err := s.Ended(); err != nil {
		t.Fatalf("run: %v", err)
	}
	if got := <-code; got != 1001 {
		t.Errorf("socket closed with %d", got)
	}
	p := ended(t, done)
	wantCommands(t, p.commands, p.err)

	s.Restart()
	if n := s.Count("SELECT count(*) FROM events"); n < 1+len(acked) {
		t.Errorf("%d events stored of %d acknowledged", n, 1+len(acked))
	}
	ws = dial(t, s.With(m, nil))
	if got := command(t, ws); got.ID != issued.ID {
		t.Errorf("got %s", got.ID)
	}
	sent[stored] = batch("t-0", epoch) // and what was acknowledged, as an agent might
	for id, payload := range sent {
		send(t, ws, id, payload)
	}
	if n := s.Count("SELECT count(DISTINCT task_id) FROM events"); n != len(sent) {
		t.Errorf("%d tasks, want %d", n, len(sent))
	}
	online(t, openLP(t, s.With(pollster, nil)))
}

// While going down nobody new is let in; afterwards the admin socket and the file with the addresses are gone.
func TestStopIsClean(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	ws := dial(t, s.Mint("a").Config)
	must(t, ws.SendJSON(wire.TypeHeartbeat, batchID(), agentclient.Heartbeat))
	s.Stop() // the agent answers nothing meanwhile
	if code := closed(t, ws); code != 1001 {
		t.Errorf("socket closed with %d", code)
	}
	for _, path := range []string{s.Config.AdminSocketPath(), s.Config.DataDir + "/addresses.json"} {
		if exists(path) {
			t.Errorf("%s is left", path)
		}
	}
	s.Restart()
	if n := s.Count("SELECT count(*) FROM agent_workers WHERE state = 'online'"); n != 0 {
		t.Errorf("%d slots online", n)
	}
}
