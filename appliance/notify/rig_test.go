package notify_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"signalbox/appliance/agent"
	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/notify"
	"signalbox/appliance/secret"
	"signalbox/appliance/wake"
	"signalbox/store"
	"signalbox/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	ctx   = context.Background()
	root  = agent.LocalPrincipal()
	start = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
)

// receiver stands for everything outside: it notes what it is sent and answers as told.
type receiver struct {
	mu    sync.Mutex
	got   []sent
	seen  *sync.Cond
	fail  map[string]error         // by host
	stall map[string]chan struct{} // by host: until it is closed

	refuse func(notify.Message) error // not nil: answers in place of fail
	calls  int                        // that have begun
}

type sent struct {
	to string
	notify.Message
}

func newReceiver() *receiver {
	r := &receiver{fail: map[string]error{}, stall: map[string]chan struct{}{}}
	r.seen = sync.NewCond(&r.mu)
	return r
}

func (r *receiver) Check(notify.Settings) error { return nil }

func (r *receiver) Send(ctx context.Context, s notify.Settings, m notify.Message) error {
	to := s.Webhook.URL.Reveal()
	r.mu.Lock()
	err, stall := r.fail[to], r.stall[to]
	if r.refuse != nil {
		err = r.refuse(m)
	}
	r.calls++
	r.seen.Broadcast()
	r.mu.Unlock()
	if stall != nil {
		select {
		case <-stall:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, sent{to, m})
	r.seen.Broadcast()
	return err
}

// await waits until n messages have come, and returns them all.
func (r *receiver) await(n int) []sent {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.got) < n {
		r.seen.Wait()
	}
	return append([]sent(nil), r.got...)
}

// awaitCalls waits until n calls have begun.
func (r *receiver) awaitCalls(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.calls < n {
		r.seen.Wait()
	}
}

func (r *receiver) answer(to string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail[to] = err
}

// noted tells of recorded attempts.
type noted struct{ c chan string }

func (n noted) NotificationTried(_ notify.Kind, outcome string) {
	select {
	case n.c <- outcome:
	default:
	}
}
func (noted) NotifyTrouble(string, error) {}

type rig struct {
	t       testing.TB
	clock   *clock.Fake
	db      *store.DB
	path    string
	hub     *wake.Hub
	log     *audit.Log
	master  agent.SecretSet
	out     *receiver
	tried   noted
	s       *notify.Service
	dir     *agent.Directory
	project agent.Project
	grace   time.Duration
	commits chan struct{} // holds one when a transaction of the service ended
	views   chan struct{} // holds one when a snapshot of the service ended
	before  *storetest.Failpoint
	after   *storetest.Failpoint
	lost    *atomic.Bool // the next transaction of the service is lost without anybody knowing

	parallel int // of the service; 0 is its default
}

func newRig(t testing.TB) *rig {
	t.Helper()
	g := &rig{t: t, clock: clock.NewFake(start), path: filepath.Join(t.TempDir(), "signalbox.db"), out: newReceiver(),
		master: agent.SecretSet{Current: secret.NewBytes(bytes.Repeat([]byte{7}, 32))}, grace: time.Minute, commits: make(chan struct{}, 1),
		views: make(chan struct{}, 1), before: &storetest.Failpoint{}, after: &storetest.Failpoint{}, lost: &atomic.Bool{}}
	g.open()
	p, err := g.dir.CreateProject(ctx, root, agent.NewProject{Slug: "one", Name: "One"})
	g.must(err)
	g.project = p
	return g
}

// open makes the services on the file, as a start does.
func (g *rig) open() {
	g.t.Helper()
	g.db = storetest.Open(g.t, func(o *store.Options) { o.Clock, o.Path = g.clock, g.path }, storetest.WithBeforeCommit(g.before),
		storetest.WithAfterCommit(g.after))
	g.hub = wake.New()
	g.tried = noted{make(chan string, 1000)}
	g.log = audit.New(g.master.AuditKeys())
	g.dir = agent.NewDirectory(store.Bind[agent.DirectoryTx, agent.DirectoryReadTx](g.db), g.master, g.log, g.hub,
		agent.DirectoryOptions{OfflineTimeout: 30 * time.Second, ProjectChanged: func(tx agent.DirectoryTx, p agent.Project) error {
			return g.s.ProjectChanged(any(tx).(notify.Tx), p)
		}})
	g.serve()
}

func (g *rig) serve() (resealed, unreadable int) {
	box, err := secret.NewSealer(g.master.Current, g.master.Previous...)
	g.must(err)
	st := committed{store.Bind[notify.Tx, notify.ReadTx](g.db), g.commits, g.views, g.lost}
	g.s = notify.New(st, store.BindUpkeep[notify.Tx, notify.ReadTx](g.db), g.out, box, g.log, g.hub, notify.Options{Grace: g.grace,
		SendTimeout: 2 * time.Minute, // by the system's clock: no receiver that stalls in a test is to come to its end
		Parallel:    g.parallel, Clock: g.clock, Observer: g.tried, Jitter: func() float64 { return 0.5 }})
	resealed, unreadable, err = g.s.Start(ctx)
	g.must(err)
	return resealed, unreadable
}

// restart closes the file and opens it again: what was in memory only is gone.
func (g *rig) restart() {
	g.t.Helper()
	g.must(g.db.Close())
	g.open()
}

func (g *rig) must(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

// run runs fn in the background; stop ends it and waits for it.
func (g *rig) run(fn func(context.Context) error) (stop func()) {
	c, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- fn(c) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				g.t.Error(err)
			}
		})
	}
	g.t.Cleanup(stop)
	return stop
}

func (g *rig) channel(name string) notify.Channel {
	g.t.Helper()
	m, err := g.s.CreateChannel(ctx, root, g.project.No, notify.NewChannel{Name: name, Kind: notify.Webhook, IsEnabled: true,
		Settings: webhookTo(name)})
	g.must(err)
	return m.Channel
}

func webhookTo(name string) notify.Settings {
	return notify.Settings{Webhook: &notify.WebhookSettings{URL: secret.NewText(url(name))}}
}

func url(name string) string { return "https://" + name + ".lan/hidden-path-" + name }

func (g *rig) rule(name string, t notify.Trigger, pattern string, group time.Duration, channels ...notify.Channel) notify.Rule {
	g.t.Helper()
	r := notify.Rule{Name: name, Trigger: t, Pattern: pattern, Group: group, IsEnabled: true}
	for _, c := range channels {
		r.Channels = append(r.Channels, c.ID)
	}
	r, err := g.s.CreateRule(ctx, root, g.project.No, r)
	g.must(err)
	return r
}

func (g *rig) update(fn func(tx notify.CollectTx) error) {
	g.t.Helper()
	g.must(store.Bind[notify.Tx, notify.ReadTx](g.db).Update(ctx, "test", func(tx notify.Tx) error { return fn(tx) }))
}

// fails collects failures of tasks of these names.
func (g *rig) fails(names ...string) {
	g.t.Helper()
	g.update(func(tx notify.CollectTx) error {
		for _, name := range names {
			f := agent.FailedTask{ProjectNo: g.project.No, Engine: "celery", TaskID: "t-1", TaskName: name, EventID: uuid.New(),
				Exception: "ValueError: no\nsecond line", OccurredAt: tx.Now()}
			if err := g.s.OnTaskFailed(tx, f, ""); err != nil {
				return err
			}
		}
		return nil
	})
}

func (g *rig) outbox(f notify.Filter) []notify.Notification {
	g.t.Helper()
	all, err := g.s.List(ctx, g.project.No, f, agent.Page{Limit: 1000})
	g.must(err)
	return all
}

// awaitTried waits for recorded attempts.
func (g *rig) awaitTried(outcomes ...string) {
	g.t.Helper()
	for _, want := range outcomes {
		if got := <-g.tried.c; got != want {
			g.t.Fatalf("attempt %s, want %s", got, want)
		}
	}
}

// sleepsFor waits until the one channel pauses for so long from now on.
func (g *rig) sleepsFor(d time.Duration) {
	g.t.Helper()
	var c notify.Channel
	g.until(func() bool {
		all, err := g.s.Channels(ctx, g.project.No)
		g.must(err)
		c = all[0]
		return c.RetryAt.Equal(g.clock.Now().Add(d))
	}, func() string {
		return fmt.Sprintf("%d failures, a pause until %s, want %s more", c.Failures, c.RetryAt, d)
	})
}

// settled waits until so many messages are in the state, and returns them.
func (g *rig) settled(state notify.State, n int) (got []notify.Notification) {
	g.t.Helper()
	g.until(func() bool {
		got = g.outbox(notify.Filter{State: state})
		return len(got) == n
	}, func() string { return fmt.Sprintf("%d notifications are %s, want %d", len(got), state, n) })
	return got
}

// until waits for what a transaction of the service brings about.
func (g *rig) until(done func() bool, problem func() string) {
	g.t.Helper()
	for late := time.After(2 * time.Minute); !done(); {
		select {
		case <-g.commits:
		case <-late:
			g.t.Fatal(problem())
		}
	}
}

// committed tells of transactions of the service that ended.
type committed struct {
	notify.Store
	c, views chan struct{}
	lost     *atomic.Bool
}

func (s committed) View(ctx context.Context, fn func(notify.ReadTx) error) error {
	err := s.Store.View(ctx, fn)
	select {
	case s.views <- struct{}{}:
	default:
	}
	return err
}

func (s committed) Update(ctx context.Context, op string, fn func(notify.Tx) error) error {
	if s.lost.CompareAndSwap(true, false) {
		return lostUpdate(s.Store, op, fn)
	}
	err := s.Store.Update(ctx, op, fn)
	select {
	case s.c <- struct{}{}:
	default: // one is told already
	}
	return err
}

func bodyOf(t *testing.T, m notify.Message) map[string]any {
	t.Helper()
	var b map[string]any
	if err := json.Unmarshal(m.Body, &b); err != nil {
		t.Fatal(err)
	}
	return b
}
