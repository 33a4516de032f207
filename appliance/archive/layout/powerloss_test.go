package layout_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/beneath/beneathtest"
	"signalbox/appliance/archive/layout"
)

// mountImage mounts an ext4 image until the returned function is called or the test ends.
func mountImage(t *testing.T, image string) (dir string, unmount func()) {
	t.Helper()
	dir = t.TempDir()
	if out, err := exec.Command("mount", "-o", "loop", "-t", "ext4", image, dir).CombinedOutput(); err != nil {
		t.Skipf("needs the right to mount an ext4 image: %v: %s", err, out)
	}
	done := false
	unmount = func() {
		if !done {
			done = true
			unix.Unmount(dir, unix.MNT_DETACH)
		}
	}
	t.Cleanup(unmount)
	return dir, unmount
}

// The power fails before each one of the calls that write manifest and marker: what is on the medium then, and nothing
// of what only the memory held, is mounted again. There is no manifest or a whole one, and what has a marker has all of
// its payload, though nothing but WriteManifest flushed it. TestDeathAtEveryCall holds the same without a mount.
func TestPowerLossAtEveryCall(t *testing.T) {
	tool, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		t.Skip("needs mkfs.ext4")
	}
	image := filepath.Join(t.TempDir(), "image")
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 8<<20))
	if out, err := exec.Command(tool, "-q", "-F", image).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir, unmount := mountImage(t, image)

	var copies []string
	cut := func(after string) error {
		medium, err := os.ReadFile(image)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("%s.%03d %s", image, len(copies), after)
		copies = append(copies, name)
		return os.WriteFile(name, medium, 0o600)
	}
	writing := false
	r, err := beneath.Open(dir, beneath.Options{Hook: func(op beneath.Op, name string) error {
		if !writing {
			return nil
		}
		return cut(fmt.Sprintf("before %s", op))
	}})
	must(t, err)
	put(t, r)
	writing = true
	seal(t, r, manifest())
	writing = false
	must(t, cut("at the end"))
	r.Close()
	unmount()

	manifests, markers := 0, 0
	for _, name := range copies {
		dir, unmount := mountImage(t, name)
		r := beneathtest.Open(t, dir)
		at := filepath.Base(name)
		_, _, err := layout.ReadManifest(r, jobID, 3)
		switch {
		case err == nil:
			manifests++
		case !beneath.IsNotFound(err):
			t.Errorf("%s: %v", at, err)
		}
		job := layout.JobDir(jobID, 3)
		if _, err := r.Lstat(job + "/" + layout.MarkerFile); err == nil {
			markers++
			report, err := layout.Verify(t.Context(), filepath.Join(dir, job), nil)
			if err != nil || !report.OK() {
				t.Errorf("%s: %+v, %v", at, report.Problems, err)
			}
		} else if !beneath.IsNotFound(err) {
			t.Errorf("%s: %v", at, err)
		}
		unmount()
		must(t, os.Remove(name))
	}
	// The last copy has both; the first ones, before anything was flushed, have neither.
	if markers == 0 || manifests <= markers || manifests > len(copies)-5 {
		t.Errorf("%d copies, %d with a manifest, %d with a marker", len(copies), manifests, markers)
	}
}
