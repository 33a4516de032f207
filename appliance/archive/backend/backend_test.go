package backend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/pathrule"
	"signalbox/appliance/fault"
)

func TestDetail(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err   error
		code  archivepb.ErrorCode
		retry bool
		text  string
	}{
		"own":      {fmt.Errorf("x: %w", Fail("BUSY", "the content is being hashed").With("files", 3)), archivepb.ErrorCode_ERROR_CODE_BUSY, true, "the content is being hashed"},
		"conflict": {Fail("RESOURCE_CONFLICT", "two places"), archivepb.ErrorCode_ERROR_CODE_RESOURCE_CONFLICT, false, "two places"},
		"beneath": {fmt.Errorf("x: %w", &beneath.Error{Code: beneath.ReadError, Op: beneath.OpRead, Path: "a", Err: syscall.EIO}),
			archivepb.ErrorCode_ERROR_CODE_READ_ERROR, false, "read a"},
		"path":     {pathrule.Check("../x"), archivepb.ErrorCode_ERROR_CODE_PATH_UNSAFE, false, "../x"},
		"plain":    {errors.New("secret inside"), archivepb.ErrorCode_ERROR_CODE_INTERNAL, false, "unexpected failure"},
		"fault":    {fault.New(fault.NotFound, "gone"), archivepb.ErrorCode_ERROR_CODE_INTERNAL, false, "gone"},
		"unknown":  {fault.New(fault.NotFound, "gone").With("error_code", "NO_SUCH"), archivepb.ErrorCode_ERROR_CODE_INTERNAL, false, "gone"},
		"cancel":   {context.Canceled, archivepb.ErrorCode_ERROR_CODE_CANCELLED, false, "unexpected"},
		"deadline": {context.DeadlineExceeded, archivepb.ErrorCode_ERROR_CODE_TIMEOUT, true, "unexpected"},
	} {
		d := Detail(c.err)
		if d.Code != c.code || d.Retryable != c.retry || !strings.Contains(d.Message, c.text) || strings.Contains(d.Message, "secret") {
			t.Errorf("%s: %v", name, d)
		}
		if _, leaked := d.Details["error_code"]; leaked {
			t.Errorf("%s: error_code is among the details", name)
		}
	}
	d := Detail(Fail("INTERNAL", "%s", strings.Repeat("é", 2000)).With("path", strings.Repeat("é", 2000)))
	if len(d.Message) != 1024 || len(d.Details["path"]) != 1024 {
		t.Errorf("%d and %d bytes", len(d.Message), len(d.Details["path"]))
	}
}

func TestCodesHaveNames(t *testing.T) {
	t.Parallel()
	for n, name := range archivepb.ErrorCode_name {
		if n == 0 {
			continue
		}
		if got := CodeOf(Fail(strings.TrimPrefix(name, "ERROR_CODE_"), "x")); got != archivepb.ErrorCode(n) {
			t.Errorf("%s is %v", name, got)
		}
	}
}

func TestRevisionDependsOnEveryField(t *testing.T) {
	t.Parallel()
	type input struct {
		id    archivepb.ResourceIdentity
		l     Location
		bytes uint64
		mtime int64
		files []RevisionFile
	}
	base := func() *input {
		return &input{id: archivepb.ResourceIdentity{InfohashV1: "1", InfohashV2: "2", TreeFingerprint: "3"}, l: Location{"r", "d"}, bytes: 1, mtime: 1,
			files: []RevisionFile{{Index: 0, Path: "a", Kind: 1, Logical: 1, Completed: 1, Present: 1, DiskBytes: 1, MtimeNS: 1}, {Index: 1, Path: "b"}}}
	}
	sum := func(in *input) string {
		r := NewRevision(&in.id, in.l, in.bytes, in.mtime)
		for _, f := range in.files {
			r.File(f)
		}
		return r.Sum()
	}
	seen := map[string]string{sum(base()): "base"}
	for name, change := range map[string]func(*input){
		"v1":          func(i *input) { i.id.InfohashV1 = "x" },
		"v2":          func(i *input) { i.id.InfohashV2 = "x" },
		"fingerprint": func(i *input) { i.id.TreeFingerprint = "x" },
		"moved hash":  func(i *input) { i.id.InfohashV1, i.id.InfohashV2 = "", "12" },
		"root":        func(i *input) { i.l.RootID = "x" },
		"dir":         func(i *input) { i.l.Dir = "x" },
		"part bytes":  func(i *input) { i.bytes = 2 },
		"part mtime":  func(i *input) { i.mtime = 2 },
		"index":       func(i *input) { i.files[1].Index = 2 },
		"path":        func(i *input) { i.files[0].Path = "x" },
		"kind":        func(i *input) { i.files[0].Kind = 2 },
		"logical":     func(i *input) { i.files[0].Logical = 2 },
		"completed":   func(i *input) { i.files[0].Completed = 2 },
		"selected":    func(i *input) { i.files[0].Selected = true },
		"present":     func(i *input) { i.files[0].Present = 2 },
		"disk bytes":  func(i *input) { i.files[0].DiskBytes = 2 },
		"mtime":       func(i *input) { i.files[0].MtimeNS = 2 },
		"fewer files": func(i *input) { i.files = i.files[:1] },
	} {
		in := base()
		change(in)
		s := sum(in)
		if other, taken := seen[s]; taken || len(s) != 64 {
			t.Errorf("%s gives the revision of %s", name, other)
		}
		seen[s] = name
	}
	in := base()
	in.id.DisplayName = "only shown"
	if seen[sum(in)] != "base" {
		t.Error("the display name changes the revision")
	}
}
