package work_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/backend/directory"
	"signalbox/appliance/archive/backend/hashcache"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/daemon/work"
	"signalbox/appliance/clock"
)

// ahead is the system's clock an hour later: to it, files that a test has just made are old enough to be cached.
type ahead struct{ clock.Clock }

func (a ahead) Now() time.Time { return a.Clock.Now().Add(time.Hour) }

// stopper ends the "process": the n-th change of a file system or write of the journal, and everything after it, fails.
type stopper struct {
	mu      sync.Mutex
	n, seen int  // n 0: never
	once    bool // only the n-th: the process lives on
	last    string
}

// changes are the operations that leave a trace. A process killed before any other call leaves what one killed before the
// next change leaves.
var changes = map[beneath.Op]bool{beneath.OpCreate: true, beneath.OpMkdir: true, beneath.OpRename: true, beneath.OpLink: true,
	beneath.OpReflink: true, beneath.OpUnlink: true, beneath.OpRmdir: true, beneath.OpSymlink: true, beneath.OpChmod: true,
	beneath.OpChown: true, beneath.OpSetTime: true, beneath.OpWrite: true, beneath.OpTruncate: true, beneath.OpAllocate: true,
	beneath.OpCopyRange: true, beneath.OpSync: true, beneath.OpSyncDir: true}

func (s *stopper) step(what string, counts bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if counts {
		s.seen++
		if s.seen == s.n {
			s.last = what
		}
	}
	if s.once {
		if counts && s.seen == s.n {
			return syscall.EIO
		}
		return nil
	}
	if s.n > 0 && s.seen >= s.n {
		return syscall.EIO
	}
	return nil
}

func (s *stopper) hook(op beneath.Op, name string) error {
	return s.step(string(op)+" "+name, changes[op])
}

// what is the call that was stopped.
func (s *stopper) what() string {
	if s == nil {
		return "none"
	}
	return s.last
}

func (s *stopper) stopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n > 0 && s.seen >= s.n
}

// memory is a journal that survives its machine's restarts.
type memory struct {
	mu   sync.Mutex
	rows map[string]daemon.JournalEntry
	puts int
}

func rowKey(e daemon.JournalEntry) string {
	return fmt.Sprintf("%03d %012d %s", e.Step, e.Index+1, e.Name)
}

func (m *memory) Put(_ context.Context, list ...daemon.JournalEntry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.puts++
	for _, e := range list {
		if e.Name == "" || len(e.Name) > 4096 || len(e.Detail) > 4096 {
			return fmt.Errorf("entry %+v", e)
		}
		e.Detail = slices.Clone(e.Detail)
		m.rows[rowKey(e)] = e
	}
	return nil
}

func (m *memory) List(_ context.Context, fn func(daemon.JournalEntry) bool, steps ...pb.JobStep) error {
	m.mu.Lock()
	keys := make([]string, 0, len(m.rows))
	for k := range m.rows {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var list []daemon.JournalEntry
	for _, k := range keys {
		if e := m.rows[k]; len(steps) == 0 || slices.Contains(steps, e.Step) {
			list = append(list, e)
		}
	}
	m.mu.Unlock()
	for _, e := range list {
		if !fn(e) {
			break
		}
	}
	return nil
}

func (m *memory) Get(_ context.Context, step pb.JobStep, index int64, name string) (daemon.JournalEntry, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.rows[rowKey(daemon.JournalEntry{Step: step, Index: index, Name: name})]
	return e, ok, nil
}

// stopping is a journal whose writes the stopper counts.
type stopping struct {
	daemon.Journal
	stop *stopper
}

func (j stopping) Put(ctx context.Context, list ...daemon.JournalEntry) error {
	if err := j.stop.step("journal "+string(list[0].State)+" "+list[0].Name, true); err != nil {
		return err
	}
	return j.Journal.Put(ctx, list...)
}

// side is one machine: directories that last, and a process over them that can be started anew.
type side struct {
	t        testing.TB
	id       uuid.UUID
	dir      string
	paths    map[string]string // of roots, by ID
	journal  daemon.Journal
	evidence map[pb.JobStep]*pb.StepEvidence
	record   *daemon.CommitRecord

	roots    map[string]*beneath.Root
	shared   map[string]string // marker to path
	shares   map[string]*beneath.Root
	backend  backend.Backend
	dirs     *directory.Backend
	worker   *work.Worker
	cache    hashcache.Cache
	hooks    map[string]beneath.Hook // by root ID or marker
	options  func(*work.Options)
	reached  func(point string)
	settings func(*directory.Options)
	progress []*pb.Progress
	stop     *stopper
}

// Root implements work.Roots.
func (s *side) Root(id string) (*beneath.Root, error) {
	r := s.roots[id]
	if r == nil {
		return nil, &beneath.Error{Code: beneath.NotFound, Op: beneath.OpVerify, Path: id, Err: fs.ErrNotExist}
	}
	return r, r.Verify()
}

// Shared implements work.Roots.
func (s *side) Shared(marker string) (*beneath.Root, error) {
	r := s.shares[marker]
	if r == nil {
		return nil, &beneath.Error{Code: beneath.NotFound, Op: beneath.OpVerify, Path: marker, Err: fs.ErrNotExist}
	}
	return r, r.Verify()
}

// ContentRoots implements work.Roots.
func (s *side) ContentRoots() []string { return []string{"content"} }

// old is the time of the files that tests make.
var old = time.Unix(1_600_000_000, 123_456_789)

// at is a path below a root.
func (s *side) at(root, name string) string {
	return filepath.Join(s.paths[root], filepath.FromSlash(name))
}

// put makes a file with an old time.
func (s *side) put(name string, content []byte, mode fs.FileMode) {
	s.t.Helper()
	file := s.at("content", name)
	must(s.t, os.MkdirAll(filepath.Dir(file), 0o755))
	must(s.t, os.WriteFile(file, content, 0o600))
	must(s.t, os.Chmod(file, mode))
	must(s.t, os.Chtimes(file, old, old))
}

// start opens the roots anew and makes backend and worker, as a new process does.
func (s *side) start(stop *stopper) {
	s.t.Helper()
	s.end()
	s.stop = stop
	open := func(id, dir string) *beneath.Root {
		r, err := beneath.Open(dir, beneath.Options{Hook: func(op beneath.Op, name string) error {
			if stop != nil {
				if err := stop.hook(op, name); err != nil {
					return err
				}
			}
			if h := s.hooks[id]; h != nil {
				return h(op, name)
			}
			return nil
		}})
		must(s.t, err)
		return r
	}
	for id, dir := range s.paths {
		s.roots[id] = open(id, dir)
	}
	for marker, dir := range s.shared {
		s.shares[marker] = open(marker, dir)
	}
	if s.cache == nil {
		s.cache = hashcache.NewMemory()
	}
	o := directory.Options{Roots: []directory.Root{{ID: "content", Dir: s.roots["content"]}}, Metainfo: s.roots["metainfo"],
		Library: s.roots["library"], Cache: s.cache, Clock: ahead{clock.System()}, QuietTime: time.Nanosecond}
	if s.settings != nil {
		s.settings(&o)
	}
	b, err := directory.New(o)
	must(s.t, err)
	s.backend, s.dirs = b, b
	s.useBackend(b)
}

// useBackend makes the worker over a backend.
func (s *side) useBackend(b backend.Backend) {
	wo := work.Options{Roots: s, Backend: b, Clock: ahead{clock.System()}, Cache: s.cache, Group: -1, Reached: func(point string) {
		if s.reached != nil {
			s.reached(point)
		}
	}}
	if s.options != nil {
		s.options(&wo)
	}
	s.worker = work.New(wo)
}

// end closes the roots.
func (s *side) end() {
	for _, r := range s.roots {
		_ = r.Close()
	}
	for _, r := range s.shares {
		_ = r.Close()
	}
	s.roots, s.shares = map[string]*beneath.Root{}, map[string]*beneath.Root{}
}

// rig is two machines and one job.
type rig struct {
	t        testing.TB
	src, dst *side
	def      *pb.JobDefinition
	route    *pb.Route
	resource string
	params   map[pb.JobStep]func() *pb.ExecuteStepCommand // changed parameters
	attempt  uint32
}

// tempDir is a directory in memory, where there is one: what is tested makes thousands of durable writes.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "work")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func newSide(t testing.TB, dir string, roots ...string) *side {
	s := &side{t: t, id: uuid.New(), dir: dir, paths: map[string]string{}, journal: &memory{rows: map[string]daemon.JournalEntry{}},
		evidence: map[pb.JobStep]*pb.StepEvidence{}, shared: map[string]string{}, hooks: map[string]beneath.Hook{}}
	for _, r := range roots {
		s.paths[r] = filepath.Join(dir, r)
		must(t, os.MkdirAll(s.paths[r], 0o755))
	}
	t.Cleanup(s.end)
	return s
}

// newRig makes two machines on one file system; change what is needed before start.
func newRig(t testing.TB) *rig { return newRigIn(t, tempDir(t)) }

func newRigIn(t testing.TB, dir string) *rig {
	r := &rig{t: t, src: newSide(t, filepath.Join(dir, "a"), "content", "outbox", "metainfo"),
		dst: newSide(t, filepath.Join(dir, "b"), "content", "receive"), params: map[pb.JobStep]func() *pb.ExecuteStepCommand{}, attempt: 1}
	r.dst.shared["box"] = r.src.paths["outbox"]
	return r
}

// start starts both machines.
func (r *rig) start() {
	r.t.Helper()
	r.src.start(nil)
	r.dst.start(nil)
}

// tree is the source's content tree.
func (r *rig) tree(s *side, id string) *backend.Tree {
	r.t.Helper()
	tree, err := s.backend.ContentTree(r.t.Context(), id, backend.TreeOptions{})
	must(r.t, err)
	return tree
}

// find returns the ID of the only resource, or of the one with the name.
func (r *rig) find(s *side, name string) string {
	r.t.Helper()
	list, err := s.backend.ListResources(r.t.Context())
	must(r.t, err)
	for _, res := range list.Resources {
		if res.GetResource().GetIdentity().GetDisplayName() == name {
			return res.GetResource().GetResourceId()
		}
	}
	r.t.Fatalf("no resource %q in %v", name, list.Resources)
	return ""
}

// transfer writes the definition of a TRANSFER of the resource with this name: of all its files, or of those listed.
func (r *rig) transfer(name string, indices ...uint32) {
	r.t.Helper()
	r.resource = r.find(r.src, name)
	tree := r.tree(r.src, r.resource)
	if len(indices) == 0 {
		for i := range tree.Files.Len() {
			if f := tree.Files.Entry(i); f.GetKind() != pb.FileKind_FILE_KIND_PADDING {
				indices = append(indices, f.GetIndex())
			}
		}
	}
	ref := proto.Clone(tree.Header.GetResource()).(*pb.ResourceRef)
	ref.ClientId = r.src.id.String()
	r.def = &pb.JobDefinition{JobId: uuid.NewString(), Operation: pb.JobOperation_JOB_OPERATION_TRANSFER, Source: ref,
		TargetClientId: r.dst.id.String(), RouteId: uuid.NewString(), Requested: archive.Indices(indices...).Message(),
		SourceContentRevision: tree.Header.GetContentRevision(),
		Baseline: &pb.TargetBaseline{Present: &pb.IndexSet{}, FilesystemProfile: &pb.FilesystemProfile{CaseSensitive: true,
			NormalizationPreserving: true, SupportsSparse: true, SupportsHardlink: true, SupportsNoreplaceRename: true}},
		Destination: &pb.Destination{ContentRootId: "content", PreserveLayout: true}, Policies: archive.DefaultPolicies(),
		CreatedAt: timestamppb.New(time.Unix(1_700_000_000, 0))}
	r.route = &pb.Route{RouteId: r.def.RouteId, Kind: pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY, SourceClientId: r.src.id.String(),
		TargetClientId: r.dst.id.String(), Source: &pb.RouteEndpoint{RootId: "outbox"},
		Target: &pb.RouteEndpoint{RootId: "receive", Endpoint: &pb.RouteEndpoint_Shared{Shared: &pb.SharedEndpoint{SharedMarker: "box"}}}}
}

// job is the job as the engine of the machine gives it to its worker.
func (r *rig) job(s *side) *daemon.Job {
	j := &daemon.Job{ID: uuid.MustParse(r.def.JobId), ClientID: s.id, Definition: r.def, Digest: archive.DefinitionDigest(r.def), Route: r.route,
		Record: s.record, Committed: s.record != nil, Role: pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE, Journal: s.journal,
		Evidence: func(_ context.Context, step pb.JobStep) (*pb.StepEvidence, error) { return s.evidence[step], nil }}
	if s == r.dst {
		j.Role = pb.ParticipantRole_PARTICIPANT_ROLE_TARGET
	}
	j.RouteSide = j.Role
	if s.stop != nil {
		j.Journal = stopping{s.journal, s.stop}
	}
	return j
}

// command is the command of a step, with the parameters that control would give.
func (r *rig) command(step pb.JobStep) *pb.ExecuteStepCommand {
	if f := r.params[step]; f != nil {
		return f()
	}
	c := &pb.ExecuteStepCommand{Step: step, StepAttempt: r.attempt}
	staged := r.src.evidence[pb.JobStep_JOB_STEP_STAGE].GetStage()
	switch step {
	case pb.JobStep_JOB_STEP_STAGE:
		c.Params = &pb.ExecuteStepCommand_Stage{Stage: &pb.StageParams{ExpectedContentRevision: r.def.GetSourceContentRevision()}}
	case pb.JobStep_JOB_STEP_TRANSFER:
		c.Params = &pb.ExecuteStepCommand_Transfer{Transfer: &pb.TransferParams{ManifestSha256: staged.GetManifestSha256(), JobDir: staged.GetJobDir()}}
	case pb.JobStep_JOB_STEP_MATERIALIZE:
		p := &pb.MaterializeParams{ManifestSha256: staged.GetManifestSha256(), JobDir: staged.GetJobDir()}
		if r.def.GetOperation() == pb.JobOperation_JOB_OPERATION_ADOPT {
			p = &pb.MaterializeParams{AdoptContentRevision: r.def.GetSourceContentRevision()}
		}
		c.Params = &pb.ExecuteStepCommand_Materialize{Materialize: p}
	case pb.JobStep_JOB_STEP_VERIFY:
		p := &pb.VerifyParams{ManifestSha256: staged.GetManifestSha256()}
		if e := r.dst.evidence[pb.JobStep_JOB_STEP_MATERIALIZE]; e != nil {
			p.MaterializeEvidenceSha256 = archive.EvidenceDigest(e)
		}
		c.Params = &pb.ExecuteStepCommand_Verify{Verify: p}
	case pb.JobStep_JOB_STEP_COMMIT:
		c.Params = &pb.ExecuteStepCommand_Commit{Commit: &pb.CommitParams{VerifyEvidenceSha256: archive.EvidenceDigest(r.dst.evidence[pb.JobStep_JOB_STEP_VERIFY])}}
	case pb.JobStep_JOB_STEP_RELEASE:
		c.Params = &pb.ExecuteStepCommand_Release{Release: &pb.ReleaseParams{TargetCommit: r.def.GetEviction().GetTargetCommit(),
			ReverifyEvidenceSha256: archive.EvidenceDigest(r.dst.evidence[pb.JobStep_JOB_STEP_VERIFY]), ExpectedContentRevision: r.def.GetSourceContentRevision()}}
	case pb.JobStep_JOB_STEP_PURGE:
		c.Params = &pb.ExecuteStepCommand_Purge{Purge: &pb.PurgeParams{ReleaseEvidenceSha256: archive.EvidenceDigest(r.src.evidence[pb.JobStep_JOB_STEP_RELEASE]),
			NotBefore: timestamppb.New(time.Unix(1_700_000_000, 0))}}
	}
	return c
}

// where tells which machine does a step.
func (r *rig) where(step pb.JobStep) *side {
	if archive.Executor(step, r.route.GetKind()) == pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE {
		return r.src
	}
	return r.dst
}

// run does one step and keeps its evidence.
func (r *rig) run(step pb.JobStep) (*pb.StepEvidence, error) { return r.runWith(r.t.Context(), step) }

func (r *rig) runWith(ctx context.Context, step pb.JobStep) (*pb.StepEvidence, error) {
	s := r.where(step)
	s.progress = nil
	t := &daemon.Task{Job: r.job(s), CommandID: uuid.New(), Execute: r.command(step),
		Confirmed: func(ctx context.Context) error { return ctx.Err() },
		Progress:  func(p *pb.Progress) { s.progress = append(s.progress, p) }}
	t.Commit = func(_ context.Context, rec daemon.CommitRecord) error {
		if s.stop != nil {
			if err := s.stop.step("commit record", true); err != nil {
				return err
			}
		}
		if s.record != nil && (s.record.CommitID != rec.CommitID || string(s.record.Action) != string(rec.Action) ||
			s.record.VerifyEvidenceSHA256 != rec.VerifyEvidenceSHA256) {
			return errors.New("another commit record")
		}
		s.record = &rec
		return nil
	}
	e, err := s.worker.Run(ctx, t)
	if err == nil && e == nil {
		r.t.Fatalf("%v: neither evidence nor error", step)
	}
	if err == nil {
		s.evidence[step] = e
	}
	return e, err
}

// steps runs steps that must succeed.
func (r *rig) steps(list ...pb.JobStep) {
	r.t.Helper()
	for _, step := range list {
		if _, err := r.run(step); err != nil {
			r.t.Fatalf("%v: %v", step, err)
		}
	}
}

// all runs the whole plan, and closes the job on both machines.
func (r *rig) all() {
	r.t.Helper()
	r.steps(plan(r.def)...)
	r.close()
}

// plan lists the steps of the job.
func plan(def *pb.JobDefinition) (list []pb.JobStep) {
	for _, p := range archive.Plan(def.GetOperation()) {
		list = append(list, p.Step)
	}
	return list
}

func (r *rig) close() {
	r.t.Helper()
	for _, s := range []*side{r.src, r.dst} {
		must(r.t, s.worker.Close(r.t.Context(), r.job(s)))
	}
}

// fails runs a step that must fail with the code and returns its detail.
func (r *rig) fails(step pb.JobStep, code pb.ErrorCode) *pb.ErrorDetail {
	r.t.Helper()
	_, err := r.run(step)
	return r.failed(step, err, code)
}

func (r *rig) failed(step pb.JobStep, err error, code pb.ErrorCode) *pb.ErrorDetail {
	r.t.Helper()
	var failure *daemon.StepError
	if !errors.As(err, &failure) || failure.Detail.GetCode() != code {
		r.t.Fatalf("%v ended with %v, want %v", step, err, code)
	}
	return failure.Detail
}
