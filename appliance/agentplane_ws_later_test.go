package appliance_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/config"
	"signalbox/appliance/rawjson"
	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

// seal signs the text of a frame that has no hmac: for frames that no signer would make.
func seal(t *testing.T, b wire.Binding, frame string) []byte {
	t.Helper()
	doc, err := rawjson.Parse([]byte(frame))
	if err != nil {
		t.Fatalf("%v in %s", err, frame)
	}
	defer doc.Release()
	mac := hmac.New(sha256.New, b.Secret.Reveal())
	mac.Write(b.AppendSigned(nil, doc.Root()))
	return []byte(frame[:len(frame)-1] + `,"hmac":"` + hex.EncodeToString(mac.Sum(nil)) + `"}`)
}

func bindingOf(m *appliancetest.Minted, project uuid.UUID, session string) wire.Binding {
	return wire.Binding{Secret: m.ProjectSecret, AgentID: m.ID, ProjectID: project, Session: session}
}

// raw is the text of a heartbeat with the members of the replay guard as JSON texts.
func raw(seq, nonce, ts string) string {
	return fmt.Sprintf(`{"v":2,"id":"x","type":"heartbeat","payload":{},"seq":%s,"nonce":%s,"ts":%s}`, seq, nonce, ts)
}

func stamp(at time.Time) string { return `"` + at.Format("2006-01-02T15:04:05.000000Z") + `"` }

// Agent protocol B.6, C.7, C.8: a later frame that is malformed closes with 4400, one whose signature or replay check
// fails with 4403. Nothing of it is stored.
func TestLaterFrameRefusals(t *testing.T) {
	s := appliancetest.Start(t, frozen(), configure(unlimited), configure(func(c *config.Config) { c.Agent.WSMaxFrame = 8 << 10 }))
	m := s.Mint("a")
	issuedTo := s.Issue(m, "restart-worker", restartFields())
	first := dial(t, m.Config)
	command(t, first)
	now := stamp(s.Now())
	signedType := func(typ, payload string) string {
		return fmt.Sprintf(`{"v":2,"id":"%s","type":"%s","payload":%s,"seq":5,"nonce":"n5","ts":%s}`, issuedTo.ID, typ, payload, now)
	}
	type refusal struct {
		code   int
		sealed bool
		frame  string
	}
	cases := map[string]refusal{
		"not JSON":               {4400, false, `hello`},
		"empty":                  {4400, false, ``},
		"not an object":          {4400, false, `[]`},
		"unknown type":           {4400, true, signedType("hi", `{}`)},
		"no type":                {4400, true, `{"v":2,"id":"x","payload":{},"seq":5,"nonce":"n5","ts":` + now + `}`},
		"v 3":                    {4400, true, strings.Replace(signedType("heartbeat", `{}`), `"v":2`, `"v":3`, 1)},
		"v 1":                    {4400, true, strings.Replace(signedType("heartbeat", `{}`), `"v":2`, `"v":1`, 1)},
		"v text":                 {4400, true, strings.Replace(signedType("heartbeat", `{}`), `"v":2`, `"v":"2"`, 1)},
		"payload list":           {4400, true, signedType("heartbeat", `[]`)},
		"payload text":           {4400, true, signedType("event_batch", `"x"`)},
		"result without status":  {4400, true, signedType("command_result", `{}`)},
		"result of other status": {4400, true, signedType("command_result", `{"status":"done"}`)},
		"lone surrogate":         {4400, false, signedType("heartbeat", `{"x":"\udc00"}`)},
		"overflowing float":      {4400, false, signedType("heartbeat", `{"x":1e999}`)},
		"oversize":               {4400, false, signedType("heartbeat", `{"x":"`+strings.Repeat("x", 8<<10)+`"}`)},
		"no hmac":                {4403, false, signedType("event_batch", `{"events":[]}`)},
		"wrong hmac":             {4403, false, strings.Replace(signedType("event_batch", `{"events":[]}`), `"seq"`, `"hmac":"`+strings.Repeat("0", 64)+`","seq"`, 1)},
		"forged result":          {4403, false, signedType("command_result", `{"status":"success"}`)},
		"forged bad result":      {4403, false, signedType("command_result", `{"status":"done"}`)}, // hmac is judged first
		"seq 0":                  {4403, true, raw("0", `"n"`, now)},
		"seq -1":                 {4403, true, raw("-1", `"n"`, now)},
		"seq text":               {4403, true, raw(`"1"`, `"n"`, now)},
		"seq 1.0":                {4403, true, raw("1.0", `"n"`, now)},
		"seq 2^63":               {4403, true, raw("9223372036854775808", `"n"`, now)},
		"seq null":               {4403, true, raw("null", `"n"`, now)},
		"empty nonce":            {4403, true, raw("9", `""`, now)},
		"long nonce":             {4403, true, raw("9", `"`+strings.Repeat("n", 33)+`"`, now)},
		"nonce 7":                {4403, true, raw("9", `7`, now)},
		"ts null":                {4403, true, raw("9", `"n"`, "null")},
		"naive ts":               {4403, true, raw("9", `"n"`, `"2026-01-02T03:04:06"`)},
		"ts 61 s early":          {4403, true, raw("9", `"n"`, stamp(s.Now().Add(-61*time.Second)))},
		"ts 61 s late":           {4403, true, raw("9", `"n"`, stamp(s.Now().Add(61*time.Second)))},
		"ts just too late":       {4403, true, raw("9", `"n"`, stamp(s.Now().Add(60*time.Second+time.Microsecond)))},
	}
	s.Eventually("the delivery being stamped", func() bool { return s.Count("SELECT count(*) FROM deliveries WHERE sent_at IS NOT NULL") == 1 })
	must(t, first.Close())
	before := s.State()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			ws := dial(t, m.Config)
			frame := []byte(c.frame)
			if c.sealed {
				frame = seal(t, bindingOf(m, ws.ProjectID, ws.SessionID), c.frame)
			}
			must(t, ws.SendRaw(frame))
			if code := closed(t, ws); code != c.code {
				t.Errorf("closed with %d, want %d", code, c.code)
			}
		})
	}
	s.Unchanged(before)
}

// Agent protocol C.6: frames that were accepted once are not accepted again, gaps are, and the guard's edges hold.
func TestReplayGuardOverWebSocket(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m := s.Mint("a")
	good := func(ws *agentclient.WS, frame string) {
		t.Helper()
		must(t, ws.SendRaw(seal(t, bindingOf(m, ws.ProjectID, ws.SessionID), frame)))
	}
	batchOf := func(seq int64, nonce string) string {
		return fmt.Sprintf(`{"v":2,"id":"ev_%d","type":"event_batch","payload":{"events":[]},"seq":%d,"nonce":"%s","ts":%s}`, seq, seq, nonce, stamp(s.Now()))
	}
	for name, again := range map[string]string{"same frame": batchOf(17, "n7"), "lower seq": batchOf(16, "n6"),
		"same seq": batchOf(17, "n8"), "same nonce": batchOf(18, "n7")} {
		ws := dial(t, m.Config)
		good(ws, raw("11", `"`+strings.Repeat("é", 32)+`"`, stamp(s.Now().Add(-60*time.Second))))
		good(ws, raw("13", `"n3"`, stamp(s.Now().Add(60*time.Second))))
		good(ws, batchOf(17, "n7")) // a gap
		f := receive(t, ws, wire.TypeEventBatchAck)
		f.Release()
		good(ws, again)
		if code := closed(t, ws); code != 4403 {
			t.Errorf("%s: closed with %d, want 4403", name, code)
		}
	}
	ws := dial(t, m.Config)
	good(ws, batchOf(9223372036854775807, "last"))
	receive(t, ws, wire.TypeEventBatchAck)
}

// Agent protocol B.6: a frame of exactly the cap passes; the smaller of both settings counts and is what hello_ack tells.
func TestFrameCap(t *testing.T) {
	s := appliancetest.Start(t, frozen(), configure(func(c *config.Config) { c.Agent.WSFrameLimit = 9000 }))
	m := s.Mint("a")
	ws := dial(t, m.Config)
	if ws.MaxFrame != 9000 {
		t.Errorf("hello_ack tells a cap of %d", ws.MaxFrame)
	}
	frame := func(pad int) []byte {
		return seal(t, bindingOf(m, ws.ProjectID, ws.SessionID), fmt.Sprintf(
			`{"v":2,"id":"ev_1","type":"event_batch","payload":{"events":[]},"seq":11,"nonce":"n","ts":%s,"pad":"%s"}`, stamp(s.Now()), strings.Repeat("x", pad)))
	}
	must(t, ws.SendRaw(frame(9000-len(frame(0)))))
	f := receive(t, ws, wire.TypeEventBatchAck)
	f.Release()
	must(t, ws.SendRaw(make([]byte, 9001)))
	if code := closed(t, ws); code != 4400 {
		t.Errorf("closed with %d", code)
	}
}

// Agent protocol B.6: a further hello or hello_ack is ignored, whatever it holds; it is neither liveness nor answered.
func TestFurtherHelloIsIgnored(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m := s.Mint("a")
	ws := dial(t, m.Config)
	settle(t, ws)
	seen := s.Count("SELECT last_seen_at FROM agents")
	before := s.State()
	s.Clock.Advance(5 * time.Second)
	pong := make(chan struct{})
	ws.Conn().SetPongHandler(func(string) error { close(pong); return nil })
	must(t, ws.SendRaw([]byte(hello(map[string]string{"framework": `"django"`, "worker_id": `"other"`}))))
	must(t, ws.SendRaw([]byte(`{"v":7,"type":"hello","payload":null}`)))
	must(t, ws.SendRaw([]byte(`{"type":"hello_ack"}`)))
	must(t, ws.Conn().WriteControl(9, nil, time.Now().Add(appliancetest.Wait)))
	read := make(chan string, 1)
	go func() {
		_, data, _ := ws.Conn().ReadMessage()
		read <- string(data)
	}()
	select {
	case <-pong: // what came before the ping has been handled
	case <-time.After(appliancetest.Wait):
		t.Fatal("no pong")
	}
	s.Unchanged(before)
	if now := s.Count("SELECT last_seen_at FROM agents"); now != seen {
		t.Error("a further hello counts as liveness")
	}
	must(t, ws.Send(wire.TypeEventBatch, "ev_after", []byte(`{"events":[]}`)))
	select {
	case got := <-read:
		if !strings.Contains(got, "eba_ev_after") {
			t.Errorf("answered %s", got)
		}
	case <-time.After(appliancetest.Wait):
		t.Fatal("the session is dead")
	}
}

// Agent protocol B.6: no message for 90 s.
func TestIdleTimeout(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	m := s.Mint("a")
	ws := dial(t, m.Config)
	settle(t, ws)
	for range 89 {
		s.Clock.Advance(time.Second)
	}
	settle(t, ws) // still there
	begun := s.Now()
	code := make(chan int, 1)
	go func() {
		for {
			if _, err := ws.Receive(); err != nil {
				ce, _ := err.(*agentclient.CloseError)
				if ce == nil {
					ce = &agentclient.CloseError{}
				}
				code <- ce.Code
				return
			}
		}
	}()
	s.Pump(time.Second, "the idle timeout", func(wait <-chan time.Time) bool {
		select {
		case got := <-code:
			if got != 4408 {
				t.Errorf("closed with %d", got)
			}
			return true
		case <-wait:
			return false
		}
	})
	if idle := s.Now().Sub(begun); idle < 90*time.Second {
		t.Errorf("closed after %v", idle)
	}
	s.Eventually("the agent going offline", func() bool { return state(s, m) == "offline" })
}

// Agent protocol B.8: archiving a project closes its sockets with 4003 and ends its parked polls with 403.
func TestArchiveReachesLiveSessions(t *testing.T) {
	s := appliancetest.Start(t)
	s.NewProject("other")
	m, bystander := s.MintIn("other", "a"), dial(t, s.Mint("b").Config)
	ws := dial(t, m.Config)
	lp := openLP(t, m.Config)
	done := park(t, s, lp, 60*time.Second, 50)
	s.Archive("other")
	if code := closed(t, ws); code != 4003 {
		t.Errorf("closed with %d", code)
	}
	if se := wantStatus(t, ended(t, done).err, 403); se.Code != "project_inactive" || !strings.Contains(string(se.Body), m.ID.String()) {
		t.Errorf("body %s", se.Body)
	}
	settle(t, bystander)
}
