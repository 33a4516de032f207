package job_test

import (
	"errors"
	"testing"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/job"
	"signalbox/appliance/fault"
)

// TestPreflightAfterAnUnknownOutcome: the write that had a job wait for its preflight was stored and nobody heard of it, so
// that nobody was told to run the preflight either.
func TestPreflightAfterAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	t.Run("start", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		r.run()
		p := r.preview(r.request(), r.checks.def)
		r.after.Arm(boom, 1)
		if _, err := r.eng.Start(r.ctx(), p, job.StartOptions{}, job.By{Principal: "ann"}); !fault.Is(err, fault.OutcomeUnknown) {
			t.Fatal(err)
		}
		r.ok("work", r.eng.WorkOn(r.ctx()))
		if n := r.number(`SELECT count(*) FROM archive_jobs WHERE state = ?`, assigning); n != 1 {
			t.Errorf("%d jobs are being assigned", n)
		}
	})
	t.Run("registration", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		r.checks.out = []job.Outcome{{Wait: pb.WaitReason_WAIT_REASON_CLIENT_OFFLINE, Error: &pb.ErrorDetail{
			Code: pb.ErrorCode_ERROR_CODE_UNAVAILABLE, Retryable: true, Message: "vault is offline"}}}
		r.vault.offline()
		id := r.begin()
		r.in(id, waiting, pb.WaitReason_WAIT_REASON_CLIENT_OFFLINE)
		r.after.Arm(boom, 1)
		if err := r.vault.tryRegister(); err == nil {
			t.Fatal("the registration was answered")
		}
		r.in(id, preflightState)
		r.ok("work", r.eng.WorkOn(r.ctx()))
		r.in(id, assigning)
	})
}
