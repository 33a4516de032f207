package agent

import (
	"context"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/rawjson"
	"signalbox/appliance/wake"
)

const (
	// maxGroupEvents is how many events of one Dispatch share a transaction: enough to make the commit cheap, few enough
	// that others do not wait long for theirs. A frame with more has a transaction to itself, for its events commit
	// together (agent protocol D.5 step 8).
	maxGroupEvents = 2000
	// resultAttempts and resultPause are the persistence of acks and results that came over a WebSocket, which the agent
	// never sends again (agent protocol D.2). The pause is multiplied by the attempt's number.
	resultAttempts = 3
	resultPause    = 100 * time.Millisecond
	// seenEvery is how stale a stored last_seen_at or heartbeat may become before it is written again: liveness is
	// judged in tens of seconds, and a write in every commit would dirty the same pages over and over.
	seenEvery = time.Second
)

// The types of frames that agents send (agent protocol D.1).
const (
	FrameHello         = "hello"
	FrameHelloAck      = "hello_ack"
	FrameEventBatch    = "event_batch"
	FrameEventBatchAck = "event_batch_ack"
	FrameHeartbeat     = "heartbeat"
	FrameAgentStatus   = "agent_status"
	FrameCommand       = "command"
	FrameCommandAck    = "command_ack"
	FrameCommandResult = "command_result"
	FrameRegistryDelta = "registry_delta"
	FrameError         = "error"
)

// PeerStanding is what a transaction must know of the agent whose frames it stores.
type PeerStanding struct {
	Revoked    bool
	Archived   bool // the project is not active
	Online     bool
	LastSeenAt time.Time // zero: never
}

// WorkerTouch says that a worker was heard of through an event.
type WorkerTouch struct {
	Engine string
	Name   string
	State  string // online or offline
	At     time.Time
}

// TaskHead is what the projection has to know of a stored task.
type TaskHead struct {
	No         int64 // 0: there is no such task
	Name       string
	State      string
	Priority   string
	ReceivedAt *time.Time
	StartedAt  *time.Time
	FinishedAt *time.Time
}

// RouterReadTx is what the Router reads.
type RouterReadTx interface {
	Reader
	// PeerStanding reads the standing of an agent; NotFound when there is no such agent.
	PeerStanding(agentNo int64) (PeerStanding, error)
}

// RouterTx is what the Router writes through.
type RouterTx interface {
	CommandTx
	PeerStanding(agentNo int64) (PeerStanding, error)
	// PeerSeen sets the agent online with last_seen_at = max(stored, now).
	PeerSeen(agentNo int64) error
	// PeerWorkerSeen does the same for the row of a worker slot; an unknown slot changes nothing.
	PeerWorkerSeen(agentNo int64, workerID string) error

	// InsertEvent stores an event unless one of the same identity is stored already, and sets its position.
	InsertEvent(e *NewEvent) (added bool, err error)
	// FindTask reads what the projection needs; the zero TaskHead when there is no such task.
	FindTask(projectNo int64, engine, taskID string) (TaskHead, error)
	// NextTaskNo is the number that the next new task gets.
	NextTaskNo() (int64, error)
	// InsertTask stores a task under t.No.
	InsertTask(projectNo int64, t *Task) error
	// UpdateTask writes the groups of columns named by set. With a guard it does so only while state and times of the row
	// are those of the guard, and reports whether they were.
	UpdateTask(t *Task, set TaskFields, guard *TaskHead) (bool, error)
	// RelinkEvents gives the events of one task number another.
	RelinkEvents(from, to int64) error

	// TouchWorker creates the row of a worker or moves its heartbeat forward; an older touch changes nothing.
	TouchWorker(projectNo int64, id uuid.UUID, w WorkerTouch) error
	// SetWorkerDetails creates or updates the row of a worker as online now with what was reported.
	SetWorkerDetails(projectNo int64, id uuid.UUID, d *WorkerDetails) error
	// TouchQueue creates the row of a queue or moves its last_seen_at to now. A depth, when given, becomes the pending
	// count.
	TouchQueue(projectNo int64, id uuid.UUID, engine, name string, depth *int64) error

	AddAgentStatus(s AgentStatusSample) error
	// SetTelemetryLoss keeps the newest figures of a buffer and runtime.
	SetTelemetryLoss(agentNo int64, l *TelemetryLoss) error
}

// ResultApplier applies acks and results of commands inside the Router's transaction. A frame that names no command of
// this agent is no error and changes nothing (agent protocol D.3).
type ResultApplier interface {
	ApplyAck(tx CommandTx, p Peer, frameID string, payload rawjson.Value) error
	ApplyResult(tx CommandTx, p Peer, frameID string, payload rawjson.Value) error
}

// Observer is told what was committed, for metrics and logs. Its methods must not block and are called
// from several goroutines at once: those that called Dispatch.
type Observer interface {
	// EventsStored counts new events of one engine and kind.
	EventsStored(project uuid.UUID, engine, kind string, n int)
	// TaskEnded reports a new event of a terminal kind; runtime is below zero when the event does not tell it.
	TaskEnded(project uuid.UUID, taskName, kind string, runtime time.Duration)
	// QueueDepth reports a gauge of a heartbeat.
	QueueDepth(project uuid.UUID, engine, queue string, depth int64)
	// FrameLogged reports a registry_delta or error frame, redacted: they are for the log only. The payload is valid
	// during the call.
	FrameLogged(p Peer, f Frame)
	// FrameDropped reports a frame refused for good.
	FrameDropped(p Peer, frameType string, err error)
	// StatusDropped reports an agent_status frame above the rate or size that is kept.
	StatusDropped(p Peer)
}

// RouterOptions are the settings of a Router.
type RouterOptions struct {
	// ExtraPatterns are further keys to redact: RE2, without regard to case.
	ExtraPatterns []string
	Clock         clock.Clock // nil: the system's
	Observer      Observer    // nil: none
	OnFailure     FailureHook // nil: none
}

// Router stores what verified frames say and answers one outcome each. Safe for concurrent use; the frames of one peer
// must come from one goroutine, or their order is lost.
type Router struct {
	st     Store[RouterTx, RouterReadTx]
	cmds   ResultApplier
	hub    *wake.Hub
	clock  clock.Clock
	obs    Observer
	failed FailureHook
	redact *Redactor
	status statusLimiter
	notes  touchNotes
	hints  taskHints
	taskID timeOrderedIDs
}

// NewRouter builds a Router. It fails on a redaction pattern that does not compile.
func NewRouter(st Store[RouterTx, RouterReadTx], cmds ResultApplier, hub *wake.Hub, opts RouterOptions) (*Router, error) {
	redact, err := NewRedactor(opts.ExtraPatterns)
	if err != nil {
		return nil, err
	}
	r := &Router{st: st, cmds: cmds, hub: hub, clock: opts.Clock, obs: opts.Observer, failed: opts.OnFailure, redact: redact,
		status: statusLimiter{seen: map[statusKey]statusCount{}},
		notes:  touchNotes{at: map[touchKey]touchNote{}}, hints: taskHints{m: map[taskHintKey]TaskHead{}}}
	if r.clock == nil {
		r.clock = clock.System()
	}
	if r.obs == nil {
		r.obs = noObserver{}
	}
	return r, nil
}

// Redactor returns the redaction that events pass, for others who keep text of agents.
func (r *Router) Redactor() *Redactor { return r.redact }

// Dispatch stores the frames of one peer, in order, and returns one outcome each, in the same order. When it returns,
// Durable means committed: only then may an acknowledgement leave. It blocks until the commit.
//
// The frames share a transaction, so that a group costs one commit. A frame that cannot be stored for good does not take
// the others along: they then get a transaction each. Storage trouble makes the whole group Transient.
func (r *Router) Dispatch(ctx context.Context, p Peer, frames []Frame) []Outcome {
	out := make([]Outcome, len(frames))
	dec := newEventDecoder(p, r.clock.Now(), r.redact)
	for from := 0; from < len(frames); {
		g := group{peer: p}
		next := from
		for events := 0; next < len(frames); next++ {
			n := countEvents(&frames[next])
			if next > from && events+n > maxGroupEvents {
				break
			}
			events += n
			g.jobs = append(g.jobs, r.prepare(dec, p, &frames[next]))
		}
		r.run(ctx, &g)
		if g.revoked() {
			for i := from; i < len(frames); i++ {
				out[i] = Outcome{Verdict: Revoked, Archived: g.standing.Archived && !g.standing.Revoked}
			}
			return out
		}
		for i := range g.jobs {
			out[from+i] = g.jobs[i].out
		}
		from = next
	}
	return out
}

func countEvents(f *Frame) int {
	if f.Type != FrameEventBatch {
		return 0
	}
	return min(f.Payload.Get("events").Len(), maxEventBatch)
}

// run stores one group and settles the outcomes of its jobs.
func (r *Router) run(ctx context.Context, g *group) {
	if !g.writes() {
		r.checkOnly(ctx, g)
		return
	}
	err := r.storeRetrying(ctx, g)
	switch {
	case err == nil:
	case isTransient(err):
		for i := range g.jobs {
			g.jobs[i].fail(err)
		}
	case len(g.jobs) == 1:
		g.jobs[0].fail(err)
		r.obs.FrameDropped(g.peer, g.jobs[0].frame.Type, err)
	default:
		r.runApart(ctx, g)
	}
}

// runApart gives each job a transaction of its own, so that each gets the verdict it deserves.
func (r *Router) runApart(ctx context.Context, g *group) {
	for i := range g.jobs {
		one := group{peer: g.peer, jobs: g.jobs[i : i+1 : i+1]}
		r.run(ctx, &one)
		if one.revoked() {
			g.standing = one.standing
			return
		}
	}
}

// storeRetrying runs the group's transaction. Acks and results that came over a WebSocket are tried again after passing
// trouble.
func (r *Router) storeRetrying(ctx context.Context, g *group) error {
	for attempt := 1; ; attempt++ {
		err := r.store(ctx, g)
		if err == nil || !isTransient(err) || attempt == resultAttempts || !g.mustPersist() || ctx.Err() != nil {
			return err
		}
		t := r.clock.NewTimer(resultPause * time.Duration(attempt))
		select {
		case <-t.C():
		case <-ctx.Done():
			t.Stop()
			return err
		}
	}
}

// store runs the group's transaction once.
func (r *Router) store(ctx context.Context, g *group) error {
	var w *ingest
	err := r.st.Update(ctx, "dispatch frames", func(tx RouterTx) error {
		var err error
		if g.standing, err = tx.PeerStanding(g.peer.AgentNo); fault.Is(err, fault.NotFound) {
			g.standing, err = PeerStanding{Revoked: true}, nil // gone altogether: a restored database, for one
		}
		if err != nil {
			return err
		}
		if g.revoked() {
			return nil
		}
		w = newIngest(r, tx, g)
		return w.apply()
	})
	if err != nil {
		g.standing = PeerStanding{}
		return err
	}
	if w != nil {
		w.report(r.obs)
	}
	return nil
}

// checkOnly settles a group without anything to persist. That the standing cannot be read makes nothing less durable.
func (r *Router) checkOnly(ctx context.Context, g *group) {
	_ = r.st.View(ctx, func(tx RouterReadTx) (err error) {
		g.standing, err = tx.PeerStanding(g.peer.AgentNo)
		return err
	})
}

// isTransient classifies an error of the store (agent protocol D.2): passing conditions of storage ask for another try,
// while broken constraints, bad data and broken rules would break again. What we did not foresee counts as passing:
// an unneeded re-send is harmless, a lost frame is not.
func isTransient(err error) bool {
	switch fault.CodeOf(err) {
	case fault.Invalid, fault.Conflict, fault.NotFound, fault.Stale, fault.TooLarge, fault.Forbidden, fault.Gone:
		return false
	}
	return true
}

type noObserver struct{}

func (noObserver) EventsStored(uuid.UUID, string, string, int)        {}
func (noObserver) TaskEnded(uuid.UUID, string, string, time.Duration) {}
func (noObserver) QueueDepth(uuid.UUID, string, string, int64)        {}
func (noObserver) FrameLogged(Peer, Frame)                            {}
func (noObserver) FrameDropped(p Peer, frameType string, err error)   {}
func (noObserver) StatusDropped(Peer)                                 {}
