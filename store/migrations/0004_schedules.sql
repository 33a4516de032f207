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
