package api

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"signalbox/appliance/agent"
	"signalbox/appliance/rawjson"
)

// failTask lets the agent report a failure.
func (g *rig) failTask(id, name, exception string) {
	g.t.Helper()
	doc, err := rawjson.Parse([]byte(fmt.Sprintf(`{"events":[{"kind":"task.failed","engine":"celery","task_id":%q,"occurred_at":%q,
		"data":{"task_name":%q,"exception":%q,"exception_message":"no %s","traceback":"Traceback (most recent call last):\n  File \"/a/b.py\", line 1, in f\n%s: x\n"}}]}`,
		id, g.clock.Now().Format("2006-01-02T15:04:05Z"), name, exception, id, exception)))
	g.must(err)
	defer doc.Release()
	out := g.router.Dispatch(context.Background(), g.peer, []agent.Frame{{Type: agent.FrameEventBatch, ID: id, Payload: doc.Root()}})
	if out[0].Accepted != 1 {
		g.t.Fatalf("outcome %+v", out[0])
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.failTask("t-1", "billing.charge", "Declined")
	g.failTask("t-2", "<unknown:t-2>", "Declined") // Celery's agent was not told the name
	g.failTask("t-3", "billing.charge", "Declined")
	const base = "/projects/one/failures"
	var l struct {
		Items []failurePublic
	}
	g.ok(200, "GET", base+"?task_name=billing.charge", "", &l)
	if len(l.Items) != 1 || l.Items[0].Failures != 2 || l.Items[0].SampleException != "Declined: no t-3" ||
		l.Items[0].ExceptionClass != "Declined" || strings.Join(l.Items[0].Frames, ",") != "a/b.py in f" {
		t.Fatalf("list %+v", l.Items)
	}
	id := l.Items[0].ID
	got := g.do(g.admin, "GET", base+"/"+id+"?latest=1", "")
	const members = "id project_id fingerprint catch_all engine task_name exception_class frames state state_by state_at reopened " +
		"failures first_seen_at last_seen_at sample_task_id sample_exception"
	if k := keys(t, got.body); k != members+" sample_traceback latest" {
		t.Errorf("show has %s", k)
	}
	if k := keys(t, g.do(g.admin, "GET", base, "").body); k != members {
		t.Errorf("list has %s", k)
	}
	if strings.Count(got.body, `"event_id"`) != 1 || !strings.Contains(got.body, `"task_id":"t-3"`) || !strings.Contains(got.body, `"task_state":"failure"`) {
		t.Errorf("show %s", got.body)
	}
	for _, bad := range []string{"?state=closed", "?engine=", "?since=yesterday", "/" + id + "?latest=501", "/" + id + "?latest=x"} {
		if got := g.do(g.admin, "GET", base+bad, ""); got.status != 422 {
			t.Errorf("%s: %d %s", bad, got.status, got.body)
		}
	}
	viewer := g.key(agent.NewAPIKey{Role: agent.Viewer})
	operator := g.key(agent.NewAPIKey{Role: agent.Operator})
	for _, c := range []struct{ key, path, want string }{
		{viewer, "/resolve", `"forbidden"`},
		{operator, "/resolve", `"state":"resolved","state_by":"key operator"`},
		{operator, "/ignore", `"state":"ignored"`},
		{operator, "/reopen", `"state":"open"`},
	} {
		if got := g.do(c.key, "POST", base+"/"+id+c.path, ""); !strings.Contains(got.body, c.want) {
			t.Errorf("%s: %d %s", c.path, got.status, got.body)
		}
	}
	if got := g.do(operator, "POST", strings.Replace(base, "one", "two", 1)+"/"+id+"/resolve", ""); got.status != 404 {
		t.Errorf("from another project: %d", got.status)
	}
	if got := g.do(viewer, "GET", "/projects/one/resolve?kind=failure&prefix="+id[:8], ""); !strings.Contains(got.body, id) {
		t.Errorf("resolve: %s", got.body)
	}
}
