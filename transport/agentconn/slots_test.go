package agentconn

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
)

func TestSlotsReplaceOnlyTheSameWorker(t *testing.T) {
	s, agent := newSlots[*int](2), uuid.New()
	a, b, c, d := new(int), new(int), new(int), new(int)
	if old, ok := s.register(agent, "w1", a); old != nil || !ok {
		t.Fatal("first session", old, ok)
	}
	if old, ok := s.register(agent, "", b); old != nil || !ok {
		t.Fatal("the legacy slot is a slot of its own", old, ok)
	}
	if _, ok := s.register(agent, "w2", c); ok {
		t.Fatal("cap not enforced")
	}
	if _, ok := s.register(uuid.New(), "w2", c); !ok {
		t.Fatal("the cap is per agent")
	}
	if old, ok := s.register(agent, "w1", d); old != a || !ok {
		t.Fatal("replacing must work at the cap", old, ok)
	}
	if mine, last := s.unregister(agent, "w1", a); mine || last {
		t.Fatal("the replaced session removed its successor")
	}
	if got := s.newestFirst(agent); !slices.Equal(got, []*int{d, b}) {
		t.Fatal("newest first", got)
	}
	if mine, last := s.unregister(agent, "w1", d); !mine || last {
		t.Fatal(mine, last)
	}
	if mine, last := s.unregister(agent, "", b); !mine || !last {
		t.Fatal(mine, last)
	}
	if s.count() != 1 || len(s.newestFirst(agent)) != 0 {
		t.Fatal("left over", s.count())
	}
}

func TestSlotsWithoutCap(t *testing.T) {
	s, agent := newSlots[*int](0), uuid.New()
	for i := range 200 {
		if _, ok := s.register(agent, fmt.Sprint(i), new(int)); !ok {
			t.Fatal("0 switches the cap off")
		}
	}
}
