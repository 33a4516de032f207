package config

import (
	"bytes"
	"flag"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the generated documentation")

const (
	examplePath   = "../../config.example.toml"
	referencePath = "../../docs/configuration.md"
	beginMark     = "<!-- keys:"
	endMark       = "<!-- end of keys -->"
)

func TestExampleFileIsUpToDate(t *testing.T) {
	want := RenderExample()
	if *update {
		if err := os.WriteFile(examplePath, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(examplePath)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs from the table of keys; run go test ./appliance/config -update", examplePath)
	}
}

func TestExampleFileHoldsTheDefaults(t *testing.T) {
	got, o, warnings, err := Load(LoadOptions{File: examplePath})
	if err != nil {
		t.Fatal(err)
	}
	if len(warnings) > 0 {
		t.Errorf("warnings: %v", warnings)
	}
	if ch := Diff(Default(), got); len(ch.Reloadable)+len(ch.Restart) > 0 {
		t.Errorf("the example differs from the defaults: %v", ch)
	}
	for _, k := range Keys() {
		if org := o.Of(k.Path); org.Kind != FromFile || org.Line == 0 {
			t.Errorf("%s: the example does not set it (%s)", k.Path, org)
		}
	}
}

func TestReferenceIsUpToDate(t *testing.T) {
	data, err := os.ReadFile(referencePath)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	begin, end := strings.Index(text, beginMark), strings.Index(text, endMark)
	if begin < 0 || end < begin {
		t.Fatalf("%s lacks the marks %q and %q", referencePath, beginMark, endMark)
	}
	begin += strings.IndexByte(text[begin:], '\n') + 1
	want := "\n" + string(RenderReference()) + "\n"
	if *update {
		if err := os.WriteFile(referencePath, []byte(text[:begin]+want+text[end:]), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if text[begin:end] != want {
		t.Errorf("%s differs from the table of keys; run go test ./appliance/config -update", referencePath)
	}
}

// TestEveryFieldHasItsKey walks the struct, so that a new field breaks the test until the table knows it, and so that
// no key is tied to the field of another.
func TestEveryFieldHasItsKey(t *testing.T) {
	c := Default()
	fields := map[string]uintptr{}
	collectFields(reflect.ValueOf(c).Elem(), "", fields)
	seen := map[string]string{}
	for _, b := range bind(c) {
		addr, ok := fields[b.Path]
		if !ok {
			t.Errorf("key %s has no field", b.Path)
			continue
		}
		delete(fields, b.Path)
		v := reflect.ValueOf(b.value)
		if got := v.FieldByName("p").Pointer(); got != addr {
			t.Errorf("key %s is tied to another field", b.Path)
		}
		for _, name := range append(append([]string{}, b.Env...), b.Z4J...) {
			if other, dup := seen[name]; dup {
				t.Errorf("%s sets both %s and %s", name, other, b.Path)
			}
			seen[name] = b.Path
		}
		if other, dup := seen["--"+b.Flag]; dup {
			t.Errorf("flag %s sets both %s and %s", b.Flag, other, b.Path)
		}
		seen["--"+b.Flag] = b.Path
		if b.Doc == "" || b.Why == "" || b.Rule == "" || b.Kind == "" {
			t.Errorf("key %s is not documented", b.Path)
		}
	}
	for path := range fields {
		t.Errorf("field %s has no key", path)
	}
}

func collectFields(v reflect.Value, prefix string, out map[string]uintptr) {
	for i := range v.NumField() {
		path := prefix + v.Type().Field(i).Tag.Get("toml")
		f := v.Field(i)
		if f.Kind() == reflect.Struct && f.Type() != reflect.TypeFor[Secret]() {
			collectFields(f, path+".", out)
			continue
		}
		out[path] = f.Addr().Pointer()
	}
}

// TestReloadTakesExactlyTheReloadableKeys changes every key and looks which of them arrive.
func TestReloadTakesExactlyTheReloadableKeys(t *testing.T) {
	next := Default()
	changeAll(t, next)
	all := Diff(Default(), next)
	if n := len(all.Reloadable) + len(all.Restart); n != len(Keys()) {
		t.Fatalf("changed %d of %d keys", n, len(Keys()))
	}
	running := Default()
	merged := Reload(running, next)
	if got := Diff(running, merged); !reflect.DeepEqual(got, Changes{Reloadable: all.Reloadable}) {
		t.Errorf("reload took %v, want %v", got, all.Reloadable)
	}
	if got := Diff(Default(), running); len(got.Reloadable)+len(got.Restart) > 0 {
		t.Errorf("reload changed its argument: %v", got)
	}
	want := []string{"server.tls_cert_file", "server.tls_key_file", "server.agent_ip_allowlist", "server.api_ip_allowlist",
		"server.dashboard_ip_allowlist", "metrics.auth_token", "log.level"}
	if !reflect.DeepEqual(all.Reloadable, want) {
		t.Errorf("reloadable keys %v, want %v", all.Reloadable, want)
	}
}

// changeAll gives every key a value that differs from its default and obeys its rule.
func changeAll(t *testing.T, c *Config) {
	t.Helper()
	for _, b := range bind(c) {
		if err := b.set(otherValue(b)); err != nil {
			t.Fatalf("%s: %s", b.Path, err)
		}
		if err := b.check(); err != nil {
			t.Fatalf("%s: %s", b.Path, err)
		}
	}
}

func otherValue(b binding) string {
	switch b.Kind {
	case "integer":
		n := b.value.(intValue).min + 1
		if strconv.Itoa(n) == b.Default {
			n++
		}
		return strconv.Itoa(n)
	case "boolean":
		if b.Default == "true" {
			return "false"
		}
		return "true"
	case "duration":
		return strconv.Itoa(int(b.value.(durationValue).min/time.Second)+2) + "s"
	case "size":
		if v := b.value.(sizeValue); v.max > 0 && v.max < 9*MiB {
			return (v.min + 1).String()
		}
		return "9MiB"
	case "word":
		return map[string]string{"log.level": "debug", "log.format": "json"}[b.Path]
	case "secret":
		return strings.Repeat("s", 40)
	case "list of secrets":
		return strings.Repeat("p", 40)
	case "list of CIDR ranges":
		return "10.0.0.0/8"
	}
	if strings.HasSuffix(b.Path, ".listen") {
		return "127.0.0.1:9999"
	}
	return "other"
}
