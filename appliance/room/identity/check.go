package identity

import (
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"signalbox/appliance/fault"
)

// Limits of what people and agents say of themselves. The protocol states none of them.
const (
	maxName        = 200      // characters of a person's name and of a display name
	maxEmail       = 254      // bytes
	maxDescription = 16 << 10 // bytes
	maxIconURL     = 2048     // bytes
	maxConnector   = 100      // characters of a connector type
	maxDocument    = 64 << 10 // bytes of a profile, and of each of tools, models and metadata
)

// checkLine checks a text of one line with least..most characters.
func checkLine(field, s string, least, most int) error {
	if n := utf8.RuneCountInString(s); n < least || n > most {
		return fault.Field(field, "must have %d..%d characters", least, most)
	}
	if !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
		return fault.Field(field, "must be one line of text without control characters")
	}
	if least > 0 && strings.TrimSpace(s) == "" {
		return fault.Field(field, "must not be blank")
	}
	return nil
}

// checkText checks a text that may have several lines.
func checkText(field, s string, most int) error {
	if len(s) > most {
		return fault.Field(field, "must have at most %d bytes", most)
	}
	bad := func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t' }
	if !utf8.ValidString(s) || strings.ContainsFunc(s, bad) {
		return fault.Field(field, "must be text without control characters")
	}
	return nil
}

// cleanEmail checks an e-mail address and returns it as it is stored and looked up: trimmed, in lower case.
func cleanEmail(email string) (string, error) {
	email = strings.ToLower(strings.TrimSpace(email))
	local, host, ok := strings.Cut(email, "@")
	bad := func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || r == '@' }
	if !ok || local == "" || host == "" || len(email) > maxEmail || !utf8.ValidString(email) ||
		strings.ContainsFunc(local, bad) || strings.ContainsFunc(host, bad) {
		return "", fault.Field("email", "must be an address like name@example.org of at most %d bytes", maxEmail)
	}
	return email, nil
}

// checkIcon checks the address of an icon.
func checkIcon(s string) error {
	u, err := url.Parse(s)
	if err != nil || len(s) > maxIconURL || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil ||
		!utf8.ValidString(s) {
		return fault.Field("icon_url", "must be an http or https address of at most %d bytes", maxIconURL)
	}
	return nil
}
