package agentconn

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"

	"github.com/rs/zerolog"

	"signalbox/appliance/agent"
	"signalbox/appliance/audit"
	"signalbox/appliance/fault"
	"signalbox/transport"
)

// Audit actions of refused agents (agent protocol I.4).
const (
	actionIPDenied  = "auth.ip_denied"
	actionInactive  = "agent.auth.project_inactive"
	actionBadBearer = "agent.auth.bearer_failed"
)

// errBadToken is the one answer to every bearer that proves nothing, on both transports.
var errBadToken = fault.New(fault.Unauthenticated, "invalid agent token")

func projectInactive(id agent.Identity) error {
	return fault.New(fault.ProjectInactive, "the agent's project is archived").
		With("project_id", id.Project.ID.String()).With("agent_id", id.Agent.ID.String())
}

// Gate is what every agent passes before it is served, over WebSocket and long-poll alike: one rate bucket, one
// allowlist, one record of the audit rows that refusals leave (agent protocol I).
type Gate struct {
	Bucket    *transport.RateBucket
	Allow     *transport.Allowlist // counts every address it refuses, also those that leave no audit row
	Refusals  *transport.RefusalWindow
	Directory Directory
	Log       zerolog.Logger
}

// caller is what the gate needs of a request, kept apart from it because a WebSocket outlives its request.
type caller struct {
	addr          netip.Addr
	authorization string
	userAgent     string
	path          string
}

func callerOf(r *http.Request) caller {
	return caller{addr: transport.ClientAddr(r.Context()), authorization: r.Header.Get("Authorization"),
		userAgent: r.UserAgent(), path: r.URL.Path}
}

// rate counts the request in the bucket that both transports share.
func (g *Gate) rate(c caller) error { return g.Bucket.Allow(transport.AddrKey(c.addr)) }

// admitAddress checks the allowlist, before any token is read.
func (g *Gate) admitAddress(ctx context.Context, c caller) error {
	refused := g.Allow.Check(c.addr)
	if refused == nil {
		return nil
	}
	ip := transport.AddrKey(c.addr)
	surface := g.Allow.Surface()
	g.record(ctx, ip, audit.Entry{Action: actionIPDenied, TargetType: "auth_surface", TargetID: &surface,
		Result: "failed", Outcome: "deny", SourceIP: &ip, UserAgent: clip(c.userAgent, 256),
		Metadata: metadata(map[string]string{"surface": surface, "reason": "global_allowlist", "ip": cutText(ip, 64),
			"path": cutText(c.path, 200)})})
	return refused
}

// authenticate proves the bearer and that its project is active. bearerRow says that a failed bearer leaves an audit
// row, as it does on the WebSocket only.
func (g *Gate) authenticate(ctx context.Context, c caller, bearerRow bool) (agent.Identity, error) {
	id, err := g.Directory.Authenticate(ctx, c.authorization)
	ip := transport.AddrKey(c.addr)
	switch fault.CodeOf(err) {
	case "":
		return id, nil
	case fault.Unauthenticated:
		if bearerRow {
			g.record(ctx, ip, audit.Entry{Action: actionBadBearer, TargetType: "agent", Result: "failed",
				Outcome: "deny", SourceIP: &ip, UserAgent: clip(c.userAgent, 256)})
		}
		return agent.Identity{}, errBadToken
	case fault.ProjectInactive:
		agentID := id.Agent.ID.String()
		g.record(ctx, agentID, audit.Entry{Action: actionInactive, ProjectNo: id.Project.No, TargetType: "agent",
			TargetID: &agentID, Result: "failed", Outcome: "deny", SourceIP: &ip, UserAgent: clip(c.userAgent, 256),
			Metadata: metadata(map[string]string{"agent_id": agentID, "path": cutText(c.path, 200)})})
		return id, projectInactive(id)
	default:
		return agent.Identity{}, err
	}
}

// record writes the audit row of a refusal once per key and window. A row that could not be written is tried again at
// the next refusal; the refusal itself stands either way.
func (g *Gate) record(ctx context.Context, key string, e audit.Entry) {
	claim, ok := g.Refusals.Claim(e.Action, key)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := g.Directory.RecordRefusal(ctx, e); err != nil {
		g.Refusals.Release(claim)
		g.Log.Warn().Err(err).Str("action", e.Action).Msg("audit row of a refusal not written")
	}
}

func metadata(m map[string]string) []byte {
	b, err := json.Marshal(m)
	if err != nil { // a map of strings always encodes
		return []byte("{}")
	}
	return b
}

// cutText cuts to n characters; clip does so and turns nothing into nil.
func cutText(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

func clip(s string, n int) *string {
	if s == "" {
		return nil
	}
	s = cutText(s, n)
	return &s
}
