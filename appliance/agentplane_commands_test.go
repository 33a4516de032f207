package appliance_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/config"
	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

// Agent protocol E.3, E.4: issue, frame, ack, result over WebSocket; what comes late or from others changes nothing.
func TestCommandOverWebSocket(t *testing.T) {
	s := appliancetest.Start(t)
	m, other := s.Mint("a"), s.Mint("b")
	ws, foreign := dial(t, m.Config), dial(t, other.Config)
	issued := s.Issue(m, "cancel-task", cancelFields("t-1"))
	got := command(t, ws)
	if got.ID != issued.ID || got.Action != "cancel_task" || got.TimeoutSeconds != 60 || got.ClaimToken != nil || got.IssuedBy == nil ||
		string(got.Target) != `{"engine":"celery","id":"celery:t-1","type":"task"}` || string(got.Parameters) != `{"engine":"celery","task_id":"t-1"}` {
		t.Errorf("command %+v", got)
	}
	if c := s.Command(m, issued.ID); c.Status != "dispatched" || c.DispatchedAt == nil {
		t.Errorf("command is %s", c.Status)
	}
	success := agentclient.ResultPayload(true, `{"revoked":true}`, "")
	answer(t, foreign, wire.TypeCommandResult, issued.ID, success)
	answer(t, foreign, wire.TypeCommandAck, issued.ID, agentclient.AckPayload)
	answer(t, ws, wire.TypeCommandResult, uuid.NewString(), success)
	answer(t, ws, wire.TypeCommandAck, "not a uuid", agentclient.AckPayload)
	if c := s.Command(m, issued.ID); c.Status != "dispatched" {
		t.Errorf("command is %s by the answers of others", c.Status)
	}
	answer(t, ws, wire.TypeCommandAck, issued.ID, agentclient.AckPayload)
	if d := s.Deliveries(m, issued.ID); len(d) != 1 || d[0].Outcome != "acked" || d[0].Transport != "ws" || d[0].SessionID != ws.SessionID {
		t.Errorf("ledger %+v", d)
	}
	answer(t, ws, wire.TypeCommandResult, issued.ID, success)
	if c := s.Command(m, issued.ID); c.Status != "completed" || string(c.Result) != `{"revoked":true}` {
		t.Errorf("command is %s with %s", c.Status, c.Result)
	}
	before := s.State()
	answer(t, ws, wire.TypeCommandResult, issued.ID, agentclient.ResultPayload(false, "", "again"))
	answer(t, ws, wire.TypeCommandAck, issued.ID, agentclient.AckPayload)
	s.Unchanged(before)
	if n := s.Metric(`z4j_command_late_results_total{status="completed"}`); n != 1 {
		t.Errorf("%v late results", n)
	}
	failing := s.Issue(m, "restart-worker", restartFields())
	command(t, ws)
	answer(t, ws, wire.TypeCommandResult, failing.ID, agentclient.ResultPayload(false, "", strings.Repeat("é", 5000)))
	if c := s.Command(m, failing.ID); c.Status != "failed" || c.Error == nil || *c.Error != strings.Repeat("é", 1024) {
		t.Errorf("command is %s", c.Status)
	}
	for action, n := range map[string]int{"command.issue.cancel_task": 1, "command.completed": 1, "command.failed": 1} {
		if got := s.Count("SELECT count(*) FROM audit_log WHERE action = ?", action); got != n {
			t.Errorf("%d audit rows of %s, want %d", got, action, n)
		}
	}
}

// Agent protocol B.5: one session gets a command, the newest; when it has gone, the next newest.
func TestNewestSessionGetsTheCommand(t *testing.T) {
	s := appliancetest.Start(t)
	m := s.Mint("a")
	worker := func(id string) *agentclient.WS {
		return dial(t, s.With(m, func(c *agentclient.Config) { c.WorkerID = id }))
	}
	one, two, three := worker("w1"), worker("w2"), worker("w3")
	settle(t, three) // registered
	first := s.Issue(m, "restart-worker", restartFields())
	if got := command(t, three); got.ID != first.ID {
		t.Errorf("got %s", got.ID)
	}
	must(t, three.Close())
	s.Eventually("the slot going offline", func() bool { return s.Count("SELECT count(*) FROM agent_workers WHERE state = 'online'") == 2 })
	second := s.Issue(m, "restart-worker", restartFields())
	if got := command(t, two); got.ID != second.ID {
		t.Errorf("got %s", got.ID)
	}
	settle(t, one) // nothing but the acknowledgement comes
	if d := s.Deliveries(m, second.ID); len(d) != 1 || d[0].WorkerID == nil || *d[0].WorkerID != "w2" {
		t.Errorf("ledger %+v", d)
	}
}

// Agent protocol B.5, E.6: the retry family goes only to a session whose hello listed the contract for the engine, also
// when a newer one did not.
func TestRetryGoesToASessionThatStatesTheContract(t *testing.T) {
	s := appliancetest.Start(t)
	m := s.Mint("a")
	retry, plain := s.Issue(m, "retry-task", retryFields("celery")), s.Issue(m, "restart-worker", restartFields())
	stated := s.With(m, func(c *agentclient.Config) {
		c.WorkerID, c.Engines = "w1", []string{"celery"}
		c.Capabilities = map[string][]string{"celery": {"retry_task", "retry_by_reference_v1"}}
	})
	mute := s.With(m, func(c *agentclient.Config) {
		c.WorkerID, c.Engines = "w2", []string{"celery", "rq"}
		c.Capabilities = map[string][]string{"celery": {"retry_task"}, "rq": {"retry_task", "retry_by_reference_v1"}}
	})
	newer := dial(t, mute)
	if got := command(t, newer); got.ID != plain.ID {
		t.Fatalf("the session without the contract got %s", got.Action)
	}
	settle(t, newer)
	if c := s.Command(m, retry.ID); c.Status != "pending" {
		t.Errorf("retry is %s", c.Status)
	}
	able := dial(t, stated)
	if got := command(t, able); got.ID != retry.ID {
		t.Errorf("got %s", got.Action)
	}
	// The session without the contract is the newest again, and its hello says what the agent reports.
	again := dial(t, s.With(m, func(c *agentclient.Config) {
		c.WorkerID, c.Engines = "w3", []string{"celery"}
		c.Capabilities = map[string][]string{"celery": {"retry_task", "cancel_task"}}
	}))
	settle(t, again)
	if status, body := s.Admin("POST", "/projects/default/commands/retry-task", withAgent(m, retryFields("celery"))); status != 422 {
		t.Errorf("answered %d %s", status, body)
	}
	cancelled := s.Issue(m, "cancel-task", cancelFields("t"))
	if got := command(t, again); got.ID != cancelled.ID {
		t.Errorf("got %s", got.Action)
	}
}

func withAgent(m *appliancetest.Minted, fields map[string]any) map[string]any {
	body := map[string]any{"agent_id": m.ID.String()}
	for k, v := range fields {
		body[k] = v
	}
	return body
}

// Agent protocol B.2 step 17: what waits is drained on connect, in the order of issue, in more than one transaction.
func TestPendingCommandsAreDrainedOnConnect(t *testing.T) {
	s := appliancetest.Start(t, frozen(), configure(func(c *config.Config) { c.Agent.CommandTimeout = config.Duration(time.Hour) }))
	m := s.Mint("a")
	var ids []string
	for i := range 103 {
		c := s.Issue(m, "cancel-task", cancelFields(fmt.Sprint("t-", i)))
		if c.Status != "pending" {
			t.Fatalf("command is %s", c.Status)
		}
		ids = append(ids, c.ID)
		s.Clock.Advance(time.Microsecond)
	}
	ws := dial(t, m.Config)
	for i, id := range ids {
		if got := command(t, ws); got.ID != id {
			t.Fatalf("command %d is %s, want %s", i, got.ID, id)
		}
	}
	settle(t, ws)
}

// Agent protocol E.6: when the socket dies before the ack, what may be handed over again is, at the next connect; what
// may not stays dispatched until its deadline.
func TestSocketDiesBeforeTheAck(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m := s.Mint("a")
	ws := dial(t, m.Config)
	safe, acked, once := s.Issue(m, "cancel-task", cancelFields("t-1")), s.Issue(m, "cancel-task", cancelFields("t-2")), s.Issue(m, "restart-worker", restartFields())
	for range 3 {
		command(t, ws)
	}
	answer(t, ws, wire.TypeCommandAck, acked.ID, agentclient.AckPayload)
	must(t, ws.Abort())
	s.Eventually("the revert", func() bool { return s.Command(m, safe.ID).Status == "pending" })
	for _, c := range []appliancetest.Command{acked, once} {
		if got := s.Command(m, c.ID); got.Status != "dispatched" {
			t.Errorf("%s is %s", got.Action, got.Status)
		}
	}
	ws = dial(t, m.Config)
	if got := command(t, ws); got.ID != safe.ID {
		t.Errorf("got %s", got.ID)
	}
	settle(t, ws)
	if d := s.Deliveries(m, safe.ID); len(d) != 2 || d[0].Outcome != "send_failed" || d[0].Reason == nil || d[1].Attempt != 2 {
		t.Errorf("ledger %+v", d)
	}
	answer(t, ws, wire.TypeCommandResult, safe.ID, agentclient.ResultPayload(true, "", ""))
	must(t, ws.Close())
	s.Pump(time.Second, "the deadline", func(wait <-chan time.Time) bool {
		<-wait
		return s.Command(m, once.ID).Status == "timeout"
	})
	if c := s.Command(m, once.ID); c.Error == nil || *c.Error != "command timed out before agent responded" {
		t.Errorf("error %v", c.Error)
	}
	if d := s.Deliveries(m, once.ID); len(d) != 1 {
		t.Errorf("ledger %+v", d)
	}
	if c := s.Command(m, safe.ID); c.Status != "completed" {
		t.Errorf("the redelivered command is %s", c.Status)
	}
}

// Agent protocol D.2: acks and results come once over WebSocket, so storing them is tried again.
func TestResultOutlivesDatabaseTrouble(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m := s.Mint("a")
	ws := dial(t, m.Config)
	issued := s.Issue(m, "restart-worker", restartFields())
	command(t, ws)
	s.Eventually("the delivery being stamped", func() bool { return s.Count("SELECT count(*) FROM deliveries WHERE sent_at IS NOT NULL") == 1 })
	failed := s.Faults.Failed("dispatch frames")
	s.Faults.FailCommits(appliancetest.ErrDatabase)
	must(t, ws.SendJSON(wire.TypeCommandResult, issued.ID, agentclient.ResultPayload(true, `{"n":1}`, "")))
	for attempt := 1; attempt <= 2; attempt++ {
		s.Pump(50*time.Millisecond, "another attempt", func(wait <-chan time.Time) bool {
			<-wait
			return s.Faults.Failed("dispatch frames") >= failed+attempt
		})
	}
	s.Faults.FailCommits(nil)
	s.Pump(50*time.Millisecond, "the result", func(wait <-chan time.Time) bool {
		<-wait
		return s.Command(m, issued.ID).Status == "completed"
	})
	settle(t, ws)
}

// Agent protocol F.6: of two concurrent polls only one gets a command; the other one still waits.
func TestOneOfTwoPollsGetsTheCommand(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m := s.Mint("a")
	one, two := openLP(t, m.Config), openLP(t, m.Config)
	online(t, one)
	for i := range 3 {
		a, b := park(t, s, one, 30*time.Second, 50), park(t, s, two, 30*time.Second, 50)
		issued := s.Issue(m, "restart-worker", restartFields())
		var won polled
		rest := a
		select {
		case won = <-a:
			rest = b
		case won = <-b:
		}
		wantCommands(t, won.commands, won.err, issued.ID)
		if d := s.Deliveries(m, issued.ID); len(d) != 1 || d[0].Transport != "longpoll" {
			t.Errorf("round %d: ledger %+v", i, d)
		}
		next := s.Issue(m, "restart-worker", restartFields())
		p := ended(t, rest)
		if p.err == nil && len(p.commands) == 0 { // a lost pass may end the poll empty
			continue
		}
		wantCommands(t, p.commands, p.err, next.ID)
	}
}

// A parked poll asks the database nothing until the commit of a command wakes it: one look finds it.
func TestParkedPollIsWokenByTheCommit(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m, other := s.Mint("a"), s.Mint("b")
	lp, elsewhere := openLP(t, m.Config), openLP(t, other.Config)
	online(t, lp)
	done, bystander := park(t, s, lp, 60*time.Second, 50), park(t, s, elsewhere, 60*time.Second, 50)
	looks := s.Faults.Reads(appliancetest.Look)
	for range 100 {
		s.Clock.Advance(250 * time.Millisecond)
	}
	issued := s.Issue(m, "restart-worker", restartFields())
	p := ended(t, done)
	wantCommands(t, p.commands, p.err, issued.ID)
	if n := s.Faults.Reads(appliancetest.Look) - looks; n != 1 {
		t.Errorf("%d looks for one command, want 1", n)
	}
	select {
	case p := <-bystander:
		t.Errorf("another agent's poll ended: %+v", p)
	default:
	}
	s.Revoke(other) // ends it
	wantStatus(t, ended(t, bystander).err, 401)
}

// An agent on both transports gets each command once.
func TestBothTransportsShareTheCommands(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m := s.Mint("a")
	lp, ws := openLP(t, m.Config), dial(t, m.Config)
	settle(t, ws)
	got := map[string]bool{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := park(t, s, lp, 60*time.Second, 1)
	first := s.Issue(m, "restart-worker", restartFields())
	fromSocket := make(chan string, 1)
	go func() {
		f, err := ws.Receive()
		if err == nil {
			fromSocket <- f.ID
			f.Release()
		}
	}()
	select {
	case p := <-done:
		wantCommands(t, p.commands, p.err, first.ID)
		got[p.commands[0].ID] = true
		second := s.Issue(m, "restart-worker", restartFields())
		select {
		case id := <-fromSocket:
			if id != second.ID {
				t.Errorf("got %s again", id)
			}
		case <-time.After(appliancetest.Wait):
			t.Error("the socket gets nothing")
		}
	case id := <-fromSocket:
		if id != first.ID {
			t.Errorf("got %s", id)
		}
	case <-ctx.Done():
	}
	if d := s.Deliveries(m, first.ID); len(d) != 1 {
		t.Errorf("ledger %+v", d)
	}
	s.Revoke(m)
}

// A session that is closing takes nothing; the next newest stands in for it at once.
func TestClosingSessionIsPassedOver(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m := s.Mint("a")
	worker := func(id string) *agentclient.WS {
		return dial(t, s.With(m, func(c *agentclient.Config) { c.WorkerID = id }))
	}
	older, newest := worker("w1"), worker("w2")
	settle(t, older)
	newest.Conn().SetCloseHandler(func(int, string) error { return nil }) // it never answers the close frame
	must(t, newest.SendRaw([]byte("not a frame")))
	if code := closed(t, newest); code != 4400 {
		t.Fatalf("closed with %d", code)
	}
	for _, route := range []string{"cancel-task", "restart-worker"} {
		fields := restartFields()
		if route == "cancel-task" {
			fields = cancelFields("t")
		}
		issued := s.Issue(m, route, fields)
		if got := command(t, older); got.ID != issued.ID {
			t.Errorf("got %s", got.ID)
		}
	}
	s.Revoke(m)
	if code := closed(t, older); code != 4003 {
		t.Errorf("closed with %d", code)
	}
}

// A replaced connection gives back what its agent did not acknowledge, and its successor gets it.
func TestReplacementTakesOverUnacknowledgedCommands(t *testing.T) {
	s := appliancetest.Start(t)
	m := s.Mint("a")
	first := dial(t, m.Config)
	safe, once := s.Issue(m, "cancel-task", cancelFields("t")), s.Issue(m, "restart-worker", restartFields())
	command(t, first)
	command(t, first)
	second := dial(t, m.Config)
	if code := closed(t, first); code != 4002 {
		t.Fatalf("closed with %d", code)
	}
	if got := command(t, second); got.ID != safe.ID {
		t.Errorf("got %s", got.ID)
	}
	answer(t, second, wire.TypeCommandResult, once.ID, agentclient.ResultPayload(true, "", "")) // any session may answer
	answer(t, second, wire.TypeCommandResult, safe.ID, agentclient.ResultPayload(true, "", ""))
	for _, c := range []appliancetest.Command{safe, once} {
		if got := s.Command(m, c.ID); got.Status != "completed" {
			t.Errorf("%s is %s", got.Action, got.Status)
		}
	}
}

// Agent protocol E.3: a command ends when its deadline has passed, not before, and the sweep sleeps until then.
func TestDeadlineIsExact(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m := s.Mint("a")
	online(t, openLP(t, m.Config))
	issued := s.Issue(m, "cancel-task", cancelFields("t"))
	status := func() string { return s.Text("SELECT status FROM commands") }
	sweeps := s.Faults.Reads(appliancetest.Sweep)
	s.Clock.Advance(60 * time.Second)
	for range 50 { // time for a sweep that does not sleep
		if got := status(); got != "pending" {
			t.Fatalf("command is %s at its deadline", got)
		}
	}
	if n := s.Faults.Reads(appliancetest.Sweep) - sweeps; n > 4 {
		t.Errorf("%d sweeps while the clock stands at the deadline", n)
	}
	// The steps are so small that the interval of the sweep would not end within the wait.
	s.Pump(time.Microsecond, "the time-out", func(wait <-chan time.Time) bool {
		<-wait
		return status() == "timeout"
	})
	if c := s.Command(m, issued.ID); c.Error == nil || *c.Error != "command timed out before agent responded" {
		t.Errorf("command %+v", c)
	}
}

// A command that timed out stays so when the session it was given to ends later: what an operator was told is over is
// not executed after that.
func TestTimedOutCommandIsNotRevivedByTheEndOfItsSession(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m := s.Mint("a")
	ws := dial(t, m.Config)
	issued := s.Issue(m, "cancel-task", cancelFields("t"))
	command(t, ws) // never acknowledged
	settle(t, ws)
	s.Pump(time.Second, "the deadline", func(wait <-chan time.Time) bool {
		<-wait
		return s.Command(m, issued.ID).Status == "timeout"
	})
	must(t, ws.Abort())
	s.Eventually("the end of the session", func() bool {
		return s.Metric("z4j_ws_connections") == 0 && s.Metric(`signalbox_sessions{kind="agent"}`) == 0
	})
	if c := s.Command(m, issued.ID); c.Status != "timeout" {
		t.Errorf("command is %s", c.Status)
	}
	again := dial(t, m.Config)
	settle(t, again) // nothing but the acknowledgement comes
}
