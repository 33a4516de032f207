package archiveconn

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"signalbox/transport/session"
)

// places are the sockets without a registration, at most MaxUnregistered, by where they come from. While there is room
// anybody may have as many as he likes; when there is none, whoever has fewer than somebody else takes a place of the one
// who has most. So nobody keeps others from registering, and as many daemons behind one address as there are places can
// come at once. It is safe for concurrent use.
type places struct {
	mu sync.Mutex
	n  int
	by map[netip.Prefix][]*pending // oldest first
}

// pending is the place of a socket without a registration. It is given back when the daemon is registered, or when the
// refused socket is closed: until then it costs us what any of them costs.
type pending struct {
	places  *places
	from    netip.Prefix
	session *session.Session
	busy    bool // its first frame is being looked at: it is not taken away
	left    bool
}

// source is what places are counted by: an IPv4 address, or the /64 of an IPv6 one, all of which one machine may have. The
// zero Prefix stands for what is no address.
func source(peer string) netip.Prefix {
	addr, err := netip.ParseAddr(peer)
	if err != nil {
		return netip.Prefix{}
	}
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	p, _ := addr.Prefix(bits) // the number of bits fits
	return p
}

// enter gives the socket a place, if need be that of another, which is then closed. ok is false when there is none.
func (p *places) enter(s *session.Session) (place *pending, ok bool) {
	p.mu.Lock()
	from := source(s.Peer())
	var instead *pending
	if p.n >= MaxUnregistered {
		if instead = p.spare(from); instead == nil {
			p.mu.Unlock()
			return nil, false
		}
		p.drop(instead)
	}
	place = &pending{places: p, from: from, session: s}
	if p.by == nil {
		p.by = map[netip.Prefix][]*pending{}
	}
	p.by[from] = append(p.by[from], place)
	p.n++
	p.mu.Unlock()
	if instead != nil {
		instead.session.Close(session.Capacity) // changes nothing when it is closing
	}
	return place, true
}

// spare is the oldest place that can be taken of whoever has most, when that is more than the newcomer would then have.
func (p *places) spare(newcomer netip.Prefix) *pending {
	var most []*pending
	for _, list := range p.by {
		if len(list) > len(most) {
			most = list
		}
	}
	if len(most) < len(p.by[newcomer])+2 {
		return nil
	}
	if i := slices.IndexFunc(most, func(q *pending) bool { return !q.busy }); i >= 0 {
		return most[i]
	}
	return nil
}

func (p *places) drop(q *pending) {
	if q.left {
		return
	}
	q.left = true
	list := p.by[q.from]
	list = slices.DeleteFunc(list, func(other *pending) bool { return other == q })
	if len(list) == 0 {
		delete(p.by, q.from)
	} else {
		p.by[q.from] = list
	}
	p.n--
}

// count is how many there are.
func (p *places) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.n
}

// begin keeps the place while its first frame is looked at; false when it was taken away before.
func (q *pending) begin() bool {
	q.places.mu.Lock()
	defer q.places.mu.Unlock()
	q.busy = !q.left
	return q.busy
}

// end is the opposite of begin, for a socket that was refused and is being closed.
func (q *pending) end() {
	q.places.mu.Lock()
	q.busy = false
	q.places.mu.Unlock()
}

func (q *pending) leave() {
	q.places.mu.Lock()
	q.places.drop(q)
	q.places.mu.Unlock()
}

// OnMessage drops what a refused peer still sends.
func (q *pending) OnMessage(context.Context, session.MessageType, []byte) error { return nil }

// OnClose gives the place back.
func (q *pending) OnClose(context.Context, session.Closed) { q.leave() }
