package appliance_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"signalbox/appliance/appliancetest"
	"signalbox/appliance/config"
	"signalbox/transport/roomclient/conformance"
)

// conform replays the vectors that a client can bring about and checks that each passes.
func conform(t *testing.T, s *appliancetest.Server, o conformance.Options, skipped ...int) {
	t.Helper()
	o.Endpoint, o.HTTP = s.URL(), s.Client()
	if s.Clock != nil {
		o.Clock, o.Pass = s.Clock, newKeepAlive(s.Clock).pass
	}
	results := map[int]conformance.Result{}
	o.Report = func(r conformance.Result) { results[r.Number] = r }
	report, err := conformance.Run(limit(t), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Left) > 0 {
		t.Errorf("left behind: %v", report.Left)
	}
	for _, v := range conformance.Vectors() {
		if v.Skip != "" || len(o.Only) > 0 && !slices.Contains(o.Only, v.Number) {
			continue
		}
		t.Run(fmt.Sprintf("M%02d %s", v.Number, v.Name), func(t *testing.T) {
			r := results[v.Number]
			want := conformance.Passed
			if slices.Contains(skipped, v.Number) {
				want = conformance.Skipped
			}
			if r.Outcome != want {
				t.Errorf("%s %s: %s", r.Outcome, r.Rule, r.Detail)
			}
		})
	}
}

// Section M, over real sockets and real HTTP: the vectors that a client can bring about with a registration key.
func TestRoomVectors(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	before := s.Count("SELECT count(*) FROM room_agents")
	conform(t, s, conformance.Options{Key: registrationKey(s)}, 25)
	if n := s.Count("SELECT count(*) FROM room_agents"); n != before {
		t.Errorf("%d agents are left of the run, want %d", n, before)
	}
	if n := s.Count("SELECT count(*) FROM rooms WHERE archived_at IS NULL"); n != 0 {
		t.Errorf("%d rooms are left open", n)
	}
}

// Vector 25, and all others with the socket alone.
func TestRoomVectorsWithoutSSE(t *testing.T) {
	s := appliancetest.Start(t, frozen(), configure(func(c *config.Config) { c.Room.SSE = false }))
	conform(t, s, conformance.Options{Key: registrationKey(s)})
}

// The vectors with two agents that exist, which the operator has opened.
func TestRoomVectorsWithKnownAgents(t *testing.T) {
	s := appliancetest.Start(t, frozen())
	a, b := enlist(s, "first"), enlist(s, "second")
	conform(t, s, conformance.Options{Agents: []conformance.Agent{{ID: a.AgentID, Key: a.Token}, {ID: b.AgentID, Key: b.Token}},
		Timeout: time.Minute}, 25)
}
