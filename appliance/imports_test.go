package appliance_test

import (
	"os/exec"
	"strings"
	"testing"
)

// forbidden lists, per package prefix, what it must not import: the arrows main → commands → appliance →
// {transport/*, store} → domains → pure packages, and nothing of SQL, sockets, logs or the CLI inside a domain.
var forbidden = []struct {
	pkg     string
	subtree bool // pkg and everything below it
	imports []string
}{
	{"signalbox/appliance/fault", true, []string{"signalbox/", "github.com/"}},
	{"signalbox/appliance/rawjson", true, []string{"signalbox/", "github.com/"}},
	{"signalbox/appliance/clock", true, []string{"signalbox/", "github.com/"}},
	{"signalbox/appliance/wake", true, []string{"signalbox/", "github.com/"}},
	{"signalbox/appliance/secret", true, []string{"signalbox/store", "signalbox/transport", "signalbox/commands"}},
	{"signalbox/appliance/agent", true, domainMustNot},
	{"signalbox/appliance/agent", true, []string{"signalbox/appliance/room"}},
	{"signalbox/appliance/agent", false, []string{"signalbox/appliance/agent/fire", "signalbox/appliance/agent/schedule"}},
	{"signalbox/appliance/agent/schedule", true, []string{"signalbox/appliance/agent/fire"}},
	{"signalbox/appliance/room", true, append([]string{"signalbox/appliance/agent"}, domainMustNot...)},
	{"signalbox/appliance/room/connection", true, []string{"signalbox/appliance/room/timeline", "signalbox/appliance/room/directory"}},
	{"signalbox/appliance/room/feed", true, []string{"signalbox/appliance/room/timeline", "signalbox/appliance/room/connection"}},
	{"signalbox/appliance/archive", true, append([]string{"signalbox/appliance/agent", "signalbox/appliance/room", "signalbox/appliance/config"},
		domainMustNot...)},
	{"signalbox/appliance/archive", false, []string{"signalbox/appliance/archive/registry", "signalbox/appliance/archive/daemon",
		"signalbox/appliance/archive/layout"}},
	{"signalbox/appliance/archive/archivepb", true, []string{"signalbox/"}},
	{"signalbox/appliance/archive/pathrule", true, []string{"signalbox/appliance/archive/frame", "signalbox/appliance/archive/beneath"}},
	{"signalbox/appliance/archive/frame", true, pureMustNot},
	{"signalbox/appliance/archive/valid", true, pureMustNot},
	{"signalbox/appliance/archive/decide", true, pureMustNot},
	{"signalbox/appliance/archive/beneath", true, pureMustNot},
	{"signalbox/appliance/archive/torrent", true, pureMustNot},
	{"signalbox/appliance/archive/daemon", true, controlParts},
	{"signalbox/appliance/archive/backend", true, append([]string{"signalbox/appliance/archive/daemon"}, controlParts...)},
	{"signalbox/appliance/archive/registry", true, controlParts[1:]},
	{"signalbox/appliance/archive/command", true, controlParts[2:]},
	{"signalbox/appliance/archive/job", true, []string{"signalbox/appliance/archive/preflight", "signalbox/appliance/archive/inventory",
		"signalbox/appliance/archive/route", "signalbox/appliance/archive/daemon"}},
	{"signalbox/appliance/notify", true, append([]string{"signalbox/appliance/room", "signalbox/appliance/archive", "signalbox/appliance/config"},
		domainMustNot...)},
	{"signalbox/appliance/agent", true, []string{"signalbox/appliance/notify"}},
	{"signalbox/transport/notifysend", true, []string{"signalbox/transport/api", "github.com/rs/zerolog"}},
	{"signalbox/appliance/audit", true, domainMustNot},
	{"signalbox/appliance/config", true, append([]string{"signalbox/appliance/agent"}, domainMustNot...)},
	{"signalbox/store", true, []string{"signalbox/transport", "signalbox/commands", "github.com/gorilla", "github.com/spf13"}},
	{"signalbox/transport", true, []string{"signalbox/store", "signalbox/commands", "database/sql", "modernc.org", "github.com/spf13"}},
	{"signalbox/transport/wire", true, []string{"signalbox/transport/session", "signalbox/appliance/agent", "net/http", "github.com/gorilla", "github.com/rs"}},
	{"signalbox/transport/session", true, []string{"signalbox/appliance/agent", "signalbox/appliance/room", "signalbox/transport/agentconn",
		"signalbox/transport/roomconn"}},
	{"signalbox/appliance", false, []string{"signalbox/commands", "github.com/spf13"}},
	{"signalbox", false, []string{"signalbox/appliance", "signalbox/store", "signalbox/transport", "github.com/"}},
}

var domainMustNot = []string{"signalbox/store", "signalbox/transport", "signalbox/commands", "database/sql", "modernc.org",
	"net/http", "github.com/gorilla", "github.com/rs/zerolog", "github.com/spf13"}

// controlParts are the parts of Archive Control, lowest first. A daemon knows none of them.
var controlParts = []string{"signalbox/appliance/archive/registry", "signalbox/appliance/archive/command", "signalbox/appliance/archive/inventory",
	"signalbox/appliance/archive/route", "signalbox/appliance/archive/job", "signalbox/appliance/archive/preflight"}

// pureMustNot is what the ground of the archive plane does not know.
var pureMustNot = append([]string{"signalbox/appliance/archive/daemon", "signalbox/appliance/archive/layout"}, controlParts...)

func TestImportsPointOneWay(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "signalbox/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) < 10 {
		t.Fatalf("only %d packages listed", len(lines))
	}
	for _, line := range lines {
		pkg, imports, _ := strings.Cut(line, " ")
		for _, rule := range forbidden {
			if pkg != rule.pkg && (!rule.subtree || !strings.HasPrefix(pkg, rule.pkg+"/")) {
				continue
			}
			for _, imported := range strings.Fields(imports) {
				for _, bad := range rule.imports {
					if imported == strings.TrimSuffix(bad, "/") || strings.HasPrefix(imported, strings.TrimSuffix(bad, "/")+"/") {
						t.Errorf("%s imports %s", pkg, imported)
					}
				}
			}
		}
	}
}
