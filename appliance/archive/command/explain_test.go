package command_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/registry"
	"signalbox/appliance/fault"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link := r.register()
	s, _ := r.connect(link)
	row := r.enqueue(link, query())
	waiting := func() string {
		t.Helper()
		e, err := r.queue.Explain(ctx, row.ID)
		if err != nil {
			t.Fatal(err)
		}
		return e.Waiting
	}
	expect := func(part string) {
		t.Helper()
		if got := waiting(); !strings.Contains(got, part) || part == "" && got != "" {
			t.Errorf("%q, want %q", got, part)
		}
	}
	expect("as soon as")
	r.expect(s, row)
	expect("send 1 of 3; the next follows 15s after")
	for range 2 {
		r.clock.Advance(15 * time.Second)
		r.expect(s, row)
	}
	expect("the last one")
	r.clock.Advance(15 * time.Second)
	r.expect(s)
	expect("used up")
	told := func(state, summary, waits, action string) {
		t.Helper()
		e, err := r.queue.Explain(ctx, row.ID)
		if err != nil || e.Daemon != "nas" || !strings.Contains(e.Summary, summary) || e.WaitsFor != waits || !strings.Contains(e.NextAction, action) {
			t.Errorf("%s: %+v, %v", state, e, err)
		}
	}
	told("parked", "as often as allowed, 3 times, last 15s ago", "daemon nas", "`signalbox daemons show "+r.peerID.String())
	r.mustAck(link, row)
	expect("")
	told("accepted", "accepted by daemon nas now", "nothing", "Nothing")
	low, high := row.ID, row.ID
	low[15], high[15] = 0, 255
	if ids, err := r.queue.Find(ctx, low, high); err != nil || len(ids) != 1 || ids[0] != row.ID {
		t.Errorf("found %v, %v", ids, err)
	}
	offline := r.enqueue(link, query())
	r.update(func(tx command.Tx) error {
		_, err := tx.(registry.Tx).RegistryOffline(link.Daemon.No, link.Generation)
		return err
	})
	row = offline
	expect("offline")
	_, err := s.Next(ctx, 1)
	wantFault(t, err, fault.Stale)
	if _, err := r.queue.Explain(ctx, uuid.New()); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

// Two databases under one id: assignments wait, all else goes on.
func TestPausedDaemonGetsNoAssignments(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := r.peerEpoch
	r.register()
	r.peerEpoch = uuid.New()
	r.register()
	r.peerEpoch = first
	link := r.register()
	s, _ := r.connect(link)
	assign := r.enqueue(link, &pb.Command{Operation: &pb.Command_AssignJob{AssignJob: &pb.AssignJob{}}})
	other := r.enqueue(link, query())
	r.expect(s, other)
	e, err := r.queue.Explain(ctx, assign.ID)
	if err != nil || !strings.Contains(e.Waiting, "Two databases") {
		t.Errorf("%q, %v", e.Waiting, err)
	}
}
