package bulkretry

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/wake"
)

// Options are the settings of a Service.
type Options struct {
	MaxInFlight   int           // most children of one parent that are issued and not ended
	ParentTimeout time.Duration // without any child ending, after which a parent is given up
	Scan          time.Duration // interval of the slow look while a bulk retry is open
	ScanBatch     int           // open bulk retries read at once
	ConfirmAbove  int           // more tasks than this need confirm_count
	Clock         clock.Clock
	Trouble       func(op string, err error) // takes failures that nobody is told of; nil drops them
}

// Service starts bulk retries and carries them on. Safe for concurrent use.
type Service struct {
	st       agent.Store[Tx, ReadTx]
	commands *agent.Commands
	hub      *wake.Hub
	opts     Options
	slice    int // tasks written in one transaction

	mu    sync.Mutex
	dirty map[int64]bool // bulk retries to look at
	all   bool           // look at every open one
}

// New returns the service and lets commands tell it what becomes of them. It starts nothing: Run carries bulk retries on.
func New(st agent.Store[Tx, ReadTx], commands *agent.Commands, hub *wake.Hub, opts Options) *Service {
	if opts.Clock == nil {
		opts.Clock = clock.System()
	}
	if opts.Trouble == nil {
		opts.Trouble = func(string, error) {}
	}
	s := &Service{st: st, commands: commands, hub: hub, opts: opts, slice: writeSlice, dirty: map[int64]bool{}, all: true}
	commands.AddHook(s)
	return s
}

// mark lets Run look at a bulk retry.
func (s *Service) mark(no int64) {
	s.mu.Lock()
	s.dirty[no] = true
	s.mu.Unlock()
	s.hub.Wake(Changed{})
}

// markAll lets Run look at every open bulk retry. It may be called under the hub's lock.
func (s *Service) markAll() {
	s.mu.Lock()
	s.all = true
	s.mu.Unlock()
}

// Get returns a bulk retry of the project by the id of its parent; NotFound when there is none.
func (s *Service) Get(ctx context.Context, projectNo int64, id uuid.UUID) (b BulkRetry, err error) {
	err = s.st.View(ctx, func(tx ReadTx) error {
		b, err = find(tx, projectNo, id)
		return err
	})
	return b, err
}

func find(tx ReadTx, projectNo int64, id uuid.UUID) (BulkRetry, error) {
	cmd, err := tx.CommandByID(projectNo, id)
	if err == nil {
		var b BulkRetry
		b, err = tx.BulkRetryOf(cmd.No)
		b.Parent = cmd
		if err == nil {
			return b, nil
		}
	}
	if fault.Is(err, fault.NotFound) {
		return BulkRetry{}, fault.New(fault.NotFound, "bulk retry not found")
	}
	return BulkRetry{}, err
}

// List returns a page of the project's bulk retries, newest first; the cursor's id is that of a parent.
func (s *Service) List(ctx context.Context, projectNo int64, open bool, page agent.Page) (list []BulkRetry, err error) {
	err = s.st.View(ctx, func(tx ReadTx) error {
		if list, err = tx.BulkRetryList(projectNo, open, page); err != nil {
			return err
		}
		for i := range list {
			if list[i].Parent, err = tx.CommandByNo(list[i].CommandNo); err != nil {
				return err
			}
		}
		return nil
	})
	return list, err
}

// Tasks returns tasks of a bulk retry after a position, by position; status "" is every one.
func (s *Service) Tasks(ctx context.Context, projectNo int64, id uuid.UUID, status TaskStatus, after, limit int) (rows []TaskRow, err error) {
	err = s.st.View(ctx, func(tx ReadTx) error {
		b, err := find(tx, projectNo, id)
		if err != nil {
			return err
		}
		rows, err = tx.BulkRetryTasks(b.No, status, after, limit)
		return err
	})
	return rows, err
}

// Cancel gives up a bulk retry: tasks that wait and children that nobody took are cancelled, children that an agent has
// go on and are still counted. Conflict when it has ended.
func (s *Service) Cancel(ctx context.Context, p agent.Principal, projectNo int64, id uuid.UUID) (BulkRetry, error) {
	if _, err := s.Get(ctx, projectNo, id); err != nil {
		return BulkRetry{}, err
	}
	_, refusal := s.commands.Cancel(ctx, p, projectNo, id)
	if refusal != nil && !fault.Is(refusal, fault.Conflict) {
		return BulkRetry{}, refusal
	}
	b, err := s.Get(ctx, projectNo, id)
	if err == nil && refusal != nil {
		return BulkRetry{}, fault.New(fault.Conflict, "bulk retry %s is %s: it cannot be cancelled", id, b.Parent.Status).
			With("status", string(b.Parent.Status))
	}
	return b, err
}

// Counts returns how much is open, over all projects.
func (s *Service) Counts(ctx context.Context) (n OpenCounts, err error) {
	err = s.st.View(ctx, func(tx ReadTx) error {
		n, err = tx.BulkRetryCounts()
		return err
	})
	return n, err
}

// result is the result of a parent: how its tasks ended.
func (b *BulkRetry) result() []byte {
	out := []byte(`{"cancelled":`)
	out = strconv.AppendInt(out, int64(b.Cancelled), 10)
	for _, m := range []struct {
		name string
		n    int
	}{{"completed", b.Completed}, {"failed", b.Failed}, {"in_flight", b.InFlight}, {"refused", b.Refused}, {"timeout", b.TimedOut},
		{"total", b.Total}, {"waiting", b.Waiting()}} {
		out = append(append(append(out, `,"`...), m.name...), `":`...)
		out = strconv.AppendInt(out, int64(m.n), 10)
	}
	return append(out, '}')
}

func countOf(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
