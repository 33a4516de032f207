package agentconn

import (
	"sync"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
)

// Bounds of the bodies of uploads that are in memory at once. A body is held, with its frames and their parsed form, until
// its last frame is stored. Bodies up to smallUpload are not counted, so that no heartbeat waits for somebody's backlog.
const (
	smallUpload      = 64 << 10
	maxUploads       = 128 << 20 // bytes of all agents
	maxUploadsOfPeer = 64 << 20  // bytes of one agent: it cannot lock the others out
)

var errNoRoom = &fault.Error{Code: fault.Unavailable, Msg: "too many uploads at once", Retry: time.Second}

// uploadRoom counts the bytes of the bodies in memory. Safe for concurrent use.
type uploadRoom struct {
	mu    sync.Mutex
	total int64
	peers map[uuid.UUID]int64
}

func newUploadRoom() *uploadRoom { return &uploadRoom{peers: map[uuid.UUID]int64{}} }

// take makes room for a body of that many bytes; done gives it back and is to be called once. A body always fits beside
// none. The error is Unavailable: the agent comes again.
func (u *uploadRoom) take(peer uuid.UUID, size int64) (done func(), err error) {
	if size <= smallUpload {
		return func() {}, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	held := u.peers[peer]
	if held > 0 && held+size > maxUploadsOfPeer || u.total > 0 && u.total+size > maxUploads {
		return nil, errNoRoom
	}
	u.total += size
	u.peers[peer] = held + size
	return func() { u.give(peer, size) }, nil
}

func (u *uploadRoom) give(peer uuid.UUID, size int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.total -= size
	if u.peers[peer] -= size; u.peers[peer] == 0 {
		delete(u.peers, peer)
	}
}
