package config

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// laterVariable is a variable of the z4j server whose feature is not part of this program yet. Its value is still
// checked, so that a mistake surfaces now and not when the feature arrives.
type laterVariable struct {
	name     string
	min, max float64
	// whole refuses fractions.
	whole bool
}

func laterVariables() []laterVariable {
	return []laterVariable{
		{"Z4J_AGENT_OFFLINE_ALERT_GRACE_SECONDS", 0, 86400, true},
		{"Z4J_PENDING_FIRES_RETENTION_DAYS", 1, 365, true},
		{"Z4J_PENDING_FIRES_REPLAY_INTERVAL_SECONDS", 1, 300, true},
		{"Z4J_SCHEDULE_FIRES_RETENTION_DAYS", 1, 3650, true},
		{"Z4J_SCHEDULE_CIRCUIT_BREAKER_THRESHOLD", 0, 100, true},
		{"Z4J_SCHEDULE_CIRCUIT_BREAKER_INTERVAL_SECONDS", 5, 3600, true},
	}
}

// agentVariables are the agent's own settings (agent protocol A.6). A worker and the server may share an environment,
// so these say nothing about the server; a trailing * covers a prefix.
func agentVariables() []string {
	return []string{
		"Z4J_BRAIN_URL", "Z4J_TOKEN", "Z4J_PROJECT_ID", "Z4J_HMAC_SECRET", "Z4J_AGENT_ID", "Z4J_AGENT_NAME",
		"Z4J_TRANSPORT", "Z4J_HEARTBEAT", "Z4J_HEARTBEAT_SECONDS", "Z4J_AGENT_STATUS_DISABLED", "Z4J_BUFFER_*",
		"Z4J_MAX_PAYLOAD_BYTES", "Z4J_WORKER_ROLE", "Z4J_ENGINES", "Z4J_SCHEDULERS", "Z4J_TAGS", "Z4J_ENVIRONMENT",
		"Z4J_LOG_LEVEL", "Z4J_AUTOSTART", "Z4J_STRICT_MODE", "Z4J_HOME", "Z4J_REDACTION_EXTRA_*", "Z4J_DEV_MODE",
	}
}

// applyZ4J lays the z4j server's variables over the file. They are weaker than SIGNALBOX_ variables.
func (l *loader) applyZ4J() {
	used := map[string]bool{}
	for i := range l.keys {
		b := &l.keys[i]
		for _, name := range b.Z4J {
			used[name] = true
			if b.Secret {
				used[name+"_FILE"] = true
			}
			if b.Path == "server.listen" {
				continue
			}
			if text, source, ok := l.variable(b, name); ok {
				l.assign(b, Origin{Kind: FromEnv, Name: source}, func() error { return b.setLegacy(text) })
			}
		}
	}
	l.applyBind(l.byPath["server.listen"])
	l.applyLater(used)
	l.applyBackend(used)
	for _, name := range sortedKeys(l.env) {
		switch {
		case !strings.HasPrefix(name, "Z4J_") || used[name]:
		case strings.HasPrefix(name, "Z4J_RATELIMIT_"):
			l.warn(name, "is accepted and has no effect; use agent.rate_limits and the limits beside it")
		case !matches(agentVariables(), name):
			l.warn(name, "is not a setting of this server%s", suggest(name, sortedKeys(used)))
		}
	}
}

// applyBind joins Z4J_BIND_HOST and Z4J_BIND_PORT; the one that is missing keeps what the file or the default says.
func (l *loader) applyBind(b *binding) {
	host, hasHost := l.env["Z4J_BIND_HOST"]
	port, hasPort := l.env["Z4J_BIND_PORT"]
	if !hasHost && !hasPort {
		return
	}
	org := Origin{Kind: FromEnv, Name: "Z4J_BIND_HOST, Z4J_BIND_PORT"}
	oldHost, oldPort, err := net.SplitHostPort(l.cfg.Server.Listen)
	if err != nil {
		// A malformed address in the file gives no half to keep; the default's half serves.
		oldHost, oldPort, _ = net.SplitHostPort(Default().Server.Listen)
	}
	if !hasHost {
		host, org.Name = oldHost, "Z4J_BIND_PORT"
	}
	if !hasPort {
		port, org.Name = oldPort, "Z4J_BIND_HOST"
	}
	l.assign(b, org, func() error { return b.set(net.JoinHostPort(strings.Trim(host, "[]"), port)) })
}

func (l *loader) applyLater(used map[string]bool) {
	for _, v := range laterVariables() {
		used[v.name] = true
		text, ok := l.env[v.name]
		if !ok {
			continue
		}
		if err := v.check(text); err != nil {
			l.problem(v.name, "", "%s", err)
			continue
		}
		l.warn(v.name, "is accepted but not used yet")
	}
}

func (v laterVariable) check(text string) error {
	n, err := strconv.ParseFloat(text, 64)
	if err == nil && v.whole {
		var i int
		i, err = strconv.Atoi(text)
		n = float64(i)
	}
	// Written so that NaN fails too.
	if err == nil && n >= v.min && n <= v.max {
		return nil
	}
	what := "a number"
	if v.whole {
		what = "a whole number"
	}
	return fmt.Errorf("must be %s from %g to %g, got %q", what, v.min, v.max, text)
}

// applyBackend accepts the registry backends of the z4j server; one process needs neither.
func (l *loader) applyBackend(used map[string]bool) {
	const name = "Z4J_REGISTRY_BACKEND"
	used[name] = true
	switch backend := l.env[name]; backend {
	case "", "local":
	case "postgres_notify":
		l.warn(name, "postgres_notify has no effect: one process holds every session")
	default:
		l.problem(name, "", "must be local or postgres_notify, got %q", backend)
	}
}
