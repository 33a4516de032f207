package config

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestShowMasksSecretsAndNamesOrigins(t *testing.T) {
	secret, previous, token := strings.Repeat("A", 32), strings.Repeat("B", 32), strings.Repeat("C", 32)
	file := write(t, "s.toml", "[metrics]\nauth_token = \""+token+"\"\n")
	c, o, _ := mustLoad(t, LoadOptions{
		File:  file,
		Env:   []string{"Z4J_SECRET=" + secret, "SIGNALBOX_PREVIOUS_SECRETS=" + previous + "," + secret},
		Flags: map[string]string{"server.listen": "127.0.0.1:0"},
	})
	entries := Show(c, o)
	if len(entries) != len(Keys()) {
		t.Fatalf("%d entries", len(entries))
	}
	want := map[string]Entry{
		"server.listen":           {"server.listen", `"127.0.0.1:0"`, "flag --listen"},
		"metrics.auth_token":      {"metrics.auth_token", `"[redacted]"`, file + ":2"},
		"secret.secret":           {"secret.secret", `"[redacted]"`, "env Z4J_SECRET"},
		"secret.previous_secrets": {"secret.previous_secrets", `["[redacted]", "[redacted]"]`, "env SIGNALBOX_PREVIOUS_SECRETS"},
		"agent.command_timeout":   {"agent.command_timeout", `"1m"`, "default"},
	}
	for _, e := range entries {
		if w, ok := want[e.Key]; ok && e != w {
			t.Errorf("got %+v, want %+v", e, w)
		}
	}
	var out strings.Builder
	if err := WriteShow(&out, entries); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(entries)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(data)
	for _, s := range []string{secret, previous, token} {
		if strings.Contains(out.String(), s) {
			t.Errorf("shows the secret %q", s)
		}
	}
	if !strings.Contains(out.String(), "# flag --listen\n") {
		t.Errorf("no origin in:\n%s", out.String())
	}
	if e := Show(Default(), nil); e[0].Origin != "default" {
		t.Errorf("got %+v", e[0])
	}
}

type brokenWriter struct{}

var errBroken = errors.New("broken")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestWriteShowReportsAFailingWriter(t *testing.T) {
	if err := WriteShow(brokenWriter{}, Show(Default(), nil)); !errors.Is(err, errBroken) {
		t.Errorf("got %v", err)
	}
}

// TestErrorsKeepSecrets breaks every secret in every form and looks for it in the report.
func TestErrorsKeepSecrets(t *testing.T) {
	const leak = "hunter2"
	for _, opts := range []LoadOptions{
		{Env: []string{"Z4J_SECRET=" + leak, "Z4J_PREVIOUS_SECRETS=" + leak, "Z4J_METRICS_AUTH_TOKEN=" + leak}},
		{Env: []string{"SIGNALBOX_SECRET=" + leak, "SIGNALBOX_PREVIOUS_SECRETS=[" + leak, "SIGNALBOX_METRICS_AUTH_TOKEN=\t" + leak}},
		{Env: []string{"Z4J_SECRET=" + leak, "SIGNALBOX_SECRET=" + leak + "x"}},
		{File: write(t, "s.toml", "[secret]\nsecret = '"+leak+"'\nprevious_secrets = ['"+leak+"', 5]\n")},
		{File: write(t, "s.toml", "[secret]\nsecret = { "+leak+" = 5 }\nprevious_secrets = '"+leak+"'\n")},
		{Flags: map[string]string{"secret.secret": leak, "secret.previous_secrets": leak}},
	} {
		_, _, w, err := Load(opts)
		if err == nil {
			t.Errorf("%v: accepted", opts)
			continue
		}
		text := err.Error()
		for _, x := range w {
			text += x.String()
		}
		if strings.Contains(text, leak) {
			t.Errorf("leaked: %s", text)
		}
	}
}

func FuzzTOML(f *testing.F) {
	f.Add(RenderExample())
	f.Add([]byte("server = {listen = 'x'}\n[[agent]]\n"))
	f.Add([]byte("[secret]\nsecret_file = ''\n'a.b'.\"c\" = 1e9\nx = 1979-05-27T07:32:00Z\n"))
	f.Add([]byte("data_dir = \"\"\"\n\"\"\"\n[server.listen]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		l := newLoader(nil)
		l.applyTOML("fuzz.toml", data)
		for _, p := range l.problems {
			if p.Path == "" && len(data) == 0 || p.Msg == "" {
				t.Errorf("a problem without text: %+v", p)
			}
		}
		if len(validate(l.cfg, &l.origins, l.unread)) > 0 || len(l.problems) > 0 {
			return
		}
		// What was accepted must survive being written and read again, unless secrets are masked in it.
		again := newLoader(nil)
		var b strings.Builder
		for _, k := range l.keys {
			if !k.Secret {
				b.WriteString(k.Path + " = " + k.literal() + "\n")
			}
		}
		again.applyTOML("again.toml", []byte(b.String()))
		for i, k := range again.keys {
			if !k.Secret && k.plain() != l.keys[i].plain() {
				t.Errorf("%s: %s became %s", k.Path, l.keys[i].literal(), k.literal())
			}
		}
	})
}
