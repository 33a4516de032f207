package daemonhost

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/torrent/torrenttest"
	"signalbox/appliance/config"
	"signalbox/appliance/daemonconfig"
	"signalbox/appliance/fault"
)

// silence is a way to control that never opens.
type silence struct{}

func (silence) Dial(context.Context) (daemon.Conn, error) { return nil, errors.New("nobody is there") }

// machine is the configuration of a daemon in a temporary directory whose roots are there.
func machine(t *testing.T) *daemonconfig.Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "sbh") // short: a socket lies in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := daemonconfig.Default()
	c.Control, c.ClientID, c.Name, c.DataDir = "ws://127.0.0.1:1/daemon/v2", uuid.NewString(), "here", filepath.Join(dir, "state")
	c.Backend.QuietTime = config.Duration(time.Millisecond)
	for _, kind := range []daemonconfig.RootKind{daemonconfig.Content, daemonconfig.Receive, daemonconfig.Outbox} {
		c.Roots = append(c.Roots, daemonconfig.Root{ID: string(kind), Kind: kind, Path: filepath.Join(dir, string(kind))})
		mkdir(t, c.Roots[len(c.Roots)-1].Path)
	}
	return c
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, c *daemonconfig.Config, log *bytes.Buffer) (*Host, error) {
	t.Helper()
	h, err := New(t.Context(), Options{Config: c, Version: "test", Log: zerolog.New(log), Dialer: silence{}})
	if err == nil {
		t.Cleanup(func() { _ = h.Close() })
	}
	return h, err
}

// TestRootsLieApart refuses roots that lie in each other although their configured paths do not, and says so at the check
// too.
func TestRootsLieApart(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(t *testing.T, c *daemonconfig.Config)
		says string
	}{
		{"link into the content", func(t *testing.T, c *daemonconfig.Config) {
			mkdir(t, filepath.Join(c.Roots[0].Path, "in"))
			link := filepath.Join(filepath.Dir(c.DataDir), "link")
			if err := os.Symlink(filepath.Join(c.Roots[0].Path, "in"), link); err != nil {
				t.Fatal(err)
			}
			c.Roots[1].Path = link
		}, "lies in root content"},
		{"content inside the outbox by a link", func(t *testing.T, c *daemonconfig.Config) {
			mkdir(t, filepath.Join(c.Roots[2].Path, "a/b"))
			link := filepath.Join(filepath.Dir(c.DataDir), "link")
			if err := os.Symlink(filepath.Join(c.Roots[2].Path, "a/b"), link); err != nil {
				t.Fatal(err)
			}
			c.Roots[0].Path = link
		}, "lies in root outbox"},
		{"one directory mounted twice", func(t *testing.T, c *daemonconfig.Config) {
			if err := unix.Mount(c.Roots[0].Path, c.Roots[1].Path, "", unix.MS_BIND, ""); err != nil {
				t.Skip("needs the right to mount: ", err)
			}
			t.Cleanup(func() { _ = unix.Unmount(c.Roots[1].Path, unix.MNT_DETACH) })
		}, "belongs to root"},
		{"missing root", func(t *testing.T, c *daemonconfig.Config) { c.Roots[1].Path += "/not/there" }, "root receive: there is no directory"},
		{"missing share", func(t *testing.T, c *daemonconfig.Config) {
			c.Shared = []daemonconfig.Share{{Marker: "other", Path: filepath.Join(c.DataDir, "gone")}}
		}, "shared other: there is no directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := machine(t)
			c.make(t, m)
			_, err := open(t, m, &bytes.Buffer{})
			if err == nil || !strings.Contains(err.Error(), c.says) && !strings.Contains(err.Error(), "lies in root") {
				t.Errorf("got %v, want %q", err, c.says)
			}
			bad := 0
			for _, f := range Inspect(t.Context(), m, false) {
				if !f.OK && (strings.Contains(f.Text, c.says) || strings.Contains(f.Text, "lies in root")) {
					bad++
				}
			}
			if bad == 0 {
				t.Errorf("the check finds nothing: %+v", Inspect(t.Context(), m, false))
			}
		})
	}
}

// TestEmptyMountPoint: a root that was used before and does not carry its owner file is not taken for it.
func TestEmptyMountPoint(t *testing.T) {
	m := machine(t)
	h, err := open(t, m, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(m.Roots[1].Path, beneath.ControlDir)); err != nil {
		t.Fatal(err)
	}
	if _, err = open(t, m, &bytes.Buffer{}); beneath.CodeOf(err) != beneath.Unavailable {
		t.Errorf("got %v", err)
	}
	if entries, _ := os.ReadDir(m.Roots[1].Path); len(entries) > 0 {
		t.Errorf("it wrote %v", entries)
	}
}

// TestTemporaryFilesAreSwept: those of the backend that a killed process left, and nothing else.
func TestTemporaryFilesAreSwept(t *testing.T) {
	m := machine(t)
	dir := filepath.Join(m.Roots[0].Path, beneath.ControlDir, "torrents")
	mkdir(t, dir)
	for _, name := range []string{".archive-control-tmp-0123456789abcdef", "keep.torrent.json", "other"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := open(t, m, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 || entries[0].Name() != "keep.torrent.json" {
		t.Errorf("%v, %v", entries, err)
	}
}

// TestRefusedTorrentsAreTold in the log, once, and in the status of a running daemon; no announce URL shows.
func TestRefusedTorrentsAreTold(t *testing.T) {
	m := machine(t)
	m.Backend.MetainfoDir = filepath.Join(filepath.Dir(m.DataDir), "metainfo")
	mkdir(t, m.Backend.MetainfoDir)
	bad := torrenttest.Make(torrenttest.Options{Version: torrenttest.V1, Name: "evil"}, []torrenttest.Entry{{Path: "../out", Data: []byte("x")}})
	if err := os.WriteFile(filepath.Join(m.Backend.MetainfoDir, "evil.torrent"), bad, 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	h, err := open(t, m, &log)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := h.content.ListResources(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(log.String(), "evil.torrent"); n != 1 || strings.Contains(log.String(), "passkey") {
		t.Errorf("told %d times: %s", n, log.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error)
	go func() { done <- h.Run(ctx, func() { close(ready) }) }()
	<-ready
	s, err := ReadStatus(t.Context(), filepath.Join(m.DataDir, SocketFile))
	if err != nil || len(s.Refused) != 1 || !strings.Contains(s.Refused[0], "evil.torrent") || strings.Contains(s.Refused[0], "passkey") {
		t.Errorf("status %+v, %v", s, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := ReadStatus(t.Context(), filepath.Join(m.DataDir, SocketFile)); !errors.Is(err, ErrNotRunning) {
		t.Errorf("after the end: %v", err)
	}
}

// TestDiskOfAnotherMachine: the root IDs that a daemon is given by default are alike on all machines, so a disk that was moved
// from another one is told by its daemon. Nothing is written to it until it is accepted.
func TestDiskOfAnotherMachine(t *testing.T) {
	theirs, m := machine(t), machine(t)
	for _, c := range []*daemonconfig.Config{theirs, m} {
		h, err := open(t, c, &bytes.Buffer{})
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	}
	m.Roots[0].Path = theirs.Roots[0].Path // content, in both
	owner := filepath.Join(m.Roots[0].Path, beneath.ControlDir, "owner")
	before, err := os.ReadFile(owner)
	if err != nil || !strings.Contains(string(before), theirs.ClientID) {
		t.Fatalf("%q, %v", before, err)
	}
	_, err = open(t, m, &bytes.Buffer{})
	if beneath.CodeOf(err) != beneath.Unavailable || !strings.Contains(err.Error(), theirs.ClientID) ||
		!strings.Contains(err.Error(), "signalbox daemon accept content") {
		t.Errorf("got %v", err)
	}
	found := slices.ContainsFunc(Inspect(t.Context(), m, false), func(f Finding) bool {
		return !f.OK && f.Subject == "content root content" && strings.Contains(f.Text, theirs.ClientID) && strings.Contains(f.Text, "daemon accept content")
	})
	if text, err := os.ReadFile(owner); !found || string(text) != string(before) || err != nil {
		t.Errorf("found by the check: %v; the owner file: %q, %v", found, text, err)
	}
	if _, err := Accept(m, "media"); !fault.Is(err, fault.NotFound) {
		t.Errorf("a root that is not configured: %v", err)
	}
	for _, was := range []string{theirs.ClientID, m.ClientID} {
		if a, err := Accept(m, "content"); err != nil || a != (Accepted{Root: "content", Path: m.Roots[0].Path, Was: was, Daemon: m.ClientID}) {
			t.Fatalf("%+v, %v", a, err)
		}
	}
	if _, err := open(t, m, &bytes.Buffer{}); err != nil {
		t.Error(err)
	}
	if _, err := open(t, theirs, &bytes.Buffer{}); !errors.Is(err, beneath.ErrOtherDaemon) {
		t.Errorf("the daemon it belonged to: %v", err)
	}
	// A directory that carries no mark is no disk of another machine.
	m.Roots[1].Path += "-new"
	mkdir(t, m.Roots[1].Path)
	if _, err := Accept(m, "receive"); beneath.CodeOf(err) != beneath.Unavailable {
		t.Errorf("an empty directory: %v", err)
	}
}
