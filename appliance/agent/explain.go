package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
)

// What an open command can wait for.
const (
	WaitsForNothing       = ""               // it has ended
	WaitsForAgent         = "agent"          // no session of the agent, or none that will take part any more
	WaitsForPoll          = "poll"           // the agent's next long poll
	WaitsForAck           = "ack"            // handed over, not acked
	WaitsForResult        = "result"         // acked, no result
	WaitsForRetryContract = "retry_contract" // sessions are there; none states the retry contract of the engine
	WaitsForEngine        = "engine"         // the agent does not run the engine
	WaitsForChildren      = "children"       // a bulk retry: its children
)

// Candidate is one session of the agent and whether it can take the command.
type Candidate struct {
	Session   string
	Transport Transport
	Worker    string
	Eligible  bool
	Reason    string
}

// NextStep is what happens to a command without anybody's doing.
type NextStep struct {
	What string
	At   *time.Time // nil: at once, or nothing will
}

// Explanation says in sentences where a command stands: what happened, why it waits, who could take it and why each of
// them can or cannot, what happens next and when.
type Explanation struct {
	Command    Command
	Summary    string
	Sentences  []string
	WaitingFor string
	Candidates []Candidate
	Next       NextStep
	Deliveries []Delivery
	Timeline   []Transition
}

// Explain tells where a command of the project stands. NotFound when there is none.
func (c *Commands) Explain(ctx context.Context, projectNo int64, id uuid.UUID) (Explanation, error) {
	in := explainInput{window: c.opts.RedispatchWindow, minInterval: c.opts.RedispatchMinInterval}
	err := c.withCommand(ctx, projectNo, id, func(tx CommandReadTx, cmd Command) (err error) {
		in.now, in.cmd = tx.Now(), cmd
		if in.deliveries, err = tx.CommandDeliveries(cmd.No); err != nil {
			return err
		}
		if in.timeline, err = tx.CommandTransitions(cmd.No, maxTimeline); err != nil {
			return err
		}
		if in.bulk, err = tx.CommandBulk(cmd.No); err != nil {
			return err
		}
		in.agent, err = tx.CommandAgentByNo(cmd.AgentNo)
		if fault.Is(err, fault.NotFound) { // a command without an agent
			err = nil
		}
		return err
	})
	if err != nil {
		return Explanation{}, err
	}
	in.sessions = c.presence.Sessions(in.cmd.AgentID)
	return explain(in), nil
}

// explainInput is everything that Explain looks at.
type explainInput struct {
	now                 time.Time
	cmd                 Command
	agent               CommandAgent
	bulk                BulkStanding
	sessions            []SessionInfo
	deliveries          []Delivery
	timeline            []Transition
	window, minInterval time.Duration
}

// explanation collects the sentences.
type explanation struct {
	explainInput
	out Explanation
}

// explain is pure: the same input gives the same sentences.
func explain(in explainInput) Explanation {
	e := explanation{explainInput: in, out: Explanation{Command: in.cmd, Deliveries: in.deliveries, Timeline: in.timeline,
		Sentences: []string{}, Candidates: []Candidate{}}}
	e.issued()
	switch {
	case in.bulk.ParentNo == in.cmd.No && in.cmd.No != 0:
		e.parent()
		return e.out
	case in.bulk.ParentNo != 0:
		e.say("It is child %d of %d of bulk retry %s, which is %s; children are claimed before other commands.", in.bulk.Position,
			in.bulk.Total, in.bulk.ParentID, in.bulk.ParentStatus)
	}
	switch in.cmd.Status {
	case Pending:
		e.candidates()
		e.pending()
	case Dispatched:
		e.candidates()
		e.dispatched()
	default:
		e.ended()
	}
	return e.out
}

func (e *explanation) say(format string, args ...any) {
	e.out.Sentences = append(e.out.Sentences, fmt.Sprintf(format, args...))
}

// issued says what was asked for, and what happened before the newest attempt.
func (e *explanation) issued() {
	by := "the appliance"
	if e.cmd.IssuedBy != nil {
		by = *e.cmd.IssuedBy
	}
	if e.bulk.ParentNo == e.cmd.No && e.cmd.No != 0 {
		e.say("Bulk retry of %s was started by %s at %s.", countOf(e.bulk.Total, "task"), by, e.when(e.cmd.IssuedAt))
		return
	}
	e.say("%s for agent %s was issued by %s at %s.", e.cmd.Action, e.agentName(), by, e.when(e.cmd.IssuedAt))
	earlier := e.deliveries
	if e.cmd.Status != Pending && len(earlier) > 0 {
		earlier = earlier[:len(earlier)-1]
	}
	for _, d := range earlier {
		e.say("Attempt %d went to %s at %s and ended as %s%s.", d.Attempt, describeDelivery(d), e.when(d.ClaimedAt), d.Outcome,
			because(d.Reason))
	}
	if t := e.last(EventReverted); t != nil {
		e.say("At %s it went back into the queue%s.", e.when(t.At), because(t.Detail))
	}
}

// last is the newest timeline row of the event; nil when there is none.
func (e *explanation) last(event string) *Transition {
	for i := len(e.timeline) - 1; i >= 0; i-- {
		if e.timeline[i].Event == event {
			return &e.timeline[i]
		}
	}
	return nil
}

// lastDelivery is the newest attempt; nil when there was none.
func (e *explanation) lastDelivery() *Delivery {
	if len(e.deliveries) == 0 {
		return nil
	}
	return &e.deliveries[len(e.deliveries)-1]
}

func (e *explanation) agentName() string {
	if e.agent.Name == "" {
		return e.cmd.AgentID.String()
	}
	return e.agent.Name
}

// candidates judges every session of the agent.
func (e *explanation) candidates() {
	for _, s := range e.sessions {
		c := Candidate{Session: s.Session, Transport: s.Transport, Worker: s.Worker}
		c.Eligible, c.Reason = e.judge(s)
		e.out.Candidates = append(e.out.Candidates, c)
	}
}

// judge tells whether a session can take the command, and why.
func (e *explanation) judge(s SessionInfo) (eligible bool, reason string) {
	switch {
	case e.agent.RevokedAt != nil:
		return false, "the agent is revoked"
	case !e.agent.ProjectActive:
		return false, "the project is archived"
	}
	if engine := e.cmd.RetryEngine; engine != "" && !slices.Contains(s.RetryEngines, engine) {
		if s.Transport == LongPoll {
			return false, "its polls do not list " + engine + " in X-Z4J-Retry-Contracts"
		}
		return false, "its hello did not state " + retryByReference + " for " + engine
	}
	if e.cmd.Status == Dispatched {
		return e.judgeRedispatch(s)
	}
	switch {
	case s.Transport == WebSocket:
		return true, "its socket is open"
	case s.Polling:
		return true, "its poll is waiting"
	}
	return true, "it is not polling right now: its next poll takes the command"
}

// judgeRedispatch tells whether a session can get a dispatched command once more.
func (e *explanation) judgeRedispatch(s SessionInfo) (eligible bool, reason string) {
	due, until, ok := e.redispatch()
	switch {
	case !Redeliverable(e.cmd.Action):
		return false, e.cmd.Action + " is handed over at most once"
	case s.Transport != LongPoll:
		return false, "only long polls get a command again"
	case !ok || until.Before(e.now):
		return false, "the time for another delivery is over"
	case due.After(e.now):
		return false, "another delivery is due at " + e.when(due)
	}
	return true, "its next poll gets the command again"
}

// redispatch is the span in which a poll gets a dispatched command again; ok is false when the deadline comes first.
func (e *explanation) redispatch() (due, until time.Time, ok bool) {
	if e.cmd.DispatchedAt == nil || !Redeliverable(e.cmd.Action) {
		return due, until, false
	}
	due = e.cmd.DispatchedAt.Add(e.minInterval)
	until = e.cmd.DispatchedAt.Add(e.window)
	if until.After(e.cmd.TimeoutAt) {
		until = e.cmd.TimeoutAt
	}
	return due, until, !due.After(until)
}

// deadline says when the command ends by itself.
func (e *explanation) deadline() {
	at := e.cmd.TimeoutAt
	if at.Before(e.now) {
		e.out.Next = NextStep{What: "it ends as timeout: its deadline has passed"}
		e.say("Its deadline passed at %s: the next sweep ends it as timeout.", e.when(at))
		return
	}
	if e.out.Next.What == "" {
		e.out.Next = NextStep{What: "it ends as timeout", At: &at}
	}
	e.say("Without %s it ends as timeout at %s.", e.missing(), e.when(at))
}

// missing names what the deadline cuts short.
func (e *explanation) missing() string {
	if e.cmd.Status == Pending {
		return "a session that takes it"
	}
	return "a result"
}
