//go:build interop

package commands

import (
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestInteropNotifications sends notifications of the real binary to a real mail server and a real HTTP receiver, which are
// stopped, fail, stall and come back.
func TestInteropNotifications(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("the mail server needs root")
	}
	t.Parallel()
	server := newProcess(t, buildBinary(t))
	server.start()
	r := &rig{t: t, dir: shortDir(t), server: server, tools: tools{source: "."}}
	m := r.newMailServer()
	hook := newTroubledHook(t)
	for name, settings := range map[string]map[string]any{
		"plain":  {"host": "127.0.0.1", "port": m.plain, "security": "none", "from": "signalbox@example.com", "to": []string{"ops@example.com"}},
		"secure": {"host": "127.0.0.1", "port": m.tls, "from": "signalbox@example.com", "to": []string{"ops@example.com"}},
	} {
		r.notifyChannel(name, "email", settings)
	}
	for _, name := range []string{"fails", "stalls"} {
		r.notifyChannel(name, "webhook", map[string]any{"url": hook.URL + "/" + name})
	}
	m.start()
	if n := r.notifyTest("plain"); n.State != "delivered" {
		t.Errorf("a test of the mail server: %s", text(n.LastError))
	}
	if n := r.notifyTest("secure"); n.State != "dead" || !strings.Contains(text(n.LastError), "certificate that is not trusted") {
		t.Errorf("a certificate of its own: %s, %s", n.State, text(n.LastError))
	}
	r.signIn(m)
	m.stop()
	var sent []string // Message-IDs that the mail box must hold, beside those of the tests
	cfg := server.mint("worker").cfg

	// Down, failing and stalling at once; the agent is served all the same.
	r.notifyRule("first", "first.*", "plain", "fails", "stalls")
	tell(t.Context(), server, cfg, taskFailure("first.task"))
	r.awaitNotification("plain", "the mail server does not accept connections")
	r.awaitNotification("fails", "the receiver answered 503")
	hook.recover("fails")
	m.start()
	sent = append(sent, r.awaitDelivered("plain", 1), r.awaitDelivered("fails", 1))
	r.awaitNotification("stalls", "did not answer in time")
	hook.recover("stalls")

	// A mail server that stalls: the kernel accepts for it, and nobody speaks.
	m.signal(syscall.SIGSTOP)
	r.notifyRule("second", "second.*", "plain")
	tell(t.Context(), server, cfg, taskFailure("second.task"))
	r.awaitDelivered("stalls", 1)
	r.awaitNotification("plain", "the mail server did not answer in time")
	m.signal(syscall.SIGCONT)
	sent = append(sent, r.awaitDelivered("plain", 2))

	r.eventually("the mail box holds what was sent", func() (bool, any) { return len(m.mails()) == 5, m.mails() })
	box := strings.Join(m.mails(), "\n")
	for _, id := range []string{sent[0], sent[2]} {
		if n := strings.Count(box, "<"+id+"@signalbox>"); n != 1 {
			t.Errorf("message %s is in the mail box %d times:\n%s", id, n, box)
		}
	}
	for _, part := range []string{"Subject: [default] task first.task failed: ValueError: no", "[default] task second.task failed",
		"Auto-Submitted: auto-generated", "project: default"} {
		if !strings.Contains(box, part) {
			t.Errorf("the mail box has no %q:\n%s", part, box)
		}
	}
	// Twice, or more often when it was slow to recover.
	if got := hook.ids("fails"); len(got) < 2 || got[0] != sent[1] || len(slices.Compact(got)) != 1 {
		t.Errorf("the receiver that failed got %v, want %s again and again", got, sent[1])
	}
	if got := hook.ids("stalls"); len(got) < 2 || len(slices.Compact(got)) != 1 {
		t.Errorf("the receiver that stalled got %v, want one id again and again", got)
	}
}

// signIn writes through listeners that demand TLS and a password. The server's certificate is trusted only where its
// authority is named, and no password is in the database or the log, right or wrong.
func (r *rig) signIn(m *mailServer) {
	r.t.Helper()
	m.startSubmission()
	wrong, right := m.path("wrong.password"), m.path("right.password")
	for path, content := range map[string]string{wrong: "wrong-" + mailPassword, right: mailPassword} {
		if err := os.WriteFile(path, []byte(content+"\n"), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	for security, port := range map[string]int{"starttls": m.required, "tls": m.smtps} {
		for _, c := range []struct{ name, ca, password, state, failure string }{
			{"known", r.caFile, right, "delivered", ""},
			{"wrong", r.caFile, wrong, "dead", "it answered 535 (sign-in refused)"},
			{"unknown", "", right, "dead", "the mail server has a certificate that is not trusted"},
		} {
			name := security + "-" + c.name
			args := []string{"notifications", "channels", "create", name, "--kind", "email", "--host", "127.0.0.1", "--port", strconv.Itoa(port),
				"--security", security, "--username", "bot", "--password-file", c.password, "--from", "signalbox@example.com", "--to",
				"ops@example.com"}
			if c.ca != "" {
				args = append(args, "--ca-file", c.ca)
			}
			var made any
			r.cli(&made, args...)
			if n := r.notifyTest(name); n.State != c.state || !strings.Contains(text(n.LastError), c.failure) {
				r.t.Errorf("%s: %s, %s", name, n.State, text(n.LastError))
			}
		}
	}
	shown := []string{mailPassword, base64.StdEncoding.EncodeToString([]byte("\x00bot\x00" + mailPassword)),
		base64.StdEncoding.EncodeToString([]byte("\x00bot\x00wrong-" + mailPassword))}
	for _, name := range []string{"signalbox.db", "signalbox.db-wal", "serve.log"} {
		content, err := os.ReadFile(filepath.Join(r.server.dir, name))
		if err != nil {
			r.t.Fatal(err)
		}
		for _, secret := range shown {
			if strings.Contains(string(content), secret) {
				r.t.Errorf("%s shows the password", name)
			}
		}
	}
}

func (r *rig) notifyChannel(name, kind string, settings map[string]any) {
	r.t.Helper()
	r.rest("POST", "/projects/default/notifications/channels", map[string]any{"name": name, "kind": kind, "settings": settings}, nil)
}

func (r *rig) notifyRule(name, pattern string, channels ...string) {
	r.t.Helper()
	args := []string{"notifications", "rules", "create", name, "--trigger", "task_failed", "--pattern", pattern, "--group", "1h"}
	for _, c := range channels {
		args = append(args, "--channel", c)
	}
	var made any
	r.cli(&made, args...)
}

func (r *rig) notifyTest(channel string) notificationRow {
	r.t.Helper()
	out, _, stderr := r.tryCLI("notifications", "test", channel)
	rows := r.notifications(channel)
	if len(rows) == 0 {
		r.t.Fatalf("the test of %s left nothing: %s%s", channel, out, stderr)
	}
	return rows[0]
}

// notifications are the messages of a channel, newest first.
func (r *rig) notifications(channel string) []notificationRow {
	r.t.Helper()
	var page struct {
		Items []notificationRow `json:"items"`
	}
	r.cli(&page, "notifications", "list", "--channel", channel)
	return page.Items
}

// awaitNotification waits until an attempt of the channel's newest message failed so, and is to be made again.
func (r *rig) awaitNotification(channel, failure string) {
	r.t.Helper()
	r.eventually(channel+": "+failure, func() (bool, any) {
		rows := r.notifications(channel)
		return len(rows) > 0 && rows[0].State == "pending" && strings.Contains(text(rows[0].LastError), failure), rows
	})
}

// awaitDelivered waits until the channel has delivered so many messages of rules, and returns the id of the newest.
func (r *rig) awaitDelivered(channel string, n int) (id string) {
	r.t.Helper()
	r.eventually(channel+" delivers", func() (bool, any) {
		rows, done := r.notifications(channel), 0
		for _, row := range rows {
			if row.Trigger == "task_failed" && row.State == "delivered" {
				done++
			}
		}
		if done == n {
			id = rows[0].ID
		}
		return done == n, rows
	})
	return id
}

// mailServer is an OpenSMTPD with a spool and a mail box of its own. It knows one place for its spool and its socket, so it has
// a mount namespace of its own too.
type mailServer struct {
	r               *rig
	plain, tls      int // listeners that anybody may use
	required, smtps int // those of a Dovecot in front, which demands STARTTLS, or TLS, and a password
	daemon          *daemon
}

// mailPassword is that of the mail server's user bot.
const mailPassword = "correct-horse-battery"

func (r *rig) newMailServer() *mailServer {
	r.t.Helper()
	for _, tool := range []string{"unshare", "smtpd"} {
		if _, err := exec.LookPath(tool); err != nil {
			r.t.Fatalf("install the opensmtpd of your distribution (and have /usr/sbin in PATH): %v", err)
		}
	}
	m := &mailServer{r: r}
	for _, port := range []*int{&m.plain, &m.tls, &m.required, &m.smtps} {
		*port = freePort(r.t)
	}
	cert, key := r.newCertificate()
	nobody, err := user.Lookup("nobody")
	if err != nil {
		r.t.Fatal(err)
	}
	uid, _ := strconv.Atoi(nobody.Uid)
	conf := fmt.Sprintf(`pki signalbox cert %q
pki signalbox key %q
listen on 127.0.0.1 port %d
listen on 127.0.0.1 port %d tls pki signalbox
action "keep" maildir %q virtual { "@" = nobody }
match from any for any action "keep"
`, cert, key, m.plain, m.tls, m.path("mail"))
	err = os.WriteFile(m.path("smtpd.conf"), []byte(conf), 0o644)
	for _, dir := range []string{"mail", "spool", "run"} {
		if err == nil {
			err = os.Mkdir(m.path(dir), 0o755)
		}
	}
	if err == nil {
		err = os.Chown(m.path("mail"), uid, -1)
	}
	if err == nil {
		err = os.Chmod(r.dir, 0o755)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

// startSubmission starts a Dovecot that takes letters from who has signed in, over TLS, and hands them to the mail server:
// Debian's OpenSMTPD 6.8 cannot use its own key under OpenSSL 3.
func (m *mailServer) startSubmission() {
	r := m.r
	r.t.Helper()
	if _, err := exec.LookPath("dovecot"); err != nil {
		r.t.Fatalf("install the dovecot-submissiond of your distribution (and have /usr/sbin in PATH): %v", err)
	}
	conf := fmt.Sprintf(`base_dir = %s
log_path = /dev/stderr
protocols = submission
ssl = required
ssl_cert = <%s
ssl_key = <%s
auth_mechanisms = plain login
mail_location = maildir:%s
first_valid_uid = 1
passdb {
  driver = static
  args = user=bot password={PLAIN}%s
}
userdb {
  driver = static
  args = uid=nobody gid=nogroup home=%[4]s
}
submission_relay_host = 127.0.0.1
submission_relay_port = %[6]d
service submission-login {
  inet_listener submission {
    address = 127.0.0.1
    port = %[7]d
  }
  inet_listener submissions {
    address = 127.0.0.1
    port = %[8]d
    ssl = yes
  }
}
`, m.path("dovecot"), m.path("cert.pem"), m.path("key.pem"), m.path("mail"), mailPassword, m.plain, m.required, m.smtps)
	if err := os.WriteFile(m.path("dovecot.conf"), []byte(conf), 0o600); err != nil {
		r.t.Fatal(err)
	}
	r.startDaemon("dovecot", "dovecot", []string{"PATH=" + os.Getenv("PATH")}, "-F", "-c", m.path("dovecot.conf"))
	r.eventually("Dovecot listens", func() (bool, any) {
		c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", m.required), time.Second)
		if err == nil {
			c.Close()
		}
		return err == nil, err
	})
}

func (m *mailServer) path(name string) string { return filepath.Join(m.r.dir, name) }

// start returns when the server answers.
func (m *mailServer) start() {
	m.r.t.Helper()
	m.daemon = m.r.startDaemon("smtpd", "unshare", []string{"PATH=" + os.Getenv("PATH")}, "--mount", "sh", "-ec",
		`mount --bind "$1/spool" /var/spool && mount --bind "$1/run" /run && exec "$(command -v smtpd)" -d -f "$1/smtpd.conf"`, "sh", m.r.dir)
	m.r.eventually("the mail server answers", func() (bool, any) {
		c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", m.plain), time.Second)
		if err != nil {
			return false, err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(2 * time.Second))
		greeting := make([]byte, 3)
		_, err = io.ReadFull(c, greeting)
		return string(greeting) == "220", err
	})
}

func (m *mailServer) stop() { m.daemon.stop() }

func (m *mailServer) signal(s syscall.Signal) {
	m.r.t.Helper()
	if err := syscall.Kill(-m.daemon.cmd.Process.Pid, s); err != nil {
		m.r.t.Fatal(err)
	}
}

// mails are what the mail box holds, with unfolded headers.
func (m *mailServer) mails() (all []string) {
	m.r.t.Helper()
	files, err := filepath.Glob(m.path("mail/new/*"))
	if err != nil {
		m.r.t.Fatal(err)
	}
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			m.r.t.Fatal(err)
		}
		all = append(all, strings.ReplaceAll(strings.ReplaceAll(string(content), "\r\n", "\n"), "\n ", " "))
	}
	return all
}

// troubledHook is a receiver of webhooks of which each path has its trouble until it recovers.
type troubledHook struct {
	*httptest.Server
	mu        sync.Mutex
	recovered map[string]bool
	got       map[string][]string // path -> ids
}

func newTroubledHook(t *testing.T) *troubledHook {
	h := &troubledHook{recovered: map[string]bool{}, got: map[string][]string{}}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path[1:]
		h.mu.Lock()
		h.got[path] = append(h.got[path], r.Header.Get("webhook-id"))
		well := h.recovered[path]
		h.mu.Unlock()
		switch {
		case well:
			w.WriteHeader(http.StatusNoContent)
		case path == "stalls":
			_, _ = io.Copy(io.Discard, r.Body) // so that the server sees the client hang up
			<-r.Context().Done()
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *troubledHook) recover(path string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.recovered[path] = true
}

func (h *troubledHook) ids(path string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.got[path]...)
}
