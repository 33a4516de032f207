package appliance_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance"
	"signalbox/appliance/appliancetest"
	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/config"
	"signalbox/store/daemonstore"
)

// propContent, propReceive and propOutbox are the roots of every daemon.
const (
	propContent = "content"
	propReceive = "receive"
	propOutbox  = "outbox"
)

// propFleet is a control and two daemons that live by one clock: it moves while nothing happens.
type propFleet struct {
	*appliancetest.Server
	t        *testing.T
	rng      *rand.Rand
	world    *propWorld
	net      *propNet
	daemons  []*propDaemon
	previews []archivePreview
	tampered atomic.Bool // a daemon has had another database than its own
	crashed  atomic.Bool // control's database takes nothing until control starts again
	commits  atomic.Int64

	traffic atomic.Uint64
	tick    *time.Ticker
	seen    uint64
	still   int
	step    time.Duration
	checks  propChecks
	readers map[string]*sql.DB // by path
}

func newPropFleet(t *testing.T, seed uint64) *propFleet {
	t.Helper()
	f := &propFleet{t: t, rng: rand.New(rand.NewPCG(seed, 1)), tick: time.NewTicker(2 * time.Millisecond), step: propStep, readers: map[string]*sql.DB{}}
	t.Cleanup(func() {
		f.tick.Stop()
		for path := range f.readers {
			f.unread(path)
		}
	})
	moved := func() { f.traffic.Add(1) }
	options := []appliancetest.Option{appliancetest.WithFakeClock(epoch), appliancetest.WithConfig(func(c *config.Config) {
		c.Server.DrainTimeout = config.Duration(time.Second)
	})}
	if appliancetest.DebugLog != nil {
		options = append(options, appliancetest.WithLog(appliancetest.DebugLog))
	}
	f.Server = appliancetest.Start(t, options...)
	f.world = newPropWorld(seed, f.Clock, moved)
	f.net = &propNet{token: filepath.Join(f.Config.DataDir, appliance.DaemonTokenFile), moved: moved, rng: rand.New(rand.NewPCG(seed, 3)),
		conns: map[*propConn]bool{}}
	f.found()
	f.Faults.BeforeCommit(f.beforeCommit)
	for _, name := range []string{"nas", "vault"} {
		f.daemons = append(f.daemons, f.newDaemon(name))
	}
	return f
}

// found tells the daemons where control is now.
func (f *propFleet) found() {
	url := "ws" + strings.TrimPrefix(f.URL(), "http") + "/daemon/v2"
	f.net.url.Store(&url)
}

// beforeCommit runs on control's writer; after so many commits the database dies.
func (f *propFleet) beforeCommit([]string) {
	f.traffic.Add(1)
	if f.commits.Load() > 0 && f.commits.Add(-1) == 0 {
		f.Faults.FailCommits(appliancetest.ErrDatabase)
		f.crashed.Store(true)
	}
}

// propStep is how far the clock moves at first when nothing happens.
const propStep = 100 * time.Millisecond

// turn waits for a moment. When nothing has happened meanwhile and nobody owes an answer, time passes, faster and faster.
func (f *propFleet) turn() {
	<-f.tick.C
	const patience = 200 // turns
	now := f.traffic.Load()
	switch {
	case now != f.seen:
		f.seen, f.still, f.step = now, 0, propStep
		f.Clock.Advance(10 * time.Millisecond)
	case f.net.waiting() && f.still < patience:
		f.still++
	default:
		f.still++
		f.step = min(f.step*5/4, 2*time.Second)
		f.Clock.Advance(f.step)
	}
}

// until lets time pass until ok; on the way the invariants are checked.
func (f *propFleet) until(what string, ok func() bool) {
	f.t.Helper()
	end := time.Now().Add(4 * appliancetest.Wait)
	for n := 1; !ok(); n++ {
		f.turn()
		if n%300 == 0 {
			f.check()
		}
		if time.Now().After(end) {
			f.t.Fatalf("%s did not come\n%s", what, f.story())
		}
	}
}

// propDaemon is a real engine over a real database, with steps that work on the world of the test.
type propDaemon struct {
	fleet *propFleet
	name  string
	id    uuid.UUID
	dir   string
	roots []daemon.Root
	steps propSteps
	items propInventory
	away  atomic.Bool // it cannot reach control

	db   *daemonstore.DB // nil while no process runs
	stop context.CancelFunc
	done chan error

	mu     sync.Mutex
	point  daemon.Point // where the process dies
	passes int          // after so many passes; 0: never
	copied bool         // an older database lies in dir/copy
}

var errPropKill = errors.New("killed")

func (f *propFleet) newDaemon(name string) *propDaemon {
	f.t.Helper()
	d := &propDaemon{fleet: f, name: name, id: uuid.New(), dir: f.t.TempDir()}
	d.steps, d.items = propSteps{f.world, d}, propInventory{w: f.world, d: d}
	for _, r := range []struct {
		id   string
		kind pb.RootKind
	}{{propContent, pb.RootKind_ROOT_KIND_CONTENT}, {propReceive, pb.RootKind_ROOT_KIND_RECEIVE}, {propOutbox, pb.RootKind_ROOT_KIND_OUTBOX}} {
		path := filepath.Join(d.dir, r.id)
		if err := os.Mkdir(path, 0o755); err != nil {
			f.t.Fatal(err)
		}
		root, err := beneath.Open(path, beneath.Options{})
		if err != nil {
			f.t.Fatal(err)
		}
		f.t.Cleanup(func() { _ = root.Close() })
		if _, err := root.Probe(context.Background()); err != nil { // as a daemon does at its start
			f.t.Fatal(err)
		}
		d.roots = append(d.roots, daemon.Root{ID: r.id, Kind: r.kind, Open: func() (*beneath.Root, error) { return root, nil }})
	}
	f.t.Cleanup(func() {
		if d.db != nil {
			d.halt()
		}
	})
	return d
}

func (d *propDaemon) database() string { return filepath.Join(d.dir, "state", "daemon.db") }

// start begins a process.
func (d *propDaemon) start() {
	t := d.fleet.t
	t.Helper()
	db, err := daemonstore.Open(context.Background(), daemonstore.Options{Path: d.database(), ClientID: d.id, Clock: d.fleet.Clock})
	if err != nil {
		t.Fatal(err)
	}
	engine, err := daemon.New(context.Background(), daemon.Options{Name: d.name, Software: "test/1",
		Role:         pb.ClientRole_CLIENT_ROLE_SOURCE_AND_TARGET,
		Capabilities: []string{archive.CapEviction, archive.CapHardlink, archive.CapSparse}, Store: db, Dialer: d, Steps: &d.steps,
		Inventory: &d.items, Roots: d.roots, Routes: map[pb.RouteKind]daemon.RouteKind{pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY: propRoute{}},
		Workers: daemon.Workers{TransfersPerRoot: 3, VerifiesPerRoot: 3}, Clock: d.fleet.Clock, Hooks: daemon.Hooks{At: d.at}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.db, d.stop, d.done = db, cancel, make(chan error, 1)
	done := d.done
	go func() { done <- engine.Run(ctx) }()
}

// at is the hook of the engine.
func (d *propDaemon) at(p daemon.Point, _ uuid.UUID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.passes == 0 || p != d.point {
		return nil
	}
	if d.passes--; d.passes > 0 {
		return nil
	}
	return errPropKill
}

// dieAt has the process die when it passes a point.
func (d *propDaemon) dieAt(p daemon.Point, passes int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.point, d.passes = p, passes
}

// halt ends the process, if it has not died by itself, and waits for it.
func (d *propDaemon) halt() {
	d.fleet.t.Helper()
	d.stop()
	select {
	case err := <-d.done:
		d.ended(err)
	case <-time.After(appliancetest.Wait):
		d.fleet.t.Fatalf("daemon %s does not end", d.name)
	}
}

// died tells whether the process has died by itself.
func (d *propDaemon) died() bool {
	if d.db == nil {
		return true
	}
	select {
	case err := <-d.done:
		d.ended(err)
		return true
	default:
		return false
	}
}

func (d *propDaemon) ended(err error) {
	d.fleet.t.Helper()
	d.fleet.unread(d.database())
	if err != nil && !errors.Is(err, errPropKill) {
		d.fleet.t.Errorf("daemon %s: %v", d.name, err)
	}
	if err := d.db.Close(); err != nil {
		d.fleet.t.Errorf("daemon %s: %v", d.name, err)
	}
	d.stop()
	d.db = nil
	d.dieAt(0, 0)
}

// replace gives the daemon, which is not running, the database of its copy, or none at all.
func (d *propDaemon) replace(withCopy bool) {
	t := d.fleet.t
	t.Helper()
	d.fleet.tampered.Store(true)
	d.fleet.unread(d.database())
	state := filepath.Dir(d.database())
	if err := os.RemoveAll(state); err != nil {
		t.Fatal(err)
	}
	if withCopy {
		if err := os.CopyFS(state, os.DirFS(filepath.Join(d.dir, "copy"))); err != nil {
			t.Fatal(err)
		}
	}
}

// keepCopy keeps the database of the daemon, which is not running, for later.
func (d *propDaemon) keepCopy() {
	t := d.fleet.t
	t.Helper()
	to := filepath.Join(d.dir, "copy")
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(to, os.DirFS(filepath.Dir(d.database()))); err != nil {
		t.Fatal(err)
	}
	d.copied = true
}

// begin starts the daemons and makes the route and the previews.
func (f *propFleet) begin() {
	f.t.Helper()
	nas, vault := f.daemons[0], f.daemons[1]
	var requests []map[string]any
	for i := range propTransfers {
		name := fmt.Sprintf("content %02d", i)
		nas.items.names = append(nas.items.names, name)
		requests = append(requests, map[string]any{"operation": "transfer", "source": map[string]any{"daemon": nas.id, "resource": name},
			"target": map[string]any{"daemon": vault.id}, "destination": map[string]any{"root": propContent}, "evict_after": i%2 == 0,
			"policies": map[string]any{"keep_free_bytes": 1, "trash_retention_seconds": 10}})
	}
	for i := range propAdoptions {
		name := fmt.Sprintf("found %02d", i)
		vault.items.names = append(vault.items.names, name)
		requests = append(requests, map[string]any{"operation": "adopt", "source": map[string]any{"daemon": vault.id, "resource": name},
			"target": map[string]any{"daemon": vault.id}, "destination": map[string]any{"root": propContent}})
	}
	for _, d := range f.daemons {
		d.start()
		f.until("daemon "+d.name, func() bool {
			status, body := f.Admin("GET", "/daemons/"+d.id.String(), nil)
			return status == http.StatusOK && strings.Contains(string(body), `"state":"online"`)
		})
	}
	var route struct {
		ID    string
		Ready bool
	}
	f.Do("POST", "/routes", map[string]any{"name": "nas to vault", "source": nas.id, "target": vault.id, "source_root": propOutbox,
		"target_root": propReceive, "shared_marker": "nas"}, http.StatusCreated, &route)
	f.until("the route", func() bool {
		f.Do("GET", "/routes/"+route.ID, nil, http.StatusOK, &route)
		return route.Ready
	})
	for _, r := range requests {
		if r["operation"] == "transfer" {
			r["route"] = route.ID
		}
		var p archivePreview
		status, body := f.Admin("POST", "/job-previews", r)
		if status != http.StatusAccepted && status != http.StatusOK {
			f.t.Fatalf("preview: %d %s", status, body)
		}
		decodeInto(f.t, body, &p)
		f.previews = append(f.previews, p)
	}
	f.until("the previews", func() bool {
		for i := range f.previews {
			p := &f.previews[i]
			if p.State == "running" {
				_, body := f.Admin("GET", "/job-previews/"+p.ID, nil)
				decodeInto(f.t, body, p)
			}
			if p.State == "running" {
				return false
			}
			if p.State != "passed" {
				f.t.Fatalf("preview %s: %+v", p.State, p.Error)
			}
		}
		return true
	})
}

// startJobs makes a job of every preview.
func (f *propFleet) startJobs() {
	f.t.Helper()
	for _, p := range f.previews {
		f.Do("POST", "/jobs", map[string]any{"preview_id": p.ID}, http.StatusCreated, nil)
	}
}
