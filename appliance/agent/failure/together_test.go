package failure_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/failure"
)

// snapshot is all that is stored of the project's groups and their failures, without ids.
func (g *rig) snapshot() string {
	g.t.Helper()
	groups, err := g.service.List(ctx, 1, failure.Filter{}, agent.Page{Limit: 1000})
	g.must(err)
	var lines []string
	for i := range groups {
		full, latest := g.show(groups[i].ID)
		full.No, full.ID, full.ProjectID = 0, uuid.Nil, uuid.Nil
		line := fmt.Sprintf("%+v:", full)
		for _, f := range latest {
			line += fmt.Sprintf(" %s@%s", f.TaskID, f.OccurredAt)
		}
		lines = append(lines, line)
	}
	return strings.Join(slices.Sorted(slices.Values(lines)), "\n")
}

// TestTogetherAsOneByOne: failures of one transaction leave what they would have left in one transaction each, beside what
// people do between the transactions: counts, times, samples, states, and who gets a place below the cap.
func TestTogetherAsOneByOne(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 1))
		together, apart := newRig(t, 6), newRig(t, 6)
		for round := range 8 {
			var batch []agent.FailedTask
			for i := range r.IntN(45) {
				f := together.task(fmt.Sprint("task-", r.IntN(9)), fmt.Sprintf("E%d: %d", r.IntN(2), i))
				f.TaskID = fmt.Sprint(round, "-", i)
				f.OccurredAt = f.OccurredAt.Add(time.Duration(r.IntN(7)-4) * 20 * time.Second)
				batch = append(batch, f)
			}
			as := together.recordAll(batch...)
			for i := range batch {
				one := apart.record(batch[i])
				if as[i].Fingerprint != one.Fingerprint || (as[i].State == failure.Ignored) != (one.State == failure.Ignored) {
					t.Fatalf("seed %d, round %d, failure %d: %+v, one by one %+v", seed, round, i, as[i], one)
				}
			}
			for _, g := range []*rig{together, apart} {
				g.clock.Advance(30 * time.Second)
			}
			if len(batch) > 0 {
				to := failure.State(failure.States()[r.IntN(3)])
				print := as[r.IntN(len(as))].Fingerprint
				for _, g := range []*rig{together, apart} {
					groups, err := g.service.List(ctx, 1, failure.Filter{}, agent.Page{Limit: 1000})
					g.must(err)
					for i := range groups {
						if groups[i].Fingerprint == print {
							g.set(groups[i].ID, to)
						}
					}
					g.clock.Advance(30 * time.Second)
				}
			}
			if a, b := together.snapshot(), apart.snapshot(); a != b {
				t.Fatalf("seed %d, round %d:\n%s\none by one:\n%s", seed, round, a, b)
			}
		}
		if a, b := len(together.overflow), len(apart.overflow); a != b {
			t.Errorf("seed %d: overflow told %d times, one by one %d", seed, a, b)
		}
	}
}
