package commands

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

// TestRotation rotates the master secret of the real binary as docs/operations.md tells, and drops the old one in the end:
// tokens, API keys and the audit chain hold while the old one is named, agents need their new signing secret, and channels
// work throughout without being set again.
func TestRotation(t *testing.T) {
	t.Parallel()
	p := newProcess(t, buildBinary(t))
	p.start()
	in := newInbox(t)
	must := func(args ...string) []byte {
		t.Helper()
		out, err := p.cli(args...)
		if err != nil {
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				err = fmt.Errorf("%w: %s", err, exit.Stderr)
			}
			t.Fatalf("%v: %v: %s", args, err, out)
		}
		return out
	}
	must("notifications", "channels", "create", "ops", "--kind", "webhook", "--url", in.URL)
	must("notifications", "rules", "create", "failures", "--trigger", "task_failed", "--channel", "ops")
	worker := p.mint("web-1")
	asKey := func(file string) error {
		cmd := exec.Command(p.binary, "agents", "list", "--server", p.baseURL(), "--api-key-file", file)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		return cmd.Run()
	}
	oldKey := filepath.Join(p.dir, "admin.key")
	if err := asKey(oldKey); err != nil {
		t.Fatalf("the first API key: %v", err)
	}

	p.stop()
	current, previous := filepath.Join(p.dir, "secret.key"), filepath.Join(p.dir, "previous.keys")
	if err := os.Rename(current, previous); err != nil {
		t.Fatal(err)
	}
	raw := make([]byte, 32)
	_, _ = rand.Read(raw)
	if err := os.WriteFile(current, []byte(base64.StdEncoding.EncodeToString(raw)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.args = []string{"--previous-secrets-file", previous}
	p.start()
	if err := asKey(oldKey); err != nil {
		t.Errorf("an API key of before, with the old secret named: %v", err)
	}
	must("notifications", "test", "ops")
	must("audit", "verify")
	worker.cfg.URL = p.baseURL()
	if err := firstRefusal(t, worker.cfg); !strings.Contains(fmt.Sprint(err), "4403") {
		t.Errorf("an agent that signs with its old secret: %v, want 4403", err)
	}
	var shown struct {
		Secret string `json:"hmac_secret"`
	}
	if out := must("agents", "secret", "web-1"); json.Unmarshal(out, &shown) != nil {
		t.Fatalf("agents secret: %s", out)
	}
	var err error
	if worker.cfg.ProjectSecret, err = agentclient.DecodeSecret(shown.Secret); err != nil {
		t.Fatal(err)
	}
	tell(t.Context(), p, worker.cfg, taskFailure("after.rotation"))
	in.await(t, "after.rotation")
	var made struct {
		Key struct{ Token string } `json:"api_key"`
	}
	out := must("apikeys", "create", "new", "--role", "admin")
	newKey := filepath.Join(p.dir, "new.key")
	if err := json.Unmarshal(out, &made); err != nil || made.Key.Token == "" {
		t.Fatalf("apikeys create: %v: %s", err, out)
	}
	if err := os.WriteFile(newKey, []byte(made.Key.Token), 0o600); err != nil {
		t.Fatal(err)
	}

	p.stop()
	p.args = nil
	p.start()
	must("notifications", "test", "ops")
	if err := asKey(newKey); err != nil {
		t.Errorf("an API key of after the rotation: %v", err)
	}
	if asKey(oldKey) == nil {
		t.Error("an API key of before works without the old secret")
	}
	if out, err := p.cli("audit", "verify"); err == nil || !strings.Contains(string(out), "unknown_key") {
		t.Errorf("the audit rows of before, without the old secret: %v: %s", err, out)
	}
	log, err := os.ReadFile(p.log.Name())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(log), "sealed under the present master secret now") != 1 {
		t.Error("the log does not tell once that channels were sealed again")
	}
}

// firstRefusal connects with a token, sends an event, and returns what ends the session.
func firstRefusal(t *testing.T, cfg agentclient.Config) error {
	s, err := agentclient.DialWS(t.Context(), cfg)
	if err != nil {
		return err
	}
	defer s.Abort()
	events := []agentclient.Event{taskFailure("before.rotation")}
	err = s.Send(wire.TypeEventBatch, "ev_"+uuid.NewString(), agentclient.AppendEventBatch(nil, events))
	for err == nil {
		var f wire.Frame
		if f, err = s.Receive(); err == nil {
			f.Release()
		}
	}
	return err
}
