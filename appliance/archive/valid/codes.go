package valid

import (
	"strconv"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

func itoa(n int) string { return strconv.Itoa(n) }

// Limits of an ErrorDetail (daemon protocol 2.4).
const (
	MaxErrorMessage = 1024
	MaxErrorDetails = 32
	MaxDetailKey    = 40
	MaxDetailValue  = 1024
)

// Detail returns an error of the code with the retryable mark that belongs to it. kv are pairs of a key and a value for
// details; a pair with an empty value is left out. What is longer than the protocol allows is cut, at a character, so
// that the result is always valid; the caller keeps secrets out. It panics if kv is odd or a key is not of
// [a-z0-9_]{1,40}: keys are fixed text of the program.
func Detail(code pb.ErrorCode, message string, kv ...string) *pb.ErrorDetail {
	d := &pb.ErrorDetail{Code: code, Retryable: archive.Retryable(code), Message: archive.Clip(message, MaxErrorMessage)}
	for i := 0; i < len(kv); i += 2 {
		if !isKey(kv[i], MaxDetailKey, 'a') {
			panic("valid: a key of an error's details is not of [a-z0-9_]{1,40}")
		}
		if kv[i+1] == "" || len(d.Details) == MaxErrorDetails {
			continue
		}
		if d.Details == nil {
			d.Details = make(map[string]string, len(kv)/2)
		}
		d.Details[kv[i]] = archive.Clip(kv[i+1], MaxDetailValue)
	}
	return d
}
