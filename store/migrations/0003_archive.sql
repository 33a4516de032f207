-- ---------------------------------------------------------------------------------------------------------------------
-- Archive plane: daemons, commands, jobs, inventory, routes. Messages are kept as deterministic protobuf.
-- ---------------------------------------------------------------------------------------------------------------------

-- Remote peers of the archive plane (the protocol's clients). The token is never here.
CREATE TABLE daemons (
  daemon_no        INTEGER PRIMARY KEY AUTOINCREMENT,
  id               BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  name             TEXT    NOT NULL CHECK (length(CAST(name AS BLOB)) BETWEEN 1 AND 128),
  role             INTEGER NOT NULL CHECK (role BETWEEN 1 AND 3),
  software         TEXT    NOT NULL,
  major            INTEGER NOT NULL,
  minor            INTEGER NOT NULL,        -- advertised
  negotiated_minor INTEGER NOT NULL,
  limits           BLOB    NOT NULL,        -- Limits: what was negotiated last
  generation       INTEGER NOT NULL CHECK (generation >= 1),  -- highest issued
  generation_used  INTEGER NOT NULL CHECK (generation_used >= 0), -- highest that the daemon sent anything under
  instance_id      BLOB    NOT NULL CHECK (length(instance_id) = 16),
  state_epoch      BLOB    NOT NULL CHECK (length(state_epoch) = 16),
  epoch_since      INTEGER NOT NULL,
  first_epoch      BLOB    NOT NULL CHECK (length(first_epoch) = 16),
  previous_epoch   BLOB    CHECK (length(previous_epoch) = 16), -- the one before state_epoch
  paused           INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)), -- no new assignments: two databases answer to one id
  online           INTEGER NOT NULL CHECK (online IN (0, 1)),  -- owns its generation
  registered_at    INTEGER NOT NULL,
  last_seen_at     INTEGER NOT NULL,        -- registration or heartbeat
  offline_at       INTEGER,
  clock_skew_ms    INTEGER NOT NULL DEFAULT 0,
  remote           TEXT    NOT NULL DEFAULT '',
  created_at       INTEGER NOT NULL,
  forgotten_at     INTEGER                  -- by a person; kept for the history and for the generation
) STRICT;

CREATE TABLE daemon_capabilities (
  daemon_no INTEGER NOT NULL REFERENCES daemons (daemon_no) ON DELETE CASCADE,
  name      TEXT    NOT NULL,
  PRIMARY KEY (daemon_no, name)
) STRICT, WITHOUT ROWID;

-- What an operator must know of a daemon or a job. Open while cleared_at is NULL; at most one open alert per subject and kind.
CREATE TABLE archive_alerts (
  alert_no   INTEGER PRIMARY KEY AUTOINCREMENT,
  daemon_no  INTEGER REFERENCES daemons (daemon_no) ON DELETE CASCADE,
  job_no     INTEGER REFERENCES archive_jobs (job_no) ON DELETE CASCADE,
  kind       TEXT    NOT NULL,
  detail     TEXT    NOT NULL,
  raised_at  INTEGER NOT NULL,
  last_at    INTEGER NOT NULL,
  times      INTEGER NOT NULL DEFAULT 1,
  cleared_at INTEGER
) STRICT;

CREATE UNIQUE INDEX archive_alerts_open ON archive_alerts (kind, coalesce(daemon_no, 0), coalesce(job_no, 0)) WHERE cleared_at IS NULL;

-- Routes between two daemons.
CREATE TABLE archive_routes (
  route_no         INTEGER PRIMARY KEY AUTOINCREMENT,
  id               BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  name             TEXT    NOT NULL,
  kind             INTEGER NOT NULL,
  source_daemon_no INTEGER NOT NULL REFERENCES daemons (daemon_no),
  target_daemon_no INTEGER NOT NULL REFERENCES daemons (daemon_no),
  route            BLOB    NOT NULL,        -- Route
  state            INTEGER NOT NULL,        -- RouteState, computed from both sides
  broken           INTEGER NOT NULL DEFAULT 0 CHECK (broken IN (0, 1)), -- histories disagree: only a new route helps
  error            BLOB,                    -- ErrorDetail: why it is broken, or does not work
  created_at       INTEGER NOT NULL,
  updated_at       INTEGER NOT NULL,
  removed_at       INTEGER
) STRICT;

CREATE UNIQUE INDEX archive_routes_name ON archive_routes (name) WHERE removed_at IS NULL;

CREATE TABLE archive_route_sides (
  route_no            INTEGER NOT NULL REFERENCES archive_routes (route_no) ON DELETE CASCADE,
  side                INTEGER NOT NULL CHECK (side IN (1, 2)),
  daemon_no           INTEGER NOT NULL REFERENCES daemons (daemon_no),
  creation_command_id BLOB    NOT NULL CHECK (length(creation_command_id) = 16),
  latest_command_id   BLOB    NOT NULL CHECK (length(latest_command_id) = 16), -- create or update that readiness must follow
  accepted            INTEGER NOT NULL DEFAULT 0 CHECK (accepted IN (0, 1)),   -- latest_command_id was acknowledged ACCEPTED
  nonce               TEXT    NOT NULL,     -- of the probe of the latest command
  last_sequence       INTEGER NOT NULL DEFAULT 0,
  fresh_after         INTEGER NOT NULL DEFAULT 0, -- sequence at the time of the latest command: READY counts only above it
  state               INTEGER NOT NULL DEFAULT 10,
  probe               BLOB,                 -- ProbeResult of the latest update that carries one
  error               BLOB,                 -- ErrorDetail of the side, or of a refused command
  quarantined         INTEGER NOT NULL DEFAULT 0 CHECK (quarantined IN (0, 1)), -- until the daemon's snapshot agrees
  quarantine          TEXT    NOT NULL DEFAULT '', -- why
  asked_no            INTEGER NOT NULL DEFAULT 0,  -- inventory request for the snapshot
  asked_after         INTEGER NOT NULL DEFAULT 0,  -- sequence stored when it was asked
  remove_command_id   BLOB    CHECK (length(remove_command_id) = 16),
  updated_at          INTEGER NOT NULL,
  PRIMARY KEY (route_no, side)
) STRICT;

CREATE TABLE archive_route_updates (
  route_no            INTEGER NOT NULL REFERENCES archive_routes (route_no) ON DELETE CASCADE,
  side                INTEGER NOT NULL CHECK (side IN (1, 2)),
  creation_command_id BLOB    NOT NULL CHECK (length(creation_command_id) = 16),
  sequence            INTEGER NOT NULL CHECK (sequence >= 1),
  update_id           BLOB    NOT NULL CHECK (length(update_id) = 16),
  buffered            INTEGER NOT NULL DEFAULT 0 CHECK (buffered IN (0, 1)), -- arrived above a gap, not applied
  message             BLOB    NOT NULL,     -- RouteUpdate
  received_at         INTEGER NOT NULL,
  PRIMARY KEY (route_no, side, creation_command_id, sequence)
) STRICT;

-- What a preflight found: the plan of every file and every warning, as the operator saw it.
CREATE TABLE archive_previews (
  preview_no              INTEGER PRIMARY KEY AUTOINCREMENT,
  id                      BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  operation               INTEGER NOT NULL,
  request                 TEXT    NOT NULL, -- JSON: what was asked
  state                   TEXT    NOT NULL CHECK (state IN ('running', 'passed', 'failed')),
  created_by              TEXT    NOT NULL DEFAULT '',
  source_content_revision TEXT,
  target_content_revision TEXT,
  draft                   BLOB,             -- JobDefinition without job_id and created_at, when it passed
  summary                 TEXT    NOT NULL DEFAULT '{}', -- JSON: totals, per-root needs
  warnings                TEXT    NOT NULL DEFAULT '[]', -- JSON array of texts
  error                   BLOB,             -- ErrorDetail
  job_no                  INTEGER REFERENCES archive_jobs (job_no),
  created_at              INTEGER NOT NULL,
  finished_at             INTEGER
) STRICT;

CREATE TABLE archive_preview_files (
  preview_no    INTEGER NOT NULL REFERENCES archive_previews (preview_no) ON DELETE CASCADE,
  file_index    INTEGER NOT NULL,
  path          TEXT    NOT NULL,
  action        INTEGER NOT NULL,           -- DeltaAction
  method        INTEGER NOT NULL,           -- MaterializeMethod expected at the target; 0: none
  logical_bytes INTEGER NOT NULL,
  warning       TEXT    NOT NULL DEFAULT '',
  PRIMARY KEY (preview_no, file_index)
) STRICT, WITHOUT ROWID;

CREATE TABLE archive_jobs (
  job_no            INTEGER PRIMARY KEY AUTOINCREMENT,
  id                BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  operation         INTEGER NOT NULL CHECK (operation BETWEEN 0 AND 3), -- 0 in a placeholder
  parent_job_no     INTEGER REFERENCES archive_jobs (job_no),
  source_daemon_no  INTEGER REFERENCES daemons (daemon_no),
  target_daemon_no  INTEGER REFERENCES daemons (daemon_no),
  route_no          INTEGER REFERENCES archive_routes (route_no),
  title             TEXT    NOT NULL,       -- display name of the resource
  request           TEXT    NOT NULL,       -- JSON: what the operator asked, evict_after included
  placeholder       INTEGER NOT NULL DEFAULT 0 CHECK (placeholder IN (0, 1)), -- made for a job that only a daemon knew
  definition        BLOB,                   -- JobDefinition; NULL before ASSIGNING and in a placeholder
  definition_sha256 TEXT,
  state             INTEGER NOT NULL,       -- JobState
  kept_state        INTEGER NOT NULL DEFAULT 0, -- WAITING: where it goes back to
  wait_reason       INTEGER NOT NULL DEFAULT 0,
  wait_detail       TEXT    NOT NULL DEFAULT '',
  retry_at          INTEGER,                -- next try of a WAITING job that time ends
  outcome           INTEGER NOT NULL DEFAULT 0, -- CANCELLING: CANCELLED or FAILED
  error             BLOB,                   -- ErrorDetail: why FAILED, CANCELLING or MANUAL
  revision          INTEGER NOT NULL DEFAULT 0,
  last_sequence     INTEGER NOT NULL DEFAULT 0,
  plan_position     INTEGER NOT NULL DEFAULT 0, -- index of the active step; number of completed ones
  step_attempt      INTEGER NOT NULL DEFAULT 0,
  step_failures     INTEGER NOT NULL DEFAULT 0, -- of the active step, counted against its allowance
  step_allowance    INTEGER NOT NULL DEFAULT 5,
  committed         INTEGER NOT NULL DEFAULT 0 CHECK (committed IN (0, 1)),
  undone            INTEGER NOT NULL DEFAULT 0 CHECK (undone IN (0, 1)), -- a participant has undone its part
  progress          BLOB,                   -- Progress of the last event that had one
  overall_permille  INTEGER NOT NULL DEFAULT 0, -- displayed; never below the completed steps
  moved_at          INTEGER,                -- last movement of a counter
  retain_until      INTEGER,                -- EVICT: earliest PURGE
  ended_by_person   INTEGER NOT NULL DEFAULT 0 CHECK (ended_by_person IN (0, 1)),
  created_by        TEXT    NOT NULL DEFAULT '',
  created_at        INTEGER NOT NULL,
  started_at        INTEGER,
  ended_at          INTEGER
) STRICT;

CREATE INDEX archive_jobs_open ON archive_jobs (state, job_no) WHERE state < 90;

-- The cursor of each participant as control knows it (P of the protocol) and what the daemon last said (K).
CREATE TABLE archive_participants (
  job_no                 INTEGER NOT NULL REFERENCES archive_jobs (job_no) ON DELETE CASCADE,
  daemon_no              INTEGER NOT NULL REFERENCES daemons (daemon_no),
  role                   INTEGER NOT NULL CHECK (role IN (1, 2)),
  revision               INTEGER NOT NULL DEFAULT 0, -- last that this daemon produced, or was given by an acknowledged command
  sequence               INTEGER NOT NULL DEFAULT 0,
  confirmed_revision     INTEGER NOT NULL DEFAULT 0, -- what control has confirmed to it
  confirmed_sequence     INTEGER NOT NULL DEFAULT 0,
  state                  INTEGER NOT NULL DEFAULT 0, -- JobState of the daemon
  committed              INTEGER NOT NULL DEFAULT 0 CHECK (committed IN (0, 1)),
  commit_evidence_sha256 TEXT    NOT NULL DEFAULT '',
  assigned               INTEGER NOT NULL DEFAULT 0 CHECK (assigned IN (0, 1)), -- acknowledged
  wound_down             INTEGER NOT NULL DEFAULT 0 CHECK (wound_down IN (0, 1)),
  closed                 INTEGER NOT NULL DEFAULT 0 CHECK (closed IN (0, 1)),   -- CloseJob or ABANDON acknowledged
  absent                 INTEGER NOT NULL DEFAULT 0 CHECK (absent IN (0, 1)),   -- it last said that it does not have the job
  expecting              INTEGER NOT NULL DEFAULT 0 CHECK (expecting IN (0, 1)), -- after a go-ahead, until the next event has come
  resuming               INTEGER NOT NULL DEFAULT 0 CHECK (resuming IN (0, 1)), -- a person resumed the job, and this one has not followed
  decided_generation     INTEGER NOT NULL DEFAULT 0, -- generation under which the job was decided (4.1); 0: not decided
  reported               BLOB,               -- JobCursor: K
  reported_at            INTEGER,
  state_epoch            BLOB,
  PRIMARY KEY (job_no, daemon_no, role)
) STRICT, WITHOUT ROWID;

CREATE INDEX archive_participants_by_daemon ON archive_participants (daemon_no, job_no);

-- Durable commands for daemons. The payload is the Command without its attempt.
CREATE TABLE daemon_commands (
  command_no        INTEGER PRIMARY KEY AUTOINCREMENT,
  id                BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  daemon_no         INTEGER NOT NULL REFERENCES daemons (daemon_no),
  job_no            INTEGER REFERENCES archive_jobs (job_no),
  kind              INTEGER NOT NULL,       -- field number of the operation in Command
  step              INTEGER NOT NULL DEFAULT 0,
  step_attempt      INTEGER NOT NULL DEFAULT 0,
  payload           BLOB    NOT NULL,
  payload_sha256    TEXT    NOT NULL,
  expected_revision INTEGER NOT NULL DEFAULT 0,
  expected_sequence INTEGER NOT NULL DEFAULT 0,
  attempts          INTEGER NOT NULL DEFAULT 0,
  allowance         INTEGER NOT NULL,
  state             TEXT    NOT NULL CHECK (state IN
                      ('pending', 'sent', 'parked', 'accepted', 'rejected', 'conflict', 'withdrawn', 'superseded', 'closed')),
  ack               BLOB,                   -- CommandAck
  lease             INTEGER NOT NULL DEFAULT 1, -- LeaseState
  issued_at         INTEGER NOT NULL,
  first_sent_at     INTEGER,
  last_sent_at      INTEGER,
  acked_at          INTEGER,
  closed_at         INTEGER
) STRICT;

CREATE UNIQUE INDEX daemon_commands_step ON daemon_commands (job_no, step, step_attempt) WHERE step_attempt > 0;
CREATE INDEX daemon_commands_open ON daemon_commands (daemon_no, command_no) WHERE state IN ('pending', 'sent', 'parked');
CREATE INDEX daemon_commands_by_job ON daemon_commands (job_no, command_no) WHERE job_no IS NOT NULL;

-- The delivery ledger of the archive plane: one row per attempt.
CREATE TABLE daemon_deliveries (
  delivery_no INTEGER PRIMARY KEY AUTOINCREMENT,
  command_no  INTEGER NOT NULL REFERENCES daemon_commands (command_no) ON DELETE CASCADE,
  attempt     INTEGER NOT NULL CHECK (attempt >= 1),
  generation  INTEGER NOT NULL,
  claimed_at  INTEGER NOT NULL,             -- written before the bytes leave
  sent_at     INTEGER,
  acked_at    INTEGER,
  outcome     TEXT    NOT NULL CHECK (outcome IN ('in_flight', 'send_failed', 'acked', 'superseded')),
  reason      TEXT    NOT NULL DEFAULT '',
  UNIQUE (command_no, attempt)
) STRICT;

CREATE TABLE archive_events (
  job_no      INTEGER NOT NULL REFERENCES archive_jobs (job_no) ON DELETE CASCADE,
  sequence    INTEGER NOT NULL CHECK (sequence >= 1),
  event_id    BLOB    NOT NULL CHECK (length(event_id) = 16),
  daemon_no   INTEGER NOT NULL REFERENCES daemons (daemon_no),
  command_no  INTEGER NOT NULL REFERENCES daemon_commands (command_no),
  kind        INTEGER NOT NULL,
  message     BLOB    NOT NULL,             -- JobEvent
  received_at INTEGER NOT NULL,
  PRIMARY KEY (job_no, sequence)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX archive_events_id ON archive_events (event_id);

-- Events under a command that was sent and is not yet acknowledged; at most 64 per job.
CREATE TABLE archive_events_aside (
  aside_no   INTEGER PRIMARY KEY AUTOINCREMENT,
  job_no     INTEGER NOT NULL REFERENCES archive_jobs (job_no) ON DELETE CASCADE,
  daemon_no  INTEGER NOT NULL REFERENCES daemons (daemon_no),
  generation INTEGER NOT NULL,
  sequence   INTEGER NOT NULL,
  message    BLOB    NOT NULL,
  UNIQUE (job_no, daemon_no, sequence)
) STRICT;

CREATE TABLE archive_evidence (
  job_no     INTEGER NOT NULL REFERENCES archive_jobs (job_no) ON DELETE CASCADE,
  step       INTEGER NOT NULL,
  command_no INTEGER NOT NULL REFERENCES daemon_commands (command_no),
  sha256     TEXT    NOT NULL,
  evidence   BLOB    NOT NULL,              -- StepEvidence
  stored_at  INTEGER NOT NULL,
  PRIMARY KEY (job_no, step)
) STRICT, WITHOUT ROWID;

-- What a job keeps for itself while it is active: an identity at a daemon, or a destination name.
CREATE TABLE archive_reservations (
  reservation_no INTEGER PRIMARY KEY AUTOINCREMENT,
  job_no         INTEGER NOT NULL REFERENCES archive_jobs (job_no) ON DELETE CASCADE,
  daemon_no      INTEGER NOT NULL REFERENCES daemons (daemon_no),
  kind           TEXT    NOT NULL CHECK (kind IN ('infohash_v1', 'infohash_v2', 'tree', 'resource', 'destination')),
  name           TEXT    NOT NULL,
  released_at    INTEGER
) STRICT;

CREATE UNIQUE INDEX archive_reservations_active ON archive_reservations (daemon_no, kind, name) WHERE released_at IS NULL;
CREATE INDEX archive_reservations_by_job ON archive_reservations (job_no);

-- Every change of a job, in order: its story, and the log that watchers resume from.
CREATE TABLE archive_timeline (
  entry_no   INTEGER PRIMARY KEY AUTOINCREMENT,
  job_no     INTEGER NOT NULL REFERENCES archive_jobs (job_no) ON DELETE CASCADE,
  daemon_no  INTEGER REFERENCES daemons (daemon_no),
  command_no INTEGER REFERENCES daemon_commands (command_no),
  at         INTEGER NOT NULL,
  event      TEXT    NOT NULL,              -- created, state, command, sent, acked, rejected, step, evidence, decision, alert …
  state      INTEGER NOT NULL,              -- JobState after it
  detail     TEXT    NOT NULL               -- JSON object
) STRICT;

CREATE INDEX archive_timeline_by_job ON archive_timeline (job_no, entry_no);

-- Inventory. A request is one view that control wants of a daemon; it takes one query a page. While a request is open its
-- chunks are staged; those of a content tree stay when it is complete, and the tree points to them.
CREATE TABLE inventory_requests (
  request_no  INTEGER PRIMARY KEY AUTOINCREMENT,
  id          BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  daemon_no   INTEGER NOT NULL REFERENCES daemons (daemon_no) ON DELETE CASCADE,
  scope       INTEGER NOT NULL,
  purpose     INTEGER NOT NULL,
  query       BLOB    NOT NULL,             -- InventoryQuery without its ID: what each query of the request starts from
  single      INTEGER NOT NULL CHECK (single IN (0, 1)), -- one page, not all of them
  state       TEXT    NOT NULL CHECK (state IN ('open', 'complete', 'failed')),
  faults      INTEGER NOT NULL DEFAULT 0,   -- begun anew because the answer was faulty
  restarts    INTEGER NOT NULL DEFAULT 0,   -- begun anew because the inventory changed
  first_query INTEGER NOT NULL DEFAULT 0,   -- query of the first page, since it was begun last
  state_epoch BLOB,
  revision    INTEGER,
  entries     INTEGER NOT NULL DEFAULT 0,   -- of complete pages
  next_page   TEXT    NOT NULL DEFAULT '',
  error       BLOB,                         -- ErrorDetail
  created_at  INTEGER NOT NULL,
  finished_at INTEGER
) STRICT;

CREATE INDEX inventory_requests_open ON inventory_requests (daemon_no) WHERE state = 'open';

CREATE TABLE inventory_queries (
  query_no         INTEGER PRIMARY KEY AUTOINCREMENT,
  id               BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  request_no       INTEGER NOT NULL REFERENCES inventory_requests (request_no) ON DELETE CASCADE,
  daemon_no        INTEGER NOT NULL,
  command_no       INTEGER NOT NULL,
  page             INTEGER NOT NULL,        -- from 0
  state            TEXT    NOT NULL CHECK (state IN ('open', 'complete', 'failed')),
  generation       INTEGER NOT NULL DEFAULT 0, -- of the connection that answers; 0: no answer yet
  snapshot_id      BLOB,
  revision         INTEGER NOT NULL DEFAULT 0,
  chunks           INTEGER NOT NULL DEFAULT 0, -- received of the snapshot
  entries          INTEGER NOT NULL DEFAULT 0,
  last_index       INTEGER NOT NULL DEFAULT -1, -- CONTENT_TREE: index of the last file
  content_revision TEXT    NOT NULL DEFAULT '',
  after_index      INTEGER NOT NULL DEFAULT -1, -- last_index and content_revision of the page before
  after_revision   TEXT    NOT NULL DEFAULT '',
  created_at       INTEGER NOT NULL,
  finished_at      INTEGER
) STRICT;

CREATE INDEX inventory_queries_by_request ON inventory_queries (request_no);
CREATE INDEX inventory_queries_by_command ON inventory_queries (command_no);
CREATE INDEX inventory_queries_open ON inventory_queries (daemon_no) WHERE state = 'open';

CREATE TABLE inventory_staging (
  request_no  INTEGER NOT NULL REFERENCES inventory_requests (request_no) ON DELETE CASCADE,
  query_no    INTEGER NOT NULL,
  chunk_index INTEGER NOT NULL,
  daemon_no   INTEGER NOT NULL,
  generation  INTEGER NOT NULL,
  snapshot_id BLOB    NOT NULL,
  entries     INTEGER NOT NULL,
  last_index  INTEGER NOT NULL,             -- CONTENT_TREE: highest file index so far
  chunk       BLOB    NOT NULL,             -- InventoryChunk
  PRIMARY KEY (request_no, query_no, chunk_index)
) STRICT;

-- The last complete view of each daemon.
CREATE TABLE daemon_views (
  daemon_no    INTEGER NOT NULL REFERENCES daemons (daemon_no) ON DELETE CASCADE,
  scope        INTEGER NOT NULL,
  state_epoch  BLOB    NOT NULL,
  revision     INTEGER NOT NULL,
  request_no   INTEGER NOT NULL,
  entries      INTEGER NOT NULL,
  committed_at INTEGER NOT NULL,
  PRIMARY KEY (daemon_no, scope)
) STRICT, WITHOUT ROWID;

CREATE TABLE daemon_resources (
  resource_no  INTEGER PRIMARY KEY AUTOINCREMENT,
  daemon_no    INTEGER NOT NULL REFERENCES daemons (daemon_no) ON DELETE CASCADE,
  resource_id  TEXT    NOT NULL,
  name         TEXT    NOT NULL,
  infohash_v1  TEXT    NOT NULL DEFAULT '',
  infohash_v2  TEXT    NOT NULL DEFAULT '',
  tree         TEXT    NOT NULL DEFAULT '',
  summary      BLOB    NOT NULL,            -- ResourceSummary
  revision     INTEGER NOT NULL,
  first_query  INTEGER NOT NULL,            -- of the request that saw it last
  absent       INTEGER NOT NULL DEFAULT 0 CHECK (absent IN (0, 1)), -- missing from a view that should have shown it
  seen_at      INTEGER NOT NULL,
  UNIQUE (daemon_no, resource_id)
) STRICT;

CREATE TABLE content_trees (
  tree_no          INTEGER PRIMARY KEY AUTOINCREMENT,
  daemon_no        INTEGER NOT NULL REFERENCES daemons (daemon_no) ON DELETE CASCADE,
  resource_id      TEXT    NOT NULL,
  content_revision TEXT    NOT NULL,
  header           BLOB    NOT NULL,        -- ContentTree without files
  files            INTEGER NOT NULL,
  state_epoch      BLOB    NOT NULL,
  revision         INTEGER NOT NULL,
  request_no       INTEGER NOT NULL REFERENCES inventory_requests (request_no), -- whose chunks hold the files
  fetched_at       INTEGER NOT NULL,
  UNIQUE (daemon_no, resource_id)
) STRICT;

CREATE INDEX content_trees_by_request ON content_trees (request_no);

CREATE TABLE daemon_storage (
  daemon_no   INTEGER NOT NULL REFERENCES daemons (daemon_no) ON DELETE CASCADE,
  root_id     TEXT    NOT NULL,
  entry       BLOB    NOT NULL,             -- StorageEntry
  seen_at     INTEGER NOT NULL,
  PRIMARY KEY (daemon_no, root_id)
) STRICT, WITHOUT ROWID;
