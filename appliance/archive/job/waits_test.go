package job_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/job"
	"signalbox/appliance/fault"
)

func TestHeldIsResolvedByAPerson(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		decision job.Decision
		state    pb.JobState
		action   string
	}{{job.Complete, completed, "archive.job.complete"}, {job.Abandon, failed, "archive.job.abandon"}} {
		t.Run(string(tc.decision), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			id := r.begin()
			r.upTo(id, materialize)
			r.vault.accept(r.vault.one(archive.ExecuteStep))
			r.vault.does(id, heldEvent)
			d := r.in(id, manual)
			if d.Error.GetCode() != pb.ErrorCode_ERROR_CODE_STATE_LOST || len(d.Reservations) == 0 {
				t.Fatalf("%v", d.Error)
			}
			c := r.nas.one(archive.ReconcileJob)
			if c.GetReconcileJob().GetDisposition() != pb.ReconcileDisposition_RECONCILE_DISPOSITION_HOLD {
				t.Fatalf("%v", c)
			}
			r.nas.accept(c)
			r.vault.nothing()
			r.wants("cancel", r.eng.Cancel(r.ctx(), id, "", job.By{}), fault.Conflict, "MANUAL")
			r.wants("no reason", r.eng.Resolve(r.ctx(), id, tc.decision, "", job.By{}), fault.Invalid, "reason")
			r.wants("no decision", r.eng.Resolve(r.ctx(), id, "forget", "x", job.By{}), fault.Invalid, "decision")
			r.ok("resolve", r.eng.Resolve(r.ctx(), id, tc.decision, "looked at both machines", job.By{Principal: "ann"}))
			d = r.in(id, tc.state)
			if !d.ByPerson || len(d.Reservations) == 0 || r.audited(tc.action, id) != 1 {
				t.Fatalf("%+v", d.Job)
			}
			for _, a := range []*actor{r.nas, r.vault} {
				c := a.one(archive.ReconcileJob)
				if c.GetReconcileJob().GetDisposition() != pb.ReconcileDisposition_RECONCILE_DISPOSITION_ABANDON {
					t.Fatalf("%v", c)
				}
				a.accept(c)
			}
			if d = r.in(id, tc.state); len(d.Reservations) != 0 {
				t.Fatalf("reserved: %v", d.Reservations)
			}
		})
	}
}

func TestHeldIsResumed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.upTo(id, materialize)
	r.vault.accept(r.vault.one(archive.ExecuteStep))
	r.vault.does(id, heldEvent)
	r.nas.accept(r.nas.one(archive.ReconcileJob))
	r.ok("resume", r.eng.Resolve(r.ctx(), id, job.Resume, "the disk was back", job.By{Principal: "ann"}))
	r.in(id, waiting, pb.WaitReason_WAIT_REASON_RECONCILING)
	for _, a := range []*actor{r.nas, r.vault} {
		c := a.one(archive.ReconcileJob)
		if c.GetReconcileJob().GetDisposition() != pb.ReconcileDisposition_RECONCILE_DISPOSITION_RESUME {
			t.Fatalf("%v", c)
		}
		a.accept(c)
	}
	r.in(id, running)
	r.vault.step(id, materialize)
	r.vault.step(id, verify)
	r.vault.step(id, commit)
	r.in(id, completed)
}

func TestOfflineAndBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.assignAll()
	r.nas.accept(r.nas.one(archive.ExecuteStep))
	r.nas.does(id, startedEvent)
	r.vault.offline()
	r.in(id, running) // it need not act now
	r.nas.offline()
	d := r.in(id, waiting, pb.WaitReason_WAIT_REASON_CLIENT_OFFLINE)
	if d.Kept != running || d.Explanation.WaitsFor != "daemon nas" {
		t.Fatalf("%v %q", d.Kept, d.Explanation.WaitsFor)
	}
	// It went on working.
	ev := r.nas.emit(id, completedEvent)
	r.nas.register()
	r.vault.register()
	r.in(id, waiting, pb.WaitReason_WAIT_REASON_RECONCILING)
	// The daemon is ahead: control asks for a snapshot.
	r.nas.accept(r.nas.one(archive.RequestJobSnapshot))
	r.nas.snapshot(id)
	r.in(id, running)
	r.nas.take()
	if len(r.nas.acks) == 0 || !r.nas.acks[len(r.nas.acks)-1].GoAhead || r.nas.acks[len(r.nas.acks)-1].PersistedThrough != ev.Sequence {
		t.Fatalf("acks %v", r.nas.acks)
	}
	r.vault.step(id, transfer)
}

func TestQuickReconnectResumesByGoAhead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.assignAll()
	r.nas.accept(r.nas.one(archive.ExecuteStep))
	r.nas.does(id, startedEvent)
	r.nas.register()
	r.in(id, running)
	r.nas.nothing()
	if len(r.nas.acks) != 1 || !r.nas.acks[0].GoAhead {
		t.Fatalf("acks %v", r.nas.acks)
	}
	// It is repeated while a lease is open and nothing of the job has come.
	r.clk.Advance(14 * time.Second)
	r.nas.nothing()
	if len(r.nas.acks) != 1 {
		t.Fatalf("acks %v", r.nas.acks)
	}
	w := r.hub.Watch(archive.DaemonKey(r.nas.no()))
	defer w.Stop()
	r.clk.Advance(time.Second)
	r.run()
	select {
	case <-w.C():
	default:
		t.Fatal("nobody was woken for the repetition")
	}
	r.nas.nothing()
	if len(r.nas.acks) != 2 {
		t.Fatalf("acks %v", r.nas.acks)
	}
	r.nas.does(id, progressEvent)
	r.clk.Advance(time.Minute)
	r.nas.nothing()
	r.clk.Advance(time.Minute)
	r.nas.nothing()
	if len(r.nas.acks) > 3 {
		t.Fatalf("acks %v", r.nas.acks)
	}
}

func TestLateAcknowledgement(t *testing.T) { // failure table row 44
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.assignAll()
	c := r.nas.one(archive.ExecuteStep)
	for range 2 {
		r.clk.Advance(15 * time.Second)
		if again := r.nas.one(archive.ExecuteStep); again.CommandId != c.CommandId {
			t.Fatal("another id")
		}
	}
	r.clk.Advance(15 * time.Second)
	r.nas.nothing()
	d := r.in(id, waiting, pb.WaitReason_WAIT_REASON_COMMAND_UNACKED)
	if !strings.Contains(strings.Join(d.Explanation.Sentences, "\n"), "3 times, as often as allowed") {
		t.Fatalf("%q", d.Explanation.Sentences)
	}
	r.clk.Advance(time.Hour)
	r.nas.nothing()
	r.nas.accept(c)
	r.in(id, running)
	r.nas.does(id, startedEvent)
	r.nas.does(id, completedEvent)
	r.vault.step(id, transfer)
}

func TestUnansweredCommandIsGrantedSends(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.assignAll()
	c := r.nas.one(archive.ExecuteStep)
	for range 3 {
		r.clk.Advance(15 * time.Second)
		r.nas.take()
	}
	r.in(id, waiting, pb.WaitReason_WAIT_REASON_COMMAND_UNACKED)
	r.ok("retry", r.eng.Retry(r.ctx(), id, 2, job.By{Principal: "ann"}))
	r.in(id, running)
	r.clk.Advance(15 * time.Second)
	if again := r.nas.one(archive.ExecuteStep); again.CommandId != c.CommandId || again.Attempt != 4 {
		t.Fatalf("%v", again)
	}
}

func TestCommandConflictHolds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.assignAll()
	c := r.nas.one(archive.ExecuteStep)
	ack := r.nas.take1(c)
	ack.PayloadSha256 = strings.Repeat("0", 64)
	r.nas.send(ack)
	r.in(id, manual)
	if r.alerts(id, archive.AlertCommandConflict) == 0 {
		t.Fatal("no alert")
	}
}

func TestBusyStepIsTriedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.assignAll()
	r.nas.reject(r.nas.one(archive.ExecuteStep), pb.ErrorCode_ERROR_CODE_BUSY)
	d := r.in(id, waiting, pb.WaitReason_WAIT_REASON_RETRY_BACKOFF)
	r.clk.Advance(d.RetryAt.Sub(r.clk.Now()))
	r.run()
	c := r.nas.one(archive.ExecuteStep)
	if c.GetExecuteStep().GetStepAttempt() != 2 {
		t.Fatalf("attempt %d", c.GetExecuteStep().GetStepAttempt())
	}
}

// A CancelJob that crossed an event is refused as stale: another one is sent at once, with the cursor behind the event. Only a
// refusal that names the very cursor that control has waits, as it would be refused again.
func TestCancelThatCrossedAnEventIsSentAgainAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.assignAll()
	r.nas.accept(r.nas.one(archive.ExecuteStep))
	r.nas.does(id, startedEvent)
	r.ok("cancel", r.eng.Cancel(r.ctx(), id, "no", job.By{Principal: "ann"}))
	first := r.nas.one(archive.CancelJob)
	r.nas.does(id, progressEvent)
	r.nas.reject(first, pb.ErrorCode_ERROR_CODE_STALE_SEQUENCE)
	r.in(id, cancelling)
	second := r.nas.one(archive.CancelJob)
	if second.GetPrecondition().GetExpectedLastEventSequence() != first.GetPrecondition().GetExpectedLastEventSequence()+1 {
		t.Fatalf("the second expects %v after %v", second.GetPrecondition(), first.GetPrecondition())
	}
	r.nas.reject(second, pb.ErrorCode_ERROR_CODE_STALE_SEQUENCE)
	d := r.in(id, waiting, pb.WaitReason_WAIT_REASON_RETRY_BACKOFF)
	r.nas.nothing()
	r.clk.Advance(d.RetryAt.Sub(r.clk.Now()))
	r.run()
	r.nas.accept(r.nas.one(archive.CancelJob))
}

func TestUnsupportedStepFailsTheJob(t *testing.T) { // failure table row 52
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.assignAll()
	r.nas.reject(r.nas.one(archive.ExecuteStep), pb.ErrorCode_ERROR_CODE_UNSUPPORTED)
	r.in(id, cancelling)
	r.nas.accept(r.nas.one(archive.CancelJob))
	r.nas.does(id, cancelledEvent)
	r.vault.accept(r.vault.one(archive.CancelJob))
	r.vault.does(id, cancelledEvent)
	r.in(id, failed)
}

func TestResolvingClearsTheAlerts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.staging()
	r.nas.does(id, heldEvent)
	r.in(id, manual)
	open := func() int64 {
		return r.number(`SELECT count(*) FROM archive_alerts WHERE job_no = (SELECT job_no FROM archive_jobs WHERE id = ?)
			AND cleared_at IS NULL`, id)
	}
	if open() == 0 {
		t.Fatal("a held job raises no alert")
	}
	r.ok("abandon", r.eng.Resolve(r.ctx(), id, job.Abandon, "gone", job.By{Principal: "ann"}))
	if n := open(); n != 0 {
		t.Fatalf("%d alerts are open", n)
	}
}

// An alert about a job that has ended has nobody to do anything about it.
func TestEndOfAJobClosesItsAlerts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.upTo(id, materialize)
	open := func() int64 {
		return r.number(`SELECT count(*) FROM archive_alerts WHERE job_no = (SELECT job_no FROM archive_jobs WHERE id = ?)
			AND cleared_at IS NULL`, id)
	}
	r.exec(`INSERT INTO archive_alerts (daemon_no, job_no, kind, detail, raised_at, last_at)
		SELECT ?, job_no, 'state_lost', 'the database came anew', 1, 1 FROM archive_jobs WHERE id = ?`, r.vault.no(), id)
	r.vault.step(id, materialize)
	r.vault.step(id, verify)
	if open() != 1 {
		t.Fatal("the alert was closed while the job went on")
	}
	r.vault.step(id, commit)
	if d := r.in(id, completed); open() != 0 || d.Permille != 1000 {
		t.Fatalf("%d alerts are open at %d ‰", open(), d.Permille)
	}
}

// A move whose second half fails is one that did not happen: a person must know. It is over when another eviction ends well.
func TestFailedEndOfAMoveIsAnAlert(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id, err := r.eng.Start(r.ctx(), r.preview(r.request(), r.checks.def), job.StartOptions{EvictAfter: true}, job.By{Principal: "ann"})
	r.ok("start", err)
	r.run()
	r.upTo(id, commit)
	r.checks.out = []job.Outcome{{Error: &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, Message: "another torrent uses a file"}}}
	r.vault.step(id, commit)
	r.in(id, completed)
	r.nas.accept(r.nas.one(archive.CloseJob))
	r.vault.accept(r.vault.one(archive.CloseJob))
	r.run()
	list, err := r.eng.List(r.ctx(), job.Filter{Operation: pb.JobOperation_JOB_OPERATION_EVICT}, "", 10)
	r.ok("list", err)
	if len(list.Jobs) != 1 || list.Jobs[0].State != failed {
		t.Fatalf("%+v", list.Jobs)
	}
	if n := r.alerts(id, archive.AlertMoveUnfinished); n != 1 {
		t.Fatalf("%d alerts about the move", n)
	}
	req := job.Request{Operation: pb.JobOperation_JOB_OPERATION_EVICT, Source: r.nas.id, Target: r.vault.id, ResourceID: "film", Parent: id}
	def := evictOf(r.checks.def, &pb.CommitEvidence{JobId: id.String()})
	second, err := r.eng.Start(r.ctx(), r.preview(req, def), job.StartOptions{}, job.By{Principal: "ann"})
	r.ok("start", err)
	r.run()
	r.assignAll()
	r.vault.step(second, verify)
	r.nas.step(second, release)
	d := r.in(second, waiting, pb.WaitReason_WAIT_REASON_RETENTION)
	r.clk.Advance(d.RetryAt.Sub(r.clk.Now()))
	r.run()
	r.nas.step(second, purge)
	r.in(second, completed)
	if n := r.number(`SELECT count(*) FROM archive_alerts WHERE kind = ? AND cleared_at IS NULL`, string(archive.AlertMoveUnfinished)); n != 0 {
		t.Fatalf("%d alerts are open", n)
	}
}

// TestJobThatCannotBeReadKeepsNobodyWaiting has one job fail every time that its wait should end.
func TestJobThatCannotBeReadKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	broken := r.begin()
	r.assignAll()
	r.nas.accept(r.nas.one(archive.ExecuteStep))
	r.nas.does(broken, startedEvent)
	r.nas.does(broken, failedEvent)
	r.checks.def.Source.ResourceId, r.checks.def.Source.Identity = "song", &pb.ResourceIdentity{InfohashV1: strings.Repeat("2", 40), DisplayName: "Song"}
	id := r.begin()
	r.assignAll()
	r.nas.accept(r.nas.one(archive.ExecuteStep))
	r.nas.does(id, startedEvent)
	r.nas.does(id, failedEvent)
	r.exec(`UPDATE archive_jobs SET error = x'ff' WHERE id = ?`, broken)
	r.clk.Advance(time.Minute)
	r.run()
	r.in(id, running)
	if len(r.seen.failed) == 0 {
		t.Fatal("nobody was told")
	}
}

func TestAdoptRunsAtTheTargetAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	def := r.checks.def
	def.Operation, def.RouteId, def.Baseline = pb.JobOperation_JOB_OPERATION_ADOPT, "", nil
	def.Source.ClientId = r.vault.id.String()
	req := r.request()
	req.Source, req.Route = r.vault.id, uuid.Nil
	id, err := r.eng.Start(r.ctx(), r.preview(req, def), job.StartOptions{}, job.By{Principal: "ann"})
	r.ok("start", err)
	r.run()
	r.nas.nothing()
	r.vault.accept(r.vault.one(archive.AssignJob))
	c := r.vault.one(archive.ExecuteStep)
	if m := c.GetExecuteStep().GetMaterialize(); m.GetAdoptContentRevision() != hex64 || m.GetManifestSha256() != "" || m.GetJobDir() != "" {
		t.Fatalf("%v", m)
	}
	r.vault.accept(c)
	r.vault.does(id, startedEvent)
	r.vault.does(id, completedEvent)
	r.vault.step(id, verify)
	r.vault.step(id, commit)
	if d := r.in(id, completed); len(d.Participants) != 1 || d.Permille != 1000 {
		t.Fatalf("%+v", d.Job)
	}
	r.vault.accept(r.vault.one(archive.CloseJob))
	r.nas.nothing()
}
