package appliance_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/config"
	"signalbox/appliance/secret"
	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

// The common inputs of agent protocol C.9.
const (
	vectorMaster  = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	vectorProject = "3f2b8c1e-6a4d-4e7f-9b10-2c5d7e8f9a01"
	vectorAgent   = "a1b2c3d4-e5f6-4789-8abc-def012345678"
	vectorNonce   = "Zk3rT0Qw9yXbN7uLs2Vd4A"
	vectorToken   = "example-agent-token-AAAAAAAAAAAAAAAAAAAAAAAAAAA"
	vectorHash    = "ae04a431e3c47d5e40c0d013f5d423b2d1cc87865b005791937ec9b6eff03e9e"
	vectorSecret  = "cTmjnq0aDBFLIEh6t5DNQ6nV_hpAc1yFxMP5g9VzEA4="
)

// The wire frames of V1, V2 and V5.
const (
	vectorV1 = `{"v":2,"id":"hb_0001","ts":"2026-01-02T03:04:05.678901Z","nonce":"AAAAAAAAAAAAAAAAAAAAAA","seq":1,"hmac":"1dbea719095cdf60ee0bfd303deb7cc7d3df906d0bab637dcd38ef393d2d2eb0","type":"heartbeat","payload":{"buffer_size":0,"last_flush_at":null,"dropped_events":0,"telemetry_loss":null,"adapter_health":{}}}`
	vectorV2 = `{"type":"event_batch","v":2,"seq":7,"ts":"2026-01-02T03:04:06Z","id":"ev_00112233445566778899aabbccddeeff","nonce":"BBBBBBBBBBBBBBBBBBBBBB","payload":{"events":[{"id":"0b7f3c52-8f0e-4a43-9a38-5b1d2f3c4d5e","kind":"task.succeeded","engine":"celery","task_id":"t-1","occurred_at":"2026-01-02T03:04:05.250000+00:00","data":{"task_name":"app.r\u00e9sum\u00e9","runtime_ms":12,"ratio":1.0,"tiny":0.0000001,"big":1e16,"html":"\u003ca&b>","quote":"a\"b\\c\n\u0001\u2028","nested":{"b":true,"a":null}}}]},"hmac":"6c4f896a74fa9eecee78685bcdf23ae89a6e671209661b5d934adc7e17ebb8f8"}`
	vectorV5 = `{"hmac":"eebe0ff2222db8e26e5687f1a141a7c1056dc861f73b6ccbe37eba16ad37df30","id":"hb_0002","nonce":"EEEEEEEEEEEEEEEEEEEEEE","payload":{"Z":3,"a":4,"adapter_health":{"celery.queue_depths":"{\"emails\": 42}"},"buffer_size":3,"dropped_events":0,"last_flush_at":"2026-01-02T03:04:00Z","n":123456789012345678901234567890,"ﬁ":2,"😀":1},"seq":2,"ts":"2026-01-02T03:04:09.000001Z","type":"heartbeat","v":2,"x_future":"kept"}`
)

// startVectors starts an appliance that knows the project and the agent of the vectors, at their time.
func startVectors(t *testing.T) (*appliancetest.Server, *appliancetest.Minted) {
	s := appliancetest.Start(t, frozen(), configure(func(c *config.Config) { c.Secret.Secret = config.NewSecret(vectorMaster) }))
	m := s.Mint("vector")
	s.Stop()
	project, id := uuid.MustParse(vectorProject), uuid.MustParse(vectorAgent)
	s.Write("UPDATE projects SET id = ?", project[:])
	s.Write("UPDATE agents SET id = ?, token_hash = ?", id[:], vectorHash)
	s.Restart()
	key, err := agentclient.DecodeSecret(vectorSecret)
	if err != nil {
		t.Fatal(err)
	}
	m.ID, m.Token, m.ProjectSecret, m.URL = id, secret.NewText(vectorToken), key, s.URL()
	return s, m
}

// Checklist 1: the frames of the vectors pass a running server, and no changed one does.
func TestVectorsPassARunningServer(t *testing.T) {
	s, m := startVectors(t)
	lp, err := agentclient.OpenLPNonce(t.Context(), m.Config, vectorNonce)
	if err != nil {
		t.Fatal(err)
	}
	if lp.AgentID.String() != vectorAgent || lp.ProjectID.String() != vectorProject {
		t.Fatalf("identity headers %s %s", lp.AgentID, lp.ProjectID)
	}
	if up, err := lp.UploadRaw(t.Context(), vectorV2); err != nil || up.Accepted != 1 || up.Rejected != 0 {
		t.Fatalf("V2: %+v, %v", up, err)
	}
	if id := s.Text("SELECT lower(hex(id)) FROM events"); id != strings.ReplaceAll("4355ffe0-7951-5160-b8c5-01ff040bd1b0", "-", "") {
		t.Errorf("event id %s", id)
	}
	if name := s.Text("SELECT name FROM tasks WHERE task_id = 't-1' AND state = 'success'"); name != "app.résumé" {
		t.Errorf("task name %q", name)
	}
	legacy, err := agentclient.OpenLPNonce(t.Context(), m.Config, "")
	if err != nil {
		t.Fatal(err)
	}
	if up, err := legacy.UploadRaw(t.Context(), vectorV5); err != nil || up.Accepted != 1 {
		t.Fatalf("V5: %+v, %v", up, err)
	}
	if n := s.Count("SELECT pending_count FROM queues WHERE name = 'emails'"); n != 42 {
		t.Errorf("queue depth %d", n)
	}
	ws := dial(t, m.Config)
	if err := ws.SendRaw([]byte(vectorV1)); err != nil { // signed for another session
		t.Fatal(err)
	}
	if code := closed(t, ws); code != 4403 {
		t.Errorf("V1 under another session id: closed with %d", code)
	}
}

// Checklist 1, negative checks of agent protocol C.9.
func TestVectorsFailWhenChanged(t *testing.T) {
	for name, c := range map[string]struct{ nonce, frame string }{
		"another session":    {"Zk3rT0Qw9yXbN7uLs2Vd4B", vectorV2},
		"no session":         {"", vectorV2},
		"removed key":        {"", strings.Replace(vectorV5, `,"x_future":"kept"`, "", 1)},
		"removed inner key":  {"", strings.Replace(vectorV5, `"Z":3,`, "", 1)},
		"upper-case hex":     {vectorNonce, strings.Replace(vectorV2, "6c4f896a74fa", "6C4F896A74FA", 1)},
		"other float value":  {vectorNonce, strings.Replace(vectorV2, "0.0000001", "0.0000002", 1)},
		"integer for float":  {vectorNonce, strings.Replace(vectorV2, `"ratio":1.0`, `"ratio":1`, 1)},
		"other event":        {vectorNonce, strings.Replace(vectorV2, "task.succeeded", "task.failed", 1)},
		"hmac is no string":  {vectorNonce, strings.Replace(vectorV2, `"6c4f896a74fa9eecee78685bcdf23ae89a6e671209661b5d934adc7e17ebb8f8"`, "7", 1)},
		"hmac of nobody":     {vectorNonce, strings.Replace(vectorV2, "6c4f", "6c4e", 1)},
		"sequence rewritten": {vectorNonce, strings.Replace(vectorV2, `"seq":7`, `"seq":8`, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, m := startVectors(t)
			lp, err := agentclient.OpenLPNonce(t.Context(), m.Config, c.nonce)
			if err != nil {
				t.Fatal(err)
			}
			before := s.State()
			_, err = lp.UploadRaw(t.Context(), c.frame)
			wantStatus(t, err, 409)
			s.Unchanged(before)
		})
	}
}

// Checklist 1: what the server signs is V3 and V4 with its own nonce and time, computed here without its code.
func TestServerSignsLikeTheVectors(t *testing.T) {
	s, m := startVectors(t)
	lp, err := agentclient.OpenLPNonce(t.Context(), m.Config, vectorNonce)
	if err != nil {
		t.Fatal(err)
	}
	online(t, lp)
	issued := s.Issue(m, "cancel-task", cancelFields("t-1"))
	r := request(t, s, "GET", commandsPath+"?wait=0", "", "Authorization", bearer(m), noncePath, vectorNonce)
	var answer struct{ Frames []string }
	if err := json.Unmarshal(r.body, &answer); err != nil || len(answer.Frames) != 1 {
		t.Fatalf("answered %d %s: %v", r.status, r.body, err)
	}
	wantSigned(t, answer.Frames[0], `{"agent_id":"`+vectorAgent+`","id":"`+issued.ID+`","nonce":"NONCE","payload":{"action":"cancel_task","delivery_claim_token":null,"issued_by":"local","parameters":{"engine":"celery","task_id":"t-1"},"target":{"engine":"celery","id":"celery:t-1","type":"task"},"timeout_seconds":60},"project_id":"`+vectorProject+`","seq":1,"session_id":"`+vectorNonce+`","ts":"TS","type":"command","v":2}`)

	ws := dial(t, m.Config)
	if err := ws.Send(wire.TypeEventBatch, "ev_0011", batch("t-2", epoch)); err != nil {
		t.Fatal(err)
	}
	f := receive(t, ws, wire.TypeEventBatchAck)
	defer f.Release()
	wantSigned(t, string(f.Raw()), `{"agent_id":"`+vectorAgent+`","id":"eba_ev_0011","nonce":"NONCE","payload":{"accepted":1,"acked_id":"ev_0011","received":1,"rejected":0},"project_id":"`+vectorProject+`","seq":1,"session_id":"`+ws.SessionID+`","ts":"TS","type":"event_batch_ack","v":2}`)
}

// wantSigned checks the hmac of a frame against its canonical form, given with NONCE and TS for what the signer chooses.
func wantSigned(t *testing.T, frame, canonical string) {
	t.Helper()
	var f struct{ Nonce, TS, HMAC string }
	if err := json.Unmarshal([]byte(frame), &f); err != nil {
		t.Fatal(err)
	}
	canonical = strings.Replace(strings.Replace(canonical, "NONCE", f.Nonce, 1), "TS", f.TS, 1)
	key, _ := hex.DecodeString("7139a39ead1a0c114b20487ab790cd43a9d5fe1a40735c85c4c3f983d573100e")
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(canonical))
	if want := hex.EncodeToString(mac.Sum(nil)); f.HMAC != want {
		t.Errorf("signature is not that of the canonical form\nframe     %s\ncanonical %s", frame, canonical)
	}
}
