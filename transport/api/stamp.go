package api

import (
	"slices"
	"strings"
	"time"

	"signalbox/appliance/rawjson"
)

// stamp is an instant on the wire: ISO 8601 in UTC with Z, six fraction digits or none (agent protocol H.1).
type stamp time.Time

// MarshalJSON writes the quoted time.
func (s stamp) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, len(`"2026-01-02T03:04:05.678901Z"`))
	b = rawjson.AppendTime(append(b, '"'), time.Time(s))
	return append(b, '"'), nil
}

// maybe is a time that may be absent.
func maybe(t *time.Time) *stamp {
	if t == nil {
		return nil
	}
	s := stamp(*t)
	return &s
}

// orNull is null for an empty text.
func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// texts is a list that is never null.
func texts(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// sortBy sorts rows by a text of theirs.
func sortBy[T any](rows []T, key func(*T) string) {
	slices.SortFunc(rows, func(x, y T) int { return strings.Compare(key(&x), key(&y)) })
}
