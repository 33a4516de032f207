package appliance_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"signalbox/appliance/appliancetest"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/daemonhost"
)

// copyDatabase copies a database that is closed, with what lies beside it.
func copyDatabase(t *testing.T, from, to string) {
	t.Helper()
	removeDatabase(t, to)
	for _, end := range []string{"", "-wal"} {
		text, err := os.ReadFile(from + end)
		if os.IsNotExist(err) {
			continue
		}
		if err == nil {
			err = os.WriteFile(to+end, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func removeDatabase(t *testing.T, path string) {
	t.Helper()
	for _, end := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(path + end); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
}

// database is the file of the machine's daemon.
func (m *machine) database() string { return m.Path("state", daemonhost.DatabaseFile) }

// TestArchiveDaemonDatabaseDeleted: row 13. Before a COMMIT is out the daemon is told the job and the route again, and the step
// is made again; behind it a person decides. Nothing that the lost database had made is removed by itself.
func TestArchiveDaemonDatabaseDeleted(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	r.start()
	r.throughSteps(func(m *machine, g *gate, j archiveJob, _ bool) {
		r.clock.By(2 * time.Minute) // databases that are replaced faster than that are two that take turns
		m.Signal()
		g.release()
		if err := m.Ended(); err != nil {
			t.Error(err)
		}
		removeDatabase(t, m.database())
		m.Start()
		step := *j.Step
		r.alerted("epoch_changed")
		if *j.Step != "commit" {
			j = r.await(j.ID, "completed")
			if n, _ := j.step(step); n != 2 {
				t.Errorf("%s was commanded %d times", step, n)
			}
		} else {
			j = r.awaitHeld(j.ID)
			r.fails(j, "state_lost")
			r.arrived()
			r.explained(j.ID, "held", "jobs resolve")
			r.resolve(j.ID, "complete")
			r.await(j.ID, "completed")
		}
		r.arrived()
		r.left(m, j.ID, step)
		r.discard(j.ID)
	})
}

// left checks what the daemon tells a person of a job whose record it lost in the step.
func (r *archiveRig) left(m *machine, id, step string) {
	r.t.Helper()
	aside := map[string]string{"transfer": ".archive-control/leftovers/jobs/" + id, "materialize": ".archive-control/leftovers/work/" + id}[step]
	r.ended(id)
	list := m.status().Leftovers
	if !slices.ContainsFunc(list, func(l daemonhost.Leftover) bool {
		return strings.Contains(l.Path, id) && strings.Contains(l.Path, aside)
	}) {
		r.t.Errorf("lost in %s: the daemon lists %+v", step, list)
	}
	for _, l := range list {
		if _, err := os.Stat(l.Path); err != nil {
			r.t.Error(err)
		}
	}
}

// ended waits until no daemon works on the job any more.
func (r *archiveRig) ended(id string) {
	r.t.Helper()
	r.Eventually("the end of the job's clean-up", func() bool {
		for _, m := range []*machine{r.nas, r.vault} {
			s := m.status()
			if slices.Contains(s.Closing, id) || slices.ContainsFunc(s.Jobs, func(j daemonhost.JobStatus) bool { return j.JobID == id }) {
				return false
			}
		}
		return true
	})
}

// TestArchiveDaemonTellsNoLeftoverThatItRemoves: what a daemon is about to clear away is nothing for a person to look at.
func TestArchiveDaemonTellsNoLeftoverThatItRemoves(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	r.start()
	r.nas.Put("content", "films/a", noise(1, 1000))
	g := r.vault.hold("close: removed") // the first of its directories is gone, a further one is there
	j := r.run("films", nil)
	g.await()
	if s := r.vault.status(); !slices.Contains(s.Closing, j.ID) || len(s.Leftovers) > 0 {
		t.Errorf("while it clears away the daemon tells %v and lists %+v", s.Closing, s.Leftovers)
	}
	g.release()
	r.await(j.ID, "completed")
	r.ended(j.ID)
	if s := r.vault.status(); len(s.Closing) > 0 || len(s.Leftovers) > 0 {
		t.Errorf("afterwards it tells %v and lists %+v", s.Closing, s.Leftovers)
	}
}

// discard removes what a job left for a person.
func (r *archiveRig) discard(id string) {
	r.t.Helper()
	r.ended(id)
	for _, m := range []*machine{r.nas, r.vault} {
		for _, dir := range []string{m.Path("receive", "jobs"), m.Path("outbox", "jobs"), m.Path("content", ".archive-control/work"),
			m.Path("receive", ".archive-control/leftovers/jobs"), m.Path("content", ".archive-control/leftovers/work")} {
			entries, _ := os.ReadDir(dir)
			for _, e := range entries {
				if strings.HasPrefix(e.Name(), id) {
					if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
						r.t.Error(err)
					}
				}
			}
		}
	}
}

// status is what the daemon tells of itself.
func (m *machine) status() daemonhost.Status {
	m.reins.t.Helper()
	s, err := daemonhost.ReadStatus(m.reins.t.Context(), m.Path("state", daemonhost.SocketFile))
	if err != nil {
		m.reins.t.Fatal(err)
	}
	return s
}

// lastStatus is status for a daemon that may be down.
func (m *machine) lastStatus() any {
	s, err := daemonhost.ReadStatus(context.Background(), m.Path("state", daemonhost.SocketFile))
	if err != nil {
		return err
	}
	return s
}

// TestArchiveDaemonDatabaseRestored: row 12. The daemon comes with a copy of its database from before the commit.
func TestArchiveDaemonDatabaseRestored(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	r.start()
	r.nas.Put("content", "films/a", noise(1, 1000))
	kept := untouched(t, r.nas.Path("content", ""))
	g := r.vault.hold("verify: read")
	j := r.run("films", nil)
	g.await()
	r.vault.Signal()
	g.release()
	if err := r.vault.Ended(); err != nil {
		t.Error(err)
	}
	older := filepath.Join(t.TempDir(), "older")
	copyDatabase(t, r.vault.database(), older)
	r.vault.Start()
	r.await(j.ID, "completed")
	r.clean()
	r.vault.Stop()
	copyDatabase(t, older, r.vault.database())
	r.vault.Start()
	j = r.awaitHeld(j.ID)
	r.fails(j, "commit_conflict")
	r.alerted("daemon_rolled_back")
	r.Eventually("the daemon to hold the job", func() bool {
		return slices.ContainsFunc(r.vault.status().Jobs, func(s daemonhost.JobStatus) bool { return s.JobID == j.ID && s.State == "manual" })
	})
	r.explained(j.ID, "held", "committed", "jobs resolve")
	r.arrived()
	r.resolve(j.ID, "complete")
	r.await(j.ID, "completed")
	r.Eventually("the daemon to end the job", func() bool { return len(r.vault.status().Jobs) == 0 })
	r.arrived()
	kept()
}

// TestArchiveControlDatabaseRestored: row 11. Control comes with a copy of its database from before the commit; the job is
// known, or a daemon has to tell of it.
func TestArchiveControlDatabaseRestored(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprint("known ", known), func(t *testing.T) {
			t.Parallel()
			r := newArchiveRig(t)
			r.start()
			r.nas.Put("content", "films/a", noise(1, 1000))
			kept := untouched(t, r.nas.Path("content", ""))
			older := filepath.Join(t.TempDir(), "older")
			request := r.transfer("films", nil)
			save := func() { copyDatabase(t, r.DatabasePath(), older) }
			if !known {
				r.restartWith(save)
				r.connectedAgain()
			}
			before, after := r.vault.hold("verify: read"), r.vault.hold("commit: after the record")
			j := r.startJob(r.preview(request))
			before.await()
			if known {
				r.restartWith(save)
			}
			before.release()
			after.await()
			r.restartWith(func() {
				after.release()
				copyDatabase(t, older, r.DatabasePath())
			})
			j = r.awaitHeld(j.ID)
			r.alerted("control_rolled_back")
			if known {
				r.fails(j, "commit_conflict")
			} else {
				r.fails(j, "state_lost")
				if !j.Foreign {
					t.Error("the job is not called foreign")
				}
			}
			r.arrived()
			r.explained(j.ID, "held", "jobs resolve")
			r.resolve(j.ID, "complete")
			r.await(j.ID, "completed")
			r.arrived()
			kept()
		})
	}
}

// connectedAgain waits until both daemons are there and the route is ready.
func (r *archiveRig) connectedAgain() {
	r.t.Helper()
	r.online(r.nas)
	r.online(r.vault)
	r.Eventually("the route", func() bool {
		var now struct{ Ready bool }
		r.Do("GET", "/routes/"+r.route, nil, 200, &now)
		return now.Ready
	})
}

// awaitHeld waits until a job is held. Control may not know it yet, or hold it as ended.
func (r *archiveRig) awaitHeld(id string) (j archiveJob) {
	r.t.Helper()
	r.Eventually("the job to be held", func() bool {
		status, body := r.Admin("GET", "/jobs/"+id, nil)
		if status != 200 {
			return false
		}
		j = archiveJob{}
		decodeInto(r.t, body, &j)
		return j.State == "manual"
	})
	return j
}

// TestArchiveClockOff: row 8. A clock that is a day off gives a warning and changes nothing.
func TestArchiveClockOff(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	r.vault.clock.By(24 * time.Hour)
	r.nas.clock.By(48 * time.Hour)
	r.nas.Put("content", "films/a", noise(1, 1000))
	kept := untouched(t, r.nas.Path("content", ""))
	r.start()
	j := r.run("films", nil)
	r.await(j.ID, "completed")
	r.arrived()
	r.alerted("clock_skew")
	for _, m := range []*machine{r.nas, r.vault} {
		var d struct {
			ClockSkewMS int64 `json:"clock_skew_ms"`
		}
		r.Do("GET", "/daemons/"+m.ID.String(), nil, 200, &d)
		if off := time.Duration(max(d.ClockSkewMS, -d.ClockSkewMS)) * time.Millisecond; off < 23*time.Hour || off > 49*time.Hour {
			t.Errorf("daemon %s: skew %v", m.Name, off)
		}
	}
	kept()
	r.clean()
}

// TestArchiveTwoDaemonsOneID: row 47. The newest connection wins each time; no job begins until one of the two has stayed.
func TestArchiveTwoDaemonsOneID(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	r.nas.Put("content", "films/a", noise(1, 1000))
	r.start()
	request := r.transfer("films", nil)
	twin := r.machine("twin", func(m *appliancetest.Machine) { m.Config.ClientID = r.vault.ID.String() })
	twin.Start()
	r.alerted("duplicate_daemon")
	twin.Stop()
	state := func() string { // empty while the twin is the last that registered
		var d struct {
			State      string
			StateEpoch string `json:"state_epoch"`
		}
		r.Do("GET", "/daemons/"+r.vault.ID.String(), nil, 200, &d)
		if d.StateEpoch != r.vault.status().StateEpoch {
			return ""
		}
		return d.State
	}
	r.Eventually("the real daemon", func() bool { return state() == "paused" })
	r.refused(r.preview(request), "unavailable", "two databases")
	r.Eventually("the end of the pause", func() bool {
		now := state()
		if now == "paused" { // again, when a registration of the twin was still on its way
			r.clock.By(2 * time.Minute)
		}
		return now == "online"
	})
	r.connectedAgain() // also the route, which the twin did not know
	r.await(r.startJob(r.preview(request)).ID, "completed")
	r.arrived()
}

// TestArchiveReplacedSocket: row 7. The old socket still delivers an event: nothing changes by it, and it is closed.
func TestArchiveReplacedSocket(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	r.nas.Put("content", "films/a", noise(1, 1000))
	kept := untouched(t, r.nas.Path("content", ""))
	r.start()
	type held struct {
		c *heldConn
		e *pb.Envelope
	}
	first := make(chan held, 1)
	r.nas.onSend(func(c *heldConn, e *pb.Envelope) bool {
		if e.GetJobEvent() != nil {
			select {
			case first <- held{c, e}:
				c.takeAway()
				return false
			default:
			}
		}
		return true
	})
	j := r.run("films", nil)
	old := await(t, "the first event", first)
	// The daemon has another connection soon; its old one still stands.
	r.await(j.ID, "completed")
	if err := old.c.Conn.Send(t.Context(), old.e, 0); err == nil {
		_, err = old.c.Conn.Receive()
		for err == nil {
			_, err = old.c.Conn.Receive()
		}
		if !strings.Contains(err.Error(), "4409") {
			t.Errorf("the old socket ended with %v", err)
		}
	}
	old.c.Conn.Close(1000, "")
	if n := r.Count("SELECT count(*) FROM archive_events WHERE sequence = 1"); n != 1 {
		t.Errorf("event 1 is stored %d times", n)
	}
	r.arrived()
	kept()
	r.clean()
}
