package appliancetest

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"signalbox/appliance"
	"signalbox/appliance/config"
	"signalbox/appliance/daemonconfig"
	"signalbox/appliance/daemonhost"
)

// Machine is one machine of the archive plane: directories and, while it runs, a daemon over them in this process. Its
// methods fail the test when they cannot do what they say.
type Machine struct {
	Name   string
	ID     uuid.UUID
	Dir    string // holds everything of the machine
	Config *daemonconfig.Config
	// Options of the next start; Config, Version and Log are set by it.
	Options daemonhost.Options

	t      testing.TB
	log    io.Writer
	host   *daemonhost.Host
	cancel context.CancelFunc
	ended  chan error
}

// DebugLog takes the logs of all daemons when set.
var DebugLog io.Writer

// Roots of every machine, below Dir.
const (
	ContentRoot = "content"
	ReceiveRoot = "receive"
	OutboxRoot  = "outbox"
)

// MachineOption changes a machine before its first start.
type MachineOption func(*Machine)

// SeesOutboxOf gives the machine a place where it sees the outbox of another one: the directory itself.
func SeesOutboxOf(other *Machine) MachineOption {
	return func(m *Machine) {
		m.Config.Shared = append(m.Config.Shared, daemonconfig.Share{Marker: other.Name + "-outbox", Path: other.Path(OutboxRoot, "")})
	}
}

// WithMachine changes the machine's configuration.
func WithMachine(change func(*Machine)) MachineOption { return func(m *Machine) { change(m) } }

// Through has the daemon reach control through the proxy.
func Through(p *Proxy) MachineOption {
	return func(m *Machine) { m.Config.Control = "ws" + strings.TrimPrefix(p.URL(), "http") + "/daemon/v2" }
}

// LogTo writes the daemon's log to w.
func LogTo(w io.Writer) MachineOption { return func(m *Machine) { m.log = w } }

// NewMachine makes the directories of a machine; Start starts its daemon.
func (s *Server) NewMachine(name string, opts ...MachineOption) *Machine {
	s.t.Helper()
	dir, err := os.MkdirTemp("", "sbd") // short: a socket lies in it
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m := &Machine{Name: name, ID: uuid.New(), Dir: dir, t: s.t, log: DebugLog}
	c := daemonconfig.Default()
	c.Control = "ws" + strings.TrimPrefix(s.URL(), "http") + "/daemon/v2"
	c.ClientID, c.Name, c.DataDir = m.ID.String(), name, filepath.Join(dir, "state")
	c.TokenFile = filepath.Join(s.Config.DataDir, appliance.DaemonTokenFile)
	c.Backend.QuietTime = config.Duration(time.Millisecond)
	c.Roots = []daemonconfig.Root{{ID: name + "-content", Kind: daemonconfig.Content, Path: m.Path(ContentRoot, "")},
		{ID: name + "-receive", Kind: daemonconfig.Receive, Path: m.Path(ReceiveRoot, "")},
		{ID: name + "-outbox", Kind: daemonconfig.Outbox, Path: m.Path(OutboxRoot, "")}}
	for _, r := range c.Roots {
		if err := os.MkdirAll(r.Path, 0o755); err != nil {
			s.t.Fatal(err)
		}
	}
	m.Config = c
	for _, opt := range opts {
		opt(m)
	}
	return m
}

// Path is a place on the machine.
func (m *Machine) Path(root, name string) string {
	return filepath.Join(m.Dir, root, filepath.FromSlash(name))
}

// Put writes a file below a root, with the directories that it needs.
func (m *Machine) Put(root, name string, content []byte) {
	m.t.Helper()
	path := m.Path(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// Start starts the daemon and returns when it works; it is stopped with the test.
func (m *Machine) Start() {
	m.t.Helper()
	if err := m.TryStart(); err != nil {
		m.t.Fatalf("daemon %s: %v", m.Name, err)
	}
}

// TryStart is Start for a daemon that may refuse to.
func (m *Machine) TryStart() error {
	m.t.Helper()
	o := m.Options
	o.Config, o.Version = m.Config, "test"
	if m.log != nil {
		o.Log = zerolog.New(m.log)
	}
	h, err := daemonhost.New(context.Background(), o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan struct{})
	m.host, m.cancel, m.ended = h, cancel, make(chan error, 1)
	ended := m.ended
	go func() { ended <- h.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		ended <- err
		m.host = nil
		return fmt.Errorf("ended at once: %w", err)
	}
	m.t.Cleanup(func() {
		if m.host == h {
			m.Stop()
		}
	})
	return nil
}

// Stop takes the daemon down in good order.
func (m *Machine) Stop() {
	m.t.Helper()
	m.cancel()
	if err := m.Ended(); err != nil {
		m.t.Errorf("daemon %s: %v", m.Name, err)
	}
}

// Signal asks the daemon to go down, as SIGTERM does, and returns at once; Ended waits for it.
func (m *Machine) Signal() { m.cancel() }

// Ended waits until the daemon is down, closes it, and returns why it ended.
func (m *Machine) Ended() error {
	m.t.Helper()
	var err error
	select {
	case err = <-m.ended:
	case <-time.After(Wait):
		m.t.Fatalf("daemon %s does not end", m.Name)
	}
	m.cancel()
	h := m.host
	m.host = nil
	if closed := h.Close(); err == nil {
		err = closed
	}
	return err
}

// Restart stops the daemon and starts it again.
func (m *Machine) Restart() {
	m.t.Helper()
	m.Stop()
	m.Start()
}

// Host is the running daemon.
func (m *Machine) Host() *daemonhost.Host { return m.host }
