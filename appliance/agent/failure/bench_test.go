package failure_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/failure"
	"signalbox/appliance/rawjson"
	"signalbox/appliance/wake"
	"signalbox/store"
)

const (
	benchClients = 8
	benchFrames  = 20 // of each client
	benchEvents  = 50 // of each frame
)

// noCommands stands in for Commands.
type noCommands struct{}

func (noCommands) ApplyAck(agent.CommandTx, agent.Peer, string, rawjson.Value) error    { return nil }
func (noCommands) ApplyResult(agent.CommandTx, agent.Peer, string, rawjson.Value) error { return nil }

// benchTrace is a traceback of the usual size, some 2 KiB.
var benchTrace = func() string {
	var b strings.Builder
	b.WriteString("Traceback (most recent call last):\n")
	for i := range 20 {
		fmt.Fprintf(&b, "  File \"/srv/venv/lib/python3.12/site-packages/package/module_%d.py\", line %d, in function\n    call()\n", i, i)
	}
	b.WriteString("  File \"/srv/app/billing/tasks.py\", line 12, in charge\n    pay()\nDeclined: order\n")
	return b.String()
}()

// cpuTime is the processor time that the process has used so far.
func cpuTime(t testing.TB) time.Duration {
	t.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// dispatchAll stores the events of as many clients at once, every nth of them a failure (0: none), and returns the
// processor time of one event. kinds is how many names of tasks there are.
func (g *rig) dispatchAll(r *agent.Router, every, kinds int) time.Duration {
	g.t.Helper()
	frames := make([][]agent.Frame, benchClients)
	for c := range frames {
		for f := range benchFrames {
			var b strings.Builder
			b.WriteString(`{"events":[`)
			for e := range benchEvents {
				n := f*benchEvents + e
				kind, data := "task.succeeded", fmt.Sprintf(`"result":%q`, benchTrace)
				if every > 0 && n%every == 0 {
					kind, data = "task.failed", fmt.Sprintf(`"exception":"Declined","exception_message":"order %d","traceback":%q`, n, benchTrace)
				}
				if e > 0 {
					b.WriteByte(',')
				}
				fmt.Fprintf(&b, `{"id":%q,"kind":%q,"engine":"celery","task_id":%q,"occurred_at":%q,"data":{"task_name":"task-%d",%s}}`,
					uuid.NewString(), kind, uuid.NewString(), start.Format(time.RFC3339Nano), n%kinds, data)
			}
			b.WriteString(`]}`)
			doc, err := rawjson.Parse([]byte(b.String()))
			g.must(err)
			frames[c] = append(frames[c], agent.Frame{Type: agent.FrameEventBatch, ID: uuid.NewString(), Payload: doc.Root()})
		}
	}
	peer := agent.Peer{ProjectNo: 1, ProjectID: g.projects[0], AgentNo: 1, AgentID: uuid.New(), Transport: agent.WebSocket, Session: "s"}
	runtime.GC() // what preparing left behind is not the ingest's
	begun := cpuTime(g.t)
	var wg sync.WaitGroup
	for _, own := range frames {
		wg.Go(func() {
			for _, f := range own {
				if out := r.Dispatch(context.Background(), peer, []agent.Frame{f}); out[0].Accepted != benchEvents {
					g.t.Errorf("outcome %+v", out[0])
				}
			}
		})
	}
	wg.Wait()
	return (cpuTime(g.t) - begun) / (benchClients * benchFrames * benchEvents)
}

// router stores events of the rig's first project, with or without grouping.
func (g *rig) router(grouping bool) *agent.Router {
	g.t.Helper()
	o := agent.RouterOptions{Clock: g.clock}
	if grouping {
		o.OnFailure = func(tx agent.RouterTx, failed []agent.FailedTask) error {
			_, err := g.recorder.Record(tx.(*store.Tx), failed)
			return err
		}
	}
	r, err := agent.NewRouter(store.Bind[agent.RouterTx, agent.RouterReadTx](g.db), noCommands{}, wake.New(), o)
	g.must(err)
	return r
}

// BenchmarkIngest compares the processor time of durable ingest with grouping and without it: of no failures, of one in a hundred, and
// of failures only, in few groups, in many, and beyond the cap.
func BenchmarkIngest(b *testing.B) {
	for _, c := range []struct {
		name         string
		every, kinds int
	}{{"failures=0%", 0, 20}, {"failures=1%", 100, 20}, {"failures=100%", 1, 20}, {"failures=100%,groups=1000", 1, 1000},
		{"failures=100%,beyond", 1, 20_000}} {
		b.Run(c.name, func(b *testing.B) {
			var least [2]time.Duration // of the runs: the one that other programs disturbed least
			for b.Loop() {
				for i, grouping := range []bool{false, true} {
					g := newRig(b, 0)
					if d := g.dispatchAll(g.router(grouping), c.every, c.kinds); least[i] == 0 || d < least[i] {
						least[i] = d
					}
				}
			}
			b.ReportMetric(float64(least[0].Microseconds()), "plain-µs/event")
			b.ReportMetric(float64(least[1].Microseconds()), "grouped-µs/event")
			b.ReportMetric(float64(least[0])/float64(least[1]), "grouped/plain")
		})
	}
}

// BenchmarkIdentify is the cost of one fingerprint.
func BenchmarkIdentify(b *testing.B) {
	for b.Loop() {
		failure.Identify("celery", "billing.charge", "Declined: order 7", benchTrace)
	}
}
