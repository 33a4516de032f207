package commands

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"signalbox/appliance/config"
)

// serveOnce runs serve on a terminal and ends it when it is ready. It returns what it wrote.
func serveOnce(t *testing.T, data string, args ...string) (code int, out, talk string) {
	t.Helper()
	schema, err := os.ReadFile("../schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	reader, writer := io.Pipe()
	var errs bytes.Buffer
	done := make(chan int, 1)
	go func() {
		opts := newOptions(Stdio{In: strings.NewReader(""), Out: writer, Err: &errs, IsTerminal: true,
			Env: []string{"SIGNALBOX_DATA_DIR=" + data}}, Assets{Schema: string(schema), Version: "1.2.3"})
		code := opts.execute(ctx, append([]string{"serve", "--log-level", "warn"}, args...))
		_ = writer.Close()
		done <- code
	}()
	var lines strings.Builder
	for s := bufio.NewScanner(reader); s.Scan(); {
		lines.WriteString(s.Text() + "\n")
		if strings.HasPrefix(s.Text(), "Signalbox is ready at http://") {
			cancel()
		}
	}
	code = <-done
	return code, lines.String(), errs.String()
}

// The first key is told at the first start that becomes ready, however many failed before it, and never again.
func TestFirstKeyIsToldAtTheFirstReadyStart(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	data := shortDir(t)
	for range 2 {
		code, out, talk := serveOnce(t, data, "--listen", taken.Addr().String())
		if code != ExitConflict || !strings.Contains(talk, "hint: choose another address with --listen") || out != "" {
			t.Fatalf("on a port in use: exit code %d: %s%s", code, out, talk)
		}
	}
	key, err := os.ReadFile(filepath.Join(data, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	code, out, talk := serveOnce(t, data, "--listen", "127.0.0.1:0")
	if code != ExitOK || !strings.Contains(out, "  "+string(key)) || !strings.Contains(out, "Next, in another terminal:") {
		t.Errorf("the first ready start: exit code %d: %s%s", code, out, talk)
	}
	code, out, talk = serveOnce(t, data, "--listen", "127.0.0.1:0")
	if code != ExitOK || !strings.HasPrefix(out, "Signalbox is ready at http://127.0.0.1:") || strings.Count(out, "\n") != 1 {
		t.Errorf("a later start: exit code %d: %s%s", code, out, talk)
	}
}

func TestSecondServerOnADataDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	data := shortDir(t)
	serveForTest(t, data)
	code, _, talk := serveOnce(t, data, "--listen", "127.0.0.1:0")
	if code != ExitConflict || !strings.Contains(talk, "in use by process ") || !strings.Contains(talk, "--data-dir") {
		t.Errorf("exit code %d: %s", code, talk)
	}
	if _, err := os.Lstat(filepath.Join(data, greetingFile)); err == nil {
		t.Error("the refused start left a mark")
	}
}

func TestSwitchSettingsNeedNoValue(t *testing.T) {
	t.Parallel()
	root := newRootCommand(newOptions(Stdio{}, Assets{}))
	serve, _, err := root.Find([]string{"serve"})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, key := range config.Keys() {
		if key.Kind == "boolean" {
			found++
			if err := serve.ParseFlags([]string{"--" + key.Flag}); err != nil {
				t.Errorf("--%s: %v", key.Flag, err)
			}
		}
	}
	if found == 0 {
		t.Error("no setting is a switch")
	}
}

func TestMintedFileIsItsOwnersAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.env")
	f, err := createPrivate(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if _, err := createPrivate(path); exitCode(err) != ExitConflict {
		t.Errorf("made again: %v", err)
	}
}

// Readers of env files differ on quotes, so nothing in one is quoted.
func TestEnvFilesHoldNoQuotes(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := writeEnvironment(&b, formatEnv, envList{{"A", "x=1"}, {"B", "it's"}}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	if lines[0] != "A=x=1" || !strings.HasPrefix(lines[1], "# B is left out") || strings.Contains(b.String(), "export") {
		t.Errorf("got %s", &b)
	}
}
