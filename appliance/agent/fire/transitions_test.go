package fire

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// allowed is the table of agent protocol G.5, row by row.
var allowed = map[Status]string{
	StatusPending: "buffered delivered failed acked_success acked_failed",
	Accepted:      "buffered delivered failed acked_success acked_failed",
	Buffered:      "delivered failed acked_success acked_failed buffer_expired",
	Delivered:     "acked_success acked_failed failed",
	Failed:        "acked_success acked_failed",
	AckedSuccess:  "",
	AckedFailed:   "",
	BufferExpired: "",
}

func TestEveryTransitionOfAFire(t *testing.T) {
	t.Parallel()
	fired := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	now := fired.Add(1500 * time.Millisecond)
	for _, from := range Statuses() {
		for _, to := range Statuses() {
			want := false
			for _, s := range strings.Fields(allowed[from]) {
				want = want || Status(s) == to
			}
			before := Fire{Status: from, FiredAt: fired}
			after, ok := before.To(to, now, &Trouble{Code: "c", Message: "m"})
			if ok != want || from.May(to) != want {
				t.Errorf("%s -> %s: %t, want %t", from, to, ok, want)
				continue
			}
			if !ok {
				if after != before {
					t.Errorf("%s -> %s was refused and changed %+v", from, to, after)
				}
				continue
			}
			acked := to == AckedSuccess || to == AckedFailed
			if (after.AckedAt != nil) != acked || (after.LatencyMS != nil) != acked || (acked && *after.LatencyMS != 1500) {
				t.Errorf("%s -> %s: acked %v, latency %v", from, to, after.AckedAt, after.LatencyMS)
			}
			if (after.FinishedAt != nil) != to.Finished() || *after.ErrorCode != "c" || *after.ErrorMessage != "m" {
				t.Errorf("%s -> %s: finished %v, error %v %v", from, to, after.FinishedAt, after.ErrorCode, after.ErrorMessage)
			}
		}
	}
}

func TestALaterEndReplacesTheTrouble(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f := Fire{Status: Delivered, FiredAt: now.Add(time.Hour)} // by a clock that was set back since
	f, ok := f.To(Failed, now, &Trouble{Code: strings.Repeat("c", 80), Message: strings.Repeat("ü", 3000)})
	if !ok || len(*f.ErrorCode) != 64 || utf8.RuneCountInString(*f.ErrorMessage) != 2000 || f.AckedAt != nil {
		t.Fatalf("%t, %+v", ok, f)
	}
	f, ok = f.To(AckedSuccess, now, nil)
	if !ok || f.ErrorCode != nil || f.ErrorMessage != nil || *f.LatencyMS != 0 {
		t.Fatalf("%t, %+v", ok, f)
	}
}

func TestWhatStatusesAre(t *testing.T) {
	t.Parallel()
	for _, s := range Statuses() {
		if !s.Valid() {
			t.Errorf("%s is not valid", s)
		}
		if wantFinished := s == Failed || s == AckedSuccess || s == AckedFailed || s == BufferExpired; s.Finished() != wantFinished {
			t.Errorf("%s finished: %t", s, s.Finished())
		}
		if wantBad := s == Failed || s == AckedFailed; s.Bad() != wantBad {
			t.Errorf("%s bad: %t", s, s.Bad())
		}
	}
	if Status("gone").Valid() || Status("").Valid() {
		t.Error("an unknown status is valid")
	}
}
