package transport

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
)

// Networks is a set of address ranges that may be replaced while requests run. The zero value is empty.
type Networks struct {
	prefixes atomic.Pointer[[]netip.Prefix]
}

// NewNetworks returns a set of the prefixes.
func NewNetworks(prefixes []netip.Prefix) *Networks {
	n := &Networks{}
	n.Set(prefixes)
	return n
}

// Set replaces the ranges. IPv4-mapped IPv6 ranges are stored as the IPv4 ranges they mean, host bits are dropped.
func (n *Networks) Set(prefixes []netip.Prefix) {
	clean := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		if !p.IsValid() {
			continue
		}
		if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
		}
		clean = append(clean, p.Masked())
	}
	n.prefixes.Store(&clean)
}

// Empty reports whether the set has no ranges.
func (n *Networks) Empty() bool {
	p := n.prefixes.Load()
	return p == nil || len(*p) == 0
}

// Contains reports whether the address is in one of the ranges. An invalid address is in none.
func (n *Networks) Contains(addr netip.Addr) bool {
	p := n.prefixes.Load()
	if p == nil || !addr.IsValid() {
		return false
	}
	addr = addr.Unmap().WithZone("")
	return slices.ContainsFunc(*p, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// Allows reports whether an allowlist of these ranges lets the address in: an empty one lets in everybody, any other
// only its ranges, loopback included, and never an address that could not be determined (agent protocol I.3).
func (n *Networks) Allows(addr netip.Addr) bool { return n.Empty() || n.Contains(addr) }

// ResolveClient returns the client's address (agent protocol I.3): that of the peer unless the peer is a trusted proxy,
// else the rightmost X-Forwarded-For entry that is not one, else the leftmost. An entry that is no address where one had
// to be read makes the whole undeterminable: the zero Addr.
func ResolveClient(r *http.Request, trusted *Networks) netip.Addr {
	peer := parseAddr(r.RemoteAddr)
	if !trusted.Contains(peer) {
		return peer
	}
	// Several header lines are one list in their order.
	lines := r.Header.Values("X-Forwarded-For")
	client := peer
	for i := len(lines) - 1; i >= 0; i-- {
		rest := lines[i]
		for rest != "" {
			entry := rest
			if comma := strings.LastIndexByte(rest, ','); comma >= 0 {
				entry, rest = rest[comma+1:], rest[:comma]
			} else {
				rest = ""
			}
			if entry = strings.TrimSpace(entry); entry == "" {
				continue
			}
			client = parseAddr(entry)
			if !trusted.Contains(client) {
				return client
			}
		}
	}
	return client
}

// parseAddr reads an address with or without port, brackets and zone id; IPv4-mapped IPv6 becomes IPv4. The zero Addr
// is no address.
func parseAddr(s string) netip.Addr {
	if host, _, err := net.SplitHostPort(s); err == nil {
		s = host
	} else if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		s = s[1 : len(s)-1]
	}
	if zone := strings.IndexByte(s, '%'); zone >= 0 {
		s = s[:zone]
	}
	addr, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}
	}
	return addr.Unmap()
}

// AddrKey is the text an address is counted and written under: its canonical form, or "unknown".
func AddrKey(addr netip.Addr) string {
	if !addr.IsValid() {
		return "unknown"
	}
	return addr.String()
}
