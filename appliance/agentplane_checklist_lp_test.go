package appliance_test

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/config"
	"signalbox/appliance/secret"
	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

// Checklist 8: the probe answers at once, claims nothing, and says who the agent is.
func TestProbe(t *testing.T) {
	s := appliancetest.Start(t)
	m := s.Mint("a")
	lp := openLP(t, m.Config)
	online(t, lp)
	issued := s.Issue(m, "cancel-task", cancelFields("t-1"))
	r := request(t, s, "GET", commandsPath+"?wait=60&max_frames=0", "", "Authorization", bearer(m), noncePath, "fresh")
	if r.status != 200 || strings.TrimSpace(string(r.body)) != `{"frames":[]}` {
		t.Fatalf("answered %d %s", r.status, r.body)
	}
	if r.header.Get("X-Z4J-Agent-Id") != m.ID.String() || r.header.Get("X-Z4J-Project-Id") != lp.ProjectID.String() {
		t.Errorf("identity %s", r.header)
	}
	if pid, err := strconv.Atoi(r.header.Get("X-Z4J-LongPoll-Worker")); err != nil || pid < 1 {
		t.Errorf("worker header %q", r.header.Get("X-Z4J-LongPoll-Worker"))
	}
	if c := s.Command(m, issued.ID); c.Status != "pending" {
		t.Errorf("the probe claimed: %s", c.Status)
	}
	// Not a hello: no slot, no inventory (agent protocol F).
	if n := s.Count("SELECT count(*) FROM agent_workers") + s.Count("SELECT count(*) FROM agents WHERE last_connect_at IS NOT NULL OR engine_adapters <> '[]'"); n != 0 {
		t.Error("a long-poll agent got an inventory")
	}
}

// Checklist 8: the retry family goes only to a request that states the engine's retry contract.
func TestRetryContractOverLongPoll(t *testing.T) {
	s := appliancetest.Start(t)
	m := s.Mint("a")
	lp := openLP(t, m.Config)
	online(t, lp)
	retry := s.Issue(m, "retry-task", retryFields("celery"))
	plain := s.Issue(m, "restart-worker", restartFields())
	for _, engines := range [][]string{nil, {"rq"}, {"celery\x20="}, {"celery", "bad="}} {
		bare, err := agentclient.OpenLP(t.Context(), s.With(m, func(c *agentclient.Config) { c.RetryContracts = engines }))
		must(t, err)
		got, err := bare.Poll(t.Context(), 0, 50)
		if engines == nil {
			wantCommands(t, got, err, plain.ID) // the other command is not held back
			continue
		}
		wantCommands(t, got, err)
	}
	stated, err := agentclient.OpenLP(t.Context(), s.With(m, func(c *agentclient.Config) { c.RetryContracts = []string{"rq", "celery"} }))
	must(t, err)
	got, err := stated.Poll(t.Context(), 0, 50)
	wantCommands(t, got, err, retry.ID)
}

// redispatching is an appliance whose commands live long enough for the redispatch window to be what ends it.
func redispatching(t *testing.T) (*appliancetest.Server, *appliancetest.Minted, *agentclient.LP) {
	s := appliancetest.Start(t, frozen(), configure(func(c *config.Config) {
		c.Agent.CommandTimeout = config.Duration(time.Hour)
		c.Agent.OfflineTimeout = config.Duration(time.Hour)
	}))
	m := s.Mint("a")
	lp := openLP(t, m.Config)
	online(t, lp)
	return s, m, lp
}

// Checklist 8: a dropped response is sent again to a poll 10 to 60 s later, to none later; each time under a new
// signature and with a row in the ledger. What may happen once only is never sent again.
func TestDroppedResponseIsSentAgain(t *testing.T) {
	s, m, lp := redispatching(t)
	cancelled, restart := s.Issue(m, "cancel-task", cancelFields("t-1")), s.Issue(m, "restart-worker", restartFields())
	pull := func(ids ...string) {
		t.Helper()
		got, err := lp.Poll(t.Context(), 0, 50)
		wantCommands(t, got, err, ids...)
	}
	pull(cancelled.ID, restart.ID)
	pull()
	s.Clock.Advance(10*time.Second - time.Microsecond)
	pull()
	s.Clock.Advance(time.Microsecond)
	pull(cancelled.ID)
	s.Clock.Advance(60 * time.Second) // at the end of the window that the re-send began
	pull(cancelled.ID)
	s.Clock.Advance(60*time.Second + time.Microsecond)
	pull()
	s.Clock.Advance(time.Minute)
	pull()
	if c := s.Command(m, cancelled.ID); c.Status != "dispatched" {
		t.Errorf("command is %s", c.Status)
	}
	ledger := s.Deliveries(m, cancelled.ID)
	if len(ledger) != 3 || ledger[0].Outcome != "superseded" || ledger[1].Outcome != "superseded" || ledger[2].Outcome != "in_flight" {
		t.Errorf("ledger %+v", ledger)
	}
	if n := len(s.Deliveries(m, restart.ID)); n != 1 {
		t.Errorf("restart_worker was handed over %d times", n)
	}
}

// Checklist 8: a parked poll is woken when the redispatch comes due, without a look in between.
func TestParkedPollGetsARedispatchWhenItIsDue(t *testing.T) {
	s, m, lp := redispatching(t)
	issued := s.Issue(m, "cancel-task", cancelFields("t-1"))
	got, err := lp.Poll(t.Context(), 0, 50)
	wantCommands(t, got, err, issued.ID)
	s.Clock.Advance(3 * time.Second)
	done := park(t, s, lp, 60*time.Second, 50)
	looks := s.Faults.Reads(appliancetest.Look)
	var p polled
	begun := s.Now()
	s.Pump(100*time.Millisecond, "the redispatch", func(wait <-chan time.Time) bool {
		select {
		case p = <-done:
			return true
		case <-wait:
			return false
		}
	})
	wantCommands(t, p.commands, p.err, issued.ID)
	if waited := s.Now().Sub(begun); waited < 7*time.Second {
		t.Errorf("sent again after %v more, want 7 s", waited)
	}
	if n := s.Faults.Reads(appliancetest.Look) - looks; n != 1 {
		t.Errorf("the parked poll looked %d times, want once", n)
	}
}

// Checklist 9: a signature failure blocks every nonce of the agent until a fresh probe, which may come while an old poll
// still hangs.
func TestSignatureFailureBlocksEveryNonce(t *testing.T) {
	s := appliancetest.Start(t)
	m, other := s.Mint("a"), s.Mint("b")
	bad, valid, bystander := openLP(t, m.Config), openLP(t, m.Config), openLP(t, other.Config)
	hanging := park(t, s, bad, 60*time.Second, 50)
	old := park(t, s, valid, 60*time.Second, 50)
	before := s.State()
	frame, err := bad.Sign(agentclient.Outgoing{Type: wire.TypeEventBatch, ID: batchID(), Payload: batch("t-1", s.Now())})
	must(t, err)
	_, err = bad.UploadRaw(t.Context(), strings.Replace(frame, "task.succeeded", "task.failed", 1))
	se := wantStatus(t, err, 409)
	if !strings.Contains(string(se.Body), `"detail"`) {
		t.Errorf("body %s", se.Body)
	}
	s.Unchanged(before)
	wantStatus(t, ended(t, hanging).err, 409) // a request of the session ends with it
	blocked := func(lp *agentclient.LP, what string) {
		t.Helper()
		_, err := lp.Poll(t.Context(), 0, 50)
		wantStatus(t, err, 409)
		_, err = lp.Upload(t.Context(), agentclient.Outgoing{Type: wire.TypeHeartbeat, ID: batchID(), Payload: []byte(agentclient.Heartbeat)})
		wantStatus(t, err, 409)
		_, err = agentclient.OpenLPNonce(t.Context(), m.Config, lp.Nonce)
		if wantStatus(t, err, 409); t.Failed() {
			t.Fatal(what)
		}
	}
	blocked(bad, "the invalidated nonce")
	blocked(valid, "another known nonce")
	for _, path := range []string{commandsPath + "?wait=0", eventsPath} { // fresh nonces, no probe
		method, body := "GET", ""
		if path == eventsPath {
			method, body = "POST", frames("x")
		}
		if r := request(t, s, method, path, body, "Authorization", bearer(m), noncePath, secret.NewToken().Reveal()); r.status != 409 {
			t.Errorf("%s under a fresh nonce answered %d", path, r.status)
		} else {
			wantNoIdentity(t, r)
		}
	}
	online(t, bystander) // another agent is not touched
	fresh := openLP(t, m.Config)
	select {
	case p := <-old:
		t.Fatalf("the old poll ended: %v", p.err)
	default:
	}
	online(t, fresh)
	online(t, valid)
	_, err = bad.Poll(t.Context(), 0, 50) // its replay memory is gone
	wantStatus(t, err, 409)
	issued := s.Issue(m, "cancel-task", cancelFields("t-1"))
	p := ended(t, old)
	wantCommands(t, p.commands, p.err, issued.ID)
}

// Checklist 10: the 17th concurrent session of one agent is refused, an idle one makes room.
func TestSessionsOfOneAgentAreBounded(t *testing.T) {
	s := appliancetest.Start(t)
	m := s.Mint("a")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last <-chan polled
	for range 15 {
		lp := openLP(t, m.Config)
		looks := s.Faults.Reads(appliancetest.Look)
		last = poll(ctx, lp, 60*time.Second, 50)
		s.Faults.AwaitReads(t, appliancetest.Look, looks+1)
	}
	idle := openLP(t, m.Config)
	openLP(t, m.Config) // takes the room of the idle one
	sixteenth := openLP(t, m.Config)
	park(t, s, sixteenth, 60*time.Second, 50)
	for _, path := range []string{"?wait=0&max_frames=0", "?wait=0"} {
		r := request(t, s, "GET", commandsPath+path, "", "Authorization", bearer(m), noncePath, "one-too-many")
		if r.status != 503 || r.header.Get("Retry-After") != "1" || r.fields(t)["detail"] == nil {
			t.Errorf("the 17th session: answered %d %q %s", r.status, r.header.Get("Retry-After"), r.body)
		}
		wantNoIdentity(t, r)
	}
	_, err := idle.Poll(t.Context(), 0, 50) // evicted: its nonce is new again, and there is no room
	wantStatus(t, err, 503)
	openLP(t, s.Mint("b").Config) // others have their own room
	cancel()
	ended(t, last)
	s.Eventually("room after a poll has gone", func() bool {
		_, err := idle.Poll(t.Context(), 0, 50)
		return err == nil
	})
	s.Revoke(m) // ends the poll that is left
}

// Checklist 11: a heartbeat upload makes a minted agent online; polling alone lets it go offline after 30 s.
func TestOnlyUploadsAreLiveness(t *testing.T) {
	s := appliancetest.Start(t, frozen(), configure(unlimited))
	m := s.Mint("a")
	lp := openLP(t, m.Config)
	if _, err := lp.Poll(t.Context(), 0, 50); err != nil {
		t.Fatal(err)
	}
	if got := state(s, m); got != "unknown" {
		t.Fatalf("a poll made the agent %s", got)
	}
	up, err := lp.UploadRaw(t.Context(), `{"v":2,"id":"hello_1","type":"hello","payload":{}}`, `{"v":3}`, `no json`)
	if err != nil || up.Accepted != 2 || up.Rejected != 1 {
		t.Fatalf("unsigned frames: %+v, %v", up, err)
	}
	if got := state(s, m); got != "unknown" {
		t.Fatalf("frames that prove nothing made the agent %s", got)
	}
	online(t, lp)
	if got := state(s, m); got != "online" {
		t.Fatalf("a heartbeat made the agent %s", got)
	}
	seconds := 0
	s.Pump(time.Second, "the agent going offline", func(wait <-chan time.Time) bool {
		if _, err := lp.Poll(t.Context(), 0, 50); err != nil {
			t.Fatal(err)
		}
		if state(s, m) == "offline" {
			return true
		}
		<-wait
		seconds++
		return false
	})
	if seconds < 30 { // how soon after that the sweep has come is the machine's to say
		t.Errorf("offline after %d s of polling", seconds)
	}
	online(t, lp)
	if got := state(s, m); got != "online" {
		t.Fatalf("a heartbeat made the agent %s", got)
	}
}

// Checklist 13: 600 requests of one address in a minute, both transports together; refused ones do not count.
func TestConnectRateIsSharedByBothTransports(t *testing.T) {
	s := appliancetest.Start(t, frozen(), configure(func(c *config.Config) {
		c.Server.TrustedProxies = networks("127.0.0.1/32")
	}))
	m := s.Mint("a")
	for i := range 600 {
		switch i % 3 {
		case 0:
			request(t, s, "GET", commandsPath+"?wait=0&max_frames=0", "", "Authorization", "Bearer nobody")
		case 1:
			request(t, s, "POST", eventsPath, frames("x"), "Authorization", "Bearer nobody")
		default:
			ws, err := agentclient.OpenWS(t.Context(), m.Config)
			must(t, err)
			must(t, ws.Abort())
		}
	}
	before := s.State()
	for range 3 {
		_, err := agentclient.DialWS(t.Context(), m.Config)
		wantClose(t, err, 4429)
		if !strings.Contains(err.Error(), "agent connect rate limit exceeded") {
			t.Errorf("closed with %v", err)
		}
		r := request(t, s, "GET", commandsPath, "", "Authorization", bearer(m))
		if r.status != 429 || r.header.Get("Retry-After") != "60" || r.fields(t)["detail"] != "too many requests; retry in 60 seconds (agent-connect)" {
			t.Fatalf("answered %d %q %s", r.status, r.header.Get("Retry-After"), r.body)
		}
		wantNoIdentity(t, r)
	}
	s.Unchanged(before)
	elsewhere := s.With(m, func(c *agentclient.Config) { c.Header = http.Header{"X-Forwarded-For": {"10.0.0.1"}} })
	openLP(t, elsewhere) // another address has its own bucket
	s.Clock.Advance(time.Minute - time.Nanosecond)
	r := request(t, s, "GET", commandsPath+"?wait=0", "", "Authorization", bearer(m))
	if r.status != 429 || r.header.Get("Retry-After") != "1" {
		t.Errorf("just before the end of the window: answered %d %q", r.status, r.header.Get("Retry-After"))
	}
	s.Clock.Advance(time.Nanosecond)
	dial(t, m.Config)
}

// Checklist 14: one audit row per agent or address in 600 s, over both transports; the metric counts every refusal.
func TestRefusalsLeaveOneAuditRowPerWindow(t *testing.T) {
	s := appliancetest.Start(t, frozen(), configure(func(c *config.Config) {
		c.Server.TrustedProxies = networks("127.0.0.1/32")
		c.Server.AgentIPAllowlist = networks("127.0.0.1/32", "10.0.0.0/8")
	}))
	s.NewProject("other")
	m := s.MintIn("other", "a")
	s.Archive("other")
	denied := s.With(m, func(c *agentclient.Config) { c.Header = http.Header{"X-Forwarded-For": {"192.0.2.7"}} })
	unknown := s.With(m, func(c *agentclient.Config) { c.Token = secret.NewToken() })
	refuse := func() {
		for _, cfg := range []agentclient.Config{denied, m.Config, unknown} {
			for range 2 {
				if _, err := agentclient.OpenLP(t.Context(), cfg); err == nil {
					t.Fatal("admitted")
				}
				if _, err := agentclient.DialWS(t.Context(), cfg); err == nil {
					t.Fatal("admitted")
				}
			}
		}
	}
	want := func(windows int) {
		t.Helper()
		for _, action := range []string{"auth.ip_denied", "agent.auth.project_inactive", "agent.auth.bearer_failed"} {
			if n := s.Count("SELECT count(*) FROM audit_log WHERE action = ?", action); n != windows {
				t.Errorf("%d rows of %s after %d windows", n, action, windows)
			}
		}
	}
	refuse()
	want(1)
	s.Clock.Advance(599 * time.Second)
	refuse() // does not extend the window
	want(1)
	s.Clock.Advance(time.Second)
	refuse()
	want(2)
	if n := s.Metric(`z4j_auth_ip_denied_total{surface="agent"}`); n != 12 {
		t.Errorf("metric counts %v refusals of 12", n)
	}
}
