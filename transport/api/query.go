package api

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/rawjson"
	"signalbox/transport"
)

// maxLimit is the largest limit a request may name (agent protocol H.3).
const maxLimit = 5000

// query reads the parameters of a URL and notes every one that breaks its rule.
type query struct {
	values url.Values
	items  []transport.ValidationItem
}

func (c *call) query() *query { return &query{values: c.URL.Query()} }

func (q *query) bad(name, format string, args ...any) {
	q.items = append(q.items, problem("query", name, fmt.Sprintf(format, args...)))
}

// err is nil when every parameter kept its rule.
func (q *query) err() error {
	if len(q.items) == 0 {
		return nil
	}
	return validation(q.items)
}

// text is an optional text of 1 to limit characters; "" when it is absent.
func (q *query) text(name string, limit int) string {
	if !q.values.Has(name) {
		return ""
	}
	s := q.values.Get(name)
	if !between(s, 1, limit) || strings.ContainsRune(s, 0) {
		q.bad(name, "must have 1 to %d characters", limit)
		return ""
	}
	return s
}

// oneOf is an optional word of a list.
func (q *query) oneOf(name string, words ...string) string {
	s := q.values.Get(name)
	if !q.values.Has(name) {
		return ""
	}
	for _, w := range words {
		if s == w {
			return s
		}
	}
	q.bad(name, "must be one of %s", strings.Join(words, ", "))
	return ""
}

// id is an optional UUID.
func (q *query) id(name string) uuid.UUID {
	if !q.values.Has(name) {
		return uuid.Nil
	}
	id, err := uuid.Parse(q.values.Get(name))
	if err != nil {
		q.bad(name, "must be a UUID")
	}
	return id
}

// time is an optional instant; one without an offset is UTC.
func (q *query) time(name string) time.Time {
	if !q.values.Has(name) {
		return time.Time{}
	}
	t, ok := parseTime(q.values.Get(name))
	if !ok {
		q.bad(name, "must be an ISO 8601 time such as 2026-01-02T03:04:05Z")
	}
	return t
}

// parseTime reads a time of a client. The plus sign of an offset that was not escaped in a URL arrives as a space.
func parseTime(s string) (time.Time, bool) {
	t, err := rawjson.ParseTimeOrUTC(strings.Replace(s, " ", "+", 1))
	return t, err == nil
}

// flag is an optional truth value.
func (q *query) flag(name string, absent bool) bool {
	if !q.values.Has(name) {
		return absent
	}
	switch q.values.Get(name) {
	case "true", "1":
		return true
	case "false", "0":
		return false
	}
	q.bad(name, "must be true or false")
	return absent
}

// number is an integer from 1 to most.
func (q *query) number(name string, absent, most int) int {
	if !q.values.Has(name) {
		return absent
	}
	n, err := strconv.Atoi(q.values.Get(name))
	if err != nil || n < 1 || n > most {
		q.bad(name, "must be an integer from 1 to %d", most)
		return absent
	}
	return n
}

// page reads cursor and limit (agent protocol H.3).
func (a *API) page(q *query) agent.Page {
	p := agent.Page{Limit: a.opts.DefaultPage, After: decodeCursor(q.values.Get("cursor"))}
	if q.values.Has("limit") {
		n, err := strconv.Atoi(q.values.Get("limit"))
		if err != nil || n < 1 || n > maxLimit {
			q.bad("limit", "must be an integer from 1 to %d", maxLimit)
			return p
		}
		p.Limit = n
	}
	p.Limit = min(p.Limit, a.opts.MaxPage)
	return p
}
