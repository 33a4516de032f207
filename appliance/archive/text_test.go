package archive_test

import (
	"testing"
	"time"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

func TestTexts(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tt := range []struct{ got, want string }{
		{archive.Word(pb.WaitReason_WAIT_REASON_NO_SPACE), "no_space"},
		{archive.Word(pb.JobState_JOB_STATE_UNSPECIFIED), ""},
		{archive.Word(pb.JobState(9999)), ""},
		{archive.Clip("abc", 3), "abc"},
		{archive.Clip("abé", 3), "ab"},
		{archive.Clip("é", 1), ""},
		{archive.Clip("a\xff", 9), "a\uFFFD"},
		{archive.SizeText(1023), "1023 B"},
		{archive.SizeText(1536), "1.5 KiB"},
		{archive.SizeText(3 << 40), "3.0 TiB"},
		{archive.TimeText(now.Add(-2*time.Minute), now), "2m0s ago"},
		{archive.TimeText(now.Add(15*time.Second), now), "in 15s"},
		{archive.TimeText(now, now), "now"},
		{archive.TimeText(time.Time{}, now), "never"},
	} {
		if tt.got != tt.want {
			t.Errorf("%q, want %q", tt.got, tt.want)
		}
	}
}
