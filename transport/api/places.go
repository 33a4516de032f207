package api

import (
	"sync"
	"time"

	"signalbox/appliance/fault"
)

// errBusy answers when there are too many streams or exports.
var errBusy = &fault.Error{Code: fault.Unavailable, Msg: "too many streams and exports at once", Retry: 5 * time.Second}

// places bound the answers that take long. One principal has a quarter of them at most, so that nobody can keep everybody
// else from watching. Safe for concurrent use.
type places struct {
	most, each int

	mu    sync.Mutex
	taken map[string]int // by principal
	total int
}

func newPlaces(most int) *places {
	return &places{most: most, each: max(most/4, 1), taken: map[string]int{}}
}

// take takes a place for the principal; done gives it back and is to be called once. The error is errBusy.
func (p *places) take(principal string) (done func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.total >= p.most || p.taken[principal] >= p.each {
		return nil, errBusy
	}
	p.total++
	p.taken[principal]++
	return func() { p.give(principal) }, nil
}

func (p *places) give(principal string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total--
	if p.taken[principal]--; p.taken[principal] == 0 {
		delete(p.taken, principal)
	}
}
