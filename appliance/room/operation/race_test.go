package operation_test

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/fault"
	"signalbox/appliance/room"
	"signalbox/appliance/room/connection"
	"signalbox/appliance/room/directory"
	"signalbox/appliance/room/operation"
	"signalbox/appliance/room/timeline"
)

// slowRegistry does something right before a lease is taken.
type slowRegistry struct {
	*connection.Registry
	before func()
}

func (s *slowRegistry) AssumeRole(agentNo int64, id string, roomID uuid.UUID, role string, exclusive bool) error {
	s.before()
	return s.Registry.AssumeRole(agentNo, id, roomID, role, exclusive)
}

// slowTimeline does something right before the history is read.
type slowTimeline struct {
	*timeline.Timeline
	before func()
}

func (s *slowTimeline) History(ctx context.Context, a room.Actor, q timeline.HistoryQuery) (timeline.History, error) {
	s.before()
	return s.Timeline.History(ctx, a, q)
}

func TestRoleThatGoesWhileItIsAssumed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	conns := &slowRegistry{Registry: r.conns}
	r.Table = operation.New(operation.Services{Directory: r.dir, Identity: r.ids, Timeline: r.log, Feed: r.feed, Connections: conns})
	for name, meddle := range map[string]func() error{
		"deleted": func() error { return r.dir.DeleteRole(r.ctx(), r.ann.Actor(), r.den.ID, "lead") },
		"spelt anew": func() error {
			name := "LEAD"
			_, err := r.dir.EditRole(r.ctx(), r.ann.Actor(), r.den.ID, "lead", directory.RoleChange{Name: &name})
			return err
		},
	} {
		if _, err := r.dir.DefineRole(r.ctx(), r.ann.Actor(), r.den.ID, directory.NewRole{Name: "lead"}); err != nil {
			t.Fatal(err)
		}
		conns.before = func() { r.ok(name, meddle()) }
		if _, err := r.Call(r.ctx(), r.asFox("assume_role", `{"role":"lead"}`)); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s meanwhile: %v", name, err)
		}
		if l, held := r.conns.HeldRole(r.fox.No); held {
			t.Errorf("%s meanwhile: fox holds %+v", name, l)
		}
		_ = r.dir.DeleteRole(r.ctx(), r.ann.Actor(), r.den.ID, "lead")
	}
}

// What is said while the history is read may not be in it: it still counts as missed (D.10).
func TestPostDuringReadContextIsNotCaughtUpWith(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	log := &slowTimeline{r.log, func() { r.post(r.ann.Actor(), "meanwhile") }}
	r.Table = operation.New(operation.Services{Directory: r.dir, Identity: r.ids, Timeline: log, Feed: r.feed, Connections: r.conns})
	r.post(r.ann.Actor(), "before")
	r.do(r.asFox("read_context", ``))
	if at, known := r.conns.Baseline(r.fox.No, r.den.No); at != 1 || !known {
		t.Errorf("baseline %d (%v), want the head from before the read", at, known)
	}
}
