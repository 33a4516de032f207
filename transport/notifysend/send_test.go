package notifysend

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/notify"
	"signalbox/appliance/secret"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "hidden-token"

var (
	start   = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	message = notify.Message{ID: uuid.MustParse("3f2b8c1e-6a4d-4e7f-9b10-2c5d7e8f9a01"), CreatedAt: start, Subject: "[one] task failed: café",
		Text: "task failed\n\n.a line with a dot\n", Body: []byte(`{"id":"x"}`)}
)

func newSender(t *testing.T) *Sender {
	s := New(Options{Version: "1.2.3", Clock: clock.NewFake(start)})
	t.Cleanup(s.Close)
	return s
}

func webhook(url string) notify.Settings {
	return notify.Settings{Webhook: &notify.WebhookSettings{URL: secret.NewText(url), Secret: secret.NewText("whsec_" +
		base64.StdEncoding.EncodeToString([]byte("0123456789abcdef")))}}
}

// TestWebhook: a receiver that works, fails, asks for patience, redirects and stalls.
func TestWebhook(t *testing.T) {
	t.Parallel()
	var status atomic.Int64
	var seen atomic.Pointer[http.Request]
	var followed atomic.Bool
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path == "/elsewhere" {
			followed.Store(true)
			return
		}
		h := hmac.New(sha256.New, []byte("0123456789abcdef")) // as docs/notifications.md has receivers do it
		h.Write([]byte(r.Header.Get("webhook-id") + "." + r.Header.Get("webhook-timestamp") + "." + string(body)))
		if r.Header.Get("webhook-signature") != "v1,"+base64.StdEncoding.EncodeToString(h.Sum(nil)) {
			t.Error("the signature is wrong")
		}
		seen.Store(r)
		switch code := int(status.Load()); code {
		case 0:
			<-release
		case 1:
			panic(http.ErrAbortHandler) // closes the connection
		case 302:
			http.Redirect(w, r, "/elsewhere", code)
		default:
			w.Header().Set("Retry-After", "120")
			w.WriteHeader(code)
			fmt.Fprint(w, token)
		}
	}))
	defer srv.Close()
	defer close(release)
	s, set := newSender(t), webhook(srv.URL+"/"+token)
	for _, c := range []struct {
		status    int
		msg       string
		permanent bool
		after     time.Duration
	}{
		{204, "", false, 0},
		{503, "the receiver answered 503 Service Unavailable", false, 2 * time.Minute},
		{404, "the receiver answered 404 Not Found", false, 2 * time.Minute},
		{410, "the receiver answered 410 Gone", true, 2 * time.Minute},
		{302, "the receiver answered 302 Found; redirects are not followed", true, 0},
		{1, "the receiver closed the connection without an answer", false, 0},
	} {
		status.Store(int64(c.status))
		err := s.Send(context.Background(), set, message)
		var e *notify.SendError
		switch {
		case c.msg == "" && err != nil, c.msg != "" && !errors.As(err, &e):
			t.Errorf("%d: %v", c.status, err)
		case e != nil && (e.Msg != c.msg || e.Permanent != c.permanent || e.RetryAfter != c.after):
			t.Errorf("%d: %+v", c.status, e)
		}
	}
	if followed.Load() {
		t.Error("a redirect was followed")
	}
	r := seen.Load()
	if r.Header.Get("webhook-id") != message.ID.String() || r.Header.Get("webhook-timestamp") != "1780315200" ||
		r.Header.Get("User-Agent") != "Signalbox/1.2.3" {
		t.Errorf("headers %v", r.Header)
	}
	status.Store(0)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := s.Send(ctx, set, message); err == nil || err.Error() != "the receiver did not answer in time" {
		t.Errorf("a receiver that stalls: %v", err)
	}
}

// TestErrorsHideSecrets: whatever goes wrong, the error has nothing of the URL.
func TestErrorsHideSecrets(t *testing.T) {
	t.Parallel()
	const closed = "127.0.0.1:1" // no port that the kernel gives to somebody else
	s := newSender(t)
	sets := []notify.Settings{webhook("http://" + closed + "/" + token), webhook("http://name.invalid/" + token)}
	for _, u := range []string{"ntfy://user:" + token + "@" + closed + "/topic?scheme=http", "gotify://" + closed + "/A" + token + "?disabletls=yes",
		"discord://" + token, "rocketchat://" + closed + "/" + token, "nonsense://" + token} {
		sets = append(sets, notify.Settings{Service: &notify.ServiceSettings{URL: secret.NewText(u)}})
	}
	sets = append(sets, notify.Settings{Email: &notify.EmailSettings{Host: "127.0.0.1", Port: port(closed), Security: notify.NoTLS,
		From: "a@x.lan", To: []string{"b@x.lan"}, Username: "bot", Password: secret.NewText(token)}})
	for i, set := range sets {
		err := s.Send(context.Background(), set, message)
		if err == nil || strings.Contains(err.Error(), token) || strings.Contains(err.Error(), closed) {
			t.Errorf("%d: %v", i, err)
		}
		if err := s.Check(set); err != nil && strings.Contains(err.Error(), token) {
			t.Errorf("check %d: %v", i, err)
		}
	}
}

func port(address string) (n int) {
	_, text, _ := net.SplitHostPort(address)
	_, _ = fmt.Sscan(text, &n)
	return n
}

// TestCheckService: services by the scheme of their URL, without those that have kinds of their own or write to a log.
func TestCheckService(t *testing.T) {
	t.Parallel()
	s := newSender(t)
	for url, ok := range map[string]bool{
		"ntfy://ntfy.lan/topic": true, "gotify://gotify.lan/AzyoeNS.D4iJLVa": true, "telegram://110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw@telegram?chats=1": true,
		"smtp://mail.lan": false, "generic://hooks.lan": false, "generic+https://hooks.lan": false, "logger://": false, "https://x.lan": false,
		"telegram://nobody": false, "": false,
	} {
		err := s.Check(notify.Settings{Service: &notify.ServiceSettings{URL: secret.NewText(url)}})
		if (err == nil) != ok || err != nil && !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// TestService: a message goes through the library, and one that hangs keeps further ones from piling up.
func TestService(t *testing.T) {
	t.Parallel()
	var stall atomic.Bool
	var got atomic.Value
	release := make(chan struct{})
	entered := make(chan struct{}, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got.Store(string(body))
		if stall.Load() {
			entered <- struct{}{}
			<-release
		}
		fmt.Fprint(w, `{"id":"1","time":1}`)
	}))
	defer srv.Close()
	s := newSender(t)
	set := notify.Settings{Service: &notify.ServiceSettings{URL: secret.NewText("ntfy://" + strings.TrimPrefix(srv.URL, "http://") +
		"/topic?scheme=http")}}
	if err := s.Send(context.Background(), set, message); err != nil {
		t.Fatal(err)
	}
	if text, _ := got.Load().(string); !strings.Contains(text, "a line with a dot") {
		t.Errorf("sent %q", text)
	}
	stall.Store(true)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-entered
		cancel()
	}()
	if err := s.Send(ctx, set, message); err == nil {
		t.Error("a service that stalls accepted the message")
	}
	if err := s.Send(context.Background(), set, message); err == nil || !strings.Contains(err.Error(), "an earlier message") {
		t.Errorf("while it stalls: %v", err)
	}
	stall.Store(false)
	close(release)
	http.DefaultClient.CloseIdleConnections()
}

// mailServer answers SMTP by a script: what it says after each verb. "" hangs.
func mailServer(t *testing.T, say map[string]string) (address string, letters chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	letters = make(chan string, 10)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				in := bufio.NewReader(c)
				fmt.Fprint(c, "220 mail.lan ESMTP\r\n")
				for {
					line, err := in.ReadString('\n')
					if err != nil {
						return
					}
					verb := strings.ToUpper(strings.Fields(line + " x")[0])
					answer, known := say[verb]
					if !known {
						answer = map[string]string{"EHLO": "250-mail.lan\r\n250 8BITMIME", "DATA": "354 go on", "QUIT": "221 bye"}[verb]
						if answer == "" {
							answer = "250 ok"
						}
					}
					if answer == "" {
						_, _ = io.Copy(io.Discard, in)
						return
					}
					fmt.Fprint(c, answer+"\r\n")
					if verb == "DATA" && strings.HasPrefix(answer, "354") {
						var letter strings.Builder
						for line != ".\r\n" {
							if line, err = in.ReadString('\n'); err != nil {
								return
							}
							letter.WriteString(line)
						}
						letters <- letter.String()
						fmt.Fprint(c, "250 taken\r\n")
					}
				}
			}()
		}
	}()
	return l.Addr().String(), letters
}

func letterTo(address string) notify.Settings {
	return notify.Settings{Email: &notify.EmailSettings{Host: "127.0.0.1", Port: port(address), Security: notify.NoTLS, From: "bot@x.lan",
		To: []string{"ops@x.lan", "on-call@x.lan"}}}
}

func TestMail(t *testing.T) {
	t.Parallel()
	s := newSender(t)
	address, letters := mailServer(t, nil)
	if err := s.Send(context.Background(), letterTo(address), message); err != nil {
		t.Fatal(err)
	}
	letter := <-letters
	for _, part := range []string{"Message-ID: <3f2b8c1e-6a4d-4e7f-9b10-2c5d7e8f9a01@signalbox>", "Auto-Submitted: auto-generated",
		"Subject: ", "task failed", "<on-call@x.lan>"} {
		if !strings.Contains(letter, part) {
			t.Errorf("the letter is without %q:\n%s", part, letter)
		}
	}
	for _, c := range []struct {
		say       map[string]string
		msg       string
		permanent bool
	}{
		{map[string]string{"RCPT": "550 5.1.1 no such user hidden"}, "the mail server: it answered 550", true},
		{map[string]string{"MAIL": "451 4.7.1 greylisted"}, "the mail server: it answered 451", false},
		{map[string]string{"EHLO": "250-mail.lan\r\n250 AUTH PLAIN LOGIN", "AUTH": "535 5.7.8 hidden"}, "it answered 535 (sign-in refused)", true},
		{map[string]string{"EHLO": "250-mail.lan\r\n250 AUTH XOAUTH2"}, "offers no way to sign in that is known", false},
		{map[string]string{"EHLO": "250-mail.lan\r\n250 8BITMIME"}, "offers no way to sign in that is known", false},
	} {
		address, _ := mailServer(t, c.say)
		to := letterTo(address)
		if c.say["EHLO"] != "" {
			to.Email.Username, to.Email.Password = "bot", secret.NewText("hidden")
		}
		err := s.Send(context.Background(), to, message)
		var e *notify.SendError
		if !errors.As(err, &e) || !strings.Contains(e.Msg, c.msg) || e.Permanent != c.permanent || strings.Contains(e.Msg, "hidden") {
			t.Errorf("%v: %+v", c.say, err)
		}
	}
	// To this machine a password may travel without TLS.
	signedIn, letters := mailServer(t, map[string]string{"EHLO": "250-mail.lan\r\n250 AUTH PLAIN LOGIN", "AUTH": "235 welcome"})
	withPassword := letterTo(signedIn)
	withPassword.Email.Username, withPassword.Email.Password = "bot", secret.NewText("hidden")
	if err := s.Send(context.Background(), withPassword, message); err != nil {
		t.Errorf("with a password: %v", err)
	} else {
		<-letters
	}
	needs := letterTo(address)
	needs.Email.Security = notify.StartTLS
	if err := s.Send(context.Background(), needs, message); err == nil || err.Error() != "the mail server does not offer STARTTLS" {
		t.Errorf("without STARTTLS: %v", err)
	}
	for _, verb := range []string{"EHLO", "MAIL", "DATA"} {
		address, _ := mailServer(t, map[string]string{verb: ""})
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		err := s.Send(ctx, letterTo(address), message)
		cancel()
		if err == nil || !strings.Contains(err.Error(), "in time") {
			t.Errorf("a mail server that stalls at %s: %v", verb, err)
		}
	}
}

// TestMailErrorAfterTheTime: the end of the time closes the connection. Whatever comes of that, the server did not answer in
// time; what it did answer counts still.
func TestMailErrorAfterTheTime(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	hungUp := &net.OpError{Op: "read", Net: "tcp", Err: net.ErrClosed}
	if err := mailError(ctx, "send through", hungUp); err.Error() != "the mail server did not answer in time" {
		t.Errorf("hung up: %v", err)
	}
	if err := mailError(ctx, "send through", &textproto.Error{Code: 550}); !strings.Contains(err.Error(), "it answered 550") {
		t.Errorf("refused: %v", err)
	}
}
