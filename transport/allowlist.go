package transport

import (
	"net/http"
	"net/netip"

	"signalbox/appliance/fault"
)

// Allowlist guards one surface by source address (agent protocol I.3).
type Allowlist struct {
	surface  string
	networks *Networks
	metrics  *Metrics
}

// NewAllowlist guards the surface ("agent", "api", "dashboard") by the networks, which may be replaced at any time.
// Refusals count in z4j_auth_ip_denied_total.
func NewAllowlist(surface string, networks *Networks, m *Metrics) *Allowlist {
	m.deniedInit(surface)
	return &Allowlist{surface: surface, networks: networks, metrics: m}
}

// Surface is the name of what is guarded.
func (a *Allowlist) Surface() string { return a.surface }

// Check returns nil for an admitted address and an IPDenied error for any other, which it counts. Nothing in the error
// tells the address or who came with it.
func (a *Allowlist) Check(addr netip.Addr) error {
	if a.networks.Allows(addr) {
		return nil
	}
	a.metrics.ipDenied(a.surface)
	return fault.New(fault.IPDenied, "source address is not allowed for this surface").With("surface", a.surface)
}

// Middleware refuses requests from outside. refused, when not nil, runs before the answer, to write the audit row. The
// local admin socket has no address; who may use it is a matter of its file.
func (a *Allowlist) Middleware(refused func(*http.Request)) Middleware {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if IsLocalAdmin(r.Context()) {
				next.ServeHTTP(w, r)
				return
			}
			if err := a.Check(ClientAddr(r.Context())); err != nil {
				if refused != nil {
					refused(r)
				}
				WriteError(w, r, err)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}
