// Package valid holds the rules for the messages of the daemon protocol: the tables of sections 2, 5.1, 6.2 and 7.2. It
// looks at one message at a time; what depends on stored state belongs to the receiver.
//
// Each function takes one message and returns nil or an *Error that names the first field that breaks a rule, in the
// schema's own names, and the rule. No error quotes the input.
package valid

import (
	"errors"
	"strconv"
	"strings"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/fault"
)

// Error is a field that breaks a rule.
type Error struct {
	Code  pb.ErrorCode // INVALID_ARGUMENT, unless the rule has a code of its own
	Field string       // path of the field, such as "definition.source.client_id" or "files[3].path"
	Rule  string       // the rule, such as "must be a UUID"
}

// Error reads "<field>: <rule>".
func (e *Error) Error() string { return e.Field + ": " + e.Rule }

// Detail returns the error as the protocol reports it.
func (e *Error) Detail() *pb.ErrorDetail {
	return Detail(e.Code, e.Error(), "field", e.Field)
}

// Fault returns the error as a *fault.Error of the code Invalid.
func (e *Error) Fault() error { return fault.Field(e.Field, "%s", e.Rule) }

// AsError returns the *Error in err's chain. Any other error becomes INTERNAL with a fixed text; nil stays nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: pb.ErrorCode_ERROR_CODE_INTERNAL, Field: "message", Rule: "could not be checked"}
}

// checker walks one message and keeps the first error. Its methods do nothing once there is one.
type checker struct {
	err   *Error
	depth int
	at    [12]place // the message that is being checked
}

// place is one step of a path: a field, and an element of it unless index is below zero.
type place struct {
	name  string
	index int
}

// fail records that the field breaks the rule.
func (c *checker) fail(field, rule string) {
	c.failAs(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, field, rule)
}

func (c *checker) failAs(code pb.ErrorCode, field, rule string) {
	if c.err != nil {
		return
	}
	var b strings.Builder
	for i, p := range c.at[:c.depth] {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(p.name)
		if p.index >= 0 {
			b.WriteByte('[')
			b.WriteString(strconv.Itoa(p.index))
			b.WriteByte(']')
		}
	}
	if c.depth > 0 && field != "" {
		b.WriteByte('.')
	}
	b.WriteString(field)
	c.err = &Error{Code: code, Field: b.String(), Rule: rule}
}

// must records the failure unless ok.
func (c *checker) must(ok bool, field, rule string) {
	if !ok {
		c.fail(field, rule)
	}
}

// pointer is a message of the schema.
type pointer[T any] interface {
	*T
}

// run applies the rules f to m.
func run[T any, P pointer[T]](m P, f func(*checker, P)) error {
	var c checker
	if m == nil {
		c.fail("message", "is required")
	} else {
		f(&c, m)
	}
	if c.err != nil {
		return c.err
	}
	return nil
}

// optional applies the rules f to the field if it is set.
func optional[T any, P pointer[T]](c *checker, field string, m P, f func(*checker, P)) {
	if c.err != nil || m == nil {
		return
	}
	c.within(field, -1, func() { f(c, m) })
}

// required is optional for a field that must be set.
func required[T any, P pointer[T]](c *checker, field string, m P, f func(*checker, P)) {
	if m == nil {
		c.fail(field, "is required")
		return
	}
	optional(c, field, m, f)
}

// each applies the rules f to every element.
func each[T any, P pointer[T]](c *checker, field string, list []P, f func(*checker, P)) {
	if c.err != nil || len(list) == 0 {
		return
	}
	if c.depth == len(c.at) {
		c.fail(field, "is nested too deeply")
		return
	}
	c.depth++
	for i, m := range list {
		c.at[c.depth-1] = place{field, i}
		if m == nil {
			c.fail("", "is required")
		} else {
			f(c, m)
		}
		if c.err != nil {
			break
		}
	}
	c.depth--
}

func (c *checker) within(field string, index int, f func()) {
	if c.depth == len(c.at) {
		c.fail(field, "is nested too deeply")
		return
	}
	c.at[c.depth] = place{field, index}
	c.depth++
	f()
	c.depth--
}
