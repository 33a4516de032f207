package session

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/rs/zerolog"

	"signalbox/appliance/clock"
)

// benchServer is set in the child process whose memory and processor time are measured.
const benchServer = "SESSION_BENCH_SERVER"

// handshake upgrades a raw connection; nothing is read past the response.
func handshake(b *testing.B, conn net.Conn) {
	b.Helper()
	const request = "GET / HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
	if _, err := io.WriteString(conn, request); err != nil {
		b.Fatal(err)
	}
	var tail [4]byte
	var one [1]byte
	for string(tail[:]) != "\r\n\r\n" {
		if _, err := io.ReadFull(conn, one[:]); err != nil {
			b.Fatal(err)
		}
		copy(tail[:], tail[1:])
		tail[3] = one[0]
	}
}

// benchHandler is the server under test and the one it is compared with.
func benchHandler(kind string) http.Handler {
	if kind == "gorilla" {
		var up websocket.Upgrader
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, err := up.Upgrade(w, r, nil)
			if err != nil {
				return
			}
			defer func() { _ = c.Close() }()
			for {
				typ, data, err := c.ReadMessage()
				if err != nil || c.WriteMessage(typ, data) != nil {
					return
				}
			}
		})
	}
	g, err := NewGroup(clock.System(), zerolog.Nop(), nil)
	if err != nil {
		panic(err)
	}
	o := Options{Kind: "bench", IdleTimeout: time.Hour, PingInterval: time.Minute}
	if kind == "ping" {
		o.PingInterval, o.PongWait = 2*time.Second, time.Minute
	}
	p := g.NewPlane(o)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := p.Accept(w, r, r.RemoteAddr, echo); err != nil {
			panic(err)
		}
	})
}

// runBenchServer serves until standard input ends. Each line of input collects garbage and is answered by the resident
// size in KiB and the processor time used so far in milliseconds.
func runBenchServer(kind string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr())
	go func() { _ = http.Serve(l, benchHandler(kind)) }()
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		debug.FreeOSMemory()
		raw, err := os.ReadFile("/proc/self/statm")
		if err != nil {
			panic(err)
		}
		pages, err := strconv.Atoi(strings.Fields(string(raw))[1])
		if err != nil {
			panic(err)
		}
		var used syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
			panic(err)
		}
		fmt.Println(pages*os.Getpagesize()/1024, (used.Utime.Nano()+used.Stime.Nano())/1e6)
	}
}

// child is a server process.
type child struct {
	b     *testing.B
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
	addr  string
	conns []net.Conn
}

func startChild(b *testing.B, kind string) *child {
	b.Helper()
	c := &child{b: b, cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), benchServer+"="+kind)
	c.cmd.Stderr = os.Stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		b.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	c.lines = bufio.NewScanner(out)
	c.lines.Scan()
	c.addr = c.lines.Text()
	return c
}

// open adds a socket that has carried one message both ways.
func (c *child) open() net.Conn {
	conn, err := net.Dial("tcp", c.addr)
	if err != nil {
		c.b.Fatal(err)
	}
	c.conns = append(c.conns, conn)
	handshake(c.b, conn)
	if _, err := conn.Write(masked(0x81, "x")); err != nil {
		c.b.Fatal(err)
	}
	for back := make([]byte, 3); back[0] != 0x81; { // a ping of two bytes may come first
		if _, err := io.ReadFull(conn, back[:2]); err != nil {
			c.b.Fatal(err)
		}
		if _, err := io.ReadFull(conn, back[2:2+back[1]]); err != nil {
			c.b.Fatal(err)
		}
	}
	return conn
}

func (c *child) ask() (kib, cpuMillis int) {
	if _, err := io.WriteString(c.in, "\n"); err != nil {
		c.b.Fatal(err)
	}
	c.lines.Scan()
	if _, err := fmt.Sscan(c.lines.Text(), &kib, &cpuMillis); err != nil {
		c.b.Fatal(err)
	}
	return kib, cpuMillis
}

func (c *child) stop() {
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	_ = c.in.Close()
	_ = c.cmd.Wait()
}

// BenchmarkPings keeps 5,000 sockets that are pinged every two seconds and answer, and reports the processor cores that
// the server uses, scaled to 10,000 sockets.
func BenchmarkPings(b *testing.B) {
	const sockets, window = 5000, 10 * time.Second
	for b.Loop() {
		c := startChild(b, "ping")
		for range sockets {
			conn := c.open()
			go func() {
				pong := masked(0x8a, "")
				var ping [2]byte
				for {
					if _, err := io.ReadFull(conn, ping[:]); err != nil {
						return
					}
					if _, err := conn.Write(pong); err != nil {
						return
					}
				}
			}()
		}
		_, before := c.ask()
		<-time.After(window)
		_, after := c.ask()
		c.stop()
		b.ReportMetric(float64(after-before)/float64(window.Milliseconds())*10_000/sockets, "cores/10k")
	}
}

// BenchmarkIdleRSS measures resident memory per idle socket in a server process of its own, after each socket has
// carried one message both ways: KiB/socket, and the share of what gorilla's default echo takes.
func BenchmarkIdleRSS(b *testing.B) {
	for b.Loop() {
		ours, theirs := idleRSS(b, "session"), idleRSS(b, "gorilla")
		b.ReportMetric(ours, "KiB/socket")
		b.ReportMetric(theirs, "gorilla-KiB/socket")
		b.ReportMetric(ours/theirs, "share")
	}
}

func idleRSS(b *testing.B, kind string) float64 {
	const sockets = 2000
	c := startChild(b, kind)
	defer c.stop()
	c.open() // what the first one costs is not per socket
	before, _ := c.ask()
	for len(c.conns) < sockets {
		c.open()
	}
	after, _ := c.ask()
	return float64(after-before) / float64(sockets-1)
}

// BenchmarkFanOut sends bursts of one body to many receivers, by the engine and by one prepared write per delivery, and
// reports deliveries per second.
func BenchmarkFanOut(b *testing.B) {
	for _, receivers := range []int{200, 1000} {
		b.Run(fmt.Sprintf("session/%d", receivers), func(b *testing.B) { fanOutSession(b, receivers) })
		b.Run(fmt.Sprintf("prepared/%d", receivers), func(b *testing.B) { fanOutPrepared(b, receivers) })
	}
}

const (
	burst     = 64
	burstBody = 200
)

// sinks connects receivers that count bytes, and returns a wait until all of them together have got a total.
func sinks(b *testing.B, addr string, n int) (wait func(int64)) {
	var received, target atomic.Int64
	reached := make(chan struct{}, 1)
	target.Store(-1)
	for range n {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		handshake(b, c)
		b.Cleanup(func() { _ = c.Close() })
		go func() {
			buf := make([]byte, 32<<10)
			for {
				got, err := c.Read(buf)
				if err != nil {
					return
				}
				if received.Add(int64(got)) == target.Load() {
					reached <- struct{}{}
				}
			}
		}()
	}
	return func(total int64) {
		target.Store(total)
		if received.Load() == total {
			select {
			case <-reached:
			default:
			}
			return
		}
		<-reached
	}
}

func fanOutSession(b *testing.B, receivers int) {
	g, err := NewGroup(clock.System(), zerolog.Nop(), nil)
	if err != nil {
		b.Fatal(err)
	}
	p := g.NewPlane(Options{Kind: "bench"})
	opened := make(chan *Session, receivers)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := p.Accept(w, r, "", func(ctx context.Context, s *Session) (Handler, error) {
			opened <- s
			return echo(ctx, s)
		}); err != nil {
			panic(err)
		}
	})}
	go func() { _ = srv.Serve(l) }()
	b.Cleanup(func() {
		_ = srv.Close()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = g.Drain(ctx, 0)
		g.Close()
	})
	wait := sinks(b, l.Addr().String(), receivers)
	all := make([]*Session, receivers)
	for i := range all {
		all[i] = <-opened
	}
	body := make([]byte, burstBody)
	var total int64
	for b.Loop() {
		for range burst {
			for _, s := range all {
				if err := s.Send(body); err != nil {
					b.Fatal(err)
				}
			}
		}
		total += int64(receivers * burst * (burstBody + 4))
		wait(total)
	}
	b.ReportMetric(float64(b.N*receivers*burst)/b.Elapsed().Seconds(), "deliveries/s")
}

func fanOutPrepared(b *testing.B, receivers int) {
	up := websocket.Upgrader{ReadBufferSize: 1024, WriteBufferSize: 1024, WriteBufferPool: &sync.Pool{}}
	opened := make(chan chan *websocket.PreparedMessage, receivers)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := up.Upgrade(w, r, nil)
		if err != nil {
			panic(err)
		}
		queue := make(chan *websocket.PreparedMessage, 1024)
		opened <- queue
		go func() {
			for m := range queue {
				if c.WritePreparedMessage(m) != nil {
					break
				}
			}
			_ = c.Close()
		}()
	})}
	go func() { _ = srv.Serve(l) }()
	b.Cleanup(func() { _ = srv.Close() })
	wait := sinks(b, l.Addr().String(), receivers)
	all := make([]chan *websocket.PreparedMessage, receivers)
	for i := range all {
		all[i] = <-opened
		b.Cleanup(func() { close(all[i]) })
	}
	body := make([]byte, burstBody)
	var total int64
	for b.Loop() {
		for range burst {
			m, err := websocket.NewPreparedMessage(websocket.BinaryMessage, body)
			if err != nil {
				b.Fatal(err)
			}
			for _, queue := range all {
				queue <- m
			}
		}
		total += int64(receivers * burst * (burstBody + 4))
		wait(total)
	}
	b.ReportMetric(float64(b.N*receivers*burst)/b.Elapsed().Seconds(), "deliveries/s")
}
