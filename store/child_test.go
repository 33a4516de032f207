package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// The environment of a child: the test binary started again to be killed.
const (
	envChild = "SIGNALBOX_STORE_TEST_CHILD" // what to do: "ledger" or "migrate"
	envPath  = "SIGNALBOX_STORE_TEST_PATH"
	envDieAt = "SIGNALBOX_STORE_TEST_DIE_AT" // for migrate: the hook at which to end without any clean-up
)

// childMain runs the child's part when the environment asks for it.
func childMain() bool {
	var err error
	switch os.Getenv(envChild) {
	case "":
		return false
	case "ledger":
		err = childLedger(os.Getenv(envPath), os.Stdout)
	case "migrate":
		err = childMigrate(os.Getenv(envPath), os.Getenv(envDieAt))
	default:
		err = errors.New("unknown child")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

// child starts the test binary as the named child.
func child(t *testing.T, what, path, dieAt string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), envChild+"="+what, envPath+"="+path, envDieAt+"="+dieAt)
	return cmd
}

// ledgerWriters append to the ledger at the same time.
const ledgerWriters = 8

// childLedger appends entries for ever, and prints each one once it is acknowledged.
func childLedger(path string, out io.Writer) error {
	db, err := Open(context.Background(), Options{Path: path, Schema: testSchema})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "ready")
	var mu sync.Mutex
	failed := make(chan error)
	for w := range ledgerWriters {
		go func() {
			for i := 0; ; i++ {
				name := fmt.Sprintf("%d/%d/%d", os.Getpid(), w, i)
				err := db.Update(context.Background(), "ledger", func(tx *Tx) error {
					if err := insert(name)(tx); err != nil {
						return err
					}
					if i%5 == 4 { // and a refused one in the same batch
						return errors.New("refused")
					}
					return nil
				})
				if err != nil && err.Error() != "refused" {
					failed <- err
					return
				}
				mu.Lock()
				_, werr := fmt.Fprintf(out, "%s %t\n", name, err == nil)
				mu.Unlock()
				if werr != nil {
					failed <- werr
					return
				}
			}
		}()
	}
	return <-failed
}

func TestKilledProcessLosesNothingAcknowledged(t *testing.T) {
	t.Parallel()
	path := tempOptions(t).Path
	acked, refused := map[string]bool{}, map[string]bool{}
	for round := range 6 {
		killAfterAcks(t, path, 20+round*97, acked, refused)
		db, err := Open(context.Background(), Options{Path: path, Schema: testSchema})
		if err != nil {
			t.Fatalf("round %d: open after kill: %v", round, err)
		}
		checkLedger(t, db, acked, refused)
		if problems, err := db.IntegrityCheck(context.Background(), false); err != nil || len(problems) > 0 {
			t.Errorf("round %d: integrity: %v, %v", round, problems, err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// killAfterAcks runs a ledger child, kills it in the middle of its work after n acknowledgements, and notes them.
func killAfterAcks(t *testing.T, path string, n int, acked, refused map[string]bool) {
	t.Helper()
	cmd := child(t, "ledger", path, "")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(pipe)
	for seen := 0; lines.Scan(); {
		if lines.Text() == "ready" {
			continue
		}
		name, ok, found := strings.Cut(lines.Text(), " ")
		if !found || ok != "true" && ok != "false" {
			continue // torn by the kill: whoever reads half a line was not told
		}
		if ok == "true" {
			acked[name] = true
		} else {
			refused[name] = true
		}
		if seen++; seen == n {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait() // killed: an error is what we want
	if stderr.Len() > 0 {
		t.Fatalf("child: %s", stderr.String())
	}
}

// checkLedger holds the stored entries against what the client knows: all acknowledged, none refused, none twice, and
// each writer's entries without a hole.
func checkLedger(t *testing.T, db *DB, acked, refused map[string]bool) {
	t.Helper()
	stored := map[string]bool{}
	next := map[string]int{}
	for _, name := range itemNames(t, db) {
		if stored[name] {
			t.Errorf("%s is stored twice", name)
		}
		if refused[name] {
			t.Errorf("%s was refused and is stored", name)
		}
		stored[name] = true
		i := strings.LastIndexByte(name, '/')
		n, err := strconv.Atoi(name[i+1:])
		if err != nil {
			t.Fatal(err)
		}
		if next[name[:i]]%5 == 4 {
			next[name[:i]]++
		}
		if n != next[name[:i]] {
			t.Errorf("writer %s: entry %d instead of %d", name[:i], n, next[name[:i]])
		}
		next[name[:i]] = n + 1
	}
	for name := range acked {
		if !stored[name] {
			t.Errorf("%s was acknowledged and is lost", name)
		}
	}
}

// childMigrate migrates and ends the process, without any clean-up, at the named hook.
func childMigrate(path, dieAt string) error {
	die := func(where string) func(int) error {
		return func(version int) error {
			if dieAt == fmt.Sprintf("%s %d", where, version) {
				os.Exit(7)
			}
			return nil
		}
	}
	db, err := Open(context.Background(), Options{Path: path, Schema: schemaV3, Migrations: scriptFS(scriptV2, scriptV3),
		Hooks: Hooks{BeforeMigrationCommit: die("before"), AfterMigrationCommit: die("after")}})
	if err != nil {
		return err
	}
	return db.Close()
}

func TestKilledMigrationIsOldOrNew(t *testing.T) {
	t.Parallel()
	for dieAt, version := range map[string]int{"before 2": 1, "after 2": 2, "before 3": 2, "after 3": 3} {
		path := oldDatabase(t)
		var exit *exec.ExitError
		if err := child(t, "migrate", path, dieAt).Run(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
			t.Fatalf("%s: child: %v", dieAt, err)
		}
		state, err := inspect(context.Background(), path, applicationID, 3)
		if err != nil || state.version != version || state.fresh {
			t.Errorf("killed %s: state %+v, %v; want version %d", dieAt, state, err, version)
		}
		db := openWith(t, Options{Path: path, Schema: schemaV3, Migrations: scriptFS(scriptV2, scriptV3)})
		checkMigrated(t, db)
	}
}
