package api

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"signalbox/appliance/agent"
)

var update = flag.Bool("update", false, "write docs/api.md anew")

const docsFile = "../../docs/api.md"

// TestDocs holds docs/api.md to the table of routes. Run it with -update after a change.
func TestDocs(t *testing.T) {
	t.Parallel()
	want := renderDocs()
	if *update {
		if err := os.WriteFile(docsFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/api.md is not what the table of routes says; run: go test ./transport/api -run TestDocs -update")
	}
}

func renderDocs() string {
	var b strings.Builder
	b.WriteString(docsIntro)
	rts := routes()
	for _, group := range docGroups() {
		fmt.Fprintf(&b, "\n## %s\n\n| Route | Right | Query | Body | Answer |\n|---|---|---|---|---|\n", group)
		for _, rt := range rts {
			if rt.doc.group == group {
				fmt.Fprintf(&b, "| `%s %s` | %s | %s | %s | %s |\n", rt.method, rt.path, right(rt), cell(rt.doc.query),
					cell(rt.doc.body), cell(rt.doc.answer))
			}
		}
		if group == groupCommands {
			b.WriteString("\n### Actions\n\n| Action | Target type | Role | Redelivered | |\n|---|---|---|---|---|\n")
			for _, a := range agent.Actions() {
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", a.Name, a.TargetType, a.Role,
					map[bool]string{true: "yes", false: "no"}[a.Redeliverable], a.Doc)
			}
		}
	}
	b.WriteString(docsShapes)
	return b.String()
}

func cell(s string) string {
	if s == "" {
		return "–"
	}
	return strings.ReplaceAll(s, "|", `\|`)
}

func right(rt route) string {
	if rt.where == anywhere {
		return "any credential"
	}
	if rt.local {
		return "admin socket only"
	}
	if rt.resource == "" {
		return "by kind"
	}
	verb := "read"
	if rt.write {
		verb = "write"
	}
	s := fmt.Sprintf("%s, `%s:%s`", rt.role, map[bool]string{true: "tasks", false: rt.resource}[rt.resource == "events"], verb)
	if rt.where == everywhere {
		s += ", all projects"
	}
	if rt.bulk {
		s += ", bulk bucket"
	}
	return s
}

const docsIntro = `# REST API

<!-- Generated from the table of routes: go test ./transport/api -run TestDocs -update -->

All paths are below ` + "`/api/v1`" + `. Requests over the admin socket need no credential and may do everything; all others
carry ` + "`Authorization: Bearer z4k_…`" + ` and pass the API allowlist first.

**Rights.** A key has a role (viewer < operator < admin; auditor reads what a viewer reads, and the audit log), scopes
(` + "`resource:read`, `resource:write`" + ` which implies read, ` + "`admin:*`" + ` which implies all) and perhaps one project that it is bound
to. A route needs its role and its scope. "all projects" means that a bound key is refused. An unknown or archived
project is 404; another project than a key's own is 403.

**Errors** are ` + "`{\"error\", \"message\", \"request_id\", \"details\", \"detail\"}`" + `. 401 no or bad key · 403 forbidden, or ` + "`ip_denied`" + ` ·
404 not found · 409 conflict · 413 body too large · 422 a field broke a rule: ` + "`detail`" + ` is an array of ` + "`{type, loc, msg, input}`" + `,
and nothing changed · 429 bulk bucket used up, with Retry-After · 503 ` + "`agent_offline`" + ` (the command is kept; its id is in
` + "`details.command_id`" + `), or ` + "`unavailable`" + ` with Retry-After. Every response has ` + "`X-Request-Id`" + `.

**Lists** are ` + "`{\"items\": […], \"next_cursor\": text|null}`" + `, newest first. Pass ` + "`next_cursor`" + ` as ` + "`cursor`" + ` for the next page; it is
non-null whenever the page is full. A malformed cursor is the first page. ` + "`limit`" + ` is 1..5000 and clamped to the largest page
of the configuration.

**Times** are ISO 8601 in UTC, with six fraction digits or none. Times in requests may have any offset; without one they
are UTC. Stored JSON (payloads, arguments, results) is passed on as it was received.

**Bodies** are JSON objects. Unknown fields are ignored, except in bodies of commands and of bulk-delete, where they are
refused.

**Exports** (` + "`format=csv`" + `, ` + "`json`" + ` or ` + "`xlsx`" + `, with ` + "`fields=a,b,…`" + ` to choose columns) hold at most 50,000 rows, newest first. Another format is 422. In
CSV a text that a spreadsheet would run as a formula has an apostrophe in front.

**Streams** are ` + "`application/x-ndjson`" + `: one record a line. ` + "`cursor`" + ` absent starts at the head, ` + "`0`" + ` at the oldest record kept, and the
` + "`cursor`" + ` of any record goes on after it. ` + "`follow=false`" + ` ends at the head; otherwise the stream goes on as records come, with an
empty line after 15 s of silence. The header ` + "`X-Signalbox-Cursor`" + ` of the answer tells where it begins. Where records may be missing comes first
` + "`{\"type\": \"gap\", \"cursor\", \"reason\": epoch|ahead|retention}`" + `: the cursor is of another database, lies beyond the head, or below
what retention removed (nothing removes messages of a room that stays). A stream ends when the server drains or the right to read is lost: connect again with the last
cursor.
`

const docsShapes = `
## Shapes

| Name | Fields |
|---|---|
| Project | id, slug, name, description, environment, timezone, retention_days, is_active, default_scheduler_owner, allowed_schedulers, created_at, updated_at |
| Agent | id, project_id, name, state, protocol_version, framework_adapter, engine_adapters, scheduler_adapters, capabilities, last_seen_at, last_connect_at, created_at, is_outdated, host_name, agent_version, version_status; revoked_at when revoked |
| AgentWorker | id, agent_id, project_id, worker_id, role, framework, pid, started_at, state, last_seen_at, last_connect_at, created_at, updated_at |
| ApiKey | id, name, prefix, role, scopes, project_id, created_at, expires_at, last_used_at |
| Command | id, project_id, agent_id, issued_by, action, target_type, target_id, payload, status, result, error, issued_at, dispatched_at, completed_at, timeout_at |
| Event | id, project_id, agent_id, engine, task_id, kind, occurred_at, payload |
| Task | id, project_id, engine, task_id, name, queue, state, priority, args, kwargs, result, exception, traceback, retry_count, eta, received_at, started_at, finished_at, runtime_ms, worker_name, parent_task_id, root_task_id, tags, created_at, updated_at |
| Worker | id, project_id, engine, name, hostname, pid, concurrency, queues, state, last_heartbeat, load_average, active_tasks, processed, failed, succeeded, retried, created_at |
| Queue | id, project_id, name, engine, broker_type, broker_url_hint, pending_count, last_seen_at, created_at |
| Notification | id, trigger, rule_id (null: a test, or the rule is gone), rule_name, channel_id, channel_name, subject, collected, state (pending, delivered, dead), attempts, next_attempt_at, last_error, created_at, ended_at |
| NotificationChannel | id, name, kind, target (what may be shown of the settings), is_enabled, failures (attempts that failed since one succeeded), retry_at (nothing is sent before it; null without failures), created_at, updated_at |
| NotificationRule | id, name, trigger, pattern, group_seconds, is_enabled, channels (ids), created_at, updated_at |
| AuditRow | id, project_id, user_id, action, target_type, target_id, result, outcome, event_id, metadata, source_ip, user_agent, occurred_at |
| transition record | type, cursor, seq, at, event, status, detail, command |
| event record | type, cursor, event |
| Room | id, name, description, instructions, channel_type, chat, owner, group, read_visibility, write_visibility, internal_only, head, archived_at, created_at, updated_at |
| RoomDetail | Room and members, people, roles, links. A member: agent_id, name, alias, listening, role, status, addressable, owner_only, open_command, reacts_to, deaf, joined_position, joined_at. A person: person_id, name, email, manager, joined_at |
| RoomItem | id, room_id, position, kind (message, command, room_join), sender (kind, id, name), on_behalf_of, body, thread_id, attachments, automatic, at |
| item record | type, cursor, item |
| RoomAgent | id, name, display_name, icon_url, description, owner, type, connector_type, connection_model, command_capabilities, status, connections, addressable (everybody, owner, some), owner_only, open_command, reacts_to, deaf (array of code, text: why it would not react), policy, key_set_at, created_at, updated_at |
| Connection | connection_id, agent, scope, filter, spawn_capable, cursor, processed, head, lag, generation, claims, placements, transport, attached, held, last_beat_at, last_beat_age_ms, beats, protocol, declared, client, client_version, opened_at, attached_at, role_lease |
| Person | id, name, email, kind (person, operator, bootstrap), role, has_password, disabled_at, created_at, updated_at |
| Daemon | id, name, state (online, offline, paused), attached (a socket is open), role, software, version, capabilities, generation, state_epoch, remote, clock_skew_ms, registered_at, last_seen_at, offline_at, first_seen_at |
| Alert | id, kind, detail, daemon_id, job_id, times, raised_at, last_at, cleared_at |
| ArchiveError | code, retryable, message, details (texts); the message says what to do about it |
| Resource | resource_id, name, identity (infohash_v1, infohash_v2, tree_fingerprint), content_revision, logical_bytes, selected_bytes, completed_selected_bytes, file_count, backend_state, root, relative_dir, category, labels, partial_selection, absent, seen_at |
| File | index, path, kind, logical_bytes, allocated_bytes, completed_bytes, selected, sparse, executable, link_count, present, modified_at |
| Storage | root_id, kind (content, receive, outbox), total_bytes, free_bytes, writable, same_filesystem_as, profile, error (ArchiveError), seen_at |
| Route | id, name, kind, state (provisioning, probing, ready, degraded, failed, removing, removed), ready, not_ready_because (sentences), shared_marker, source, target, error (ArchiveError), created_at, removed_at. A side: daemon_id, daemon, online, root_id, state, sequence, quarantined, error, updated_at |
| Preview | id, operation, state (running, passed, failed), summary (files, requested, requested_bytes, present, present_bytes, transfer, transfer_bytes, synthesized, omitted, dropped_pieces, partfile_mode, stage_method, materialize_method, shares_bytes (both sides would be names of the same bytes), patterns, needs: daemon, root_id, kind, bytes, keep_free, free_bytes, with), warnings, error (ArchiveError), started, job_id (of the job that was made of it), created_at, finished_at |
| Job | id, operation, title, state, waiting (reason, detail, returns_to, retry_at), outcome, source and target (daemon_id, name, online), resource_id, route_id, parent_id, evict_after, step, step_number, steps, attempt, failures, allowance, committed, progress (fraction of the step, overall_fraction, bytes_total, bytes_done, allocated_total, allocated_done: null while not known; files_total, files_done, bytes_per_second, moved_at), error (ArchiveError), revision, sequence, foreign (only a daemon knew it), retain_until, created_by, created_at, started_at, ended_at |
| JobDetail | Job and definition, preview_id, participants, step_list (step, weight, state done or active or pending, role, daemon, attempts, evidence, evidence_sha256, evidence_at), commands (with deliveries), reservations, alerts, explanation. Messages of the daemon protocol have its field names, enums as words, durations in seconds |
| JobEntry | cursor, at, event, state (of the job after it), daemon, command_id, detail |
`
