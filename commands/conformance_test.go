package commands

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// A server that registers agents and knows nothing else: what it breaks is told with the rule, and the exit code says so.
func TestConformanceTellsWhatFailed(t *testing.T) {
	t.Parallel()
	const key = "registration-key-of-the-test"
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPost && r.URL.Path == "/agents" && r.Header.Get("Authorization") == "Bearer "+key:
			_ = json.NewEncoder(w).Encode(map[string]string{"id": uuid.NewString(), "api_key": uuid.NewString()})
		case r.URL.Path == "/agents":
			http.Error(w, "who are you?", http.StatusUnauthorized)
		default:
			http.Error(w, `{"detail":"nothing\u001b[31m here"}`, http.StatusNotFound)
		}
	}))
	t.Cleanup(srv.Close)
	run := func(args ...string) (code int, out, talk string) {
		var stdout, stderr bytes.Buffer
		opts := newOptions(Stdio{In: strings.NewReader(""), Out: &stdout, Err: &stderr}, Assets{})
		code = opts.execute(t.Context(), append([]string{"conformance", "rooms", "--server", srv.URL}, args...))
		return code, stdout.String(), stderr.String()
	}
	code, out, talk := run("--key", key, "--only", "1,3,18")
	for _, want := range []string{" 1  FAIL     an open without parameters is refused\n             B.3: ", "by failing the upgrade, with 404",
		" 3  FAIL     connection_state comes first\n             make a room: ", "18  skipped  ", "0 passed, 2 failed, 1 skipped"} {
		if !strings.Contains(out, want) {
			t.Errorf("stdout lacks %q:\n%s", want, out)
		}
	}
	for _, want := range []string{"left behind: agent conformance-", "2 of 3 vectors failed"} {
		if !strings.Contains(talk, want) {
			t.Errorf("stderr lacks %q:\n%s", want, talk)
		}
	}
	if code != ExitFailed || strings.Contains(out+talk, "\x1b") || strings.Contains(out+talk, key) {
		t.Errorf("exit code %d:\n%s%s", code, out, talk)
	}

	code, out, _ = run("--key", key, "--only", "1", "--json")
	var doc struct {
		Schema                  int `json:"schema_version"`
		Passed, Failed, Skipped int
		Vectors                 []struct {
			Number        int
			Outcome, Rule string
		}
		Left []string
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if code != ExitFailed || doc.Schema != schemaVersion || doc.Failed != 1 || len(doc.Vectors) != 1 || doc.Vectors[0].Rule != "B.3" ||
		doc.Vectors[0].Outcome != "FAIL" || len(doc.Left) != 2 {
		t.Errorf("exit code %d: %s", code, out)
	}

	if code, out, talk := run("--key", "wrong-key"); code != ExitAuth || !strings.Contains(talk, "401") || strings.Contains(out+talk, "wrong-key") {
		t.Errorf("exit code %d:\n%s%s", code, out, talk)
	}
}
