package wire

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/rawjson"
	"signalbox/appliance/secret"
)

var (
	testNow     = time.Date(2026, 1, 2, 3, 4, 5, 250000, time.UTC)
	testBinding = Binding{Secret: secret.NewBytes([]byte(strings.Repeat("k", 32))),
		AgentID: uuid.UUID{1}, ProjectID: uuid.UUID{2}, Session: "s"}
)

// signRaw signs any JSON object the way a peer would, without the checks of Signer. It returns the frame with hmac added.
func signRaw(t testing.TB, b Binding, frame string) []byte {
	t.Helper()
	doc, err := rawjson.Parse([]byte(frame))
	if err != nil {
		t.Fatal(err)
	}
	mac := NewVerifier(b).mac
	mac.Write(b.AppendSigned(nil, doc.Root()))
	return fmt.Appendf(nil, `{"hmac":"%x",%s`, mac.Sum(nil), frame[1:])
}

func mustParse(t testing.TB, b []byte) *Frame {
	t.Helper()
	f, err := ParseFrame(b)
	if err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return &f
}

func TestParseFrameClasses(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     error
		says     string
	}{
		{"not JSON", `{"v":2`, ErrMalformed, "unexpected end"},
		{"not an object", `[1]`, ErrMalformed, "got array"},
		{"unrepresentable value", `{"v":2,"type":"heartbeat","x":1e999}`, ErrMalformed, "out of range"},
		{"no v", `{"type":"heartbeat","payload":{}}`, ErrMalformed, "v must be an integer, got missing"},
		{"v null", `{"v":null,"type":"heartbeat"}`, ErrMalformed, "got null"},
		{"v bool", `{"v":true,"type":"heartbeat"}`, ErrMalformed, "got boolean"},
		{"v string", `{"v":"2","type":"heartbeat"}`, ErrMalformed, "got string"},
		{"v float", `{"v":2.0,"type":"heartbeat"}`, ErrMalformed, "got float"},
		{"v 1", `{"v":1,"type":"heartbeat"}`, ErrVersionSkew, "v must be 2"},
		{"v huge", `{"v":99999999999999999999,"type":"heartbeat"}`, ErrVersionSkew, "v must be 2"},
		{"v judged before type", `{"v":3,"type":"nonsense"}`, ErrVersionSkew, ""},
		{"last v counts", `{"v":2,"type":"heartbeat","v":3}`, ErrVersionSkew, ""},
		{"no type", `{"v":2}`, ErrMalformed, "type must be a string, got missing"},
		{"type number", `{"v":2,"type":1}`, ErrMalformed, "type must be a string, got integer"},
		{"type unknown", `{"v":2,"type":"Heartbeat"}`, ErrMalformed, "type is unknown"},
		{"payload list", `{"v":2,"type":"heartbeat","payload":[]}`, ErrMalformed, "payload must be an object, got array"},
		{"payload absent", `{"v":2,"type":"heartbeat"}`, nil, ""},
		{"payload null", `{"v":2,"type":"heartbeat","payload":null}`, nil, ""},
		{"escaped names", `{"\u0076":2,"t\u0079pe":"heart\u0062eat"}`, nil, ""},
		{"hello of another version", `{"v":1,"type":"hello","payload":7}`, nil, ""},
		{"hello without anything", `{"type":"hello"}`, nil, ""},
		{"hello_ack", `{"v":"x","type":"hello_ack"}`, nil, ""},
		{"last type counts", `{"type":"hello","type":"nonsense","v":2}`, ErrMalformed, "type is unknown"},
	} {
		f, err := ParseFrame([]byte(c.in))
		if !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
			continue
		}
		if err != nil {
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: the message %q does not say %q", c.name, err, c.says)
			}
			if IsSignatureClass(err) {
				t.Errorf("%s: %v must not be of the signature class", c.name, err)
			}
			continue
		}
		f.Release()
	}
}

func TestEveryTypeParses(t *testing.T) {
	for _, typ := range Types() {
		f := mustParse(t, []byte(`{"v":2,"type":"`+string(typ)+`","payload":{"a":1}}`))
		if f.Type != typ || f.Unsigned() == typ.Signed() {
			t.Errorf("%s: parsed as %s, unsigned %v", typ, f.Type, f.Unsigned())
		}
	}
}

func TestParseFrameFields(t *testing.T) {
	f := mustParse(t, []byte(`{"v":2,"id":"a\u0062","ts":"2026-01-02T03:04:05.5+01:00","nonce":"n","seq":7,"hmac":"h",
		"type":"command_ack","payload":{"x":[1]},"id":"last"}`))
	if f.ID != "last" || f.Nonce != "n" || f.Seq != 7 || f.HMAC != "h" || f.TS != "2026-01-02T03:04:05.5+01:00" {
		t.Errorf("got %+v", f)
	}
	if want := time.Date(2026, 1, 2, 2, 4, 5, 5e8, time.UTC); !f.Time.Equal(want) {
		t.Errorf("time: got %v", f.Time)
	}
	if string(f.Payload.Raw()) != `{"x":[1]}` {
		t.Errorf("payload: got %s", f.Payload.Raw())
	}
}

// TestVerifyOrder checks steps 5 to 7 of agent protocol C.7, and that a refused frame does not move the guard.
func TestVerifyOrder(t *testing.T) {
	const ts = `"ts":"2026-01-02T03:04:05Z"`
	for _, c := range []struct {
		name, frame string
		want        error
	}{
		{"good", `{"v":2,"type":"heartbeat",` + ts + `,"nonce":"n","seq":1}`, nil},
		{"good result", `{"v":2,"type":"command_result",` + ts + `,"nonce":"n","seq":1,"payload":{"status":"failed"}}`, nil},
		{"result status unknown", `{"v":2,"type":"command_result",` + ts + `,"nonce":"n","seq":1,"payload":{"status":"ok"}}`, ErrMalformed},
		{"result status absent", `{"v":2,"type":"command_result",` + ts + `,"nonce":"n","seq":1}`, ErrMalformed},
		{"result status judged before replay", `{"v":2,"type":"command_result","payload":{"status":1}}`, ErrMalformed},
		{"32 characters of nonce", `{"v":2,"type":"heartbeat",` + ts + `,"nonce":"` + strings.Repeat("é", 32) + `","seq":9223372036854775807}`, nil},
		{"33 characters of nonce", `{"v":2,"type":"heartbeat",` + ts + `,"nonce":"` + strings.Repeat("n", 33) + `","seq":1}`, ErrReplay},
		{"empty nonce", `{"v":2,"type":"heartbeat",` + ts + `,"nonce":"","seq":1}`, ErrReplay},
		{"nonce a number", `{"v":2,"type":"heartbeat",` + ts + `,"nonce":1,"seq":1}`, ErrReplay},
		{"seq absent", `{"v":2,"type":"heartbeat",` + ts + `,"nonce":"n"}`, ErrReplay},
		{"seq 0", `{"v":2,"type":"heartbeat",` + ts + `,"nonce":"n","seq":0}`, ErrReplay},
		{"seq negative", `{"v":2,"type":"heartbeat",` + ts + `,"nonce":"n","seq":-1}`, ErrReplay},
		{"seq float", `{"v":2,"type":"heartbeat",` + ts + `,"nonce":"n","seq":1.0}`, ErrReplay},
		{"seq string", `{"v":2,"type":"heartbeat",` + ts + `,"nonce":"n","seq":"1"}`, ErrReplay},
		{"seq 2^63", `{"v":2,"type":"heartbeat",` + ts + `,"nonce":"n","seq":9223372036854775808}`, ErrReplay},
		{"ts absent", `{"v":2,"type":"heartbeat","nonce":"n","seq":1}`, ErrReplay},
		{"ts naive", `{"v":2,"type":"heartbeat","ts":"2026-01-02T03:04:05","nonce":"n","seq":1}`, ErrReplay},
		{"ts early", `{"v":2,"type":"heartbeat","ts":"2026-01-02T03:03:05Z","nonce":"n","seq":1}`, ErrReplay},
		{"ts late", `{"v":2,"type":"heartbeat","ts":"2026-01-02T03:05:05.000251Z","nonce":"n","seq":1}`, ErrReplay},
	} {
		v := NewVerifier(testBinding)
		err := v.Verify(mustParse(t, signRaw(t, testBinding, c.frame)), testNow)
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
		if want := errors.Is(c.want, ErrReplay); IsSignatureClass(err) != want {
			t.Errorf("%s: signature class %v", c.name, !want)
		}
		if c.want != nil && (v.seq != 0 || v.nonces.n != 0) {
			t.Errorf("%s: the refused frame moved the guard", c.name)
		}
		other := testBinding
		other.AgentID[15] = 1
		if err := NewVerifier(other).Verify(mustParse(t, signRaw(t, testBinding, c.frame)), testNow); !errors.Is(err, ErrSignature) {
			t.Errorf("%s: another agent's signature: got %v", c.name, err)
		}
	}
}

func TestVerifyRefusesUnsigned(t *testing.T) {
	f := mustParse(t, []byte(`{"type":"hello","v":2}`))
	if err := NewVerifier(testBinding).Verify(f, testNow); !errors.Is(err, ErrSignature) {
		t.Errorf("hello: got %v", err)
	}
	f = mustParse(t, []byte(`{"type":"heartbeat","v":2,"hmac":null}`))
	if err := NewVerifier(testBinding).Verify(f, testNow); !errors.Is(err, ErrSignature) {
		t.Errorf("hmac null: got %v", err)
	}
}

// TestBoundMembersAreOverwritten sends the bound fields inside the frame: they must not decide what is signed.
func TestBoundMembersAreOverwritten(t *testing.T) {
	frame := signRaw(t, testBinding, `{"v":2,"type":"heartbeat","ts":"2026-01-02T03:04:05Z","nonce":"n","seq":1,"session_id":"mine","agent_id":7,"\u0068mac":"x"}`)
	f := mustParse(t, frame)
	if f.HMAC != "x" {
		t.Fatalf("the last hmac counts, got %q", f.HMAC)
	}
	doc, _ := rawjson.Parse(frame)
	signed := string(testBinding.AppendSigned(nil, doc.Root()))
	if strings.Contains(signed, "mine") || strings.Contains(signed, "hmac") || !strings.Contains(signed, `"session_id":"s"`) {
		t.Errorf("signed bytes: %s", signed)
	}
}

func TestGuardSequenceAndNonce(t *testing.T) {
	v := NewVerifier(testBinding)
	send := func(seq int64, nonce string, now time.Time) error {
		frame := fmt.Sprintf(`{"v":2,"type":"heartbeat","ts":"%s","nonce":"%s","seq":%d}`, rawjson.FormatTime(now), nonce, seq)
		return v.Verify(mustParse(t, signRaw(t, testBinding, frame)), now)
	}
	steps := []struct {
		seq   int64
		nonce string
		after time.Duration
		ok    bool
	}{
		{5, "a", 0, true},
		{5, "b", 0, false},
		{4, "c", 0, false},
		{9, "a", 0, false},
		{6, "b", 0, true}, // 9 was refused, so 6 is still fresh
		{7, "a", 180 * time.Second, false},
		{7, "a", 181 * time.Second, true},
		{8, "b", 181 * time.Second, true},
	}
	for i, s := range steps {
		err := send(s.seq, s.nonce, testNow.Add(s.after))
		if (err == nil) != s.ok || !s.ok && !errors.Is(err, ErrReplay) {
			t.Errorf("step %d: got %v, want ok %v", i, err, s.ok)
		}
	}
}

func TestNonceMemoryIsBounded(t *testing.T) {
	var m nonceMemory
	for i := range 3 * MaxNonces {
		if !m.add(fmt.Sprint(i), testNow) {
			t.Fatalf("fresh nonce %d refused", i)
		}
	}
	if m.n != MaxNonces || len(m.ring) != MaxNonces || len(m.seen) != MaxNonces {
		t.Errorf("holds %d nonces, ring %d, index %d", m.n, len(m.ring), len(m.seen))
	}
	if m.add(fmt.Sprint(2*MaxNonces), testNow) {
		t.Error("the oldest nonce still kept was taken again")
	}
	if !m.add(fmt.Sprint(2*MaxNonces-1), testNow) {
		t.Error("the newest nonce forgotten was refused")
	}
	if !m.add("later", testNow.Add(NonceMemory+time.Second)) || m.n != 1 || len(m.seen) != 1 {
		t.Errorf("after the memory time %d nonces are left", m.n)
	}
}

func TestNonceMemoryKeepsOrderWhenItGrowsWrapped(t *testing.T) {
	var m nonceMemory
	for i := range 16 {
		m.add(fmt.Sprint(i), testNow.Add(time.Duration(i)*time.Second))
	}
	later := testNow.Add(NonceMemory + 8*time.Second) // forgets 0 to 7
	for i := 16; i < 40; i++ {
		m.add(fmt.Sprint(i), later)
	}
	for i := 8; i < 40; i++ {
		if m.add(fmt.Sprint(i), later) {
			t.Errorf("nonce %d was forgotten", i)
		}
	}
	for i := 1; i < m.n; i++ {
		if m.ring[(m.head+i)%len(m.ring)].at < m.ring[(m.head+i-1)%len(m.ring)].at {
			t.Errorf("entry %d is out of order", i)
		}
	}
}

func TestSignerAndVerifierUnderConcurrency(t *testing.T) {
	s, v := NewSigner(testBinding), NewVerifier(testBinding)
	const workers, each = 8, 50
	frames := make(chan []byte, workers*each)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				frames <- s.Sign(testNow, TypeHeartbeat, fmt.Sprintf("%d-%d", w, i), []byte(`{}`))
			}
		})
	}
	wg.Wait()
	close(frames)
	sorted := make([]*Frame, workers*each)
	for b := range frames {
		f := mustParse(t, b)
		if sorted[f.Seq-1] != nil {
			t.Fatalf("seq %d was given twice", f.Seq)
		}
		sorted[f.Seq-1] = f
	}
	for _, f := range sorted {
		if err := v.Verify(f, testNow); err != nil {
			t.Fatalf("seq %d: %v", f.Seq, err)
		}
	}
	accepted := 0
	var mu sync.Mutex
	again := NewVerifier(testBinding)
	for range workers {
		wg.Go(func() {
			if again.Verify(sorted[0], testNow) == nil {
				mu.Lock()
				accepted++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if accepted != 1 {
		t.Errorf("one frame was accepted %d times", accepted)
	}
}

func TestSignedFrameShape(t *testing.T) {
	s := NewSigner(testBinding)
	first := mustParse(t, s.Sign(testNow, TypeCommandAck, strings.Repeat("é", 70), []byte(`{"delivery_claim_token":null}`)))
	second := mustParse(t, s.Sign(testNow.Truncate(time.Second), TypeCommandAck, `q"uote`, []byte(`{}`)))
	if first.Seq != 1 || second.Seq != 2 {
		t.Errorf("seq: got %d and %d", first.Seq, second.Seq)
	}
	if len(first.Nonce) != 22 || first.Nonce == second.Nonce {
		t.Errorf("nonces: got %q and %q", first.Nonce, second.Nonce)
	}
	if first.TS != "2026-01-02T03:04:05.000250Z" || second.TS != "2026-01-02T03:04:05Z" {
		t.Errorf("ts: got %s and %s", first.TS, second.TS)
	}
	if first.ID != strings.Repeat("é", 64) || second.ID != `q"uote` {
		t.Errorf("ids: got %s and %s", first.ID, second.ID)
	}
	v := NewVerifier(testBinding)
	for _, f := range []*Frame{first, second} {
		if err := v.Verify(f, testNow); err != nil {
			t.Error(err)
		}
	}
}

func TestPayloads(t *testing.T) {
	ack := AppendHelloAck(nil, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), HelloAck{BrainVersion: "1.13.0",
		AgentID: uuid.MustParse("a1b2c3d4-e5f6-4789-8abc-def012345678"), ProjectID: uuid.MustParse("3f2b8c1e-6a4d-4e7f-9b10-2c5d7e8f9a01"),
		SessionID: uuid.MustParse("11111111-2222-4333-8444-555555555555"), Heartbeat: 10 * time.Second, MaxFrameBytes: 1048576})
	const want = `{"v":2,"id":"hack_111111112222","ts":"2026-01-02T03:04:05Z","type":"hello_ack","payload":{"protocol_version":"2","brain_version":"1.13.0","agent_id":"a1b2c3d4-e5f6-4789-8abc-def012345678","project_id":"3f2b8c1e-6a4d-4e7f-9b10-2c5d7e8f9a01","session_id":"11111111-2222-4333-8444-555555555555","heartbeat_interval_seconds":10,"max_frame_size_bytes":1048576}}`
	if string(ack) != want {
		t.Errorf("hello_ack\n got %s\nwant %s", ack, want)
	}
	if got := string(AppendError(nil, "c", "a\nb", true)); got != `{"code":"c","fatal":true,"message":"a\nb"}` {
		t.Errorf("error: got %s", got)
	}
	if got := string(AppendEventBatchAck(nil, "b", 5, 3)); got != `{"accepted":3,"acked_id":"b","received":5,"rejected":2}` {
		t.Errorf("event_batch_ack: got %s", got)
	}
	long := strings.Repeat("x", 64)
	if got := EventBatchAckID(long); got != "eba_"+long[:60] {
		t.Errorf("long event_batch_ack id: got %s", got)
	}
	if got := ErrorID(long); got != "err_"+long[:60] {
		t.Errorf("long error id: got %s", got)
	}
}
