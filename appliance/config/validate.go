package config

import (
	"fmt"
	"maps"
	"sort"
	"strings"
)

// Problem is one thing wrong with the configuration.
type Problem struct {
	// Path is the TOML path of the key, or the name of the variable, flag or file at fault.
	Path string
	// Origin says where the value came from; empty when Path says it already.
	Origin string
	// Msg names the rule and, unless it is a secret, the value.
	Msg string
}

// Error writes "path: message (origin)".
func (p Problem) Error() string {
	if p.Origin == "" {
		return p.Path + ": " + p.Msg
	}
	return p.Path + ": " + p.Msg + " (" + p.Origin + ")"
}

// InvalidError carries every problem found, in the order of the keys.
type InvalidError struct{ Problems []Problem }

// Error writes one problem a line.
func (e *InvalidError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Warning is a remark that does not stop the appliance.
type Warning struct{ Path, Msg string }

// String writes "path: message".
func (w Warning) String() string { return w.Path + ": " + w.Msg }

// Validate checks every rule and returns an *InvalidError with all problems, or nil. It opens no file and no socket.
func (c *Config) Validate() error {
	if problems := validate(c, nil, nil); len(problems) > 0 {
		return &InvalidError{problems}
	}
	return nil
}

// validate judges each key by its own rule, then the rules that span keys. A rule that spans keys is skipped when one
// of them is already broken or is in unread, so that one mistake is told once.
func validate(c *Config, o *Origins, unread map[string]bool) []Problem {
	v := &validator{c: c, o: o, bad: map[string]bool{}, keys: map[string]Key{}}
	maps.Copy(v.bad, unread)
	for _, b := range bind(c) {
		v.keys[b.Path] = b.Key
		if err := b.check(); err != nil {
			v.add(b.Path, err.Error())
			v.bad[b.Path] = true
		}
	}
	v.listeners()
	v.timing()
	v.liveness()
	v.bounds()
	return v.problems
}

type validator struct {
	c    *Config
	o    *Origins
	keys map[string]Key
	// bad are the keys whose value already broke a rule of its own.
	bad      map[string]bool
	problems []Problem
}

func (v *validator) add(path, msg string) {
	p := Problem{Path: path, Msg: msg}
	if org := v.o.Of(path); org.Kind != FromDefault {
		p.Origin = org.String()
	}
	v.problems = append(v.problems, p)
}

func (v *validator) fine(paths ...string) bool {
	for _, p := range paths {
		if v.bad[p] {
			return false
		}
	}
	return true
}

// name writes a key with every name by which an operator may know it, and where its value came from.
func (v *validator) name(path string) string {
	k := v.keys[path]
	names := strings.Join(append(append([]string{}, k.Z4J...), k.Env...), ", ")
	if org := v.o.Of(path); org.Kind != FromDefault {
		return fmt.Sprintf("%s (%s, set by %s)", path, names, org)
	}
	return fmt.Sprintf("%s (%s, default)", path, names)
}

func (v *validator) listeners() {
	s, m := &v.c.Server, &v.c.Metrics
	if (s.TLSCertFile == "") != (s.TLSKeyFile == "") {
		set, missing := "server.tls_cert_file", "server.tls_key_file"
		if s.TLSCertFile == "" {
			set, missing = missing, set
		}
		v.add(missing, fmt.Sprintf("must be set too, because %s is set", set))
	} else if v.fine("server.listen") && !isLoopback(s.Listen) && !s.TLS() && !s.BehindProxy {
		v.add("server.listen", fmt.Sprintf("%s can be reached from other machines without TLS; set server.tls_cert_file and "+
			"server.tls_key_file, or server.behind_proxy = true when a proxy in front terminates TLS", s.Listen))
	}
	if v.fine("server.admin_socket", "data_dir") && len(v.c.AdminSocketPath()) > maxSocketPath {
		v.add("data_dir", fmt.Sprintf("signalbox.sock in it has a path of %d bytes, and a socket path holds at most %d; set "+
			"server.admin_socket to a shorter one", len(v.c.AdminSocketPath()), maxSocketPath))
	}
	if !m.Enabled || !v.fine("metrics.auth_token") || !m.AuthToken.IsZero() {
		return
	}
	if m.Public {
		v.add("metrics.public", "needs metrics.auth_token, because the main listener is open to strangers")
	}
	if m.Listen != "" && v.fine("metrics.listen") && !isLoopback(m.Listen) {
		v.add("metrics.listen", fmt.Sprintf("%s can be reached from other machines and needs metrics.auth_token", m.Listen))
	}
}

// liveness holds the rules without which a daemon that answers in time could be taken for dead (daemon protocol 2.5).
func (v *validator) liveness() {
	a := &v.c.Archive
	const beat, offline, first, limit = "archive.heartbeat_interval", "archive.offline_threshold", "archive.reconnect_initial",
		"archive.reconnect_cap"
	if v.fine(beat, offline) && a.OfflineThreshold < 2*a.HeartbeatInterval {
		v.add(offline, fmt.Sprintf("must be at least twice %s = %s, got %s", v.name(beat), a.HeartbeatInterval, a.OfflineThreshold))
	}
	if v.fine(first, limit) && a.ReconnectCap < a.ReconnectInitial {
		v.add(limit, fmt.Sprintf("must not be below %s = %s, got %s", v.name(first), a.ReconnectInitial, a.ReconnectCap))
	}
}

// timing holds the rules without which no window is left to send a lost command again.
func (v *validator) timing() {
	a := &v.c.Agent
	const gap, window, timeout = "agent.redispatch_min_interval", "agent.redispatch_window", "agent.command_timeout"
	if v.fine(gap, window) && a.RedispatchMinInterval >= a.RedispatchWindow {
		v.add(gap, fmt.Sprintf("must be strictly below %s = %s, got %s = %s",
			v.name(window), a.RedispatchWindow, v.name(gap), a.RedispatchMinInterval))
	}
	if v.fine(timeout, gap) && a.CommandTimeout < a.RedispatchMinInterval {
		v.add(timeout, fmt.Sprintf("must not be below %s = %s, got %s = %s",
			v.name(gap), a.RedispatchMinInterval, v.name(timeout), a.CommandTimeout))
	}
}

func (v *validator) bounds() {
	a := &v.c.Agent
	if v.fine("agent.default_page_size", "agent.max_page_size") && a.DefaultPageSize > a.MaxPageSize {
		v.add("agent.default_page_size", fmt.Sprintf("must not be above %s = %d, got %s = %d",
			v.name("agent.max_page_size"), a.MaxPageSize, v.name("agent.default_page_size"), a.DefaultPageSize))
	}
	if v.fine("agent.longpoll_sessions", "agent.longpoll_sessions_per_agent") &&
		a.LongPollSessionsPerAgent > a.LongPollSessions {
		v.add("agent.longpoll_sessions_per_agent", fmt.Sprintf("must not be above %s = %d, got %d",
			v.name("agent.longpoll_sessions"), a.LongPollSessions, a.LongPollSessionsPerAgent))
	}
}

// review finds what is allowed but probably not meant.
func review(c *Config, o *Origins) []Warning {
	var out []Warning
	s, a := &c.Server, &c.Agent
	if s.BehindProxy && len(s.TrustedProxies) == 0 {
		out = append(out, Warning{"server.trusted_proxies",
			"is empty behind a proxy: rate limits and allowlists see the proxy's address instead of the client's"})
	}
	for _, r := range s.TrustedProxies {
		if r.Bits() == 0 {
			out = append(out, Warning{"server.trusted_proxies",
				fmt.Sprintf("%s trusts everyone: any client can forge its address", r)})
		}
	}
	const one, two = "agent.ws_max_frame", "agent.ws_frame_limit"
	if a.WSMaxFrame > a.WSFrameLimit && o.Of(one).Kind != FromDefault {
		out = append(out, Warning{one, fmt.Sprintf("%s has no effect above %s = %s, because the smaller wins", a.WSMaxFrame, two, a.WSFrameLimit)})
	}
	if a.WSFrameLimit > a.WSMaxFrame && o.Of(two).Kind != FromDefault {
		out = append(out, Warning{two, fmt.Sprintf("%s has no effect above %s = %s, because the smaller wins", a.WSFrameLimit, one, a.WSMaxFrame)})
	}
	if c.Metrics.Enabled && c.Metrics.Public && c.Metrics.Listen != "" && c.Metrics.Listen == s.Listen {
		out = append(out, Warning{"metrics.listen", "is the main listener already; leave it empty"})
	}
	return out
}

// sortProblems orders problems by the place of their key in the table; problems without a key come first.
func sortProblems(problems []Problem) {
	rank := map[string]int{}
	for i, k := range Keys() {
		rank[k.Path] = i + 1
	}
	sort.SliceStable(problems, func(i, j int) bool { return rank[problems[i].Path] < rank[problems[j].Path] })
}
