package notify_test

import (
	"testing"
	"time"

	"signalbox/appliance/agent"
	"signalbox/appliance/notify"
)

// TestArchivedProjectIsSilent: neither what was collected nor what waits of an archived project is sent, and a trouble that
// is told without the database goes to active projects, under the names that they have.
func TestArchivedProjectIsSilent(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	ops := g.channel("ops")
	g.rule("failures", notify.TaskFailed, "", time.Hour, ops)
	g.rule("trouble", notify.SystemTrouble, "", time.Hour, ops)
	_, err := g.dir.CreateProject(ctx, root, agent.NewProject{Slug: "two", Name: "Two"})
	g.must(err)
	g.out.answer(url("ops"), &notify.SendError{Msg: "no"})
	g.run(g.s.Run)
	g.fails("a")
	g.awaitTried(notify.OutcomeFailed)
	g.sleepsFor(10 * time.Second)
	g.fails("a") // within the silence
	g.must(g.dir.ArchiveProject(ctx, root, "one"))
	if n := g.settled(notify.Dead, 1)[0]; *n.LastError != "the project was archived" {
		t.Errorf("%+v", n)
	}
	g.out.answer(url("ops"), nil)
	direct := func() []sent {
		g.s.Direct(notify.TroubleDatabase, "Writes fail.")
		g.s.WaitDirect(ctx)
		return g.out.await(1)[1:]
	}
	g.s.Trouble(ctx, notify.TroubleDisk, "1 MiB left.")
	g.advance(2 * time.Hour)
	if told := direct(); len(told) != 0 {
		t.Errorf("an archived project was told %q", told[0].Subject)
	}
	_, err = g.dir.ActivateProject(ctx, root, "one")
	g.must(err)
	_, err = g.dir.UpdateProject(ctx, root, "one", agent.ProjectPatch{Slug: agent.SetTo("uno")})
	g.must(err)
	if told := direct(); len(told) != 1 || told[0].Subject != "[uno] Signalbox: the database takes no writes" {
		t.Errorf("told %v", told)
	}
	g.fails("a") // nothing is left of before
	if n := g.settled(notify.Delivered, 1)[0]; n.Subject != "[uno] task a failed: ValueError: no" {
		t.Errorf("told %q", n.Subject)
	}
}
