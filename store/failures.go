package store

import (
	"database/sql"
	"encoding/json"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/failure"
	"signalbox/appliance/fault"
)

var (
	_ failure.Tx        = (*Tx)(nil)
	_ failure.ServiceTx = (*Tx)(nil)
	_ failure.ReadTx    = (*ReadTx)(nil)
)

const (
	sqlFailureHead = `SELECT fingerprint, failure_group_no, id, state, state_at, last_seen_at FROM failure_groups
WHERE project_no = ? AND fingerprint = ?`
	sqlFailureHeads = `SELECT g.fingerprint, g.failure_group_no, g.id, g.state, g.state_at, g.last_seen_at
FROM json_each(?) j CROSS JOIN failure_groups g ON g.project_no = ? AND g.fingerprint = j.value`
)

// FailureHeads returns those groups of the project that are stored.
func (tx *Tx) FailureHeads(projectNo int64, fingerprints []string) ([]failure.Head, error) {
	query, args := sqlFailureHead, []any{projectNo, fingerprints[0]}
	if len(fingerprints) > 1 {
		list, err := jsonText(fingerprints)
		if err != nil {
			return nil, err
		}
		query, args = sqlFailureHeads, []any{list, projectNo}
	}
	rows, err := tx.Query(query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := make([]failure.Head, 0, len(fingerprints))
	for rows.Next() {
		var h failure.Head
		if err := rows.Scan(&h.Fingerprint, &h.No, &h.ID, &h.State, &h.StateAt, &h.LastSeen); err != nil {
			return nil, err
		}
		out = append(out, h)
	}
	return out, rows.Err()
}

const sqlCountFailureGroups = `SELECT count(*) FROM (SELECT 1 FROM failure_groups WHERE project_no = ? AND fingerprint <> ? LIMIT ?)`

// CountFailureGroups counts the groups of the project, at most limit, the one that catches all not counted.
func (tx *Tx) CountFailureGroups(projectNo int64, limit int) (n int, err error) {
	err = tx.QueryRow(sqlCountFailureGroups, projectNo, failure.CatchAll, limit).Scan(&n)
	return n, err
}

const sqlInsertFailureGroup = `INSERT INTO failure_groups (id, project_no, fingerprint, engine, task_name, exception_class, frames,
state, state_at, failures, first_seen_at, last_seen_at, sample_task_id, sample_exception, sample_traceback)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

// InsertFailureGroup stores a new group and returns its number.
func (tx *Tx) InsertFailureGroup(g *failure.Group) (int64, error) {
	frames := g.Frames
	if frames == nil {
		frames = []string{}
	}
	list, err := json.Marshal(frames)
	if err != nil {
		return 0, fault.Wrap(fault.Internal, err, "encode frames")
	}
	res, err := tx.Exec(sqlInsertFailureGroup, g.ID, g.ProjectNo, g.Fingerprint, g.Engine, g.TaskName, g.Class, string(list),
		g.State, g.StateAt, g.Failures, g.FirstSeen, g.LastSeen, g.Sample.TaskID, g.Sample.Exception,
		emptyIsNull(g.Sample.Traceback))
	return res.LastInsertID(), err
}

const (
	sqlAddToFailureGroup = `UPDATE failure_groups SET failures = failures + ?, first_seen_at = min(first_seen_at, ?),
last_seen_at = max(last_seen_at, ?) WHERE failure_group_no = ?`
	sqlSampleFailureGroup = `UPDATE failure_groups SET failures = failures + ?, first_seen_at = min(first_seen_at, ?),
last_seen_at = max(last_seen_at, ?), sample_task_id = ?, sample_exception = ?, sample_traceback = ? WHERE failure_group_no = ?`
	sqlReopenFailureGroup = `UPDATE failure_groups SET state = 'open', state_by = NULL, state_at = ?, reopened = reopened + 1
WHERE failure_group_no = ?`
)

// AddToFailureGroup applies what failures change.
func (tx *Tx) AddToFailureGroup(c *failure.Change) error {
	first, last := c.First.UnixMicro(), c.Last.UnixMicro()
	var err error
	if s := c.Sample; s == nil {
		_, err = tx.Exec(sqlAddToFailureGroup, c.Failures, first, last, c.No)
	} else {
		_, err = tx.Exec(sqlSampleFailureGroup, c.Failures, first, last, s.TaskID, s.Exception, emptyIsNull(s.Traceback), c.No)
	}
	if err != nil || !c.Reopen {
		return err
	}
	_, err = tx.Exec(sqlReopenFailureGroup, tx.now, c.No)
	return err
}

// failureChunks are how many rows one statement inserts, largest first.
var failureChunks = []struct {
	rows  int
	query string
}{{64, failureRows(64)}, {16, failureRows(16)}, {4, failureRows(4)}, {1, failureRows(1)}}

func failureRows(n int) string {
	return `INSERT INTO failures (failure_group_no, occurred_at, event_no) VALUES (?,?,?)` + strings.Repeat(`,(?,?,?)`, n-1)
}

// InsertFailures stores failures of stored groups.
func (tx *Tx) InsertFailures(failures []failure.NewFailure) error {
	args := make([]any, 0, 3*min(len(failures), failureChunks[0].rows))
	for _, chunk := range failureChunks {
		for len(failures) >= chunk.rows {
			args = args[:0]
			for _, f := range failures[:chunk.rows] {
				args = append(args, f.GroupNo, f.OccurredAt.UnixMicro(), f.EventNo)
			}
			if _, err := tx.Exec(chunk.query, args...); err != nil {
				return err
			}
			tx.rows += chunk.rows - 1
			failures = failures[chunk.rows:]
		}
	}
	return nil
}

const failureGroupColumns = `g.failure_group_no, g.id, g.project_no, p.id, g.fingerprint, g.engine, g.task_name, g.exception_class,
g.frames, g.state, coalesce(g.state_by, ''), g.state_at, g.reopened, g.failures, g.first_seen_at, g.last_seen_at,
g.sample_task_id, g.sample_exception`

// CROSS fixes the order of the joins: the groups lead, in the order that is asked for.
const fromFailureGroups = ` FROM failure_groups g CROSS JOIN projects p ON p.project_no = g.project_no`

// FailureGroups returns a page of the project's groups, the last seen first, without tracebacks.
func (r *reader) FailureGroups(projectNo int64, f failure.Filter, page agent.Page) ([]failure.Group, error) {
	q := query{}
	q.and("g.project_no = ?", projectNo)
	q.equal("g.state", f.State)
	q.equal("g.engine", f.Engine)
	q.equal("g.task_name", f.TaskName)
	if !f.Since.IsZero() {
		q.and("g.last_seen_at >= ?", f.Since.UnixMicro())
	}
	if !page.After.IsZero() {
		q.and("(g.last_seen_at, g.id) < (?, ?)", page.After.At.UnixMicro(), page.After.ID)
	}
	rows, err := r.Query(q.text(`SELECT `+failureGroupColumns+`, ''`+fromFailureGroups)+
		` ORDER BY g.last_seen_at DESC, g.id DESC LIMIT ?`, append(q.args, page.Limit)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []failure.Group
	for rows.Next() {
		g, err := scanFailureGroup(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, g)
	}
	return out, rows.Err()
}

// FailureGroup finds a group of the project.
func (r *reader) FailureGroup(projectNo int64, id uuid.UUID) (failure.Group, error) {
	return scanFailureGroup(r.QueryRow(`SELECT `+failureGroupColumns+`, coalesce(g.sample_traceback, '')`+fromFailureGroups+
		` WHERE g.id = ? AND g.project_no = ?`, id, projectNo))
}

func scanFailureGroup(s scanner) (g failure.Group, err error) {
	var frames string
	if err := s.Scan(&g.No, &g.ID, &g.ProjectNo, &g.ProjectID, &g.Fingerprint, &g.Engine, &g.TaskName, &g.Class, &frames, &g.State,
		&g.StateBy, &g.StateAt, &g.Reopened, &g.Failures, &g.FirstSeen, &g.LastSeen, &g.Sample.TaskID, &g.Sample.Exception,
		&g.Sample.Traceback); err != nil {
		return failure.Group{}, err
	}
	return g, fromJSON(frames, &g.Frames)
}

// FailureGroupIDs returns ids of the project's groups in [from, to].
func (r *reader) FailureGroupIDs(projectNo int64, from, to uuid.UUID, limit int) ([]uuid.UUID, error) {
	return r.scanIDs(`SELECT id FROM failure_groups WHERE id BETWEEN ? AND ? AND +project_no = ? ORDER BY id LIMIT ?`,
		from, to, projectNo, limit)
}

// CROSS fixes the order of the joins: the failures lead, in the order that is asked for.
const sqlFailuresOf = `SELECT e.id, e.engine, e.task_id, f.occurred_at, coalesce(t.name, ''), coalesce(t.state, '')
FROM failures f CROSS JOIN events e ON e.event_no = f.event_no
LEFT JOIN tasks t ON t.project_no = e.project_no AND t.engine = e.engine AND t.task_id = e.task_id
WHERE f.failure_group_no = ? ORDER BY f.occurred_at DESC, f.event_no DESC LIMIT ?`

// FailuresOf returns the latest failures of a group, newest first.
func (r *reader) FailuresOf(groupNo int64, limit int) ([]failure.Failure, error) {
	rows, err := r.Query(sqlFailuresOf, groupNo, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []failure.Failure
	for rows.Next() {
		var f failure.Failure
		if err := rows.Scan(&f.EventID, &f.Engine, &f.TaskID, &f.OccurredAt, &f.TaskName, &f.TaskState); err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, rows.Err()
}

// SetFailureState sets the state of a group.
func (tx *Tx) SetFailureState(groupNo int64, state failure.State, by string) error {
	_, err := tx.Exec(`UPDATE failure_groups SET state = ?, state_by = ?, state_at = ? WHERE failure_group_no = ?`, state, by, tx.now,
		groupNo)
	return err
}

const (
	// A project has a bounded number of groups, and each is asked for its oldest failure.
	sqlOldFailures = `FROM failure_groups g CROSS JOIN failures f ON f.failure_group_no = g.failure_group_no
WHERE g.project_no = ?1 AND f.occurred_at < ?2`
	sqlOldFailureGroups = `FROM failure_groups g WHERE g.project_no = ?1 AND g.last_seen_at < ?2 AND g.state <> 'ignored'
AND NOT EXISTS (SELECT 1 FROM failures f WHERE f.failure_group_no = g.failure_group_no)`
	sqlFailuresExpired = `SELECT EXISTS (SELECT 1 ` + sqlOldFailures + `) OR EXISTS (SELECT 1 ` + sqlOldFailureGroups + `)`
	sqlPruneFailures   = `DELETE FROM failures WHERE (failure_group_no, occurred_at, event_no) IN
(SELECT f.failure_group_no, f.occurred_at, f.event_no ` + sqlOldFailures + ` LIMIT ?3)`
	sqlPruneFailureGroups = `DELETE FROM failure_groups WHERE failure_group_no IN (SELECT g.failure_group_no ` + sqlOldFailureGroups + ` LIMIT ?3)`
)

// FailuresExpired tells whether the project has failures, or groups to remove, before the cutoff.
func (r *reader) FailuresExpired(projectNo int64, cutoff time.Time) (found bool, err error) {
	err = r.QueryRow(sqlFailuresExpired, projectNo, cutoff.UnixMicro()).Scan(&found)
	return found, err
}

// PruneFailures removes at most limit failures of the project before the cutoff.
func (tx *Tx) PruneFailures(projectNo int64, cutoff time.Time, limit int) (int, error) {
	res, err := tx.Exec(sqlPruneFailures, projectNo, cutoff.UnixMicro(), limit)
	return int(res.RowsAffected()), err
}

// PruneFailureGroups removes at most limit groups, none of them ignored, that were last seen before the cutoff and have no
// failures left.
func (tx *Tx) PruneFailureGroups(projectNo int64, cutoff time.Time, limit int) (int, error) {
	res, err := tx.Exec(sqlPruneFailureGroups, projectNo, cutoff.UnixMicro(), limit)
	return int(res.RowsAffected()), err
}

// emptyIsNull binds an optional text.
func emptyIsNull(s string) sql.NullString { return sql.NullString{String: s, Valid: s != ""} }
