package api

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/notify"
	"signalbox/appliance/secret"
	"signalbox/transport"
)

// Notifications keeps channels, rules and the outbox; *notify.Service is one.
type Notifications interface {
	Channels(ctx context.Context, projectNo int64) ([]notify.Channel, error)
	CreateChannel(ctx context.Context, who agent.Principal, projectNo int64, n notify.NewChannel) (notify.Made, error)
	UpdateChannel(ctx context.Context, who agent.Principal, projectNo int64, id uuid.UUID, p notify.ChannelPatch) (notify.Made, error)
	DeleteChannel(ctx context.Context, who agent.Principal, projectNo int64, id uuid.UUID) error
	SendTest(ctx context.Context, who agent.Principal, p agent.Project, channel uuid.UUID) (notify.Notification, error)
	Rules(ctx context.Context, projectNo int64) ([]notify.Rule, error)
	CreateRule(ctx context.Context, who agent.Principal, projectNo int64, r notify.Rule) (notify.Rule, error)
	UpdateRule(ctx context.Context, who agent.Principal, projectNo int64, id uuid.UUID, p notify.RulePatch) (notify.Rule, error)
	DeleteRule(ctx context.Context, who agent.Principal, projectNo int64, id uuid.UUID) error
	List(ctx context.Context, projectNo int64, f notify.Filter, page agent.Page) ([]notify.Notification, error)
	Get(ctx context.Context, projectNo int64, id uuid.UUID) (notify.Notification, error)
	Retry(ctx context.Context, who agent.Principal, projectNo int64, id uuid.UUID) (notify.Notification, error)
}

var _ Notifications = (*notify.Service)(nil)

const groupNotifications = "Notifications"

func notificationRoutes() []route {
	const base, resource = "/projects/{slug}/notifications", "notifications"
	const settings = "`settings`, by kind: webhook `url`, `secret`? (`whsec_` and base64, or 16..256 characters; minted when absent), `ca`? (certificates in PEM that are trusted in place of the system's authorities); " +
		"email `host`, `port`?, `security`? starttls, tls or none, `username`?, `password`?, `from`, `to` (≤20), `ca`?; service `url`"
	const rule = "`trigger` task_failed, agent_offline, fire_buffered, fire_expired, command_timeout, circuit_breaker or system_trouble; " +
		"`channels` (ids, 1..20); optional `pattern` of names with * and ?, `group_seconds` 10..86400 (300), `is_enabled` (true)"
	return []route{
		{method: "GET", path: base, resource: resource, role: agent.Viewer, handle: (*API).listNotifications,
			doc: doc{group: groupNotifications, query: "`state` pending, delivered or dead; `channel_id`, " + pageQuery, answer: "200 list of Notification"}},
		{method: "GET", path: base + "/{id}", resource: resource, role: agent.Viewer, handle: (*API).getNotification,
			doc: doc{group: groupNotifications, answer: "200 Notification and `body`, what webhooks carry"}},
		{method: "POST", path: base + "/{id}/retry", resource: resource, write: true, role: agent.Operator, handle: (*API).retryNotification,
			doc: doc{group: groupNotifications, answer: "200 Notification, pending again under its id; 409 when it is not dead"}},
		{method: "GET", path: base + "/channels", resource: resource, role: agent.Viewer, handle: (*API).listChannels,
			doc: doc{group: groupNotifications, answer: "200 array of NotificationChannel; settings are never shown"}},
		{method: "POST", path: base + "/channels", resource: resource, write: true, role: agent.Admin, handle: (*API).createChannel,
			doc: doc{group: groupNotifications, body: "`name`, `kind` webhook, email or service, " + settings + "; optional `is_enabled` (true)",
				answer: "201 NotificationChannel, `warnings`, and `signing_secret` when one was minted, which is shown this once; 409 for a taken name"}},
		{method: "PATCH", path: base + "/channels/{id}", resource: resource, write: true, role: agent.Admin, handle: (*API).patchChannel,
			doc: doc{group: groupNotifications, body: "any of `name`, `is_enabled`, `settings` (all of them anew)", answer: "200 as of POST"}},
		{method: "DELETE", path: base + "/channels/{id}", resource: resource, write: true, role: agent.Admin, handle: (*API).deleteChannel,
			doc: doc{group: groupNotifications, answer: "204; its messages go with it"}},
		{method: "POST", path: base + "/channels/{id}/test", resource: resource, write: true, role: agent.Operator, handle: (*API).testChannel,
			doc: doc{group: groupNotifications, answer: "200 Notification: a real message was sent, and `state` is delivered or dead with " +
				"`last_error`; 20 a minute for each client address, then 429"}},
		{method: "GET", path: base + "/rules", resource: resource, role: agent.Viewer, handle: (*API).listRules,
			doc: doc{group: groupNotifications, answer: "200 array of NotificationRule"}},
		{method: "POST", path: base + "/rules", resource: resource, write: true, role: agent.Admin, handle: (*API).createRule,
			doc: doc{group: groupNotifications, body: "`name`, " + rule, answer: "201 NotificationRule; 409 for a taken name"}},
		{method: "PATCH", path: base + "/rules/{id}", resource: resource, write: true, role: agent.Admin, handle: (*API).patchRule,
			doc: doc{group: groupNotifications, body: "any of the fields of POST", answer: "200 NotificationRule"}},
		{method: "DELETE", path: base + "/rules/{id}", resource: resource, write: true, role: agent.Admin, handle: (*API).deleteRule,
			doc: doc{group: groupNotifications, answer: "204"}},
	}
}

// notificationPublic is a message without what it carries.
type notificationPublic struct {
	ID            string         `json:"id"`
	Trigger       notify.Trigger `json:"trigger"`
	RuleID        *string        `json:"rule_id"`
	RuleName      string         `json:"rule_name"`
	ChannelID     string         `json:"channel_id"`
	ChannelName   string         `json:"channel_name"`
	Subject       string         `json:"subject"`
	Collected     int64          `json:"collected"`
	State         notify.State   `json:"state"`
	Attempts      int            `json:"attempts"`
	NextAttemptAt *stamp         `json:"next_attempt_at"`
	LastError     *string        `json:"last_error"`
	CreatedAt     stamp          `json:"created_at"`
	EndedAt       *stamp         `json:"ended_at"`
}

func showNotification(n *notify.Notification) notificationPublic {
	out := notificationPublic{ID: n.ID.String(), Trigger: n.Trigger, RuleName: n.RuleName, ChannelID: n.ChannelID.String(),
		ChannelName: n.ChannelName, Subject: n.Subject, Collected: n.Collected, State: n.State, Attempts: n.Attempts,
		NextAttemptAt: maybe(n.NextAttemptAt), LastError: n.LastError, CreatedAt: stamp(n.CreatedAt), EndedAt: maybe(n.EndedAt)}
	if n.RuleID != nil {
		id := n.RuleID.String()
		out.RuleID = &id
	}
	return out
}

func (a *API) listNotifications(w http.ResponseWriter, c *call) error {
	q := c.query()
	f := notify.Filter{State: notify.State(q.oneOf("state", string(notify.Pending), string(notify.Delivered), string(notify.Dead))),
		ChannelID: q.id("channel_id")}
	page := a.page(q)
	if err := q.err(); err != nil {
		return err
	}
	return serveList(a, w, c, page, lister[notify.Notification, notificationPublic]{
		read: func(p agent.Page) ([]notify.Notification, error) {
			return a.Notifications.List(c.Context(), c.project.No, f, p)
		},
		show:  showNotification,
		place: func(n *notify.Notification) agent.Cursor { return agent.Cursor{At: n.CreatedAt, ID: n.ID} },
	})
}

func (a *API) getNotification(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	n, err := a.Notifications.Get(c.Context(), c.project.No, id)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, struct {
		notificationPublic
		Body any `json:"body"`
	}{showNotification(&n), raw(n.Body)})
}

func (a *API) retryNotification(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	n, err := a.Notifications.Retry(c.Context(), c.who, c.project.No, id)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, showNotification(&n))
}

// channelPublic is a channel without its settings.
type channelPublic struct {
	ID        string      `json:"id"`
	Name      string      `json:"name"`
	Kind      notify.Kind `json:"kind"`
	Target    string      `json:"target"`
	IsEnabled bool        `json:"is_enabled"`
	Failures  int         `json:"failures"`
	RetryAt   *stamp      `json:"retry_at"`
	CreatedAt stamp       `json:"created_at"`
	UpdatedAt stamp       `json:"updated_at"`
}

func showChannel(c *notify.Channel) channelPublic {
	out := channelPublic{c.ID.String(), c.Name, c.Kind, c.Target, c.IsEnabled, c.Failures, nil, stamp(c.CreatedAt), stamp(c.UpdatedAt)}
	if !c.RetryAt.IsZero() {
		at := stamp(c.RetryAt)
		out.RetryAt = &at
	}
	return out
}

// madeChannel is a channel with what is told this once.
type madeChannel struct {
	channelPublic
	Warnings      []string `json:"warnings"`
	SigningSecret *string  `json:"signing_secret,omitempty"`
}

func showMade(m *notify.Made) madeChannel {
	out := madeChannel{channelPublic: showChannel(&m.Channel), Warnings: texts(m.Warnings)}
	if !m.Secret.IsZero() {
		text := m.Secret.Reveal()
		out.SigningSecret = &text
	}
	return out
}

func (a *API) listChannels(w http.ResponseWriter, c *call) error {
	all, err := a.Notifications.Channels(c.Context(), c.project.No)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, each(all, showChannel))
}

// maxListed bounds what is read of lists; the service has the rule.
const maxListed = 100

// channelSettings reads the settings of a kind; the zero Settings when the body has none.
func channelSettings(b *body, kind notify.Kind) (s notify.Settings) {
	hidden := func(in *body, name string) secret.Text { return secret.NewText(orEmpty(in.text(name))) }
	switch kind {
	case notify.Webhook:
		if in := b.within("settings", "url", "secret", "ca"); in != nil {
			s.Webhook = &notify.WebhookSettings{URL: hidden(in, "url"), Secret: hidden(in, "secret"), CA: orEmpty(in.text("ca"))}
			b.take(in)
		}
	case notify.Email:
		if in := b.within("settings", "host", "port", "security", "username", "password", "from", "to", "ca"); in != nil {
			s.Email = &notify.EmailSettings{Host: in.required("host"), Security: orEmpty(in.text("security")),
				Username: orEmpty(in.text("username")), Password: hidden(in, "password"), From: in.required("from"),
				To: in.texts("to", maxListed), CA: orEmpty(in.text("ca"))}
			if port := in.int("port"); port != nil {
				s.Email.Port = *port
			}
			b.take(in)
		}
	case notify.Chat:
		if in := b.within("settings", "url"); in != nil {
			s.Service = &notify.ServiceSettings{URL: hidden(in, "url")}
			b.take(in)
		}
	}
	return s
}

func (a *API) createChannel(w http.ResponseWriter, c *call) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	b.only("name", "kind", "settings", "is_enabled")
	n := notify.NewChannel{Name: b.required("name"), Kind: notify.Kind(b.required("kind")), IsEnabled: true}
	n.Settings = channelSettings(b, n.Kind)
	if on := b.flag("is_enabled"); on != nil {
		n.IsEnabled = *on
	}
	if err := b.err(); err != nil {
		return err
	}
	m, err := a.Notifications.CreateChannel(c.Context(), c.who, c.project.No, n)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusCreated, showMade(&m))
}

func (a *API) patchChannel(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	b.only("name", "settings", "is_enabled")
	var p notify.ChannelPatch
	change(b, "name", b.text, &p.Name)
	change(b, "is_enabled", b.flag, &p.IsEnabled)
	if b.has("settings") { // their form goes by the channel's kind
		all, err := a.Notifications.Channels(c.Context(), c.project.No)
		if err != nil {
			return err
		}
		for _, ch := range all {
			if ch.ID == id {
				p.Settings = agent.SetTo(channelSettings(b, ch.Kind))
			}
		}
	}
	if err := b.err(); err != nil {
		return err
	}
	m, err := a.Notifications.UpdateChannel(c.Context(), c.who, c.project.No, id, p)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, showMade(&m))
}

func (a *API) deleteChannel(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	if err := a.Notifications.DeleteChannel(c.Context(), c.who, c.project.No, id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// testChannel sends a real message. The local admin socket has no address and no limit.
func (a *API) testChannel(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	if a.opts.ChannelTests != nil && !transport.IsLocalAdmin(c.Context()) {
		if err := a.opts.ChannelTests.Allow(c.who.SourceIP); err != nil {
			return err
		}
	}
	n, err := a.Notifications.SendTest(c.Context(), c.who, c.project, id)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, showNotification(&n))
}

// rulePublic is a rule.
type rulePublic struct {
	ID           string         `json:"id"`
	Name         string         `json:"name"`
	Trigger      notify.Trigger `json:"trigger"`
	Pattern      *string        `json:"pattern"`
	GroupSeconds int            `json:"group_seconds"`
	IsEnabled    bool           `json:"is_enabled"`
	Channels     []string       `json:"channels"`
	CreatedAt    stamp          `json:"created_at"`
	UpdatedAt    stamp          `json:"updated_at"`
}

func showRule(r *notify.Rule) rulePublic {
	return rulePublic{ID: r.ID.String(), Name: r.Name, Trigger: r.Trigger, Pattern: orNull(r.Pattern),
		GroupSeconds: int(r.Group / time.Second), IsEnabled: r.IsEnabled,
		Channels:  each(r.Channels, func(id *uuid.UUID) string { return id.String() }),
		CreatedAt: stamp(r.CreatedAt), UpdatedAt: stamp(r.UpdatedAt)}
}

func (a *API) listRules(w http.ResponseWriter, c *call) error {
	all, err := a.Notifications.Rules(c.Context(), c.project.No)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, each(all, showRule))
}

var ruleFields = []string{"name", "trigger", "pattern", "group_seconds", "is_enabled", "channels"}

// seconds is an optional number of seconds.
func (b *body) seconds(name string) *time.Duration {
	n := b.int(name)
	if n == nil {
		return nil
	}
	if *n < 1 {
		b.bad(name, "must be at least 1")
		return nil
	}
	d := time.Duration(*n) * time.Second
	return &d
}

func (a *API) createRule(w http.ResponseWriter, c *call) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	b.only(ruleFields...)
	r := notify.Rule{Name: b.required("name"), Trigger: notify.Trigger(b.required("trigger")), Pattern: orEmpty(b.text("pattern")),
		IsEnabled: true, Channels: b.ids("channels", maxListed)}
	if d := b.seconds("group_seconds"); d != nil {
		r.Group = *d
	}
	if on := b.flag("is_enabled"); on != nil {
		r.IsEnabled = *on
	}
	if err := b.err(); err != nil {
		return err
	}
	r, err = a.Notifications.CreateRule(c.Context(), c.who, c.project.No, r)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusCreated, showRule(&r))
}

func (a *API) patchRule(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	b, err := c.body()
	if err != nil {
		return err
	}
	defer b.release()
	b.only(ruleFields...)
	var p notify.RulePatch
	change(b, "name", b.text, &p.Name)
	change(b, "is_enabled", b.flag, &p.IsEnabled)
	change(b, "group_seconds", b.seconds, &p.Group)
	if t := b.text("trigger"); t != nil {
		p.Trigger = agent.SetTo(notify.Trigger(*t))
	}
	if b.has("pattern") { // null takes it away
		p.Pattern = agent.SetTo(orEmpty(b.text("pattern")))
	}
	if b.has("channels") {
		p.Channels = agent.SetTo(b.ids("channels", maxListed))
	}
	if err := b.err(); err != nil {
		return err
	}
	r, err := a.Notifications.UpdateRule(c.Context(), c.who, c.project.No, id, p)
	if err != nil {
		return err
	}
	return reply(w, c, http.StatusOK, showRule(&r))
}

func (a *API) deleteRule(w http.ResponseWriter, c *call) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	if err := a.Notifications.DeleteRule(c.Context(), c.who, c.project.No, id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
