package daemonhost

import (
	"context"
	"strings"
	"sync"

	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/backend/directory"
	"signalbox/appliance/archive/beneath"
)

// told is the directory backend as inventory: what a scan refuses is told once, and again after it was mended and came
// back.
type told struct {
	*directory.Backend
	tell  func(error)
	mu    sync.Mutex
	known map[string]bool
}

// ListResources lists, and tells what was refused.
func (t *told) ListResources(ctx context.Context) (*backend.Listing, error) {
	list, err := t.Backend.ListResources(ctx)
	if err == nil {
		t.look()
	}
	return list, err
}

func (t *told) look() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := map[string]bool{}
	for _, err := range t.Refused() { // at most 100
		text := err.Error()
		if now[text] = true; !t.known[text] {
			t.tell(err)
		}
	}
	t.known = now
}

// sweep removes the temporary files that a process killed while it wrote left among the backend's own torrent files. No
// other daemon works on the root: its database is locked.
func sweep(root *beneath.Root) error {
	const dir = beneath.ControlDir + "/torrents"
	err := root.ReadDir(dir, func(e beneath.Entry) error {
		if e.Type != 0 || !strings.HasPrefix(e.Name, beneath.ControlDir+"-tmp-") {
			return nil
		}
		if err := root.Unlink(dir + "/" + e.Name); err != nil && !beneath.IsNotFound(err) {
			return err
		}
		return nil
	})
	if beneath.IsNotFound(err) {
		return nil
	}
	return err
}
