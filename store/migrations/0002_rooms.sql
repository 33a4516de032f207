-- The rooms plane: people, room agents, rooms, their logs and what waits for each agent.

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
