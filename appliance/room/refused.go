package room

import (
	"errors"

	"signalbox/appliance/fault"
)

// Refused is a refusal whose detail is an object with a code that clients read (B.3, F.4, G.2).
type Refused struct {
	Class   fault.Code // decides the status
	Code    string
	Message string
}

// Refuse makes one of the conflicts that clients tell apart by code.
func Refuse(code, message string) *Refused {
	return &Refused{Class: fault.Conflict, Code: code, Message: message}
}

// The codes of refusals and evictions (C.6, C.7, I).
const (
	CodeTakenOver       = "taken_over"
	CodeUnfenced        = "unfenced"
	CodeNoStream        = "no_stream"
	CodeConnectionError = "connection_error"
	CodeHeartbeatLapsed = "heartbeat_lapsed"
	CodeClosed          = "closed"
	CodeRequestReused   = "REQUEST_REUSED"
)

// Error is the message.
func (r *Refused) Error() string { return r.Message }

// Unwrap gives the refusal its class.
func (r *Refused) Unwrap() error { return fault.New(r.Class, "%s", r.Message) }

// RefusedCode returns the code of a refusal, "" for other errors.
func RefusedCode(err error) string {
	var r *Refused
	if errors.As(err, &r) {
		return r.Code
	}
	return ""
}
