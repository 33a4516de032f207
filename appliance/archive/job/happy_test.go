package job_test

import (
	"testing"

	"signalbox/appliance/archive"
)

func TestTransferRunsToItsEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.in(id, assigning)
	r.upTo(id, commit)
	r.in(id, running)
	r.vault.step(id, commit)
	d := r.in(id, completed)
	if d.Permille != 1000 || !d.Committed || len(d.Reservations) != 0 {
		t.Fatalf("%+v", d.Job)
	}
	r.nas.accept(r.nas.one(archive.CloseJob))
	r.vault.accept(r.vault.one(archive.CloseJob))
	r.nas.nothing()
	r.vault.nothing()
	for _, s := range r.show(id).Participants {
		if !s.Closed {
			t.Errorf("%s is not closed", s.Peer.Name)
		}
	}
	t.Log("\n" + r.story(id))
}
