package session

import (
	"context"
	"sync"
	"testing"
)

// sourceFunc is a Source made of a function.
type sourceFunc func(context.Context, int) ([][]byte, error)

func (f sourceFunc) Next(ctx context.Context, n int) ([][]byte, error) { return f(ctx, n) }

func TestSourceIsReadFromItsCursorAndAfterTheQueue(t *testing.T) {
	var mu sync.Mutex
	var log []string
	add := func(entries ...string) {
		mu.Lock()
		defer mu.Unlock()
		log = append(log, entries...)
	}
	open, sessions := capture(func(_ context.Context, s *Session) (Handler, error) {
		cursor := 0
		if err := s.Send([]byte("queued")); err != nil {
			return nil, err
		}
		s.Pull(sourceFunc(func(context.Context, int) ([][]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			page := log[cursor:min(cursor+2, len(log))]
			cursor += len(page)
			var frames [][]byte
			for _, e := range page {
				frames = append(frames, []byte(e))
			}
			return frames, nil
		}))
		return funcs{}, nil
	})
	add("1", "2", "3", "4", "5")
	r := newRig(t, Options{}, open)
	c := r.dial()
	s := <-sessions
	for _, want := range []string{"queued", "1", "2", "3", "4", "5"} {
		wantMessage(t, c, want)
	}
	add("6")
	s.Wake()
	wantMessage(t, c, "6")
	s.Close(Normal)
	s.Wake()
	wantClose(t, c, 1000, "")
}

func TestSourceErrorCloses(t *testing.T) {
	r := newRig(t, Options{}, func(_ context.Context, s *Session) (Handler, error) {
		s.Pull(sourceFunc(func(context.Context, int) ([][]byte, error) { return nil, Fail(Revoked, nil) }))
		return funcs{}, nil
	})
	wantClose(t, r.dial(), 1008, "revoked")
}

func TestErrorsMayCarryACodeAndNothingQueuedIsCut(t *testing.T) {
	r := newRig(t, Options{}, func(_ context.Context, s *Session) (Handler, error) {
		if err := s.Send([]byte("refused")); err != nil {
			return nil, err
		}
		return nil, &CloseError{Reason: Refused, Code: 4403, Text: "forbidden"}
	})
	c := r.dial()
	wantMessage(t, c, "refused")
	wantClose(t, c, 4403, "forbidden")
}

func TestSourceSaysALastWord(t *testing.T) {
	r := newRig(t, Options{}, func(_ context.Context, s *Session) (Handler, error) {
		said := false
		s.Pull(sourceFunc(func(context.Context, int) ([][]byte, error) {
			if said {
				return nil, Fail(Evicted, nil)
			}
			said = true
			return [][]byte{[]byte("evicted")}, nil
		}))
		return funcs{}, nil
	})
	c := r.dial()
	wantMessage(t, c, "evicted")
	wantClose(t, c, 1000, "")
}
