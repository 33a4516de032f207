package job_test

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/job"
	"signalbox/appliance/fault"
)

func TestIdenticalRepetitionChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.staging()
	r.nas.does(id, progressEvent)
	first := r.nas.part(id).events[0]
	before := r.digest()
	ack := r.nas.deliver(proto.CloneOf(first))
	if ack == nil || ack.PersistedThrough != 2 || ack.Revision != 2 || ack.GoAhead {
		t.Fatalf("%v", ack)
	}
	if r.digest() != before || r.seen.repeated != 1 {
		t.Fatal("a repetition changed the database")
	}
}

func TestRefusedEventsAreReconciled(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		change func(r *rig, id uuid.UUID, ev *pb.JobEvent)
		code   pb.ErrorCode
	}{
		{"a gap", func(_ *rig, _ uuid.UUID, ev *pb.JobEvent) { ev.Sequence++ }, pb.ErrorCode_ERROR_CODE_STALE_SEQUENCE},
		{"a used sequence", func(_ *rig, _ uuid.UUID, ev *pb.JobEvent) { ev.Sequence = 1 }, pb.ErrorCode_ERROR_CODE_EVENT_CONFLICT},
		{"a used id", func(r *rig, id uuid.UUID, ev *pb.JobEvent) { ev.EventId = r.nas.part(id).events[0].EventId }, pb.ErrorCode_ERROR_CODE_EVENT_CONFLICT},
		{"a wrong revision", func(_ *rig, _ uuid.UUID, ev *pb.JobEvent) { ev.ResultingRevision += 3 }, pb.ErrorCode_ERROR_CODE_STALE_REVISION},
		{"an unknown lease", func(_ *rig, _ uuid.UUID, ev *pb.JobEvent) { ev.CommandId = uuid.NewString() }, pb.ErrorCode_ERROR_CODE_STALE_LEASE},
		{"another step", func(_ *rig, _ uuid.UUID, ev *pb.JobEvent) { ev.Step = verify }, pb.ErrorCode_ERROR_CODE_STALE_LEASE},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			id := r.staging()
			lease := r.nas.part(id).cursor.OpenCommandIds[0]
			ev := proto.CloneOf(r.nas.emit(id, progressEvent))
			tc.change(r, id, ev)
			if ack := r.nas.deliver(ev); ack != nil {
				t.Fatalf("acknowledged: %v", ack)
			}
			if d := r.in(id, waiting, pb.WaitReason_WAIT_REASON_RECONCILING); d.Sequence != 1 || !slices.Equal(r.seen.refused, []pb.ErrorCode{tc.code}) {
				t.Fatalf("%d %v", d.Sequence, r.seen.refused)
			}
			// What comes before the answer is dropped: nothing else is said about the job.
			if ack := r.nas.deliver(ev); ack != nil {
				t.Fatalf("acknowledged: %v", ack)
			}
			m := r.nas.reconciles(resume)
			if !slices.Contains(m.RetireCommandIds, lease) || m.Authoritative.LastEventSequence != 1 || m.Reason.GetCode() != tc.code {
				t.Fatalf("%v", m)
			}
			r.in(id, running)
			// An event of the retired lease needs no answer.
			ev.EventId, ev.Sequence, ev.CommandId = uuid.NewString(), 2, lease
			if ack := r.nas.deliver(ev); ack != nil {
				t.Fatalf("acknowledged: %v", ack)
			}
			r.nas.step(id, stage)
		})
	}
}

func TestEventOfTheWrongDaemon(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.staging()
	ev := proto.CloneOf(r.nas.emit(id, progressEvent))
	ack, err := r.eng.Event(r.ctx(), r.vault.link, ev)
	r.ok("event", err)
	if ack != nil || r.show(id).Sequence != 1 {
		t.Fatalf("%v", ack)
	}
	stranger := r.actor("stranger", pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE)
	stranger.register()
	if ack, err = r.eng.Event(r.ctx(), stranger.link, ev); err != nil || ack != nil {
		t.Fatalf("%v %v", ack, err)
	}
	before := r.digest() // the generation is in use now
	if ack, err = r.eng.Event(r.ctx(), stranger.link, ev); err != nil || ack != nil || r.digest() != before {
		t.Fatalf("%v %v", ack, err)
	}
	ev.JobId = uuid.NewString()
	if ack, err = r.eng.Event(r.ctx(), r.nas.link, ev); err != nil || ack != nil || r.digest() != before {
		t.Fatalf("%v %v", ack, err)
	}
}

func TestEventsWaitForTheAcknowledgementOfTheirCommand(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.assignAll()
	ack := r.nas.take1(r.nas.one(archive.ExecuteStep))
	evs := []*pb.JobEvent{r.nas.emit(id, startedEvent)}
	for range 70 {
		evs = append(evs, r.nas.emit(id, progressEvent))
	}
	for _, ev := range evs {
		if got := r.nas.deliver(ev); got != nil {
			t.Fatalf("acknowledged: %v", got)
		}
	}
	r.nas.deliver(evs[0]) // once more: it takes no second row
	if n := r.number(`SELECT count(*) FROM archive_events_aside`); n != 64 {
		t.Fatalf("%d events are set aside", n)
	}
	r.nas.send(ack)
	if d := r.in(id, running); d.Sequence != 64 {
		t.Fatalf("sequence %d", d.Sequence)
	}
	r.nas.nothing()
	if got := r.nas.acks; len(got) != 1 || got[0].PersistedThrough != 64 || got[0].GoAhead {
		t.Fatalf("%v", got)
	}
	if n := r.number(`SELECT count(*) FROM archive_events_aside`); n != 0 {
		t.Fatalf("%d events are left aside", n)
	}
	for _, ev := range evs[64:] {
		if got := r.nas.deliver(ev); got == nil {
			t.Fatal("not acknowledged")
		}
	}
}

func TestEventsAsideDoNotOutliveTheirConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	r.assignAll()
	r.nas.take1(r.nas.one(archive.ExecuteStep))
	r.nas.deliver(r.nas.emit(id, startedEvent))
	r.nas.register()
	if n := r.number(`SELECT count(*) FROM archive_events_aside`); n != 0 {
		t.Fatalf("%d events are left aside", n)
	}
	r.nas.accept(r.nas.one(archive.RequestJobSnapshot))
	r.nas.snapshot(id)
	r.nas.does(id, completedEvent)
}

func TestProgressRowsAreTrimmed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.staging()
	var events []*pb.JobEvent
	for range 300 {
		events = append(events, r.nas.does(id, progressEvent))
	}
	n := r.number(`SELECT count(*) FROM archive_events`)
	if n < 100 || n > 125 {
		t.Fatalf("%d rows", n)
	}
	if n := r.number(`SELECT count(*) FROM archive_timeline WHERE event = 'step'`); n != 1 {
		t.Fatalf("%d entries: progress is no story", n)
	}
	before := r.digest()
	if ack := r.nas.deliver(events[0]); ack == nil || r.digest() != before {
		t.Fatal("a repetition of a trimmed event is acknowledged and changes nothing")
	}
	// The daemon keeps fewer rows than control: its snapshot still holds.
	p := r.nas.part(id)
	p.events = p.events[len(p.events)-90:]
	r.nas.emit(id, completedEvent)
	r.nas.register()
	r.nas.accept(r.nas.one(archive.RequestJobSnapshot))
	r.nas.snapshot(id)
	r.in(id, running)
	r.vault.step(id, transfer)
}

func TestWritesAreAllOrNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.staging()
	boom := errors.New("boom")
	ev := r.nas.emit(id, completedEvent)
	before := r.digest()
	r.before.Arm(boom, 1)
	if _, err := r.eng.Event(r.ctx(), r.nas.link, ev); !fault.Is(err, fault.Unavailable) || r.digest() != before {
		t.Fatalf("%v", err)
	}
	r.after.Arm(boom, 1)
	ack, err := r.eng.Event(r.ctx(), r.nas.link, ev)
	if !fault.Is(err, fault.OutcomeUnknown) || ack != nil {
		t.Fatalf("%v %v", ack, err)
	}
	// Everything of it is there: event, evidence, cursor and the next command.
	if d := r.in(id, running); d.Sequence != 2 || d.Position != 1 || d.Steps[0].Evidence == nil {
		t.Fatalf("%+v", d.Job)
	}
	if ack := r.nas.deliver(ev); ack == nil || ack.PersistedThrough != 2 {
		t.Fatalf("%v", ack)
	}
	r.vault.step(id, transfer)
}

func TestStartRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	by := job.By{Principal: "ann"}
	_, err := r.eng.Start(r.ctx(), uuid.New(), job.StartOptions{}, by)
	r.wants("unknown", err, fault.NotFound, "preview")
	p := r.preview(r.request(), r.checks.def)
	r.exec(`UPDATE archive_previews SET state = 'running'`)
	_, err = r.eng.Start(r.ctx(), p, job.StartOptions{}, by)
	r.wants("running", err, fault.Conflict, "not done")
	r.exec(`UPDATE archive_previews SET state = 'failed'`)
	_, err = r.eng.Start(r.ctx(), p, job.StartOptions{}, by)
	r.wants("failed", err, fault.Conflict, "did not pass")
	r.exec(`UPDATE archive_previews SET state = 'passed'`)
	_, err = r.eng.Start(r.ctx(), p, job.StartOptions{}, by)
	r.ok("start", err)
	_, err = r.eng.Start(r.ctx(), p, job.StartOptions{}, by)
	r.wants("twice", err, fault.Conflict, "started before")
	if n := r.number(`SELECT count(*) FROM archive_jobs`); n != 1 {
		t.Fatalf("%d jobs", n)
	}
	r.wants("cancel", r.eng.Cancel(r.ctx(), uuid.New(), "", by), fault.NotFound, "no job")
}

// The request of a preview is checked again when it becomes a job: it lay in the database, and what the start adds to it may not
// fit.
func TestStartChecksTheRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	good := r.request()
	for name, change := range map[string]func(*job.Request){
		"source":                      func(q *job.Request) { q.Source = uuid.Nil },
		"target":                      func(q *job.Request) { q.Target = q.Source },
		"resource_id":                 func(q *job.Request) { q.ResourceID = strings.Repeat("x", 161) },
		"route":                       func(q *job.Request) { q.Route = uuid.Nil },
		"destination.content_root_id": func(q *job.Request) { q.Destination = nil },
		"parent_job":                  func(q *job.Request) { q.Parent = uuid.New() },
		"max_verify_age":              func(q *job.Request) { q.MaxVerifyAge = -time.Second },
		"evict_after": func(q *job.Request) {
			q.Operation, q.Route, q.EvictAfter, q.Source = pb.JobOperation_JOB_OPERATION_ADOPT, uuid.Nil, true, q.Target
		},
	} {
		q := good
		change(&q)
		_, err := r.eng.Start(r.ctx(), r.preview(q, r.checks.def), job.StartOptions{}, job.By{})
		r.wants(name, err, fault.Invalid, name+":")
	}
	q := good
	q.Operation, q.Route, q.Source = pb.JobOperation_JOB_OPERATION_ADOPT, uuid.Nil, q.Target
	_, err := r.eng.Start(r.ctx(), r.preview(q, r.checks.def), job.StartOptions{EvictAfter: true}, job.By{})
	r.wants("moved by its start", err, fault.Invalid, "evict_after:")
	if n := r.number(`SELECT count(*) FROM archive_jobs`); n != 0 {
		t.Errorf("%d jobs", n)
	}
	_, err = r.eng.Start(r.ctx(), r.preview(good, r.checks.def), job.StartOptions{}, job.By{})
	r.ok("good", err)
}

func TestRequestIsStoredWhole(t *testing.T) {
	t.Parallel()
	q := job.Request{Operation: pb.JobOperation_JOB_OPERATION_EVICT, Source: uuid.New(), Target: uuid.New(), ResourceID: "r", Route: uuid.New(),
		Requested: archive.Indices(1, 2, 3, 9).Message(), Destination: &pb.Destination{ContentRootId: "films", RelativeDir: "a/b"},
		Policies: archive.DefaultPolicies(), Parent: uuid.New(), MaxVerifyAge: 90 * time.Second, AllowLibraryLinks: true, EvictAfter: true,
		AcceptDrop: true}
	raw, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	var back job.Request
	if err := json.Unmarshal(raw, &back); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(back.Requested, q.Requested) || !proto.Equal(back.Policies, q.Policies) || !proto.Equal(back.Destination, q.Destination) {
		t.Fatalf("%s", raw)
	}
	back.Requested, back.Policies, back.Destination = q.Requested, q.Policies, q.Destination
	if !reflect.DeepEqual(q, back) {
		t.Fatalf("%+v, want %+v", back, q)
	}
}

func TestListPagesAndFilters(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var ids []uuid.UUID
	for i := range 5 {
		r.checks.def.Source.ResourceId = string(rune('a' + i))
		r.checks.def.Source.Identity = &pb.ResourceIdentity{InfohashV1: strings.Repeat(string(rune('a'+i)), 40), DisplayName: string(rune('a' + i))}
		ids = append(ids, r.begin())
	}
	slices.Reverse(ids)
	r.exec(`UPDATE archive_jobs SET state = 92 WHERE job_no = 2`)
	var got []uuid.UUID
	for cursor, n := "", 0; ; n++ {
		page, err := r.eng.List(r.ctx(), job.Filter{}, cursor, 2)
		r.ok("list", err)
		for _, j := range page.Jobs {
			got = append(got, j.ID)
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	if !slices.Equal(got, ids) {
		t.Fatalf("%v, want %v", got, ids)
	}
	for name, tc := range map[string]struct {
		f job.Filter
		n int
	}{
		"open":      {job.Filter{Open: true}, 4},
		"state":     {job.Filter{States: []pb.JobState{cancelled}}, 1},
		"daemon":    {job.Filter{Daemon: r.vault.id}, 5},
		"operation": {job.Filter{Operation: pb.JobOperation_JOB_OPERATION_ADOPT}, 0},
	} {
		page, err := r.eng.List(r.ctx(), tc.f, "", 0)
		r.ok(name, err)
		if len(page.Jobs) != tc.n {
			t.Errorf("%s: %d jobs, want %d", name, len(page.Jobs), tc.n)
		}
	}
	counts, err := r.eng.Counts(r.ctx())
	r.ok("counts", err)
	if len(counts) != 2 || counts[assigning] != 4 || counts[cancelled] != 1 {
		t.Errorf("%v", counts)
	}
	_, err = r.eng.List(r.ctx(), job.Filter{Daemon: uuid.New()}, "", 0)
	r.wants("daemon", err, fault.NotFound, "daemon")
	_, err = r.eng.List(r.ctx(), job.Filter{}, "x", 0)
	r.wants("cursor", err, fault.Invalid, "cursor")
}

func TestWatchFollowsAndResumes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.staging()
	w, err := r.eng.Watch(r.ctx(), id, "")
	r.ok("watch", err)
	defer w.Stop()
	first, err := w.Next(r.ctx())
	r.ok("next", err)
	if len(first.Entries) == 0 || first.Entries[0].Event != job.EntryCreated || first.Job.ID != id {
		t.Fatalf("%+v", first)
	}
	r.nas.does(id, progressEvent) // no entry, and yet a hint
	<-w.C()
	c, err := w.Next(r.ctx())
	r.ok("next", err)
	if len(c.Entries) != 0 || c.Cursor != first.Cursor || c.Job.Permille != 50 {
		t.Fatalf("%+v", c)
	}
	r.nas.does(id, completedEvent)
	<-w.C()
	c, err = w.Next(r.ctx())
	r.ok("next", err)
	if len(c.Entries) == 0 || c.Entries[0].Event != job.EntryStep || c.Entries[0].Daemon != "nas" || c.Job.Step != transfer {
		t.Fatalf("%+v", c)
	}
	again, err := r.eng.Watch(r.ctx(), uuid.Nil, first.Cursor)
	r.ok("watch all", err)
	defer again.Stop()
	all, err := again.Next(r.ctx())
	r.ok("next", err)
	if len(all.Entries) != len(c.Entries) || all.Entries[0].No != c.Entries[0].No || all.Entries[0].JobID != id {
		t.Fatalf("%+v", all)
	}
	_, err = r.eng.Watch(r.ctx(), id, "99999")
	r.wants("beyond", err, fault.Stale, "restored")
	entries, next, err := r.eng.Timeline(r.ctx(), id, "", 3)
	r.ok("timeline", err)
	if len(entries) != 3 {
		t.Fatalf("%d entries", len(entries))
	}
	more, _, err := r.eng.Timeline(r.ctx(), id, next, 3)
	r.ok("timeline", err)
	if more[0].No <= entries[2].No {
		t.Fatal("a page comes twice")
	}
}

func TestExplainSaysWhoMustAct(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.begin()
	x, err := r.explain(id)
	r.ok("explain", err)
	if x.WaitsFor != "daemon nas and daemon vault" || x.Summary == "" || x.NextAction == "" {
		t.Fatalf("%+v", x)
	}
	r.assignAll()
	r.nas.one(archive.ExecuteStep)
	r.clk.Advance(5 * time.Second)
	x, err = r.explain(id)
	r.ok("explain", err)
	if x.WaitsFor != "daemon nas" || !strings.Contains(strings.Join(x.Sentences, "\n"), "was sent to daemon nas once without an answer, last 5s ago") {
		t.Fatalf("%+v", x)
	}
	if d := r.show(id); len(d.Commands) != 3 || len(d.Commands[2].Deliveries) != 1 || d.Steps[0].State != job.StepActive ||
		d.Steps[1].Daemon != "vault" || d.Preview == uuid.Nil {
		t.Fatalf("%+v", d)
	}
	_, err = r.explain(uuid.New())
	r.wants("unknown", err, fault.NotFound, "no job")
}

// TestRunWaitsOnOneTimer lets the real loop do what the other tests do by hand.
func TestRunWaitsOnOneTimer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.checks.out = []job.Outcome{{Error: &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_TIMEOUT, Retryable: true, Message: "no tree came"}}}
	w := r.hub.Watch(archive.JobsKey{})
	defer w.Stop()
	ctx, cancel := context.WithCancel(r.ctx())
	done := make(chan error, 1)
	go func() { done <- r.eng.Run(ctx) }()
	id, err := r.eng.Start(r.ctx(), r.preview(r.request(), r.checks.def), job.StartOptions{}, job.By{Principal: "ann"})
	r.ok("start", err)
	until := func(state pb.JobState) {
		for r.show(id).State != state {
			<-w.C()
		}
	}
	until(waiting)
	for r.show(id).State == waiting { // until the loop has seen the new time
		r.clk.BlockUntil(1)
		r.clk.Advance(time.Minute)
	}
	until(assigning)
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
