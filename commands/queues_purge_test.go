package commands

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// On a terminal a purge shows the measured depth with its age, asks for the name of the queue, and purges nothing for
// another answer. What is sent is the depth that was shown.
func TestPurgeOnATerminal(t *testing.T) {
	t.Parallel()
	measured := object{"id": "q", "name": "mail", "engine": "celery", "broker_type": "redis", "pending_count": 120,
		"last_seen_at": time.Now().Add(-2 * time.Minute).UTC().Format(time.RFC3339)}
	unknown := object{"id": "q", "name": "mail", "engine": "celery", "broker_type": "redis", "pending_count": nil, "last_seen_at": nil}
	const asked = "Type the name of the queue to go on: "
	for name, tt := range map[string]struct {
		queue  object
		answer string
		args   []string
		exit   int
		say    []string
		sent   string // of the command's payload; "": nothing is issued
	}{
		"the name":       {measured, "mail\n", nil, ExitOK, []string{"120 tasks wait, measured 2m", "This deletes its 120 waiting tasks for good", asked}, "observed_depth:120"},
		"another name":   {measured, "mails\n", nil, ExitFailed, []string{"120 tasks wait", asked, "nothing changed"}, ""},
		"yes":            {measured, "y\n", nil, ExitFailed, []string{asked, "nothing changed"}, ""},
		"nothing":        {measured, "", nil, ExitFailed, []string{asked, "nothing changed"}, ""},
		"an own depth":   {measured, "mail\n", []string{"--depth", "7"}, ExitOK, []string{"120 tasks wait", "This deletes its 7 waiting tasks"}, "observed_depth:7"},
		"force":          {measured, "mail\n", []string{"--force"}, ExitOK, []string{"120 tasks wait", "This deletes every waiting task"}, "force:true"},
		"never measured": {unknown, "mail\n", nil, ExitUsage, []string{"its depth is unknown", "--depth"}, ""},
		"settled before": {measured, "", []string{"--yes", "--depth", "120"}, ExitOK, []string{"120 tasks wait"}, "observed_depth:120"},
	} {
		r := newRun(t)
		opts, _, talk := r.options("", false)
		if opts.execute(t.Context(), []string{"agents", "mint", "web-1"}) != ExitOK {
			t.Fatalf("mint: %s", talk)
		}
		r.fake.queues, r.fake.autoResult = []object{tt.queue}, "completed"
		r.fake.agents[0]["state"] = "online"
		opts, out, talk := r.options(tt.answer, true)
		if got := opts.execute(t.Context(), append([]string{"queues", "purge", "mail"}, tt.args...)); got != tt.exit {
			t.Errorf("%s: exit code %d, want %d: %s%s", name, got, tt.exit, out, talk)
		}
		for _, part := range tt.say {
			if !strings.Contains(talk.String(), part) {
				t.Errorf("%s: said %q, lacks %q", name, talk, part)
			}
		}
		if sure := strings.Contains(talk.String(), asked); sure != (tt.exit != ExitUsage && len(tt.args) < 3) {
			t.Errorf("%s: asked for the name: %v", name, sure)
		}
		sent := ""
		if n := len(r.fake.commands); n > 0 {
			sent = fmt.Sprint(r.fake.commands[n-1]["payload"])
		}
		if sent == "" != (tt.sent == "") || !strings.Contains(sent, tt.sent) {
			t.Errorf("%s: issued with %s, want %s", name, sent, tt.sent)
		}
	}
}
