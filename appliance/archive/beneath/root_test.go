package beneath_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/beneath/beneathtest"
)

// resolvers runs the test with the kernel's own resolution beneath the root and with the walk that stands in for it.
func resolvers(t *testing.T, test func(t *testing.T, hooks ...beneath.Hook)) {
	t.Run("openat2", func(t *testing.T) { test(t) })
	t.Run("walk", func(t *testing.T) { test(t, beneathtest.NoOpenat2()) })
}

func mustCode(t *testing.T, what string, err error, want beneath.Code) {
	t.Helper()
	if got := beneath.CodeOf(err); got != want {
		t.Errorf("%s: code %v, want %v (%v)", what, got, want, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestNamesAreHandledBeneathTheRoot(t *testing.T) {
	resolvers(t, func(t *testing.T, hooks ...beneath.Hook) {
		dir := t.TempDir()
		r := beneathtest.Open(t, dir, hooks...)
		made, err := r.MkdirAll("a/b/c", 0o700)
		must(t, err)
		if !slices.Equal(made, []string{"a", "a/b", "a/b/c"}) {
			t.Fatalf("made %q", made)
		}
		if made, err = r.MkdirAll("a/b/d", 0o700); err != nil || !slices.Equal(made, []string{"a/b/d"}) {
			t.Fatalf("made %q, %v", made, err)
		}
		beneathtest.Write(t, r, "a/b/file", []byte("content"))
		st, err := r.Lstat("a/b/file")
		must(t, err)
		info, err := os.Stat(filepath.Join(dir, "a/b/file"))
		must(t, err)
		sys := info.Sys().(*syscall.Stat_t)
		if st.Size != 7 || st.Ino != sys.Ino || st.Dev != uint64(sys.Dev) || st.MtimeNS != info.ModTime().UnixNano() ||
			st.Nlink != 1 || st.Mode != 0o600 || st.Allocated != sys.Blocks*512 {
			t.Fatalf("%+v", st)
		}
		b, err := r.ReadFile("a/b/file", 7)
		if err != nil || string(b) != "content" {
			t.Fatalf("%q, %v", b, err)
		}
		_, err = r.ReadFile("a/b/file", 6)
		mustCode(t, "too long a file", err, beneath.FilesystemLimit)

		_, err = r.Create("a/b/file", 0o600)
		mustCode(t, "create over a file", err, beneath.PathConflict)
		must(t, r.Link("a/b/file", r, "a/linked"))
		mustCode(t, "link over a file", r.Link("a/b/file", r, "a/linked"), beneath.PathConflict)
		mustCode(t, "rename over a file", r.RenameNoReplace("a/b/file", r, "a/linked"), beneath.PathConflict)
		must(t, r.RenameNoReplace("a/b/file", r, "a/b/c/moved"))
		moved, err := r.Lstat("a/b/c/moved")
		must(t, err)
		if !moved.SameFile(st) || moved.Nlink != 2 || !moved.Unchanged(st) {
			t.Fatalf("%+v, was %+v", moved, st)
		}
		must(t, r.RenameNoReplace("a/b", r, "top"))
		must(t, r.Chmod("top/c/moved", 0o755))
		must(t, r.SetMtime("top/c/moved", 1_500_000_000_123_456_789))
		moved, err = r.Lstat("top/c/moved")
		must(t, err)
		if moved.MtimeNS != 1_500_000_000_123_456_789 || !moved.Executable() || moved.Unchanged(st) {
			t.Fatalf("%+v", moved)
		}
		mustCode(t, "rmdir of a full directory", r.Rmdir("top/c"), beneath.PathConflict)
		must(t, r.RemoveAll(t.Context(), "top"))
		_, err = r.Lstat("top")
		mustCode(t, "what is gone", err, beneath.NotFound)
		must(t, r.RemoveAll(t.Context(), "top"))
		if ok, err := r.SyncDir(""); err != nil || !ok {
			t.Fatal(ok, err)
		}
		if ok, err := r.SyncDir("a"); err != nil || !ok {
			t.Fatal(ok, err)
		}
		_, err = r.MkdirAll("a/linked/x", 0o700)
		mustCode(t, "directory below a file", err, beneath.PathConflict)
		_, err = r.Open("a/linked/x")
		mustCode(t, "file below a file", err, beneath.NotFound)
		if total, free, err := r.Space(); err != nil || total == 0 || free > total {
			t.Fatal(total, free, err)
		}
	})
}

func TestUnsafeNamesAreRefusedByEveryOperation(t *testing.T) {
	resolvers(t, func(t *testing.T, hooks ...beneath.Hook) {
		outside := t.TempDir()
		r := beneathtest.Open(t, filepath.Join(t.TempDir()), hooks...)
		beneathtest.Write(t, r, "file", nil)
		for _, name := range []string{"..", "../x", "a/../x", "/etc", outside + "/x", "a//b", "a/", "./a", "a/./b", "a\x00b"} {
			for what, err := range every(r, name) {
				mustCode(t, what+" "+name, err, beneath.PathUnsafe)
			}
		}
		for what, err := range every(r, ".") {
			switch what {
			case "lstat", "readdir", "mkdirall", "syncdir", "open", "openwrite", "create":
			default:
				mustCode(t, what+" of the root", err, beneath.PathUnsafe)
			}
		}
	})
}

// every runs all operations on a name.
func every(r *beneath.Root, name string) map[string]error {
	all := map[string]error{}
	keep := func(what string, f *beneath.File, err error) {
		if err == nil {
			f.Close()
		}
		all[what] = err
	}
	f, err := r.Open(name)
	keep("open", f, err)
	f, err = r.OpenWrite(name)
	keep("openwrite", f, err)
	f, err = r.Create(name, 0o600)
	keep("create", f, err)
	_, all["lstat"] = r.Lstat(name)
	all["mkdir"] = r.Mkdir(name, 0o700)
	_, all["mkdirall"] = r.MkdirAll(name, 0o700)
	all["readdir"] = r.ReadDir(name, func(beneath.Entry) error { return nil })
	all["rename to"] = r.RenameNoReplace("file", r, name)
	all["link from"] = r.Link(name, r, "other")
	all["link to"] = r.Link("file", r, name)
	all["symlink"] = r.Symlink("file", name)
	_, all["readlink"] = r.Readlink(name)
	all["chmod"] = r.Chmod(name, 0o700)
	all["chown"] = r.Chown(name, -1, -1)
	all["mtime"] = r.SetMtime(name, 0)
	_, all["syncdir"] = r.SyncDir(name)
	all["unlink"] = r.Unlink(name)
	all["rmdir"] = r.Rmdir(name)
	all["rename from"] = r.RenameNoReplace(name, r, "other")
	return all
}

func TestPlantedLinksLeadNowhere(t *testing.T) {
	resolvers(t, func(t *testing.T, hooks ...beneath.Hook) {
		outside := t.TempDir()
		must(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600))
		must(t, os.Mkdir(filepath.Join(outside, "empty"), 0o700))
		dir := t.TempDir()
		r := beneathtest.Open(t, dir, hooks...)
		beneathtest.Write(t, r, "file", nil)
		must(t, os.Symlink(outside, filepath.Join(dir, "away")))
		must(t, os.Symlink("/proc/self/cwd", filepath.Join(dir, "magic")))
		must(t, os.MkdirAll(filepath.Join(dir, "in/deep"), 0o700))
		must(t, os.Symlink("deep", filepath.Join(dir, "in/alias"))) // also those that stay inside
		must(t, os.WriteFile(filepath.Join(dir, "in/deep/secret"), nil, 0o600))
		for _, name := range []string{"away/secret", "away/new", "away/empty", "magic/x", "in/alias/secret"} {
			for what, err := range every(r, name) {
				mustCode(t, what+" "+name, err, beneath.PathUnsafe)
			}
		}
		for _, name := range []string{"away", "in/alias"} { // the link as the last component
			for what, err := range every(r, name) {
				switch what {
				case "open", "openwrite", "readdir", "mkdirall", "syncdir", "chmod":
					mustCode(t, what+" "+name, err, beneath.PathUnsafe)
				case "create", "mkdir":
					mustCode(t, what+" "+name, err, beneath.PathConflict)
				}
			}
		}
		names, err := os.ReadDir(outside)
		must(t, err)
		if len(names) != 2 {
			t.Fatalf("outside holds %v", names)
		}
		info, err := os.Stat(filepath.Join(outside, "secret"))
		must(t, err)
		if info.Mode().Perm() != 0o600 || info.ModTime().Unix() == 0 {
			t.Fatalf("the file outside was changed: %v %v", info.Mode(), info.ModTime())
		}
	})
}

func TestRemoveAllDoesNotFollowLinks(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "keep"), nil, 0o600))
	r := beneathtest.Open(t, dir)
	must(t, r.Mkdir("job", 0o700))
	must(t, r.Symlink(outside, "job/away"))
	if text, err := r.Readlink("job/away"); err != nil || text != outside {
		t.Fatal(text, err)
	}
	must(t, r.RemoveAll(t.Context(), "job"))
	if _, err := os.Stat(filepath.Join(outside, "keep")); err != nil {
		t.Fatal(err)
	}
}

func TestADirectoryReplacedByALinkWhileInUse(t *testing.T) {
	resolvers(t, func(t *testing.T, hooks ...beneath.Hook) {
		outside, dir := t.TempDir(), t.TempDir()
		swap := beneathtest.At(beneath.OpCreate, "dest/file", 1, func(string) error {
			return errors.Join(os.Rename(filepath.Join(dir, "dest"), filepath.Join(dir, "old")), os.Symlink(outside, filepath.Join(dir, "dest")))
		})
		r := beneathtest.Open(t, dir, append(hooks, swap)...)
		must(t, r.Mkdir("dest", 0o700))
		_, err := r.Create("dest/file", 0o600)
		mustCode(t, "create through the planted link", err, beneath.PathUnsafe)
		if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
			t.Fatal(left, err)
		}
	})
}

func TestANameThatAppearsBetweenCheckAndPublish(t *testing.T) {
	for _, answer := range []syscall.Errno{0, syscall.EINVAL} { // renameat2 itself, and link with unlink in its place
		dir := t.TempDir()
		appear := func(string) error {
			if err := os.WriteFile(filepath.Join(dir, "final"), []byte("foreign"), 0o600); err != nil {
				return err
			}
			if answer != 0 {
				return answer
			}
			return nil
		}
		r := beneathtest.Open(t, dir, beneathtest.At(beneath.OpRename, "final", 1, appear))
		beneathtest.Write(t, r, "built", []byte("ours"))
		mustCode(t, "publish", r.RenameNoReplace("built", r, "final"), beneath.PathConflict)
		if b, err := os.ReadFile(filepath.Join(dir, "final")); err != nil || string(b) != "foreign" {
			t.Fatalf("%q, %v", b, err)
		}
		if b, err := os.ReadFile(filepath.Join(dir, "built")); err != nil || string(b) != "ours" {
			t.Fatalf("%q, %v", b, err)
		}
	}
}

func TestRenameWhereTheFileSystemCannotPromiseNotToReplace(t *testing.T) {
	dir := t.TempDir()
	r := beneathtest.Open(t, dir, beneathtest.Always(beneath.OpRename, "", syscall.EINVAL))
	beneathtest.Write(t, r, "built", []byte("ours"))
	before, err := r.Lstat("built")
	must(t, err)
	must(t, r.RenameNoReplace("built", r, "final"))
	after, err := r.Lstat("final")
	must(t, err)
	if !after.SameFile(before) || after.Nlink != 1 {
		t.Fatalf("%+v", after)
	}
	must(t, r.Mkdir("tree", 0o700))
	if err := r.RenameNoReplace("tree", r, "published"); !beneath.IsUnsupported(err) {
		t.Fatal(err)
	}
	if _, err := r.Lstat("tree"); err != nil {
		t.Fatal(err)
	}

	both := beneathtest.Open(t, dir, beneathtest.Always(beneath.OpRename, "", syscall.EINVAL), beneathtest.Always(beneath.OpLink, "", syscall.EPERM))
	if err := both.RenameNoReplace("final", both, "again"); !beneath.IsUnsupported(err) {
		t.Fatal(err)
	}
}

func TestOnlyRegularFilesAreOpened(t *testing.T) {
	resolvers(t, func(t *testing.T, hooks ...beneath.Hook) {
		dir := t.TempDir()
		r := beneathtest.Open(t, dir, hooks...)
		must(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
		must(t, r.Mkdir("dir", 0o700))
		for _, name := range []string{"pipe", "dir", ""} {
			_, err := r.Open(name)
			mustCode(t, "open "+name, err, beneath.UnsupportedFormat)
			_, err = r.OpenWrite(name)
			mustCode(t, "open for writing "+name, err, beneath.UnsupportedFormat)
		}
		types := map[string]os.FileMode{}
		must(t, r.ReadDir("", func(e beneath.Entry) error { types[e.Name] = e.Type; return nil }))
		if len(types) != 2 || types["pipe"] != os.ModeIrregular || types["dir"] != os.ModeDir {
			t.Fatal(types)
		}
	})
}

func TestReadDirStreams(t *testing.T) {
	r := beneathtest.Open(t, t.TempDir())
	want := map[string]bool{}
	for i := range 3000 {
		name := strings.Repeat("x", i%200) + "-" + string(rune('a'+i%26)) + strings.Repeat("y", i/200)
		if !want[name] {
			beneathtest.Write(t, r, name, nil)
			want[name] = true
		}
	}
	must(t, r.ReadDir("", func(e beneath.Entry) error {
		if !want[e.Name] || e.Type != 0 {
			t.Errorf("unexpected %q of type %v", e.Name, e.Type)
		}
		delete(want, e.Name)
		return nil
	}))
	if len(want) != 0 {
		t.Fatalf("%d names not listed", len(want))
	}
	stop := errors.New("enough")
	seen := 0
	if err := r.ReadDir("", func(beneath.Entry) error { seen++; return stop }); err != stop || seen != 1 {
		t.Fatal(err, seen)
	}
}
