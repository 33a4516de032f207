// Package layout is the transfer layout on disk (daemon protocol 7.1 to 7.3): the names of job directories and their
// files, the atomic procedure that writes manifest and marker, the receiver's checks in their order, and the check of a
// whole job directory without any job at hand.
//
// All work goes through a *beneath.Root. Failures are *beneath.Error (also for what no kernel said: Op is then Op of
// this package) or *pathrule.Error; a directory that is not complete yet is *NotReady.
package layout

import (
	"errors"
	"fmt"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
)

// Op names the work of this package in errors.
const Op beneath.Op = "job directory"

const (
	manifestInvalid = pb.ErrorCode_ERROR_CODE_MANIFEST_INVALID
	integrity       = pb.ErrorCode_ERROR_CODE_INTEGRITY_FAILURE
)

func failure(code pb.ErrorCode, name, format string, args ...any) error {
	return &beneath.Error{Code: code, Op: Op, Path: name, Err: fmt.Errorf(format, args...)}
}

func invalid(name, format string, args ...any) error {
	return failure(manifestInvalid, name, format, args...)
}

// NotReady is a job directory that is ignored for now: something is still missing. Waiting may help.
type NotReady struct {
	Dir    string // relative to the root
	Reason string
	// Set once the manifest was accepted: payload and artifact files that are missing or have another size, the first of
	// them, and the payload bytes that are there.
	Incomplete int
	First      string
	Have, Want uint64
}

// Error tells what is missing.
func (e *NotReady) Error() string {
	return fmt.Sprintf("job directory %s is not complete: %s", e.Dir, e.Reason)
}

// IsNotReady reports a *NotReady in the chain.
func IsNotReady(err error) bool {
	var e *NotReady
	return errors.As(err, &e)
}
