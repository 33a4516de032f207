package appliance_test

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance"
	"signalbox/appliance/appliancetest"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/inventory"
	"signalbox/appliance/archive/valid"
	"signalbox/transport/archiveclient"
	"signalbox/transport/archivesim"
)

// liveHeap is the memory in use after a collection.
func liveHeap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// heapWatch dials connections that look at the heap at every so many chunks that a daemon sends.
type heapWatch struct {
	daemon.Dialer
	every  atomic.Int64
	chunks atomic.Int64

	mu      sync.Mutex
	highest int64
	looks   int
}

func (w *heapWatch) Dial(ctx context.Context) (daemon.Conn, error) {
	c, err := w.Dialer.Dial(ctx)
	if err != nil {
		return nil, err
	}
	return &watchedConn{c, w}, nil
}

type watchedConn struct {
	daemon.Conn
	w *heapWatch
}

func (c *watchedConn) Send(ctx context.Context, e *pb.Envelope, lane daemon.Lane) error {
	if e.GetInventoryChunk() != nil && c.w.chunks.Add(1)%c.w.every.Load() == 0 {
		now := liveHeap()
		c.w.mu.Lock()
		c.w.highest, c.w.looks = max(c.w.highest, now), c.w.looks+1
		c.w.mu.Unlock()
	}
	return c.Conn.Send(ctx, e, lane)
}

// above returns how far the heap went above base since the last call, and how often it was looked at.
func (w *heapWatch) above(base int64) (grown int64, looks int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	grown, looks = w.highest-base, w.looks
	w.highest, w.looks = 0, 0
	return grown, looks
}

// TestScaleOfDaemons: 50 daemons register at once, and one of them tells 10,000 resources and a tree of 200,000 files,
// while the memory of both ends stays within the limits of daemon protocol 5.2. Not parallel: the heap must be its own.
// Under the race detector the whole of it takes minutes on a busy machine; there it tells a tenth.
func TestScaleOfDaemons(t *testing.T) {
	const (
		daemons, resources, files = 50, 10_000 / scalePart, inventory.MaxTreeFiles / scalePart
		// idleBytes is what a registered connection may take at both ends together, sockets' buffers included.
		idleBytes = 256 << 10
		// busyBytes is what one answer may take: the outbound queue and an envelope at the daemon; an envelope, and the
		// message and the row made of it, at control.
		busyBytes = valid.DefaultOutboundBytes + 4*valid.DefaultEnvelopeBytes
	)
	s := appliancetest.Start(t)
	dialer, err := archiveclient.New(archiveclient.Options{URL: "ws" + strings.TrimPrefix(s.URL(), "http") + "/daemon/v2",
		TokenFile: filepath.Join(s.Config.DataDir, appliance.DaemonTokenFile)})
	if err != nil {
		t.Fatal(err)
	}
	watch := &heapWatch{Dialer: dialer}
	before := liveHeap()
	all := make([]*archivesim.Daemon, daemons)
	failed := make([]error, daemons)
	var connecting sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), appliancetest.Wait)
	defer cancel()
	for i := range all {
		connecting.Go(func() {
			all[i], failed[i] = archivesim.Connect(ctx, archivesim.Options{ID: uuid.New(), Name: fmt.Sprintf("daemon %d", i), Dialer: watch,
				Content: archivesim.Content{Resources: resources, Files: 3, Tree: files}})
		})
	}
	connecting.Wait()
	t.Cleanup(func() {
		for _, d := range all {
			if d != nil {
				d.Close()
			}
		}
	})
	for i, err := range failed {
		if err != nil {
			t.Fatalf("daemon %d: %v", i, err)
		}
	}
	var list []struct{ State string }
	s.Do("GET", "/daemons", nil, 200, &list)
	online := 0
	for _, d := range list {
		if d.State == "online" {
			online++
		}
	}
	if online != daemons {
		t.Errorf("%d daemons are online, want %d", online, daemons)
	}
	base := liveHeap()
	t.Logf("%d KiB for each registered daemon, both ends together", (base-before)/daemons>>10)
	if grown := base - before; grown > daemons*idleBytes {
		t.Errorf("%d daemons take %d KiB, at most %d for each are right", daemons, grown>>10, idleBytes>>10)
	}

	one := "/daemons/" + all[0].ID().String()
	ask := func(question map[string]any, entries int64) {
		t.Helper()
		question["wait"] = 120
		chunks := entries / valid.DefaultChunkEntries
		looks := min(chunks, 10)
		watch.every.Store(chunks / looks)
		var a struct {
			State   string
			Entries int64
			Error   *struct{ Code, Message string }
		}
		s.Do("POST", one+"/inventory", question, 200, &a)
		if a.State != "complete" || a.Entries != entries {
			t.Fatalf("%v: %+v", question, a)
		}
		grown, n := watch.above(base)
		t.Logf("%s: at most %d KiB more than at rest, seen %d times", question["scope"], grown>>10, n)
		if int64(n) < looks {
			t.Errorf("the heap was looked at %d times only", n)
		}
		if grown > busyBytes {
			t.Errorf("%s: %d KiB more than at rest, at most %d are right", question["scope"], grown>>10, busyBytes>>10)
		}
	}
	ask(map[string]any{"scope": "resources"}, resources)
	ask(map[string]any{"scope": "content_tree", "resource": archivesim.ResourceID(0)}, files)

	// What was told is there, to the last entry, and none of it stays in memory.
	var tree struct {
		ContentRevision string `json:"content_revision"`
		FileCount       int64  `json:"file_count"`
		Files           []struct{ Index int64 }
	}
	page := one + "/tree?limit=100&resource=" + archivesim.ResourceID(0)
	s.Do("GET", page, nil, 200, &tree)
	s.Do("GET", fmt.Sprintf("%s&cursor=%s.%d", page, tree.ContentRevision, files-10), nil, 200, &tree)
	if n := len(tree.Files); tree.FileCount != files || n != 10 || tree.Files[n-1].Index != files-1 {
		t.Errorf("the end of the tree: %d of %d files", n, tree.FileCount)
	}
	if rest := liveHeap() - base; rest > busyBytes/2 {
		t.Errorf("%d KiB stay in use when all is told", rest>>10)
	}
	for i, d := range all {
		if err := d.Err(); err != nil {
			t.Errorf("daemon %d lost its connection: %v", i, err)
		}
	}
}
