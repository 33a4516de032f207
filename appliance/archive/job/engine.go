package job

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/registry"
	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/wake"
)

// Commands is what the engine asks of the queue; *command.Queue is one.
type Commands interface {
	Enqueue(tx command.Tx, n command.New) (command.Row, error)
	OfJob(tx command.ReadTx, jobNo int64) ([]command.Row, error)
	Withdraw(tx command.Tx, commandNo int64) error
	Supersede(tx command.Tx, commandNo int64) error
	Retire(tx command.Tx, commandNo int64) error
	Close(tx command.Tx, commandNo int64) error
	Grant(tx command.Tx, commandNo int64, attempts uint32) error
	MarkAccepted(tx command.Tx, commandNo int64) error
}

// Daemons is what the engine asks of the registry; *registry.Registry is one.
type Daemons interface {
	// Fence refuses with Stale unless the link owns its daemon's generation.
	Fence(tx registry.FenceTx, link archive.Link) error
	RaiseAlert(tx registry.AlertTx, kind archive.AlertKind, daemonNo, jobNo int64, detail string) error
	ClearAlert(tx registry.AlertTx, kind archive.AlertKind, daemonNo, jobNo int64) error
	Alerts(ctx context.Context, f registry.AlertFilter) ([]registry.Alert, error)
}

// Routes is what the engine asks about routes. It is implemented above this package.
type Routes interface {
	// Ready reports whether the route is ready (daemon protocol 6.3), and if not why, in one phrase. tx is the
	// transaction that asks.
	Ready(tx ReadTx, routeNo int64) (ready bool, why string, err error)
	// Reconciled reports whether the updates of the daemon's side of the route agree with what the daemon last reported.
	Reconciled(tx ReadTx, routeNo, daemonNo int64) (bool, error)
}

// Observer counts. Its methods are called after COMMIT and must not block.
type Observer interface {
	Accepted(kind pb.JobEventKind)
	Repeated()
	SetAside()
	Dropped(reason string)
	Refused(code pb.ErrorCode)
	// Moved is told of every change of a job's state; from is UNSPECIFIED for a new job.
	Moved(from, to pb.JobState)
	// Decided is told of every decision of reconciliation by the row of the table that made it (daemon protocol 4.2).
	Decided(row string)
	// Failed is background work of the engine that did not succeed and will be tried again.
	Failed(what string, err error)
}

type nobody struct{}

func (nobody) Accepted(pb.JobEventKind)       {}
func (nobody) Repeated()                      {}
func (nobody) SetAside()                      {}
func (nobody) Dropped(string)                 {}
func (nobody) Refused(pb.ErrorCode)           {}
func (nobody) Moved(pb.JobState, pb.JobState) {}
func (nobody) Decided(string)                 {}
func (nobody) Failed(string, error)           {}

// Parts are what the engine works with; all of them are needed.
type Parts struct {
	Store     archive.Store[Tx, ReadTx]
	Commands  Commands
	Daemons   Daemons
	Audit     *audit.Log
	Hub       *wake.Hub
	Preflight Preflight
	Storage   StorageCheck
	Routes    Routes
}

// Options of an Engine. Zero fields take the defaults.
type Options struct {
	Clock    clock.Clock
	Observer Observer
	// CommandRetry is how long a go-ahead waits for the first event before it is repeated: 15 s, as the daemons are told.
	CommandRetry time.Duration
	// RetryFirst and RetryCap bound the delay before a step is tried again, which doubles: 5 s, 5 min.
	RetryFirst, RetryCap time.Duration
	// SpaceEvery is how long a job that ran out of space waits between two looks at the storage: 1 min.
	SpaceEvery time.Duration
	// SpaceCap bounds the delay before such a job is tried again, which doubles with every attempt: 1 h. Where there seems
	// to be room and is none, as with a quota, each attempt leaves rows behind and nothing else.
	SpaceCap time.Duration
	// SnapshotWait is how long a snapshot may take after its request was accepted before it is asked for again: 2 min.
	SnapshotWait time.Duration
	// KeepProgress is how many PROGRESS, STALLED and RESUMED rows of one daemon a job keeps, up to an eighth more: 2000.
	// Daemons keep the newest 1,000 (daemon protocol 2.9), and a snapshot must not show one that control no longer has.
	KeepProgress int
	// Checks is how many preflights and looks at storage run at once: 8.
	Checks int
}

func (o *Options) setDefaults() {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Observer == nil {
		o.Observer = nobody{}
	}
	for _, d := range []struct {
		p *time.Duration
		d time.Duration
	}{{&o.CommandRetry, 15 * time.Second}, {&o.RetryFirst, 5 * time.Second}, {&o.RetryCap, 5 * time.Minute},
		{&o.SpaceEvery, time.Minute}, {&o.SpaceCap, time.Hour}, {&o.SnapshotWait, 2 * time.Minute}} {
		if *d.p <= 0 {
			*d.p = d.d
		}
	}
	if o.KeepProgress <= 0 {
		o.KeepProgress = 2000
	}
	if o.Checks <= 0 {
		o.Checks = 8
	}
}

// Engine moves jobs. Its methods are safe for concurrent use; those that write return when the write is durable.
type Engine struct {
	st        archive.Store[Tx, ReadTx]
	commands  Commands
	daemons   Daemons
	audit     *audit.Log
	hub       *wake.Hub
	preflight Preflight
	storage   StorageCheck
	routes    Routes
	clock     clock.Clock
	observer  Observer
	o         Options
	started   time.Time // of this process, for 4.6
	looked    time.Time // the clock's date at the last turn

	defs  definitions
	acks  acks
	parts partials
	timer timer
	work  worker

	search atomic.Int64 // when preflights are to be looked for that nobody was told of, in Unix ns; 0: none are missed
}

// New returns an engine. Run does its background work.
func New(p Parts, o Options) *Engine {
	o.setDefaults()
	e := &Engine{st: p.Store, commands: p.Commands, daemons: p.Daemons, audit: p.Audit, hub: p.Hub, preflight: p.Preflight,
		storage: p.Storage, routes: p.Routes, clock: o.Clock, observer: o.Observer, o: o, started: o.Clock.Now()}
	e.acks.init()
	e.parts.init()
	e.timer.init()
	e.work.init(o.Checks)
	return e
}

// Kinds are the kinds of command that the engine is the handler of.
func Kinds() []command.Kind {
	return []command.Kind{archive.AssignJob, archive.ExecuteStep, archive.CancelJob, archive.ReconcileJob,
		archive.RequestJobSnapshot, archive.CloseJob}
}

var (
	_ Commands          = (*command.Queue)(nil)
	_ Daemons           = (*registry.Registry)(nil)
	_ command.Handler   = (*Engine)(nil)
	_ command.Explainer = (*Engine)(nil)
)

// definitions keeps parsed definitions, which never change, by digest.
type definitions struct {
	mu sync.Mutex
	m  map[string]*pb.JobDefinition
}

// maxDefinitions bounds the cache; any entry goes when it is full.
const maxDefinitions = 64

func (d *definitions) get(digest string, raw []byte) (*pb.JobDefinition, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if def := d.m[digest]; def != nil {
		return def, nil
	}
	def, err := parse(raw, &pb.JobDefinition{})
	if err != nil {
		return nil, err
	}
	if d.m == nil {
		d.m = map[string]*pb.JobDefinition{}
	}
	for k := range d.m {
		if len(d.m) < maxDefinitions {
			break
		}
		delete(d.m, k)
	}
	d.m[digest] = def
	return def, nil
}

// idOf parses the id of a message that was validated.
func idOf(s string) uuid.UUID {
	id, err := uuid.Parse(s)
	if err != nil {
		return uuid.Nil
	}
	return id
}
