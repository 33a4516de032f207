//go:build interop

package commands

import (
	"bytes"
	"slices"
	"testing"
	"time"
)

// slack is what a busy machine may take for something that is due at once.
const slack = 20 * time.Second

// TestInteropNetwork puts control and two daemons into network namespaces of their own, with the test as the only way
// between them: packets are lost, doubled and overtaken, a machine falls silent or changes its address. The timings are those
// of daemon protocol 2.5, on the real clock.
func TestInteropNetwork(t *testing.T) {
	needNetworks(t)
	binary := buildBinary(t)
	for _, c := range []struct {
		name string
		run  func(t *testing.T, binary string)
	}{
		{"default timings", defaultTimings}, // first: it waits the longest
		{"address change", addressChange},
		{"half-open", halfOpen},
		{"restart behind a hole", restartBehindHole},
		{"loss", lossyCopy},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, binary)
		})
	}
}

// quick are control's settings for a mark after 3 s, the shortest there is.
func quick() []string {
	return []string{"--archive-heartbeat-interval=1s", "--archive-offline-threshold=3s", "--archive-stable-reset=1s",
		"--archive-reconnect-initial=100ms", "--archive-reconnect-cap=500ms"}
}

// lossyCopy: every fifth packet is lost in each direction, others come twice or out of order; the copy is byte-identical.
func lossyCopy(t *testing.T, binary string) {
	l := newNetLoop(t, binary, weather{loss: 0.2, twice: 0.1, delay: time.Millisecond, jitter: 30 * time.Millisecond}, rates{},
		"--archive-heartbeat-interval=2s", "--archive-offline-threshold=10s", "--archive-reconnect-initial=100ms",
		"--archive-reconnect-cap=1s", "--archive-command-retry=2s", "--archive-command-attempts=100")
	l.route()
	c := l.set("set", 200, 100_000)
	l.copySet(c, patience)
	begun := time.Now()
	l.completed(c, patience)
	t.Logf("copied %d files in %v; daemons at generations %d and %d", len(c.files), time.Since(begun).Round(time.Millisecond),
		l.daemon(l.nas).Generation, l.daemon(l.vault).Generation)
	if lost, all := l.net.lost.Load(), l.net.lost.Load()+l.net.passed.Load(); all < 200 || lost*10 < all {
		t.Errorf("the network was better than it should be: %s", l.net)
	}
	if l.net.doubled.Load() == 0 || l.net.late.Load() == 0 {
		t.Errorf("no packet came twice, or none was overtaken: %s", l.net)
	}
}

// halfOpen: a machine falls silent in the middle of its step, while both ends hold the socket. Control marks it offline at
// the threshold and the job waits; the machine closes its own socket after two missed acknowledgements; everything goes on
// when packets pass again.
func halfOpen(t *testing.T, binary string) {
	const heartbeat, threshold = time.Second, 3 * time.Second
	l := newNetLoop(t, binary, weather{}, rates{vault: "2MiB"}, quick()...)
	l.route()
	c := l.set("set", 16, 1<<20)
	l.copySet(c, patience)
	l.awaitStep(c, "verify")
	before := l.daemon(l.vault)
	holed := l.blackHole(l.vaultAt)
	closed := l.awaitClosed(l.vault)
	off := l.awaitOffline(l.vault)
	t.Logf("marked offline %v after the hole began, closed by the daemon after %v", off.Sub(holed), closed.Sub(holed))
	// The last heartbeat came at most one interval, and what a busy machine adds, before the hole.
	within(t, "control's mark after the hole began", off.Sub(holed), threshold-heartbeat-heartbeat/2, threshold+slack)
	within(t, "the daemon's own close after the hole began", closed.Sub(holed), 2*heartbeat-300*time.Millisecond, 3*heartbeat+slack)
	if !bytes.Contains(l.vault.tail(), []byte("control did not acknowledge 2 heartbeats")) {
		t.Errorf("the daemon does not tell why it closed:\n%s", l.vault.tail())
	}
	l.await(slack, "control closes the silent socket", func() (bool, any) {
		n := sockets(t, l.control.cmd.Process.Pid, l.vaultAt.current(), "")
		return n == 0, n
	})
	l.waitsForVault(c)
	if d := l.daemon(l.nas); d.State != "online" {
		t.Errorf("nas, which nothing happened to, is %s", d.State)
	}
	l.vaultAt.setHole(false)
	lifted := time.Now()
	l.await(patience, "vault registers", func() (bool, any) {
		d := l.daemon(l.vault)
		return d.State == "online" && d.Generation > before.Generation, d
	})
	t.Logf("registered %v after the hole was lifted", time.Since(lifted))
	l.completed(c, patience)
	if waits := l.waits(c); len(waits) == 0 || waits[0] != "client_offline" {
		t.Errorf("the job waited for %v", waits)
	}
	l.once(c)
}

// addressChange: a machine gets another address. Control learns it from the new registration alone, which takes over; what
// was sent to the old address is sent again under its ID, and nothing is done twice. A hole shorter than the threshold moves
// no job.
func addressChange(t *testing.T, binary string) {
	l := newNetLoop(t, binary, weather{}, rates{nas: "4MiB", vault: "1MiB"}, "--archive-heartbeat-interval=2s",
		"--archive-offline-threshold=30s", "--archive-stable-reset=1s", "--archive-reconnect-initial=100ms", "--archive-reconnect-cap=500ms")
	l.route()
	c := l.set("set", 20, 1<<20)
	l.copySet(c, patience)

	// While a command is under way: it is sent into the void, then to the new address.
	l.awaitStep(c, "stage")
	first := l.daemon(l.vault).Generation
	old := l.vaultAt.current()
	l.vaultAt.unplug()
	l.await(patience, "control sends the next step to the address that is gone", func() (bool, any) {
		k := l.command(c, "transfer")
		return k.FirstSentAt != nil, k
	})
	l.vaultAt.address("10.77.2.2")
	l.takenOver(l.vault, first+1, old, "10.77.2.2")
	var k netCommand
	l.await(patience, "the command is acknowledged", func() (bool, any) {
		k = l.command(c, "transfer")
		return k.AckedAt != nil, k
	})
	var generations []int64
	for _, d := range k.Deliveries {
		generations = append(generations, d.Generation)
	}
	if slices.Sort(generations); !slices.Equal(generations, []int64{first, first + 1}) {
		t.Errorf("deliveries of the step that began meanwhile: %+v", k.Deliveries)
	}

	// In the middle of a step.
	l.awaitStep(c, "verify")
	old = l.vaultAt.current()
	l.vaultAt.address("10.77.2.3")
	l.takenOver(l.vault, first+2, old, "10.77.2.3")

	// A hole that the daemon notices and control does not.
	l.awaitStep(c, "verify")
	holed := l.blackHole(l.vaultAt)
	l.awaitClosed(l.vault)
	l.vaultAt.setHole(false)
	lifted := time.Now()
	l.await(patience, "vault registers", func() (bool, any) {
		d := l.daemon(l.vault)
		return d.Generation == first+3 && d.Attached, d
	})
	t.Logf("registered %v after a hole of %v", time.Since(lifted), lifted.Sub(holed))
	l.completed(c, patience)
	// What the machine did meanwhile may have to be compared, but nobody was ever waited for.
	if waits := l.waits(c); slices.ContainsFunc(waits, func(why string) bool { return why != "reconciling" }) {
		t.Errorf("the job waited for %v", waits)
	}
	if d := l.daemon(l.vault); d.Generation != first+3 || d.OfflineAt != nil {
		t.Errorf("vault was to register three more times after generation %d and never be offline: %+v", first, d)
	}
	l.once(c)
}

// restartBehindHole: control is killed and started again while a machine is silent. The machine has the whole threshold from
// the start on.
func restartBehindHole(t *testing.T, binary string) {
	const threshold = 3 * time.Second
	l := newNetLoop(t, binary, weather{}, rates{vault: "2MiB"}, quick()...)
	l.route()
	c := l.set("set", 16, 1<<20)
	l.copySet(c, patience)
	l.awaitStep(c, "verify")
	nas, vault := l.daemon(l.nas), l.daemon(l.vault)
	l.blackHole(l.vaultAt)
	l.control.kill(0)
	l.control.forgetReady()
	launched := time.Now()
	l.control.start()
	ready := time.Now()
	off := l.awaitOffline(l.vault)
	t.Logf("control was ready after %v; vault was marked offline %v after the start", ready.Sub(launched), off.Sub(launched))
	within(t, "control's mark after it was started", off.Sub(launched), threshold, ready.Sub(launched)+threshold+slack)
	l.waitsForVault(c)
	l.await(patience, "nas registers by itself", func() (bool, any) {
		d := l.daemon(l.nas)
		return d.State == "online" && d.Attached && d.Generation > nas.Generation, d
	})
	l.awaitClosed(l.vault)
	l.vaultAt.setHole(false)
	l.completed(c, patience)
	if d := l.daemon(l.vault); d.Generation <= vault.Generation || d.State != "online" {
		t.Errorf("vault is %s at generation %d", d.State, d.Generation)
	}
	l.once(c)
}

// defaultTimings: with the settings that are built in, a silent machine is offline 45 s after its registration or last
// heartbeat, and closes its own socket when the second acknowledgement is missing.
func defaultTimings(t *testing.T, binary string) {
	const heartbeat, threshold = 15 * time.Second, 45 * time.Second
	l := newNetLoop(t, binary, weather{}, rates{})
	attached := func(d *daemonProcess) func() (bool, any) {
		return func() (bool, any) {
			row := l.daemon(d)
			return row.Attached, row
		}
	}
	l.await(patience, "vault registers", attached(l.vault))
	vaultHoled := time.Now()
	l.vaultAt.setHole(true)
	l.await(patience, "nas registers", attached(l.nas))
	vault, nas := l.daemon(l.vault), l.daemon(l.nas)
	l.nasAt.awaitPayload(heartbeat + slack)
	beat := l.nasAt.setHole(true)
	within(t, "the first heartbeat after the registration", beat.Sub(*nas.RegisteredAt), heartbeat-time.Second, heartbeat+slack)

	off := l.awaitOffline(l.vault)
	t.Logf("vault, silent since it registered: offline after %v", off.Sub(*vault.RegisteredAt))
	within(t, "the mark of a machine that registered and fell silent", off.Sub(*vault.RegisteredAt), threshold, threshold+slack)
	closed := l.awaitClosed(l.vault)
	within(t, "vault's own close after the hole began", closed.Sub(vaultHoled), 2*heartbeat, 3*heartbeat+slack)
	l.vaultAt.setHole(false)

	off = l.awaitOffline(l.nas)
	t.Logf("nas, silent since its first heartbeat: offline after %v", off.Sub(beat))
	within(t, "the mark of a machine after its last heartbeat", off.Sub(beat), threshold-time.Second, threshold+slack)
	l.awaitClosed(l.nas)
	l.nasAt.setHole(false)
	for _, d := range []*daemonProcess{l.vault, l.nas} {
		l.await(patience, d.name+" registers again", attached(d))
	}
}
