package beneathtest

import (
	"os"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"signalbox/appliance/archive/beneath"
)

// Open opens a root and closes it at the end of the test.
func Open(t testing.TB, dir string, hooks ...beneath.Hook) *beneath.Root {
	t.Helper()
	o := beneath.Options{}
	if len(hooks) > 0 {
		o.Hook = All(hooks...)
	}
	r, err := beneath.Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// Write makes a file with this content.
func Write(t testing.TB, r *beneath.Root, name string, content []byte) {
	t.Helper()
	f, err := r.Create(name, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(content, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// Tmpfs mounts a memory file system of this many bytes and returns its directory. It skips the test where the process may
// not mount.
func Tmpfs(t testing.TB, bytes int) string {
	t.Helper()
	dir := t.TempDir()
	MountTmpfs(t, dir, "size="+strconv.Itoa(bytes)+",mode=0755")
	return dir
}

// MountTmpfs mounts a memory file system on dir until the end of the test, or skips the test.
func MountTmpfs(t testing.TB, dir, options string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("needs the right to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
}

// Nobody is the user that Unprivileged becomes.
const Nobody = 65534

// Unprivileged runs do as a user without rights, on a thread of its own: where the tests run as root they would otherwise
// pass every check. do must not start goroutines that touch files, and must report by its return value.
func Unprivileged(t testing.TB, do func() error) error {
	t.Helper()
	if os.Geteuid() != 0 {
		return do()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		done <- func() error {
			if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
				return errno
			}
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, Nobody, Nobody, Nobody); errno != 0 {
				return errno
			}
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, Nobody, Nobody, Nobody); errno != 0 {
				return errno
			}
			return do()
		}()
	}()
	return <-done
}

// OpenToAll lets every user reach a directory made by t.TempDir.
func OpenToAll(t testing.TB, dir string) {
	t.Helper()
	for range 2 {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		dir = dir[:len(dir)-len("/001")]
	}
}
