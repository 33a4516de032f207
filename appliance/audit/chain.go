package audit

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"

	"signalbox/appliance/secret"
)

// Labels keep the three uses of the chain key, and the key itself, apart.
const (
	keyPurpose  = "signalbox-audit-v1"
	labelRow    = "signalbox-audit-row-v1"
	labelAnchor = "signalbox-audit-anchor-v1"
	labelHead   = "signalbox-audit-head-v1"
)

// keyIDLen is the length of a key id: enough to tell a handful of keys apart.
const keyIDLen = 8

// genesis stands where the first row's predecessor would be.
var genesis [macBytes]byte

// Keys are the chain keys: the first one writes, all of them verify.
type Keys struct{ keys []key }

type key struct {
	id     string
	secret [sha256.Size]byte
}

// NewKeys derives the chain keys from the current master secret and the previous ones, newest first.
func NewKeys(current secret.Bytes, previous ...secret.Bytes) Keys {
	k := Keys{keys: []key{deriveKey(current)}}
	for _, p := range previous {
		k.keys = append(k.keys, deriveKey(p))
	}
	return k
}

func deriveKey(master secret.Bytes) key {
	m := hmac.New(sha256.New, master.Reveal())
	m.Write([]byte(keyPurpose))
	var k key
	m.Sum(k.secret[:0])
	sum := sha256.Sum256(k.secret[:])
	k.id = hex.EncodeToString(sum[:])[:keyIDLen]
	return k
}

// current is the key that writes.
func (k Keys) current() *key { return &k.keys[0] }

// byID returns the key that a row names, nil when none of ours has that id.
func (k Keys) byID(id string) *key {
	for i := range k.keys {
		if k.keys[i].id == id {
			return &k.keys[i]
		}
	}
	return nil
}

// mac returns the mac of a row after the row whose mac is prev.
func (k *key) mac(r *Row, prev []byte) []byte {
	e := k.encode(labelRow)
	e.int(r.No)
	e.bytes(r.EventID[:])
	if r.ProjectNo == 0 {
		e.null()
	} else {
		e.int(r.ProjectNo)
	}
	e.optional(r.UserID)
	e.string(r.Action)
	e.string(r.TargetType)
	e.optional(r.TargetID)
	e.string(r.Result)
	e.string(r.Outcome)
	e.bytes(r.Metadata)
	e.optional(r.SourceIP)
	e.optional(r.UserAgent)
	e.int(r.At.UnixMicro())
	e.string(r.KeyID)
	e.bytes(prev)
	return e.h.Sum(nil)
}

// seal authenticates a position in the chain: the number and mac of a row, for the anchor or the head.
func (k *key) seal(label string, no int64, mac []byte) []byte {
	e := k.encode(label)
	e.int(no)
	e.bytes(mac)
	return e.h.Sum(nil)
}

// encoder writes values so that no two different lists of values give the same bytes: each is a presence byte, a length
// and the content.
type encoder struct{ h hash.Hash }

func (k *key) encode(label string) encoder {
	e := encoder{h: hmac.New(sha256.New, k.secret[:])}
	e.string(label)
	return e
}

func (e encoder) null() { e.h.Write([]byte{0}) }

func (e encoder) bytes(b []byte) {
	var head [9]byte
	head[0] = 1
	binary.BigEndian.PutUint64(head[1:], uint64(len(b)))
	e.h.Write(head[:])
	e.h.Write(b)
}

func (e encoder) string(s string) { e.bytes([]byte(s)) }

func (e encoder) optional(s *string) {
	if s == nil {
		e.null()
		return
	}
	e.string(*s)
}

func (e encoder) int(n int64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(n))
	e.bytes(b[:])
}

// markBytes is the size of a stored mark: number, mac, key id, seal.
const markBytes = 8 + macBytes + keyIDLen + macBytes

// mark is a sealed position in the chain: the anchor or the head.
type mark struct {
	no    int64
	mac   []byte
	keyID string
	seal  []byte
}

// newMark seals a position under the current key.
func (k Keys) newMark(label string, no int64, mac []byte) []byte {
	c := k.current()
	b := make([]byte, 0, markBytes)
	b = binary.BigEndian.AppendUint64(b, uint64(no))
	b = append(b, mac...)
	b = append(b, c.id...)
	return append(b, c.seal(label, no, mac)...)
}

// parseMark splits a stored mark; ok is false when it is not one.
func parseMark(b []byte) (m mark, ok bool) {
	if len(b) != markBytes {
		return mark{}, false
	}
	m.no = int64(binary.BigEndian.Uint64(b))
	m.mac = b[8 : 8+macBytes]
	m.keyID = string(b[8+macBytes : 8+macBytes+keyIDLen])
	m.seal = b[8+macBytes+keyIDLen:]
	return m, m.no > 0
}

// checkMark opens a stored mark. A nil value is the mark before the first row.
func (k Keys) checkMark(label string, b []byte) (m mark, reason Reason) {
	if b == nil {
		return mark{mac: genesis[:]}, ""
	}
	m, ok := parseMark(b)
	if !ok {
		return mark{mac: genesis[:]}, MarkChanged
	}
	key := k.byID(m.keyID)
	switch {
	case key == nil:
		return m, UnknownKey
	case !hmac.Equal(key.seal(label, m.no, m.mac), m.seal):
		return m, MarkChanged
	}
	return m, ""
}
