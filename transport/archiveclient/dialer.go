// Package archiveclient is the daemon's end of its connection to Archive Control: a WebSocket that is dialled with the
// system's roots or a pinned certificate, registers with the token, and carries checked frames both ways (daemon protocol
// 2.2, 2.5, 8.7). It implements daemon.Dialer; reconnecting is the daemon's.
package archiveclient

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/gorilla/websocket"

	"signalbox/appliance/archive"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/fault"
	"signalbox/appliance/secret"
)

// Subprotocol is what both ends speak.
const Subprotocol = "archive-control.v2"

// Options say where control is and how it is known.
type Options struct {
	// URL of control: wss://host/daemon/v2. ws:// is for loopback addresses, or for any with AllowPlain.
	URL        string
	AllowPlain bool
	// TokenFile holds the shared token. It is read at each dial; others than its owner must have no right to it.
	TokenFile string
	// CAFile is a PEM file with the roots to trust instead of the system's.
	CAFile string
	// PinSHA256 pins control's certificate: the SHA-256 of its DER form, 64 hex digits. Names and roots do not count then.
	PinSHA256 string
	// WriteTimeout bounds one write to the socket; default 30 s.
	WriteTimeout time.Duration
}

// Dialer dials control. It is safe for concurrent use.
type Dialer struct {
	o   Options
	tls *tls.Config
}

var _ daemon.Dialer = (*Dialer)(nil)

// New checks the options. The token's file is looked at only by Dial.
func New(o Options) (*Dialer, error) {
	u, err := url.Parse(o.URL)
	switch {
	case err != nil || u.Host == "":
		return nil, fault.Field("control", "must be a URL as wss://host/daemon/v2")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, fault.Field("control", "must have no user, query or fragment")
	case u.Scheme != "wss" && u.Scheme != "ws":
		return nil, fault.Field("control", "must begin with wss:// or, on this machine, ws://")
	case u.Scheme == "ws" && !o.AllowPlain && !loopback(u.Hostname()):
		return nil, fault.Field("control", "ws:// sends the token in clear: use wss://, or allow it with allow_plain")
	case o.TokenFile == "":
		return nil, fault.Field("token_file", "is required")
	}
	d := &Dialer{o: o}
	if d.o.WriteTimeout <= 0 {
		d.o.WriteTimeout = 30 * time.Second
	}
	if u.Scheme == "wss" {
		if d.tls, err = tlsConfig(o); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// loopback reports whether the host is this machine without asking anybody.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

func tlsConfig(o Options) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		text, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("tls.ca_file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fault.Field("tls.ca_file", "%s holds no certificate in PEM form", o.CAFile)
		}
	}
	if o.PinSHA256 == "" {
		return c, nil
	}
	pin, err := hex.DecodeString(strings.ToLower(o.PinSHA256))
	if err != nil || len(pin) != sha256.Size {
		return nil, fault.Field("tls.certificate_sha256", "must be 64 hex digits")
	}
	c.InsecureSkipVerify = true // the pin takes the place of names and roots
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return errors.New("control showed no certificate")
		}
		found := sha256.Sum256(s.PeerCertificates[0].Raw)
		if subtle.ConstantTimeCompare(found[:], pin) != 1 {
			return fmt.Errorf("control's certificate has the SHA-256 %x, not the pinned one", found)
		}
		return nil
	}
	return c, nil
}

// Bounds of a token (2.5) and of its file.
const (
	minToken  = 32
	maxToken  = 512
	tokenRead = maxToken + 64
)

// readToken reads the token. The errors name the file, never what is in it.
func readToken(file string) (secret.Text, error) {
	f, err := os.Open(file)
	if err != nil {
		return secret.Text{}, fmt.Errorf("token file: %w", err)
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return secret.Text{}, fmt.Errorf("token file: %w", err)
	}
	if !st.Mode().IsRegular() {
		return secret.Text{}, fault.Field("token_file", "%s is no regular file", file)
	}
	if mode := st.Mode().Perm(); mode&0o077 != 0 {
		return secret.Text{}, fault.Field("token_file", "%s has mode %04o: others can read the token, make it 0600", file, mode)
	}
	buf := make([]byte, tokenRead)
	n := 0
	for n < len(buf) {
		m, err := f.Read(buf[n:])
		n += m
		if err != nil {
			break
		}
	}
	token := strings.TrimSpace(string(buf[:n]))
	clear(buf)
	if len(token) < minToken || len(token) > maxToken || n == tokenRead {
		return secret.Text{}, fault.Field("token_file", "%s must hold a token of %d to %d bytes", file, minToken, maxToken)
	}
	return secret.NewText(token), nil
}

// Dial reads the token and opens the socket.
func (d *Dialer) Dial(ctx context.Context) (daemon.Conn, error) {
	token, err := readToken(d.o.TokenFile)
	if err != nil {
		return nil, err
	}
	// The library ends a handshake at a deadline, not when ctx is cancelled: closing the connection under it does.
	release := func() bool { return true }
	dial := func(dialling context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext(dialling, network, address)
		if err == nil {
			release = context.AfterFunc(ctx, func() { _ = c.Close() })
		}
		return c, err
	}
	dialer := websocket.Dialer{TLSClientConfig: d.tls, Subprotocols: []string{Subprotocol}, Proxy: http.ProxyFromEnvironment,
		NetDialContext: dial, HandshakeTimeout: archive.RegistrationDeadline, ReadBufferSize: 4 << 10, WriteBufferSize: 4 << 10}
	ws, resp, err := dialer.DialContext(ctx, d.o.URL, nil)
	release()
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if resp != nil {
			_ = resp.Body.Close()
			return nil, fault.Wrap(fault.Unavailable, err, "control answered %s instead of opening a socket", resp.Status)
		}
		return nil, fault.Wrap(fault.Unavailable, err, "control cannot be reached")
	}
	if ws.Subprotocol() != Subprotocol {
		_ = ws.Close()
		return nil, fault.New(fault.Incompatible, "the server does not speak %s", Subprotocol)
	}
	return newConn(ws, token, d.o.WriteTimeout), nil
}
