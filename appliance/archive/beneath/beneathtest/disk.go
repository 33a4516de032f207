package beneathtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// ShortFile is the length of a file, in bytes, that MountShortFiles surely cannot hold one byte more of.
const ShortFile = 1<<34 + 1<<26 + 1<<18 + 12<<10 // three levels of 256 pointers each to blocks of 1 KiB, and 12 direct ones

// MountShortFiles mounts on dir, until the end of the test, an ext2 file system whose files end at ShortFile bytes. It
// skips the test where mkfs.ext2 is not installed or the process may not mount.
func MountShortFiles(t testing.TB, dir string) {
	t.Helper()
	image := format(t, 32<<20, "mkfs.ext2", "-q", "-F", "-b", "1024")
	mount(t, dir, "mount", "-o", "loop", "-t", "ext2", image, dir)
	if err := os.Remove(filepath.Join(dir, "lost+found")); err != nil {
		t.Fatal(err)
	}
}

// MountFolding mounts on dir, until the end of the test, an NTFS file system that takes names that differ by letter case
// for the same, through FUSE. It skips the test where ntfs-3g is not installed, there is no /dev/fuse or the process may
// not mount.
func MountFolding(t testing.TB, dir string) {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skipf("needs FUSE: %v", err)
	}
	image := format(t, 64<<20, "mkfs.ntfs", "-q", "-Q", "-F")
	mount(t, dir, "lowntfs-3g", "-o", "ignore_case", image, dir)
}

// Cloning mounts a file system with clones (reflinks), made in an image on a loop device, and returns its directory. It
// skips the test where neither mkfs.xfs nor mkfs.btrfs is installed or the process may not mount.
func Cloning(t testing.TB) string {
	t.Helper()
	for kind, args := range map[string][]string{"xfs": {"-q", "-m", "reflink=1"}, "btrfs": {"-q"}} {
		if _, err := exec.LookPath("mkfs." + kind); err != nil {
			continue
		}
		image, dir := format(t, 512<<20, "mkfs."+kind, args...), t.TempDir()
		mount(t, dir, "mount", "-o", "loop", "-t", kind, image, dir)
		return dir
	}
	t.Skip("needs mkfs.xfs or mkfs.btrfs")
	return ""
}

// format makes an image of this many bytes with a file system that tool makes, and returns its path.
func format(t testing.TB, bytes int64, tool string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(tool); err != nil {
		t.Skipf("needs %s", tool)
	}
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, bytes); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(tool, append(args, image)...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", tool, err, out)
	}
	return image
}

// mount runs a program that mounts a file system on dir, and takes it away at the end of the test.
func mount(t testing.TB, dir, tool string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath(tool); err != nil {
		t.Skipf("needs %s", tool)
	}
	if out, err := exec.Command(tool, args...).CombinedOutput(); err != nil {
		t.Skipf("needs the right to mount with %s: %v: %s", tool, err, out)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
}
