package fire

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/schedule"
	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
)

// What an open fire can wait for.
const (
	WaitsForNothing = ""       // it has ended
	WaitsForAgent   = "agent"  // an online agent that lists the engine
	WaitsForResult  = "result" // the agent's result
)

// Candidate is one agent of the project and whether a fire can be routed to it.
type Candidate struct {
	AgentID  uuid.UUID
	Agent    string
	State    agent.State
	Engines  []string // as reported, or as declared
	Declared bool     // Engines are declared: the agent reports none
	Eligible bool
	Reason   string
}

// Explanation says in sentences where a fire stands: what it waits for, which agents could take it and why each of them can
// or cannot, what happens next and when.
type Explanation struct {
	Fire       Fire
	Summary    string
	Sentences  []string
	WaitingFor string
	Candidates []Candidate
	Next       agent.NextStep
	ExpiresAt  *time.Time // of a buffered fire
}

// maxExplained bounds the agents that an explanation goes through.
const maxExplained = 50

// agentView is an agent with what routing looks at.
type agentView struct {
	agent.Agent
	declared []string
	sessions []agent.SessionInfo
}

// engines are the engines that count for the agent.
func (v *agentView) engines() (names []string, declared bool) {
	if !v.ReportedInventory() {
		return v.declared, len(v.declared) > 0
	}
	return v.EngineAdapters, false
}

// longPoll tells whether every session of the agent is a long poll.
func (v *agentView) longPoll() bool {
	return len(v.sessions) > 0 && !slices.ContainsFunc(v.sessions, func(s agent.SessionInfo) bool { return s.Transport != agent.LongPoll })
}

// Explain tells where a fire of the project stands; NotFound when there is none.
func (f *Fires) Explain(ctx context.Context, projectNo int64, fireID uuid.UUID) (Explanation, error) {
	var (
		e      explanation
		agents []agentView
	)
	err := f.st.View(ctx, func(tx ReadTx) (err error) {
		if e.fire, err = tx.FireOfProject(projectNo, fireID); err != nil {
			return named(err, "fire not found")
		}
		e.now = tx.Now()
		if e.fire.Status != Buffered {
			return nil
		}
		p, err := tx.PendingOfFire(e.fire.No)
		if err != nil {
			return err
		}
		e.pending = &p
		agents, err = views(tx, projectNo)
		return err
	})
	if err != nil {
		return Explanation{}, err
	}
	if e.fire.Status == Buffered {
		f.attach(agents)
		return e.buffered(agents), nil
	}
	if e.fire.CommandID != nil {
		cmd, err := f.cmds.Explain(ctx, projectNo, *e.fire.CommandID)
		switch {
		case err == nil:
			e.command = &cmd
		case !fault.Is(err, fault.NotFound):
			return Explanation{}, err
		}
	}
	return e.settled(), nil
}

// views are the live agents of the project with what is declared of them.
func views(tx ReadTx, projectNo int64) ([]agentView, error) {
	agents, err := tx.Agents(projectNo, false)
	if err != nil {
		return nil, err
	}
	declared, err := tx.DeclaredEngines(projectNo, 0)
	if err != nil {
		return nil, err
	}
	out := make([]agentView, len(agents))
	for i := range agents {
		out[i].Agent = agents[i]
		for _, d := range declared {
			if d.AgentNo == agents[i].No {
				out[i].declared = append(out[i].declared, d.Engine)
			}
		}
	}
	return out, nil
}

// attach adds the sessions of this moment.
func (f *Fires) attach(agents []agentView) {
	for i := range agents {
		agents[i].sessions = f.presence.Sessions(agents[i].ID)
	}
}

// explanation collects the sentences about one fire.
type explanation struct {
	now     time.Time
	fire    Fire
	pending *Pending
	command *agent.Explanation
	out     Explanation
}

func (e *explanation) say(format string, args ...any) {
	e.out.Sentences = append(e.out.Sentences, fmt.Sprintf(format, args...))
}

func (e *explanation) begin() {
	e.out = Explanation{Fire: e.fire, Candidates: []Candidate{}}
	how := "for the slot " + rawjson.FormatTime(e.fire.ScheduledFor)
	switch e.fire.Origin {
	case schedule.OriginCatchUp:
		how = "for the missed slot " + rawjson.FormatTime(e.fire.ScheduledFor)
	case schedule.OriginTrigger:
		how = "by hand"
	}
	e.say("Schedule %s was fired %s at %s.", e.fire.ScheduleName, how, when(e.now, e.fire.FiredAt))
}

// buffered explains a fire that waits for an agent.
func (e *explanation) buffered(agents []agentView) Explanation {
	e.begin()
	e.out.WaitingFor = WaitsForAgent
	p := e.pending
	e.out.ExpiresAt = &p.ExpiresAt
	w := waitFor(p.Engine, agents)
	e.out.Summary = "It waits for an online agent of the project that lists the engine " + p.Engine + ": " + w.why + "."
	if w.ready != "" {
		e.out.Summary = "Agent " + w.ready + " is online and can take it: it is handed over as soon as that agent has room."
		e.out.Next = agent.NextStep{What: "it is handed to agent " + w.ready}
	} else {
		e.out.Next = agent.NextStep{What: "it ends as buffer_expired", At: &p.ExpiresAt}
	}
	e.say("%s", e.out.Summary)
	e.out.Sentences = append(e.out.Sentences, w.hints...)
	e.say("What its schedule's catch_up leaves out is dropped when an agent comes.")
	e.say("Without one it ends as buffer_expired at %s.", when(e.now, p.ExpiresAt))
	e.out.Candidates = w.candidates
	return e.out
}

// settled explains a fire that is not in the buffer.
func (e *explanation) settled() Explanation {
	e.begin()
	id := "its command"
	if e.fire.CommandID != nil {
		id = "command " + e.fire.CommandID.String()
	}
	end := e.fire.FiredAt
	if e.fire.FinishedAt != nil {
		end = *e.fire.FinishedAt
	}
	switch e.fire.Status {
	case Delivered:
		e.out.WaitingFor = WaitsForResult
		e.out.Summary = "It was handed over as " + id + " and has no result yet."
		e.out.Next = agent.NextStep{What: "it ends with the agent's result"}
		if e.untaken() {
			e.out.Summary = "No agent took " + id + " in time: no task was submitted."
			e.out.Next = agent.NextStep{What: "nothing: it stays delivered"}
		}
	case AckedSuccess:
		e.out.Summary = fmt.Sprintf("The agent submitted the task at %s, %s after it was fired.", when(e.now, end), latency(e.fire))
	case AckedFailed:
		e.out.Summary = fmt.Sprintf("The agent answered with a failure at %s%s.", when(e.now, end), because(e.fire.ErrorMessage))
	case Failed:
		e.out.Summary = fmt.Sprintf("It failed at %s%s.", when(e.now, end), because(e.fire.ErrorMessage))
	case BufferExpired:
		e.out.Summary = fmt.Sprintf("It left the buffer without being handed over at %s%s.", when(e.now, end), because(e.fire.ErrorMessage))
	default:
		e.out.Summary = "It was decided and nothing has become of it yet."
	}
	e.say("%s", e.out.Summary)
	switch {
	case e.command != nil:
		e.say("Of %s: %s", id, e.command.Summary)
		switch {
		case e.fire.Status != Delivered || e.command.Command.Status != agent.TimedOut:
		case e.untaken():
			e.say("The fire stays delivered. By hand: `signalbox schedules trigger %s`.", e.fire.ScheduleName)
		default:
			e.say("A late result still ends the fire; without one it stays delivered.")
		}
		e.say("All about it: `signalbox commands explain %s`.", e.fire.CommandID)
	case e.fire.CommandID != nil:
		e.say("Retention has removed %s.", id)
	}
	if e.fire.Status.Finished() {
		e.out.Next = agent.NextStep{What: "nothing: it has ended"}
	}
	return e.out
}

// untaken tells that the time of the command was over before any session took it.
func (e *explanation) untaken() bool {
	return e.command != nil && e.command.Command.Status == agent.TimedOut && e.command.Command.DispatchedAt == nil
}

func latency(f Fire) string {
	if f.LatencyMS == nil {
		return "some time"
	}
	return agent.Span(time.Duration(*f.LatencyMS) * time.Millisecond)
}

// when writes a time with its distance from now.
func when(now, t time.Time) string {
	if d := t.Sub(now); d >= 0 {
		return rawjson.FormatTime(t) + " (in " + agent.Span(d) + ")"
	}
	return rawjson.FormatTime(t) + " (" + agent.Span(now.Sub(t)) + " ago)"
}

// because turns a recorded reason into the end of a sentence.
func because(reason *string) string {
	if reason == nil || *reason == "" {
		return ""
	}
	return ": " + cut(*reason, 200)
}

// wait is why fires of an engine wait.
type wait struct {
	ready      string // the agent that can take them; "" when none can
	why        string // the cause, without a full stop
	hints      []string
	candidates []Candidate
}

// waitFor finds what fires of an engine wait for among the agents of a project. It is pure.
func waitFor(engine string, agents []agentView) wait {
	w := wait{candidates: []Candidate{}}
	var others, silent []string
	online := 0
	for i := range agents {
		v := &agents[i]
		c := judgeAgent(engine, v)
		if len(w.candidates) < maxExplained {
			w.candidates = append(w.candidates, c)
		}
		if v.State != agent.Online {
			continue
		}
		online++
		switch {
		case c.Eligible:
			// What is reported wins over what is declared.
			if w.ready == "" || (!c.Declared && slices.ContainsFunc(w.candidates, func(o Candidate) bool { return o.Agent == w.ready && o.Declared })) {
				w.ready = v.Name
			}
		case !v.ReportedInventory():
			silent = append(silent, v.Name)
		default:
			others = append(others, v.Name+" lists "+orNone(v.EngineAdapters))
		}
	}
	switch {
	case len(agents) == 0:
		w.why = "the project has no agent"
	case online == 0:
		w.why = "no agent is online"
	case len(others) > 0 && len(silent) == 0:
		w.why = "of the agents online none lists it (" + few(others) + ")"
	case len(others) == 0:
		w.why = "long-poll agents report no inventory, and no other agent is online"
	default:
		w.why = "of the agents online none lists it (" + few(others) + ") or they report no inventory"
	}
	if w.ready == "" && len(silent) > 0 {
		w.hints = append(w.hints, fmt.Sprintf("Online without an inventory: %s. Long-poll agents report no inventory, so no fire is routed to them: "+
			"connect an agent over WebSocket that lists %s, or declare it with `signalbox agents declare-engines %s %s`.",
			few(silent), engine, silent[0], engine))
	}
	return w
}

// judgeAgent tells whether a fire of the engine can be routed to the agent, and why.
func judgeAgent(engine string, v *agentView) Candidate {
	names, declared := v.engines()
	c := Candidate{AgentID: v.ID, Agent: v.Name, State: v.State, Engines: names, Declared: declared}
	if c.Engines == nil {
		c.Engines = []string{}
	}
	lists := slices.Contains(names, engine)
	verb := "lists"
	if declared {
		verb = "is declared to run"
	}
	switch {
	case lists && v.State == agent.Online:
		c.Eligible, c.Reason = true, "it is online and "+verb+" "+engine
	case lists:
		c.Reason = "it " + verb + " " + engine + " and is " + string(v.State)
	case !v.ReportedInventory() && v.State == agent.Unknown:
		c.Reason = "it has never connected"
	case !v.ReportedInventory() && v.longPoll():
		c.Reason = "it is connected over long-poll, where agents report no inventory"
	case !v.ReportedInventory():
		c.Reason = "it reports no inventory"
	default:
		c.Reason = "it lists " + orNone(names)
	}
	return c
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "no engine"
	}
	return strings.Join(names, ", ")
}

// few joins the first names of a list.
func few(names []string) string {
	const most = 5
	if len(names) > most {
		return strings.Join(names[:most], "; ") + fmt.Sprintf("; and %d more", len(names)-most)
	}
	return strings.Join(names, "; ")
}
