package appliance

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
)

// errStopped is the cause that ends the goroutines of a group which stops in good order.
var errStopped = errors.New("stopped")

// group owns the appliance's goroutines: it starts them, waits for them, and refuses newcomers once it stops. The first
// failure is kept and announced.
type group struct {
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	wg       sync.WaitGroup
	stopping bool
}

func newGroup() *group {
	g := &group{}
	g.ctx, g.cancel = context.WithCancelCause(context.Background())
	return g
}

// start runs fn on a goroutine of its own until it returns. An error, or a panic, ends the whole group with that cause.
func (g *group) start(name string, fn func(context.Context) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopping {
		return
	}
	g.wg.Add(1)
	go func() {
		defer g.wg.Done()
		defer func() {
			if v := recover(); v != nil {
				g.cancel(fmt.Errorf("%s: panic: %v\n%s", name, v, debug.Stack()))
			}
		}()
		if err := fn(g.ctx); err != nil && g.ctx.Err() == nil {
			g.cancel(fmt.Errorf("%s: %w", name, err))
		}
	}()
}

// fail ends the group with the cause.
func (g *group) fail(err error) { g.cancel(err) }

// failed is closed when the group ends; err says why.
func (g *group) failed() <-chan struct{} { return g.ctx.Done() }

func (g *group) err() error {
	if err := context.Cause(g.ctx); !errors.Is(err, errStopped) {
		return err
	}
	return nil
}

// stop refuses newcomers, tells everybody to end, and waits until they have or ctx ends.
func (g *group) stop(ctx context.Context) error {
	g.mu.Lock()
	g.stopping = true
	g.mu.Unlock()
	g.cancel(errStopped)
	done := make(chan struct{})
	go func() {
		g.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("background work did not end: %w", ctx.Err())
	}
}
