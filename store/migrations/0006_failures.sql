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
