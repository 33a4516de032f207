package commands

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"signalbox/appliance/appliancetest"
	"signalbox/transport/agentclient"
	"signalbox/transport/wire"
)

// TestFailureScripts runs testdata/failures against a real server with a connected agent: `fail TASK_ID NAME EXCEPTION`
// reports a failure and returns when it is stored, `group VAR` sets a variable to the beginning of the id of the one group that
// the last command listed.
func TestFailureScripts(t *testing.T) {
	t.Parallel()
	type agentKey struct{}
	commands := scriptCommands()
	commands["fail"] = func(ts *testscript.TestScript, _ bool, args []string) {
		a := ts.Value(agentKey{}).(*agentclient.WS)
		data, err := json.Marshal(map[string]string{"task_name": args[1], "exception": args[2],
			"traceback": "Traceback (most recent call last):\n  File \"/srv/app/billing/tasks.py\", line 12, in charge\n    pay()\n" + args[2] + "\n"})
		ts.Check(err)
		ts.Check(a.Send(wire.TypeEventBatch, "batch-"+args[0], agentclient.AppendEventBatch(nil, []agentclient.Event{{
			Kind: "task.failed", Engine: "celery", TaskID: args[0], OccurredAt: time.Now(), Data: string(data)}})))
		for {
			f, err := a.Receive()
			ts.Check(err)
			acked := f.Type == wire.TypeEventBatchAck
			f.Release()
			if acked {
				return
			}
		}
	}
	commands["group"] = func(ts *testscript.TestScript, _ bool, args []string) {
		var doc struct {
			Items []failureRow `json:"items"`
		}
		ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &doc))
		if len(doc.Items) != 1 {
			ts.Fatalf("%d groups, want one", len(doc.Items))
		}
		ts.Setenv(args[0], doc.Items[0].ID[:8])
	}
	testscript.Run(t, testscript.Params{
		Dir:  "testdata/failures",
		Cmds: commands,
		Setup: func(env *testscript.Env) error {
			tb := env.T().(testing.TB)
			s := appliancetest.Start(tb)
			ws, err := agentclient.DialWS(tb.Context(), s.With(s.Mint("worker-1"), nil))
			if err != nil {
				return err
			}
			env.Defer(func() { _ = ws.Close() })
			env.Values[agentKey{}] = ws
			env.Setenv("SIGNALBOX_DATA_DIR", s.Config.DataDir)
			return nil
		},
	})
}
