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
  CHECK ((state = 'offline') = (offline_since IS NOT NULL))
) STRICT;

-- A revoked agent frees its name.
CREATE UNIQUE INDEX agents_name ON agents (project_no, name) WHERE revoked_at IS NULL;
-- The liveness sweep reads only this.
CREATE INDEX agents_online ON agents (last_seen_at) WHERE state = 'online';

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
  CHECK ((status IN ('completed', 'failed', 'timeout', 'cancelled')) = (completed_at IS NOT NULL)),
  CHECK (status <> 'dispatched' OR dispatched_at IS NOT NULL)
) STRICT;

CREATE UNIQUE INDEX commands_idempotency ON commands (project_no, idempotency_key) WHERE idempotency_key IS NOT NULL;
-- What an agent may still take; small, for terminal rows leave it.
CREATE INDEX commands_open ON commands (agent_no, issued_at, command_no) WHERE status IN ('pending', 'dispatched');
CREATE INDEX commands_deadline ON commands (timeout_at) WHERE status IN ('pending', 'dispatched');
CREATE INDEX commands_by_project ON commands (project_no, command_no);

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
