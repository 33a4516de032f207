package secret

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
)

const channelLabel = "signalbox-notification-channels-v1"

// sealVersion is the first byte of a sealed text. A later form of sealing takes another.
const sealVersion = 1

var errSeal = errors.New("the sealed text cannot be opened: it was sealed under another master secret, or is damaged")

// Sealer encrypts settings of notification channels for the database, with AES-256-GCM under a key derived from the
// master secret. Safe for concurrent use.
type Sealer struct{ keys []cipher.AEAD } // the current one first

// NewSealer derives the keys: the current master secret seals, the previous ones only open.
func NewSealer(current Bytes, previous ...Bytes) (*Sealer, error) {
	s := &Sealer{}
	for _, master := range append([]Bytes{current}, previous...) {
		block, err := aes.NewCipher(sum(master.Reveal(), channelLabel))
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			return nil, err
		}
		s.keys = append(s.keys, aead)
	}
	return s, nil
}

// Seal encrypts plain. The result opens only together with the same label, which keeps sealed texts from being moved from
// one record to another. It is one byte of version, 12 of nonce, the ciphertext and 16 of tag.
func (s *Sealer) Seal(plain, label []byte) []byte {
	nonce := make([]byte, s.keys[0].NonceSize())
	rand.Read(nonce) // never fails
	out := append([]byte{sealVersion}, nonce...)
	return s.keys[0].Seal(out, nonce, plain, label)
}

// Open decrypts what Seal made. current is false when a previous master secret opened it: the caller seals it anew.
func (s *Sealer) Open(sealed, label []byte) (plain []byte, current bool, err error) {
	n := s.keys[0].NonceSize()
	if len(sealed) < 1+n || sealed[0] != sealVersion {
		return nil, false, errSeal
	}
	for i, key := range s.keys {
		if plain, err := key.Open(nil, sealed[1:1+n], sealed[1+n:], label); err == nil {
			return plain, i == 0, nil
		}
	}
	return nil, false, errSeal
}
