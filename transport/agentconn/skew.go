package agentconn

import (
	"strconv"
	"strings"

	"signalbox/appliance/agent"
	"signalbox/transport/wire"
)

// checkSkew warns of an agent whose version is not one we speak for: another major, or a minor that is neither ours nor
// the one before. It is advice for the log and refuses nobody (agent protocol B.2 step 9).
func (w *WebSocket) checkSkew(id agent.Identity, h *wire.Hello) {
	if skewed(h.AgentVersion, w.opts.Version) {
		w.log.Warn().Str(fieldAgent, id.Agent.ID.String()).Str("agent_version", h.AgentVersion).
			Str("brain_version", w.opts.Version).Msg("agent of another version connects")
	}
}

func skewed(theirs, ours string) bool {
	if theirs == "0.0.0" {
		return false
	}
	major, minor, ok := majorMinor(theirs)
	ourMajor, ourMinor, ourOK := majorMinor(ours)
	if !ok || !ourOK {
		return !ok
	}
	return major != ourMajor || (minor != ourMinor && minor != ourMinor-1)
}

func majorMinor(version string) (major, minor int, ok bool) {
	first, rest, found := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, err1 := strconv.Atoi(first)
	minor, err2 := strconv.Atoi(second)
	return major, minor, found && err1 == nil && err2 == nil
}
