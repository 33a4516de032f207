package commands

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if dir := built.Load(); dir != nil {
			_ = os.RemoveAll(*dir)
		}
		os.Exit(code)
	}))
}

// TestScripts runs testdata/script, what holds against any server, against the fake. `signalbox ARG…` must exit with 0,
// `exits CODE ARG…` with the code.
func TestScripts(t *testing.T) {
	t.Parallel()
	runScripts(t, "testdata/script", startFake)
}

// TestScriptsAgainstTheAppliance runs the same scripts against the real one: it keeps the fake honest.
func TestScriptsAgainstTheAppliance(t *testing.T) {
	t.Parallel()
	runScripts(t, "testdata/script", startAppliance)
}

// TestApplianceScripts runs testdata/appliance: scripts about the files of a real one, and about what the fake has not. `agent
// NAME` mints an agent that lists celery and connects it until the script ends; it answers each command at once.
func TestApplianceScripts(t *testing.T) {
	t.Parallel()
	runScripts(t, "testdata/appliance", startAppliance)
}

// TestFakeScripts runs testdata/fake: scripts that steer the fake with `fake VERB…`.
func TestFakeScripts(t *testing.T) {
	t.Parallel()
	runScripts(t, "testdata/fake", startFake)
}

type (
	fakeKey   struct{}
	servedKey struct{} // of the test that serves a real appliance
)

// startFake serves the fake on the data directory's socket and on a port.
func startFake(env *testscript.Env, data string) (url string, err error) {
	f := newFakeServer()
	url = f.listen(env.T().(testing.TB), data)
	env.Values[fakeKey{}] = f
	if err := os.WriteFile(filepath.Join(data, "admin.key"), []byte(fakeAdminKey+"\n"), 0o600); err != nil {
		return "", err
	}
	return url, os.WriteFile(filepath.Join(data, "addresses.json"), []byte(`{"http":"`+url+`"}`), 0o600)
}

func startAppliance(env *testscript.Env, data string) (url string, err error) {
	env.Values[servedKey{}] = env.T()
	return serveForTest(env.T().(testing.TB), data), nil
}

func runScripts(t *testing.T, dir string, start func(env *testscript.Env, data string) (url string, err error)) {
	testscript.Run(t, testscript.Params{
		Dir: dir,
		Setup: func(env *testscript.Env) error {
			// Not below WORK: its path may be longer than a socket address.
			data := shortDir(env.T().(testing.TB))
			url, err := start(env, data)
			if err != nil {
				return err
			}
			env.Setenv("SIGNALBOX_DATA_DIR", data)
			env.Setenv("DATA", data)
			env.Setenv("URL", url)
			key, err := os.ReadFile(filepath.Join(data, "admin.key"))
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(env.WorkDir, "admin.key"), key, 0o600)
		},
		Cmds: scriptCommands(),
	})
}

type scriptCommand = func(ts *testscript.TestScript, neg bool, args []string)

// scriptCommands are the commands of every script.
func scriptCommands() map[string]scriptCommand {
	return map[string]scriptCommand{
		"signalbox": func(ts *testscript.TestScript, _ bool, args []string) { scriptExit(ts, ExitOK, args) },
		"exits": func(ts *testscript.TestScript, _ bool, args []string) {
			code, err := strconv.Atoi(args[0])
			ts.Check(err)
			scriptExit(ts, code, args[1:])
		},
		"onedoc": scriptOneDocument,
		"ndjson": scriptNDJSON,
		"fake":   scriptFake,
		"agent": func(ts *testscript.TestScript, _ bool, args []string) {
			connectAgent(ts.Value(servedKey{}).(testing.TB), &run{dir: ts.Getenv("DATA"), url: ts.Getenv("URL")}, args[0])
		},
		"capture": scriptCapture,
	}
}

func scriptExit(ts *testscript.TestScript, want int, args []string) {
	if got := scriptRun(ts, args); got != want {
		ts.Fatalf("signalbox %s: exit code %d, want %d\nstdout:\n%sstderr:\n%s", strings.Join(args, " "), got, want, ts.ReadFile("stdout"),
			ts.ReadFile("stderr"))
	}
}

// scriptRun runs a command line and returns its exit code.
func scriptRun(ts *testscript.TestScript, args []string) int {
	var out, talk bytes.Buffer
	env := []string{}
	for _, name := range []string{"SIGNALBOX_DATA_DIR", "SIGNALBOX_SERVER", "SIGNALBOX_API_KEY", "SIGNALBOX_API_KEY_FILE",
		"SIGNALBOX_PROJECT", "SIGNALBOX_CONFIG", "SIGNALBOX_CA_FILE", "SIGNALBOX_SECRET"} {
		env = append(env, name+"="+ts.Getenv(name))
	}
	for i, arg := range args {
		if path, ok := strings.CutPrefix(arg, "@"); ok {
			args[i] = ts.MkAbs(path)
		}
	}
	in := ""
	if last := len(args) - 1; last >= 0 && strings.HasPrefix(args[last], "<") { // the last argument may name the input
		in, args = ts.ReadFile(args[last][1:]), args[:last]
	}
	opts := newOptions(Stdio{In: strings.NewReader(in), Out: &out, Err: &talk, Env: env},
		Assets{Version: "1.2.3", ExampleConfig: "data_dir = \"signalbox-data\"\n"})
	opts.retryDelay = time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	got := opts.execute(ctx, args)
	_, _ = ts.Stdout().Write(out.Bytes())
	_, _ = ts.Stderr().Write(talk.Bytes())
	return got
}

// scriptOneDocument checks that the last stdout is exactly one JSON object with schema_version 1.
func scriptOneDocument(ts *testscript.TestScript, _ bool, _ []string) {
	dec := json.NewDecoder(strings.NewReader(ts.ReadFile("stdout")))
	var doc map[string]any
	ts.Check(dec.Decode(&doc))
	if dec.More() {
		ts.Fatalf("stdout holds more than one document")
	}
	if doc["schema_version"] != 1.0 {
		ts.Fatalf("schema_version = %v, want 1", doc["schema_version"])
	}
}

// scriptNDJSON checks that the last stdout is N lines, each an object with schema_version 1.
func scriptNDJSON(ts *testscript.TestScript, _ bool, args []string) {
	lines := strings.Split(strings.TrimSuffix(ts.ReadFile("stdout"), "\n"), "\n")
	if want, err := strconv.Atoi(args[0]); err != nil || len(lines) != want {
		ts.Fatalf("stdout holds %d lines, want %s", len(lines), args[0])
	}
	for _, line := range lines {
		var doc map[string]any
		ts.Check(json.Unmarshal([]byte(line), &doc))
		if doc["schema_version"] != 1.0 {
			ts.Fatalf("schema_version = %v, want 1: %s", doc["schema_version"], line)
		}
	}
}

// scriptCapture sets a variable: `capture NAME stdout|stderr FIELD`, where FIELD is a path like command.id into the JSON,
// or "after PREFIX" for the rest of the line that starts so. A number after FIELD keeps that many characters.
func scriptCapture(ts *testscript.TestScript, _ bool, args []string) {
	text := ts.ReadFile(args[1])
	if args[2] == "after" {
		for _, line := range strings.Split(text, "\n") {
			if rest, ok := strings.CutPrefix(line, args[3]); ok {
				ts.Setenv(args[0], strings.TrimSpace(rest))
				return
			}
		}
		ts.Fatalf("no line starts with %q", args[3])
	}
	var value any
	ts.Check(json.Unmarshal([]byte(text), &value))
	for _, name := range strings.Split(args[2], ".") {
		if list, ok := value.([]any); ok {
			n, err := strconv.Atoi(name)
			ts.Check(err)
			value = list[n]
			continue
		}
		object, ok := value.(map[string]any)
		if !ok {
			ts.Fatalf("no field %s", args[2])
		}
		value = object[name]
	}
	word, ok := value.(string)
	if !ok {
		ts.Fatalf("field %s is no text: %v", args[2], value)
	}
	if len(args) > 3 {
		n, err := strconv.Atoi(args[3])
		ts.Check(err)
		word = word[:n]
	}
	ts.Setenv(args[0], word)
}

// scriptFake steers the fake server.
func scriptFake(ts *testscript.TestScript, _ bool, args []string) {
	f := ts.Value(fakeKey{}).(*fakeServer)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch args[0] {
	case "online":
		find(f.agents, "name", args[1])["state"] = "online"
	case "agents": // agents ID NAME …: with ids that share a prefix
		for i := 1; i < len(args); i += 2 {
			f.agents = append(f.agents, object{"id": args[i], "name": args[i+1], "state": "online"})
		}
	case "auto":
		f.autoResult = args[1]
	case "on-watch":
		f.onWatch = args[1]
	case "event": // event KIND TASK
		f.events = append(f.events, object{"id": uuid.NewString(), "engine": "celery", "task_id": args[2], "kind": args[1],
			"occurred_at": now(), "payload": object{"n": len(f.events)}})
		f.wake()
	case "cut-after":
		f.cutAfter, _ = strconv.Atoi(args[1])
	case "drop-streams":
		f.dropStreams, _ = strconv.Atoi(args[1])
	case "epoch":
		f.epoch = args[1]
	case "break-audit":
		f.auditBroken = true
	case "degraded":
		f.degraded = args[1:]
	case "pages":
		f.pageSize, _ = strconv.Atoi(args[1])
	case "refuse": // refuse STATUS CODE [RETRY-AFTER]
		status, err := strconv.Atoi(args[1])
		ts.Check(err)
		f.refuse = &reply{status: status, code: args[2], message: "refused for the test"}
		if len(args) > 3 {
			f.refuse.retry = args[3]
		}
	case "lose-answers": // lose-answers N: store as many posts without an answer
		f.rooms.loseAnswers, _ = strconv.Atoi(args[1])
	case "covering": // covering N: so many connections hear what is addressed
		f.rooms.covering, _ = strconv.Atoi(args[1])
	case "connection": // connection ID AGENT
		agent := find(f.rooms.agents, "name", args[2])
		f.rooms.connections = append(f.rooms.connections, object{"connection_id": args[1], "agent": named(agent), "scope": "single",
			"filter": "all", "cursor": 40, "head": 42, "lag": 2, "generation": 7, "claims": []object{}, "placements": []object{},
			"transport": "websocket", "attached": true, "held": true, "last_beat_age_ms": 900, "client": "agent-runtime",
			"client_version": "0.8.0", "protocol": 8, "declared": 8, "opened_at": now()})
	case "room": // room ID NAME: one with that id
		f.rooms.rooms = append(f.rooms.rooms, object{"id": args[1], "name": args[2], "members": []object{}, "people": []object{}})
	case "accept":
		f.refuse = nil
	case "not-asked": // not-asked METHOD: no request with the method since the start
		for _, r := range f.requests {
			if strings.HasPrefix(r, args[1]+" ") {
				ts.Fatalf("unexpected request %s", r)
			}
		}
	case "archive": // archive VERB…
		if !f.archive.steer(args[1:]) {
			ts.Fatalf("unknown verb %s", args[1])
		}
		f.wake()
	default:
		ts.Fatalf("unknown verb %s", args[0])
	}
}
