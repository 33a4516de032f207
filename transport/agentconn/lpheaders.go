package agentconn

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Headers of the long-poll routes (agent protocol F.1, F.2).
const (
	headerNonce    = "X-Z4J-Session-Nonce"
	headerFeatures = "X-Z4J-Runtime-Features"
	headerRetry    = "X-Z4J-Retry-Contracts"
	headerAgentID  = "X-Z4J-Agent-Id"
	headerProject  = "X-Z4J-Project-Id"
	headerWorker   = "X-Z4J-LongPoll-Worker"
)

// maxHeaderNames and maxHeaderName bound the comma lists of both headers.
const (
	maxHeaderNames = 64
	maxHeaderName  = 64
)

// maxNonce bounds the session nonce, which several tables and the ledger keep; an agent's has 22 characters.
const maxNonce = 128

// runtimeFeatures reads the feature list of a probe: trimmed, without duplicates, names over the limit skipped, at most
// 64. present is false when the header is absent, which leaves the stored list alone; an empty header clears it.
func runtimeFeatures(h http.Header) (names []string, present bool) {
	values, present := h[http.CanonicalHeaderKey(headerFeatures)]
	if !present {
		return nil, false
	}
	names = []string{}
	for _, name := range strings.Split(strings.Join(values, ","), ",") {
		name = strings.TrimSpace(name)
		if name == "" || utf8.RuneCountInString(name) > maxHeaderName || slices.Contains(names, name) {
			continue
		}
		if len(names) == maxHeaderNames {
			break
		}
		names = append(names, name)
	}
	return names, true
}

// retryContracts reads "engine=1,…". One malformed pair voids the whole header: a receiver whose statement we cannot
// read gets no command that depends on it.
func retryContracts(h http.Header) []string {
	text := strings.TrimSpace(strings.Join(h.Values(headerRetry), ","))
	if text == "" {
		return nil
	}
	pairs := strings.Split(text, ",")
	if len(pairs) > maxHeaderNames {
		return nil
	}
	engines := make([]string, 0, len(pairs))
	for _, pair := range pairs {
		engine, version, ok := strings.Cut(strings.TrimSpace(pair), "=")
		engine = strings.TrimSpace(engine)
		if !ok || engine == "" || utf8.RuneCountInString(engine) > maxHeaderName || strings.TrimSpace(version) != "1" {
			return nil
		}
		if !slices.Contains(engines, engine) {
			engines = append(engines, engine)
		}
	}
	return engines
}

// queryInt reads an integer parameter in [low, high]. The last value wins when it is repeated.
func queryInt(q url.Values, name string, fallback, low, high int) (int, error) {
	values, ok := q[name]
	if !ok {
		return fallback, nil
	}
	text := values[len(values)-1]
	n, err := strconv.Atoi(text)
	switch {
	case err != nil:
		return 0, queryError("int_parsing", name, name+": must be an integer", text)
	case n < low:
		return 0, queryError("greater_than_equal", name, name+": must be at least "+strconv.Itoa(low), text)
	case n > high:
		return 0, queryError("less_than_equal", name, name+": must be at most "+strconv.Itoa(high), text)
	}
	return n, nil
}
