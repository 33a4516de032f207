// Package notifysend delivers notifications: by signed webhooks, by e-mail, and through chat and push services.
//
// Its errors are stored and shown. They are made of status codes and of words of this package; never of a URL, of what a
// receiver answered, or of what a library says, for each of these may hold a secret.
package notifysend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"signalbox/appliance/clock"
	"signalbox/appliance/notify"
)

// Options are the settings of a Sender.
type Options struct {
	Version string      // of this program, for the User-Agent
	Clock   clock.Clock // nil: the system's
	TLS     *tls.Config // of webhooks and mail servers; nil: the system's authorities
}

// Sender delivers messages. Safe for concurrent use.
type Sender struct {
	opts Options
	http *http.Client

	mu      sync.Mutex
	hanging map[string]bool // receivers whose earlier call has not returned yet
}

var _ notify.Sender = (*Sender)(nil)

// New returns a Sender.
func New(o Options) *Sender {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	t := &http.Transport{Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second, ForceAttemptHTTP2: true, MaxIdleConns: 20, IdleConnTimeout: 30 * time.Second,
		TLSClientConfig: o.TLS, MaxResponseHeaderBytes: 64 << 10}
	return &Sender{opts: o, hanging: map[string]bool{}, http: client(t)}
}

func client(t *http.Transport) *http.Client {
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// Close frees idle connections.
func (s *Sender) Close() { s.http.CloseIdleConnections() }

// Check implements notify.Sender.
func (s *Sender) Check(set notify.Settings) error {
	if set.Service != nil {
		return checkService(set.Service)
	}
	return nil
}

// Send implements notify.Sender.
func (s *Sender) Send(ctx context.Context, set notify.Settings, m notify.Message) error {
	switch {
	case set.Webhook != nil:
		return s.sendWebhook(ctx, set.Webhook, m)
	case set.Email != nil:
		return s.sendMail(ctx, set.Email, m)
	case set.Service != nil:
		return s.sendService(ctx, set.Service, m)
	}
	return &notify.SendError{Msg: "the channel has no settings", Permanent: true}
}

// guard runs a call of a library that may outlive ctx. Such a call is left to end by itself, and as long as it has not,
// further ones for the same receiver are refused: they cannot pile up.
func (s *Sender) guard(ctx context.Context, key, who string, call func() error) error {
	s.mu.Lock()
	if s.hanging[key] {
		s.mu.Unlock()
		return &notify.SendError{Msg: who + " has not answered an earlier message yet"}
	}
	s.hanging[key] = true
	s.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		err := call()
		s.mu.Lock()
		delete(s.hanging, key)
		s.mu.Unlock()
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return networkError(who, ctx.Err())
	}
}

// trust is a TLS configuration that trusts the PEM certificates, or those of the Options when there are none.
func (s *Sender) trust(ca string) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.opts.TLS != nil {
		c = s.opts.TLS.Clone()
	}
	if ca != "" {
		c.RootCAs = x509.NewCertPool()
		c.RootCAs.AppendCertsFromPEM([]byte(ca))
	}
	return c
}

// networkError words why a receiver could not be reached.
func networkError(who string, err error) *notify.SendError {
	var dns *net.DNSError
	var cert *tls.CertificateVerificationError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var timeout net.Error
	var op *net.OpError
	msg := "could not be reached"
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		msg = "has a name that does not exist"
	case errors.As(err, &dns):
		msg = "has a name that could not be looked up"
	case errors.As(err, &name):
		msg = "has a certificate for another name"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		msg = "has a certificate that is not valid today"
	case errors.As(err, &cert):
		msg = "has a certificate that is not trusted"
	case errors.As(err, &record):
		msg = "does not speak TLS there"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		msg = "did not answer in time"
	case errors.As(err, &op) && op.Op == "dial":
		msg = "does not accept connections"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		msg = "closed the connection without an answer"
	}
	return &notify.SendError{Msg: who + " " + msg}
}
