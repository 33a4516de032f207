package agent_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/store"
)

const (
	benchClients = 8
	benchGroup   = 100  // frames of one event each in one Dispatch
	benchTasks   = 4000 // of three events each
	// benchLag is how many tasks lie between the events of one task: most of them arrive in different transactions.
	benchLag = 600
)

type benchEvent struct {
	frame   agent.Frame
	kind    string
	taskID  string
	at      time.Time
	payload string
}

// benchEvents makes the events of n tasks. lag is the distance between the events of one task.
func benchEvents(b *testing.B, run string, n, lag int) []benchEvent {
	b.Helper()
	var out []benchEvent
	add := func(i int, kind, data string) {
		if i < 0 || i >= n {
			return
		}
		id := fmt.Sprintf("%s-%s-%06d", run, uuid.NewString()[:13], i)
		if kind != "task.received" {
			id = ""
		}
		out = append(out, benchEvent{kind: kind, taskID: id, payload: data, at: ingestStart.Add(time.Duration(i) * time.Microsecond)})
	}
	for i := 0; i < n+2*lag; i++ {
		add(i, "task.received", fmt.Sprintf(`{"task_name":"mail.send_welcome","queue":"default","worker":"celery@host-%d","args":[%d,"user@example.org"],"kwargs":{"template":"welcome","attempt":1,"locale":"en_GB","retries":0},"eta":null,"priority":"normal"}`, i%4, i))
		add(i-lag, "task.started", fmt.Sprintf(`{"task_name":"mail.send_welcome","worker":"celery@host-%d","pid":%d,"hostname":"host-%d.example.org"}`, i%4, i, i%4))
		add(i-2*lag, "task.succeeded", fmt.Sprintf(`{"task_name":"mail.send_welcome","worker":"celery@host-%d","runtime_ms":%d,"result":{"status":"sent","message_id":"<%d@example.org>"}}`, i%4, i%900, i))
	}
	ids := map[time.Time]string{}
	for i := range out {
		e := &out[i]
		if e.taskID != "" {
			ids[e.at] = e.taskID
		}
		e.taskID = ids[e.at]
		e.frame = batch(b, fmt.Sprintf(`{"id":%q,"kind":%q,"engine":"celery","task_id":%q,"occurred_at":%q,"data":%s}`,
			uuid.NewString(), e.kind, e.taskID, e.at.Format(time.RFC3339Nano), e.payload))
	}
	return out
}

// shares parts the events among the clients by task, as the agents of different hosts do.
func shares(events []benchEvent) [][]agent.Frame {
	out := make([][]agent.Frame, benchClients)
	for _, e := range events {
		c := int(e.taskID[len(e.taskID)-1]) % benchClients
		out[c] = append(out[c], e.frame)
	}
	return out
}

// ingestAll dispatches the frames of all clients at once and returns how long it took.
func (g *ingestRig) ingestAll(events []benchEvent, wantAccepted bool) time.Duration {
	parts := shares(events)
	start := time.Now()
	var wg sync.WaitGroup
	for _, frames := range parts {
		wg.Go(func() {
			for group := range slices.Chunk(frames, benchGroup) {
				for _, o := range g.router.Dispatch(context.Background(), g.peer, group) {
					if o.Verdict != agent.Durable || (o.Accepted == 1) != wantAccepted {
						g.t.Errorf("outcome %+v", o)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}

// rawInsert stores the same rows with prepared statements in the given number of commits: events, and each task once.
func rawInsert(b *testing.B, path string, events []benchEvent, commits int) time.Duration {
	b.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(ON)"+
		"&_pragma=cache_size(-16384)&_pragma=wal_autocheckpoint(4000)&_txlock=immediate")
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	check := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	event, err := db.Prepare(`INSERT INTO events (id, project_no, agent_no, task_no, engine, task_id, kind, occurred_at,
		time_replaced, payload) VALUES (?, 1, 1, ?, 'celery', ?, ?, ?, 0, ?)`)
	check(err)
	task, err := db.Prepare(`INSERT INTO tasks (id, project_no, engine, task_id, name, queue, state, priority, args, kwargs, result,
		received_at, started_at, finished_at, runtime_ms, worker_name, created_at, updated_at)
		VALUES (?, 1, 'celery', ?, 'mail.send_welcome', 'default', 'success', 'normal', ?, ?, ?, ?, ?, ?, 12, 'celery@host-1', ?, ?)`)
	check(err)
	taskNos := map[string]int64{}
	at := ingestStart.UnixMicro()
	start := time.Now()
	for chunk := range slices.Chunk(events, max(1, len(events)/commits)) {
		tx, err := db.Begin()
		check(err)
		event, task := tx.Stmt(event), tx.Stmt(task)
		for i := range chunk {
			e := &chunk[i]
			no := taskNos[e.taskID]
			if no == 0 {
				id, err := uuid.NewV7()
				check(err)
				res, err := task.Exec(id[:], e.taskID, `[1,"user@example.org"]`,
					`{"template":"welcome","attempt":1,"locale":"en_GB","retries":0}`,
					`{"status":"sent","message_id":"<1@example.org>"}`, at, at, at, at, at)
				check(err)
				no, err = res.LastInsertId()
				check(err)
				taskNos[e.taskID] = no
			}
			id := uuid.New()
			_, err := event.Exec(id[:], no, e.taskID, e.kind, e.at.Truncate(time.Second).UnixMicro(), e.payload)
			check(err)
		}
		check(tx.Commit())
	}
	return time.Since(start)
}

// rawDatabase is a closed database file with the project and agent of the rig.
func rawDatabase(b *testing.B) string {
	g := newIngestRig(b)
	path := filepath.Join(b.TempDir(), "raw.db")
	if err := g.db.Backup(context.Background(), path); err != nil {
		b.Fatal(err)
	}
	return path
}

func median(ratios []float64) float64 {
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}

// BenchmarkIngest compares durable ingest by eight clients with a raw prepared insert of the same rows into the same
// schema, both in one run (goal G1), and replays with fresh events (goal G4). Run it with -benchtime=5x for the median of
// five. lag 0 has the events of a task next to each other, as a client's backlog does; otherwise they are spread over
// transactions, so that each of them writes the task's row again.
func BenchmarkIngest(b *testing.B) {
	for _, lag := range []int{0, benchLag} {
		b.Run(fmt.Sprintf("lag=%d", lag), func(b *testing.B) {
			var g1, g4, rate, size []float64
			for b.Loop() {
				events := benchEvents(b, "a", benchTasks, lag)
				var commits atomic.Int64
				g := newIngestRig(b, func(o *store.Options) {
					o.Hooks.BeforeCommit = func([]string) error { commits.Add(1); return nil }
				})
				commits.Store(0)
				fresh := g.ingestAll(events, true)
				raw := rawInsert(b, rawDatabase(b), events, int(commits.Load()))
				size = append(size, float64(len(events))/float64(commits.Load()))
				again := g.ingestAll(events, false)
				g1 = append(g1, raw.Seconds()/fresh.Seconds())
				g4 = append(g4, fresh.Seconds()/again.Seconds())
				rate = append(rate, float64(len(events))/fresh.Seconds())
			}
			b.ReportMetric(median(g1), "ingest/raw")
			b.ReportMetric(median(g4), "replay/fresh")
			b.ReportMetric(median(rate), "events/s")
			b.ReportMetric(median(size), "events/commit")
		})
	}
}

// BenchmarkIngestGrown compares ingest into a table that is ten times as large with ingest into an empty one (goal G5).
func BenchmarkIngestGrown(b *testing.B) {
	var g5 []float64
	for b.Loop() {
		g := newIngestRig(b)
		empty := g.ingestAll(benchEvents(b, "first", benchTasks, benchLag), true)
		for i := range 9 {
			g.ingestAll(benchEvents(b, fmt.Sprint("fill", i), benchTasks, 0), true)
		}
		grown := g.ingestAll(benchEvents(b, "last", benchTasks, benchLag), true)
		g5 = append(g5, empty.Seconds()/grown.Seconds())
	}
	b.ReportMetric(median(g5), "grown/empty")
}
