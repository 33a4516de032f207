package agent

import (
	"context"
	"time"
)

// Store runs a service's transactions. W and R are the service's own narrow transaction interfaces.
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

// Writer is what every write transaction offers beside Reader: hooks that run once, after COMMIT and before the caller's
// Update returns. Hint also runs its hook when the outcome of the COMMIT is unknown: it says "look again", AfterCommit what
// has happened. Hooks must not block.
type Writer interface {
	Reader
	AfterCommit(func())
	Hint(func())
}

// Page asks for one page of a list, newest first.
type Page struct {
	Limit int    // rows, already clamped by the caller to 1..max
	After Cursor // start after this row; the zero Cursor is the beginning
}
