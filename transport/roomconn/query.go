package roomconn

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room/connection"
)

const (
	// maxNumber is the largest sequence number that goes on the wire (B.1).
	maxNumber = 1<<53 - 1
	// maxConnectionID bounds what a client may call its connection; a UUID has 36 bytes.
	maxConnectionID = 256
	// maxDeclared bounds what is kept of the name and the version a client gives of itself.
	maxDeclared = 256
)

// opening is what a client asks for when it opens a stream (B.1).
type opening struct {
	connectionID string
	scope        connection.Scope
	filter       connection.Filter
	startHead    bool
	after        int64
	rooms        roomIDs
	expected     *int64
	spawnCapable bool
	declared     connection.Declaration
}

// parseOpening reads the query in the order of B.2, checks 3 to 6. lastEventID wins over start_from when it is not
// empty (G.1). An error names the parameter and the rule.
func parseOpening(rawQuery, lastEventID string) (opening, error) {
	q, err := url.ParseQuery(rawQuery)
	if err != nil {
		return opening{}, fault.Wrap(fault.Invalid, err, "query: is not well formed")
	}
	o := opening{connectionID: q.Get("connection_id")}
	switch {
	case o.connectionID == "":
		return o, fault.Field("connection_id", "is required: a UUID that the client chooses and reuses on every reconnect")
	case len(o.connectionID) > maxConnectionID || !utf8.ValidString(o.connectionID):
		return o, fault.Field("connection_id", "must be text of at most %d bytes", maxConnectionID)
	}
	if o.scope, err = parseScope(q); err != nil {
		return o, err
	}
	if o.filter, err = parseFilter(q); err != nil {
		return o, err
	}
	if o.startHead, o.after, err = parseStart(q, lastEventID); err != nil {
		return o, err
	}
	if o.expected, err = parseInteger(q, "expected_generation"); err != nil {
		return o, err
	}
	if o.spawnCapable, err = parseBool(q, "spawn_capable"); err != nil {
		return o, err
	}
	if o.declared, err = parseDeclaration(q); err != nil {
		return o, err
	}
	o.rooms = parseRooms(q.Get("rooms"))
	return o, nil
}

func parseScope(q url.Values) (connection.Scope, error) {
	switch v := q.Get("scope"); v {
	case "", "single":
		if v == "" && q.Has("scope") {
			break
		}
		return connection.ScopeSingle, nil
	case "all":
		return connection.ScopeAll, nil
	}
	return "", fault.Field("scope", "must be single or all, got %q", clipText(q.Get("scope")))
}

func parseFilter(q url.Values) (connection.Filter, error) {
	switch v := q.Get("filter"); v {
	case "", "all":
		if v == "" && q.Has("filter") {
			break
		}
		return connection.FilterAll, nil
	case "addressed":
		return connection.FilterAddressed, nil
	}
	return "", fault.Field("filter", "must be all or addressed, got %q", clipText(q.Get("filter")))
}

func parseStart(q url.Values, lastEventID string) (head bool, after int64, err error) {
	field, v := "start_from", q.Get("start_from")
	if lastEventID != "" {
		field, v = "Last-Event-ID", lastEventID
	} else if v == "" || v == "head" {
		return true, 0, nil
	}
	n, ok := parseNumber(v)
	if !ok {
		rule := "must be head or a sequence number from 0 to 2^53-1, got %q"
		if lastEventID != "" {
			rule = "must be a sequence number from 0 to 2^53-1, got %q"
		}
		return false, 0, fault.Field(field, rule, clipText(v))
	}
	return false, n, nil
}

// parseNumber reads decimal digits, nothing else, up to 2^53-1.
func parseNumber(v string) (int64, bool) {
	if v == "" || len(v) > 32 {
		return 0, false
	}
	for i := range len(v) {
		if v[i] < '0' || v[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(v, 10, 64)
	return n, err == nil && n <= maxNumber
}

// parseInteger reads an optional integer; nil when the parameter is absent.
func parseInteger(q url.Values, name string) (*int64, error) {
	if !q.Has(name) {
		return nil, nil
	}
	v := q.Get(name)
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || v[0] == '+' {
		return nil, fault.Field(name, "must be an integer, got %q", clipText(v))
	}
	return &n, nil
}

func parseBool(q url.Values, name string) (bool, error) {
	if !q.Has(name) {
		return false, nil
	}
	switch strings.ToLower(q.Get(name)) {
	case "true", "1":
		return true, nil
	case "false", "0":
		return false, nil
	}
	return false, fault.Field(name, "must be true or false, got %q", clipText(q.Get(name)))
}

func parseDeclaration(q url.Values) (connection.Declaration, error) {
	var d connection.Declaration
	for _, p := range []struct {
		name string
		to   **int
	}{{"protocol", &d.Speaks}, {"protocol_accepts", &d.Accepts}} {
		n, err := parseInteger(q, p.name)
		if err != nil {
			return d, err
		}
		if n != nil {
			revision := int(min(max(*n, -maxRevision), maxRevision))
			*p.to = &revision
		}
	}
	for _, p := range []struct {
		name string
		to   **string
	}{{"client", &d.Artifact}, {"client_version", &d.Version}} {
		if q.Has(p.name) {
			v := clipBytes(strings.ToValidUTF8(q.Get(p.name), "\uFFFD"), maxDeclared)
			*p.to = &v
		}
	}
	return d, nil
}

// maxRevision is beyond every revision there will be; larger numbers declare the same.
const maxRevision = 1 << 30

// roomIDs are the rooms a client names, and how it spelt them: a refusal repeats an id as the client knows it (B.3).
type roomIDs struct {
	ids   []uuid.UUID
	known map[uuid.UUID]struct{}
	spelt map[uuid.UUID]string // those that are not in the canonical form
}

// noRoom makes ids of texts that are no UUIDs, so that they meet the check for rooms that do not exist where it stands
// in the order of checks. No room has such an id: rooms are numbered by random or time-ordered UUIDs.
var noRoom = uuid.MustParse("7a1c38d2-59f0-5d6b-9c0a-3f1f0c0de5a1")

// add names one more room and returns its id. Repeats are dropped.
func (r *roomIDs) add(text string) uuid.UUID {
	id, err := uuid.Parse(text)
	if err != nil || len(text) != 36 {
		id = uuid.NewSHA1(noRoom, []byte(text))
	}
	if _, repeated := r.known[id]; repeated {
		return id
	}
	if r.known == nil {
		r.known = map[uuid.UUID]struct{}{}
	}
	r.known[id] = struct{}{}
	r.ids = append(r.ids, id)
	if id.String() != text {
		if r.spelt == nil {
			r.spelt = map[uuid.UUID]string{}
		}
		r.spelt[id] = clipBytes(strings.ToValidUTF8(text, "\uFFFD"), maxConnectionID)
	}
	return id
}

// respell puts the client's own spelling into the message of a refusal.
func (r *roomIDs) respell(err error) error {
	if err == nil || len(r.spelt) == 0 {
		return err
	}
	f, ok := err.(*fault.Error) //nolint:errorlint // only the message that is shown is changed
	if !ok {
		return err
	}
	c := *f
	for id, text := range r.spelt {
		c.Msg = strings.ReplaceAll(c.Msg, id.String(), text)
	}
	return &c
}

// parseRooms reads a comma-separated list, skipping empty items and repeats (B.1).
func parseRooms(list string) roomIDs {
	var r roomIDs
	for item := range strings.SplitSeq(list, ",") {
		if item = strings.TrimSpace(item); item != "" {
			r.add(item)
		}
	}
	return r
}

// clipText bounds what a message repeats of a stranger's text.
func clipText(s string) string { return clipBytes(s, 64) }

func clipBytes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// wantsStream tells whether the request asks for Server-Sent Events (G.1).
func wantsStream(h http.Header) bool {
	for _, accept := range h.Values("Accept") {
		for part := range strings.SplitSeq(accept, ",") {
			kind, _, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(kind), "text/event-stream") {
				return true
			}
		}
	}
	return false
}
