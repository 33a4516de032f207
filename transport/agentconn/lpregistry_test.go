package agentconn

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/clock"
)

var start = time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC)

type lpFixture struct {
	*lpRegistry[int]
	t     *testing.T
	clock *clock.Fake
	agent uuid.UUID
	made  int
}

func newLPFixture(t *testing.T) *lpFixture {
	c := clock.NewFake(start)
	limits := LPLimits{PerAgent: 16, Total: 40, Idle: 300 * time.Second}
	return &lpFixture{lpRegistry: newLPRegistry[int](limits, c), t: t, clock: c, agent: uuid.New()}
}

func (f *lpFixture) get(agent uuid.UUID, nonce string, probe bool) (*lpSession[int], error) {
	return f.acquire(agent, nonce, probe, func() int { f.made++; return f.made })
}

func (f *lpFixture) want(nonce string, probe bool, want error) *lpSession[int] {
	f.t.Helper()
	s, err := f.get(f.agent, nonce, probe)
	if !errors.Is(err, want) {
		f.t.Fatalf("acquire %q probe=%v: %v, want %v", nonce, probe, err, want)
	}
	return s
}

func TestLPSessionIsKeptAndLeased(t *testing.T) {
	f := newLPFixture(t)
	a := f.want("n1", true, nil)
	b := f.want("n1", false, nil)
	if a != b || f.made != 1 {
		t.Fatal("the second request of a nonce must get the first one's session")
	}
	f.clock.Advance(time.Hour) // leased: not expired
	if c := f.want("n1", false, nil); c != a {
		t.Fatal("a leased session expired")
	}
	for range 3 {
		f.release(a)
	}
	f.clock.Advance(299 * time.Second)
	if c := f.want("n1", false, nil); c != a {
		t.Fatal("session expired before its idle time")
	}
	f.release(a)
	f.clock.Advance(300 * time.Second)
	if c := f.want("n1", false, nil); c == a || f.made != 2 {
		t.Fatal("session outlived its idle time")
	}
	if a.Valid() {
		t.Fatal("an expired session still counts as valid")
	}
}

// Every row of the request table of agent protocol F.7.
func TestLPMarkerRules(t *testing.T) {
	f := newLPFixture(t)
	hung := f.want("bad", false, nil) // a poll that hangs on
	other := f.want("other", false, nil)
	f.release(other)
	f.invalidate(f.agent, hung)
	if hung.Valid() {
		t.Fatal("the hanging poll must notice")
	}
	f.want("bad", false, errInvalidated)
	f.want("bad", true, errInvalidated)
	f.want("other", false, errMarked)
	f.want("other", true, errMarked)
	f.want("fresh", false, errMarked)
	if _, err := f.get(uuid.New(), "bad", false); err != nil {
		t.Fatalf("a marker reached another agent: %v", err)
	}
	fresh := f.want("fresh", true, nil)
	if !fresh.Valid() {
		t.Fatal("the probe's session is not valid")
	}
	f.want("other", false, nil) // known and valid again
	f.want("bad", true, errRetired)
	f.want("bad", false, errRetired)
	f.release(hung)
	f.clock.Advance(retiredFor - time.Second)
	f.want("bad", false, errRetired)
	f.clock.Advance(time.Second)
	f.want("bad", false, nil)
}

func TestLPMarkerExpiresFromTheFailure(t *testing.T) {
	f := newLPFixture(t)
	s := f.want("bad", false, nil)
	f.invalidate(f.agent, s)
	f.invalidate(f.agent, s) // a second failure of the same session changes nothing
	f.release(s)
	f.clock.Advance(299 * time.Second)
	f.want("bad", false, errInvalidated) // does not prolong it
	f.clock.Advance(time.Second)
	f.want("bad", false, nil)
}

func TestLPEvictsOnlyIdleValidSessionsOfTheSameAgent(t *testing.T) {
	f := newLPFixture(t)
	var held []*lpSession[int]
	for i := range 16 {
		held = append(held, f.want(fmt.Sprint("n", i), false, nil))
		f.clock.Advance(time.Second)
	}
	f.want("n16", false, errFull)
	f.release(held[3])
	f.clock.Advance(time.Second)
	f.release(held[1]) // idle too, but used later
	f.want("n16", false, nil)
	if held[3].Valid() || !held[1].Valid() {
		t.Fatal("not the oldest idle session was evicted")
	}
	f.want("n17", false, nil)
	f.want("n18", false, errFull)
	if f.size() != 16 {
		t.Fatalf("size %d", f.size())
	}
}

func TestLPMarkersAreNeverEvicted(t *testing.T) {
	f := newLPFixture(t)
	for i := range 15 {
		s := f.want(fmt.Sprint("n", i), false, nil)
		_ = s
	}
	bad := f.want("bad", false, nil)
	f.release(bad)
	f.invalidate(f.agent, bad)
	f.want("fresh", false, errMarked)
	f.want("fresh", true, nil) // the probe retires the marker, which makes the room
	if f.size() != 16 {
		t.Fatalf("size %d", f.size())
	}
}

func TestLPTotalLimitSparesOtherAgents(t *testing.T) {
	f := newLPFixture(t)
	agents := []uuid.UUID{uuid.New(), uuid.New(), uuid.New()}
	for i := range 40 {
		s, err := f.get(agents[i%3], fmt.Sprint("n", i), false)
		if err != nil {
			t.Fatal(err)
		}
		f.release(s)
	}
	f.want("new", false, errFull) // idle sessions of others stay
	s, err := f.get(agents[0], "again", false)
	if err != nil {
		t.Fatalf("an agent with an idle session must make its own room: %v", err)
	}
	f.release(s)
	f.clock.Advance(300 * time.Second)
	f.want("new", false, nil) // others' idle sessions have expired
	if f.size() != 1 || len(f.agents) != 1 {
		t.Fatalf("%d sessions, %d agents left", f.size(), len(f.agents))
	}
}

func TestLPDropEndsEverySessionOfTheAgent(t *testing.T) {
	f := newLPFixture(t)
	a, b := f.want("a", false, nil), f.want("b", false, nil)
	f.invalidate(f.agent, b)
	f.drop(f.agent)
	if a.Valid() || f.size() != 0 || len(f.agents) != 0 {
		t.Fatal("sessions left after drop")
	}
	f.release(a)
	f.release(b)
	f.invalidate(f.agent, a) // a late failure of a dropped session
	f.want("a", false, nil)
}

func TestLPPollingIsVisible(t *testing.T) {
	f := newLPFixture(t)
	s := f.want("a", false, nil)
	f.polling(s, 1)
	seen := 0
	f.sessions(f.agent, func(_ *lpSession[int], i lpInfo) {
		if i.nonce == "a" && i.polling {
			seen++
		}
	})
	f.polling(s, -1)
	f.sessions(f.agent, func(_ *lpSession[int], i lpInfo) {
		if !i.polling {
			seen++
		}
	})
	if seen != 2 {
		t.Fatalf("seen %d", seen)
	}
}
