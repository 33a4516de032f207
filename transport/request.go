package transport

import (
	"context"
	"net/http"
	"net/netip"
)

// requestInfo is what middleware learns of a request: one value in the context, filled on the way in by one goroutine
// and only read afterwards.
type requestInfo struct {
	id    string
	addr  netip.Addr
	local bool
	drain context.Context
}

type requestKey struct{}

func infoOf(ctx context.Context) *requestInfo {
	info, _ := ctx.Value(requestKey{}).(*requestInfo)
	return info
}

// withInfo returns the request with an info of its own, making one when the request has none.
func withInfo(r *http.Request) (*http.Request, *requestInfo) {
	if info := infoOf(r.Context()); info != nil {
		return r, info
	}
	info := &requestInfo{}
	return r.WithContext(context.WithValue(r.Context(), requestKey{}, info)), info
}

// RequestID returns the id of the request, "" outside RequestIDs.
func RequestID(ctx context.Context) string {
	if info := infoOf(ctx); info != nil {
		return info.id
	}
	return ""
}

// ClientAddr returns the resolved address of the client (agent protocol I.3). It is not valid when it could not be
// determined; allowlists refuse that.
func ClientAddr(ctx context.Context) netip.Addr {
	if info := infoOf(ctx); info != nil {
		return info.addr
	}
	return netip.Addr{}
}

// IsLocalAdmin reports whether the request came over the local admin socket, whose file permissions are the
// authentication.
func IsLocalAdmin(ctx context.Context) bool {
	info := infoOf(ctx)
	return info != nil && info.local
}

// Parked returns a context for a request that waits: it ends as the request's does, and also, with cause ErrDraining,
// as soon as the server drains. Work that has begun stays on the request's own context, which a drain lets finish.
func Parked(ctx context.Context) (context.Context, context.CancelFunc) {
	parked, cancel := context.WithCancelCause(ctx)
	info := infoOf(ctx)
	if info == nil || info.drain == nil {
		return parked, func() { cancel(context.Canceled) }
	}
	stop := context.AfterFunc(info.drain, func() { cancel(ErrDraining) })
	return parked, func() {
		stop()
		cancel(context.Canceled)
	}
}
