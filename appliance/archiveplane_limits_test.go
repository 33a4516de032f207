package appliance_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"
	"golang.org/x/sys/unix"

	"signalbox/appliance/appliancetest"
)

// TestArchiveClockBehind: row 8. Both daemons' clocks are days behind control's, and retention is over by control's alone: the
// jobs end as with right clocks, and PURGE waits for the source's own clock rather than fail.
func TestArchiveClockBehind(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	r.clock.By(48 * time.Hour)
	r.vault.clock.By(24 * time.Hour)
	r.nas.Put("content", "films/a", noise(1, 1000))
	r.start()
	copied := r.await(r.run("films", map[string]any{"policies": map[string]any{"keep_free_bytes": 1, "stage_methods": []string{"copy"}}}).ID, "completed")
	r.clean()
	r.alerted("clock_skew")
	j := r.startJob(r.preview(r.evict(copied.ID, "films", nil)))
	j = r.awaitWait(j.ID, "retention")
	held := trash(t, r.nas)
	if len(held) != 1 {
		t.Fatalf("in the trash: %v", held)
	}
	waits := r.nas.hold("purge: waiting")
	r.clock.By(2 * time.Hour)
	waits.await()
	sameListing(t, trash(t, r.nas), held)
	waits.release()
	r.nas.clock.By(2 * time.Hour) // its own hour is over, control's not_before is not
	j = r.awaitJob(j.ID, "at purge", func(j archiveJob) bool { return j.State == "running" && j.Step != nil && *j.Step == "purge" })
	sameListing(t, trash(t, r.nas), held)
	r.nas.clock.By(48 * time.Hour)
	j = r.await(j.ID, "completed")
	if n, e := j.step("purge"); n != 1 || e["entries_removed"] != 1.0 {
		t.Errorf("purge, attempt %d: %v", n, e)
	}
	if left := trash(t, r.nas); len(left) > 0 {
		t.Errorf("left in the trash: %v", left)
	}
}

// TestArchiveDirectoryThatTakesNothing: row 23, by the file system itself. One of the directories at the destination takes no
// new names, from nobody: what was published into the others is taken back, and the file is named with user and mode.
func TestArchiveDirectoryThatTakesNothing(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	for i, name := range []string{"films/a", "films/b/x", "films/c"} {
		r.nas.Put("content", name, noise(uint64(i+1), 1000))
	}
	r.vault.Put("content", "films/b/foreign", []byte("not ours"))
	kept, foreign := untouched(t, r.nas.Path("content", "")), untouched(t, r.vault.Path("content", "films"))
	r.start()
	request := r.transfer("films", nil)
	p := r.preview(request)
	immutable(t, r.vault.Path("content", "films/b"))
	j := r.await(r.startJob(p).ID, "failed")
	r.fails(j, "permission_denied", "films/b", "uid", "mode")
	foreign()
	kept()
}

// immutableFlag is FS_IMMUTABLE_FL of the kernel's fs.h.
const immutableFlag = 0x10

// immutable lets nobody, root included, change the directory until the test ends.
func immutable(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags|immutableFlag)
	}
	if err != nil {
		_ = f.Close()
		t.Skip("needs a file system with immutable directories, and the right to make them: ", err)
	}
	t.Cleanup(func() {
		if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags); err != nil {
			t.Error(err)
		}
		_ = f.Close()
	})
}

// TestArchiveReleaseTooLate: row 41 at the source. A RELEASE that has waited there for longer than its verification counts
// gives nothing up, although by control's clock all is well.
func TestArchiveReleaseTooLate(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	r.nas.Put("content", "films/a", noise(1, 1000))
	kept := untouched(t, r.nas.Path("content", "films"))
	r.start()
	copied := r.await(r.run("films", map[string]any{"policies": map[string]any{"keep_free_bytes": 1, "stage_methods": []string{"copy"}}}).ID, "completed")
	r.clean()
	g := r.nas.hold("release: before the record")
	j := r.startJob(r.preview(r.evict(copied.ID, "films", map[string]any{"max_verify_age_seconds": 600})))
	g.await()
	r.nas.Signal()
	g.release()
	_ = r.nas.Ended()
	if n := len(trash(t, r.nas)); n != 0 {
		t.Fatalf("%d files were released", n)
	}
	r.nas.clock.By(20 * time.Minute)
	r.nas.Start()
	j = r.awaitJob(j.ID, "refused", func(j archiveJob) bool { return j.Error != nil || j.State == "completed" })
	r.fails(j, "stale_fingerprint", "nothing was given up")
	if n := len(trash(t, r.nas)); n != 0 {
		t.Errorf("%d files were released", n)
	}
	kept()
}

// TestArchiveSlowReader: row 45. A daemon that asks and does not read what it is told is cut off; it, and all others, lose
// nothing durable.
func TestArchiveSlowReader(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	r.nas.Put("content", "films/a", noise(1, 1000))
	r.start()
	id := uuid.NewString()
	small := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) })
	}}
	connect := func() (*peer, string) {
		d := websocket.Dialer{Subprotocols: []string{"archive-control.v2"}, NetDialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return small.DialContext(ctx, network, addr)
		}}
		ws, _, err := d.Dial("ws"+strings.TrimPrefix(r.URL(), "http")+"/daemon/v2", nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ws.Close() })
		_ = ws.SetReadDeadline(time.Now().Add(2 * appliancetest.Wait))
		p := &peer{ws, t}
		p.say(r.registration(id))
		_, text, err := p.ReadMessage()
		if err != nil || !strings.Contains(string(text), "registerResponse") {
			t.Fatalf("the registration: %v %s", err, text)
		}
		return p, heartbeat(t, string(text))
	}
	p, beat := connect()
	slow := func() float64 { return r.Metric(`signalbox_session_closes_total{kind="archive",reason="slow"}`) }
	if !strings.Contains(beat, `"sequence":"1"`) {
		t.Fatal(beat)
	}
	for n := 1; n <= 200_000; n++ {
		text := strings.Replace(beat, `"sequence":"1"`, fmt.Sprintf(`"sequence":"%d"`, n), 1)
		if p.WriteMessage(websocket.TextMessage, []byte(text)) != nil || n%1000 == 0 && slow() > 0 {
			break
		}
	}
	r.Eventually("the end of the slow connection", func() bool { return slow() == 1 })
	r.await(r.run("films", nil).ID, "completed")
	r.arrived()
	again, beat := connect()
	again.say(beat)
	if _, text, err := again.ReadMessage(); err != nil || !strings.Contains(string(text), "heartbeatAck") {
		t.Errorf("after it came back: %v %s", err, text)
	}
	if n := r.Count("SELECT count(*) FROM daemons"); n != 3 {
		t.Errorf("%d daemons are known", n)
	}
}
