package fire

import (
	"time"
	"unicode/utf8"
)

// Status is where a fire stands (agent protocol G.5).
type Status string

// The statuses of a fire.
//
//   - Pending: it was decided and nothing has become of it. Here a fire leaves it within the transaction that stores it.
//   - Accepted: named by the protocol, set by nobody.
//   - Buffered: it waits for an eligible agent. In by start; out by replay, expiry and the schedule's catch_up.
//   - Delivered: its command was issued. Out by the agent's result, and by a command that ends without one. A command that
//     times out leaves it here: the agent may still answer.
//   - Failed: it could not be issued, or its command ended without a result. A late result still corrects it.
//   - AckedSuccess, AckedFailed: the agent's result. Terminal.
//   - BufferExpired: it left the buffer without being handed over. Terminal.
const (
	StatusPending Status = "pending"
	Accepted      Status = "accepted"
	Buffered      Status = "buffered"
	Delivered     Status = "delivered"
	Failed        Status = "failed"
	AckedSuccess  Status = "acked_success"
	AckedFailed   Status = "acked_failed"
	BufferExpired Status = "buffer_expired"
)

// Statuses are all statuses, in the order of a fire's life.
func Statuses() []Status {
	return []Status{StatusPending, Accepted, Buffered, Delivered, Failed, AckedSuccess, AckedFailed, BufferExpired}
}

// Valid tells whether it is one of the statuses.
func (s Status) Valid() bool {
	for _, known := range Statuses() {
		if s == known {
			return true
		}
	}
	return false
}

// Finished tells whether the status ends a fire as far as the circuit breaker is concerned.
func (s Status) Finished() bool {
	return s == Failed || s == AckedSuccess || s == AckedFailed || s == BufferExpired
}

// Bad tells whether the status counts towards the circuit breaker.
func (s Status) Bad() bool { return s == Failed || s == AckedFailed }

// May tells whether a fire may go from s to another status: the table of agent protocol G.5.
func (s Status) May(to Status) bool {
	switch s {
	case StatusPending, Accepted:
		return to == Buffered || to == Delivered || to == Failed || to == AckedSuccess || to == AckedFailed
	case Buffered:
		return to == Delivered || to == Failed || to == AckedSuccess || to == AckedFailed || to == BufferExpired
	case Delivered:
		return to == AckedSuccess || to == AckedFailed || to == Failed
	case Failed:
		return to == AckedSuccess || to == AckedFailed
	}
	return false
}

// Trouble is why a fire ended badly.
type Trouble struct {
	Code    string
	Message string
}

// To is the fire after the transition, at now; ok is false when the table forbids it, and then nothing has changed. Acks
// set acked_at and the latency; every finish sets finished_at; what an earlier trouble said goes when a better end comes.
func (f Fire) To(to Status, now time.Time, why *Trouble) (next Fire, ok bool) {
	if !f.Status.May(to) {
		return f, false
	}
	f.Status = to
	f.ErrorCode, f.ErrorMessage, f.FinishedAt = nil, nil, nil
	if why != nil {
		f.ErrorCode, f.ErrorMessage = textOrNil(cut(why.Code, maxErrorCode)), textOrNil(cut(why.Message, maxErrorMessage))
	}
	if to.Finished() {
		f.FinishedAt = &now
	}
	if to == AckedSuccess || to == AckedFailed {
		// A clock that was set back since gives no negative latency.
		ms := max(now.Sub(f.FiredAt).Milliseconds(), 0)
		f.AckedAt, f.LatencyMS = &now, &ms
	}
	return f, true
}

// textOrNil is nil for the empty text.
func textOrNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// cut returns the first n characters of s.
func cut(s string, n int) string {
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
