package api

import "signalbox/appliance/agent"

// archiveResource is the resource of the scopes of the archive plane.
const archiveResource = "archive"

// The groups of the archive plane in docs/api.md.
const (
	groupDaemons = "Daemons and their inventory"
	groupRoutes  = "Routes"
	groupJobs    = "Archive jobs"
)

func archiveRead(group string) func(path string, handle handler, d doc) route {
	return func(path string, handle handler, d doc) route {
		d.group = group
		return route{method: "GET", path: path, where: everywhere, resource: archiveResource, role: agent.Viewer, handle: handle, doc: d}
	}
}

func archiveWrite(group string) func(method, path string, handle handler, d doc) route {
	return func(method, path string, handle handler, d doc) route {
		d.group = group
		return route{method: method, path: path, where: everywhere, resource: archiveResource, write: true, role: agent.Operator, handle: handle, doc: d}
	}
}

const archivePage = "`cursor`, `limit` clamped to the largest page"

func daemonRoutes() []route {
	read, write := archiveRead(groupDaemons), archiveWrite(groupDaemons)
	forget := write("DELETE", "/daemons/{id}", (*API).forgetDaemon, doc{answer: "204; 409 while it is online, or an active job or a route names it. When it registers again it is known again"})
	forget.role = agent.Admin
	return []route{
		read("/archive/resolve", (*API).resolveArchive, doc{query: "`kind` daemon, route, job, command (to a daemon) or resource; `text`: a whole name or id, or at least 4 hex digits of the beginning " +
			"of an id; of a resource also a part of its name in any case, or of its infohash. `daemon` id: whose resource",
			answer: "200 `{matches: [{id, name}]}`, at most 10; beginnings and parts only when nothing matches whole. Of jobs the newest 5,000 are looked at"}),
		read("/daemons", (*API).listDaemons, doc{answer: "200 array of Daemon, by name"}),
		read("/daemons/{id}", (*API).getDaemon, doc{answer: "200 Daemon and `alerts`: [Alert], `views`: [{scope, revision, entries, committed_at}], `storage`: [Storage]"}),
		forget,
		write("POST", "/daemons/{id}/inventory", (*API).queryInventory, doc{body: "`scope` resources, content_tree, storage, routes or active_jobs; `resource` id (content_tree); optional " +
			"`text` (resources), `wait` 0..120 seconds (30)", answer: "200 `{query_id, state: open|complete|failed, revision, entries, error: null | ArchiveError}`. An open query goes on; 503 when the " +
			"daemon is offline or has too many open"}),
		read("/daemons/{id}/resources", (*API).listResources, doc{query: "`text`: part of the name; `absent=true` also those that are no longer there; " + archivePage,
			answer: "200 list of Resource, by name, as the daemon told last, and `view: null | {scope, revision, entries, committed_at}`: when that was"}),
		read("/daemons/{id}/tree", (*API).showTree, doc{query: "`resource` id; " + archivePage, answer: "200 `{resource_id, name, identity, content_revision, backend_state, logical_bytes, " +
			"allocated_bytes, file_count, meta_version, piece_bytes, metainfo_available, shared_with, fetched_at, files: [File], next_cursor}`; 404 until the tree was asked for; 409 when it was " +
			"replaced between two pages"}),
		read("/daemons/{id}/storage", (*API).listStorage, doc{answer: "200 array of Storage"}),
		read("/alerts", (*API).listAlerts, doc{query: "`cleared=true` also closed ones; `limit`", answer: "200 array of Alert, newest first"}),
		write("POST", "/alerts/{id}/dismiss", (*API).dismissAlert, doc{answer: "204; 404 when it is not open. Its cause may raise it again"}),
	}
}

func archiveRouteRoutes() []route {
	read, write := archiveRead(groupRoutes), archiveWrite(groupRoutes)
	const detail = "Route and `updates` of both sides, newest first: [{side, sequence, state, error, at}]"
	return []route{
		read("/routes", (*API).listRoutes, doc{query: "`include_removed=true`", answer: "200 array of Route, oldest first"}),
		write("POST", "/routes", (*API).createRoute, doc{body: "`name`, `source` and `target` daemon ids; optional `kind` shared_directory, `source_root` (outbox), `target_root` (receive): " +
			"default the only one; `shared_marker`", answer: "201 " + detail + ". The sides are probed then; 409 for a taken name, or a daemon that cannot"}),
		read("/routes/{id}", (*API).getRoute, doc{query: "`wait` 0..120 seconds (0) for the verdict of a probe under way. The path takes a name, too", answer: "200 " + detail}),
		write("POST", "/routes/{id}/test", (*API).testRoute, doc{query: "`wait` 0..120 seconds (0) for the verdict", answer: "202 the route, which is being probed anew on both sides; 409 while the probe before is not answered"}),
		write("DELETE", "/routes/{id}", (*API).removeRoute, doc{answer: "204; 409 while an active job uses it"}),
	}
}

func jobRoutes() []route {
	read, write := archiveRead(groupJobs), archiveWrite(groupJobs)
	return []route{
		write("POST", "/job-previews", (*API).previewJob, doc{query: "`wait` 0..120 seconds (0)", body: "`operation` transfer, adopt or evict; `source: {daemon, resource}`; `target: {daemon}` (adopt: default the " +
			"source); `route` id (transfer); `destination: {root, dir?, category?, labels?, preserve_layout?}` (transfer, adopt); `parent_job` (evict: the completed job that made the copy which stays); " +
			"optional `files` (patterns as of a shell over whole paths, `**` for any directories; ≤100) or `indices` (such as `0-3,7`), `evict_after`, `max_verify_age_seconds`, `allow_library_links`, " +
			"`accept_drop`, `policies: {verify_level, sparse, partfile, conflict, stage_methods, materialize_methods, quiesce, activation, keep_free_bytes, trash_retention_seconds, cleanup}`",
			answer: "202 Preview while it runs, 200 when it is done"}),
		read("/job-previews/{id}", (*API).getPreview, doc{query: "`wait` 0..120 seconds (0)", answer: "202 or 200 Preview"}),
		read("/job-previews/{id}/files", (*API).listPreviewFiles, doc{query: archivePage, answer: "200 list of `{index, path, action: transfer|present_at_target|synthesize|omit, method, bytes, warning}`, by index"}),
		write("POST", "/jobs", (*API).startJob, doc{body: "`preview_id`; optional `evict_after` (a transfer becomes a move: the source copy is given up when the target's is verified)",
			answer: "201 JobDetail; 409 when the preview runs, did not pass, or was started before"}),
		read("/jobs", (*API).listJobs, doc{query: "`state`, or `open=true`; `daemon` id, `operation`; " + archivePage, answer: "200 list of Job, newest first"}),
		read("/jobs/{id}", (*API).getJob, doc{answer: "200 JobDetail"}),
		read("/jobs/{id}/timeline", (*API).jobTimeline, doc{query: archivePage, answer: "200 list of JobEntry, oldest first. `cursor` of an entry is one of the stream"}),
		read("/jobs/{id}/stream", (*API).streamJob, doc{query: "`cursor`, `follow` (true)", answer: "200 NDJSON, see Streams: `{type: job, cursor, entry: JobEntry | null, job: Job, more}` for each change " +
			"of the story or the progress, at first the job as it is, and `{type: end, …}` when it has ended, also when it had before"}),
		read("/archive/commands/{id}/explain", (*API).explainDaemonCommand, doc{answer: "200 `{command: {id, kind, step, step_attempt, daemon_id, daemon, state, lease, attempts, allowance, held, error, " +
			"issued_at, …, deliveries: [{attempt, generation, claimed_at, sent_at, acked_at, outcome, reason}]}, job: null | Job, summary, sentences, waits_for, next_action}` of a command to a daemon, " +
			"of a job or not. `generation` is of the connection that an attempt was made on"}),
		read("/jobs/{id}/explain", (*API).explainJob, doc{answer: "200 `{summary, sentences, waits_for, next_action, commands}`: every command of the job, as above"}),
		write("POST", "/jobs/{id}/cancel", (*API).cancelJob, doc{body: "optional `reason`", answer: "200 JobDetail; 409 in a state that does not allow it"}),
		write("POST", "/jobs/{id}/retry", (*API).retryJob, doc{body: "optional `attempts` to grant, of the step or of sends, 1..100", answer: "200 JobDetail; 409 in a state that does not allow it"}),
		write("POST", "/jobs/{id}/resolve", (*API).resolveJob, doc{body: "`decision` resume, complete or abandon; `reason`, which the audit log keeps", answer: "200 JobDetail; 409 when the job is not held"}),
	}
}
