package appliance_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/frame"
)

// TestArchiveCrashes ends daemons between two durable writes.
func TestArchiveCrashes(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	r.start()
	r.scenes(scenePublishedUnjournaled, sceneCompletedUnsent, sceneRepeatedCommand, sceneChangedCommand, sceneClosedOffline,
		sceneKilledWhileClosing, scenePowerLossAtManifest)
}

// crashed waits until the machine's daemon was ended by crashAt, and starts it again.
func (r *archiveRig) crashed(m *machine) {
	r.t.Helper()
	if err := m.Ended(); !errors.Is(err, errCrash) {
		r.t.Fatalf("daemon %s: %v", m.Name, err)
	}
	m.Start()
}

// scenePublishedUnjournaled: row 3. The published directory is found again; there is no second copy.
func scenePublishedUnjournaled(r *archiveRig) {
	r.nas.Put("content", "films/a", noise(1, 1000))
	kept := untouched(r.t, r.nas.Path("content", ""))
	var published atomic.Bool
	r.vault.on("publish: effect", func() { published.Store(true) })
	r.vault.crashAt(daemon.EffectDone, published.Load)
	j := r.run("films", nil)
	if err := r.vault.Ended(); !errors.Is(err, errCrash) {
		r.t.Fatal(err)
	}
	first := inode(r.t, r.vault.Path("content", "films/a"))
	r.vault.Start()
	r.await(j.ID, "completed")
	if again := inode(r.t, r.vault.Path("content", "films/a")); again != first {
		r.t.Error("the file was copied again")
	}
	if n := r.vault.times("publish: effect"); n != 1 {
		r.t.Errorf("published %d times", n)
	}
	sameListing(r.t, listing(r.t, r.vault.Path("content", "")), listing(r.t, r.nas.Path("content", "")))
	kept()
}

// sceneCompletedUnsent: row 4. The event is sent after the next registration, and the step is not done again.
func sceneCompletedUnsent(r *archiveRig) {
	r.nas.Put("content", "films/a", noise(1, 1000))
	kept := untouched(r.t, r.nas.Path("content", ""))
	before := r.vault.times("verify: read")
	r.vault.crashAt(daemon.EndStored, func() bool { return r.vault.times("verify: read") > before })
	j := r.run("films", nil)
	r.crashed(r.vault)
	j = r.await(j.ID, "completed")
	if n := r.vault.times("verify: read") - before; n != 1 {
		r.t.Errorf("verified %d times", n)
	}
	if n, _ := j.step("verify"); n != 1 {
		r.t.Errorf("VERIFY was commanded %d times", n)
	}
	kept()
}

// sceneRepeatedCommand: row 5. A command that comes again after a restart is answered and not carried out again.
func sceneRepeatedCommand(r *archiveRig) {
	r.nas.Put("content", "films/a", noise(1, 1000))
	kept := untouched(r.t, r.nas.Path("content", ""))
	before := r.vault.times("verify: read")
	var command *pb.Command
	r.vault.onStep(pb.JobStep_JOB_STEP_VERIFY, func(c *pb.Command) { command = proto.CloneOf(c) })
	g := r.vault.hold("commit: before the record")
	j := r.run("films", nil)
	g.await()
	again := r.vault.hold("commit: before the record")
	r.restartDaemon(r.vault, g)
	again.await()
	answers := make(chan *pb.CommandAck, 16)
	r.vault.onSend(func(_ *heldConn, e *pb.Envelope) bool {
		if a := e.GetCommandAck(); a.GetCommandId() == command.GetCommandId() {
			answers <- a
		}
		return true
	})
	c := r.vault.connection()
	c.inject <- &frame.Frame{Envelope: c.envelope(&pb.Envelope{Payload: &pb.Envelope_Command{Command: command}})}
	if a := await(r.t, "the answer", answers); a.GetStatus() != pb.AckStatus_ACK_STATUS_DUPLICATE || a.GetStoredStatus() != pb.AckStatus_ACK_STATUS_ACCEPTED {
		r.t.Errorf("answer: %v", a)
	}
	again.release()
	r.await(j.ID, "completed")
	if n := r.vault.times("verify: read") - before; n != 1 {
		r.t.Errorf("verified %d times", n)
	}
	kept()
}

// restartDaemon ends the machine's daemon while its work is at the gate, and starts it again.
func (r *archiveRig) restartDaemon(m *machine, g *gate) {
	r.t.Helper()
	m.Signal()
	g.release()
	if err := m.Ended(); err != nil {
		r.t.Errorf("daemon %s: %v", m.Name, err)
	}
	m.Start()
}

// envelope fills in what every envelope of the connection has.
func (c *heldConn) envelope(e *pb.Envelope) *pb.Envelope {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.EnvelopeId, e.Version, e.ClientId, e.ConnectionGeneration = c.last.GetEnvelopeId(), c.last.GetVersion(), c.last.GetClientId(), c.last.GetConnectionGeneration()
	e.SentAt = c.last.GetSentAt()
	return e
}

// sceneChangedCommand: row 6. The same id with another payload is a conflict: nothing is carried out, and a person decides.
func sceneChangedCommand(r *archiveRig) {
	r.nas.Put("content", "films/a", noise(1, 1000))
	kept := untouched(r.t, r.nas.Path("content", ""))
	before := r.vault.times("verify: read")
	r.vault.onReceive(func(c *heldConn, f *frame.Frame) bool {
		if x := f.Envelope.GetCommand(); x.GetExecuteStep().GetStep() == pb.JobStep_JOB_STEP_VERIFY {
			changed := proto.CloneOf(f.Envelope)
			changed.GetCommand().GetExecuteStep().StepAttempt++
			c.inject <- &frame.Frame{Envelope: changed}
		}
		return true
	})
	g := r.vault.hold("commit: before the record")
	j := r.awaitJob(r.run("films", nil).ID, "held", func(j archiveJob) bool { return j.State == "manual" })
	r.fails(j, "command_conflict")
	r.alerted("command_conflict")
	r.explained(j.ID, "held", "jobs resolve")
	r.vault.onReceive(nil)
	g.release()
	if n := r.vault.times("verify: read") - before; n > 1 {
		r.t.Errorf("verified %d times", n)
	}
	r.resolve(j.ID, "resume")
	r.await(j.ID, "completed")
	sameListing(r.t, listing(r.t, r.vault.Path("content", "")), listing(r.t, r.nas.Path("content", "")))
	kept()
}

// resolve decides about a job that is held.
func (r *archiveRig) resolve(id, decision string) {
	r.t.Helper()
	r.Do("POST", "/jobs/"+id+"/resolve", map[string]any{"decision": decision, "reason": "looked at both machines"}, 200, nil)
	if n := r.Count("SELECT count(*) FROM audit_log WHERE action = ? AND target_id = ?", "archive.job."+decision, id); n == 0 {
		r.t.Errorf("decision %s is not in the audit log", decision)
	}
}

// sceneClosedOffline: row 53. A source that is away at the end keeps its staged files until it hears of it.
func sceneClosedOffline(r *archiveRig) {
	r.nas.Put("content", "films/a", noise(1, 1000))
	kept := untouched(r.t, r.nas.Path("content", ""))
	g := r.vault.hold("materialize: built")
	j := r.run("films", nil)
	g.await()
	r.nas.Stop()
	g.release()
	r.await(j.ID, "completed")
	if _, err := os.Stat(jobDir(r.nas, "outbox", j.ID)); err != nil {
		r.t.Errorf("the staged files are gone: %v", err)
	}
	r.nas.Start()
	r.clean()
	kept()
}

// sceneKilledWhileClosing: row 54.
func sceneKilledWhileClosing(r *archiveRig) {
	r.nas.Put("content", "films/a", noise(1, 1000))
	kept := untouched(r.t, r.nas.Path("content", ""))
	for _, m := range []*machine{r.nas, r.vault} {
		before := m.times("close: removed")
		m.crashAt(daemon.EffectDone, func() bool { return m.times("close: removed") > before })
	}
	j := r.run("films", nil)
	r.crashed(r.nas)
	r.crashed(r.vault)
	r.await(j.ID, "completed")
	r.clean()
	sameListing(r.t, listing(r.t, r.vault.Path("content", "")), listing(r.t, r.nas.Path("content", "")))
	kept()
}

// scenePowerLossAtManifest: row 50. The manifest's name is lost, or it is there and whole; either way staging goes on.
func scenePowerLossAtManifest(r *archiveRig) {
	r.nas.Put("content", "films/a", noise(1, 1000))
	kept := untouched(r.t, r.nas.Path("content", ""))
	for _, lost := range []bool{false, true} {
		var dead atomic.Bool
		g := r.nas.hold("stage: before the marker")
		r.nas.beforeFiles(func(string, beneath.Op, string) error {
			if dead.Load() {
				return errCrash
			}
			return nil
		})
		j := r.run("films", nil)
		g.await()
		dead.Store(true)
		r.nas.Signal()
		g.release()
		if err := r.nas.Ended(); err != nil {
			r.t.Error(err)
		}
		r.nas.beforeFiles(nil)
		manifest := filepath.Join(jobDir(r.nas, "outbox", j.ID), "manifest.json")
		if lost {
			if err := os.Remove(manifest); err != nil {
				r.t.Error(err)
			}
		} else if _, err := os.Stat(manifest); err != nil {
			r.t.Error(err)
		}
		r.nas.Start()
		r.await(j.ID, "completed")
		sameListing(r.t, listing(r.t, r.vault.Path("content", "")), listing(r.t, r.nas.Path("content", "")))
		kept()
		r.wipe(r.vault)
	}
}

// workPoints are moments in each step of a transfer and, behind them, of an eviction: the machine at work, the step, and a
// point of it.
var workPoints = []struct {
	role, step, point string
	committed         bool // past the record
}{
	{"source", "stage", "stage: before the manifest", false},
	{"target", "transfer", "transfer: intent", false},
	{"target", "materialize", "materialize: built", false},
	{"target", "verify", "verify: read", false},
	{"target", "commit", "commit: before the record", false},
	{"target", "commit", "commit: after the record", true},
}

// at is the machine of the role.
func (r *archiveRig) at(role string) *machine {
	if role == "source" {
		return r.nas
	}
	return r.vault
}

// throughSteps runs a transfer for each point and calls do while the work is there, with the gate that it has to open.
func (r *archiveRig) throughSteps(do func(m *machine, g *gate, j archiveJob, committed bool)) {
	r.t.Helper()
	for i, p := range workPoints {
		r.scenes(func(r *archiveRig) {
			r.nas.Put("content", "films/a", noise(uint64(i), 1000))
			r.nas.Put("content", "films/b/c", noise(uint64(i)+100, 2000))
			kept := untouched(r.t, r.nas.Path("content", ""))
			m := r.at(p.role)
			g := m.hold(p.point)
			j := r.run("films", nil)
			g.await()
			j = r.job(j.ID)
			if j.Step == nil || *j.Step != p.step {
				r.t.Errorf("the job is at %v and not at %s", j.Step, p.step)
			}
			do(m, g, j, p.committed)
			kept()
		})
	}
}

// arrived checks that the target has what the source has.
func (r *archiveRig) arrived() {
	r.t.Helper()
	sameListing(r.t, listing(r.t, r.vault.Path("content", "")), listing(r.t, r.nas.Path("content", "")))
}

// TestArchiveControlRestarts restarts control in the middle of each step.
func TestArchiveControlRestarts(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	r.start()
	r.throughSteps(func(m *machine, g *gate, j archiveJob, _ bool) {
		r.restartWith(g.release) // the step goes on, and may end, while control is away
		r.await(j.ID, "completed")
		r.arrived()
	})
}

// TestArchiveDaemonRestarts restarts the daemon at work in the middle of each step.
func TestArchiveDaemonRestarts(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	r.start()
	r.throughSteps(func(m *machine, g *gate, j archiveJob, _ bool) {
		r.restartDaemon(m, g)
		r.await(j.ID, "completed")
		r.arrived()
	})
}

// TestArchiveCancel: rows 36 and 37. A job is cancelled in the middle of each step: what it made is taken back, what
// others made stays; behind the record the cancel comes too late and the job completes.
func TestArchiveCancel(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	r.start()
	r.throughSteps(func(m *machine, g *gate, j archiveJob, committed bool) {
		r.vault.Put("content", "others/file", []byte("not ours"))
		foreign := untouched(t, r.vault.Path("content", ""))
		if slices.Contains([]string{"verify", "commit"}, *j.Step) { // the job's names stand among these
			foreign = func() {}
		}
		status, body := r.Admin("POST", "/jobs/"+j.ID+"/cancel", map[string]any{"reason": "changed my mind"})
		if status != 200 {
			t.Errorf("cancel in %s: %d %s", *j.Step, status, body)
		}
		r.Eventually("the daemon's answer to the cancel", func() bool {
			now := r.job(j.ID)
			if committed && now.Committed { // the daemon's cursor or its event told of the record: the cancel is withdrawn
				return true
			}
			if now.Waiting != nil { // its cursor has moved meanwhile: it is sent another one
				r.clock.By(time.Second)
			}
			return slices.ContainsFunc(now.Commands, func(c archiveCommand) bool {
				return c.Kind == "cancel_job" && (c.State == "accepted" || c.Error != nil && c.Error.Code == "unsafe_state")
			})
		})
		g.release()
		if committed {
			r.await(j.ID, "completed")
			return
		}
		j = r.await(j.ID, "cancelled")
		foreign()
		sameListing(t, listing(t, r.vault.Path("content", "")), map[string]string{"others/file": "not ours"})
		if n := r.Count("SELECT count(*) FROM archive_reservations WHERE released_at IS NULL"); n != 0 {
			t.Errorf("%d reservations are left", n)
		}
	})
	if n := r.Count("SELECT count(*) FROM audit_log WHERE action = 'archive.job.cancel'"); n < len(workPoints) {
		t.Errorf("%d cancels are in the audit log", n)
	}
}

// TestArchiveDisconnects cuts the connections in the middle of each step: it goes on, and is not done again.
func TestArchiveDisconnects(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	r.start()
	r.throughSteps(func(m *machine, g *gate, j archiveJob, _ bool) {
		dials := m.wire.Count()
		r.nas.wire.CutAll()
		r.vault.wire.CutAll()
		r.Eventually("a new connection", func() bool { return m.wire.Count() > dials })
		g.release()
		j = r.await(j.ID, "completed")
		for _, s := range j.StepList {
			if s.Attempts != 1 {
				t.Errorf("%s was commanded %d times", s.Step, s.Attempts)
			}
		}
		r.arrived()
	})
}
