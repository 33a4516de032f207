package secret

import (
	"bytes"
	"strings"
	"testing"
)

func TestSeal(t *testing.T) {
	t.Parallel()
	old, now := NewBytes([]byte(strings.Repeat("a", 32))), NewBytes([]byte(strings.Repeat("b", 32)))
	before, err := NewSealer(old)
	if err != nil {
		t.Fatal(err)
	}
	rotated, err := NewSealer(now, old)
	if err != nil {
		t.Fatal(err)
	}
	alone, err := NewSealer(now)
	if err != nil {
		t.Fatal(err)
	}
	plain, label := []byte("hooks.example.com/secret"), []byte("channel-1")
	box := before.Seal(plain, label)
	if bytes.Contains(box, plain) || bytes.Equal(box, before.Seal(plain, label)) {
		t.Fatal("the sealed text shows the plain one, or repeats itself")
	}
	if got, current, err := before.Open(box, label); err != nil || !current || !bytes.Equal(got, plain) {
		t.Errorf("opened %q, current %v: %v", got, current, err)
	}
	if got, current, err := rotated.Open(box, label); err != nil || current || !bytes.Equal(got, plain) {
		t.Errorf("after a rotation: opened %q, current %v: %v", got, current, err)
	}
	if _, _, err := alone.Open(box, label); err == nil {
		t.Error("opened without the secret it was sealed under")
	}
	if _, _, err := before.Open(box, []byte("channel-2")); err == nil {
		t.Error("opened for another record")
	}
	for i := range box {
		bad := bytes.Clone(box)
		bad[i] ^= 1
		if _, _, err := before.Open(bad, label); err == nil {
			t.Fatalf("opened with byte %d changed", i)
		}
		if _, _, err := before.Open(box[:i], label); err == nil {
			t.Fatalf("opened when cut to %d bytes", i)
		}
	}
}
