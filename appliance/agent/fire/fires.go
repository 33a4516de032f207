package fire

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/schedule"
	"signalbox/appliance/clock"
	"signalbox/appliance/wake"
)

// Commands is what Fires needs of the agent plane's commands; *agent.Commands is one.
type Commands interface {
	// IssueIn issues a command inside the caller's transaction.
	IssueIn(tx agent.CommandTx, p agent.Principal, r agent.IssueRequest) (agent.Issued, error)
	// Explain says where a command stands.
	Explain(ctx context.Context, projectNo int64, id uuid.UUID) (agent.Explanation, error)
}

// Observer counts what becomes of fires. It is called after the commit and must not block.
type Observer interface {
	FireBecame(s Status)
}

// News is told of fires and schedules inside the transaction that stores the change: what it writes through tx is durable
// together with it. It returns the store's errors only.
type News interface {
	FireBuffered(tx agent.CommandTx, f Fire) error
	FireExpired(tx agent.CommandTx, f Fire) error
	BreakerTripped(tx agent.CommandTx, s schedule.Schedule, reason string) error
}

type noNews struct{}

func (noNews) FireBuffered(agent.CommandTx, Fire) error                        { return nil }
func (noNews) FireExpired(agent.CommandTx, Fire) error                         { return nil }
func (noNews) BreakerTripped(agent.CommandTx, schedule.Schedule, string) error { return nil }

// Options are the settings of Fires.
type Options struct {
	// Retention is how long a fire waits in the buffer (agent protocol K, pending fires retention).
	Retention time.Duration
	// ReplayInterval is how often buffered fires are looked at besides the events that make replay possible.
	ReplayInterval time.Duration
	// BreakerThreshold is how many failures in a row disable a schedule; 0: none ever does.
	BreakerThreshold int
	Clock            clock.Clock
	Observer         Observer // nil counts nothing
	// News is told what people want to know; nil: nobody.
	News News
	// Trouble is told of failures of the replay worker, which tries again. nil tells nobody.
	Trouble func(op string, err error)
}

// Fires starts, buffers, replays and ends fires, and keeps their history. Safe for concurrent use. Methods that write
// return after COMMIT, but for StartFire and the hooks, which are part of their caller's transaction.
type Fires struct {
	st       agent.Store[Tx, ReadTx]
	cmds     Commands
	presence agent.Presence
	log      agent.AuditAppender
	hub      *wake.Hub
	opts     Options
	buffer   buffer
}

var (
	_ schedule.Starter  = (*Fires)(nil)
	_ agent.CommandHook = (*Fires)(nil)
)

// New returns the service. It starts nothing: see Run. The caller registers it as a hook of the commands.
func New(st agent.Store[Tx, ReadTx], cmds Commands, presence agent.Presence, log agent.AuditAppender, hub *wake.Hub, opts Options) *Fires {
	if opts.Clock == nil {
		opts.Clock = clock.System()
	}
	if opts.Observer == nil {
		opts.Observer = countNothing{}
	}
	if opts.News == nil {
		opts.News = noNews{}
	}
	if opts.Trouble == nil {
		opts.Trouble = func(string, error) {}
	}
	return &Fires{st: st, cmds: cmds, presence: presence, log: log, hub: hub, opts: opts,
		buffer: buffer{kick: make(chan struct{}, 1), due: map[int64]bool{}, known: map[Group]bool{}, full: map[int64]bool{}, reread: true}}
}

type countNothing struct{}

func (countNothing) FireBecame(Status) {}

// buffer is what is known in memory of the buffered fires, so that nothing is read while nothing can happen. The
// database is the truth: at start, and whenever in doubt, it is read again.
type buffer struct {
	kick chan struct{} // holds one hint for Run

	mu sync.Mutex
	// reread asks for the groups to be read again.
	reread bool
	// due are the projects where an agent came or a command ended.
	due map[int64]bool
	// known are the groups that Run has in view, with a watch on their project: one more fire in them is no news.
	known map[Group]bool
	// full are the projects where replay waits for an agent to end commands.
	full map[int64]bool
	// expiry is the earliest expires_at that Run sleeps until; zero: none.
	expiry time.Time
}

func (b *buffer) hint() {
	select {
	case b.kick <- struct{}{}:
	default:
	}
}

// added tells of a fire that was buffered.
func (b *buffer) added(g Group, expires time.Time) {
	b.mu.Lock()
	news := !b.known[g] || b.expiry.IsZero() || expires.Before(b.expiry)
	b.reread = b.reread || news
	b.mu.Unlock()
	if news {
		b.hint()
	}
}

// eligible tells that an agent of the project can perhaps take fires now.
func (b *buffer) eligible(projectNo int64) {
	b.mu.Lock()
	b.due[projectNo] = true
	b.mu.Unlock()
	b.hint()
}

// ended tells that a schedule.fire command of the project ended: there may be room for another.
func (b *buffer) ended(projectNo int64) {
	b.mu.Lock()
	waits := b.full[projectNo]
	b.mu.Unlock()
	if waits {
		b.eligible(projectNo)
	}
}
