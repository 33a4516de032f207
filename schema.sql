-- The whole current schema of a Signalbox database: the source of truth that every migrated database is compared with.
--
-- Conventions: UUIDs are BLOB(16); times are INTEGER microseconds since 1970 UTC; JSON is kept as the TEXT that arrived.
-- Rows that others point at from hot tables carry a small INTEGER key ("_no") beside their public UUID. Hot tables are
-- keyed in arrival order, and every index on them leads with time or arrival order, never with a random value.
-- AUTOINCREMENT stands wherever a number is a position that somebody may hold: such a number is never handed out twice.

-- Facts about the database itself: epoch (identity of its logs), audit anchor.
CREATE TABLE meta (
  key   TEXT PRIMARY KEY NOT NULL,
  value BLOB NOT NULL
) STRICT;

-- ---------------------------------------------------------------------------------------------------------------------
-- Projects, agents, keys
-- ---------------------------------------------------------------------------------------------------------------------

CREATE TABLE projects (
  project_no              INTEGER PRIMARY KEY AUTOINCREMENT,
  id                      BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  slug                    TEXT    NOT NULL UNIQUE CHECK (length(slug) BETWEEN 3 AND 50),
  name                    TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  description             TEXT    CHECK (length(description) <= 2000),
  environment             TEXT    NOT NULL,
  timezone                TEXT    NOT NULL,
  retention_days          INTEGER NOT NULL CHECK (retention_days BETWEEN 1 AND 3650),
  is_active               INTEGER NOT NULL CHECK (is_active IN (0, 1)),
  default_scheduler_owner TEXT    NOT NULL,
  allowed_schedulers      TEXT,             -- JSON array of owner names; NULL: unrestricted
  created_at              INTEGER NOT NULL,
  updated_at              INTEGER NOT NULL
) STRICT;

CREATE TABLE agents (
  agent_no           INTEGER PRIMARY KEY AUTOINCREMENT,
  id                 BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  project_no         INTEGER NOT NULL REFERENCES projects (project_no),
  name               TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  token_hash         TEXT    NOT NULL UNIQUE CHECK (length(token_hash) = 64),
  protocol_version   TEXT    NOT NULL,
  framework_adapter  TEXT    NOT NULL,
  engine_adapters    TEXT    NOT NULL,      -- JSON array of strings
  scheduler_adapters TEXT    NOT NULL,      -- JSON array of strings
  capabilities       TEXT    NOT NULL,      -- JSON object: adapter -> array of strings
  state              TEXT    NOT NULL CHECK (state IN ('online', 'offline', 'unknown')),
  host               TEXT    NOT NULL,      -- JSON object of the last hello
  agent_version      TEXT,
  runtime_features   TEXT,                  -- JSON array of strings; NULL: never reported
  last_seen_at       INTEGER,
  last_connect_at    INTEGER,
  offline_since      INTEGER,               -- when the state last became offline; set exactly while it is
  revoked_at         INTEGER,
  created_at         INTEGER NOT NULL,
  updated_at         INTEGER NOT NULL,
  offline_told       INTEGER,               -- the offline_since that notifications have looked at: each period once
  CHECK ((state = 'offline') = (offline_since IS NOT NULL))
) STRICT;

-- A revoked agent frees its name.
CREATE UNIQUE INDEX agents_name ON agents (project_no, name) WHERE revoked_at IS NULL;
-- The liveness sweep reads only this.
CREATE INDEX agents_online ON agents (last_seen_at) WHERE state = 'online';
-- Offline periods that notifications have not looked at.
CREATE INDEX agents_untold ON agents (offline_since, agent_no)
  WHERE state = 'offline' AND revoked_at IS NULL AND offline_told IS NOT offline_since;

-- One row per worker slot of an agent (agent protocol B.5). worker_id '' is the legacy slot of agents that send none.
CREATE TABLE agent_workers (
  agent_worker_no INTEGER PRIMARY KEY AUTOINCREMENT,
  id              BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  agent_no        INTEGER NOT NULL REFERENCES agents (agent_no),
  worker_id       TEXT    NOT NULL,
  role            TEXT,
  framework       TEXT    NOT NULL,
  pid             INTEGER,
  started_at      INTEGER,
  state           TEXT    NOT NULL CHECK (state IN ('online', 'offline')),
  last_seen_at    INTEGER NOT NULL,
  last_connect_at INTEGER NOT NULL,
  created_at      INTEGER NOT NULL,
  updated_at      INTEGER NOT NULL,
  UNIQUE (agent_no, worker_id)
) STRICT;

-- History of agent_status frames (agent protocol D.3). payload is the frame's payload as it arrived.
CREATE TABLE agent_status (
  status_no   INTEGER PRIMARY KEY AUTOINCREMENT,
  agent_no    INTEGER NOT NULL REFERENCES agents (agent_no),
  captured_at INTEGER NOT NULL,
  received_at INTEGER NOT NULL,
  payload     TEXT    NOT NULL
) STRICT;

CREATE INDEX agent_status_by_agent ON agent_status (agent_no, status_no);

-- Telemetry the agent says it lost, the newest figures per buffer and runtime (agent protocol D.3 telemetry_loss).
CREATE TABLE telemetry_losses (
  agent_no    INTEGER NOT NULL REFERENCES agents (agent_no),
  buffer_id   TEXT    NOT NULL,
  runtime_id  TEXT    NOT NULL,
  payload     TEXT    NOT NULL,
  first_at    INTEGER NOT NULL,
  updated_at  INTEGER NOT NULL,
  PRIMARY KEY (agent_no, buffer_id, runtime_id)
) STRICT;

CREATE TABLE api_keys (
  api_key_no   INTEGER PRIMARY KEY AUTOINCREMENT,
  id           BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  name         TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  prefix       TEXT    NOT NULL,            -- first characters of the key, for people; too short to guess from
  key_hash     TEXT    NOT NULL UNIQUE CHECK (length(key_hash) = 64),
  role         TEXT    NOT NULL CHECK (role IN ('viewer', 'operator', 'admin', 'auditor')),
  scopes       TEXT    NOT NULL,            -- JSON array of strings
  project_no   INTEGER REFERENCES projects (project_no), -- NULL: every project
  created_by   TEXT    NOT NULL,
  created_at   INTEGER NOT NULL,
  expires_at   INTEGER,
  last_used_at INTEGER,
  revoked_at   INTEGER
) STRICT;

-- ---------------------------------------------------------------------------------------------------------------------
-- Events and what they say of tasks, workers and queues
-- ---------------------------------------------------------------------------------------------------------------------

CREATE TABLE tasks (
  task_no        INTEGER PRIMARY KEY AUTOINCREMENT,
  id             BLOB    NOT NULL CHECK (length(id) = 16), -- UUIDv7: in arrival order
  project_no     INTEGER NOT NULL REFERENCES projects (project_no),
  engine         TEXT    NOT NULL,
  task_id        TEXT    NOT NULL,
  name           TEXT    NOT NULL,
  queue          TEXT,
  state          TEXT    NOT NULL CHECK (state IN
                   ('pending', 'received', 'started', 'success', 'failure', 'retry', 'revoked', 'rejected', 'unknown')),
  priority       TEXT    NOT NULL CHECK (priority IN ('critical', 'high', 'normal', 'low')),
  args           TEXT,                      -- JSON as it arrived, redacted
  kwargs         TEXT,
  result         TEXT,
  exception      TEXT,
  traceback      TEXT,
  retry_count    INTEGER NOT NULL DEFAULT 0,
  eta            INTEGER,
  received_at    INTEGER,
  started_at     INTEGER,
  finished_at    INTEGER,
  runtime_ms     INTEGER,
  worker_name    TEXT,
  parent_task_id TEXT,
  root_task_id   TEXT,
  tags           TEXT    NOT NULL DEFAULT '[]',
  created_at     INTEGER NOT NULL,
  updated_at     INTEGER NOT NULL,
  UNIQUE (project_no, id)
) STRICT;

-- The identity of a task is the agent's: a lookup for every event cannot do without it, random as it is.
CREATE UNIQUE INDEX tasks_identity ON tasks (project_no, engine, task_id);
-- Few tasks fail, and failures are what people ask for.
CREATE INDEX tasks_failed ON tasks (project_no, id) WHERE state = 'failure';
-- Few tasks run at a time; those that run for too long are asked about.
CREATE INDEX tasks_started ON tasks (started_at) WHERE state = 'started';
CREATE INDEX tasks_root ON tasks (project_no, root_task_id) WHERE root_task_id IS NOT NULL;

-- The log of events, in arrival order. id is the identity of agent protocol D.5; being random it never leads an index.
CREATE TABLE events (
  event_no    INTEGER PRIMARY KEY AUTOINCREMENT,
  id          BLOB    NOT NULL CHECK (length(id) = 16),
  project_no  INTEGER NOT NULL REFERENCES projects (project_no),
  agent_no    INTEGER NOT NULL REFERENCES agents (agent_no),
  task_no     INTEGER,                      -- the task the event speaks of; NULL: none. Not a foreign key: tasks may be deleted before their events
  engine      TEXT    NOT NULL,
  task_id     TEXT    NOT NULL,
  kind        TEXT    NOT NULL,
  occurred_at INTEGER NOT NULL,
  time_replaced INTEGER NOT NULL DEFAULT 0 CHECK (time_replaced IN (0, 1)), -- occurred_at is ours: the agent's was unusable
  payload     TEXT    NOT NULL
) STRICT;

CREATE UNIQUE INDEX events_identity ON events (project_no, occurred_at, id);
-- Where the time was replaced, a replay would bring another one: identity without it (agent protocol L35).
CREATE UNIQUE INDEX events_replaced ON events (project_no, id) WHERE time_replaced = 1;
-- task_no grows with arrival, so this index grows at its end, unlike one on the task's own random id.
CREATE INDEX events_of_task ON events (task_no, event_no) WHERE task_no IS NOT NULL;

CREATE TABLE workers (
  worker_no      INTEGER PRIMARY KEY AUTOINCREMENT,
  id             BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  project_no     INTEGER NOT NULL REFERENCES projects (project_no),
  engine         TEXT    NOT NULL,
  name           TEXT    NOT NULL,
  hostname       TEXT,
  pid            INTEGER,
  concurrency    INTEGER,
  queues         TEXT    NOT NULL DEFAULT '[]',
  state          TEXT    NOT NULL CHECK (state IN ('online', 'offline', 'draining', 'unknown')),
  last_heartbeat INTEGER,
  load_average   TEXT,                      -- JSON as reported
  active_tasks   INTEGER NOT NULL DEFAULT 0,
  processed      INTEGER NOT NULL DEFAULT 0,
  failed         INTEGER NOT NULL DEFAULT 0,
  succeeded      INTEGER NOT NULL DEFAULT 0,
  retried        INTEGER NOT NULL DEFAULT 0,
  metadata       TEXT    NOT NULL DEFAULT '{}',
  created_at     INTEGER NOT NULL,
  updated_at     INTEGER NOT NULL,
  UNIQUE (project_no, engine, name)
) STRICT;

CREATE TABLE queues (
  queue_no        INTEGER PRIMARY KEY AUTOINCREMENT,
  id              BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  project_no      INTEGER NOT NULL REFERENCES projects (project_no),
  engine          TEXT    NOT NULL,
  name            TEXT    NOT NULL,
  broker_type     TEXT,
  broker_url_hint TEXT,
  pending_count   INTEGER,
  last_seen_at    INTEGER NOT NULL,
  created_at      INTEGER NOT NULL,
  UNIQUE (project_no, engine, name)
) STRICT;

-- ---------------------------------------------------------------------------------------------------------------------
-- Commands
-- ---------------------------------------------------------------------------------------------------------------------

CREATE TABLE commands (
  command_no      INTEGER PRIMARY KEY AUTOINCREMENT,
  id              BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  project_no      INTEGER NOT NULL REFERENCES projects (project_no),
  agent_no        INTEGER REFERENCES agents (agent_no),
  issued_by       TEXT    CHECK (length(issued_by) <= 64),
  action          TEXT    NOT NULL CHECK (length(action) BETWEEN 1 AND 80),
  target_type     TEXT    NOT NULL CHECK (length(target_type) BETWEEN 1 AND 40),
  target_id       TEXT    CHECK (length(target_id) <= 200),
  payload         TEXT    NOT NULL,         -- JSON object, canonical
  retry_engine    TEXT,                     -- engine whose retry contract the receiver must state; set for the retry family only
  idempotency_key TEXT    CHECK (length(idempotency_key) BETWEEN 1 AND 200),
  status          TEXT    NOT NULL CHECK (status IN
                    ('pending', 'dispatched', 'completed', 'failed', 'timeout', 'cancelled')),
  result          TEXT,
  error           TEXT    CHECK (length(error) <= 1024),
  issued_at       INTEGER NOT NULL,
  dispatched_at   INTEGER,
  acked_at        INTEGER,
  completed_at    INTEGER,
  timeout_at      INTEGER NOT NULL,
  source_ip       TEXT,
  parent_no INTEGER, -- the bulk retry that a child belongs to; not a foreign key: retention removes both
  CHECK ((status IN ('completed', 'failed', 'timeout', 'cancelled')) = (completed_at IS NOT NULL)),
  CHECK (status <> 'dispatched' OR dispatched_at IS NOT NULL)
) STRICT;

CREATE UNIQUE INDEX commands_idempotency ON commands (project_no, idempotency_key) WHERE idempotency_key IS NOT NULL;
-- What an agent may still take; small, for terminal rows leave it.
CREATE INDEX commands_open ON commands (agent_no, issued_at, command_no) WHERE status IN ('pending', 'dispatched');
CREATE INDEX commands_deadline ON commands (timeout_at) WHERE status IN ('pending', 'dispatched');
CREATE INDEX commands_by_project ON commands (project_no, command_no);
-- Children of a bulk retry are claimed before anything else.
CREATE INDEX commands_children ON commands (agent_no, issued_at, command_no) WHERE parent_no IS NOT NULL AND status = 'pending';

-- The delivery ledger: one row per attempt to hand a command over.
CREATE TABLE deliveries (
  delivery_no INTEGER PRIMARY KEY AUTOINCREMENT,
  command_no  INTEGER NOT NULL REFERENCES commands (command_no) ON DELETE CASCADE,
  attempt     INTEGER NOT NULL CHECK (attempt >= 1),
  transport   TEXT    NOT NULL CHECK (transport IN ('ws', 'longpoll')),
  session_id  TEXT    NOT NULL,
  worker_id   TEXT    NOT NULL,
  claimed_at  INTEGER NOT NULL,
  sent_at     INTEGER,                      -- when the frame was given to the socket or the response; NULL: not known to be
  acked_at    INTEGER,
  finished_at INTEGER,
  outcome     TEXT    NOT NULL CHECK (outcome IN
                ('in_flight', 'send_failed', 'sign_failed', 'acked', 'success', 'failed', 'superseded', 'timeout')),
  reason      TEXT,
  UNIQUE (command_no, attempt),
  CHECK ((outcome IN ('in_flight', 'acked')) = (finished_at IS NULL))
) STRICT;

-- Every change of a command, in order: the timeline of `explain` and the log that watchers resume from.
CREATE TABLE command_transitions (
  transition_no INTEGER PRIMARY KEY AUTOINCREMENT,
  command_no    INTEGER NOT NULL REFERENCES commands (command_no) ON DELETE CASCADE,
  project_no    INTEGER NOT NULL REFERENCES projects (project_no),
  at            INTEGER NOT NULL,
  event         TEXT    NOT NULL CHECK (event IN ('issued', 'claimed', 'redelivered', 'reverted', 'acked', 'completed',
                  'failed', 'timeout', 'cancelled', 'late_result')),
  status        TEXT    NOT NULL,
  detail        TEXT
) STRICT;

CREATE INDEX command_transitions_of_command ON command_transitions (command_no, transition_no);

-- ---------------------------------------------------------------------------------------------------------------------
-- Audit
-- ---------------------------------------------------------------------------------------------------------------------

-- Chained: mac covers the row's content and the mac of the row before it. meta 'audit_anchor' holds number and mac of
-- the last row that retention removed.
CREATE TABLE audit_log (
  audit_no    INTEGER PRIMARY KEY AUTOINCREMENT,
  event_id    BLOB    NOT NULL CHECK (length(event_id) = 16),
  project_no  INTEGER REFERENCES projects (project_no),
  user_id     TEXT,
  action      TEXT    NOT NULL,
  target_type TEXT    NOT NULL,
  target_id   TEXT,
  result      TEXT    NOT NULL,
  outcome     TEXT    NOT NULL CHECK (outcome IN ('allow', 'deny', 'error', 'failure')),
  metadata    TEXT    NOT NULL,             -- JSON object
  source_ip   TEXT,
  user_agent  TEXT,
  occurred_at INTEGER NOT NULL,
  key_id      TEXT    NOT NULL,             -- names the chain key, never reveals it
  mac         BLOB    NOT NULL CHECK (length(mac) = 32)
) STRICT;

CREATE INDEX audit_by_project ON audit_log (project_no, audit_no);

-- ---------------------------------------------------------------------------------------------------------------------
-- Rooms: people, room agents, registration keys
-- ---------------------------------------------------------------------------------------------------------------------

CREATE TABLE people (
  person_no      INTEGER PRIMARY KEY AUTOINCREMENT,
  id             BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  -- operator: the one whoever holds the admin socket or an API key speaks as unless told otherwise;
  -- bootstrap: owner of what bootstrap keys register. Neither signs in unless given a password.
  kind           TEXT    NOT NULL CHECK (kind IN ('person', 'operator', 'bootstrap')),
  name           TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  email          TEXT    NOT NULL UNIQUE CHECK (email = lower(email)),
  password_hash  TEXT,                      -- argon2id in PHC form; NULL: cannot sign in
  role           TEXT    NOT NULL CHECK (role IN ('user', 'admin')),
  sessions_after INTEGER NOT NULL,          -- cookies issued before are void
  disabled_at    INTEGER,
  created_at     INTEGER NOT NULL,
  updated_at     INTEGER NOT NULL,
  CHECK (kind <> 'bootstrap' OR role = 'user')
) STRICT;

CREATE UNIQUE INDEX people_operator ON people (kind) WHERE kind <> 'person';

-- Keys that register agents (rooms protocol A.1); what they register belongs to person_no.
CREATE TABLE registration_keys (
  registration_key_no INTEGER PRIMARY KEY AUTOINCREMENT,
  id                  BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  kind                TEXT    NOT NULL CHECK (kind IN ('registration', 'bootstrap')),
  label               TEXT    NOT NULL CHECK (length(label) <= 200),
  key_hash            TEXT    NOT NULL UNIQUE CHECK (length(key_hash) = 64),
  person_no           INTEGER NOT NULL REFERENCES people (person_no),
  created_at          INTEGER NOT NULL,
  revoked_at          INTEGER
) STRICT;

CREATE TABLE room_agents (
  room_agent_no    INTEGER PRIMARY KEY AUTOINCREMENT,
  id               BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  name             TEXT    NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 200),
  owner_no         INTEGER REFERENCES people (person_no),      -- NULL: reaches only what is public
  parent_no        INTEGER REFERENCES room_agents (room_agent_no) ON DELETE SET NULL,
  agent_type       TEXT,                    -- known type it was registered as; NULL: its own profile
  description      TEXT    NOT NULL,
  display_name     TEXT,
  icon_url         TEXT,
  connector_type   TEXT    NOT NULL,
  connection_model TEXT    NOT NULL CHECK (connection_model IN
                     ('always_on', 'session_addressable', 'session_passive', 'auto_session')),
  profile          TEXT    NOT NULL,        -- JSON object: integration_profile
  tools            TEXT    NOT NULL,        -- JSON arrays and object as they arrived
  models           TEXT    NOT NULL,
  metadata         TEXT    NOT NULL,
  key_hash         TEXT    NOT NULL UNIQUE CHECK (length(key_hash) = 64),
  policy           TEXT,                    -- JSON {"rules":[...]}; NULL: anybody may address it
  -- The numbering of its events (rooms protocol E.1, N). The last number issued is the newest retained event, or head
  -- when that is higher: whatever removes the newest event raises head first. So an event costs no write here.
  head             INTEGER NOT NULL DEFAULT 0 CHECK (head >= 0),
  floor            INTEGER NOT NULL DEFAULT 0, -- first number issued since the database was restored; 0: never was
  holes            INTEGER NOT NULL DEFAULT 0 CHECK (holes >= 0), -- numbers missing from oldest retained event to last issued
  key_set_at       INTEGER NOT NULL,
  created_at       INTEGER NOT NULL,
  updated_at       INTEGER NOT NULL
) STRICT;

CREATE INDEX room_agents_owner ON room_agents (owner_no);

-- ---------------------------------------------------------------------------------------------------------------------
-- Rooms, who is in them, what is said
-- ---------------------------------------------------------------------------------------------------------------------

CREATE TABLE room_groups (
  room_group_no INTEGER PRIMARY KEY AUTOINCREMENT,
  id            BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  name          TEXT    NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 200),
  description   TEXT    NOT NULL,
  owner_no      INTEGER REFERENCES people (person_no),
  created_at    INTEGER NOT NULL
) STRICT;

CREATE TABLE rooms (
  room_no          INTEGER PRIMARY KEY AUTOINCREMENT,
  id               BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  name             TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  description      TEXT    NOT NULL,
  instructions     TEXT    NOT NULL,
  channel_type     TEXT    NOT NULL CHECK (channel_type IN ('channel_public', 'channel_private', 'direct', 'group', 'lobby')),
  chat             INTEGER NOT NULL CHECK (chat IN (0, 1)),    -- opened as a chat by a person (rooms protocol I)
  owner_no         INTEGER REFERENCES people (person_no),
  room_group_no    INTEGER REFERENCES room_groups (room_group_no),
  read_visibility  TEXT    NOT NULL CHECK (read_visibility IN ('public', 'private')),
  write_visibility TEXT    NOT NULL CHECK (write_visibility IN ('public', 'private')),
  internal_only    INTEGER NOT NULL CHECK (internal_only IN (0, 1)),
  last_position    INTEGER NOT NULL DEFAULT 0,                 -- of its log
  -- Random, and new whenever something changes that decides about receivers (the triggers below): what was read of a
  -- room is good for as long as this is the same, also across a rollback.
  cast_revision    INTEGER NOT NULL DEFAULT (random()),
  archived_at      INTEGER,
  deleted_at       INTEGER,                 -- members and events are gone; its log is being removed
  created_at       INTEGER NOT NULL,
  updated_at       INTEGER NOT NULL,
  CHECK (write_visibility = 'private' OR read_visibility = 'public')
) STRICT;

CREATE INDEX rooms_deleted ON rooms (room_no) WHERE deleted_at IS NOT NULL;

CREATE TABLE room_members (
  room_no         INTEGER NOT NULL REFERENCES rooms (room_no),
  room_agent_no   INTEGER NOT NULL REFERENCES room_agents (room_agent_no),
  alias           TEXT    COLLATE NOCASE,
  listening       INTEGER NOT NULL CHECK (listening IN (0, 1)), -- joins of others are notifiable for it
  joined_position INTEGER NOT NULL,         -- items after it are queued for the agent
  joined_at       INTEGER NOT NULL,
  PRIMARY KEY (room_no, room_agent_no),
  UNIQUE (room_no, alias)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX room_members_by_agent ON room_members (room_agent_no, room_no);

CREATE TABLE room_people (
  room_no         INTEGER NOT NULL REFERENCES rooms (room_no),
  person_no       INTEGER NOT NULL REFERENCES people (person_no),
  manager         INTEGER NOT NULL CHECK (manager IN (0, 1)),
  joined_position INTEGER NOT NULL,
  joined_at       INTEGER NOT NULL,
  PRIMARY KEY (room_no, person_no)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX room_people_by_person ON room_people (person_no, room_no);

CREATE TABLE room_roles (
  room_role_no INTEGER PRIMARY KEY AUTOINCREMENT,
  room_no      INTEGER NOT NULL REFERENCES rooms (room_no),
  name         TEXT    NOT NULL COLLATE NOCASE CHECK (length(name) BETWEEN 1 AND 200),
  exclusive    INTEGER NOT NULL CHECK (exclusive IN (0, 1)),
  instructions TEXT    NOT NULL,
  created_at   INTEGER NOT NULL,
  updated_at   INTEGER NOT NULL,
  UNIQUE (room_no, name)
) STRICT;

-- The log of each room, kept once however many agents an item is queued for.
CREATE TABLE room_items (
  item_no        INTEGER PRIMARY KEY AUTOINCREMENT,
  room_no        INTEGER NOT NULL REFERENCES rooms (room_no),
  position       INTEGER NOT NULL,          -- in its room, from 1
  id             BLOB    NOT NULL UNIQUE CHECK (length(id) = 16), -- UUIDv7
  kind           TEXT    NOT NULL CHECK (kind IN ('message', 'command', 'room_join')),
  sender_kind    TEXT    NOT NULL CHECK (sender_kind IN ('agent', 'person', 'platform')),
  sender_no      INTEGER NOT NULL,          -- room_agent_no or person_no, also when that is gone; 0 for the platform
  sender_id      TEXT    NOT NULL,          -- participant id on the wire
  sender_name    TEXT    NOT NULL CHECK (length(sender_name) > 0), -- as shown then
  on_behalf_of   TEXT,
  body           TEXT    NOT NULL,          -- a command as it was typed; '' for room_join
  thread_root_no INTEGER REFERENCES room_items (item_no),
  attachments    TEXT,                      -- JSON array as on the wire; NULL: none
  automatic      INTEGER NOT NULL CHECK (automatic IN (0, 1)), -- an answer of the server: addresses nobody, gets no answer
  request_id     TEXT,                      -- the poster's idempotency key
  request_digest BLOB    CHECK (length(request_digest) = 32),
  created_at     INTEGER NOT NULL,
  UNIQUE (room_no, position),
  CHECK ((request_id IS NULL) = (request_digest IS NULL))
) STRICT;

CREATE UNIQUE INDEX room_items_request ON room_items (room_no, sender_kind, sender_no, request_id) WHERE request_id IS NOT NULL;
CREATE INDEX room_items_thread ON room_items (thread_root_no, item_no) WHERE thread_root_no IS NOT NULL;

-- What waits for each agent: the place in its numbering and what was decided for it when it was queued. Reads are one
-- range of the key.
CREATE TABLE room_events (
  room_agent_no INTEGER NOT NULL,
  sequence      INTEGER NOT NULL CHECK (sequence BETWEEN 1 AND 9007199254740991),
  item_no       INTEGER NOT NULL,
  room_no       INTEGER NOT NULL,
  kind          INTEGER NOT NULL CHECK (kind BETWEEN 1 AND 3), -- 1 message, 2 command, 3 room_join
  flag          INTEGER NOT NULL CHECK (flag IN (0, 1)),       -- addressed of a message, listening of a join
  command       TEXT,                       -- JSON [name, args] of a command
  queued_at     INTEGER NOT NULL,
  PRIMARY KEY (room_agent_no, sequence),
  CHECK ((kind = 2) = (command IS NOT NULL))
) STRICT, WITHOUT ROWID;

-- The highest number per agent and room that retention dropped (rooms protocol E.3).
CREATE TABLE room_dropped (
  room_agent_no   INTEGER NOT NULL,
  room_no         INTEGER NOT NULL,
  dropped_through INTEGER NOT NULL,
  PRIMARY KEY (room_agent_no, room_no)
) STRICT, WITHOUT ROWID;

-- ---------------------------------------------------------------------------------------------------------------------
-- What a room gives its agents: links, references, documents, files
-- ---------------------------------------------------------------------------------------------------------------------

CREATE TABLE room_links (
  room_link_no   INTEGER PRIMARY KEY AUTOINCREMENT,
  room_no        INTEGER NOT NULL REFERENCES rooms (room_no),
  target_room_no INTEGER NOT NULL REFERENCES rooms (room_no),
  label          TEXT    NOT NULL,
  created_at     INTEGER NOT NULL,
  UNIQUE (room_no, target_room_no),
  CHECK (room_no <> target_room_no)
) STRICT;

CREATE INDEX room_links_target ON room_links (target_room_no);

CREATE TABLE room_references (
  room_reference_no INTEGER PRIMARY KEY AUTOINCREMENT,
  id                BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  type              TEXT    NOT NULL,
  name              TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  description       TEXT    NOT NULL,
  instructions      TEXT    NOT NULL,
  value             TEXT    NOT NULL,
  owner_no          INTEGER REFERENCES people (person_no),
  read_visibility   TEXT    NOT NULL CHECK (read_visibility IN ('public', 'private')),
  write_visibility  TEXT    NOT NULL CHECK (write_visibility IN ('public', 'private')),
  created_at        INTEGER NOT NULL,
  updated_at        INTEGER NOT NULL,
  CHECK (write_visibility = 'private' OR read_visibility = 'public')
) STRICT;

CREATE TABLE room_reference_uses (
  room_no           INTEGER NOT NULL REFERENCES rooms (room_no),
  room_reference_no INTEGER NOT NULL REFERENCES room_references (room_reference_no),
  PRIMARY KEY (room_no, room_reference_no)
) STRICT, WITHOUT ROWID;

CREATE INDEX room_reference_uses_by_reference ON room_reference_uses (room_reference_no);

CREATE TABLE room_documents (
  room_document_no INTEGER PRIMARY KEY AUTOINCREMENT,
  id               BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  room_no          INTEGER NOT NULL REFERENCES rooms (room_no),
  name             TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  description      TEXT    NOT NULL,
  instructions     TEXT    NOT NULL,
  scope            TEXT    NOT NULL CHECK (scope IN ('room', 'agent')), -- agent: for the agent that made it
  content          TEXT    NOT NULL CHECK (length(CAST(content AS BLOB)) <= 1048576),
  created_by       BLOB    CHECK (length(created_by) = 16),    -- id of the agent; NULL: a person
  created_at       INTEGER NOT NULL,
  updated_at       INTEGER NOT NULL
) STRICT;

CREATE INDEX room_documents_by_room ON room_documents (room_no, room_document_no);

-- Files of messages. The bytes are beside the database, named by their digest, and may be shared by rows.
CREATE TABLE room_media (
  room_media_no INTEGER PRIMARY KEY AUTOINCREMENT,
  id            BLOB    NOT NULL UNIQUE CHECK (length(id) = 16), -- the media key on the wire
  room_no       INTEGER NOT NULL REFERENCES rooms (room_no),
  sha256        BLOB    NOT NULL CHECK (length(sha256) = 32),
  size          INTEGER NOT NULL CHECK (size > 0),
  mimetype      TEXT    NOT NULL,
  filename      TEXT    NOT NULL,
  sender_kind   TEXT    NOT NULL CHECK (sender_kind IN ('agent', 'person')),
  sender_no     INTEGER NOT NULL,
  created_at    INTEGER NOT NULL
) STRICT;

CREATE INDEX room_media_by_content ON room_media (sha256);
CREATE INDEX room_media_by_room ON room_media (room_no);

CREATE TRIGGER room_members_added AFTER INSERT ON room_members BEGIN
  UPDATE rooms SET cast_revision = random() WHERE room_no = NEW.room_no;
END;

CREATE TRIGGER room_members_changed AFTER UPDATE ON room_members BEGIN
  UPDATE rooms SET cast_revision = random() WHERE room_no = NEW.room_no;
END;

CREATE TRIGGER room_members_removed AFTER DELETE ON room_members BEGIN
  UPDATE rooms SET cast_revision = random() WHERE room_no = OLD.room_no;
END;

CREATE TRIGGER room_roles_added AFTER INSERT ON room_roles BEGIN
  UPDATE rooms SET cast_revision = random() WHERE room_no = NEW.room_no;
END;

CREATE TRIGGER room_roles_changed AFTER UPDATE ON room_roles BEGIN
  UPDATE rooms SET cast_revision = random() WHERE room_no = NEW.room_no;
END;

CREATE TRIGGER room_roles_removed AFTER DELETE ON room_roles BEGIN
  UPDATE rooms SET cast_revision = random() WHERE room_no = OLD.room_no;
END;

CREATE TRIGGER room_agents_changed AFTER UPDATE OF name, owner_no, connection_model, profile, policy ON room_agents BEGIN
  UPDATE rooms SET cast_revision = random()
  WHERE room_no IN (SELECT room_no FROM room_members WHERE room_agent_no = NEW.room_agent_no);
END;

CREATE TRIGGER rooms_changed AFTER UPDATE OF name, channel_type, room_group_no, archived_at, deleted_at ON rooms BEGIN
  UPDATE rooms SET cast_revision = random() WHERE room_no = NEW.room_no;
END;

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

-- ---------------------------------------------------------------------------------------------------------------------
-- Schedules and fires (agent protocol G)
-- ---------------------------------------------------------------------------------------------------------------------

CREATE TABLE schedules (
  schedule_no     INTEGER PRIMARY KEY AUTOINCREMENT,
  id              BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  project_no      INTEGER NOT NULL REFERENCES projects (project_no),
  engine          TEXT    NOT NULL CHECK (length(engine) BETWEEN 1 AND 40),
  scheduler       TEXT    NOT NULL CHECK (length(scheduler) BETWEEN 1 AND 40),
  name            TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  task_name       TEXT    NOT NULL CHECK (length(task_name) BETWEEN 1 AND 500),
  kind            TEXT    NOT NULL CHECK (kind IN ('cron', 'interval', 'solar', 'clocked')),
  expression      TEXT    NOT NULL CHECK (length(expression) BETWEEN 1 AND 1024),
  timezone        TEXT    NOT NULL CHECK (length(timezone) BETWEEN 1 AND 64),
  queue           TEXT    CHECK (length(queue) BETWEEN 1 AND 200),
  priority        TEXT    NOT NULL CHECK (priority IN ('critical', 'high', 'normal', 'low')),
  args            TEXT    NOT NULL,         -- JSON array as it came
  kwargs          TEXT    NOT NULL,         -- JSON object as it came
  is_enabled      INTEGER NOT NULL CHECK (is_enabled IN (0, 1)),
  catch_up        TEXT    NOT NULL CHECK (catch_up IN ('skip', 'fire_one_missed', 'fire_all_missed')),
  external_id     TEXT    CHECK (length(external_id) <= 200),
  source          TEXT    NOT NULL CHECK (length(source) <= 64),
  source_hash     TEXT    CHECK (length(source_hash) <= 128),
  anchor_at       INTEGER NOT NULL,         -- where an interval counts from; slots lie strictly after it
  decided_at      INTEGER NOT NULL,         -- the last slot that was decided (fired or skipped), at first anchor_at: the next lies after it
  next_run_at     INTEGER,                  -- the next slot; NULL: there is none, or the schedule is disabled
  last_run_at     INTEGER,                  -- scheduled_for of the last fire
  total_runs      INTEGER NOT NULL DEFAULT 0,
  consecutive_failures INTEGER NOT NULL DEFAULT 0,
  disabled_reason TEXT,                     -- why it was disabled by itself, such as the circuit breaker; NULL: by a person or not at all
  created_at      INTEGER NOT NULL,
  updated_at      INTEGER NOT NULL,
  deleted_at      INTEGER,                  -- it is gone for everybody: its history goes in slices, and the row after it
  CHECK (is_enabled = 1 OR next_run_at IS NULL),
  CHECK (is_enabled = 0 OR deleted_at IS NULL)
) STRICT;
CREATE UNIQUE INDEX schedules_name ON schedules (project_no, scheduler, name) WHERE deleted_at IS NULL;
CREATE INDEX schedules_deleted ON schedules (deleted_at) WHERE deleted_at IS NOT NULL;
-- What is due, and when the next one will be.
CREATE INDEX schedules_due ON schedules (next_run_at) WHERE next_run_at IS NOT NULL;
CREATE INDEX schedules_by_name ON schedules (project_no, name, id) WHERE deleted_at IS NULL;

-- Slots that were not fired, and why: a misfire is never silent.
CREATE TABLE schedule_misfires (
  misfire_no  INTEGER PRIMARY KEY AUTOINCREMENT,
  schedule_no INTEGER NOT NULL REFERENCES schedules (schedule_no) ON DELETE CASCADE,
  at          INTEGER NOT NULL,             -- when it was decided
  first_slot  INTEGER NOT NULL,
  last_slot   INTEGER NOT NULL,
  slots       INTEGER NOT NULL CHECK (slots >= 1),
  reason      TEXT    NOT NULL CHECK (reason IN ('catch_up_skip', 'catch_up_one', 'catch_up_cap'))
) STRICT;
CREATE INDEX schedule_misfires_of_schedule ON schedule_misfires (schedule_no, misfire_no);
CREATE INDEX schedule_misfires_by_time ON schedule_misfires (at);

-- Fire history (agent protocol G.5).
CREATE TABLE fires (
  fire_no       INTEGER PRIMARY KEY AUTOINCREMENT,
  id            BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  fire_id       BLOB    NOT NULL UNIQUE CHECK (length(fire_id) = 16), -- what the agent de-duplicates by
  schedule_no   INTEGER NOT NULL REFERENCES schedules (schedule_no) ON DELETE CASCADE,
  project_no    INTEGER NOT NULL REFERENCES projects (project_no),
  origin        TEXT    NOT NULL CHECK (origin IN ('slot', 'catch_up', 'trigger')),
  slot_at       INTEGER,                    -- the slot it belongs to; NULL: triggered by hand
  command_id    BLOB    CHECK (length(command_id) = 16), -- of the newest schedule.fire command; not a foreign key: commands are pruned earlier
  command_no    INTEGER,
  status        TEXT    NOT NULL CHECK (status IN
                  ('pending', 'accepted', 'buffered', 'delivered', 'failed', 'acked_success', 'acked_failed', 'buffer_expired')),
  scheduled_for INTEGER NOT NULL,
  fired_at      INTEGER NOT NULL,
  acked_at      INTEGER,
  latency_ms    INTEGER,
  finished_at   INTEGER,                    -- when it came to failed, acked_* or buffer_expired
  error_code    TEXT    CHECK (length(error_code) <= 64),
  error_message TEXT    CHECK (length(error_message) <= 2000),
  CHECK ((origin = 'trigger') = (slot_at IS NULL))
) STRICT;
-- One fire for each slot, whatever restarts or does the clock.
CREATE UNIQUE INDEX fires_slot ON fires (schedule_no, slot_at) WHERE slot_at IS NOT NULL;
-- Lists, newest first, of all and of a status: few may have it among millions.
CREATE INDEX fires_of_schedule ON fires (schedule_no, fired_at);
CREATE INDEX fires_of_schedule_by_status ON fires (schedule_no, status, fired_at);
CREATE INDEX fires_by_time ON fires (project_no, fired_at);
CREATE INDEX fires_by_status ON fires (project_no, status, fired_at);
CREATE INDEX fires_of_command ON fires (command_no) WHERE command_no IS NOT NULL;

-- Fires that wait for an eligible agent (agent protocol G.4).
CREATE TABLE pending_fires (
  pending_fire_no INTEGER PRIMARY KEY AUTOINCREMENT,
  id              BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  fire_no         INTEGER NOT NULL UNIQUE REFERENCES fires (fire_no) ON DELETE CASCADE,
  schedule_no     INTEGER NOT NULL REFERENCES schedules (schedule_no) ON DELETE CASCADE,
  project_no      INTEGER NOT NULL REFERENCES projects (project_no),
  engine          TEXT    NOT NULL,
  payload         TEXT    NOT NULL,
  scheduled_for   INTEGER NOT NULL,
  enqueued_at     INTEGER NOT NULL,
  expires_at      INTEGER NOT NULL
) STRICT;
CREATE INDEX pending_fires_replay ON pending_fires (project_no, engine, scheduled_for);
CREATE INDEX pending_fires_expiry ON pending_fires (expires_at);
-- Which one of a schedule is the newest.
CREATE INDEX pending_fires_of_schedule ON pending_fires (schedule_no, engine, scheduled_for);

-- Engines that an operator declared for an agent that reports none (long-poll): off unless declared.
CREATE TABLE declared_engines (
  agent_no    INTEGER NOT NULL REFERENCES agents (agent_no),
  engine      TEXT    NOT NULL CHECK (length(engine) BETWEEN 1 AND 40),
  declared_by TEXT,
  declared_at INTEGER NOT NULL,
  PRIMARY KEY (agent_no, engine)
) STRICT;

-- ---------------------------------------------------------------------------------------------------------------------
-- Durable bulk retry: one parent command, one child command per task (agent protocol E.9, F.6, L14)
-- ---------------------------------------------------------------------------------------------------------------------

CREATE TABLE bulk_retries (
  bulk_retry_no INTEGER PRIMARY KEY AUTOINCREMENT,
  command_no    INTEGER UNIQUE REFERENCES commands (command_no) ON DELETE CASCADE, -- the parent; NULL: its tasks are being written, nobody sees it yet
  project_no    INTEGER NOT NULL REFERENCES projects (project_no),
  agent_no      INTEGER REFERENCES agents (agent_no), -- the agent that was named; NULL: any that can
  engine        TEXT    NOT NULL,
  filter        TEXT    NOT NULL,           -- JSON object of accepted keys, without the task ids: these are the rows below
  request       BLOB    NOT NULL CHECK (length(request) = 32), -- SHA-256 of what was asked for: a repeat of its key asks for the same
  total         INTEGER NOT NULL,
  completed     INTEGER NOT NULL DEFAULT 0, -- rows below by status; those that wait or are issued have an index
  failed        INTEGER NOT NULL DEFAULT 0,
  timed_out     INTEGER NOT NULL DEFAULT 0,
  refused       INTEGER NOT NULL DEFAULT 0,
  cancelled     INTEGER NOT NULL DEFAULT 0,
  is_open       INTEGER NOT NULL CHECK (is_open IN (0, 1)),
  wait_reason   TEXT,                       -- why nothing is issued at present
  created_at    INTEGER NOT NULL,
  ended_at      INTEGER,
  CHECK (CASE WHEN command_no IS NULL THEN is_open = 0 AND ended_at IS NULL ELSE is_open = (ended_at IS NULL) END)
) STRICT;
CREATE INDEX bulk_retries_open ON bulk_retries (bulk_retry_no) WHERE is_open = 1;
CREATE INDEX bulk_retries_staged ON bulk_retries (bulk_retry_no) WHERE command_no IS NULL;
CREATE INDEX bulk_retries_by_project ON bulk_retries (project_no, bulk_retry_no);

CREATE TABLE bulk_retry_tasks (
  bulk_retry_no INTEGER NOT NULL REFERENCES bulk_retries (bulk_retry_no) ON DELETE CASCADE,
  position      INTEGER NOT NULL CHECK (position >= 1),
  task_id       TEXT    NOT NULL,
  task_name     TEXT    NOT NULL,
  finished_at   INTEGER,                    -- of the task when it was chosen: tells the failure that is retried from a later one
  command_no    INTEGER UNIQUE,             -- of the newest child; NULL: none yet
  status        TEXT    NOT NULL CHECK (status IN ('waiting', 'issued', 'completed', 'failed', 'timeout', 'refused', 'cancelled')),
  is_late       INTEGER NOT NULL DEFAULT 0 CHECK (is_late IN (0, 1)), -- timeout, and later its agent said that it had retried it
  error         TEXT    CHECK (length(error) <= 1024),
  PRIMARY KEY (bulk_retry_no, position)
) STRICT;
CREATE INDEX bulk_retry_tasks_open ON bulk_retry_tasks (bulk_retry_no, status, position) WHERE status IN ('waiting', 'issued');
CREATE INDEX bulk_retry_tasks_of_task ON bulk_retry_tasks (task_id, finished_at) WHERE status IN ('waiting', 'issued', 'completed') OR is_late = 1;

-- ---------------------------------------------------------------------------------------------------------------------
-- Failed tasks in groups
-- ---------------------------------------------------------------------------------------------------------------------

CREATE TABLE failure_groups (
  failure_group_no INTEGER PRIMARY KEY AUTOINCREMENT,
  id               BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  project_no       INTEGER NOT NULL REFERENCES projects (project_no),
  fingerprint      TEXT    NOT NULL CHECK (length(fingerprint) = 64), -- of engine, task name, exception class and top frames
  engine           TEXT    NOT NULL,
  task_name        TEXT    NOT NULL,
  exception_class  TEXT    NOT NULL,
  frames           TEXT    NOT NULL,        -- JSON array of the top frames, innermost first
  state            TEXT    NOT NULL CHECK (state IN ('open', 'resolved', 'ignored')),
  state_by         TEXT,                    -- who set the state; NULL: a recurrence or the first failure
  state_at         INTEGER NOT NULL,
  reopened         INTEGER NOT NULL DEFAULT 0, -- how often a recurrence opened it again
  failures         INTEGER NOT NULL,        -- how many there were
  first_seen_at    INTEGER NOT NULL,
  last_seen_at     INTEGER NOT NULL,
  sample_task_id   TEXT    NOT NULL,        -- the newest failure
  sample_exception TEXT    NOT NULL,
  sample_traceback TEXT,
  UNIQUE (project_no, fingerprint)
) STRICT;
CREATE INDEX failure_groups_recent ON failure_groups (project_no, last_seen_at, id);

-- The failures of a group; as old as events are kept. Rows of one group lie together, in order of time.
CREATE TABLE failures (
  failure_group_no INTEGER NOT NULL REFERENCES failure_groups (failure_group_no) ON DELETE CASCADE,
  occurred_at      INTEGER NOT NULL,
  event_no         INTEGER NOT NULL,        -- the event that told it. Not a foreign key: retention removes both, each for itself
  PRIMARY KEY (failure_group_no, occurred_at, event_no)
) STRICT, WITHOUT ROWID;

-- ---------------------------------------------------------------------------------------------------------------------
-- Notifications
-- ---------------------------------------------------------------------------------------------------------------------

CREATE TABLE notification_channels (
  channel_no INTEGER PRIMARY KEY AUTOINCREMENT,
  id         BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  project_no INTEGER NOT NULL REFERENCES projects (project_no),
  name       TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
  kind       TEXT    NOT NULL CHECK (kind IN ('webhook', 'email', 'service')),
  target     TEXT    NOT NULL,              -- what may be shown: host of a webhook, addresses of an e-mail, name of a service
  sealed     BLOB    NOT NULL,              -- the settings with their secrets, encrypted under the master secret
  is_enabled INTEGER NOT NULL CHECK (is_enabled IN (0, 1)),
  failures   INTEGER NOT NULL DEFAULT 0,    -- attempts that failed since one succeeded
  retry_at   INTEGER,                       -- nothing is sent before it; set exactly while there are failures
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  UNIQUE (project_no, name),
  CHECK ((failures > 0) = (retry_at IS NOT NULL))
) STRICT;

CREATE TABLE notification_rules (
  rule_no      INTEGER PRIMARY KEY AUTOINCREMENT,
  id           BLOB    NOT NULL UNIQUE CHECK (length(id) = 16),
  project_no   INTEGER NOT NULL REFERENCES projects (project_no),
  name         TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
  trigger      TEXT    NOT NULL CHECK (trigger IN ('task_failed', 'agent_offline', 'fire_buffered', 'fire_expired',
                 'command_timeout', 'circuit_breaker', 'system_trouble')),
  pattern      TEXT,                        -- of names, with * and ?; NULL: every one
  group_seconds INTEGER NOT NULL CHECK (group_seconds BETWEEN 10 AND 86400), -- one message at most in this time for each group
  is_enabled   INTEGER NOT NULL CHECK (is_enabled IN (0, 1)),
  created_at   INTEGER NOT NULL,
  updated_at   INTEGER NOT NULL,
  UNIQUE (project_no, name)
) STRICT;

CREATE TABLE notification_rule_channels (
  rule_no    INTEGER NOT NULL REFERENCES notification_rules (rule_no) ON DELETE CASCADE,
  channel_no INTEGER NOT NULL REFERENCES notification_channels (channel_no) ON DELETE CASCADE,
  PRIMARY KEY (rule_no, channel_no)
) STRICT;

-- What a rule has collected and not said yet, and until when it stays silent about the same.
CREATE TABLE notification_groups (
  rule_no    INTEGER NOT NULL REFERENCES notification_rules (rule_no) ON DELETE CASCADE,
  group_key  TEXT    NOT NULL CHECK (length(group_key) <= 200), -- '': what came after as many groups as a rule may have
  collected  INTEGER NOT NULL,              -- how many since the last message
  is_told    INTEGER NOT NULL CHECK (is_told IN (0, 1)), -- there was a message: what follows is "more of" it
  first_at   INTEGER NOT NULL,
  last_at    INTEGER NOT NULL,
  sample     TEXT    NOT NULL,              -- JSON object: the newest
  due_at     INTEGER NOT NULL,              -- when to speak, or, with nothing collected, when to forget the group
  PRIMARY KEY (rule_no, group_key)
) STRICT;
CREATE INDEX notification_groups_due ON notification_groups (due_at);

-- The outbox: one row for each message and channel.
CREATE TABLE notifications (
  notification_no INTEGER PRIMARY KEY AUTOINCREMENT,
  id              BLOB    NOT NULL UNIQUE CHECK (length(id) = 16), -- stays the same over retries: what a receiver de-duplicates by
  project_no      INTEGER NOT NULL REFERENCES projects (project_no),
  rule_no         INTEGER REFERENCES notification_rules (rule_no) ON DELETE SET NULL, -- NULL: a test, or the rule is gone
  channel_no      INTEGER NOT NULL REFERENCES notification_channels (channel_no) ON DELETE CASCADE,
  trigger         TEXT    NOT NULL,
  subject         TEXT    NOT NULL,
  body            TEXT    NOT NULL,         -- JSON object: what webhooks carry
  collected       INTEGER NOT NULL CHECK (collected >= 1),
  state           TEXT    NOT NULL CHECK (state IN ('pending', 'delivered', 'dead')),
  attempts        INTEGER NOT NULL DEFAULT 0,
  next_attempt_at INTEGER,                  -- set exactly while it is pending
  expires_at      INTEGER NOT NULL,         -- an attempt that fails from here on is the last
  last_error      TEXT    CHECK (length(last_error) <= 500),
  created_at      INTEGER NOT NULL,
  ended_at        INTEGER,
  CHECK ((state = 'pending') = (next_attempt_at IS NOT NULL)),
  CHECK ((state = 'pending') = (ended_at IS NULL))
) STRICT;
CREATE INDEX notifications_due ON notifications (channel_no, next_attempt_at) WHERE state = 'pending';
CREATE INDEX notifications_by_project ON notifications (project_no, created_at, id);
CREATE INDEX notifications_ended ON notifications (ended_at) WHERE ended_at IS NOT NULL;
