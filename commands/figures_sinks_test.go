package commands

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/transport/roomclient"
)

func fdatasync(f *os.File) error { return syscall.Fdatasync(int(f.Fd())) }

// sinks are receivers that cost the measuring side little: they count events and answer pings.
type sinks struct {
	conns   []net.Conn
	events  atomic.Int64
	last    atomic.Int64 // bytes of the last event
	goal    atomic.Int64
	reached chan struct{}
	failed  atomic.Pointer[error]
	done    int64 // events awaited so far
}

func newSinks(n int) *sinks {
	s := &sinks{conns: make([]net.Conn, n), reached: make(chan struct{}, 1)}
	s.goal.Store(-1)
	return s
}

// openSinks connects the receivers of a room, from a cursor or from the head.
func openSinks(b *testing.B, room *benchRoom, from *int64) *sinks {
	b.Helper()
	s := newSinks(len(room.receivers))
	err := inParallel(b.Context(), len(room.receivers), 256, func(_ context.Context, i int) error {
		c := room.receivers[i].config
		o := roomclient.Current(uuid.NewString())
		o.Scope, o.StartFrom = "all", from
		u, err := url.Parse(c.SocketURL(&o))
		if err != nil {
			return err
		}
		conn, err := net.Dial("tcp", u.Host)
		if err != nil {
			return err
		}
		s.conns[i] = conn
		in := bufio.NewReaderSize(conn, 1<<10)
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
			"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n", u.RequestURI(), u.Host, c.Token.Reveal())
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return err
			}
			if line == "\r\n" {
				break
			}
		}
		name, _, err := s.frame(conn, in) // connection_state
		if err != nil || name != roomclient.FrameState {
			return fmt.Errorf("the first frame is %q: %w", name, err)
		}
		go s.read(conn, in)
		return nil
	})
	b.Cleanup(s.close)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func (s *sinks) close() {
	for _, c := range s.conns {
		if c != nil {
			_ = c.Close()
		}
	}
}

// pong is a masked text frame; the mask is zero.
var pong = append([]byte{0x81, 0x80 | 26, 0, 0, 0, 0}, `{"type":"pong","cursor":0}`...)

// frame reads one frame and returns its name, answering a ping.
func (s *sinks) frame(conn net.Conn, in *bufio.Reader) (name string, size int, err error) {
	head, err := in.Peek(2)
	if err != nil {
		return "", 0, err
	}
	header := 2
	size = int(head[1])
	switch size {
	case 126:
		header = 4
		if head, err = in.Peek(header); err != nil {
			return "", 0, err
		}
		size = int(binary.BigEndian.Uint16(head[2:]))
	case 127:
		return "", 0, fmt.Errorf("a frame above 64 KiB")
	}
	if head[0] != 0x81 {
		return "", 0, fmt.Errorf("opcode %#x", head[0])
	}
	if _, err := in.Discard(header); err != nil {
		return "", 0, err
	}
	begin, err := in.Peek(min(size, 32))
	if err != nil {
		return "", 0, err
	}
	_, rest, _ := bytes.Cut(begin, []byte(`{"event":"`))
	word, _, _ := bytes.Cut(rest, []byte(`"`))
	switch string(word) {
	case roomclient.FrameMessage:
		name = roomclient.FrameMessage
	case roomclient.FramePing:
		name = roomclient.FramePing
		if _, err := conn.Write(pong); err != nil {
			return "", 0, err
		}
	default:
		name = string(word)
	}
	_, err = in.Discard(size)
	return name, header + size, err
}

func (s *sinks) read(conn net.Conn, in *bufio.Reader) {
	for {
		name, size, err := s.frame(conn, in)
		if err != nil {
			return // closed; what is missing then is noticed
		}
		switch name {
		case roomclient.FrameMessage:
			s.last.Store(int64(size))
			if s.events.Add(1) == s.goal.Load() {
				s.hint()
			}
		case roomclient.FramePing:
		default:
			err := fmt.Errorf("a %s frame came", name)
			s.failed.CompareAndSwap(nil, &err)
			s.hint()
		}
	}
}

func (s *sinks) hint() {
	select {
	case s.reached <- struct{}{}:
	default:
	}
}

// size is the bytes of the last event's frame.
func (s *sinks) size() int { return int(s.last.Load()) }

// await returns when n more events than before have come.
func (s *sinks) await(b *testing.B, n int) {
	b.Helper()
	s.done += int64(n)
	s.goal.Store(s.done)
	patience := time.NewTimer(time.Minute)
	defer patience.Stop()
	for s.events.Load() < s.done {
		select {
		case <-s.reached:
		case <-patience.C:
			b.Fatalf("%d events have come, want %d", s.events.Load(), s.done)
		}
		if err := s.failed.Load(); err != nil {
			b.Fatal(*err)
		}
	}
}

// rawWriter is a program that writes to sockets: on "TIMES SIZE" that often a frame of that size to each, one write each.
const rawWriter = `package main

import ("fmt"; "net"; "os"; "runtime"; "strings")

func main() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil { panic(err) }
	fmt.Println(l.Addr())
	n := 0
	fmt.Sscan(os.Args[1], &n)
	conns := make([]net.Conn, n)
	for i := range conns {
		if conns[i], err = l.Accept(); err != nil { panic(err) }
	}
	fmt.Println("ready")
	for {
		times, size := 0, 0
		if _, err := fmt.Scan(&times, &size); err != nil { return }
		body := "{\"event\":\"message\"" + strings.Repeat(" ", size-23) + "}"
		frame := append([]byte{0x81, 126, byte(len(body)>>8), byte(len(body))}, body...)
		workers := runtime.GOMAXPROCS(0)
		for w := range workers {
			go func() {
				for range times {
					for i := w; i < len(conns); i += workers {
						if _, err := conns[i].Write(frame); err != nil { return }
					}
				}
			}()
		}
	}
}
`

type rawProgram struct {
	b     *testing.B
	in    io.Writer
	sinks *sinks
}

func startRawWriter(b *testing.B, n int) *rawProgram {
	b.Helper()
	dir := b.TempDir()
	source, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "raw")
	if err := os.WriteFile(source, []byte(rawWriter), 0o600); err != nil {
		b.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", binary, source).CombinedOutput(); err != nil {
		b.Fatalf("build: %v\n%s", err, out)
	}
	cmd := exec.Command(binary, fmt.Sprint(n))
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
	r := &rawProgram{b: b, in: in, sinks: newSinks(n)}
	b.Cleanup(func() {
		r.sinks.close()
		_ = in.Close()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	lines.Scan()
	for i := range r.sinks.conns {
		conn, err := net.Dial("tcp", lines.Text())
		if err != nil {
			b.Fatal(err)
		}
		r.sinks.conns[i] = conn
		go r.sinks.read(conn, bufio.NewReaderSize(conn, 1<<10))
	}
	if lines.Scan(); lines.Text() != "ready" {
		b.Fatalf("the writer says %q", lines.Text())
	}
	return r
}

// write has every socket written to so many times, and returns how long it took until all was received.
func (r *rawProgram) write(times, size int) time.Duration {
	r.b.Helper()
	begun := time.Now()
	if _, err := fmt.Fprintln(r.in, times, size); err != nil {
		r.b.Fatal(err)
	}
	r.sinks.await(r.b, times*len(r.sinks.conns))
	return time.Since(begun)
}
