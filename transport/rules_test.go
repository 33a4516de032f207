package transport

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func fakeClock() *clock.Fake { return clock.NewFake(time.Unix(1_800_000_000, 0)) }

func prefixes(t *testing.T, texts ...string) []netip.Prefix {
	t.Helper()
	var out []netip.Prefix
	for _, s := range texts {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

func TestResolveClient(t *testing.T) {
	trusted := NewNetworks(prefixes(t, "10.0.0.0/8", "fd00::/8"))
	for _, tc := range []struct {
		name, peer string
		forwarded  []string
		want       string
	}{
		{"direct", "192.0.2.1:80", nil, "192.0.2.1"},
		{"an untrusted peer cannot forward", "192.0.2.1:80", []string{"198.51.100.7"}, "192.0.2.1"},
		{"trusted peer, no header", "10.0.0.1:80", nil, "10.0.0.1"},
		{"trusted peer", "10.0.0.1:80", []string{"198.51.100.7"}, "198.51.100.7"},
		{"rightmost untrusted wins", "10.0.0.1:80", []string{"6.6.6.6, 198.51.100.7, 10.0.0.2"}, "198.51.100.7"},
		{"several lines are one list", "10.0.0.1:80", []string{"6.6.6.6", "198.51.100.7", "10.0.0.2"}, "198.51.100.7"},
		{"all trusted: leftmost", "10.0.0.1:80", []string{"10.0.0.9, 10.0.0.2"}, "10.0.0.9"},
		{"port stripped", "10.0.0.1:80", []string{"198.51.100.7:4711"}, "198.51.100.7"},
		{"v6 with port", "10.0.0.1:80", []string{"[2001:db8::7]:4711"}, "2001:db8::7"},
		{"v6 in brackets", "10.0.0.1:80", []string{"[2001:db8::7]"}, "2001:db8::7"},
		{"zone stripped", "10.0.0.1:80", []string{"fe80::1%eth0"}, "fe80::1"},
		{"zone of the peer stripped", "[fe80::1%eth0]:80", nil, "fe80::1"},
		{"mapped address is v4", "10.0.0.1:80", []string{"::ffff:198.51.100.7"}, "198.51.100.7"},
		{"mapped peer is trusted", "[::ffff:10.0.0.1]:80", []string{"198.51.100.7"}, "198.51.100.7"},
		{"empty entries are skipped", "10.0.0.1:80", []string{"198.51.100.7, , "}, "198.51.100.7"},
		{"garbage before an answer is never read", "10.0.0.1:80", []string{"what, 198.51.100.7"}, "198.51.100.7"},
		{"garbage in the way", "10.0.0.1:80", []string{"198.51.100.7, unknown"}, ""},
		{"no peer", "@", nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.RemoteAddr = tc.peer
			for _, line := range tc.forwarded {
				r.Header.Add("X-Forwarded-For", line)
			}
			got := ResolveClient(r, trusted)
			if want, _ := netip.ParseAddr(tc.want); got != want {
				t.Fatalf("got %v, want %q", got, tc.want)
			}
		})
	}
}

func FuzzResolveClient(f *testing.F) {
	f.Add("10.0.0.1:80", "198.51.100.7, [::1]:80")
	f.Add("[fe80::1%x]:1", "%,::%,[%]:")
	trusted := NewNetworks([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::/0")})
	f.Fuzz(func(t *testing.T, peer, forwarded string) {
		r := &http.Request{RemoteAddr: peer, Header: http.Header{"X-Forwarded-For": {forwarded}}}
		got := ResolveClient(r, trusted)
		if got.Zone() != "" || got.Is4In6() {
			t.Fatalf("not canonical: %v", got)
		}
		if AddrKey(got) == "" {
			t.Fatal("no key")
		}
	})
}

func TestNetworksAllow(t *testing.T) {
	addr := netip.MustParseAddr
	list := NewNetworks(prefixes(t, "192.0.2.0/24", "::ffff:198.51.100.0/120", "2001:db8::5/64"))
	for a, want := range map[string]bool{"192.0.2.9": true, "::ffff:192.0.2.9": true, "198.51.100.3": true,
		"198.51.101.3": false, "127.0.0.1": false, "::1": false, "2001:db8::99": true, "2001:db8:1::": false} {
		if got := list.Allows(addr(a)); got != want {
			t.Errorf("%s allowed: %v", a, got)
		}
	}
	if list.Allows(netip.Addr{}) {
		t.Error("an undeterminable address was let in")
	}
	if empty := NewNetworks(nil); !empty.Allows(addr("127.0.0.1")) || empty.Contains(addr("127.0.0.1")) {
		t.Error("an empty list allows everybody and contains nobody")
	}
	list.Set(prefixes(t, "127.0.0.0/8"))
	if list.Allows(addr("192.0.2.9")) || !list.Allows(addr("127.0.0.1")) {
		t.Error("Set did not replace the ranges")
	}
}

func wantRetry(t *testing.T, err error, seconds int) {
	t.Helper()
	var fe *fault.Error
	if !errors.As(err, &fe) || fe.Code != fault.RateLimited || fe.Retry != time.Duration(seconds)*time.Second {
		t.Fatalf("got %#v, want a refusal for %d s", err, seconds)
	}
	if want := fmt.Sprintf("too many requests; retry in %d seconds (agent-connect)", seconds); fe.Msg != want {
		t.Fatalf("message %q, want %q", fe.Msg, want)
	}
}

func TestRateBucketSlides(t *testing.T) {
	c := fakeClock()
	b := NewRateBucket("agent-connect", 3, time.Minute, c)
	allow := func() {
		t.Helper()
		if err := b.Allow("a"); err != nil {
			t.Fatal(err)
		}
	}
	allow() // at 0 s
	c.Advance(10 * time.Second)
	allow() // at 10 s
	c.Advance(10 * time.Second)
	allow() // at 20 s
	wantRetry(t, b.Allow("a"), 40)
	if err := b.Allow("b"); err != nil {
		t.Fatalf("another key: %v", err)
	}
	c.Advance(39*time.Second + 500*time.Millisecond)
	wantRetry(t, b.Allow("a"), 1) // half a second, rounded up
	for range 10 {
		wantRetry(t, b.Allow("a"), 1) // refused hits do not count
	}
	c.Advance(500 * time.Millisecond)
	allow()                        // the hit of 0 s has left
	wantRetry(t, b.Allow("a"), 10) // the hit of 10 s is next
	c.Advance(time.Hour)
	for range 3 {
		allow()
	}
	wantRetry(t, b.Allow("a"), 60)
}

func TestRateBucketRingKeepsOrderAcrossGrowth(t *testing.T) {
	c := fakeClock()
	const limit = 37
	b := NewRateBucket("agent-connect", limit, time.Minute, c)
	var admitted []time.Time
	for range 2000 {
		c.Advance(900 * time.Millisecond)
		now := c.Now()
		for len(admitted) > 0 && now.Sub(admitted[0]) >= time.Minute {
			admitted = admitted[1:]
		}
		err := b.Allow("a")
		if (err == nil) != (len(admitted) < limit) {
			t.Fatalf("at %v with %d hits in the window: %v", now, len(admitted), err)
		}
		if err == nil {
			admitted = append(admitted, now)
		}
	}
}

func TestRateBucketFailsClosedWhenFull(t *testing.T) {
	c := fakeClock()
	b := NewRateBucket("agent-connect", 2, time.Minute, c)
	for i := range maxRateKeys {
		if err := b.Allow(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	wantRetry(t, b.Allow("newcomer"), 60)
	if err := b.Allow("0"); err != nil {
		t.Fatalf("a known key: %v", err)
	}
	c.Advance(time.Minute)
	if err := b.Allow("newcomer"); err != nil {
		t.Fatalf("after the window: %v", err)
	}
	if len(b.keys) != 1 || b.used.Len() != 1 {
		t.Fatalf("%d keys kept", len(b.keys))
	}
}

func TestRateBucketCutsKeysAndCanBeOff(t *testing.T) {
	b := NewRateBucket("agent-connect", 1, time.Minute, fakeClock())
	long := strings.Repeat("k", maxRateKeyLen)
	if err := b.Allow(long + "1"); err != nil {
		t.Fatal(err)
	}
	wantRetry(t, b.Allow(long+"2"), 60)
	off := NewRateBucket("off", 0, time.Minute, fakeClock())
	for range 1000 {
		if err := off.Allow("a"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRefusalWindow(t *testing.T) {
	c := fakeClock()
	w := NewRefusalWindow(c, RefusalRowWindow)
	claim := func(action, key string, want bool) *RefusalClaim {
		t.Helper()
		got, ok := w.Claim(action, key)
		if ok != want {
			t.Fatalf("claim of %s %s: %v", action, key, ok)
		}
		return got
	}
	first := claim("auth.ip_denied", "192.0.2.1", true)
	claim("auth.ip_denied", "192.0.2.1", false)
	claim("agent.auth.bearer_failed", "192.0.2.1", true) // another action
	claim("auth.ip_denied", "192.0.2.2", true)           // another key
	c.Advance(599 * time.Second)
	claim("auth.ip_denied", "192.0.2.1", false)
	c.Advance(time.Second)
	second := claim("auth.ip_denied", "192.0.2.1", true) // not extended by the refusals between
	w.Release(first)                                     // of an earlier window: changes nothing
	claim("auth.ip_denied", "192.0.2.1", false)
	w.Release(second) // the write failed
	claim("auth.ip_denied", "192.0.2.1", true)
}

func TestRefusalWindowDropsTheOldestKey(t *testing.T) {
	c := fakeClock()
	w := NewRefusalWindow(c, RefusalRowWindow)
	for i := range maxRefusalKeys + 1 {
		if _, ok := w.Claim("a", fmt.Sprint(i)); !ok {
			t.Fatalf("claim %d", i)
		}
	}
	if _, ok := w.Claim("a", "1"); ok {
		t.Fatal("the second oldest was dropped")
	}
	if _, ok := w.Claim("a", "0"); !ok {
		t.Fatal("the oldest was kept")
	}
	if n := len(w.actions["a"].keys); n != maxRefusalKeys {
		t.Fatalf("%d keys kept", n)
	}
}

func TestClassesCoverEveryCode(t *testing.T) {
	for _, code := range fault.All() {
		c, ok := classes[code]
		if !ok {
			t.Errorf("%s has no class", code)
			continue
		}
		if c.Status < 400 || c.Status > 599 || c.Close < 1000 || c.Close > 4999 || c.Exit < 1 || c.Exit > 8 {
			t.Errorf("%s: %+v", code, c)
		}
	}
	if len(classes) != len(fault.All()) {
		t.Error("a class without a code")
	}
	if ClassOf(errors.New("any")).Status != http.StatusInternalServerError {
		t.Error("an error without a code is internal")
	}
	// Fixed by the protocol (agent protocol F.4, H.2).
	for code, status := range map[fault.Code]int{fault.Unauthenticated: 401, fault.IPDenied: 403,
		fault.ProjectInactive: 403, fault.NotFound: 404, fault.Conflict: 409, fault.TooLarge: 413, fault.Invalid: 422,
		fault.Incompatible: 426, fault.RateLimited: 429, fault.Internal: 500, fault.AdapterError: 502,
		fault.AgentOffline: 503, fault.Unavailable: 503, fault.Timeout: 504} {
		if classes[code].Status != status {
			t.Errorf("%s is %d, want %d", code, classes[code].Status, status)
		}
	}
}
