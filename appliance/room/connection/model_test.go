package connection

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"
)

// model is what rooms.md says about connections, written down from the text and not from the package: plain sets, every
// rule at its place, no care for speed. Rooms are small numbers, times are durations since the start.
type model struct {
	now     time.Duration
	swept   time.Duration
	gen     int64
	members map[int64]map[int64]bool // durable: survives a restart
	conns   map[string]*mconn        // the live set, by connection id
	streams map[int64]*mstream       // every stream ever, by generation
}

type mconn struct {
	id       string
	agent    int64
	scope    Scope
	spawn    bool
	revision int // 0: declared nothing
	gen      int64
	attached bool
	beat     time.Duration
	claims   map[int64]bool
	place    map[string]int64
	lost     map[int64]string // unreported losses: session or ""
	held     bool
	cursor   int64
	done     int64
}

type mstream struct {
	conn    *mconn
	gen     int64
	end     string // code; "" while it runs
	written map[int64]bool
	covered map[int64]bool // at the last write
}

func newModel(gen int64) *model {
	return &model{gen: gen, members: map[int64]map[int64]bool{}, conns: map[string]*mconn{}, streams: map[int64]*mstream{}}
}

// restart: connections, claims, placements, liveness are gone (C.1), memberships stay.
func (m *model) restart(gen int64) {
	m.conns, m.streams, m.gen, m.swept = map[string]*mconn{}, map[int64]*mstream{}, gen, m.now
}

// settle is the evaluation of liveness: first the stall, then the lapses (C.3).
func (m *model) settle() {
	if late := m.now - m.swept - 2*time.Second; late > 3*time.Second {
		for _, c := range m.conns {
			c.beat += late
		}
		m.swept = m.now - 2*time.Second
	}
	for _, c := range m.conns {
		if m.now-c.beat >= 6*time.Second {
			m.end(c, "heartbeat_lapsed")
		}
	}
}

func (m *model) end(c *mconn, code string) {
	delete(m.conns, c.id)
	m.finish(c.gen, code)
}

func (m *model) finish(gen int64, code string) {
	if s := m.streams[gen]; s.end == "" {
		s.end = code
	}
}

func (m *model) holder(agent, room int64) *mconn {
	for _, c := range m.conns {
		if c.agent == agent && c.claims[room] {
			return c
		}
	}
	return nil
}

// covers is F.2.
func (m *model) covers(c *mconn, room int64) bool {
	if m.conns[c.id] != c || !m.members[c.agent][room] {
		return false
	}
	h := m.holder(c.agent, room)
	return h == c || c.scope == ScopeAll && h == nil
}

func (m *model) coverage(c *mconn) map[int64]bool {
	set := map[int64]bool{}
	for r := range m.members[c.agent] {
		if m.covers(c, r) {
			set[r] = true
		}
	}
	return set
}

// drop releases a claim and the placement in it (F.1 rule 7), and names the session.
func (m *model) drop(c *mconn, room int64) string {
	delete(c.claims, room)
	for s, r := range c.place {
		if r == room {
			delete(c.place, s)
			return s
		}
	}
	return ""
}

// take claims with takeover; the loser is told (F.3).
func (m *model) take(c *mconn, room int64) (loser *mconn, session string) {
	h := m.holder(c.agent, room)
	if h == c {
		return nil, ""
	}
	if h != nil {
		session = m.drop(h, room)
		if old, known := h.lost[room]; !known || old == "" || session != "" {
			h.lost[room] = session
		}
	}
	c.claims[room] = true
	c.held = false
	return h, session
}

func (m *model) keepOnly(c *mconn, keep func(int64) bool) {
	for r := range maps.Clone(c.claims) {
		if !keep(r) {
			m.drop(c, r)
		}
	}
}

// attach is B.2, 8 to 12, and B.5.
func (m *model) attach(agent int64, id string, scope Scope, spawn bool, revision int, after int64, expected *int64,
	rooms []int64) (string, int64) {
	m.settle()
	c := m.conns[id]
	if c != nil && c.agent != agent {
		return "conflict", 0
	}
	if c != nil && expected != nil && *expected != c.gen {
		return "taken_over", 0
	}
	if c == nil {
		n := 0
		for _, o := range m.conns {
			if o.agent == agent {
				n++
			}
		}
		if n >= 32 {
			return "conflict", 0
		}
	}
	for _, r := range rooms {
		if !m.members[agent][r] {
			return "forbidden", 0
		}
	}
	if c == nil {
		c = &mconn{id: id, agent: agent, claims: map[int64]bool{}, place: map[string]int64{}, lost: map[int64]string{}}
		m.conns[id] = c
	} else {
		m.finish(c.gen, "taken_over")
	}
	m.gen++
	c.scope, c.spawn, c.revision, c.gen, c.attached, c.beat, c.cursor = scope, spawn, revision, m.gen, true, m.now, after
	for _, r := range rooms {
		if c.claims[r] {
			continue
		}
		if scope == ScopeSingle {
			m.keepOnly(c, func(int64) bool { return false })
		}
		m.take(c, r)
	}
	c.held = scope == ScopeSingle && len(c.claims) == 0
	m.streams[c.gen] = &mstream{conn: c, gen: c.gen, written: maps.Clone(c.claims), covered: m.coverage(c)}
	return "", c.gen
}

// named is the first half of every request that names a connection: 404, then the fence (F.4).
func (m *model) named(agent int64, id string, gen *int64) (*mconn, string) {
	m.settle()
	c := m.conns[id]
	switch {
	case c == nil || c.agent != agent:
		return nil, "not_found"
	case gen != nil && *gen != c.gen:
		return nil, "taken_over"
	case gen == nil && c.revision >= 2:
		return nil, "unfenced"
	}
	return c, ""
}

// beat is C.6.
func (m *model) beat(agent int64, id string, cursor int64, gen *int64) string {
	c, code := m.named(agent, id, gen)
	if code != "" {
		return code
	}
	return m.accept(c, cursor)
}

func (m *model) accept(c *mconn, cursor int64) string {
	if !c.attached {
		return "no_stream"
	}
	c.beat = m.now
	if cursor <= c.cursor {
		c.done = cursor
	}
	return ""
}

// pong is C.5 with C.6: the generation is the socket's.
func (m *model) pong(s *mstream, cursor int64) string {
	m.settle()
	if m.conns[s.conn.id] == nil || m.conns[s.conn.id].agent != s.conn.agent {
		return "connection_error"
	}
	if c := m.conns[s.conn.id]; c.gen == s.gen {
		return m.accept(c, cursor)
	}
	return "taken_over"
}

func (m *model) detach(s *mstream) {
	if s.conn.gen == s.gen {
		s.conn.attached = false
	}
}

// subscribe is F.4.
func (m *model) subscribe(agent int64, id string, gen *int64, room int64, takeover bool) (code, evicted string) {
	c, code := m.named(agent, id, gen)
	if code != "" {
		return code, ""
	}
	if room == 7 {
		return "not_found", ""
	}
	if !m.members[agent][room] {
		return "forbidden", ""
	}
	if h := m.holder(agent, room); h != nil && h != c && !takeover {
		return "conflict", ""
	}
	if c.claims[room] {
		return "", ""
	}
	if c.scope == ScopeSingle {
		m.keepOnly(c, func(int64) bool { return false })
	}
	if loser, _ := m.take(c, room); loser != nil {
		return "", loser.id
	}
	return "", ""
}

// unsubscribe is F.5.
func (m *model) unsubscribe(agent int64, id string, gen *int64, room int64) string {
	c, code := m.named(agent, id, gen)
	if code == "" && c.claims[room] {
		m.drop(c, room)
	}
	return code
}

// placements is F.6.
func (m *model) placements(agent int64, id string, gen *int64, want map[string]int64) (code, released string) {
	c, code := m.named(agent, id, gen)
	if code != "" {
		return code, ""
	}
	seen := map[int64]bool{}
	for _, r := range want {
		if !m.members[agent][r] {
			return "forbidden", ""
		}
	}
	for _, r := range want {
		if seen[r] {
			return "validation_error", ""
		}
		seen[r] = true
	}
	before := c.place
	c.place = map[string]int64{}
	var out []string
	gained := false
	for _, s := range slices.Sorted(maps.Keys(want)) {
		r := want[s]
		gained = gained || !c.claims[r]
		if loser, session := m.take(c, r); loser != nil {
			out = append(out, fmt.Sprintf("%d/%s/%s", r, loser.id, session))
		}
		c.place[s] = r
	}
	for _, r := range before {
		if !seen[r] {
			m.drop(c, r)
		}
	}
	if gained && c.scope == ScopeSingle {
		m.keepOnly(c, func(r int64) bool { return seen[r] })
	}
	sort.Strings(out)
	return "", strings.Join(out, " ")
}

// connect is H.4.
func (m *model) connect(agent int64, id, session string, room int64) (code, evicted string) {
	m.settle()
	c := m.conns[id]
	if c == nil || c.agent != agent {
		return "conflict", ""
	}
	if !m.members[agent][room] {
		return "validation_error", ""
	}
	isNew := !c.claims[room]
	placed := map[int64]bool{}
	for _, r := range c.place {
		placed[r] = true
	}
	leave := map[int64]bool{}
	if session != "" {
		if r, ok := c.place[session]; ok {
			leave[r] = true
		}
		if isNew && c.scope == ScopeSingle {
			for r := range c.claims {
				if !placed[r] {
					leave[r] = true
				}
			}
		}
	} else {
		for r := range c.claims {
			if c.scope == ScopeSingle || !placed[r] {
				leave[r] = true
			}
		}
	}
	delete(leave, room)
	loser, _ := m.take(c, room)
	for r := range leave {
		m.drop(c, r)
	}
	if session != "" {
		for s, r := range c.place {
			if r == room {
				delete(c.place, s)
			}
		}
		c.place[session] = room
	}
	if loser != nil {
		return "", loser.id
	}
	return "", ""
}

// locate is H.2.
func (m *model) locate(agent int64, id, session string) (code string, room int64) {
	m.settle()
	c := m.conns[id]
	if c == nil || c.agent != agent {
		return "conflict", 0
	}
	if session != "" {
		if r, ok := c.place[session]; ok {
			return "", r
		}
		return "validation_error", 0
	}
	if len(c.claims) != 1 {
		return "validation_error", 0
	}
	for r := range c.claims {
		room = r
	}
	return "", room
}

// pass is D.3 and D.4: what a stream has to write.
func (m *model) pass(s *mstream) string {
	m.settle()
	if s.end != "" {
		return "end " + s.end
	}
	c := s.conn
	if !c.attached {
		return ""
	}
	var out []string
	if c.revision >= 6 {
		for r, session := range c.lost {
			out = append(out, fmt.Sprintf("released %d %s", r, session))
		}
		sort.Strings(out)
	}
	c.lost = map[int64]string{}
	covered := m.coverage(c)
	if !maps.Equal(s.written, c.claims) || c.scope == ScopeAll && !maps.Equal(s.covered, covered) {
		out = append(out, fmt.Sprintf("changed %v", slices.Sorted(maps.Keys(c.claims))))
	}
	s.written, s.covered = maps.Clone(c.claims), covered
	return strings.Join(out, "; ")
}

func (m *model) join(agent, room int64) { m.members[agent][room] = true }

// leave is the end of C.7: claim, placement, on every connection.
func (m *model) leave(agent, room int64) {
	delete(m.members[agent], room)
	for _, c := range m.conns {
		if c.agent == agent && c.claims[room] {
			m.drop(c, room)
		}
	}
}

// status is H.7 for session_addressable.
func (m *model) status(agent, room int64) string {
	m.settle()
	dormant := false
	for _, c := range m.conns {
		if c.agent != agent {
			continue
		}
		if c.claims[room] {
			return "live"
		}
		dormant = dormant || c.spawn && m.covers(c, room)
	}
	if dormant {
		return "dormant"
	}
	return "no_session"
}

// state is all that can be seen of the model from outside, as text.
func (m *model) state() string {
	var out []string
	for id, c := range m.conns {
		places := []string{}
		for s, r := range c.place {
			places = append(places, fmt.Sprintf("%s=%d", s, r))
		}
		sort.Strings(places)
		out = append(out, fmt.Sprintf("%s agent=%d gen=%d attached=%v scope=%s held=%v claims=%v places=%v covers=%v done=%d", id,
			c.agent,
			c.gen, c.attached, c.scope, c.held, slices.Sorted(maps.Keys(c.claims)), places, slices.Sorted(maps.Keys(m.coverage(c))),
			c.done))
	}
	sort.Strings(out)
	return strings.Join(out, "\n")
}
