package commands

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"signalbox/appliance/appliancetest"
)

// TestArchiveScripts runs testdata/archive against a real server with two real daemons, nas and attic, which are started by
// `machine start NAME`. attic sees the outbox of nas. `put NAME PATH TEXT` makes a file of content, and `eventually ARG…`
// repeats a command until it succeeds. $NAS and $ATTIC are the directories of the machines.
func TestArchiveScripts(t *testing.T) {
	t.Parallel()
	type world struct {
		*appliancetest.Server
		machines map[string]*appliancetest.Machine
	}
	type worldKey struct{}
	commands := scriptCommands()
	of := func(ts *testscript.TestScript) *world { return ts.Value(worldKey{}).(*world) }
	commands["machine"] = func(ts *testscript.TestScript, _ bool, args []string) {
		m := of(ts).machines[args[1]]
		switch args[0] {
		case "start":
			m.Start()
			of(ts).Eventually("daemon "+m.Name, func() bool {
				status, body := of(ts).Admin("GET", "/daemons/"+m.ID.String(), nil)
				return status == http.StatusOK && bytes.Contains(body, []byte(`"state":"online"`))
			})
		case "stop":
			m.Stop()
		default:
			ts.Fatalf("unknown verb %s", args[0])
		}
	}
	commands["put"] = func(ts *testscript.TestScript, _ bool, args []string) {
		of(ts).machines[args[0]].Put(appliancetest.ContentRoot, args[1], []byte(args[2]))
	}
	commands["eventually"] = func(ts *testscript.TestScript, _ bool, args []string) {
		of(ts).Eventually("signalbox "+args[0], func() bool { return scriptRun(ts, args) == ExitOK })
	}
	testscript.Run(t, testscript.Params{
		Dir:  "testdata/archive",
		Cmds: commands,
		Setup: func(env *testscript.Env) error {
			w := &world{Server: appliancetest.Start(env.T().(testing.TB))}
			nas := w.NewMachine("nas")
			w.machines = map[string]*appliancetest.Machine{"nas": nas, "attic": w.NewMachine("attic", appliancetest.SeesOutboxOf(nas))}
			env.Values[worldKey{}] = w
			env.Setenv("SIGNALBOX_DATA_DIR", w.Config.DataDir)
			for name, m := range w.machines {
				env.Setenv(strings.ToUpper(name), m.Dir)
			}
			return nil
		},
	})
}
