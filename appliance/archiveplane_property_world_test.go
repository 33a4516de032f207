package appliance_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/valid"
	"signalbox/appliance/clock"
)

// propWorld is everything outside the databases: what the steps of all jobs have brought about, at all machines. It does
// not crash. What no correct plane could do is written to faults.
type propWorld struct {
	clock clock.Clock
	moved func() // something has happened

	mu      sync.Mutex
	rng     *rand.Rand
	noisy   bool // steps take time and fail
	jobs    map[uuid.UUID]*propJob
	changes int // of the content
	faults  []string
}

// propJob is the ledger of one job.
type propJob struct {
	id         uuid.UUID
	definition *pb.JobDefinition
	stands     map[pb.JobStep]uuid.UUID // effects that are there, and at whose machine
	times      map[pb.JobStep]int       // how often each was brought about
	atWork     map[uuid.UUID]string     // by daemon: what is being done
	undone     map[uuid.UUID]bool       // by daemon
	closed     map[uuid.UUID]bool
	failed     map[pb.JobStep]int
	ledger     []string
}

func newPropWorld(seed uint64, c clock.Clock, moved func()) *propWorld {
	return &propWorld{clock: c, moved: moved, rng: rand.New(rand.NewPCG(seed, 2)), jobs: map[uuid.UUID]*propJob{}}
}

// job finds the ledger of a job; the caller holds mu.
func (w *propWorld) job(j *daemon.Job) *propJob {
	p := w.jobs[j.ID]
	if p == nil {
		p = &propJob{id: j.ID, definition: j.Definition, stands: map[pb.JobStep]uuid.UUID{}, times: map[pb.JobStep]int{},
			atWork: map[uuid.UUID]string{}, undone: map[uuid.UUID]bool{}, closed: map[uuid.UUID]bool{}, failed: map[pb.JobStep]int{}}
		w.jobs[j.ID] = p
	}
	return p
}

func (p *propJob) note(d *propDaemon, format string, args ...any) {
	p.ledger = append(p.ledger, d.name+": "+fmt.Sprintf(format, args...))
}

// fault writes down what must not be; the caller holds mu.
func (w *propWorld) fault(p *propJob, format string, args ...any) {
	w.faults = append(w.faults, fmt.Sprintf("job %s: %s\n\t%s", p.id, fmt.Sprintf(format, args...), strings.Join(p.ledger, "\n\t")))
}

func (w *propWorld) chance(percent int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.noisy && w.rng.IntN(100) < percent
}

func (w *propWorld) setNoisy(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noisy = on
}

// propSteps works for one daemon by the rules of daemon.Steps: intent before each effect, the effect found again by the
// journal or the commit record, HELD for one that is there without either.
type propSteps struct {
	w *propWorld
	d *propDaemon
}

const propName = "content"

// propTampered tells whether a daemon may have lost what it knew.
func propTampered(d *propDaemon) bool { return d.fleet.tampered.Load() }

// enter begins work for a job. Nobody may be at work for it, here or at the other machine.
func (s *propSteps) enter(j *daemon.Job, what string) (*propJob, func()) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	p := s.w.job(j)
	p.note(s.d, "%s begins", what)
	for at, other := range p.atWork {
		if at == s.d.id || !propTampered(s.d) {
			s.w.fault(p, "%s begins at %s while %s goes on", what, s.d.name, other)
		}
	}
	p.atWork[s.d.id] = what
	s.w.moved()
	return p, func() {
		s.w.mu.Lock()
		defer s.w.mu.Unlock()
		delete(p.atWork, s.d.id)
		s.w.moved()
	}
}

// Run does a step.
func (s *propSteps) Run(ctx context.Context, t *daemon.Task) (*pb.StepEvidence, error) {
	step := t.Execute.GetStep()
	p, leave := s.enter(t.Job, step.String())
	defer leave()
	entry, journalled, err := t.Job.Journal.Get(ctx, step, 0, propName)
	if err != nil {
		return nil, err
	}
	known := journalled
	if archive.Commits(step) {
		known = t.Job.Record != nil
	}
	if held := s.look(p, t.Job, step, known); held != nil {
		return nil, held
	}
	if err := s.pause(ctx, t); err != nil {
		return nil, err
	}
	if err := s.fails(p, step, known); err != nil {
		return nil, err
	}
	if !journalled {
		entry = daemon.JournalEntry{Step: step, RootID: propContent, Name: propName, State: daemon.Intent}
		if err := t.Job.Journal.Put(ctx, entry); err != nil {
			return nil, err
		}
	}
	if err := s.decided(ctx, t); err != nil {
		return nil, err
	}
	if err := s.bringAbout(ctx, p, step); err != nil {
		return nil, err
	}
	entry.State = map[bool]daemon.JournalState{true: daemon.Removed, false: daemon.Published}[step == pb.JobStep_JOB_STEP_PURGE]
	if err := t.Job.Journal.Put(ctx, entry); err != nil {
		return nil, err
	}
	return s.evidence(t), nil
}

// look compares the world with what the daemon knows. Only a daemon with another database than its own can have lost it.
func (s *propSteps) look(p *propJob, j *daemon.Job, step pb.JobStep, known bool) error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	tampered := propTampered(s.d)
	if (p.undone[s.d.id] || p.closed[s.d.id]) && !tampered {
		s.w.fault(p, "%s runs after the job ended at %s", step, s.d.name)
	}
	for _, before := range archive.Plan(j.Definition.GetOperation()) {
		if before.Step == step {
			break
		}
		if p.times[before.Step] == 0 {
			s.w.fault(p, "%s runs before %s", step, before.Step)
		}
	}
	if _, there := p.stands[step]; !there || known {
		return nil
	}
	if !tampered {
		s.w.fault(p, "%s lost what it knew of %s", s.d.name, step)
	}
	if !archive.Irreversible(step) {
		return nil // it finds its files and goes on with them
	}
	p.note(s.d, "%s is there without a record", step)
	return &daemon.Held{Detail: valid.Detail(pb.ErrorCode_ERROR_CODE_STATE_LOST, "the effect is there and no record of it")}
}

// pause lets time pass, so that commands and the end of connections meet a step at work.
func (s *propSteps) pause(ctx context.Context, t *daemon.Task) error {
	for n := uint32(1); s.w.chance(40); n++ {
		timer := s.w.clock.NewTimer(3 * time.Second)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		t.Progress(&pb.Progress{FractionComplete: 1 - 1/float64(n+1), FilesTotal: 100, FilesDone: min(n, 100)})
	}
	return nil
}

// fails is a failure of the step that leaves nothing behind.
func (s *propSteps) fails(p *propJob, step pb.JobStep, known bool) error {
	if known || !s.w.chance(8) {
		return nil
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if p.failed[step]++; p.failed[step] > 2 {
		return nil
	}
	code := pb.ErrorCode_ERROR_CODE_BACKEND_UNAVAILABLE
	if !archive.Irreversible(step) && s.w.rng.IntN(4) == 0 {
		code = pb.ErrorCode_ERROR_CODE_READ_ERROR // for good
	}
	p.note(s.d, "%s fails with %s", step, code)
	return &daemon.StepError{Detail: valid.Detail(code, "as chance has it")}
}

// decided passes the point before an effect that cannot be taken back.
func (s *propSteps) decided(ctx context.Context, t *daemon.Task) error {
	step := t.Execute.GetStep()
	switch {
	case !archive.Irreversible(step):
		return nil
	case !archive.Commits(step):
		return t.Confirmed(ctx)
	}
	verified := t.Execute.GetCommit().GetVerifyEvidenceSha256()
	if step == pb.JobStep_JOB_STEP_RELEASE {
		verified = t.Execute.GetRelease().GetReverifyEvidenceSha256()
	}
	if t.Job.Record != nil {
		return nil // it only rolls forward
	}
	return t.Commit(ctx, daemon.CommitRecord{CommitID: propCommitID(t.Job.ID), Step: step, VerifyEvidenceSHA256: verified})
}

func propCommitID(job uuid.UUID) uuid.UUID { return uuid.NewSHA1(job, []byte("commit")) }

// bringAbout makes the effect unless it is there.
func (s *propSteps) bringAbout(ctx context.Context, p *propJob, step pb.JobStep) error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if _, there := p.stands[step]; there {
		p.note(s.d, "%s is found", step)
		return nil
	}
	p.stands[step] = s.d.id
	p.times[step]++
	s.w.changes++
	p.note(s.d, "%s takes effect", step)
	if p.times[step] > 1 && (archive.Irreversible(step) || !propTampered(s.d)) {
		s.w.fault(p, "%s took effect %d times", step, p.times[step])
	}
	if archive.Commits(step) && len(p.undone) > 0 {
		s.w.fault(p, "%s takes effect after a participant has undone its part", step)
	}
	return nil
}

// Undo takes back what this daemon has brought about.
func (s *propSteps) Undo(ctx context.Context, j *daemon.Job, _ pb.CleanupPolicy) error {
	p, leave := s.enter(j, "undo")
	defer leave()
	if s.w.chance(15) {
		return &daemon.StepError{Detail: valid.Detail(pb.ErrorCode_ERROR_CODE_BACKEND_UNAVAILABLE, "not now")}
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if j.Committed || j.Record != nil {
		s.w.fault(p, "a committed job is undone at %s", s.d.name)
	}
	for _, step := range []pb.JobStep{pb.JobStep_JOB_STEP_COMMIT, pb.JobStep_JOB_STEP_RELEASE} {
		at, there := p.stands[step]
		if there && !propTampered(s.d) {
			s.w.fault(p, "%s is undone after %s", s.d.name, step)
		}
		if there && at == s.d.id {
			return &daemon.Held{Detail: valid.Detail(pb.ErrorCode_ERROR_CODE_STATE_LOST, "the job has taken effect here and no record of it is there")}
		}
	}
	for step, at := range p.stands {
		if at == s.d.id {
			delete(p.stands, step)
		}
	}
	p.undone[s.d.id] = true
	p.note(s.d, "undone")
	return nil
}

// Close removes the job's own files.
func (s *propSteps) Close(ctx context.Context, j *daemon.Job) error {
	p, leave := s.enter(j, "close")
	defer leave()
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if ctx.Err() == nil {
		p.closed[s.d.id] = true
	}
	return context.Cause(ctx)
}

func propSum(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])
}

// evidence proves a step. Except for times of verification it is the same each time.
func (s *propSteps) evidence(t *daemon.Task) *pb.StepEvidence {
	def, x := t.Job.Definition, t.Execute
	manifest, name := propSum("manifest", t.Job.ID.String()), def.GetSource().GetResourceId()
	switch x.GetStep() {
	case pb.JobStep_JOB_STEP_STAGE:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Stage{Stage: &pb.StageEvidence{JobDir: t.Job.ID.String(), ManifestSha256: manifest,
			ManifestBytes: 1, PayloadFiles: 1, ContentRevision: x.GetStage().GetExpectedContentRevision()}}}
	case pb.JobStep_JOB_STEP_TRANSFER:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Transfer{Transfer: &pb.TransferEvidence{JobDir: x.GetTransfer().GetJobDir(),
			ManifestSha256: x.GetTransfer().GetManifestSha256(), Files: 1}}}
	case pb.JobStep_JOB_STEP_MATERIALIZE:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Materialize{Materialize: &pb.MaterializeEvidence{
			ProvenanceSha256: propSum("provenance", t.Job.ID.String()), FilesCreated: 1}}}
	case pb.JobStep_JOB_STEP_VERIFY:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Verify{Verify: &pb.VerifyEvidence{Level: pb.VerifyLevel_VERIFY_LEVEL_STANDARD,
			FilesChecked: 1, BackendConfirmed: true, ManifestSha256: x.GetVerify().GetManifestSha256(), ContentRevision: propRevision(name),
			VerifiedAt: timestamppb.New(s.w.clock.Now())}}}
	case pb.JobStep_JOB_STEP_COMMIT:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Commit{Commit: &pb.CommitEvidence{CommitId: propCommitID(t.Job.ID).String(),
			JobId: t.Job.ID.String(), ClientId: s.d.id.String(), VerifyEvidenceSha256: x.GetCommit().GetVerifyEvidenceSha256(),
			Resource: propResource(s.d.id, name), ContentRevision: propRevision(name), ActivatedAt: def.GetCreatedAt(),
			ActivationState: pb.BackendState_BACKEND_STATE_NOT_MANAGED}}}
	case pb.JobStep_JOB_STEP_RELEASE:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Release{Release: &pb.ReleaseEvidence{ReleasedResourceId: name, TrashEntries: 1,
			ReleasedAt: def.GetCreatedAt()}}}
	default:
		return &pb.StepEvidence{Evidence: &pb.StepEvidence_Purge{Purge: &pb.PurgeEvidence{EntriesRemoved: 1}}}
	}
}

// propInventory is the content of one machine: what it had at first, and what the jobs have made of it.
type propInventory struct {
	w     *propWorld
	d     *propDaemon
	names []string
}

func propRevision(name string) string { return propSum("revision", name) }

func propResource(client uuid.UUID, name string) *pb.ResourceRef {
	return &pb.ResourceRef{ClientId: client.String(), ResourceId: name,
		Identity: &pb.ResourceIdentity{TreeFingerprint: propSum("tree", name), DisplayName: name}}
}

// present are the resources that are there, and a token of the list.
func (v *propInventory) present() ([]string, string) {
	v.w.mu.Lock()
	defer v.w.mu.Unlock()
	there := map[string]bool{}
	for _, name := range v.names {
		there[name] = true
	}
	for _, p := range v.w.jobs {
		name := p.definition.GetSource().GetResourceId()
		if p.stands[pb.JobStep_JOB_STEP_COMMIT] == v.d.id {
			there[name] = true
		}
		if p.stands[pb.JobStep_JOB_STEP_RELEASE] == v.d.id {
			delete(there, name)
		}
	}
	var names []string
	for name := range there {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, propSum(names...)
}

// ListResources implements daemon.Inventory.
func (v *propInventory) ListResources(context.Context) (*backend.Listing, error) {
	names, token := v.present()
	list := &backend.Listing{Token: token}
	for _, name := range names {
		list.Resources = append(list.Resources, &pb.ResourceSummary{Resource: propResource(v.d.id, name), ContentRevision: propRevision(name),
			LogicalBytes: 1, SelectedBytes: 1, CompletedSelectedBytes: 1, FileCount: 1, BackendState: pb.BackendState_BACKEND_STATE_NOT_MANAGED,
			ContentRootId: propContent, AddedAt: timestamppb.New(epoch)})
	}
	return list, nil
}

// ContentTree implements daemon.Inventory.
func (v *propInventory) ContentTree(_ context.Context, name string, _ backend.TreeOptions) (*backend.Tree, error) {
	if names, _ := v.present(); !slices.Contains(names, name) {
		return nil, backend.Fail("NOT_FOUND", "there is no resource %q", name)
	}
	return &backend.Tree{Header: &pb.ContentTree{Resource: propResource(v.d.id, name), ContentRevision: propRevision(name),
		BackendState: pb.BackendState_BACKEND_STATE_NOT_MANAGED,
		Totals:       &pb.ContentTotals{Logical: 1, Selected: 1, CompletedSelected: 1, Allocated: 1, FileCount: 1}},
		Location: backend.Location{RootID: propContent}, Files: propFiles(name)}, nil
}

// propFiles is the only file of a resource.
type propFiles string

func (propFiles) Len() int { return 1 }

func (f propFiles) DiskPath(int) string { return string(f) }

func (f propFiles) Entry(int) *pb.FileEntry {
	return &pb.FileEntry{Path: string(f), Kind: pb.FileKind_FILE_KIND_REGULAR, LogicalBytes: 1, AllocatedBytes: 1, CompletedBytes: 1,
		Selected: true, DiskBytes: 1, Mtime: timestamppb.New(epoch), LinkCount: 1, Present: pb.DiskPresence_DISK_PRESENCE_FINAL_NAME,
		ContentRevision: propRevision(string(f))}
}

// propRoute is a kind of route that always works.
type propRoute struct{}

func (propRoute) Check(*pb.Route, pb.ParticipantRole) *pb.ErrorDetail { return nil }

func (propRoute) Probe(_ context.Context, p daemon.RouteProbe) (*pb.ProbeResult, error) {
	return &pb.ProbeResult{NonceSeen: p.Nonce, Sha256: propSum("probe", p.Nonce), SameFilesystem: true, FreeBytes: 1 << 40, SparseOk: true,
		NoreplaceRenameOk: true, DurableRename: true, Profile: &pb.FilesystemProfile{CaseSensitive: true, NormalizationPreserving: true,
			MaxFileBytes: 1 << 40, MaxNameBytes: 255, SupportsSparse: true, SupportsHardlink: true, SupportsNoreplaceRename: true}}, nil
}

func (propRoute) Remove(context.Context, daemon.RouteProbe, bool) error { return nil }
