package commands

import (
	"context"
	"errors"
	"fmt"

	"signalbox/appliance/fault"
	"signalbox/transport"
)

// Exit codes of the process. They are part of the interface: scripts branch on them.
const (
	ExitOK          = 0
	ExitFailed      = 1 // the work was tried and failed, or something broke
	ExitUsage       = 2 // wrong flags, arguments or input values
	ExitNotFound    = 3 // no such record, or not visible to this key
	ExitAuth        = 4 // missing, unknown or insufficient credential
	ExitConflict    = 5 // the present state does not allow it
	ExitUnreachable = 6 // nothing answered at the address
	ExitTimeout     = 7 // the awaited answer did not come in time
	ExitDegraded    = 8 // the server answers but cannot serve in full now: agent offline, rate limited, unready
)

const exitCodesHelp = `Exit codes:
  0  ok
  1  failed
  2  usage: wrong flags, arguments or values
  3  not found
  4  authentication or permission
  5  conflict with the present state
  6  unreachable: nothing answers at the address
  7  timed out waiting
  8  degraded: the server answers but cannot serve in full now (agent offline, rate limited, unready)`

// usageError is a mistake in flags or arguments, found before or without asking the server.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{err: fmt.Errorf(format, args...)}
}

// unreachableError says that no HTTP answer came from the target at all.
type unreachableError struct {
	target string
	hint   string
	err    error
}

func (e *unreachableError) Error() string { return "cannot reach " + e.target + ": " + e.err.Error() }
func (e *unreachableError) Unwrap() error { return e.err }

// exitError chooses the exit code itself, for outcomes that are not failures of the request: a command that failed on
// its agent, a broken audit chain, a degraded server.
type exitError struct {
	code int
	msg  string
	hint string
}

func (e *exitError) Error() string { return e.msg }

func exitf(code int, format string, args ...any) *exitError {
	return &exitError{code: code, msg: fmt.Sprintf(format, args...)}
}

// exitCode is the one mapping from an error to the process's exit code.
func exitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	var (
		exit        *exitError
		usage       *usageError
		unreachable *unreachableError
	)
	switch {
	case errors.As(err, &exit):
		return exit.code
	case errors.As(err, &usage):
		return ExitUsage
	case errors.As(err, &unreachable):
		return ExitUnreachable
	case errors.Is(err, context.Canceled):
		return ExitFailed
	}
	return transport.ClassOf(err).Exit // the one table of what a code means outside
}

// exitName words an exit code that was chosen here, for the error document.
func exitName(code int) string {
	switch code {
	case ExitUsage:
		return "usage"
	case ExitNotFound:
		return string(fault.NotFound)
	case ExitAuth:
		return string(fault.Forbidden)
	case ExitConflict:
		return string(fault.Conflict)
	case ExitUnreachable:
		return "unreachable"
	case ExitTimeout:
		return string(fault.Timeout)
	case ExitDegraded:
		return "degraded"
	}
	return "failed"
}
