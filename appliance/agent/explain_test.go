package agent

import (
	"strings"
	"testing"
	"time"
)

// explained is a command of each situation, at commandEpoch, with a deadline 40 s ahead, a window of 60 s and an
// interval of 10 s.
type explained struct {
	name       string
	cmd        func(*Command)
	agent      func(*CommandAgent)
	sessions   []SessionInfo
	deliveries []Delivery
	timeline   []Transition

	waits string
	next  string
	at    time.Duration // of the next step, from now; 0: none
	say   []string      // must occur
	not   []string      // must not occur
	can   []bool        // candidates
}

func ago(d time.Duration) *time.Time {
	t := commandEpoch.Add(-d)
	return &t
}

func handedOver(age time.Duration, action string) func(*Command) {
	return func(c *Command) {
		c.Action, c.Status, c.DispatchedAt = action, Dispatched, ago(age)
	}
}

func attempt(age time.Duration, t Transport, outcome DeliveryOutcome, reason string) Delivery {
	d := Delivery{Attempt: 1, Transport: t, Session: "s1", ClaimedAt: *ago(age), SentAt: ago(age), Outcome: outcome}
	if reason != "" {
		d.Reason = &reason
	}
	if outcome == DeliverySendFailed {
		d.SentAt = nil
	}
	return d
}

func endedAs(s Status) func(*Command) {
	return func(c *Command) {
		c.Status, c.CompletedAt = s, ago(time.Second)
		if s == TimedOut || s == Failed {
			text := "boom"
			c.Error = &text
		}
	}
}

var (
	socket      = SessionInfo{Transport: WebSocket, Session: "s1", Worker: "w1", RetryEngines: []string{"celery"}}
	plain       = SessionInfo{Transport: WebSocket, Session: "s2"}
	parked      = SessionInfo{Transport: LongPoll, Session: "s1", Polling: true}
	betweenPoll = SessionInfo{Transport: LongPoll, Session: "s1"}
	reportedBy  = func(a *CommandAgent) { a.LastConnectAt, a.Engines = ago(time.Hour), []string{"celery"} }
	retryOf     = func(c *Command) { c.Action, c.RetryEngine = "retry_task", "celery" }
)

var explainCases = []explained{
	{name: "never connected", agent: func(a *CommandAgent) { a.State, a.LastSeenAt = Unknown, nil },
		waits: WaitsForAgent, next: "it ends as timeout", at: 40 * time.Second, say: []string{"has never connected", "ends as timeout at 2026-03-01T12:00:40Z (in 40 s)"}},
	{name: "offline since", agent: func(a *CommandAgent) { a.State, a.LastSeenAt = Offline, ago(5*time.Minute) },
		waits: WaitsForAgent, next: "it ends as timeout", at: 40 * time.Second, say: []string{"is offline and was last heard at 2026-03-01T11:55:00Z (5 min ago)"}},
	{name: "offline, never heard beyond its hello", agent: func(a *CommandAgent) { a.State, a.LastSeenAt, a.LastConnectAt = Offline, nil, ago(time.Hour) },
		waits: WaitsForAgent, next: "it ends as timeout", at: 40 * time.Second, say: []string{"is offline and last connected at 2026-03-01T11:00:00Z"}},
	{name: "online without a session", waits: WaitsForAgent, next: "it ends as timeout", at: 40 * time.Second,
		say: []string{"has no session right now", "(5 s ago)"}},
	{name: "socket open", sessions: []SessionInfo{socket}, waits: WaitsForAgent, next: "it is handed over", can: []bool{true},
		say: []string{"about to be handed to agent worker-1", "ws session s1, worker w1 can take it: its socket is open"}},
	{name: "poll parked", sessions: []SessionInfo{parked}, waits: WaitsForAgent, next: "it is handed over", can: []bool{true}, say: []string{"its poll is waiting"}},
	{name: "not polling", sessions: []SessionInfo{betweenPoll}, waits: WaitsForPoll, next: "it ends as timeout", at: 40 * time.Second, can: []bool{true},
		say: []string{"waits for the next poll", "its next poll takes the command"}},
	{name: "no socket states the contract", cmd: retryOf, agent: reportedBy, sessions: []SessionInfo{plain, plain}, waits: WaitsForRetryContract,
		next: "it ends as timeout", at: 40 * time.Second, can: []bool{false, false},
		say: []string{"states the retry contract of celery; none of its 2 sessions does", "its hello did not state retry_by_reference_v1 for celery"}},
	{name: "one socket states the contract", cmd: retryOf, agent: reportedBy, sessions: []SessionInfo{plain, socket}, waits: WaitsForAgent,
		next: "it is handed over", can: []bool{false, true}},
	{name: "the poll lacks the contract", cmd: retryOf, sessions: []SessionInfo{parked}, waits: WaitsForRetryContract, next: "it ends as timeout",
		at: 40 * time.Second, can: []bool{false}, say: []string{"its polls do not list celery in X-Z4J-Retry-Contracts"}},
	{name: "the engine is gone", cmd: retryOf, agent: func(a *CommandAgent) { a.LastConnectAt, a.Engines = ago(time.Hour), []string{"rq"} },
		sessions: []SessionInfo{plain}, waits: WaitsForEngine, next: "it ends as timeout", at: 40 * time.Second, can: []bool{false},
		say: []string{"to run the engine celery"}},
	{name: "revoked while pending", agent: func(a *CommandAgent) { a.RevokedAt = ago(time.Minute) }, sessions: []SessionInfo{socket}, waits: WaitsForAgent,
		next: "it ends as timeout", at: 40 * time.Second, can: []bool{false}, say: []string{"was revoked at 2026-03-01T11:59:00Z", "the agent is revoked"}},
	{name: "archived while pending", agent: func(a *CommandAgent) { a.ProjectActive = false }, sessions: []SessionInfo{socket}, waits: WaitsForAgent,
		next: "it ends as timeout", at: 40 * time.Second, can: []bool{false}, say: []string{"refused while its project is archived"}},
	{name: "deadline passed", cmd: func(c *Command) { c.TimeoutAt = *ago(time.Second) }, waits: WaitsForAgent,
		next: "it ends as timeout: its deadline has passed", say: []string{"the next sweep ends it"}},
	{name: "reverted", sessions: []SessionInfo{socket}, waits: WaitsForAgent, next: "it is handed over", can: []bool{true},
		deliveries: []Delivery{attempt(9*time.Second, WebSocket, DeliverySendFailed, "broken pipe")},
		timeline:   []Transition{{Event: EventReverted, At: *ago(8 * time.Second)}},
		say:        []string{"Attempt 1 went to ws session s1 at 2026-03-01T11:59:51Z (9 s ago) and ended as send_failed: broken pipe", "went back into the queue"}},

	{name: "claimed, not acked", cmd: handedOver(3*time.Second, "restart_worker"), sessions: []SessionInfo{socket}, can: []bool{false},
		deliveries: []Delivery{attempt(3*time.Second, WebSocket, DeliveryInFlight, "")}, waits: WaitsForAck, next: "it ends as timeout", at: 40 * time.Second,
		say: []string{"which has not acked it", "handed over at most once: it will not be sent again", "and sent at"}, not: []string{"session is gone"}},
	{name: "claimed by a session that is gone", cmd: handedOver(3*time.Second, "restart_worker"), waits: WaitsForAck, next: "it ends as timeout", at: 40 * time.Second,
		deliveries: []Delivery{{Attempt: 1, Transport: WebSocket, Session: "s1", ClaimedAt: *ago(3 * time.Second), Outcome: DeliveryInFlight}},
		say:        []string{"That session is gone", "that its frame left is not recorded"}},
	{name: "acked", cmd: func(c *Command) { handedOver(3*time.Second, "restart_worker")(c); c.AckedAt = ago(2 * time.Second) }, sessions: []SessionInfo{socket},
		can: []bool{false}, deliveries: []Delivery{attempt(3*time.Second, WebSocket, DeliveryAcked, "")}, waits: WaitsForResult,
		next: "it ends as timeout", at: 40 * time.Second, say: []string{"accepted it at 2026-03-01T11:59:58Z (2 s ago) and has sent no result"}},
	{name: "send failed, at most once", cmd: handedOver(3*time.Second, "restart_worker"), waits: WaitsForResult, next: "it ends as timeout", at: 40 * time.Second,
		deliveries: []Delivery{attempt(3*time.Second, WebSocket, DeliverySendFailed, "broken pipe")}, say: []string{"could not be sent: broken pipe", "at most once"}},
	{name: "acked before the claim", cmd: func(c *Command) { handedOver(3*time.Second, "restart_worker")(c); c.AckedAt = ago(3 * time.Second) },
		waits: WaitsForResult, next: "it ends as timeout", at: 40 * time.Second, say: []string{"the ack overtook its claim"}},
	{name: "redelivery due later", cmd: handedOver(3*time.Second, "cancel_task"), sessions: []SessionInfo{betweenPoll}, can: []bool{false},
		deliveries: []Delivery{attempt(3*time.Second, LongPoll, DeliveryInFlight, "")}, waits: WaitsForAck, next: "a long poll gets it again", at: 7 * time.Second,
		say: []string{"gets it again from 2026-03-01T12:00:07Z (in 7 s) until 2026-03-01T12:00:40Z", "another delivery is due at"}},
	{name: "redelivery due", cmd: handedOver(15*time.Second, "cancel_task"), sessions: []SessionInfo{betweenPoll, socket}, can: []bool{true, false},
		deliveries: []Delivery{attempt(15*time.Second, LongPoll, DeliveryInFlight, "")}, waits: WaitsForAck, next: "a long poll gets it again",
		say: []string{"The next long poll of the agent gets it again", "only long polls get a command again"}},
	{name: "redelivery without a poll", cmd: handedOver(3*time.Second, "cancel_task"), sessions: []SessionInfo{socket}, can: []bool{false},
		deliveries: []Delivery{attempt(3*time.Second, WebSocket, DeliveryInFlight, "")}, waits: WaitsForAck, next: "it ends as timeout", at: 40 * time.Second},
	{name: "window over", cmd: handedOver(61*time.Second, "cancel_task"), sessions: []SessionInfo{betweenPoll}, can: []bool{false},
		deliveries: []Delivery{attempt(61*time.Second, LongPoll, DeliveryInFlight, "")}, waits: WaitsForAck, next: "it ends as timeout", at: 40 * time.Second,
		say: []string{"the time for another delivery ended at 2026-03-01T11:59:59Z", "the time for another delivery is over"}},
	{name: "deadline before redelivery", cmd: func(c *Command) {
		handedOver(3*time.Second, "cancel_task")(c)
		c.TimeoutAt = commandEpoch.Add(time.Second)
	},
		deliveries: []Delivery{attempt(3*time.Second, LongPoll, DeliveryInFlight, "")}, waits: WaitsForAck, next: "it ends as timeout", at: time.Second,
		say: []string{"its deadline comes before another delivery"}},
	{name: "revoked after the claim", cmd: handedOver(3*time.Second, "restart_worker"), agent: func(a *CommandAgent) { a.RevokedAt = ago(time.Second) },
		deliveries: []Delivery{attempt(3*time.Second, WebSocket, DeliveryInFlight, "")}, waits: WaitsForAgent, next: "it ends as timeout", at: 40 * time.Second,
		say: []string{"its result is not accepted any more"}},
	{name: "archived after the claim", cmd: handedOver(3*time.Second, "cancel_task"), agent: func(a *CommandAgent) { a.ProjectActive = false }, sessions: []SessionInfo{betweenPoll},
		can: []bool{false}, deliveries: []Delivery{attempt(3*time.Second, WebSocket, DeliveryInFlight, "")}, waits: WaitsForAgent, next: "it ends as timeout", at: 40 * time.Second,
		say: []string{"refused while its project is archived"}},

	{name: "completed", cmd: func(c *Command) {
		handedOver(3*time.Second, "restart_worker")(c)
		endedAs(Completed)(c)
		c.AckedAt = ago(2 * time.Second)
	},
		deliveries: []Delivery{attempt(3*time.Second, WebSocket, DeliverySuccess, "")}, next: "nothing: it has ended",
		say: []string{"It completed at 2026-03-01T11:59:59Z (1 s ago), 19 s after it was issued.", "The agent acked it at", "Attempt 1 was claimed by ws session s1"},
		not: []string{"late"}},
	{name: "failed", cmd: endedAs(Failed), deliveries: []Delivery{attempt(3*time.Second, WebSocket, DeliveryFailed, "boom")}, next: "nothing: it has ended",
		say: []string{"It failed at", "19 s after it was issued: boom"}},
	{name: "timed out, never taken", cmd: endedAs(TimedOut), next: "nothing: it has ended", say: []string{"no session of the agent had taken it"}, not: []string{"late", "make sure"}},
	{name: "timed out, not acked", cmd: func(c *Command) { handedOver(3*time.Second, "restart_worker")(c); endedAs(TimedOut)(c) },
		deliveries: []Delivery{attempt(3*time.Second, WebSocket, DeliveryTimeout, "")}, next: "nothing: it has ended",
		say: []string{"neither acked it nor sent a result", "counted as late", "make sure it did not take effect"}},
	{name: "timed out, acked", cmd: func(c *Command) {
		handedOver(3*time.Second, "restart_worker")(c)
		endedAs(TimedOut)(c)
		c.AckedAt = ago(time.Second)
	},
		deliveries: []Delivery{attempt(3*time.Second, WebSocket, DeliveryTimeout, "")}, next: "nothing: it has ended", say: []string{"the agent acked it and sent no result"}},
	{name: "timed out, not sent", cmd: func(c *Command) { handedOver(3*time.Second, "restart_worker")(c); endedAs(TimedOut)(c) },
		deliveries: []Delivery{attempt(3*time.Second, WebSocket, DeliverySendFailed, "broken pipe")}, next: "nothing: it has ended", say: []string{"its frame could not be sent: broken pipe"}},
	{name: "delivery lost, at most once", cmd: handedOver(3*time.Second, "restart_worker"), waits: WaitsForResult, next: "it ends as timeout", at: 40 * time.Second,
		deliveries: []Delivery{{Attempt: 1, Transport: WebSocket, ClaimedAt: *ago(3 * time.Second), SentAt: ago(3 * time.Second), Outcome: DeliverySendFailed, Reason: textOrNil("the connection ended")}},
		say:        []string{"Its frame was sent and its delivery lost: the connection ended; nobody knows whether agent worker-1 got it."}},
	{name: "timed out, may be repeated", cmd: func(c *Command) { endedAs(TimedOut)(c); c.Action = "cancel_task"; key := "k"; c.IdempotencyKey = &key },
		next: "nothing: it has ended", say: []string{"Repeating the request under its idempotency key"}},
	{name: "timed out, safe to issue again", cmd: func(c *Command) { endedAs(TimedOut)(c); c.Action = "cancel_task" },
		next: "nothing: it has ended", say: []string{"cancel_task is safe to issue again"}},
	{name: "cancelled after the claim", cmd: func(c *Command) { handedOver(3*time.Second, "restart_worker")(c); endedAs(Cancelled)(c) },
		deliveries: []Delivery{attempt(3*time.Second, WebSocket, DeliverySuperseded, "")}, timeline: []Transition{{Event: EventCancelled, Detail: textOrNil("by ada")}},
		next: "nothing: it has ended", say: []string{"It was cancelled by ada at", "counted as late"}},
	{name: "cancelled before", cmd: endedAs(Cancelled), next: "nothing: it has ended", say: []string{"It was cancelled at"}, not: []string{"late"}},
}

func TestExplain(t *testing.T) {
	t.Parallel()
	for _, tc := range explainCases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			in := explainInput{now: commandEpoch, cmd: commandIn(Pending, false), sessions: tc.sessions, deliveries: tc.deliveries, timeline: tc.timeline,
				window: time.Minute, minInterval: 10 * time.Second,
				agent: CommandAgent{Name: "worker-1", ProjectActive: true, State: Online, LastSeenAt: ago(5 * time.Second)}}
			if tc.cmd != nil {
				tc.cmd(&in.cmd)
			}
			if tc.agent != nil {
				tc.agent(&in.agent)
			}
			checkExplanation(t, tc, explain(in))
		})
	}
}

func checkExplanation(t *testing.T, tc explained, got Explanation) {
	t.Helper()
	text := strings.Join(got.Sentences, "\n")
	for _, c := range got.Candidates {
		text += "\n" + c.Reason
	}
	if got.WaitingFor != tc.waits || got.Next.What != tc.next {
		t.Errorf("waits for %q, next %q; want %q, %q\n%s", got.WaitingFor, got.Next.What, tc.waits, tc.next, text)
	}
	if (got.Next.At == nil) != (tc.at == 0) || (got.Next.At != nil && got.Next.At.Sub(commandEpoch) != tc.at) {
		t.Errorf("next at %v, want in %v", got.Next.At, tc.at)
	}
	if got.Summary == "" || !strings.Contains(text, got.Summary) {
		t.Errorf("summary %q is not among the sentences", got.Summary)
	}
	for _, s := range got.Sentences {
		if !strings.HasSuffix(s, ".") || strings.Contains(s, "%!") {
			t.Errorf("not a sentence: %q", s)
		}
	}
	for _, want := range tc.say {
		if !strings.Contains(text, want) {
			t.Errorf("does not say %q:\n%s", want, text)
		}
	}
	for _, unwanted := range tc.not {
		if strings.Contains(text, unwanted) {
			t.Errorf("says %q:\n%s", unwanted, text)
		}
	}
	if len(got.Candidates) != len(tc.can) {
		t.Fatalf("%d candidates, want %d", len(got.Candidates), len(tc.can))
	}
	for i, c := range got.Candidates {
		if c.Eligible != tc.can[i] || c.Reason == "" {
			t.Errorf("candidate %d: %+v, want eligible %v", i, c, tc.can[i])
		}
	}
}
