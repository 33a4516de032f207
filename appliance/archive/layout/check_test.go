package layout_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/layout"
)

func TestVerifyAWholeDirectory(t *testing.T) {
	_, job := staged(t)
	must(t, os.WriteFile(filepath.Join(job, "notes.txt"), nil, 0o600))
	var done, total uint64
	r, err := layout.Verify(t.Context(), job, func(d, all uint64) {
		if d < done {
			t.Errorf("progress went from %d to %d", done, d)
		}
		done, total = d, all
	})
	must(t, err)
	want := uint64(len("first file") + len("last") + len(metainfo))
	if !r.OK() || r.Files != 3 || r.Bytes != want || done != want || total != want || r.JobID != jobID || r.Attempt != 3 || r.Extras.Count != 1 {
		t.Errorf("%+v, progress %d of %d", r, done, total)
	}
}

func TestVerifyNamesWhatIsWrong(t *testing.T) {
	flip := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	for name, c := range map[string]struct {
		spoil func(t *testing.T, job string)
		code  pb.ErrorCode
		path  string
	}{
		"payload altered":  {func(t *testing.T, job string) { rewrite(t, filepath.Join(job, "payload/00000005"), flip) }, integrity, "payload/00000005"},
		"payload short":    {func(t *testing.T, job string) { must(t, os.Truncate(filepath.Join(job, "payload/00000005"), 1)) }, integrity, "payload/00000005"},
		"payload missing":  {func(t *testing.T, job string) { must(t, os.Remove(filepath.Join(job, "payload/00000005"))) }, beneath.NotFound, "payload/00000005"},
		"torrent altered":  {func(t *testing.T, job string) { rewrite(t, filepath.Join(job, "aux/metainfo"), flip) }, integrity, "aux/metainfo"},
		"manifest altered": {func(t *testing.T, job string) { rewrite(t, filepath.Join(job, "manifest.json"), flip) }, manifestInvalid, "manifest.json"},
		"no marker":        {func(t *testing.T, job string) { must(t, os.Remove(filepath.Join(job, "ready.json"))) }, beneath.NotFound, ""},
		"empty marker":     {func(t *testing.T, job string) { must(t, os.WriteFile(filepath.Join(job, "ready.json"), nil, 0o600)) }, manifestInvalid, "ready.json"},
		"payload is a link": {func(t *testing.T, job string) {
			must(t, os.Rename(filepath.Join(job, "payload/00000005"), filepath.Join(job, "x")))
			must(t, os.Symlink("../x", filepath.Join(job, "payload/00000005")))
		}, beneath.PathUnsafe, "payload/00000005"},
	} {
		_, job := staged(t)
		c.spoil(t, job)
		r, err := layout.Verify(t.Context(), job, nil)
		must(t, err)
		if r.OK() {
			t.Errorf("%s: nothing found", name)
			continue
		}
		for _, p := range r.Problems {
			if p.Code != c.code || p.Path != c.path || p.Message == "" || strings.Contains(p.Message, "%!") {
				t.Errorf("%s: %+v", name, p)
			}
		}
		if r.Manifest != nil && r.Files != 2 {
			t.Errorf("%s: the other files were not read: %+v", name, r)
		}
	}
}

func TestVerifyOfAnotherName(t *testing.T) {
	_, job := staged(t)
	moved := filepath.Join(filepath.Dir(job), "copy")
	must(t, os.Rename(job, moved))
	r, err := layout.Verify(t.Context(), moved, nil)
	must(t, err)
	if len(r.Problems) != 1 || r.Problems[0].Code != manifestInvalid || r.Files != 3 || r.JobID != jobID {
		t.Errorf("%+v", r)
	}
	moved2 := filepath.Join(filepath.Dir(job), otherJob+"-3")
	must(t, os.Rename(moved, moved2))
	if r, err = layout.Verify(t.Context(), moved2, nil); err != nil || r.OK() || r.Manifest != nil {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := layout.Verify(t.Context(), filepath.Join(job, "nowhere"), nil); beneath.CodeOf(err) != beneath.NotFound {
		t.Error(err)
	}
}

func TestVerifyCanBeStopped(t *testing.T) {
	_, job := staged(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	_, err := layout.Verify(ctx, job, func(uint64, uint64) { cancel(stop) })
	if err != stop {
		t.Error(err)
	}
}
