package commands

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serveAgain runs `serve` on a directory that has been served before, where no welcome tells that it is ready.
func serveAgain(t *testing.T, data string) {
	t.Helper()
	schema, err := os.ReadFile("../schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	address := filepath.Join(shortDir(t), "n")
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var talk bytes.Buffer
	done := make(chan int, 1)
	go func() {
		opts := newOptions(Stdio{In: strings.NewReader(""), Out: io.Discard, Err: &talk,
			Env: []string{"SIGNALBOX_DATA_DIR=" + data, "NOTIFY_SOCKET=" + address}}, Assets{Schema: string(schema), Version: "1.2.3"})
		done <- opts.execute(ctx, []string{"serve", "--listen", "127.0.0.1:0", "--log-level", "warn"})
	}()
	t.Cleanup(func() {
		cancel()
		code := <-done
		_ = notify.Close()
		if code != ExitOK {
			t.Errorf("serve ended with exit code %d: %s", code, &talk)
		}
	})
	_ = notify.SetReadDeadline(time.Now().Add(2 * time.Minute))
	buf := make([]byte, 512)
	for {
		n, err := notify.Read(buf)
		if err != nil {
			t.Fatalf("serve never became ready: %v", err)
		}
		if strings.Contains(string(buf[:n]), "READY=1") {
			return
		}
	}
}

// A backup taken from a running appliance brings the state of its time back, with a new epoch and a whole audit chain;
// what was there before the restore is kept.
func TestRestoredBackupIsServed(t *testing.T) {
	t.Parallel()
	r := &run{dir: shortDir(t)}
	file := filepath.Join(t.TempDir(), "copy.db")
	names := func(t *testing.T) string {
		t.Helper()
		var agents struct{ Items []struct{ Name string } }
		runJSON(t, r, ExitOK, &agents, "agents", "list")
		var out []string
		for _, a := range agents.Items {
			out = append(out, a.Name)
		}
		return strings.Join(out, " ")
	}
	var before, after struct{ Status struct{ Epoch string } }
	t.Run("back up", func(t *testing.T) {
		serveForTest(t, r.dir)
		var minted, copied struct{}
		runJSON(t, r, ExitOK, &minted, "agents", "mint", "kept")
		runJSON(t, r, ExitOK, &copied, "backup", file)
		runJSON(t, r, ExitOK, &minted, "agents", "mint", "lost")
		runJSON(t, r, ExitOK, &before, "status")
	})
	var restored struct{ Restore struct{ Path, Kept string } }
	runJSON(t, r, ExitOK, &restored, "restore", file, "--yes")
	if restored.Restore.Path != filepath.Join(r.dir, "signalbox.db") || restored.Restore.Kept == "" {
		t.Errorf("restored %+v", restored)
	}
	t.Run("serve the backup", func(t *testing.T) {
		serveAgain(t, r.dir)
		if got := names(t); got != "kept" {
			t.Errorf("agents after the restore: %s", got)
		}
		runJSON(t, r, ExitOK, &after, "status")
		if after.Status.Epoch == "" || after.Status.Epoch == before.Status.Epoch {
			t.Errorf("epoch %q after %q", after.Status.Epoch, before.Status.Epoch)
		}
		var verified struct{ Verify struct{ OK bool } }
		runJSON(t, r, ExitOK, &verified, "audit", "verify")
		if !verified.Verify.OK {
			t.Error("the audit chain is broken")
		}
	})
	var again struct{}
	runJSON(t, r, ExitOK, &again, "restore", restored.Restore.Kept, "--yes")
	t.Run("serve what was kept", func(t *testing.T) {
		serveAgain(t, r.dir)
		if got := names(t); got != "kept lost" && got != "lost kept" {
			t.Errorf("agents of the former database: %s", got)
		}
	})
}

// Damage ends a check with exit code 1, and a damaged file is not restored.
func TestDamageIsFound(t *testing.T) {
	t.Parallel()
	r := &run{dir: shortDir(t)}
	file := filepath.Join(t.TempDir(), "copy.db")
	t.Run("back up", func(t *testing.T) {
		serveForTest(t, r.dir)
		var copied struct{}
		runJSON(t, r, ExitOK, &copied, "backup", file)
	})
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	clear(content[len(content)/2 : len(content)/2+8192])
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	database := filepath.Join(r.dir, "signalbox.db")
	before, err := os.ReadFile(database)
	if err != nil {
		t.Fatal(err)
	}
	var refused struct{ Error struct{ Message string } }
	runJSON(t, r, ExitFailed, &refused, "restore", file, "--yes")
	if !strings.Contains(refused.Error.Message, "damaged") {
		t.Errorf("refused with %q", refused.Error.Message)
	}
	if now, err := os.ReadFile(database); err != nil || string(now) != string(before) {
		t.Errorf("a refused restore changed the database (%v)", err)
	}
	if err := os.WriteFile(database, content, 0o600); err != nil {
		t.Fatal(err)
	}
	var found struct {
		Check struct {
			OK       bool
			Problems []string
		}
	}
	runJSON(t, r, ExitFailed, &found, "db", "check")
	if found.Check.OK || len(found.Check.Problems) == 0 {
		t.Errorf("found %+v", found)
	}
}
