package commands

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An interrupt is the normal end of a followed stream: exit code 0, and the cursor to go on from.
func TestInterruptedTailTellsItsCursor(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	r.fake.events = append(r.fake.events, object{"id": "e1", "kind": "task.sent", "engine": "celery", "task_id": "t1", "occurred_at": now()})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	opts, _, talk := r.options("", false)
	opts.stdio.Out = writerFunc(func(p []byte) (int, error) {
		cancel() // as the record is shown
		return len(p), nil
	})
	opts.out.stdio.Out = opts.stdio.Out
	if got := opts.execute(ctx, []string{"events", "tail", "--cursor", "0", "--json"}); got != ExitOK {
		t.Fatalf("exit code %d: %s", got, talk)
	}
	if !strings.Contains(talk.String(), "cursor: 0a1b2c3d.1\n") {
		t.Errorf("no cursor in %q", talk)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A record that could not be written is not counted as seen: the cursor stays before it.
func TestUnwrittenRecordIsNotPassed(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	r.fake.events = append(r.fake.events, object{"id": "e1", "kind": "task.sent", "engine": "celery", "task_id": "t1", "occurred_at": now()})
	opts, _, talk := r.options("", false)
	opts.stdio.Out = writerFunc(func([]byte) (int, error) { return 0, io.ErrClosedPipe })
	opts.out.stdio.Out = opts.stdio.Out
	if got := opts.execute(t.Context(), []string{"events", "tail", "--cursor", "0a1b2c3d.0", "--json"}); got != ExitFailed {
		t.Fatalf("exit code %d: %s", got, talk)
	}
	if !strings.Contains(talk.String(), "cursor: 0a1b2c3d.0\n") {
		t.Errorf("no cursor in %q", talk)
	}
}

// A server that goes away and comes back is waited for; one that then refuses is not.
func TestStreamOutlivesAnOutageButNotARefusal(t *testing.T) {
	t.Parallel()
	calls := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		switch calls {
		case 1:
			_, _ = io.WriteString(w, `{"type":"event","cursor":"e.1","event":{}}`+"\n")
		case 2:
			w.WriteHeader(http.StatusBadGateway)
		case 3:
			if got := r.URL.Query().Get("cursor"); got != "e.1" {
				t.Errorf("resumed at %q, want e.1", got)
			}
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer server.Close()
	opts, _, talk := (&run{}).options("", false)
	got := opts.execute(t.Context(), []string{"events", "tail", "--project", "p", "--server", server.URL, "--api-key", "z4k_x", "--json"})
	if got != ExitAuth || calls != 3 {
		t.Errorf("exit code %d after %d calls: %s", got, calls, talk)
	}
}

// A stream from now on that is lost before its first record goes on from where it began, not from a later now.
func TestStreamFromNowOnMissesNothingBetweenConnections(t *testing.T) {
	t.Parallel()
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Query().Get("cursor"))
		if len(asked) == 1 {
			w.Header().Set("X-Signalbox-Cursor", "e.7")
			return
		}
		_, _ = io.WriteString(w, `{"type":"event","cursor":"e.8","event":{}}`+"\n")
	}))
	defer server.Close()
	opts, out, talk := (&run{}).options("", false)
	args := []string{"events", "tail", "--project", "p", "--server", server.URL, "--api-key", "z4k_x", "--limit", "1", "--json"}
	if got := opts.execute(t.Context(), args); got != ExitOK || len(asked) != 2 || asked[0] != "" || asked[1] != "e.7" {
		t.Errorf("exit code %d, asked for %q: %s%s", got, asked, out, talk)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	asked := false
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer elsewhere.Close()
	server := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer server.Close()
	opts, _, talk := (&run{}).options("", false)
	if got := opts.execute(t.Context(), []string{"status", "--server", server.URL, "--api-key", "z4k_x"}); got == ExitOK || asked {
		t.Errorf("exit code %d, asked elsewhere: %t, %s", got, asked, talk)
	}
}

func TestRequestTimeoutIsUnreachable(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	defer close(release)
	opts, _, talk := (&run{}).options("", false)
	args := []string{"status", "--server", server.URL, "--api-key", "z4k_x", "--request-timeout", "20ms"}
	if got := opts.execute(t.Context(), args); got != ExitUnreachable || !strings.Contains(talk.String(), "no answer within") {
		t.Errorf("exit code %d: %s", got, talk)
	}
}

func TestForeignAnswersAreUnderstoodByStatus(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		status int
		body   string
		want   int
		text   string
	}{
		{200, "<html>", ExitFailed, "is not what this client expects"},
		{502, "<html>bad gateway</html>", ExitFailed, "502 Bad Gateway"},
		{429, `{"detail":"slow down"}`, ExitDegraded, "slow down"},
		{422, `{"detail":[{"loc":["body","name"],"msg":"too long"}]}`, ExitUsage, "body.name: too long"},
		{404, `{"error":"not_found","message":"no \u001b[2J such thing"}`, ExitNotFound, "no ?[2J such thing"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(tt.status)
			_, _ = io.WriteString(w, tt.body)
		}))
		opts, _, talk := (&run{}).options("", false)
		got := opts.execute(t.Context(), []string{"status", "--server", server.URL, "--api-key", "z4k_x"})
		server.Close()
		if got != tt.want || !strings.Contains(talk.String(), tt.text) {
			t.Errorf("%d %s: exit code %d, %q", tt.status, tt.body, got, talk)
		}
	}
}

// FuzzReadLine holds the splitter to its rule however the bytes arrive: whole lines come out, a cut last one does not.
func FuzzReadLine(f *testing.F) {
	f.Add([]byte("{}\n\n{\"a\":1}\n{\"cut"), 3)
	f.Add([]byte(strings.Repeat("x", 100)+"\n"), 1)
	f.Fuzz(func(t *testing.T, data []byte, step int) {
		if step < 1 || step > 64 {
			step = 1
		}
		r := bufio.NewReaderSize(&stepReader{data: data, step: step}, 16)
		var got [][]byte
		for {
			line, err := readLine(r)
			if err != nil {
				break
			}
			got = append(got, line)
		}
		whole := bytes.Split(data, []byte("\n"))
		whole = whole[:len(whole)-1]
		if len(got) != len(whole) {
			t.Fatalf("%d lines, want %d", len(got), len(whole))
		}
		for i := range got {
			if !bytes.Equal(got[i], bytes.TrimSpace(whole[i])) {
				t.Fatalf("line %d is %q, want %q", i, got[i], whole[i])
			}
		}
	})
}

type stepReader struct {
	data []byte
	step int
}

func (r *stepReader) Read(p []byte) (int, error) {
	if len(r.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), r.step)], r.data)
	r.data = r.data[n:]
	return n, nil
}

// FuzzStreamRecord: any line is refused or passed on as one valid object that carries the schema version.
func FuzzStreamRecord(f *testing.F) {
	f.Add([]byte(`{"type":"event","cursor":"e.1","event":{"n":1}}`))
	f.Add([]byte(`{}`))
	f.Add([]byte(`[1]`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, line []byte) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || bytes.ContainsAny(line, "\n") {
			return
		}
		var out bytes.Buffer
		opts := newOptions(Stdio{Out: &out}, Assets{})
		s := &stream{}
		if s.take(line, opts.out.ndjson) != nil {
			return
		}
		var doc map[string]any
		if err := json.Unmarshal(out.Bytes(), &doc); err != nil || doc["schema_version"] == nil {
			t.Fatalf("%q became %q: %v", line, &out, err)
		}
	})
}

// A private authority has to be named; without it nothing is sent.
func TestPrivateAuthority(t *testing.T) {
	t.Parallel()
	f := newFakeServer()
	server := httptest.NewUnstartedServer(f.handler(true))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of the refused handshake
	server.StartTLS()
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, block, 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"status", "--server", server.URL, "--api-key", fakeAdminKey}
	opts, _, talk := (&run{}).options("", false)
	if got := opts.execute(t.Context(), append(args, "--ca-file", ca)); got != ExitOK {
		t.Errorf("with the authority: exit code %d: %s", got, talk)
	}
	opts, _, talk = (&run{}).options("", false)
	if got := opts.execute(t.Context(), args); got != ExitUnreachable || !strings.Contains(talk.String(), "certificate") {
		t.Errorf("without it: exit code %d: %s", got, talk)
	}
	if n := len(f.requests); n != 1 {
		t.Errorf("%d requests arrived, want 1", n)
	}
	opts, _, talk = (&run{}).options("", false)
	if got := opts.execute(t.Context(), append(args, "--ca-file", os.DevNull)); got != ExitUsage {
		t.Errorf("with an empty file: exit code %d: %s", got, talk)
	}
}
