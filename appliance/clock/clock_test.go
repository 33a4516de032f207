package clock

import (
	"testing"
	"time"
)

func TestFakeFiresDueTimersOnly(t *testing.T) {
	f := NewFake(time.Unix(0, 0))
	early, late := f.NewTimer(time.Second), f.NewTimer(time.Minute)
	f.BlockUntil(2)
	f.Advance(time.Second)
	select {
	case at := <-early.C():
		if !at.Equal(time.Unix(1, 0)) {
			t.Fatalf("fired at %v", at)
		}
	default:
		t.Fatal("due timer did not fire")
	}
	select {
	case <-late.C():
		t.Fatal("early timer fired")
	default:
	}
	if !late.Stop() || late.Stop() {
		t.Fatal("Stop must report whether the timer was armed")
	}
}

func TestFakeResetDropsStaleValue(t *testing.T) {
	f := NewFake(time.Unix(0, 0))
	timer := f.NewTimer(0)
	timer.Reset(time.Hour)
	select {
	case <-timer.C():
		t.Fatal("value from before the reset was received")
	default:
	}
	f.Advance(time.Hour)
	<-timer.C()
}

// A wait for a known time ends with that time, however far the clock has come before the timer was armed.
func TestFakeResetAtKnowsTheTime(t *testing.T) {
	f := NewFake(time.Unix(0, 0))
	timer := f.NewTimer(time.Hour)
	at := f.Now().Add(time.Minute)
	f.Advance(time.Minute)
	if !timer.ResetAt(at) {
		t.Fatal("was not armed")
	}
	select {
	case <-timer.C():
	default:
		t.Fatal("a time that has passed did not fire")
	}
	if timer.ResetAt(f.Now().Add(time.Second)) {
		t.Fatal("was armed after it fired")
	}
	select {
	case <-timer.C():
		t.Fatal("fired early")
	default:
	}
	f.Advance(time.Second)
	<-timer.C()
}
