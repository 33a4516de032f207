package notify_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/notify"
)

// worker mints an agent and connects it.
func (g *rig) worker(name string) agent.Peer {
	g.t.Helper()
	m, err := g.dir.MintAgent(ctx, root, "one", name)
	g.must(err)
	p := agent.Peer{ProjectNo: g.project.No, ProjectID: g.project.ID, AgentNo: m.Agent.No, AgentID: m.Agent.ID, Transport: agent.WebSocket,
		Worker: "w"}
	g.online(p)
	return p
}

func (g *rig) online(p agent.Peer) (at time.Time) {
	g.t.Helper()
	at, err := g.dir.MarkOnline(ctx, p, agent.Hello{})
	g.must(err)
	return at
}

// TestOffline: each offline period is told once, after the grace, if the agent is still away; never of the past of a
// restart, revoked agents or archived projects.
func TestOffline(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.rule("r", notify.AgentOffline, "", 10*time.Second, g.channel("ops"))
	g.run(g.s.Run)
	p := g.worker("worker-1")
	g.run(g.s.WatchOffline)
	g.clock.Advance(2 * time.Minute) // the appliance is up for longer than the grace
	g.must(g.dir.TouchLongPoll(ctx, p))
	away := func() {
		g.must(g.dir.WorkerOffline(ctx, p, true, g.online(p)))
	}
	away()
	g.clock.BlockUntil(1)
	g.clock.Advance(59 * time.Second)
	g.online(p) // back in time
	g.clock.Advance(time.Hour)
	away()
	g.clock.BlockUntil(1)
	g.clock.Advance(time.Minute)
	first := g.out.await(1)[0]
	if first.Subject != "[one] agent worker-1 is offline" || !strings.Contains(first.Text, "It was last heard at 2026-06-01T13:02:59Z.") {
		t.Errorf("%s\n%s", first.Subject, first.Text)
	}
	g.settled(notify.Delivered, 1)
	g.hub.Wake(agent.AgentsOffline{}) // the same period
	g.clock.Advance(time.Hour)
	away()
	g.clock.BlockUntil(1)
	g.clock.Advance(time.Minute)
	if got := g.out.await(2); got[1].ID == first.ID {
		t.Error("the second period has the id of the first")
	}
	g.settled(notify.Delivered, 2)
}

// TestCommandTimeout: the commands of a bulk retry are told together, others by their action.
func TestCommandTimeout(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.rule("r", notify.CommandTimeout, "retry_*", time.Minute, g.channel("ops"))
	g.update(func(tx notify.CollectTx) error {
		for _, c := range []agent.Command{
			{Action: "retry_task", Status: agent.TimedOut, ParentNo: 7}, {Action: "retry_task", Status: agent.TimedOut, ParentNo: 7},
			{Action: "retry_task", Status: agent.TimedOut}, {Action: "retry_task", Status: agent.Failed},
			{Action: "cancel_task", Status: agent.TimedOut},
		} {
			c.ProjectNo, c.ID = g.project.No, uuid.New()
			if err := g.s.CommandEnded(tx, c); err != nil {
				return err
			}
		}
		return nil
	})
	g.run(g.s.Run)
	g.out.await(2)
	counts := map[int64]int{}
	for _, n := range g.settled(notify.Delivered, 2) {
		counts[n.Collected]++
	}
	if counts[1] != 1 || counts[2] != 1 {
		t.Errorf("collected %v", counts)
	}
}

// TestFires: each kind of news about fires has its rules.
func TestFires(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	ops := g.channel("ops")
	for _, trigger := range []notify.Trigger{notify.FireBuffered, notify.FireExpired, notify.CircuitBreaker} {
		g.rule(string(trigger), trigger, "night*", time.Minute, ops)
	}
	g.update(func(tx notify.CollectTx) error {
		for _, name := range []string{"nightly", "hourly"} {
			f := notify.Fire{ProjectNo: g.project.No, ScheduleID: uuid.New(), ScheduleName: name, FireID: uuid.New(), ScheduledFor: start,
				Reason: "No agent is there."}
			for _, fn := range []func(notify.CollectTx, notify.Fire) error{g.s.FireBuffered, g.s.FireExpired, g.s.BreakerTripped} {
				if err := fn(tx, f); err != nil {
					return err
				}
			}
		}
		return nil
	})
	g.run(g.s.Run)
	for _, m := range g.out.await(3) {
		if !strings.Contains(m.Subject, "nightly") || !strings.Contains(m.Text, "No agent is there.") {
			t.Errorf("%s\n%s", m.Subject, m.Text)
		}
	}
	g.settled(notify.Delivered, 3)
}

// TestTrouble: a trouble is told once while it lasts; when the database takes no write, from memory.
func TestTrouble(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.rule("r", notify.SystemTrouble, "d*", time.Minute, g.channel("ops"))
	stop := g.run(g.s.Run)
	trouble := make(chan string, 1)
	trouble <- ""
	stopWatch := g.run(func(c context.Context) error {
		return g.s.WatchTrouble(c, []notify.Probe{{Name: notify.TroubleDisk, Check: func() string {
			text := <-trouble
			trouble <- text
			return text
		}}})
	})
	look := func() {
		g.clock.BlockUntil(1)
		g.clock.Advance(5 * time.Second)
	}
	look()
	<-trouble
	trouble <- "1 MiB left"
	for len(g.outbox(notify.Filter{})) == 0 {
		look()
	}
	for range 3 {
		look()
	}
	if m := g.out.await(1)[0]; m.Subject != "[one] Signalbox: disk space runs out" || !strings.Contains(m.Text, "1 MiB left") {
		t.Errorf("%s\n%s", m.Subject, m.Text)
	}
	g.settled(notify.Delivered, 1)
	stopWatch()
	stop()
	g.must(g.db.Close()) // takes no write any more
	g.s.Trouble(ctx, notify.TroubleDatabase, "Writes fail.")
	g.s.WaitDirect(ctx)
	if got := g.out.await(2); got[1].Subject != "[one] Signalbox: the database takes no writes" {
		t.Errorf("%s", got[1].Subject)
	}
}
