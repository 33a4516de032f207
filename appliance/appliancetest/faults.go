package appliancetest

import (
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"signalbox/appliance/fault"
	"signalbox/store"
)

// Faults are the failpoints of a running store, and a count of what it does.
type Faults struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every count
	fail    error
	lose    error
	commit  func(ops []string)
	queue   func(op string)
	ops     map[string]int
	failed  map[string]int
	reads   map[string]int
}

func newFaults() *Faults {
	return &Faults{changed: make(chan struct{}), ops: map[string]int{}, failed: map[string]int{}, reads: map[string]int{}}
}

// The reads that are counted, by the function that makes them: a read carries no name.
const (
	Authentication = "(*Gate).authenticate"       // of an agent
	Look           = "(*Commands).deliverable"    // of a session for commands
	Sweep          = "(*Commands).boundDeadlines" // for commands whose time is over
)

// ErrDatabase is what a database that was taken away says.
var ErrDatabase = fault.New(fault.Unavailable, "the database cannot be written now")

// FailCommits makes every commit fail with the error, nothing applied; nil lets them pass again. fault.Unavailable and
// the like are transient.
func (f *Faults) FailCommits(err error) {
	f.mu.Lock()
	f.fail = err
	f.mu.Unlock()
}

// LoseReplies makes every commit succeed and its callers hear the error, as of a commit whose outcome nobody knows; nil
// ends that.
func (f *Faults) LoseReplies(err error) {
	f.mu.Lock()
	f.lose = err
	f.mu.Unlock()
}

// BeforeCommit runs fn before every commit with its operations, on the writer's goroutine; nil ends that. What fn gives
// FailCommits counts for this commit already.
func (f *Faults) BeforeCommit(fn func(ops []string)) {
	f.mu.Lock()
	f.commit = fn
	f.mu.Unlock()
}

// OnQueued runs fn after each write has been queued, on the goroutine that queued it; nil ends that.
func (f *Faults) OnQueued(fn func(op string)) {
	f.mu.Lock()
	f.queue = fn
	f.mu.Unlock()
}

// AwaitFailed waits until n commits with the operation in them have been made to fail since the start.
func (f *Faults) AwaitFailed(t testing.TB, op string, n int) {
	t.Helper()
	f.await(t, "failed commits of "+op, n, func() int { return f.failed[op] })
}

// Failed returns how many commits with the operation in them have been made to fail since the start.
func (f *Faults) Failed(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed[op]
}

func (f *Faults) reset() {
	f.OnQueued(nil)
	f.FailCommits(nil)
	f.LoseReplies(nil)
	f.BeforeCommit(nil)
}

// Queued returns how many writes of the operation have been queued since the start. A write counts when it is in the queue:
// it may have been done by then.
func (f *Faults) Queued(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ops[op]
}

// Reads returns how many reads of the function have been served since the start.
func (f *Faults) Reads(by string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reads[by]
}

// AwaitReads waits until n reads of the function have been served. A poll whose Look found nothing is parked then, or has
// nothing to do before it is.
func (f *Faults) AwaitReads(t testing.TB, by string, n int) {
	t.Helper()
	f.await(t, "reads of "+by, n, func() int { return f.reads[by] })
}

// AwaitQueued waits until n writes of the operation have been queued.
func (f *Faults) AwaitQueued(t testing.TB, op string, n int) {
	t.Helper()
	f.await(t, "writes of "+op, n, func() int { return f.ops[op] })
}

func (f *Faults) await(t testing.TB, what string, n int, count func() int) {
	t.Helper()
	timeout := time.NewTimer(Wait)
	defer timeout.Stop()
	for {
		f.mu.Lock()
		have, changed := count(), f.changed
		f.mu.Unlock()
		if have >= n {
			return
		}
		select {
		case <-changed:
		case <-timeout.C:
			t.Fatalf("%s: %d after %v, want %d", what, have, Wait, n)
		}
	}
}

func (f *Faults) count(add func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	add()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *Faults) hooks() store.Hooks {
	return store.Hooks{
		Queued: func(op string) {
			var then func(string)
			f.count(func() { f.ops[op]++; then = f.queue })
			if then != nil {
				then(op)
			}
		},
		Viewed: func() {
			if by := reader(); by != "" {
				f.count(func() { f.reads[by]++ })
			}
		},
		BeforeCommit: func(ops []string) error {
			f.mu.Lock()
			commit := f.commit
			f.mu.Unlock()
			if commit != nil {
				commit(ops)
			}
			f.mu.Lock()
			fail := f.fail
			f.mu.Unlock()
			if fail != nil {
				f.fails(ops)
			}
			return fail
		},
		AfterCommitBeforeReply: func(ops []string) error {
			f.mu.Lock()
			lose := f.lose
			f.mu.Unlock()
			if lose != nil {
				f.fails(ops)
			}
			return lose
		},
	}
}

// fails counts a commit that is made to fail.
func (f *Faults) fails(ops []string) {
	slices.Sort(ops)
	f.count(func() {
		for _, op := range slices.Compact(ops) {
			f.failed[op]++
		}
	})
}

// reader returns the function among those counted that is on the stack, "" when there is none.
func reader() string {
	var pcs [48]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		frame, more := frames.Next()
		for _, by := range []string{Authentication, Look, Sweep} {
			if strings.HasSuffix(frame.Function, by) || strings.Contains(frame.Function, by+".") {
				return by
			}
		}
		if !more {
			return ""
		}
	}
}
