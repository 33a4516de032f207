package daemonconfig_test

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"signalbox/appliance/daemonconfig"
)

func full() daemonconfig.Example {
	return daemonconfig.Example{Control: "wss://box.example/daemon/v2", ClientID: "0b5e7a4e-3c0f-4d8e-9a51-6f0c2d1e8b77", Name: "nas", DataDir: "state", TokenFile: "daemon.token",
		Roots: []daemonconfig.Root{{ID: "media", Kind: daemonconfig.Content, Path: "/srv/media"},
			{ID: "in", Kind: daemonconfig.Receive, Path: "/srv/in"}, {ID: "out", Kind: daemonconfig.Outbox, Path: "/srv/out"}},
		Shared: []daemonconfig.Share{{Marker: "other", Path: "/mnt/other"}}}
}

func TestRenderedFileLoads(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "daemon.toml")
	if err := os.WriteFile(file, daemonconfig.Render(full()), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := daemonconfig.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	want := daemonconfig.Default()
	e := full()
	want.Control, want.ClientID, want.Name, want.Roots, want.Shared = e.Control, e.ClientID, e.Name, e.Roots, e.Shared
	want.DataDir, want.TokenFile = filepath.Join(dir, "state"), filepath.Join(dir, "daemon.token")
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

// TestRenderNamesEveryKey holds the rendered file to the fields of the structure.
func TestRenderNamesEveryKey(t *testing.T) {
	text := string(daemonconfig.Render(full()))
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			switch {
			case f.Type.Kind() == reflect.Struct:
				if !strings.Contains(text, "["+f.Tag.Get("toml")+"]") {
					t.Errorf("no section %s", f.Tag.Get("toml"))
				}
				walk(f.Type)
			case f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct:
				walk(f.Type.Elem())
			case !strings.Contains(text, "\n"+f.Tag.Get("toml")+" = "):
				t.Errorf("no key %s", f.Tag.Get("toml"))
			}
		}
	}
	walk(reflect.TypeFor[daemonconfig.Config]())
}

func TestRules(t *testing.T) {
	change := func(old, new string) string {
		text := string(daemonconfig.Render(full()))
		if !strings.Contains(text, old) {
			t.Fatalf("the file has no %q", old)
		}
		return strings.Replace(text, old, new, 1)
	}
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"unknown key", change("allow_plain =", "alow_plain ="), []string{"alow_plain: is not a known key (d.toml:6)"}},
		{"plain to another machine", change("wss://", "ws://"), []string{"control: box.example is on another machine and the token would " +
			"cross the network in clear: use wss://, or set allow_plain = true where something else encrypts the way"}},
		{"plain on loopback", change("wss://box.example", "ws://127.0.0.1:7700"), nil},
		{"token in the URL", change("/daemon/v2", "/daemon/v2?token=x"),
			[]string{"control: must not hold a user, a query or a fragment: the token is sent after the connection stands"}},
		{"other scheme", change("wss://", "https://"), []string{"control: must be a ws:// or wss:// URL, such as wss://box.example/daemon/v2"}},
		{"no name", change(`name = "nas"`, `name = ""`), []string{"name: must be a text of 1 to 128 bytes without control characters"}},
		{"client id", change("0b5e7a4e-3c0f-4d8e-9a51-6f0c2d1e8b77", "0B5E7A4E-3c0f-4d8e-9a51-6f0c2d1e8b77"), []string{"client_id: must be a UUID in lower " +
			"case, such as 0b5e7a4e-3c0f-4d8e-9a51-6f0c2d1e8b77; make one with signalbox daemon init"}},
		{"role", change("source_and_target\"", "sauce\""), []string{`role: must be one of source, target, source_and_target, got "sauce"`}},
		{"no token file", change(`"daemon.token"`, `""`), []string{"token_file: must be set: the file that holds the token of Archive Control"}},
		{"pin", change(`certificate_sha256 = ""`, `certificate_sha256 = "ab"`), []string{"tls.certificate_sha256: must be 64 hex digits"}},
		{"backend", change(`"directory"`, `"floppy"`), []string{`backend.kind: must be one of directory, got "floppy"`}},
		{"library mode", change(`library_mode = "0600"`, `library_mode = "rw"`), []string{`backend.library_mode: must be octal permission bits up to 0777 ` +
			`that hold at least 0400, got "rw"`}},
		{"search depth", change("search_depth = 3", "search_depth = 99"), []string{"backend.search_depth: must be 0 to 16, got 99"}},
		{"rate", change(`read_rate = "0"`, `read_rate = "1"`), []string{"work.read_rate: must be 0 for no bound, or at least 64KiB a second"}},
		{"no room for the socket", change(`data_dir = "state"`, `data_dir = "`+strings.Repeat("long/", 20)+`"`), []string{"data_dir: is too long: the status " +
			"socket daemon.sock in it would have a path of 126 bytes, and at most 107 are possible"}},
		{"workers", change("verifies_per_root = 1", "verifies_per_root = 0"), []string{"work.verifies_per_root: must be 1 to 16, got 0"}},
		{"mode", change(`"0644"`, `"4755"`), []string{`publish.file_mode: must be octal permission bits up to 0777 that hold at least 0400, got "4755"`}},
		{"unreadable mode", change(`"0755"`, `"0055"`),
			[]string{`publish.directory_mode: must be octal permission bits up to 0777 that hold at least 0700, got "0055"`}},
		{"root id", change(`id = "media"`, `id = "Media!"`), []string{"root 1 (Media!): id must be 1 to 63 characters of a-z, 0-9, '.', '_' and '-', " +
			"beginning with a letter or digit"}},
		{"root id twice", change(`id = "in"`, `id = "media"`), []string{"root 2 (media): id is taken by another root"}},
		{"root in root", change(`"/srv/in"`, `"/srv/media/in"`), []string{"root 2 (in): its path and that of root 1 (media) lie in each other"}},
		{"neighbours are not in each other", change(`"/srv/in"`, `"/srv/media2"`), nil},
		{"kind", change(`kind = "receive"`, `kind = "inbox"`), []string{`root 2 (in): kind must be one of content, receive, outbox, got "inbox"`,
			"root: a target needs a root of kind receive"}},
		{"source without outbox", change(`kind = "outbox"`, `kind = "receive"`), []string{"root: a source needs a root of kind outbox"}},
		{"marker", change(`marker = "other"`, `marker = ""`), []string{"shared 1 (): marker must be 1 to 63 characters of a-z, 0-9, '.', '_' and '-', " +
			"beginning with a letter or digit"}},
		{"syntax", "control = ", []string{"d.toml:1:10: "}},
		{"type", change("verifies_per_root = 1", `verifies_per_root = "x"`), []string{"work.verifies_per_root: "}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := daemonconfig.Parse([]byte(tc.text), "d.toml", "/etc/signalbox")
			var got []string
			if err != nil {
				got = strings.Split(err.Error(), "\n")
			}
			if len(tc.want) == 1 && len(got) == 1 && strings.HasSuffix(tc.want[0], ": ") && strings.HasPrefix(got[0], strings.TrimSuffix(tc.want[0], " ")) {
				return // the decoder's own words follow
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(daemonconfig.Render(full()))
	f.Add([]byte("[[root]]\n[tls]\nca_file = 3"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := daemonconfig.Parse(data, "f", "/")
		if (c == nil) == (err == nil) {
			t.Fatalf("config %v with error %v", c, err)
		}
	})
}
