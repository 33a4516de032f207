package registry

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
)

// Registry holds the daemons. Its methods are safe for concurrent use. Hooks must be set before Start.
type Registry struct {
	store Store
	opts  Options
	hooks Hooks
	clock clock.Clock
	known map[string]bool

	poke chan struct{} // the earliest time has changed

	mu      sync.Mutex
	live    map[int64]*member   // daemons that own a generation
	stable  map[int64]pause     // paused daemons
	flushAt time.Time           // zero: nothing to store
	retry   map[int64]time.Time // daemons whose offline mark failed
}

// member is the current generation of a daemon, with its socket while there is one.
type member struct {
	link   archive.Link
	sender Sender    // nil: no socket
	due    time.Time // offline then
	beat   uint64    // sequence of the last heartbeat
	used   bool      // a heartbeat was written to the database
	lapsed bool      // the mark is being made: heartbeats come too late
	seen   Seen
	dirty  bool // seen is not stored
}

// pause is a daemon that gets no assignments until its epoch has been stable.
type pause struct {
	epoch uuid.UUID
	until time.Time
}

// New returns a registry that knows nobody yet; Start reads the database.
func New(store Store, o Options) *Registry {
	o.Liveness.setDefaults()
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Hub == nil {
		o.Hub = wake.New()
	}
	if o.Observer == nil {
		o.Observer = nobody{}
	}
	if o.Capabilities == nil {
		o.Capabilities = archive.Capabilities()
	}
	o.Limits = limitsOf(o.Limits)
	r := &Registry{store: store, opts: o, clock: o.Clock, known: map[string]bool{}, poke: make(chan struct{}, 1),
		live: map[int64]*member{}, stable: map[int64]pause{}, retry: map[int64]time.Time{}}
	for _, c := range o.Capabilities {
		r.known[c] = true
	}
	return r
}

// SetHooks tells who is told of registrations and losses. Call it before Start.
func (r *Registry) SetHooks(h Hooks) { r.hooks = h }

// Liveness are the effective settings.
func (r *Registry) Liveness() Liveness { return r.opts.Liveness }

// Start reads who owned a generation when the process ended: each has the whole offline threshold from now, for nobody
// knows what it sent meanwhile. Call it once, before the first Register.
func (r *Registry) Start(ctx context.Context) error {
	return r.store.View(ctx, func(tx ReadTx) error {
		list, err := tx.RegistryDaemons()
		if err != nil {
			return err
		}
		now := r.clock.Now()
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, d := range list {
			if d.Online {
				r.live[d.No] = &member{link: r.link(&d), due: now.Add(r.opts.Liveness.OfflineThreshold)}
			}
			if d.Paused {
				r.stable[d.No] = pause{d.Epoch, now.Add(r.opts.Liveness.StableReset)}
			}
		}
		return nil
	})
}

// link is the connection that the row describes.
func (r *Registry) link(d *Daemon) archive.Link {
	return archive.Link{Daemon: d.Ref(), Generation: d.Generation, Minor: d.Negotiated, Epoch: d.Epoch, Limits: d.Limits,
		Capabilities: r.willing(d.Capabilities)}
}

// willing are the announced capabilities that control uses.
func (r *Registry) willing(announced []string) []string {
	out := make([]string, 0, len(announced))
	for _, c := range announced {
		if r.known[c] {
			out = append(out, c)
		}
	}
	slices.Sort(out)
	return out
}

// Fence fails with Stale unless the link still owns its daemon's generation. Every write that a message causes calls it
// first, in its own transaction (daemon protocol 2.5). It also notes, once, that the generation was used.
func (r *Registry) Fence(tx FenceTx, link archive.Link) error {
	_, err := r.Owned(tx, link)
	return err
}

// Owned is Fence that also returns what it saw.
func (r *Registry) Owned(tx FenceTx, link archive.Link) (Owner, error) {
	o, err := r.Owner(tx, link)
	if err != nil || o.Used >= link.Generation {
		return o, err
	}
	o.Used = link.Generation
	return o, tx.RegistryUse(link.Daemon.No, link.Generation)
}

// Owner is the fence of what control does by itself under a link, like sending: it notes no use, which only a message of
// the daemon shows. The daemon stores a generation before it sends the first one under it, and may die before that (4.6).
func (r *Registry) Owner(tx FenceTx, link archive.Link) (Owner, error) {
	o, err := tx.RegistryOwner(link.Daemon.No)
	switch {
	case fault.Is(err, fault.NotFound):
		return o, stale(link)
	case err != nil:
		return o, err
	case o.Generation != link.Generation || !o.Online:
		return o, stale(link)
	}
	return o, nil
}

func stale(link archive.Link) error {
	return fault.New(fault.Stale, "generation %d of daemon %s is no longer current", link.Generation, link.Daemon.ID)
}

// Current returns the link that owns the daemon's generation; ok is false when the daemon is offline. After a restart it
// is that of the last connection until the daemon registers again or is marked offline. Writes fence it all the same.
func (r *Registry) Current(daemonNo int64) (link archive.Link, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.live[daemonNo]
	if m == nil || m.lapsed {
		return archive.Link{}, false
	}
	return m.link, true
}

// Attached tells whether the daemon has a socket now.
func (r *Registry) Attached(daemonNo int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.live[daemonNo]
	return m != nil && m.sender != nil && !m.lapsed
}

// AttachedCount is how many daemons have a socket.
func (r *Registry) AttachedCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, m := range r.live {
		if m.sender != nil {
			n++
		}
	}
	return n
}

// Attach makes the sender the socket of the link. ok is false when a newer registration was committed meanwhile or the
// generation was released: the caller closes the socket as Replaced.
func (r *Registry) Attach(link archive.Link, s Sender) (ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.live[link.Daemon.No]
	if m == nil || m.link.Generation != link.Generation || m.lapsed {
		return false
	}
	m.sender = s
	return true
}

// Detach tells that the socket of the link is closed. The daemon stays online until the threshold, so that a quick
// reconnect moves no job (daemon protocol 2.5).
func (r *Registry) Detach(link archive.Link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.live[link.Daemon.No]; m != nil && m.link.Generation == link.Generation {
		m.sender = nil
	}
}

// Daemons returns all daemons by name.
func (r *Registry) Daemons(ctx context.Context) (list []Daemon, err error) {
	err = r.store.View(ctx, func(tx ReadTx) error {
		list, err = tx.RegistryDaemons()
		return err
	})
	for i := range list {
		r.freshen(&list[i])
	}
	return list, err
}

// Daemon returns one daemon; NotFound also for one that was forgotten.
func (r *Registry) Daemon(ctx context.Context, id uuid.UUID) (d Daemon, err error) {
	err = r.store.View(ctx, func(tx ReadTx) error {
		d, err = byID(tx, id)
		return err
	})
	r.freshen(&d)
	return d, err
}

func byID(tx ReadTx, id uuid.UUID) (Daemon, error) {
	d, err := tx.RegistryDaemonByID(id)
	if fault.Is(err, fault.NotFound) || err == nil && !d.ForgottenAt.IsZero() {
		return Daemon{}, fault.New(fault.NotFound, "there is no daemon %s", id)
	}
	return d, err
}

// freshen adds what only memory knows.
func (r *Registry) freshen(d *Daemon) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.live[d.No]
	if m == nil || m.link.Generation != d.Generation {
		return
	}
	d.Attached = m.sender != nil
	if m.dirty {
		d.LastSeenAt, d.ClockSkew = m.seen.At, m.seen.ClockSkew
	}
}

// Forget hides a daemon that is no longer used. Conflict while it is online or an active job or a route names it. Its
// history stays, and so does its number; when it registers again it is known again.
func (r *Registry) Forget(ctx context.Context, id uuid.UUID) error {
	return r.store.Update(ctx, "archive.forget", func(tx Tx) error {
		d, err := byID(tx, id)
		if err != nil {
			return err
		}
		if d.Online {
			return fault.New(fault.Conflict, "daemon %s is online; stop it, and wait until it is shown offline", d.Name)
		}
		uses, err := tx.RegistryUses(d.No)
		switch {
		case err != nil:
			return err
		case len(uses.Jobs) > 0:
			return fault.New(fault.Conflict, "daemon %s takes part in active jobs, first %s; end them before you forget it",
				d.Name, uses.Jobs[0])
		case len(uses.Routes) > 0:
			return fault.New(fault.Conflict, "daemon %s is named by routes, first %q; remove them before you forget it", d.Name,
				uses.Routes[0])
		}
		for _, hook := range r.hooks.OnForget {
			if err := hook(tx, d.No); err != nil {
				return err
			}
		}
		if err := tx.RegistryForget(d.No); err != nil {
			return err
		}
		tx.AfterCommit(func() {
			r.mu.Lock()
			delete(r.stable, d.No)
			r.mu.Unlock()
		})
		tx.Hint(func() { r.changed(d.No) })
		return nil
	})
}

// changed wakes who watches the daemon. Only after a commit.
func (r *Registry) changed(daemonNo int64) {
	r.opts.Hub.Wake(archive.DaemonKey(daemonNo))
	r.opts.Hub.Wake(archive.DaemonsKey{})
}

// RaiseAlert opens an alert in the caller's transaction, or counts an open one of the same kind and subject up. 0 is no
// daemon, no job. The detail is shown to operators and holds no secret.
func (r *Registry) RaiseAlert(tx AlertTx, kind archive.AlertKind, daemonNo, jobNo int64, detail string) error {
	if err := tx.RegistryRaise(kind, daemonNo, jobNo, detail); err != nil {
		return err
	}
	tx.Hint(func() { r.opts.Hub.Wake(archive.DaemonsKey{}) })
	return nil
}

// ClearAlert closes the open alert of the kind and subject, if there is one, in the caller's transaction.
func (r *Registry) ClearAlert(tx AlertTx, kind archive.AlertKind, daemonNo, jobNo int64) error {
	cleared, err := tx.RegistryClear(kind, daemonNo, jobNo)
	if cleared {
		tx.Hint(func() { r.opts.Hub.Wake(archive.DaemonsKey{}) })
	}
	return err
}

// Alerts returns alerts, newest first.
func (r *Registry) Alerts(ctx context.Context, f AlertFilter) (list []Alert, err error) {
	if f.Limit <= 0 {
		f.Limit = 100
	}
	err = r.store.View(ctx, func(tx ReadTx) error {
		list, err = tx.RegistryAlerts(f)
		return err
	})
	return list, err
}

// Dismiss closes an alert for an operator who has seen it; NotFound when it is not open. Its cause may raise it again.
func (r *Registry) Dismiss(ctx context.Context, alertNo int64) error {
	return r.store.Update(ctx, "archive.dismiss", func(tx Tx) error {
		if err := tx.RegistryClearAlert(alertNo); err != nil {
			return err
		}
		tx.Hint(func() { r.opts.Hub.Wake(archive.DaemonsKey{}) })
		return nil
	})
}

// limitsOf fills what is not set with the defaults of daemon protocol 5.2.
func limitsOf(l *pb.Limits) *pb.Limits {
	out := &pb.Limits{}
	if l != nil {
		out = proto.CloneOf(l)
	}
	orDefault(&out.MaxEnvelopeBytes, 1<<20)
	orDefault(&out.MaxChunkEntries, 500)
	orDefault(&out.MaxOutboundEnvelopes, 256)
	orDefault(&out.MaxOutboundBytes, 8<<20)
	orDefault(&out.MaxActiveCursors, 256)
	return out
}

// lower is the minimum of both offers, field by field.
func lower(a, b *pb.Limits) *pb.Limits {
	return &pb.Limits{
		MaxEnvelopeBytes:     min(a.MaxEnvelopeBytes, b.MaxEnvelopeBytes),
		MaxChunkEntries:      min(a.MaxChunkEntries, b.MaxChunkEntries),
		MaxOutboundEnvelopes: min(a.MaxOutboundEnvelopes, b.MaxOutboundEnvelopes),
		MaxOutboundBytes:     min(a.MaxOutboundBytes, b.MaxOutboundBytes),
		MaxActiveCursors:     min(a.MaxActiveCursors, b.MaxActiveCursors),
	}
}
