package room

import (
	"context"
	"time"
)

// Store runs the transactions of a part. W and R are the part's own narrow transaction interfaces.
//
// Update runs fn inside the single writer and returns nil only after COMMIT; an error from fn rolls back fn's writes
// and nothing else. fn touches only its tx: no network, no locks, no nested Update. View runs fn on a snapshot.
type Store[W, R any] interface {
	Update(ctx context.Context, op string, fn func(W) error) error
	View(ctx context.Context, fn func(R) error) error
}

// Reader is what every read transaction offers: the one time of the transaction, UTC, whole microseconds.
type Reader interface {
	Now() time.Time
}

// Writer is what every write transaction offers beside Reader: hooks that run once, after COMMIT, on the writer's goroutine,
// in commit order, before the caller's Update returns. Hint also runs its hook when the outcome of the COMMIT is unknown: it
// says "look again", AfterCommit what has happened. Hooks must not block.
type Writer interface {
	Reader
	AfterCommit(func())
	Hint(func())
}
