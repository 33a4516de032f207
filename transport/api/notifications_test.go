package api

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"signalbox/appliance/agent"
	"signalbox/appliance/audit"
	"signalbox/appliance/notify"
	"signalbox/appliance/secret"
	"signalbox/store"
	"signalbox/transport"
)

// postman sends nothing and answers as told by the host of the webhook.
type postman struct{}

func (postman) Check(notify.Settings) error { return nil }

func (postman) Send(_ context.Context, s notify.Settings, _ notify.Message) error {
	if strings.Contains(s.Webhook.URL.Reveal(), "broken") {
		return &notify.SendError{Msg: "the receiver answered 410 Gone", Permanent: true}
	}
	return nil
}

func (g *rig) buildNotify(log *audit.Log) *notify.Service {
	g.t.Helper()
	box, err := secret.NewSealer(secret.NewBytes(bytes.Repeat([]byte{7}, 32)))
	g.must(err)
	st := store.Bind[notify.Tx, notify.ReadTx](g.db)
	s := notify.New(st, st, postman{}, box, log, g.hub, notify.Options{Clock: g.clock})
	_, _, err = s.Start(context.Background())
	g.must(err)
	return s
}

func TestNotificationRoutes(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(o *Options) { o.ChannelTests = transport.NewRateBucket("channel-tests", 2, time.Minute, o.Clock) })
	const base = "/projects/one/notifications"
	const hidden = "c2VjcmV0LXBhdGg"
	var made struct {
		ID            string   `json:"id"`
		Target        string   `json:"target"`
		Warnings      []string `json:"warnings"`
		SigningSecret string   `json:"signing_secret"`
	}
	got := g.ok(http.StatusCreated, "POST", base+"/channels", `{"name": "ops", "kind": "webhook", "settings": {"url": "http://hooks.lan/`+
		hidden+`"}}`, &made)
	if made.Target != "http://hooks.lan" || len(made.Warnings) != 1 || !strings.HasPrefix(made.SigningSecret, "whsec_") {
		t.Fatalf("made %+v", made)
	}
	if strings.Contains(string(got.body), hidden) {
		t.Error("the answer shows the path of the URL")
	}
	for _, bad := range []struct{ body, field string }{
		{`{"kind": "webhook", "settings": {"url": "https://x.lan"}}`, "name"},
		{`{"name": "a", "kind": "pigeon", "settings": {}}`, "kind"},
		{`{"name": "a", "kind": "webhook"}`, "settings"},
		{`{"name": "a", "kind": "webhook", "settings": {"url": "ftp://x.lan"}}`, "settings.url"},
		{`{"name": "a", "kind": "webhook", "settings": {"url": "https://x.lan:99999"}}`, "settings.url"},
		{`{"name": "a", "kind": "webhook", "settings": {"url": "https://x.lan:0"}}`, "settings.url"},
		{`{"name": "a", "kind": [1e400]}`, "body: must be a JSON object: malformed JSON at offset "},
		{`{"name": "a", "kind": "webhook", "settings": {"url": "https://x.lan", "secret": "short"}}`, "settings.secret"},
		{`{"name": "a", "kind": "webhook", "settings": {"url": "https://x.lan", "colour": "red"}}`, "settings.colour"},
		{`{"name": "a", "kind": "webhook", "settings": {"url": "https://x.lan", "ca": "no certificate"}}`, "settings.ca"},
		{`{"name": "a", "kind": "webhook", "settings": {"url": "https://x.lan", "ca": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"}}`,
			"settings.ca"},
		{`{"name": "a", "kind": "webhook", "settings": {"url": "http://x.lan", "ca": "x"}}`, "settings.ca"},
		{`{"name": "a", "kind": "email", "settings": {"host": "m.lan", "from": "a@x.lan", "to": []}}`, "settings.to"},
		{`{"name": "a", "kind": "email", "settings": {"host": "m.lan", "from": "a", "to": ["b@x.lan"]}}`, "settings.from"},
		{`{"name": "a", "kind": "email", "settings": {"host": "m.lan", "from": "a@x.lan", "to": ["b@x.lan"], "username": "a",
			"password": "p", "security": "none"}}`, "settings.security"},
	} {
		if got := g.do(g.admin, "POST", base+"/channels", bad.body); got.status != http.StatusUnprocessableEntity ||
			!strings.Contains(string(got.body), bad.field) {
			t.Errorf("%s: %d %s, want %s", bad.body, got.status, got.body, bad.field)
		}
	}
	if got := g.do(g.admin, "POST", base+"/channels", `{"name": "ops", "kind": "webhook", "settings": {"url": "https://x.lan"}}`); got.status != http.StatusConflict {
		t.Errorf("a taken name: %d %s", got.status, got.body)
	}
	var rule struct {
		ID           string   `json:"id"`
		GroupSeconds int      `json:"group_seconds"`
		Pattern      *string  `json:"pattern"`
		Channels     []string `json:"channels"`
	}
	g.ok(http.StatusCreated, "POST", base+"/rules", `{"name": "r", "trigger": "task_failed", "pattern": "mail.*", "channels": ["`+made.ID+`"]}`, &rule)
	if rule.GroupSeconds != 300 || rule.Pattern == nil || len(rule.Channels) != 1 {
		t.Fatalf("rule %+v", rule)
	}
	g.ok(http.StatusOK, "PATCH", base+"/rules/"+rule.ID, `{"pattern": null, "group_seconds": 60}`, &rule)
	if rule.GroupSeconds != 60 || rule.Pattern != nil || len(rule.Channels) != 1 {
		t.Fatalf("changed to %+v", rule)
	}
	for _, bad := range []string{`{"group_seconds": 9}`, `{"trigger": "x"}`, `{"channels": []}`, `{"channels": ["` + rule.ID + `"]}`,
		`{"name": ""}`, `{"colour": 1}`} {
		if got := g.do(g.admin, "PATCH", base+"/rules/"+rule.ID, bad); got.status != http.StatusUnprocessableEntity {
			t.Errorf("%s: %d %s", bad, got.status, got.body)
		}
	}
	operator := g.key(agent.NewAPIKey{Role: agent.Operator})
	var sent struct {
		ID        string  `json:"id"`
		State     string  `json:"state"`
		LastError *string `json:"last_error"`
	}
	if got := g.do(operator, "POST", base+"/channels/"+made.ID+"/test", ""); got.status != http.StatusOK ||
		!strings.Contains(string(got.body), `"delivered"`) {
		t.Fatalf("test: %d %s", got.status, got.body)
	}
	g.ok(http.StatusOK, "PATCH", base+"/channels/"+made.ID, `{"settings": {"url": "https://broken.lan", "secret": "0123456789abcdef"}}`, nil)
	g.ok(http.StatusOK, "POST", base+"/channels/"+made.ID+"/test", "", &sent)
	if sent.State != "dead" || sent.LastError == nil || *sent.LastError != "the receiver answered 410 Gone" {
		t.Fatalf("test of a broken channel: %+v", sent)
	}
	if got := g.do(g.admin, "POST", base+"/channels/"+made.ID+"/test", ""); got.status != http.StatusTooManyRequests {
		t.Errorf("a third test in a minute: %d", got.status)
	}
	var page struct {
		Items      []map[string]any `json:"items"`
		NextCursor *string          `json:"next_cursor"`
	}
	g.ok(http.StatusOK, "GET", base+"?limit=1", "", &page)
	if len(page.Items) != 1 || page.NextCursor == nil {
		t.Fatalf("first page %+v", page)
	}
	first := page.Items[0]["id"]
	g.ok(http.StatusOK, "GET", base+"?limit=1&cursor="+*page.NextCursor, "", &page)
	if len(page.Items) != 1 || page.Items[0]["id"] == first {
		t.Fatalf("second page %+v", page)
	}
	g.ok(http.StatusOK, "GET", base+"?state=dead", "", &page)
	if len(page.Items) != 1 || page.Items[0]["id"] != sent.ID {
		t.Fatalf("dead ones %+v", page)
	}
	var one struct {
		Body struct {
			Type string `json:"type"`
		} `json:"body"`
	}
	g.ok(http.StatusOK, "GET", base+"/"+sent.ID, "", &one)
	if one.Body.Type != "test" {
		t.Errorf("body %+v", one)
	}
	g.ok(http.StatusOK, "POST", base+"/"+sent.ID+"/retry", "", &sent)
	if sent.State != "pending" {
		t.Errorf("retried: %+v", sent)
	}
	if got := g.do(g.admin, "POST", base+"/"+sent.ID+"/retry", ""); got.status != http.StatusConflict {
		t.Errorf("retried again: %d", got.status)
	}
	if got := g.do(g.admin, "GET", "/projects/two/notifications/"+sent.ID, ""); got.status != http.StatusNotFound {
		t.Errorf("seen from another project: %d", got.status)
	}
	g.ok(http.StatusNoContent, "DELETE", base+"/channels/"+made.ID, "", nil)
	g.ok(http.StatusNoContent, "DELETE", base+"/rules/"+rule.ID, "", nil)
	g.ok(http.StatusOK, "GET", base, "", &page)
	if len(page.Items) != 0 {
		t.Errorf("left: %+v", page)
	}
	var rows struct {
		Items []struct {
			Action   string         `json:"action"`
			Metadata map[string]any `json:"metadata"`
		} `json:"items"`
	}
	g.ok(http.StatusOK, "GET", "/projects/one/audit?action_prefix=notification.&limit=5", "", &rows)
	if len(rows.Items) < 5 || rows.Items[0].Action != "notification.rule.deleted" {
		t.Errorf("audit rows %+v", rows)
	}
}
