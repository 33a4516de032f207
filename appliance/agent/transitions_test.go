package agent

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"signalbox/appliance/fault"
)

var commandEpoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// commandIn is a command as it looks in a status, redeliverable or not, handed over 15 s ago.
func commandIn(s Status, redeliverable bool) Command {
	c := Command{No: 1, Action: "restart_worker", Status: s, IssuedAt: commandEpoch.Add(-20 * time.Second), TimeoutAt: commandEpoch.Add(40 * time.Second)}
	if redeliverable {
		c.Action = "cancel_task"
	}
	if s == Pending {
		return c
	}
	sent := commandEpoch.Add(-15 * time.Second)
	c.DispatchedAt = &sent
	if s == Dispatched {
		return c
	}
	ended, text := commandEpoch.Add(-time.Second), "old error"
	c.CompletedAt, c.Error, c.Result = &ended, &text, []byte(`{"old":1}`)
	return c
}

var statuses = []Status{Pending, Dispatched, Completed, Failed, TimedOut, Cancelled}

func TestEveryEventInEveryStatus(t *testing.T) {
	t.Parallel()
	text := "boom"
	events := map[string]struct {
		apply func(Command) (Command, error)
		to    map[Status]Status // statuses that the event leaves; all others refuse
		twice bool              // only redeliverable actions
	}{
		"claim": {apply: func(c Command) (Command, error) { return c.Claim(commandEpoch, time.Minute) },
			to: map[Status]Status{Pending: Dispatched}},
		"redispatch": {apply: func(c Command) (Command, error) { return c.Redispatch(commandEpoch, time.Minute, 10*time.Second) },
			to: map[Status]Status{Dispatched: Dispatched}, twice: true},
		"revert": {apply: func(c Command) (Command, error) { return c.Revert(commandEpoch, time.Minute) },
			to: map[Status]Status{Dispatched: Pending, TimedOut: Pending}, twice: true},
		"complete": {apply: func(c Command) (Command, error) { return c.Complete([]byte(`{}`), commandEpoch) },
			to: map[Status]Status{Pending: Completed, Dispatched: Completed}},
		"fail": {apply: func(c Command) (Command, error) { return c.Fail(&text, nil, commandEpoch) },
			to: map[Status]Status{Pending: Failed, Dispatched: Failed}},
		"expire": {apply: func(c Command) (Command, error) { return c.Expire(commandEpoch.Add(time.Hour)) },
			to: map[Status]Status{Pending: TimedOut, Dispatched: TimedOut}},
		"cancel": {apply: func(c Command) (Command, error) { return c.Cancel(commandEpoch) },
			to: map[Status]Status{Pending: Cancelled, Dispatched: Cancelled}},
	}
	for name, e := range events {
		for _, s := range statuses {
			for _, redeliverable := range []bool{true, false} {
				before := commandIn(s, redeliverable)
				after, err := e.apply(before)
				to, allowed := e.to[s]
				if e.twice && !redeliverable {
					allowed = false
				}
				if !allowed {
					if !fault.Is(err, fault.Conflict) || after.Status != s {
						t.Errorf("%s in %s (redeliverable %v): got %s, %v, want a conflict", name, s, redeliverable, after.Status, err)
					}
					continue
				}
				if err != nil || after.Status != to {
					t.Errorf("%s in %s (redeliverable %v): got %s, %v, want %s", name, s, redeliverable, after.Status, err, to)
				}
				if after.Status.Terminal() != (after.CompletedAt != nil) {
					t.Errorf("%s in %s: completed_at %v in status %s", name, s, after.CompletedAt, after.Status)
				}
				if after.Status == Dispatched && after.DispatchedAt == nil {
					t.Errorf("%s in %s: dispatched without dispatched_at", name, s)
				}
			}
		}
	}
}

func TestAckInEveryStatus(t *testing.T) {
	t.Parallel()
	for _, s := range statuses {
		before := commandIn(s, false)
		after, changed := before.Ack(commandEpoch)
		if open := !s.Terminal(); changed != open {
			t.Errorf("ack in %s: changed %v", s, changed)
		}
		if s == Pending && (after.Status != Dispatched || !after.DispatchedAt.Equal(commandEpoch) || !after.TimeoutAt.Equal(before.TimeoutAt)) {
			t.Errorf("ack in pending: %+v", after)
		}
		if s == Dispatched && !after.DispatchedAt.Equal(*before.DispatchedAt) {
			t.Errorf("ack in dispatched moved dispatched_at")
		}
		if _, again := after.Ack(commandEpoch.Add(time.Second)); again {
			t.Errorf("second ack in %s changed the command", s)
		}
	}
}

func TestClaimRenewsTheDeadlineAndRedispatchDoesNot(t *testing.T) {
	t.Parallel()
	c, err := commandIn(Pending, true).Claim(commandEpoch, time.Minute)
	if err != nil || !c.TimeoutAt.Equal(commandEpoch.Add(time.Minute)) || !c.DispatchedAt.Equal(commandEpoch) {
		t.Fatalf("claim: %+v, %v", c, err)
	}
	later := commandEpoch.Add(10 * time.Second)
	again, err := c.Redispatch(later, time.Minute, 10*time.Second)
	if err != nil || !again.TimeoutAt.Equal(c.TimeoutAt) || !again.DispatchedAt.Equal(later) {
		t.Fatalf("redispatch: %+v, %v", again, err)
	}
}

func TestClaimLeavesWhatIsOverToTheSweep(t *testing.T) {
	t.Parallel()
	c := commandIn(Pending, true)
	if _, err := c.Claim(c.TimeoutAt.Add(time.Microsecond), time.Minute); !fault.Is(err, fault.Stale) {
		t.Errorf("claim after the deadline: %v", err)
	}
	if _, err := c.Claim(c.TimeoutAt, time.Minute); err != nil {
		t.Errorf("claim at the deadline: %v", err)
	}
}

func TestRedispatchWindow(t *testing.T) {
	t.Parallel()
	const window, interval = time.Minute, 10 * time.Second
	for _, tc := range []struct {
		age  time.Duration // since the last hand-over
		left time.Duration // until the deadline
		ok   bool
	}{
		{0, time.Hour, false},
		{interval - time.Microsecond, time.Hour, false},
		{interval, time.Hour, true},
		{window, time.Hour, true},
		{window + time.Microsecond, time.Hour, false},
		{interval, 0, true},
		{interval, -time.Microsecond, false},
	} {
		sent := commandEpoch.Add(-tc.age)
		c := Command{Action: "cancel_task", Status: Dispatched, DispatchedAt: &sent, TimeoutAt: commandEpoch.Add(tc.left)}
		if _, err := c.Redispatch(commandEpoch, window, interval); (err == nil) != tc.ok {
			t.Errorf("age %v, left %v: %v", tc.age, tc.left, err)
		}
	}
	sent := commandEpoch
	c := Command{Action: "cancel_task", Status: Dispatched, DispatchedAt: &sent, TimeoutAt: commandEpoch.Add(time.Hour)}
	if _, err := c.Redispatch(commandEpoch, window, 0); !fault.Is(err, fault.Stale) {
		t.Errorf("redispatch that is not strictly newer: %v", err)
	}
}

func TestRevertClearsTheEnd(t *testing.T) {
	t.Parallel()
	before := commandIn(TimedOut, true)
	before.AckedAt = &commandEpoch
	c, err := before.Revert(commandEpoch, time.Minute)
	if err != nil || c.Result != nil || c.Error != nil || c.CompletedAt != nil || c.AckedAt != nil || c.DispatchedAt != nil ||
		!c.TimeoutAt.Equal(commandEpoch.Add(time.Minute)) {
		t.Fatalf("revert: %+v, %v", c, err)
	}
}

func TestExpireNeedsThePast(t *testing.T) {
	t.Parallel()
	c := commandIn(Dispatched, false)
	if _, err := c.Expire(c.TimeoutAt); !fault.Is(err, fault.Stale) {
		t.Errorf("expire at the deadline: %v", err)
	}
	got, err := c.Expire(c.TimeoutAt.Add(time.Microsecond))
	if err != nil || *got.Error != "command timed out before agent responded" {
		t.Errorf("expire after the deadline: %+v, %v", got, err)
	}
}

func TestErrorIsCutByCharacters(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 1025)
	c, err := commandIn(Dispatched, false).Fail(&long, nil, commandEpoch)
	if err != nil || utf8.RuneCountInString(*c.Error) != 1024 || !utf8.ValidString(*c.Error) {
		t.Fatalf("got %d characters, %v", utf8.RuneCountInString(*c.Error), err)
	}
}
