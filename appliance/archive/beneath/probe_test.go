package beneath_test

import (
	"math"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/beneath/beneathtest"
)

const inProbe = beneath.ControlDir + "/probe-*/"

func probed(t *testing.T, dir string, hooks ...beneath.Hook) *beneath.Measured {
	t.Helper()
	r := beneathtest.Open(t, dir, hooks...)
	m, err := r.Probe(t.Context())
	must(t, err)
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Fatalf("the probe left %v (%v)", left, err)
	}
	return m
}

// linux is what every usual Linux file system answers; clones differ.
func linux(m *beneath.Measured) *pb.FilesystemProfile {
	return &pb.FilesystemProfile{CaseSensitive: true, NormalizationPreserving: true, MaxFileBytes: m.Profile.MaxFileBytes, MaxNameBytes: 255,
		SupportsSparse: true, SupportsHardlink: true, SupportsReflink: m.Profile.SupportsReflink, SupportsNoreplaceRename: true}
}

func TestProbeOfUsualFileSystems(t *testing.T) {
	t.Run("temporary directory", func(t *testing.T) {
		m := probed(t, t.TempDir())
		if !proto.Equal(m.Profile, linux(m)) || !m.DurableRename || m.Profile.MaxFileBytes < 1<<40 {
			t.Errorf("%v", m)
		}
	})
	t.Run("tmpfs", func(t *testing.T) {
		m := probed(t, beneathtest.Tmpfs(t, 4<<20))
		if !proto.Equal(m.Profile, linux(m)) || m.Profile.SupportsReflink || m.Profile.MaxFileBytes != math.MaxInt64 {
			t.Errorf("%v", m)
		}
	})
}

func TestProbeOfUnusualFileSystems(t *testing.T) {
	t.Run("files of 16 GiB at most", func(t *testing.T) {
		dir := t.TempDir()
		beneathtest.MountShortFiles(t, dir)
		if m := probed(t, dir); !proto.Equal(m.Profile, linux(m)) || m.Profile.MaxFileBytes != beneathtest.ShortFile {
			t.Errorf("%v", m)
		}
	})
	t.Run("folded names", func(t *testing.T) {
		dir := t.TempDir()
		beneathtest.MountFolding(t, dir)
		if m := probed(t, dir); m.Profile.CaseSensitive || m.Profile.SupportsNoreplaceRename {
			t.Errorf("%v", m)
		}
	})
}

func TestProbeMeasuresWhatIsMissing(t *testing.T) {
	always := beneathtest.Always
	for _, c := range []struct {
		name  string
		hook  beneath.Hook
		wrong func(p *pb.FilesystemProfile)
	}{
		{"hard links", always(beneath.OpLink, "", syscall.EPERM), func(p *pb.FilesystemProfile) { p.SupportsHardlink = false }},
		{"no-replace rename", always(beneath.OpRename, "", syscall.EINVAL), func(p *pb.FilesystemProfile) { p.SupportsNoreplaceRename = false }},
		{"holes", always(beneath.OpSeek, "", syscall.EINVAL), func(p *pb.FilesystemProfile) { p.SupportsSparse = false }},
		{"a colon", always(beneath.OpCreate, inProbe+"win:a", syscall.EINVAL), func(p *pb.FilesystemProfile) { p.WindowsNames = true }},
		{"names of 255 bytes", onLongNames(143), func(p *pb.FilesystemProfile) { p.MaxNameBytes = 143 }},
	} {
		m := probed(t, t.TempDir(), c.hook)
		want := linux(m)
		c.wrong(want)
		if !proto.Equal(m.Profile, want) {
			t.Errorf("without %s: %v", c.name, m.Profile)
		}
	}
	m := probed(t, t.TempDir(), always(beneath.OpSyncDir, "", syscall.EINVAL))
	if m.DurableRename || !proto.Equal(m.Profile, linux(m)) {
		t.Errorf("without a directory flush: %v", m)
	}
}

func onLongNames(most int) beneath.Hook {
	return func(op beneath.Op, name string) error {
		if op == beneath.OpCreate && len(filepath.Base(name)) > most {
			return syscall.ENAMETOOLONG
		}
		return nil
	}
}

// A file system that folds names finds a file under the other spelling: the hooks make it appear there at the look-up.
func TestProbeNoticesFolding(t *testing.T) {
	appear := func(dir string, pattern string) beneath.Hook {
		return beneathtest.At(beneath.OpStat, inProbe+pattern, 1, func(name string) error {
			return os.WriteFile(filepath.Join(dir, name), nil, 0o600)
		})
	}
	dir := t.TempDir()
	m := probed(t, dir, appear(dir, "CASE-pROBE"))
	want := linux(m)
	want.CaseSensitive = false
	if !proto.Equal(m.Profile, want) {
		t.Errorf("letter case: %v", m.Profile)
	}
	dir = t.TempDir()
	m = probed(t, dir, appear(dir, "form-\u00e9"))
	want = linux(m)
	want.NormalizationPreserving = false
	if !proto.Equal(m.Profile, want) {
		t.Errorf("normal form: %v", m.Profile)
	}
}

func TestProbeFailsWithoutGuessing(t *testing.T) {
	for _, c := range []struct {
		hook beneath.Hook
		want beneath.Code
	}{
		{beneathtest.Fail(beneath.OpCreate, "", 3, syscall.ENOSPC), beneath.NoSpace},
		{beneathtest.Fail(beneath.OpLink, "", 1, syscall.EIO), beneath.WriteError},
		{beneathtest.Fail(beneath.OpSync, "", 1, syscall.EIO), beneath.WriteError},
		{beneathtest.Fail(beneath.OpMkdir, "", 1, syscall.EACCES), beneath.PermissionDenied},
	} {
		dir := t.TempDir()
		r := beneathtest.Open(t, dir, c.hook)
		m, err := r.Probe(t.Context())
		if m != nil {
			t.Error(m)
		}
		mustCode(t, "probe", err, c.want)
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("the probe left %v (%v)", left, err)
		}
		if _, err := r.Probe(t.Context()); err != nil { // the failure is not kept
			t.Error(err)
		}
	}
}

func TestProbeIsKeptAndClearsWhatAKilledOneLeft(t *testing.T) {
	dir := t.TempDir()
	creates := 0
	r := beneathtest.Open(t, dir, func(op beneath.Op, _ string) error {
		if op == beneath.OpCreate {
			creates++
		}
		return nil
	})
	must(t, r.Claim(beneath.Owner{Root: "content-1", Daemon: "d"}, true))
	control := filepath.Join(dir, beneath.ControlDir)
	for name, age := range map[string]time.Duration{"probe-old": 2 * time.Hour, "probe-new": time.Minute, "work": 2 * time.Hour} {
		must(t, os.MkdirAll(filepath.Join(control, name, "x"), 0o700))
		then := time.Now().Add(-age)
		must(t, os.Chtimes(filepath.Join(control, name), then, then))
	}
	first, err := r.Probe(t.Context())
	must(t, err)
	made := creates
	second, err := r.Probe(t.Context())
	must(t, err)
	if first != second || creates != made {
		t.Errorf("probed again: %d files made, then %d", made, creates)
	}
	left := map[string]bool{}
	must(t, r.ReadDir(beneath.ControlDir, func(e beneath.Entry) error { left[e.Name] = true; return nil }))
	if len(left) != 3 || !left["probe-new"] || !left["work"] || !left["owner"] {
		t.Errorf("left %v", left)
	}
}

// TestProbesAtATime: whoever asks while a probe is under way gets its result.
func TestProbesAtATime(t *testing.T) {
	dir := t.TempDir()
	r := beneathtest.Open(t, dir)
	results := make(chan *beneath.Measured)
	for range 8 {
		go func() {
			m, err := r.Probe(t.Context())
			if err != nil {
				t.Error(err)
			}
			results <- m
		}()
	}
	first := <-results
	for range 7 {
		if m := <-results; m != first {
			t.Errorf("another result: %+v, first %+v", m, first)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("the probes left %v (%v)", left, err)
	}
}
