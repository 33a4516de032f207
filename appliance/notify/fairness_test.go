package notify_test

import (
	"testing"
	"time"

	"signalbox/appliance/agent"
	"signalbox/appliance/notify"
)

// TestChannelsTakeTurns: when there are more channels than attempts at once, a channel with much that waits does not keep
// the others from theirs.
func TestChannelsTakeTurns(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.parallel = 1
	g.serve()
	a, b, c := g.channel("a"), g.channel("b"), g.channel("c")
	g.rule("r", notify.TaskFailed, "", time.Minute, a, b, c)
	g.fails("one", "two", "three")
	g.run(g.s.Run)
	seen := map[string]int{}
	for i, m := range g.out.await(9) {
		seen[m.to]++
		if seen[m.to] != i/3+1 {
			t.Errorf("message %d went to %s, its number %d", i, m.to, seen[m.to])
		}
	}
	g.settled(notify.Delivered, 9)
}

// TestRuleThatChanges: a rule that is about something else forgets what it has collected, and a shorter group time holds at
// once for what is silent.
func TestRuleThatChanges(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	ops := g.channel("ops")
	r := g.rule("r", notify.TaskFailed, "", 24*time.Hour, ops)
	g.rule("other", notify.TaskFailed, "second", time.Minute, ops)
	g.fails("first")
	change := func(p notify.RulePatch) {
		t.Helper()
		_, err := g.s.UpdateRule(ctx, root, g.project.No, r.ID, p)
		g.must(err)
	}
	change(notify.RulePatch{Trigger: agent.SetTo(notify.AgentOffline)})
	g.fails("second")
	g.run(g.s.Run)
	if m := g.out.await(1)[0]; m.Subject != "[one] task second failed: ValueError: no" {
		t.Errorf("a rule about agents told %q", m.Subject)
	}
	change(notify.RulePatch{Trigger: agent.SetTo(notify.TaskFailed)})
	g.fails("third")
	g.out.await(2)
	g.settled(notify.Delivered, 2)
	g.fails("third")
	change(notify.RulePatch{Group: agent.SetTo(10 * time.Second)})
	g.clock.BlockUntil(1)
	g.clock.Advance(time.Minute)
	if m := g.out.await(3)[2]; m.Subject != "[one] 1 more of: task third failed: ValueError: no" {
		t.Errorf("then %q", m.Subject)
	}
	g.settled(notify.Delivered, 3)
}
