package job_test

import (
	"testing"
	"time"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// TestWaitsEndAfterTheClockWasSetBack sets control's clock back by a day under a job that waits: it waits for as long as it
// was meant to, not until the clock has caught up; and it is the same when the process starts after that.
func TestWaitsEndAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		restart bool
		back    time.Duration
		within  time.Duration
	}{{"while it runs", false, 24 * time.Hour, 5 * time.Minute}, {"before it starts", true, 30 * 24 * time.Hour, 24 * time.Hour}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			id := r.begin()
			r.assignAll()
			r.nas.reject(r.nas.one(archive.ExecuteStep), pb.ErrorCode_ERROR_CODE_BUSY)
			r.in(id, waiting, pb.WaitReason_WAIT_REASON_RETRY_BACKOFF)
			r.run()
			r.clk.Advance(-tc.back)
			if tc.restart {
				r.restart()
				r.nas.register()
				r.vault.register()
			}
			r.run()
			if left := r.show(id).RetryAt.Sub(r.clk.Now()); left > tc.within {
				t.Fatalf("the job waits for another %v", left)
			}
			r.clk.Advance(tc.within)
			r.run()
			if c := r.nas.one(archive.ExecuteStep); c.GetExecuteStep().GetStepAttempt() != 2 {
				t.Fatalf("attempt %d", c.GetExecuteStep().GetStepAttempt())
			}
		})
	}
}

// TestRetentionAfterTheClockWasSetBack releases content by a clock that is a year ahead: PURGE comes a whole retention after
// the clock is right, neither a year later nor before.
func TestRetentionAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * time.Hour
	r := newRig(t)
	id := r.move()
	r.clk.Advance(year)
	r.vault.step(id, verify)
	r.nas.step(id, release)
	r.in(id, waiting, pb.WaitReason_WAIT_REASON_RETENTION)
	r.run()
	r.clk.Advance(-year)
	r.run()
	d := r.in(id, waiting, pb.WaitReason_WAIT_REASON_RETENTION)
	if left := d.RetainUntil.Sub(r.clk.Now()); left != archive.DefaultTrashRetention || !d.RetryAt.Equal(d.RetainUntil) {
		t.Fatalf("retained for %v, looked at %v", left, d.RetryAt)
	}
	r.clk.Advance(archive.DefaultTrashRetention - time.Second)
	r.run()
	r.nas.nothing()
	r.clk.Advance(time.Second)
	r.run()
	r.nas.step(id, purge)
	r.in(id, completed)
}

// TestVerificationOfTheFuture is one that was made before the clock was set back: nobody knows how old it is, so it does not
// count.
func TestVerificationOfTheFuture(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.move()
	r.vault.step(id, verify)
	r.nas.offline()
	r.clk.Advance(-time.Hour)
	r.nas.register()
	r.nas.nothing()
	r.run()
	if e := r.vault.one(archive.ExecuteStep).GetExecuteStep(); e.GetStep() != verify || e.GetStepAttempt() != 2 {
		t.Fatalf("%v", e)
	}
}
