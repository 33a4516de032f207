package appliance_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/config"
	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

// heartbeatOf is a heartbeat to upload.
func heartbeatOf() agentclient.Outgoing {
	return agentclient.Outgoing{Type: wire.TypeHeartbeat, ID: batchID(), Payload: []byte(agentclient.Heartbeat)}
}

// Agent protocol F.4, F.5: what makes an upload a 422, with the shape of its body. None of them is a session or liveness.
func TestUploadsThatAreRefusedWhole(t *testing.T) {
	s := appliancetest.Start(t, configure(unlimited))
	m := s.Mint("a")
	many := make([]string, 501)
	for i := range many {
		many[i] = "x"
	}
	before := s.State()
	for name, body := range map[string]string{
		"not JSON": `frames`, "list": `[]`, "no frames": `{}`, "null": `{"frames":null}`, "text": `{"frames":"x"}`, "0 frames": `{"frames":[]}`,
		"501 frames": frames(many...), "number": `{"frames":["x",7]}`, "null frame": `{"frames":[null]}`, "object": `{"frames":[{}]}`,
		"frame above 1 MiB": frames(strings.Repeat("x", 1<<20+1)), "frame above 1 MiB of UTF-8": frames(strings.Repeat("é", 1<<19) + "x"),
		"lone surrogate": `{"frames":["\ud800"]}`, "lone low surrogate": `{"frames":["x\udc00"]}`, "invalid UTF-8": "{\"frames\":[\"\xff\"]}",
		"trailing": `{"frames":["x"]}x`, "torn": `{"frames":["x"`,
	} {
		t.Run(name, func(t *testing.T) {
			r := request(t, s, "POST", eventsPath, body, "Authorization", bearer(m), noncePath, "n", "Content-Type", "application/json")
			wantValidation(t, r)
		})
	}
	s.Unchanged(before)
	if n := s.Metric(`z4j_inmemory_state_items{kind="longpoll_sessions"}`); n != 0 {
		t.Errorf("%v sessions", n)
	}
	ok := request(t, s, "POST", eventsPath, frames(append(many[:499:499], strings.Repeat("x", 1<<20))...), "Authorization", bearer(m), noncePath, "n")
	if ok.status != 200 || ok.fields(t)["accepted"] != 500.0 {
		t.Errorf("500 frames, one of them 1 MiB: answered %d %.200s", ok.status, ok.body)
	}
}

// wantValidation checks the body of a 422 (agent protocol F.4).
func wantValidation(t *testing.T, r reply) {
	t.Helper()
	wantNoIdentity(t, r)
	if r.status != 422 {
		t.Fatalf("answered %d %.300s", r.status, r.body)
	}
	detail, _ := r.fields(t)["detail"].([]any)
	if len(detail) == 0 {
		t.Fatalf("body %s", r.body)
	}
	item, _ := detail[0].(map[string]any)
	for _, key := range []string{"type", "loc", "msg", "input"} {
		if _, ok := item[key]; !ok {
			t.Errorf("detail without %s: %s", key, r.body)
		}
	}
}

// Agent protocol F.6: the ranges of a poll's query and its defaults.
func TestPollQuery(t *testing.T) {
	s := appliancetest.Start(t, frozen(), configure(unlimited))
	m := s.Mint("a")
	for _, query := range []string{"wait=-1", "wait=61", "wait=x", "wait=", "wait=1.5", "wait=99999999999999999999", "max_frames=-1", "max_frames=501", "max_frames=x", "max_frames="} {
		wantValidation(t, request(t, s, "GET", commandsPath+"?"+query, "", "Authorization", bearer(m)))
	}
	if n := s.Metric(`z4j_inmemory_state_items{kind="longpoll_sessions"}`); n != 0 {
		t.Errorf("%v sessions", n)
	}
	for _, query := range []string{"wait=0", "wait=0&max_frames=500", "wait=0&max_frames=1", "wait=60&max_frames=0", "wait=0&other=1"} {
		r := request(t, s, "GET", commandsPath+"?"+query, "", "Authorization", bearer(m))
		if r.status != 200 || r.header.Get("X-Z4J-Agent-Id") != m.ID.String() || r.header.Get("X-Z4J-LongPoll-Worker") != strconv.Itoa(os.Getpid()) {
			t.Errorf("%s: answered %d %s", query, r.status, r.body)
		}
	}
	// The default wait is 30 s, from before the first look.
	looks := s.Faults.Reads(appliancetest.Look)
	done := make(chan reply, 1)
	go func() { done <- request(t, s, "GET", commandsPath, "", "Authorization", bearer(m)) }()
	s.Faults.AwaitReads(t, appliancetest.Look, looks+1)
	s.Clock.Advance(30*time.Second - time.Nanosecond)
	request(t, s, "GET", commandsPath+"?wait=0", "", "Authorization", bearer(m)) // time for one that ends too early
	select {
	case r := <-done:
		t.Fatalf("answered before its time: %d %s", r.status, r.body)
	default:
	}
	s.Clock.Advance(time.Nanosecond)
	select {
	case r := <-done:
		if r.status != 200 || strings.TrimSpace(string(r.body)) != `{"frames":[]}` {
			t.Errorf("answered %d %s", r.status, r.body)
		}
	case <-time.After(appliancetest.Wait):
		t.Fatal("the poll does not end")
	}
}

// max_frames bounds what one poll takes, in the order of issue.
func TestPollTakesNoMoreThanAsked(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m := s.Mint("a")
	lp := openLP(t, m.Config)
	online(t, lp)
	var ids []string
	for i := range 5 {
		ids = append(ids, s.Issue(m, "cancel-task", cancelFields(fmt.Sprint("t-", i))).ID)
		s.Clock.Advance(time.Millisecond)
	}
	got, err := lp.Poll(t.Context(), 0, 2)
	wantCommands(t, got, err, ids[:2]...)
	got, err = lp.Poll(t.Context(), 0, 50)
	wantCommands(t, got, err, ids[2:]...)
}

// Agent protocol F.4, I.2: the three reasons of a 413, on the cap of the events route.
func TestBodiesAboveTheCap(t *testing.T) {
	s := appliancetest.Start(t, configure(func(c *config.Config) { c.Server.EventsBodyLimit = 64 << 10 }))
	m := s.Mint("a")
	want := func(name string, r reply, reason string) {
		t.Helper()
		body := r.fields(t)
		details, _ := body["details"].(map[string]any)
		id, present := body["request_id"]
		if r.status != 413 || body["error"] != "payload_too_large" || !present || id != nil || details["reason"] != reason {
			t.Errorf("%s: answered %d %s", name, r.status, r.body)
		}
		wantNoIdentity(t, r)
	}
	over := frames(strings.Repeat("x", 64<<10))
	want("Content-Length", request(t, s, "POST", eventsPath, over, "Authorization", bearer(m)), "content_length_exceeded")
	want("stranger", request(t, s, "POST", eventsPath, over), "content_length_exceeded") // before the bearer
	req, err := http.NewRequestWithContext(t.Context(), "POST", s.URL()+eventsPath, struct{ *strings.Reader }{strings.NewReader(over)})
	must(t, err)
	req.ContentLength = -1
	req.Header.Set("Authorization", bearer(m))
	want("streamed", exchange(t, s, req), "streamed_body_exceeded")
	want("bad Content-Length", rawRequest(t, s, "POST "+eventsPath+" HTTP/1.1\r\nHost: x\r\nContent-Length: ten\r\n\r\n"), "invalid_content_length")
	fits := frames(strings.Repeat("x", 64<<10-len(frames(""))))
	if r := request(t, s, "POST", eventsPath, fits, "Authorization", bearer(m)); r.status != 200 {
		t.Errorf("a body of exactly the cap: answered %d %.200s", r.status, r.body)
	}
}

// rawRequest sends bytes that no HTTP client would.
func rawRequest(t *testing.T, s *appliancetest.Server, text string) reply {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "http://"))
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(appliancetest.Wait)))
	_, err = conn.Write([]byte(text))
	must(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	must(t, err)
	defer resp.Body.Close()
	var b strings.Builder
	_, err = bufio.NewReader(resp.Body).WriteTo(&b)
	must(t, err)
	return reply{resp.StatusCode, resp.Header, []byte(b.String())}
}

// Agent protocol F.5: how each kind of frame of one upload is counted, in one batch with good ones around it.
func TestUploadCounts(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m := s.Mint("a")
	lp := openLP(t, m.Config)
	b := bindingOf(m, lp.ProjectID, lp.Nonce)
	seq := 0
	sealed := func(typ, id, payload string) string {
		seq++
		return string(seal(t, b, fmt.Sprintf(`{"v":2,"id":%q,"type":%q,"payload":%s,"seq":%d,"nonce":"n%d","ts":%s}`, id, typ, payload, seq, seq, stamp(s.Now()))))
	}
	event := func(task string) string { return string(batch(task, s.Now())) }
	first, last := sealed("event_batch", "ev_1", event("t-1")), ""
	skewed := strings.Replace(sealed("event_batch", "ev_2", event("t-x")), `"v":2`, `"v":3`, 1)
	accepted := []string{
		first, `no json`, `[]`, `{}`, `{"v":"2","type":"heartbeat"}`, `{"v":2,"type":"hi","payload":{}}`, `{"v":2,"type":"heartbeat","payload":[]}`,
		`{"v":2,"type":"heartbeat","payload":{"x":1e999}}`, hello(nil), `{"v":9,"type":"hello"}`, `{"type":"hello_ack","payload":7}`,
		sealed("command_result", uuid.NewString(), `{"status":"done"}`), sealed("command_result", uuid.NewString(), `{"status":"success"}`),
		sealed("command_ack", "no uuid", `{}`), sealed("registry_delta", "r", `{"engine":"celery"}`), sealed("error", "e", `{"code":"x","message":"y"}`),
		sealed("command", uuid.NewString(), `{"action":"cancel_task"}`), sealed("event_batch_ack", "a", `{"acked_id":"ev_1"}`),
		sealed("event_batch", "ev_3", `{"events":7}`), sealed("event_batch", "ev_4", `{}`), sealed("agent_status", "s", `{}`), sealed("heartbeat", "h", `{}`),
	}
	last = sealed("event_batch", "ev_5", event("t-2"))
	up, err := lp.UploadRaw(t.Context(), append(append(accepted[:len(accepted):len(accepted)], skewed, skewed), last)...)
	if err != nil || up.Accepted != len(accepted)+1 || up.Rejected != 2 || len(up.Errors) != 10 || up.ErrorCode != nil {
		t.Errorf("%d + 2 frames: %+v, %v", len(accepted)+1, up, err)
	}
	if n := s.Count("SELECT count(*) FROM events"); n != 2 {
		t.Errorf("%d events", n)
	}
	if n := s.Count("SELECT count(*) FROM agent_workers"); n != 0 {
		t.Errorf("a hello over long-poll made %d slots", n)
	}
	online(t, lp2(t, s, m)) // the session of the skewed frame was kept: no marker blocks another one
}

func lp2(t *testing.T, s *appliancetest.Server, m *appliancetest.Minted) *agentclient.LP {
	lp, err := agentclient.OpenLP(t.Context(), s.With(m, nil))
	must(t, err)
	if _, err := lp.Poll(t.Context(), 0, 50); err != nil {
		t.Fatal(err)
	}
	return lp
}

// Agent protocol F.5: a signature or replay failure refuses its frame and all after it with 409; what came before stays
// stored, and its liveness too.
func TestSignatureFailureInTheMiddleOfAnUpload(t *testing.T) {
	for name, failure := range map[string]func(frames []string) string{
		"tampered": func(f []string) string { return strings.Replace(f[1], "task.succeeded", "task.failed", 1) },
		"replayed": func(f []string) string { return f[0] },
		"unsigned": func([]string) string { return `{"v":2,"type":"heartbeat","payload":{}}` },
	} {
		t.Run(name, func(t *testing.T) {
			s := appliancetest.Start(t, frozen())
			m := s.Mint("a")
			lp := openLP(t, m.Config)
			var texts []string
			for i := range 3 {
				text, err := lp.Sign(agentclient.Outgoing{Type: wire.TypeEventBatch, ID: batchID(), Payload: batch(fmt.Sprint("t-", i), s.Now())})
				must(t, err)
				texts = append(texts, text)
			}
			_, err := lp.UploadRaw(t.Context(), texts[0], failure(texts), texts[2])
			wantStatus(t, err, 409)
			if got := s.Text("SELECT group_concat(task_id) FROM events"); got != "t-0" {
				t.Errorf("stored %q", got)
			}
			if got := state(s, m); got != "online" {
				t.Errorf("agent is %s", got)
			}
			if n := s.Metric(`signalbox_agent_verify_failures_total{transport="longpoll"}`); n != 1 {
				t.Errorf("metric counts %v", n)
			}
			fresh := openLP(t, m.Config)
			up, err := fresh.Upload(t.Context(), heartbeatOf())
			if err != nil || up.Accepted != 1 {
				t.Errorf("after a fresh probe: %+v, %v", up, err)
			}
		})
	}
}

// Agent protocol F.5: no session id makes one shared session per agent, and nonces are sessions of their own.
func TestLegacySessionIsShared(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m := s.Mint("a")
	one, err := agentclient.OpenLPNonce(t.Context(), m.Config, "")
	must(t, err)
	two, err := agentclient.OpenLPNonce(t.Context(), m.Config, "")
	must(t, err)
	online(t, one)
	own := openLP(t, m.Config)
	online(t, own) // begins at seq 1 again
	_, err = two.Upload(t.Context(), heartbeatOf())
	wantStatus(t, err, 409) // seq 1 was used in the shared session
}

// Agent protocol F.7: an unused session is forgotten after 300 s, a marker 300 s after the failure, whoever asks.
func TestSessionsExpire(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m := s.Mint("a")
	bad := openLP(t, m.Config)
	_, err := bad.UploadRaw(t.Context(), raw("1", `"n"`, stamp(s.Now())))
	wantStatus(t, err, 409)
	s.Clock.Advance(299 * time.Second)
	_, err = bad.Poll(t.Context(), 0, 50)
	wantStatus(t, err, 409)
	s.Clock.Advance(time.Second)
	if _, err = bad.Poll(t.Context(), 0, 50); err != nil {
		t.Errorf("after the marker's time: %v", err)
	}
	online(t, bad)
	frame, err := bad.Sign(heartbeatOf())
	must(t, err)
	s.Clock.Advance(300 * time.Second)
	if n := s.Count("SELECT count(*) FROM agents WHERE state = 'unknown'"); n != 0 {
		t.Error("agent is unknown")
	}
	_, err = bad.UploadRaw(t.Context(), frame) // a new session, but an old frame
	wantStatus(t, err, 409)
}

// Agent protocol F.6: stop waiting when the client has gone, before anything is claimed.
func TestAbandonedPollClaimsNothing(t *testing.T) {
	s := appliancetest.Start(t)
	m := s.Mint("a")
	lp := openLP(t, m.Config)
	online(t, lp)
	ctx, cancel := context.WithCancel(t.Context())
	looks := s.Faults.Reads(appliancetest.Look)
	done := poll(ctx, lp, 60*time.Second, 50)
	s.Faults.AwaitReads(t, appliancetest.Look, looks+1)
	cancel()
	if p := ended(t, done); p.err == nil {
		t.Fatal("the poll was not abandoned")
	}
	s.Eventually("the request ending", func() bool {
		return s.Metric(`signalbox_http_requests_total{class="4xx"}`) >= 1
	})
	issued := s.Issue(m, "restart-worker", restartFields())
	got, err := lp.Poll(t.Context(), 0, 50)
	wantCommands(t, got, err, issued.ID)
}

// Agent protocol F.3: of several reasons to refuse a request the first in order is told, and none of them makes a session.
func TestOrderOfRefusals(t *testing.T) {
	s := appliancetest.Start(t, frozen(), configure(func(c *config.Config) {
		c.Agent.ConnectRateLimit = 4
		c.Server.EventsBodyLimit = 8 << 10
		c.Server.TrustedProxies = networks("127.0.0.1/32")
		c.Server.AgentIPAllowlist = networks("10.0.0.0/8")
	}))
	s.NewProject("other")
	m := s.MintIn("other", "a")
	s.Archive("other")
	const from = "X-Forwarded-For"
	oversize := frames(strings.Repeat("x", 16<<10))
	for range 4 {
		request(t, s, "GET", commandsPath+"?wait=0", "", from, "192.0.2.1")
		request(t, s, "GET", commandsPath+"?wait=0", "", from, "10.0.0.1")
	}
	for name, c := range map[string]struct {
		status int
		reply  reply
	}{
		"size":                 {413, request(t, s, "POST", eventsPath, oversize, from, "192.0.2.1", "Authorization", "Bearer x")},
		"rate, denied":         {429, request(t, s, "POST", eventsPath, `{}`, from, "192.0.2.1", "Authorization", "Bearer x")},
		"rate, listed":         {429, request(t, s, "GET", commandsPath+"?wait=0", "", from, "10.0.0.1", "Authorization", bearer(m))},
		"address, shape":       {403, request(t, s, "GET", commandsPath+"?wait=99", "", from, "192.0.2.2", "Authorization", "Bearer x")},
		"address, body":        {403, request(t, s, "POST", eventsPath, `{}`, from, "192.0.2.2", "Authorization", "Bearer x")},
		"address, archived":    {403, request(t, s, "GET", commandsPath, "", from, "192.0.2.2", "Authorization", bearer(m))},
		"token":                {401, request(t, s, "GET", commandsPath+"?wait=0", "", from, "10.0.0.2", "Authorization", "Bearer x")},
		"project":              {403, request(t, s, "GET", commandsPath+"?wait=0", "", from, "10.0.0.2", "Authorization", bearer(m))},
		"address undetermined": {403, request(t, s, "GET", commandsPath+"?wait=0", "", from, "unknown", "Authorization", bearer(m))},
	} {
		if c.reply.status != c.status {
			t.Errorf("%s: answered %d, want %d: %s", name, c.reply.status, c.status, c.reply.body)
			continue
		}
		wantNoIdentity(t, c.reply)
		code := c.reply.fields(t)["error"]
		if strings.HasPrefix(name, "address") && code != "ip_denied" || name == "project" && code != "project_inactive" {
			t.Errorf("%s: answered %s", name, c.reply.body)
		}
	}
	denied := s.With(m, func(c *agentclient.Config) { c.Header = http.Header{from: {"192.0.2.1"}} })
	_, err := agentclient.DialWS(t.Context(), denied) // the bucket is empty and the address is not listed
	wantClose(t, err, 4429)
	if n := s.Metric(`z4j_inmemory_state_items{kind="longpoll_sessions"}`); n != 0 {
		t.Errorf("%v sessions", n)
	}
}
