package agent

import (
	"sync"
	"time"
)

// How long a task that truly runs is left alone after its agent said so: the time doubles with each such answer.
const (
	reconcileAgain    = 10 * time.Minute
	reconcileAgainMax = 6 * time.Hour
)

// maxAsked bounds how many tasks are remembered; those beyond are asked about at each sweep.
const maxAsked = 10000

// askedTasks remembers which started tasks were asked about and answered as unknown or still started, so that each is
// asked about more and more seldom. It is kept in memory alone: after a restart each is asked about once more, which changes
// nothing and costs a command. A task that began anew, and a question that nobody answered, start over. The zero value is
// ready. Safe for concurrent use.
type askedTasks struct {
	mu   sync.Mutex
	walk int64 // walks over all started tasks so far
	of   map[string]*askedTask
}

type askedTask struct {
	startedAt time.Time
	wait      time.Duration // 0: not answered yet
	until     time.Time
	walk      int64 // in which it was last seen
}

// due tells whether a started task may be asked about, and notes that it was seen.
func (a *askedTasks) due(t *StartedTask, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.of[t.key()]
	if e == nil {
		return true
	}
	e.walk = a.walk
	// A time that lies beyond the longest wait was set by a clock that was ahead.
	return !e.startedAt.Equal(t.StartedAt) || !e.until.After(now) || e.until.After(now.Add(reconcileAgainMax))
}

// ask notes that a task is asked about.
func (a *askedTasks) ask(t *StartedTask) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.of[t.key()]
	switch {
	case e != nil && e.startedAt.Equal(t.StartedAt):
		return
	case e == nil && len(a.of) >= maxAsked:
		return
	case a.of == nil:
		a.of = map[string]*askedTask{}
	}
	a.of[t.key()] = &askedTask{startedAt: t.StartedAt, walk: a.walk}
}

// answered notes that the answer about a task left it as it is.
func (a *askedTasks) answered(key string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.of[key]; e != nil {
		e.wait = min(max(2*e.wait, reconcileAgain), reconcileAgainMax)
		e.until = now.Add(e.wait)
	}
}

// walked forgets the tasks that were not seen in a walk over all that are started: they have ended.
func (a *askedTasks) walked() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, e := range a.of {
		if e.walk < a.walk {
			delete(a.of, key)
		}
	}
	a.walk++
}

func (t *StartedTask) key() string { return OpenTarget(t.ProjectNo, t.Engine+":"+t.TaskID) }
