package appliance

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox/appliance/config"
	"signalbox/store/storetest"
)

// TestMetricsAreDocumented holds the table of metrics in docs/operations.md to what is registered, both ways.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "sb") // short: the path of a socket is limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := config.Default()
	c.DataDir, c.Server.Listen = dir+"/data", "127.0.0.1:0"
	a, err := New(context.Background(), Options{Config: c, Schema: storetest.Schema(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	registered := map[string]bool{}
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		a.registry.Describe(descs)
	}()
	named := regexp.MustCompile(`fqName: "([^"]+)"`)
	for d := range descs {
		name := named.FindStringSubmatch(d.String())[1]
		if strings.HasPrefix(name, "signalbox_") || strings.HasPrefix(name, "z4j_") {
			registered[name] = true
		}
	}

	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Metrics\n")
	section, _, _ = strings.Cut(section, "\n## ")
	documented := map[string]bool{}
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cell, _, _ := strings.Cut(line[2:], " | ")
		for _, m := range regexp.MustCompile("`([a-z0-9_]+)").FindAllStringSubmatch(cell, -1) {
			documented[m[1]] = true
		}
	}
	if len(documented) < 40 {
		t.Errorf("%d names are in the table", len(documented))
	}
	for name := range documented {
		if !registered[name] {
			t.Errorf("docs/operations.md names %s, which does not exist", name)
		}
	}
	for name := range registered {
		if !documented[name] {
			t.Errorf("docs/operations.md does not name %s", name)
		}
	}
}
