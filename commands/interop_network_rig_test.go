//go:build interop

package commands

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// weather is what befalls the packets of a network.
type weather struct {
	loss, twice   float64       // probabilities, of each packet in each direction
	delay, jitter time.Duration // least delay, and what is added at random, which reorders
}

// network joins network namespaces. Each has a TUN device whose other end this process holds, so every IP packet between
// two namespaces goes through deliver.
type network struct {
	t       *testing.T
	ip      string // the program
	weather weather

	mu    sync.Mutex
	rand  *rand.Rand
	hosts []*host
	group sync.WaitGroup

	passed, lost, doubled, late, stray atomic.Int64
}

// host is one namespace.
type host struct {
	n       *network
	name    string // of the namespace
	program string // runs the product in it
	device  string
	tun     *os.File

	// Guarded by network.mu.
	addr       netip.Addr // invalid while it has none
	hole       bool       // nothing comes from it or gets to it
	sent       uint64     // packets that left it
	arrived    uint64     // the youngest packet that arrived anywhere
	payload    time.Time  // when the last packet of it with TCP payload was delivered
	hasPayload chan struct{}
}

var networks atomic.Int64

// newNetwork makes a network without hosts. The seed decides which packets suffer, as far as packets are the same.
func newNetwork(t *testing.T, w weather, seed uint64) *network {
	t.Helper()
	n := &network{t: t, ip: ipProgram(t), weather: w, rand: rand.New(rand.NewPCG(seed, seed))}
	t.Cleanup(func() {
		n.mu.Lock()
		hosts := n.hosts
		n.mu.Unlock()
		for _, h := range hosts {
			h.tun.Close()
		}
		n.group.Wait()
		for _, h := range hosts {
			if out, err := exec.Command(n.ip, "netns", "del", h.name).CombinedOutput(); err != nil {
				t.Errorf("ip netns del %s: %v: %s", h.name, err, out)
			}
		}
	})
	return n
}

// needNetworks ends the test when this machine does not permit namespaces; in CI that is a failure.
func needNetworks(t *testing.T) {
	t.Helper()
	ip, name := ipProgram(t), fmt.Sprintf("signalbox-%d", os.Getpid())
	out, err := exec.Command(ip, "netns", "add", name).CombinedOutput()
	if err == nil {
		defer func() { _ = exec.Command(ip, "netns", "del", name).Run() }()
		var tun *os.File
		if tun, err = openTUN(fmt.Sprintf("sb%d", os.Getpid())); err == nil {
			tun.Close()
			return
		}
	}
	why := fmt.Sprintf("this needs root, network namespaces and /dev/net/tun: %v %s", err, out)
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// ipProgram is iproute2's program, which not everybody has in the path.
func ipProgram(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"ip", "/usr/sbin/ip", "/sbin/ip"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("install iproute2")
	return ""
}

func (n *network) run(args ...string) {
	n.t.Helper()
	if out, err := exec.Command(n.ip, args...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// add makes a namespace with the address, and a script that runs the binary in it.
func (n *network) add(what, addr, binary string) *host {
	n.t.Helper()
	id := fmt.Sprintf("%d%c%d", os.Getpid(), what[0], networks.Add(1))
	h := &host{n: n, name: "signalbox-" + id, device: "sb" + id, hasPayload: make(chan struct{})}
	if len(h.device) >= unix.IFNAMSIZ {
		n.t.Fatalf("%s is too long for a device", h.device)
	}
	tun, err := openTUN(h.device)
	if err != nil {
		n.t.Fatal(err)
	}
	n.run("netns", "add", h.name)
	h.tun = tun
	n.mu.Lock()
	n.hosts = append(n.hosts, h)
	n.mu.Unlock()
	n.run("link", "set", h.device, "netns", h.name)
	n.run("-n", h.name, "link", "set", "lo", "up")
	n.run("-n", h.name, "link", "set", h.device, "up")
	h.address(addr)
	n.group.Go(h.read)
	h.program = filepath.Join(n.t.TempDir(), "signalbox-"+what)
	script := fmt.Sprintf("#!/bin/sh\nexec %s netns exec %s %s \"$@\"\n", n.ip, h.name, binary)
	if err := os.WriteFile(h.program, []byte(script), 0o700); err != nil {
		n.t.Fatal(err)
	}
	return h
}

// openTUN makes a device that lives as long as the file is open.
func openTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// address gives the host the address and takes away the one it has. Connections of the old address hear nothing of it.
func (h *host) address(addr string) {
	h.n.t.Helper()
	if old := h.current(); old.IsValid() {
		h.n.run("-n", h.name, "addr", "add", addr+"/32", "dev", h.device)
		h.n.run("-n", h.name, "addr", "del", old.String()+"/32", "dev", h.device)
	} else {
		h.n.run("-n", h.name, "addr", "add", addr+"/32", "dev", h.device)
	}
	h.n.run("-n", h.name, "route", "replace", "default", "dev", h.device, "src", addr)
	h.n.mu.Lock()
	h.addr = netip.MustParseAddr(addr)
	h.n.mu.Unlock()
}

// unplug takes the address away and gives none.
func (h *host) unplug() {
	h.n.t.Helper()
	h.n.run("-n", h.name, "addr", "del", h.current().String()+"/32", "dev", h.device)
	h.n.mu.Lock()
	h.addr = netip.Addr{}
	h.n.mu.Unlock()
}

func (h *host) current() netip.Addr {
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	return h.addr
}

// setHole makes the host unreachable, or reachable again, without telling anyone. It returns when that holds, with the time
// of the last payload that got through.
func (h *host) setHole(on bool) (lastPayload time.Time) {
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	h.hole = on
	return h.payload
}

// awaitPayload waits for the delivery of the next packet with payload that the host sends.
func (h *host) awaitPayload(limit time.Duration) {
	h.n.t.Helper()
	h.n.mu.Lock()
	next := h.hasPayload
	h.n.mu.Unlock()
	select {
	case <-next:
	case <-time.After(limit):
		h.n.t.Fatalf("%s sent nothing in %v", h.name, limit)
	}
}

// read takes the packets that leave the host until its device is closed.
func (h *host) read() {
	buf := make([]byte, 65536)
	for {
		size, err := h.tun.Read(buf)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				h.n.t.Errorf("%s: %v", h.device, err)
			}
			return
		}
		if p, ok := parsePacket(buf[:size]); ok {
			h.n.forward(h, p)
		}
	}
}

// packet is an IPv4 packet.
type packet struct {
	bytes    []byte
	src, dst netip.Addr
	payload  bool // of TCP
	number   uint64
}

func parsePacket(b []byte) (p packet, ok bool) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return p, false
	}
	p.bytes = append(p.bytes, b...)
	p.src, p.dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	header, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:4]))
	if b[9] == unix.IPPROTO_TCP && total <= len(b) && total >= header+20 {
		p.payload = total > header+int(b[header+12]>>4)*4
	}
	return p, true
}

// forward decides what befalls a packet.
func (n *network) forward(from *host, p packet) {
	n.mu.Lock()
	w := n.weather
	from.sent++
	p.number = from.sent
	copies := 1
	if n.rand.Float64() < w.loss {
		copies = 0
		n.lost.Add(1)
	} else if n.rand.Float64() < w.twice {
		copies = 2
		n.doubled.Add(1)
	}
	delays := make([]time.Duration, copies)
	for i := range delays {
		if delays[i] = w.delay; w.jitter > 0 {
			delays[i] += time.Duration(n.rand.Int64N(int64(w.jitter)))
		}
	}
	n.mu.Unlock()
	for _, d := range delays {
		if d == 0 {
			n.deliver(from, p)
		} else {
			time.AfterFunc(d, func() { n.deliver(from, p) })
		}
	}
}

// deliver gives the packet to the host that has its address now, unless one of the two is in a hole.
func (n *network) deliver(from *host, p packet) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var to *host
	for _, h := range n.hosts {
		if h.addr == p.dst {
			to = h
		}
	}
	if to == nil || from.addr != p.src {
		n.stray.Add(1)
		return
	}
	if from.hole || to.hole {
		n.lost.Add(1)
		return
	}
	if _, err := to.tun.Write(p.bytes); err != nil {
		return // the device is going away
	}
	n.passed.Add(1)
	if p.number < from.arrived {
		n.late.Add(1)
	}
	from.arrived = max(from.arrived, p.number)
	if p.payload {
		from.payload = time.Now()
		close(from.hasPayload)
		from.hasPayload = make(chan struct{})
	}
}

func (n *network) String() string {
	return fmt.Sprintf("%d packets passed, %d were lost, %d doubled, %d overtaken, %d had an address that is gone", n.passed.Load(),
		n.lost.Load(), n.doubled.Load(), n.late.Load(), n.stray.Load())
}

// tcpState is a state of /proc/net/tcp.
type tcpState string

const tcpEstablished tcpState = "01"

// sockets counts the TCP sockets in a process's namespace that a process holds and that have the address on either side; no
// state means any but listening ones, whose other side is 0.
func sockets(t *testing.T, pid int, addr netip.Addr, state tcpState) (count int) {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	if err != nil {
		t.Fatal(err)
	}
	b := addr.As4()
	want := fmt.Sprintf("%08X", binary.NativeEndian.Uint32(b[:]))
	for line := range strings.Lines(string(content)) {
		f := strings.Fields(line)
		if len(f) < 10 || f[0] == "sl" || f[9] == "0" || state != "" && f[3] != string(state) {
			continue
		}
		local, _, _ := strings.Cut(f[1], ":")
		remote, _, _ := strings.Cut(f[2], ":")
		if local == want || remote == want {
			count++
		}
	}
	return count
}

// netLoop is control and two machines, each in a namespace of its own.
type netLoop struct {
	*archiveLoop
	net                         *network
	controlHost, nasAt, vaultAt *host
}

const controlAddress = "10.77.0.1"

// Rates at which the machines read: they make steps last.
type rates struct{ nas, vault string }

// newNetLoop starts all three. The arguments are control's.
func newNetLoop(t *testing.T, binary string, w weather, r rates, args ...string) *netLoop {
	t.Helper()
	const seed = 41
	l := &netLoop{net: newNetwork(t, w, seed)}
	l.controlHost = l.net.add("control", controlAddress, binary)
	l.nasAt = l.net.add("nas", "10.77.1.1", binary)
	l.vaultAt = l.net.add("vault", "10.77.2.1", binary)
	l.archiveLoop = &archiveLoop{t: t, control: newProcess(t, l.controlHost.program)}
	l.control.listen = controlAddress + ":0"
	l.control.args = append([]string{"--server-behind-proxy"}, args...)
	l.control.start()
	l.nas = l.machine(binary, "nas", l.nasAt, nil, r.nas)
	l.vault = l.machine(binary, "vault", l.vaultAt, l.nas, r.vault)
	t.Cleanup(func() {
		t.Logf("network: %s", l.net)
		if t.Failed() {
			log, _ := os.ReadFile(l.control.log.Name())
			t.Logf("control: %s\nnas: %s\nvault: %s", tail(log, 6000), l.nas.tail(), l.vault.tail())
		}
	})
	l.nas.start()
	l.vault.start()
	return l
}

// machine is a daemon that finds control across the network.
func (l *netLoop) machine(binary, name string, at *host, other *daemonProcess, rate string) *daemonProcess {
	l.t.Helper()
	const standIn = "http://127.0.0.1:1"
	d := newDaemonProcess(l.t, &process{t: l.t, binary: binary, dir: l.control.dir, url: standIn}, name, other)
	d.binary = at.program
	text, err := os.ReadFile(d.config)
	if err != nil {
		l.t.Fatal(err)
	}
	changed := string(text)
	replace := func(old, to string) {
		if strings.Count(changed, old) != 1 {
			l.t.Fatalf("the configuration does not have %s once:\n%s", old, changed)
		}
		changed = strings.Replace(changed, old, to, 1)
	}
	replace("ws"+strings.TrimPrefix(standIn, "http"), "ws"+strings.TrimPrefix(l.control.baseURL(), "http"))
	replace("allow_plain = false", "allow_plain = true")
	if rate != "" {
		replace(`read_rate = "0"`, fmt.Sprintf("read_rate = %q", rate))
	}
	if err := os.WriteFile(d.config, []byte(changed), 0o600); err != nil {
		l.t.Fatal(err)
	}
	return d
}

// set puts content on the source: it appears whole.
func (l *netLoop) set(name string, files, size int) *archiveCase {
	l.t.Helper()
	c := &archiveCase{name: name, files: map[string][]byte{}}
	g := rand.NewChaCha8([32]byte{byte(files), byte(size)})
	hidden := l.nas.path("content", ".archive-control-making")
	for i := range files {
		path := fmt.Sprintf("%s/part %03d", name, i)
		content := make([]byte, size)
		_, _ = g.Read(content)
		c.files[path] = content
		file := filepath.Join(hidden, filepath.FromSlash(path))
		err := os.MkdirAll(filepath.Dir(file), 0o755)
		if err == nil {
			err = os.WriteFile(file, content, 0o644)
		}
		if err != nil {
			l.t.Fatal(err)
		}
	}
	if err := os.Rename(filepath.Join(hidden, name), l.nas.path("content", name)); err != nil {
		l.t.Fatal(err)
	}
	return c
}

// copySet starts a job that copies the set.
func (l *netLoop) copySet(c *archiveCase, limit time.Duration) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if !l.begin(ctx, c) {
		l.t.Fatalf("no job for %s within %v", c.name, limit)
	}
}

// await looks until the condition holds; what it returns beside is shown when it never does.
func (l *netLoop) await(limit time.Duration, what string, condition func() (bool, any)) time.Time {
	l.t.Helper()
	for deadline := time.Now().Add(limit); ; pause(context.Background()) {
		ok, last := condition()
		now := time.Now()
		if ok {
			return now
		}
		if now.After(deadline) {
			l.t.Fatalf("not within %v: %s; last: %+v", limit, what, last)
		}
	}
}
