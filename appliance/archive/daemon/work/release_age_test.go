package work_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon/work"
	"signalbox/appliance/archive/torrent/torrenttest"
	"signalbox/appliance/clock"
)

// TestReleaseCountsFromItsOwnAttempt lets two days pass between two attempts: the content was verified anew before the
// second, so the age of the first says nothing about it.
func TestReleaseCountsFromItsOwnAttempt(t *testing.T) {
	r := evicting(t, torrenttest.Version(0))
	now := clock.NewFake(time.Now())
	r.src.options = func(o *work.Options) { o.Clock = now }
	r.start()
	r.steps(verifying)
	right := r.command(release)
	r.params[release] = func() *pb.ExecuteStepCommand {
		c := proto.CloneOf(right.GetRelease().GetTargetCommit())
		c.CommitId = r.def.GetJobId()
		return &pb.ExecuteStepCommand{Step: release, StepAttempt: 1, Params: &pb.ExecuteStepCommand_Release{Release: &pb.ReleaseParams{TargetCommit: c}}}
	}
	r.fails(release, pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT)
	delete(r.params, release)
	now.Advance(48 * time.Hour)
	r.fails(release, pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT) // the same attempt, taken up again after two days
	r.steps(verifying)
	r.attempt = 2
	r.steps(release, purge)
}
