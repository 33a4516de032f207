package commands

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// archiveKillPart is how many kills of the archive loop a kill of the others stands for: make kill, which does 200, is to
// do 300 here.
const archiveKillPart = 1.5

// TestKillLoopArchive kills control and both daemons with SIGKILL at random instants while content is copied, moved and
// cancelled. In the end every job is completed with a copy that is byte-identical, or ended without one, or held for a
// person; what was not given up is untouched at its source, and no token is in any log or database.
func TestKillLoopArchive(t *testing.T) {
	kills := int(archiveKillPart * float64(killCount(t)))
	a := newArchiveLoop(t)
	ctx, cancel := context.WithCancel(context.Background())
	var drivers sync.WaitGroup
	for i := range 3 {
		drivers.Go(func() { a.drive(ctx, i) })
	}
	for n := range kills {
		p := a.processes[rand.IntN(len(a.processes))]
		p.kill(time.Duration(rand.Int64N(int64(300 * time.Millisecond))))
		p.start()
		if (n+1)%50 == 0 {
			t.Logf("%d kills: %s", n+1, a)
		}
	}
	// On a busy machine the kills may be over before the first job is.
	for deadline := time.Now().Add(2 * time.Minute); a.completed.Load() == 0 && time.Now().Before(deadline); {
		pause(ctx)
	}
	a.enough.Store(true)
	drivers.Wait()
	cancel()
	quiet := time.Now()
	a.settle()
	t.Logf("%d kills: %s; what was open then ended within %v", kills, a, time.Since(quiet).Round(time.Millisecond))
	a.check()
	for _, p := range a.processes {
		p.stop()
	}
	a.noToken()
	if a.completed.Load() == 0 {
		t.Error("no job was completed: the loop shows nothing")
	}
}

// stoppable is a process of the loop.
type stoppable interface {
	start() time.Duration
	kill(after time.Duration)
	stop()
}

// archiveLoop is control with two machines, and what became of every resource.
type archiveLoop struct {
	t          *testing.T
	control    *process
	nas, vault *daemonProcess
	processes  []stoppable
	enough     atomic.Bool
	started    atomic.Int64
	completed  atomic.Int64

	mu    sync.Mutex
	named int
	cases []*archiveCase
}

// archiveCase is one resource and the job that is to copy it.
type archiveCase struct {
	name    string
	files   map[string][]byte // below the content root
	job     string
	evict   bool
	cancels bool
	state   string
}

func (a *archiveLoop) String() string {
	return fmt.Sprintf("%d jobs started, %d completed", a.started.Load(), a.completed.Load())
}

func newArchiveLoop(t *testing.T) *archiveLoop {
	t.Helper()
	binary := buildBinary(t)
	a := &archiveLoop{t: t, control: newProcess(t, binary)}
	a.control.args = []string{"--archive-heartbeat-interval=1s", "--archive-offline-threshold=3s", "--archive-stable-reset=1s",
		"--archive-reconnect-initial=10ms", "--archive-reconnect-cap=100ms", "--archive-command-retry=1s", "--archive-command-attempts=100"}
	a.control.start()
	a.nas = newDaemonProcess(t, a.control, "nas", nil)
	a.vault = newDaemonProcess(t, a.control, "vault", a.nas)
	a.processes = []stoppable{a.control, a.nas, a.vault}
	a.nas.start()
	a.vault.start()
	a.route()
	return a
}

// drive makes resource after resource and has each copied.
func (a *archiveLoop) drive(ctx context.Context, seed int) {
	g := rand.New(rand.NewPCG(uint64(seed), uint64(time.Now().UnixNano())))
	for !a.enough.Load() && ctx.Err() == nil {
		c := a.newCase(g)
		if a.begin(ctx, c) {
			a.follow(ctx, c)
		}
	}
}

// newCase puts content on the source.
func (a *archiveLoop) newCase(g *rand.Rand) *archiveCase {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.named++
	c := &archiveCase{name: fmt.Sprintf("set-%04d", a.named), files: map[string][]byte{}, evict: g.IntN(3) == 0, cancels: g.IntN(6) == 0}
	for i := range 1 + g.IntN(6) {
		content := make([]byte, g.IntN(200_000))
		for j := 0; j+8 <= len(content); j += 8 {
			v := g.Uint64()
			for k := range 8 {
				content[j+k] = byte(v >> (8 * k))
			}
		}
		name := fmt.Sprintf("%s/part %d", c.name, i)
		if i%2 == 1 {
			name = fmt.Sprintf("%s/deep/er/part %d", c.name, i)
		}
		c.files[name] = content
	}
	// The tree appears whole, so that no scan sees a part of it.
	hidden := a.nas.path("content", ".archive-control-making")
	for name, content := range c.files {
		path := filepath.Join(hidden, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			a.t.Error(err)
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			a.t.Error(err)
		}
	}
	if err := os.Rename(filepath.Join(hidden, c.name), a.nas.path("content", c.name)); err != nil {
		a.t.Error(err)
	}
	a.cases = append(a.cases, c)
	return c
}

// check compares both machines with what was to become of every resource.
func (a *archiveLoop) check() {
	for _, c := range a.cases {
		if c.job == "" {
			a.same(c, a.nas, "source, never started")
			continue
		}
		switch {
		case c.state == "completed":
			a.same(c, a.vault, "target, completed")
			if !c.evict {
				a.same(c, a.nas, "source, copied")
			}
		case c.state == "failed" || c.state == "cancelled":
			a.same(c, a.nas, "source, "+c.state)
			if there, err := os.Stat(a.vault.path("content", c.name)); err == nil {
				a.t.Errorf("%s: the job is %s and %s is at the target", c.name, c.state, there.Name())
			}
		default: // held: nothing of the source is lost
			a.t.Logf("%s: job %s is held: %s", c.name, c.job, c.state)
			a.same(c, a.nas, "source, held")
		}
	}
}

// same compares a resource with what is on a machine.
func (a *archiveLoop) same(c *archiveCase, m *daemonProcess, what string) {
	for name, want := range c.files {
		got, err := os.ReadFile(m.path("content", name))
		if err != nil {
			a.t.Errorf("%s (%s, job %s): %v", name, what, c.job, err)
		} else if !bytes.Equal(got, want) {
			a.t.Errorf("%s (%s, job %s): %d bytes, want %d, or other content", name, what, c.job, len(got), len(want))
		}
	}
}

// noToken greps every log and database for the token.
func (a *archiveLoop) noToken() {
	token, err := os.ReadFile(filepath.Join(a.control.dir, "daemon.token"))
	if err != nil {
		a.t.Fatal(err)
	}
	token = bytes.TrimSpace(token)
	looked := 0
	for _, dir := range []string{a.control.dir, a.nas.dir, a.vault.dir} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || d.Name() == "daemon.token" {
				return err
			}
			content, err := os.ReadFile(path)
			looked++
			if bytes.Contains(content, token) {
				a.t.Errorf("%s holds the token", path)
			}
			return err
		})
		if err != nil {
			a.t.Error(err)
		}
	}
	if looked < 6 {
		a.t.Errorf("only %d files were looked through", looked)
	}
}
