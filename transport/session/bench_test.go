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
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/rs/zerolog"

	"signalbox/appliance/clock"
)

// benchServer is set in the child process that BenchmarkIdleRSS measures.
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
	p := g.NewPlane(Options{Kind: "bench", IdleTimeout: time.Hour, PingInterval: time.Minute})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := p.Accept(w, r, r.RemoteAddr, echo); err != nil {
			panic(err)
		}
	})
}

// runBenchServer serves until standard input ends. Each line of input collects garbage and is answered by the resident
// size in KiB.
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
		fmt.Println(pages * os.Getpagesize() / 1024)
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
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchServer+"="+kind)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	ask := func() int {
		if _, err := io.WriteString(in, "\n"); err != nil {
			b.Fatal(err)
		}
		lines.Scan()
		n, err := strconv.Atoi(lines.Text())
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	lines.Scan()
	addr := lines.Text()
	conns := make([]net.Conn, 0, sockets)
	open := func() {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		handshake(b, c)
		if _, err := c.Write([]byte{0x81, 0x81, 0, 0, 0, 0, 'x'}); err != nil {
			b.Fatal(err)
		}
		var back [3]byte
		if _, err := io.ReadFull(c, back[:]); err != nil {
			b.Fatal(err)
		}
		conns = append(conns, c)
	}
	open() // what the first one costs is not per socket
	before := ask()
	for len(conns) < sockets {
		open()
	}
	after := ask()
	for _, c := range conns {
		_ = c.Close()
	}
	_ = in.Close()
	_ = cmd.Wait()
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
