package agent

import (
	"time"
	"unicode/utf8"

	"signalbox/appliance/fault"
)

// Events of a command's timeline.
const (
	EventIssued      = "issued"
	EventClaimed     = "claimed"
	EventRedelivered = "redelivered"
	EventReverted    = "reverted"
	EventAcked       = "acked"
	EventCompleted   = "completed"
	EventFailed      = "failed"
	EventTimedOut    = "timeout"
	EventCancelled   = "cancelled"
)

// TimeoutError is the error text of a command that the sweep ended (agent protocol E.3).
const TimeoutError = "command timed out before agent responded"

// maxErrorRunes is what is kept of an agent's error text (agent protocol E.3).
const maxErrorRunes = 1024

// Terminal tells whether results and acks change nothing any more. Only Revert leaves TimedOut.
func (s Status) Terminal() bool {
	switch s {
	case Completed, Failed, TimedOut, Cancelled:
		return true
	}
	return false
}

// Valid tells whether s is a status.
func (s Status) Valid() bool { return s == Pending || s == Dispatched || s.Terminal() }

// refuse is the error of an event that the command's status does not allow.
func (c Command) refuse(event string) error {
	return fault.New(fault.Conflict, "command is %s: it cannot be %s", c.Status, event).With("status", string(c.Status))
}

// Claim hands a pending command to a session: dispatched, with a new deadline. Conflict in any other status; Stale when
// the deadline has passed, so that what the sweep is about to end is not handed out first.
func (c Command) Claim(now time.Time, timeout time.Duration) (Command, error) {
	switch {
	case c.Status != Pending:
		return c, c.refuse(EventClaimed)
	case c.TimeoutAt.Before(now):
		return c, fault.New(fault.Stale, "command passed its deadline")
	}
	c.Status = Dispatched
	c.DispatchedAt = &now
	c.TimeoutAt = now.Add(timeout)
	return c, nil
}

// Redispatch hands a dispatched command over once more, its deadline unchanged (agent protocol E.3, F.6). Conflict when
// it is not dispatched or at-most-once; Stale when the last hand-over is too young, too old or its deadline has passed.
func (c Command) Redispatch(now time.Time, window, minInterval time.Duration) (Command, error) {
	if c.Status != Dispatched || !Redeliverable(c.Action) {
		return c, c.refuse(EventRedelivered)
	}
	at := *c.DispatchedAt
	if !now.After(at) || at.After(now.Add(-minInterval)) || at.Before(now.Add(-window)) || c.TimeoutAt.Before(now) {
		return c, fault.New(fault.Stale, "command is not due for another delivery")
	}
	c.DispatchedAt = &now
	return c, nil
}

// Revert puts a command whose hand-over is known or presumed lost back into the queue with a new deadline. Conflict
// unless it is dispatched or timed out, and for at-most-once actions.
func (c Command) Revert(now time.Time, timeout time.Duration) (Command, error) {
	if (c.Status != Dispatched && c.Status != TimedOut) || !Redeliverable(c.Action) {
		return c, c.refuse(EventReverted)
	}
	c.Status = Pending
	c.Result, c.Error = nil, nil
	c.DispatchedAt, c.AckedAt, c.CompletedAt = nil, nil, nil
	c.TimeoutAt = now.Add(timeout)
	return c, nil
}

// Ack records that the agent has accepted the command. changed is false for a repeat and in every terminal status.
func (c Command) Ack(now time.Time) (next Command, changed bool) {
	if c.Status.Terminal() || c.AckedAt != nil {
		return c, false
	}
	if c.Status == Pending { // the ack overtook its claim
		c.Status = Dispatched
		c.DispatchedAt = &now
	}
	c.AckedAt = &now
	return c, true
}

// Complete ends the command with the agent's result, a JSON object or nil. Conflict when it is terminal.
func (c Command) Complete(result []byte, now time.Time) (Command, error) {
	if c.Status.Terminal() {
		return c, c.refuse(EventCompleted)
	}
	c.Status = Completed
	c.Result = result
	c.CompletedAt = &now
	return c, nil
}

// Fail ends the command with an error, cut to 1024 characters, and the agent's result if any. Conflict when it is
// terminal.
func (c Command) Fail(text *string, result []byte, now time.Time) (Command, error) {
	if c.Status.Terminal() {
		return c, c.refuse(EventFailed)
	}
	c.Status = Failed
	c.Result = result
	if text != nil {
		cut := cutRunes(*text, maxErrorRunes)
		c.Error = &cut
	}
	c.CompletedAt = &now
	return c, nil
}

// Expire ends a command whose deadline has passed. Conflict when it is terminal; Stale before the deadline is over.
func (c Command) Expire(now time.Time) (Command, error) {
	switch {
	case c.Status.Terminal():
		return c, c.refuse(EventTimedOut)
	case !c.TimeoutAt.Before(now):
		return c, fault.New(fault.Stale, "command has not passed its deadline")
	}
	text := TimeoutError
	c.Status = TimedOut
	c.Error = &text
	c.CompletedAt = &now
	return c, nil
}

// Cancel gives the command up. Conflict when it is terminal.
func (c Command) Cancel(now time.Time) (Command, error) {
	if c.Status.Terminal() {
		return c, c.refuse(EventCancelled)
	}
	c.Status = Cancelled
	c.CompletedAt = &now
	return c, nil
}

// cutRunes returns the first n characters of s.
func cutRunes(s string, n int) string {
	if len(s) <= n || utf8.RuneCountInString(s) <= n {
		return s
	}
	i := 0
	for range n {
		_, size := utf8.DecodeRuneInString(s[i:])
		i += size
	}
	return s[:i]
}
