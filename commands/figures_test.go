package commands

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"signalbox/transport/agentclient"
)

// The figures of docs/performance.md that need the real binary in a process of its own. Each runs once, whatever b.N
// says, and reports what it measured as metrics.

// usage is what the kernel says of a process.
type usage struct {
	rss int64         // bytes
	cpu time.Duration // user and system
}

// clockTick is the unit of the CPU times in /proc; it is 100 Hz on every Linux that Go runs on.
const clockTick = 10 * time.Millisecond

func usageOf(b testing.TB, pid int) (u usage) {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			u.rss = kb << 10
		}
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
	for _, i := range []int{11, 12} { // utime, stime
		ticks, _ := strconv.ParseInt(fields[i], 10, 64)
		u.cpu += time.Duration(ticks) * clockTick
	}
	return u
}

// figureProcess starts the binary without rate limits and with room for many long-poll sessions.
func figureProcess(b *testing.B) *process {
	b.Helper()
	p := newProcess(b, buildBinary(b))
	p.args = []string{"--agent-rate-limits=false", "--agent-longpoll-sessions=10000"}
	p.start()
	b.Cleanup(p.stop)
	return p
}

// BenchmarkServeIngest is acknowledged events a second, with eight agents on the same two cores as the server.
func BenchmarkServeIngest(b *testing.B) {
	for _, transport := range []string{"ws", "longpoll"} {
		b.Run(transport, func(b *testing.B) {
			p := figureProcess(b)
			bench := &benchAgents{transport: transport, duration: 5 * time.Second, batch: 1, window: 256}
			if transport == "longpoll" {
				bench.window = 100
			}
			var configs []agentclient.Config
			for i := range 8 {
				configs = append(configs, p.mint(fmt.Sprintf("agent-%d", i)).cfg)
			}
			before := usageOf(b, p.cmd.Process.Pid)
			res, err := bench.ingest(b.Context(), configs)
			if err != nil {
				b.Fatal(err)
			}
			after := usageOf(b, p.cmd.Process.Pid)
			b.ReportMetric(res.PerSecond, "acked_events/s")
			b.ReportMetric(res.Latency.P50, "ack_p50_ms")
			b.ReportMetric(res.Latency.P99, "ack_p99_ms")
			b.ReportMetric(float64((after.cpu-before.cpu).Microseconds())/float64(res.Acked), "server_cpu_us/event")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkServeCommands is the time from the issue of a command to its receipt by the agent, and to its stored result.
func BenchmarkServeCommands(b *testing.B) {
	for _, transport := range []string{"ws", "longpoll"} {
		b.Run(transport, func(b *testing.B) {
			p := figureProcess(b)
			m := p.mint("agent")
			m.cfg.Capabilities = map[string][]string{"celery": {"cancel_task"}}
			opts := &options{stdio: Stdio{Out: os.Stdout, Err: os.Stderr}, dataDir: p.dir, now: time.Now, requestTimeout: 30 * time.Second}
			opts.out = &printer{stdio: opts.stdio, opts: opts}
			s, err := opts.newScope(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			pool := &benchPool{scope: s, configs: []agentclient.Config{m.cfg}, ids: []string{m.id}}
			res, err := (&benchAgents{transport: transport, commands: 500}).roundTrips(b.Context(), pool)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(res.Receipt.P50, "receipt_p50_ms")
			b.ReportMetric(res.Receipt.P99, "receipt_p99_ms")
			b.ReportMetric(res.Result.P50, "result_p50_ms")
			b.ReportMetric(res.Result.P99, "result_p99_ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// idlePeers is how many peers hang on; idleFor is how long they are watched doing nothing.
const (
	idlePeers = 5000
	idleFor   = 10 * time.Second
)

// BenchmarkServeIdle is what idle peers cost: memory for each, and CPU for all.
func BenchmarkServeIdle(b *testing.B) {
	b.Run("ws", func(b *testing.B) {
		p := figureProcess(b)
		const perAgent = 50
		measureIdle(b, p, idlePeers/perAgent, func(ctx context.Context, cfg agentclient.Config) (func(), error) {
			var all []*agentclient.WS
			for i := range perAgent {
				cfg.WorkerID = fmt.Sprintf("w%d", i)
				ws, err := agentclient.DialWS(ctx, cfg)
				if err != nil {
					return nil, err
				}
				all = append(all, ws)
			}
			return func() {
				for _, ws := range all {
					_ = ws.Abort()
				}
			}, nil
		})
	})
	b.Run("longpoll", func(b *testing.B) {
		p := figureProcess(b)
		const perAgent = 10
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: idlePeers}}
		measureIdle(b, p, idlePeers/perAgent, func(ctx context.Context, cfg agentclient.Config) (func(), error) {
			ctx, cancel := context.WithCancel(ctx)
			cfg.Client = client
			var polls sync.WaitGroup
			for range perAgent {
				lp, err := agentclient.OpenLP(ctx, cfg)
				if err != nil {
					cancel()
					return nil, err
				}
				polls.Go(func() {
					for ctx.Err() == nil {
						_, _ = lp.Poll(ctx, time.Minute, 50)
					}
				})
			}
			return func() { cancel(); polls.Wait() }, nil
		})
		client.CloseIdleConnections()
	})
}

// measureIdle connects agents, lets them hang, and reports what the server paid.
func measureIdle(b *testing.B, p *process, agents int, connect func(context.Context, agentclient.Config) (func(), error)) {
	b.Helper()
	configs := make([]agentclient.Config, agents)
	for i := range configs {
		configs[i] = p.mint(fmt.Sprintf("agent-%d", i)).cfg
	}
	pid := p.cmd.Process.Pid
	before := usageOf(b, pid)
	var hang []func()
	for _, cfg := range configs {
		stop, err := connect(b.Context(), cfg)
		if err != nil {
			b.Fatal(err)
		}
		hang = append(hang, stop)
	}
	<-time.After(2 * time.Second) // connecting has garbage of its own
	connected := usageOf(b, pid)
	<-time.After(idleFor)
	idle := usageOf(b, pid)
	b.ReportMetric(float64(idle.rss-before.rss)/idlePeers/1024, "KiB/peer")
	b.ReportMetric(float64(idle.cpu-connected.cpu)/float64(idleFor), "cores_idle")
	b.ReportMetric(0, "ns/op")
	for _, stop := range hang {
		stop()
	}
}

// plainHTTP is a program that does nothing but answer HTTP: what the cold start and the size are compared with.
const plainHTTP = `package main

import ("fmt"; "net"; "net/http"; "os")

func main() {
	l, err := net.Listen("tcp", os.Args[1])
	if err != nil { panic(err) }
	fmt.Println(l.Addr())
	_ = http.Serve(l, http.NotFoundHandler())
}
`

// BenchmarkServeStart is the time from exec to ready on an existing database, the idle memory and the size of the
// binary, beside those of a program that only answers HTTP.
func BenchmarkServeStart(b *testing.B) {
	plain := buildPlain(b)
	var plainTimes []time.Duration
	var plainRSS int64
	for range 7 {
		took, rss := startPlain(b, plain)
		plainTimes, plainRSS = append(plainTimes, took), rss
	}
	p := newProcess(b, buildBinary(b))
	p.start()
	var times []time.Duration
	var rss int64
	for range 7 {
		p.stop()
		times = append(times, p.start())
		<-time.After(time.Second)
		rss = usageOf(b, p.cmd.Process.Pid).rss
	}
	p.stop()
	slices.Sort(times)
	slices.Sort(plainTimes)
	own, ref := times[len(times)/2], plainTimes[len(plainTimes)/2]
	b.ReportMetric(float64(own.Microseconds())/1000, "start_ms")
	b.ReportMetric(float64(own)/float64(ref), "start/plain")
	b.ReportMetric(float64(rss)/(1<<20), "idle_MiB")
	b.ReportMetric(float64(rss)/float64(plainRSS), "idle/plain")
	b.ReportMetric(float64(fileBytes(b, p.binary))/(1<<20), "binary_MiB")
	b.ReportMetric(0, "ns/op")
}

func fileBytes(b *testing.B, path string) int64 {
	b.Helper()
	info, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	return info.Size()
}

func buildPlain(b *testing.B) string {
	b.Helper()
	dir := b.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(plainHTTP), 0o600); err != nil {
		b.Fatal(err)
	}
	binary := filepath.Join(dir, "plain")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, filepath.Join(dir, "main.go"))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("build: %v\n%s", err, out)
	}
	return binary
}

func startPlain(b *testing.B, binary string) (time.Duration, int64) {
	b.Helper()
	cmd := exec.Command(binary, "127.0.0.1:0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 64)
	n, err := out.Read(buf)
	if err != nil {
		b.Fatal(err)
	}
	conn, err := net.Dial("tcp", strings.TrimSpace(string(buf[:n])))
	if err != nil {
		b.Fatal(err)
	}
	took := time.Since(begun)
	conn.Close()
	rss := usageOf(b, cmd.Process.Pid).rss
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	return took, rss
}
