package commands

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"signalbox/transport/agentclient"
)

// Bounds that a server under steady load keeps however long it runs.
const (
	maxSoakRSS = 256 << 20
	maxSoakWAL = 64 << 20
)

// TestSoak runs the real binary under steady load from both transports for SIGNALBOX_SOAK (default 5 s; `make soak`
// gives it hours): every event is acknowledged, every command returns, and memory and write-ahead log stay bounded.
func TestSoak(t *testing.T) {
	t.Parallel()
	length := 5 * time.Second
	if text := os.Getenv("SIGNALBOX_SOAK"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			t.Fatalf("SIGNALBOX_SOAK: must be a duration above zero, got %q", text)
		}
		length = d
	}
	p := newProcess(t, buildBinary(t))
	p.args = []string{"--agent-rate-limits=false"}
	p.start()
	opts := &options{stdio: Stdio{Out: os.Stdout, Err: os.Stderr}, dataDir: p.dir, now: time.Now, requestTimeout: 2 * time.Minute}
	opts.out = &printer{stdio: opts.stdio, opts: opts}
	s, err := opts.newScope(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var configs [2][]agentclient.Config
	for i := range 4 {
		configs[i%2] = append(configs[i%2], p.mint(fmt.Sprintf("agent-%d", i)).cfg)
	}
	worker := p.mint("worker")
	worker.cfg.Capabilities = map[string][]string{"celery": {"cancel_task"}}
	pool := &benchPool{scope: s, configs: []agentclient.Config{worker.cfg}, ids: []string{worker.id}}
	for ends := time.Now().Add(length); time.Now().Before(ends); {
		slice := min(time.Until(ends), time.Minute)
		results := make(chan error, 3)
		for i, transport := range []string{"ws", "longpoll"} {
			go func() {
				b := &benchAgents{transport: transport, duration: slice, batch: 1, window: 50}
				res, err := b.ingest(t.Context(), configs[i])
				if err == nil && (res.Acked == 0 || res.Acked != res.Accepted) {
					err = fmt.Errorf("%s: %d events acknowledged, %d of them new", transport, res.Acked, res.Accepted)
				}
				results <- err
			}()
		}
		go func() {
			_, err := (&benchAgents{transport: "ws", commands: 20}).roundTrips(t.Context(), pool)
			results <- err
		}()
		for range 3 {
			if err := <-results; err != nil {
				t.Fatal(err)
			}
		}
		if u := usageOf(t, p.cmd.Process.Pid); u.rss > maxSoakRSS {
			t.Errorf("%d MiB resident", u.rss>>20)
		}
		if wal, err := os.Stat(filepath.Join(p.dir, "signalbox.db-wal")); err == nil && wal.Size() > maxSoakWAL {
			t.Errorf("write-ahead log of %d MiB", wal.Size()>>20)
		}
	}
	if out, err := p.cli("audit", "verify"); err != nil {
		t.Errorf("audit verify: %v: %s", err, out)
	}
	p.stop()
}
