package api

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"signalbox/appliance/agent"
	"signalbox/store"
	"signalbox/store/storetest"
	"signalbox/transport"
)

// local serves the rig on an admin socket until the test ends and returns a client of it.
func (g *rig) local() *http.Client {
	g.t.Helper()
	dir, err := os.MkdirTemp("", "sb") // the test's own directory may be too long for the address of a socket
	g.must(err)
	path := filepath.Join(dir, "s.sock")
	srv, err := transport.NewServer(transport.ServerConfig{AdminSocket: path, AdminHandler: g.handler, Log: zerolog.Nop()})
	g.must(err)
	served := make(chan error, 1)
	go func() { served <- srv.Serve() }()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	g.t.Cleanup(func() {
		tr.CloseIdleConnections()
		g.must(srv.Shutdown(context.Background()))
		g.must(<-served)
		_ = os.RemoveAll(dir)
	})
	return &http.Client{Transport: tr}
}

// post sends a body over the socket.
func (g *rig) post(client *http.Client, path, body string) answer {
	g.t.Helper()
	resp, err := client.Post("http://local"+Prefix+path, "application/json", strings.NewReader(body))
	g.must(err)
	text, err := io.ReadAll(resp.Body)
	g.must(err)
	g.must(resp.Body.Close())
	return answer{resp.StatusCode, resp.Header, string(text)}
}

func pathBody(path string) string {
	b, _ := json.Marshal(map[string]string{"path": path})
	return string(b)
}

func TestBackupOverTheSocket(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	client := g.local()
	path := filepath.Join(t.TempDir(), "copy of it.db")
	a := g.post(client, "/backup", pathBody(path))
	var out backupPublic
	g.must(json.Unmarshal([]byte(a.body), &out))
	info, err := os.Stat(path)
	g.must(err)
	if a.status != http.StatusOK || out.Path != path || out.SizeBytes != info.Size() || info.Mode().Perm() != 0o600 {
		t.Errorf("%d %s: %v", a.status, a.body, info)
	}
	rows := g.ok(http.StatusOK, "GET", "/audit?action_prefix=backup.created", "", nil)
	if !strings.Contains(rows.body, `"user_id":"local"`) || strings.Count(rows.body, `"action"`) != 1 {
		t.Errorf("audit: %s", rows.body)
	}
	copied := storetest.Open(t, func(o *store.Options) { o.Path = path })
	if copied.Epoch() == g.db.Epoch() {
		t.Error("the copy has the epoch of the original")
	}
}

// TestBackupIsRefused sends bad paths over the socket, and good ones from elsewhere; nothing may come of either.
func TestBackupIsRefused(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	client := g.local()
	dir := t.TempDir()
	taken := filepath.Join(dir, "taken.db")
	g.must(os.WriteFile(taken, []byte("mine"), 0o600))
	for _, c := range []struct {
		body   string
		status int
		field  bool
	}{
		{``, 422, false},
		{`{}`, 422, true},
		{`{"path":7}`, 422, true},
		{`{"path":""}`, 422, true},
		{pathBody("copy.db"), 422, true},
		{pathBody("../copy.db"), 422, true},
		{pathBody(filepath.Join(dir, "none", "copy.db")), 422, true},
		{pathBody("/" + strings.Repeat("x", 5000)), 422, true},
		{pathBody(taken), 409, false},
		{pathBody(dir), 409, false},
		{pathBody(g.db.Path()), 422, false},
		{pathBody(g.db.Path() + "-journal"), 422, false},
	} {
		before := g.state()
		a := g.post(client, "/backup", c.body)
		if a.status != c.status || c.field && !strings.Contains(a.body, `"loc":["body","path"]`) {
			t.Errorf("%.80s: %d, want %d: %s", c.body, a.status, c.status, a.body)
		}
		if after := g.state(); after != before {
			t.Errorf("%.80s changed\n%s to\n%s", c.body, before, after)
		}
	}
	target := filepath.Join(dir, "copy.db")
	bound := g.key(agent.NewAPIKey{Role: agent.Admin, ProjectID: &g.project.ID})
	for key, status := range map[string]int{"": 401, g.admin: 403, bound: 403} {
		for _, path := range []string{"/backup", "/db/check", "/db/vacuum"} {
			if a := g.do(key, "POST", path, pathBody(target)); a.status != status {
				t.Errorf("%s with a key: %d, want %d: %s", path, a.status, status, a.body)
			}
		}
	}
	left, err := os.ReadDir(dir)
	g.must(err)
	if content, err := os.ReadFile(taken); len(left) != 1 || err != nil || string(content) != "mine" {
		t.Errorf("left %v; the file that was there: %q, %v", left, content, err)
	}
}

func TestCheckAndVacuumOverTheSocket(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	client := g.local()
	for query, quick := range map[string]bool{"": false, "?quick=true": true} {
		a := g.post(client, "/db/check"+query, "")
		var out checkPublic
		g.must(json.Unmarshal([]byte(a.body), &out))
		if a.status != http.StatusOK || !out.OK || out.Quick != quick || out.SchemaVersion != g.db.SchemaVersion() ||
			!strings.Contains(a.body, `"problems":[]`) {
			t.Errorf("check%s: %d %s", query, a.status, a.body)
		}
	}
	if a := g.post(client, "/db/check?quick=perhaps", ""); a.status != http.StatusUnprocessableEntity {
		t.Errorf("a bad flag: %d %s", a.status, a.body)
	}
	a := g.post(client, "/db/vacuum", "")
	var out vacuumPublic
	g.must(json.Unmarshal([]byte(a.body), &out))
	if a.status != http.StatusOK || out.BytesAfter == 0 || out.BytesAfter > out.BytesBefore {
		t.Errorf("vacuum: %d %s", a.status, a.body)
	}
}

// TestUpkeepIsDoneOneByOne holds one piece of upkeep and asks for others.
func TestUpkeepIsDoneOneByOne(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	client := g.local()
	g.api.upkeep.Lock()
	path := filepath.Join(t.TempDir(), "copy.db")
	for _, p := range []string{"/backup", "/db/check", "/db/vacuum"} {
		if a := g.post(client, p, pathBody(path)); a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %v", p, a.status, a.header)
		}
	}
	g.api.upkeep.Unlock()
	if a := g.post(client, "/backup", pathBody(path)); a.status != http.StatusOK {
		t.Errorf("after it: %d %s", a.status, a.body)
	}
}
