package store

import (
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/notify"
)

var (
	_ notify.Tx     = (*Tx)(nil)
	_ notify.ReadTx = (*ReadTx)(nil)
)

const channelColumns = `c.channel_no, c.id, c.project_no, c.name, c.kind, c.target, c.sealed, c.is_enabled, c.failures, c.retry_at,
	c.created_at, c.updated_at`

const selectChannels = `SELECT ` + channelColumns + ` FROM notification_channels c `

// channelFields are where a row of channelColumns goes.
func channelFields(c *notify.Channel) []any {
	return []any{&c.No, &c.ID, &c.ProjectNo, &c.Name, &c.Kind, &c.Target, &c.Sealed, &c.IsEnabled, &c.Failures, &c.RetryAt, &c.CreatedAt,
		&c.UpdatedAt}
}

func (r *reader) notifyChannels(where string, args ...any) ([]notify.Channel, error) {
	rows, err := r.Query(selectChannels+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []notify.Channel{}
	for rows.Next() {
		var c notify.Channel
		if err := rows.Scan(channelFields(&c)...); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, rows.Err()
}

// NotifyChannels lists the channels of a project by name.
func (r *reader) NotifyChannels(projectNo int64) ([]notify.Channel, error) {
	return r.notifyChannels(`WHERE project_no = ? ORDER BY name`, projectNo)
}

// NotifyChannelsAfter lists channels of all projects by number.
func (r *reader) NotifyChannelsAfter(no int64, limit int) ([]notify.Channel, error) {
	return r.notifyChannels(`WHERE channel_no > ? ORDER BY channel_no LIMIT ?`, no, limit)
}

// NotifyChannel finds a channel of the project.
func (r *reader) NotifyChannel(projectNo int64, id uuid.UUID) (c notify.Channel, err error) {
	err = r.QueryRow(selectChannels+`WHERE id = ? AND project_no = ?`, id, projectNo).Scan(channelFields(&c)...)
	return c, err
}

// NotifyInsertChannel stores a new channel.
func (tx *Tx) NotifyInsertChannel(c notify.Channel) error {
	_, err := tx.Exec(`INSERT INTO notification_channels (id, project_no, name, kind, target, sealed, is_enabled, created_at,
		updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`, c.ID, c.ProjectNo, c.Name, string(c.Kind), c.Target, c.Sealed, c.IsEnabled,
		c.CreatedAt, c.UpdatedAt)
	return err
}

// NotifyUpdateChannel stores what of a channel can change.
func (tx *Tx) NotifyUpdateChannel(c notify.Channel) error {
	_, err := tx.Exec(`UPDATE notification_channels SET name = ?, target = ?, sealed = ?, is_enabled = ?, updated_at = ?
		WHERE channel_no = ?`, c.Name, c.Target, c.Sealed, c.IsEnabled, c.UpdatedAt, c.No)
	return err
}

// NotifyDeleteChannel removes a channel, its place in rules and its messages.
func (tx *Tx) NotifyDeleteChannel(no int64) error {
	_, err := tx.Exec(`DELETE FROM notification_channels WHERE channel_no = ?`, no)
	return err
}

// NotifyIndex reads the enabled rules of all active projects.
func (r *reader) NotifyIndex() ([]notify.IndexRow, error) {
	rows, err := r.Query(`SELECT r.rule_no, r.id, r.project_no, p.id, p.slug, r.name, r.trigger, coalesce(r.pattern, '')
		FROM notification_rules r JOIN projects p USING (project_no) WHERE r.is_enabled = 1 AND p.is_active = 1 ORDER BY r.rule_no`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []notify.IndexRow
	for rows.Next() {
		var x notify.IndexRow
		if err := rows.Scan(&x.RuleNo, &x.RuleID, &x.ProjectNo, &x.ProjectID, &x.ProjectSlug, &x.RuleName, &x.Trigger,
			&x.Pattern); err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	for i := range out {
		if out[i].Trigger != notify.SystemTrouble {
			continue
		}
		out[i].Channels, err = r.notifyChannels(`WHERE is_enabled = 1 AND channel_no IN
			(SELECT channel_no FROM notification_rule_channels WHERE rule_no = ?) ORDER BY channel_no`, out[i].RuleNo)
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

const selectRules = `SELECT rule_no, id, project_no, name, trigger, coalesce(pattern, ''), group_seconds, is_enabled, created_at,
	updated_at FROM notification_rules `

func (r *reader) notifyRules(where string, args ...any) ([]notify.Rule, error) {
	rows, err := r.Query(selectRules+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []notify.Rule{}
	for rows.Next() {
		var x notify.Rule
		var seconds int64
		if err := rows.Scan(&x.No, &x.ID, &x.ProjectNo, &x.Name, &x.Trigger, &x.Pattern, &seconds, &x.IsEnabled, &x.CreatedAt,
			&x.UpdatedAt); err != nil {
			return nil, err
		}
		x.Group = time.Duration(seconds) * time.Second
		out = append(out, x)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	for i := range out {
		if out[i].Channels, err = r.notifyRuleChannelIDs(out[i].No); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (r *reader) notifyRuleChannelIDs(ruleNo int64) ([]uuid.UUID, error) {
	rows, err := r.Query(`SELECT c.id FROM notification_rule_channels rc JOIN notification_channels c USING (channel_no)
		WHERE rc.rule_no = ? ORDER BY c.id`, ruleNo)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []uuid.UUID{}
	for rows.Next() {
		var id uuid.UUID
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		out = append(out, id)
	}
	return out, rows.Err()
}

// NotifyRules lists the rules of a project by name.
func (r *reader) NotifyRules(projectNo int64) ([]notify.Rule, error) {
	return r.notifyRules(`WHERE project_no = ? ORDER BY name`, projectNo)
}

// NotifyRule finds a rule of the project.
func (r *reader) NotifyRule(projectNo int64, id uuid.UUID) (notify.Rule, error) {
	rules, err := r.notifyRules(`WHERE id = ? AND project_no = ?`, id, projectNo)
	if err == nil && len(rules) == 0 {
		return notify.Rule{}, errNoRow
	}
	if err != nil {
		return notify.Rule{}, err
	}
	return rules[0], nil
}

// NotifyInsertRule stores a new rule with its channels.
func (tx *Tx) NotifyInsertRule(x notify.Rule) error {
	res, err := tx.Exec(`INSERT INTO notification_rules (id, project_no, name, trigger, pattern, group_seconds, is_enabled, created_at,
		updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`, x.ID, x.ProjectNo, x.Name, string(x.Trigger), stringOrNull(x.Pattern),
		int64(x.Group/time.Second), x.IsEnabled, x.CreatedAt, x.UpdatedAt)
	if err != nil {
		return err
	}
	x.No = res.LastInsertID()
	return tx.notifyLink(x)
}

func (tx *Tx) notifyLink(x notify.Rule) error {
	for _, id := range x.Channels {
		if _, err := tx.Exec(`INSERT INTO notification_rule_channels (rule_no, channel_no)
			SELECT ?, channel_no FROM notification_channels WHERE id = ? AND project_no = ?`, x.No, id, x.ProjectNo); err != nil {
			return err
		}
	}
	return nil
}

// NotifyUpdateRule stores a rule with its channels. One that is turned off, or about something else from now on, forgets
// what it has collected; a shorter group time holds for the groups that are silent too.
func (tx *Tx) NotifyUpdateRule(x notify.Rule) error {
	if _, err := tx.Exec(`DELETE FROM notification_groups WHERE rule_no = ?1
		AND (SELECT trigger FROM notification_rules WHERE rule_no = ?1) <> ?2`, x.No, string(x.Trigger)); err != nil {
		return err
	}
	if _, err := tx.Exec(`UPDATE notification_groups SET due_at = ?2 WHERE rule_no = ?1 AND due_at > ?2`, x.No,
		tx.Now().Add(x.Group)); err != nil {
		return err
	}
	if _, err := tx.Exec(`UPDATE notification_rules SET name = ?, trigger = ?, pattern = ?, group_seconds = ?, is_enabled = ?,
		updated_at = ? WHERE rule_no = ?`, x.Name, string(x.Trigger), stringOrNull(x.Pattern), int64(x.Group/time.Second), x.IsEnabled,
		x.UpdatedAt, x.No); err != nil {
		return err
	}
	if _, err := tx.Exec(`DELETE FROM notification_rule_channels WHERE rule_no = ?`, x.No); err != nil {
		return err
	}
	if !x.IsEnabled {
		if _, err := tx.Exec(`DELETE FROM notification_groups WHERE rule_no = ?`, x.No); err != nil {
			return err
		}
	}
	return tx.notifyLink(x)
}

// NotifyDeleteRule removes a rule and what it has collected.
func (tx *Tx) NotifyDeleteRule(no int64) error {
	_, err := tx.Exec(`DELETE FROM notification_rules WHERE rule_no = ?`, no)
	return err
}

const sqlNotifyOffline = `SELECT a.agent_no, a.id, a.name, a.project_no, p.is_active, a.offline_since, a.last_seen_at
	FROM agents a JOIN projects p USING (project_no)
	WHERE a.state = 'offline' AND a.revoked_at IS NULL AND a.offline_told IS NOT a.offline_since
	ORDER BY a.offline_since, a.agent_no LIMIT ?`

// NotifyOffline lists live agents in an offline period that was not looked at, the longest first.
func (r *reader) NotifyOffline(limit int) ([]notify.OfflineAgent, error) {
	rows, err := r.Query(sqlNotifyOffline, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []notify.OfflineAgent
	for rows.Next() {
		var a notify.OfflineAgent
		if err := rows.Scan(&a.No, &a.ID, &a.Name, &a.ProjectNo, &a.Active, &a.Since, &a.LastSeenAt); err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, rows.Err()
}

// NotifyMarkOffline records that an offline period was looked at.
func (tx *Tx) NotifyMarkOffline(agentNo int64, since time.Time) error {
	_, err := tx.Exec(`UPDATE agents SET offline_told = ? WHERE agent_no = ?`, since, agentNo)
	return err
}
