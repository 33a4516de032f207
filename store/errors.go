package store

import (
	"context"
	"database/sql"
	"errors"

	"modernc.org/sqlite"

	"signalbox/appliance/fault"
)

// SQLite result codes that the mapping names. They are part of SQLite's file-format-like promise and never change
// (https://www.sqlite.org/rescode.html), so they are spelled here instead of importing the driver's 10 MB of constants.
const (
	codePerm       = 3
	codeAbort      = 4
	codeBusy       = 5
	codeLocked     = 6
	codeNoMem      = 7
	codeReadOnly   = 8
	codeInterrupt  = 9
	codeIOErr      = 10
	codeCorrupt    = 11
	codeFull       = 13
	codeCantOpen   = 14
	codeProtocol   = 15
	codeSchema     = 17
	codeTooBig     = 18
	codeConstraint = 19
	codeMismatch   = 20
	codeNoLFS      = 22
	codeNotADB     = 26

	codeIOErrNoMem        = codeIOErr | 12<<8
	codeReadOnlyMoved     = codeReadOnly | 4<<8
	codeConstraintPK      = codeConstraint | 6<<8
	codeConstraintUnique  = codeConstraint | 8<<8
	codeConstraintRowID   = codeConstraint | 10<<8
	codePrimaryMask       = 0xff
	messageUnavailable    = "the database is busy or full, nothing was applied"
	messageOutcomeUnknown = "the outcome of the write is unknown, read before you retry"
)

// mapError turns an error of the driver into one of the fault vocabulary, by numeric code and never by text. An error
// that already carries a *fault.Error passes unchanged, so mapping twice does no harm. Everything unknown becomes
// Internal with the cause kept for the log.
func mapError(err error) error {
	if err == nil {
		return nil
	}
	var f *fault.Error
	if errors.As(err, &f) {
		return err
	}
	if errors.Is(err, sql.ErrNoRows) {
		return fault.Wrap(fault.NotFound, err, "not found")
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fault.Wrap(fault.Canceled, err, "the request was given up by its caller")
	}
	var s *sqlite.Error
	if errors.As(err, &s) {
		code := faultCode(s.Code())
		return fault.Wrap(code, err, "%s", codeMessage(code))
	}
	return fault.Wrap(fault.Internal, err, "%s", codeMessage(fault.Internal))
}

// faultCode maps an extended SQLite result code.
func faultCode(code int) fault.Code {
	switch code {
	case codeConstraintUnique, codeConstraintPK, codeConstraintRowID:
		return fault.Conflict
	case codeIOErrNoMem: // memory ran out inside an I/O call: passes, the file is fine
		return fault.Unavailable
	case codeReadOnlyMoved: // the file was replaced or deleted under us
		return fault.Corrupt
	}
	switch code & codePrimaryMask {
	case codeConstraint, codeTooBig, codeMismatch:
		return fault.Invalid
	case codeBusy, codeLocked, codeFull, codeNoMem, codeInterrupt, codeCantOpen, codeReadOnly, codePerm, codeAbort,
		codeProtocol, codeSchema:
		return fault.Unavailable
	case codeCorrupt, codeNotADB, codeIOErr, codeNoLFS:
		return fault.Corrupt
	default:
		return fault.Internal
	}
}

// codeMessage is the text strangers may read: no table, column or file name.
func codeMessage(code fault.Code) string {
	switch code {
	case fault.Conflict:
		return "a record with the same unique value exists already"
	case fault.Invalid:
		return "the record breaks a rule of the database"
	case fault.Unavailable:
		return messageUnavailable
	case fault.Corrupt:
		return "the database is damaged or its disk is failing"
	default:
		return "internal error"
	}
}

// sqliteCode returns the extended result code in err's chain, 0 when there is none.
func sqliteCode(err error) int {
	var s *sqlite.Error
	if errors.As(err, &s) {
		return s.Code()
	}
	return 0
}
