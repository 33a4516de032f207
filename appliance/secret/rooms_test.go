package secret

import (
	"encoding/base64"
	"strings"
	"testing"
)

func TestRoomKeys(t *testing.T) {
	t.Parallel()
	if got := RoomKeyHash("abc"); got != "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" {
		t.Errorf("hash %s", got)
	}
	a, b := NewRoomKey().Reveal(), NewRoomKey().Reveal()
	if raw, err := base64.RawURLEncoding.DecodeString(a); err != nil || len(raw) != 32 || len(a) != 43 || a == b {
		t.Errorf("keys of %d characters, the same %v: %v", len(a), a == b, err)
	}
	master := []byte(strings.Repeat("0123456789abcdef", 4))
	if key := SessionKey(master).Reveal(); len(key) != 32 || SessionKey(master[:32]).Equal(SessionKey(master)) ||
		string(key) == string(master[:32]) {
		t.Error("the session key is not derived from the whole master secret")
	}
}
