package commands

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"signalbox/appliance/secret"
	"signalbox/transport/agentclient"
)

// defaultKills keeps the loop short in `go test`; `make kill` and CI set SIGNALBOX_KILLS to 200 and more.
const defaultKills = 8

// TestKillLoop kills the real binary with SIGKILL at random instants, under load from WebSocket and long-poll agents
// that keep a ledger of their own, and compares the ledgers with what the database holds in the end: acknowledged is
// stored, every event has one row, no command ran that was not claimed, none is lost.
func TestKillLoop(t *testing.T) {
	kills := defaultKills
	if text := os.Getenv("SIGNALBOX_KILLS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("SIGNALBOX_KILLS: must be a positive number, got %q", text)
		}
		kills = n
	}
	p := newProcess(t)
	p.start()
	led := newLedger()
	ctx, cancel := context.WithCancel(context.Background())
	var clients sync.WaitGroup
	for i := range 4 {
		c := p.mint(fmt.Sprintf("agent-%d", i))
		a := &killAgent{p: p, led: led, cfg: c.cfg, id: c.id, name: fmt.Sprintf("a%d", i)}
		clients.Go(func() { a.ingest(ctx, i%2 == 0) })
		b := p.mint(fmt.Sprintf("worker-%d", i))
		w := &killAgent{p: p, led: led, cfg: b.cfg, id: b.id, name: fmt.Sprintf("w%d", i)}
		clients.Go(func() { w.execute(ctx, i%2 == 0) })
		clients.Go(func() { w.issue(ctx) })
	}
	var restarts []time.Duration
	for n := range kills {
		p.kill(time.Duration(rand.Int64N(int64(250 * time.Millisecond))))
		restarts = append(restarts, p.start())
		if (n+1)%50 == 0 {
			t.Logf("%d kills: %s", n+1, led)
		}
	}
	p.settle(led)
	cancel()
	clients.Wait()
	p.stop()
	slices.Sort(restarts)
	t.Logf("%d kills, %s; restart to ready: median %v, slowest %v", kills, led, restarts[len(restarts)/2], restarts[len(restarts)-1])
	if median := restarts[len(restarts)/2]; median > time.Second {
		t.Errorf("restart to ready took %v in the median, want under 1 s", median)
	}
	checkLedger(t, filepath.Join(p.dir, "signalbox.db"), led)
	p.checkOffline()
}

// process is the real binary with its data directory.
type process struct {
	t      *testing.T
	binary string
	dir    string
	listen string // fixed after the first start, so that clients find it again
	notify *net.UnixConn
	log    *os.File

	mu  sync.Mutex
	cmd *exec.Cmd
	up  bool
	url string
}

func newProcess(t *testing.T) *process {
	t.Helper()
	dir, err := os.MkdirTemp("", "sbk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			os.RemoveAll(dir)
		} else {
			t.Logf("data kept in %s", dir)
		}
	})
	p := &process{t: t, dir: dir, binary: buildBinary(t), listen: "127.0.0.1:0"}
	p.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	if p.log, err = os.Create(filepath.Join(dir, "serve.log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.cmd != nil && p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		p.notify.Close()
		p.log.Close()
	})
	return p
}

// buildBinary builds the real program as `make build` does, without the stamps.
func buildBinary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "signalbox")
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "signalbox")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

// start starts the binary and returns the time from exec to ready.
func (p *process) start() time.Duration {
	p.t.Helper()
	cmd := exec.Command(p.binary, "serve", "--data-dir", p.dir, "--listen", p.listen, "--agent-rate-limits=false",
		"--agent-command-timeout=20s", "--agent-redispatch-min-interval=1s", "--agent-redispatch-window=10s")
	cmd.Env = []string{"NOTIFY_SOCKET=" + filepath.Join(p.dir, "notify"), "PATH=" + os.Getenv("PATH")}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	p.cmd = cmd
	p.mu.Unlock()
	p.awaitReady()
	took := time.Since(begun)
	var addresses map[string]string
	content, err := os.ReadFile(filepath.Join(p.dir, "addresses.json"))
	if err == nil {
		err = json.Unmarshal(content, &addresses)
	}
	if err != nil {
		p.t.Fatalf("addresses.json: %v", err)
	}
	p.listen = addresses["http"]
	p.mu.Lock()
	p.up, p.url = true, "http://"+p.listen
	p.mu.Unlock()
	return took
}

func (p *process) awaitReady() {
	p.t.Helper()
	_ = p.notify.SetReadDeadline(time.Now().Add(30 * time.Second))
	buf := make([]byte, 512)
	for {
		n, err := p.notify.Read(buf)
		if err != nil {
			log, _ := os.ReadFile(p.log.Name())
			p.t.Fatalf("not ready: %v\n%s", err, tail(log, 4000))
		}
		if strings.Contains(string(buf[:n]), "READY=1") {
			return
		}
	}
}

func tail(b []byte, n int) []byte { return b[max(len(b)-n, 0):] }

// kill sends SIGKILL after the given time and waits for the end.
func (p *process) kill(after time.Duration) {
	p.t.Helper()
	<-time.After(after)
	p.mu.Lock()
	cmd := p.cmd
	p.up = false
	p.mu.Unlock()
	if err := cmd.Process.Kill(); err != nil {
		log, _ := os.ReadFile(p.log.Name())
		p.t.Fatalf("the process had ended by itself: %v\n%s", err, tail(log, 4000))
	}
	_ = cmd.Wait()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		log, _ := os.ReadFile(p.log.Name())
		p.t.Fatalf("ended by %v, not by our signal\n%s", cmd.ProcessState, tail(log, 4000))
	}
}

// stop ends the binary in good order.
func (p *process) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		log, _ := os.ReadFile(p.log.Name())
		p.t.Fatalf("orderly stop: %v\n%s", err, tail(log, 4000))
	}
}

// cli runs the binary's own command line as the local administrator.
func (p *process) cli(args ...string) ([]byte, error) {
	cmd := exec.Command(p.binary, append(args, "--data-dir", p.dir, "--json")...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	return cmd.Output()
}

type mintedAgent struct {
	cfg agentclient.Config
	id  string
}

func (p *process) mint(name string) mintedAgent {
	p.t.Helper()
	out, err := p.cli("agents", "mint", name)
	if err != nil {
		p.t.Fatalf("mint: %v", err)
	}
	var m struct {
		Agent struct{ ID string } `json:"agent"`
		Token string              `json:"token"`
		HMAC  string              `json:"hmac_secret"`
	}
	if err := json.Unmarshal(out, &m); err != nil {
		p.t.Fatalf("mint: %v: %s", err, out)
	}
	key, err := agentclient.DecodeSecret(m.HMAC)
	if err != nil {
		p.t.Fatal(err)
	}
	return mintedAgent{id: m.Agent.ID, cfg: agentclient.Config{URL: p.url, Token: secret.NewText(m.Token), ProjectSecret: key,
		Engines: []string{"celery"}, Capabilities: map[string][]string{"celery": {"cancel_task"}}}}
}

// settle lets the clients run against a server that stays up until every command has ended.
func (p *process) settle(led *ledger) {
	p.t.Helper()
	led.stopIssuing()
	deadline := time.Now().Add(60 * time.Second)
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
	p.t.Error("commands are still open a minute after the last kill; their time-out is 20 s")
}

// checkOffline verifies the audit chain on the stopped database through a last start.
func (p *process) checkOffline() {
	p.t.Helper()
	p.start()
	if out, err := p.cli("audit", "verify"); err != nil {
		p.t.Errorf("audit verify: %v: %s", err, out)
	}
	resp, err := http.Get(p.url + "/readyz")
	if err != nil {
		p.t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		p.t.Errorf("readyz answers %d", resp.StatusCode)
	}
	p.stop()
}
