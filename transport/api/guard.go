package api

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/audit"
	"signalbox/appliance/fault"
	"signalbox/transport"
)

// refusalTimeout bounds the write of a refusal's audit row, which outlives the request.
const refusalTimeout = 5 * time.Second

// errNotLocal answers a route that reads and writes files of the server's machine to anybody who is not on it.
var errNotLocal = fault.New(fault.Forbidden, "this is for the admin socket of the server's own machine only")

// admit lets a request in, or says why not. The call is nil when it is not known who asks.
func (a *API) admit(rt route, r *http.Request) (*call, error) {
	who, err := a.principal(r)
	if err != nil {
		return nil, err
	}
	c := &call{Request: r, route: rt, who: who}
	if rt.local && !transport.IsLocalAdmin(r.Context()) {
		return c, errNotLocal
	}
	if err := a.place(rt, c); err != nil {
		return c, err
	}
	if rt.bulk {
		return c, a.countBulk(c)
	}
	return c, nil
}

// principal finds who asks: the machine's own administrator on the local socket, else whose API key it is.
func (a *API) principal(r *http.Request) (agent.Principal, error) {
	ctx := r.Context()
	if transport.IsLocalAdmin(ctx) {
		who := agent.LocalPrincipal()
		who.UserAgent = r.UserAgent()
		return who, nil
	}
	addr := transport.ClientAddr(ctx)
	if a.opts.Allow != nil {
		if err := a.opts.Allow.Check(addr); err != nil {
			a.recordDenied(r, transport.AddrKey(addr))
			return agent.Principal{}, err
		}
	}
	who, err := a.Directory.AuthenticateAPIKey(ctx, r.Header.Get("Authorization"))
	if err != nil {
		return agent.Principal{}, err
	}
	who.SourceIP, who.UserAgent = transport.AddrKey(addr), r.UserAgent()
	return who, nil
}

// recordDenied writes the audit row of a refused address (agent protocol I.4), once per address and window.
func (a *API) recordDenied(r *http.Request, ip string) {
	if a.opts.Refusals == nil {
		return
	}
	const action = "auth.ip_denied"
	surface := a.opts.Allow.Surface()
	claim, ok := a.opts.Refusals.Claim(action, surface+" "+ip)
	if !ok {
		return
	}
	metadata, err := json.Marshal(map[string]string{"surface": surface, "reason": "global_allowlist", "ip": cut(ip, 64),
		"path": cut(r.URL.Path, 200)})
	if err == nil {
		e := audit.Entry{Action: action, TargetType: "auth_surface", TargetID: &surface, Result: audit.Failed,
			Outcome: audit.Deny, Metadata: metadata, SourceIP: &ip}
		if ua := r.UserAgent(); ua != "" {
			e.UserAgent = &ua
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), refusalTimeout)
		defer cancel()
		err = a.Directory.RecordRefusal(ctx, e)
	}
	if err != nil {
		a.opts.Refusals.Release(claim)
		a.opts.Log.Warn().Err(err).Str("action", action).Msg("audit row of a refusal not written")
	}
}

// place finds the project a route acts in, and checks the right to act there.
func (a *API) place(rt route, c *call) error {
	var at *uuid.UUID
	switch rt.where {
	case anywhere:
		return nil
	case own:
		at = c.who.ProjectID
	case inProject:
		p, err := a.Directory.GetProject(c.Context(), c.PathValue("slug"), rt.archived)
		if err != nil {
			return err
		}
		c.project, at = p, &p.ID
		if rt.resource == "" { // the handler knows
			return nil
		}
	}
	return agent.Authorize(c.who, rt.resource, rt.write, rt.role, at)
}

// mayHere checks a right in the project that depends on the request.
func (c *call) mayHere(resource string, write bool, role agent.Role) error {
	return agent.Authorize(c.who, resource, write, role, &c.project.ID)
}

// countBulk counts a bulk action of the client's address. The local admin socket has no address and no limit.
func (a *API) countBulk(c *call) error {
	if a.opts.Bulk == nil || transport.IsLocalAdmin(c.Context()) {
		return nil
	}
	return a.opts.Bulk.Allow(c.who.SourceIP)
}

// pathID reads a UUID of the path.
func (c *call) pathID(name string) (uuid.UUID, error) {
	id, err := uuid.Parse(c.PathValue(name))
	if err != nil {
		return uuid.Nil, invalid("path", name, "must be a UUID")
	}
	return id, nil
}

// invalid is a validation error about one input.
func invalid(where, field, rule string) *fault.Error {
	return validation([]transport.ValidationItem{problem(where, field, rule)})
}

func problem(where, field, rule string) transport.ValidationItem {
	return transport.ValidationItem{Type: "value_error", Loc: []any{where, field}, Msg: field + ": " + rule}
}

// validation is an error about the inputs; the details name the first.
func validation(items []transport.ValidationItem) *fault.Error {
	err := transport.Validation(items...)
	loc := items[0].Loc
	return err.With("field", loc[len(loc)-1])
}

// cut keeps at most n characters.
func cut(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

// between tells whether the text has from low to high characters.
func between(s string, low, high int) bool {
	n := utf8.RuneCountInString(s)
	return n >= low && n <= high
}
