package timeline

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/room"
)

// Times of a room: a millisecond each, never far from the clock, back only with it.
func TestTimesOfARoom(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 6, 1, 12, 0, 0, 123_456_000, time.UTC)
	floor := now.Truncate(time.Millisecond)
	for _, c := range []struct {
		name       string
		prev, want time.Time
	}{
		{"first", time.Time{}, now},
		{"long after", now.Add(-time.Hour), now},
		{"a millisecond after", now.Add(-time.Millisecond), now},
		{"in the same millisecond", now.Add(-time.Microsecond), floor.Add(time.Millisecond)},
		{"at the same moment", now, floor.Add(time.Millisecond)},
		{"running ahead", floor.Add(500 * time.Millisecond), floor.Add(501 * time.Millisecond)},
		{"too far ahead to go on", floor.Add(time.Second), floor.Add(time.Second)},
		{"the clock went back", now.Add(time.Hour), now},
	} {
		if got := after(now, c.prev); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	at := after(now, time.Time{})
	for range 5000 {
		next := after(now, at)
		if next.Before(at) || next.Sub(now) > maxAhead {
			t.Fatalf("%s after %s, with the clock at %s", next, at, now)
		}
		at = next
	}
}

func TestCastsAreBounded(t *testing.T) {
	t.Parallel()
	var c casts
	c.init(10)
	cast := func(no int64, members int) *room.Cast {
		return &room.Cast{Room: room.Room{No: no, ID: uuid.New(), CastRevision: no}, Members: make([]room.Member, members)}
	}
	a, b := cast(1, 3), cast(2, 3)
	c.put(a)
	c.put(b)
	if c.get(1, 1) != a || c.get(1, 9) != nil || c.get(3, 3) != nil { // 1 was used last
		t.Error("kept wrongly")
	}
	c.put(cast(3, 3))
	if c.get(2, 2) != nil || c.get(1, 1) != a || c.size != 8 {
		t.Errorf("the one used longest ago should go; size %d", c.size)
	}
	if _, known := c.number(b.Room.ID); known {
		t.Error("the number of a dropped room is kept")
	}
	newer := cast(1, 4)
	newer.Room.ID = a.Room.ID
	c.put(newer)
	if c.get(1, 1) != newer || c.size != 9 || len(c.room) != 2 || c.used.Len() != 2 {
		t.Errorf("replaced: size %d", c.size)
	}
	if no, known := c.number(a.Room.ID); !known || no != 1 {
		t.Error("the number of a kept room is not known")
	}
	c.put(cast(4, 50))
	if c.size != 0 || c.used.Len() != 0 || len(c.byID) != 0 {
		t.Errorf("one that is too large: size %d, %d left", c.size, c.used.Len())
	}
}

func TestRepliesBeyondTheBoundAreCounted(t *testing.T) {
	t.Parallel()
	var replies []reply
	for i := range 7 {
		replies = append(replies, reply{body: fmt.Sprint(i), short: []string{"are red", "are blue"}[i%2]})
	}
	if got := atMost(replies, 7); len(got) != 7 || got[6].body != "6" {
		t.Errorf("%+v", got)
	}
	got := atMost(replies, 4)
	if len(got) != 4 || got[2].body != "2" || got[3].as != nil || !strings.Contains(got[3].body, "2 are blue; 2 are red") {
		t.Errorf("%+v", got)
	}
	if replies[3].body != "3" {
		t.Error("the list given was changed")
	}
}
