package session

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// Reason says why a session ended. The first one wins and is recorded once. Values are metric labels by their String:
// append only.
type Reason uint8

// The closed set of reasons. Planes choose code and text of each by Options.Codes.
const (
	// None is a session that has not ended.
	None Reason = iota
	// Normal is an orderly end from our side.
	Normal
	// PeerClosed is a close frame from the peer.
	PeerClosed
	// PeerGone is a connection that broke without a close frame.
	PeerGone
	// WriteFailed is a failed or timed out socket write.
	WriteFailed
	// Slow is a full outbound queue.
	Slow
	// Idle is no application message for Options.IdleTimeout.
	Idle
	// Unresponsive is neither message nor pong for Options.PongWait after a ping.
	Unresponsive
	// HandshakeTimeout is a first message that did not come in time.
	HandshakeTimeout
	// Protocol is a frame or message that breaks the rules of its plane or of WebSocket.
	Protocol
	// Oversize is a message above Options.MaxMessage.
	Oversize
	// Signature is a message whose signature or replay check failed.
	Signature
	// Unauthenticated is a missing, unknown or revoked credential at the handshake.
	Unauthenticated
	// Denied is a source address outside the allowlist.
	Denied
	// Inactive is a principal whose project or owner is archived, at the handshake.
	Inactive
	// Incompatible is a protocol version we do not speak.
	Incompatible
	// RateLimited is an exhausted connect bucket.
	RateLimited
	// Capacity is a principal with its most sessions open already.
	Capacity
	// Revoked is a credential withdrawn, or an owner archived, while the session was open.
	Revoked
	// Replaced is a newer session of the same connection.
	Replaced
	// Draining is the process going down; the peer is asked to come back.
	Draining
	// Internal is a failure of ours.
	Internal
	// Panic is a panic in a handler.
	Panic
	// Refused is an open that its plane refused, with a message that says why.
	Refused
	// Lapsed is a peer that stopped to answer the pings of its plane.
	Lapsed
	// Evicted is a connection that its plane ended, with a message that says why.
	Evicted
	reasonEnd
)

// policy is what closing for a reason does. Flush: what is queued is written first. Frame: a close frame is sent.
// Await: the peer's close frame is waited for, within Options.CloseWait.
type policy struct {
	name  string
	code  int
	text  string
	flush bool
	frame bool
	await bool
}

// policies: a principal that lost its rights gets nothing more of the queue; a socket that does not take bytes is
// closed without waiting.
var policies = [reasonEnd]policy{
	None:             {name: "none"},
	Normal:           {"normal", 1000, "", true, true, true},
	PeerClosed:       {"peer_closed", 1000, "", false, true, false},
	PeerGone:         {"peer_gone", 1006, "", false, false, false},
	WriteFailed:      {"write_failed", 1006, "", false, false, false},
	Slow:             {"slow", 1013, "outbound queue full", false, true, false},
	Idle:             {"idle", 1001, "idle timeout", true, true, true},
	Unresponsive:     {"unresponsive", 1001, "no pong", false, true, false},
	HandshakeTimeout: {"handshake_timeout", 1008, "no first message in time", true, true, true},
	Protocol:         {"protocol", 1002, "protocol error", true, true, true},
	Oversize:         {"oversize", 1009, "message too large", true, true, true},
	Signature:        {"signature", 1008, "verification failed", false, true, true},
	Unauthenticated:  {"unauthenticated", 1008, "unauthenticated", false, true, true},
	Denied:           {"denied", 1008, "source address not allowed", false, true, true},
	Inactive:         {"inactive", 1008, "inactive", false, true, true},
	Incompatible:     {"incompatible", 1008, "protocol version not supported", true, true, true},
	RateLimited:      {"rate_limited", 1013, "rate limit exceeded", false, true, true},
	Capacity:         {"capacity", 1013, "too many sessions", false, true, true},
	Revoked:          {"revoked", 1008, "revoked", false, true, true},
	Replaced:         {"replaced", 1000, "replaced by a newer session", true, true, true},
	Draining:         {"draining", 1001, "going down, come back", true, true, true},
	Internal:         {"internal", 1011, "internal error", true, true, true},
	Panic:            {"panic", 1011, "internal error", false, true, true},
	Refused:          {"refused", 1008, "refused", true, true, true},
	Lapsed:           {"lapsed", 1000, "", true, true, true},
	Evicted:          {"evicted", 1000, "", true, true, true},
}

// Reasons lists every reason a session can end for.
func Reasons() []Reason {
	all := make([]Reason, 0, reasonEnd-1)
	for r := Normal; r < reasonEnd; r++ {
		all = append(all, r)
	}
	return all
}

// String returns the reason's metric label.
func (r Reason) String() string {
	if r < reasonEnd {
		return policies[r].name
	}
	return fmt.Sprintf("reason_%d", uint8(r))
}

// CloseCode is what the peer is told: a WebSocket close code and a text of at most 123 bytes, the rest of which is cut.
type CloseCode struct {
	Code int
	Text string
}

// CloseError asks the engine to end the session for a reason. Handlers and open functions return it, wrapped or not.
type CloseError struct {
	Reason Reason
	Code   int    // sent to the peer instead of the plane's code; 0: the plane's
	Text   string // sent to the peer instead of the plane's text; must be safe for strangers
	Err    error  // cause, for the log only
}

// Fail is the error that ends a session for the reason with the plane's own text. err is the cause for the log and may
// be nil.
func Fail(reason Reason, err error) error { return &CloseError{Reason: reason, Err: err} }

// Error names the reason and the cause.
func (e *CloseError) Error() string {
	switch {
	case e.Err != nil:
		return "session " + e.Reason.String() + ": " + e.Err.Error()
	case e.Text != "":
		return "session " + e.Reason.String() + ": " + e.Text
	default:
		return "session " + e.Reason.String()
	}
}

// Unwrap returns the cause.
func (e *CloseError) Unwrap() error { return e.Err }

// Errors of Send and ReadFirst.
var (
	// ErrClosed is a session that is closing or closed; nothing was queued.
	ErrClosed = errors.New("session closed")
	// ErrSlow is a full queue: nothing was queued and the session is being closed as Slow.
	ErrSlow = errors.New("session too slow")
)

// Closed describes an ended session to its handler and to the log.
type Closed struct {
	Reason   Reason
	PeerCode int           // close code the peer sent first, 0 if it sent none
	Err      error         // cause, nil when there was none
	Age      time.Duration // from the upgrade to the end
}

// closeReasonOf turns the error of a handler into what the session ends with: a *CloseError speaks for itself, anything
// else is Internal.
func closeReasonOf(err error) CloseError {
	var ce *CloseError
	if errors.As(err, &ce) && ce.Reason > None && ce.Reason < reasonEnd {
		return CloseError{Reason: ce.Reason, Code: ce.Code, Text: ce.Text, Err: err}
	}
	return CloseError{Reason: Internal, Err: err}
}

// maxCloseText is what a control frame of 125 bytes leaves beside the two bytes of the code.
const maxCloseText = 123

func clipCloseText(text string) string {
	if len(text) <= maxCloseText {
		return text
	}
	cut := maxCloseText
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut]
}
