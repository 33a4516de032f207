package commands

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

// fireLedger is what the agents of the loop know of fires.
type fireLedger struct {
	mu       sync.Mutex
	commands map[string]map[string]bool // fire id -> ids of the commands that brought it
}

// TestKillLoopFires kills the real binary with SIGKILL at random instants while schedules fire every second, to an agent that
// comes and goes with it, and compares what the agent got with what the database holds in the end: every slot has one fire,
// no slot is missing, no fire came as two commands, and none that could be handed over is left in the buffer.
func TestKillLoopFires(t *testing.T) {
	kills := fewerKills(t)
	p := newProcess(t, buildBinary(t))
	p.args = []string{"--agent-rate-limits=false", "--agent-command-timeout=20s", "--schedules-grace=1h"}
	p.start()
	const schedules = 5
	for i := range schedules {
		if out, err := p.cli("schedules", "create", fmt.Sprintf("every-second-%d", i), "--engine", "celery", "--task", "tasks.tick",
			"--every", "1s", "--catch-up", "fire_all_missed"); err != nil {
			t.Fatalf("create: %v: %s", err, out)
		}
	}
	led := &fireLedger{commands: map[string]map[string]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	var clients sync.WaitGroup
	for i := range 2 {
		m := p.mint(fmt.Sprintf("worker-%d", i))
		clients.Go(func() {
			for ctx.Err() == nil {
				cfg := m.cfg
				cfg.URL, cfg.Engines = p.baseURL(), []string{"celery"}
				led.serve(ctx, cfg)
				select {
				case <-time.After(time.Duration(rand.Int64N(int64(600 * time.Millisecond)))): // away: what fires now is buffered
				case <-ctx.Done():
				}
			}
		})
	}
	for range kills {
		p.kill(time.Duration(rand.Int64N(int64(1200 * time.Millisecond))))
		p.start()
	}
	for i := range schedules {
		if out, err := p.cli("schedules", "disable", fmt.Sprintf("every-second-%d", i)); err != nil {
			t.Fatalf("disable: %v: %s", err, out)
		}
	}
	deadline := time.Now().Add(2 * time.Minute)
	for open := -1; open != 0; {
		if time.Now().After(deadline) {
			t.Errorf("%d fires still wait two minutes after the last kill", open)
			break
		}
		<-time.After(300 * time.Millisecond)
		open = p.openFires()
	}
	cancel()
	clients.Wait()
	p.stop()
	checkFires(t, filepath.Join(p.dir, "signalbox.db"), led, schedules)
}

// openFires counts fires that wait for an agent or a result that can still come.
func (p *process) openFires() (n int) {
	p.t.Helper()
	for _, args := range [][]string{{"fires", "list", "--state", "buffered", "--limit", "500"}, {"commands", "list", "--state", "pending"},
		{"commands", "list", "--state", "dispatched"}} {
		out, err := p.cli(append(args, "--json")...)
		if err != nil {
			p.t.Fatalf("%v: %v: %s", args, err, out)
		}
		var page struct {
			Items []json.RawMessage `json:"items"`
		}
		if err := json.Unmarshal(out, &page); err != nil {
			p.t.Fatalf("%v: %v: %s", args, err, out)
		}
		n += len(page.Items)
	}
	return n
}

// serve takes fires over one session and answers them, for a while.
func (l *fireLedger) serve(ctx context.Context, cfg agentclient.Config) {
	s, err := agentclient.DialWS(ctx, cfg)
	if err != nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { s.Abort() })
	defer stop()
	away := time.AfterFunc(time.Duration(rand.Int64N(int64(4*time.Second))), func() { s.Abort() })
	defer away.Stop()
	defer s.Abort()
	for {
		f, err := s.Receive()
		if err != nil {
			return
		}
		typ, id := f.Type, f.ID
		c, err := agentclient.ReadCommand(&f)
		f.Release()
		if typ != wire.TypeCommand || err != nil {
			continue
		}
		var fire struct {
			FireID string `json:"fire_id"`
		}
		if json.Unmarshal(c.Parameters, &fire) == nil && c.Action == "schedule.fire" {
			l.mu.Lock()
			if l.commands[fire.FireID] == nil {
				l.commands[fire.FireID] = map[string]bool{}
			}
			l.commands[fire.FireID][id] = true
			l.mu.Unlock()
		}
		if s.SendJSON(wire.TypeCommandAck, id, agentclient.AckPayload) != nil ||
			s.SendJSON(wire.TypeCommandResult, id, agentclient.ResultPayload(true, "{}", "")) != nil {
			return
		}
	}
}

func checkFires(t *testing.T, path string, led *fireLedger, schedules int) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	number := func(query string) (n int) {
		t.Helper()
		if err := db.QueryRow(query).Scan(&n); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		return n
	}
	fires := number(`SELECT count(*) FROM fires`)
	t.Logf("%d fires, %d came to an agent; %d acked, %d delivered", fires, len(led.commands),
		number(`SELECT count(*) FROM fires WHERE status = 'acked_success'`), number(`SELECT count(*) FROM fires WHERE status = 'delivered'`))
	if fires == 0 || len(led.commands) == 0 {
		t.Fatal("the loop tested nothing")
	}
	for what, n := range map[string]int{
		"slots that were fired twice": fires - number(`SELECT count(*) FROM (SELECT DISTINCT schedule_no, slot_at FROM fires)`),
		"schedules without a fire":    schedules - number(`SELECT count(DISTINCT schedule_no) FROM fires`),
		"slots that are missing": number(`SELECT sum(n) FROM (SELECT (max(slot_at) - min(slot_at)) / 1000000 + 1 - count(*) AS n
			FROM fires GROUP BY schedule_no)`),
		"slots that were passed over": number(`SELECT count(*) FROM schedule_misfires`),
		"first slots that are missing": number(`SELECT count(*) FROM schedules s WHERE s.anchor_at + 1000000 <>
			(SELECT min(slot_at) FROM fires f WHERE f.schedule_no = s.schedule_no)`),
		"fires that are neither handed over nor done": number(`SELECT count(*) FROM fires WHERE status NOT IN ('delivered', 'acked_success')`),
		"fires that are left in the buffer":           number(`SELECT count(*) FROM pending_fires`),
		"fires that have no command": number(`SELECT count(*) FROM fires f WHERE NOT EXISTS
			(SELECT 1 FROM commands c WHERE c.command_no = f.command_no AND c.action = 'schedule.fire')`),
		"commands that are of no fire": number(`SELECT count(*) FROM commands c WHERE c.action = 'schedule.fire' AND NOT EXISTS
			(SELECT 1 FROM fires f WHERE f.command_no = c.command_no)`),
		"fires of completed commands that are not acked": number(`SELECT count(*) FROM fires f JOIN commands c ON c.command_no = f.command_no
			WHERE c.status = 'completed' AND f.status <> 'acked_success'`),
		"runs that are not counted": fires - number(`SELECT sum(total_runs) FROM schedules`),
	} {
		if n != 0 {
			t.Errorf("%d %s", n, what)
		}
	}
	for id, commands := range led.commands {
		if len(commands) > 1 {
			t.Errorf("fire %s came as %d commands", id, len(commands))
		}
	}
}
