package identity

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"golang.org/x/crypto/argon2"

	"signalbox/appliance/fault"
	"signalbox/appliance/secret"
)

// Bounds of a password.
const (
	minPassword = 8    // characters
	maxPassword = 1024 // bytes
)

// params are what argon2id costs. They stand in each hash, so that they can change: a hash made under others is made anew
// at the next sign-in.
type params struct {
	memory  uint32 // KiB
	time    uint32
	threads uint8
	salt    int
	key     uint32
}

// today's parameters suit a small machine: 19 MiB and two passes, the least that is advised for argon2id.
var today = params{memory: 19 << 10, time: 2, threads: 1, salt: 16, key: 32}

// Bounds of the parameters that a stored hash may state: a damaged one must not take the machine's memory.
const (
	mostMemory = 256 << 10 // KiB
	mostTime   = 16
	mostKey    = 64
	mostSalt   = 64
)

// maxWaiting is how many passwords wait for their turn; more are told to come back.
const maxWaiting = 64

// hasher hashes passwords, few at a time.
type hasher struct {
	slots   chan struct{}
	waiting atomic.Int64
	params  params
}

func newHasher(slots int) *hasher {
	if slots <= 0 {
		slots = 2
	}
	return &hasher{slots: make(chan struct{}, slots), params: today}
}

// enter waits for a turn; leave must be called when it gives no error.
func (h *hasher) enter(ctx context.Context) (leave func(), err error) {
	if h.waiting.Add(1) > maxWaiting {
		h.waiting.Add(-1)
		return nil, &fault.Error{Code: fault.Unavailable, Msg: "too many people sign in at once", Retry: time.Second}
	}
	defer h.waiting.Add(-1)
	select {
	case h.slots <- struct{}{}:
		return func() { <-h.slots }, nil
	case <-ctx.Done():
		return nil, fault.Wrap(fault.Canceled, context.Cause(ctx), "the request was given up before its password was checked")
	}
}

// hash returns the stored form of a password.
func (h *hasher) hash(ctx context.Context, password secret.Text) (string, error) {
	leave, err := h.enter(ctx)
	if err != nil {
		return "", err
	}
	defer leave()
	salt := make([]byte, h.params.salt)
	rand.Read(salt) // never fails
	return format(h.params, salt, h.params.derive(password, salt)), nil
}

// verify tells whether the password is the one that was hashed, and whether its hash is not what hash would make today.
// No hash costs the same time and is nobody's password.
func (h *hasher) verify(ctx context.Context, stored string, password secret.Text) (ok, stale bool, err error) {
	leave, err := h.enter(ctx)
	if err != nil {
		return false, false, err
	}
	defer leave()
	if stored == "" {
		h.params.derive(password, make([]byte, h.params.salt))
		return false, false, nil
	}
	p, salt, want, err := parse(stored)
	if err != nil {
		return false, false, err
	}
	return subtle.ConstantTimeCompare(p.derive(password, salt), want) == 1, p != h.params, nil
}

func (p params) derive(password secret.Text, salt []byte) []byte {
	return argon2.IDKey([]byte(password.Reveal()), salt, p.time, p.memory, p.threads, p.key)
}

// format writes the PHC form.
func format(p params, salt, key []byte) string {
	b64 := base64.RawStdEncoding.EncodeToString
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, p.memory, p.time, p.threads, b64(salt), b64(key))
}

// parse reads the PHC form that format wrote. Its errors do not show what is stored.
func parse(stored string) (p params, salt, key []byte, err error) {
	bad := fault.New(fault.Internal, "a stored password hash is damaged")
	parts := strings.Split(stored, "$")
	if len(parts) != 6 || parts[0] != "" || parts[1] != "argon2id" || parts[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return p, nil, nil, bad
	}
	if _, err := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &p.memory, &p.time, &p.threads); err != nil {
		return p, nil, nil, bad
	}
	salt, errSalt := base64.RawStdEncoding.DecodeString(parts[4])
	key, errKey := base64.RawStdEncoding.DecodeString(parts[5])
	p.salt, p.key = len(salt), uint32(min(len(key), mostKey+1))
	if errSalt != nil || errKey != nil || p.salt < 8 || p.salt > mostSalt || p.key < 16 || p.key > mostKey ||
		p.memory < 8 || p.memory > mostMemory || p.time < 1 || p.time > mostTime || p.threads < 1 ||
		format(p, salt, key) != stored {
		return p, nil, nil, bad
	}
	return p, salt, key, nil
}

// hashNew checks a new password and returns its stored form.
func (d *Identity) hashNew(ctx context.Context, password secret.Text) (string, error) {
	text := password.Reveal()
	if utf8.RuneCountInString(text) < minPassword || len(text) > maxPassword {
		return "", fault.Field("password", "must have at least %d characters and at most %d bytes", minPassword, maxPassword)
	}
	return d.hasher.hash(ctx, password)
}
