package commands

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"signalbox/transport/agentclient"
)

// Each way to speak the wrong scheme, or to distrust the certificate, has its next step.
func TestTroubleWithTLSHasANextStep(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	for address, want := range map[string]string{
		secure.URL: "hint: " + hintAuthority,
		strings.Replace(secure.URL, "https:", "http:", 1): "hint: " + hintHTTPS,
		strings.Replace(r.url, "http:", "https:", 1):      "hint: the server speaks plain http there",
	} {
		opts, _, talk := r.options("", false)
		if got := opts.execute(t.Context(), []string{"status", "--server", address}); got == ExitOK || !strings.Contains(talk.String(), want) {
			t.Errorf("%s: exit code %d, want %q: %s", address, got, want, talk)
		}
	}
}

func TestBenchAgentsTrustTheGivenAuthorityOverTheSocketToo(t *testing.T) {
	t.Parallel()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	path := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	if err := os.WriteFile(path, block, 0o600); err != nil {
		t.Fatal(err)
	}
	byFlag := newOptions(Stdio{}, Assets{})
	byFlag.caFile = path
	byEnv := newOptions(Stdio{Env: []string{"SIGNALBOX_CA_FILE=" + path}}, Assets{})
	for _, opts := range []*options{byFlag, byEnv} {
		pool, err := (&benchAgents{}).prepare(opts, &benchPool{configs: make([]agentclient.Config, 1)})
		if err != nil || pool.configs[0].TLS == nil || pool.configs[0].TLS.RootCAs == nil {
			t.Errorf("the authority does not reach the agents: %v", err)
			continue
		}
		resp, err := pool.configs[0].Client.Get(secure.URL)
		if err != nil {
			t.Errorf("a server it signed is not trusted: %v", err)
			continue
		}
		_ = resp.Body.Close()
		pool.configs[0].Client.CloseIdleConnections()
	}
}

func TestFollowingOnATerminalSaysThatItWaits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		terminal bool
		args     string
		want     bool
	}{
		{true, "events tail --cursor 0 --limit 1", true},
		{true, "events tail --follow=false", false},
		{false, "events tail --cursor 0 --limit 1", false},
		{true, "events tail --cursor 0 --limit 1 --project missing", false},
	} {
		r := newRun(t)
		r.fake.events = append(r.fake.events, object{"id": "e", "engine": "celery", "task_id": "t", "kind": "task.sent", "occurred_at": now()})
		opts, _, talk := r.options("", tt.terminal)
		if strings.Contains(tt.args, "missing") {
			r.fake.refuse = &reply{status: 404, code: "not_found", message: "project not found"}
		}
		opts.execute(t.Context(), strings.Fields(tt.args))
		if got := strings.Contains(talk.String(), "waiting; Ctrl-C ends\n"); got != tt.want {
			t.Errorf("terminal %t, %s: says %q", tt.terminal, tt.args, talk)
		}
	}
}

func TestRefusedCursorIsNoPlaceToResume(t *testing.T) {
	t.Parallel()
	r := newRun(t)
	r.fake.refuse = &reply{status: 422, code: "validation_error", message: "cursor: is none"}
	opts, _, talk := r.options("", false)
	if got := opts.execute(t.Context(), []string{"commands", "watch", "--project", "default", "--cursor", "abc"}); got != ExitUsage ||
		talk.String() != "signalbox: cursor: is none\n" {
		t.Errorf("exit code %d: %q", got, talk)
	}
}

func TestGapReasonsAreSentences(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{"epoch", "ahead", "retention"} {
		if got := gapText(reason); !strings.Contains(got, "; going on ") {
			t.Errorf("%s is told as %q", reason, got)
		}
	}
	if got := gapText("a\nb"); got != "a b" {
		t.Errorf("another reason is told as %q", got)
	}
}

// In a usage text, a type of several words would run into the description, and required flags must be seen.
func TestFlagUsagesAreClear(t *testing.T) {
	t.Parallel()
	walk(newRootCommand(newOptions(Stdio{}, Assets{})), func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if name, _ := pflag.UnquoteUsage(f); strings.Contains(name, " ") {
				t.Errorf("%s: --%s takes a %q", cmd.CommandPath(), f.Name, name)
			}
			required := f.Annotations[cobra.BashCompOneRequiredFlag] != nil
			if required != strings.HasSuffix(f.Usage, " (required)") {
				t.Errorf("%s: --%s is required: %t, and says %q", cmd.CommandPath(), f.Name, required, f.Usage)
			}
		})
	})
}
