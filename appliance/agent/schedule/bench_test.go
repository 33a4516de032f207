package schedule_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/fire"
	"signalbox/appliance/agent/schedule"
	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/secret"
	"signalbox/store"
	"signalbox/store/storetest"
)

// absent is a Presence of nobody.
type absent struct{}

func (absent) Sessions(uuid.UUID) []agent.SessionInfo { return nil }

// jitter collects how long after its slot a fire was durable.
type jitter struct {
	mu   sync.Mutex
	lags []time.Duration
}

func (j *jitter) add(lag time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lags = append(j.lags, lag)
}

// timed is a Starter that measures the one it wraps, to after the commit.
type timed struct {
	schedule.Starter
	to *jitter
}

func (s timed) StartFire(tx schedule.Tx, f schedule.NewFire) (schedule.Fired, error) {
	fired, err := s.Starter.StartFire(tx, f)
	if err == nil && !fired.Repeated {
		tx.AfterCommit(func() { s.to.add(time.Since(f.ScheduledFor)) })
	}
	return fired, err
}

// cpu is the processor time that the process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkTenThousandSchedules runs 10,000 schedules that make 100 fires a second, each with its command for an online agent,
// and reports the time from slot to commit; idle is the same number of schedules with nothing due. Each case takes 6 s whatever
// -benchtime says.
func BenchmarkTenThousandSchedules(b *testing.B) {
	const schedules, perSecond, long = 10_000, 100, 6 * time.Second
	for _, c := range []struct {
		name    string
		every   time.Duration
		stagger time.Duration // between the slots of one schedule and the next
	}{
		{"spread", schedules / perSecond * time.Second, time.Second / perSecond},
		{"bursts on the second", schedules / perSecond * time.Second, 0},
		{"idle", 24 * time.Hour, 0},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := newRig(b)
			system := clock.System()
			r.db = storetest.Open(b, func(o *store.Options) { o.Clock = system })
			r.project.ID = uuid.New()
			now := system.Now().Truncate(time.Second)
			r.update(func(tx *store.Tx) (err error) {
				if r.project.No, err = tx.InsertProject(r.project); err != nil {
					return err
				}
				no, err := tx.InsertAgent(agent.Agent{ID: uuid.New(), ProjectNo: r.project.No, ProjectID: r.project.ID, Name: "web", ProtocolVersion: "2",
					FrameworkAdapter: "bare", State: agent.Unknown, Host: []byte("{}"), CreatedAt: now}, strings.Repeat("a", 64))
				if err != nil {
					return err
				}
				_, err = tx.Exec(`UPDATE agents SET state = 'online', engine_adapters = '["celery"]', last_seen_at = ?, last_connect_at = ?
					WHERE agent_no = ?`, now, now, no)
				return err
			})
			for first := 0; first < schedules; first += 500 {
				r.update(func(tx *store.Tx) error {
					for i := first; i < first+500; i++ {
						// Slots begin three seconds from now, perSecond of them in each second.
						next := now.Add(3*time.Second + time.Duration(i/perSecond)*time.Second + time.Duration(i%perSecond)*c.stagger)
						if c.name == "idle" {
							next = now.Add(12 * time.Hour)
						}
						anchor := next.Add(-c.every)
						s := schedule.Schedule{ID: uuid.New(), ProjectNo: r.project.No, Engine: "celery", Scheduler: schedule.Own, Name: fmt.Sprintf("s-%05d", i),
							TaskName: "tasks.tick", Kind: schedule.Interval, Expression: fmt.Sprint(int(c.every.Seconds())), Timezone: "UTC", Priority: "normal",
							Args: []byte("[]"), Kwargs: []byte(`{"full":true}`), IsEnabled: true, CatchUp: schedule.FireOne, Source: "bench", AnchorAt: anchor,
							DecidedAt: anchor, NextRunAt: &next, CreatedAt: now, UpdatedAt: now}
						if _, err := tx.InsertSchedule(s); err != nil {
							return err
						}
					}
					return nil
				})
			}
			log := audit.New(audit.NewKeys(secret.NewBytes([]byte("0123456789abcdef0123456789abcdef"))))
			cmds := agent.NewCommands(store.Bind[agent.CommandTx, agent.CommandReadTx](r.db), absent{}, log, r.hub,
				agent.CommandOptions{Timeout: time.Minute, RedispatchWindow: time.Minute, RedispatchMinInterval: 10 * time.Second, Clock: system})
			fires := fire.New(store.Bind[fire.Tx, fire.ReadTx](r.db), cmds, absent{}, log, r.hub,
				fire.Options{Retention: time.Hour, ReplayInterval: time.Minute, Clock: system})
			var lags jitter
			st := &counted{Store: store.Bind[schedule.Tx, schedule.ReadTx](r.db)}
			runner := schedule.NewScheduler(st, timed{fires, &lags}, log, r.hub, schedule.SchedulerOptions{Clock: system,
				Trouble: func(op string, err error) { b.Errorf("%s: %v", op, err) }})
			ctx, cancel := context.WithTimeout(context.Background(), time.Until(now.Add(3*time.Second))+long)
			defer cancel()
			b.ResetTimer()
			time.AfterFunc(time.Until(now.Add(2900*time.Millisecond)), st.reset)
			used := cpu()
			if err := runner.Run(ctx); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			used = cpu() - used
			slices.Sort(lags.lags)
			at := func(q float64) float64 {
				if len(lags.lags) == 0 {
					return 0
				}
				return float64(lags.lags[int(q*float64(len(lags.lags)-1))].Microseconds()) / 1000
			}
			b.ReportMetric(float64(len(lags.lags))/long.Seconds(), "fires/s")
			b.ReportMetric(at(0.5), "p50-ms")
			b.ReportMetric(at(0.99), "p99-ms")
			b.ReportMetric(at(1), "max-ms")
			b.ReportMetric(float64(st.calls.Load()), "transactions")
			b.ReportMetric(100*used.Seconds()/long.Seconds(), "cpu-%")
			b.ReportMetric(0, "ns/op")
		})
	}
}
