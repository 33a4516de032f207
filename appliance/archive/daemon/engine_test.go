package daemon_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/valid"
)

func TestAdoptFromAssignmentToClose(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		w := r.accept()
		p := newAdopt()
		p.assigned(w)
		p.done(r, w, materialize)
		p.done(r, w, verify)

		x := p.execute(commit, 1)
		if a := w.accepted(x); a.GetCursor().GetState() != pb.JobState_JOB_STATE_RUNNING || a.GetCursor().GetActiveStep() != commit ||
			len(a.GetCursor().GetOpenCommandIds()) != 1 || a.GetPayloadSha256() != digestOf(x) {
			t.Errorf("ack: %v", a)
		}
		c := r.call("run")
		p.took(w, started)
		ctx := context.Background()
		if e, err := c.job.Evidence(ctx, verify); err != nil || e.GetVerify() == nil {
			t.Errorf("evidence of VERIFY: %v, %v", e, err)
		}
		record := daemon.CommitRecord{CommitID: uuid.New(), Step: commit, VerifyEvidenceSHA256: zeros, Action: []byte("start")}
		for range 2 { // a repetition has no effect
			if err := c.task.Commit(ctx, record); err != nil {
				t.Fatal(err)
			}
		}
		proof := evidence(commit)
		c.end <- result{evidence: proof}
		e := p.took(w, completed)
		if !e.GetCommitted() || e.GetProgress().GetFractionComplete() != 1 || e.GetProgress().GetOverallFractionComplete() != 1 {
			t.Errorf("completed: %v", e)
		}
		a := w.accepted(p.close(true))
		if cur := a.GetCursor(); cur.GetState() != pb.JobState_JOB_STATE_COMPLETED || !cur.GetCommitted() ||
			cur.GetCommitEvidenceSha256() != archive.EvidenceDigest(proof) {
			t.Errorf("cursor after the end: %v", cur)
		}
		r.call("close").end <- result{}
		w.command(p.execute(commit, 2))
		// The job has ended: whatever comes is refused with the cursor it ended with.
		late := w.take("an ack", func(e *pb.Envelope) bool { return e.GetCommandAck() != nil }).GetCommandAck()
		if late.GetError().GetCode() != pb.ErrorCode_ERROR_CODE_UNSAFE_STATE || late.GetCursor().GetState() != pb.JobState_JOB_STATE_COMPLETED {
			t.Errorf("after the end: %v", late)
		}
		r.restart()
		if again := r.accept(); len(again.request.GetActiveJobs()) != 0 {
			t.Errorf("an ended job is listed: %v", again.request.GetActiveJobs())
		}
	})
}

func TestRepeatedCommands(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		w := r.accept()
		p := newAdopt()
		assign := p.assign()
		p.revision = 1
		w.accepted(assign)

		r.restart()
		w = r.accept()
		again := proto.CloneOf(assign)
		again.Attempt = 2
		w.command(again)
		if a := w.ack(again); a.GetStatus() != pb.AckStatus_ACK_STATUS_DUPLICATE || a.GetStoredStatus() != pb.AckStatus_ACK_STATUS_ACCEPTED ||
			a.GetCursor().GetRevision() != 1 || a.GetPayloadSha256() != digestOf(assign) {
			t.Errorf("repetition: %v", a)
		}
		changed := proto.CloneOf(assign)
		changed.IssuedAt.Seconds++
		w.command(changed)
		if a := w.ack(changed); a.GetStatus() != pb.AckStatus_ACK_STATUS_CONFLICT || a.GetError().GetCode() != pb.ErrorCode_ERROR_CODE_COMMAND_CONFLICT {
			t.Errorf("changed payload: %v", a)
		}
		refused := p.execute(commit, 1)
		refused.Precondition.ExpectedRevision = 0
		for i, want := range []pb.AckStatus{pb.AckStatus_ACK_STATUS_REJECTED, pb.AckStatus_ACK_STATUS_DUPLICATE} {
			w.command(refused)
			if a := w.ack(refused); a.GetStatus() != want || a.GetError().GetCode() != pb.ErrorCode_ERROR_CODE_STALE_REVISION {
				t.Errorf("refusal %d: %v", i, a)
			}
		}
		select {
		case c := <-r.steps.calls:
			t.Errorf("a step ran: %s", c.kind)
		default:
		}
	})
}

func TestEventsWaitForTheGoAhead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		w := r.accept()
		p := newAdopt()
		p.assigned(w)
		x := p.execute(materialize, 1)
		w.accepted(x)
		c := r.call("run")
		p.take(w, w.event(started)) // its acknowledgement is lost

		r.cut(w)
		c.end <- result{evidence: evidence(materialize)}
		w = r.redial()
		k := w.request.GetActiveJobs()
		if len(k) != 1 || k[0].GetOutboxFirstSequence() != 1 {
			t.Fatalf("listed: %v", k)
		}
		w.noEvents()
		w.eventAck(p.id, 1, p.revision, false) // an ordinary acknowledgement only empties the outbox
		w.noEvents()
		w.eventAck(p.id, 1, p.revision, true)
		e := p.take(w, w.event(completed))
		// What is not acknowledged within command_retry is sent again, unchanged.
		var again *pb.Envelope
		r.until("the repetition", func() bool {
			again = w.poll(func(x *pb.Envelope) bool { return x.GetJobEvent() != nil })
			return again != nil
		})
		if !proto.Equal(e, again.GetJobEvent()) {
			t.Errorf("sent again as %v, first as %v", again, e)
		}
		w.eventAck(p.id, p.sequence, p.revision, false)
		w.noEvents()
	})
}

func TestLeasesResumeByThemselvesAfterARestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		w := r.accept()
		p := newAdopt()
		p.assigned(w)
		p.done(r, w, materialize)
		p.done(r, w, verify)
		x := p.execute(commit, 1)
		w.accepted(x)
		c := r.call("run")
		p.took(w, started)
		if c.task.Resumed {
			t.Error("the first call is marked as resumed")
		}

		r.restart()
		c = r.call("run") // before any connection
		if !c.task.Resumed || c.task.CommandID.String() != x.GetCommandId() {
			t.Errorf("resumed %v, command %v", c.task.Resumed, c.task.CommandID)
		}
		committed := make(chan error, 1)
		go func() {
			committed <- c.task.Commit(c.ctx, daemon.CommitRecord{CommitID: uuid.New(), Step: commit, VerifyEvidenceSHA256: zeros})
		}()
		w = r.accept()
		if k := w.request.GetActiveJobs(); len(k) != 1 || k[0].GetCommitted() || len(k[0].GetOpenCommandIds()) != 1 {
			t.Fatalf("listed: %v", k)
		}
		w.noEvents()
		select {
		case err := <-committed:
			t.Fatalf("committed without a confirmed lease: %v", err)
		default:
		}
		w.eventAck(p.id, p.sequence, p.revision, true)
		if err := await(t, "the commit", committed); err != nil {
			t.Fatal(err)
		}
		c.end <- result{evidence: evidence(commit)}
		if e := p.took(w, completed); !e.GetCommitted() {
			t.Errorf("completed: %v", e)
		}
	})
}

func TestReleaseNeedsThePresentConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		w := r.accept()
		p := newEvict()
		p.assigned(w)
		w.accepted(p.execute(release, 1))
		c := r.call("run")
		p.took(w, started)
		if err := c.task.Confirmed(c.ctx); err != nil {
			t.Fatal(err)
		}
		r.cut(w)
		w = r.redial() // the daemon has seen the end of the first connection
		asked := make(chan error, 1)
		go func() { asked <- c.task.Confirmed(c.ctx) }()
		w.noEvents()
		select {
		case err := <-asked:
			t.Fatalf("confirmed over a connection that is gone: %v", err)
		default:
		}
		w.eventAck(p.id, p.sequence, p.revision, true)
		if err := await(t, "the confirmation", asked); err != nil {
			t.Fatal(err)
		}
	})
}

func TestStepsThatFail(t *testing.T) {
	t.Parallel()
	detail := valid.Detail(pb.ErrorCode_ERROR_CODE_NO_SPACE, "the disk is full")
	for name, test := range map[string]struct {
		result result
		kind   pb.JobEventKind
		code   pb.ErrorCode
		state  pb.JobState
	}{
		"retryable": {result{err: &daemon.StepError{Detail: detail}}, failed, pb.ErrorCode_ERROR_CODE_NO_SPACE, pb.JobState_JOB_STATE_ASSIGNED},
		"unknown":   {result{err: errors.New("what is this")}, failed, pb.ErrorCode_ERROR_CODE_INTERNAL, pb.JobState_JOB_STATE_ASSIGNED},
		"held": {result{err: &daemon.Held{Detail: valid.Detail(pb.ErrorCode_ERROR_CODE_STATE_LOST, "an effect without a record")}}, held,
			pb.ErrorCode_ERROR_CODE_STATE_LOST, pb.JobState_JOB_STATE_MANUAL},
		"wrong evidence":   {result{evidence: evidence(purge)}, failed, pb.ErrorCode_ERROR_CODE_INTERNAL, pb.JobState_JOB_STATE_ASSIGNED},
		"no evidence":      {result{}, failed, pb.ErrorCode_ERROR_CODE_INTERNAL, pb.JobState_JOB_STATE_ASSIGNED},
		"no commit record": {result{evidence: evidence(release)}, failed, pb.ErrorCode_ERROR_CODE_INTERNAL, pb.JobState_JOB_STATE_ASSIGNED},
		"detail forgotten": {result{err: &daemon.StepError{}}, failed, pb.ErrorCode_ERROR_CODE_INTERNAL, pb.JobState_JOB_STATE_ASSIGNED},
		"held, no detail":  {result{err: &daemon.Held{}}, held, pb.ErrorCode_ERROR_CODE_INTERNAL, pb.JobState_JOB_STATE_MANUAL},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t)
				r.start()
				w := r.accept()
				p := newEvict()
				p.assigned(w)
				w.accepted(p.execute(release, 1))
				c := r.call("run")
				p.took(w, started)
				c.end <- test.result
				e := p.took(w, test.kind)
				if e.GetError().GetCode() != test.code || e.GetState() != test.state {
					t.Errorf("event %v", e)
				}
				next := p.execute(release, 2)
				w.command(next)
				want := pb.AckStatus_ACK_STATUS_ACCEPTED
				if test.kind == held {
					want = pb.AckStatus_ACK_STATUS_REJECTED
				}
				if a := w.ack(next); a.GetStatus() != want {
					t.Errorf("the next attempt: %v", a)
				}
			})
		})
	}
}

func TestCancel(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		w := r.accept()
		p := newAdopt()
		p.assigned(w)
		x := p.execute(materialize, 1)
		w.accepted(x)
		c := r.call("run")
		p.took(w, started)
		cancel := p.cancel()
		a := w.accepted(cancel)
		if cur := a.GetCursor(); cur.GetState() != pb.JobState_JOB_STATE_CANCELLING || cur.GetOpenCommandIds()[0] != cancel.GetCommandId() ||
			len(cur.GetSettledCommandIds()) != 1 || cur.GetSettledCommandIds()[0] != x.GetCommandId() {
			t.Errorf("cursor: %v", cur)
		}
		await(t, "the end of the step's context", c.ctx.Done())
		undo := r.call("undo")
		second := p.cancel()
		w.command(second)
		if a := w.ack(second); a.GetError().GetCode() != pb.ErrorCode_ERROR_CODE_BUSY {
			t.Errorf("a second cancel: %v", a)
		}
		// A passing failure is tried again, also by the next process.
		undo.end <- result{err: &daemon.StepError{Detail: valid.Detail(pb.ErrorCode_ERROR_CODE_UNAVAILABLE, "the root is not mounted")}}
		r.restart()
		r.call("undo").end <- result{}
		w = r.accept()
		w.eventAck(p.id, p.sequence, p.revision, true)
		e := p.took(w, cancelled)
		if e.GetCommandId() != cancel.GetCommandId() || e.GetState() != pb.JobState_JOB_STATE_CANCELLED || e.GetStep() != 0 {
			t.Errorf("event: %v", e)
		}
		for _, c := range []*pb.Command{p.cancel(), p.reconcile(resume), p.execute(materialize, 2)} {
			w.command(c)
			if a := w.ack(c); a.GetError().GetCode() != pb.ErrorCode_ERROR_CODE_UNSAFE_STATE {
				t.Errorf("%s after the cancel: %v", archive.KindOf(c), a)
			}
		}
		if r.steps.most > 1 {
			t.Errorf("%d workers of one job at a time", r.steps.most)
		}
	})
}

func TestCancelAfterTheCommitRecord(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		w := r.accept()
		p := newEvict()
		p.assigned(w)
		x := p.execute(release, 1)
		w.accepted(x)
		c := r.call("run")
		p.took(w, started)
		if err := c.task.Commit(c.ctx, daemon.CommitRecord{CommitID: uuid.New(), Step: release, VerifyEvidenceSHA256: zeros}); err != nil {
			t.Fatal(err)
		}
		for name, cmd := range map[string]*pb.Command{"cancel": p.cancel(), "resume that clears the flag": p.reconcile(resume, x),
			"abandon": p.reconcile(abandon)} {
			w.command(cmd)
			a := w.ack(cmd)
			want := pb.ErrorCode_ERROR_CODE_COMMIT_CONFLICT
			if name == "cancel" {
				want = pb.ErrorCode_ERROR_CODE_UNSAFE_STATE
			}
			if a.GetError().GetCode() != want || !a.GetCursor().GetCommitted() {
				t.Errorf("%s: %v", name, a)
			}
		}
		c.end <- result{evidence: evidence(release)}
		p.took(w, completed)
	})
}

func TestRetirementStopsTheWorkerFirst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		w := r.accept()
		p := newAdopt()
		p.assigned(w)
		x := p.execute(materialize, 1)
		w.accepted(x)
		c := r.call("run")
		p.take(w, w.event(started)) // control never stores it
		p.revision, p.sequence = 1, 0
		early := uuid.NewString() // an ID that is named before it comes
		rec := p.reconcile(resume, x)
		rec.Precondition.ExpectedRevision, rec.Precondition.ExpectedLastEventSequence = 2, 1
		rec.GetReconcileJob().RetireCommandIds = append(rec.GetReconcileJob().RetireCommandIds, early)
		if a := w.accepted(rec); a.GetCursor().GetLastEventSequence() != 0 || a.GetCursor().GetState() != pb.JobState_JOB_STATE_ASSIGNED ||
			len(a.GetCursor().GetOpenCommandIds()) != 0 {
			t.Errorf("cursor: %v", a.GetCursor())
		}
		await(t, "the end of the retired worker", c.ctx.Done())
		if err := c.task.Commit(context.Background(), daemon.CommitRecord{CommitID: uuid.New(), Step: materialize}); err == nil {
			t.Error("a retired worker could commit")
		}
		late := p.execute(materialize, 2)
		late.CommandId = early
		w.command(late)
		if a := w.ack(late); a.GetError().GetCode() != pb.ErrorCode_ERROR_CODE_STALE_LEASE {
			t.Errorf("a command that was retired before it came: %v", a)
		}
		w.accepted(p.execute(materialize, 2))
		c = r.call("run")
		p.took(w, started)
		c.end <- result{evidence: evidence(materialize)}
		p.took(w, completed)
		if r.steps.most > 1 {
			t.Errorf("%d workers of one job at a time", r.steps.most)
		}
	})
}

func TestHoldAndResume(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		w := r.accept()
		p := newAdopt()
		p.assigned(w)
		x := p.execute(materialize, 1)
		w.accepted(x)
		c := r.call("run")
		p.took(w, started)
		a := w.accepted(p.reconcile(hold))
		if cur := a.GetCursor(); cur.GetState() != pb.JobState_JOB_STATE_MANUAL || len(cur.GetOpenCommandIds()) != 1 {
			t.Errorf("held: %v", cur)
		}
		await(t, "the end of the held worker", c.ctx.Done())
		r.restart() // a held job stays held
		w = r.accept()
		if k := w.request.GetActiveJobs()[0]; k.GetState() != pb.JobState_JOB_STATE_MANUAL {
			t.Errorf("listed as %v", k)
		}
		select {
		case c := <-r.steps.calls:
			t.Fatalf("a held job is worked on: %s", c.kind)
		default:
		}
		a = w.accepted(p.reconcile(resume))
		if cur := a.GetCursor(); cur.GetState() != pb.JobState_JOB_STATE_RUNNING || cur.GetOpenCommandIds()[0] != x.GetCommandId() {
			t.Errorf("resumed: %v", cur)
		}
		c = r.call("run")
		if !c.task.Resumed {
			t.Error("the lease began anew")
		}
		c.end <- result{evidence: evidence(materialize)}
		w.eventAck(p.id, p.sequence, p.revision, true)
		p.took(w, completed)
	})
}

func TestCleanUpAfterCloseResumes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		w := r.accept()
		p := newAdopt()
		p.assigned(w)
		p.done(r, w, materialize)
		w.accepted(p.close(true))
		first := r.call("close")
		r.restart() // in the middle of the clean-up
		await(t, "the end of the first call", first.ctx.Done())
		r.call("close").end <- result{}
		w = r.accept()
		w.noEvents()
		r.restart()
		r.accept().noEvents()
		select {
		case c := <-r.steps.calls:
			t.Errorf("the clean-up was repeated after its end: %s", c.kind)
		default:
		}
	})
}

func TestRestoreOfALostJob(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		w := r.accept()
		p := newAdopt()
		p.revision, p.sequence = 9, 12
		lost := &pb.Command{CommandId: uuid.NewString()}
		c := p.reconcile(resume)
		w.command(c)
		if a := w.ack(c); a.GetError().GetCode() != pb.ErrorCode_ERROR_CODE_NOT_FOUND {
			t.Errorf("a RESUME of an unknown job: %v", a)
		}
		w.accepted(p.reconcile(restore, lost))
		late := p.execute(verify, 1)
		late.CommandId = lost.CommandId
		w.command(late)
		if a := w.ack(late); a.GetError().GetCode() != pb.ErrorCode_ERROR_CODE_STALE_LEASE {
			t.Errorf("a retired command: %v", a)
		}
		w.accepted(p.execute(verify, 2))
		worker := r.call("run")
		p.took(w, started)
		worker.end <- result{evidence: evidence(verify)}
		if e := p.took(w, completed); e.GetSequence() != 14 {
			t.Errorf("event %v", e)
		}
	})
}
