package commands

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"signalbox/transport/agentclient"
	"signalbox/transport/roomclient"
)

const (
	// benchHeld is how many posts a room's receivers may be behind, on average, before its senders wait. The slowest
	// must stay within what a server retains for an agent.
	benchHeld = 500
	// benchDials is how many receivers open their streams at once.
	benchDials = 256
	// benchSettle bounds the wait for receivers that fall silent.
	benchSettle = 20 * time.Second
	// receiptShards spreads the latencies of receipts over locks.
	receiptShards = 8
)

// roomLoad is the load of one run.
type roomLoad struct {
	b       *benchRooms
	pool    *roomsPool
	timeout time.Duration // of one post
	prefix  string        // of the text of every message
	padding string
	mark    []byte // of a message of the run, in an event
	epoch   time.Time

	receivers []*roomReceiver
	ctx       context.Context // of the streams
	fail      context.CancelCauseFunc
	streams   sync.WaitGroup

	goal     atomic.Int64
	received atomic.Int64
	reached  chan struct{}

	acks     histogram
	receipts [receiptShards]histogram

	gaps, disorder, broken atomic.Int64
}

// histogram is one that many may record to.
type histogram struct {
	mu sync.Mutex
	h  *hdrhistogram.Histogram
}

func (h *histogram) record(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.h == nil {
		h.h = agentclient.NewHistogram()
	}
	_ = h.h.RecordValue(min(max(d.Microseconds(), 1), h.h.HighestTrackableValue()))
}

func (h *histogram) mergeInto(all *hdrhistogram.Histogram) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.h != nil {
		all.Merge(h.h)
	}
}

func newRoomLoad(b *benchRooms, opts *options, pool *roomsPool) *roomLoad {
	l := &roomLoad{b: b, pool: pool, timeout: opts.requestTimeout, prefix: pool.run + " ", epoch: time.Now(), reached: make(chan struct{}, 1)}
	l.mark = []byte(`"body":"` + l.prefix)
	l.padding = strings.Repeat("x", max(b.size-len(l.prefix)-12, 0))
	l.ctx, l.fail = context.WithCancelCause(context.Background())
	l.goal.Store(-1)
	for _, room := range pool.rooms {
		l.receivers = append(l.receivers, room.receivers...)
	}
	for i, v := range l.receivers {
		v.load, v.receipts = l, &l.receipts[i%receiptShards]
	}
	return l
}

// stop ends all streams.
func (l *roomLoad) stop() {
	l.fail(nil)
	l.drop()
	l.pool.http.CloseIdleConnections()
}

func (l *roomLoad) drop() {
	_ = inParallel(context.Background(), len(l.receivers), benchDials, func(_ context.Context, i int) error {
		l.receivers[i].drop()
		return nil
	})
	l.streams.Wait()
}

// connect opens the streams of all receivers and returns when each has begun.
func (l *roomLoad) connect(ctx context.Context) error {
	return inParallel(ctx, len(l.receivers), benchDials, func(ctx context.Context, i int) error {
		v := l.receivers[i]
		v.revive()
		if err := v.open(ctx); err != nil {
			return fmt.Errorf("connect receiver %d of %d: %w", i+1, len(l.receivers), err)
		}
		l.streams.Go(v.read)
		return nil
	})
}

// post has the senders post for the duration, and returns when the receivers have got it all, or no more comes.
func (l *roomLoad) post(ctx context.Context) (*roomLoadResult, error) {
	begun := time.Now()
	timed, cancel := context.WithTimeout(ctx, l.b.duration)
	defer cancel()
	var all []func(context.Context) error
	for _, room := range l.pool.rooms {
		for _, s := range room.senders {
			all = append(all, func(context.Context) error { return l.send(timed, room, s) })
		}
	}
	err := inParallel(ctx, len(all), len(all), func(ctx context.Context, i int) error { return all[i](ctx) })
	posting := time.Since(begun)
	if err != nil {
		return nil, fmt.Errorf("post: %w", err)
	}
	if err := l.settle(ctx); err != nil {
		return nil, err
	}
	r := &roomLoadResult{}
	for _, room := range l.pool.rooms {
		r.Posts.Stored += room.stored.Load()
		r.Deliveries.Received += room.received.Load()
	}
	r.Posts.Seconds, r.Deliveries.Seconds = posting.Seconds(), time.Since(begun).Seconds()
	r.Posts.PerSecond = float64(r.Posts.Stored) / r.Posts.Seconds
	r.Deliveries.PerSecond = float64(r.Deliveries.Received) / r.Deliveries.Seconds
	acks, receipts := agentclient.NewHistogram(), agentclient.NewHistogram()
	l.acks.mergeInto(acks)
	for i := range l.receipts {
		l.receipts[i].mergeInto(receipts)
	}
	r.Posts.ToAck, r.Deliveries.ToReceipt = quantilesOf(acks), quantilesOf(receipts)
	return r, nil
}

// send posts until timed ends.
func (l *roomLoad) send(timed context.Context, room *benchRoom, from *roomclient.Config) error {
	interval := time.Duration(0)
	if l.b.rate > 0 {
		interval = time.Duration(float64(l.b.senders) / l.b.rate * float64(time.Second))
	}
	next := time.Now()
	if interval > 0 {
		next = next.Add(rand.N(interval)) // senders do not march in step
	}
	for l.pause(timed, time.Until(next)) && l.hold(timed, room) {
		sent := time.Since(l.epoch)
		if err := l.say(timed, room, from, sent); err != nil {
			return err
		}
		l.acks.record(time.Since(l.epoch) - sent)
		next = next.Add(interval)
	}
	return context.Cause(l.ctx)
}

// pause returns false when the time is over.
func (l *roomLoad) pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil && l.ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-l.ctx.Done():
	}
	return false
}

// hold waits while the room's receivers are too far behind. It returns false when the time is over.
func (l *roomLoad) hold(ctx context.Context, room *benchRoom) bool {
	n := int64(len(room.receivers))
	behind := func() bool { return room.stored.Load()*n-room.received.Load() > benchHeld*n }
	if !behind() {
		return ctx.Err() == nil
	}
	room.held.Add(1)
	defer room.held.Add(-1)
	for behind() {
		select {
		case <-room.moved:
		case <-ctx.Done():
			return false
		case <-l.ctx.Done():
			return false
		}
	}
	return ctx.Err() == nil
}

// say posts once. A negative time is not measured. It is not broken off: what is on its way may be stored.
func (l *roomLoad) say(ctx context.Context, room *benchRoom, from *roomclient.Config, at time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.timeout)
	defer cancel()
	body := map[string]string{"room_id": room.id, "content": l.prefix + strconv.FormatInt(int64(at), 10) + " " + l.padding}
	if err := from.Do(ctx, http.MethodPost, "/agents/"+from.AgentID.String()+"/message", body, nil, nil); err != nil {
		return err
	}
	room.stored.Add(1)
	return nil
}

// expected is how many deliveries the acknowledged posts make.
func (l *roomLoad) expected() (n int64) {
	for _, room := range l.pool.rooms {
		n += room.stored.Load() * int64(len(room.receivers))
	}
	return n
}

// missing is how many of them have not come.
func (l *roomLoad) missing() (n int64) {
	for _, v := range l.receivers {
		n += max(v.room.stored.Load()-v.got.Load(), 0)
	}
	return n
}

// settle waits until everything expected has come, as long as anything comes.
func (l *roomLoad) settle(ctx context.Context) error {
	want := l.expected()
	l.goal.Store(want)
	silence := time.NewTicker(benchSettle)
	defer silence.Stop()
	for seen := int64(-1); l.received.Load() < want; {
		select {
		case <-l.reached:
		case <-silence.C:
			now := l.received.Load()
			if now == seen {
				return nil // what is missing is told in the report
			}
			seen = now
		case <-l.ctx.Done():
			return context.Cause(l.ctx)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// storm drops all receivers, posts, and has all come back at once.
func (l *roomLoad) storm(ctx context.Context) (stormResult, error) {
	l.drop()
	err := inParallel(ctx, len(l.pool.rooms), benchParallel, func(ctx context.Context, i int) error {
		room := l.pool.rooms[i]
		for n := range l.b.behind {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			if err := l.say(ctx, room, room.senders[n%len(room.senders)], -1); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return stormResult{}, fmt.Errorf("post: %w", err)
	}
	before, each := l.received.Load(), &histogram{}
	begun := time.Now()
	for _, v := range l.receivers {
		v.caughtUp = func() { each.record(time.Since(v.dialed)) }
	}
	if err := l.connect(ctx); err != nil {
		return stormResult{}, err
	}
	if err := l.settle(ctx); err != nil {
		return stormResult{}, err
	}
	r := stormResult{Receivers: len(l.receivers), Received: l.received.Load() - before, Seconds: time.Since(begun).Seconds()}
	r.PerSecond = float64(r.Received) / r.Seconds
	all := agentclient.NewHistogram()
	each.mergeInto(all)
	r.Each = quantilesOf(all)
	return r, nil
}

func (l *roomLoad) trouble() roomTrouble {
	return roomTrouble{Gaps: l.gaps.Load(), Missing: l.missing(), OutOfOrder: l.disorder.Load(), Broken: l.broken.Load()}
}

// stamp finds out when a message of this run was posted; false for other messages.
func (l *roomLoad) stamp(data []byte) (at time.Duration, ours bool) {
	_, rest, ok := bytes.Cut(data, l.mark)
	if !ok {
		return 0, false
	}
	digits, _, ok := bytes.Cut(rest, []byte(" "))
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(string(digits), 10, 64)
	return time.Duration(n), err == nil
}
