package commands

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/transport/agentclient"
	"signalbox/transport/roomclient"
)

// The figures of the section Rooms of docs/performance.md.

// roomsProcess starts the binary and makes one room with a sender and so many receivers.
func roomsProcess(b *testing.B, receivers int) (*process, *benchRoom) {
	b.Helper()
	p := newProcess(b, buildBinary(b))
	p.args = []string{"--server-max-payload-size=1MiB", "--log-level=warn"}
	p.start()
	b.Cleanup(p.stop)
	opts := &options{stdio: Stdio{Out: os.Stdout, Err: os.Stderr}, dataDir: p.dir, now: time.Now, requestTimeout: time.Minute}
	opts.out = &printer{stdio: opts.stdio, opts: opts}
	pool, err := (&benchRooms{senders: 1, rooms: 1, receivers: receivers}).openPool(b.Context(), opts)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.http.CloseIdleConnections)
	return p, pool.rooms[0]
}

// say posts one message and returns when it was acknowledged.
func (r *benchRoom) say(b *testing.B) {
	from := r.senders[0]
	err := from.Do(b.Context(), http.MethodPost, "/agents/"+from.AgentID.String()+"/message",
		map[string]string{"room_id": r.id, "content": "the build of the main branch is green again, and the release can go out"}, nil, nil)
	if err != nil {
		b.Error(err)
	}
}

// sayAll posts n messages, so many at once.
func (r *benchRoom) sayAll(b *testing.B, n, posters int) {
	_ = inParallel(b.Context(), n, posters, func(context.Context, int) error { r.say(b); return nil })
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// BenchmarkServeRoomsFanOut is how long it takes from a post until all receivers have it, and how many deliveries a burst of
// posts makes a second, beside a program that does nothing but write the same bytes to as many sockets, one write for each.
func BenchmarkServeRoomsFanOut(b *testing.B) {
	for _, receivers := range []int{1000, 5000} {
		b.Run(fmt.Sprint(receivers), func(b *testing.B) {
			const rounds, burst, posters = 15, 64, 16
			p, room := roomsProcess(b, receivers)
			served := openSinks(b, room, nil)
			raw := startRawWriter(b, receivers)
			room.sayAll(b, 2, 1)
			served.await(b, 2*receivers)
			size := served.size()
			var one, rawOne, bursts, rawBursts, acks []time.Duration
			var cpu time.Duration
			for range rounds {
				begun := time.Now()
				room.say(b)
				acks = append(acks, time.Since(begun))
				served.await(b, receivers)
				one = append(one, time.Since(begun))
				rawOne = append(rawOne, raw.write(1, size))
			}
			for range 3 {
				before := usageOf(b, p.cmd.Process.Pid).cpu
				begun := time.Now()
				room.sayAll(b, burst, posters)
				served.await(b, burst*receivers)
				bursts = append(bursts, time.Since(begun))
				cpu += usageOf(b, p.cmd.Process.Pid).cpu - before
				rawBursts = append(rawBursts, raw.write(burst, size))
			}
			perSecond := func(n int, d time.Duration) float64 { return float64(n) / d.Seconds() }
			b.ReportMetric(millis(median(one)), "one_ms")
			b.ReportMetric(millis(median(acks)), "ack_ms")
			b.ReportMetric(millis(median(rawOne)), "raw_one_ms")
			b.ReportMetric(float64(median(rawOne))/float64(median(one)), "one/raw")
			b.ReportMetric(perSecond(burst*receivers, median(bursts)), "deliveries/s")
			b.ReportMetric(perSecond(burst*receivers, median(rawBursts)), "raw/s")
			b.ReportMetric(float64(median(rawBursts))/float64(median(bursts)), "burst/raw")
			b.ReportMetric(float64(cpu.Microseconds())/float64(3*burst*receivers), "server_cpu_us/delivery")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkServeRoomsIdle is what idle connections cost: memory for each, and the processor time of their pings or beats.
func BenchmarkServeRoomsIdle(b *testing.B) {
	measure := func(b *testing.B, n int, connect func(*benchRoom)) {
		p, room := roomsProcess(b, n)
		pid := p.cmd.Process.Pid
		before := usageOf(b, pid)
		connect(room)
		<-time.After(3 * time.Second) // connecting has garbage of its own
		connected := usageOf(b, pid)
		<-time.After(idleFor)
		idle := usageOf(b, pid)
		b.ReportMetric(float64(idle.rss-before.rss)/float64(n)/1024, "KiB/connection")
		b.ReportMetric(float64(idle.cpu-connected.cpu)/float64(idleFor), "cores_idle")
		b.ReportMetric(0, "ns/op")
	}
	b.Run("ws", func(b *testing.B) {
		measure(b, idlePeers, func(room *benchRoom) { openSinks(b, room, nil) })
	})
	b.Run("sse", func(b *testing.B) {
		measure(b, 1000, func(room *benchRoom) {
			streams := make([]*roomclient.Stream, len(room.receivers))
			err := inParallel(b.Context(), len(streams), 64, func(ctx context.Context, i int) (err error) {
				o := roomclient.Current(uuid.NewString())
				o.Scope, o.Protocol = "all", 7
				streams[i], err = roomclient.DialSSE(ctx, room.receivers[i].config, o)
				return err
			})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() {
				for _, s := range streams {
					s.Drop()
				}
			})
		})
	})
}

// BenchmarkServeRoomsResume has 1,000 agents come back at once, each 100 events behind.
func BenchmarkServeRoomsResume(b *testing.B) {
	const agents, behind, rounds = 1000, 100, 5
	p, room := roomsProcess(b, agents)
	room.sayAll(b, behind+50, 4)
	from := int64(50)
	var times []time.Duration
	var cpu time.Duration
	for range rounds {
		before := usageOf(b, p.cmd.Process.Pid).cpu
		begun := time.Now()
		s := openSinks(b, room, &from)
		s.await(b, agents*behind)
		times = append(times, time.Since(begun))
		cpu += usageOf(b, p.cmd.Process.Pid).cpu - before
		s.close()
	}
	b.ReportMetric(median(times).Seconds(), "seconds")
	b.ReportMetric(agents*behind/median(times).Seconds(), "deliveries/s")
	b.ReportMetric(float64(cpu.Microseconds())/rounds/agents, "server_cpu_us/agent")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkServeRoomsPosts is durable posts a second into a room of ten agents, nine of them connected, beside single appends
// of 4 KiB with a sync.
func BenchmarkServeRoomsPosts(b *testing.B) {
	for _, posters := range []int{1, 10, 100} {
		b.Run(fmt.Sprint(posters), func(b *testing.B) {
			const posting = 4 * time.Second
			p, room := roomsProcess(b, 9)
			served := openSinks(b, room, nil)
			synced := syncsPerSecond(b)
			ctx, cancel := context.WithTimeout(b.Context(), posting)
			defer cancel()
			acks := agentclient.NewHistogram()
			var mu sync.Mutex
			n := 0
			before := usageOf(b, p.cmd.Process.Pid).cpu
			begun := time.Now()
			_ = inParallel(b.Context(), posters, posters, func(context.Context, int) error {
				for ctx.Err() == nil {
					sent := time.Now()
					room.say(b)
					took := time.Since(sent)
					mu.Lock()
					n++
					_ = acks.RecordValue(max(took.Microseconds(), 1))
					mu.Unlock()
				}
				return nil
			})
			took := time.Since(begun)
			cpu := usageOf(b, p.cmd.Process.Pid).cpu - before
			served.await(b, 9*n)
			q := quantilesOf(acks)
			b.ReportMetric(float64(n)/took.Seconds(), "posts/s")
			b.ReportMetric(q.P50, "ack_p50_ms")
			b.ReportMetric(q.P99, "ack_p99_ms")
			b.ReportMetric(float64(n)/took.Seconds()/synced, "posts/sync")
			b.ReportMetric(float64(cpu.Microseconds())/float64(n), "server_cpu_us/post")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// syncsPerSecond appends 4 KiB and syncs for a second.
func syncsPerSecond(b *testing.B) float64 {
	b.Helper()
	f, err := os.Create(filepath.Join(b.TempDir(), "sync"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 4<<10)
	n, begun := 0, time.Now()
	for ; time.Since(begun) < time.Second; n++ {
		if _, err := f.Write(block); err != nil {
			b.Fatal(err)
		}
		if err := fdatasync(f); err != nil {
			b.Fatal(err)
		}
	}
	return float64(n) / time.Since(begun).Seconds()
}
