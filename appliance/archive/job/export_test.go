package job

import "context"

// Work does the background work that is due, on the caller's goroutine, until there is none: what Run does on its own.
func (e *Engine) Work(ctx context.Context) error {
	e.resumeWork(ctx)
	return e.WorkOn(ctx)
}

// WorkOn is Work of a process that has been running for a while.
func (e *Engine) WorkOn(ctx context.Context) error {
	for {
		e.turn(ctx)
		t, ok := e.work.take()
		if !ok {
			return ctx.Err()
		}
		e.do(ctx, t)
	}
}

// Poked tells whether the timer was told of a new time since the last call.
func (e *Engine) Poked() bool {
	select {
	case <-e.timer.c:
		return true
	default:
		return false
	}
}

// Collecting is how many daemons have sent parts of snapshots that are not complete.
func (e *Engine) Collecting() int {
	e.parts.mu.Lock()
	defer e.parts.mu.Unlock()
	return len(e.parts.m)
}
