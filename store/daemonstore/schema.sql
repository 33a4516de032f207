-- The whole current schema of an archive daemon's database (daemon protocol 11).
--
-- Conventions: UUIDs are BLOB(16); times are INTEGER microseconds since 1970 UTC; enums are the numbers of the protocol;
-- messages are kept in deterministic protobuf binary form.

-- Facts about the database itself: epoch of its file.
CREATE TABLE meta (
  key   TEXT PRIMARY KEY NOT NULL,
  value BLOB NOT NULL
) STRICT;

-- Who this daemon is; one row, made with the database.
CREATE TABLE identity (
  one                INTEGER PRIMARY KEY CHECK (one = 1),
  client_id          BLOB    NOT NULL CHECK (length(client_id) = 16),
  state_epoch        BLOB    NOT NULL CHECK (length(state_epoch) = 16),
  last_generation    INTEGER NOT NULL DEFAULT 0,
  inventory_revision INTEGER NOT NULL DEFAULT 1,
  inventory_token    TEXT    NOT NULL DEFAULT '',
  reconnect_initial  INTEGER NOT NULL DEFAULT 0, -- microseconds; 0: control has not said
  reconnect_cap      INTEGER NOT NULL DEFAULT 0,
  stable_reset       INTEGER NOT NULL DEFAULT 0,
  max_active_cursors INTEGER NOT NULL DEFAULT 0,
  created_at         INTEGER NOT NULL
) STRICT;

-- Every command that was decided, with its answer.
CREATE TABLE commands (
  command_no INTEGER PRIMARY KEY,
  command_id BLOB    NOT NULL UNIQUE CHECK (length(command_id) = 16),
  job_id     BLOB    CHECK (length(job_id) = 16), -- NULL: no command of a job
  payload    BLOB    NOT NULL,
  digest     TEXT    NOT NULL CHECK (length(digest) = 64),
  unreadable INTEGER NOT NULL CHECK (unreadable IN (0, 1)),
  status     INTEGER NOT NULL,
  error      BLOB,
  decided_at INTEGER NOT NULL
) STRICT;

CREATE INDEX commands_job ON commands (job_id, command_no);

CREATE TABLE jobs (
  job_no                 INTEGER PRIMARY KEY,
  job_id                 BLOB    NOT NULL UNIQUE CHECK (length(job_id) = 16),
  definition             BLOB    NOT NULL,
  definition_sha256      TEXT    NOT NULL CHECK (length(definition_sha256) = 64),
  role                   INTEGER NOT NULL,
  revision               INTEGER NOT NULL,
  sequence               INTEGER NOT NULL,
  confirmed_revision     INTEGER NOT NULL,
  confirmed_sequence     INTEGER NOT NULL,
  trimmed_through        INTEGER NOT NULL,
  state                  INTEGER NOT NULL,
  committed              INTEGER NOT NULL CHECK (committed IN (0, 1)),
  commit_evidence_sha256 TEXT    NOT NULL,
  undone                 INTEGER NOT NULL CHECK (undone IN (0, 1)),
  ended                  INTEGER NOT NULL CHECK (ended IN (0, 1)),
  closing                INTEGER NOT NULL CHECK (closing IN (0, 1)), -- own files still to be removed
  ended_at               INTEGER,
  CHECK (ended = (ended_at IS NOT NULL)),
  CHECK (ended >= closing)
) STRICT;

CREATE INDEX jobs_active ON jobs (job_no) WHERE ended = 0;
CREATE INDEX jobs_closing ON jobs (job_no) WHERE closing = 1;
CREATE INDEX jobs_ended ON jobs (ended_at) WHERE ended = 1 AND closing = 0;

-- Leases, and retired command IDs that were never seen: those are refused when they come.
CREATE TABLE leases (
  lease_no     INTEGER PRIMARY KEY,
  command_id   BLOB    NOT NULL UNIQUE CHECK (length(command_id) = 16),
  job_id       BLOB    NOT NULL REFERENCES jobs (job_id),
  kind         INTEGER NOT NULL CHECK (kind IN (0, 1, 2)),
  step         INTEGER NOT NULL,
  attempt      INTEGER NOT NULL,
  state        INTEGER NOT NULL CHECK (state IN (2, 3, 4)), -- LeaseState OPEN, SETTLED, RETIRED
  started      INTEGER NOT NULL CHECK (started IN (0, 1)),
  end_sequence INTEGER NOT NULL
) STRICT;

CREATE INDEX leases_job ON leases (job_id, lease_no);
CREATE INDEX leases_open ON leases (job_id) WHERE state = 2;

-- Events; they stay until the job has ended on both sides, because a snapshot must be able to show them.
CREATE TABLE outbox (
  job_id     BLOB    NOT NULL REFERENCES jobs (job_id),
  sequence   INTEGER NOT NULL,
  command_id BLOB    NOT NULL,
  kind       INTEGER NOT NULL,
  step       INTEGER NOT NULL,
  event      BLOB    NOT NULL,
  sent       INTEGER NOT NULL CHECK (sent IN (0, 1)),
  acked      INTEGER NOT NULL CHECK (acked IN (0, 1)),
  PRIMARY KEY (job_id, sequence)
) STRICT;

CREATE INDEX outbox_unacked ON outbox (job_id, sequence) WHERE acked = 0;
CREATE INDEX outbox_lease ON outbox (command_id, sequence);

-- What jobs made, moved or are about to (7.6).
CREATE TABLE journal (
  job_id       BLOB    NOT NULL REFERENCES jobs (job_id),
  step         INTEGER NOT NULL,
  idx          INTEGER NOT NULL, -- file index; -1: no file of the tree
  name         TEXT    NOT NULL,
  root_id      TEXT    NOT NULL,
  temp_name    TEXT    NOT NULL,
  temp_root_id TEXT    NOT NULL,
  method       INTEGER NOT NULL,
  device       BLOB    NOT NULL, -- 8 bytes, big-endian: all 64 bits are in use
  inode        BLOB    NOT NULL,
  size         INTEGER NOT NULL,
  mtime_ns     INTEGER NOT NULL,
  sha256       TEXT    NOT NULL,
  state        TEXT    NOT NULL CHECK (state IN ('intent', 'built', 'published', 'rolled_back', 'trashed', 'removed')),
  detail       BLOB,
  PRIMARY KEY (job_id, step, idx, name)
) STRICT;

-- The durable decision to make a job's result effective (3.7).
CREATE TABLE commit_records (
  job_id        BLOB    PRIMARY KEY NOT NULL REFERENCES jobs (job_id),
  commit_id     BLOB    NOT NULL CHECK (length(commit_id) = 16),
  step          INTEGER NOT NULL,
  verify_sha256 TEXT    NOT NULL,
  action        BLOB,
  written_at    INTEGER NOT NULL
) STRICT;

CREATE TABLE routes (
  route_no            INTEGER PRIMARY KEY,
  route_id            BLOB    NOT NULL CHECK (length(route_id) = 16),
  side                INTEGER NOT NULL,
  route               BLOB    NOT NULL,
  creation_command_id BLOB    NOT NULL,
  command_id          BLOB    NOT NULL,
  probe_nonce         TEXT    NOT NULL,
  last_sequence       INTEGER NOT NULL,
  acked_sequence      INTEGER NOT NULL,
  state               INTEGER NOT NULL,
  remove_provisioned  INTEGER NOT NULL CHECK (remove_provisioned IN (0, 1)),
  UNIQUE (route_id, side)
) STRICT;

-- The newest updates of a route, and all that are not acknowledged: a snapshot shows them.
CREATE TABLE route_outbox (
  route_id    BLOB    NOT NULL,
  side        INTEGER NOT NULL,
  sequence    INTEGER NOT NULL,
  update_blob BLOB    NOT NULL,
  PRIMARY KEY (route_id, side, sequence),
  FOREIGN KEY (route_id, side) REFERENCES routes (route_id, side)
) STRICT;

-- Digests of content, valid while the file is unchanged.
CREATE TABLE hash_cache (
  device   BLOB    NOT NULL,
  inode    BLOB    NOT NULL,
  size     INTEGER NOT NULL,
  mtime_ns INTEGER NOT NULL,
  ctime_ns INTEGER NOT NULL,
  key      TEXT    NOT NULL, -- what was computed
  value    BLOB    NOT NULL,
  used_at  INTEGER NOT NULL,
  PRIMARY KEY (device, inode, key)
) STRICT;

CREATE INDEX hash_cache_used ON hash_cache (used_at);
