package registry

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestJudgeEpoch(t *testing.T) {
	t.Parallel()
	a, b, c, d := uuid.New(), uuid.New(), uuid.New(), uuid.New()
	now := time.Unix(1_800_000_000, 0)
	const stable = time.Minute
	for name, x := range map[string]struct {
		first, previous, current uuid.UUID
		age                      time.Duration // of the current one
		came                     uuid.UUID
		want                     epochChange
	}{
		"the same":                        {a, uuid.Nil, a, 0, a, unchanged},
		"a first change, at once":         {a, uuid.Nil, a, 0, b, replaced},
		"a first change":                  {a, uuid.Nil, a, time.Hour, b, replaced},
		"the previous one comes back":     {a, a, b, time.Hour, a, alternating},
		"and the other one again":         {a, b, a, time.Hour, b, alternating},
		"a third one, soon":               {a, a, b, 59 * time.Second, c, alternating},
		"a third one, after it was quiet": {a, a, b, time.Minute, c, replaced},
		"the first one after a third":     {a, b, c, time.Hour, a, alternating},
		"a fourth one":                    {a, b, c, time.Hour, d, replaced},
		"the same, whatever there was":    {a, b, c, 0, c, unchanged},
	} {
		row := &Daemon{FirstEpoch: x.first, PreviousEpoch: x.previous, Epoch: x.current, EpochSince: now.Add(-x.age)}
		if got := judgeEpoch(row, x.came, now, stable); got != x.want {
			t.Errorf("%s: %d, want %d", name, got, x.want)
		}
	}
}
