// Package secret holds the key material of the appliance: types that do not print themselves, minting, and every
// derivation of agent protocol A.2 to A.5. It is pure.
package secret

import (
	"crypto/subtle"
)

// Redacted is what a secret prints as.
const Redacted = "[redacted]"

// Text is a secret string. Whatever prints or encodes it — fmt, encoding/json, zerolog, slog, TOML — gets Redacted; only
// Reveal returns the text. It is held by pointer, so that not even a verb that ignores methods, such as %v on a struct
// with an unexported Text field, shows it. The zero Text is empty. Compare with Equal, not with ==.
type Text struct{ p *string }

// NewText wraps s.
func NewText(s string) Text { return Text{p: &s} }

// Reveal returns the secret itself. Every call is a place to review.
func (t Text) Reveal() string {
	if t.p == nil {
		return ""
	}
	return *t.p
}

// IsZero reports whether the text is empty.
func (t Text) IsZero() bool { return t.Reveal() == "" }

// Equal compares in time that does not depend on where the texts differ.
func (t Text) Equal(o Text) bool { return Equal(t.Reveal(), o.Reveal()) }

// String returns Redacted.
func (t Text) String() string { return Redacted }

// GoString returns Redacted, for %#v.
func (t Text) GoString() string { return Redacted }

// MarshalText returns Redacted, for every text encoding.
func (t Text) MarshalText() ([]byte, error) { return []byte(Redacted), nil }

// MarshalJSON returns Redacted as a JSON string.
func (t Text) MarshalJSON() ([]byte, error) { return []byte(`"` + Redacted + `"`), nil }

// UnmarshalText takes the secret from a configuration file.
func (t *Text) UnmarshalText(b []byte) error {
	*t = NewText(string(b))
	return nil
}

// Bytes is a secret key. It prints and encodes like Text. The zero Bytes is empty. It holds a string, because fmt follows
// a pointer to a slice.
type Bytes struct{ p *string }

// NewBytes wraps a copy of b.
func NewBytes(b []byte) Bytes {
	s := string(b)
	return Bytes{p: &s}
}

// Reveal returns a copy of the key. Every call is a place to review.
func (b Bytes) Reveal() []byte {
	if b.p == nil {
		return nil
	}
	return []byte(*b.p)
}

// IsZero reports whether the key is empty.
func (b Bytes) IsZero() bool { return len(b.Reveal()) == 0 }

// Equal compares in time that does not depend on where the keys differ.
func (b Bytes) Equal(o Bytes) bool { return subtle.ConstantTimeCompare(b.Reveal(), o.Reveal()) == 1 }

// String returns Redacted.
func (b Bytes) String() string { return Redacted }

// GoString returns Redacted, for %#v.
func (b Bytes) GoString() string { return Redacted }

// MarshalText returns Redacted, for every text encoding.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(Redacted), nil }

// MarshalJSON returns Redacted as a JSON string.
func (b Bytes) MarshalJSON() ([]byte, error) { return []byte(`"` + Redacted + `"`), nil }

// Equal compares two secrets in time that depends on their lengths only.
func Equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
