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

ALTER TABLE agents ADD COLUMN offline_told INTEGER;
-- Offline periods that notifications have not looked at.
CREATE INDEX agents_untold ON agents (offline_since, agent_no)
  WHERE state = 'offline' AND revoked_at IS NULL AND offline_told IS NOT offline_since;
