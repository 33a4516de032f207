package agentconn

import (
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
)

func TestUploadRoom(t *testing.T) {
	u := newUploadRoom()
	a, b, c := uuid.New(), uuid.New(), uuid.New()
	take := func(peer uuid.UUID, size int64, ok bool) func() {
		t.Helper()
		done, err := u.take(peer, size)
		if ok != (err == nil) || !ok && fault.CodeOf(err) != fault.Unavailable {
			t.Fatalf("%d bytes: %v", size, err)
		}
		return done
	}
	whole := take(a, 1<<30, true) // larger than everything, but alone
	take(a, smallUpload+1, false)
	take(b, smallUpload+1, false)
	take(a, smallUpload, true)() // heartbeats pass
	whole()

	a1, a2 := take(a, 32<<20, true), take(a, 32<<20, true)
	take(a, smallUpload+1, false) // a has its share
	b1 := take(b, 60<<20, true)
	take(c, 5<<20, false)
	c1 := take(c, 4<<20, true)
	for _, done := range []func(){a1, a2, b1, c1} {
		done()
	}
	if u.total != 0 || len(u.peers) != 0 {
		t.Errorf("left: %d bytes, %d peers", u.total, len(u.peers))
	}
}
