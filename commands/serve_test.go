package commands

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/secret"
	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

// shortDir is a temporary directory whose path leaves room for a socket address.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// serveForTest runs `serve` in this process until the test ends. It returns the base URL once serve says it is ready.
func serveForTest(t testing.TB, data string) (url string) {
	t.Helper()
	schema, err := os.ReadFile("../schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	out, in := io.Pipe()
	var talk bytes.Buffer
	done := make(chan int, 1)
	go func() {
		opts := newOptions(Stdio{In: strings.NewReader(""), Out: in, Err: &talk, Env: []string{"SIGNALBOX_DATA_DIR=" + data}},
			Assets{Schema: string(schema), Version: "1.2.3"})
		code := opts.execute(ctx, []string{"serve", "--listen", "127.0.0.1:0", "--log-level", "warn"})
		_ = in.Close()
		done <- code
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-done; code != ExitOK {
			t.Errorf("serve ended with exit code %d: %s", code, &talk)
		}
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "Signalbox is ready at "); ok {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return rest
		}
	}
	t.Fatal("serve never became ready")
	return ""
}

// runJSON executes a command line with --json and decodes its document.
func runJSON(t testing.TB, r *run, code int, doc any, args ...string) {
	t.Helper()
	opts, out, talk := r.options("", false)
	if got := opts.execute(t.Context(), append(args, "--json")); got != code {
		t.Fatalf("%v: exit code %d, want %d: %s%s", args, got, code, out, talk)
	}
	if err := json.Unmarshal(out.Bytes(), doc); err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
}

// The way of a command from the command line to an agent and of its result and its events back.
func TestCommandReachesAConnectedAgentAndItsResultIsShown(t *testing.T) {
	t.Parallel()
	r := &run{dir: shortDir(t)}
	r.url = serveForTest(t, r.dir)
	agent := connectAgent(t, r, "web-1")

	var watched struct {
		Status  string `json:"status"`
		Command struct {
			Status string          `json:"status"`
			Result json.RawMessage `json:"result"`
		} `json:"command"`
		TimedOut bool `json:"timed_out"`
	}
	runJSON(t, r, ExitOK, &watched, "commands", "issue", "cancel-task", "--agent", "web-1", "--engine", "celery", "--task-id", "t1",
		"--yes", "--wait", "--timeout", "2m")
	if watched.Command.Status != "completed" || string(watched.Command.Result) != `{"echo":"cancel_task"}` || watched.TimedOut {
		t.Errorf("command ended as %+v", watched.Command)
	}
	runJSON(t, r, ExitFailed, &watched, "commands", "issue", "restart-worker", "--worker", "w1", "--yes", "--wait", "--timeout", "2m")
	if watched.Command.Status != "failed" {
		t.Errorf("command ended as %+v", watched.Command)
	}

	agent.report(t, agentclient.Event{ID: uuid.New(), Kind: "task.received", Engine: "celery", TaskID: "t1",
		OccurredAt: time.Now().UTC(), Data: `{"task_name":"app.add"}`})
	var tail struct {
		Event struct {
			Kind string `json:"kind"`
		} `json:"event"`
	}
	runJSON(t, r, ExitOK, &tail, "events", "tail", "--follow=false", "--kind", "task.received")
	if tail.Event.Kind != "task.received" {
		t.Errorf("tail shows %+v", tail)
	}
	tail.Event.Kind = ""
	runJSON(t, r, ExitOK, &tail, "events", "tail", "--follow=false", "--since", "1h")
	if tail.Event.Kind != "task.received" {
		t.Errorf("tail of the last hour shows %+v", tail)
	}
	opts, out, talk := r.options("", false)
	if got := opts.execute(t.Context(), []string{"events", "tail", "--follow=false", "--json", "--since", time.Now().Add(time.Hour).Format(time.RFC3339)}); got != ExitOK || out.Len() > 0 {
		t.Errorf("tail of the future: exit code %d: %s%s", got, out, talk)
	}
	var shown struct {
		Task struct {
			Name  string `json:"name"`
			State string `json:"state"`
		} `json:"task"`
		Events []json.RawMessage `json:"events"`
	}
	runJSON(t, r, ExitOK, &shown, "tasks", "show", "celery:t1")
	if shown.Task.Name != "app.add" || shown.Task.State != "received" || len(shown.Events) != 1 {
		t.Errorf("task is shown as %+v", shown)
	}
	var agents struct {
		Items []struct {
			State string `json:"state"`
		} `json:"items"`
	}
	runJSON(t, r, ExitOK, &agents, "agents", "list", "--state", "online")
	if len(agents.Items) != 1 {
		t.Errorf("%d agents are online, want 1", len(agents.Items))
	}
}

func TestAgentSecretIsThatOfTheMint(t *testing.T) {
	t.Parallel()
	r := &run{dir: shortDir(t)}
	r.url = serveForTest(t, r.dir)
	var minted, shown struct {
		HMACSecret string `json:"hmac_secret"`
	}
	runJSON(t, r, ExitOK, &minted, "agents", "mint", "web-1")
	runJSON(t, r, ExitOK, &shown, "agents", "secret", "web-1")
	if len(shown.HMACSecret) != 44 || shown.HMACSecret != minted.HMACSecret {
		t.Error("another secret is shown than was minted")
	}
	var audit struct {
		Items []struct {
			Action string `json:"action"`
		} `json:"items"`
	}
	runJSON(t, r, ExitOK, &audit, "audit", "list", "--limit", "1")
	if len(audit.Items) != 1 || audit.Items[0].Action != "agent.secret.shown" {
		t.Errorf("the latest audit row is %+v", audit.Items)
	}
	runJSON(t, r, ExitOK, &struct{}{}, "agents", "revoke", "web-1", "--yes")
	opts, _, _ := r.options("", false)
	if got := opts.execute(t.Context(), []string{"agents", "secret", "web-1"}); got != ExitNotFound {
		t.Errorf("of a revoked agent: exit code %d, want %d", got, ExitNotFound)
	}
}

// testAgent answers each command: restart_worker fails, all others succeed.
type testAgent struct {
	ws   *agentclient.WS
	acks chan string
}

// connectAgent mints an agent through the command line and connects it until the test ends.
func connectAgent(t testing.TB, r *run, name string) *testAgent {
	t.Helper()
	var m struct {
		Token      string `json:"token"`
		HMACSecret string `json:"hmac_secret"`
	}
	runJSON(t, r, ExitOK, &m, "agents", "mint", name)
	key, err := agentclient.DecodeSecret(m.HMACSecret)
	if err != nil {
		t.Fatal(err)
	}
	ws, err := agentclient.DialWS(t.Context(), agentclient.Config{URL: r.url, Token: secret.NewText(m.Token), ProjectSecret: key,
		Engines: []string{"celery"}, Capabilities: map[string][]string{"celery": {"cancel_task"}}})
	if err != nil {
		t.Fatal(err)
	}
	a := &testAgent{ws: ws, acks: make(chan string, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.serve(t)
	}()
	t.Cleanup(func() {
		_ = ws.Close()
		<-done
	})
	return a
}

func (a *testAgent) serve(t testing.TB) {
	for {
		f, err := a.ws.Receive()
		if err != nil {
			return // the test closed the socket
		}
		switch f.Type {
		case wire.TypeCommand:
			c, err := agentclient.ReadCommand(&f)
			result := agentclient.ResultPayload(true, `{"echo":"`+c.Action+`"}`, "")
			if c.Action == "restart_worker" {
				result = agentclient.ResultPayload(false, "", "no such worker")
			}
			err = errors.Join(err, a.ws.SendJSON(wire.TypeCommandAck, c.ID, agentclient.AckPayload),
				a.ws.SendJSON(wire.TypeCommandResult, c.ID, result))
			if err != nil {
				t.Errorf("answer command: %v", err)
			}
		case wire.TypeEventBatchAck:
			a.acks <- agentclient.ReadAck(&f).ID
		}
		f.Release()
	}
}

// report sends events and returns when they are acknowledged, and so stored.
func (a *testAgent) report(t *testing.T, events ...agentclient.Event) {
	t.Helper()
	id := uuid.NewString()
	if err := a.ws.Send(wire.TypeEventBatch, id, agentclient.AppendEventBatch(nil, events)); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-a.acks:
		if got != id {
			t.Fatalf("ack of %s, want %s", got, id)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("no ack")
	}
}
