package notify_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/failure"
	"signalbox/appliance/notify"
	"signalbox/appliance/rawjson"
	"signalbox/store"
)

const (
	benchClients = 8
	benchFrames  = 20 // of each client
	benchEvents  = 50 // of each frame, all of them failures
)

// noCommands stands in for Commands.
type noCommands struct{}

func (noCommands) ApplyAck(agent.CommandTx, agent.Peer, string, rawjson.Value) error    { return nil }
func (noCommands) ApplyResult(agent.CommandTx, agent.Peer, string, rawjson.Value) error { return nil }

// ingest is the time and the CPU time that storing failures took.
type ingest struct{ wall, cpu time.Duration }

// failuresOnly stores failures of as many clients at once, as the appliance does: grouped, and collected by rules.
func failuresOnly(b *testing.B, kinds, rules int) (took ingest) {
	b.Helper()
	g := newRig(b)
	ops := g.channel("ops")
	for i := range rules {
		g.rule(fmt.Sprint("r", i), notify.TaskFailed, "", 5*time.Minute, ops)
	}
	stop := g.run(g.s.Run)
	defer stop()
	peer := g.worker("worker")
	recorder := failure.NewRecorder(failure.RecorderOptions{MaxGroups: 1000, Overflow: func(uuid.UUID, int) {}})
	r, err := agent.NewRouter(store.Bind[agent.RouterTx, agent.RouterReadTx](g.db), noCommands{}, g.hub, agent.RouterOptions{Clock: g.clock,
		OnFailure: func(tx agent.RouterTx, failed []agent.FailedTask) error {
			whole := any(tx).(*store.Tx)
			groups, err := recorder.Record(whole, failed)
			for i := 0; i < len(groups) && err == nil; i++ {
				err = g.s.OnTaskFailed(whole, failed[i], groups[i].Fingerprint)
			}
			return err
		}})
	g.must(err)
	trace := strings.Repeat("  File \\\"/srv/venv/lib/python3.12/site-packages/package/module.py\\\", line 1, in function\\n    call()\\n", 20)
	frames := make([][]agent.Frame, benchClients)
	for c := range frames {
		for f := range benchFrames {
			var text strings.Builder
			for e := range benchEvents {
				fmt.Fprintf(&text, `,{"id":%q,"kind":"task.failed","engine":"celery","task_id":%q,"occurred_at":%q,"data":{"task_name":"task-%d",
					"exception":"Declined","exception_message":"order %d","traceback":"%s"}}`, uuid.NewString(), uuid.NewString(),
					start.Format(time.RFC3339Nano), (f*benchEvents+e)%kinds, e, trace)
			}
			doc, err := rawjson.Parse([]byte(`{"events":[` + text.String()[1:] + `]}`))
			g.must(err)
			frames[c] = append(frames[c], agent.Frame{Type: agent.FrameEventBatch, ID: uuid.NewString(), Payload: doc.Root()})
		}
	}
	begun, cpu := time.Now(), cpuTime(b)
	var wg sync.WaitGroup
	for _, own := range frames {
		wg.Go(func() {
			for _, f := range own {
				if out := r.Dispatch(ctx, peer, []agent.Frame{f}); out[0].Accepted != benchEvents {
					b.Errorf("outcome %+v", out[0])
				}
			}
		})
	}
	wg.Wait()
	return ingest{time.Since(begun), cpuTime(b) - cpu}
}

// cpuTime is what the process has used.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// BenchmarkIngest compares ingest of failures only, with rules that they all fit, against the same without a rule. The ratio
// of CPU time holds on a machine that others use too. Run it with -benchtime=5x for the median of five.
func BenchmarkIngest(b *testing.B) {
	for _, c := range []struct {
		name         string
		kinds, rules int
	}{{"kinds=20", 20, 1}, {"kinds=20,rules=3", 20, 3}, {"kinds=1000", 1000, 1}} {
		b.Run(c.name, func(b *testing.B) {
			var wall, cpu, rate []float64
			for b.Loop() {
				without, with := failuresOnly(b, c.kinds, 0), failuresOnly(b, c.kinds, c.rules)
				wall = append(wall, without.wall.Seconds()/with.wall.Seconds())
				cpu = append(cpu, without.cpu.Seconds()/with.cpu.Seconds())
				rate = append(rate, benchClients*benchFrames*benchEvents/with.wall.Seconds())
			}
			b.ReportMetric(median(rate), "rows/s")
			b.ReportMetric(median(wall), "rule/none")
			b.ReportMetric(median(cpu), "rule/none-cpu")
		})
	}
}
