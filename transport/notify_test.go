package transport

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

// notifySocket is systemd's end.
func notifySocket(t *testing.T, name string) func() string {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return func() string {
		t.Helper()
		buf := make([]byte, 512)
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
}

func env(pairs map[string]string) func(string) string {
	return func(k string) string { return pairs[k] }
}

func TestNotify(t *testing.T) {
	for kind, name := range map[string]string{
		"path":     filepath.Join(t.TempDir(), "n.sock"),
		"abstract": fmt.Sprintf("@signalbox-test-%d", os.Getpid()),
	} {
		t.Run(kind, func(t *testing.T) {
			next := notifySocket(t, name)
			n := NewNotifier(env(map[string]string{"NOTIFY_SOCKET": name}), 1)
			for _, step := range []struct {
				do   func() error
				want string
			}{{n.Ready, `^READY=1$`}, {n.Reloading, `^RELOADING=1\nMONOTONIC_USEC=[1-9][0-9]*$`}, {n.Stopping, `^STOPPING=1$`}} {
				if err := step.do(); err != nil {
					t.Fatal(err)
				}
				if got := next(); !regexp.MustCompile(step.want).MatchString(got) {
					t.Fatalf("sent %q, want %s", got, step.want)
				}
			}
		})
	}
}

func TestNotifyWithoutAServiceManager(t *testing.T) {
	n := NewNotifier(env(nil), 1)
	if err := n.Ready(); err != nil {
		t.Fatal(err)
	}
	n.Watchdog(context.Background(), fakeClock(), func() bool { return true }) // returns at once
	gone := NewNotifier(env(map[string]string{"NOTIFY_SOCKET": filepath.Join(t.TempDir(), "none")}), 1)
	if err := gone.Ready(); err == nil {
		t.Fatal("a socket that is not there is worth a log line")
	}
}

func TestWatchdog(t *testing.T) {
	name := filepath.Join(t.TempDir(), "n.sock")
	next := notifySocket(t, name)
	c := fakeClock()
	n := NewNotifier(env(map[string]string{"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "7"}), 7)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	asked := make(chan bool, 1)
	go func() {
		defer close(done)
		n.Watchdog(ctx, c, func() bool { return <-asked })
	}()
	for _, alive := range []bool{true, false, true} {
		asked <- alive
		c.BlockUntil(1)
		c.Advance(5 * time.Second)
		if alive {
			if got := next(); got != "WATCHDOG=1" {
				t.Fatalf("sent %q", got)
			}
		}
	}
	cancel()
	<-done
	other := NewNotifier(env(map[string]string{"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "8"}), 7)
	other.Watchdog(context.Background(), c, func() bool { return true }) // meant for another process: returns at once
}
