//go:build interop

package commands

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
)

const (
	overWS       = "ws"
	overLongPoll = "longpoll"
	// patience bounds every wait for something that normally takes a second or two on an idle machine.
	patience = 2 * time.Minute
)

// rig is a server and a worker of a task queue whose agent is to find it.
type rig struct {
	t         *testing.T
	transport string
	engine    string   // celery or rq
	workerEnv []string // added to the worker's environment
	server    *process
	tools     tools
	agent     minting
	dir       string // of all that is not the server's
	caFile    string // what signed the server's certificate, when it has one
	worker    *daemon
	driver    *driver
}

// minting is what `agents mint --json` answers.
type minting struct {
	Agent struct {
		ID string `json:"id"`
	} `json:"agent"`
	Env map[string]string `json:"env"`
}

const agentName = "worker-1"

// newRig starts everything and returns when the agent is online. Plain is without TLS, which the agent accepts on loopback
// over WebSocket; over long-poll it never does.
func newRig(t *testing.T, tools tools, transport string, plain bool) *rig {
	t.Helper()
	return newRigOf(t, &rig{transport: transport, tools: tools, engine: "celery"}, plain)
}

// newRigOf is newRig with what r says already.
func newRigOf(t *testing.T, r *rig, plain bool) *rig {
	t.Helper()
	r.t, r.dir = t, shortDir(t)
	r.server = newProcess(t, r.tools.binary)
	t.Cleanup(func() {
		if t.Failed() {
			r.printLog("server", r.server.log.Name())
		}
	})
	if r.transport == overLongPoll || !plain {
		cert, key := r.newCertificate()
		r.server.scheme = "https"
		r.server.args = []string{"--server-tls-cert-file", cert, "--server-tls-key-file", key}
	}
	r.server.start()
	r.agent = r.mint(agentName)
	r.startRedis()
	r.startWorker()
	r.startDriver()
	r.awaitOnline()
	return r
}

// mint mints an agent on the command line.
func (r *rig) mint(name string) minting {
	r.t.Helper()
	var m minting
	r.cli(&m, "agents", "mint", name, "--brain-url", r.server.url)
	return m
}

func (r *rig) redisURL() string { return "redis+socket://" + filepath.Join(r.dir, "redis.sock") }

func (r *rig) startRedis() {
	r.t.Helper()
	socket := filepath.Join(r.dir, "redis.sock")
	r.startDaemon("redis", r.tools.redis, nil, "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no",
		"--dir", r.dir)
	r.eventually("redis listens", func() (bool, any) {
		_, err := os.Stat(socket)
		return err == nil, err
	})
}

// startWorker starts a worker, and in it the published agent, configured as minting told.
func (r *rig) startWorker() {
	r.t.Helper()
	env := r.pythonEnv()
	for name, value := range r.agent.Env {
		env = append(env, name+"="+value)
	}
	begun := len(r.logLines(eventsFlow))
	env = append(env, "Z4J_TRANSPORT="+r.transport, "Z4J_HOME="+filepath.Join(r.dir, "agent"))
	if r.caFile != "" {
		env = append(env, "SSL_CERT_FILE="+r.caFile)
	}
	env = append(env, r.workerEnv...)
	bin := filepath.Dir(r.tools.python)
	if r.engine == "rq" {
		socket := "unix://" + filepath.Join(r.dir, "redis.sock")
		r.worker = r.startDaemon("worker", filepath.Join(bin, "rq"), append(env, "Z4J_RQ_REDIS_URL="+socket, "Z4J_DEV_MODE=1"), "worker",
			"--config", "rq_settings", "--url", socket, "--worker-class", "z4j_rq.worker.Worker", "interop")
		return
	}
	// Not python -m celery: the agent starts in a program of the name celery only.
	r.worker = r.startDaemon("worker", filepath.Join(bin, "celery"), env, "-A", "app", "worker",
		"--loglevel", "info", "--concurrency", "1", "--hostname", "w1@%h")
	r.awaitLog(begun+1, eventsFlow)
}

// eventsFlow is logged when the agent listens to Celery: from here on it misses no event of a task.
const eventsFlow = "broker events monitor connected to broker"

func (r *rig) restartWorker() {
	r.t.Helper()
	r.worker.stop()
	r.startWorker()
}

func (r *rig) pythonEnv() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.dir, "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1",
		"PYTHONUNBUFFERED=1", "INTEROP_REDIS=" + r.redisURL(), "INTEROP_RAN=" + filepath.Join(r.dir, "ran")}
}

// awaitOnline waits until the server shows the agent with a live session.
func (r *rig) awaitOnline() {
	r.t.Helper()
	r.eventually("agent is online", func() (bool, any) {
		a := r.showAgent()
		return a.State == "online", a
	})
}

func (r *rig) showAgent() agentRow {
	r.t.Helper()
	var doc struct {
		Agent agentRow `json:"agent"`
	}
	r.cli(&doc, "agents", "show", r.agent.Agent.ID)
	return doc.Agent
}

// cli runs a command line that must succeed, and decodes its document.
func (r *rig) cli(doc any, args ...string) {
	r.t.Helper()
	out, code, stderr := r.tryCLI(args...)
	if code != ExitOK {
		r.t.Fatalf("signalbox %s: exit code %d: %s%s", strings.Join(args, " "), code, stderr, out)
	}
	if err := json.Unmarshal(out, doc); err != nil {
		r.t.Fatalf("signalbox %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// tryCLI runs a command line as the local administrator.
func (r *rig) tryCLI(args ...string) (stdout []byte, code int, stderr string) {
	r.t.Helper()
	out, err := r.server.cli(args...)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return out, exit.ExitCode(), string(exit.Stderr)
	case err != nil:
		r.t.Fatalf("signalbox %s: %v", strings.Join(args, " "), err)
	}
	return out, ExitOK, ""
}

// eventually polls until the condition holds. What the condition returns beside is shown when it never does.
func (r *rig) eventually(what string, condition func() (bool, any)) {
	r.t.Helper()
	r.within(patience, what, condition)
}

func (r *rig) within(limit time.Duration, what string, condition func() (bool, any)) {
	r.t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, last := condition()
		if ok {
			return
		}
		select {
		case <-deadline:
			shown, _ := json.Marshal(last)
			r.t.Fatalf("not within %v: %s; last: %.3000s", limit, what, shown)
		case <-tick.C:
		}
	}
}

// daemon is a child process with a process group of its own and a log.
type daemon struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
}

func (r *rig) startDaemon(name, program string, env []string, args ...string) *daemon {
	r.t.Helper()
	d := &daemon{log: filepath.Join(r.dir, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		r.t.Fatal(err)
	}
	d.cmd = exec.Command(program, args...)
	d.cmd.Env, d.cmd.Dir = env, r.tools.source
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	go func() {
		_ = d.cmd.Wait()
		log.Close()
		close(d.done)
	}()
	r.t.Cleanup(func() {
		d.stop()
		if r.t.Failed() {
			r.printLog(name, d.log)
		}
	})
	return d
}

// stop ends the process in good order, or its whole group by force when that takes too long.
func (d *daemon) stop() {
	_ = syscall.Kill(d.cmd.Process.Pid, syscall.SIGTERM)
	select {
	case <-d.done:
	case <-time.After(20 * time.Second):
	}
	_ = syscall.Kill(-d.cmd.Process.Pid, syscall.SIGKILL) // also what a worker's pool left behind
	<-d.done
}

func (r *rig) printLog(name, path string) {
	content, err := os.ReadFile(path)
	r.t.Logf("log of %s: %v\n%s", name, err, tail(content, 16000))
}

// logLines returns the lines of the worker's log that hold the text.
func (r *rig) logLines(text string) []string {
	r.t.Helper()
	content, err := os.ReadFile(filepath.Join(r.dir, "worker.log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(content)) {
		if strings.Contains(line, text) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// awaitLog waits until the worker's log holds the text in at least n lines.
func (r *rig) awaitLog(n int, text string) []string {
	r.t.Helper()
	var lines []string
	r.eventually("worker logs: "+text, func() (bool, any) {
		lines = r.logLines(text)
		select {
		case <-r.worker.done:
			r.t.Fatal("the worker has ended")
		default:
		}
		return len(lines) >= n, lines
	})
	return lines
}

// driver is the Python process that sends tasks and asks Celery about them.
type driver struct {
	in  io.WriteCloser
	out *bufio.Reader
}

func (r *rig) startDriver() {
	r.t.Helper()
	cmd := exec.Command(r.tools.python, "driver.py")
	cmd.Env, cmd.Dir, cmd.Stderr = r.pythonEnv(), r.tools.source, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.driver = &driver{in: in, out: bufio.NewReader(out)}
	r.t.Cleanup(func() {
		_ = in.Close() // ends it
		timer := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
		_ = cmd.Wait()
	})
}

func (r *rig) drive(request, answer any) {
	r.t.Helper()
	line, err := json.Marshal(request)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.driver.in.Write(append(line, '\n')); err != nil {
		r.t.Fatalf("driver: %v", err)
	}
	reply, err := r.driver.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(reply, answer)
	}
	if err != nil {
		r.t.Fatalf("driver: %v: %s", err, reply)
	}
}

// celeryTask is a task to send.
type celeryTask struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	Args []any  `json:"args"`
}

func newTask(name string, args ...any) celeryTask {
	return celeryTask{ID: uuid.NewString(), Name: name, Args: args}
}

func (r *rig) send(tasks ...celeryTask) {
	r.t.Helper()
	var none struct{}
	r.drive(map[string]any{"op": "send", "tasks": tasks}, &none)
}

// celeryResult is what Celery's own result backend says of a task.
type celeryResult struct {
	State string `json:"state"`
	Value any    `json:"value"`
}

func (c celeryResult) ended() bool {
	return c.State == "SUCCESS" || c.State == "FAILURE" || c.State == "REVOKED"
}

func (r *rig) results(tasks []celeryTask) map[string]celeryResult {
	r.t.Helper()
	ids := make([]string, len(tasks))
	for i, task := range tasks {
		ids[i] = task.ID
	}
	var answer struct {
		Results map[string]celeryResult `json:"results"`
	}
	r.drive(map[string]any{"op": "results", "ids": ids}, &answer)
	return answer.Results
}

// awaitCelery waits until Celery has ended all the tasks.
func (r *rig) awaitCelery(tasks []celeryTask) map[string]celeryResult {
	r.t.Helper()
	var found map[string]celeryResult
	r.eventually("Celery has ended all tasks", func() (bool, any) {
		found = r.results(tasks)
		for _, res := range found {
			if !res.ended() {
				return false, found
			}
		}
		return len(found) == len(tasks), found
	})
	return found
}

// execution is one line of what the tasks wrote when they ran.
type execution struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	Args []any  `json:"args"`
}

// executions returns how often, and with which arguments, the task ran.
func (r *rig) executions(taskID string) []execution {
	r.t.Helper()
	content, err := os.ReadFile(filepath.Join(r.dir, "ran"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.t.Fatal(err)
	}
	var found []execution
	for line := range strings.Lines(string(content)) {
		var e execution
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			r.t.Fatalf("%v: %s", err, line)
		}
		if e.ID == taskID {
			found = append(found, e)
		}
	}
	return found
}

// tasks returns the server's tasks by id.
func (r *rig) tasks() map[string]taskRow {
	r.t.Helper()
	var page struct {
		Items []taskRow `json:"items"`
	}
	r.cli(&page, "tasks", "list", "--limit", "5000")
	found := make(map[string]taskRow, len(page.Items))
	for _, row := range page.Items {
		found[row.TaskID] = row
	}
	return found
}

// auditRows returns the server's audit rows of an action.
func (r *rig) auditRows(action string) []auditRow {
	r.t.Helper()
	var page struct {
		Items []auditRow `json:"items"`
	}
	r.cli(&page, "audit", "list", "--action", action, "--limit", "5000")
	return page.Items
}

// events returns the server's events of a kind.
func (r *rig) events(kind string) []eventRow {
	r.t.Helper()
	var page struct {
		Items []eventRow `json:"items"`
	}
	r.cli(&page, "events", "list", "--kind", kind, "--limit", "5000")
	return page.Items
}

// runProgram runs a program to its end, bounded in time.
func runProgram(ctx context.Context, env []string, program string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = env
	return cmd.CombinedOutput()
}
