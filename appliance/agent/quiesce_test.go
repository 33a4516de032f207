package agent_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/store"
)

// Going down hands nothing over any more and waits for the answers to what is handed over once only.
func TestQuiesce(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	p := r.peer(agent.WebSocket)
	r.cmds.Connected(p)
	const success = `{"status":"success","result":{},"error":null}`
	// Answered, cancelled or not sent: nothing to wait for. What may be handed over again is not waited for either.
	done := r.issue("restart_worker", restartPayload)
	r.claimOne(p)
	r.apply(p, done.ID.String(), success)
	r.issue("restart_worker", restartPayload)
	if err := r.cmds.SendFailed(context.Background(), r.claimOne(p), "the socket broke"); err != nil {
		t.Fatal(err)
	}
	r.issue("cancel_task", `{"engine":"celery","task_id":"1"}`)
	r.claimOne(p)

	open := r.issue("restart_worker", restartPayload)
	r.claimOne(p)
	later := r.issue("restart_worker", restartPayload)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if n := r.cmds.Quiesce(ended); n != 1 {
		t.Fatalf("%d unanswered, want the one that was handed over", n)
	}
	for _, transport := range []agent.Transport{agent.WebSocket, agent.LongPoll} {
		if got := r.claim(r.peer(transport), 10); len(got.Claimed) != 0 {
			t.Errorf("%s took %d commands while going down", transport, len(got.Claimed))
		}
	}
	if got := r.get(later); got.Status != agent.Pending {
		t.Errorf("what nobody took is %s", got.Status)
	}
	waited := make(chan int)
	go func() { waited <- r.cmds.Quiesce(context.Background()) }()
	r.apply(p, open.ID.String(), success)
	if n := <-waited; n != 0 {
		t.Errorf("%d unanswered after the answer", n)
	}
}

// Nobody waits for the answers of agents that are gone: not of those gone before, nor of one that goes meanwhile. An agent with
// another session still has what the one that went was handed. Nothing here ends by time.
func TestQuiesceWaitsForTheConnectedOnly(t *testing.T) {
	t.Parallel()
	background := context.Background()
	gone := newCommandRig(t)
	p := gone.peer(agent.WebSocket)
	gone.cmds.Connected(p)
	gone.issue("restart_worker", restartPayload)
	gone.claimOne(p)
	gone.cmds.Disconnected(p)
	gone.issue("restart_worker", restartPayload)
	gone.claimOne(p) // the session ended while it claimed
	if n := gone.cmds.Quiesce(background); n != 2 {
		t.Errorf("%d unanswered by an agent that is gone, want 2", n)
	}

	goes := newCommandRig(t)
	p = goes.peer(agent.WebSocket)
	goes.cmds.Connected(p)
	goes.cmds.Connected(p)
	goes.issue("restart_worker", restartPayload)
	goes.claimOne(p)
	goes.cmds.Disconnected(p)
	waits, waited := watchedWait{background, make(chan struct{})}, make(chan int)
	go func() { waited <- goes.cmds.Quiesce(waits) }()
	select {
	case n := <-waited:
		t.Fatalf("did not wait for the other session, %d unanswered", n)
	case <-waits.begun:
	}
	goes.cmds.Disconnected(p)
	if n := <-waited; n != 1 {
		t.Errorf("%d unanswered by an agent that went, want 1", n)
	}
}

// watchedWait is a context that tells when it is waited for, once.
type watchedWait struct {
	context.Context
	begun chan struct{}
}

func (w watchedWait) Done() <-chan struct{} {
	close(w.begun)
	return w.Context.Done()
}

// An answer whose COMMIT nobody knows the outcome of has come all the same.
func TestQuiesceAfterUnknownOutcomes(t *testing.T) {
	t.Parallel()
	var unknown atomic.Bool
	r := newCommandRig(t, func(o *store.Options) {
		o.Hooks.AfterCommitBeforeReply = func([]string) error {
			if unknown.Load() {
				return errors.New("lost the reply")
			}
			return nil
		}
	})
	p := r.peer(agent.WebSocket)
	r.cmds.Connected(p)
	cmd := r.issue("restart_worker", restartPayload)
	r.claimOne(p)
	const success = `{"status":"success","result":{},"error":null}`
	unknown.Store(true)
	if err := r.applyFrame(p, cmd.ID.String(), success); !fault.Is(err, fault.OutcomeUnknown) {
		t.Fatal(err)
	}
	unknown.Store(false)
	r.apply(p, cmd.ID.String(), success) // the router tries again, and finds it ended
	if got := r.get(cmd); got.Status != agent.Completed {
		t.Fatalf("the command is %s", got.Status)
	}
	if n := r.cmds.Quiesce(context.Background()); n != 0 {
		t.Errorf("%d unanswered", n)
	}
}
