package appliance_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend/hashcache"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/beneath/beneathtest"
	"signalbox/store/daemonstore"
)

// TestArchiveSmallDisks has receive root and outbox on small file systems of their own, so that bytes are copied.
func TestArchiveSmallDisks(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	beneathtest.MountTmpfs(t, r.vault.Path("receive", ""), "size=8m,mode=0755")
	beneathtest.MountTmpfs(t, r.nas.Path("outbox", ""), "size=8m,mode=0755")
	r.start()
	r.scenes(sceneTargetDiskFull, sceneOutboxDiskFull, sceneFlushFails)
}

// TestArchiveFilesThatFail has calls to the operating system fail.
func TestArchiveFilesThatFail(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	r.start()
	r.scenes(scenePermissionDenied, sceneUnreadableSource, sceneFileTooLarge, sceneNamesThatFold)
}

// fill leaves so many bytes free in the file system of dir, and returns what frees the rest again.
func fill(t *testing.T, dir string, leave int64) (empty func()) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Error(err)
		return func() {}
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, int64(st.Bavail)*int64(st.Bsize)-leave), 0o600); err != nil {
		t.Error(err)
	}
	return func() {
		if err := os.Remove(ballast); err != nil {
			t.Error(err)
		}
	}
}

// payload is the place of a payload file in the first job directory of a root.
func payload(m *machine, root, job string, attempt, index int) string {
	return m.Path(root, fmt.Sprintf("jobs/%s-%d/payload/%08d", job, attempt, index))
}

// sceneTargetDiskFull: row 1. What has been copied stays, and is not copied again once there is room.
func sceneTargetDiskFull(r *archiveRig) {
	t := r.t
	r.nas.Put("content", "films/a", noise(1, 1<<20))
	r.nas.Put("content", "films/b", noise(2, 3<<20))
	kept := untouched(t, r.nas.Path("content", ""))
	empty := func() {}
	r.vault.once("transfer: intent", func() { empty = fill(t, r.vault.Path("receive", ""), 2<<20) })
	j := r.awaitWait(r.run("films", nil).ID, "no_space")
	r.fails(j, "no_space", "payload/00000001")
	r.explained(j.ID, "waits for free space", "Make room")
	if _, err := os.Stat(payload(r.vault, "receive", j.ID, 1, 1)); err != nil {
		t.Errorf("the partial file is gone: %v", err)
	}
	first := inode(t, payload(r.vault, "receive", j.ID, 1, 0))
	r.clock.By(61 * time.Second) // no room yet: it goes on waiting
	r.awaitWait(j.ID, "no_space")
	g := r.vault.hold("materialize: intent")
	empty()
	r.clock.By(61 * time.Second)
	g.await()
	if again := inode(t, payload(r.vault, "receive", j.ID, 1, 0)); again != first {
		t.Error("the finished file was copied again")
	}
	g.release()
	r.await(j.ID, "completed")
	sameListing(t, listing(t, r.vault.Path("content", "")), listing(t, r.nas.Path("content", "")))
	kept()
}

// sceneOutboxDiskFull: row 2. The attempt's directory goes, the source stays.
func sceneOutboxDiskFull(r *archiveRig) {
	t := r.t
	r.nas.Put("content", "films/a", noise(1, 1<<20))
	r.nas.Put("content", "films/b", noise(2, 3<<20))
	kept := untouched(t, r.nas.Path("content", ""))
	empty := func() {}
	r.nas.once("stage: intent", func() { empty = fill(t, r.nas.Path("outbox", ""), 2<<20) })
	j := r.awaitWait(r.run("films", nil).ID, "no_space")
	r.fails(j, "no_space", "payload/00000001")
	if left := leftovers(t, r.nas); len(left) > 0 {
		t.Errorf("left in the outbox: %v", left)
	}
	kept()
	empty()
	r.clock.By(61 * time.Second)
	r.await(j.ID, "completed")
	sameListing(t, listing(t, r.vault.Path("content", "")), listing(t, r.nas.Path("content", "")))
	kept()
}

// scenePermissionDenied: row 23. One of many names cannot be given: the others are taken back.
func scenePermissionDenied(r *archiveRig) {
	t := r.t
	r.nas.Put("content", "films/a", noise(1, 1000))
	r.nas.Put("content", "films/b", noise(2, 1000))
	r.nas.Put("content", "films/c", noise(3, 1000))
	r.vault.Put("content", "films/foreign", []byte("not ours"))
	kept, foreign := untouched(t, r.nas.Path("content", "")), untouched(t, r.vault.Path("content", ""))
	r.vault.beforeFiles(func(root string, op beneath.Op, name string) error {
		if op == beneath.OpRename && root == "vault-content" && strings.HasSuffix(name, "films/c") {
			return syscall.EACCES
		}
		return nil
	})
	j := r.await(r.run("films", nil).ID, "failed")
	r.fails(j, "permission_denied", "films/c", "uid", "mode")
	foreign()
	kept()
}

// sceneUnreadableSource: rows 23 and 42. A file that cannot be read is named, and nothing is tried again.
func sceneUnreadableSource(r *archiveRig) {
	r.nas.Put("content", "films/a", noise(1, 1000))
	r.nas.Put("content", "films/bad", noise(2, 1000))
	kept := untouched(r.t, r.nas.Path("content", ""))
	for errno, code := range map[syscall.Errno]string{syscall.EIO: "read_error", syscall.EACCES: "permission_denied"} {
		r.nas.onStep(pb.JobStep_JOB_STEP_STAGE, func(*pb.Command) {
			r.nas.beforeFiles(func(root string, op beneath.Op, name string) error {
				if root == "nas-content" && strings.HasSuffix(name, "films/bad") && (op == beneath.OpRead || op == beneath.OpOpen && errno == syscall.EACCES) {
					return errno
				}
				return nil
			})
		})
		j := r.await(r.run("films", nil).ID, "failed")
		r.fails(j, code, "films/bad")
		if n, _ := j.step("stage"); n != 1 {
			r.t.Errorf("staged %d times", n)
		}
		r.nas.beforeFiles(nil)
		kept()
	}
}

// sceneFlushFails: row 43. The attempt is given up, and the next job uses new files.
func sceneFlushFails(r *archiveRig) {
	t := r.t
	r.nas.Put("content", "films/a", noise(1, 1000))
	kept := untouched(t, r.nas.Path("content", ""))
	r.vault.beforeFiles(func(root string, op beneath.Op, name string) error {
		if op == beneath.OpSync && root == "vault-receive" && strings.Contains(name, "payload") {
			return syscall.EIO
		}
		return nil
	})
	j := r.await(r.run("films", nil).ID, "failed")
	r.fails(j, "write_error")
	r.vault.beforeFiles(nil)
	again := r.run("films", nil)
	r.await(again.ID, "completed")
	sameListing(t, listing(t, r.vault.Path("content", "")), listing(t, r.nas.Path("content", "")))
	kept()
}

// TestArchiveReceiveRootUnmounted: row 24. Nothing is written into the directory below the mount, and the job goes on
// when the file system is back.
func TestArchiveReceiveRootUnmounted(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	disk := t.TempDir()
	root := r.vault.Path("receive", "")
	mount := func() {
		if err := unix.Mount(disk, root, "", unix.MS_BIND, ""); err != nil {
			t.Skipf("needs the right to mount: %v", err)
		}
	}
	unmount := func() { _ = unix.Unmount(root, unix.MNT_DETACH) }
	mount()
	t.Cleanup(unmount)
	r.nas.Put("content", "films/a", noise(1, 1000))
	kept := untouched(t, r.nas.Path("content", ""))
	r.start()
	r.vault.onStep(pb.JobStep_JOB_STEP_TRANSFER, func(*pb.Command) { unmount() })
	j := r.awaitWait(r.run("films", nil).ID, "retry_backoff")
	r.fails(j, "unavailable", "another directory")
	r.explained(j.ID, "after a pause")
	if below, err := os.ReadDir(root); err != nil || len(below) > 0 {
		t.Errorf("below the mount point: %v, %v", below, err)
	}
	mount()
	r.clock.By(10 * time.Second)
	r.await(j.ID, "completed")
	sameListing(t, listing(t, r.vault.Path("content", "")), listing(t, r.nas.Path("content", "")))
	kept()
	r.clean()
}

// storage has the machine report what profile changes for its content root, as a daemon on another file system would.
func (m *machine) storage(change func(*pb.FilesystemProfile)) {
	m.onSend(func(_ *heldConn, e *pb.Envelope) bool {
		for _, s := range e.GetInventoryChunk().GetStorage().GetEntries() {
			if s.GetRootKind() == pb.RootKind_ROOT_KIND_CONTENT {
				change(s.GetProfile())
			}
		}
		return true
	})
}

// sceneFileTooLarge: row 26.
func sceneFileTooLarge(r *archiveRig) {
	r.nas.Put("content", "films/large", noise(1, 5000))
	r.nas.Put("content", "films/small", noise(2, 10))
	r.vault.storage(func(p *pb.FilesystemProfile) { p.MaxFileBytes = 4096 })
	r.refused(r.preview(r.transfer("films", nil)), "filesystem_limit", "films/large")
}

// sceneNamesThatFold: row 27.
func sceneNamesThatFold(r *archiveRig) {
	r.nas.Put("content", "films/One", noise(1, 10))
	r.nas.Put("content", "films/one", noise(2, 10))
	r.vault.storage(func(p *pb.FilesystemProfile) { p.CaseSensitive = false })
	r.refused(r.preview(r.transfer("films", nil)), "path_conflict", "films/One", "films/one")
}

// TestArchiveTargetFileLimit: row 26, with a file of one block that is longer than files of the target's file system get.
func TestArchiveTargetFileLimit(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	beneathtest.MountShortFiles(t, r.vault.Path("content", ""))
	r.nas.Put("content", "films/large", noise(1, 1000))
	if err := os.Truncate(r.nas.Path("content", "films/large"), beneathtest.ShortFile+1); err != nil {
		t.Fatal(err)
	}
	r.nas.Put("content", "films/small", noise(2, 10))
	hashed(t, r.nas, "films/large")
	r.start()
	r.refused(r.preview(r.transfer("films", nil)), "filesystem_limit", "films/large",
		fmt.Sprintf("%d bytes, the target holds files of at most %d", int64(beneathtest.ShortFile+1), int64(beneathtest.ShortFile)))
}

// hashed has a machine that has not started yet remember that it has read a file, which for many GiB would take minutes.
func hashed(t *testing.T, m *machine, name string) {
	t.Helper()
	st, err := beneathtest.Open(t, m.Path("content", "")).Lstat(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(m.Path("state", ""), 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := daemonstore.Open(t.Context(), daemonstore.Options{Path: m.database(), ClientID: m.ID, Clock: m.clock})
	if err != nil {
		t.Fatal(err)
	}
	known := hashcache.Entry{Key: hashcache.KeyOf(st), Value: hashcache.Value{SHA256: sha256.Sum256([]byte(name)), Digested: true}}
	if err := errors.Join(db.HashCache().Put(t.Context(), []hashcache.Entry{known}), db.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestArchiveTargetFoldsCase: row 27, with a target that takes both names for the same.
func TestArchiveTargetFoldsCase(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	beneathtest.MountFolding(t, r.vault.Path("content", ""))
	r.nas.Put("content", "films/One", noise(1, 10))
	r.nas.Put("content", "films/one", noise(2, 10))
	r.start()
	r.refused(r.preview(r.transfer("films", nil)), "path_conflict", "films/One", "films/one")
}
