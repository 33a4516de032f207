package api

import (
	"net/http"
	"slices"

	"signalbox/appliance/agent"
)

// where is the extent of a right that a route needs.
type where int

const (
	inProject  where = iota // in the project of the path
	everywhere              // in all projects
	own                     // in what the credential is bound to: one project or all
	anywhere                // none: any credential will do
)

// route is one line of the table that says everything about the surface.
type route struct {
	method, path string // path below Prefix
	where        where
	resource     string // of the scope (agent protocol H.1); "" leaves the check to the handler
	write        bool
	role         agent.Role // least role
	archived     bool       // finds archived projects too
	bulk         bool       // counts in the bulk bucket
	local        bool       // for the machine's own administrator alone, on the admin socket
	doc          doc
	handle       handler
}

// handler serves one admitted request; an error that it returns is the answer.
type handler func(*API, http.ResponseWriter, *call) error

// doc is what docs/api.md says of a route.
type doc struct {
	group  string
	query  string
	body   string
	answer string
}

// The groups of docs/api.md, in its order.
const (
	groupSystem   = "Appliance"
	groupKeys     = "API keys"
	groupProjects = "Projects"
	groupAgents   = "Agents"
	groupCommands = "Commands"
	groupRecords  = "Events, tasks, workers, queues"
	groupAudit    = "Audit"
)

const pageQuery = "`cursor`, `limit` 1..5000"

// routes returns the table.
func routes() []route {
	return slices.Concat(systemRoutes(), keyRoutes(), projectRoutes(), agentRoutes(), commandRoutes(), issueRoutes(),
		bulkRetryRoutes(), scheduleRoutes(), fireRoutes(), declaredRoutes(), recordRoutes(), failureRoutes(), notificationRoutes(),
		auditRoutes(), roomsRoutes(), saidRoutes(), roomAgentRoutes(), connectionRoutes(), peopleRoutes(), daemonRoutes(),
		archiveRouteRoutes(), jobRoutes())
}

// docGroups are the groups of docs/api.md, in its order.
func docGroups() []string {
	return []string{groupSystem, groupKeys, groupProjects, groupAgents, groupCommands, groupSchedules, groupFires,
		groupRecords, groupFailures, groupNotifications, groupAudit, groupRooms, groupSaid,
		groupRoomAgents, groupConnections, groupPeople, groupDaemons, groupRoutes, groupJobs}
}

func systemRoutes() []route {
	return []route{
		{method: "GET", path: "/whoami", where: anywhere, role: agent.Viewer, handle: (*API).whoami,
			doc: doc{group: groupSystem, answer: "200 `{principal, kind: local|api_key, name, role, scopes, project_id}`"}},
		{method: "GET", path: "/status", where: everywhere, resource: "home", role: agent.Viewer, handle: (*API).status,
			doc: doc{group: groupSystem, answer: "200 `{version, started_at, epoch, store: {path, size_bytes, wal_bytes, " +
				"schema_version}, sessions: {ws, longpoll}, agents: {online, total}, commands: {pending, dispatched}, rooms: " +
				"{agents: {connected, total}, rooms, attached: {transport: number}, detached, media_bytes}, degraded: [reasons]}`"}},
		{method: "GET", path: "/projects/{slug}/resolve", where: inProject, role: agent.Viewer, handle: (*API).resolve,
			doc: doc{group: groupSystem, query: "`kind` agent, command, failure, schedule, fire or apikey; `prefix`: at least " +
				"4 hex digits of the id, " +
				"hyphens ignored, or the whole name of an agent or a schedule. Needs the right to read that kind",
				answer: "200 `{ids}`, at most 10"}},
		{method: "POST", path: "/backup", where: everywhere, resource: "home", write: true, role: agent.Admin, local: true,
			handle: (*API).backup,
			doc: doc{group: groupSystem, body: "`path` of the copy on the server's machine: absolute, in a directory that is " +
				"there",
				answer: "200 `{path, size_bytes, seconds}`; 409 when there is such a file; 503 when the copy failed (nothing is " +
					"left of it) or other upkeep is at work"}},
		{method: "POST", path: "/db/check", where: everywhere, resource: "home", write: true, role: agent.Admin, local: true,
			handle: (*API).checkDatabase,
			doc: doc{group: groupSystem, query: "`quick=true` leaves out the comparison of indexes with tables",
				answer: "200 `{ok, quick, schema_version, seconds, problems}`"}},
		{method: "POST", path: "/db/vacuum", where: everywhere, resource: "home", write: true, role: agent.Admin, local: true,
			handle: (*API).vacuumDatabase,
			doc:    doc{group: groupSystem, answer: "200 `{bytes_before, bytes_after, seconds}`"}},
	}
}

func keyRoutes() []route {
	return []route{
		{method: "GET", path: "/api-keys", where: own, resource: "auth", role: agent.Admin, handle: (*API).listKeys,
			doc: doc{group: groupKeys, answer: "200 array of ApiKey, those not revoked"}},
		{method: "POST", path: "/api-keys", where: own, resource: "auth", write: true, role: agent.Admin,
			handle: (*API).createKey,
			doc: doc{group: groupKeys, body: "`name`; `role` viewer, operator, admin or auditor (may be absent beside " +
				"`scopes`: then the " +
				"maker's own); optional `scopes` (≤64, default: the role's), `project_id`, `expires_in_days` 1..3650",
				answer: "201 ApiKey and `token`, which is shown this once. Nobody gives more than they have (403)"}},
		{method: "GET", path: "/api-keys/scopes", where: own, resource: "auth", role: agent.Admin, handle: (*API).listScopes,
			doc: doc{group: groupKeys, answer: "200 array of every scope"}},
		{method: "DELETE", path: "/api-keys/{id}", where: own, resource: "auth", write: true, role: agent.Admin,
			handle: (*API).revokeKey,
			doc:    doc{group: groupKeys, answer: "204, also when repeated"}},
	}
}

func projectRoutes() []route {
	return []route{
		{method: "GET", path: "/projects", where: own, resource: "projects", role: agent.Viewer, handle: (*API).listProjects,
			doc: doc{group: groupProjects, query: "`include_archived=true` (admin of all projects)",
				answer: "200 array of Project: all, or the one that the key is bound to"}},
		{method: "POST", path: "/projects", where: everywhere, resource: "projects", write: true, role: agent.Admin,
			handle: (*API).createProject,
			doc: doc{group: groupProjects, body: "`slug`, `name`; optional `description`, `environment`, `timezone`, " +
				"`retention_days`, `default_scheduler_owner`, `allowed_schedulers`",
				answer: "201 Project; 409 for a bad or taken slug"}},
		{method: "GET", path: "/projects/{slug}", resource: "projects", role: agent.Viewer, handle: (*API).getProject,
			doc: doc{group: groupProjects, answer: "200 Project"}},
		{method: "PATCH", path: "/projects/{slug}", resource: "projects", write: true, role: agent.Admin, archived: true,
			handle: (*API).patchProject,
			doc: doc{group: groupProjects, body: "any of the fields of POST; or `is_active: true` alone (admin of all " +
				"projects), which brings an archived project back", answer: "200 Project"}},
		{method: "DELETE", path: "/projects/{slug}", where: everywhere, resource: "projects", write: true, role: agent.Admin,
			handle: (*API).archiveProject,
			doc:    doc{group: groupProjects, answer: "204 archived, also when repeated; 409 for the last active project"}},
	}
}

func agentRoutes() []route {
	return []route{
		{method: "GET", path: "/projects/{slug}/agents", resource: "agents", role: agent.Viewer, handle: (*API).listAgents,
			doc: doc{group: groupAgents, query: "`include_revoked=true`", answer: "200 array of Agent"}},
		{method: "POST", path: "/projects/{slug}/agents", resource: "agents", write: true, role: agent.Admin,
			handle: (*API).mintAgent,
			doc: doc{group: groupAgents, body: "`name`", answer: "201 `{agent, token, hmac_secret}`; the token is shown this " +
				"once; 409 for a taken name"}},
		{method: "GET", path: "/projects/{slug}/agents/{id}", resource: "agents", role: agent.Viewer, handle: (*API).getAgent,
			doc: doc{group: groupAgents, answer: "200 Agent and `sessions` (live), `workers` (AgentWorker), " +
				"`runtime_features`, `telemetry_loss` (what it says it lost: `buffer_id`, `runtime_id`, `first_at`, " +
				"`updated_at`, `figures`), `declared_engines`, `notes` (sentences on why fires are not routed to it)"}},
		{method: "DELETE", path: "/projects/{slug}/agents/{id}", resource: "agents", write: true, role: agent.Admin,
			handle: (*API).revokeAgent,
			doc:    doc{group: groupAgents, answer: "204 revoked, also when repeated"}},
		{method: "POST", path: "/projects/{slug}/agents/{id}/hmac-secret", resource: "agents", write: true, role: agent.Admin,
			handle: (*API).agentSecret,
			doc: doc{group: groupAgents, answer: "200 `{agent_id, hmac_secret}`, the signing secret under the present master " +
				"secret; audited"}},
		{method: "GET", path: "/projects/{slug}/agents/{id}/health", resource: "agents", role: agent.Viewer,
			handle: (*API).agentHealth,
			doc: doc{group: groupAgents, answer: "200 array of the latest 100 `{captured_at, received_at, payload}`, newest " +
				"first"}},
		{method: "GET", path: "/projects/{slug}/agent-workers", resource: "agents", role: agent.Viewer,
			handle: (*API).listSlots,
			doc:    doc{group: groupAgents, answer: "200 array of AgentWorker"}},
	}
}

func commandRoutes() []route {
	const base = "/projects/{slug}/commands"
	return []route{
		{method: "GET", path: base, resource: "commands", role: agent.Viewer, handle: (*API).listCommands,
			doc: doc{group: groupCommands, query: "`status`, `agent_id`, `action`, `since`, " + pageQuery,
				answer: "200 list of Command"}},
		{method: "POST", path: base, resource: "commands", write: true, role: agent.Operator, handle: (*API).issueAny,
			doc: doc{group: groupCommands, body: "`agent_id`, `action`; optional `target_type`, `target_id`, `payload`, " +
				"`idempotency_key` 1..200. Any action of the table below; bulk actions count in the bulk bucket",
				answer: "202 Command"}},
		{method: "GET", path: base + "/stream", resource: "commands", role: agent.Viewer, handle: (*API).streamCommands,
			doc: doc{group: groupCommands, query: "`cursor`, `follow` (true), `command_id`, `status`, `agent_id`, `action`",
				answer: "200 NDJSON, see Streams"}},
		{method: "GET", path: base + "/{id}", resource: "commands", role: agent.Viewer, handle: (*API).getCommand,
			doc: doc{group: groupCommands, answer: "200 Command"}},
		{method: "POST", path: base + "/{id}/cancel", resource: "commands", write: true, role: agent.Operator,
			handle: (*API).cancelCommand,
			doc:    doc{group: groupCommands, answer: "200 Command; 409 when it has ended"}},
		{method: "GET", path: base + "/{id}/deliveries", resource: "commands", role: agent.Viewer,
			handle: (*API).commandDeliveries,
			doc: doc{group: groupCommands, answer: "200 array of `{attempt, transport, session_id, worker_id, claimed_at, " +
				"sent_at, acked_at, finished_at, outcome, reason}`, oldest first"}},
		{method: "GET", path: base + "/{id}/timeline", resource: "commands", role: agent.Viewer, handle: (*API).commandTimeline,
			doc: doc{group: groupCommands, answer: "200 array of `{seq, at, status, event, detail}`, oldest first"}},
		{method: "GET", path: base + "/{id}/explain", resource: "commands", role: agent.Viewer, handle: (*API).explainCommand,
			doc: doc{group: groupCommands, answer: "200 `{command, summary, sentences, waiting_for, candidates, next, " +
				"deliveries, timeline}`"}},
	}
}

// issueRoutes are the routes of agent protocol E.9, from the table of actions.
func issueRoutes() []route {
	var out []route
	for _, spec := range agent.Actions() {
		path := "/projects/{slug}/commands/" + spec.Route
		if spec.Route == "" || slices.ContainsFunc(out, func(rt route) bool { return rt.path == path }) {
			continue
		}
		out = append(out, route{method: "POST", path: path, resource: "commands", write: true, role: spec.Role,
			bulk: spec.Bulk, handle: issueRoute(spec.Route), doc: doc{group: groupCommands, body: issueBody(spec),
				answer: "202 Command"}})
	}
	return out
}

func recordRoutes() []route {
	const exports = "; for an export `format` csv or json and `fields`, a list of columns"
	return []route{
		{method: "GET", path: "/projects/{slug}/events", resource: "events", role: agent.Viewer, handle: (*API).listEvents,
			doc: doc{group: groupRecords, query: "`engine`, `task_id`, `kind`, `agent_id`, `since`, " + pageQuery,
				answer: "200 list of Event"}},
		{method: "GET", path: "/projects/{slug}/events/stream", resource: "events", role: agent.Viewer,
			handle: (*API).streamEvents,
			doc: doc{group: groupRecords, query: "`cursor`, `follow` (true), `engine`, `task_id`, `kind`, `agent_id`, `since`",
				answer: "200 NDJSON, see Streams"}},
		{method: "GET", path: "/projects/{slug}/tasks", resource: "tasks", role: agent.Viewer, handle: (*API).listTasks,
			doc: doc{group: groupRecords, query: "`state`, `priority`, `name`, `search`, `queue`, `worker`, `since`, `until`, " +
				pageQuery + exports, answer: "200 list of Task, or at most 50,000 rows without pages"}},
		{method: "GET", path: "/projects/{slug}/tasks/{engine}/{task_id}", resource: "tasks", role: agent.Viewer,
			handle: (*API).getTask,
			doc:    doc{group: groupRecords, answer: "200 Task"}},
		{method: "GET", path: "/projects/{slug}/tasks/{engine}/{task_id}/tree", resource: "tasks", role: agent.Viewer,
			handle: (*API).taskTree,
			doc:    doc{group: groupRecords, answer: "200 `{root_task_id, node_count, truncated, nodes}`, at most 500 nodes"}},
		{method: "POST", path: "/projects/{slug}/tasks/bulk-delete", resource: "tasks", write: true, role: agent.Operator,
			bulk:   true,
			handle: (*API).bulkDelete,
			doc: doc{group: groupRecords, body: "`task_ids` (≤1000 row ids), or any of `filter_state`, `filter_name`, " +
				"`filter_queue`, `filter_since`, `filter_until`. Unknown fields are refused", answer: "200 `{deleted_count}`"}},
		{method: "GET", path: "/projects/{slug}/workers", resource: "workers", role: agent.Viewer, handle: (*API).listWorkers,
			doc: doc{group: groupRecords, answer: "200 array of Worker"}},
		{method: "GET", path: "/projects/{slug}/workers/{id}", resource: "workers", role: agent.Viewer,
			handle: (*API).getWorker,
			doc:    doc{group: groupRecords, answer: "200 Worker and `metadata`"}},
		{method: "GET", path: "/projects/{slug}/queues", resource: "queues", role: agent.Viewer, handle: (*API).listQueues,
			doc: doc{group: groupRecords, answer: "200 array of Queue"}},
	}
}

func auditRoutes() []route {
	const q = "`action_prefix` ≤80, `outcome` ≤20, `user_id`, `since`, " + pageQuery + "; for an export `format` csv or " +
		"json and `fields`"
	return []route{
		{method: "GET", path: "/projects/{slug}/audit", resource: "audit", role: agent.Auditor, handle: (*API).listAudit,
			doc: doc{group: groupAudit, query: q, answer: "200 list of AuditRow of this project, or at most 50,000 rows " +
				"without pages"}},
		{method: "GET", path: "/audit", where: everywhere, resource: "audit", role: agent.Auditor, handle: (*API).listAudit,
			doc: doc{group: groupAudit, query: q, answer: "the same of every project and of none"}},
		{method: "POST", path: "/audit/verify", where: everywhere, resource: "audit", role: agent.Auditor,
			handle: (*API).verifyAudit,
			doc: doc{group: groupAudit, answer: "200 `{ok, checked, first_seq, last_seq, broken: null | {seq, reason}}`; " +
				"changes nothing, so the scope is `audit:read`"}},
	}
}
