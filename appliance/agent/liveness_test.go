package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestBoundFeatures(t *testing.T) {
	t.Parallel()
	many := make([]string, 70)
	for i := range many {
		many[i] = fmt.Sprintf("f%d", i)
	}
	if got := boundFeatures(many); !slices.Equal(got, many[:64]) {
		t.Errorf("kept %d", len(got))
	}
	got := boundFeatures([]string{"a", "", "a", strings.Repeat("x", 64), strings.Repeat("x", 65), "b"})
	if !slices.Equal(got, []string{"a", strings.Repeat("x", 64), "b"}) {
		t.Errorf("got %q", got)
	}
	if got := boundFeatures([]string{}); got == nil || len(got) != 0 {
		t.Errorf("got %#v", got)
	}
}

func TestVersionStatus(t *testing.T) {
	t.Parallel()
	connected := time.Unix(1, 0)
	for _, tc := range []struct {
		agent, protocol string
		connected       bool
		want            string
		outdated        bool
	}{
		{"", "0", false, "", false},
		{"", "1", true, "", true},
		{"1.13.0", "2", true, VersionCurrent, false},
		{"1.13.9rc1", "2", true, VersionCurrent, false},
		{"v1.13", "2", true, VersionCurrent, false},
		{"1.12.4", "2", true, VersionOutdated, false},
		{"1.14.0", "2", true, VersionNewer, false},
		{"2.0.0", "2", true, VersionIncompatible, false},
		{"1.13.0", "1", true, VersionIncompatible, true},
		{"1.13.0", "0", false, VersionCurrent, false},
		{"0.0.0", "2", true, VersionUnknown, false},
		{"dev", "2", true, VersionUnknown, false},
		{"1.", "2", true, VersionUnknown, false},
		{"1.x", "2", true, VersionUnknown, false},
		{"-1.2", "2", true, VersionUnknown, false},
	} {
		a := Agent{AgentVersion: tc.agent, ProtocolVersion: tc.protocol}
		if tc.connected {
			a.LastConnectAt = &connected
		}
		if got := a.VersionStatus("1.13.0"); got != tc.want {
			t.Errorf("%+v: got %q", tc, got)
		}
		if got := a.IsOutdated(); got != tc.outdated {
			t.Errorf("%+v: outdated %v", tc, got)
		}
	}
}
