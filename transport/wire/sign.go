package wire

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"signalbox/appliance/rawjson"
)

// Signer makes the signed frames of one session in one direction, with sequence numbers from 1. It is safe for
// concurrent use; but the peer refuses a frame whose number is not above the last one, so frames must be sent in the
// order in which they were signed: sign in the goroutine that writes.
type Signer struct {
	agentID, projectID, sessionID []byte // JSON strings

	mu    sync.Mutex
	mac   hash.Hash
	seq   int64
	nonce func(*[nonceLen]byte) // tests put the nonces of vectors here
}

// NewSigner returns a signer whose first frame has seq 1.
func NewSigner(b Binding) *Signer {
	set := b.bound()
	return &Signer{agentID: set[0].Value, projectID: set[1].Value, sessionID: set[2].Value,
		mac: hmac.New(sha256.New, b.Secret.Reveal()), nonce: randomNonce}
}

// nonceLen is the length of the nonces we make: 16 bytes in URL-safe base64 without padding (agent protocol C.6).
const nonceLen = 22

func randomNonce(dst *[nonceLen]byte) {
	var raw [16]byte
	rand.Read(raw[:])
	base64.RawURLEncoding.Encode(dst[:], raw[:])
}

// Sign returns the complete wire bytes of one frame. payload must be a JSON object in canonical form, as the Append
// functions of this package and rawjson.Canonical make it: the bytes are signed as they are. now becomes ts. An id longer
// than MaxIDLen characters is cut (agent protocol D.1).
//
// A frame that is sent again is signed again: it keeps its id and gets a new ts, nonce and seq.
func (s *Signer) Sign(now time.Time, typ Type, id string, payload []byte) []byte {
	idJSON := rawjson.AppendString(nil, CutID(id))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	var nonce [nonceLen]byte
	s.nonce(&nonce)

	// The frame is the canonical text without the three bound members and with hmac. Its parts are written once, side by
	// side: bound parts go to the MAC only.
	out := make([]byte, 0, len(payload)+len(idJSON)+256)
	out = append(out, `{"hmac":"`...)
	mark := len(out)
	out = append(out, zeroHex[:]...)
	out = append(out, `",`...)

	s.mac.Reset()
	s.mac.Write(openAgentID)
	s.mac.Write(s.agentID)
	s.mac.Write(comma)
	from := len(out)
	out = append(append(out, `"id":`...), idJSON...)
	out = append(append(append(out, `,"nonce":"`...), nonce[:]...), `","payload":`...)
	out = append(append(out, payload...), ',')
	s.mac.Write(out[from:])

	s.mac.Write(keyProjectID)
	s.mac.Write(s.projectID)
	s.mac.Write(comma)
	from = len(out)
	out = strconv.AppendInt(append(out, `"seq":`...), s.seq, 10)
	out = append(out, ',')
	s.mac.Write(out[from:])

	s.mac.Write(keySessionID)
	s.mac.Write(s.sessionID)
	s.mac.Write(comma)
	from = len(out)
	out = AppendTime(append(out, `"ts":"`...), now)
	out = append(append(append(out, `","type":"`...), typ...), `","v":2}`...)
	s.mac.Write(out[from:])

	var sum [sha256.Size]byte
	hex.Encode(out[mark:], s.mac.Sum(sum[:0]))
	return out
}

var (
	openAgentID  = []byte(`{"agent_id":`)
	keyProjectID = []byte(`"project_id":`)
	keySessionID = []byte(`"session_id":`)
	comma        = []byte{','}
	zeroHex      [2 * sha256.Size]byte
)

// CutID cuts a frame id to MaxIDLen characters.
func CutID(id string) string { return cut(id, MaxIDLen) }

// cut returns the first n characters of s.
func cut(s string, n int) string {
	if len(s) <= n || utf8.RuneCountInString(s) <= n {
		return s
	}
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}
