package agent

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"signalbox/appliance/rawjson"
)

// pending explains a command that nobody has taken.
func (e *explanation) pending() {
	e.out.WaitingFor, e.out.Summary = e.whyPending()
	e.say("%s", e.out.Summary)
	for _, c := range e.out.Candidates {
		verb := "cannot take it"
		if c.Eligible {
			verb = "can take it"
		}
		e.say("%s %s: %s.", describeSession(c), verb, c.Reason)
	}
	if e.ready() {
		e.out.Next = NextStep{What: "it is handed over"}
	}
	e.deadline()
}

// ready tells whether a session takes the command without waiting for anything.
func (e *explanation) ready() bool {
	for i, c := range e.out.Candidates {
		if c.Eligible && (c.Transport == WebSocket || e.sessions[i].Polling) {
			return true
		}
	}
	return false
}

// whyPending finds the cause that keeps a command pending.
func (e *explanation) whyPending() (waits, summary string) {
	a := &e.agent
	switch {
	case a.RevokedAt != nil:
		return WaitsForAgent, fmt.Sprintf("It waits in vain: agent %s was revoked at %s.", a.Name, e.when(*a.RevokedAt))
	case !a.ProjectActive:
		return WaitsForAgent, fmt.Sprintf("It waits for agent %s, which is refused while its project is archived.", a.Name)
	case len(e.sessions) == 0:
		return e.whyAbsent()
	case e.ready():
		return WaitsForAgent, fmt.Sprintf("It is about to be handed to agent %s, which is there to take it.", a.Name)
	}
	for _, c := range e.out.Candidates {
		if c.Eligible {
			return WaitsForPoll, fmt.Sprintf("It waits for the next poll of agent %s, which is not polling right now.", a.Name)
		}
	}
	engine := e.cmd.RetryEngine
	if a.ReportedInventory() && !slices.Contains(a.Engines, engine) {
		return WaitsForEngine, fmt.Sprintf("It waits for agent %s to run the engine %s, which it does not report any more.", a.Name, engine)
	}
	return WaitsForRetryContract, fmt.Sprintf("It waits for a session of agent %s that states the retry contract of %s; none of its %s does.",
		a.Name, engine, countOf(len(e.sessions), "session"))
}

// whyAbsent explains an agent without a session.
func (e *explanation) whyAbsent() (waits, summary string) {
	a := &e.agent
	switch {
	case a.LastSeenAt == nil && a.LastConnectAt == nil:
		return WaitsForAgent, fmt.Sprintf("It waits for agent %s, which has never connected.", a.Name)
	case a.LastSeenAt == nil:
		return WaitsForAgent, fmt.Sprintf("It waits for agent %s, which is %s and last connected at %s.", a.Name, a.State, e.when(*a.LastConnectAt))
	case a.State == Online:
		return WaitsForAgent, fmt.Sprintf("It waits for agent %s, which has no session right now and was last heard at %s.", a.Name, e.when(*a.LastSeenAt))
	}
	return WaitsForAgent, fmt.Sprintf("It waits for agent %s, which is %s and was last heard at %s.", a.Name, a.State, e.when(*a.LastSeenAt))
}

// dispatched explains a command that was handed over and has no result.
func (e *explanation) dispatched() {
	d := e.lastDelivery()
	e.handOver(d)
	switch {
	case e.agent.RevokedAt != nil:
		e.out.WaitingFor = WaitsForAgent
		e.out.Summary = fmt.Sprintf("It was handed over, but agent %s was revoked at %s: its result is not accepted any more.", e.agent.Name,
			e.when(*e.agent.RevokedAt))
	case !e.agent.ProjectActive:
		e.out.WaitingFor = WaitsForAgent
		e.out.Summary = fmt.Sprintf("It was handed over, but agent %s is refused while its project is archived.", e.agent.Name)
	case e.cmd.AckedAt != nil:
		e.out.WaitingFor = WaitsForResult
		e.out.Summary = fmt.Sprintf("Agent %s accepted it at %s and has sent no result: it is executing it, or has it behind others.", e.agent.Name,
			e.when(*e.cmd.AckedAt))
	case d != nil && d.Outcome == DeliverySendFailed:
		e.out.WaitingFor = WaitsForResult
		e.out.Summary = fmt.Sprintf("%s%s; nobody knows whether agent %s got it.", lostFrame(d), because(d.Reason), e.agent.Name)
	default:
		e.out.WaitingFor = WaitsForAck
		e.out.Summary = fmt.Sprintf("It was handed to agent %s at %s, which has not acked it.", e.agent.Name, e.when(*e.cmd.DispatchedAt))
	}
	e.say("%s", e.out.Summary)
	e.again()
	e.deadline()
}

// handOver says where the newest attempt went.
func (e *explanation) handOver(d *Delivery) {
	if d == nil {
		e.say("It was acked without a recorded attempt: the ack overtook its claim.")
		return
	}
	sent := "; that its frame left is not recorded"
	if d.SentAt != nil {
		sent = " and sent at " + e.when(*d.SentAt)
	}
	e.say("Attempt %d was claimed by %s at %s%s.", d.Attempt, describeDelivery(*d), e.when(d.ClaimedAt), sent)
	for _, s := range e.sessions {
		if s.Transport == d.Transport && s.Session == d.Session {
			return
		}
	}
	e.say("That session is gone.")
}

// again says whether, when and to whom the command will be handed over once more.
func (e *explanation) again() {
	if !Redeliverable(e.cmd.Action) {
		e.say("%s is handed over at most once: it will not be sent again.", e.cmd.Action)
		return
	}
	due, until, ok := e.redispatch()
	switch {
	case !ok:
		e.say("It will not be sent again: its deadline comes before another delivery would be due.")
	case until.Before(e.now):
		e.say("It will not be sent again: the time for another delivery ended at %s.", e.when(until))
	case due.After(e.now):
		e.say("A long poll of the agent gets it again from %s until %s.", e.when(due), e.when(until))
		e.nextRedelivery(&due)
	default:
		e.say("The next long poll of the agent gets it again, until %s.", e.when(until))
		e.nextRedelivery(nil)
	}
}

// nextRedelivery announces another delivery when a long-poll session is there to get it.
func (e *explanation) nextRedelivery(at *time.Time) {
	for _, s := range e.sessions {
		if s.Transport == LongPoll && e.agent.RevokedAt == nil && e.agent.ProjectActive {
			e.out.Next = NextStep{What: "a long poll gets it again", At: at}
			return
		}
	}
}

// ended explains a terminal command.
func (e *explanation) ended() {
	d := e.lastDelivery()
	if d != nil {
		e.say("Attempt %d was claimed by %s at %s.", d.Attempt, describeDelivery(*d), e.when(d.ClaimedAt))
	}
	parent := e.bulk.ParentNo == e.cmd.No && e.cmd.No != 0 // no agent sees it: the mark is the server's own
	if e.cmd.AckedAt != nil && !parent {
		e.say("The agent acked it at %s.", e.when(*e.cmd.AckedAt))
	}
	at := e.cmd.IssuedAt
	if e.cmd.CompletedAt != nil {
		at = *e.cmd.CompletedAt
	}
	took := span(at.Sub(e.cmd.IssuedAt))
	switch e.cmd.Status {
	case Completed:
		e.out.Summary = fmt.Sprintf("It completed at %s, %s after it was issued.", e.when(at), took)
	case Failed:
		e.out.Summary = fmt.Sprintf("It failed at %s, %s after it was issued%s.", e.when(at), took, because(e.cmd.Error))
	case Cancelled:
		by := ""
		if t := e.last(EventCancelled); t != nil && t.Detail != nil {
			by = " " + *t.Detail
		}
		e.out.Summary = fmt.Sprintf("It was cancelled%s at %s.", by, e.when(at))
	default:
		e.out.Summary = fmt.Sprintf("It timed out at %s, %s after it was issued: %s.", e.when(at), took, e.whyTimeout(d))
	}
	e.say("%s", e.out.Summary)
	e.afterwards(d)
	e.out.Next = NextStep{What: "nothing: it has ended"}
}

// whyTimeout says what had not happened at the deadline.
func (e *explanation) whyTimeout(d *Delivery) string {
	switch {
	case e.cmd.DispatchedAt == nil:
		return "no session of the agent had taken it"
	case e.cmd.AckedAt != nil:
		return "the agent acked it and sent no result"
	case d != nil && d.Outcome == DeliverySendFailed:
		return lowerFirst(lostFrame(d)) + because(d.Reason)
	}
	return "the agent neither acked it nor sent a result"
}

// afterwards says what can still come of a command that ended without a result.
func (e *explanation) afterwards(d *Delivery) {
	if e.cmd.Status != TimedOut && e.cmd.Status != Cancelled {
		return
	}
	if d != nil {
		e.say("The agent may have executed it all the same: a result that comes now is counted as late and changes nothing.")
	}
	if e.cmd.Status != TimedOut {
		return
	}
	switch {
	case Redeliverable(e.cmd.Action) && e.cmd.IdempotencyKey != nil:
		e.say("Repeating the request under its idempotency key puts it back into the queue.")
	case Redeliverable(e.cmd.Action):
		e.say("%s is safe to issue again.", e.cmd.Action)
	case d != nil:
		e.say("%s is handed over at most once: make sure it did not take effect before you issue it again.", e.cmd.Action)
	}
}

// lostFrame says how an attempt was lost: before its frame was written, or after.
func lostFrame(d *Delivery) string {
	if d.SentAt != nil {
		return "Its frame was sent and its delivery lost"
	}
	return "Its frame could not be sent"
}

func lowerFirst(s string) string { return strings.ToLower(s[:1]) + s[1:] }

// when writes a time with its distance from now.
func (e *explanation) when(t time.Time) string {
	d := t.Sub(e.now)
	if d >= 0 {
		return rawjson.FormatTime(t) + " (in " + span(d) + ")"
	}
	return rawjson.FormatTime(t) + " (" + span(-d) + " ago)"
}

// Span writes a duration with one unit that suits its size, for sentences.
func Span(d time.Duration) string { return span(d) }

// span writes a duration with one unit that suits its size.
func span(d time.Duration) string {
	switch {
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < 2*time.Minute:
		return strconv.FormatInt(int64(d/time.Second), 10) + " s"
	case d < 2*time.Hour:
		return strconv.FormatInt(int64(d/time.Minute), 10) + " min"
	case d < 48*time.Hour:
		return strconv.FormatInt(int64(d/time.Hour), 10) + " h"
	}
	return strconv.FormatInt(int64(d/(24*time.Hour)), 10) + " days"
}

// because turns a recorded reason into the end of a sentence.
func because(reason *string) string {
	if reason == nil || *reason == "" {
		return ""
	}
	return ": " + cutRunes(*reason, 200)
}

func countOf(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

func describeDelivery(d Delivery) string {
	return Peer{Transport: d.Transport, Session: d.Session, Worker: d.Worker}.describe()
}

func describeSession(c Candidate) string {
	return "The " + Peer{Transport: c.Transport, Session: c.Session, Worker: c.Worker}.describe()
}
