package store

import (
	"time"

	"signalbox/appliance/notify"
)

// collects is what one transaction collects for notifications: a row is written once, however many occurrences it counts.
type collects struct {
	all   []*collect
	known map[collectKey]*collect
}

type collectKey struct {
	ruleNo int64
	key    string
}

type collect struct {
	notify.Collected
	count       int64
	first, last time.Time
}

func (c *collect) merge(o *collect) {
	c.count += o.count
	c.Sample = o.Sample // the newest
	if o.first.Before(c.first) {
		c.first = o.first
	}
	if o.last.After(c.last) {
		c.last = o.last
	}
}

// add counts c under its rule and key.
func (x *collects) add(c *collect) {
	k := collectKey{c.RuleNo, c.Key}
	if known := x.known[k]; known != nil {
		known.merge(c)
		return
	}
	if x.known == nil {
		x.known = map[collectKey]*collect{}
	}
	x.known[k] = c
	x.all = append(x.all, c)
}

// NotifyCollect counts an occurrence in its group when the transaction's function has returned. A group that is new speaks
// at once, the group of all others after the rule's group time.
func (tx *Tx) NotifyCollect(c notify.Collected) error {
	if tx.collects == nil {
		tx.collects = &collects{}
		tx.AtEnd(tx.notifyFlush)
	}
	tx.collects.add(&collect{Collected: c, count: 1, first: c.At, last: c.At})
	return nil
}

func (tx *Tx) notifyFlush() error {
	var rest collects // of rules that have as many groups as they may
	full := map[int64]bool{}
	for _, c := range tx.collects.all {
		known, err := tx.notifyCount(c)
		if err != nil {
			return err
		}
		if known {
			continue
		}
		if !full[c.RuleNo] {
			var groups int
			if err := tx.QueryRow(sqlNotifyGroups, c.RuleNo).Scan(&groups); err != nil {
				return err
			}
			full[c.RuleNo] = groups >= c.Most
		}
		if full[c.RuleNo] {
			c.Key = ""
			rest.add(c)
			continue
		}
		if err := tx.notifyInsertGroup(c); err != nil {
			return err
		}
	}
	for _, c := range rest.all {
		known, err := tx.notifyCount(c)
		if err == nil && !known {
			err = tx.notifyInsertGroup(c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

const sqlNotifyGroups = `SELECT count(*) FROM notification_groups WHERE rule_no = ?`

const sqlNotifyCount = `UPDATE notification_groups SET collected = collected + ?6,
	first_at = CASE WHEN collected = 0 THEN ?3 ELSE min(first_at, ?3) END,
	last_at = CASE WHEN collected = 0 THEN ?7 ELSE max(last_at, ?7) END, sample = ?4,
	is_told = CASE WHEN collected = 0 AND due_at <= ?5 THEN 0 ELSE is_told END -- to be forgotten: it is new
	WHERE rule_no = ?1 AND group_key = ?2`

// notifyCount counts in a group that is there.
func (tx *Tx) notifyCount(c *collect) (known bool, err error) {
	sample, err := c.Sample()
	if err != nil {
		return false, err
	}
	res, err := tx.Exec(sqlNotifyCount, c.RuleNo, c.Key, c.first, string(sample), tx.Now(), c.count, c.last)
	return res.RowsAffected() == 1, err
}

// notifyInsertGroup makes the group, if its rule is there and speaks.
func (tx *Tx) notifyInsertGroup(c *collect) error {
	sample, err := c.Sample()
	if err != nil {
		return err
	}
	res, err := tx.Exec(`INSERT INTO notification_groups (rule_no, group_key, collected, is_told, first_at, last_at, sample, due_at)
		SELECT rule_no, ?2, ?6, 0, ?3, ?7, ?4, CASE WHEN ?2 = '' THEN ?5 + 1000000 * group_seconds ELSE ?5 END
		FROM notification_rules JOIN projects USING (project_no) WHERE rule_no = ?1 AND is_enabled = 1 AND is_active = 1`, c.RuleNo, c.Key,
		c.first, string(sample), tx.Now(), c.count, c.last)
	if err == nil && res.RowsAffected() == 1 {
		tx.Hint(c.Fresh)
	}
	return err
}
