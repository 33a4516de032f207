package appliance_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/config"
	"signalbox/appliance/secret"
	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

// Checklist 2: hello_ack holds integers (the client reads nothing else), and an agent that sends a heartbeat every 10 s
// stays connected while both sides' pings are answered.
func TestAgentStaysConnected(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m := s.Mint("a")
	ws := dial(t, m.Config)
	if ws.Heartbeat != 10*time.Second || ws.MaxFrame != 1<<20 || ws.AgentID != m.ID {
		t.Fatalf("hello_ack: heartbeat %v, frame %d, agent %s", ws.Heartbeat, ws.MaxFrame, ws.AgentID)
	}
	var mu sync.Mutex
	pings, pongs := 0, 0
	answerPing := ws.Conn().PingHandler()
	ws.Conn().SetPingHandler(func(data string) error { mu.Lock(); pings++; mu.Unlock(); return answerPing(data) })
	ws.Conn().SetPongHandler(func(string) error { mu.Lock(); pongs++; mu.Unlock(); return nil })
	for range 13 { // 130 s: two pings of the server
		for range 10 {
			s.Clock.Advance(time.Second)
		}
		if err := ws.SendJSON(wire.TypeHeartbeat, batchID(), agentclient.Heartbeat); err != nil {
			t.Fatal(err)
		}
		if err := ws.Conn().WriteControl(websocket.PingMessage, []byte("x"), time.Now().Add(appliancetest.Wait)); err != nil {
			t.Fatal(err)
		}
		settle(t, ws)
		if got := state(s, m); got != "online" {
			t.Fatalf("agent is %s", got)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if pings == 0 || pongs == 0 {
		t.Errorf("%d pings of the server, %d of its pongs", pings, pongs)
	}
	if s.Count("SELECT count(*) FROM agent_workers WHERE state = 'online'") != 1 {
		t.Error("worker slot is not online")
	}
}

// Checklist 3, wrong token: 4401 and 401, whatever is wrong with it, and nothing changed but one audit row.
func TestWrongTokenIsRefused(t *testing.T) {
	s := appliancetest.Start(t)
	m, gone := s.Mint("a"), s.Mint("gone")
	s.Revoke(gone)
	before := s.State(auditTables...)
	for name, header := range map[string]string{
		"missing": "", "no scheme": m.Token.Reveal(), "other scheme": "Basic " + m.Token.Reveal(), "empty": "Bearer ",
		"unknown": "Bearer " + secret.NewToken().Reveal(), "revoked": "Bearer " + gone.Token.Reveal(),
	} {
		t.Run(name, func(t *testing.T) {
			h := http.Header{}
			if header != "" {
				h.Set("Authorization", header)
			}
			conn, _, err := websocket.DefaultDialer.DialContext(t.Context(), "ws"+s.URL()[len("http"):]+"/ws/agent", h)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _, err = conn.ReadMessage() // before any frame is sent
			var ce *websocket.CloseError
			if !errors.As(err, &ce) || ce.Code != 4401 {
				t.Errorf("closed with %v, want 4401", err)
			}
			for _, path := range []string{commandsPath + "?wait=0&max_frames=0", commandsPath} {
				r := request(t, s, "GET", path, "", "Authorization", header)
				if r.status != 401 || r.fields(t)["detail"] != "invalid agent token" {
					t.Errorf("%s answered %d %s", path, r.status, r.body)
				}
				wantNoIdentity(t, r)
			}
			r := request(t, s, "POST", eventsPath, frames("x"), "Authorization", header)
			if r.status != 401 || r.fields(t)["detail"] != "invalid agent token" {
				t.Errorf("upload answered %d %s", r.status, r.body)
			}
		})
	}
	s.Unchanged(before, auditTables...)
	if n := s.Count("SELECT count(*) FROM audit_log WHERE action = 'agent.auth.bearer_failed' AND target_type = 'agent' AND target_id IS NULL AND source_ip = '127.0.0.1'"); n != 1 {
		t.Errorf("%d audit rows, want one", n)
	}
}

// wantNoIdentity checks that a refusal does not tell who the agent is (agent protocol F.2).
func wantNoIdentity(t *testing.T, r reply) {
	t.Helper()
	for _, h := range []string{"X-Z4J-Agent-Id", "X-Z4J-Project-Id", "X-Z4J-LongPoll-Worker"} {
		if v := r.header.Get(h); v != "" {
			t.Errorf("a %d carries %s: %s", r.status, h, v)
		}
	}
}

// Checklist 3, archived project: 4401 at hello and 403, and admitted again once the project is active.
func TestArchivedProjectIsRefusedUntilActive(t *testing.T) {
	s := appliancetest.Start(t)
	s.NewProject("other")
	m := s.MintIn("other", "a")
	s.Archive("other")
	before := s.State(auditTables...)
	_, err := agentclient.DialWS(t.Context(), m.Config)
	wantClose(t, err, 4401)
	for _, r := range []reply{
		request(t, s, "GET", commandsPath+"?wait=0&max_frames=0", "", "Authorization", bearer(m)),
		request(t, s, "GET", commandsPath+"?wait=0", "", "Authorization", bearer(m)),
		request(t, s, "POST", eventsPath, frames("x"), "Authorization", bearer(m)),
	} {
		body := r.fields(t)
		details, _ := body["details"].(map[string]any)
		if r.status != 403 || body["error"] != "project_inactive" || body["message"] != "the agent's project is archived" ||
			body["request_id"] == nil || details["agent_id"] != m.ID.String() || details["project_id"] == nil {
			t.Errorf("answered %d %s", r.status, r.body)
		}
		wantNoIdentity(t, r)
	}
	s.Unchanged(before, auditTables...)
	if n := s.Count(`SELECT count(*) FROM audit_log WHERE action = 'agent.auth.project_inactive' AND target_type = 'agent' AND target_id = ?
		AND project_no IS NOT NULL AND outcome = 'deny' AND json_extract(metadata, '$.path') = '/ws/agent' AND json_extract(metadata, '$.agent_id') = ?`,
		m.ID.String(), m.ID.String()); n != 1 {
		t.Errorf("%d audit rows, want one for both transports", n)
	}
	s.Activate("other")
	dial(t, m.Config)
	openLP(t, m.Config)
}

// Checklist 3, unlisted address: 4403 and 403 before the token is looked at.
func TestUnlistedAddressIsRefusedBeforeTheToken(t *testing.T) {
	s := appliancetest.Start(t, configure(func(c *config.Config) {
		c.Server.TrustedProxies = networks("127.0.0.1/32")
		c.Server.AgentIPAllowlist = networks("10.1.0.0/16")
	}))
	s.NewProject("other")
	good, archived := s.Mint("a"), s.MintIn("other", "b")
	s.Archive("other")
	bad := *good
	bad.Token = secret.NewToken()
	before := s.State(auditTables...)
	for name, m := range map[string]*appliancetest.Minted{"good": good, "bad": &bad, "archived": archived} {
		outside := s.With(m, func(c *agentclient.Config) { c.Header = http.Header{"X-Forwarded-For": {"10.2.0.1"}} })
		_, err := agentclient.DialWS(t.Context(), outside)
		wantClose(t, err, 4403)
		_, err = agentclient.OpenLP(t.Context(), outside)
		se := wantStatus(t, err, 403)
		if se.Code != "ip_denied" {
			t.Errorf("%s token: %s", name, se.Body)
		}
		r := request(t, s, "POST", eventsPath, frames("x"), "Authorization", bearer(m), "X-Forwarded-For", "10.2.0.1")
		body := r.fields(t)
		details, _ := body["details"].(map[string]any)
		if r.status != 403 || body["message"] != "source address is not allowed for this surface" || details["surface"] != "agent" || len(details) != 1 {
			t.Errorf("%s token: answered %d %s", name, r.status, r.body)
		}
		wantNoIdentity(t, r)
	}
	s.Unchanged(before, auditTables...)
	inside := s.With(good, func(c *agentclient.Config) { c.Header = http.Header{"X-Forwarded-For": {"10.1.0.1"}} })
	dial(t, inside)
	if n := s.Metric(`z4j_auth_ip_denied_total{surface="agent"}`); n != 9 {
		t.Errorf("metric counts %v refusals of 9", n)
	}
	if n := s.Count(`SELECT count(*) FROM audit_log WHERE action = 'auth.ip_denied' AND target_id = 'agent' AND source_ip = '10.2.0.1'
		AND json_extract(metadata, '$.reason') = 'global_allowlist' AND json_extract(metadata, '$.agent_id') IS NULL`); n != 1 {
		t.Errorf("%d audit rows, want one", n)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Checklist 4 over WebSocket: what the database did not take is not acknowledged, and is stored once when it comes again.
func TestDatabaseTroubleOverWebSocket(t *testing.T) {
	s := appliancetest.Start(t)
	ws := dial(t, s.Mint("a").Config)
	settle(t, ws)
	before := s.State()
	s.Faults.FailCommits(appliancetest.ErrDatabase)
	failed := s.Faults.Failed("dispatch frames")
	lost, payload := batchID(), batch("t-1", s.Now())
	must(t, ws.Send(wire.TypeEventBatch, lost, payload))
	s.Faults.AwaitFailed(t, "dispatch frames", failed+1)
	s.Unchanged(before)
	s.Faults.FailCommits(nil)
	settle(t, ws) // fails on an acknowledgement of the lost frame before its own
	if ack := send(t, ws, lost, payload); ack.Received != 1 || ack.Accepted != 1 || ack.Rejected != 0 {
		t.Errorf("second copy: %+v", ack)
	}
	// Checklist 5: a duplicate is acknowledged.
	if ack := send(t, ws, lost, payload); ack.Received != 1 || ack.Accepted != 0 || ack.Rejected != 1 {
		t.Errorf("duplicate: %+v", ack)
	}
	if n := s.Count("SELECT count(*) FROM events"); n != 1 {
		t.Errorf("%d event rows", n)
	}
}

// Checklist 4 over long-poll: rejected, then stored once. A liveness write that fails with it does not change the answer.
func TestDatabaseTroubleOverLongPoll(t *testing.T) {
	s := appliancetest.Start(t)
	m := s.Mint("a")
	lp := openLP(t, m.Config)
	before := s.State()
	frame := agentclient.Outgoing{Type: wire.TypeEventBatch, ID: batchID(), Payload: batch("t-1", s.Now())}
	s.Faults.FailCommits(appliancetest.ErrDatabase)
	up, err := lp.Upload(t.Context(), frame)
	if err != nil || up.Accepted != 0 || up.Rejected != 1 || len(up.Errors) != 1 {
		t.Errorf("during the trouble: %+v, %v", up, err)
	}
	s.Unchanged(before)
	if got := state(s, m); got != "unknown" {
		t.Errorf("agent is %s", got)
	}
	s.Faults.FailCommits(nil)
	for _, want := range []string{"after it", "duplicate"} {
		if up, err = lp.Upload(t.Context(), frame); err != nil || up.Accepted != 1 || up.Rejected != 0 {
			t.Errorf("%s: %+v, %v", want, up, err)
		}
	}
	if n := s.Count("SELECT count(*) FROM events"); n != 1 {
		t.Errorf("%d event rows", n)
	}
	if got := state(s, m); got != "online" {
		t.Errorf("agent is %s", got)
	}
}

// Checklist 6: two worker ids coexist; the second connection of one worker id takes the slot of the first, whose end
// does not disturb it.
func TestWorkerSlots(t *testing.T) {
	s := appliancetest.Start(t)
	m := s.Mint("a")
	worker := func(id string) agentclient.Config {
		return s.With(m, func(c *agentclient.Config) { c.WorkerID = id })
	}
	one, two, legacy := dial(t, worker("w1")), dial(t, worker("w2")), dial(t, worker(""))
	settle(t, one)
	settle(t, two)
	settle(t, legacy)
	again := dial(t, worker("w1"))
	if code := closed(t, one); code != 4002 {
		t.Fatalf("the first connection was closed with %d", code)
	}
	s.Eventually("the end of the first session", func() bool { return s.Metric(`signalbox_session_closes_total{kind="agent",reason="replaced"}`) == 1 })
	settle(t, again)
	settle(t, two)
	if n := s.Count("SELECT count(*) FROM agent_workers WHERE state = 'online'"); n != 3 {
		t.Errorf("%d worker slots online, want 3", n)
	}
	if got := state(s, m); got != "online" {
		t.Errorf("agent is %s", got)
	}
	must(t, legacy.Close())
	must(t, two.Close())
	s.Eventually("two slots going offline", func() bool {
		return s.Count("SELECT count(*) FROM agent_workers WHERE state = 'online'") == 1
	})
	if got := state(s, m); got != "online" {
		t.Errorf("agent is %s while its last slot is connected", got)
	}
	must(t, again.Close()) // the newest: an older one would leave the agent to the liveness sweep
	s.Eventually("the agent going offline", func() bool { return state(s, m) == "offline" })
}

// Checklist 7: a revocation closes sockets with 4003 and ends a parked poll with 401.
func TestRevocationReachesLiveSessions(t *testing.T) {
	s := appliancetest.Start(t)
	m, other := s.Mint("a"), s.Mint("b")
	one := dial(t, s.With(m, func(c *agentclient.Config) { c.WorkerID = "w1" }))
	two := dial(t, s.With(m, func(c *agentclient.Config) { c.WorkerID = "w2" }))
	bystander := dial(t, other.Config)
	lp := openLP(t, m.Config)
	done := park(t, s, lp, 60*time.Second, 50)
	s.Revoke(m)
	for _, ws := range []*agentclient.WS{one, two} {
		if code := closed(t, ws); code != 4003 {
			t.Errorf("socket closed with %d", code)
		}
	}
	se := wantStatus(t, ended(t, done).err, 401)
	if string(se.Body) == "" {
		t.Error("401 without a body")
	}
	settle(t, bystander)
	if s.Count("SELECT count(*) FROM agent_workers w JOIN agents a USING (agent_no) WHERE a.name = 'a' AND w.state = 'online'") != 0 {
		s.Eventually("slots going offline", func() bool {
			return s.Count("SELECT count(*) FROM agent_workers w JOIN agents a USING (agent_no) WHERE a.name = 'a' AND w.state = 'online'") == 0
		})
	}
}

// Checklist 7: a revocation between two claims of one poll does not cost the first one.
func TestRevocationAfterAClaimStillDeliversIt(t *testing.T) {
	s := appliancetest.Start(t)
	m := s.Mint("a")
	lp := openLP(t, m.Config)
	online(t, lp)
	first, second := s.Issue(m, "cancel-task", cancelFields("t-1")), s.Issue(m, "cancel-task", cancelFields("t-2"))
	committing, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.Faults.BeforeCommit(func(ops []string) {
		if slices.Contains(ops, "claim command") {
			once.Do(func() { close(committing); <-release })
		}
	})
	s.Faults.OnQueued(func(op string) {
		if op == "revoke agent" {
			close(release) // the next claim comes behind it
		}
	})
	done := poll(t.Context(), lp, 0, 50)
	select {
	case <-committing:
	case <-time.After(appliancetest.Wait):
		t.Fatal("the poll claims nothing")
	}
	s.Revoke(m)
	got := ended(t, done)
	wantCommands(t, got.commands, got.err, first.ID)
	if c := s.Command(m, second.ID); c.Status != "pending" {
		t.Errorf("the second command is %s", c.Status)
	}
	_, err := lp.Poll(context.WithoutCancel(t.Context()), 0, 50)
	wantStatus(t, err, 401)
}
