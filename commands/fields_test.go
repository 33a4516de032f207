package commands

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"signalbox/appliance/fault"
)

// asked is a server that refuses every change, and keeps the fields that it was asked with.
type asked struct {
	mu    sync.Mutex
	names []string // of the last command line
}

const askedID = "3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10"

func (a *asked) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	path := strings.TrimPrefix(r.URL.Path, apiPrefix)
	row := func(name string) string {
		return fmt.Sprintf(`{"id":%q,"name":%q,"slug":%q,"email":%q,"state":"online","kind":"webhook","created_at":"2026-01-01T00:00:00Z"}`,
			askedID, name, name, name)
	}
	switch {
	case path == "/resolve", path == "/archive/resolve":
		fmt.Fprintf(w, `{"matches":[%s]}`, row(r.URL.Query().Get("text")))
		return
	case strings.HasSuffix(path, "/resolve"):
		fmt.Fprintf(w, `{"ids":[%q]}`, askedID)
		return
	case path == "/projects" && r.Method == http.MethodGet, strings.HasSuffix(path, "/agents") && r.Method == http.MethodGet:
		fmt.Fprintf(w, `[%s]`, row("default"))
		return
	}
	for name := range r.URL.Query() {
		a.names = append(a.names, name)
	}
	if r.Method == http.MethodGet && !strings.HasSuffix(path, "/stream") {
		var rows []string
		for _, name := range []string{"ops", "mail", "phone", "agents", "mail-failures"} {
			rows = append(rows, row(name))
		}
		list := "[" + strings.Join(rows, ",") + "]"
		if last := path[strings.LastIndexByte(path, '/')+1:]; slices.Contains([]string{"channels", "rules", "queues", "routes", "storage", "daemons", "alerts", "links", "roles"}, last) {
			fmt.Fprint(w, list)
			return
		}
		fmt.Fprintf(w, `{"id":%q,"name":"x","slug":"default","items":%s}`, askedID, list)
		return
	}
	body, _ := io.ReadAll(r.Body)
	var fields map[string]any
	if json.Unmarshal(body, &fields) == nil {
		a.names = append(a.names, fieldNames("", fields)...)
	}
	w.WriteHeader(http.StatusUnprocessableEntity)
	fmt.Fprint(w, `{"error":"invalid","message":"no"}`)
}

// fieldNames are the fields of a body as errors name them: those of an object within are named by its field, a dot and theirs.
func fieldNames(prefix string, fields map[string]any) (names []string) {
	for name, value := range fields {
		if inner, ok := value.(map[string]any); ok && (name == "settings" || name == "filter" || name == "payload" || name == "parameters") {
			names = append(names, fieldNames(prefix+name+".", inner)...)
		} else {
			names = append(names, prefix+name)
		}
	}
	return names
}

// ownWords are the fields of requests that a command sets by itself: what it is, how much it reads, not what was typed.
var ownWords = []string{"action", "after", "dry_run", "follow", "is_active", "limit", "operation", "request_id", "scope", "target_id",
	"target_type", "text"}

// ownOf are such fields of single commands.
var ownOf = map[string][]string{
	"jobs evict":                          {"daemon", "state"}, // it looks for the transfer
	"jobs preview evict":                  {"daemon", "state"},
	"roomagents keys mint":                {"kind"},
	"people password":                     {"password"}, // asked for, or read from stdin
	"notifications channels enable":       {"is_enabled"},
	"notifications channels disable":      {"is_enabled"},
	"notifications rules enable":          {"is_enabled"},
	"notifications rules disable":         {"is_enabled"},
	"commands issue raw":                  {"payload.task_name", "payload.rate"}, // it is the caller who writes --payload
	"commands issue schedule-fire":        {"payload.fired_at", "payload.fire_id"},
	"commands issue schedule-trigger-now": {"payload.idempotency_key"},
}

// exampleLines are the command lines of all help that ask a server for one answer.
func exampleLines() (lines []string) {
	walk(newRootCommand(newOptions(Stdio{}, Assets{})), func(cmd *cobra.Command) {
		if cmd.HasSubCommands() {
			return
		}
		for _, line := range strings.Split(strings.ReplaceAll(cmd.Example, "\\\n", " "), "\n") {
			line, _, _ = strings.Cut(strings.TrimSpace(line), "   #")
			for _, shell := range []string{" > ", " < ", " | "} {
				line, _, _ = strings.Cut(line, shell)
			}
			rest, ok := strings.CutPrefix(line, "signalbox ")
			switch strings.Split(rest, " ")[0] {
			case "serve", "bench", "daemon", "conformance", "status", "healthcheck", "backup", "restore", "db", "config", "manifest":
				continue
			}
			if ok && !strings.Contains(rest, "…") {
				lines = append(lines, rest)
			}
		}
	})
	return lines
}

// TestEveryFieldIsTypedSomewhere runs the examples of all help against a server that refuses them, and finds for each field that they
// sent where it was typed.
func TestEveryFieldIsTypedSomewhere(t *testing.T) {
	a := &asked{}
	server := httptest.NewServer(a)
	defer server.Close()
	t.Chdir(t.TempDir())
	for name, content := range map[string]string{"bot.password": "x", "ntfy.url": "ntfy://x", "policy.json": "[]", "docs-room.md": "x",
		"reviewer.md": "x", "plaza.md": "x", "schedules.toml": "", "schedules.json": "{}"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lines := append(exampleLines(),
		`schedules create x --engine celery --task t --every 5m --priority high --args [1] --queue q --source s --external-id e --disabled`,
		`schedules create x --engine celery --task t --every 5m --scheduler beat --catch-up skip`,
		`schedules list --source s --scheduler beat --cursor c`,
		`notifications channels create x --kind webhook --url-file ntfy.url --secret-file bot.password --disabled`,
		`notifications channels create x --kind email --host h --port 25 --security none --username u --from f --to t`,
		`notifications rules create x --trigger task_failed --channel ops --group 1h --pattern p --disabled`,
		`notifications rules update agents --name n --trigger task_failed`,
		`fires list --cursor c`, `failures list --engine celery --state open --cursor c`,
		`commands issue schedule-fire --agent web-1 --schedule-id s --name n --task t --engine celery --queue q`)
	words := regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`)
	sent := 0
	for _, line := range lines {
		var args []string
		for _, w := range words.FindAllString(line, -1) {
			args = append(args, strings.Trim(w, `'"`))
		}
		a.names = nil
		var cmd *cobra.Command
		for _, yes := range [][]string{{"--yes"}, nil} { // a command that asks nothing has no --yes
			var talk strings.Builder
			opts := newOptions(Stdio{In: strings.NewReader("long enough word\nlong enough word\n"), Out: io.Discard, Err: &talk,
				Env: []string{"SIGNALBOX_SERVER=" + server.URL}}, Assets{})
			opts.retryDelay = time.Millisecond
			root := newRootCommand(opts)
			root.SetArgs(slices.Concat(args, yes))
			var err error
			if cmd, err = root.ExecuteContextC(t.Context()); err == nil || !strings.Contains(err.Error(), "--yes") {
				break
			}
		}
		if len(a.names) > 0 {
			sent++
		}
		path := strings.TrimPrefix(cmd.CommandPath(), "signalbox ")
		for _, name := range a.names {
			if typedAs(cmd, name) == "" && !slices.Contains(ownWords, name) && !slices.Contains(ownOf[path], name) {
				t.Errorf("%s: the field %s was typed nowhere", line, name)
			}
		}
	}
	if sent < 100 {
		t.Errorf("%d of %d command lines sent a field, which is too few to be most of them", sent, len(lines))
	}
	root := newRootCommand(newOptions(Stdio{}, Assets{}))
	for field, names := range typedFields {
		for _, name := range names {
			found := false
			walk(root, func(cmd *cobra.Command) {
				flag, isFlag := strings.CutPrefix(name, "--")
				found = found || isFlag && cmd.Flags().Lookup(flag) != nil || isFlag && cmd.InheritedFlags().Lookup(flag) != nil ||
					!isFlag && takes(cmd, name)
			})
			if !found {
				t.Errorf("no command has %s, of the field %s", name, field)
			}
		}
	}
}

func TestRefusalsNameWhatWasTyped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ line, field, want string }{
		{"schedules create n --engine c --task t --cron x", "expression", "--cron: is wrong"},
		{"schedules create n --engine c --task t --every x", "expression", "--every: is wrong"},
		{"schedules update n --timezone x", "expression", "--cron or --every or --at: is wrong"},
		{"schedules create n --engine c --task t --at x", "task_name", "--task: is wrong"},
		{"schedules create n --engine c --task t --at x", "name", "NAME: is wrong"},
		{"schedules update n --name x", "name", "--name: is wrong"},
		{"schedules import f", "schedules[3].expression", "schedules[3].expression: is wrong"},
		{"schedules import f --source x", "schedules[3].source", "schedules[3].source: is wrong"},
		{"notifications channels create n --kind service --url-file f", "settings.url", "--url-file: is wrong"},
		{"notifications channels create n --kind webhook --url ftp://x", "settings.url", "--url: is wrong"},
		{"notifications channels create n --kind email --password-file f", "settings.password", "--password-file: is wrong"},
		{"notifications rules create n --trigger task_failed --channel c --group 1s", "group_seconds", "--group: is wrong"},
		{"agents declare-engines a x", "engines", "ENGINE: is wrong"},
		{"agents mint a", "colour", "colour: is wrong"},
	} {
		root := newRootCommand(newOptions(Stdio{}, Assets{}))
		cmd, rest, err := root.Find(strings.Fields(c.line))
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err != nil {
			t.Fatal(err)
		}
		refusal := &apiError{fault: fault.Field(c.field, "is wrong")}
		nameFlags(cmd, refusal)
		if got := refusal.Error(); got != c.want {
			t.Errorf("%s: %q, want %q", c.line, got, c.want)
		}
		if doc := errorDocument(refusal); doc.Details["field"] != c.field {
			t.Errorf("%s: the document calls the field %v", c.line, doc.Details["field"])
		}
	}
}
