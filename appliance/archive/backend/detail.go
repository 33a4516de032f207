package backend

import (
	"context"
	"errors"
	"fmt"
	"sort"

	"signalbox/appliance/archive"
	"signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/pathrule"
	"signalbox/appliance/fault"
)

// Fail makes an error with a code of the daemon protocol, named without its prefix. The message is one sentence for a
// person and holds no secret.
func Fail(code string, format string, args ...any) *fault.Error {
	return fault.New(faultCode(code), format, args...).With("error_code", code)
}

func faultCode(code string) fault.Code {
	switch code {
	case "NOT_FOUND":
		return fault.NotFound
	case "BUSY", "UNAVAILABLE", "BACKEND_UNAVAILABLE", "NO_SPACE":
		return fault.Unavailable
	case "INVALID_ARGUMENT", "PATH_UNSAFE", "UNSUPPORTED_FORMAT", "LIMIT_EXCEEDED":
		return fault.Invalid
	case "INTERNAL", "READ_ERROR", "WRITE_ERROR":
		return fault.Internal
	}
	return fault.Conflict
}

// CodeOf is the daemon protocol's code of an error of the archive packages: that of the first one in the chain that has
// one, INTERNAL for any other error.
func CodeOf(err error) archivepb.ErrorCode {
	var own *beneath.Error
	var path *pathrule.Error
	var f *fault.Error
	switch {
	case errors.As(err, &own):
		return archivepb.ErrorCode(own.Code)
	case errors.As(err, &path):
		return path.Code
	case errors.As(err, &f):
		if name, ok := f.Details["error_code"].(string); ok {
			if n, known := archivepb.ErrorCode_value["ERROR_CODE_"+name]; known {
				return archivepb.ErrorCode(n)
			}
		}
	case errors.Is(err, context.Canceled):
		return archivepb.ErrorCode_ERROR_CODE_CANCELLED
	case errors.Is(err, context.DeadlineExceeded):
		return archivepb.ErrorCode_ERROR_CODE_TIMEOUT
	}
	return archivepb.ErrorCode_ERROR_CODE_INTERNAL
}

// Detail is the ErrorDetail of an error of the archive packages: code, retryable as daemon protocol 2.12 has it, the
// message and the facts, all within their limits.
func Detail(err error) *archivepb.ErrorDetail {
	d := &archivepb.ErrorDetail{Code: CodeOf(err), Details: map[string]string{}}
	d.Retryable = archive.Retryable(d.Code)
	var own *beneath.Error
	var path *pathrule.Error
	var f *fault.Error
	switch {
	case errors.As(err, &own):
		d.Message = own.Error()
		addDetails(d.Details, own.Details())
	case errors.As(err, &path):
		d.Message = path.Error()
		addDetails(d.Details, path.Details())
	case errors.As(err, &f):
		d.Message = f.Msg
		facts := map[string]string{}
		for k, v := range f.Details {
			if k != "error_code" {
				facts[k] = fmt.Sprint(v)
			}
		}
		addDetails(d.Details, facts)
	default:
		d.Message = "an unexpected failure; the daemon's log has the cause"
	}
	d.Message = archive.Clip(d.Message, 1024)
	return d
}

func addDetails(to, from map[string]string) {
	keys := make([]string, 0, len(from))
	for k := range from {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys[:min(len(keys), 32)] {
		to[k] = archive.Clip(from[k], 1024)
	}
}
