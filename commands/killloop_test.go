package commands

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// defaultKills keeps the loop short in `go test`; `make kill` and CI set SIGNALBOX_KILLS to 200 and more.
const defaultKills = 8

// TestKillLoop kills the real binary with SIGKILL at random instants, under load from WebSocket and long-poll agents
// that keep a ledger of their own, and compares the ledgers with what the database holds in the end: acknowledged is
// stored, every event has one row, no command ran that was not claimed, none is lost.
func TestKillLoop(t *testing.T) {
	kills := killCount(t)
	p := newProcess(t, buildBinary(t))
	p.args = []string{"--agent-rate-limits=false", "--agent-command-timeout=20s", "--agent-redispatch-min-interval=1s",
		"--agent-redispatch-window=10s"}
	p.start()
	led := newLedger()
	ctx, cancel := context.WithCancel(context.Background())
	var clients, issuers sync.WaitGroup
	for i := range 4 {
		c := p.mint(fmt.Sprintf("agent-%d", i))
		a := &killAgent{p: p, led: led, cfg: c.cfg, id: c.id, name: fmt.Sprintf("a%d", i)}
		clients.Go(func() { a.ingest(ctx, i%2 == 0) })
		b := p.mint(fmt.Sprintf("worker-%d", i))
		w := &killAgent{p: p, led: led, cfg: b.cfg, id: b.id, name: fmt.Sprintf("w%d", i)}
		clients.Go(func() { w.execute(ctx, i%2 == 0) })
		issuers.Go(func() { w.issue(ctx) })
	}
	var restarts []time.Duration
	for n := range kills {
		p.kill(time.Duration(rand.Int64N(int64(250 * time.Millisecond))))
		if n%5 == 4 { // and once in a while before it is ready
			p.launch()
			p.kill(time.Duration(rand.Int64N(int64(80 * time.Millisecond))))
			p.forgetReady()
		}
		restarts = append(restarts, p.start())
		if (n+1)%50 == 0 {
			t.Logf("%d kills: %s", n+1, led)
		}
	}
	led.stopIssuing()
	issuers.Wait() // what one of them has begun is a command that must end, too
	p.settle()
	cancel()
	clients.Wait()
	p.stop()
	slices.Sort(restarts)
	t.Logf("%d kills, %s; restart to ready: median %v, slowest %v", kills, led, restarts[len(restarts)/2], restarts[len(restarts)-1])
	// Only where this loop has the machine to itself does the time tell of the product.
	if own := os.Getenv("SIGNALBOX_KILLS") != ""; own && restarts[len(restarts)/2] > time.Second {
		t.Errorf("half of the restarts took longer than %v to be ready, want under 1 s", restarts[len(restarts)/2])
	}
	checkLedger(t, filepath.Join(p.dir, "signalbox.db"), led)
	p.checkOffline()
}

// settle lets the clients run against a server that stays up until every command has ended.
func (p *process) settle() {
	p.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for time.Now().Before(deadline) {
		out, err := p.cli("status")
		if err != nil {
			p.t.Fatalf("status: %v", err)
		}
		var st struct {
			Status struct {
				Commands struct{ Pending, Dispatched int }
			}
			Commands struct{ Pending, Dispatched int }
		}
		if err := json.Unmarshal(out, &st); err != nil {
			p.t.Fatalf("status: %v: %s", err, out)
		}
		if st.Commands.Pending+st.Commands.Dispatched+st.Status.Commands.Pending+st.Status.Commands.Dispatched == 0 {
			return
		}
		<-time.After(200 * time.Millisecond)
	}
	p.t.Error("commands are still open two minutes after the last kill; their time-out is 20 s")
}

// checkOffline verifies the audit chain on the stopped database through a last start.
func (p *process) checkOffline() {
	p.t.Helper()
	p.start()
	if out, err := p.cli("audit", "verify"); err != nil {
		p.t.Errorf("audit verify: %v: %s", err, out)
	}
	resp, err := http.Get(p.baseURL() + "/readyz")
	if err != nil {
		p.t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		p.t.Errorf("readyz answers %d", resp.StatusCode)
	}
	p.stop()
}
