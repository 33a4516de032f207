package preflight

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/inventory"
	"signalbox/appliance/archive/job"
	"signalbox/appliance/archive/route"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
)

var (
	_ job.Preflight    = (*Preflight)(nil)
	_ job.StorageCheck = (*Preflight)(nil)
)

// Routes is what a preflight needs of package route.
type Routes interface {
	Ready(tx route.ReadTx, routeNo int64) (ready bool, why string, err error)
}

// Options of a Preflight.
type Options struct {
	Inventory *inventory.Inventory
	Routes    Routes
	Hub       *wake.Hub
	Clock     clock.Clock // nil: the system's
	// Upkeep runs retention in small slices beside other writes; nil: the ordinary store.
	Upkeep Store
	// Trouble is told of a preview that could not be stored. May be nil.
	Trouble func(error)
}

const (
	// atOnce is how many previews are made at a time: each may hold two trees in memory.
	atOnce = 2
	// maxResting is how many more may wait for daemons that read content first, which takes up to ten minutes.
	maxResting = 8
	// maxQueued is how many more may wait.
	maxQueued = 64
	// fileSlice is how many planned files one transaction stores.
	fileSlice = 1000
)

// PreviewKey is the key under which those who wait for a preview are woken.
type PreviewKey struct{ ID uuid.UUID }

// Preflight makes previews and checks jobs before they are assigned. Safe for concurrent use.
type Preflight struct {
	store Store
	o     Options

	mu    sync.Mutex
	queue []task
	more  chan struct{}

	slots   chan struct{} // of previews at work
	resting chan struct{} // of those that have given their slot away for a while
}

type task struct {
	no int64
	id uuid.UUID
	o  order
}

// New makes a Preflight. Start must be called before the first Preview, and Run runs beside it.
func New(store Store, o Options) *Preflight {
	if o.Upkeep == nil {
		o.Upkeep = store
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Trouble == nil {
		o.Trouble = func(error) {}
	}
	return &Preflight{store: store, o: o, more: make(chan struct{}, 1), slots: make(chan struct{}, atOnce), resting: make(chan struct{}, maxResting)}
}

// Start fails the previews that the process before did not finish.
func (p *Preflight) Start(ctx context.Context) error {
	return p.store.Update(ctx, "fail interrupted previews", func(tx Tx) error {
		list, err := tx.PreviewsRunning()
		if err != nil {
			return err
		}
		for _, v := range list {
			if err := tx.PreviewDropFiles(v.No); err != nil {
				return err
			}
			v.State, v.FinishedAt = Failed, tx.Now()
			v.Error = failure(pb.ErrorCode_ERROR_CODE_UNAVAILABLE, "make it again", "control was restarted before the preview was finished")
			if err := tx.PreviewUpdate(&v); err != nil {
				return err
			}
		}
		return nil
	})
}

// PreviewFiles stores a new preview in state running, starts its checks on goroutines of its own, and returns its id at
// once. The preview ends in state passed, with a draft of the definition, or in state failed, with the error. Patterns
// choose the files: those of path.Match over the path of a file in its tree, or over what follows the resource's own
// directory; "**" stands for any number of directories. No patterns, and no Requested: every selected file. Invalid names the field that breaks a rule; NotFound: a daemon, route or parent job that
// is not there; Unavailable: too many previews wait.
func (p *Preflight) PreviewFiles(ctx context.Context, req job.Request, patterns []string, by string) (uuid.UUID, error) {
	if err := validRequest(req, patterns); err != nil {
		return uuid.Nil, err
	}
	text, err := json.Marshal(req)
	if err != nil {
		return uuid.Nil, fault.Wrap(fault.Invalid, err, "the request cannot be stored")
	}
	t := task{id: uuid.New(), o: order{request: req, patterns: patterns}}
	p.mu.Lock()
	full := len(p.queue) >= maxQueued
	p.mu.Unlock()
	if full {
		return uuid.Nil, fault.New(fault.Unavailable, "%d previews wait to be made; try again later", maxQueued)
	}
	err = p.store.Update(ctx, "preview", func(tx Tx) error {
		if err := p.known(tx, &t.o); err != nil {
			return err
		}
		v := Preview{ID: t.id, Operation: req.Operation, Request: string(text), State: Running, By: by, Warnings: []string{},
			Summary: Summary{Patterns: patterns}, CreatedAt: tx.Now()}
		if err := tx.PreviewInsert(&v); err != nil {
			return err
		}
		t.no = v.No
		tx.AfterCommit(func() { p.push(t) })
		return nil
	})
	if err != nil {
		return uuid.Nil, err
	}
	return t.id, nil
}

func (p *Preflight) push(t task) {
	p.mu.Lock()
	p.queue = append(p.queue, t)
	p.mu.Unlock()
	select {
	case p.more <- struct{}{}:
	default:
	}
}

func (p *Preflight) pop() (task, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		return task{}, false
	}
	t := p.queue[0]
	p.queue = p.queue[1:]
	return t, true
}

// known checks that everything the request names is there, and reads the job that an eviction rests on.
func (p *Preflight) known(tx Tx, o *order) error {
	for _, d := range []struct {
		field string
		id    uuid.UUID
	}{{"source", o.request.Source}, {"target", o.request.Target}} {
		if _, ok, err := tx.PreflightPeer(d.id, 0); err != nil || !ok {
			if err == nil {
				err = fault.New(fault.NotFound, "%s: there is no daemon %s", d.field, d.id)
			}
			return err
		}
	}
	switch o.request.Operation {
	case transfer:
		row, ok, err := tx.RouteByID(o.request.Route)
		if err == nil && (!ok || !row.RemovedAt.IsZero()) {
			err = fault.New(fault.NotFound, "route: there is no route %s", o.request.Route)
		}
		return err
	case evict:
		def, commit, ok, err := tx.PreflightParent(o.request.Parent)
		if err == nil && !ok {
			err = fault.New(fault.NotFound, "parent: job %s is no completed transfer or adoption whose target has reported its commit: "+
				"only such a copy is one that another can be given up for", o.request.Parent)
		}
		o.parent, o.commit = def, commit
		return err
	}
	return nil
}

// Run makes the previews, a few at a time, until ctx ends; then it waits for those at work. What it did not finish is
// failed by the next Start.
func (p *Preflight) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case p.slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		t, ok := p.pop()
		for !ok {
			select {
			case <-p.more:
				t, ok = p.pop()
			case <-ctx.Done():
				return nil
			}
		}
		wg.Go(func() {
			defer func() { <-p.slots }()
			if err := p.make(ctx, t); err != nil && ctx.Err() == nil {
				p.o.Trouble(fmt.Errorf("preview %s: %w", t.id, err))
			}
		})
	}
}

// make makes one preview and stores how it ended.
func (p *Preflight) make(ctx context.Context, t task) error {
	f, detail, err := (&collector{Preflight: p, patient: true}).collect(ctx, t.o)
	if err != nil && ctx.Err() != nil {
		return err
	}
	if err != nil {
		p.o.Trouble(fmt.Errorf("preview %s: %w", t.id, err))
		detail = failure(pb.ErrorCode_ERROR_CODE_INTERNAL, "try again", "the preview could not be made: "+fault.Message(err))
	}
	var def *pb.JobDefinition
	if detail == nil {
		def = draft(f)
		if detail = checkDefinitionSize(f, def); detail == nil {
			if err := p.storeFiles(ctx, t.no, f); err != nil {
				return err
			}
		}
	}
	return p.finish(ctx, t, f, def, detail)
}

// storeFiles stores the plan in slices, so that a plan of 200,000 files keeps nobody waiting.
func (p *Preflight) storeFiles(ctx context.Context, no int64, f *Facts) (err error) {
	slice := make([]PlannedFile, 0, fileSlice)
	flush := func() bool {
		err = p.store.Update(ctx, "preview files", func(tx Tx) error { return tx.PreviewInsertFiles(no, slice) })
		slice = slice[:0]
		return err == nil
	}
	plan(f, func(file PlannedFile) bool {
		slice = append(slice, file)
		return len(slice) < fileSlice || flush()
	})
	if err == nil && len(slice) > 0 {
		flush()
	}
	return err
}

func (p *Preflight) finish(ctx context.Context, t task, f *Facts, def *pb.JobDefinition, detail *pb.ErrorDetail) error {
	return p.store.Update(ctx, "preview ends", func(tx Tx) error {
		v, ok, err := tx.PreviewByNo(t.no)
		if err != nil || !ok || v.State != Running {
			return err
		}
		v.FinishedAt = tx.Now()
		v.SourceRev, v.TargetRev = f.revisions()
		if detail != nil {
			v.State, v.Error = Failed, detail
		} else {
			v.State, v.Draft, v.Warnings = Passed, def, warnings(f)
			v.Summary = summarize(f)
			v.Summary.Patterns = t.o.patterns
			req := t.o.request
			req.Requested, req.Destination = def.GetRequested(), def.GetDestination()
			text, err := json.Marshal(req)
			if err != nil {
				return fault.Wrap(fault.Internal, err, "the request cannot be stored")
			}
			v.Request = string(text)
		}
		tx.Hint(func() { p.o.Hub.Wake(PreviewKey{t.id}) })
		return tx.PreviewUpdate(&v)
	})
}

// Check implements job.Preflight.
func (p *Preflight) Check(ctx context.Context, c job.Check) (job.Outcome, error) {
	o := order{jobNo: c.JobNo, request: c.Request, parent: c.Parent, commit: c.Commit}
	if c.PreviewNo != 0 {
		var v Preview
		err := p.store.View(ctx, func(tx ReadTx) (err error) {
			ok := false
			if v, ok, err = tx.PreviewByNo(c.PreviewNo); err == nil && (!ok || v.Draft == nil) {
				err = fault.New(fault.NotFound, "the preview of the job is no longer kept")
			}
			return err
		})
		if err != nil {
			return outcome(asDetail(err)), notOfJob(err)
		}
		o.previewed = &v
	}
	f, detail, err := (&collector{Preflight: p}).collect(ctx, o)
	if err != nil {
		return job.Outcome{}, err
	}
	if detail != nil {
		return outcome(detail), nil
	}
	def := draft(f)
	if detail := checkDefinitionSize(f, def); detail != nil {
		return outcome(detail), nil
	}
	return job.Outcome{Definition: def}, nil
}

// outcome tells what a job waits for that did not pass.
func outcome(d *pb.ErrorDetail) job.Outcome {
	o := job.Outcome{Error: d, Detail: d.GetMessage()}
	if !d.GetRetryable() {
		return o
	}
	o.Wait = archive.WaitFor(d.GetCode())
	switch check := d.GetDetails()["check"]; {
	case check == "1" && d.GetCode() == pb.ErrorCode_ERROR_CODE_UNAVAILABLE:
		o.Wait = pb.WaitReason_WAIT_REASON_CLIENT_OFFLINE
	case check == "4":
		o.Wait = pb.WaitReason_WAIT_REASON_RESOURCE_RESERVED
	}
	return o
}

// Room implements job.StorageCheck.
func (p *Preflight) Room(ctx context.Context, r job.RoomRequest) (bool, error) {
	peer := Peer{Ref: archive.DaemonRef{ID: r.Daemon}, Name: r.Daemon.String()}
	entries, d, err := (&collector{Preflight: p}).roots(ctx, &peer)
	if err != nil {
		return false, err
	}
	if d != nil {
		return false, fault.New(fault.Unavailable, "%s", d.GetMessage())
	}
	id, keep := r.Definition.GetDestination().GetContentRootId(), r.Definition.GetPolicies().GetKeepFreeBytes()
	if r.Step == pb.JobStep_JOB_STEP_STAGE || r.Step == pb.JobStep_JOB_STEP_TRANSFER {
		m, err := p.routeOf(ctx, r.Definition.GetRouteId())
		if err != nil {
			return false, err
		}
		id = m.GetTarget().GetRootId()
		if r.Step == pb.JobStep_JOB_STEP_STAGE {
			id, keep = m.GetSource().GetRootId(), 0
		}
	}
	e := root(entries, id)
	if e == nil || e.GetError() != nil {
		return false, fault.New(fault.Unavailable, "root %s of daemon %s is not usable now", id, r.Daemon)
	}
	if e.GetFreeBytes() < keep {
		return false, nil
	}
	return e.GetFreeBytes()-keep >= max(r.Need, 1), nil
}

func (p *Preflight) routeOf(ctx context.Context, id string) (*pb.Route, error) {
	routeID, err := uuid.Parse(id)
	if err != nil {
		return nil, fault.New(fault.Invalid, "route_id: %q is no UUID", id)
	}
	var m *pb.Route
	err = p.store.View(ctx, func(tx ReadTx) error {
		row, ok, err := tx.RouteByID(routeID)
		if err == nil && !ok {
			err = fault.New(fault.NotFound, "there is no route %s", id)
		}
		m = row.Message
		return err
	})
	return m, err
}
