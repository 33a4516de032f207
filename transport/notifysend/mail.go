package notifysend

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/wneessen/go-mail"

	"signalbox/appliance/notify"
)

// mailTimeout bounds the connection and each command when ctx has no deadline.
const mailTimeout = 10 * time.Second

// sendMail hands one message for all recipients to the mail server. Its Message-ID is made of the message's id, so that
// mail programs show a message that came twice once.
func (s *Sender) sendMail(ctx context.Context, e *notify.EmailSettings, m notify.Message) error {
	msg := mail.NewMsg()
	if err := errors.Join(msg.From(e.From), msg.To(e.To...)); err != nil {
		return &notify.SendError{Msg: "an address is not usable", Permanent: true}
	}
	msg.SetMessageIDWithValue(m.ID.String() + "@signalbox")
	msg.SetDateWithValue(m.CreatedAt)
	msg.Subject(m.Subject)
	msg.SetGenHeader("Auto-Submitted", "auto-generated") // keeps auto-responders silent
	msg.SetBodyString(mail.TypeTextPlain, m.Text)
	client, end, err := s.mailClient(ctx, e)
	if err != nil {
		return &notify.SendError{Msg: "the mail settings are not usable", Permanent: true}
	}
	return s.guard(ctx, "mail "+net.JoinHostPort(e.Host, strconv.Itoa(e.Port))+" "+e.From+" "+strings.Join(e.To, " "), "the mail server", func() error {
		defer end()
		if err := client.DialWithContext(ctx); err != nil {
			return mailError(ctx, "connect to", err)
		}
		err := client.Send(msg)
		_ = client.Close() // once the server has accepted the message, how it says goodbye is its own affair
		if err != nil {
			return mailError(ctx, "send through", err)
		}
		return nil
	})
}

// mailClient is a client for one message. end closes its connection, as the end of ctx does, whatever it waits for.
func (s *Sender) mailClient(ctx context.Context, e *notify.EmailSettings) (client *mail.Client, end func(), err error) {
	var conn atomic.Pointer[net.Conn]
	hangUp := func() {
		if c := conn.Load(); c != nil {
			_ = (*c).Close()
		}
	}
	trust := s.trust(e.CA)
	trust.ServerName = e.Host
	opts := []mail.Option{mail.WithPort(e.Port), mail.WithTimeout(mailTimeout), mail.WithHELO("signalbox"), mail.WithTLSConfig(trust),
		mail.WithoutNoop(), mail.WithDialContextFunc(func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			conn.Store(&c)
			if e.Security != notify.TLS {
				return c, nil
			}
			encrypted := tls.Client(c, trust)
			return encrypted, encrypted.HandshakeContext(ctx)
		})}
	switch e.Security {
	case notify.TLS:
		opts = append(opts, mail.WithSSL()) // no STARTTLS within
	case notify.StartTLS:
		opts = append(opts, mail.WithTLSPolicy(mail.TLSMandatory))
	case notify.NoTLS:
		opts = append(opts, mail.WithTLSPolicy(mail.NoTLS))
	}
	if e.Username != "" {
		opts = append(opts, mail.WithOpportunisticSMTPAuth(signIn(e.Security)...), mail.WithUsername(e.Username),
			mail.WithPassword(e.Password.Reveal()))
	}
	if client, err = mail.NewClient(e.Host, opts...); err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, hangUp)
	return client, func() { stop(); hangUp() }, nil
}

// signIn are the ways to sign in, the strongest first. Without TLS, which is to this machine only, the password may travel as
// it is.
func signIn(security string) []mail.SMTPAuthType {
	plain, login := mail.SMTPAuthPlain, mail.SMTPAuthLogin
	if security == notify.NoTLS {
		plain, login = mail.SMTPAuthPlainNoEnc, mail.SMTPAuthLoginNoEnc
	}
	return []mail.SMTPAuthType{mail.SMTPAuthSCRAMSHA256PLUS, mail.SMTPAuthSCRAMSHA256, mail.SMTPAuthSCRAMSHA1PLUS, mail.SMTPAuthSCRAMSHA1,
		mail.SMTPAuthCramMD5, plain, login}
}

// mailError words what a mail server refused. Only codes are taken from it. When ctx has ended, the connection was closed for
// that, and what broke then is no news.
func mailError(ctx context.Context, doing string, err error) error {
	const who = "the mail server"
	code, enhanced := 0, ""
	var send *mail.SendError
	var proto *textproto.Error
	switch {
	case errors.As(err, &proto):
		code = proto.Code
	case errors.As(err, &send):
		code, enhanced = send.ErrorCode(), send.EnhancedStatusCode()
	}
	if code < 400 || code > 599 {
		if ctx.Err() != nil {
			return networkError(who, ctx.Err())
		}
		switch text := err.Error(); {
		case strings.Contains(text, "STARTTLS"):
			return &notify.SendError{Msg: who + " does not offer STARTTLS"}
		case strings.Contains(text, "SMTP AUTH"), errors.Is(err, mail.ErrNoSupportedAuthDiscovered):
			return &notify.SendError{Msg: who + " offers no way to sign in that is known"}
		}
		return networkError(who, err)
	}
	msg := fmt.Sprintf("cannot %s %s: it answered %d", doing, who, code)
	if enhanced != "" {
		msg += " " + enhanced
	}
	if code == 535 || code == 534 || code == 530 {
		msg += " (sign-in refused)"
	}
	return &notify.SendError{Msg: msg, Permanent: code >= 500}
}
