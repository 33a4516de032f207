package daemon_test

import (
	"context"
	"sync"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/daemon"
)

// call is one call of a worker; the test decides how it ends.
type call struct {
	ctx  context.Context
	task *daemon.Task // of Run
	job  *daemon.Job
	kind string
	end  chan result
}

type result struct {
	evidence *pb.StepEvidence
	err      error
}

// steps hands every call to the test.
type steps struct {
	calls chan *call
	mu    sync.Mutex
	busy  map[uuid.UUID]int
	most  int // the most calls of one job at a time
}

func newSteps() *steps { return &steps{calls: make(chan *call, 100), busy: map[uuid.UUID]int{}} }

func (s *steps) do(c *call) result {
	s.mu.Lock()
	s.busy[c.job.ID]++
	s.most = max(s.most, s.busy[c.job.ID])
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.busy[c.job.ID]--
		s.mu.Unlock()
	}()
	c.end = make(chan result, 1)
	s.calls <- c
	select {
	case r := <-c.end:
		return r
	case <-c.ctx.Done():
		return result{err: context.Cause(c.ctx)}
	}
}

func (s *steps) Run(ctx context.Context, t *daemon.Task) (*pb.StepEvidence, error) {
	r := s.do(&call{ctx: ctx, task: t, job: t.Job, kind: "run"})
	return r.evidence, r.err
}

func (s *steps) Undo(ctx context.Context, j *daemon.Job, _ pb.CleanupPolicy) error {
	return s.do(&call{ctx: ctx, job: j, kind: "undo"}).err
}

func (s *steps) Close(ctx context.Context, j *daemon.Job) error {
	return s.do(&call{ctx: ctx, job: j, kind: "close"}).err
}

func (r *rig) call(kind string) *call {
	r.t.Helper()
	c := await(r.t, "a call of "+kind, r.steps.calls)
	if c.kind != kind {
		r.t.Fatalf("a call of %s, want %s", c.kind, kind)
	}
	return c
}

// content is the inventory of the tests.
type content struct {
	mu        sync.Mutex
	token     string
	resources []*pb.ResourceSummary
	trees     map[string]*backend.Tree
	busy      map[string]bool
	hashed    chan string
}

func (c *content) ListResources(context.Context) (*backend.Listing, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &backend.Listing{Token: c.token, Resources: c.resources}, nil
}

func (c *content) ContentTree(_ context.Context, id string, o backend.TreeOptions) (*backend.Tree, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[id] {
		if o.CachedOnly {
			return nil, backend.Fail("BUSY", "it is hashed")
		}
		delete(c.busy, id)
		c.hashed <- id
	}
	tree := c.trees[id]
	if tree == nil {
		return nil, backend.Fail("NOT_FOUND", "there is no resource %q", id)
	}
	return tree, nil
}
