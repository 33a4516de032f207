package daemon

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

// TestControlCannotMakeADaemonSpin holds settings of control to their floors.
func TestControlCannotMakeADaemonSpin(t *testing.T) {
	for _, tc := range []struct {
		given *durationpb.Duration
		want  time.Duration
	}{
		{nil, 0},
		{durationpb.New(0), 0},
		{durationpb.New(-time.Second), 0},
		{durationpb.New(1), shortestBeat},
		{durationpb.New(shortestBeat), shortestBeat},
		{durationpb.New(15 * time.Second), 15 * time.Second},
	} {
		if got := atLeast(tc.given, shortestBeat); got != tc.want {
			t.Errorf("%v: %v, want %v", tc.given, got, tc.want)
		}
	}
}
