package work_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/beneath/beneathtest"
	"signalbox/appliance/archive/daemon/work"
	"signalbox/appliance/archive/torrent/torrenttest"
	"signalbox/appliance/clock"
)

// elsewhere makes a root unable to link or rename from the others, as if it lay on another file system.
var elsewhere = beneathtest.All(beneathtest.Always(beneath.OpLink, "", syscall.EXDEV), beneathtest.Always(beneath.OpReflink, "", syscall.EXDEV))

// jobDir is the job directory below an outbox or receive root.
func (r *rig) jobDir(s *side, root, name string) string {
	return s.at(root, "jobs/"+r.def.GetJobId()+"-1/"+name)
}

func inode(t *testing.T, file string) uint64 {
	t.Helper()
	info, err := os.Lstat(file)
	must(t, err)
	return info.Sys().(*syscall.Stat_t).Ino
}

// onTmpfs puts a root on a memory file system of its own.
func (s *side) onTmpfs(t *testing.T, root string, size string) {
	t.Helper()
	beneathtest.MountTmpfs(t, s.paths[root], "size="+size+",mode=0755")
	t.Cleanup(s.end) // before the unmount
}

// TestTargetDiskFills (row 1): what is finished is kept and not copied again, also not what is partly there.
func TestTargetDiskFills(t *testing.T) {
	r := newRig(t)
	r.src.put("shows/one", torrenttest.Bytes(1, 600_000), 0o644)
	r.src.put("shows/two", torrenttest.Bytes(2, 600_000), 0o644)
	r.dst.onTmpfs(t, "receive", "1m")
	r.start()
	r.transfer("shows")
	r.steps(stage)
	d := r.fails(transfer, pb.ErrorCode_ERROR_CODE_NO_SPACE)
	if !d.GetRetryable() || !strings.Contains(d.GetMessage(), "payload/00000001") {
		t.Errorf("%v", d)
	}
	one, two := r.jobDir(r.dst, "receive", "payload/00000000"), r.jobDir(r.dst, "receive", "payload/00000001")
	first, second := inode(t, one), inode(t, two)
	must(t, unix.Mount("", r.dst.paths["receive"], "", unix.MS_REMOUNT, "size=8m"))
	wrote := 0
	r.dst.hooks["receive"] = func(op beneath.Op, name string) error {
		if strings.HasSuffix(name, "00000000") && (op == beneath.OpWrite || op == beneath.OpCopyRange || op == beneath.OpCreate) {
			wrote++
		}
		return nil
	}
	r.restart(nil)
	r.steps(transfer)
	if inode(t, one) != first || inode(t, two) != second || wrote > 0 {
		t.Errorf("%d writes to what was finished", wrote)
	}
	r.steps(materialize, verifying, commit)
	copied(t, listing(t, r.dst.paths["content"]), listing(t, r.src.paths["content"]))
}

// TestOutboxDiskFills (row 2): the directory of the attempt goes, the source's content stays.
func TestOutboxDiskFills(t *testing.T) {
	r := newRig(t)
	r.src.put("shows/one", torrenttest.Bytes(1, 600_000), 0o644)
	r.src.put("shows/two", torrenttest.Bytes(2, 600_000), 0o644)
	r.src.onTmpfs(t, "outbox", "1m")
	r.start()
	r.transfer("shows")
	before := listing(t, r.src.paths["content"])
	r.fails(stage, pb.ErrorCode_ERROR_CODE_NO_SPACE)
	same(t, "source", listing(t, r.src.paths["content"]), before)
	r.noLeftovers()
	must(t, unix.Mount("", r.src.paths["outbox"], "", unix.MS_REMOUNT, "size=8m"))
	r.attempt = 2
	r.steps(stage, transfer, materialize, verifying, commit)
	copied(t, listing(t, r.dst.paths["content"]), before)
}

// TestKilledAfterPublishing (row 3): the published file is recognised by its inode; there is no second copy.
func TestKilledAfterPublishing(t *testing.T) {
	for _, whole := range []bool{true, false} {
		r := newRig(t)
		r.plainTree()
		if !whole {
			must(t, os.MkdirAll(r.dst.at("content", "shows"), 0o755))
		}
		r.start()
		r.transfer("shows")
		r.steps(stage, transfer)
		stop := &stopper{}
		r.restart(stop)
		r.dst.reached = func(point string) {
			if point == "publish: effect" || point == "publish: file" {
				stop.mu.Lock()
				stop.n = stop.seen + 1
				stop.mu.Unlock()
			}
		}
		if _, err := r.run(materialize); err == nil || !stop.stopped() {
			t.Fatal(err)
		}
		r.dst.reached = nil
		made := listing(t, r.dst.paths["content"])
		if len(fileNames(made)) == 0 {
			t.Fatal("nothing was published")
		}
		r.restart(nil)
		r.steps(materialize)
		now := listing(t, r.dst.paths["content"])
		for _, name := range fileNames(made) {
			if now[name] != made[name] {
				t.Errorf("%s is %+v, was %+v", name, now[name], made[name])
			}
		}
		r.steps(verifying, commit)
		r.close()
		copied(t, listing(t, r.dst.paths["content"]), listing(t, r.src.paths["content"]))
		r.noLeftovers()
	}
}

// TestAlteredManifest (row 14).
func TestAlteredManifest(t *testing.T) {
	alter := func(r *rig, s *side, root string) {
		file := r.jobDir(s, root, "manifest.json")
		b, err := os.ReadFile(file)
		must(r.t, err)
		b = []byte(strings.Replace(string(b), "two.mkv", "six.mkv", 1))
		must(r.t, os.WriteFile(file, b, 0o600))
	}
	r := newRig(t)
	r.plainTree()
	r.start()
	r.transfer("shows")
	r.steps(stage)
	alter(r, r.src, "outbox")
	r.fails(transfer, pb.ErrorCode_ERROR_CODE_MANIFEST_INVALID)

	r = newRig(t)
	r.plainTree()
	r.start()
	r.transfer("shows")
	r.steps(stage, transfer)
	alter(r, r.dst, "receive")
	r.fails(materialize, pb.ErrorCode_ERROR_CODE_MANIFEST_INVALID)
	if n := len(listing(t, r.dst.paths["content"])); n > 0 {
		t.Errorf("%d names at the destination", n)
	}
}

// TestManifestMissing (row 15): TRANSFER waits and goes on when the directory is complete, or ends with its context.
func TestManifestMissing(t *testing.T) {
	for _, comes := range []bool{true, false} {
		fake := clock.NewFake(time.Now().Add(time.Hour))
		r := newRig(t)
		r.plainTree()
		r.dst.options = func(o *work.Options) { o.Clock = fake }
		r.start()
		r.transfer("shows")
		r.steps(stage)
		manifest := r.jobDir(r.src, "outbox", "manifest.json")
		must(t, os.Rename(manifest, manifest+".tmp-aside"))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := r.runWith(ctx, transfer)
			done <- err
		}()
		for range 3 {
			fake.BlockUntil(1)
			select {
			case err := <-done:
				t.Fatal(err)
			default:
			}
			fake.Advance(5 * time.Second)
		}
		fake.BlockUntil(1)
		if entries, err := os.ReadDir(r.dst.at("receive", "jobs")); err == nil {
			t.Errorf("it made %v", entries)
		}
		if !comes {
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			continue
		}
		must(t, os.Rename(manifest+".tmp-aside", manifest))
		fake.Advance(5 * time.Second)
		must(t, <-done)
		cancel()
		r.steps(materialize, verifying, commit)
	}
}

// TestPayloadAltered (row 16), also of a torrent: VERIFY fails with the file's name, and there is no commit.
func TestPayloadAltered(t *testing.T) {
	for _, torrent := range []bool{false, true} {
		for _, list := range []methods{{byRename}, {bySparse}} {
			r := newRig(t)
			name := "shows/s 2/two.mkv"
			if torrent {
				r.torrent(torrenttest.Options{Version: torrenttest.V2, Name: "shows"}, entries())
				name = "shows/c.bin"
			} else {
				r.plainTree()
			}
			r.start()
			r.transfer("shows")
			r.def.Policies.StageMethods, r.def.Policies.MaterializeMethods = methods{bySparse}, list
			r.steps(stage, transfer)
			flip(t, r.jobDir(r.dst, "receive", "payload/"+payloadOf(t, r, name)), 10_000)
			step := verifying
			if list[0] == bySparse { // a copy is compared as it is made
				step = materialize
			} else {
				r.steps(materialize)
			}
			d := r.fails(step, pb.ErrorCode_ERROR_CODE_INTEGRITY_FAILURE)
			if !strings.Contains(d.GetMessage(), filepath.Base(name)) || d.GetDetails()["path"] == "" || d.GetRetryable() {
				t.Errorf("%v", d)
			}
			_, err := r.run(commit)
			held(t, err, pb.ErrorCode_ERROR_CODE_STATE_LOST) // there is no verification to rest on
			if r.dst.record != nil {
				t.Error("there is a commit record")
			}
		}
	}
}

// payloadOf finds the neutral name of a file by its content.
func payloadOf(t *testing.T, r *rig, name string) string {
	t.Helper()
	want, err := os.ReadFile(r.src.at("content", name))
	must(t, err)
	found, err := os.ReadDir(r.jobDir(r.dst, "receive", "payload"))
	must(t, err)
	for _, e := range found {
		if b, _ := os.ReadFile(r.jobDir(r.dst, "receive", "payload/"+e.Name())); string(b) == string(want) {
			return e.Name()
		}
	}
	t.Fatalf("no payload of %s", name)
	return ""
}

// TestTorrentFileAltered: also after the payload was renamed away.
func TestTorrentFileAltered(t *testing.T) {
	for _, at := range []pb.JobStep{materialize, verifying} {
		r := newRig(t)
		r.torrent(torrenttest.Options{Version: torrenttest.V2, Name: "shows"}, entries())
		r.start()
		r.transfer("shows")
		r.def.Policies.StageMethods, r.def.Policies.MaterializeMethods = methods{bySparse}, methods{byRename, byLink}
		r.dst.hooks["receive"] = elsewhere
		r.steps(stage, transfer)
		if at == verifying {
			r.steps(materialize)
		}
		file := r.jobDir(r.dst, "receive", "aux/metainfo")
		b, err := os.ReadFile(file)
		must(t, err)
		must(t, os.WriteFile(file, []byte(strings.Replace(string(b), "passkey", "badword", 1)), 0o600))
		r.fails(at, pb.ErrorCode_ERROR_CODE_INTEGRITY_FAILURE)
		if len(r.registered()) > 0 {
			t.Errorf("registered: %v", r.registered())
		}
	}
}

// TestSourceChangesWhileStaged (row 17): the attempt is discarded.
func TestSourceChangesWhileStaged(t *testing.T) {
	for _, change := range []func(file string) error{
		func(file string) error { return os.WriteFile(file, []byte("other"), 0o600) },
		func(file string) error {
			return errors.Join(os.Remove(file), os.WriteFile(file, torrenttest.Bytes(9, 70_000), 0o600))
		},
		func(file string) error { return os.Truncate(file, 80_000) },
	} {
		for _, list := range []methods{{byLink}, {bySparse}} {
			r := newRig(t)
			r.plainTree()
			r.start()
			r.transfer("shows")
			r.def.Policies.StageMethods = list
			r.src.hooks["content"] = beneathtest.At(beneath.OpRead, "shows/one.mkv", 1, func(string) error { return change(r.src.at("content", "shows/one.mkv")) })
			r.fails(stage, pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT)
			r.noLeftovers()
		}
	}
	r := newRig(t) // before anything was staged
	r.plainTree()
	r.start()
	r.transfer("shows")
	r.src.put("shows/more", []byte("x"), 0o644)
	r.fails(stage, pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT)
	r.noLeftovers()
}

// TestSourceChangesThroughItsLink (row 18): VERIFY finds it, and the message says where to look.
func TestSourceChangesThroughItsLink(t *testing.T) {
	r := newRig(t)
	r.plainTree()
	r.start()
	r.transfer("shows")
	r.steps(stage, transfer)
	f, err := os.OpenFile(r.src.at("content", "shows/one.mkv"), os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt([]byte("changed"), 1000)
	must(t, errors.Join(err, f.Close()))
	r.steps(materialize)
	d := r.fails(verifying, pb.ErrorCode_ERROR_CODE_INTEGRITY_FAILURE)
	if !strings.Contains(d.GetMessage(), "the source changed") || !strings.Contains(d.GetMessage(), "one.mkv") {
		t.Error(d.GetMessage())
	}
}

// TestPermissionDenied (row 23): own names are rolled back; the message names file, user and mode.
func TestPermissionDenied(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to become somebody else")
	}
	r := newRig(t)
	for dir := r.src.dir; len(dir) > len("/dev/shm"); dir = filepath.Dir(dir) {
		must(t, os.Chmod(dir, 0o755))
	}
	r.plainTree()
	must(t, os.Chmod(r.src.at("content", "shows/one.mkv"), 0o644))
	must(t, os.Chmod(r.src.at("content", "shows/s 2/two.mkv"), 0o644))
	for _, s := range []*side{r.src, r.dst} {
		must(t, os.Chmod(s.dir, 0o755))
		for _, p := range s.paths {
			must(t, os.Chmod(p, 0o777))
		}
	}
	must(t, os.MkdirAll(r.dst.at("content", "shows/s 2"), 0o755))
	must(t, os.Chmod(r.dst.at("content", "shows"), 0o777))
	r.start()
	r.transfer("shows")
	r.def.Policies.StageMethods = methods{bySparse}
	before := listing(t, r.dst.paths["content"])
	var last error
	must(t, beneathtest.Unprivileged(t, func() error {
		for _, step := range []pb.JobStep{stage, transfer} {
			if _, err := r.run(step); err != nil {
				return err
			}
		}
		_, last = r.run(materialize)
		return nil
	}))
	d := r.failed(materialize, last, pb.ErrorCode_ERROR_CODE_PERMISSION_DENIED)
	if !strings.Contains(d.GetMessage(), "shows/s 2/") || d.GetDetails()["uid"] != "65534" || d.GetDetails()["mode"] != "0755" {
		t.Errorf("%v", d)
	}
	same(t, "target", listing(t, r.dst.paths["content"]), before)
}

// TestReceiveRootUnmounted (row 24): another file system, or none, in the place of the root gets nothing.
func TestReceiveRootUnmounted(t *testing.T) {
	r := newRig(t)
	r.plainTree()
	r.start()
	r.transfer("shows")
	r.steps(stage)
	beneathtest.MountTmpfs(t, r.dst.paths["receive"], "size=1m")
	if d := r.fails(transfer, pb.ErrorCode_ERROR_CODE_UNAVAILABLE); !d.GetRetryable() {
		t.Errorf("%v", d)
	}
	if entries, err := os.ReadDir(r.dst.paths["receive"]); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

// TestPlantedSymlink (row 29): nothing is written outside.
func TestPlantedSymlink(t *testing.T) {
	for _, name := range []string{"shows", "shows/s 2"} {
		r := newRig(t)
		r.plainTree()
		outside := filepath.Join(r.dst.dir, "outside")
		must(t, os.MkdirAll(outside, 0o777))
		must(t, os.MkdirAll(filepath.Dir(r.dst.at("content", name)), 0o755))
		must(t, os.Symlink(outside, r.dst.at("content", name)))
		r.start()
		r.transfer("shows")
		r.steps(stage, transfer)
		before := listing(t, r.dst.paths["content"])
		r.fails(materialize, pb.ErrorCode_ERROR_CODE_PATH_UNSAFE)
		if entries, _ := os.ReadDir(outside); len(entries) > 0 {
			t.Errorf("%v was written outside", entries)
		}
		same(t, "target", listing(t, r.dst.paths["content"]), before)
	}
	// Planted after publishing: the clean-up leaves what is behind it alone.
	r := newRig(t)
	r.plainTree()
	r.start()
	r.transfer("shows")
	r.steps(stage, transfer, materialize)
	moved := filepath.Join(r.dst.dir, "moved")
	must(t, os.Rename(r.dst.at("content", "shows"), moved))
	must(t, os.Symlink(moved, r.dst.at("content", "shows")))
	before := listing(t, moved)
	must(t, r.dst.worker.Undo(t.Context(), r.job(r.dst), 0))
	same(t, "behind the link", listing(t, moved), before)
}

// TestUnreadableSector (row 42): the file is named, and nothing is tried again.
func TestUnreadableSector(t *testing.T) {
	r := newRig(t)
	r.plainTree()
	r.start()
	r.transfer("shows")
	reads := 0
	r.src.hooks["content"] = func(op beneath.Op, name string) error {
		if op == beneath.OpRead && name == "shows/one.mkv" {
			reads++
			return syscall.EIO
		}
		return nil
	}
	d := r.fails(stage, pb.ErrorCode_ERROR_CODE_READ_ERROR)
	if !strings.Contains(d.GetMessage(), "shows/one.mkv") || d.GetRetryable() || reads != 1 {
		t.Errorf("%v after %d reads", d, reads)
	}
	r.noLeftovers()
}

// TestFlushFails (row 43): the next attempt uses new files.
func TestFlushFails(t *testing.T) {
	for _, at := range []struct {
		step    pb.JobStep
		root    string
		op      beneath.Op
		pattern string
	}{
		{stage, "outbox", beneath.OpSync, "jobs/*/payload/00000000"},
		{stage, "outbox", beneath.OpSyncDir, "jobs/*/payload"},
		{stage, "outbox", beneath.OpSyncDir, "jobs/*"},
		{transfer, "receive", beneath.OpSync, "jobs/*/payload/00000001"},
		{transfer, "receive", beneath.OpSyncDir, "jobs/*/payload"},
		{transfer, "receive", beneath.OpSync, "jobs/*/manifest*"},
		{materialize, "content", beneath.OpSync, ".archive-control/work/*/tree/shows/run"},
		{materialize, "content", beneath.OpSyncDir, ".archive-control/work/*/tree/shows"},
	} {
		r := newRig(t)
		r.plainTree()
		r.dst.hooks["receive"] = elsewhere
		r.start()
		r.transfer("shows")
		r.def.Policies.StageMethods, r.def.Policies.MaterializeMethods = methods{bySparse}, methods{bySparse}
		before := listing(t, r.src.paths["content"])
		for _, step := range plan(r.def) {
			if step != at.step {
				r.steps(step)
				continue
			}
			s := r.where(step)
			old := s.hooks[at.root]
			s.hooks[at.root] = beneathtest.All(func(op beneath.Op, name string) error {
				if old != nil {
					return old(op, name)
				}
				return nil
			}, beneathtest.Fail(at.op, at.pattern, 1, syscall.EIO))
			d := r.fails(step, pb.ErrorCode_ERROR_CODE_WRITE_ERROR)
			if d.GetRetryable() {
				t.Errorf("%v", d)
			}
			if left := leftovers(t, s); at.step != materialize && len(left) > 0 {
				t.Errorf("%v %v: left %v", at.op, at.pattern, left)
			}
			s.hooks[at.root] = old
			r.attempt = 2
			r.steps(step)
		}
		r.close()
		copied(t, listing(t, r.dst.paths["content"]), before)
		same(t, "source", listing(t, r.src.paths["content"]), before)
		r.noLeftovers()
	}
}

// TestStrayFiles (row 49): conflict copies and temporary files in the job directory are ignored and reported.
func TestStrayFiles(t *testing.T) {
	r := newRig(t)
	r.plainTree()
	r.start()
	r.transfer("shows")
	r.steps(stage, transfer)
	for _, name := range []string{"payload/.00000000.Ab12Cd", "payload/00000001.sync-conflict-20260101-000000-ABCDEFG", "stray", "payload/.syncthing.00000000.tmp"} {
		must(t, os.WriteFile(r.jobDir(r.dst, "receive", name), []byte("stray"), 0o600))
	}
	r.steps(transfer)
	if e := r.dst.evidence[transfer].GetTransfer(); !strings.Contains(e.GetCarrierDetail(), "4 other names ignored") {
		t.Errorf("evidence %v", e)
	}
	r.steps(materialize, verifying, commit)
	r.close()
	copied(t, listing(t, r.dst.paths["content"]), listing(t, r.src.paths["content"]))
	r.noLeftovers()
}
