package commands

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// killCount is how many kills a loop does.
func killCount(t *testing.T) int {
	t.Helper()
	text := os.Getenv("SIGNALBOX_KILLS")
	if text == "" {
		return defaultKills
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("SIGNALBOX_KILLS: must be a positive number, got %q", text)
	}
	return n
}

// fewerKills is killCount for the loops whose kills take longer: an eighth of what is asked for, half of the default.
func fewerKills(t *testing.T) int {
	t.Helper()
	if os.Getenv("SIGNALBOX_KILLS") == "" {
		return defaultKills / 2
	}
	return max(killCount(t)/8, 1)
}

// daemonProcess is "signalbox daemon run" with a machine's directories.
type daemonProcess struct {
	t      testing.TB
	binary string
	name   string
	dir    string
	config string
	notify *net.UnixConn
	log    *os.File
	cmd    *exec.Cmd
}

// newDaemonProcess sets a machine up with "signalbox daemon init"; it sees the outbox of other, if there is one.
func newDaemonProcess(t testing.TB, control *process, name string, other *daemonProcess) *daemonProcess {
	t.Helper()
	dir, err := os.MkdirTemp("", "sbm")
	if err != nil {
		t.Fatal(err)
	}
	d := &daemonProcess{t: t, binary: control.binary, name: name, dir: dir, config: filepath.Join(dir, "daemon.toml")}
	t.Cleanup(func() {
		if !t.Failed() {
			os.RemoveAll(dir)
		} else {
			t.Logf("machine %s kept in %s", name, dir)
		}
	})
	if err := os.MkdirAll(d.path("content", ""), 0o755); err != nil {
		t.Fatal(err)
	}
	token, err := os.ReadFile(filepath.Join(control.dir, "daemon.token"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "daemon.token"), token, 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"daemon", "init", "--config", d.config, "--control", "ws" + strings.TrimPrefix(control.baseURL(), "http") + "/daemon/v2", "--name", name,
		"--state-dir", filepath.Join(dir, "state"), "--content", name + "-content=" + d.path("content", ""), "--receive", name + "-receive=" + d.path("receive", ""),
		"--outbox", name + "-outbox=" + d.path("outbox", "")}
	if other != nil {
		args = append(args, "--shared", other.name+"-outbox="+other.path("outbox", ""))
	}
	if out, err := exec.Command(d.binary, args...).CombinedOutput(); err != nil {
		t.Fatalf("daemon init: %v\n%s", err, out)
	}
	// Two scans at once are enough for content that nobody writes.
	text, err := os.ReadFile(d.config)
	if err == nil {
		err = os.WriteFile(d.config, bytes.Replace(text, []byte(`quiet_time = "5s"`), []byte(`quiet_time = "1ms"`), 1), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	d.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	if d.log, err = os.Create(filepath.Join(dir, "daemon.log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if d.cmd != nil && d.cmd.ProcessState == nil {
			_ = d.cmd.Process.Kill()
			_ = d.cmd.Wait()
		}
		d.notify.Close()
		d.log.Close()
	})
	return d
}

func (d *daemonProcess) path(root, name string) string {
	return filepath.Join(d.dir, root, filepath.FromSlash(name))
}

func (d *daemonProcess) start() time.Duration {
	d.t.Helper()
	cmd := exec.Command(d.binary, "daemon", "run", "--config", d.config)
	cmd.Env = []string{"NOTIFY_SOCKET=" + filepath.Join(d.dir, "notify"), "PATH=" + os.Getenv("PATH")}
	cmd.Stdout, cmd.Stderr = d.log, d.log
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.cmd = cmd
	_ = d.notify.SetReadDeadline(time.Now().Add(2 * time.Minute))
	buf := make([]byte, 512)
	for {
		n, err := d.notify.Read(buf)
		if err != nil {
			d.t.Fatalf("daemon %s is not ready: %v\n%s", d.name, err, d.tail())
		}
		if strings.Contains(string(buf[:n]), "READY=1") {
			return time.Since(begun)
		}
	}
}

func (d *daemonProcess) tail() []byte {
	log, _ := os.ReadFile(d.log.Name())
	return tail(log, 4000)
}

func (d *daemonProcess) kill(after time.Duration) {
	d.t.Helper()
	<-time.After(after)
	if err := d.cmd.Process.Kill(); err != nil {
		d.t.Fatalf("daemon %s had ended by itself: %v\n%s", d.name, err, d.tail())
	}
	_ = d.cmd.Wait()
	if ws, ok := d.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		d.t.Fatalf("daemon %s ended by %v, not by our signal\n%s", d.name, d.cmd.ProcessState, d.tail())
	}
}

func (d *daemonProcess) stop() {
	d.t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		d.t.Fatal(err)
	}
	if err := d.cmd.Wait(); err != nil {
		d.t.Fatalf("orderly stop of daemon %s: %v\n%s", d.name, err, d.tail())
	}
}

// id is the daemon's ID, as its configuration has it.
func (d *daemonProcess) id() string {
	text, err := os.ReadFile(d.config)
	if err != nil {
		d.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "client_id = \"")
	id, _, _ := strings.Cut(rest, "\"")
	return id
}

// ask calls control as its administrator; false when it could not be reached or has other trouble of a process that dies.
func (a *archiveLoop) ask(method, path string, body, out any) (status int, ok bool) {
	var text []byte
	if body != nil {
		text, _ = json.Marshal(body)
	}
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(a.control.dir, "signalbox.sock"))
		}}}
	req, err := http.NewRequest(method, "http://control/api/v1"+path, bytes.NewReader(text))
	if err != nil {
		a.t.Error(err)
		return 0, false
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return 0, false
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode >= 500 {
		return res.StatusCode, false
	}
	if out != nil && res.StatusCode < 300 {
		if err := json.Unmarshal(answer, out); err != nil {
			a.t.Errorf("%s %s: %v: %.300s", method, path, err, answer)
			return res.StatusCode, false
		}
	}
	return res.StatusCode, true
}

// pause lets a moment pass between two looks at a process that may be dead.
func pause(ctx context.Context) {
	select {
	case <-time.After(50 * time.Millisecond):
	case <-ctx.Done():
	}
}

// route makes the way between the machines and waits until it is ready.
func (a *archiveLoop) route() {
	a.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for made := false; time.Now().Before(deadline); pause(context.Background()) {
		if !made {
			status, ok := a.ask("POST", "/routes", map[string]any{"name": "way", "source": a.nas.id(), "target": a.vault.id(), "source_root": "nas-outbox",
				"target_root": "vault-receive", "shared_marker": "nas-outbox"}, nil)
			made = ok && status == 201
			continue
		}
		var r struct{ Ready bool }
		if _, ok := a.ask("GET", "/routes/way", nil, &r); ok && r.Ready {
			return
		}
	}
	a.t.Fatalf("the route does not become ready\n%s\n%s", a.nas.tail(), a.vault.tail())
}

// begin previews and starts the job of a case, as often as the dying processes make necessary.
func (a *archiveLoop) begin(ctx context.Context, c *archiveCase) bool {
	var route struct{ ID string }
	for ctx.Err() == nil && !a.enough.Load() {
		pause(ctx)
		if route.ID == "" {
			a.ask("GET", "/routes/way", nil, &route)
			continue
		}
		resource := a.resource(c.name)
		if resource == "" {
			continue
		}
		var p struct{ ID, State string }
		status, ok := a.ask("POST", "/job-previews?wait=10", map[string]any{"operation": "transfer", "source": map[string]any{"daemon": a.nas.id(), "resource": resource},
			"target": map[string]any{"daemon": a.vault.id()}, "route": route.ID, "destination": map[string]any{"root": "vault-content"}, "evict_after": c.evict,
			"policies": map[string]any{"keep_free_bytes": 1, "trash_retention_seconds": 1}}, &p)
		if !ok || status >= 300 || p.State != "passed" {
			continue
		}
		var j struct{ ID string }
		if status, ok := a.ask("POST", "/jobs", map[string]any{"preview_id": p.ID}, &j); ok && status == 201 {
			c.job = j.ID
			a.started.Add(1)
			return true
		}
		// The answer may have been lost: then there is a job of that name.
		for ctx.Err() == nil {
			var list struct {
				Items []struct{ ID, Title, Operation string }
			}
			if _, ok := a.ask("GET", "/jobs?limit=500", nil, &list); !ok {
				pause(ctx)
				continue
			}
			for _, i := range list.Items {
				if i.Title == c.name && i.Operation == "transfer" {
					c.job = i.ID
				}
			}
			break
		}
		if c.job != "" {
			a.started.Add(1)
			return true
		}
	}
	return false
}

// resource asks for the list of the source until it shows the name; "" when it does not yet.
func (a *archiveLoop) resource(name string) string {
	if _, ok := a.ask("POST", "/daemons/"+a.nas.id()+"/inventory", map[string]any{"scope": "resources", "wait": 5}, nil); !ok {
		return ""
	}
	var page struct {
		Items []struct {
			ResourceID string `json:"resource_id"`
			Name       string
		}
	}
	a.ask("GET", "/daemons/"+a.nas.id()+"/resources?limit=500&text="+name, nil, &page)
	for _, i := range page.Items {
		if i.Name == name {
			return i.ResourceID
		}
	}
	return ""
}

// follow waits for the end of a job while processes die; some are cancelled on the way.
func (a *archiveLoop) follow(ctx context.Context, c *archiveCase) {
	deadline := time.Now().Add(2 * time.Minute)
	for time.Now().Before(deadline) && !a.enough.Load() {
		pause(ctx)
		if c.cancels {
			if status, ok := a.ask("POST", "/jobs/"+c.job+"/cancel", map[string]any{"reason": "the loop cancels some"}, nil); ok && status < 500 {
				c.cancels = false
			}
		}
		if a.look(c) {
			return
		}
	}
}

// look reads the state of a job; true when it has ended or is held.
func (a *archiveLoop) look(c *archiveCase) bool {
	var j struct {
		State   string
		Waiting *struct{ Reason, Detail string }
	}
	if _, ok := a.ask("GET", "/jobs/"+c.job, nil, &j); !ok {
		return false
	}
	c.state = j.State
	if j.Waiting != nil {
		c.state = fmt.Sprintf("waiting for %s: %s", j.Waiting.Reason, j.Waiting.Detail)
	}
	switch j.State {
	case "completed":
		a.completed.Add(1)
		return true
	case "failed", "cancelled", "manual":
		return true
	}
	return false
}

// settle gives the jobs that are open time to end while nobody is killed.
func (a *archiveLoop) settle() {
	a.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for _, c := range a.cases {
		for c.job != "" && c.state != "completed" && c.state != "failed" && c.state != "cancelled" && c.state != "manual" {
			if a.look(c) {
				break
			}
			if time.Now().After(deadline) {
				var x json.RawMessage
				a.ask("GET", "/jobs/"+c.job+"/explain", nil, &x)
				a.t.Errorf("%s: job %s does not end: %s\n%s", c.name, c.job, c.state, x)
				break
			}
			pause(context.Background())
		}
	}
}
