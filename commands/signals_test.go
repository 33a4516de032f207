package commands

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// awaitLog waits until the process has logged a text.
func (p *process) awaitLog(text string) {
	p.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for time.Now().Before(deadline) {
		content, err := os.ReadFile(p.log.Name())
		if err != nil {
			p.t.Fatal(err)
		}
		if strings.Contains(string(content), text) {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	content, _ := os.ReadFile(p.log.Name())
	p.t.Fatalf("%q was not logged:\n%s", text, tail(content, 4000))
}

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// SIGHUP takes over what can be taken over; a configuration that breaks a rule changes nothing.
func TestHangupReloadsTheConfiguration(t *testing.T) {
	t.Parallel()
	p := newProcess(t, buildBinary(t))
	file := filepath.Join(p.dir, "signalbox.toml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	status := func() int {
		t.Helper()
		resp, err := http.Get(p.baseURL() + "/api/v1/whoami")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	write("")
	p.args = []string{"--config", file}
	p.start()
	if got := status(); got != http.StatusUnauthorized {
		t.Errorf("without an allowlist: %d", got)
	}
	write("[server]\napi_ip_allowlist = [\"192.0.2.1\"]\ndrain_timeout = \"30s\"\n")
	p.signal(syscall.SIGHUP)
	p.awaitLog("configuration reloaded")
	p.awaitLog(`"server.drain_timeout"`) // waits for a restart
	p.awaitReady()
	if got := status(); got != http.StatusForbidden {
		t.Errorf("outside the new allowlist: %d", got)
	}
	write("[server]\nno_such_key = 1\n")
	p.signal(syscall.SIGHUP)
	p.awaitLog("configuration not reloaded")
	if got := status(); got != http.StatusForbidden {
		t.Errorf("a broken file changed the allowlist: %d", got)
	}
	p.stop()
	p.awaitLog(`"stopped"`)
}

// The first SIGTERM waits for a request whose body is still to come, the second does not.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	p := newProcess(t, buildBinary(t))
	p.args = []string{"--server-drain-timeout=5m"}
	p.start()
	key, err := os.ReadFile(filepath.Join(p.dir, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", p.listen)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// Expect: the answer "100 Continue" tells that the handler is reading the body.
	if _, err := fmt.Fprintf(conn, "POST /api/v1/projects HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n",
		strings.TrimSpace(string(key))); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "100") {
		t.Fatalf("%q, %v", line, err)
	}
	p.signal(syscall.SIGTERM)
	p.awaitLog("going down")
	p.signal(syscall.SIGTERM)
	err = p.cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("ended with %v, want death by the second signal", err)
	}
}
