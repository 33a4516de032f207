package notify_test

import (
	"fmt"
	"testing"
	"time"

	"signalbox/appliance/agent"
	"signalbox/appliance/notify"
)

// TestOneProbe: of all that waits for a receiver that is down, one message at a time is tried, ever less often; when the
// receiver is back, everything goes out at once.
func TestOneProbe(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	ops := g.channel("ops")
	g.rule("r", notify.TaskFailed, "", time.Hour, ops)
	g.out.answer(url("ops"), &notify.SendError{Msg: "the receiver answered 503"})
	stop := g.run(g.s.Run)
	const all = 20
	for i := range all {
		g.fails(fmt.Sprint("task-", i))
	}
	tried := 0
	const top = 5 * time.Minute
	for _, wait := range []time.Duration{10 * time.Second, 30 * time.Second, 90 * time.Second, 270 * time.Second, top, top} {
		if tried++; len(g.out.await(tried)) > tried {
			t.Fatalf("%d messages were tried, want %d", len(g.out.await(tried)), tried)
		}
		g.awaitTried(notify.OutcomeFailed)
		g.sleepsFor(wait)
		if tried == 4 { // the channel's pause outlives the process
			stop()
			g.restart()
			g.run(g.s.Run)
			g.sleepsFor(wait)
		}
		g.advance(wait)
	}
	got := g.out.await(tried + 1)
	ids := map[string]bool{}
	for _, m := range got {
		ids[m.ID.String()] = true
	}
	if len(got) != tried+1 || len(ids) != tried+1 {
		t.Errorf("%d attempts of %d messages: no message may keep the others from being tried", len(got), len(ids))
	}
	g.awaitTried(notify.OutcomeFailed)
	g.sleepsFor(5 * time.Minute)
	g.out.answer(url("ops"), nil)
	g.advance(5 * time.Minute)
	g.out.await(tried + 1 + all)
	if n := g.settled(notify.Delivered, all); len(n) != all {
		t.Errorf("%d delivered", len(n))
	}
}

// TestPoison: a message that its receiver never takes, while it takes others, holds none of them up for more than the first
// pause.
func TestPoison(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.rule("r", notify.TaskFailed, "", time.Hour, g.channel("ops"))
	g.out.refuse = func(m notify.Message) error {
		if bodyOf(t, m)["name"] == "poison" {
			return &notify.SendError{Msg: "the receiver answered 500"}
		}
		return nil
	}
	g.run(g.s.Run)
	g.fails("poison")
	for i, wait := range []time.Duration{10 * time.Second, 30 * time.Second, 90 * time.Second, 270 * time.Second} {
		g.awaitTried(notify.OutcomeFailed)
		g.sleepsFor(wait)
		if i < 3 {
			g.advance(wait)
		}
	}
	g.fails("good-1", "good-2")
	g.settled(notify.Pending, 3)
	g.advance(270 * time.Second)
	// One that was never tried comes first. The receiver is well then: what it did not take is tried again, beside the rest.
	g.awaitTried(notify.OutcomeSent, notify.OutcomeFailed)
	g.sleepsFor(10 * time.Second)
	g.advance(10 * time.Second)
	g.awaitTried(notify.OutcomeSent)
	g.settled(notify.Delivered, 2)
	g.fails("good-3")
	g.settled(notify.Delivered, 3)
}

// TestWaitsADay: what a receiver has not taken in a day is dead, tried or not.
func TestWaitsADay(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.rule("r", notify.TaskFailed, "", time.Hour, g.channel("ops"))
	g.out.answer(url("ops"), &notify.SendError{Msg: "the receiver answered 503"})
	g.run(g.s.Run)
	g.fails("a", "b", "c", "d")
	g.awaitTried(notify.OutcomeFailed)
	g.sleepsFor(10 * time.Second)
	g.advance(24*time.Hour - time.Second)
	g.awaitTried(notify.OutcomeFailed)
	g.sleepsFor(30 * time.Second)
	g.fails("e")
	g.settled(notify.Pending, 5)
	g.advance(30 * time.Second)
	dead := map[string]int{}
	for _, n := range g.settled(notify.Dead, 4) {
		dead[*n.LastError]++
	}
	if dead["the receiver answered 503"] != 3 || dead["not sent: its channel took no message for a day"] != 1 {
		t.Errorf("dead for %v", dead)
	}
	g.out.answer(url("ops"), nil)
	for _, n := range g.outbox(notify.Filter{State: notify.Dead}) {
		_, err := g.s.Retry(ctx, root, g.project.No, n.ID)
		g.must(err)
	}
	g.settled(notify.Delivered, 5) // at once: an operator does not wait for the next probe
}

// TestSettledChannel: new settings, and a test that arrives, end the pause of a channel.
func TestSettledChannel(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	ops := g.channel("ops")
	g.rule("r", notify.TaskFailed, "", time.Hour, ops)
	down := &notify.SendError{Msg: "the receiver answered 503"}
	g.out.answer(url("ops"), down)
	g.run(g.s.Run)
	g.fails("a")
	g.awaitTried(notify.OutcomeFailed)
	g.sleepsFor(10 * time.Second)
	g.out.answer(url("ops"), nil)
	if n, err := g.s.SendTest(ctx, root, g.project, ops.ID); err != nil || n.State != notify.Delivered {
		t.Fatalf("%+v %v", n, err)
	}
	g.settled(notify.Delivered, 2)
	g.awaitTried(notify.OutcomeSent, notify.OutcomeSent)
	g.out.answer(url("ops"), down)
	g.fails("b")
	g.awaitTried(notify.OutcomeFailed)
	g.sleepsFor(10 * time.Second)
	g.out.answer(url("ops"), nil)
	_, err := g.s.UpdateChannel(ctx, root, g.project.No, ops.ID, notify.ChannelPatch{Settings: agent.SetTo(webhookTo("ops"))})
	g.must(err)
	g.settled(notify.Delivered, 3)
}

// TestTurnedOffWhileItArrives: what the receiver took counts as delivered, though its channel was turned off meanwhile.
func TestTurnedOffWhileItArrives(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	ops := g.channel("ops")
	g.rule("r", notify.TaskFailed, "", time.Hour, ops)
	release := make(chan struct{})
	g.out.stall[url("ops")] = release
	g.run(g.s.Run)
	g.fails("a", "b")
	g.out.awaitCalls(1)
	_, err := g.s.UpdateChannel(ctx, root, g.project.No, ops.ID, notify.ChannelPatch{IsEnabled: agent.SetTo(false)})
	g.must(err)
	g.settled(notify.Dead, 2)
	close(release)
	if n := g.settled(notify.Delivered, 1)[0]; n.LastError != nil || n.Attempts != 1 {
		t.Errorf("%+v", n)
	}
	if n := g.settled(notify.Dead, 1)[0]; *n.LastError != "the channel was turned off" {
		t.Errorf("%+v", n)
	}
}

// TestClockSetBack: after the clock was set back, a group is silent for its rule's time at most, and nothing waits for what
// the clock said before.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	ops := g.channel("ops")
	g.rule("r", notify.TaskFailed, "", 10*time.Second, ops)
	stop := g.run(g.s.Run)
	g.fails("a")
	g.settled(notify.Delivered, 1)
	g.awaitTried(notify.OutcomeSent)
	g.out.answer(url("ops"), &notify.SendError{Msg: "no"})
	g.fails("b")
	g.awaitTried(notify.OutcomeFailed)
	g.sleepsFor(10 * time.Second)
	stop()
	g.out.answer(url("ops"), nil)
	g.clock.Advance(-6 * time.Hour)
	if _, err := g.s.Prune(ctx, g.clock.Now().AddDate(0, 0, -30)); err != nil {
		t.Fatal(err)
	}
	g.fails("a")
	g.run(g.s.Run)
	g.settled(notify.Delivered, 3)
}
