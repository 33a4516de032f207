package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"hash"
	"hash/maphash"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"signalbox/appliance/rawjson"
	"signalbox/appliance/secret"
)

// The replay guard (agent protocol C.6).
const (
	// MaxSkew is the furthest that a frame's ts may be from the receiver's clock, either way.
	MaxSkew = 60 * time.Second
	// NonceMemory is how long a nonce is remembered.
	NonceMemory = 180 * time.Second
	// MaxNonces is how many nonces are remembered in one direction of one session; the oldest is forgotten first.
	MaxNonces = 4096
	// MaxNonceLen is the longest nonce, in characters.
	MaxNonceLen = 32
)

// Binding is what every signature of a session covers beside the frame itself (agent protocol C.2).
type Binding struct {
	// Secret is the project secret of agent protocol A.3.
	Secret    secret.Bytes
	AgentID   uuid.UUID
	ProjectID uuid.UUID
	// Session is the session id text of hello_ack, or the text of X-Z4J-Session-Nonce on long-poll, empty without it. It is
	// bound as it is.
	Session string
}

// bound returns the members that are signed but not sent, sorted by key.
func (b Binding) bound() []rawjson.Member {
	return []rawjson.Member{
		{Key: "agent_id", Value: rawjson.AppendString(nil, b.AgentID.String())},
		{Key: "project_id", Value: rawjson.AppendString(nil, b.ProjectID.String())},
		{Key: "session_id", Value: rawjson.AppendString(nil, b.Session)},
	}
}

// maxPooledBuffer bounds the canonical buffers kept for reuse.
const maxPooledBuffer = 1 << 18

var bufferPool = sync.Pool{New: func() any { return new([]byte) }}

func freeBuffer(p *[]byte, b []byte) {
	if cap(b) > maxPooledBuffer {
		b = nil
	}
	*p = b[:0]
	bufferPool.Put(p)
}

// AppendSigned appends the bytes that are signed for a frame: its top-level object as received, without hmac, with the
// bound members set, in canonical form (agent protocol C.2).
func (b Binding) AppendSigned(dst []byte, frame rawjson.Value) []byte {
	return rawjson.AppendCanonicalObject(dst, frame, "hmac", b.bound())
}

// Verifier authenticates the frames that arrive on one session in one direction. It holds the sequence and the nonce
// memory of that direction. It is safe for concurrent use, but the order of the calls is the order of the frames.
type Verifier struct {
	set []rawjson.Member

	mu     sync.Mutex
	mac    hash.Hash
	seq    int64 // highest accepted
	nonces nonceMemory
}

// NewVerifier returns a verifier that has accepted nothing yet.
func NewVerifier(b Binding) *Verifier {
	return &Verifier{set: b.bound(), mac: hmac.New(sha256.New, b.Secret.Reveal())}
}

// Verify authenticates a frame that ParseFrame returned: signature, command_result status, then the replay guard, in
// that order (steps 5 to 7 of agent protocol C.7). It fails with ErrSignature, ErrMalformed or ErrReplay. The guard
// moves on only when nil is returned. An unsigned frame never verifies.
func (v *Verifier) Verify(f *Frame, now time.Time) error {
	if f.Unsigned() {
		return ErrSignature
	}
	p := bufferPool.Get().(*[]byte)
	canonical := rawjson.AppendCanonicalObject((*p)[:0], f.Doc.Root(), "hmac", v.set)
	defer freeBuffer(p, canonical)

	v.mu.Lock()
	defer v.mu.Unlock()
	var sum [sha256.Size]byte
	v.mac.Reset()
	v.mac.Write(canonical)
	var text [2 * sha256.Size]byte
	hex.Encode(text[:], v.mac.Sum(sum[:0]))
	// Text is compared, so upper-case hex fails (agent protocol C.9).
	if len(f.HMAC) != len(text) || subtle.ConstantTimeCompare([]byte(f.HMAC), text[:]) != 1 {
		return ErrSignature
	}
	if f.Type == TypeCommandResult {
		status := f.Payload.Get("status")
		if !status.StrEqual("success") && !status.StrEqual("failed") {
			return malformed(`payload.status must be "success" or "failed"`)
		}
	}
	return v.guard(f, now)
}

// guard is step 7. Well-formedness comes first, then skew, seq and nonce.
func (v *Verifier) guard(f *Frame, now time.Time) error {
	switch {
	case f.Seq < 1:
		return replay("seq must be an integer in 1..2^63-1")
	case f.Nonce == "" || utf8.RuneCountInString(f.Nonce) > MaxNonceLen:
		return replay("nonce must be a string of 1 to %d characters", MaxNonceLen)
	case f.Time.IsZero():
		return replay("ts must be a timestamp with an offset")
	}
	if skew := f.Time.Sub(now); skew > MaxSkew || skew < -MaxSkew {
		return replay("ts is more than %v away from now", MaxSkew)
	}
	if f.Seq <= v.seq {
		return replay("seq was used before")
	}
	if !v.nonces.add(f.Nonce, now) {
		return replay("nonce was used before")
	}
	v.seq = f.Seq
	return nil
}

// nonceSeed makes the stored hashes of nonces unpredictable to peers.
var nonceSeed = maphash.MakeSeed()

// nonceMemory remembers nonces by a 64-bit keyed hash: a busy session then costs tens of kilobytes instead of hundreds,
// and taking a fresh nonce for a used one is as likely as 4096 in 2^64. It starts empty and grows with use.
type nonceMemory struct {
	seen map[uint64]struct{}
	ring []rememberedNonce // a circle once it is as long as MaxNonces
	head int               // oldest entry
	n    int
}

type rememberedNonce struct {
	hash uint64
	at   int64 // unix seconds
}

// add remembers the nonce, or returns false when it is already remembered.
func (m *nonceMemory) add(nonce string, now time.Time) bool {
	at := now.Unix()
	for m.n > 0 && at-m.ring[m.head].at > int64(NonceMemory/time.Second) {
		m.forgetOldest()
	}
	h := maphash.String(nonceSeed, nonce)
	if _, used := m.seen[h]; used {
		return false
	}
	if m.n == MaxNonces {
		m.forgetOldest()
	}
	if m.n == len(m.ring) {
		m.grow()
	}
	if m.seen == nil {
		m.seen = make(map[uint64]struct{})
	}
	m.seen[h] = struct{}{}
	m.ring[(m.head+m.n)%len(m.ring)] = rememberedNonce{hash: h, at: at}
	m.n++
	return true
}

func (m *nonceMemory) forgetOldest() {
	delete(m.seen, m.ring[m.head].hash)
	m.head = (m.head + 1) % len(m.ring)
	m.n--
}

// grow doubles the full ring, up to MaxNonces.
func (m *nonceMemory) grow() {
	bigger := make([]rememberedNonce, min(max(2*len(m.ring), 16), MaxNonces))
	copied := copy(bigger, m.ring[m.head:])
	copy(bigger[copied:], m.ring[:m.head])
	m.ring, m.head = bigger, 0
}
