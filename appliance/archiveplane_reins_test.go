package appliance_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/appliancetest"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/frame"
	"signalbox/transport/archiveclient"
)

// errCrash ends a daemon as kill -9 would, as far as what it stores and sends goes.
var errCrash = errors.New("the test ended the daemon")

// reins hold a machine's daemon: tests act at points of its work, before its calls to the operating system, and on what
// it sends and receives. They may be changed while the daemon runs and outlive its restarts.
type reins struct {
	t *testing.T

	mu      sync.Mutex
	points  map[string]func()
	at      func(daemon.Point, uuid.UUID) error
	files   func(root string, op beneath.Op, name string) error
	send    func(c *heldConn, e *pb.Envelope) (pass bool)
	receive func(c *heldConn, f *frame.Frame) (pass bool)
	passed  map[string]int
	dialed  int
	newest  *heldConn
}

func newReins(t *testing.T) *reins {
	return &reins{t: t, points: map[string]func(){}, passed: map[string]int{}}
}

// take puts the reins on a machine.
func (r *reins) take(m *appliancetest.Machine) {
	r.t.Helper()
	dialer, err := archiveclient.New(archiveclient.Options{URL: m.Config.Control, TokenFile: m.Config.TokenFile})
	if err != nil {
		r.t.Fatal(err)
	}
	m.Options.Dialer = heldDialer{dialer, r}
	m.Options.Reached = func(point string) {
		r.mu.Lock()
		do := r.points[point]
		r.passed[point]++
		r.mu.Unlock()
		if do != nil {
			do()
		}
	}
	m.Options.Hooks.At = func(p daemon.Point, job uuid.UUID) error {
		r.mu.Lock()
		at := r.at
		r.mu.Unlock()
		if at == nil {
			return nil
		}
		return at(p, job)
	}
	m.Options.Files = func(root string) beneath.Hook {
		return func(op beneath.Op, name string) error {
			r.mu.Lock()
			files := r.files
			r.mu.Unlock()
			if files == nil {
				return nil
			}
			return files(root, op, name)
		}
	}
}

// reset lets everything go its way again.
func (r *reins) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.points, r.at, r.files, r.send, r.receive = map[string]func(){}, nil, nil, nil, nil
}

// on has do called each time that the work reaches the point; nil ends that.
func (r *reins) on(point string, do func()) {
	r.mu.Lock()
	r.points[point] = do
	r.mu.Unlock()
}

// once has do called the next time that the work reaches the point.
func (r *reins) once(point string, do func()) {
	var one sync.Once
	r.on(point, func() { one.Do(do) })
}

// times is how often the work has reached the point.
func (r *reins) times(point string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.passed[point]
}

// beforeFiles has do called before each call to the operating system; nil ends that. root is "" for none.
func (r *reins) beforeFiles(do func(root string, op beneath.Op, name string) error) {
	r.mu.Lock()
	r.files = do
	r.mu.Unlock()
}

// onSend decides what the daemon's envelopes do: those that do not pass are lost. nil ends that.
func (r *reins) onSend(do func(c *heldConn, e *pb.Envelope) bool) {
	r.mu.Lock()
	r.send = do
	r.mu.Unlock()
}

// onReceive is onSend for what control sends.
func (r *reins) onReceive(do func(c *heldConn, f *frame.Frame) bool) {
	r.mu.Lock()
	r.receive = do
	r.mu.Unlock()
}

// onStep has do called, once, before the daemon gets the command for the step.
func (r *reins) onStep(step pb.JobStep, do func(c *pb.Command)) {
	var one sync.Once
	r.onReceive(func(_ *heldConn, f *frame.Frame) bool {
		if c := f.Envelope.GetCommand(); c.GetExecuteStep().GetStep() == step {
			one.Do(func() { do(c) })
		}
		return true
	})
}

// crashAt ends the daemon at the point, once armed returns true.
func (r *reins) crashAt(point daemon.Point, armed func() bool) {
	var one sync.Once
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = func(p daemon.Point, _ uuid.UUID) (err error) {
		if p == point && armed() {
			one.Do(func() { err = errCrash })
		}
		return err
	}
}

// gate is a point at which the work waits.
type gate struct {
	t       *testing.T
	point   string
	reached chan struct{}
	release func()
}

// hold has the work wait at the point, once, until the gate is opened or the test ends.
func (r *reins) hold(point string) *gate {
	open := make(chan struct{})
	g := &gate{t: r.t, point: point, reached: make(chan struct{}), release: sync.OnceFunc(func() { close(open) })}
	r.once(point, func() {
		close(g.reached)
		select {
		case <-open:
		case <-r.t.Context().Done():
		}
	})
	return g
}

// await waits until the work is at the gate.
func (g *gate) await() {
	g.t.Helper()
	await(g.t, "the work at "+g.point, g.reached)
}

// await waits for a channel.
func await[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(2 * appliancetest.Wait):
		t.Fatalf("%s did not come within %v", what, 2*appliancetest.Wait)
	}
	return v
}

// heldDialer gives connections that the reins act on.
type heldDialer struct {
	daemon.Dialer
	r *reins
}

// Dial implements daemon.Dialer.
func (d heldDialer) Dial(ctx context.Context) (daemon.Conn, error) {
	c, err := d.Dialer.Dial(ctx)
	if err != nil {
		return nil, err
	}
	d.r.mu.Lock()
	defer d.r.mu.Unlock()
	d.r.dialed++
	d.r.newest = &heldConn{Conn: c, r: d.r, number: d.r.dialed, inject: make(chan *frame.Frame, 16), read: make(chan read), done: make(chan struct{}),
		lost: make(chan struct{})}
	return d.r.newest, nil
}

// connection is the connection that the daemon has now, once something has come over it.
func (r *reins) connection() (c *heldConn) {
	r.t.Helper()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for deadline := time.Now().Add(2 * appliancetest.Wait); ; <-tick.C {
		r.mu.Lock()
		c = r.newest
		r.mu.Unlock()
		if c != nil {
			c.mu.Lock()
			there := c.last != nil
			c.mu.Unlock()
			if there {
				return c
			}
		}
		if time.Now().After(deadline) {
			r.t.Fatal("the daemon has no connection")
		}
	}
}

// heldConn is a connection that the reins act on.
type heldConn struct {
	daemon.Conn
	r      *reins
	number int // of the machine's connections, from 1
	inject chan *frame.Frame
	read   chan read
	pump   sync.Once
	end    sync.Once
	done   chan struct{} // closed when the daemon is through with it
	lose   sync.Once
	lost   chan struct{} // closed when the daemon is to believe that it is broken

	mu   sync.Mutex
	last *pb.Envelope // from control, of this connection
	// commands are those that came over it.
	commands []*pb.Command
}

type read struct {
	f   *frame.Frame
	err error
}

var errLost = errors.New("the test took the connection away")

// takeAway has the daemon see a broken connection. Control still sees it, and it is the caller's to close.
func (c *heldConn) takeAway() { c.lose.Do(func() { close(c.lost) }) }

func (c *heldConn) taken() bool {
	select {
	case <-c.lost:
		return true
	default:
		return false
	}
}

// Close implements daemon.Conn.
func (c *heldConn) Close(code int, text string) {
	c.end.Do(func() { close(c.done) })
	if !c.taken() {
		c.Conn.Close(code, text)
	}
}

// Send implements daemon.Conn.
func (c *heldConn) Send(ctx context.Context, e *pb.Envelope, lane daemon.Lane) error {
	if c.taken() {
		return errLost
	}
	c.r.mu.Lock()
	do := c.r.send
	c.r.mu.Unlock()
	if do != nil && !do(c, e) {
		return nil
	}
	return c.Conn.Send(ctx, e, lane)
}

// Receive implements daemon.Conn.
func (c *heldConn) Receive() (*frame.Frame, error) {
	c.pump.Do(func() {
		go func() {
			for {
				f, err := c.Conn.Receive()
				select {
				case c.read <- read{f, err}:
				case <-c.done:
					return
				}
				if err != nil {
					return
				}
			}
		}()
	})
	for {
		select {
		case <-c.lost:
			return nil, errLost
		case <-c.done:
			return nil, errLost
		case f := <-c.inject:
			return f, nil
		case in := <-c.read:
			if in.err != nil {
				return nil, in.err
			}
			c.mu.Lock()
			c.last = in.f.Envelope
			if k := c.last.GetCommand(); k != nil {
				c.commands = append(c.commands, k)
			}
			c.mu.Unlock()
			c.r.mu.Lock()
			do := c.r.receive
			c.r.mu.Unlock()
			if do == nil || do(c, in.f) {
				return in.f, nil
			}
		}
	}
}

// awaitTimes waits until the work has reached the point so often.
func (r *reins) awaitTimes(point string, n int) {
	r.t.Helper()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for deadline := time.Now().Add(2 * appliancetest.Wait); r.times(point) < n; <-tick.C {
		if time.Now().After(deadline) {
			r.t.Fatalf("the work was at %q %d times, not %d", point, r.times(point), n)
		}
	}
}
