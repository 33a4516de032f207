package commands

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"signalbox/appliance/secret"
	"signalbox/transport/agentclient"
)

// process is the real binary with its data directory.
type process struct {
	t      testing.TB
	binary string
	dir    string
	args   []string // of serve, besides the data directory and the address
	env    []string // besides the few variables every start has
	scheme string
	listen string // the same at each start, so that clients find it again
	notify *net.UnixConn
	log    *os.File

	mu  sync.Mutex
	cmd *exec.Cmd
	up  bool
	url string
}

// newProcess prepares a data directory for the binary; start starts it.
func newProcess(t testing.TB, binary string) *process {
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
	p := &process{t: t, dir: dir, binary: binary, listen: fmt.Sprintf("127.0.0.1:%d", freePort(t)), scheme: "http"}
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

var portsGiven sync.Map // int -> struct{}

// freePort is a port of loopback that nobody has, and that stays free while its server is down: the kernel gives only ports
// of its own range to those who ask for any, and this process gives none twice.
func freePort(t testing.TB) int {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Fatal(err)
	}
	below := 0
	if _, err := fmt.Sscan(string(text), &below); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	const least = 10_000
	for range 1000 {
		port := 0
		if below > least+1000 {
			port = least + rand.IntN(below-least)
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue // somebody has it
		}
		port = l.Addr().(*net.TCPAddr).Port
		l.Close()
		if _, given := portsGiven.LoadOrStore(port, struct{}{}); !given {
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

// buildBinary builds the real program: for benchmarks as `make build` does, without the version, and for tests once for all.
func buildBinary(t testing.TB) string {
	t.Helper()
	path, err := filepath.Join(t.TempDir(), "signalbox"), error(nil)
	if _, figures := t.(*testing.B); figures {
		err = build(path, "-trimpath")
	} else {
		path, err = testedBinary()
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// testedBinary is built without -trimpath: what the tests, vet and lint have compiled serves it too.
var testedBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sbx")
	if err != nil {
		return "", err
	}
	built.Store(&dir)
	path := filepath.Join(dir, "signalbox")
	return path, build(path)
})

// built is the directory of the tested binary, if there is one.
var built atomic.Pointer[string]

func build(path string, flags ...string) error {
	cmd := exec.Command("go", append(append([]string{"build"}, flags...), "-ldflags", "-s -w", "-o", path, "signalbox")...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// start starts the binary and returns the time from exec to ready.
func (p *process) start() time.Duration {
	p.t.Helper()
	begun := p.launch()
	p.awaitReady()
	took := time.Since(begun)
	p.locate()
	return took
}

// launch starts the binary and does not wait for it.
func (p *process) launch() (begun time.Time) {
	p.t.Helper()
	cmd := exec.Command(p.binary, append([]string{"serve", "--data-dir", p.dir, "--listen", p.listen}, p.args...)...)
	cmd.Env = append([]string{"NOTIFY_SOCKET=" + filepath.Join(p.dir, "notify"), "PATH=" + os.Getenv("PATH")}, p.env...)
	cmd.Stdout, cmd.Stderr = p.log, p.log
	begun = time.Now()
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	p.cmd = cmd
	p.mu.Unlock()
	return begun
}

// forgetReady drops what a process that was killed has said of its readiness.
func (p *process) forgetReady() {
	buf := make([]byte, 512)
	for {
		_ = p.notify.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := p.notify.Read(buf); err != nil {
			return
		}
	}
}

// locate reads where the binary listens.
func (p *process) locate() {
	p.t.Helper()
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
	p.up, p.url = true, p.scheme+"://"+p.listen
	p.mu.Unlock()
}

// baseURL is where clients find the process; it does not change between starts.
func (p *process) baseURL() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.url
}

func (p *process) awaitReady() {
	p.t.Helper()
	_ = p.notify.SetReadDeadline(time.Now().Add(2 * time.Minute))
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
	return mintedAgent{id: m.Agent.ID, cfg: agentclient.Config{URL: p.baseURL(), Token: secret.NewText(m.Token), ProjectSecret: key,
		Engines: []string{"celery"}, Capabilities: map[string][]string{"celery": {"cancel_task"}}}}
}
