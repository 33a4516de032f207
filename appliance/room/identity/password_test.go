package identity

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/secret"
)

func TestHashIsPHC(t *testing.T) {
	t.Parallel()
	h := newHasher(0)
	if cap(h.slots) != 2 {
		t.Errorf("%d slots", cap(h.slots))
	}
	pw := secret.NewText("correct horse")
	stored, err := h.hash(t.Context(), pw)
	if err != nil || !strings.HasPrefix(stored, "$argon2id$v=19$m=19456,t=2,p=1$") {
		t.Fatalf("%q, %v", stored, err)
	}
	if again, _ := h.hash(t.Context(), pw); again == stored {
		t.Error("no salt")
	}
	for _, c := range []struct {
		password string
		ok       bool
	}{{"correct horse", true}, {"correct horsf", false}, {"", false}} {
		ok, stale, err := h.verify(t.Context(), stored, secret.NewText(c.password))
		if err != nil || ok != c.ok || stale {
			t.Errorf("%q: %v %v %v", c.password, ok, stale, err)
		}
	}
	// A value from the reference implementation's command line: argon2 somesalt -id -t 2 -m 16 -p 1 -l 32 -e.
	known := "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc"
	ok, stale, err := h.verify(t.Context(), known, secret.NewText("password"))
	if err != nil || !ok || !stale {
		t.Errorf("known answer: %v %v %v", ok, stale, err)
	}
}

func TestDamagedHashes(t *testing.T) {
	t.Parallel()
	good := "$argon2id$v=19$m=64,t=1,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	if _, _, _, err := parse(good); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{{"argon2id", "argon2i"}, {"v=19", "v=16"}, {"m=64", "m=999999999"}, {"m=64", "m=0"},
		{"t=1", "t=0"}, {"t=1", "t=99"}, {"p=1", "p=0"}, {"p=1", "p=999"}, {"m=64", "m=064"}, {"$AAAAAAAAAAAAAAAAAAAAAA$", "$AAAA$"},
		{"AAA", "A*A"}, {"m=64,", "m=64, "}, {"$argon2id", "x$argon2id"}} {
		bad := strings.Replace(good, c[0], c[1], 1)
		if _, _, _, err := parse(bad); !fault.Is(err, fault.Internal) || strings.Contains(err.Error(), "AAAA") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func FuzzParseHash(f *testing.F) {
	f.Add("$argon2id$v=19$m=64,t=1,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		p, salt, key, err := parse(s)
		if err == nil && (format(p, salt, key) != s || p.memory > mostMemory || p.time > mostTime) {
			t.Errorf("%q was read as %+v", s, p)
		}
	})
}

func TestHasherIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHasher(1)
		h.params = params{memory: 8, time: 1, threads: 1, salt: 16, key: 16}
		leave, err := h.enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		given := make(chan error, maxWaiting)
		for range maxWaiting {
			go func() {
				_, _, err := h.verify(ctx, "", secret.NewText("x"))
				given <- err
			}()
		}
		synctest.Wait()
		if _, err := h.hash(t.Context(), secret.NewText("x")); !fault.Is(err, fault.Unavailable) {
			t.Errorf("one more: %v", err)
		}
		cancel()
		for range maxWaiting {
			if err := <-given; !fault.Is(err, fault.Canceled) {
				t.Errorf("given up: %v", err)
			}
		}
		leave()
		if _, err := h.hash(t.Context(), secret.NewText("x")); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

func TestAttemptsAreBounded(t *testing.T) {
	t.Parallel()
	c := clock.NewFake(time.Unix(1_000_000, 0))
	a := newAttempts(c)
	for i := range 3 * maxAttempts {
		p, err := a.begin(fmt.Sprintf("p%d@x", i), fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255))
		if err != nil {
			t.Fatal(err)
		}
		if told := p.failed(); told != (i < maxRecords) {
			t.Fatalf("failure %d: told %v", i, told)
		}
	}
	if n := len(a.byKey); n > maxAttempts+1 || n != a.order.Len() {
		t.Errorf("%d counters, %d in order", n, a.order.Len())
	}
	c.Advance(failWindow)
	p, err := a.begin("p@x", "::1")
	if err != nil {
		t.Fatal(err)
	}
	if !p.failed() {
		t.Error("the first failure of a new window is not told")
	}
	p, err = a.begin("p@x", "::1")
	if err != nil {
		t.Fatal(err)
	}
	p.succeeded()
	p, err = a.begin("q@x", "::1")
	if err != nil {
		t.Fatal(err)
	}
	p.undecided()
	c.Advance(failWindow)
	p, err = a.begin("p@x", "::2")
	if err != nil {
		t.Fatal(err)
	}
	p.undecided()
	if n := len(a.byKey); n != 0 || a.order.Len() != 0 {
		t.Errorf("%d counters after the window", n)
	}
}

// Attempts that run at once are counted before any of them is decided.
func TestAttemptsCountWhileUndecided(t *testing.T) {
	t.Parallel()
	a := newAttempts(clock.NewFake(time.Unix(1_000_000, 0)))
	var begun []*attempt
	for {
		p, err := a.begin("p@x", "10.0.0.1")
		if err != nil {
			break
		}
		begun = append(begun, p)
	}
	if len(begun) != failsOfPair {
		t.Fatalf("%d at once", len(begun))
	}
	begun[0].undecided()
	if _, err := a.begin("p@x", "10.0.0.1"); err != nil {
		t.Errorf("one was given back: %v", err)
	}
	begun[1].succeeded()
	if _, err := a.begin("p@x", "10.0.0.1"); err != nil {
		t.Errorf("after a success: %v", err)
	}
}
