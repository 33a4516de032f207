package roomconn

import (
	"testing"
	"time"

	"signalbox/appliance/clock"
	"signalbox/transport/roomclient"
)

// wheel is a pinger whose goroutine has ended: tests turn it.
func wheel(c clock.Clock) *pinger {
	p := newPinger(c)
	p.close()
	return p
}

func TestPingerSpreadsSocketsOpenedTogether(t *testing.T) {
	c := clock.NewFake(begin)
	c.Advance(time.Hour)
	p := wheel(c)
	sockets := make([]*socket, 1000)
	for i := range sockets {
		sockets[i] = &socket{}
		p.add(sockets[i])
	}
	most := 0
	for _, s := range p.slots {
		most = max(most, len(s))
	}
	if most > len(sockets)/(spread+1) {
		t.Errorf("%d of %d in one place", most, len(sockets))
	}
	for _, k := range sockets {
		if due := (k.place.slot - index(p.last) + turn) % turn; due != 0 && due < turn-spread {
			t.Fatalf("a first ping after %d ticks of %d", due, turn)
		}
	}
	for _, k := range sockets {
		p.remove(k)
		p.remove(k) // harmless
	}
	if p.live != 0 {
		t.Errorf("%d left", p.live)
	}
	for _, s := range p.slots {
		if len(s) != 0 {
			t.Error("a place is not empty")
		}
	}
}

// TestOnePingAfterAStall: a server that stood still owes one ping, not a volley.
func TestOnePingAfterAStall(t *testing.T) {
	r := newRig(t)
	s, _ := r.ws(r.agent("bot"), asks("c"))
	r.clock.Advance(10 * time.Minute)
	r.until("the first ping", func() bool { return s.Pings() == 1 && r.beats(s) == 1 })
	r.reg.Sweep(r.clock.Now())
	r.pass(2*time.Second, s)
	if n := s.Pings(); n != 2 {
		t.Errorf("%d pings", n)
	}
	if s.State() == nil || s.Transport != roomclient.WebSocket {
		t.Error("no state")
	}
}
