package fire

import "context"

// Turn is one turn of Run that begins with nothing in view, as the first one after a start does.
func (f *Fires) Turn(ctx context.Context) error {
	turn, stop := f.Turns()
	defer stop()
	return turn(ctx)
}

// Turns are turns of one Run, one after another, each of which looks at every group.
func (f *Fires) Turns() (turn func(context.Context) error, stop func()) {
	w := newWatcher(f)
	return func(ctx context.Context) error {
		f.buffer.again()
		_, err := w.turn(ctx, true)
		return err
	}, w.stop
}

// Asked tells whether Run was asked for a turn, and takes the hint.
func (f *Fires) Asked() bool {
	select {
	case <-f.buffer.kick:
		return true
	default:
		return false
	}
}
