package appliancetest

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Way is a direction through a Proxy.
type Way int

// The ways.
const (
	ToServer Way = iota
	ToClient
)

// Harm is what a Proxy does to one way of a connection.
type Harm int

// The harms. Each begins when exactly Fault.At bytes have passed, whether or not more come.
const (
	// Pass harms nothing.
	Pass Harm = iota
	// Cut ends the connection: the receiver sees the bytes that have passed and then the end, the sender a reset.
	Cut
	// Reset breaks the connection on both sides. Bytes that have passed and were not read yet may be lost.
	Reset
	// Stall passes nothing more until Link.Release and takes nothing more either, so that the sender is held back.
	Stall
	// Drop takes what comes and loses it, as a network does that is gone without a word.
	Drop
)

// Fault is a harm and where it begins.
type Fault struct {
	At int64
	Do Harm
}

// Plan is what happens to one connection. The zero Plan passes everything.
type Plan struct {
	Refuse             bool // break it before a byte has passed
	ToServer, ToClient Fault
	// Chunk is the most bytes that are passed at once; 0: as they come.
	Chunk int
}

// Proxy passes TCP connections on to a server and harms them as planned. It is safe for concurrent use.
type Proxy struct {
	listener net.Listener
	carrying sync.WaitGroup

	mu     sync.Mutex
	target string
	plans  []Plan
	plan   func(n int) Plan // of connections without a plan of their own; nil: pass
	links  []*Link
	live   map[*Link]struct{}
	came   chan struct{} // closed and replaced at every connection
	closed bool
}

// StartProxy starts a proxy before the address and ends it with the test.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("proxy: %v", err)
	}
	p := &Proxy{listener: ln, target: target, live: map[*Link]struct{}{}, came: make(chan struct{})}
	p.carrying.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// URL is what clients connect to.
func (p *Proxy) URL() string { return "http://" + p.listener.Addr().String() }

// Retarget has connections to come go to another address.
func (p *Proxy) Retarget(address string) {
	p.mu.Lock()
	p.target = address
	p.mu.Unlock()
}

// Next plans the connections to come, one plan each; those after them pass.
func (p *Proxy) Next(plans ...Plan) {
	p.mu.Lock()
	p.plans = append(p.plans, plans...)
	p.mu.Unlock()
}

// Always plans every connection that Next has not planned. It is told how many there were before.
func (p *Proxy) Always(plan func(n int) Plan) {
	p.mu.Lock()
	p.plan = plan
	p.mu.Unlock()
}

// Count is how many connections there were.
func (p *Proxy) Count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Link waits for the connection of this number, from 0, and returns it.
func (p *Proxy) Link(t testing.TB, n int) *Link {
	t.Helper()
	for {
		p.mu.Lock()
		if len(p.links) > n {
			defer p.mu.Unlock()
			return p.links[n]
		}
		came := p.came
		p.mu.Unlock()
		select {
		case <-came:
		case <-time.After(Wait):
			t.Fatalf("proxy: %d connections after %v, want %d", p.Count(), Wait, n+1)
		}
	}
}

// CutAll cuts every connection that is open, on both ways at once.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.live {
		l.Break()
	}
}

func (p *Proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		l := &Link{client: conn.(*net.TCPConn), released: make(chan struct{}), done: make(chan struct{})}
		switch {
		case len(p.plans) > 0:
			l.plan = p.plans[0]
			p.plans = p.plans[1:]
		case p.plan != nil:
			l.plan = p.plan(len(p.links))
		}
		target := p.target
		p.links = append(p.links, l)
		p.live[l] = struct{}{}
		close(p.came)
		p.came = make(chan struct{})
		closed := p.closed
		p.mu.Unlock()
		if closed {
			l.Break()
		}
		p.carrying.Go(func() {
			l.run(target)
			p.mu.Lock()
			delete(p.live, l)
			p.mu.Unlock()
		})
	}
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close()
	p.CutAll()
	p.carrying.Wait()
}

// Link is one connection through a Proxy.
type Link struct {
	plan     Plan
	client   *net.TCPConn
	passed   [2]atomic.Int64
	released chan struct{}
	done     chan struct{}
	free     sync.Once // of released

	mu     sync.Mutex
	server *net.TCPConn
	broken bool
}

// Passed is how many bytes have passed.
func (l *Link) Passed(w Way) int64 { return l.passed[w].Load() }

// Release ends a stall for good.
func (l *Link) Release() { l.free.Do(func() { close(l.released) }) }

// Done is closed when both ways are over.
func (l *Link) Done() <-chan struct{} { return l.done }

// Break resets the connection on both sides.
func (l *Link) Break() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken {
		return
	}
	l.broken = true
	l.Release()
	reset(l.client)
	reset(l.server)
}

func reset(c *net.TCPConn) {
	if c != nil {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

func (l *Link) run(target string) {
	defer close(l.done)
	defer l.Break()
	if l.plan.Refuse {
		return
	}
	conn, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	server := conn.(*net.TCPConn)
	if l.plan.ToClient.Do == Stall {
		_ = server.SetReadBuffer(8 << 10) // the sender is to feel it soon
	}
	l.mu.Lock()
	l.server = server
	broken := l.broken
	l.mu.Unlock()
	if broken {
		reset(server)
		return
	}
	var ways sync.WaitGroup
	ways.Go(func() { l.carry(ToServer, l.client, server, l.plan.ToServer) })
	ways.Go(func() { l.carry(ToClient, server, l.client, l.plan.ToClient) })
	ways.Wait()
}

// carry passes one way on until it ends.
func (l *Link) carry(w Way, from, to *net.TCPConn, f Fault) {
	buf := make([]byte, 16<<10)
	if l.plan.Chunk > 0 {
		buf = buf[:min(l.plan.Chunk, len(buf))]
	}
	for {
		room := int64(len(buf))
		if f.Do != Pass {
			room = min(room, f.At-l.passed[w].Load())
		}
		if room <= 0 {
			switch f.Do {
			case Cut:
				_ = to.CloseWrite()
				reset(from)
				return
			case Reset:
				l.Break()
				return
			case Stall:
				<-l.released
				f.Do = Pass
				continue
			case Drop:
				_, _ = io.Copy(io.Discard, from)
				return
			}
		}
		n, err := from.Read(buf[:room])
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				_, _ = io.Copy(io.Discard, from) // until its peer has seen the end that the other way brings
				return
			}
			l.passed[w].Add(int64(n))
		}
		if errors.Is(err, io.EOF) {
			_ = to.CloseWrite()
			return
		}
		if err != nil {
			reset(to)
			return
		}
	}
}
