package transport

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"signalbox/appliance/clock"
)

// Notifier tells systemd about the life of the service (sd_notify). Without a socket it does nothing.
type Notifier struct {
	socket   string
	watchdog time.Duration
}

// NewNotifier reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID through getenv; pid is this process. A socket that
// begins with @ is in the abstract name space.
func NewNotifier(getenv func(string) string, pid int) *Notifier {
	n := &Notifier{socket: getenv("NOTIFY_SOCKET")}
	if p := getenv("WATCHDOG_PID"); p != "" && p != strconv.Itoa(pid) {
		return n
	}
	if usec, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64); err == nil && usec > 0 {
		n.watchdog = time.Duration(usec) * time.Microsecond
	}
	return n
}

// Ready says that the service takes requests, also at the end of a reload.
func (n *Notifier) Ready() error { return n.send("READY=1") }

// Stopping says that the service drains.
func (n *Notifier) Stopping() error { return n.send("STOPPING=1") }

// Reloading says that a reload begins; Ready must follow.
func (n *Notifier) Reloading() error {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return fmt.Errorf("read monotonic clock: %w", err)
	}
	return n.send("RELOADING=1\nMONOTONIC_USEC=" + strconv.FormatInt(ts.Nano()/1000, 10))
}

// Watchdog pings twice per watchdog period until ctx ends, as long as alive returns true; at once back when systemd asks
// for no pings. Its caller owns the goroutine.
func (n *Notifier) Watchdog(ctx context.Context, c clock.Clock, alive func() bool) {
	if n.socket == "" || n.watchdog == 0 {
		return
	}
	timer := c.NewTimer(n.watchdog / 2)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
			if alive() {
				_ = n.send("WATCHDOG=1") // systemd acts on a missing ping; there is no better way to tell
			}
			timer.Reset(n.watchdog / 2)
		}
	}
}

// send writes one datagram. net turns a leading @ into the zero byte of an abstract name.
func (n *Notifier) send(state string) error {
	if n.socket == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	return nil
}
