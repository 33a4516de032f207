package store

import "context"

// Bound is a DB seen through the narrow transaction interfaces W and R of one domain service.
type Bound[W, R any] struct {
	db     *DB
	upkeep bool
}

// Bind adapts the database to a service's interfaces. *Tx must implement W and *ReadTx must implement R: each file of
// this package that implements an interface asserts so at compile time; a Bind without that assertion panics at its
// first use.
func Bind[W, R any](db *DB) Bound[W, R] { return Bound[W, R]{db: db} }

// BindUpkeep is Bind for work that must not delay others, like retention: its updates go through the lane of maintenance
// (see DB.Slices), one small slice each.
func BindUpkeep[W, R any](db *DB) Bound[W, R] { return Bound[W, R]{db: db, upkeep: true} }

// Update is DB.Update with the service's view of the transaction.
func (b Bound[W, R]) Update(ctx context.Context, op string, fn func(W) error) error {
	return b.db.writer.do(ctx, b.lane(), op, func(tx *Tx) error { return fn(any(tx).(W)) }, nil)
}

func (b Bound[W, R]) lane() chan *request {
	if b.upkeep {
		return b.db.writer.bg
	}
	return b.db.writer.queue
}

// View is DB.View with the service's view of the transaction.
func (b Bound[W, R]) View(ctx context.Context, fn func(R) error) error {
	return b.db.View(ctx, func(tx *ReadTx) error { return fn(any(tx).(R)) })
}
