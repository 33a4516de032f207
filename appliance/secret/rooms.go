package secret

import (
	"crypto/sha256"
	"encoding/hex"
)

const sessionLabel = "signalbox-room-session-v1"

// NewRoomKey mints a key of the rooms plane: 32 random bytes in 43 characters of URL-safe base64 without padding (rooms
// protocol A.1).
func NewRoomKey() Text { return NewText(random(32)) }

// RoomKeyHash returns the stored form of a key of the rooms plane: SHA-256 in 64 lowercase hex digits (rooms protocol A.1).
// It needs no master secret, because the key itself is 256 random bits.
func RoomKeyHash(key string) string {
	h := sha256.Sum256([]byte(key))
	return hex.EncodeToString(h[:])
}

// SessionKey returns the key that signs the cookies of signed-in people (rooms protocol A.6).
func SessionKey(master []byte) Bytes { return NewBytes(sum(master, sessionLabel)) }
