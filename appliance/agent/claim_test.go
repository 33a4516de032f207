package agent_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/store"
)

func TestCommandLifeOverASocket(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	p := r.peer(agent.WebSocket)
	c := r.issue("restart_worker", restartPayload)
	r.clock.Advance(time.Second)
	cl := r.claimOne(p)
	if cl.Command.ID != c.ID || cl.TimeoutSeconds != 60 || !cl.Command.TimeoutAt.Equal(r.clock.Now().Add(time.Minute)) {
		t.Errorf("claimed %+v", cl)
	}
	if got := r.claim(p, 10); len(got.Claimed) != 0 {
		t.Error("claimed twice")
	}
	if err := r.cmds.MarkSent(context.Background(), cl.DeliveryNo); err != nil {
		t.Fatal(err)
	}
	r.clock.Advance(time.Second)
	r.apply(p, c.ID.String(), "")
	r.apply(p, c.ID.String(), "")
	r.clock.Advance(time.Second)
	r.apply(p, c.ID.String(), `{"status":"success","result":{"n": 1.0},"error":null}`)
	got := r.get(c)
	if got.Status != agent.Completed || string(got.Result) != `{"n": 1.0}` || !got.AckedAt.Equal(rigStart.Add(2*time.Second)) || !got.CompletedAt.Equal(rigStart.Add(3*time.Second)) {
		t.Errorf("ended as %+v", got)
	}
	if ev := r.events(c); !slices.Equal(ev, []string{"issued", "claimed", "acked", "completed"}) {
		t.Errorf("timeline %v", ev)
	}
	ds, err := r.cmds.Deliveries(context.Background(), r.project.No, c.ID)
	if err != nil || len(ds) != 1 {
		t.Fatalf("ledger %+v, %v", ds, err)
	}
	if d := ds[0]; d.Outcome != agent.DeliverySuccess || d.Session != p.Session || d.SentAt == nil || d.AckedAt == nil || d.FinishedAt == nil {
		t.Errorf("delivery %+v", d)
	}
	if got := r.audits(); !slices.Equal(got, []string{"command.issue.restart_worker", "command.completed"}) {
		t.Errorf("audited %v", got)
	}
	if r.counts.claimed != 1 || r.counts.ended[agent.Completed] != 1 || r.counts.issued != 1 {
		t.Errorf("counted %+v", r.counts)
	}
}

func TestNothingPendingWritesNothing(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	before := r.st.writes()
	for _, tr := range []agent.Transport{agent.WebSocket, agent.LongPoll} {
		res := r.claim(r.peer(tr), 50, "celery")
		if len(res.Claimed) != 0 || res.NextDue != nil || res.Revoked || res.Archived {
			t.Errorf("%s: %+v", tr, res)
		}
	}
	if n := r.st.writes() - before; n != 0 {
		t.Errorf("%d write transactions", n)
	}
	if res := r.claim(r.peer(agent.LongPoll), 0); len(res.Claimed) != 0 {
		t.Errorf("a limit of 0 claimed %d", len(res.Claimed))
	}
}

func TestOrderAndLimit(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	var want []uuid.UUID
	for i := range 5 {
		want = append(want, r.issue("restart_worker", restartPayload).ID)
		if i%2 == 0 {
			r.clock.Advance(time.Millisecond)
		}
	}
	var got []uuid.UUID
	for _, tr := range []agent.Transport{agent.WebSocket, agent.LongPoll, agent.WebSocket} {
		for _, cl := range r.claim(r.peer(tr), 2).Claimed {
			got = append(got, cl.Command.ID)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("took %v, want %v", got, want)
	}
}

func TestLostResponseIsSentAgain(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	p := r.peer(agent.LongPoll)
	c := r.issue("cancel_task", cancelPayload)
	once := r.issue("restart_worker", restartPayload)
	if n := len(r.claim(p, 10).Claimed); n != 2 {
		t.Fatalf("claimed %d", n)
	}
	deadline := r.get(c).TimeoutAt
	res := r.claim(p, 10)
	if len(res.Claimed) != 0 || res.NextDue == nil || !res.NextDue.Equal(rigStart.Add(10*time.Second)) {
		t.Fatalf("at once: %+v", res)
	}
	r.clock.Advance(10*time.Second - time.Microsecond)
	if res := r.claim(p, 10); len(res.Claimed) != 0 {
		t.Error("sent again before the interval")
	}
	r.clock.Advance(time.Microsecond)
	if res := r.claim(r.peer(agent.WebSocket), 10); len(res.Claimed) != 0 || res.NextDue != nil {
		t.Errorf("a socket got it: %+v", res)
	}
	cl := r.claimOne(p)
	if cl.Command.ID != c.ID || !cl.Command.TimeoutAt.Equal(deadline) || !cl.Command.DispatchedAt.Equal(r.clock.Now()) {
		t.Errorf("sent again as %+v", cl.Command)
	}
	if res := r.claim(p, 10); res.NextDue == nil || !res.NextDue.Equal(r.clock.Now().Add(10*time.Second)) {
		t.Errorf("next due %v", res.NextDue)
	}
	r.clock.Advance(45 * time.Second) // 5 s to the deadline: at 55 s it is due once more, afterwards never
	if cl := r.claimOne(p); cl.Command.ID != c.ID {
		t.Errorf("took %s", cl.Command.ID)
	}
	if res := r.claim(p, 10); res.NextDue != nil {
		t.Errorf("due after the deadline: %v", res.NextDue)
	}
	if got := r.outcomes(c); !slices.Equal(got, []agent.DeliveryOutcome{"superseded", "superseded", "in_flight"}) {
		t.Errorf("ledger %v", got)
	}
	if got := r.events(c); !slices.Equal(got, []string{"issued", "claimed", "redelivered", "redelivered"}) {
		t.Errorf("timeline %v", got)
	}
	if got := r.outcomes(once); len(got) != 1 {
		t.Errorf("at-most-once was handed over %d times", len(got))
	}
	if r.counts.redelivered != 2 {
		t.Errorf("counted %d redeliveries", r.counts.redelivered)
	}
}

func TestWindowEndsRedelivery(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	p := r.peer(agent.LongPoll)
	c := r.issue("cancel_task", cancelPayload)
	r.claimOne(p)
	r.setup(func(tx *store.Tx) error { // a long timeout: the window decides
		_, err := tx.Exec(`UPDATE commands SET timeout_at = ? WHERE command_no = ?`, rigStart.Add(time.Hour), c.No)
		return err
	})
	r.clock.Advance(time.Minute + time.Microsecond)
	if res := r.claim(p, 10); len(res.Claimed) != 0 || res.NextDue != nil {
		t.Errorf("beyond the window: %+v", res)
	}
}

func TestRetryFamilyNeedsTheContract(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	retry := r.issue("retry_task", cancelPayload)
	bulk := r.issue("bulk_retry", `{"filter":{"engine":"rq","state":"failure"}}`)
	for _, tr := range []agent.Transport{agent.WebSocket, agent.LongPoll} {
		if res := r.claim(r.peer(tr), 10); len(res.Claimed) != 0 {
			t.Errorf("%s without contracts took %d", tr, len(res.Claimed))
		}
		if res := r.claim(r.peer(tr), 10, "dramatiq", `odd"name`); len(res.Claimed) != 0 {
			t.Errorf("%s with other contracts took %d", tr, len(res.Claimed))
		}
	}
	if res := r.claim(r.peer(agent.LongPoll), 10, "celery"); len(res.Claimed) != 1 || res.Claimed[0].Command.ID != retry.ID {
		t.Errorf("celery took %+v", res.Claimed)
	}
	if res := r.claim(r.peer(agent.WebSocket), 10, "celery", "rq"); len(res.Claimed) != 1 || res.Claimed[0].Command.ID != bulk.ID {
		t.Errorf("rq took %+v", res.Claimed)
	}
}

func TestRevokeAndArchiveStopClaims(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	stop := map[string]func(tx *store.Tx) error{
		"revoked": func(tx *store.Tx) error { _, err := tx.RevokeAgent(r.agent.No); return err },
		"archived": func(tx *store.Tx) error {
			_, err := tx.Exec(`UPDATE projects SET is_active = 0 WHERE project_no = ?`, r.project.No)
			return err
		},
	}
	for name, act := range stop {
		for _, tr := range []agent.Transport{agent.WebSocket, agent.LongPoll} {
			for _, claimsBefore := range []int{-1, 0, 1} { // -1: before the pass
				t.Run(fmt.Sprintf("%s %s after %d", name, tr, claimsBefore), func(t *testing.T) {
					r.agent = r.addAgent(r.project, t.Name(), agent.Online)
					a, b := r.issue("restart_worker", restartPayload), r.issue("restart_worker", restartPayload)
					seen := 0
					if claimsBefore < 0 {
						r.setup(func(tx *store.Tx) error { return act(tx) })
					} else {
						r.st.before = func(string) {
							if seen == claimsBefore {
								r.setup(func(tx *store.Tx) error { return act(tx) })
							}
							seen++
						}
					}
					res := r.claim(r.peer(tr), 10)
					r.st.before = nil
					wantClaimed := 0
					if claimsBefore == 1 {
						wantClaimed = 1
						if tr == agent.WebSocket { // one transaction for all: the change comes after it
							wantClaimed = 2
						}
					}
					if len(res.Claimed) != wantClaimed {
						t.Fatalf("claimed %d, want %d", len(res.Claimed), wantClaimed)
					}
					if wantClaimed < 2 && (res.Revoked != (name == "revoked") || res.Archived != (name == "archived")) {
						t.Errorf("result %+v", res)
					}
					if wantClaimed < 2 && r.get(b).Status != agent.Pending {
						t.Errorf("the second command is %s", r.get(b).Status)
					}
					if wantClaimed == 0 && r.get(a).Status != agent.Pending {
						t.Errorf("the first command is %s", r.get(a).Status)
					}
					r.setup(func(tx *store.Tx) error {
						_, err := tx.Exec(`UPDATE projects SET is_active = 1`)
						return err
					})
				})
			}
		}
	}
}

func TestLoserOfARaceLooksAgain(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	c := r.issue("cancel_task", cancelPayload)
	stolen := false
	r.st.before = func(op string) {
		if op == "claim command" && !stolen {
			stolen = true
			r.claimOne(r.peer(agent.WebSocket))
		}
	}
	res := r.claim(r.peer(agent.LongPoll), 10)
	if len(res.Claimed) != 0 || res.NextDue == nil || !res.NextDue.Equal(rigStart.Add(10*time.Second)) {
		t.Errorf("the loser got %+v", res)
	}
	if got := r.outcomes(c); len(got) != 1 {
		t.Errorf("ledger %v", got)
	}
}

func TestFailedSend(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	r := newCommandRig(t)
	t.Run("redeliverable goes back", func(t *testing.T) {
		r.agent = r.addAgent(r.project, t.Name(), agent.Online)
		c := r.issue("cancel_task", cancelPayload)
		cl := r.claimOne(r.peer(agent.WebSocket))
		w := r.hub.Watch(agent.AgentKey(r.agent.No))
		defer w.Stop()
		r.clock.Advance(5 * time.Second)
		for range 2 { // the second report of one failure changes nothing
			if err := r.cmds.SendFailed(ctx, cl, "broken pipe"); err != nil {
				t.Fatal(err)
			}
		}
		got := r.get(c)
		if got.Status != agent.Pending || got.DispatchedAt != nil || !got.TimeoutAt.Equal(r.clock.Now().Add(time.Minute)) || !hinted(w) {
			t.Errorf("after a failed send: %+v", got)
		}
		r.claimOne(r.peer(agent.LongPoll))
		if ev := r.events(c); !slices.Equal(ev, []string{"issued", "claimed", "reverted", "claimed"}) {
			t.Errorf("timeline %v", ev)
		}
		if o := r.outcomes(c); !slices.Equal(o, []agent.DeliveryOutcome{"send_failed", "in_flight"}) {
			t.Errorf("ledger %v", o)
		}
	})
	t.Run("at-most-once stays", func(t *testing.T) {
		r.agent = r.addAgent(r.project, t.Name(), agent.Online)
		c := r.issue("restart_worker", restartPayload)
		cl := r.claimOne(r.peer(agent.WebSocket))
		if err := r.cmds.SendFailed(ctx, cl, "broken pipe"); err != nil {
			t.Fatal(err)
		}
		if got := r.get(c); got.Status != agent.Dispatched {
			t.Errorf("status %s", got.Status)
		}
		if o := r.outcomes(c); !slices.Equal(o, []agent.DeliveryOutcome{"send_failed"}) {
			t.Errorf("ledger %v", o)
		}
	})
	t.Run("acked all the same", func(t *testing.T) {
		r.agent = r.addAgent(r.project, t.Name(), agent.Online)
		p := r.peer(agent.WebSocket)
		c := r.issue("cancel_task", cancelPayload)
		cl := r.claimOne(p)
		r.apply(p, c.ID.String(), "")
		if err := r.cmds.SendFailed(ctx, cl, "broken pipe"); err != nil {
			t.Fatal(err)
		}
		if got := r.get(c); got.Status != agent.Dispatched {
			t.Errorf("status %s", got.Status)
		}
	})
	t.Run("timed out meanwhile", func(t *testing.T) {
		r.agent = r.addAgent(r.project, t.Name(), agent.Online)
		c := r.issue("cancel_task", cancelPayload)
		cl := r.claimOne(r.peer(agent.WebSocket))
		r.clock.Advance(2 * time.Minute)
		if _, err := r.cmds.SweepTimeouts(ctx); err != nil {
			t.Fatal(err)
		}
		if err := r.cmds.SendFailed(ctx, cl, "broken pipe"); err != nil {
			t.Fatal(err)
		}
		if got := r.get(c); got.Status != agent.Pending || got.Error != nil || got.CompletedAt != nil {
			t.Errorf("after: %+v", got)
		}
	})
	t.Run("old attempt", func(t *testing.T) {
		r.agent = r.addAgent(r.project, t.Name(), agent.Online)
		p := r.peer(agent.LongPoll)
		c := r.issue("cancel_task", cancelPayload)
		old := r.claimOne(p)
		r.clock.Advance(10 * time.Second)
		r.claimOne(p)
		if err := r.cmds.SendFailed(ctx, old, "broken pipe"); err != nil {
			t.Fatal(err)
		}
		if got := r.get(c); got.Status != agent.Dispatched {
			t.Errorf("an old attempt put the command back: %s", got.Status)
		}
		if o := r.outcomes(c); !slices.Equal(o, []agent.DeliveryOutcome{"superseded", "in_flight"}) {
			t.Errorf("ledger %v", o)
		}
	})
}

func TestFailedSignature(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	for tr, text := range map[agent.Transport]string{agent.LongPoll: "longpoll sign failed", agent.WebSocket: "ws sign failed"} {
		audits := len(r.audits())
		c := r.issue("cancel_task", cancelPayload)
		cl := r.claimOne(r.peer(tr))
		for range 2 {
			if err := r.cmds.SignFailed(context.Background(), cl); err != nil {
				t.Fatal(err)
			}
		}
		if got := r.get(c); got.Status != agent.Failed || *got.Error != text {
			t.Errorf("%s: %+v", tr, got)
		}
		if o := r.outcomes(c); !slices.Equal(o, []agent.DeliveryOutcome{"sign_failed"}) {
			t.Errorf("%s: ledger %v", tr, o)
		}
		if got := r.audits()[audits:]; !slices.Equal(got, []string{"command.issue.cancel_task", "command.failed"}) {
			t.Errorf("%s: audited %v", tr, got)
		}
	}
}

func TestOneCallTakesBoundedBytes(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	for _, tr := range []agent.Transport{agent.WebSocket, agent.LongPoll} {
		r.setup(func(tx *store.Tx) error {
			for range 4 {
				_, err := tx.InsertCommand(agent.Command{ID: uuid.New(), ProjectNo: r.project.No, AgentNo: r.agent.No, Action: "restart_worker",
					TargetType: "worker", Payload: []byte(`{"x":"` + strings.Repeat("x", 3<<20) + `"}`), Status: agent.Pending,
					IssuedAt: tx.Now(), TimeoutAt: tx.Now().Add(time.Minute)})
				if err != nil {
					return err
				}
			}
			return nil
		})
		for _, want := range []int{3, 1, 0} {
			if got := len(r.claim(r.peer(tr), 500).Claimed); got != want {
				t.Errorf("%s: took %d, want %d", tr, got, want)
			}
		}
	}
}

func TestStoppedSessionTakesNothing(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	for range 2 {
		r.issue("restart_worker", restartPayload)
	}
	stop := make(chan struct{})
	seen := 0
	r.st.before = func(string) {
		if seen++; seen == 1 {
			close(stop)
		}
	}
	res, err := r.cmds.ClaimPending(context.Background(), r.peer(agent.LongPoll), agent.ClaimRequest{Limit: 10, Stop: stop})
	if err != nil || len(res.Claimed) != 1 { // the claim under way is kept, the next is not begun
		t.Errorf("took %d, %v", len(res.Claimed), err)
	}
}

func TestManyClaimersTakeEachCommandOnce(t *testing.T) {
	t.Parallel()
	r := newCommandRig(t)
	const commands, claimers = 120, 8
	for range commands {
		r.issue("cancel_task", cancelPayload)
	}
	var mu sync.Mutex
	taken := map[uuid.UUID]int{}
	var wg sync.WaitGroup
	for i := range claimers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			p := r.peer([]agent.Transport{agent.WebSocket, agent.LongPoll}[i%2])
			p.Session = fmt.Sprint(i)
			for {
				res, err := r.cmds.ClaimPending(context.Background(), p, agent.ClaimRequest{Limit: 7, Redispatch: p.Transport == agent.LongPoll})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, cl := range res.Claimed {
					taken[cl.Command.ID]++
				}
				done := len(taken) == commands
				mu.Unlock()
				if done {
					return
				}
			}
		}()
	}
	wg.Wait()
	for id, n := range taken {
		if n != 1 {
			t.Errorf("command %s was claimed %d times", id, n)
		}
	}
	if d, tr := r.rows("deliveries"), r.rows("command_transitions"); d != commands || tr != 2*commands {
		t.Errorf("%d ledger rows and %d transitions for %d commands", d, tr, commands)
	}
}
