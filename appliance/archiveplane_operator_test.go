package appliance_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/frame"
)

// TestArchiveDecisions has a job held, and each of the three decisions made about it. Each is in the audit log.
func TestArchiveDecisions(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	r.start()
	for decision, end := range map[string]string{"resume": "completed", "complete": "completed", "abandon": "failed"} {
		r.scenes(func(r *archiveRig) {
			r.nas.Put("content", "films/a", noise(uint64(len(decision)), 1000))
			kept := untouched(t, r.nas.Path("content", ""))
			g := r.vault.hold("verify: read")
			j := r.run("films", nil)
			g.await()
			if status, _ := r.Admin("POST", "/jobs/"+j.ID+"/resolve", map[string]any{"decision": decision, "reason": "too early"}); status != 409 {
				t.Errorf("a job that is not held: %d", status)
			}
			r.vault.connection().repeatChanged(r, "verify")
			j = r.awaitHeld(j.ID)
			g.release()
			if status, _ := r.Admin("POST", "/jobs/"+j.ID+"/resolve", map[string]any{"decision": decision}); status != 422 {
				t.Errorf("a decision without a reason: %d", status)
			}
			r.resolve(j.ID, decision)
			r.await(j.ID, end)
			if decision != "abandon" {
				r.arrived()
			}
			if n := r.Count("SELECT count(*) FROM archive_reservations WHERE released_at IS NULL"); n != 0 {
				r.Eventually("the end of the reservations", func() bool {
					return r.Count("SELECT count(*) FROM archive_reservations WHERE released_at IS NULL") == 0
				})
			}
			kept()
			r.discard(j.ID)
		})
	}
}

// repeatChanged gives the daemon the newest command of the step once more, changed: a conflict.
func (c *heldConn) repeatChanged(r *archiveRig, step string) {
	r.t.Helper()
	id := ""
	r.Eventually("the acknowledged command", func() bool {
		var jobs struct{ Items []archiveJob }
		r.Do("GET", "/jobs?open=true", nil, 200, &jobs)
		for _, j := range jobs.Items {
			for _, k := range r.job(j.ID).Commands {
				if k.Kind == "execute_step" && k.State == "accepted" && k.Step != nil && *k.Step == step {
					id = k.ID
				}
			}
		}
		return id != ""
	})
	c.inject <- &frame.Frame{Envelope: c.envelope(&pb.Envelope{Payload: &pb.Envelope_Command{Command: proto.CloneOf(c.command(id, func(k *pb.Command) {
		k.GetExecuteStep().StepAttempt++
	}))}})}
}

// command is a changed copy of a command that came over the connection.
func (c *heldConn) command(id string, change func(*pb.Command)) *pb.Command {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.commands, func(k *pb.Command) bool { return k.GetCommandId() == id })
	if i < 0 {
		c.r.t.Fatalf("command %s did not come over this connection", id)
	}
	k := proto.CloneOf(c.commands[i])
	change(k)
	return k
}

// TestArchiveWaits has jobs wait for what is not shown elsewhere, and reads what operators are told.
func TestArchiveWaits(t *testing.T) {
	t.Parallel()
	r := newArchiveRig(t)
	r.start()
	r.scenes(sceneRouteNotReady, sceneReserved, sceneOperatorHold)
}

// sceneRouteNotReady: the route is lost between the steps.
func sceneRouteNotReady(r *archiveRig) {
	r.nas.Put("content", "films/a", noise(1, 1000))
	kept := untouched(r.t, r.nas.Path("content", ""))
	g := r.nas.hold("stage: before the manifest")
	j := r.run("films", nil)
	g.await()
	r.vault.Stop()
	r.clock.By(61 * time.Minute)
	r.Eventually("the target to be offline", func() bool {
		var d struct{ State string }
		r.Do("GET", "/daemons/"+r.vault.ID.String(), nil, 200, &d)
		return d.State == "offline"
	})
	r.online(r.nas)
	g.release()
	j = r.awaitJob(j.ID, "waiting for the target", func(j archiveJob) bool { return j.Waiting != nil && *j.Step == "transfer" })
	if j.Waiting.Reason != "client_offline" && j.Waiting.Reason != "route_not_ready" {
		r.t.Errorf("it waits for %s", j.Waiting.Reason)
	}
	r.explained(j.ID, "vault")
	r.vault.Start()
	r.clock.By(10 * time.Second)
	r.await(j.ID, "completed")
	r.arrived()
	kept()
}

// sceneReserved: another job holds the content.
func sceneReserved(r *archiveRig) {
	r.nas.Put("content", "films/a", noise(1, 1000))
	request := r.transfer("films", nil)
	first, second := r.preview(request), r.preview(request)
	g := r.nas.hold("stage: before the manifest")
	j := r.startJob(first)
	g.await()
	var k archiveJob
	r.Do("POST", "/jobs", map[string]any{"preview_id": second.ID}, 201, &k)
	k = r.awaitWait(k.ID, "resource_reserved")
	r.explained(k.ID, "waits for another job", j.ID)
	r.refused(r.preview(request), "busy", j.ID, "wait until it has ended")
	r.Do("POST", "/jobs/"+k.ID+"/cancel", nil, 200, nil)
	r.await(k.ID, "cancelled")
	g.release()
	r.await(j.ID, "completed")
}

// sceneOperatorHold: a step has failed as often as it may.
func sceneOperatorHold(r *archiveRig) {
	r.nas.Put("content", "films/a", noise(1, 1000))
	kept := untouched(r.t, r.nas.Path("content", ""))
	marker := r.vault.Config.Shared[0].Path
	r.vault.onStep(pb.JobStep_JOB_STEP_TRANSFER, func(*pb.Command) { moveAway(r.t, marker) })
	j := r.run("films", nil)
	j = r.awaitJob(j.ID, "waiting for a person", func(j archiveJob) bool {
		if j.Waiting != nil && j.Waiting.Reason == "retry_backoff" {
			r.clock.By(time.Minute)
		}
		return j.Waiting != nil && j.Waiting.Reason == "operator_hold"
	})
	r.fails(j, "unavailable")
	r.explained(j.ID, "waits for a person", "jobs retry", "failed 5 of 5 times")
	moveBack(r.t, marker)
	r.Do("POST", "/jobs/"+j.ID+"/retry", map[string]any{"attempts": 2}, 200, nil)
	r.await(j.ID, "completed")
	r.arrived()
	kept()
}

// moveAway leaves an empty directory in the place of one, as a file system that is not mounted; moveBack takes that back.
func moveAway(t *testing.T, dir string) {
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Error(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Error(err)
	}
}

func moveBack(t *testing.T, dir string) {
	if err := os.Remove(dir); err != nil {
		t.Error(err)
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Error(err)
	}
}
