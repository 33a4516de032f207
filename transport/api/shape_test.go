package api

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"signalbox/appliance/agent"
	"signalbox/transport"
)

// keys are the members of an object, or of the first element of an array or list, in order.
func keys(t testing.TB, text string) string {
	t.Helper()
	var any json.RawMessage = []byte(text)
	var array []json.RawMessage
	if json.Unmarshal(any, &array) == nil {
		if len(array) == 0 {
			return ""
		}
		any = array[0]
	}
	var l struct{ Items []json.RawMessage }
	if json.Unmarshal(any, &l) == nil && len(l.Items) > 0 {
		any = l.Items[0]
	}
	dec := json.NewDecoder(strings.NewReader(string(any)))
	var out []string
	for depth, name := 0, true; ; {
		tok, err := dec.Token()
		if err != nil {
			return strings.Join(out, " ")
		}
		switch tok {
		case json.Delim('{'), json.Delim('['):
			depth++
			name = true
			continue
		case json.Delim('}'), json.Delim(']'):
			depth--
			name = true
			continue
		}
		if depth == 1 {
			if name {
				out = append(out, tok.(string))
			}
			name = !name
		}
	}
}

const (
	projectKeys = "id slug name description environment timezone retention_days is_active default_scheduler_owner " +
		"allowed_schedulers created_at updated_at"
	agentKeys = "id project_id name state protocol_version framework_adapter engine_adapters scheduler_adapters capabilities " +
		"last_seen_at last_connect_at created_at is_outdated host_name agent_version version_status"
	commandKeys = "id project_id agent_id issued_by action target_type target_id payload status result error issued_at " +
		"dispatched_at completed_at timeout_at"
	taskKeys = "id project_id engine task_id name queue state priority args kwargs result exception traceback retry_count eta " +
		"received_at started_at finished_at runtime_ms worker_name parent_task_id root_task_id tags created_at updated_at"
	auditKeys = "id project_id user_id action target_type target_id result outcome event_id metadata source_ip user_agent occurred_at"
	slotKeys  = "id agent_id project_id worker_id role framework pid started_at state last_seen_at last_connect_at created_at updated_at"
)

// TestShapes holds every answer to the fields that the protocol names.
func TestShapes(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.online()
	g.events("task.started", "t-1")
	id := g.issue("t-1")
	claimed, err := g.commands.ClaimPending(context.Background(), g.peer, agent.ClaimRequest{Limit: 10})
	g.must(err)
	if len(claimed.Claimed) != 1 {
		t.Fatalf("claimed %+v", claimed)
	}
	key := g.ok(http.StatusCreated, "POST", "/api-keys", `{"name":"k","role":"viewer","expires_in_days":1}`, nil)
	minted := g.ok(http.StatusCreated, "POST", "/projects/one/agents", `{"name":"worker-2"}`, nil)
	for path, want := range map[string]string{
		"/whoami":              "principal kind name role scopes project_id",
		"/status":              "version started_at epoch store sessions agents commands rooms degraded",
		"/projects":            projectKeys,
		"/projects/one":        projectKeys,
		"/projects/one/agents": agentKeys,
		"/projects/one/agents/" + g.agent.ID.String():           agentKeys + " sessions workers runtime_features telemetry_loss declared_engines notes",
		"/projects/one/agent-workers":                           slotKeys,
		"/projects/one/commands":                                commandKeys,
		"/projects/one/commands/" + id.String():                 commandKeys,
		"/projects/one/commands/" + id.String() + "/deliveries": "attempt transport session_id worker_id claimed_at sent_at acked_at finished_at outcome reason",
		"/projects/one/commands/" + id.String() + "/timeline":   "seq at status event detail",
		"/projects/one/commands/" + id.String() + "/explain":    "command summary sentences waiting_for candidates next deliveries timeline",
		"/projects/one/events":                                  "id project_id agent_id engine task_id kind occurred_at payload",
		"/projects/one/tasks":                                   taskKeys,
		"/projects/one/tasks/celery/t-1":                        taskKeys,
		"/projects/one/tasks/celery/t-1/tree":                   "root_task_id node_count truncated nodes",
		"/projects/one/queues":                                  "id project_id name engine broker_type broker_url_hint pending_count last_seen_at created_at",
		"/projects/one/audit":                                   auditKeys,
		"/audit":                                                auditKeys,
		"/api-keys":                                             "id name prefix role scopes project_id created_at expires_at last_used_at",
	} {
		a := g.ok(http.StatusOK, "GET", path, "", nil)
		if got := keys(t, a.body); got != want {
			t.Errorf("GET %s:\n got %s\nwant %s", path, got, want)
		}
	}
	if got := keys(t, key.body); got != "id name prefix role scopes project_id created_at expires_at last_used_at token" {
		t.Errorf("new API key: %s", got)
	}
	if got := keys(t, minted.body); got != "agent token hmac_secret" {
		t.Errorf("minted agent: %s", got)
	}
}

func TestAgentDetail(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.online()
	path := "/projects/one/agents/" + g.agent.ID.String()
	a := g.ok(http.StatusOK, "GET", path, "", nil)
	for _, want := range []string{`"host_name":"box-1"`, `"version_status":"current"`, `"is_outdated":false`, `"state":"online"`,
		`"sessions":[{"transport":"ws","session_id":"s-1","worker_id":null,"worker_role":null,"remote_addr":"192.0.2.7"`,
		`"last_seen_at":"2026-06-01T12:00:00.123456Z"`, `"workers":[{`, `"runtime_features":[]`} {
		if !strings.Contains(a.body, want) {
			t.Errorf("agent lacks %s: %s", want, a.body)
		}
	}
	for range 2 {
		g.ok(http.StatusNoContent, "DELETE", path, "", nil)
	}
	if a := g.ok(http.StatusOK, "GET", "/projects/one/agents", "", nil); a.body != "[]\n" {
		t.Errorf("a revoked agent is listed: %s", a.body)
	}
	if a := g.ok(http.StatusOK, "GET", "/projects/one/agents?include_revoked=true", "", nil); !strings.Contains(a.body, `"revoked_at":"2026`) {
		t.Errorf("revoked agents: %s", a.body)
	}
	if a := g.ok(http.StatusOK, "GET", path+"/health", "", nil); a.body != "[]\n" {
		t.Errorf("health: %s", a.body)
	}
}

func TestProjects(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	a := g.ok(http.StatusCreated, "POST", "/projects", `{"slug":"new","name":"New <b>","description":null,"later_field":1}`, nil)
	for _, want := range []string{`"environment":"production"`, `"retention_days":30`, `"is_active":true`, `"allowed_schedulers":null`} {
		if !strings.Contains(a.body, want) {
			t.Errorf("new project lacks %s: %s", want, a.body)
		}
	}
	a = g.ok(http.StatusOK, "PATCH", "/projects/new",
		`{"slug":"newer","description":"text","allowed_schedulers":["z"],"name":null,"retention_days":7}`, nil)
	for _, want := range []string{`"slug":"newer"`, `"description":"text"`, `"allowed_schedulers":["z"]`, `"retention_days":7`, `"name":"New <b>"`} {
		if !strings.Contains(a.body, want) {
			t.Errorf("changed project lacks %s: %s", want, a.body)
		}
	}
	a = g.ok(http.StatusOK, "PATCH", "/projects/newer", `{"description":null,"allowed_schedulers":null}`, nil)
	if !strings.Contains(a.body, `"description":null`) || !strings.Contains(a.body, `"allowed_schedulers":null`) {
		t.Errorf("null does not clear: %s", a.body)
	}

	bound := g.key(agent.NewAPIKey{Role: agent.Admin, ProjectID: &g.project.ID})
	if a := g.do(bound, "DELETE", "/projects/one", ""); a.status != http.StatusForbidden {
		t.Errorf("archive by a bound admin: %d", a.status)
	}
	for range 2 {
		g.ok(http.StatusNoContent, "DELETE", "/projects/one", "", nil)
	}
	for _, path := range []string{"/projects/one", "/projects/one/agents", "/projects/one/commands"} {
		if a := g.do(g.admin, "GET", path, ""); a.status != http.StatusNotFound {
			t.Errorf("GET %s of an archived project: %d", path, a.status)
		}
	}
	if a := g.do(g.admin, "PATCH", "/projects/one", `{"name":"x"}`); a.status != http.StatusNotFound {
		t.Errorf("change of an archived project: %d", a.status)
	}
	if a := g.do(bound, "PATCH", "/projects/one", `{"is_active":true}`); a.status != http.StatusForbidden {
		t.Errorf("activation by a bound admin: %d", a.status)
	}
	if a := g.do(bound, "GET", "/projects?include_archived=true", ""); a.status != http.StatusForbidden {
		t.Errorf("archived projects for a bound admin: %d", a.status)
	}
	if a := g.ok(http.StatusOK, "GET", "/projects?include_archived=true", "", nil); strings.Count(a.body, `"slug"`) != 3 {
		t.Errorf("all projects: %s", a.body)
	}
	if a := g.ok(http.StatusOK, "GET", "/projects", "", nil); strings.Count(a.body, `"slug"`) != 2 {
		t.Errorf("active projects: %s", a.body)
	}
	a = g.ok(http.StatusOK, "PATCH", "/projects/one", `{"is_active":true}`, nil)
	if !strings.Contains(a.body, `"is_active":true`) {
		t.Errorf("activated: %s", a.body)
	}
	if a := g.do(bound, "GET", "/projects", ""); strings.Count(a.body, `"slug"`) != 1 || !strings.Contains(a.body, `"slug":"one"`) {
		t.Errorf("projects of a bound key: %s", a.body)
	}
	g.ok(http.StatusNoContent, "DELETE", "/projects/one", "", nil)
	g.ok(http.StatusNoContent, "DELETE", "/projects/two", "", nil)
	if a := g.do(g.admin, "DELETE", "/projects/newer", ""); a.status != http.StatusConflict {
		t.Errorf("archive of the last project: %d", a.status)
	}
}

func TestIssue(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	body := fmt.Sprintf(`{"agent_id":%q,"engine":"celery","task_id":"t","idempotency_key":"k-1"}`, g.agent.ID)
	a := g.do(g.admin, "POST", "/projects/one/commands/cancel-task", body)
	var env struct {
		Error   string
		Details map[string]string
	}
	g.must(json.Unmarshal([]byte(a.body), &env))
	if a.status != http.StatusServiceUnavailable || env.Error != "agent_offline" {
		t.Fatalf("nobody there: %d %s", a.status, a.body)
	}
	kept := env.Details["command_id"]
	var c row
	g.ok(http.StatusOK, "GET", "/projects/one/commands/"+kept, "", &c)
	if c.Status != "pending" {
		t.Errorf("kept command %+v", c)
	}
	g.online()
	a = g.ok(http.StatusAccepted, "POST", "/projects/one/commands/cancel-task", body, &c)
	if c.ID != kept || !strings.Contains(a.body, `"payload":{"engine":"celery","task_id":"t"}`) {
		t.Errorf("repeat answers %s, first was %s", a.body, kept)
	}
	other := strings.Replace(body, `"task_id":"t"`, `"task_id":"u"`, 1)
	if a := g.do(g.admin, "POST", "/projects/one/commands/cancel-task", other); a.status != http.StatusConflict {
		t.Errorf("other request under the key: %d %s", a.status, a.body)
	}
	generic := fmt.Sprintf(`{"agent_id":%q,"action":"submit_task","payload":{"name":"x","args":[1.10]}}`, g.agent.ID)
	if a := g.ok(http.StatusAccepted, "POST", "/projects/one/commands", generic, &c); c.Action != "submit_task" || !strings.Contains(a.body, `[1.1`) {
		t.Errorf("generic: %s", a.body)
	}
	g.ok(http.StatusOK, "POST", "/projects/one/commands/"+c.ID+"/cancel", "", &c)
	if c.Status != "cancelled" {
		t.Errorf("cancelled: %+v", c)
	}
	if a := g.do(g.admin, "POST", "/projects/one/commands/"+c.ID+"/cancel", ""); a.status != http.StatusConflict {
		t.Errorf("cancel again: %d", a.status)
	}
	operator := g.key(agent.NewAPIKey{Role: agent.Operator})
	purge := fmt.Sprintf(`{"agent_id":%q,"action":"purge_queue","payload":{"queue":"q"}}`, g.agent.ID)
	if a := g.do(operator, "POST", "/projects/one/commands", purge); a.status != http.StatusForbidden {
		t.Errorf("purge by an operator: %d", a.status)
	}
	var found resolved
	g.ok(http.StatusOK, "GET", "/projects/one/resolve?kind=command&prefix="+kept[:8], "", &found)
	if len(found.IDs) != 1 || found.IDs[0].String() != kept {
		t.Errorf("resolved %v", found)
	}
	g.ok(http.StatusOK, "GET", "/projects/one/resolve?kind=agent&prefix=worker-1", "", &found)
	if len(found.IDs) != 1 || found.IDs[0] != g.agent.ID {
		t.Errorf("resolved by name %v", found)
	}
	if a := g.ok(http.StatusOK, "GET", "/projects/one/resolve?kind=apikey&prefix=00", "", nil); a.body != "{\"ids\":[]}\n" {
		t.Errorf("nothing resolved: %s", a.body)
	}
}

func TestBulkBucket(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(o *Options) { o.Bulk = transport.NewRateBucket("bulk", 2, time.Minute, o.Clock) })
	g.online()
	g.ok(http.StatusOK, "POST", "/projects/one/tasks/bulk-delete", `{"filter_state":"failure"}`, nil)
	bulk := fmt.Sprintf(`{"agent_id":%q,"action":"bulk_retry","payload":{"filter":{"engine":"celery","state":"failure","shoe":1}}}`, g.agent.ID)
	g.ok(http.StatusAccepted, "POST", "/projects/one/commands", bulk, nil)
	for _, path := range []string{"/projects/one/commands", "/projects/one/commands/bulk-retry", "/projects/one/commands/purge-queue"} {
		a := g.do(g.admin, "POST", path, bulk)
		if a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") != "60" {
			t.Errorf("%s: %d %v", path, a.status, a.header)
		}
	}
	g.issue("t-1") // not a bulk action
	g.clock.Advance(time.Minute)
	g.ok(http.StatusOK, "POST", "/projects/one/tasks/bulk-delete", `{"filter_state":"failure"}`, nil)
}

func TestBulkDelete(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.events("task.succeeded", "t-1", "t-2", "t-3")
	g.events("task.failed", "t-4")
	var page list[row]
	g.ok(http.StatusOK, "GET", "/projects/one/tasks?state=success", "", &page)
	var out deletedPublic
	g.ok(http.StatusOK, "POST", "/projects/one/tasks/bulk-delete", fmt.Sprintf(`{"task_ids":[%q]}`, page.Items[0].ID), &out)
	if out.DeletedCount != 1 {
		t.Errorf("by id: %+v", out)
	}
	g.ok(http.StatusOK, "POST", "/projects/one/tasks/bulk-delete", `{"filter_state":"success","filter_queue":"mail"}`, &out)
	if out.DeletedCount != 2 {
		t.Errorf("by filter: %+v", out)
	}
	if g.ok(http.StatusOK, "GET", "/projects/one/tasks", "", &page); len(page.Items) != 1 {
		t.Errorf("left: %+v", page)
	}
}

func TestRawJSON(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.events("task.received", "a/b c")
	a := g.ok(http.StatusOK, "GET", "/projects/one/tasks/celery/a%2Fb%20c", "", nil)
	if !strings.Contains(a.body, `"args":[1.50,`) || !strings.Contains(a.body, `"task_id":"a/b c"`) {
		t.Errorf("arguments are not as they arrived: %s", a.body)
	}
	g.ok(http.StatusOK, "GET", "/projects/one/tasks/celery/a%2Fb%20c/tree", "", nil)
}

func TestExport(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	ids := []string{"=cmd()"}
	for i := range exportPage + 1 {
		ids = append(ids, fmt.Sprint("t-", i))
	}
	g.events("task.received", ids...)
	a := g.ok(http.StatusOK, "GET", "/projects/one/tasks?format=csv&fields=task_id,args,exception,retry_count", "", nil)
	rows, err := csv.NewReader(strings.NewReader(a.body)).ReadAll()
	g.must(err)
	if len(rows) != len(ids)+1 || strings.Join(rows[0], " ") != "task_id args exception retry_count" {
		t.Fatalf("%d rows, first %v", len(rows), rows[0])
	}
	if last := rows[len(rows)-1]; !slices.Equal(last, []string{"'=cmd()", `[1.50,"<b>"]`, "", "0"}) {
		t.Errorf("oldest row %q", last)
	}
	if a.header.Get("Content-Type") != "text/csv; charset=utf-8" || !strings.Contains(a.header.Get("Content-Disposition"), "tasks.csv") {
		t.Errorf("header %v", a.header)
	}
	var tasks []map[string]json.RawMessage
	a = g.ok(http.StatusOK, "GET", "/projects/one/tasks?format=json&state=received", "", &tasks)
	if len(tasks) != len(ids) || keys(t, a.body) != taskKeys {
		t.Errorf("%d tasks of %s", len(tasks), keys(t, a.body))
	}
	checkSheet(t, g.ok(http.StatusOK, "GET", "/projects/one/tasks?format=xlsx&fields=task_id,args,exception,retry_count", "", nil), len(ids)+1)
	var none []json.RawMessage
	if g.ok(http.StatusOK, "GET", "/projects/one/tasks?format=json&state=failure", "", &none); len(none) != 0 || none == nil {
		t.Errorf("empty export %v", none)
	}
	var audits []struct {
		Action string `json:"action"`
	}
	g.ok(http.StatusOK, "GET", "/projects/one/audit?format=json&fields=action", "", &audits)
	if len(audits) != 2 || audits[1].Action != "project.created" {
		t.Errorf("audit export %+v", audits)
	}
}

func TestAuditRoutes(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	a := g.ok(http.StatusOK, "POST", "/audit/verify", "", nil)
	if !strings.Contains(a.body, `"ok":true`) || !strings.Contains(a.body, `"broken":null`) || !strings.Contains(a.body, `"first_seq":1`) {
		t.Errorf("verdict %s", a.body)
	}
	if a := g.ok(http.StatusOK, "GET", "/audit?action_prefix=api_key", "", nil); !strings.Contains(a.body, `"project_id":null`) {
		t.Errorf("rows without a project: %s", a.body)
	}
	if a := g.ok(http.StatusOK, "GET", "/projects/one/audit?action_prefix=api_key", "", nil); a.body != "{\"items\":[],\"next_cursor\":null}\n" {
		t.Errorf("rows of no project on a project's route: %s", a.body)
	}
}

// TestExportColumns keeps the export's columns to the fields of the shapes.
func TestExportColumns(t *testing.T) {
	t.Parallel()
	if got := strings.Join(taskColumns.names, " "); got != taskKeys {
		t.Errorf("tasks: %s", got)
	}
	if got := strings.Join(auditColumns.names, " "); got != auditKeys {
		t.Errorf("audit: %s", got)
	}
	for _, row := range []any{taskPublic{}, auditPublic{}} {
		if typ := reflect.TypeOf(row); len(columnsOf(row).index) != typ.NumField() {
			t.Errorf("%s: %d columns of %d fields", typ, len(columnsOf(row).index), typ.NumField())
		}
	}
}

func TestAllowlist(t *testing.T) {
	t.Parallel()
	networks := transport.NewNetworks(nil)
	g := newRig(t, func(o *Options) {
		o.Allow = transport.NewAllowlist("api", networks, nil)
		o.Refusals = transport.NewRefusalWindow(o.Clock, transport.RefusalRowWindow)
	})
	g.ok(http.StatusOK, "GET", "/whoami", "", nil) // httptest's address is 192.0.2.1; an empty list admits all
	networks.Set(mustPrefixes(t, "10.0.0.0/8"))
	for range 3 {
		a := g.do(g.admin, "GET", "/whoami", "")
		if a.status != http.StatusForbidden || !strings.Contains(a.body, `"ip_denied"`) || !strings.Contains(a.body, `"surface":"api"`) {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	networks.Set(mustPrefixes(t, "192.0.2.0/24"))
	var page list[row]
	a := g.ok(http.StatusOK, "GET", "/audit?action_prefix=auth.ip_denied", "", &page)
	if len(page.Items) != 1 || !strings.Contains(a.body, `"source_ip":"192.0.2.1"`) || !strings.Contains(a.body, `"path":"/api/v1/whoami"`) {
		t.Errorf("rows of the refusals: %s", a.body)
	}
}

// TestLocalAdmin asks over the admin socket, where no key is needed and no allowlist or bucket applies.
func TestLocalAdmin(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(o *Options) {
		o.Allow = transport.NewAllowlist("api", transport.NewNetworks(mustPrefixes(t, "10.0.0.0/8")), nil)
		o.Bulk = transport.NewRateBucket("bulk", 1, time.Minute, o.Clock)
	})
	client := g.local()
	resp, err := client.Get("http://local" + Prefix + "/whoami")
	g.must(err)
	var who whoPublic
	g.must(json.NewDecoder(resp.Body).Decode(&who))
	g.must(resp.Body.Close())
	if who.Principal != "local" || who.Kind != "local" || who.Role != agent.Admin || who.Scopes[0] != "admin:*" {
		t.Errorf("who: %+v", who)
	}
	for range 2 {
		resp, err := client.Post("http://local"+Prefix+"/projects/one/tasks/bulk-delete", "application/json", strings.NewReader(`{"filter_state":"retry"}`))
		g.must(err)
		g.must(resp.Body.Close())
		if resp.StatusCode != http.StatusOK {
			t.Errorf("bulk over the socket: %d", resp.StatusCode)
		}
	}
}
