package agent

import (
	"strconv"
	"strings"
)

// CurrentProtocol is the protocol version we speak (agent protocol B.2 step 8).
const CurrentProtocol = "2"

// The values of version_status (agent protocol H.4). "" stands for null: the agent never reported a version.
const (
	VersionCurrent      = "current"
	VersionOutdated     = "outdated"
	VersionNewer        = "newer_than_known"
	VersionIncompatible = "incompatible"
	VersionUnknown      = "unknown"
)

// IsOutdated tells whether the agent connected once and speaks another protocol version than ours (agent protocol H.4).
func (a *Agent) IsOutdated() bool {
	return a.LastConnectAt != nil && a.ProtocolVersion != CurrentProtocol
}

// VersionStatus compares the agent's software with the version we know, both "major.minor…" (agent protocol B.2 step 9,
// H.4). Another protocol version or major number is incompatible; patch numbers do not count; 0.0.0 and what is no
// version are unknown.
func (a *Agent) VersionStatus(known string) string {
	if a.AgentVersion == "" {
		return ""
	}
	if a.IsOutdated() {
		return VersionIncompatible
	}
	major, minor, ok := majorMinor(a.AgentVersion)
	knownMajor, knownMinor, knownOK := majorMinor(known)
	switch {
	case !ok || !knownOK || strings.HasPrefix(a.AgentVersion, "0.0.0"):
		return VersionUnknown
	case major != knownMajor:
		return VersionIncompatible
	case minor < knownMinor:
		return VersionOutdated
	case minor > knownMinor:
		return VersionNewer
	}
	return VersionCurrent
}

// majorMinor reads the first two numbers of a version such as "1.13.0", "v1.13" or "1.13.0rc1".
func majorMinor(v string) (major, minor int, ok bool) {
	first, rest, found := strings.Cut(strings.TrimPrefix(v, "v"), ".")
	if !found {
		return 0, 0, false
	}
	major, err := strconv.Atoi(first)
	if err != nil || major < 0 {
		return 0, 0, false
	}
	digits := 0
	for digits < len(rest) && rest[digits] >= '0' && rest[digits] <= '9' {
		digits++
	}
	minor, err = strconv.Atoi(rest[:digits])
	return major, minor, err == nil
}
