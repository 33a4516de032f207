package valid_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/valid"
	"signalbox/appliance/fault"
)

// TestErrorCodes holds every code to its line of daemon protocol 2.12.
func TestErrorCodes(t *testing.T) {
	table := map[string]bool{"BUSY": true, "UNAVAILABLE": true, "TIMEOUT": true, "BACKEND_UNAVAILABLE": true, "TRANSFER_INTERRUPTED": true,
		"ROUTE_NOT_READY": true, "NO_SPACE": true}
	for number, name := range pb.ErrorCode_name {
		code := pb.ErrorCode(number)
		if d := valid.Detail(code, "x"); d.GetRetryable() != table[strings.TrimPrefix(name, "ERROR_CODE_")] {
			t.Errorf("%s: retryable is %v", name, d.GetRetryable())
		}
		if code != 0 {
			if err := valid.ErrorDetail(valid.Detail(code, "x")); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if len(pb.ErrorCode_name) != 45 {
		t.Errorf("%d codes", len(pb.ErrorCode_name))
	}
	if valid.Detail(9999, "x").GetRetryable() {
		t.Error("an unknown code is retryable")
	}
}

func TestDetailIsAlwaysValid(t *testing.T) {
	long := strings.Repeat("é", 1000)
	d := valid.Detail(pb.ErrorCode_ERROR_CODE_PATH_CONFLICT, "x"+long, "path", "y"+long, "found", "", "errno", "\xff")
	if err := valid.ErrorDetail(d); err != nil {
		t.Error(err)
	}
	if !utf8.ValidString(d.Message) || len(d.Message) != 1023 || len(d.Details["path"]) != 1023 || d.Details["errno"] != "\uFFFD" {
		t.Errorf("%d and %d bytes, %q", len(d.Message), len(d.Details["path"]), d.Details["errno"])
	}
	if _, there := d.Details["found"]; there {
		t.Error("an empty value is kept")
	}
	defer func() {
		if recover() == nil {
			t.Error("a wrong key passes")
		}
	}()
	valid.Detail(pb.ErrorCode_ERROR_CODE_INTERNAL, "x", "Wrong Key", "x")
}

func TestErrors(t *testing.T) {
	err := valid.AsError(valid.Progress(&pb.Progress{Bytes: &pb.ByteCounters{Known: true, LogicalDone: 1}}))
	if err.Error() != "bytes.logical_done: must be at most logical_total" {
		t.Error(err)
	}
	if fault.CodeOf(err.Fault()) != fault.Invalid || err.Fault().Error() != err.Error() {
		t.Error(err.Fault())
	}
	if d := err.Detail(); d.Code != pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT || d.Message != err.Error() || d.Details["field"] != err.Field {
		t.Error(d)
	}
	if valid.AsError(nil) != nil {
		t.Error("nil is an error")
	}
	if got := valid.AsError(fault.New(fault.Internal, "secret")); got.Code != pb.ErrorCode_ERROR_CODE_INTERNAL || strings.Contains(got.Error(), "secret") {
		t.Error(got)
	}
}
