package appliance_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	pb "signalbox/appliance/archive/archivepb"
)

// TestArchiveContent has others change manifests, payload and source while jobs are at work.
func TestArchiveContent(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	r.start()
	r.scenes(sceneManifestAltered, scenePayloadComesLate, sceneStrayFiles, scenePayloadAltered, sceneSourceChangesWhileStaged,
		sceneSourceChangesThroughLink)
}

// TestArchiveDestination has names at the destination that jobs must not touch.
func TestArchiveDestination(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	r.start()
	r.scenes(sceneNameTaken, sceneNameAppears, sceneIdenticalFile, scenePlantedLink, sceneSparseLost)
}

// substitute gives the name a new file, as somebody would who does not know of links.
func substitute(t *testing.T, path string, content []byte) {
	if err := os.WriteFile(path+".new", content, 0o644); err != nil {
		t.Error(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Error(err)
	}
}

// jobDir is the first job directory of a root.
func jobDir(m *machine, root, job string) string { return m.Path(root, "jobs/"+job+"-1") }

// sceneManifestAltered: row 14.
func sceneManifestAltered(r *archiveRig) {
	t := r.t
	r.nas.Put("content", "films/a", noise(1, 1000))
	kept := untouched(t, r.nas.Path("content", ""))
	r.vault.onStep(pb.JobStep_JOB_STEP_MATERIALIZE, func(c *pb.Command) {
		name := filepath.Join(jobDir(r.vault, "receive", c.GetJobId()), "manifest.json")
		text, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
		}
		substitute(t, name, bytes.Replace(text, []byte("films/a"), []byte("films/b"), 1))
	})
	j := r.await(r.run("films", nil).ID, "failed")
	r.fails(j, "manifest_invalid", "manifest")
	sameListing(t, listing(t, r.vault.Path("content", "")), nil)
	kept()
}

// scenePayloadComesLate: rows 15 and 48. Marker, manifest and payload may appear in any order: TRANSFER waits for all of
// them, and says when nothing moves.
func scenePayloadComesLate(r *archiveRig) {
	r.nas.Put("content", "films/a", noise(1, 1000))
	r.nas.Put("content", "films/b", noise(2, 1000))
	kept := untouched(r.t, r.nas.Path("content", ""))
	for _, missing := range []string{"manifest.json", "payload/00000001"} {
		waited := r.vault.times("transfer: waiting")
		r.vault.onStep(pb.JobStep_JOB_STEP_TRANSFER, func(c *pb.Command) {
			if err := os.Rename(filepath.Join(jobDir(r.nas, "outbox", c.GetJobId()), missing), r.nas.Path("outbox", "late")); err != nil {
				r.t.Error(err)
			}
		})
		j := r.run("films", nil)
		r.vault.awaitTimes("transfer: waiting", waited+1)
		r.awaitJob(j.ID, "stalled", func(j archiveJob) bool {
			r.vault.clock.By(10 * time.Second)
			return j.State == "stalled"
		})
		r.explained(j.ID, "makes no progress", "Look at the daemon")
		sameListing(r.t, listing(r.t, r.vault.Path("content", "")), nil)
		if err := os.Rename(r.nas.Path("outbox", "late"), filepath.Join(jobDir(r.nas, "outbox", j.ID), missing)); err != nil {
			r.t.Fatal(err)
		}
		r.vault.clock.By(10 * time.Second)
		r.await(j.ID, "completed")
		sameListing(r.t, listing(r.t, r.vault.Path("content", "")), listing(r.t, r.nas.Path("content", "")))
		kept()
		r.wipe(r.vault)
	}
}

// sceneStrayFiles: row 49. What the manifest does not list is not content. It is reported, and goes with the job directory.
func sceneStrayFiles(r *archiveRig) {
	t := r.t
	r.nas.Put("content", "films/a", noise(1, 1000))
	kept := untouched(t, r.nas.Path("content", ""))
	stray := func(dir string) {
		for _, name := range []string{"payload/00000000.sync-conflict-20260101-000000-ABCDEFG", "payload/.syncthing.00000000.tmp",
			"manifest.sync-conflict-20260101-000000-ABCDEFG.json"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("stray"), 0o600); err != nil {
				t.Error(err)
			}
		}
	}
	r.vault.onStep(pb.JobStep_JOB_STEP_TRANSFER, func(c *pb.Command) {
		id := c.GetJobId()
		stray(jobDir(r.nas, "outbox", id))
		r.vault.once("transfer: intent", func() { stray(jobDir(r.vault, "receive", id)) })
	})
	j := r.await(r.run("films", nil).ID, "completed")
	if _, e := j.step("transfer"); !strings.Contains(fmt.Sprint(e["carrier_detail"]), "sync-conflict") {
		t.Errorf("the stray files are not reported: %v", e)
	}
	sameListing(t, listing(t, r.vault.Path("content", "")), listing(t, r.nas.Path("content", "")))
	kept()
}

// scenePayloadAltered: row 16. The file is named, and nothing is committed.
func scenePayloadAltered(r *archiveRig) {
	t := r.t
	r.nas.Put("content", "films/a", noise(1, 1000))
	r.nas.Put("content", "films/b", noise(2, 1000))
	kept := untouched(t, r.nas.Path("content", ""))
	r.vault.onStep(pb.JobStep_JOB_STEP_MATERIALIZE, func(c *pb.Command) {
		substitute(t, filepath.Join(jobDir(r.vault, "receive", c.GetJobId()), "payload/00000001"), noise(3, 1000))
	})
	j := r.await(r.run("films", nil).ID, "failed")
	r.fails(j, "integrity_failure", "films/b")
	if j.Committed {
		t.Error("committed")
	}
	sameListing(t, listing(t, r.vault.Path("content", "")), nil)
	kept()
}

// sceneSourceChangesWhileStaged: row 17.
func sceneSourceChangesWhileStaged(r *archiveRig) {
	t := r.t
	r.nas.Put("content", "films/a", noise(1, 1000))
	r.nas.once("stage: effect", func() { r.nas.Put("content", "films/a", noise(2, 1001)) })
	j := r.await(r.run("films", nil).ID, "failed")
	r.fails(j, "stale_fingerprint", "changed", "preview")
	sameListing(t, listing(t, r.nas.Path("content", "")), map[string]string{"films/a": string(noise(2, 1001))})
}

// sceneSourceChangesThroughLink: row 18. Staging gave the source's file one more name, and somebody wrote into it.
func sceneSourceChangesThroughLink(r *archiveRig) {
	t := r.t
	r.nas.Put("content", "films/a", noise(1, 1000))
	r.vault.onStep(pb.JobStep_JOB_STEP_TRANSFER, func(c *pb.Command) {
		if err := os.WriteFile(r.nas.Path("content", "films/a"), noise(2, 1000), 0o644); err != nil {
			t.Error(err)
		}
	})
	j := r.await(r.run("films", nil).ID, "failed")
	r.fails(j, "integrity_failure", "films/a", "source")
	sameListing(t, listing(t, r.vault.Path("content", "")), nil)
	sameListing(t, listing(t, r.nas.Path("content", "")), map[string]string{"films/a": string(noise(2, 1000))})
}

// sceneNameTaken: row 20. Another size shows in the preview, with both sizes and dates; another content of the same
// size shows when the job compares it. Nothing is written over.
func sceneNameTaken(r *archiveRig) {
	t := r.t
	r.nas.Put("content", "films/a", noise(1, 1000))
	r.nas.Put("content", "shows/a", noise(1, 1000))
	r.vault.Put("content", "films/a", noise(2, 2000))
	r.vault.Put("content", "shows/a", noise(2, 1000))
	at := time.Date(2020, 2, 3, 4, 5, 6, 0, time.UTC)
	if err := os.Chtimes(r.vault.Path("content", "films/a"), at, at); err != nil {
		t.Fatal(err)
	}
	kept, foreign := untouched(t, r.nas.Path("content", "")), untouched(t, r.vault.Path("content", ""))
	st, err := os.Stat(r.nas.Path("content", "films/a"))
	if err != nil {
		t.Fatal(err)
	}
	r.refused(r.preview(r.transfer("films", nil)), "path_conflict", "films/a", "2000 bytes", "1000 bytes", "2020-02-03 04:05:06",
		st.ModTime().UTC().Format("2006-01-02 15:04:05"))
	j := r.await(r.run("shows", nil).ID, "failed")
	r.fails(j, "path_conflict", "shows/a")
	foreign()
	kept()
}

// sceneNameAppears: row 21. Somebody takes the name between the look and the rename.
func sceneNameAppears(r *archiveRig) {
	t := r.t
	r.nas.Put("content", "films/a", noise(1, 1000))
	r.nas.Put("content", "films/b", noise(2, 1000))
	kept := untouched(t, r.nas.Path("content", ""))
	r.vault.once("publish: intent", func() { r.vault.Put("content", "films/b", []byte("not ours")) })
	j := r.await(r.run("films", nil).ID, "failed")
	r.fails(j, "path_conflict", "films/b")
	sameListing(t, listing(t, r.vault.Path("content", "")), map[string]string{"films/b": "not ours"})
	kept()
}

// sceneIdenticalFile: row 22. What is there already is used, and a job that is taken back leaves it.
func sceneIdenticalFile(r *archiveRig) {
	t := r.t
	r.nas.Put("content", "films/a", noise(1, 1000))
	r.nas.Put("content", "films/b", noise(2, 1000))
	r.vault.Put("content", "films/a", noise(1, 1000))
	kept, foreign := untouched(t, r.nas.Path("content", "")), untouched(t, r.vault.Path("content", ""))
	g := r.vault.hold("verify: read")
	j := r.run("films", nil)
	g.await()
	r.Do("POST", "/jobs/"+j.ID+"/cancel", map[string]any{"reason": "not now"}, 200, nil)
	g.release()
	r.await(j.ID, "cancelled")
	foreign()
	j = r.await(r.run("films", nil).ID, "completed")
	if _, e := j.step("materialize"); e["files_already_present"] != 1.0 || e["files_created"] != 1.0 {
		t.Errorf("materialize: %v", e)
	}
	sameListing(t, listing(t, r.vault.Path("content", "")), listing(t, r.nas.Path("content", "")))
	kept()
}

// scenePlantedLink: row 29. Nothing is written where a link leads.
func scenePlantedLink(r *archiveRig) {
	t := r.t
	outside := t.TempDir()
	r.nas.Put("content", "films/a", noise(1, 1000))
	r.nas.Put("content", "shows/a", noise(1, 1000))
	kept := untouched(t, r.nas.Path("content", ""))
	if err := os.Symlink(outside, r.vault.Path("content", "films")); err != nil {
		t.Fatal(err)
	}
	p := r.preview(r.transfer("films", nil))
	if p.State == "passed" { // then the job stops
		r.fails(r.await(r.startJob(p).ID, "failed"), "path_unsafe", "films")
	} else {
		r.refused(p, "path_unsafe", "films")
	}
	r.vault.once("materialize: built", func() {
		if err := os.Symlink(outside, r.vault.Path("content", "shows")); err != nil {
			t.Error(err)
		}
	})
	r.fails(r.await(r.run("shows", nil).ID, "failed"), "path_unsafe", "shows")
	if there, err := os.ReadDir(outside); err != nil || len(there) > 0 {
		t.Errorf("outside: %v, %v", there, err)
	}
	for _, name := range []string{"films", "shows"} {
		if to, err := os.Readlink(r.vault.Path("content", name)); err != nil || to != outside {
			t.Errorf("the link %s: %s, %v", name, to, err)
		}
	}
	kept()
}

// sceneSparseLost: row 25. A file came dense over the route: an error or a warning, as the job says.
func sceneSparseLost(r *archiveRig) {
	t := r.t
	const size = 8 << 20
	for _, name := range []string{"films/a", "shows/a"} {
		r.nas.Put("content", name, noise(1, 4096))
		if err := os.Truncate(r.nas.Path("content", name), size); err != nil {
			t.Fatal(err)
		}
	}
	kept := untouched(t, r.nas.Path("content", ""))
	dense := func(c *pb.Command) {
		name := filepath.Join(jobDir(r.vault, "receive", c.GetJobId()), "payload/00000000")
		content, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
		}
		substitute(t, name, content)
	}
	policy := func(sparse string) map[string]any {
		return map[string]any{"policies": map[string]any{"keep_free_bytes": 1, "sparse": sparse}}
	}
	r.vault.onStep(pb.JobStep_JOB_STEP_MATERIALIZE, dense)
	r.fails(r.await(r.run("films", policy("require")).ID, "failed"), "sparse_lost", "films/a")
	r.vault.onStep(pb.JobStep_JOB_STEP_MATERIALIZE, dense)
	j := r.await(r.run("films", policy("prefer")).ID, "completed")
	if _, e := j.step("materialize"); e["sparse_lost"] != 1.0 {
		t.Errorf("materialize: %v", e)
	}
	r.vault.onReceive(nil)
	j = r.await(r.run("shows", policy("require")).ID, "completed")
	if _, e := j.step("materialize"); e["sparse_kept"] != 1.0 {
		t.Errorf("materialize: %v", e)
	}
	var st unix.Stat_t
	if err := unix.Stat(r.vault.Path("content", "shows/a"), &st); err != nil || st.Blocks*512 >= 1<<20 {
		t.Errorf("allocated %d bytes, %v", st.Blocks*512, err)
	}
	sameListing(t, listing(t, r.vault.Path("content", "")), listing(t, r.nas.Path("content", "")))
	kept()
}
