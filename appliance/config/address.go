package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// maxPrefixLen is the longest allowlist entry in characters (agent protocol I.3).
const maxPrefixLen = 64

// Prefixes is a list of canonical address ranges: masked, without zones, IPv4-mapped IPv6 written as IPv4.
type Prefixes []netip.Prefix

// Contains reports whether addr lies in one of the ranges. Zones are ignored and IPv4-mapped addresses match IPv4
// ranges; the zero address matches nothing.
func (p Prefixes) Contains(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	for _, r := range p {
		if r.Contains(addr) {
			return true
		}
	}
	return false
}

// Allows is the allowlist question: an empty list allows everyone, otherwise addr must lie in the list. An
// undeterminable (zero) address is refused by every list that is not empty.
func (p Prefixes) Allows(addr netip.Addr) bool { return len(p) == 0 || p.Contains(addr) }

// ParsePrefix reads a CIDR or a bare address (one host) and returns its canonical form.
func ParsePrefix(text string) (netip.Prefix, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return netip.Prefix{}, errors.New("must not be empty")
	}
	if len(text) > maxPrefixLen {
		return netip.Prefix{}, fmt.Errorf("is longer than %d characters", maxPrefixLen)
	}
	if strings.Contains(text, "%") {
		return netip.Prefix{}, fmt.Errorf("%q has a zone id, which an address range cannot have", text)
	}
	addrText, bitsText, isRange := strings.Cut(text, "/")
	addr, err := netip.ParseAddr(addrText)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is neither an IP address nor a CIDR range", text)
	}
	bits := addr.BitLen()
	if isRange {
		n, err := strconv.Atoi(bitsText)
		if err != nil || n < 0 || n > bits || strconv.Itoa(n) != bitsText {
			return netip.Prefix{}, fmt.Errorf("%q: the prefix length must be 0 to %d", text, bits)
		}
		bits = n
	}
	if addr.Is4In6() {
		// The first 96 bits are the mapping itself; a shorter prefix reaches outside of it and names no IPv4 range.
		if bits < 96 {
			return netip.Prefix{}, fmt.Errorf("%q: an IPv4-mapped range needs a prefix length of 96 to 128", text)
		}
		addr, bits = addr.Unmap(), bits-96
	}
	return netip.PrefixFrom(addr, bits).Masked(), nil
}

// Hosts is a list of Host header names, lower-case and without port; "*.example.com" covers every name below.
type Hosts []string

// Allows reports whether a Host header value, with or without a port, is on the list. An empty list allows all.
func (h Hosts) Allows(host string) bool {
	if len(h) == 0 {
		return true
	}
	name := host
	if n, _, err := net.SplitHostPort(host); err == nil {
		name = n
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	for _, want := range h {
		if suffix, ok := strings.CutPrefix(want, "*"); ok {
			if len(name) > len(suffix) && strings.HasSuffix(name, suffix) {
				return true
			}
			continue
		}
		if name == want {
			return true
		}
	}
	return false
}

// parseHost checks and lower-cases one entry of an allowed-hosts list.
func parseHost(text string) (string, error) {
	h := strings.ToLower(strings.TrimSpace(text))
	if a, err := netip.ParseAddr(strings.Trim(h, "[]")); err == nil && a.Zone() == "" {
		return a.String(), nil
	}
	name := strings.TrimPrefix(h, "*.")
	if name == "" || len(name) > 253 {
		return "", fmt.Errorf("%q is not a host name of 1 to 253 characters", text)
	}
	for _, label := range strings.Split(name, ".") {
		if !validLabel(label) {
			return "", fmt.Errorf("%q is not a host name; give it without scheme, port and path", text)
		}
	}
	return h, nil
}

func validLabel(label string) bool {
	if label == "" || len(label) > 63 {
		return false
	}
	for _, r := range label {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_' {
			return false
		}
	}
	return true
}

// checkListen checks host:port without looking anything up.
func checkListen(text string) error {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return fmt.Errorf("must be host:port, got %q", text)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 || strconv.Itoa(n) != port {
		return fmt.Errorf("the port must be 0 to 65535, got %q", port)
	}
	if host == "" {
		return nil
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return nil
	}
	if _, err := parseHost(host); err != nil || strings.HasPrefix(host, "*") {
		return fmt.Errorf("%q is neither an IP address nor a host name", host)
	}
	return nil
}

// isLoopback reports whether a valid listen address can only be reached from this machine. A name other than
// localhost may resolve to anything, so it counts as reachable.
func isLoopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}
