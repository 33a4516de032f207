package store

import (
	"database/sql"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/notify"
)

// errNoRow is what Row.Scan gives for no row.
var errNoRow = mapError(sql.ErrNoRows)

const sqlNotifyNextGroup = `SELECT min(due_at) FROM notification_groups`

// NotifyNextGroup is when the first group is due; the zero time when there is none.
func (r *reader) NotifyNextGroup() (at time.Time, err error) {
	err = r.QueryRow(sqlNotifyNextGroup).Scan(&at)
	return at, err
}

const sqlNotifyDueGroups = `SELECT g.rule_no, r.id, r.name, r.project_no, p.id, p.slug, r.trigger, r.group_seconds, g.group_key,
	g.collected, g.is_told, g.first_at, g.last_at, g.sample
	FROM notification_groups g JOIN notification_rules r USING (rule_no) JOIN projects p USING (project_no)
	WHERE g.due_at <= ? ORDER BY g.due_at LIMIT ?`

// NotifyDueGroups lists groups that are due.
func (r *reader) NotifyDueGroups(now time.Time, limit int) ([]notify.Group, error) {
	rows, err := r.Query(sqlNotifyDueGroups, now, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []notify.Group
	for rows.Next() {
		var g notify.Group
		var seconds int64
		if err := rows.Scan(&g.RuleNo, &g.RuleID, &g.RuleName, &g.ProjectNo, &g.ProjectID, &g.ProjectSlug, &g.Trigger, &seconds,
			&g.Key, &g.Collected, &g.IsTold, &g.FirstAt, &g.LastAt, &g.Sample); err != nil {
			return nil, err
		}
		g.Silence = time.Duration(seconds) * time.Second
		out = append(out, g)
	}
	return out, rows.Err()
}

// NotifyGroupTold empties a group and has it silent until the time.
func (tx *Tx) NotifyGroupTold(ruleNo int64, key string, until time.Time) error {
	_, err := tx.Exec(`UPDATE notification_groups SET collected = 0, is_told = 1, due_at = ? WHERE rule_no = ? AND group_key = ?`,
		until, ruleNo, key)
	return err
}

// NotifyForgetGroup removes a group.
func (tx *Tx) NotifyForgetGroup(ruleNo int64, key string) error {
	_, err := tx.Exec(`DELETE FROM notification_groups WHERE rule_no = ? AND group_key = ?`, ruleNo, key)
	return err
}

const sqlNotifyRuleChannels = `SELECT channel_no FROM notification_rule_channels JOIN notification_channels USING (channel_no)
	WHERE rule_no = ? AND is_enabled = 1 ORDER BY channel_no`

// NotifyRuleChannels lists the enabled channels of a rule.
func (r *reader) NotifyRuleChannels(ruleNo int64) ([]int64, error) {
	return r.numbers(sqlNotifyRuleChannels, ruleNo)
}

const sqlNotifyPendingOf = `SELECT count(*) FROM notifications WHERE channel_no = ? AND state = 'pending'`

// NotifyPendingOf counts the pending messages of a channel.
func (r *reader) NotifyPendingOf(channelNo int64) (n int, err error) {
	err = r.QueryRow(sqlNotifyPendingOf, channelNo).Scan(&n)
	return n, err
}

const sqlNotifyPendingCount = `SELECT count(*) FROM notifications WHERE state = 'pending'`

// NotifyPendingCount counts all pending messages.
func (r *reader) NotifyPendingCount() (n int64, err error) {
	err = r.QueryRow(sqlNotifyPendingCount).Scan(&n)
	return n, err
}

// One look into the index for each channel, however much waits for it.
const sqlNotifyDueChannels = `SELECT c.channel_no, c.failures, c.retry_at, (SELECT min(n.next_attempt_at) FROM notifications n
	WHERE n.channel_no = c.channel_no AND n.state = 'pending') FROM notification_channels c WHERE c.is_enabled = 1`

// NotifyDueChannels lists the enabled channels with pending messages, and when the first of each is due.
func (r *reader) NotifyDueChannels() ([]notify.ChannelDue, error) {
	rows, err := r.Query(sqlNotifyDueChannels)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []notify.ChannelDue
	for rows.Next() {
		var c notify.ChannelDue
		if err := rows.Scan(&c.ChannelNo, &c.Failures, &c.RetryAt, &c.First); err != nil {
			return nil, err
		}
		if !c.First.IsZero() {
			out = append(out, c)
		}
	}
	return out, rows.Err()
}

const sqlNotifyNextOf = `SELECT n.notification_no, n.id, n.created_at, n.subject, n.body, n.attempts, n.expires_at, ` + channelColumns + `
	FROM notifications n JOIN notification_channels c USING (channel_no)
	WHERE n.channel_no = ? AND n.state = 'pending' ORDER BY n.next_attempt_at, n.notification_no LIMIT 1`

// NotifyNextOf is the pending message of a channel whose turn is first.
func (r *reader) NotifyNextOf(channelNo int64) (o notify.Outgoing, err error) {
	err = r.QueryRow(sqlNotifyNextOf, channelNo).Scan(append([]any{&o.No, &o.ID, &o.CreatedAt, &o.Subject, &o.Body, &o.Attempts,
		&o.ExpiresAt}, channelFields(&o.Channel)...)...)
	return o, err
}

// NotifyInsert stores a message; ruleNo 0 is none.
func (tx *Tx) NotifyInsert(n notify.Notification, ruleNo, channelNo int64) error {
	_, err := tx.Exec(`INSERT INTO notifications (id, project_no, rule_no, channel_no, trigger, subject, body, collected, state, attempts,
		next_attempt_at, expires_at, last_error, created_at, ended_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		n.ID, n.ProjectNo, numberOrNull(ruleNo), channelNo, string(n.Trigger), n.Subject, string(n.Body), n.Collected, string(n.State),
		n.Attempts, orNull(n.NextAttemptAt), n.ExpiresAt, n.LastError, n.CreatedAt, orNull(n.EndedAt))
	return err
}

// NotifyUpdate stores what became of an attempt. A message that was given up while it was on its way stays so, unless it
// arrived.
func (tx *Tx) NotifyUpdate(n notify.Notification) error {
	_, err := tx.Exec(`UPDATE notifications SET state = ?1, attempts = ?2, next_attempt_at = ?3, last_error = ?4, ended_at = ?5
		WHERE notification_no = ?6 AND (state = 'pending' OR state = 'dead' AND ?1 = 'delivered')`, string(n.State), n.Attempts,
		orNull(n.NextAttemptAt), n.LastError, orNull(n.EndedAt), n.No)
	return err
}

// NotifyChannelFailed notes a further failure of a channel that had so many, and when it is tried again. Nothing changes
// when the channel was resumed meanwhile.
func (tx *Tx) NotifyChannelFailed(channelNo int64, failures int, retryAt time.Time) error {
	_, err := tx.Exec(`UPDATE notification_channels SET failures = ?2 + 1, retry_at = ?3 WHERE channel_no = ?1 AND failures = ?2`,
		channelNo, failures, retryAt)
	return err
}

// NotifyResume ends the pause of a channel; with all, the pauses of its messages too, and the oldest goes first.
func (tx *Tx) NotifyResume(channelNo int64, all bool) error {
	_, err := tx.Exec(`UPDATE notification_channels SET failures = 0, retry_at = NULL WHERE channel_no = ? AND failures > 0`, channelNo)
	if err != nil || !all {
		return err
	}
	_, err = tx.Exec(sqlNotifyResume, channelNo, tx.Now())
	return err
}

const sqlNotifyResume = `UPDATE notifications SET next_attempt_at = min(created_at, ?2)
	WHERE channel_no = ?1 AND state = 'pending' AND next_attempt_at > min(created_at, ?2)`

// NotifyExpire gives up the pending messages of a channel whose time is over; those that were never tried for the reason.
func (tx *Tx) NotifyExpire(channelNo int64, reason string) error {
	_, err := tx.Exec(sqlNotifyExpire, channelNo, tx.Now(), reason)
	return err
}

const sqlNotifyExpire = `UPDATE notifications SET state = 'dead', next_attempt_at = NULL, last_error = coalesce(last_error, ?3),
	ended_at = ?2 WHERE channel_no = ?1 AND state = 'pending' AND expires_at <= ?2`

// NotifyRevive makes a dead message pending again, as if it were new.
func (tx *Tx) NotifyRevive(no int64, expires time.Time) (bool, error) {
	res, err := tx.Exec(`UPDATE notifications SET state = 'pending', attempts = 0, next_attempt_at = ?, expires_at = ?, ended_at = NULL
		WHERE notification_no = ? AND state = 'dead'`, tx.Now(), expires, no)
	return res.RowsAffected() == 1, err
}

// NotifySilence gives up the pending messages of a project, and forgets what its rules have collected.
func (tx *Tx) NotifySilence(projectNo int64, reason string) error {
	if _, err := tx.Exec(`DELETE FROM notification_groups WHERE rule_no IN (SELECT rule_no FROM notification_rules
		WHERE project_no = ?)`, projectNo); err != nil {
		return err
	}
	_, err := tx.Exec(`UPDATE notifications SET state = 'dead', next_attempt_at = NULL, last_error = ?, ended_at = ?
		WHERE channel_no IN (SELECT channel_no FROM notification_channels WHERE project_no = ?) AND state = 'pending'`, reason, tx.Now(),
		projectNo)
	return err
}

const sqlNotifyEndPending = `UPDATE notifications SET state = 'dead', next_attempt_at = NULL, last_error = ?, ended_at = ?
	WHERE channel_no = ? AND state = 'pending'`

// NotifyEndPending gives up the pending messages of a channel.
func (tx *Tx) NotifyEndPending(channelNo int64, reason string) error {
	_, err := tx.Exec(sqlNotifyEndPending, reason, tx.Now(), channelNo)
	return err
}

const sqlNotifyPrune = `DELETE FROM notifications WHERE notification_no IN
	(SELECT notification_no FROM notifications WHERE ended_at IS NOT NULL AND ended_at < ? ORDER BY ended_at LIMIT ?)`

// NotifyPrune removes messages that ended before the time, at most limit.
func (tx *Tx) NotifyPrune(before time.Time, limit int) (int, error) {
	res, err := tx.Exec(sqlNotifyPrune, before, limit)
	return int(res.RowsAffected()), err
}

// NotifyBound brings forward what is due later than can be meant: groups after their rule's time, messages and channels
// after the latest.
func (tx *Tx) NotifyBound(latest time.Time) error {
	for _, statement := range []string{
		`UPDATE notification_groups SET due_at = ?1 WHERE due_at > ?1 AND due_at > ?1 + 1000000 *
			(SELECT group_seconds FROM notification_rules r WHERE r.rule_no = notification_groups.rule_no)`,
		`UPDATE notifications SET next_attempt_at = ?1 WHERE state = 'pending' AND next_attempt_at > ?2`,
		`UPDATE notification_channels SET retry_at = ?1 WHERE retry_at > ?2`,
	} {
		args := []any{tx.Now(), latest}
		if _, err := tx.Exec(statement, args[:1+strings.Count(statement, "?2")]...); err != nil {
			return err
		}
	}
	return nil
}

const selectNotifications = `SELECT n.notification_no, n.id, n.project_no, r.id, coalesce(r.name, ''), c.id, c.name, n.trigger, n.subject,
	n.body, n.collected, n.state, n.attempts, n.next_attempt_at, n.last_error, n.created_at, n.ended_at
	FROM notifications n JOIN notification_channels c USING (channel_no) LEFT JOIN notification_rules r ON r.rule_no = n.rule_no `

func (r *reader) notifications(where string, args ...any) ([]notify.Notification, error) {
	rows, err := r.Query(selectNotifications+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []notify.Notification{}
	for rows.Next() {
		var n notify.Notification
		var rule uuid.NullUUID
		var next, ended time.Time
		if err := rows.Scan(&n.No, &n.ID, &n.ProjectNo, &rule, &n.RuleName, &n.ChannelID, &n.ChannelName, &n.Trigger, &n.Subject, &n.Body,
			&n.Collected, &n.State, &n.Attempts, &next, &n.LastError, &n.CreatedAt, &ended); err != nil {
			return nil, err
		}
		if rule.Valid {
			n.RuleID = &rule.UUID
		}
		n.NextAttemptAt, n.EndedAt = nonZero(next), nonZero(ended)
		out = append(out, n)
	}
	return out, rows.Err()
}

// NotifyList returns a page of the messages of a project, newest first.
func (r *reader) NotifyList(projectNo int64, f notify.Filter, page agent.Page) ([]notify.Notification, error) {
	where, args := `WHERE n.project_no = ?`, []any{projectNo}
	if !page.After.IsZero() {
		where, args = where+` AND (n.created_at, n.id) < (?, ?)`, append(args, page.After.At, page.After.ID)
	}
	if f.State != "" {
		where, args = where+` AND n.state = ?`, append(args, string(f.State))
	}
	if f.ChannelID != uuid.Nil {
		where, args = where+` AND c.id = ?`, append(args, f.ChannelID)
	}
	return r.notifications(where+` ORDER BY n.created_at DESC, n.id DESC LIMIT ?`, append(args, page.Limit)...)
}

// NotifyByID finds a message of the project.
func (r *reader) NotifyByID(projectNo int64, id uuid.UUID) (notify.Notification, error) {
	all, err := r.notifications(`WHERE n.id = ? AND n.project_no = ?`, id, projectNo)
	if err != nil {
		return notify.Notification{}, err
	}
	if len(all) == 0 {
		return notify.Notification{}, errNoRow
	}
	return all[0], nil
}
