package commands

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"signalbox/transport/agentclient"
)

// benchServer is a server of a run's own.
type benchServer struct {
	opts  *options // of its clients
	dir   string
	cmd   *exec.Cmd
	ended chan error
	log   *os.File
}

const (
	benchServerStart = time.Minute
	benchServerStop  = time.Minute
)

// startServer starts this binary as a server in a new directory and returns when it is ready.
func (b *benchDaemons) startServer(ctx context.Context, opts *options) (_ *benchServer, err error) {
	program := b.program
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
	}
	s := &benchServer{ended: make(chan error, 1)}
	if s.dir, err = os.MkdirTemp(b.ownDir, "sb"); err != nil { // short: a socket lies in it
		return nil, usagef("--dir: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if s.log, err = os.Create(filepath.Join(s.dir, "serve.log")); err != nil {
		return nil, err
	}
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	cmd := exec.Command(program, "serve", "--data-dir", s.dir, "--listen", "127.0.0.1:0", "--log-level", "warn")
	cmd.Env, cmd.Stdout, cmd.Stderr = []string{"PATH=" + os.Getenv("PATH")}, in, s.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt is ours to hand on
	if err := cmd.Start(); err != nil {
		_ = out.Close()
		return nil, fmt.Errorf("start a server: %w", err)
	}
	s.cmd = cmd
	go func() { s.ended <- cmd.Wait() }()
	_ = in.Close()
	ready := make(chan bool, 1)
	go func() {
		defer func() { _ = out.Close() }()
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "Signalbox is ready at ") {
				ready <- true
			}
		}
		_, _ = io.Copy(io.Discard, out)
		close(ready)
	}()
	timer := time.NewTimer(benchServerStart)
	defer timer.Stop()
	select {
	case up := <-ready:
		if !up {
			return nil, s.failed("it ended")
		}
	case <-timer.C:
		return nil, s.failed("it did not become ready")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	own := *opts
	own.dataDir, own.stdio.Env = s.dir, nil
	s.opts = &own
	return s, nil
}

// failed is an error with the end of the server's log.
func (s *benchServer) failed(what string) error {
	text, _ := os.ReadFile(s.log.Name())
	return fmt.Errorf("the server of the run: %s: %s", what, strings.TrimSpace(string(text[max(len(text)-500, 0):])))
}

// stop ends the server and removes its directory.
func (s *benchServer) stop() (err error) {
	if s.cmd != nil {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		timer := time.NewTimer(benchServerStop)
		select {
		case err = <-s.ended:
		case <-timer.C:
			_ = s.cmd.Process.Kill()
			err = <-s.ended
		}
		timer.Stop()
		if err != nil {
			err = s.failed(err.Error())
		}
	}
	if s.log != nil {
		_ = s.log.Close()
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// ceilings are what the disk can do with the same bytes.
type ceilings struct {
	Sync    quantiles `json:"sync"`
	Entries float64   `json:"entries_per_second"`
	Events  float64   `json:"events_per_second"`
}

// ceilingFor is how long each ceiling is measured.
const ceilingFor = time.Second

// chunkEntries is how many entries a chunk has by default.
const chunkEntries = 500

// eventsTogether is how many events can at most share a commit: those of one connection are taken one after the other.
func (b *benchDaemons) eventsTogether() int { return min(b.jobs*b.window, b.daemons) }

func (b *benchDaemons) ceilings(dir string, entryBytes, eventBytes int64) (*ceilings, error) {
	c := &ceilings{}
	f, err := os.Create(filepath.Join(dir, "ceiling"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if _, c.Sync, err = rawAppends(f, 4096); err != nil {
		return nil, err
	}
	if entryBytes > 0 {
		syncs, _, err := rawAppends(f, entryBytes*chunkEntries*int64(b.daemons))
		if err != nil {
			return nil, err
		}
		c.Entries = syncs * chunkEntries * float64(b.daemons)
	}
	if eventBytes > 0 {
		together := int64(b.eventsTogether())
		syncs, _, err := rawAppends(f, eventBytes*together)
		if err != nil {
			return nil, err
		}
		c.Events = syncs * float64(together)
	}
	return c, nil
}

// rawAppends appends so many bytes and has them on the disk, again and again, and returns how often in a second.
func rawAppends(f *os.File, bytes int64) (perSecond float64, each quantiles, err error) {
	record := make([]byte, bytes)
	for i := range record {
		record[i] = byte(i * 31)
	}
	h := agentclient.NewHistogram()
	n, begun := 0, time.Now()
	for time.Since(begun) < ceilingFor {
		at := time.Now()
		if _, err := f.Write(record); err != nil {
			return 0, each, err
		}
		if err := f.Sync(); err != nil {
			return 0, each, err
		}
		_ = h.RecordValue(min(max(time.Since(at).Microseconds(), 1), h.HighestTrackableValue()))
		n++
	}
	return float64(n) / time.Since(begun).Seconds(), quantilesOf(h), f.Truncate(0)
}
