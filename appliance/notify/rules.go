package notify

import (
	"context"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
)

// Bounds and default of a rule's group time.
const (
	MinGroup     = 10 * time.Second
	MaxGroup     = 24 * time.Hour
	DefaultGroup = 5 * time.Minute
)

const (
	maxPattern      = 200
	maxRuleChannels = 20
)

// RulePatch changes some fields of a rule.
type RulePatch struct {
	Name      agent.Change[string]
	Trigger   agent.Change[Trigger]
	Pattern   agent.Change[string]
	Group     agent.Change[time.Duration]
	IsEnabled agent.Change[bool]
	Channels  agent.Change[[]uuid.UUID]
}

func (p *RulePatch) apply(r *Rule) (fields []string) {
	set := func(name string, is bool) bool {
		if is {
			fields = append(fields, name)
		}
		return is
	}
	if set("name", p.Name.Set) {
		r.Name = p.Name.To
	}
	if set("trigger", p.Trigger.Set) {
		r.Trigger = p.Trigger.To
	}
	if set("pattern", p.Pattern.Set) {
		r.Pattern = p.Pattern.To
	}
	if set("group_seconds", p.Group.Set) {
		r.Group = p.Group.To
	}
	if set("is_enabled", p.IsEnabled.Set) {
		r.IsEnabled = p.IsEnabled.To
	}
	if set("channels", p.Channels.Set) {
		r.Channels = p.Channels.To
	}
	return fields
}

func (r *Rule) validate() error {
	if err := checkName(r.Name); err != nil {
		return err
	}
	if !r.Trigger.valid() {
		words := make([]string, 0, 8)
		for _, t := range Triggers() {
			words = append(words, string(t))
		}
		return fault.Field("trigger", "must be one of %s", strings.Join(words, ", "))
	}
	if utf8.RuneCountInString(r.Pattern) > maxPattern || !utf8.ValidString(r.Pattern) ||
		strings.ContainsFunc(r.Pattern, unicode.IsControl) {
		return fault.Field("pattern", "must have at most %d characters, without control characters", maxPattern)
	}
	if r.Group < MinGroup || r.Group > MaxGroup || r.Group%time.Second != 0 {
		return fault.Field("group_seconds", "must be %d..%d", int(MinGroup/time.Second), int(MaxGroup/time.Second))
	}
	return nil
}

// checkPattern refuses a pattern that fits none of the names that a trigger can ever have, where these are known.
func (r *Rule) checkPattern() error {
	troubles := []string{TroubleDisk, TroubleDatabase, TroubleDamage}
	if r.Trigger != SystemTrouble || slices.ContainsFunc(troubles, func(name string) bool { return matches(r.Pattern, name) }) {
		return nil
	}
	return fault.Field("pattern", "must fit one of %s", strings.Join(troubles, ", "))
}

// checkChannels makes the list of channels one without repeats and refuses what is no channel of the project.
func checkChannels(tx Tx, r *Rule) error {
	if len(r.Channels) < 1 || len(r.Channels) > maxRuleChannels {
		return fault.Field("channels", "must have 1..%d channels", maxRuleChannels)
	}
	slices.SortFunc(r.Channels, func(a, b uuid.UUID) int { return strings.Compare(a.String(), b.String()) })
	r.Channels = slices.Compact(r.Channels)
	for _, id := range r.Channels {
		if _, err := tx.NotifyChannel(r.ProjectNo, id); fault.Is(err, fault.NotFound) {
			return fault.Field("channels", "%s is no channel of this project", id)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// CreateRule makes a rule of the fields that r has; a zero Group is five minutes. Invalid for a bad field, Conflict for a
// taken name or too many rules.
func (s *Service) CreateRule(ctx context.Context, who agent.Principal, projectNo int64, r Rule) (Rule, error) {
	r.ProjectNo, r.Channels = projectNo, slices.Clone(r.Channels)
	if r.Group == 0 {
		r.Group = DefaultGroup
	}
	if err := r.validate(); err != nil {
		return Rule{}, err
	}
	if err := r.checkPattern(); err != nil {
		return Rule{}, err
	}
	var err error
	if r.ID, err = newID(); err != nil {
		return Rule{}, err
	}
	err = s.st.Update(ctx, "create notification rule", func(tx Tx) error {
		all, err := tx.NotifyRules(projectNo)
		if err != nil {
			return err
		}
		if len(all) >= maxRules {
			return fault.New(fault.Conflict, "a project has at most %d notification rules", maxRules)
		}
		if err := checkChannels(tx, &r); err != nil {
			return err
		}
		r.CreatedAt, r.UpdatedAt = tx.Now(), tx.Now()
		if err := tx.NotifyInsertRule(r); err != nil {
			return taken(err, "rule", r.Name)
		}
		if err := s.reindex(tx); err != nil {
			return err
		}
		return s.record(tx, who, "notification.rule.created", projectNo, "notification_rule", r.ID, map[string]any{"name": r.Name,
			"trigger": r.Trigger, "pattern": r.Pattern, "group_seconds": int(r.Group / time.Second), "channels": r.Channels})
	})
	return r, err
}

// UpdateRule changes a rule. Errors as of CreateRule, and NotFound.
func (s *Service) UpdateRule(ctx context.Context, who agent.Principal, projectNo int64, id uuid.UUID, p RulePatch) (r Rule, err error) {
	err = s.st.Update(ctx, "change notification rule", func(tx Tx) error {
		if r, err = tx.NotifyRule(projectNo, id); err != nil {
			return unknown(err, "rule")
		}
		fields := p.apply(&r)
		if len(fields) == 0 {
			return nil
		}
		if err := r.validate(); err != nil {
			return err
		}
		if p.Pattern.Set || p.Trigger.Set { // a rule of before this check can still be turned off
			if err := r.checkPattern(); err != nil {
				return err
			}
		}
		if p.Channels.Set {
			r.Channels = slices.Clone(r.Channels)
			if err := checkChannels(tx, &r); err != nil {
				return err
			}
		}
		r.UpdatedAt = tx.Now()
		if err := tx.NotifyUpdateRule(r); err != nil {
			return taken(err, "rule", r.Name)
		}
		if err := s.reindex(tx); err != nil {
			return err
		}
		return s.record(tx, who, "notification.rule.updated", projectNo, "notification_rule", id,
			map[string]any{"name": r.Name, "fields": fields})
	})
	return r, err
}

// DeleteRule removes a rule with what it has collected and not told yet. Its messages stay.
func (s *Service) DeleteRule(ctx context.Context, who agent.Principal, projectNo int64, id uuid.UUID) error {
	return s.st.Update(ctx, "delete notification rule", func(tx Tx) error {
		r, err := tx.NotifyRule(projectNo, id)
		if err != nil {
			return unknown(err, "rule")
		}
		if err := tx.NotifyDeleteRule(r.No); err != nil {
			return err
		}
		if err := s.reindex(tx); err != nil {
			return err
		}
		return s.record(tx, who, "notification.rule.deleted", projectNo, "notification_rule", id, map[string]any{"name": r.Name})
	})
}

// Rules lists the rules of a project by name.
func (s *Service) Rules(ctx context.Context, projectNo int64) (out []Rule, err error) {
	err = s.st.View(ctx, func(tx ReadTx) (err error) {
		out, err = tx.NotifyRules(projectNo)
		return err
	})
	return out, err
}
