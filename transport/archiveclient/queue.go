package archiveclient

import (
	"context"
	"sync"

	"signalbox/appliance/archive/valid"
)

// queue is the bulk lane: bounded by count and by bytes, and blocking its producers when it is full (daemon protocol 5.2).
type queue struct {
	c chan []byte

	mu     sync.Mutex
	frames int // in the queue
	bytes  int
	most   int // of each
	room   int
	space  chan struct{} // closed and replaced when something was taken
}

func newQueue(frames, bytes int) *queue {
	return &queue{c: make(chan []byte, valid.MaxOutboundEnvelopes), most: frames, room: bytes, space: make(chan struct{})}
}

// resize sets the bounds that were negotiated.
func (q *queue) resize(frames, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.most, q.room = min(frames, cap(q.c)), bytes
}

// put waits for room. A frame larger than the whole room goes when the queue is empty.
func (q *queue) put(ctx context.Context, b []byte, finish <-chan struct{}, cause func() error) error {
	for {
		select {
		case <-finish:
			return cause()
		default:
		}
		q.mu.Lock()
		if q.frames == 0 || q.frames < q.most && q.bytes+len(b) <= q.room {
			q.frames++
			q.bytes += len(b)
			q.c <- b // never blocks: frames is below the channel's capacity
			q.mu.Unlock()
			return nil
		}
		space := q.space
		q.mu.Unlock()
		select {
		case <-space:
		case <-finish:
			return cause()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (q *queue) out() <-chan []byte { return q.c }

// taken makes room for the next.
func (q *queue) taken(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.frames--
	q.bytes -= n
	close(q.space)
	q.space = make(chan struct{})
}
