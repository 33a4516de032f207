package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestDuration(t *testing.T) {
	for text, want := range map[string]string{"60s": "1m", "90s": "1m30s", "24h": "24h", "1h30m": "1h30m", "0s": "0s", "1500ms": "1.5s"} {
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err != nil || d.String() != want {
			t.Errorf("%s: got %s, %v", text, d, err)
		}
		out, err := d.MarshalText()
		var again Duration
		if err != nil || again.UnmarshalText(out) != nil || again != d {
			t.Errorf("%s: does not survive %q", text, out)
		}
	}
	for _, text := range []string{"", "60", "1 minute", "s", "99999999999h"} {
		d := Duration(time.Second)
		if err := d.UnmarshalText([]byte(text)); err == nil || d.Std() != time.Second {
			t.Errorf("%q: accepted or changed the value", text)
		}
	}
}

func TestSize(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "8192": 8192, "8KiB": 8192, "8 KiB": 8192, "1MiB": 1 << 20, "2GiB": 2 << 30,
		"1kB": 1000, "1KB": 1000, "3MB": 3e6, "1GB": 1e9, "17B": 17} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s.Bytes() != want {
			t.Errorf("%s: got %d, %v", text, s.Bytes(), err)
		}
		out, err := s.MarshalText()
		var again Size
		if err != nil || again.UnmarshalText(out) != nil || again != s {
			t.Errorf("%s: does not survive %q", text, out)
		}
	}
	for _, text := range []string{"", "KiB", "-1", "1.5MiB", "1TiB", "9223372036854775807KiB", "99999999999999999999", "1KiBKiB"} {
		s := Size(7)
		if err := s.UnmarshalText([]byte(text)); err == nil || s != 7 {
			t.Errorf("%q: accepted or changed the value", text)
		}
	}
	for size, want := range map[Size]string{0: "0", 1: "1", 1023: "1023", 1024: "1KiB", 1536: "1536", 1 << 20: "1MiB", 3 << 30: "3GiB"} {
		if size.String() != want {
			t.Errorf("%d: got %s", int64(size), size)
		}
	}
}

func TestEnums(t *testing.T) {
	for _, want := range LogLevels() {
		var l LogLevel
		if err := l.UnmarshalText([]byte(strings.ToUpper(string(want)))); err != nil || l != want {
			t.Errorf("%s: %s, %v", want, l, err)
		}
	}
	for _, want := range LogFormats() {
		var f LogFormat
		if err := f.UnmarshalText([]byte(want)); err != nil || f != want {
			t.Errorf("%s: %s, %v", want, f, err)
		}
	}
	c := Default()
	c.Log.Level, c.Log.Format = "loud", ""
	if err := c.Validate(); err == nil || strings.Count(err.Error(), "must be one of") != 2 {
		t.Errorf("got %v", err)
	}
}

func TestBooleans(t *testing.T) {
	for text, want := range map[string]bool{"true": true, "1": true, "YES": true, "on": true, "false": false, "0": false, "no": false, "Off": false} {
		if got, err := parseBool(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}

func TestSecretIsNeverPrinted(t *testing.T) {
	const text = "correct horse battery staple 0123456789"
	s := NewSecret(text)
	type holder struct {
		S Secret
		P *Secret
		L []Secret
		M map[string]Secret
	}
	h := holder{s, &s, []Secret{s}, map[string]Secret{"k": s}}
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%t", "%o"} {
		fmt.Fprintf(&out, verb+verb+verb+"\n", s, &s, h)
	}
	data, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(data)
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "secret", s, "holder", h)
	out.WriteString(s.String() + s.GoString())
	for _, leak := range []string{text, fmt.Sprintf("%x", text), "horse"} {
		if strings.Contains(out.String(), leak) {
			t.Errorf("leaked %q in:\n%s", leak, out.String())
		}
	}
	if s.Reveal() != text || s.IsZero() || !(Secret{}).IsZero() {
		t.Error("the secret itself is wrong")
	}
	var other Secret
	if err := other.UnmarshalText([]byte(text)); err != nil || !s.Equal(other) || s.Equal(NewSecret("x")) {
		t.Error("Equal is wrong")
	}
}

func TestParsePrefix(t *testing.T) {
	for text, want := range map[string]string{
		"10.1.2.3": "10.1.2.3/32", "10.1.2.3/8": "10.0.0.0/8", " 10.0.0.0/8 ": "10.0.0.0/8", "0.0.0.0/0": "0.0.0.0/0",
		"2001:DB8::1": "2001:db8::1/128", "2001:db8::1/32": "2001:db8::/32", "::/0": "::/0",
		"::ffff:10.1.2.3": "10.1.2.3/32", "::ffff:10.1.2.3/104": "10.0.0.0/8", "::ffff:0:0/96": "0.0.0.0/0",
	} {
		if got, err := ParsePrefix(text); err != nil || got.String() != want {
			t.Errorf("%s: got %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "  ", "x", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "10.0.0.0/08", "10.0.0.0/8/9", "10.0.0",
		"fe80::1%eth0", "fe80::%eth0/64", "::ffff:10.0.0.0/95", "2001:db8::/129", strings.Repeat("1", 65), "010.0.0.1"} {
		if got, err := ParsePrefix(text); err == nil {
			t.Errorf("%q: accepted as %s", text, got)
		}
	}
}

func TestPrefixesAllow(t *testing.T) {
	list := Prefixes{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")}
	for text, want := range map[string]bool{"10.9.9.9": true, "::ffff:10.9.9.9": true, "11.0.0.1": false, "2001:db8::5": true,
		"2001:db8::5%eth0": true, "127.0.0.1": false, "::1": false} {
		if got := list.Allows(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	if list.Allows(netip.Addr{}) {
		t.Error("an undeterminable address is allowed")
	}
	if !(Prefixes{}).Allows(netip.Addr{}) || (Prefixes{}).Contains(netip.MustParseAddr("10.0.0.1")) {
		t.Error("the empty list is wrong")
	}
}

func TestHosts(t *testing.T) {
	var h Hosts
	if !h.Allows("anything") {
		t.Error("the empty list refuses")
	}
	if err := hostsValue(&h).set("Example.com, *.Example.org,10.0.0.1,[2001:DB8::1]"); err != nil {
		t.Fatal(err)
	}
	if want := (Hosts{"example.com", "*.example.org", "10.0.0.1", "2001:db8::1"}); !slices.Equal(h, want) {
		t.Errorf("got %v", h)
	}
	for host, want := range map[string]bool{"example.com": true, "EXAMPLE.COM:7700": true, "example.com.": true, "a.example.com": false,
		"a.example.org": true, "a.b.example.org:1": true, "example.org": false, ".example.org": false, "10.0.0.1:80": true,
		"[2001:db8::1]:80": true, "[2001:db8::1]": true, "": false, "evil.com": false} {
		if got := h.Allows(host); got != want {
			t.Errorf("%q: %v", host, got)
		}
	}
	for _, text := range []string{"http://example.com", "a b", "example.com:80", "*", "*.", "a..b", "ex*mple.com", strings.Repeat("a", 64),
		strings.Repeat("a.", 127) + "a", "é.example"} {
		if got, err := parseHost(text); err == nil {
			t.Errorf("%q: accepted as %q", text, got)
		}
	}
}

func TestListForms(t *testing.T) {
	for _, text := range []string{`["10.0.0.0/8", "::1"]`, "10.0.0.0/8,::1", " 10.0.0.0/8 ,, ::1 ", "10.0.0.0/8\r\n::1\n"} {
		var p Prefixes
		if err := prefixesValue(&p).set(text); err != nil || len(p) != 2 {
			t.Errorf("%q: %v, %v", text, p, err)
		}
	}
	p := Prefixes{netip.MustParsePrefix("10.0.0.0/8")}
	for _, text := range []string{`["10.0.0.0/8"`, `[1]`, `[] x`, "10.0.0.0/8,x"} {
		if err := prefixesValue(&p).set(text); err == nil || len(p) != 1 {
			t.Errorf("%q: accepted or changed the value", text)
		}
	}
	if err := prefixesValue(&p).set("[]"); err != nil || len(p) != 0 {
		t.Errorf("an empty array does not empty the list: %v, %v", p, err)
	}
}
