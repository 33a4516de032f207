package job_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/job"
)

// move runs a TRANSFER with an EVICT behind it to its end, and returns the EVICT in ASSIGNING.
func (r *rig) move() uuid.UUID {
	r.t.Helper()
	id, err := r.eng.Start(r.ctx(), r.preview(r.request(), r.checks.def), job.StartOptions{EvictAfter: true}, job.By{Principal: "ann"})
	r.ok("start", err)
	r.run()
	r.upTo(id, commit)
	r.vault.step(id, commit)
	r.in(id, completed)
	r.nas.accept(r.nas.one(archive.CloseJob))
	r.vault.accept(r.vault.one(archive.CloseJob))
	page, err := r.eng.List(r.ctx(), job.Filter{Operation: pb.JobOperation_JOB_OPERATION_EVICT}, "", 0)
	r.ok("list", err)
	if len(page.Jobs) != 1 || page.Jobs[0].Parent != id || page.Jobs[0].State != preflightState {
		r.t.Fatalf("%+v", page.Jobs)
	}
	evict := page.Jobs[0].ID
	r.run()
	d := r.in(evict, assigning)
	if d.Definition.GetEviction().GetTargetCommit().GetJobId() != id.String() || len(d.Reservations) == 0 {
		r.t.Fatalf("%v %v", d.Definition, d.Reservations)
	}
	last := r.checks.calls[len(r.checks.calls)-1]
	if last.PreviewID != uuid.Nil || last.Commit == nil || last.Parent == nil {
		r.t.Fatalf("%+v", last)
	}
	r.assignAll()
	return evict
}

func TestMoveEvictsTheSource(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.move()
	r.vault.step(id, verify)
	r.nas.step(id, release)
	d := r.in(id, waiting, pb.WaitReason_WAIT_REASON_RETENTION)
	if left := d.RetryAt.Sub(r.clk.Now()); left != archive.DefaultTrashRetention || !d.RetryAt.Equal(d.RetainUntil) || !d.Committed {
		t.Fatalf("waits %v", left)
	}
	r.nas.nothing()
	r.clk.Advance(archive.DefaultTrashRetention - time.Second)
	r.run()
	r.in(id, waiting)
	r.clk.Advance(time.Second)
	r.restart() // the time is in the database
	r.nas.register()
	r.vault.register()
	r.run()
	r.in(id, running)
	c := r.nas.one(archive.ExecuteStep)
	if p := c.GetExecuteStep().GetPurge(); p.GetNotBefore().AsTime() != d.RetainUntil || len(p.GetReleaseEvidenceSha256()) != 64 {
		t.Fatalf("%v", p)
	}
	r.nas.accept(c)
	r.nas.does(id, startedEvent)
	r.nas.does(id, completedEvent)
	r.in(id, completed)
}

func TestPermanentFailureAfterReleaseIsHeld(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.move()
	r.vault.step(id, verify)
	r.nas.step(id, release)
	r.clk.Advance(archive.DefaultTrashRetention)
	r.run()
	r.nas.accept(r.nas.one(archive.ExecuteStep))
	r.nas.does(id, startedEvent)
	r.nas.does(id, failedEvent, failing(pb.ErrorCode_ERROR_CODE_READ_ERROR))
	if d := r.in(id, manual); len(d.Reservations) == 0 {
		t.Fatal("the reservation is gone")
	}
}

func TestVerificationExpiresBeforeRelease(t *testing.T) { // failure table row 41
	t.Parallel()
	r := newRig(t)
	id := r.move()
	r.vault.step(id, verify)
	// RELEASE is in the database; the source is away for longer than the verification counts.
	r.nas.offline()
	r.in(id, waiting, pb.WaitReason_WAIT_REASON_CLIENT_OFFLINE)
	r.clk.Advance(25 * time.Hour)
	r.nas.register()
	r.nas.nothing()
	r.run()
	r.in(id, running)
	r.nas.nothing()
	c := r.vault.one(archive.ExecuteStep)
	if e := c.GetExecuteStep(); e.GetStep() != verify || e.GetStepAttempt() != 2 {
		t.Fatalf("%v", e)
	}
	r.vault.accept(c)
	r.vault.does(id, startedEvent)
	r.vault.does(id, completedEvent)
	c = r.nas.one(archive.ExecuteStep)
	if e := c.GetExecuteStep(); e.GetStep() != release || e.GetStepAttempt() != 2 {
		t.Fatalf("%v", e)
	}
	r.nas.accept(c)
	r.nas.does(id, startedEvent)
	r.nas.does(id, completedEvent)
	r.in(id, waiting, pb.WaitReason_WAIT_REASON_RETENTION)
}

func TestVerificationExpiresWhileReleaseWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.checks.def.Policies.TrashRetention = durationpb.New(0)
	id := r.move()
	r.vault.step(id, verify)
	r.nas.accept(r.nas.one(archive.ExecuteStep))
	r.nas.does(id, startedEvent)
	r.nas.does(id, failedEvent)
	r.in(id, waiting, pb.WaitReason_WAIT_REASON_RETRY_BACKOFF)
	r.clk.Advance(25 * time.Hour)
	r.run()
	r.nas.nothing()
	r.vault.step(id, verify)
	r.nas.step(id, release)
	r.nas.step(id, purge) // nothing is retained
	r.in(id, completed)
}

func TestReservationsKeepJobsApart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := r.begin()
	second := r.begin() // the same content
	d := r.in(second, waiting, pb.WaitReason_WAIT_REASON_RESOURCE_RESERVED)
	if d.Kept != preflightState || len(d.Reservations) != 0 || !strings.Contains(d.WaitDetail, first.String()) {
		t.Fatalf("%v %v %q", d.Kept, d.Reservations, d.WaitDetail)
	}
	r.ok("cancel", r.eng.Cancel(r.ctx(), first, "", job.By{}))
	for _, a := range []*actor{r.nas, r.vault} {
		for _, c := range a.take() {
			a.reject(c, pb.ErrorCode_ERROR_CODE_NOT_FOUND)
		}
	}
	r.in(first, cancelled)
	r.run()
	r.in(second, assigning)
}

func TestTransferAndItsNeighbourOfAnotherNameShareNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.begin()
	r.checks.def.Source.ResourceId = "song"
	r.checks.def.Source.Identity = &pb.ResourceIdentity{InfohashV2: strings.Repeat("2", 64), DisplayName: "Song"}
	r.in(r.begin(), assigning)
	// Other content under the same destination name.
	r.checks.def.Source.ResourceId = "song2"
	r.checks.def.Source.Identity = &pb.ResourceIdentity{InfohashV2: strings.Repeat("3", 64), DisplayName: "Song"}
	r.in(r.begin(), waiting, pb.WaitReason_WAIT_REASON_RESOURCE_RESERVED)
}

func TestActiveCursorsAreLimited(t *testing.T) { // 3.3 row 4
	t.Parallel()
	r := newRig(t)
	for i := range 16 {
		r.exec(`INSERT INTO archive_jobs (id, operation, source_daemon_no, target_daemon_no, title, request, state, created_at)
			VALUES (randomblob(16), 1, ?, ?, 'filler', '{}', 12, 1)`, r.nas.no(), r.vault.no())
		r.exec(`INSERT INTO archive_participants (job_no, daemon_no, role, decided_generation) VALUES (?, ?, 1, 1)`, i+1, r.nas.no())
	}
	r.exec(`UPDATE daemons SET limits = x'2810' WHERE daemon_no = ?`, r.nas.no()) // max_active_cursors 16
	id := r.begin()
	d := r.in(id, waiting, pb.WaitReason_WAIT_REASON_RESOURCE_RESERVED)
	if !strings.Contains(d.WaitDetail, "takes part in 16 jobs") || len(d.Reservations) != 0 {
		t.Fatalf("%q", d.WaitDetail)
	}
}

func TestEndedJobTakesItsReservationBack(t *testing.T) { // 3.4, last row
	t.Parallel()
	r := newRig(t)
	id, ev := r.committed()
	r.vault.deliver(ev)
	r.in(id, completed)
	r.nas.accept(r.nas.one(archive.CloseJob))
	next := r.begin()
	r.in(next, assigning)
	c := r.vault.part(id).cursor
	c.Committed, c.CommitEvidenceSha256 = false, ""
	r.vault.register()
	r.in(id, manual)
	d := r.in(next, waiting, pb.WaitReason_WAIT_REASON_OPERATOR_HOLD)
	if len(r.show(id).Reservations) == 0 || len(d.Reservations) != 0 && d.Reservations[0].Kind == "infohash_v1" {
		t.Fatalf("%v %v", r.show(id).Reservations, d.Reservations)
	}
}

func TestRouteHoldsTransferBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.upTo(id, transfer)
	r.routes.ready = false
	r.vault.nothing()
	if d := r.show(id); !strings.Contains(strings.Join(d.Explanation.Sentences, "\n"), "The route is not ready: the test says so.") ||
		!strings.Contains(d.Explanation.Summary, "its command is held back") || !strings.Contains(d.Explanation.NextAction, "`signalbox routes test ") {
		t.Fatalf("%+v", d.Explanation)
	}
	held := r.show(id).Commands[len(r.show(id).Commands)-1]
	e, err := r.queue.Explain(r.ctx(), held.ID)
	r.ok("explain", err)
	if e.Waiting != "The route is not ready: the test says so." || e.Job != id || e.Over() || e.Daemon != "vault" {
		t.Fatalf("%+v", e)
	}
	r.routes.reconciled = false // its daemon came with another database, which does not know the route
	if d := r.show(id); !strings.Contains(strings.Join(d.Explanation.Sentences, "\n"), "is not reconciled with the daemon: the test says so.") {
		t.Fatalf("%q", d.Explanation.Sentences)
	}
	r.routes.ready, r.routes.reconciled = true, true
	if d := r.show(id); strings.Contains(d.Explanation.Summary, "held back") {
		t.Fatalf("%+v", d.Explanation)
	}
	for range 2 { // told in the transaction of the change
		r.routes.ready = false
		r.routeChanged()
		r.in(id, waiting, pb.WaitReason_WAIT_REASON_ROUTE_NOT_READY)
		r.vault.nothing()
		r.routes.ready = true
		r.routeChanged()
		r.in(id, running)
	}
	r.vault.accept(r.vault.one(archive.ExecuteStep))
	r.vault.does(id, startedEvent)
	r.routes.ready = false
	r.routeChanged()
	r.in(id, running) // what runs goes on
	r.vault.does(id, failedEvent, failing(pb.ErrorCode_ERROR_CODE_ROUTE_NOT_READY))
	r.in(id, waiting, pb.WaitReason_WAIT_REASON_ROUTE_NOT_READY)
	r.clk.Advance(time.Hour)
	r.run()
	r.in(id, waiting, pb.WaitReason_WAIT_REASON_ROUTE_NOT_READY)
	r.routes.ready = true
	r.routeChanged()
	r.in(id, running)
	r.vault.step(id, transfer)
}

func TestTransferIsNotCommandedBeforeItsRouteIsReady(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.upTo(id, stage)
	r.routes.ready = false
	r.nas.step(id, stage)
	d := r.in(id, waiting, pb.WaitReason_WAIT_REASON_ROUTE_NOT_READY)
	if d.Kept != running || d.Explanation.WaitsFor != "the route" {
		t.Fatalf("%v %+v", d.Kept, d.Explanation)
	}
	r.vault.nothing()
	r.routes.ready = true
	r.routeChanged()
	r.in(id, running)
	r.vault.step(id, transfer)
}
