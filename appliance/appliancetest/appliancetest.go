// Package appliancetest gives tests a whole appliance: the real composition on free ports, with a real database file, an
// optional clock that stands still, failpoints, and eyes that see the database and the metrics from outside.
package appliancetest

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"signalbox/appliance"
	"signalbox/appliance/clock"
	"signalbox/appliance/config"
	"signalbox/store/storetest"
	"signalbox/transport"
)

// Wait bounds every wait of a test for something that must happen.
const Wait = 2 * time.Minute

// Option changes what Start starts.
type Option func(*Server)

// WithFakeClock has the appliance, and the agents made by Mint, live by a clock that stands at the time until it is
// moved. Sockets still live by the system's.
func WithFakeClock(at time.Time) Option {
	return func(s *Server) { s.Clock = clock.NewFake(at) }
}

// WithClock has the appliance live by the clock. Unlike WithFakeClock, waits of the test do not move it.
func WithClock(c clock.Clock) Option { return func(s *Server) { s.clock = c } }

// WithConfig changes the configuration, which begins with the defaults, free ports and a new data directory.
func WithConfig(change func(*config.Config)) Option {
	return func(s *Server) { change(s.Config) }
}

// WithLog writes the appliance's log to w.
func WithLog(w io.Writer) Option { return func(s *Server) { s.log = zerolog.New(w) } }

// Server is a running appliance. Its methods fail the test when they cannot do what they say; they must be called from
// the test's goroutine.
type Server struct {
	Config *config.Config
	Clock  *clock.Fake // nil: the system's
	// Faults are the failpoints of the store and count what it does.
	Faults *Faults

	t       testing.TB
	clock   clock.Clock // of WithClock; nil: the system's, or Clock
	log     zerolog.Logger
	app     *appliance.Appliance
	client  *http.Client // of the main listener
	admin   *http.Client // of the admin socket
	cancel  context.CancelFunc
	ended   chan error
	running bool
	base    string
}

// Start starts an appliance and stops it with the test.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	// Not t.TempDir: its path would be too long for the admin socket in it.
	dir, err := os.MkdirTemp("", "sb")
	if err != nil {
		t.Fatalf("data directory: %v", err)
	}
	s := &Server{Config: config.Default(), Faults: newFaults(), t: t, log: zerolog.Nop()}
	s.Config.DataDir = dir
	s.Config.Server.Listen = "127.0.0.1:0"
	s.Config.Metrics.Listen = "127.0.0.1:0"
	s.Config.Server.DrainTimeout = config.Duration(10 * time.Second)
	for _, opt := range opts {
		opt(s)
	}
	if err := s.Config.Validate(); err != nil {
		t.Fatalf("configuration: %v", err)
	}
	// Without compression: the metrics are scraped time and again.
	s.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}
	s.admin = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", s.Config.AdminSocketPath())
	}}}
	t.Cleanup(func() {
		s.Faults.reset()
		if s.running {
			s.Stop()
		}
		s.client.CloseIdleConnections()
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove data directory: %v", err)
		}
	})
	s.start()
	return s
}

func (s *Server) start() {
	s.t.Helper()
	o := appliance.Options{Config: s.Config, Schema: storetest.Schema(s.t), Version: "test", Log: s.log, Hooks: s.Faults.hooks(), Clock: s.clock}
	if s.Clock != nil {
		o.Clock = s.Clock
	}
	app, err := appliance.New(context.Background(), o)
	if err != nil {
		s.t.Fatalf("start: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- app.Run(ctx, func() { close(ready) }) }()
	s.app, s.cancel, s.ended, s.running = app, cancel, ended, true
	s.base = "http://" + app.Addresses()[transport.ListenerMain]
	select {
	case <-ready:
	case err := <-ended:
		s.running = false
		cancel()
		s.t.Fatalf("start: %v", err)
	}
}

// Signal asks the appliance to go down, as SIGTERM does, and returns at once. With a fake clock the sessions are drained
// only as the clock moves: see Pump.
func (s *Server) Signal() { s.cancel() }

// Stop takes the appliance down in good order and waits for the end. The files stay until the test is over.
func (s *Server) Stop() {
	s.t.Helper()
	s.cancel()
	s.running = false
	err := s.Ended()
	s.admin.CloseIdleConnections()
	if err != nil {
		s.t.Errorf("stop: %v", err)
	}
}

// Ended waits until the appliance is down and returns why. With a fake clock it lets time pass meanwhile.
func (s *Server) Ended() error {
	s.t.Helper()
	s.running = false
	var err error
	s.Pump(100*time.Millisecond, "the end of the appliance", func(wait <-chan time.Time) bool {
		select {
		case err = <-s.ended:
			return true
		case <-wait:
			return false
		}
	})
	return err
}

// Restart stops the appliance and starts it again on the same files, on other ports.
func (s *Server) Restart() {
	s.t.Helper()
	if s.running {
		s.Stop()
	}
	s.client.CloseIdleConnections()
	s.start()
}

// pumpEvery is the pause of the test, in the system's time, between two steps of a fake clock.
const pumpEvery = 2 * time.Millisecond

// Pump calls done, which waits for something or for the channel, until it returns true, and moves the fake clock by step
// after each time that it returned false. It fails the test after Wait of the system's time.
func (s *Server) Pump(step time.Duration, what string, done func(wait <-chan time.Time) bool) {
	s.t.Helper()
	tick := time.NewTicker(pumpEvery)
	defer tick.Stop()
	for end := time.Now().Add(Wait); !done(tick.C); {
		if time.Now().After(end) {
			s.t.Fatalf("%s: did not come within %v", what, Wait)
		}
		if s.Clock != nil {
			s.Clock.Advance(step)
		}
	}
}

// URL is the base URL of the main listener.
func (s *Server) URL() string { return s.base }

// Client is an HTTP client for the main listener; agents made by Mint share it.
func (s *Server) Client() *http.Client { return s.client }

// Now is the appliance's time.
func (s *Server) Now() time.Time {
	if s.Clock != nil {
		return s.Clock.Now()
	}
	return time.Now().UTC()
}

// DatabasePath is the path of the database file.
func (s *Server) DatabasePath() string {
	return filepath.Join(s.Config.DataDir, appliance.DatabaseFile)
}

// Appliance is the running appliance.
func (s *Server) Appliance() *appliance.Appliance { return s.app }
