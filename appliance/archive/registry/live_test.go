package registry_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/registry"
	"signalbox/appliance/fault"
)

func TestHeartbeatSequence(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link := r.peer().register().Link
	for _, c := range []struct {
		sequence uint64
		code     fault.Code
	}{{0, fault.Invalid}, {2, fault.Invalid}, {1, ""}, {1, fault.Invalid}, {3, fault.Invalid}, {2, ""}, {3, ""}} {
		ack, err := r.reg.Heartbeat(ctx, link, &pb.Heartbeat{Sequence: c.sequence})
		if fault.CodeOf(err) != c.code {
			t.Fatalf("%d: %v", c.sequence, err)
		}
		if err == nil && (ack.Sequence != c.sequence || !ack.ServerTime.AsTime().Equal(begin)) {
			t.Fatalf("%d: %v", c.sequence, ack)
		}
	}
}

// The use of a generation is written by the first heartbeat that the database takes.
func TestFirstHeartbeatProvesTheGeneration(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.peer()
	link := p.register().Link
	r.before.Arm(errors.New("disk full"), 1)
	wantFault(t, r.beat(link, 1), fault.Unavailable)
	if used := r.daemon(p.id).GenerationUsed; used != 0 {
		t.Fatalf("used %d", used)
	}
	if err := r.beat(link, 2); err != nil {
		t.Fatal(err)
	}
	if used := r.daemon(p.id).GenerationUsed; used != 1 {
		t.Fatalf("used %d", used)
	}
}

// A heartbeat costs no commit of its own: only the first of a connection, and one for all daemons now and then.
func TestHeartbeatsAreStoredTogether(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stop := r.run()
	var links []archive.Link
	for range 10 {
		links = append(links, r.peer().register().Link)
	}
	for _, l := range links {
		if err := r.beat(l, 1); err != nil {
			t.Fatal(err)
		}
	}
	commits := r.before.Hits()
	for i := range uint64(2) {
		r.clock.BlockUntil(1)
		r.clock.Advance(10 * time.Second)
		for _, l := range links {
			if err := r.beat(l, 2+i); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := r.before.Hits() - commits; n != 0 {
		t.Errorf("%d commits for 20 heartbeats", n)
	}
	seen := begin.Add(20 * time.Second)
	if d := r.daemon(links[3].Daemon.ID); !d.LastSeenAt.Equal(seen) {
		t.Errorf("shown %v, want %v", d.LastSeenAt, seen)
	}
	stop() // stores the rest
	if n := r.before.Hits() - commits; n != 1 {
		t.Errorf("%d commits at the end", n)
	}
	if n := r.count(`SELECT count(*) FROM daemons WHERE last_seen_at = ?`, seen); n != 10 {
		t.Errorf("%d rows are fresh", n)
	}
}

func TestSilentDaemonGoesOffline(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.peer()
	link := p.register().Link
	s := newSender()
	r.reg.Attach(link, s)
	r.run()
	w := r.hub.Watch(archive.DaemonKey(link.Daemon.No))
	defer w.Stop()
	r.clock.BlockUntil(1)
	r.clock.Advance(44 * time.Second)
	if err := r.beat(link, 1); err != nil {
		t.Fatal(err)
	}
	r.clock.BlockUntil(1)
	r.clock.Advance(44*time.Second + 999*time.Millisecond)
	r.clock.BlockUntil(1) // the timer of the first threshold has come and gone
	if !r.daemon(p.id).Online || r.offlines() != 0 {
		t.Fatal("offline before the threshold")
	}
	r.clock.Advance(time.Millisecond)
	<-w.C()
	d := r.daemon(p.id)
	if d.Online || !d.OfflineAt.Equal(r.clock.Now()) || r.offlines() != 1 {
		t.Fatalf("%+v, told %d times", d, r.offlines())
	}
	if why := <-s.closed; why != registry.Lapsed {
		t.Error(why)
	}
	wantFault(t, r.beat(link, 2), fault.Stale) // the generation is released
	wantFault(t, r.fence(link), fault.Stale)
	if _, ok := r.reg.Current(link.Daemon.No); ok {
		t.Error("still current")
	}
	if again := p.register(); again.Takeover || again.Link.Generation != 2 {
		t.Errorf("%+v", again)
	}
}

// A closed socket only stops sending.
func TestQuickReconnectMovesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.peer()
	link := p.register().Link
	r.reg.Attach(link, newSender())
	r.run()
	r.reg.Detach(link)
	if !r.daemon(p.id).Online || r.daemon(p.id).Attached {
		t.Fatal("a closed socket is not offline")
	}
	r.clock.BlockUntil(1)
	r.clock.Advance(44 * time.Second)
	p.register()
	r.clock.Advance(44 * time.Second)
	r.clock.BlockUntil(1)
	if r.offlines() != 0 || !r.daemon(p.id).Online {
		t.Fatal("offline in spite of the reconnect")
	}
}

// After a restart each daemon has the whole threshold, whatever the database says of when it was seen.
func TestRestartStartsTheTimersAnew(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.peer()
	link := p.register().Link
	r.clock.Advance(40 * time.Second)
	r.restart()
	if l, ok := r.reg.Current(link.Daemon.No); !ok || l.Generation != 1 {
		t.Fatal("forgotten")
	}
	r.run()
	w := r.hub.Watch(archive.DaemonKey(link.Daemon.No))
	defer w.Stop()
	r.clock.BlockUntil(1)
	r.clock.Advance(44 * time.Second)
	if !r.daemon(p.id).Online {
		t.Fatal("offline too early")
	}
	r.clock.Advance(time.Second)
	<-w.C()
	if r.daemon(p.id).Online || r.offlines() != 1 {
		t.Fatal("still online")
	}
	r.restart()
	if _, ok := r.reg.Current(link.Daemon.No); ok {
		t.Error("online after another restart")
	}
}

// A mark that the database does not take is made later; until then nothing of the generation counts.
func TestOfflineMarkIsTriedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.peer()
	link := p.register().Link
	r.run()
	w := r.hub.Watch(archive.DaemonKey(link.Daemon.No))
	defer w.Stop()
	r.clock.BlockUntil(1)
	r.before.Arm(errors.New("disk full"), 1)
	r.clock.Advance(45 * time.Second)
	r.clock.BlockUntil(1)
	wantFault(t, r.beat(link, 1), fault.Stale)
	r.clock.Advance(time.Second)
	<-w.C()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failures != 1 {
		t.Errorf("%d failures told", r.failures)
	}
}

// A hook that fails leaves the daemon online, and its jobs as they are.
func TestOfflineIsOneTransaction(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.peer()
	link := p.register().Link
	failed := make(chan struct{}, 8)
	r.hooks.OnOffline = append(r.hooks.OnOffline, func(registry.Tx, int64) error {
		failed <- struct{}{}
		return errors.New("no")
	})
	r.reg.SetHooks(r.hooks)
	stop := r.run()
	r.clock.BlockUntil(1)
	r.clock.Advance(45 * time.Second)
	<-failed
	stop()
	if n := r.count(`SELECT online FROM daemons WHERE daemon_no = ?`, link.Daemon.No); n != 1 {
		t.Error("marked without its jobs")
	}
}

// A clock that is a day off is shown and changes nothing (failure table, row 8).
func TestClockSkewIsShown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.peer()
	reg, refusal := r.reg.Register(ctx, registry.Request{Register: p.request(), SentAt: begin.Add(-24 * time.Hour)}, token)
	if refusal != nil {
		t.Fatal(refusal.Detail)
	}
	if d := r.daemon(p.id); d.ClockSkew != -24*time.Hour || !d.LastSeenAt.Equal(begin) {
		t.Errorf("%+v", d)
	}
	list, err := r.reg.Alerts(ctx, registry.AlertFilter{DaemonNo: reg.Link.Daemon.No})
	if err != nil || len(list) != 1 || list[0].Kind != archive.AlertClockSkew || !strings.Contains(list[0].Detail, "24h0m0s behind") ||
		list[0].DaemonID != p.id {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := r.reg.Heartbeat(ctx, reg.Link, &pb.Heartbeat{Sequence: 1, SentAt: timestamppb.New(begin.Add(36 * time.Hour))}); err != nil {
		t.Fatal(err)
	}
	if d := r.daemon(p.id); d.ClockSkew != 36*time.Hour {
		t.Errorf("%+v", d)
	}
	p.last = 1
	if p.register(); len(r.alerts()) != 0 {
		t.Errorf("after it was set right: %v", r.alerts())
	}
}

func TestAlerts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	no := r.peer().register().Link.Daemon.No
	raise := func(kind archive.AlertKind, detail string) {
		t.Helper()
		if err := r.update(func(tx registry.Tx) error { return r.reg.RaiseAlert(tx, kind, no, 0, detail) }); err != nil {
			t.Fatal(err)
		}
	}
	w := r.hub.Watch(archive.DaemonsKey{})
	defer w.Stop()
	raise(archive.AlertManual, "first")
	<-w.C()
	raise(archive.AlertManual, "second")
	raise(archive.AlertStateLost, "third")
	list, err := r.reg.Alerts(ctx, registry.AlertFilter{})
	if err != nil || len(list) != 2 || list[1].Detail != "second" || list[1].Times != 2 || list[0].Times != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	if err := r.update(func(tx registry.Tx) error { return r.reg.ClearAlert(tx, archive.AlertManual, no, 0) }); err != nil {
		t.Fatal(err)
	}
	if err := r.reg.Dismiss(ctx, list[0].No); err != nil {
		t.Fatal(err)
	}
	wantFault(t, r.reg.Dismiss(ctx, list[0].No), fault.NotFound)
	if len(r.alerts()) != 0 {
		t.Fatal(r.alerts())
	}
	raise(archive.AlertManual, "again")
	all, err := r.reg.Alerts(ctx, registry.AlertFilter{Cleared: true})
	if err != nil || len(all) != 3 || all[0].Times != 1 || !slices.Equal(r.alerts(), []archive.AlertKind{archive.AlertManual}) {
		t.Fatalf("%+v, %v", all, err)
	}
}
