package api

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/fault"
)

// slowRecords answers searches only when it is told to.
type slowRecords struct {
	Records
	begun chan struct{}
	end   chan struct{}
}

func (s *slowRecords) ListEvents(context.Context, int64, agent.EventFilter, agent.Page) ([]agent.Event, error) {
	s.begun <- struct{}{}
	<-s.end
	return nil, nil
}

func (s *slowRecords) GetWorker(context.Context, int64, uuid.UUID) (agent.Worker, error) {
	return agent.Worker{Name: "w"}, nil
}

func TestOneSearchAtATime(t *testing.T) {
	slow := &slowRecords{begun: make(chan struct{}), end: make(chan struct{})}
	records := Services{Records: slow}.inLane(newLane()).Records
	done := make(chan error)
	list := func(ctx context.Context) {
		_, err := records.ListEvents(ctx, 1, agent.EventFilter{}, agent.Page{})
		done <- err
	}
	go list(t.Context())
	<-slow.begun

	gone, leave := context.WithCancel(t.Context())
	go list(gone)
	leave()
	if err := <-done; !fault.Is(err, fault.Canceled) {
		t.Errorf("gave up waiting: %v", err)
	}
	if _, err := records.GetWorker(t.Context(), 1, uuid.Nil); err != nil { // by its id: no search
		t.Error(err)
	}

	go list(t.Context())
	select {
	case <-slow.begun:
		t.Error("two searches at once")
	default:
	}
	slow.end <- struct{}{}
	if err := <-done; err != nil {
		t.Error(err)
	}
	<-slow.begun // the other's turn
	slow.end <- struct{}{}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
