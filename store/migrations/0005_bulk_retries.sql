-- ---------------------------------------------------------------------------------------------------------------------
-- Durable bulk retry: one parent command, one child command per task (agent protocol E.9, F.6, L14)
-- ---------------------------------------------------------------------------------------------------------------------

-- parent_no of a child's row: the bulk_retry command it belongs to. Not a foreign key: retention removes both. Children are claimed before anything else.
ALTER TABLE commands ADD COLUMN parent_no INTEGER;
CREATE INDEX commands_children ON commands (agent_no, issued_at, command_no) WHERE parent_no IS NOT NULL AND status = 'pending';

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

-- Few tasks run at a time; those that run for too long are asked about.
CREATE INDEX tasks_started ON tasks (started_at) WHERE state = 'started';
