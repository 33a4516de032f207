package copyfile

import (
	"context"
	"sync"
	"time"

	"signalbox/appliance/clock"
)

// Bucket limits bytes per second over all who share it. A nil *Bucket does not limit. Safe for concurrent use.
type Bucket struct {
	clock clock.Clock
	mu    sync.Mutex
	rate  int64
	free  time.Time // when what was granted so far is used up
}

// NewBucket returns a limit of rate bytes per second; a rate of 0 does not limit.
func NewBucket(c clock.Clock, rate int64) *Bucket { return &Bucket{clock: c, rate: rate} }

// Rate returns the limit in bytes per second, 0 for none.
func (b *Bucket) Rate() int64 {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rate
}

// SetRate changes the limit for what is granted from now on.
func (b *Bucket) SetRate(rate int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rate = rate
}

// Wait blocks until n bytes may be used: those granted before have had their time. It returns the cause when ctx ends
// first; the bytes then count as used.
func (b *Bucket) Wait(ctx context.Context, n int) error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	now := b.clock.Now()
	if b.rate <= 0 {
		b.free = now
		b.mu.Unlock()
		return nil
	}
	wait := b.free.Sub(now)
	if wait < 0 {
		wait, b.free = 0, now
	}
	b.free = b.free.Add(time.Duration(float64(n) / float64(b.rate) * float64(time.Second)))
	b.mu.Unlock()
	if wait == 0 {
		return nil
	}
	timer := b.clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
