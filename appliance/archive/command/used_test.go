package command_test

import "testing"

// TestSendingUsesNoGeneration: what control sends right after a registration shows nothing about the daemon, which may die
// before it stores the generation. Its database must not be taken for an old copy then (daemon protocol 4.6).
func TestSendingUsesNoGeneration(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link := r.register()
	row := r.enqueue(link, query())
	s, _ := r.connect(link)
	r.expect(s, row)
	used := func() int64 {
		d, err := r.reg.Daemon(ctx, r.peerID)
		if err != nil {
			t.Fatal(err)
		}
		return d.GenerationUsed
	}
	if n := used(); n != 0 {
		t.Errorf("generation %d counts as used although the daemon has sent nothing", n)
	}
	r.mustAck(link, row)
	if n := used(); n != link.Generation {
		t.Errorf("generation %d is used, want %d after an answer", n, link.Generation)
	}
}
