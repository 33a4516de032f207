package api

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
	"signalbox/transport"
)

// readBody reads the whole body, which the transport has capped.
func readBody(r *http.Request) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "the request body broke off")
	}
	return b, nil
}

// body reads the members of a JSON object and notes every one that breaks its rule. Members that nobody asks for are
// ignored; a null is an absent member.
type body struct {
	doc    *rawjson.Doc
	root   rawjson.Value
	prefix string // of names in messages: the object within the body that this is
	items  []transport.ValidationItem
}

// body parses the request's body. The caller releases it.
func (c *call) body() (*body, error) { return c.bodyOr("") }

// bodyOr is body, and takes an empty one for the text.
func (c *call) bodyOr(absent string) (*body, error) {
	text, err := readBody(c.Request)
	if err != nil {
		return nil, err
	}
	if len(text) == 0 {
		text = []byte(absent)
	}
	doc, err := rawjson.Parse(text)
	if err != nil {
		item := transport.ValidationItem{Type: "json_invalid", Loc: []any{"body"}, Msg: "body: must be a JSON object: " + err.Error()}
		return nil, validation([]transport.ValidationItem{item})
	}
	b := &body{doc: doc, root: doc.Root()}
	if b.root.Kind() != rawjson.Object {
		doc.Release()
		item := transport.ValidationItem{Type: "object_type", Loc: []any{"body"}, Msg: "body: must be a JSON object"}
		return nil, validation([]transport.ValidationItem{item})
	}
	return b, nil
}

func (b *body) release() { b.doc.Release() }

func (b *body) bad(name, format string, args ...any) {
	b.items = append(b.items, problem("body", b.prefix+name, fmt.Sprintf(format, args...)))
}

// err is nil when every member kept its rule.
func (b *body) err() error {
	if len(b.items) == 0 {
		return nil
	}
	return validation(b.items)
}

// only notes every member whose name is not in the list.
func (b *body) only(names ...string) {
	allowed := make(map[string]bool, len(names))
	for _, n := range names {
		allowed[n] = true
	}
	for key := range b.root.EachMember() {
		if name := string(key); !allowed[name] && len(b.items) < 20 {
			b.bad(cut(name, 64), "is not a field of this request")
		}
	}
}

// has tells whether the member is there, be it null.
func (b *body) has(name string) bool { return b.root.Has(name) }

// required is a text that must be there.
func (b *body) required(name string) string {
	if b.root.Get(name).IsAbsent() {
		b.bad(name, "is required")
		return ""
	}
	return orEmpty(b.text(name))
}

// text is an optional text.
func (b *body) text(name string) *string {
	v := b.root.Get(name)
	if v.IsAbsent() {
		return nil
	}
	s, ok := v.Str()
	if !ok {
		b.bad(name, "must be a string")
		return nil
	}
	return &s
}

// int is an optional integer.
func (b *body) int(name string) *int {
	v := b.root.Get(name)
	if v.IsAbsent() {
		return nil
	}
	n, ok := v.Int64()
	if !ok || int64(int32(n)) != n {
		b.bad(name, "must be an integer")
		return nil
	}
	i := int(n)
	return &i
}

// flag is an optional truth value.
func (b *body) flag(name string) *bool {
	v := b.root.Get(name)
	if v.IsAbsent() {
		return nil
	}
	t, ok := v.Bool()
	if !ok {
		b.bad(name, "must be true or false")
		return nil
	}
	return &t
}

// texts is an optional list of texts; nil when it is absent.
func (b *body) texts(name string, most int) []string {
	v := b.root.Get(name)
	if v.IsAbsent() {
		return nil
	}
	if v.Kind() != rawjson.Array || v.Len() > most {
		b.bad(name, "must be a list of at most %d strings", most)
		return nil
	}
	out := make([]string, 0, v.Len())
	for _, e := range v.Each() {
		s, ok := e.Str()
		if !ok {
			b.bad(name, "must be a list of strings")
			return nil
		}
		out = append(out, s)
	}
	return out
}

// id is an optional UUID.
func (b *body) id(name string) *uuid.UUID {
	s := b.text(name)
	if s == nil {
		return nil
	}
	id, err := uuid.Parse(*s)
	if err != nil {
		b.bad(name, "must be a UUID")
		return nil
	}
	return &id
}

// time is an optional instant.
func (b *body) time(name string) time.Time {
	s := b.text(name)
	if s == nil {
		return time.Time{}
	}
	t, ok := parseTime(*s)
	if !ok {
		b.bad(name, "must be an ISO 8601 time such as 2026-01-02T03:04:05Z")
	}
	return t
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
