package appliance_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"signalbox/appliance"
	"signalbox/appliance/appliancetest"
	"signalbox/appliance/config"
	"signalbox/appliance/fault"
	"signalbox/store/storetest"
)

// startConfig is a configuration for a data directory of its own, on a free port.
func startConfig(t *testing.T) *config.Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "sb") // short: the path of a socket is limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := config.Default()
	c.DataDir, c.Server.Listen = filepath.Join(dir, "data"), "127.0.0.1:0"
	return c
}

func newAppliance(t *testing.T, c *config.Config) (*appliance.Appliance, error) {
	t.Helper()
	return appliance.New(context.Background(), appliance.Options{Config: c, Schema: storetest.Schema(t)})
}

func TestStartMakesPrivateFilesOnce(t *testing.T) {
	t.Parallel()
	c := startConfig(t)
	a, err := newAppliance(t, c)
	if err != nil {
		t.Fatal(err)
	}
	first := a.FirstRun()
	if first.Project != "default" || first.AdminKey.IsZero() {
		t.Errorf("first run %+v", first)
	}
	for name, mode := range map[string]os.FileMode{".": 0o700, appliance.SecretFile: 0o600, appliance.AdminKeyFile: 0o600,
		appliance.DatabaseFile: 0o600, "signalbox.sock": 0o600} {
		info, err := os.Stat(filepath.Join(c.DataDir, name))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v, want %v", name, info.Mode(), err, mode)
		}
	}
	if _, err := newAppliance(t, c); err == nil || !strings.Contains(err.Error(), "lock") && !strings.Contains(err.Error(), "another") {
		t.Errorf("a second process on the same directory: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if a, err = newAppliance(t, c); err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if again := a.FirstRun(); again.Project != "" || !again.AdminKey.IsZero() {
		t.Errorf("second run %+v", again)
	}
}

// A crash between the key's file and its row leaves the file: the next start makes the row of that key.
func TestStartAdoptsTheAdminKeyOfACrashedStart(t *testing.T) {
	t.Parallel()
	c := startConfig(t)
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		t.Fatal(err)
	}
	key := "z4k_" + strings.Repeat("k", 43)
	if err := os.WriteFile(filepath.Join(c.DataDir, appliance.AdminKeyFile), []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := newAppliance(t, c)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if got := a.FirstRun().AdminKey.Reveal(); got != key {
		t.Error("another key was made")
	}
}

func TestStartRefuses(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	tests := []struct {
		name    string
		prepare func(t *testing.T, c *config.Config)
		want    string
	}{
		{"a port in use", func(_ *testing.T, c *config.Config) { c.Server.Listen = taken.Addr().String() }, "in use"},
		{"a database without its secret", func(t *testing.T, c *config.Config) {
			a, err := newAppliance(t, c)
			if err != nil {
				t.Fatal(err)
			}
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(filepath.Join(c.DataDir, appliance.SecretFile)); err != nil {
				t.Fatal(err)
			}
		}, "is missing beside an existing database"},
		{"a secret that others can read", func(t *testing.T, c *config.Config) {
			if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(c.DataDir, appliance.SecretFile), []byte(strings.Repeat("s", 40)), 0o644); err != nil {
				t.Fatal(err)
			}
		}, "chmod 600"},
		{"a short secret", func(t *testing.T, c *config.Config) {
			if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(c.DataDir, appliance.SecretFile), []byte("short"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "at least 32 bytes"},
		{"TLS files that are not there", func(_ *testing.T, c *config.Config) {
			c.Server.TLSCertFile, c.Server.TLSKeyFile = "/nowhere/cert.pem", "/nowhere/key.pem"
		}, "/nowhere/cert.pem"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := startConfig(t)
			tt.prepare(t, c)
			a, err := newAppliance(t, c)
			if err == nil {
				a.Close()
				t.Fatal("started")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("refused with %q, want something of %q", err, tt.want)
			}
		})
	}
}

// A restored database beside the wrong secret starts, for the right one may be lost, but says what is wrong.
func TestStartTellsOfAForeignSecret(t *testing.T) {
	t.Parallel()
	c := startConfig(t)
	var log strings.Builder
	start := func() {
		t.Helper()
		log.Reset()
		a, err := appliance.New(context.Background(), appliance.Options{Config: c, Schema: storetest.Schema(t), Log: zerolog.New(&log)})
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	const complaint = "not the one the database was written under"
	start()
	start()
	if strings.Contains(log.String(), complaint) {
		t.Errorf("the right secret is complained about: %s", log.String())
	}
	if err := os.WriteFile(filepath.Join(c.DataDir, appliance.SecretFile), []byte(strings.Repeat("s", 40)), 0o600); err != nil {
		t.Fatal(err)
	}
	start()
	if !strings.Contains(log.String(), complaint) {
		t.Errorf("another secret goes unnoticed: %s", log.String())
	}
}

func TestAllowedHostsDoNotLockOutTheAdminSocket(t *testing.T) {
	s := appliancetest.Start(t, appliancetest.WithConfig(func(c *config.Config) { c.Server.AllowedHosts = []string{"signalbox.example.com"} }))
	if status, body := s.Admin(http.MethodGet, "/status", nil); status != http.StatusOK {
		t.Errorf("over the socket: %d %s", status, body)
	}
	resp, err := s.Client().Get(s.URL() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("another host name over TCP: %d", resp.StatusCode)
	}
}

// A disk that takes no more writes can still be read: only a failed write tells.
func TestReadinessNoticesThatNothingCanBeWritten(t *testing.T) {
	s := appliancetest.Start(t)
	ready := func() int {
		resp, err := s.Client().Get(s.URL() + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if got := ready(); got != http.StatusOK {
		t.Fatalf("readyz %d", got)
	}
	s.Faults.FailCommits(fault.New(fault.Unavailable, "disk full"))
	if status, body := s.Admin(http.MethodPost, "/projects/default/agents", map[string]string{"name": "lost"}); status != http.StatusServiceUnavailable {
		t.Errorf("mint: %d %s", status, body)
	}
	if got := ready(); got != http.StatusServiceUnavailable {
		t.Errorf("readyz %d after a failed write", got)
	}
	s.Faults.FailCommits(nil)
	s.Mint("again")
	if got := ready(); got != http.StatusOK {
		t.Errorf("readyz %d after a good one", got)
	}
}
