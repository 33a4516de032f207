package work

import (
	"context"
	"errors"
	"fmt"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/valid"
)

// failure is a step that fails with the code; kv are facts for the details.
func failure(code pb.ErrorCode, message string, kv ...string) error {
	return &daemon.StepError{Detail: valid.Detail(code, message, kv...)}
}

// held is an inconsistency for a person.
func held(code pb.ErrorCode, message string, kv ...string) error {
	return &daemon.Held{Detail: valid.Detail(code, message, kv...)}
}

// outcome turns an error of any part below into what the engine takes: what is a *StepError, a *Held, or the end of the
// context stays; errors with a code of the protocol keep it; everything else is left as it is and becomes INTERNAL.
func outcome(err error) error {
	var step *daemon.StepError
	var hold *daemon.Held
	switch {
	case err == nil, errors.As(err, &step), errors.As(err, &hold), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case backend.CodeOf(err) != pb.ErrorCode_ERROR_CODE_INTERNAL:
		return &daemon.StepError{Detail: backend.Detail(err), Err: err}
	}
	var rule *valid.Error
	if errors.As(err, &rule) {
		return &daemon.StepError{Detail: rule.Detail(), Err: err}
	}
	return err
}

// codeOf is the code that an error would be reported with.
func codeOf(err error) pb.ErrorCode {
	var step *daemon.StepError
	if err = outcome(err); errors.As(err, &step) {
		return step.Detail.GetCode()
	}
	return pb.ErrorCode_ERROR_CODE_INTERNAL
}

// ended reports whether the call is over because its context is: nothing that it made is taken back then, the next
// process goes on from the journal.
func ended(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, context.Canceled)
}

// afterwards joins what went wrong while the traces of a failure were removed to the failure, which stays the answer. What
// could not be removed is still in the journal: the clean-up at the end of the job comes to it again.
func afterwards(err, cleanup error) error {
	if cleanup == nil {
		return err
	}
	return fmt.Errorf("%w; and while its traces were removed: %v", outcome(err), cleanup)
}

// isNotFound reports a name that is not there.
func isNotFound(err error) bool { return beneath.IsNotFound(err) }

// isTaken reports a name, or a directory that is not empty, in the way.
func isTaken(err error) bool { return beneath.CodeOf(err) == beneath.PathConflict }
