package job_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/job"
)

const (
	resume  = pb.ReconcileDisposition_RECONCILE_DISPOSITION_RESUME
	restore = pb.ReconcileDisposition_RECONCILE_DISPOSITION_RESTORE_DEFINITION
	hold    = pb.ReconcileDisposition_RECONCILE_DISPOSITION_HOLD
	abandon = pb.ReconcileDisposition_RECONCILE_DISPOSITION_ABANDON
)

func (a *actor) part(id uuid.UUID) *part { return a.jobs[id.String()] }

// reconciles takes exactly one ReconcileJob of the disposition and accepts it.
func (a *actor) reconciles(d pb.ReconcileDisposition) *pb.ReconcileJobCommand {
	a.r.t.Helper()
	c := a.one(archive.ReconcileJob)
	if got := c.GetReconcileJob().GetDisposition(); got != d {
		a.r.t.Fatalf("%s is told %v, want %v", a.name, got, d)
	}
	a.accept(c)
	return c.GetReconcileJob()
}

// ruled fails the test unless the row decided since the mark.
func (r *rig) ruled(mark int, row string) {
	r.t.Helper()
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	if !slices.Contains(r.seen.rows[mark:], row) {
		r.t.Fatalf("decided by %v, want %s", r.seen.rows[mark:], row)
	}
}

func (r *rig) mark() int {
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	return len(r.seen.rows)
}

// committed brings a job to the end of COMMIT at the target, with its last event not delivered.
func (r *rig) committed() (uuid.UUID, *pb.JobEvent) {
	r.t.Helper()
	id := r.begin()
	r.upTo(id, commit)
	r.vault.accept(r.vault.one(archive.ExecuteStep))
	r.vault.does(id, startedEvent)
	return id, r.vault.emit(id, completedEvent)
}

// staging brings a job into STAGE at the source.
func (r *rig) staging() uuid.UUID {
	r.t.Helper()
	id := r.begin()
	r.assignAll()
	r.nas.accept(r.nas.one(archive.ExecuteStep))
	r.nas.does(id, startedEvent)
	return id
}

// TestReconciliation covers the rows of daemon protocol 4.2, each as a registration on a real database.
func TestReconciliation(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		row string
		run func(t *testing.T, r *rig)
	}{
		{"4.2/1", func(t *testing.T, r *rig) { // digests differ
			id := r.staging()
			r.nas.part(id).cursor.DefinitionSha256 = strings.Repeat("0", 64)
			r.nas.register()
			if d := r.in(id, manual); len(d.Reservations) == 0 || d.Error.GetCode() != pb.ErrorCode_ERROR_CODE_UNSAFE_STATE {
				t.Fatalf("%v %v", d.Reservations, d.Error)
			}
			r.nas.reconciles(hold)
			r.vault.reconciles(hold)
			r.in(id, manual)
		}},
		{"4.2/1a", func(t *testing.T, r *rig) { // ended at the daemon, active here
			id := r.staging()
			c := r.nas.part(id).cursor
			c.State, c.OpenCommandIds, c.ActiveStep = failed, nil, 0
			r.nas.register()
			d := r.in(id, manual)
			r.vault.reconciles(hold)
			r.nas.nothing()
			r.wants("resume", r.eng.Resolve(r.ctx(), id, job.Resume, "x", job.By{}), "conflict", "has ended at a daemon")
			if strings.Contains(d.Explanation.NextAction, "resume") { // what would be refused is not offered
				t.Fatalf("%+v", d.Explanation)
			}
		}},
		{"4.2/2", func(t *testing.T, r *rig) { // committed, unknown here
			id := uuid.New()
			r.vault.jobs[id.String()] = &part{commands: map[string]*pb.CommandRecord{}, steps: map[string]pb.JobStep{},
				cursor: &pb.JobCursor{JobId: id.String(), Revision: 9, LastEventSequence: 12, State: assigned, Committed: true, Role: r.vault.role,
					DefinitionSha256: hex64, CommitEvidenceSha256: hex64}}
			r.vault.register()
			d := r.in(id, manual)
			if !d.Placeholder || !d.Committed || r.alerts(id, archive.AlertPlaceholder) != 1 {
				t.Fatalf("%+v", d.Job)
			}
			if got := r.vault.reply.ControlCursors; len(got) != 1 || got[0].JobId != id.String() {
				t.Fatalf("%v", got)
			}
			r.vault.reconciles(hold)
			r.wants("resume", r.eng.Resolve(r.ctx(), id, job.Resume, "x", job.By{}), "conflict", "no definition")
			r.ok("complete", r.eng.Resolve(r.ctx(), id, job.Complete, "it is there", job.By{Principal: "ann"}))
			r.vault.reconciles(abandon)
			r.in(id, completed)
		}},
		{"4.2/3", func(t *testing.T, r *rig) { // not committed, unknown here
			id := uuid.New()
			r.nas.jobs[id.String()] = &part{commands: map[string]*pb.CommandRecord{}, steps: map[string]pb.JobStep{},
				cursor: &pb.JobCursor{JobId: id.String(), Revision: 2, LastEventSequence: 1, State: assigned, Role: r.nas.role, DefinitionSha256: hex64}}
			r.nas.register()
			if d := r.in(id, failed); !d.Placeholder {
				t.Fatalf("%+v", d.Job)
			}
			if m := r.nas.reconciles(abandon); m.Authoritative.State != failed {
				t.Fatalf("%v", m)
			}
			r.nas.register()
			r.nas.nothing()
		}},
		{"4.2/4", func(t *testing.T, r *rig) { // committed, and COMMIT was never sent
			id := r.begin()
			r.upTo(id, verify)
			r.vault.part(id).cursor.Committed = true
			r.vault.register()
			if d := r.in(id, manual); d.Error.GetCode() != pb.ErrorCode_ERROR_CODE_COMMIT_CONFLICT || !d.Committed ||
				r.alerts(id, archive.AlertCommitConflict) == 0 {
				t.Fatalf("%+v", d.Job)
			}
			r.vault.reconciles(hold)
			r.nas.reconciles(hold)
		}},
		{"4.2/5", func(t *testing.T, r *rig) { // the daemon forgot a commit
			id, ev := r.committed()
			r.vault.deliver(ev)
			r.in(id, completed)
			c := r.vault.part(id).cursor
			c.Committed, c.CommitEvidenceSha256 = false, ""
			r.vault.register()
			if d := r.in(id, manual); len(d.Reservations) == 0 {
				t.Fatal("the identity is not reserved again")
			}
		}},
		{"4.2/6", func(t *testing.T, r *rig) { // other evidence
			id, ev := r.committed()
			r.vault.deliver(ev)
			r.vault.part(id).cursor.CommitEvidenceSha256 = strings.Repeat("c", 64)
			r.vault.register()
			r.in(id, manual)
		}},
		{"4.2/7a", func(t *testing.T, r *rig) { // held here
			id := r.staging()
			r.nas.does(id, heldEvent)
			r.in(id, manual)
			r.vault.register()
			r.in(id, manual)
			r.vault.reconciles(hold)
			r.nas.register()
			r.nas.nothing()
			if d := r.show(id); d.Participants[0].Reported.GetState() != manual {
				t.Fatalf("%v", d.Participants[0].Reported)
			}
		}},
		{"4.2/7b", func(t *testing.T, r *rig) { // undone there, not cancelled here
			id := r.staging()
			c := r.nas.part(id).cursor
			c.State, c.OpenCommandIds, c.ActiveStep = cancelled, nil, 0
			r.nas.register()
			if d := r.in(id, manual); d.Error.GetCode() != pb.ErrorCode_ERROR_CODE_STATE_LOST || !d.Undone {
				t.Fatalf("%+v", d.Job)
			}
			r.wants("resume", r.eng.Resolve(r.ctx(), id, job.Resume, "x", job.By{}), "conflict", "undone")
		}},
		{"4.2/9", func(t *testing.T, r *rig) { // AssignJob not delivered
			id := r.begin()
			r.nas.one(archive.AssignJob)
			r.nas.register()
			r.in(id, assigning)
			c := r.nas.one(archive.AssignJob)
			if c.Attempt != 2 {
				t.Fatalf("attempt %d", c.Attempt)
			}
			r.nas.accept(c)
		}},
		{"4.2/10", func(t *testing.T, r *rig) { // forgotten by the same database
			id := r.staging()
			delete(r.nas.jobs, id.String())
			r.nas.register()
			r.in(id, waiting, pb.WaitReason_WAIT_REASON_RECONCILING)
			m := r.nas.reconciles(restore)
			if m.Definition == nil || len(m.RetireCommandIds) == 0 {
				t.Fatalf("%v", m)
			}
			c := r.nas.one(archive.ExecuteStep)
			if c.GetExecuteStep().GetStep() != stage || c.GetExecuteStep().GetStepAttempt() != 2 {
				t.Fatalf("%v", c)
			}
			r.nas.accept(c)
			r.nas.does(id, startedEvent)
			r.nas.does(id, completedEvent)
			r.vault.step(id, transfer)
		}},
		{"4.2/11", func(t *testing.T, r *rig) { // forgotten with its database, and a COMMIT was out
			id, _ := r.committed()
			delete(r.vault.jobs, id.String())
			r.vault.epoch = uuid.New()
			r.vault.register()
			if d := r.in(id, manual); d.Error.GetCode() != pb.ErrorCode_ERROR_CODE_STATE_LOST {
				t.Fatalf("%v", d.Error)
			}
			r.nas.reconciles(hold)
			r.vault.nothing()
		}},
		{"4.2/12", func(t *testing.T, r *rig) { // held there
			id := r.staging()
			r.nas.part(id).cursor.State = manual
			r.nas.register()
			r.in(id, manual)
			r.nas.nothing()
			r.vault.reconciles(hold)
		}},
		{"4.2/13", func(t *testing.T, r *rig) { // over here, active there (failure table row 53)
			id, ev := r.committed()
			r.nas.offline()
			r.vault.deliver(ev)
			r.in(id, completed)
			r.nas.register()
			r.nas.accept(r.nas.one(archive.CloseJob))
			r.nas.register()
			r.nas.nothing()
			r.in(id, completed)
		}},
		{"4.2/13a", func(t *testing.T, r *rig) { // an acknowledged lease is in no list
			id := r.staging()
			c := r.nas.part(id).cursor
			lease := c.OpenCommandIds[0]
			c.OpenCommandIds, c.ActiveStep, c.State = nil, 0, assigned
			r.nas.register()
			if m := r.nas.reconciles(resume); !slices.Contains(m.RetireCommandIds, lease) {
				t.Fatalf("%v", m)
			}
			r.in(id, running)
			if c := r.nas.one(archive.ExecuteStep); c.GetExecuteStep().GetStepAttempt() != 2 {
				t.Fatalf("%v", c)
			}
		}},
		{"4.2/14", func(t *testing.T, r *rig) { // equal
			id := r.staging()
			r.nas.register()
			r.in(id, running)
			r.nas.nothing()
			r.nas.does(id, completedEvent)
			r.vault.step(id, transfer)
		}},
		{"4.2/15", func(t *testing.T, r *rig) { // ahead in one, behind in the other
			id := r.staging()
			c := r.nas.part(id).cursor
			c.Revision, c.LastEventSequence = c.Revision+5, c.LastEventSequence-1
			r.nas.register()
			r.in(id, manual)
		}},
		{"4.2/16", func(t *testing.T, r *rig) { // control is behind, also by the commit flag alone
			id := r.begin()
			r.upTo(id, commit)
			r.vault.accept(r.vault.one(archive.ExecuteStep))
			r.vault.does(id, startedEvent)
			r.vault.part(id).cursor.Committed = true // after the commit record, before the event
			r.vault.register()
			r.in(id, waiting, pb.WaitReason_WAIT_REASON_RECONCILING)
			r.vault.accept(r.vault.one(archive.RequestJobSnapshot))
			r.vault.snapshot(id)
			if d := r.in(id, running); !d.Committed {
				t.Fatal("the commit flag was not taken over")
			}
			r.wants("cancel", r.eng.Cancel(r.ctx(), id, "", job.By{}), "conflict", "committed")
			r.vault.nothing()
			r.vault.does(id, completedEvent)
			r.in(id, completed)
		}},
		{"4.2/17", func(t *testing.T, r *rig) { // the daemon is behind and has nothing to send
			id := r.staging()
			r.nas.does(id, progressEvent)
			p := r.nas.part(id)
			p.cursor.LastEventSequence--
			p.cursor.OutboxFirstSequence = 0
			p.events = p.events[:1]
			r.nas.register()
			m := r.nas.reconciles(resume)
			if m.Authoritative.LastEventSequence != 2 || len(m.RetireCommandIds) != 1 {
				t.Fatalf("%v", m)
			}
			c := r.nas.one(archive.ExecuteStep)
			r.nas.accept(c)
			r.nas.does(id, startedEvent)
		}},
		{"4.2/18", func(t *testing.T, r *rig) { // behind, with events under numbers that are used
			id := r.staging()
			r.nas.does(id, progressEvent)
			p := r.nas.part(id)
			p.cursor.LastEventSequence--
			p.cursor.OutboxFirstSequence = 1
			r.nas.register()
			r.nas.reconciles(resume)
			r.in(id, running)
		}},
	} {
		t.Run(tc.row, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			mark := r.mark()
			tc.run(t, r)
			r.ruled(mark, tc.row)
		})
	}
}
