package appliancetest

import (
	"runtime"
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
	commit  func()
	queue   func(op string)
	ops     map[string]int
	failed  int
	views   int
	looks   int
}

func newFaults() *Faults { return &Faults{changed: make(chan struct{}), ops: map[string]int{}} }

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

// BeforeCommit runs fn before every commit, on the writer's goroutine; nil ends that. What fn gives FailCommits counts for
// this commit already.
func (f *Faults) BeforeCommit(fn func()) {
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

// AwaitFailed waits until n commits have been made to fail since the start.
func (f *Faults) AwaitFailed(t testing.TB, n int) {
	t.Helper()
	f.await(t, "failed commits", n, func() int { return f.failed })
}

// Failed returns how many commits have been made to fail since the start.
func (f *Faults) Failed() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

func (f *Faults) reset() {
	f.OnQueued(nil)
	f.FailCommits(nil)
	f.LoseReplies(nil)
	f.BeforeCommit(nil)
}

// Queued returns how many writes of the operation have been queued since the start; "" counts all.
func (f *Faults) Queued(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queued(op)
}

func (f *Faults) queued(op string) (n int) {
	for name, count := range f.ops {
		if op == "" || op == name {
			n += count
		}
	}
	return n
}

// Looks returns how often a session has looked for commands since the start: one read each.
func (f *Faults) Looks() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.looks
}

// Views returns how many reads the store has served since the start.
func (f *Faults) Views() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.views
}

// AwaitLooks waits until sessions have looked for commands n times. A poll that found nothing is parked then, or has
// nothing to do before it is.
func (f *Faults) AwaitLooks(t testing.TB, n int) {
	t.Helper()
	f.await(t, "looks for commands", n, func() int { return f.looks })
}

// AwaitViews waits until the store has served n reads. With a clock that stands still nothing reads but requests.
func (f *Faults) AwaitViews(t testing.TB, n int) {
	t.Helper()
	f.await(t, "reads", n, func() int { return f.views })
}

// AwaitQueued waits until n writes of the operation have been queued.
func (f *Faults) AwaitQueued(t testing.TB, op string, n int) {
	t.Helper()
	f.await(t, "writes of "+op, n, func() int { return f.queued(op) })
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
			look := calledBy("(*Commands).deliverable")
			f.count(func() {
				f.views++
				if look {
					f.looks++
				}
			})
		},
		BeforeCommit: func(int) error {
			f.mu.Lock()
			commit := f.commit
			f.mu.Unlock()
			if commit != nil {
				commit()
			}
			f.mu.Lock()
			fail := f.fail
			f.mu.Unlock()
			if fail != nil {
				f.count(func() { f.failed++ })
			}
			return fail
		},
		AfterCommitBeforeReply: func(int) error {
			f.mu.Lock()
			lose := f.lose
			f.mu.Unlock()
			if lose != nil {
				f.count(func() { f.failed++ })
			}
			return lose
		},
	}
}

// calledBy tells whether a function is on the stack: reads carry no name.
func calledBy(name string) bool {
	var pcs [48]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		frame, more := frames.Next()
		if strings.Contains(frame.Function, name) {
			return true
		}
		if !more {
			return false
		}
	}
}
