package notify_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"signalbox/appliance/agent"
	"signalbox/appliance/notify"
	"signalbox/appliance/secret"
)

// TestGrouping: the first speaks at once, what follows in the group time is told at its end, and then the group is new.
func TestGrouping(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.rule("r", notify.TaskFailed, "mail.*", time.Minute, g.channel("ops"))
	g.run(g.s.Run)
	g.fails("other.task", "mail.send")
	first := g.out.await(1)[0]
	if first.Subject != "[one] task mail.send failed: ValueError: no" || bodyOf(t, first.Message)["collected"] != 1.0 {
		t.Errorf("first message %q: %s", first.Subject, first.Body)
	}
	for _, part := range []string{"ValueError: no", "second line", "project: one", "rule: r", "task_id: t-1"} {
		if !strings.Contains(first.Text, part) {
			t.Errorf("text without %q:\n%s", part, first.Text)
		}
	}
	g.settled(notify.Delivered, 1)
	for range 37 {
		g.fails("mail.send")
	}
	g.clock.Advance(59 * time.Second)
	if n := len(g.outbox(notify.Filter{})); n != 1 {
		t.Fatalf("%d messages within the group time", n)
	}
	g.clock.Advance(time.Second)
	second := g.out.await(2)[1]
	if second.Subject != "[one] 37 more of: task mail.send failed: ValueError: no" || second.ID == first.ID ||
		bodyOf(t, second.Message)["is_follow_up"] != true {
		t.Errorf("second message %q: %s", second.Subject, second.Body)
	}
	g.settled(notify.Delivered, 2)
	g.clock.BlockUntil(1)
	g.clock.Advance(time.Minute) // silent for the whole time: the group is forgotten
	g.fails("mail.send")
	if third := g.out.await(3)[2]; third.Subject != first.Subject {
		t.Errorf("third message %q", third.Subject)
	}
}

// TestRateLimit: a rule sends at most one message more than its groups in its group time.
func TestRateLimit(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.rule("r", notify.TaskFailed, "", time.Minute, g.channel("ops"))
	g.run(g.s.Run)
	var names []string
	for i := range 80 {
		names = append(names, fmt.Sprintf("task.%02d", i))
	}
	g.fails(names...)
	g.settled(notify.Delivered, 50)
	g.clock.BlockUntil(1)
	g.clock.Advance(time.Minute)
	all := g.settled(notify.Delivered, 51)
	if all[0].Subject != "[one] 30 occurrences in other groups of rule r" || all[0].Collected != 30 {
		t.Errorf("the last message is %q", all[0].Subject)
	}
}

// TestRetries: failing, stalling and recovering receivers; what fails for good is dead at once and can be sent again.
func TestRetries(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	ops := g.channel("ops")
	g.rule("r", notify.TaskFailed, "", time.Hour, ops)
	g.out.answer(url("ops"), &notify.SendError{Msg: "the receiver answered 503"})
	g.run(g.s.Run)
	g.fails("a")
	id := g.out.await(1)[0].ID
	// The whole ladder of waits, with a jitter in the middle: of the channel, and of the message beside others.
	const top, hour = 5 * time.Minute, time.Hour
	for i, wait := range [][2]time.Duration{{10 * time.Second, 10 * time.Second}, {30 * time.Second, 30 * time.Second},
		{90 * time.Second, 90 * time.Second}, {270 * time.Second, 270 * time.Second}, {top, 810 * time.Second}, {top, 2430 * time.Second},
		{top, hour}, {top, hour}} {
		g.awaitTried(notify.OutcomeFailed)
		g.sleepsFor(wait[0])
		n := g.awaitAttempts(i + 1)
		if got := n.NextAttemptAt.Sub(g.clock.Now()); got != wait[1] || *n.LastError != "the receiver answered 503" {
			t.Fatalf("after attempt %d it waits %s, want %s; %v", i+1, got, wait[1], *n.LastError)
		}
		g.advance(wait[0])
		if got := g.out.await(i + 2); got[i+1].ID != id {
			t.Fatal("the id changed")
		}
	}
	g.awaitTried(notify.OutcomeFailed)
	g.sleepsFor(top)
	g.advance(start.AddDate(0, 0, 1).Sub(g.clock.Now()))
	g.awaitTried(notify.OutcomeDead)
	dead := g.settled(notify.Dead, 1)[0]
	if dead.Attempts != 10 || dead.EndedAt == nil {
		t.Errorf("dead: %+v", dead)
	}
	g.out.answer(url("ops"), nil)
	if _, err := g.s.Retry(ctx, root, g.project.No, dead.ID); err != nil {
		t.Fatal(err)
	}
	if got := g.out.await(11); got[10].ID != id {
		t.Error("sent again under another id")
	}
	g.settled(notify.Delivered, 1)

	g.out.answer(url("ops"), &notify.SendError{Msg: "the receiver answered 410 Gone", Permanent: true})
	g.fails("b")
	if n := g.settled(notify.Dead, 1)[0]; n.Attempts != 1 || *n.LastError != "the receiver answered 410 Gone" {
		t.Errorf("refused for good: %+v", n)
	}
}

// awaitAttempts waits until the one pending message has had so many attempts recorded.
func (g *rig) awaitAttempts(n int) notify.Notification {
	g.t.Helper()
	var all []notify.Notification
	g.until(func() bool {
		all = g.outbox(notify.Filter{State: notify.Pending})
		return len(all) == 1 && all[0].Attempts == n
	}, func() string { return fmt.Sprintf("no attempt %d: %+v", n, all) })
	return all[0]
}

// advance moves the clock once the dispatcher sleeps until then: it may still be on its way to its timer.
func (g *rig) advance(d time.Duration) {
	g.clock.Advance(d)
	g.hub.Wake(notify.Due{})
}

// TestStall: a receiver that stalls delays no other channel, and what it is sent no transaction.
func TestStall(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	slow, quick := g.channel("slow"), g.channel("quick")
	g.rule("r", notify.TaskFailed, "", time.Hour, slow, quick)
	release := make(chan struct{})
	g.out.stall[url("slow")] = release
	g.run(g.s.Run)
	for i := range 5 {
		g.fails(fmt.Sprint("task-", i))
	}
	for _, m := range g.out.await(5) {
		if m.to != url("quick") {
			t.Fatalf("came to %s", m.to)
		}
	}
	if n := len(g.outbox(notify.Filter{State: notify.Pending, ChannelID: slow.ID})); n != 5 {
		t.Errorf("%d wait for the channel that stalls", n)
	}
	close(release)
	g.out.await(10)
	g.settled(notify.Delivered, 10)
}

// TestRestart: what was collected or waits survives, and what was sent but not recorded is sent again under its id.
func TestRestart(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.rule("r", notify.TaskFailed, "", time.Hour, g.channel("ops"))
	g.fails("a") // nobody runs: a crash before the dispatcher saw it
	g.serve()
	release := make(chan struct{})
	g.out.stall[url("ops")] = release
	stop := g.run(g.s.Run)
	pending := g.settled(notify.Pending, 1)[0]
	stop() // cut short in the middle of the attempt
	if n := g.settled(notify.Pending, 1)[0]; n.Attempts != 0 {
		t.Errorf("an attempt that was cut short counts: %+v", n)
	}
	g.restart()
	close(release)
	g.run(g.s.Run)
	if got := g.out.await(1)[0]; got.ID != pending.ID {
		t.Error("sent under another id after the restart")
	}
	g.settled(notify.Delivered, 1)
	g.fails("a") // the silence survives too
	if n := len(g.outbox(notify.Filter{})); n != 1 {
		t.Errorf("%d messages", n)
	}
}

// TestRulesFollowCommits: a rule that is changed, turned off or deleted holds from its commit on.
func TestRulesFollowCommits(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	ops := g.channel("ops")
	r := g.rule("r", notify.TaskFailed, "a*", time.Minute, ops)
	g.fails("b")
	pattern := notify.RulePatch{Pattern: agent.SetTo("b?")}
	_, err := g.s.UpdateRule(ctx, root, g.project.No, r.ID, pattern)
	g.must(err)
	g.fails("b", "b1")
	_, err = g.s.UpdateRule(ctx, root, g.project.No, r.ID, notify.RulePatch{IsEnabled: agent.SetTo(false)})
	g.must(err)
	g.fails("b1") // no group is left to count in
	_, err = g.s.UpdateRule(ctx, root, g.project.No, r.ID, notify.RulePatch{IsEnabled: agent.SetTo(true)})
	g.must(err)
	g.fails("b2")
	g.must(g.s.DeleteRule(ctx, root, g.project.No, r.ID))
	g.fails("b3") // and none to break on
	g.run(g.s.Run)
	if n := len(g.outbox(notify.Filter{})); n != 0 {
		t.Errorf("%d messages of a rule that is gone", n)
	}
}

// TestChannelTurnedOff: what waits is given up, and nothing new comes.
func TestChannelTurnedOff(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	ops := g.channel("ops")
	g.rule("r", notify.TaskFailed, "", time.Minute, ops)
	g.out.answer(url("ops"), &notify.SendError{Msg: "no"})
	g.run(g.s.Run)
	g.fails("a")
	g.awaitAttempts(1)
	_, err := g.s.UpdateChannel(ctx, root, g.project.No, ops.ID, notify.ChannelPatch{IsEnabled: agent.SetTo(false)})
	g.must(err)
	if n := g.settled(notify.Dead, 1)[0]; *n.LastError != "the channel was turned off" {
		t.Errorf("%+v", n)
	}
	g.fails("b")
	if n := len(g.settled(notify.Dead, 1)); n != 1 {
		t.Errorf("%d", n)
	}
}

// TestSealed: the database shows no secret, a rotation of the master secret keeps channels, and without the secret they say
// what is wrong.
func TestSealed(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	ops := g.channel("ops")
	g.rule("r", notify.TaskFailed, "", time.Minute, ops)
	g.fails("a")
	for _, name := range []string{g.path, g.path + "-wal"} {
		if content, err := os.ReadFile(name); err != nil || strings.Contains(string(content), "hidden-path") {
			t.Errorf("%s shows the URL: %v", name, err)
		}
	}
	old := g.master.Current
	g.master = agent.SecretSet{Current: secret.NewBytes([]byte(strings.Repeat("n", 32))), Previous: []secret.Bytes{old}}
	if resealed, unreadable := g.serve(); resealed != 1 || unreadable != 0 {
		t.Errorf("sealed again %d, unreadable %d", resealed, unreadable)
	}
	g.master.Previous = nil
	if resealed, unreadable := g.serve(); resealed != 0 || unreadable != 0 {
		t.Errorf("without the previous secret: sealed again %d, unreadable %d", resealed, unreadable)
	}
	stop := g.run(g.s.Run)
	g.settled(notify.Delivered, 1)
	stop()
	g.master.Current = secret.NewBytes([]byte(strings.Repeat("x", 32)))
	if _, unreadable := g.serve(); unreadable != 1 {
		t.Errorf("%d unreadable", unreadable)
	}
	n, err := g.s.SendTest(ctx, root, g.project, ops.ID)
	g.must(err)
	if n.State != notify.Dead || !strings.Contains(*n.LastError, "set them again") {
		t.Errorf("%+v", n)
	}
}

// TestPrune removes what ended long ago, and nothing that waits.
func TestPrune(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.rule("r", notify.TaskFailed, "", time.Minute, g.channel("ops"))
	stop := g.run(g.s.Run)
	g.fails("a")
	g.settled(notify.Delivered, 1)
	g.clock.BlockUntil(1)
	stop()
	g.clock.Advance(31 * 24 * time.Hour)
	g.fails("b")
	g.out.answer(url("ops"), &notify.SendError{Msg: "no"})
	g.run(g.s.Run)
	g.awaitAttempts(1)
	if n, err := g.s.Prune(ctx, g.clock.Now().AddDate(0, 0, -30)); err != nil || n != 1 {
		t.Errorf("removed %d: %v", n, err)
	}
	g.awaitAttempts(1)
}
