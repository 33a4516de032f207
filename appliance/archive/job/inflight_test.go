package job_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/job"
)

// TestInFlight covers the rows of daemon protocol 4.3.
func TestInFlight(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		run  func(t *testing.T, r *rig, id uuid.UUID)
	}{
		{"sent, open there: counts as acknowledged", func(t *testing.T, r *rig, id uuid.UUID) {
			r.nas.take1(r.nas.one(archive.ExecuteStep)) // the answer is lost
			r.nas.register()
			r.nas.nothing()
			r.nas.does(id, startedEvent)
		}},
		{"sent, settled there: counts as acknowledged, the event is waited for", func(t *testing.T, r *rig, id uuid.UUID) {
			r.nas.take1(r.nas.one(archive.ExecuteStep))
			r.nas.emit(id, startedEvent)
			r.nas.emit(id, completedEvent)
			r.nas.register()
			r.nas.accept(r.nas.one(archive.RequestJobSnapshot))
			r.nas.snapshot(id)
			r.vault.step(id, transfer)
		}},
		{"sent, absent there: sent again under its id", func(t *testing.T, r *rig, id uuid.UUID) {
			first := r.nas.one(archive.ExecuteStep)
			r.nas.register()
			again := r.nas.one(archive.ExecuteStep)
			if again.CommandId != first.CommandId || again.Attempt != 2 {
				t.Fatalf("%v after %v", again, first)
			}
		}},
		{"sent, absent, no attempts left", func(t *testing.T, r *rig, id uuid.UUID) {
			r.nas.one(archive.ExecuteStep)
			for range 2 {
				r.nas.register()
				r.nas.one(archive.ExecuteStep)
			}
			r.nas.register()
			r.nas.nothing()
			r.in(id, waiting, pb.WaitReason_WAIT_REASON_COMMAND_UNACKED)
		}},
		{"never sent: sent", func(t *testing.T, r *rig, id uuid.UUID) {
			r.nas.register()
			if c := r.nas.one(archive.ExecuteStep); c.Attempt != 1 {
				t.Fatalf("%v", c)
			}
		}},
		{"withdrawn step, open there: the CancelJob closes it", func(t *testing.T, r *rig, id uuid.UUID) {
			c := r.nas.one(archive.ExecuteStep)
			r.ok("cancel", r.eng.Cancel(r.ctx(), id, "no", job.By{}))
			r.nas.take1(c)
			r.nas.register()
			r.nas.accept(r.nas.one(archive.CancelJob))
			r.nas.does(id, cancelledEvent)
			r.vault.accept(r.vault.one(archive.CancelJob))
			r.vault.does(id, cancelledEvent)
			r.in(id, cancelled)
		}},
		{"unknown to control, open there: retired", func(t *testing.T, r *rig, id uuid.UUID) {
			stray := uuid.NewString()
			c := r.nas.part(id).cursor
			c.OpenCommandIds, c.State, c.ActiveStep = []string{stray}, running, stage
			r.nas.register()
			if m := r.nas.reconciles(resume); !slices.Equal(m.RetireCommandIds, []string{stray}) {
				t.Fatalf("%v", m)
			}
			r.nas.step(id, stage)
		}},
		// Retiring drops what the outbox has of a lease. With equal cursors (4.2 row 14) control has all of it: only the
		// acknowledgement was lost.
		{"unknown to control, open there, beside the end of a step that control has: retired, and the evidence is kept",
			func(t *testing.T, r *rig, id uuid.UUID) {
				lease := r.nas.one(archive.ExecuteStep)
				r.nas.accept(lease)
				r.nas.does(id, startedEvent)
				if ack, err := r.eng.Event(r.ctx(), r.nas.link, r.nas.emit(id, completedEvent)); err != nil || ack == nil {
					t.Fatal(ack, err)
				}
				c, stray := r.nas.part(id).cursor, uuid.NewString()
				c.OpenCommandIds, c.State, c.ActiveStep = []string{stray}, running, stage
				if c.OutboxFirstSequence != 2 || !slices.Equal(c.SettledCommandIds, []string{lease.CommandId}) {
					t.Fatalf("%v", c)
				}
				r.nas.register()
				m := r.nas.reconciles(resume)
				if slices.Sort(m.RetireCommandIds); len(m.RetireCommandIds) != 2 || !slices.Contains(m.RetireCommandIds, stray) {
					t.Fatalf("%v", m)
				}
				if d := r.show(id); d.Position != 1 || d.Sequence != 2 || r.number(`SELECT count(*) FROM archive_evidence`) != 1 {
					t.Fatalf("%+v", d)
				}
				r.nas.nothing()
				r.vault.step(id, transfer)
			}},
		// An end that control has not seen puts the daemon ahead: row 16 takes it over before anything is retired.
		{"unknown to control, open there, beside the end of a step that control has not: nothing is dropped",
			func(t *testing.T, r *rig, id uuid.UUID) {
				r.nas.accept(r.nas.one(archive.ExecuteStep))
				r.nas.does(id, startedEvent)
				r.nas.emit(id, completedEvent)
				c, stray := r.nas.part(id).cursor, uuid.NewString()
				c.OpenCommandIds, c.State, c.ActiveStep = []string{stray}, running, stage
				r.nas.register()
				r.nas.accept(r.nas.one(archive.RequestJobSnapshot))
				r.nas.snapshot(id)
				if d := r.show(id); d.Position != 1 || d.Sequence != 2 || r.number(`SELECT count(*) FROM archive_evidence`) != 1 {
					t.Fatalf("%+v", d)
				}
				if m := r.nas.reconciles(resume); !slices.Contains(m.RetireCommandIds, stray) {
					t.Fatalf("%v", m)
				}
				r.nas.nothing()
				r.vault.step(id, transfer)
			}},
		{"a ReconcileJob without an answer is sent again, and its answer decides", func(t *testing.T, r *rig, id uuid.UUID) {
			r.nas.accept(r.nas.one(archive.ExecuteStep))
			r.nas.does(id, startedEvent)
			c := r.nas.part(id).cursor
			c.OpenCommandIds, c.ActiveStep, c.State = nil, 0, assigned
			r.nas.register()
			first := r.nas.one(archive.ReconcileJob)
			r.nas.register()
			again := r.nas.one(archive.ReconcileJob)
			if again.CommandId != first.CommandId {
				t.Fatal("another command")
			}
			r.nas.accept(again)
			r.nas.step(id, stage)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			id := r.begin()
			r.assignAll()
			tc.run(t, r, id)
		})
	}
}

func TestSnapshotThatDoesNotHold(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		change func(*pb.JobSnapshot)
		state  pb.JobState
	}{
		{"another epoch", func(m *pb.JobSnapshot) { m.StateEpoch = uuid.NewString() }, waiting},
		{"an event that control has, changed", func(m *pb.JobSnapshot) { m.Events[0].OccurredAt = nil }, waiting},
		{"a gap", func(m *pb.JobSnapshot) { m.Events = append(m.Events[:1:1], m.Events[2:]...) }, waiting},
		{"a lease that is not listed", func(m *pb.JobSnapshot) { m.Commands = m.Commands[:1] }, waiting},
		{"a lease with another payload", func(m *pb.JobSnapshot) {
			for _, c := range m.Commands {
				c.PayloadSha256 = strings.Repeat("0", 64)
			}
		}, waiting},
		{"a commit that nobody asked for", func(m *pb.JobSnapshot) { m.Cursor.Committed = true }, manual},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			id := r.staging()
			r.nas.emit(id, progressEvent)
			r.nas.emit(id, progressEvent)
			r.nas.register()
			r.nas.accept(r.nas.one(archive.RequestJobSnapshot))
			before := r.show(id)
			r.nas.snapshot(id, tc.change)
			d := r.in(id, tc.state)
			if d.Sequence != before.Sequence {
				t.Fatalf("events were applied: %d", d.Sequence)
			}
			if tc.state == manual {
				r.nas.reconciles(hold)
				return
			}
			r.nas.reconciles(resume)
			r.in(id, running)
			r.nas.take()
		})
	}
}

func TestSnapshotPartsAreAllOrNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.staging()
	r.nas.emit(id, progressEvent)
	r.nas.emit(id, progressEvent)
	r.nas.emit(id, completedEvent)
	r.nas.register()
	r.nas.accept(r.nas.one(archive.RequestJobSnapshot))
	before := r.digest()
	parts := r.nas.snapshotParts(id)
	if len(parts) < 2 {
		t.Fatalf("%d parts", len(parts))
	}
	r.ok("part", r.eng.Snapshot(r.ctx(), r.nas.link, parts[0]))
	if r.digest() != before {
		t.Fatal("a part changed the database")
	}
	// A second answer discards the first.
	r.nas.snapshot(id)
	if d := r.in(id, running); d.Sequence != 4 || d.Position != 1 {
		t.Fatalf("%+v", d.Job)
	}
	before = r.digest()
	for _, m := range parts { // nobody waits for these
		r.ok("part", r.eng.Snapshot(r.ctx(), r.nas.link, m))
	}
	if r.digest() != before {
		t.Fatal("an answer that nobody waits for changed the database")
	}
	r.vault.step(id, transfer)
}

func TestControlRestoredFromAnOldCopy(t *testing.T) { // 4.6, failure table row 11
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.assignAll()
	c := r.nas.one(archive.ExecuteStep)
	r.nas.accept(c)
	r.nas.does(id, startedEvent)
	r.nas.does(id, completedEvent)
	r.clk.Advance(time.Second)
	r.restart()
	r.vault.last = 40 // it has seen generations that this database never issued
	r.vault.register()
	r.vault.nothing() // TRANSFER waits until nas has registered too
	d := r.show(id)
	if !strings.Contains(strings.Join(d.Explanation.Sentences, "\n"), "older copy of its database") {
		t.Fatalf("%q", d.Explanation.Sentences)
	}
	r.restart() // the rule outlives the process
	r.vault.register()
	r.vault.nothing()
	r.nas.register()
	r.nas.nothing()
	r.vault.step(id, transfer)
}

func TestUndecidedJobHoldsTheOthersBack(t *testing.T) { // 4.5
	t.Parallel()
	r := newRig(t)
	first := r.staging()
	r.checks.def.Source.ResourceId, r.checks.def.Source.Identity = "song", &pb.ResourceIdentity{InfohashV1: strings.Repeat("2", 40), DisplayName: "Song"}
	second := r.begin()
	r.assignAll()
	c := r.nas.part(first).cursor
	c.OpenCommandIds, c.ActiveStep, c.State = nil, 0, assigned
	r.nas.register()
	m := r.nas.one(archive.ReconcileJob)
	r.nas.nothing()
	r.nas.accept(m)
	got := kinds(r.nas.take())
	if len(got) != 2 {
		t.Fatalf("%v", got)
	}
	_ = second
}

func TestStaleGenerationChangesNothing(t *testing.T) { // failure table row 7
	t.Parallel()
	r := newRig(t)
	id := r.staging()
	old := r.nas.link
	ev := proto.CloneOf(r.nas.emit(id, completedEvent))
	r.nas.register()
	before := r.digest()
	_, err := r.eng.Event(r.ctx(), old, ev)
	r.wants("event", err, "stale", "")
	m := &pb.JobSnapshot{CommandId: uuid.NewString(), SnapshotId: uuid.NewString(), LastPart: true, Cursor: r.nas.part(id).cursor, StateEpoch: r.nas.epoch.String()}
	if err := r.eng.Snapshot(r.ctx(), old, m); err != nil {
		r.wants("snapshot", err, "stale", "")
	}
	acks, err := r.eng.Acks(r.ctx(), old)
	r.ok("acks", err)
	if len(acks) != 0 {
		t.Fatalf("%v", acks)
	}
	if r.digest() != before {
		t.Fatal("a message of a stale generation changed the database")
	}
}

func TestSnapshotThatNeverComesIsAskedForAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.staging()
	r.nas.emit(id, progressEvent)
	r.nas.register()
	first := r.nas.one(archive.RequestJobSnapshot)
	r.nas.accept(first)
	r.clk.Advance(2*time.Minute - time.Second)
	r.run()
	r.nas.nothing()
	r.clk.Advance(time.Second)
	r.run()
	again := r.nas.one(archive.RequestJobSnapshot)
	if again.CommandId == first.CommandId {
		t.Fatal("the same command")
	}
	r.nas.accept(again)
	r.nas.snapshot(id)
	r.in(id, running)
}

func TestComingAndGoingDoesNotFillTheStory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.staging()
	before := r.number(`SELECT count(*) FROM archive_timeline`)
	for range 5 {
		r.nas.register()
		r.vault.register()
	}
	if n := r.number(`SELECT count(*) FROM archive_timeline`); n != before {
		t.Fatalf("%d entries more\n%s", n-before, r.story(id))
	}
	r.nas.does(id, progressEvent)
}

func TestDaemonThatListsTheJobOfOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.staging()
	stranger := r.actor("stranger", pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE)
	stranger.jobs[id.String()] = &part{cursor: proto.CloneOf(r.nas.part(id).cursor), commands: map[string]*pb.CommandRecord{},
		steps: map[string]pb.JobStep{}}
	stranger.jobs[id.String()].cursor.Committed = true
	stranger.register()
	stranger.nothing()
	if d := r.in(id, running); len(d.Participants) != 2 || d.Committed || len(stranger.reply.ControlCursors) != 0 ||
		r.alerts(id, archive.AlertStateLost) != 1 {
		t.Fatalf("%+v", d.Participants)
	}
	r.nas.does(id, completedEvent)
	r.vault.step(id, transfer)
}

// TestAssignedJobThatControlHasForgottenToAssign is a control restored to before the assignment: the daemon has a definition
// that control never wrote.
func TestAssignedJobThatControlHasForgottenToAssign(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.checks.out = []job.Outcome{{Error: &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_TIMEOUT, Retryable: true, Message: "no tree came"}}}
	id := r.begin()
	r.in(id, waiting)
	r.nas.jobs[id.String()] = &part{cursor: &pb.JobCursor{JobId: id.String(), Revision: 1, State: assigned, Role: r.nas.role,
		DefinitionSha256: hex64}, commands: map[string]*pb.CommandRecord{}, steps: map[string]pb.JobStep{}}
	r.nas.register()
	if d := r.in(id, failed); !d.Placeholder || len(d.Reservations) != 0 {
		t.Fatalf("%+v", d.Job)
	}
	r.nas.reconciles(abandon)
}

// TestUnknownJobOfBothDaemons: control knows a job only from its daemons, and the one that has not committed tells first
// (failure table row 11): the claim of the other counts all the same.
func TestUnknownJobOfBothDaemons(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := uuid.New()
	for _, a := range []*actor{r.nas, r.vault} {
		a.jobs[id.String()] = &part{commands: map[string]*pb.CommandRecord{}, steps: map[string]pb.JobStep{},
			cursor: &pb.JobCursor{JobId: id.String(), Revision: 9, LastEventSequence: 12, State: assigned, Role: a.role, DefinitionSha256: hex64}}
	}
	c := r.vault.jobs[id.String()].cursor
	c.Committed, c.CommitEvidenceSha256 = true, hex64
	r.nas.register()
	r.in(id, failed)
	r.vault.register()
	d := r.in(id, manual)
	if !d.Placeholder || !d.Committed || len(d.Participants) != 2 {
		t.Fatalf("%+v", d.Job)
	}
	r.vault.reconciles(hold)
}
