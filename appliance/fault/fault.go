// Package fault is the one error vocabulary of Signalbox: a small closed set of codes, a message that is safe to
// show to strangers, and a cause that only the log sees.
//
// Everything that is not a *fault.Error is Internal outside the process. Transports map codes to HTTP statuses and
// WebSocket close codes, the CLI maps them to exit codes; both keep a table that a test walks over All.
package fault

import (
	"errors"
	"fmt"
	"time"
)

// Code names a class of failure. Codes are wire values: append only, never renamed.
type Code string

// The closed set of codes. The texts are those of the error envelope (agent.md H.2) where it has one.
const (
	// Internal is everything we did not foresee. Its message never carries the cause.
	Internal Code = "internal_error"
	// Invalid is bad input: a field broke a rule that the message names.
	Invalid Code = "validation_error"
	// Unauthenticated is a missing, malformed, unknown, expired or revoked credential.
	Unauthenticated Code = "unauthenticated"
	// Forbidden is a known principal without the right.
	Forbidden Code = "forbidden"
	// IPDenied is a source address outside the surface's allowlist.
	IPDenied Code = "ip_denied"
	// ProjectInactive is an authenticated agent of an archived project.
	ProjectInactive Code = "project_inactive"
	// NotFound is a record that does not exist, or that this principal may not know of.
	NotFound Code = "not_found"
	// Conflict is a unique value already taken or a state that does not allow the change.
	Conflict Code = "conflict"
	// Stale is a write under an old lease, generation or revision.
	Stale Code = "stale"
	// TooLarge is a body or frame above its cap.
	TooLarge Code = "payload_too_large"
	// RateLimited is an exhausted bucket; Retry says when to come back.
	RateLimited Code = "rate_limited"
	// Incompatible is a protocol version or transport we do not speak.
	Incompatible Code = "protocol_incompatible"
	// AdapterError is a failure that the agent reported.
	AdapterError Code = "adapter_error"
	// AgentOffline is a command kept pending because nobody is there to take it.
	AgentOffline Code = "agent_offline"
	// Timeout is an answer that did not come in time.
	Timeout Code = "command_timeout"
	// Unavailable is a passing condition: nothing was applied and the same request may succeed later.
	Unavailable Code = "unavailable"
	// Canceled is a request given up by its caller before it was applied.
	Canceled Code = "canceled"
	// OutcomeUnknown is a write whose COMMIT neither succeeded nor failed for certain; read before retrying.
	OutcomeUnknown Code = "outcome_unknown"
	// Corrupt is a damaged database or a failing disk; the appliance stops.
	Corrupt Code = "storage_corrupt"
	// Gone is something that existed here once and has moved or been retired for good.
	Gone Code = "gone"
)

// All lists every code, for the tables that must cover them.
func All() []Code {
	return []Code{Internal, Invalid, Unauthenticated, Forbidden, IPDenied, ProjectInactive, NotFound, Conflict, Stale,
		TooLarge, RateLimited, Incompatible, AdapterError, AgentOffline, Timeout, Unavailable, Canceled, OutcomeUnknown,
		Corrupt, Gone}
}

// Error is a failure with a code. Msg is safe for strangers; Err is for the log only.
type Error struct {
	Code    Code
	Msg     string
	Details map[string]any // shown to the caller; never holds a secret
	Retry   time.Duration  // when above zero: worth coming back after this long
	Err     error          // cause, not shown outside
}

// Error returns the whole chain, for logs. Use Message for what a stranger may read.
func (e *Error) Error() string {
	if e.Err != nil {
		return e.Msg + ": " + e.Err.Error()
	}
	return e.Msg
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// New makes an error of the code with a formatted message.
func New(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Msg: fmt.Sprintf(format, args...)}
}

// Wrap makes an error of the code around a cause. The cause is not shown outside.
func Wrap(code Code, err error, format string, args ...any) *Error {
	return &Error{Code: code, Msg: fmt.Sprintf(format, args...), Err: err}
}

// Field is an Invalid error about one field: the message reads "<field>: <rule>".
func Field(field, format string, args ...any) *Error {
	return &Error{Code: Invalid, Msg: field + ": " + fmt.Sprintf(format, args...), Details: map[string]any{"field": field}}
}

// With returns the error with one more detail.
func (e *Error) With(key string, value any) *Error {
	d := make(map[string]any, len(e.Details)+1)
	for k, v := range e.Details {
		d[k] = v
	}
	d[key] = value
	c := *e
	c.Details = d
	return &c
}

// CodeOf returns the code of the first *Error in the chain, Internal for any other error, and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Internal
}

// Is reports whether err carries the code.
func Is(err error, code Code) bool { return err != nil && CodeOf(err) == code }

// Message returns the text a stranger may read.
func Message(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Msg
	}
	return "internal error"
}

// Details returns what a stranger may know beside the message; never nil.
func Details(err error) map[string]any {
	var e *Error
	if errors.As(err, &e) && e.Details != nil {
		return e.Details
	}
	return map[string]any{}
}
