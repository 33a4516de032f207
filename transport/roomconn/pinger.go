package roomconn

import (
	"sync"
	"time"

	"signalbox/appliance/clock"
	"signalbox/appliance/room/connection"
)

const (
	// tick is the grain of pings: sockets whose times fall within one are pinged together.
	tick = 50 * time.Millisecond
	// turn is how many ticks one interval has.
	turn = int64(connection.BeatEvery / tick)
	// spread is how many ticks early a first ping may come, so that sockets opened together are not pinged together.
	spread = 4
)

// pinger sends every socket its pings (C.3) and makes it look when its connection should have lapsed. It is one
// goroutine and one timer for all: a wheel of one interval, with every socket at a place of its own.
type pinger struct {
	clock clock.Clock
	epoch time.Time
	wake  chan struct{} // the wheel is no longer empty
	stop  chan struct{}
	done  chan struct{}

	mu     sync.Mutex
	slots  [turn][]*socket
	checks [turn][]*socket // sockets that may lapse at this tick
	live   int
	last   int64 // the last tick that was handled
	due    []*socket
	late   []*socket
}

// place is where a socket is in the wheel.
type place struct {
	slot     int64
	index    int
	in       bool
	checking bool
}

func newPinger(c clock.Clock) *pinger {
	p := &pinger{clock: c, epoch: c.Now(), wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	go p.run()
	return p
}

func (p *pinger) close() {
	close(p.stop)
	<-p.done
}

// now is the current tick; at is the tick after a wait.
func (p *pinger) now() int64 { return int64(p.clock.Now().Sub(p.epoch) / tick) }

func (p *pinger) at(wait time.Duration) int64 {
	return int64((p.clock.Now().Sub(p.epoch) + wait + tick - 1) / tick)
}

// add gives the socket its place. Its first ping comes after one interval, or up to spread ticks before.
func (p *pinger) add(k *socket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if p.live == 0 {
		p.last = now
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
	best := index(p.last)
	for back := int64(1); back <= spread; back++ {
		if s := index(p.last - back); len(p.slots[s]) < len(p.slots[best]) {
			best = s
		}
	}
	k.place = place{slot: best, index: len(p.slots[best]), in: true}
	p.slots[best] = append(p.slots[best], k)
	p.live++
}

func index(t int64) int64 { return ((t % turn) + turn) % turn }

// remove takes the socket out. It may be pinged once more meanwhile, which its session refuses.
func (p *pinger) remove(k *socket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !k.place.in {
		return
	}
	slot := p.slots[k.place.slot]
	end := len(slot) - 1
	slot[k.place.index] = slot[end]
	slot[k.place.index].place.index = k.place.index
	slot[end] = nil
	p.slots[k.place.slot] = slot[:end]
	k.place.in = false
	p.live--
}

// run turns the wheel. It sleeps while the wheel is empty.
func (p *pinger) run() {
	defer close(p.done)
	timer := p.clock.NewTimer(tick)
	defer timer.Stop()
	timer.Stop()
	for {
		if p.turn() {
			timer.Reset(tick)
			if p.behind() { // the clock moved between the look and the arming of the timer
				continue
			}
		} else {
			timer.Stop()
		}
		select {
		case <-timer.C():
		case <-p.wake:
		case <-p.stop:
			return
		}
	}
}

// behind tells whether another tick has passed already.
func (p *pinger) behind() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now() > p.last
}

// turn handles the ticks that have passed, each place once however many there were: a server that stood still owes one
// ping, not a volley. It returns false when the wheel is empty.
func (p *pinger) turn() bool {
	p.mu.Lock()
	now := p.now()
	for t := max(p.last+1, now-turn+1); t <= now; t++ {
		s := index(t)
		p.due = append(p.due, p.slots[s]...)
		for _, k := range p.checks[s] {
			k.place.checking = false
			if k.place.in && k.lapse.Load() <= now {
				p.late = append(p.late, k)
			}
		}
		clear(p.checks[s])
		p.checks[s] = p.checks[s][:0]
	}
	p.last = max(p.last, now)
	for _, k := range p.due {
		lapse := k.lapse.Load()
		switch {
		case lapse <= now:
			p.late = append(p.late, k)
		case lapse < now+turn && !k.place.checking:
			k.place.checking = true
			p.checks[index(lapse)] = append(p.checks[index(lapse)], k)
		}
	}
	live := p.live > 0
	p.mu.Unlock()
	for _, k := range p.due {
		k.ping()
	}
	for _, k := range p.late {
		k.look()
	}
	clear(p.due)
	clear(p.late)
	p.due, p.late = p.due[:0], p.late[:0]
	return live
}
