package config

import (
	"crypto/subtle"
	"fmt"
	"io"
)

// redacted stands for a secret wherever one would be printed.
const redacted = "[redacted]"

// Secret is a text that no formatting, encoding or logging reveals. Only Reveal does.
type Secret struct{ text string }

// NewSecret wraps text.
func NewSecret(text string) Secret { return Secret{text} }

// Reveal returns the text. Hand it straight to the primitive that needs it.
func (s Secret) Reveal() string { return s.text }

// IsZero reports whether the secret is empty, which means "not set".
func (s Secret) IsZero() bool { return s.text == "" }

// Equal compares in time that depends only on the length of the texts.
func (s Secret) Equal(other Secret) bool {
	return subtle.ConstantTimeCompare([]byte(s.text), []byte(other.text)) == 1
}

// String returns a placeholder.
func (s Secret) String() string { return redacted }

// GoString returns a placeholder.
func (s Secret) GoString() string { return redacted }

// Format writes a placeholder for every verb, also for those that would otherwise print the field.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalText returns a placeholder, so no encoder writes the secret.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// UnmarshalText stores text as it stands.
func (s *Secret) UnmarshalText(text []byte) error {
	s.text = string(text)
	return nil
}
