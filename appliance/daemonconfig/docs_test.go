package daemonconfig_test

import (
	"bytes"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"signalbox/appliance/daemonconfig"
)

const referencePath = "../../docs/archive.md"

// TestDocsNameEveryKey holds the table of keys in docs/archive.md to the fields of the structure, both ways and in their
// order.
func TestDocsNameEveryKey(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(referencePath)
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "<!-- keys of the daemon;")
	table, _, closed := strings.Cut(table, "<!-- end of keys of the daemon -->")
	if !found || !closed {
		t.Fatalf("%s has no table of keys between its marks", referencePath)
	}
	var got []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9_.]+)` \\|").FindAllStringSubmatch(table, -1) {
		got = append(got, m[1])
	}
	want := keys(reflect.TypeFor[daemonconfig.Config](), "")
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s names the keys\n%s\n\nthe structure has\n%s", referencePath, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestDocsTellDefaults holds the defaults of the table to those of Default.
func TestDocsTellDefaults(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(referencePath)
	if err != nil {
		t.Fatal(err)
	}
	d := daemonconfig.Default()
	for key, want := range map[string]string{
		"role": d.Role, "log.level": string(d.Log.Level), "log.format": string(d.Log.Format), "backend.kind": d.Backend.Kind,
		"backend.library_mode": d.Backend.LibraryMode, "backend.quiet_time": d.Backend.QuietTime.String(),
		"publish.file_mode": d.Publish.FileMode, "publish.directory_mode": d.Publish.DirectoryMode,
	} {
		if row := "\n| `" + key + "` | `" + want + "` |"; !strings.Contains(string(text), row) {
			t.Errorf("%s does not have the row %q", referencePath, row)
		}
	}
}

// keys lists the keys of a section in the order of its fields; a list of tables has the keys of one of them.
func keys(section reflect.Type, prefix string) []string {
	var out []string
	for i := range section.NumField() {
		f := section.Field(i)
		typ, name := f.Type, prefix+f.Tag.Get("toml")
		if typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() == reflect.Struct {
			out = append(out, keys(typ, name+".")...)
		} else {
			out = append(out, name)
		}
	}
	return out
}

// TestExampleLoads holds the example of deploy/ to the rules and to what Render writes: every key, each with its default.
func TestExampleLoads(t *testing.T) {
	t.Parallel()
	got, err := daemonconfig.Load("../../deploy/daemon.example.toml")
	if err != nil {
		t.Fatal(err)
	}
	e := daemonconfig.Example{Control: got.Control, ClientID: got.ClientID, Name: got.Name, Role: got.Role, DataDir: got.DataDir,
		TokenFile: got.TokenFile, Roots: got.Roots, Shared: got.Shared}
	text, err := os.ReadFile("../../deploy/daemon.example.toml")
	if err != nil {
		t.Fatal(err)
	}
	if _, want, _ := bytes.Cut(daemonconfig.Render(e), []byte("\n")); !bytes.HasSuffix(text, want) {
		t.Error("deploy/daemon.example.toml is not what daemon init writes")
	}
}
