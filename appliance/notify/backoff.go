package notify

import (
	"errors"
	"math/rand/v2"
	"time"
)

const (
	firstBackoff = 10 * time.Second
	// maxBackoff is the longest wait of one message, and for what a receiver asks for.
	maxBackoff = time.Hour
	// maxPause is the longest wait of a channel that fails: how late it is seen that a receiver is well again.
	maxPause = 5 * time.Minute
	// maxWait is how long a message is tried, or waits for its channel to work.
	maxWait = 24 * time.Hour
	// outage is how many attempts in a row must fail until it is the channel that fails. Before, it may be the message.
	outage = 2
)

const expired = "not sent: its channel took no message for a day"

func randomJitter() float64 { return rand.Float64() }

// backoff is how long to wait after the attempt of that number: 10 s, 30 s, 90 s ... at most as long as said, each a fifth
// more or less.
func backoff(attempt int, most time.Duration, jitter float64) time.Duration {
	d := firstBackoff
	for i := 1; i < attempt && d < most; i++ {
		d *= 3
	}
	return time.Duration(float64(min(d, most)) * (0.8 + 0.4*jitter))
}

// at is when the channel may be tried. A channel that fails is, at the end of its pause, whether the time of one of its
// messages has come or not: who has waited longest is the probe, so that a message that no receiver would take keeps no
// other from being tried.
func (c *ChannelDue) at() time.Time {
	if c.Failures >= outage || c.RetryAt.After(c.First) {
		return c.RetryAt
	}
	return c.First
}

// outcome is what became of an attempt.
type outcome struct {
	name     string
	answered bool          // the receiver took or refused the message: the channel works
	wait     time.Duration // of the message until its next attempt, when failed
	pause    time.Duration // of the channel, when not answered
	error    *string
}

func (s *Service) judge(out *Outgoing, err error) outcome {
	if err == nil {
		return outcome{name: OutcomeSent, answered: true}
	}
	jitter, msg := s.opts.Jitter(), describe(err)
	o := outcome{name: OutcomeFailed, wait: backoff(out.Attempts+1, maxBackoff, jitter),
		pause: backoff(out.Channel.Failures+1, maxPause, jitter), error: &msg}
	var e *SendError
	if errors.As(err, &e) {
		if e.Permanent {
			o.name, o.answered = OutcomeDead, true
		}
		asked := min(e.RetryAfter, maxBackoff)
		o.wait, o.pause = max(o.wait, asked), max(o.pause, asked)
	}
	if !s.opts.Clock.Now().Before(out.ExpiresAt) {
		o.name = OutcomeDead
	}
	return o
}

// record stores what became of the attempt, for the message and for its channel.
func (o *outcome) record(tx Tx, out *Outgoing) error {
	now := tx.Now()
	n := Notification{No: out.No, Attempts: out.Attempts + 1, LastError: o.error}
	switch o.name {
	case OutcomeSent:
		n.State, n.EndedAt = Delivered, &now
	case OutcomeDead:
		n.State, n.EndedAt = Dead, &now
	default:
		next := now.Add(o.wait)
		n.State, n.NextAttemptAt = Pending, &next
	}
	if err := tx.NotifyUpdate(n); err != nil {
		return err
	}
	c := &out.Channel
	switch {
	case !o.answered:
		if err := tx.NotifyChannelFailed(c.No, c.Failures, now.Add(o.pause)); err != nil {
			return err
		}
		return tx.NotifyExpire(c.No, expired)
	case c.Failures > 0:
		// After an outage everything that waits goes out. After one failure the other message keeps its own wait: the
		// receiver may refuse only that one.
		return tx.NotifyResume(c.No, c.Failures >= outage)
	}
	return nil
}
