package agent_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"signalbox/appliance/agent"
)

func TestRescueGivesBackWhatDiedWithItsSockets(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	ws, lp := r.peer(agent.WebSocket), r.peer(agent.LongPoll)
	lost := r.issue("cancel_task", cancelPayload)
	once := r.issue("restart_worker", restartPayload)
	acked := r.issue("cancel_task", `{"engine":"celery","task_id":"acked"}`)
	if n := len(r.claim(ws, 10).Claimed); n != 3 {
		t.Fatalf("claimed %d", n)
	}
	r.apply(ws, acked.ID.String(), "")
	polled := r.issue("cancel_task", `{"engine":"celery","task_id":"polled"}`)
	r.claimOne(lp)
	r.clock.Advance(time.Second)
	n, err := r.cmds.Rescue(context.Background())
	if err != nil || n != 1 {
		t.Fatalf("rescued %d, %v", n, err)
	}
	if got := r.get(lost); got.Status != agent.Pending || !got.TimeoutAt.Equal(r.clock.Now().Add(time.Minute)) {
		t.Errorf("the lost one is %+v", got)
	}
	if got := r.outcomes(lost); !slices.Equal(got, []agent.DeliveryOutcome{agent.DeliverySendFailed}) {
		t.Errorf("its ledger is %v", got)
	}
	for name, c := range map[string]agent.Command{"at most once": once, "acked": acked, "polled": polled} {
		if got := r.get(c); got.Status != agent.Dispatched {
			t.Errorf("the %s one is %s", name, got.Status)
		}
	}
	if n, err := r.cmds.Rescue(context.Background()); n != 0 || err != nil {
		t.Errorf("the second time: %d, %v", n, err)
	}
	if cl := r.claimOne(ws); cl.Command.ID != lost.ID {
		t.Errorf("claimed %v", cl.Command.ID)
	}
}

func TestWakePendingWakesWhoHasSomethingToTake(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	other := r.addAgent(r.project, "worker-2", agent.Online)
	r.issue("restart_worker", restartPayload)
	mine, theirs := r.hub.Watch(agent.AgentKey(r.agent.No)), r.hub.Watch(agent.AgentKey(other.No))
	defer mine.Stop()
	defer theirs.Stop()
	if n, err := r.cmds.WakePending(context.Background()); n != 1 || err != nil {
		t.Fatalf("woke %d, %v", n, err)
	}
	select {
	case <-mine.C():
	default:
		t.Error("the agent with a pending command was not woken")
	}
	select {
	case <-theirs.C():
		t.Error("an agent without one was")
	default:
	}
}

func TestRescueLeavesWhatIsOverdueToTheSweep(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	r.issue("cancel_task", cancelPayload)
	r.claimOne(r.peer(agent.WebSocket))
	r.clock.Advance(2 * time.Minute)
	if n, err := r.cmds.Rescue(context.Background()); n != 0 || err != nil {
		t.Errorf("rescued %d, %v", n, err)
	}
}
