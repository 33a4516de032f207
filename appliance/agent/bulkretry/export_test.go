package bulkretry

import "context"

// SetSlice sets how many tasks one transaction writes or removes.
func (s *Service) SetSlice(n int) { s.slice = n }

// Stepper does what Run does, one turn at a time.
type Stepper struct{ r *runner }

// NewStepper returns what Run begins with.
func NewStepper(s *Service) *Stepper { return &Stepper{newRunner(s)} }

// Turn looks at what was marked; everything does as the timer of Run.
func (s *Stepper) Turn(ctx context.Context, everything bool) error {
	if everything {
		s.r.s.markAll()
	}
	return s.r.turn(ctx)
}

// Close gives up what the stepper watches.
func (s *Stepper) Close() { s.r.stopWatching() }
