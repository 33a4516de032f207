package connection

import (
	"context"
	"fmt"
	"testing"
	"time"

	"signalbox/appliance/room"
)

// crowd is a registry of agents with one connection each, in ten rooms.
type crowd struct{ rooms []room.Ref }

func (c crowd) AgentRooms(context.Context, int64) ([]room.Ref, error) { return c.rooms, nil }

func newCrowd(b *testing.B, agents, each int) (*Registry, []*Stream) {
	var c crowd
	for n := range int64(10) {
		c.rooms = append(c.rooms, ref(n+1))
	}
	r := New(c, Options{})
	var streams []*Stream
	for a := range agents {
		for n := range each {
			s, err := r.Attach(context.Background(), request(int64(a+1), fmt.Sprint(a, "/", n), ScopeAll), func() {})
			if err != nil {
				b.Fatal(err)
			}
			streams = append(streams, s)
		}
	}
	return r, streams
}

func BenchmarkCovers(b *testing.B) {
	_, streams := newCrowd(b, 100, 32)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		streams[n%len(streams)].Covers(int64(n%10 + 1))
	}
}

func BenchmarkPong(b *testing.B) {
	for _, each := range []int{1, 32} {
		b.Run(fmt.Sprint(each, "-per-agent"), func(b *testing.B) {
			_, streams := newCrowd(b, 5000/each, each)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n++
				_ = streams[n%len(streams)].Pong(0)
			}
		})
	}
}

func BenchmarkPass(b *testing.B) {
	_, streams := newCrowd(b, 100, 32)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		streams[n%len(streams)].Pass()
	}
}

func BenchmarkAttach(b *testing.B) {
	r, _ := newCrowd(b, 5000, 1)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		a := n % 5000
		if _, err := r.Attach(context.Background(), request(int64(a+1), fmt.Sprint(a, "/0"), ScopeSingle, 1), func() {}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSweep(b *testing.B) {
	r, _ := newCrowd(b, 5000, 1)
	b.ReportAllocs()
	for b.Loop() {
		r.Sweep(time.Now())
	}
}
