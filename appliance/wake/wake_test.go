package wake

import (
	"sync"
	"testing"
)

func TestHintsCoalesceAndStayWithTheirKey(t *testing.T) {
	h := New()
	a, b := h.Watch("a"), h.Watch("b")
	defer b.Stop()
	h.Wake("a")
	h.Wake("a")
	<-a.C()
	for _, w := range []*Watch{a, b} {
		select {
		case <-w.C():
			t.Fatalf("unexpected hint for %v", w.key)
		default:
		}
	}
	a.Stop()
	a.Stop()
	if n := h.Watchers("a"); n != 0 {
		t.Fatalf("%d watchers left", n)
	}
}

func TestConcurrentWatchersAllHear(t *testing.T) {
	h := New()
	var ready, done sync.WaitGroup
	for range 50 {
		ready.Add(1)
		done.Go(func() {
			w := h.Watch(1)
			defer w.Stop()
			ready.Done()
			<-w.C()
		})
	}
	ready.Wait()
	h.Wake(1)
	done.Wait()
}

func TestNotifyCallsUntilStopped(t *testing.T) {
	h := New()
	calls := 0
	w := h.Notify("a", func() { calls++ })
	h.Wake("a")
	h.Wake("b")
	h.Wake("a")
	w.Stop()
	h.Wake("a")
	if calls != 2 {
		t.Fatalf("%d calls, want 2", calls)
	}
}
