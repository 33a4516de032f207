package agent_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
)

func TestSweepEndsWhatIsOver(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	ctx := context.Background()
	claimed := r.issue("restart_worker", restartPayload)
	r.claimOne(r.peer(agent.WebSocket))
	pending := r.issue("restart_worker", restartPayload)
	r.clock.Advance(time.Second)
	later := r.issue("restart_worker", restartPayload)
	at, err := r.cmds.NextDeadline(ctx)
	if err != nil || !at.Equal(rigStart.Add(time.Minute+time.Microsecond)) {
		t.Fatalf("next deadline %v, %v", at, err)
	}
	r.clock.Advance(at.Sub(r.clock.Now()) - time.Microsecond)
	before := r.st.writes()
	if n, err := r.cmds.SweepTimeouts(ctx); n != 0 || err != nil || r.st.writes() != before {
		t.Fatalf("at the deadline: %d, %v, %d writes", n, err, r.st.writes()-before)
	}
	r.clock.Advance(time.Microsecond)
	if n, err := r.cmds.SweepTimeouts(ctx); n != 2 || err != nil {
		t.Fatalf("after the deadline: %d, %v", n, err)
	}
	for _, c := range []agent.Command{claimed, pending} {
		if got := r.get(c); got.Status != agent.TimedOut || *got.Error != "command timed out before agent responded" || got.CompletedAt == nil {
			t.Errorf("swept: %+v", got)
		}
	}
	if o := r.outcomes(claimed); !slices.Equal(o, []agent.DeliveryOutcome{"timeout"}) {
		t.Errorf("ledger %v", o)
	}
	if got := r.get(later); got.Status != agent.Pending {
		t.Errorf("swept too early: %s", got.Status)
	}
	if got := r.audits(); len(got) != 3 {
		t.Errorf("audited %v", got)
	}
}

func TestSweepWorksInSlices(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	const n = 401
	r.bulk(n, false)
	r.clock.Advance(2 * time.Minute)
	before := r.st.writes()
	if got, err := r.cmds.SweepTimeouts(context.Background()); got != n || err != nil {
		t.Fatalf("swept %d, %v", got, err)
	}
	if w := r.st.writes() - before; w != 3 {
		t.Errorf("%d transactions", w)
	}
	if at, err := r.cmds.NextDeadline(context.Background()); !at.IsZero() || err != nil {
		t.Errorf("next deadline %v, %v", at, err)
	}
}

func TestEarlierDeadlineWakesTheSweep(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	ctx := context.Background()
	w := r.hub.Watch(agent.SweepKey{})
	defer w.Stop()
	if at, _ := r.cmds.NextDeadline(ctx); !at.IsZero() {
		t.Fatalf("next deadline %v", at)
	}
	r.issue("restart_worker", restartPayload)
	if !hinted(w) {
		t.Error("the first deadline did not wake the sweep")
	}
	if _, err := r.cmds.NextDeadline(ctx); err != nil {
		t.Fatal(err)
	}
	r.clock.Advance(time.Second)
	r.issue("restart_worker", restartPayload)
	if hinted(w) {
		t.Error("a later deadline woke the sweep")
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	ctx := context.Background()
	p := r.peer(agent.WebSocket)
	pending := r.issue("restart_worker", restartPayload)
	if got, err := r.cmds.Cancel(ctx, r.by, r.project.No, pending.ID); err != nil || got.Status != agent.Cancelled {
		t.Fatalf("cancel pending: %+v, %v", got, err)
	}
	if res := r.claim(p, 10); len(res.Claimed) != 0 {
		t.Error("a cancelled command was claimed")
	}
	taken := r.issue("cancel_task", cancelPayload)
	r.claimOne(p)
	if _, err := r.cmds.Cancel(ctx, r.by, r.project.No, taken.ID); err != nil {
		t.Fatal(err)
	}
	if o := r.outcomes(taken); !slices.Equal(o, []agent.DeliveryOutcome{"superseded"}) {
		t.Errorf("ledger %v", o)
	}
	_, err := r.cmds.Cancel(ctx, r.by, r.project.No, taken.ID)
	wantFault(t, err, fault.Conflict)
	if fault.Details(err)["status"] != "cancelled" {
		t.Errorf("details %v", fault.Details(err))
	}
	_, err = r.cmds.Cancel(ctx, r.by, r.project.No, uuid.New())
	wantFault(t, err, fault.NotFound)
	_, err = r.cmds.Cancel(ctx, r.by, r.addProject("other").No, taken.ID)
	wantFault(t, err, fault.NotFound)
	if got := r.audits(); !slices.Equal(got, []string{"command.issue.restart_worker", "command.cancelled", "command.issue.cancel_task", "command.cancelled"}) {
		t.Errorf("audited %v", got)
	}
}

func TestListAndResolve(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	ctx := context.Background()
	second := r.addAgent(r.project, "worker-2", agent.Online)
	var all []uuid.UUID // newest first
	for i := range 7 {
		q := r.request("restart_worker", restartPayload)
		if i%2 == 1 {
			q = r.request("cancel_task", cancelPayload)
			q.AgentID = second.ID
		}
		got, err := r.cmds.Issue(ctx, r.by, q)
		if err != nil {
			t.Fatal(err)
		}
		all = append([]uuid.UUID{got.Command.ID}, all...)
		if i == 3 {
			r.clock.Advance(time.Second)
		}
	}
	var got []uuid.UUID
	page := agent.Page{Limit: 3}
	for range 4 {
		cmds, err := r.cmds.List(ctx, r.project.No, agent.CommandFilter{}, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cmds {
			got = append(got, c.ID)
			page.After = agent.Cursor{At: c.IssuedAt, ID: c.ID}
		}
	}
	if !slices.Equal(got, all) {
		t.Errorf("pages gave %v, want %v", got, all)
	}
	for name, tc := range map[string]struct {
		f agent.CommandFilter
		n int
	}{
		"agent":  {agent.CommandFilter{AgentID: second.ID}, 3},
		"action": {agent.CommandFilter{Action: "restart_worker"}, 4},
		"status": {agent.CommandFilter{Status: agent.Completed}, 0},
		"since":  {agent.CommandFilter{Since: rigStart.Add(time.Second)}, 3},
		"both":   {agent.CommandFilter{Since: rigStart.Add(time.Second), Action: "cancel_task", Status: agent.Pending}, 1},
	} {
		if cmds, err := r.cmds.List(ctx, r.project.No, tc.f, agent.Page{Limit: 50}); err != nil || len(cmds) != tc.n {
			t.Errorf("%s: %d commands, %v; want %d", name, len(cmds), err, tc.n)
		}
	}
	gone := agent.Page{Limit: 50, After: agent.Cursor{At: rigStart.Add(time.Second), ID: uuid.New()}}
	if cmds, err := r.cmds.List(ctx, r.project.No, agent.CommandFilter{}, gone); err != nil || len(cmds) != 4 {
		t.Errorf("after a row that is gone: %d, %v", len(cmds), err)
	}
	_, err := r.cmds.List(ctx, r.project.No, agent.CommandFilter{Status: "lost"}, agent.Page{Limit: 1})
	wantFault(t, err, fault.Invalid)
	for _, id := range all {
		ids, err := r.cmds.Resolve(ctx, r.project.No, id.String()[:11])
		if err != nil || !slices.Contains(ids, id) {
			t.Errorf("prefix of %s gave %v, %v", id, ids, err)
		}
	}
	if ids, err := r.cmds.Resolve(ctx, r.addProject("other").No, all[0].String()); err != nil || len(ids) != 0 {
		t.Errorf("another project resolved %v, %v", ids, err)
	}
	if n, err := r.cmds.Counts(ctx); err != nil || n.Pending != 7 || n.Dispatched != 0 {
		t.Errorf("counts %+v, %v", n, err)
	}
}

func TestStream(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	ctx := context.Background()
	p := r.peer(agent.WebSocket)
	first := r.issue("restart_worker", restartPayload)
	r.claimOne(p)
	r.apply(p, first.ID.String(), `{"status":"success"}`)
	second := r.issue("cancel_task", cancelPayload)
	other := r.addProject("other")
	foreign := r.addAgent(other, "a", agent.Online)
	if _, err := r.cmds.Issue(ctx, r.by, agent.IssueRequest{ProjectNo: other.No, AgentID: foreign.ID, Action: "cancel_task", Payload: []byte(cancelPayload)}); err != nil {
		t.Fatal(err)
	}
	read := func(after int64, f agent.StreamFilter, limit int) (events []string) {
		t.Helper()
		for {
			page, err := r.cmds.StreamSince(ctx, r.project.No, after, f, limit)
			if err != nil || page.Gap {
				t.Fatalf("stream after %d: gap %v, %v", after, page.Gap, err)
			}
			for _, it := range page.Items {
				events = append(events, fmt.Sprintf("%s %s", it.Command.Action, it.Transition.Event))
			}
			after = page.Next
			if !page.More {
				return events
			}
		}
	}
	want := []string{"restart_worker issued", "restart_worker claimed", "restart_worker completed", "cancel_task issued"}
	for limit := 1; limit <= 5; limit++ {
		if got := read(0, agent.StreamFilter{}, limit); !slices.Equal(got, want) {
			t.Errorf("limit %d: %v", limit, got)
		}
	}
	for name, tc := range map[string]struct {
		f    agent.StreamFilter
		want []string
	}{
		"command": {agent.StreamFilter{CommandID: second.ID}, want[3:]},
		"status":  {agent.StreamFilter{Status: agent.Completed}, want[2:3]},
		"action":  {agent.StreamFilter{Action: "restart_worker"}, want[:3]},
		"agent":   {agent.StreamFilter{AgentID: foreign.ID}, nil},
	} {
		if got := read(0, tc.f, 10); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v", name, got)
		}
	}
	b, err := r.cmds.Head(ctx, r.project.No)
	if err != nil || b.Head != 5 || b.Pruned != 0 {
		t.Errorf("bounds %+v, %v", b, err)
	}
	if got := read(b.Head, agent.StreamFilter{}, 10); len(got) != 0 {
		t.Errorf("after the head: %v", got)
	}
	if page, err := r.cmds.StreamSince(ctx, r.project.No, b.Head+1, agent.StreamFilter{}, 10); err != nil || !page.Gap || page.Next != b.Head {
		t.Errorf("beyond the head: %+v, %v", page, err)
	}
}

func TestPruneKeepsAWatermark(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	ctx := context.Background()
	const n = 520 // more than one slice
	ended := r.bulk(n, true)
	r.clock.Advance(time.Hour)
	open := r.issue("restart_worker", restartPayload)
	fresh := r.issue("restart_worker", restartPayload)
	if _, err := r.cmds.Cancel(ctx, r.by, r.project.No, fresh.ID); err != nil {
		t.Fatal(err)
	}
	cutoff := r.clock.Now()
	if removed, err := r.cmds.PruneCommands(ctx, cutoff); removed != n || err != nil {
		t.Fatalf("pruned %d, %v", removed, err)
	}
	if removed, err := r.cmds.PruneCommands(ctx, cutoff); removed != 0 || err != nil {
		t.Errorf("pruned again: %d, %v", removed, err)
	}
	if r.rows("commands") != 2 || r.rows("deliveries") != 0 || r.rows("command_transitions") != 3 {
		t.Errorf("%d commands, %d deliveries, %d transitions left", r.rows("commands"), r.rows("deliveries"), r.rows("command_transitions"))
	}
	if _, err := r.cmds.Get(ctx, r.project.No, ended.ID); !fault.Is(err, fault.NotFound) {
		t.Errorf("get of a pruned command: %v", err)
	}
	r.get(open)
	page, err := r.cmds.StreamSince(ctx, r.project.No, 7, agent.StreamFilter{}, 10)
	if err != nil || !page.Gap || len(page.Items) != 3 || page.Bounds.Pruned != 3*n || page.Items[0].Command.ID != open.ID {
		t.Errorf("stream from a pruned position: %+v, %v", page, err)
	}
	if page, err := r.cmds.StreamSince(ctx, r.project.No, 0, agent.StreamFilter{}, 10); err != nil || page.Gap || len(page.Items) != 3 {
		t.Errorf("stream from the oldest: %+v, %v", page, err)
	}
	stopped, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := r.cmds.PruneCommands(stopped, cutoff); !fault.Is(err, fault.Canceled) {
		t.Errorf("prune under an ended context: %v", err)
	}
}

func TestExplainReadsEverything(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	ctx := context.Background()
	c := r.issue("cancel_task", cancelPayload)
	p := r.peer(agent.LongPoll)
	r.claimOne(p)
	r.presence.set(r.agent.ID, agent.SessionInfo{Transport: agent.LongPoll, Session: p.Session, Polling: true})
	e, err := r.cmds.Explain(ctx, r.project.No, c.ID)
	if err != nil || e.WaitingFor != agent.WaitsForAck || len(e.Deliveries) != 1 || len(e.Timeline) != 2 || len(e.Candidates) != 1 {
		t.Fatalf("%+v, %v", e, err)
	}
	if e.Next.At == nil || !e.Next.At.Equal(rigStart.Add(10*time.Second)) {
		t.Errorf("next %+v", e.Next)
	}
	_, err = r.cmds.Explain(ctx, r.project.No, uuid.New())
	wantFault(t, err, fault.NotFound)
}
