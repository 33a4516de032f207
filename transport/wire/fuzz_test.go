package wire

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"signalbox/appliance/rawjson"
)

func addFrames(f *testing.F) {
	for _, c := range readVectors(f).Frames {
		f.Add([]byte(c.Wire))
		f.Add([]byte(c.Canonical))
	}
	f.Add([]byte(fullHello))
	f.Add([]byte(`{"v":3,"type":"heartbeat"}`))
	f.Add([]byte(`{"v":2,"type":"command_result","payload":{"status":"success"},"hmac":"","v":2}`))
	f.Add([]byte(`{"v":2,"type":"error","payload":null,"seq":9223372036854775808,"nonce":"","ts":"2026-01-02T03:04:05+01:00"}`))
}

// FuzzFrame parses anything and checks that the outcome is one of the classes.
func FuzzFrame(f *testing.F) {
	addFrames(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		before := bytes.Clone(in)
		h, err := ParseHello(in)
		if err != nil && !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrVersionSkew) {
			t.Fatalf("hello: error outside the classes: %v", err)
		}
		if err == nil && (h.ID == "" || !rawjson.Valid(h.Host)) {
			t.Fatalf("hello was accepted as %+v", h)
		}
		frame, err := ParseFrame(in)
		if err != nil {
			if errors.Is(err, ErrMalformed) == errors.Is(err, ErrVersionSkew) || IsSignatureClass(err) {
				t.Fatalf("frame: error outside the classes: %v", err)
			}
			return
		}
		defer frame.Release()
		if !bytes.Equal(frame.Raw(), before) {
			t.Fatal("the input was changed")
		}
		if k := frame.Payload.Kind(); !frame.Unsigned() && k != rawjson.Object && k != rawjson.Missing {
			t.Fatalf("payload is %s", k)
		}
		if frame.Seq < 0 || frame.Type == "" {
			t.Fatalf("accepted as %+v", frame)
		}
	})
}

// FuzzVerify holds the two sides of the signature together. Whatever a frame says, a peer with the key can sign it and
// we agree on the signature; and no frame verifies without it.
func FuzzVerify(f *testing.F) {
	addFrames(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		frame, err := ParseFrame(in)
		if err != nil {
			return
		}
		now := frame.Time
		if err := NewVerifier(testBinding).Verify(&frame, now); err == nil {
			t.Fatalf("%q verifies under a key it was not signed with", in)
		}
		if frame.Unsigned() || frame.Doc.Root().Has("hmac") || len(bytes.TrimSpace(in)) < 3 {
			return
		}
		signed := signRaw(t, testBinding, string(bytes.TrimLeft(in, " \t\r\n")))
		good := mustParse(t, signed)
		v := NewVerifier(testBinding)
		if err := v.Verify(good, now); errors.Is(err, ErrSignature) {
			t.Fatalf("%q does not verify", signed)
		} else if err == nil && v.seq != good.Seq || err != nil && v.seq != 0 {
			t.Fatalf("after %v the guard is at %d", err, v.seq)
		}
		// Any spelling of the same frame verifies alike.
		canonical := mustParse(t, rawjson.AppendCanonical(nil, good.Doc.Root()))
		if err := NewVerifier(testBinding).Verify(canonical, now); errors.Is(err, ErrSignature) {
			t.Fatalf("the canonical spelling of %q does not verify", signed)
		}
	})
}

func FuzzParseTime(f *testing.F) {
	for _, s := range []string{"2026-01-02T03:04:05.678901Z", "2026-01-02T03:04:05+01:30", "0001-01-01T00:00:00-23", "2026-02-30T00:00:00Z"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseTime(s)
		if err != nil {
			return
		}
		// What is also RFC 3339 must mean the same to the standard library.
		if std, err := time.Parse(time.RFC3339Nano, s); err == nil && !std.Equal(got) {
			t.Fatalf("%s: got %v, want %v", s, got, std)
		}
		if y := got.Year(); y < 1 || y > 9999 {
			return
		}
		if back, err := ParseTime(string(AppendTime(nil, got))); err != nil || !back.Equal(got.Truncate(time.Microsecond)) {
			t.Fatalf("%s: written and read again as %v, %v", s, back, err)
		}
	})
}
