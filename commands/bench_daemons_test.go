package commands

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestBenchDaemonsMeasures(t *testing.T) {
	t.Parallel()
	r := &run{dir: shortDir(t)}
	r.url = serveForTest(t, r.dir)
	var doc struct {
		Registrations registrationsResult
		Resources     rate
		TreeFiles     rate `json:"tree_files"`
		Jobs          jobsResult
		Commands      commandsRate
		Events        eventsRate
		Ceilings      *ceilings
		Trouble       int64
	}
	runJSON(t, r, ExitOK, &doc, "bench", "daemons", "--daemons", "4", "--jobs", "3", "--duration", "500ms", "--entries", "700",
		"--files", "1200", "--progress", "3", "--window", "2")
	if doc.Registrations.Count != 4 || doc.Resources.Count != 4*700 || doc.TreeFiles.Count != 4*1200 || doc.Trouble != 0 {
		t.Errorf("%+v", doc)
	}
	if doc.Registrations.Each.P50 <= 0 || doc.Jobs.Preview.P50 <= 0 || doc.Jobs.Run.P50 <= 0 || doc.Commands.Stored.P50 <= 0 ||
		doc.Commands.Step.P50 <= 0 || doc.Events.ToAck.P50 <= 0 || doc.Ceilings != nil {
		t.Errorf("%+v", doc)
	}
	// Every job that was begun has ended well, and its daemons and routes are as the help says.
	var jobs struct {
		Items []jobRow `json:"items"`
	}
	runJSON(t, r, ExitOK, &jobs, "jobs", "list")
	if len(jobs.Items) < 3 {
		t.Errorf("only %d jobs", len(jobs.Items))
	}
	for _, j := range jobs.Items {
		if j.State != "completed" {
			t.Errorf("job %s is %s", j.ID, j.State)
		}
	}
	noRoutes(t, r)
}

// noRoutes checks that a run has removed its routes.
func noRoutes(t *testing.T, r *run) {
	t.Helper()
	var routes struct {
		Items []routeRow `json:"items"`
	}
	runJSON(t, r, ExitOK, &routes, "routes", "list")
	if len(routes.Items) != 0 {
		t.Errorf("routes left: %+v", routes.Items)
	}
}

func TestBenchDaemonsWithAServerOfItsOwn(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	opts, out, talk := r.options("", false)
	opts.dataDir = ""
	dir := shortDir(t)
	b := &benchDaemons{daemons: 2, jobs: 2, duration: 1, entries: 10, files: 10, progress: 2, window: 1, own: true, ownDir: dir,
		program: buildBinary(t)}
	if err := b.run(t.Context(), opts); err != nil {
		t.Fatalf("%v: %s%s", err, out, talk)
	}
	for _, want := range []string{"registrations    2 in ", "resources        20 in ", "files of trees   20 in ", "jobs ", "  step to step   p50 ",
		"events ", "one sync ", "raw entries ", "raw events ", "trouble          0"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in: %s", want, out)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// An interrupt of the real program, while daemons are at work, takes down the server that it started.
func TestBenchDaemonsStopsItsServerAfterAnInterrupt(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	cmd := exec.Command(buildBinary(t), "bench", "daemons", "--own-server", "--dir", dir, "--daemons", "2", "--jobs", "2", "--duration", "1h")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	talk, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewScanner(talk)
	for lines.Scan() && !strings.Contains(lines.Text(), "simulated daemons at") {
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(talk)
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !exit.Exited() {
		t.Errorf("ended with %v, not by itself with a failure: %s", err, rest)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v: %s", left, err, rest)
	}
}

// An interrupt while jobs run ends them and removes the routes.
func TestBenchDaemonsCleansUpAfterAnInterrupt(t *testing.T) {
	t.Parallel()
	r := &run{dir: shortDir(t)}
	r.url = serveForTest(t, r.dir)
	opts, _, _ := r.options("", false)
	b := &benchDaemons{daemons: 2, jobs: 2, duration: 1 << 40, progress: 1000, window: 1}
	l, err := b.newLoad(opts)
	if err != nil {
		t.Fatal(err)
	}
	working := make(chan struct{})
	l.recorder.OnEvent = func(total int64) {
		if total == 20 {
			close(working)
		}
	}
	if _, err := l.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.openRoutes(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.work(ctx, &daemonsReport{}) }()
	select {
	case err := <-ended:
		t.Fatal(err)
	case <-working:
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("the work did not end with an error")
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	var jobs struct {
		Items []jobRow `json:"items"`
	}
	runJSON(t, r, ExitOK, &jobs, "jobs", "list", "--open")
	if len(jobs.Items) != 0 {
		t.Errorf("open jobs left: %+v", jobs.Items)
	}
	noRoutes(t, r)
}

func TestBenchDaemonsRefusesWhatItCannotDo(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	for flags, want := range map[string]string{
		"--daemons 3":                          "--daemons",
		"--daemons 0":                          "--daemons",
		"--daemons 2 --jobs 17":                "--jobs",
		"--duration -1s":                       "--duration",
		"--entries -1":                         "--entries",
		"--files 200001":                       "--files",
		"--progress -1":                        "--progress",
		"--window 0":                           "--window",
		"--own-server --server http://a.local": "--own-server",
		"--dir /tmp":                           "--dir",
		"--daemon-url ftp://a.local":           "--daemon-url",
		"--daemon-url http://archive.example":  "ws://",
	} {
		opts, _, talk := r.options("", false)
		if got := opts.execute(t.Context(), append([]string{"bench", "daemons"}, strings.Fields(flags)...)); got != ExitUsage ||
			!strings.Contains(talk.String(), want) {
			t.Errorf("%s: exit code %d: %s", flags, got, talk)
		}
	}
}
