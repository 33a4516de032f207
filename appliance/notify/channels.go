package notify

import (
	"context"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
	"signalbox/appliance/secret"
)

const (
	maxName     = 100
	maxChannels = 50  // of a project
	maxRules    = 100 // of a project
)

// NewChannel asks for a channel.
type NewChannel struct {
	Name      string
	Kind      Kind
	Settings  Settings
	IsEnabled bool
}

// ChannelPatch changes some fields of a channel. Settings are replaced as a whole: what is stored is not shown, so it
// cannot be changed in parts.
type ChannelPatch struct {
	Name      agent.Change[string]
	IsEnabled agent.Change[bool]
	Settings  agent.Change[Settings]
}

// Made is a channel that was created or changed, with what is told this once.
type Made struct {
	Channel  Channel
	Secret   secret.Text // the signing secret, when it was minted; empty otherwise
	Warnings []string
}

func checkName(s string) error {
	if n := utf8.RuneCountInString(s); n < 1 || n > maxName {
		return fault.Field("name", "must have 1..%d characters", maxName)
	}
	if !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) || strings.TrimSpace(s) != s {
		return fault.Field("name", "must not hold control characters, nor begin or end with a space")
	}
	return nil
}

// settle checks settings and seals them into the channel.
func (s *Service) settle(m *Made, settings Settings) (err error) {
	if m.Secret, m.Warnings, err = settings.check(m.Channel.Kind); err != nil {
		return err
	}
	if err := s.sender.Check(settings); err != nil {
		return err
	}
	m.Channel.Target = cut(settings.target(), 500)
	m.Channel.Sealed, err = settings.seal(s.box, m.Channel.ID)
	return err
}

// CreateChannel makes a channel. Invalid for a bad field, Conflict for a taken name or too many channels.
func (s *Service) CreateChannel(ctx context.Context, who agent.Principal, projectNo int64, n NewChannel) (Made, error) {
	if err := checkName(n.Name); err != nil {
		return Made{}, err
	}
	switch n.Kind {
	case Webhook, Email, Chat:
	default:
		return Made{}, fault.Field("kind", "must be webhook, email or service")
	}
	id, err := newID()
	if err != nil {
		return Made{}, err
	}
	m := Made{Channel: Channel{ID: id, ProjectNo: projectNo, Name: n.Name, Kind: n.Kind, IsEnabled: n.IsEnabled}}
	if err := s.settle(&m, n.Settings); err != nil {
		return Made{}, err
	}
	err = s.st.Update(ctx, "create notification channel", func(tx Tx) error {
		all, err := tx.NotifyChannels(projectNo)
		if err != nil {
			return err
		}
		if len(all) >= maxChannels {
			return fault.New(fault.Conflict, "a project has at most %d notification channels", maxChannels)
		}
		m.Channel.CreatedAt, m.Channel.UpdatedAt = tx.Now(), tx.Now()
		if err := tx.NotifyInsertChannel(m.Channel); err != nil {
			return taken(err, "channel", n.Name)
		}
		return s.record(tx, who, "notification.channel.created", projectNo, "notification_channel", id,
			map[string]any{"name": n.Name, "kind": n.Kind, "target": m.Channel.Target})
	})
	return m, err
}

// UpdateChannel changes a channel. Turning it off gives up what waits for it. Errors as of CreateChannel, and NotFound.
func (s *Service) UpdateChannel(ctx context.Context, who agent.Principal, projectNo int64, id uuid.UUID, p ChannelPatch) (Made, error) {
	before, err := s.Channel(ctx, projectNo, id)
	if err != nil {
		return Made{}, err
	}
	m := Made{Channel: before}
	if p.Settings.Set { // sealed outside the transaction; the kind never changes
		if err := s.settle(&m, p.Settings.To); err != nil {
			return Made{}, err
		}
	}
	if p.Name.Set {
		if err := checkName(p.Name.To); err != nil {
			return Made{}, err
		}
	}
	err = s.st.Update(ctx, "change notification channel", func(tx Tx) error {
		c, err := tx.NotifyChannel(projectNo, id)
		if err != nil {
			return unknown(err, "channel")
		}
		fields := []string{}
		if p.Name.Set {
			c.Name, fields = p.Name.To, append(fields, "name")
		}
		wasOn := c.IsEnabled
		if p.IsEnabled.Set {
			c.IsEnabled, fields = p.IsEnabled.To, append(fields, "is_enabled")
		}
		if p.Settings.Set {
			c.Sealed, c.Target, fields = m.Channel.Sealed, m.Channel.Target, append(fields, "settings")
		}
		c.UpdatedAt = tx.Now()
		m.Channel = c
		if len(fields) == 0 {
			return nil
		}
		if err := tx.NotifyUpdateChannel(c); err != nil {
			return taken(err, "channel", c.Name)
		}
		if wasOn && !c.IsEnabled {
			if err := tx.NotifyEndPending(c.No, "the channel was turned off"); err != nil {
				return err
			}
		}
		if p.Settings.Set || p.IsEnabled.Set { // what kept messages from arriving may be over
			if err := tx.NotifyResume(c.No, true); err != nil {
				return err
			}
			m.Channel.Failures, m.Channel.RetryAt = 0, time.Time{}
		}
		if err := s.reindex(tx); err != nil {
			return err
		}
		return s.record(tx, who, "notification.channel.updated", projectNo, "notification_channel", id,
			map[string]any{"name": c.Name, "fields": fields, "target": c.Target})
	})
	return m, err
}

// DeleteChannel removes a channel with its messages; rules that had only this one stay and tell nobody.
func (s *Service) DeleteChannel(ctx context.Context, who agent.Principal, projectNo int64, id uuid.UUID) error {
	return s.st.Update(ctx, "delete notification channel", func(tx Tx) error {
		c, err := tx.NotifyChannel(projectNo, id)
		if err != nil {
			return unknown(err, "channel")
		}
		if err := tx.NotifyDeleteChannel(c.No); err != nil {
			return err
		}
		if err := s.reindex(tx); err != nil {
			return err
		}
		return s.record(tx, who, "notification.channel.deleted", projectNo, "notification_channel", id, map[string]any{"name": c.Name})
	})
}

// Channels lists the channels of a project by name.
func (s *Service) Channels(ctx context.Context, projectNo int64) (out []Channel, err error) {
	err = s.st.View(ctx, func(tx ReadTx) (err error) {
		out, err = tx.NotifyChannels(projectNo)
		return err
	})
	return out, err
}

// Channel finds one.
func (s *Service) Channel(ctx context.Context, projectNo int64, id uuid.UUID) (c Channel, err error) {
	err = s.st.View(ctx, func(tx ReadTx) (err error) {
		c, err = tx.NotifyChannel(projectNo, id)
		return unknown(err, "channel")
	})
	return c, err
}

// taken words the Conflict of a unique name.
func taken(err error, what, name string) error {
	if fault.Is(err, fault.Conflict) {
		return fault.Wrap(fault.Conflict, err, "name: there is a notification %s %q already", what, name).With("field", "name")
	}
	return err
}

// unknown words a NotFound.
func unknown(err error, what string) error {
	if fault.Is(err, fault.NotFound) {
		return fault.Wrap(fault.NotFound, err, "notification %s not found", what)
	}
	return err
}

func newID() (uuid.UUID, error) {
	id, err := uuid.NewRandom()
	if err != nil {
		return id, fault.Wrap(fault.Internal, err, "make an id")
	}
	return id, nil
}
