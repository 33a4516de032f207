package daemon

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/valid"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
)

// OwnMinor is the minor version of the protocol that this program speaks; the major is 2.
const OwnMinor = 0

// Options are everything a daemon is made of. Store, Dialer, Steps and Inventory are required.
type Options struct {
	// Name is shown to people: 1–128 bytes. Software is this program's name and version.
	Name, Software string
	Role           pb.ClientRole
	// Capabilities of the backend and of Steps. Those of Routes are added.
	Capabilities []string
	Store        Store
	Dialer       Dialer
	Steps        Steps
	Inventory    Inventory
	// Roots are the configured directories, for STORAGE answers.
	Roots []Root
	// Routes are the kinds of routes that this daemon has.
	Routes map[pb.RouteKind]RouteKind
	// Offer is what the daemon can take; nil means the defaults of 5.2.
	Offer *pb.Limits
	// Workers bounds the steps at work.
	Workers Workers
	Clock   clock.Clock
	// Random gives the jitter of the backoff: [0, 1). nil means the system's.
	Random func() float64
	// Notify takes what an operator may want to read. It must not block.
	Notify func(Notice)
	Hooks  Hooks
}

// Workers bounds the steps that are at work at a time; zero fields take their defaults.
type Workers struct {
	TransfersPerRoot int // default 1
	VerifiesPerRoot  int // default 1
	Others           int // all other steps together, and PURGE as many again; default 4
}

// Daemon is the engine. Run it once.
type Daemon struct {
	o       Options
	id      Identity
	machine Machine
	hub     *wake.Hub

	ctx    context.Context // of the run; ends with it
	cancel context.CancelCauseFunc
	group  sync.WaitGroup
	dead   atomic.Bool

	mu        sync.Mutex
	session   *session // the registered connection, nil while there is none
	state     State
	confirmed map[uuid.UUID]*session // leases confirmed to this process, and by which connection last
	quiet     map[uuid.UUID]time.Time
	runners   map[uuid.UUID]*runner
	slots     map[string]chan struct{}
	probers   map[routeKey]*prober
	hashing   map[string]*Reading // resources that are read to be identified, or wait for it
	hasher    chan struct{}       // one at a time
	depth     uint64              // of the outbox, as last read
}

// New checks the options and reads the identity. Nothing runs yet.
func New(ctx context.Context, o Options) (*Daemon, error) {
	switch {
	case o.Store == nil || o.Dialer == nil || o.Steps == nil || o.Inventory == nil:
		return nil, fault.New(fault.Internal, "a daemon needs a store, a dialer, steps and an inventory")
	case o.Name == "" || len(o.Name) > 128:
		return nil, fault.Field("name", "must have 1 to 128 bytes")
	case o.Role == pb.ClientRole_CLIENT_ROLE_UNSPECIFIED:
		return nil, fault.Field("role", "must be source, target or source_and_target")
	}
	if o.Offer == nil {
		o.Offer = valid.DefaultLimits()
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	o.Workers.TransfersPerRoot = max(o.Workers.TransfersPerRoot, 1)
	o.Workers.VerifiesPerRoot = max(o.Workers.VerifiesPerRoot, 1)
	if o.Workers.Others <= 0 {
		o.Workers.Others = 4
	}
	d := &Daemon{o: o, hub: wake.New(), confirmed: map[uuid.UUID]*session{}, quiet: map[uuid.UUID]time.Time{},
		runners: map[uuid.UUID]*runner{}, slots: map[string]chan struct{}{}, probers: map[routeKey]*prober{},
		hashing: map[string]*Reading{}, hasher: make(chan struct{}, 1)}
	err := o.Store.View(ctx, func(tx ReadTx) (err error) {
		d.id, err = tx.Identity()
		return err
	})
	if err != nil {
		return nil, err
	}
	d.machine = Machine{ClientID: d.id.ClientID.String(), Role: o.Role, Capabilities: d.capabilities(), MaxJobs: int(o.Offer.GetMaxActiveCursors())}
	return d, nil
}

// capabilities is what the daemon announces: what it was given, and its kinds of routes.
func (d *Daemon) capabilities() []string {
	list := slices.Clone(d.o.Capabilities)
	for kind := range d.o.Routes {
		list = append(list, archive.RouteCapability(kind))
	}
	if len(d.o.Routes) > 0 {
		list = append(list, archive.CapRouteProvisioning)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// unlessEnded is nil for a start that was cut short by the end of its context.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Run takes up the work of earlier processes, keeps a connection to control and returns when ctx ends, with nil, or when
// a hook ended it, with the hook's error. Steps at work are cancelled and waited for; their leases stay open and are
// resumed by the next process.
func (d *Daemon) Run(ctx context.Context) error {
	d.ctx, d.cancel = context.WithCancelCause(ctx)
	defer d.cancel(nil)
	var working []uuid.UUID
	err := d.o.Store.View(ctx, func(tx ReadTx) (err error) {
		working, err = tx.WorkingJobs()
		return err
	})
	if err != nil {
		return unlessEnded(ctx, err)
	}
	for _, job := range working {
		d.kick(job)
	}
	if err := d.resumeRoutes(ctx); err != nil {
		d.cancel(err)
		d.group.Wait()
		return unlessEnded(ctx, err)
	}
	d.group.Go(d.housekeeping)
	d.group.Go(d.connections)
	<-d.ctx.Done()
	d.group.Wait()
	if d.dead.Load() {
		return context.Cause(d.ctx)
	}
	return nil
}

// keepEnded is how long an ended job and its commands are kept, so that repetitions are recognised (3.5: at least 30
// days).
const (
	keepEnded   = 31 * 24 * time.Hour
	expireEvery = 6 * time.Hour
	expireBatch = 20
)

// housekeeping expires what is kept only for repetitions.
func (d *Daemon) housekeeping() {
	t := d.o.Clock.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-t.C():
		}
		for more := true; more && d.ctx.Err() == nil; {
			err := d.update(d.ctx, "daemon.expire", func(tx Tx) (err error) {
				more, err = tx.Expire(tx.Now().Add(-keepEnded), expireBatch)
				return err
			})
			if err != nil {
				d.tell(Notice{What: WhatStore, Err: err})
				break
			}
		}
		t.Reset(expireEvery)
	}
}

// sleep waits for the duration; false when ctx ended first.
func (d *Daemon) sleep(ctx context.Context, t time.Duration) bool {
	timer := d.o.Clock.NewTimer(t)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}

// State is what the daemon is doing about its connection.
type State string

// The states of the connection.
const (
	Waiting    State = "waiting"
	Dialing    State = "dialing"
	Registered State = "registered"
)

// Status is what `daemon status` shows.
type Status struct {
	ClientID          uuid.UUID
	Epoch             uuid.UUID
	Connection        State
	Generation        uint64
	InventoryRevision uint64
	OutboxDepth       uint64
	BusyWorkers       int
	Jobs              []*pb.JobCursor
	Closing           []uuid.UUID // jobs that ended and whose own files are still being removed
	Routes            []RouteRow
	Reading           []Reading // what is read to be identified, then what waits for it, by name
}

// Reading is content without a torrent that has no identity before it is read: no answer to control lists it until then.
type Reading struct {
	ResourceID string
	Name       string // empty when only its tree was asked for
	Bytes      uint64 // 0: not known
	Active     bool   // it is being read; else it waits for its turn
}

// Status reads the state of the daemon.
func (d *Daemon) Status(ctx context.Context) (Status, error) {
	var s Status
	err := d.o.Store.View(ctx, func(tx ReadTx) error {
		id, err := tx.Identity()
		if err != nil {
			return err
		}
		s.ClientID, s.Epoch, s.Generation, s.InventoryRevision = id.ClientID, id.Epoch, id.LastGeneration, id.InventoryRevision
		if s.OutboxDepth, err = tx.OutboxDepth(); err != nil {
			return err
		}
		if s.Jobs, err = activeCursors(tx); err != nil {
			return err
		}
		if s.Closing, err = tx.ClosingJobs(); err != nil {
			return err
		}
		s.Routes, err = tx.Routes()
		return err
	})
	d.mu.Lock()
	s.Connection, s.BusyWorkers = d.state, len(d.runners)
	for _, r := range d.hashing {
		s.Reading = append(s.Reading, *r)
	}
	d.mu.Unlock()
	slices.SortFunc(s.Reading, func(a, b Reading) int {
		switch {
		case a.Active && !b.Active:
			return -1
		case b.Active && !a.Active:
			return 1
		}
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ResourceID, b.ResourceID))
	})
	if s.Connection == "" {
		s.Connection = Waiting
	}
	return s, err
}

// activeCursors returns the cursor of every job that has not ended.
func activeCursors(tx ReadTx) ([]*pb.JobCursor, error) {
	rows, err := tx.ActiveJobs()
	if err != nil {
		return nil, err
	}
	out := make([]*pb.JobCursor, 0, len(rows))
	for _, row := range rows {
		c, err := cursorOf(tx, row)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}
