package beneath_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/beneath/beneathtest"
)

func TestAnswersOfTheKernelBecomeCodes(t *testing.T) {
	for _, c := range []struct {
		op    beneath.Op
		errno syscall.Errno
		want  beneath.Code
	}{
		{beneath.OpWrite, syscall.ENOSPC, beneath.NoSpace},
		{beneath.OpWrite, syscall.EDQUOT, beneath.NoSpace},
		{beneath.OpWrite, syscall.EIO, beneath.WriteError},
		{beneath.OpWrite, syscall.EFBIG, beneath.FilesystemLimit},
		{beneath.OpTruncate, syscall.EFBIG, beneath.FilesystemLimit},
		{beneath.OpTruncate, syscall.EIO, beneath.WriteError},
		{beneath.OpSync, syscall.EIO, beneath.WriteError},
		{beneath.OpSync, syscall.ENOSPC, beneath.WriteError},
		{beneath.OpClose, syscall.EIO, beneath.WriteError},
		{beneath.OpRead, syscall.EIO, beneath.ReadError},
		{beneath.OpRead, syscall.EREMOTEIO, beneath.ReadError},
		{beneath.OpStat, syscall.EIO, beneath.ReadError},
		{beneath.OpOpen, syscall.ELOOP, beneath.PathUnsafe},
		{beneath.OpOpen, syscall.EXDEV, beneath.PathUnsafe},
		{beneath.OpOpen, syscall.ENOENT, beneath.NotFound},
		{beneath.OpOpen, syscall.EACCES, beneath.PermissionDenied},
		{beneath.OpOpen, syscall.ESTALE, beneath.Unavailable},
		{beneath.OpOpen, syscall.EMFILE, beneath.Unavailable},
		{beneath.OpCreate, syscall.EEXIST, beneath.PathConflict},
		{beneath.OpCreate, syscall.ENAMETOOLONG, beneath.FilesystemLimit},
		{beneath.OpCreate, syscall.EINVAL, beneath.PathUnsafe},
		{beneath.OpCreate, syscall.EROFS, beneath.PermissionDenied},
		{beneath.OpMkdir, syscall.ENOSPC, beneath.NoSpace},
		{beneath.OpRename, syscall.EXDEV, beneath.Unsupported},
		{beneath.OpRename, syscall.EACCES, beneath.PermissionDenied},
		{beneath.OpLink, syscall.EMLINK, beneath.Unsupported},
		{beneath.OpLink, syscall.EPERM, beneath.Unsupported},
		{beneath.OpReflink, syscall.EOPNOTSUPP, beneath.Unsupported},
		{beneath.OpReflink, syscall.ENOSPC, beneath.NoSpace},
		{beneath.OpAllocate, syscall.EOPNOTSUPP, beneath.Unsupported},
		{beneath.OpAllocate, syscall.ENOSPC, beneath.NoSpace},
		{beneath.OpUnlink, syscall.EBUSY, beneath.Busy},
		{beneath.OpChmod, syscall.EPERM, beneath.PermissionDenied},
	} {
		dir := t.TempDir()
		plain := beneathtest.Open(t, dir)
		beneathtest.Write(t, plain, "file", []byte("x"))
		r := beneathtest.Open(t, dir, beneathtest.Always(c.op, "?*", c.errno))
		err := perform(r, c.op)
		what := fmt.Sprintf("%s with %v", c.op, c.errno)
		mustCode(t, what, err, c.want)
		if !errors.Is(err, c.errno) {
			t.Errorf("%s: the cause is lost in %v", what, err)
		}
	}
}

func perform(r *beneath.Root, op beneath.Op) error {
	with := func(do func(f *beneath.File) error) error {
		f, err := r.OpenWrite("file")
		if err != nil {
			return err
		}
		if op == beneath.OpClose {
			return f.Close()
		}
		defer f.Close()
		return do(f)
	}
	switch op {
	case beneath.OpWrite:
		return with(func(f *beneath.File) error { _, err := f.WriteAt([]byte("x"), 0); return err })
	case beneath.OpRead:
		return with(func(f *beneath.File) error { _, err := f.ReadAt(make([]byte, 1), 0); return err })
	case beneath.OpTruncate:
		return with(func(f *beneath.File) error { return f.Truncate(9) })
	case beneath.OpAllocate:
		return with(func(f *beneath.File) error { return f.Allocate(9) })
	case beneath.OpSync:
		return with((*beneath.File).Sync)
	case beneath.OpClose:
		return with(nil)
	case beneath.OpReflink:
		return with(func(f *beneath.File) error { return f.Reflink(f) })
	case beneath.OpOpen:
		_, err := r.Open("file")
		return err
	case beneath.OpCreate:
		_, err := r.Create("new", 0o600)
		return err
	case beneath.OpStat:
		_, err := r.Lstat("file")
		return err
	case beneath.OpMkdir:
		return r.Mkdir("new", 0o700)
	case beneath.OpRename:
		return r.RenameNoReplace("file", r, "new")
	case beneath.OpLink:
		return r.Link("file", r, "new")
	case beneath.OpUnlink:
		return r.Unlink("file")
	case beneath.OpChmod:
		return r.Chmod("file", 0o600)
	}
	return errors.New("no way to perform " + string(op))
}

func TestFullDisk(t *testing.T) {
	r := beneathtest.Open(t, beneathtest.Tmpfs(t, 1<<20))
	f, err := r.Create("big", 0o600)
	must(t, err)
	defer f.Close()
	written := int64(0)
	for err == nil && written < 4<<20 {
		var n int
		n, err = f.WriteAt(make([]byte, 64<<10), written)
		written += int64(n)
	}
	mustCode(t, "write beyond the end of the disk", err, beneath.NoSpace)
	if written == 0 || written > 1<<20 {
		t.Errorf("%d bytes written", written)
	}
	if _, free, err := r.Space(); err != nil || free > 64<<10 {
		t.Errorf("%d free, %v", free, err)
	}
	mustCode(t, "reserve beyond the end of the disk", f.Allocate(4<<20), beneath.NoSpace)
}

func TestPermissionNamesFileUserAndMode(t *testing.T) {
	dir := t.TempDir()
	beneathtest.OpenToAll(t, dir)
	must(t, os.Mkdir(filepath.Join(dir, "closed"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "closed/secret"), nil, 0o600))
	must(t, os.Mkdir(filepath.Join(dir, "sealed"), 0o700))
	if os.Geteuid() != 0 {
		must(t, os.Chmod(filepath.Join(dir, "closed/secret"), 0))
		must(t, os.Chmod(filepath.Join(dir, "closed"), 0o555))
		must(t, os.Chmod(filepath.Join(dir, "sealed"), 0))
	}
	r := beneathtest.Open(t, dir)
	var uid int
	found := map[string]error{}
	must(t, beneathtest.Unprivileged(t, func() error {
		uid = os.Geteuid()
		_, found["closed/secret"] = r.Open("closed/secret")
		_, found["closed/new"] = r.Create("closed/new", 0o600)
		_, found["sealed/x"] = r.Open("sealed/x")
		return nil
	}))
	for name, denied := range map[string]string{"closed/secret": "closed/secret", "closed/new": "closed", "sealed/x": "sealed"} {
		err := found[name]
		mustCode(t, name, err, beneath.PermissionDenied)
		var e *beneath.Error
		if !errors.As(err, &e) {
			t.Fatal(err)
		}
		info, statErr := os.Lstat(filepath.Join(dir, denied))
		must(t, statErr)
		mode := fmt.Sprintf("%04o", info.Mode().Perm())
		if e.UID != uid || e.Denied != denied || e.Mode != mode {
			t.Errorf("%s: %+v", name, e)
		}
		for _, want := range []string{name, fmt.Sprintf("uid %d", uid), "mode " + mode + " of " + denied} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not say %q", err, want)
			}
		}
		if d := e.Details(); d["path"] != name || d["uid"] == "" || d["mode"] != mode || d["errno"] != "13" {
			t.Errorf("details %v", d)
		}
	}
}

func TestReadOnlyFileSystem(t *testing.T) {
	dir := beneathtest.Tmpfs(t, 1<<20)
	r := beneathtest.Open(t, dir)
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	_, err := r.Create("new", 0o600)
	mustCode(t, "create", err, beneath.PermissionDenied)
	if !strings.Contains(err.Error(), "read-only") {
		t.Error(err)
	}
}

func TestARootThatIsAnotherDirectoryNow(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "root")
	must(t, os.Mkdir(dir, 0o700))
	r := beneathtest.Open(t, dir)
	must(t, r.Verify())
	must(t, os.Rename(dir, filepath.Join(base, "moved")))
	mustCode(t, "verify without the directory", r.Verify(), beneath.Unavailable)
	must(t, os.Mkdir(dir, 0o700))
	mustCode(t, "verify with another directory", r.Verify(), beneath.Unavailable)
	beneathtest.Write(t, r, "file", nil) // still goes to the directory that was opened
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Fatal(left, err)
	}
	if _, err := os.Stat(filepath.Join(base, "moved/file")); err != nil {
		t.Fatal(err)
	}
}

func TestAnEmptyMountPointIsNoticed(t *testing.T) {
	t.Run("by the handle", func(t *testing.T) {
		dir := t.TempDir()
		beneathtest.MountTmpfs(t, dir, "size=1m")
		r := beneathtest.Open(t, dir)
		must(t, r.Claim(owned("receive-1"), true))
		must(t, r.Verify())
		must(t, unix.Unmount(dir, unix.MNT_DETACH))
		mustCode(t, "verify after the unmount", r.Verify(), beneath.Unavailable)
		beneathtest.Write(t, r, "file", nil)
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Fatalf("the disk below was written to: %v %v", left, err)
		}
	})
	t.Run("by the handle, when another file system is mounted", func(t *testing.T) {
		dir := t.TempDir()
		r := beneathtest.Open(t, dir)
		must(t, r.Claim(owned("receive-1"), true))
		beneathtest.MountTmpfs(t, dir, "size=1m")
		mustCode(t, "verify after the mount", r.Verify(), beneath.Unavailable)
		beneathtest.Write(t, r, "file", nil)
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Fatalf("the other file system was written to: %v %v", left, err)
		}
	})
	t.Run("by the owner file at the next start", func(t *testing.T) {
		dir := t.TempDir()
		r := beneathtest.Open(t, dir)
		err := r.Claim(owned("receive-1"), false)
		mustCode(t, "claim without an owner file", err, beneath.Unavailable)
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Fatalf("the mount point was written to: %v %v", left, err)
		}
	})
	t.Run("by the owner file of a running root", func(t *testing.T) {
		dir := t.TempDir()
		r := beneathtest.Open(t, dir)
		must(t, r.Claim(owned("receive-1"), true))
		must(t, os.RemoveAll(filepath.Join(dir, beneath.ControlDir)))
		mustCode(t, "verify without the owner file", r.Verify(), beneath.Unavailable)
	})
}

// owned is the owner of a root of this daemon.
func owned(root string) beneath.Owner {
	return beneath.Owner{Root: root, Daemon: "0b5e7a4e-3c0f-4d8e-9a51-6f0c2d1e8b77"}
}

func TestClaim(t *testing.T) {
	dir := t.TempDir()
	r := beneathtest.Open(t, dir)
	if o, err := r.Owner(); o != (beneath.Owner{}) || err != nil {
		t.Fatal(o, err)
	}
	must(t, r.Claim(owned("content-1"), true))
	must(t, r.Claim(owned("content-1"), false))
	mustCode(t, "claim for another", r.Claim(owned("content-2"), true), beneath.Unavailable)
	for _, id := range []string{"", "a\nb", strings.Repeat("x", 256)} {
		mustCode(t, "claim as "+id, r.Claim(owned(id), true), beneath.InvalidArgument)
		mustCode(t, "claim by "+id, r.Claim(beneath.Owner{Root: "content-1", Daemon: id}, true), beneath.InvalidArgument)
	}
	if o, err := r.Owner(); o != owned("content-1") || err != nil {
		t.Fatal(o, err)
	}
	info, err := os.Stat(filepath.Join(dir, beneath.ControlDir))
	must(t, err)
	if info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v", info.Mode())
	}
	left, err := os.ReadDir(filepath.Join(dir, beneath.ControlDir))
	if err != nil || len(left) != 1 {
		t.Fatalf("%v %v", left, err)
	}

	broken := t.TempDir()
	r = beneathtest.Open(t, broken, beneathtest.Fail(beneath.OpSync, "", 1, syscall.EIO))
	mustCode(t, "claim on a failing disk", r.Claim(owned("content-1"), true), beneath.WriteError)
	if o, err := r.Owner(); o != (beneath.Owner{}) || err != nil {
		t.Fatal(o, err)
	}
}

// TestRootOfAnotherDaemon has a disk moved between machines whose roots have the same IDs: it is taken over only when it is
// said so, and not taken for an empty mount point or another root.
func TestRootOfAnotherDaemon(t *testing.T) {
	const other = "11111111-1111-4111-8111-111111111111"
	dir := t.TempDir()
	file := filepath.Join(dir, beneath.ControlDir, "owner")
	says := func(want string) {
		t.Helper()
		if text, err := os.ReadFile(file); string(text) != want || err != nil {
			t.Fatalf("the owner file says %q, want %q, %v", text, want, err)
		}
		if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) != 1 {
			t.Fatal(left, err)
		}
	}
	mine := owned("content")
	theirs := beneath.Owner{Root: "content", Daemon: other}
	must(t, beneathtest.Open(t, dir).Claim(theirs, true))
	says("content\ndaemon " + other + "\n")
	r := beneathtest.Open(t, dir)
	for _, known := range []bool{false, true} {
		err := r.Claim(mine, !known)
		mustCode(t, "claim of another daemon's", err, beneath.Unavailable)
		if !errors.Is(err, beneath.ErrOtherDaemon) || !strings.Contains(err.Error(), other) {
			t.Error(err)
		}
	}
	_, err := r.Accept(owned("receive"))
	mustCode(t, "accept as another root", err, beneath.Unavailable)
	says("content\ndaemon " + other + "\n")
	for _, before := range []beneath.Owner{theirs, mine} {
		if was, err := r.Accept(mine); was != before || err != nil {
			t.Fatalf("it was of %v, %v", was, err)
		}
	}
	must(t, r.Claim(mine, false))
	must(t, r.Verify())
	says("content\ndaemon " + mine.Daemon + "\n")
	// The daemon it belonged to is not told, and finds it out by itself.
	if err := beneathtest.Open(t, dir).Claim(theirs, false); !errors.Is(err, beneath.ErrOtherDaemon) {
		t.Error(err)
	}
	// A file of an early version is completed by the daemon that knows the root, and by no other.
	must(t, os.WriteFile(file, []byte("content\n"), 0o600))
	mustCode(t, "claim of nobody's", r.Claim(mine, true), beneath.Unavailable)
	must(t, r.Claim(mine, false))
	says("content\ndaemon " + mine.Daemon + "\n")
	must(t, os.WriteFile(file, []byte("content\n"), 0o600))
	if was, err := r.Accept(mine); was != (beneath.Owner{Root: "content"}) || err != nil {
		t.Fatal(was, err)
	}
	// An empty mount point is nobody's to accept.
	empty := t.TempDir()
	_, err = beneathtest.Open(t, empty).Accept(mine)
	mustCode(t, "accept of an empty directory", err, beneath.Unavailable)
	if left, err := os.ReadDir(empty); err != nil || len(left) != 0 {
		t.Fatal(left, err)
	}
}

func TestExtentsAndHoles(t *testing.T) {
	r := beneathtest.Open(t, t.TempDir())
	f, err := r.Create("sparse", 0o600)
	must(t, err)
	defer f.Close()
	must(t, f.Truncate(64<<20))
	_, err = f.WriteAt([]byte("a"), 8<<20)
	must(t, err)
	_, err = f.WriteAt([]byte("b"), 32<<20)
	must(t, err)
	var runs int
	var bytes int64
	must(t, f.Extents(func(off, n int64) error {
		runs++
		bytes += n
		if off > 8<<20 && runs == 1 || off > 32<<20 {
			t.Errorf("run at %d", off)
		}
		return nil
	}))
	if runs != 2 || bytes > 1<<20 {
		t.Errorf("%d runs with %d bytes", runs, bytes)
	}
	if st, err := f.Stat(); err != nil || st.Allocated > 1<<20 || st.Size != 64<<20 {
		t.Errorf("%+v %v", st, err)
	}
	if _, err := f.ReadAt(make([]byte, 1), 64<<20); err != io.EOF {
		t.Error(err)
	}

	blind := beneathtest.Open(t, r.Dir(), beneathtest.Always(beneath.OpSeek, "", syscall.EINVAL))
	g, err := blind.Open("sparse")
	must(t, err)
	defer g.Close()
	runs = 0
	must(t, g.Extents(func(off, n int64) error {
		runs++
		if off != 0 || n != 64<<20 {
			t.Errorf("run %d+%d", off, n)
		}
		return nil
	}))
	if runs != 1 {
		t.Error(runs)
	}
}

func TestADirectoryFlushThatIsNotThere(t *testing.T) {
	dir := t.TempDir()
	r := beneathtest.Open(t, dir, beneathtest.Always(beneath.OpSyncDir, "", syscall.EINVAL))
	if ok, err := r.SyncDir(""); ok || err != nil {
		t.Fatal(ok, err)
	}
	r = beneathtest.Open(t, dir, beneathtest.Always(beneath.OpSyncDir, "", syscall.EIO))
	_, err := r.SyncDir("")
	mustCode(t, "failed flush", err, beneath.WriteError)
}
