package fire_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/schedule"
)

func TestWarningsOfEnginesThatNoAgentLists(t *testing.T) {
	t.Parallel()
	const begin = "No agent of the project lists the engine rq, so fires wait until one does, 7 days at most"
	for name, c := range map[string]struct {
		agents func(r *rig)
		want   string // "": no warning
	}{
		"no agent": {func(*rig) {}, begin + ". The project has no agent: `signalbox agents mint NAME` makes one."},
		"another engine": {func(r *rig) { r.agent("web", agent.Online, "celery", "huey") },
			begin + " (web lists celery, huey)."},
		"never connected": {func(r *rig) { r.agent("new", agent.Unknown) }, begin + " (new has never connected)."},
		"listed":          {func(r *rig) { r.agent("web", agent.Online, "rq") }, ""},
		"listed and away": {func(r *rig) { r.agent("web", agent.Offline, "celery", "rq") }, ""},
		"revoked": {func(r *rig) {
			a := r.agent("web", agent.Online, "rq")
			r.exec(`UPDATE agents SET revoked_at = 1, state = 'offline', offline_since = 1 WHERE agent_no = ?`, a.No)
		}, begin + ". The project has no agent: `signalbox agents mint NAME` makes one."},
		"long-poll alone": {func(r *rig) { r.agent("lp", agent.Online) },
			begin + ". Without an inventory, as long-poll agents are: lp. If such an agent runs rq, declare it: `signalbox agents declare-engines lp rq`."},
		"long-poll and another": {func(r *rig) { r.agent("lp", agent.Offline); r.agent("web", agent.Online, "celery") },
			begin + " (web lists celery). Without an inventory, as long-poll agents are: lp. If such an agent runs rq, declare it: " +
				"`signalbox agents declare-engines lp rq`."},
		"declared": {func(r *rig) { r.declare(r.agent("lp", agent.Online), "rq") }, ""},
		"declared another": {func(r *rig) { r.declare(r.agent("lp", agent.Online), "celery") },
			begin + " (lp is declared to run celery)."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			c.agents(r)
			got, err := r.fires.Warnings(context.Background(), r.project.No, "rq", "rq")
			want := []string{}
			if c.want != "" {
				want = append(want, c.want)
			}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%v\ngot  %q\nwant %q", err, got, want)
			}
			e, err := r.fires.ExplainSchedule(context.Background(), r.project.No, r.schedule("s", "rq", schedule.Skip).ID)
			if err != nil || (c.want != "" && e.Sentences[len(e.Sentences)-1] != c.want) ||
				(c.want == "" && strings.Contains(strings.Join(e.Sentences, " "), "No agent")) {
				t.Errorf("%v: explained as %q", err, e.Sentences)
			}
		})
	}
}

func TestExplainWarnsOnceOfAnEngine(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.schedule("s", "rq", schedule.Skip)
	explained := func() string {
		e, err := r.fires.ExplainSchedule(context.Background(), r.project.No, s.ID)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(e.Sentences, "\n")
	}
	r.slot(s, start)
	if text := explained(); !strings.Contains(text, "1 fire buffered, waiting for") || strings.Contains(text, "No agent of the project lists") {
		t.Errorf("with a fire that waits:\n%s", text)
	}
	r.exec(`DELETE FROM pending_fires`)
	r.exec(`UPDATE schedules SET scheduler = 'celery-beat'`)
	if text := explained(); strings.Contains(text, "No agent") {
		t.Errorf("of another scheduler:\n%s", text)
	}
}
