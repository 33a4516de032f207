package agent

import (
	"errors"
	"fmt"
	"hash/maphash"
	"regexp"
	"strings"
	"sync/atomic"

	"signalbox/appliance/rawjson"
)

// RedactedMask is what stands in place of a redacted value, as a JSON literal.
const RedactedMask = `"[REDACTED]"`

// secretParts are found anywhere in a key once its letters are lower case and its separators are gone.
var secretParts = []string{"password", "passwd", "passphrase", "secret", "token", "apikey", "accesskey", "privatekey",
	"signingkey", "encryptionkey", "authorization", "credential", "cookie", "sessionid", "sessionkey", "connectionstring",
	"creditcard", "cardnumber", "bearer"}

// secretWords must be a whole word of the key: they are too short to be looked for inside other words.
var secretWords = []string{"pass", "pwd", "auth", "jwt", "dsn", "ssn", "cvv", "cvc", "hmac"}

// Redactor scrubs the values of members whose key looks like that of a secret (agent protocol D.5 step 1). The agent
// has redacted already; this is the second line, with the operator's own patterns. Safe for concurrent use.
type Redactor struct {
	extra []*regexp.Regexp
	seed  maphash.Seed
	// cache remembers verdicts by key: keys repeat in every event. It is direct-mapped, so its size is fixed and a peer
	// that sends ever new keys only costs itself time.
	cache [1024]atomic.Pointer[keyVerdict]
}

type keyVerdict struct {
	key    string
	secret bool
}

// maxCachedKey is the longest key, in bytes, whose verdict is remembered.
const maxCachedKey = 64

// NewRedactor compiles the extra patterns: RE2, matched without regard to case against the decoded key. Every bad
// pattern is reported.
func NewRedactor(extra []string) (*Redactor, error) {
	r := &Redactor{seed: maphash.MakeSeed()}
	var errs []error
	for i, p := range extra {
		re, err := regexp.Compile("(?i)" + p)
		if err != nil {
			errs = append(errs, fmt.Errorf("redaction pattern %d: %w", i+1, err))
			continue
		}
		r.extra = append(r.extra, re)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return r, nil
}

// Append appends v with its secrets masked, keeping every other byte. When nothing is masked it appends nothing and
// changed is false: the caller keeps v.Raw().
func (r *Redactor) Append(dst []byte, v rawjson.Value) (out []byte, changed bool) {
	return rawjson.AppendRedacted(dst, v, r.Secret, RedactedMask)
}

// Text returns v as text with its secrets masked, in new memory.
func (r *Redactor) Text(v rawjson.Value) string {
	if out, changed := r.Append(nil, v); changed {
		return string(out)
	}
	return string(v.Raw())
}

// Secret tells whether a member with this key holds a secret. key is neither kept nor changed.
func (r *Redactor) Secret(key []byte) bool {
	if len(key) > maxCachedKey {
		return r.judge(string(key))
	}
	slot := &r.cache[maphash.Bytes(r.seed, key)%uint64(len(r.cache))]
	if v := slot.Load(); v != nil && v.key == string(key) {
		return v.secret
	}
	v := &keyVerdict{key: string(key)}
	v.secret = r.judge(v.key)
	slot.Store(v)
	return v.secret
}

func (r *Redactor) judge(key string) bool {
	flat, words := splitKey(key)
	for _, p := range secretParts {
		if strings.Contains(flat, p) {
			return true
		}
	}
	for _, w := range words {
		for _, s := range secretWords {
			if w == s {
				return true
			}
		}
	}
	for _, re := range r.extra {
		if re.MatchString(key) {
			return true
		}
	}
	return false
}

// splitKey returns the key's letters and digits in lower case without separators, and its words: parted by separators
// and where a capital follows a small letter.
func splitKey(key string) (flat string, words []string) {
	var all, word strings.Builder
	end := func() {
		if word.Len() > 0 {
			words = append(words, word.String())
			word.Reset()
		}
	}
	small := false
	for i := 0; i < len(key); i++ {
		c := key[i]
		switch {
		case 'A' <= c && c <= 'Z':
			if small {
				end()
			}
			small = false
			c += 'a' - 'A'
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c >= 0x80:
			small = true
		default:
			end()
			small = false
			continue
		}
		all.WriteByte(c)
		word.WriteByte(c)
	}
	end()
	return all.String(), words
}
