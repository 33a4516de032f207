package notify

import (
	"encoding/base64"
	"encoding/json"
	"net"
	"net/mail"
	"net/url"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/secret"
)

// Settings are where a channel leads and how it gets there; the one of the channel's kind is set.
type Settings struct {
	Webhook *WebhookSettings
	Email   *EmailSettings
	Service *ServiceSettings
}

// WebhookSettings are those of a webhook.
type WebhookSettings struct {
	URL    secret.Text // http or https; it may hold a token
	Secret secret.Text // the signing secret: "whsec_" and base64, or 16 to 256 characters of text
	CA     string      // PEM certificates that are trusted in place of the system's authorities; "": these
}

// EmailSettings are those of a mail server and who is written to.
type EmailSettings struct {
	Host     string
	Port     int    // 0 is 587 for starttls, 465 for tls, 25 for none
	Security string // starttls (must be offered), tls (from the first byte) or none
	Username string // "" sends without signing in
	Password secret.Text
	From     string
	To       []string
	CA       string // as of WebhookSettings
}

// ServiceSettings are those of a chat or push service.
type ServiceSettings struct {
	URL secret.Text // such as slack://token@channel
}

// What an e-mail channel does about TLS.
const (
	StartTLS = "starttls"
	TLS      = "tls"
	NoTLS    = "none"
)

const (
	maxURL        = 2000
	maxRecipients = 20
	maxAddress    = 254
	secretPrefix  = "whsec_"
	minSecret     = 16
	maxSecret     = 256
)

// plain is the text that is sealed.
type plain struct {
	URL      string   `json:"url,omitempty"`
	CA       string   `json:"ca,omitempty"`
	Secret   string   `json:"secret,omitempty"`
	Host     string   `json:"host,omitempty"`
	Port     int      `json:"port,omitempty"`
	Security string   `json:"security,omitempty"`
	Username string   `json:"username,omitempty"`
	Password string   `json:"password,omitempty"`
	From     string   `json:"from,omitempty"`
	To       []string `json:"to,omitempty"`
}

// check fills defaults in and names the first field that breaks its rule. minted is the signing secret of a webhook that
// came without one. warnings are for whoever made the settings.
func (s *Settings) check(kind Kind) (minted secret.Text, warnings []string, err error) {
	switch {
	case kind == Webhook && s.Webhook != nil && s.Email == nil && s.Service == nil:
		return s.Webhook.check()
	case kind == Email && s.Email != nil && s.Webhook == nil && s.Service == nil:
		warnings, err = s.Email.check()
		return minted, warnings, err
	case kind == Chat && s.Service != nil && s.Webhook == nil && s.Email == nil:
		return minted, nil, checkURLText("settings.url", s.Service.URL.Reveal())
	}
	return minted, nil, fault.Field("settings", "must be those of the channel's kind %s", kind)
}

func checkURLText(field, text string) error {
	if text == "" || len(text) > maxURL {
		return fault.Field(field, "must have 1..%d characters", maxURL)
	}
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return fault.Field(field, "must be a URL without spaces; other characters are written as %%XX")
		}
	}
	return nil
}

func (w *WebhookSettings) check() (minted secret.Text, warnings []string, err error) {
	if err := checkURLText("settings.url", w.URL.Reveal()); err != nil {
		return minted, nil, err
	}
	u, err := url.Parse(w.URL.Reveal())
	switch { // no message shows the URL: it may hold a token
	case err != nil:
		return minted, nil, fault.Field("settings.url", "is not a URL")
	case u.Scheme != "https" && u.Scheme != "http":
		return minted, nil, fault.Field("settings.url", "must begin with https:// or http://")
	case u.Hostname() == "":
		return minted, nil, fault.Field("settings.url", "must name a host")
	case u.Port() != "" && !isPort(u.Port()):
		return minted, nil, fault.Field("settings.url", "must name a port of 1..65535")
	case u.Fragment != "":
		return minted, nil, fault.Field("settings.url", "must not have a fragment")
	}
	if u.Scheme == "http" {
		warnings = append(warnings, "the URL is http: whoever is on the way can read and keep back the messages; the signature only "+
			"keeps them from being changed")
	}
	if w.CA, err = checkCA(w.CA, u.Scheme == "https"); err != nil {
		return minted, nil, err
	}
	if w.Secret.IsZero() {
		minted = NewSigningSecret()
		w.Secret = minted
		return minted, warnings, nil
	}
	if _, err := SigningKey(w.Secret); err != nil {
		return minted, nil, err
	}
	return minted, warnings, nil
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

// NewSigningSecret mints the signing secret of a webhook: "whsec_" and 32 random bytes in base64.
func NewSigningSecret() secret.Text {
	raw, _ := base64.RawURLEncoding.DecodeString(secret.NewToken().Reveal())
	return secret.NewText(secretPrefix + base64.StdEncoding.EncodeToString(raw))
}

// SigningKey is the HMAC key of a signing secret: what follows "whsec_" decoded from base64, or the text itself.
func SigningKey(s secret.Text) ([]byte, error) {
	text := s.Reveal()
	if encoded, ok := strings.CutPrefix(text, secretPrefix); ok {
		key, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil || len(key) < minSecret || len(key) > maxSecret {
			return nil, fault.Field("settings.secret", "must have base64 of %d..%d bytes after %s", minSecret, maxSecret, secretPrefix)
		}
		return key, nil
	}
	if len(text) < minSecret || len(text) > maxSecret {
		return nil, fault.Field("settings.secret", "must have %d..%d bytes", minSecret, maxSecret)
	}
	return []byte(text), nil
}

func (e *EmailSettings) check() (warnings []string, err error) {
	if e.Security == "" {
		e.Security = StartTLS
	}
	ports := map[string]int{StartTLS: 587, TLS: 465, NoTLS: 25}
	usual, ok := ports[e.Security]
	if !ok {
		return nil, fault.Field("settings.security", "must be starttls, tls or none")
	}
	if e.Port == 0 {
		e.Port = usual
	}
	if e.Port < 1 || e.Port > 65535 {
		return nil, fault.Field("settings.port", "must be 1..65535")
	}
	if e.Host == "" || len(e.Host) > 253 || strings.ContainsAny(e.Host, "/@ \t\r\n\x00") {
		return nil, fault.Field("settings.host", "must be the name or address of a mail server")
	}
	if !e.Password.IsZero() && e.Username == "" {
		return nil, fault.Field("settings.username", "is required beside a password")
	}
	if e.Username != "" && e.Password.IsZero() {
		return nil, fault.Field("settings.password", "is required beside a username")
	}
	if len(e.Username) > maxAddress || len(e.Password.Reveal()) > 1000 {
		return nil, fault.Field("settings.username", "username and password are too long")
	}
	if e.Username != "" && e.Security == NoTLS && !loopback(e.Host) {
		return nil, fault.Field("settings.security", "must be starttls or tls beside a password: without TLS it would travel in clear")
	}
	if e.CA, err = checkCA(e.CA, e.Security != NoTLS); err != nil {
		return nil, err
	}
	if err := checkMail("settings.from", e.From); err != nil {
		return nil, err
	}
	if len(e.To) < 1 || len(e.To) > maxRecipients {
		return nil, fault.Field("settings.to", "must have 1..%d addresses", maxRecipients)
	}
	for _, to := range e.To {
		if err := checkMail("settings.to", to); err != nil {
			return nil, err
		}
	}
	if e.Security == NoTLS {
		warnings = append(warnings, "security is none: whoever is on the way to the mail server can read the messages")
	}
	return warnings, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func checkMail(field, s string) error {
	a, err := mail.ParseAddress(s)
	if err != nil || a.Address != s || len(s) > maxAddress {
		return fault.Field(field, "must be a plain address such as ops@example.com")
	}
	return nil
}

// target is what may be shown of where the settings lead: never a path, a query or a user.
func (s *Settings) target() string {
	switch {
	case s.Webhook != nil:
		if u, err := url.Parse(s.Webhook.URL.Reveal()); err == nil {
			return u.Scheme + "://" + u.Host
		}
	case s.Email != nil:
		return strings.Join(s.Email.To, ", ") + " through " + net.JoinHostPort(s.Email.Host, strconv.Itoa(s.Email.Port))
	case s.Service != nil:
		scheme, _, _ := strings.Cut(s.Service.URL.Reveal(), ":")
		name, _, _ := strings.Cut(scheme, "+")
		return strings.ToLower(name)
	}
	return ""
}

// seal encrypts the settings for the row of a channel.
func (s *Settings) seal(box *secret.Sealer, channel uuid.UUID) ([]byte, error) {
	var p plain
	switch {
	case s.Webhook != nil:
		p = plain{URL: s.Webhook.URL.Reveal(), Secret: s.Webhook.Secret.Reveal(), CA: s.Webhook.CA}
	case s.Email != nil:
		e := s.Email
		p = plain{Host: e.Host, Port: e.Port, Security: e.Security, Username: e.Username, Password: e.Password.Reveal(), From: e.From,
			To: e.To, CA: e.CA}
	case s.Service != nil:
		p = plain{URL: s.Service.URL.Reveal()}
	}
	text, err := json.Marshal(p)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "encode settings")
	}
	return box.Seal(text, channel[:]), nil
}

// open decrypts the settings of a channel.
func open(box *secret.Sealer, c *Channel) (Settings, error) {
	text, _, err := box.Open(c.Sealed, c.ID[:])
	if err != nil {
		return Settings{}, err
	}
	var p plain
	if err := json.Unmarshal(text, &p); err != nil {
		return Settings{}, fault.New(fault.Internal, "the settings of a channel are no JSON") // the cause would show them
	}
	switch c.Kind {
	case Webhook:
		return Settings{Webhook: &WebhookSettings{URL: secret.NewText(p.URL), Secret: secret.NewText(p.Secret), CA: p.CA}}, nil
	case Email:
		return Settings{Email: &EmailSettings{Host: p.Host, Port: p.Port, Security: p.Security, Username: p.Username,
			Password: secret.NewText(p.Password), From: p.From, To: p.To, CA: p.CA}}, nil
	}
	return Settings{Service: &ServiceSettings{URL: secret.NewText(p.URL)}}, nil
}
