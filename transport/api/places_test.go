package api

import (
	"errors"
	"testing"
)

func TestPlaces(t *testing.T) {
	p := newPlaces(8)
	take := func(who string, ok bool) func() {
		t.Helper()
		done, err := p.take(who)
		if ok != (err == nil) || !ok && !errors.Is(err, errBusy) {
			t.Fatalf("%s: %v", who, err)
		}
		return done
	}
	var held []func()
	for _, who := range []string{"a", "b", "c"} {
		held = append(held, take(who, true), take(who, true))
		take(who, false) // a quarter is taken
	}
	held = append(held, take("d", true), take("e", true))
	take("f", false) // all are
	held[0]()
	held[0] = take("f", true)
	for _, done := range held {
		done()
	}
	if p.total != 0 || len(p.taken) != 0 {
		t.Errorf("left: %d, %v", p.total, p.taken)
	}
}
