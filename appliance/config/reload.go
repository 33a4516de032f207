package config

// Changes are the keys in which two configurations differ, in the order of the table.
type Changes struct {
	// Reloadable keys take effect on SIGHUP, Restart keys only when the appliance starts again.
	Reloadable, Restart []string
}

// Diff compares the running configuration with a newly loaded one.
func Diff(running, next *Config) Changes {
	var ch Changes
	newer := bind(next)
	for i, b := range bind(running) {
		switch {
		case b.plain() == newer[i].plain():
		case b.Reload:
			ch.Reloadable = append(ch.Reloadable, b.Path)
		default:
			ch.Restart = append(ch.Restart, b.Path)
		}
	}
	return ch
}

// Reload returns running with the reloadable keys of next: what is in effect after SIGHUP. The result can break a rule
// that spans keys, because only some of them were taken over; check it with Validate before use. Neither argument
// changes.
func Reload(running, next *Config) *Config {
	merged, src := *running, *next
	m, s := &merged, &src
	m.Server.TLSCertFile, m.Server.TLSKeyFile = s.Server.TLSCertFile, s.Server.TLSKeyFile
	m.Server.AgentIPAllowlist = s.Server.AgentIPAllowlist
	m.Server.APIIPAllowlist = s.Server.APIIPAllowlist
	m.Server.DashboardIPAllowlist = s.Server.DashboardIPAllowlist
	m.Metrics.AuthToken = s.Metrics.AuthToken
	m.Log.Level = s.Log.Level
	return m
}
