package appliance_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/frame"
	"signalbox/transport/archiveclient"
)

// propNet is the network between the daemons and control.
type propNet struct {
	url   atomic.Pointer[string] // control's present address
	token string                 // file
	moved func()

	mu    sync.Mutex
	rng   *rand.Rand
	noisy bool
	busy  int // dials and registrations under way
	conns map[*propConn]bool
	noise struct{ lost, twice, late, cut int }
}

var errPropCut = errors.New("the connection was cut")

// roll decides what becomes of one message.
func (n *propNet) roll() (fate int) {
	const lost, twice, late = 4, 5, 6
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.noisy {
		return propPass
	}
	switch x := n.rng.IntN(1000); {
	case x < 8:
		n.noise.cut++
		return propCut
	case x < 10*lost:
		n.noise.lost++
		return propLost
	case x < 10*(lost+twice):
		n.noise.twice++
		return propTwice
	case x < 10*(lost+twice+late):
		n.noise.late++
		return propLate
	}
	return propPass
}

const (
	propPass = iota
	propCut
	propLost
	propTwice
	propLate
)

func (n *propNet) some(most int) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return 1 + n.rng.IntN(most)
}

func (n *propNet) setNoisy(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.noisy = on
}

// waiting tells whether somebody owes an answer that does not depend on the clock.
func (n *propNet) waiting() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.busy > 0 {
		return true
	}
	for c := range n.conns {
		if c.beats.Load() > 0 || c.commands.Load() > 0 {
			return true
		}
	}
	return false
}

// cut ends the connections of the daemon.
func (n *propNet) cut(d *propDaemon) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if c.d == d {
			c.Conn.Close(1001, "")
		}
	}
}

// Dial implements daemon.Dialer.
func (d *propDaemon) Dial(ctx context.Context) (daemon.Conn, error) {
	n := d.fleet.net
	n.moved()
	if d.away.Load() {
		return nil, errors.New("control cannot be reached")
	}
	n.mu.Lock()
	n.busy++
	n.mu.Unlock()
	dialer, err := archiveclient.New(archiveclient.Options{URL: *n.url.Load(), TokenFile: n.token})
	var inner daemon.Conn
	if err == nil {
		inner, err = dialer.Dial(ctx)
	}
	if err != nil {
		n.mu.Lock()
		n.busy--
		n.mu.Unlock()
		return nil, err
	}
	c := &propConn{Conn: inner, net: n, d: d, begun: true}
	n.mu.Lock()
	n.conns[c] = true
	n.mu.Unlock()
	return c, nil
}

// propConn is a connection that loses, repeats, delays and reorders what goes over it, in both directions. Heartbeats pass:
// a gap in them is a violation.
type propConn struct {
	daemon.Conn
	net      *propNet
	d        *propDaemon
	begun    bool         // the registration is under way; under net.mu
	beats    atomic.Int64 // heartbeats without an answer
	commands atomic.Int64 // commands that the daemon has not answered

	out struct {
		sync.Mutex
		held []propHeld[*propSent]
	}
	in []propHeld[*frame.Frame] // of the reader alone
}

// propHeld is a message that waits for others to overtake it.
type propHeld[T any] struct {
	message T
	after   int // messages
}

type propSent struct {
	e    *pb.Envelope
	lane daemon.Lane
}

// due takes the messages out whose time has come.
func propDue[T any](held *[]propHeld[T]) (due []T) {
	for i := range *held {
		(*held)[i].after--
	}
	*held = slices.DeleteFunc(*held, func(h propHeld[T]) bool {
		if h.after <= 0 {
			due = append(due, h.message)
		}
		return h.after <= 0
	})
	return due
}

func (c *propConn) registered() {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	if c.begun {
		c.begun = false
		c.net.busy--
	}
}

// Register may lose the answer.
func (c *propConn) Register(ctx context.Context, e *pb.Envelope) (*pb.Envelope, error) {
	defer c.registered()
	answer, err := c.Conn.Register(ctx, e)
	c.net.moved()
	if fate := c.net.roll(); err == nil && (fate == propCut || fate == propLost) {
		return nil, errPropCut
	}
	return answer, err
}

// Close implements daemon.Conn.
func (c *propConn) Close(code int, text string) {
	c.registered()
	c.net.mu.Lock()
	delete(c.net.conns, c)
	c.net.mu.Unlock()
	c.Conn.Close(code, text)
}

// Send implements daemon.Conn.
func (c *propConn) Send(ctx context.Context, e *pb.Envelope, lane daemon.Lane) error {
	c.net.moved()
	if e.GetCommandAck() != nil {
		c.commands.Add(-1)
	}
	fate := propPass
	if e.GetHeartbeat() != nil {
		c.beats.Add(1)
	} else {
		fate = c.net.roll()
	}
	c.out.Lock()
	due := propDue(&c.out.held)
	if fate == propLate {
		c.out.held = append(c.out.held, propHeld[*propSent]{&propSent{e, lane}, c.net.some(4)})
	}
	c.out.Unlock()
	switch fate {
	case propCut:
		c.Conn.Close(1001, "")
		return errPropCut
	case propPass, propTwice:
		if err := c.Conn.Send(ctx, e, lane); err != nil {
			return err
		}
		if fate == propTwice {
			due = append(due, &propSent{e, lane})
		}
	}
	for _, s := range due {
		if err := c.Conn.Send(ctx, s.e, s.lane); err != nil {
			return err
		}
	}
	return nil
}

// Receive implements daemon.Conn.
func (c *propConn) Receive() (*frame.Frame, error) {
	for {
		for i, h := range c.in {
			if h.after <= 0 {
				c.in = slices.Delete(c.in, i, i+1)
				return c.take(h.message), nil
			}
		}
		f, err := c.Conn.Receive()
		if err != nil {
			return nil, err
		}
		c.net.moved()
		for i := range c.in {
			c.in[i].after--
		}
		if f.Envelope.GetHeartbeatAck() != nil {
			c.beats.Add(-1)
			return f, nil
		}
		switch c.net.roll() {
		case propCut:
			c.Conn.Close(1001, "")
			return nil, errPropCut
		case propTwice:
			c.in = append(c.in, propHeld[*frame.Frame]{f, c.net.some(3) - 1})
			return c.take(f), nil
		case propLate:
			c.in = append(c.in, propHeld[*frame.Frame]{f, c.net.some(4)})
		case propPass:
			return c.take(f), nil
		}
	}
}

// take counts a command that the daemon owes an answer now.
func (c *propConn) take(f *frame.Frame) *frame.Frame {
	if f.Envelope.GetCommand() != nil {
		c.commands.Add(1)
	}
	return f
}
