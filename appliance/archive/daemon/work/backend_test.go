package work_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/torrent/torrenttest"
)

// strange is a backend that answers as a test tells it.
type strange struct {
	backend.Backend
	tree     func(*backend.Tree, error) (*backend.Tree, error)
	activate func() (pb.BackendState, error) // nil: the real answer
	quiesced int
}

func (s *strange) ContentTree(ctx context.Context, id string, o backend.TreeOptions) (*backend.Tree, error) {
	t, err := s.Backend.ContentTree(ctx, id, o)
	if s.tree != nil {
		return s.tree(t, err)
	}
	return t, err
}

func (s *strange) Activate(ctx context.Context, id string) (pb.BackendState, error) {
	if s.activate != nil {
		if state, err := s.activate(); state != 0 || err != nil {
			return state, err
		}
	}
	return s.Backend.Activate(ctx, id)
}

func (s *strange) Quiesce(ctx context.Context, id string) error {
	s.quiesced++
	return s.Backend.Quiesce(ctx, id)
}

// odd puts a strange backend between a machine's worker and its backend.
func (s *side) odd() *strange {
	b := &strange{Backend: s.backend}
	s.useBackend(b)
	return b
}

// TestBackendAtWorkWhileStaging (row 19): a check or a move that begins stops the step.
func TestBackendAtWorkWhileStaging(t *testing.T) {
	for _, state := range []pb.BackendState{pb.BackendState_BACKEND_STATE_CHECKING, pb.BackendState_BACKEND_STATE_MOVING, pb.BackendState_BACKEND_STATE_DOWNLOADING} {
		for at := 1; at <= 2; at++ { // at the begin, and while the files are read
			r := newRig(t)
			r.plainTree()
			r.start()
			r.transfer("shows")
			before := listing(t, r.src.paths["content"])
			b, seen := r.src.odd(), 0
			b.tree = func(tree *backend.Tree, err error) (*backend.Tree, error) {
				if seen++; seen == at {
					tree.Header = proto.Clone(tree.Header).(*pb.ContentTree)
					tree.Header.BackendState = state
				}
				return tree, err
			}
			r.fails(stage, pb.ErrorCode_ERROR_CODE_UNSAFE_STATE)
			if seen != at {
				t.Errorf("the backend was asked %d times", seen)
			}
			same(t, "source", listing(t, r.src.paths["content"]), before)
			r.noLeftovers()
		}
	}
}

// TestOwnHashesWin (row 33): the backend says that everything is complete, the torrent's hashes say otherwise.
func TestOwnHashesWin(t *testing.T) {
	r := newRig(t)
	r.dst.paths["metainfo"] = filepath.Join(r.dst.dir, "metainfo")
	must(t, os.MkdirAll(r.dst.paths["metainfo"], 0o755))
	r.src, r.dst = r.dst, r.src
	r.torrent(torrenttest.Options{Version: torrenttest.V2, Name: "shows"}, entries())
	r.src, r.dst = r.dst, r.src
	r.start()
	r.adopt("shows")
	good := r.tree(r.dst, r.resource)
	flip(t, r.dst.at("content", "shows/c.bin"), 20_000)
	r.dst.odd().tree = func(*backend.Tree, error) (*backend.Tree, error) { return good, nil }
	r.steps(materialize)
	if d := r.fails(verifying, pb.ErrorCode_ERROR_CODE_INTEGRITY_FAILURE); !strings.Contains(d.GetMessage(), "c.bin") {
		t.Error(d.GetMessage())
	}
}

// TestStrictAsksTheBackendToo: the bytes change between the daemon's reading and the backend's.
func TestStrictAsksTheBackendToo(t *testing.T) {
	for level, want := range map[pb.VerifyLevel]bool{pb.VerifyLevel_VERIFY_LEVEL_STANDARD: true, pb.VerifyLevel_VERIFY_LEVEL_STRICT: false} {
		r := newRig(t)
		r.torrent(torrenttest.Options{Version: torrenttest.V2, Name: "shows"}, entries())
		r.start()
		r.transfer("shows")
		r.def.Policies.VerifyLevel = level
		r.def.Policies.StageMethods = methods{bySparse}
		r.steps(stage, transfer, materialize)
		b := r.dst.odd()
		b.tree = func(tree *backend.Tree, err error) (*backend.Tree, error) { // the registration is done, the second reading is not
			if r.dst.evidence[verifying] == nil {
				flip(t, r.dst.at("content", "shows/c.bin"), 20_000)
			}
			return tree, err
		}
		if _, err := r.run(verifying); (err == nil) != want {
			t.Errorf("%v: %v", level, err)
		}
	}
}

// TestDownloadAfterStart (row 34): stopped at once, and for a person.
func TestDownloadAfterStart(t *testing.T) {
	r := newRig(t)
	r.torrent(torrenttest.Options{Version: torrenttest.V2, Name: "shows"}, entries())
	r.start()
	r.transfer("shows")
	r.steps(stage, transfer, materialize, verifying)
	before := listing(t, r.dst.paths["content"])
	b := r.dst.odd()
	b.activate = func() (pb.BackendState, error) { return pb.BackendState_BACKEND_STATE_DOWNLOADING, nil }
	_, err := r.run(commit)
	held(t, err, pb.ErrorCode_ERROR_CODE_UNSAFE_STATE)
	if b.quiesced != 1 {
		t.Errorf("the backend was stopped %d times", b.quiesced)
	}
	same(t, "target", listing(t, r.dst.paths["content"]), before)
}

// TestBackendAwayAtCommit (row 35): the commit record stands, and the job rolls forward when the backend is back.
func TestBackendAwayAtCommit(t *testing.T) {
	r := newRig(t)
	r.torrent(torrenttest.Options{Version: torrenttest.Hybrid, Name: "shows"}, entries())
	r.dst.paths["library"] = filepath.Join(r.dst.dir, "library")
	must(t, os.MkdirAll(r.dst.paths["library"], 0o755))
	r.start()
	r.transfer("shows")
	r.steps(stage, transfer, materialize, verifying)
	away := true
	r.dst.odd().activate = func() (pb.BackendState, error) {
		if away {
			return 0, backend.Fail("BACKEND_UNAVAILABLE", "the backend does not answer")
		}
		return 0, nil
	}
	if d := r.fails(commit, pb.ErrorCode_ERROR_CODE_BACKEND_UNAVAILABLE); !d.GetRetryable() {
		t.Errorf("%v", d)
	}
	if r.dst.record == nil {
		t.Fatal("no commit record")
	}
	id := r.dst.record.CommitID.String()
	away = false
	r.steps(commit)
	e := r.dst.evidence[commit].GetCommit()
	if e.GetCommitId() != id || e.GetActivationState() != pb.BackendState_BACKEND_STATE_SEEDING || e.GetResource().GetClientId() != r.dst.id.String() {
		t.Errorf("evidence %v, record %s", e, id)
	}
	if entries, _ := os.ReadDir(r.dst.paths["library"]); len(entries) != 1 {
		t.Errorf("the library has %v", entries)
	}
}

// TestAtWorkWithoutARecord holds the job when the backend runs content that this daemon has no record of starting.
func TestAtWorkWithoutARecord(t *testing.T) {
	r := newRig(t)
	r.torrent(torrenttest.Options{Version: torrenttest.V2, Name: "shows"}, entries())
	r.dst.paths["library"] = filepath.Join(r.dst.dir, "library")
	must(t, os.MkdirAll(r.dst.paths["library"], 0o755))
	r.start()
	r.transfer("shows")
	r.steps(stage, transfer, materialize, verifying, commit)
	r.dst.record = nil // as in an older copy of the database
	before := listing(t, r.dst.paths["content"])
	_, err := r.run(commit)
	held(t, err, pb.ErrorCode_ERROR_CODE_STATE_LOST)
	held(t, r.dst.worker.Undo(t.Context(), r.job(r.dst), 0), pb.ErrorCode_ERROR_CODE_STATE_LOST)
	same(t, "target", listing(t, r.dst.paths["content"]), before)
}

// TestCommitRefuses holds what the commit rests on.
func TestCommitRefuses(t *testing.T) {
	r := newRig(t)
	r.plainTree()
	r.start()
	r.transfer("shows")
	r.steps(stage, transfer, materialize, verifying)
	r.params[commit] = func() *pb.ExecuteStepCommand {
		return &pb.ExecuteStepCommand{Step: commit, StepAttempt: 1, Params: &pb.ExecuteStepCommand_Commit{Commit: &pb.CommitParams{VerifyEvidenceSha256: strings.Repeat("0", 64)}}}
	}
	r.fails(commit, pb.ErrorCode_ERROR_CODE_UNSAFE_STATE)
	delete(r.params, commit)
	must(t, os.WriteFile(r.dst.at("content", "shows/more"), []byte("more"), 0o600))
	r.fails(commit, pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT)
	if r.dst.record != nil {
		t.Error("there is a commit record")
	}
	must(t, os.Remove(r.dst.at("content", "shows/more")))
	r.steps(commit)
}

// TestEntryThatWasThereStays: cancelling takes back only what the job itself has registered.
func TestEntryThatWasThereStays(t *testing.T) {
	r := newRig(t)
	r.torrent(torrenttest.Options{Version: torrenttest.V2, Name: "shows"}, entries())
	r.start()
	r.transfer("shows")
	r.all()
	if len(r.registered()) == 0 {
		t.Fatal("nothing is registered")
	}
	before, had := listing(t, r.dst.paths["content"]), len(r.registered())
	r.next()
	r.transfer("shows") // once more: everything is there
	r.steps(stage, transfer, materialize, verifying)
	must(t, r.dst.worker.Undo(t.Context(), r.job(r.dst), 0))
	same(t, "target", listing(t, r.dst.paths["content"]), before)
	if len(r.registered()) != had {
		t.Errorf("registered: %v", r.registered())
	}
}
