package appliance_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/config"
	"signalbox/transport/agentclient"
)

// hello builds the text of a hello; payload replaces or adds members by their JSON text, "" removes one.
func hello(payload map[string]string) string {
	fields := map[string]string{"protocol_version": `"2"`, "agent_version": `"1.13.0"`, "framework": `"bare"`}
	for k, v := range payload {
		fields[k] = v
	}
	var b strings.Builder
	for k, v := range fields {
		if v == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"` + k + `":` + v)
	}
	return `{"v":2,"id":"hello_0123456789abcdef","ts":null,"type":"hello","payload":{` + b.String() + `}}`
}

func text(n int) string { return `"` + strings.Repeat("é", n) + `"` }

func list(n int) string { return `["a"` + strings.Repeat(`,"a"`, n-1) + `]` }

// Agent protocol B.2 step 7: everything that is no valid hello closes with 4400, and another protocol version with 4426
// (step 8). Nothing is stored.
func TestFirstFrameRefusals(t *testing.T) {
	s := appliancetest.Start(t, configure(unlimited), configure(func(c *config.Config) { c.Agent.WSMaxFrame = 8 << 10 }))
	m := s.Mint("a")
	set := func(k, v string) string { return hello(map[string]string{k: v}) }
	good := hello(nil)
	cases := map[string]string{
		"empty": "", "not JSON": "hello", "not an object": `[1]`, "torn": good[:len(good)-1], "trailing": good + "x",
		"lone surrogate": strings.Replace(good, "bare", `\ud800`, 1), "not UTF-8": strings.Replace(good, "bare", "\xff", 1),
		"no type": strings.Replace(good, `"type":"hello",`, "", 1), "a heartbeat": strings.Replace(good, `"type":"hello"`, `"type":"heartbeat"`, 1),
		"a hello_ack": strings.Replace(good, `"type":"hello"`, `"type":"hello_ack"`, 1), "unknown type": strings.Replace(good, `"type":"hello"`, `"type":"hi"`, 1),
		"v 1": strings.Replace(good, `"v":2`, `"v":1`, 1), "v 3": strings.Replace(good, `"v":2`, `"v":3`, 1), "v text": strings.Replace(good, `"v":2`, `"v":"2"`, 1),
		"v true": strings.Replace(good, `"v":2`, `"v":true`, 1), "v 2.0": strings.Replace(good, `"v":2`, `"v":2.0`, 1), "no v": strings.Replace(good, `"v":2,`, "", 1),
		"no id": strings.Replace(good, `"id":"hello_0123456789abcdef",`, "", 1), "empty id": strings.Replace(good, "hello_0123456789abcdef", "", 1),
		"long id": strings.Replace(good, "hello_0123456789abcdef", strings.Repeat("i", 65), 1), "id 7": strings.Replace(good, `"hello_0123456789abcdef"`, "7", 1),
		"ts 7": strings.Replace(good, `"ts":null`, `"ts":7`, 1), "naive ts": strings.Replace(good, `"ts":null`, `"ts":"2026-01-02T03:04:05"`, 1),
		"no payload":   `{"v":2,"id":"h","type":"hello"}`,
		"null payload": `{"v":2,"id":"h","type":"hello","payload":null}`,
		"list payload": `{"v":2,"id":"h","type":"hello","payload":[]}`,
		"oversize":     strings.Replace(good, `"bare"`, `"bare","x":"`+strings.Repeat("x", 8<<10)+`"`, 1),
		"host list":    set("host", `[]`), "host text": set("host", `"box"`), "capabilities list": set("capabilities", `[]`),
		"capability text": set("capabilities", `{"celery":"retry_task"}`), "capability number": set("capabilities", `{"celery":[7]}`),
		"long worker_id": set("worker_id", text(129)), "worker_id 7": set("worker_id", `7`),
		"long worker_role": set("worker_role", text(33)), "worker_role 7": set("worker_role", `7`),
		"worker_pid -1": set("worker_pid", `-1`), "worker_pid 2^31": set("worker_pid", `2147483648`), "worker_pid 1.0": set("worker_pid", `1.0`),
		"worker_pid text": set("worker_pid", `"1"`), "worker_pid true": set("worker_pid", `true`),
		"worker_started_at text": set("worker_started_at", `"yesterday"`), "naive worker_started_at": set("worker_started_at", `"2026-01-02T03:04:05"`),
		"worker_started_at 7": set("worker_started_at", `7`),
	}
	for _, field := range []string{"protocol_version", "agent_version", "framework"} {
		cases["no "+field], cases["null "+field], cases[field+" 2"], cases["long "+field] = set(field, ""), set(field, "null"), set(field, "2"), set(field, text(41))
	}
	for _, field := range []string{"engines", "schedulers", "runtime_features"} {
		cases["65 "+field], cases[field+" text"], cases[field+" of numbers"], cases[field+" null"] = set(field, list(65)), set(field, `"a"`), set(field, `[7]`), set(field, `null`)
	}
	before := s.State()
	refused := func(name, frame string, want int) {
		t.Run(name, func(t *testing.T) {
			ws := open(t, m.Config)
			must(t, ws.SendRaw([]byte(frame)))
			if code := closed(t, ws); code != want {
				t.Errorf("closed with %d, want %d: %s", code, want, frame[:min(len(frame), 300)])
			}
		})
	}
	for name, frame := range cases {
		refused(name, frame, 4400)
	}
	for _, version := range []string{`"1"`, `"3"`, `"2.0"`, `""`} {
		refused("protocol_version "+version, set("protocol_version", version), 4426)
	}
	s.Unchanged(before)
	if got := state(s, m); got != "unknown" {
		t.Errorf("agent is %s", got)
	}
	if n := s.Count("SELECT count(*) FROM agent_workers"); n != 0 {
		t.Errorf("%d worker slots", n)
	}
}

// Agent protocol B.1, B.3: every limit of a hello may be used up, unknown fields are ignored, and text messages are as
// good as binary ones.
func TestHelloAtItsLimits(t *testing.T) {
	s := appliancetest.Start(t)
	m := s.Mint("a")
	for name, payload := range map[string]map[string]string{
		"full": {"agent_version": text(40), "framework": text(40), "engines": list(64), "schedulers": list(64), "runtime_features": list(64),
			"capabilities": `{"celery":` + list(100) + `}`, "host": `{"name":"box-1","other":[1]}`, "worker_id": text(128), "worker_role": text(32),
			"worker_pid": "2147483647", "worker_started_at": `"2026-01-02T03:04:05.000001+02:00"`, "x_future": `{"a":[null]}`},
		"nulls":   {"worker_id": "null", "worker_role": "null", "worker_pid": "null", "worker_started_at": "null"},
		"minimal": nil,
	} {
		for _, kind := range []int{websocket.BinaryMessage, websocket.TextMessage} {
			ws := open(t, m.Config)
			must(t, ws.Conn().WriteMessage(kind, []byte(hello(payload))))
			typ, data, err := ws.Conn().ReadMessage()
			if err != nil || typ != websocket.BinaryMessage || !strings.Contains(string(data), `"hello_ack"`) {
				t.Errorf("%s by message type %d: answered %d %s, %v", name, kind, typ, data, err)
			}
		}
	}
	if n := s.Count("SELECT count(*) FROM agent_workers"); n != 2 {
		t.Errorf("%d worker slots, want the legacy one and one more", n)
	}
}

// Agent protocol B.2 step 7: no hello in 10 s.
func TestFirstFrameTimeout(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m := s.Mint("a")
	before := s.State()
	seen := s.Faults.Reads(appliancetest.Authentication)
	ws := open(t, m.Config)
	s.Faults.AwaitReads(t, appliancetest.Authentication, seen+1) // authenticated: the wait for the hello begins
	code := make(chan int, 1)
	begun := s.Now()
	go func() {
		_, _, err := ws.Conn().ReadMessage()
		ce, _ := err.(*websocket.CloseError)
		if ce == nil {
			ce = &websocket.CloseError{}
		}
		code <- ce.Code
	}()
	s.Pump(time.Second, "the end of the connection", func(wait <-chan time.Time) bool {
		select {
		case got := <-code:
			if got != 4408 && got != 4400 {
				t.Errorf("closed with %d", got)
			}
			return true
		case <-wait:
			return false
		}
	})
	if waited := s.Now().Sub(begun); waited < 10*time.Second {
		t.Errorf("closed after %v", waited)
	}
	s.Unchanged(before)
}

// Agent protocol B.1: a request without Upgrade learns where to go instead.
func TestPlainHTTPOnTheWebSocketPath(t *testing.T) {
	s := appliancetest.Start(t)
	r := request(t, s, "GET", "/ws/agent", "", "Authorization", "Bearer x")
	body := r.fields(t)
	details, _ := body["details"].(map[string]any)
	fallback, _ := details["fallback"].(map[string]any)
	if r.status != http.StatusUpgradeRequired || r.header.Get("Upgrade") != "websocket" || fallback["transport"] != "longpoll" ||
		fallback["events"] != eventsPath || fallback["commands"] != commandsPath || !strings.Contains(body["message"].(string), "/api/v1/agent/") {
		t.Errorf("answered %d %s", r.status, r.body)
	}
}

// Agent protocol B.2 step 10: revoked or archived between bearer and hello is 4401, without hello_ack.
func TestRevokedBetweenBearerAndHello(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	s.NewProject("other")
	revoked, archived := s.Mint("a"), s.MintIn("other", "b")
	for _, c := range []struct {
		agent *appliancetest.Minted
		do    func()
	}{{revoked, func() { s.Revoke(revoked) }}, {archived, func() { s.Archive("other") }}} {
		seen := s.Faults.Reads(appliancetest.Authentication)
		ws := open(t, c.agent.Config)
		s.Faults.AwaitReads(t, appliancetest.Authentication, seen+1)
		c.do()
		before := s.State()
		must(t, ws.SendRaw([]byte(hello(nil))))
		_, _, err := ws.Conn().ReadMessage()
		if ce, ok := err.(*websocket.CloseError); !ok || ce.Code != 4401 {
			t.Errorf("closed with %v, want 4401", err)
		}
		s.Unchanged(before)
	}
}

// Agent protocol B.2 step 14: revoked between hello and registration is 4003, and nothing of the session is left.
func TestRevokedWhileTheSessionIsMade(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m := s.Mint("a")
	release := make(chan struct{})
	s.Faults.BeforeCommit(func(ops []string) {
		if slices.Contains(ops, "agent hello") {
			<-release // until the revocation stands behind the hello
		}
	})
	s.Faults.OnQueued(func(op string) {
		if op == "revoke agent" {
			close(release)
		}
	})
	ws := open(t, m.Config)
	must(t, ws.SendRaw(m.HelloFrame()))
	s.Faults.AwaitQueued(t, "agent hello", 1)
	s.Revoke(m)
	if code := closed(t, ws); code != 4003 {
		t.Errorf("closed with %d, want 4003", code)
	}
	s.Eventually("the slot going offline", func() bool {
		return s.Count("SELECT count(*) FROM agent_workers WHERE state = 'online'") == 0
	})
	if n := s.Metric("z4j_ws_connections"); n != 0 {
		t.Errorf("%v connections left", n)
	}
}

// Agent protocol B.5: the cap counts slots; who takes an occupied slot is welcome.
func TestWorkerCap(t *testing.T) {
	s := appliancetest.Start(t, configure(func(c *config.Config) { c.Agent.WSPerAgentCap = 2 }))
	m := s.Mint("a")
	worker := func(id string) agentclient.Config {
		return s.With(m, func(c *agentclient.Config) { c.WorkerID = id })
	}
	one, two := dial(t, worker("w1")), dial(t, worker("w2"))
	if code := closed(t, dialOrRefused(t, worker("w3"))); code != 4429 {
		t.Errorf("the third worker: closed with %d", code)
	}
	settle(t, one)
	settle(t, two)
	again := dial(t, worker("w1"))
	if code := closed(t, one); code != 4002 {
		t.Errorf("the replaced connection: closed with %d", code)
	}
	settle(t, again)
	s.Eventually("the refused slot being offline", func() bool {
		return s.Count("SELECT count(*) FROM agent_workers WHERE state = 'online'") == 2
	})
	if got := state(s, m); got != "online" {
		t.Errorf("agent is %s", got)
	}
	dial(t, s.Mint("b").Config) // the cap is per agent
}

// dialOrRefused connects and says hello, and leaves it to the caller what comes back.
func dialOrRefused(t *testing.T, cfg agentclient.Config) *agentclient.WS {
	t.Helper()
	ws := open(t, cfg)
	must(t, ws.SendRaw(cfg.HelloFrame()))
	return ws
}

// Agent protocol B.1: the path is exact; subprotocols, query, Origin and extensions are ignored; a message may come in
// fragments.
func TestUpgradeIgnoresWhatItDoesNotNeed(t *testing.T) {
	s := appliancetest.Start(t)
	m := s.Mint("a")
	dialer := websocket.Dialer{EnableCompression: true, Subprotocols: []string{"z4j"}, WriteBufferSize: 16}
	base := "ws" + strings.TrimPrefix(s.URL(), "http")
	header := http.Header{"Authorization": {"bearer \t " + m.Token.Reveal()}, "Origin": {"https://elsewhere.example"}}
	conn, resp, err := dialer.DialContext(t.Context(), base+"/ws/agent?x=1", header)
	must(t, err)
	defer conn.Close()
	must(t, conn.SetReadDeadline(time.Now().Add(appliancetest.Wait)))
	if ext := resp.Header.Get("Sec-WebSocket-Extensions"); ext != "" {
		t.Errorf("extensions %q", ext)
	}
	must(t, conn.WriteMessage(websocket.TextMessage, []byte(hello(nil)))) // in fragments of 16 bytes
	if _, data, err := conn.ReadMessage(); err != nil || !strings.Contains(string(data), `"hello_ack"`) {
		t.Errorf("answered %s, %v", data, err)
	}
	for _, path := range []string{"/ws", "/ws/agent/", "/ws/agents", "/api/v1/ws/agent"} {
		_, resp, err := dialer.DialContext(t.Context(), base+path, header)
		if err == nil || resp == nil || resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %v", path, err)
		}
	}
}
