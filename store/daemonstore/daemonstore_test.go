package daemonstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/store"
	"signalbox/store/daemonstore"
	"signalbox/store/storetest"
)

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func open(t *testing.T, o daemonstore.Options) *daemonstore.DB {
	t.Helper()
	if o.Path == "" {
		o.Path = filepath.Join(t.TempDir(), "daemon.db")
	}
	db, err := daemonstore.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func update(t *testing.T, db *daemonstore.DB, fn func(daemon.Tx) error) {
	t.Helper()
	if err := db.Update(context.Background(), "test", fn); err != nil {
		t.Fatal(err)
	}
}

func view[T any](t *testing.T, db *daemonstore.DB, fn func(daemon.ReadTx) (T, error)) T {
	t.Helper()
	var v T
	if err := db.View(context.Background(), func(tx daemon.ReadTx) (err error) {
		v, err = fn(tx)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return v
}

func identity(tx daemon.ReadTx) (daemon.Identity, error) { return tx.Identity() }

func TestIdentity(t *testing.T) {
	t.Parallel()
	path, client := filepath.Join(t.TempDir(), "daemon.db"), uuid.New()
	db := open(t, daemonstore.Options{Path: path, ClientID: client})
	first := view(t, db, identity)
	if first.ClientID != client || first.Epoch == uuid.Nil || first.LastGeneration != 0 || first.InventoryRevision != 1 {
		t.Errorf("a new database: %+v", first)
	}
	update(t, db, func(tx daemon.Tx) error {
		return errors.Join(tx.SetLastGeneration(7), tx.SetLastGeneration(5), tx.SetInventory(4, "token"),
			tx.SetReconnect(daemon.Reconnect{Initial: time.Second, Cap: time.Minute, StableReset: time.Hour, MaxActiveCursors: 99}))
	})
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	again := view(t, open(t, daemonstore.Options{Path: path}), identity)
	first.LastGeneration, first.InventoryRevision, first.InventoryToken = 7, 4, "token"
	first.Reconnect = daemon.Reconnect{Initial: time.Second, Cap: time.Minute, StableReset: time.Hour, MaxActiveCursors: 99}
	if again != first {
		t.Errorf("opened again: %+v, want %+v", again, first)
	}
}

func TestDatabasesOfOthersAreRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "daemon.db")
	db := open(t, daemonstore.Options{Path: path, ClientID: uuid.New()})
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := daemonstore.Open(context.Background(), daemonstore.Options{Path: path, ClientID: uuid.New()}); !fault.Is(err, fault.Conflict) {
		t.Errorf("another client's database: %v", err)
	}
	if _, err := store.Open(context.Background(), store.Options{Path: path, Schema: storetest.Schema(t)}); !fault.Is(err, fault.Conflict) {
		t.Errorf("a daemon's database as the appliance's: %v", err)
	}
	appliance := storetest.Open(t)
	if err := appliance.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := daemonstore.Open(context.Background(), daemonstore.Options{Path: appliance.Path()}); !fault.Is(err, fault.Conflict) {
		t.Errorf("the appliance's database as a daemon's: %v", err)
	}
}

func TestEpochIsNewWithTheDatabase(t *testing.T) {
	t.Parallel()
	client := uuid.New()
	a, b := view(t, open(t, daemonstore.Options{ClientID: client}), identity), view(t, open(t, daemonstore.Options{ClientID: client}), identity)
	if a.Epoch == b.Epoch {
		t.Error("two databases have one epoch")
	}
}

// newJob stores a job that is ready for leases.
func newJob(t *testing.T, db *daemonstore.DB) daemon.JobRow {
	t.Helper()
	j := daemon.JobRow{ID: uuid.New(), Definition: &pb.JobDefinition{Operation: pb.JobOperation_JOB_OPERATION_ADOPT}, Digest: fmt.Sprintf("%064x", 1),
		Role: pb.ParticipantRole_PARTICIPANT_ROLE_TARGET, Revision: 1, State: pb.JobState_JOB_STATE_ASSIGNED}
	update(t, db, func(tx daemon.Tx) error { return tx.InsertJob(j) })
	return j
}

func event(j daemon.JobRow, lease uuid.UUID, sequence uint64, kind pb.JobEventKind) *pb.JobEvent {
	e := &pb.JobEvent{EventId: uuid.NewString(), JobId: j.ID.String(), Sequence: sequence, CommandId: lease.String(), Kind: kind,
		Step: pb.JobStep_JOB_STEP_VERIFY}
	if kind == pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED {
		e.Evidence = &pb.StepEvidence{Evidence: &pb.StepEvidence_Verify{Verify: &pb.VerifyEvidence{FilesChecked: uint32(sequence)}}}
	}
	return e
}

func TestRowsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	db := open(t, daemonstore.Options{Clock: clock.NewFake(start)})
	j := newJob(t, db)
	j.Revision, j.Sequence, j.ConfirmedRevision, j.ConfirmedSequence, j.TrimmedThrough = 5, 6, 3, 4, 2
	j.State, j.Committed, j.CommitEvidenceSHA256, j.Undone = pb.JobState_JOB_STATE_MANUAL, true, "evidence", true
	lease := daemon.Lease{CommandID: uuid.New(), JobID: j.ID, Kind: daemon.LeaseStep, Step: pb.JobStep_JOB_STEP_COMMIT, Attempt: 2,
		State: pb.LeaseState_LEASE_STATE_OPEN, Started: true, EndSequence: 9}
	command := daemon.StoredCommand{ID: uuid.New(), JobID: j.ID, Payload: []byte{1, 2}, Digest: fmt.Sprintf("%064x", 2), Unreadable: true,
		Status: pb.AckStatus_ACK_STATUS_REJECTED, Error: &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_BUSY, Message: "m", Retryable: true}, DecidedAt: start}
	record := daemon.CommitRecord{CommitID: uuid.New(), Step: pb.JobStep_JOB_STEP_RELEASE, VerifyEvidenceSHA256: "v", Action: []byte("a")}
	entry := daemon.JournalEntry{Step: pb.JobStep_JOB_STEP_MATERIALIZE, Index: -1, RootID: "r", Name: "n", TempName: "t", TempRootID: "u",
		Method: pb.MaterializeMethod_MATERIALIZE_METHOD_HARDLINK, Device: math.MaxUint64, Inode: math.MaxUint64 - 1, Size: 3, MtimeNs: -4,
		SHA256: "s", State: daemon.Built, Detail: []byte("d")}
	route := daemon.RouteRow{ID: uuid.New(), Side: pb.ParticipantRole_PARTICIPANT_ROLE_SOURCE, Route: &pb.Route{DisplayName: "x"},
		CreationCommandID: uuid.New(), CommandID: uuid.New(), ProbeNonce: "n", LastSequence: 3, AckedSequence: 2,
		State: pb.RouteState_ROUTE_STATE_READY, RemoveProvisioned: true}
	change := &pb.RouteUpdate{UpdateId: uuid.NewString(), RouteId: route.ID.String(), Side: route.Side, Sequence: 3, ObservedAt: timestamppb.New(start)}
	update(t, db, func(tx daemon.Tx) error {
		return errors.Join(tx.UpdateJob(j), tx.PutLease(lease), tx.InsertCommand(command), tx.PutCommitRecord(j.ID, record),
			tx.PutJournal(j.ID, []daemon.JournalEntry{entry}), tx.PutRoute(route), tx.InsertRouteUpdate(change))
	})
	err := db.View(context.Background(), func(tx daemon.ReadTx) error {
		gotJob, _, err1 := tx.Job(j.ID)
		gotLease, _, err2 := tx.Lease(lease.CommandID)
		gotCommand, _, err3 := tx.Command(command.ID)
		gotRecord, err4 := tx.CommitRecord(j.ID)
		gotEntry, _, err5 := tx.JournalEntry(j.ID, entry.Step, entry.Index, entry.Name)
		gotRoute, _, err6 := tx.Route(route.ID, route.Side)
		gotUpdates, err7 := tx.RouteUpdates(route.ID, route.Side, 3)
		if err := errors.Join(err1, err2, err3, err4, err5, err6, err7); err != nil {
			return err
		}
		if !proto.Equal(gotJob.Definition, j.Definition) || !proto.Equal(gotCommand.Error, command.Error) || !proto.Equal(gotRoute.Route, route.Route) ||
			len(gotUpdates) != 1 || !proto.Equal(gotUpdates[0], change) {
			t.Errorf("messages: %v, %v, %v, %v", gotJob.Definition, gotCommand.Error, gotRoute.Route, gotUpdates)
		}
		gotJob.Definition, gotCommand.Error, gotRoute.Route = j.Definition, command.Error, route.Route
		for name, pair := range map[string][2]any{"job": {gotJob, j}, "lease": {gotLease, lease}, "command": {gotCommand, command},
			"commit record": {*gotRecord, record}, "journal entry": {gotEntry, entry}, "route": {gotRoute, route}} {
			if !reflect.DeepEqual(pair[0], pair[1]) {
				t.Errorf("%s: %+v, want %+v", name, pair[0], pair[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestMissingRows(t *testing.T) {
	t.Parallel()
	db := open(t, daemonstore.Options{})
	err := db.View(context.Background(), func(tx daemon.ReadTx) error {
		_, job, err1 := tx.Job(uuid.New())
		_, lease, err2 := tx.Lease(uuid.New())
		_, command, err3 := tx.Command(uuid.New())
		_, route, err4 := tx.Route(uuid.New(), 1)
		_, entry, err5 := tx.JournalEntry(uuid.New(), 10, 0, "x")
		_, last, err6 := tx.LastEvent(uuid.New())
		record, err7 := tx.CommitRecord(uuid.New())
		proof, err8 := tx.StepEvidence(uuid.New(), 10)
		if job || lease || command || route || entry || last || record != nil || proof != nil {
			t.Error("something was found")
		}
		return errors.Join(err1, err2, err3, err4, err5, err6, err7, err8)
	})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(context.Background(), "test", func(tx daemon.Tx) error { return tx.UpdateJob(daemon.JobRow{ID: uuid.New()}) })
	if !fault.Is(err, fault.NotFound) {
		t.Errorf("update of a missing job: %v", err)
	}
}

func TestOutbox(t *testing.T) {
	t.Parallel()
	db := open(t, daemonstore.Options{})
	j, a, b := newJob(t, db), uuid.New(), uuid.New()
	const started, progress, done = pb.JobEventKind_JOB_EVENT_KIND_STEP_STARTED, pb.JobEventKind_JOB_EVENT_KIND_PROGRESS,
		pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED
	update(t, db, func(tx daemon.Tx) error {
		return errors.Join(tx.InsertEvent(event(j, a, 1, started)), tx.InsertEvent(event(j, a, 2, progress)), tx.InsertEvent(event(j, a, 3, done)),
			tx.InsertEvent(event(j, b, 6, started)), tx.InsertEvent(event(j, b, 7, done)))
	})
	sequences := func(list []daemon.OutboxEvent) (out []uint64) {
		for _, e := range list {
			out = append(out, e.Event.GetSequence())
		}
		return out
	}
	unacked := func() []uint64 {
		return sequences(view(t, db, func(tx daemon.ReadTx) ([]daemon.OutboxEvent, error) { return tx.UnackedEvents(j.ID, 0, 100) }))
	}
	newer := event(j, a, 2, progress)
	update(t, db, func(tx daemon.Tx) error { return tx.ReplaceEvent(newer) })
	update(t, db, func(tx daemon.Tx) error { return tx.MarkSent(j.ID, []uint64{1, 2}) })
	if err := db.Update(context.Background(), "test", func(tx daemon.Tx) error { return tx.ReplaceEvent(event(j, a, 2, progress)) }); !fault.Is(err, fault.Conflict) {
		t.Errorf("a sent event was replaced: %v", err)
	}
	list := view(t, db, func(tx daemon.ReadTx) ([]daemon.OutboxEvent, error) { return tx.Events(j.ID, 2, 2) })
	if len(list) != 2 || !proto.Equal(list[0].Event, newer) || !list[0].Sent || list[1].Sent {
		t.Errorf("events: %v", list)
	}
	var n int64
	update(t, db, func(tx daemon.Tx) (err error) { n, err = tx.MarkAcked(j.ID, 2); return err })
	if got := unacked(); n != 2 || !reflect.DeepEqual(got, []uint64{3, 6, 7}) {
		t.Errorf("%d were confirmed, unconfirmed are %v", n, got)
	}
	err := db.View(context.Background(), func(tx daemon.ReadTx) error {
		depth, err1 := tx.OutboxDepth()
		commands, err2 := tx.UnackedCommands(j.ID)
		last, _, err3 := tx.LastEvent(a)
		lastProgress, _, err4 := tx.LastEvent(a, progress, started)
		proof, err5 := tx.StepEvidence(j.ID, pb.JobStep_JOB_STEP_VERIFY)
		if depth != 3 || len(commands) != 2 || last.Event.GetSequence() != 3 || lastProgress.Event.GetSequence() != 2 ||
			proof.GetVerify().GetFilesChecked() != 7 {
			t.Errorf("depth %d, commands %v, last %v, last progress %v, evidence %v", depth, commands, last.Event, lastProgress.Event, proof)
		}
		return errors.Join(err1, err2, err3, err4, err5)
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []uint64{7, 0} {
		update(t, db, func(tx daemon.Tx) error {
			highest, err := tx.DropUnacked(b)
			if highest != want {
				t.Errorf("the drop of a lease: highest %d, want %d", highest, want)
			}
			return err
		})
	}
	if got := unacked(); !reflect.DeepEqual(got, []uint64{3}) {
		t.Errorf("after the drop of a lease: %v", got)
	}
	update(t, db, func(tx daemon.Tx) error {
		return errors.Join(tx.InsertEvent(event(j, b, 8, started)), tx.DropAbove(j.ID, 3))
	})
	if got := unacked(); !reflect.DeepEqual(got, []uint64{3}) {
		t.Errorf("after the drop above 3: %v", got)
	}
	for _, want := range []uint64{3, 0} {
		update(t, db, func(tx daemon.Tx) error {
			highest, err := tx.DropOutbox(j.ID)
			if highest != want {
				t.Errorf("the drop of all: highest %d, want %d", highest, want)
			}
			return err
		})
	}
	if got := unacked(); len(got) != 0 {
		t.Errorf("after the drop of all: %v", got)
	}
}

func TestTrim(t *testing.T) {
	t.Parallel()
	db := open(t, daemonstore.Options{})
	j, lease := newJob(t, db), uuid.New()
	kinds := map[uint64]pb.JobEventKind{1: pb.JobEventKind_JOB_EVENT_KIND_STEP_STARTED, 5: pb.JobEventKind_JOB_EVENT_KIND_STALLED,
		6: pb.JobEventKind_JOB_EVENT_KIND_RESUMED, 8: pb.JobEventKind_JOB_EVENT_KIND_STEP_COMPLETED}
	var through uint64
	update(t, db, func(tx daemon.Tx) (err error) {
		for s := uint64(1); s <= 12; s++ {
			kind := kinds[s]
			if kind == 0 {
				kind = pb.JobEventKind_JOB_EVENT_KIND_PROGRESS
			}
			if err := tx.InsertEvent(event(j, lease, s, kind)); err != nil {
				return err
			}
		}
		if _, err := tx.MarkAcked(j.ID, 11); err != nil {
			return err
		}
		through, err = tx.TrimEvents(j.ID, 4)
		return err
	})
	var left []uint64
	for _, e := range view(t, db, func(tx daemon.ReadTx) ([]daemon.OutboxEvent, error) { return tx.Events(j.ID, 0, 100) }) {
		left = append(left, e.Event.GetSequence())
	}
	// Four of the confirmed progress rows stay (7, 9, 10, 11), and everything that is no progress or not confirmed.
	if want := []uint64{1, 7, 8, 9, 10, 11, 12}; through != 6 || !reflect.DeepEqual(left, want) {
		t.Errorf("trimmed through %d, left %v, want %v", through, left, want)
	}
	update(t, db, func(tx daemon.Tx) (err error) { through, err = tx.TrimEvents(j.ID, 4); return err })
	if through != 0 {
		t.Errorf("trimmed again through %d", through)
	}
}

func TestJournalPages(t *testing.T) {
	t.Parallel()
	db := open(t, daemonstore.Options{})
	j := newJob(t, db)
	var list []daemon.JournalEntry
	for i := range 7 {
		for _, state := range []daemon.JournalState{daemon.Intent, daemon.Published} {
			list = append(list, daemon.JournalEntry{Step: pb.JobStep_JOB_STEP_STAGE, Index: int64(i - 1), Name: string(state), RootID: "r", State: state})
		}
	}
	update(t, db, func(tx daemon.Tx) error { return tx.PutJournal(j.ID, list) })
	list[3].State = daemon.RolledBack
	update(t, db, func(tx daemon.Tx) error { return tx.PutJournal(j.ID, list[3:4]) })
	var got []daemon.JournalEntry
	var after *daemon.JournalEntry
	for {
		page := view(t, db, func(tx daemon.ReadTx) ([]daemon.JournalEntry, error) { return tx.JournalPage(j.ID, after, 3) })
		if len(page) == 0 {
			break
		}
		got = append(got, page...)
		after = &got[len(got)-1]
	}
	if !reflect.DeepEqual(got, list) {
		t.Errorf("pages gave %v", got)
	}
	s := view(t, db, func(tx daemon.ReadTx) (*pb.JournalSummary, error) { return tx.JournalSummary(j.ID) })
	if s.GetIntents() != 7 || s.GetPublished() != 6 || s.GetRolledBack() != 1 || s.GetBuilt() != 0 || s.GetTrashed() != 0 {
		t.Errorf("summary: %v", s)
	}
}

func TestWorkingJobs(t *testing.T) {
	t.Parallel()
	db := open(t, daemonstore.Options{})
	idle, leased, closing, settled := newJob(t, db), newJob(t, db), newJob(t, db), newJob(t, db)
	closing.State, closing.Ended, closing.Closing, closing.EndedAt = pb.JobState_JOB_STATE_COMPLETED, true, true, start
	lease := func(j daemon.JobRow, s pb.LeaseState) daemon.Lease {
		return daemon.Lease{CommandID: uuid.New(), JobID: j.ID, Kind: daemon.LeaseStep, State: s}
	}
	update(t, db, func(tx daemon.Tx) error {
		return errors.Join(tx.UpdateJob(closing), tx.PutLease(lease(leased, pb.LeaseState_LEASE_STATE_OPEN)),
			tx.PutLease(lease(settled, pb.LeaseState_LEASE_STATE_SETTLED)), tx.PutLease(lease(idle, pb.LeaseState_LEASE_STATE_RETIRED)))
	})
	if got := view(t, db, func(tx daemon.ReadTx) ([]uuid.UUID, error) { return tx.WorkingJobs() }); !reflect.DeepEqual(got, []uuid.UUID{leased.ID, closing.ID}) {
		t.Errorf("working: %v", got)
	}
	if got := view(t, db, func(tx daemon.ReadTx) ([]daemon.JobRow, error) { return tx.ActiveJobs() }); len(got) != 3 {
		t.Errorf("active: %v", got)
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	db := open(t, daemonstore.Options{})
	old, young, closing, active := newJob(t, db), newJob(t, db), newJob(t, db), newJob(t, db)
	end := func(j daemon.JobRow, at time.Time, closing bool) daemon.JobRow {
		j.State, j.Ended, j.EndedAt, j.Closing = pb.JobState_JOB_STATE_COMPLETED, true, at, closing
		return j
	}
	command := func(job uuid.UUID, at time.Time) daemon.StoredCommand {
		return daemon.StoredCommand{ID: uuid.New(), JobID: job, Payload: []byte{1}, Digest: fmt.Sprintf("%064x", 3), Status: 1, DecidedAt: at}
	}
	commands := map[string]daemon.StoredCommand{"of the old job": command(old.ID, start), "of the young job": command(young.ID, start),
		"an old query": command(uuid.Nil, start), "a young query": command(uuid.Nil, start.Add(40*24*time.Hour)),
		"of a job that never was": command(uuid.New(), start), "of a route": command(uuid.Nil, start)}
	route := daemon.RouteRow{ID: uuid.New(), Side: 1, Route: &pb.Route{}, CreationCommandID: commands["of a route"].ID, CommandID: uuid.New(), State: 30}
	update(t, db, func(tx daemon.Tx) error {
		err := errors.Join(tx.UpdateJob(end(old, start, false)), tx.UpdateJob(end(young, start.Add(40*24*time.Hour), false)),
			tx.UpdateJob(end(closing, start, true)), tx.PutLease(daemon.Lease{CommandID: uuid.New(), JobID: old.ID, State: 4}),
			tx.InsertEvent(event(old, uuid.New(), 1, 10)), tx.PutCommitRecord(old.ID, daemon.CommitRecord{CommitID: uuid.New()}),
			tx.PutJournal(old.ID, []daemon.JournalEntry{{Name: "n", State: daemon.Removed}}), tx.PutRoute(route))
		for _, c := range commands {
			err = errors.Join(err, tx.InsertCommand(c))
		}
		return err
	})
	var more bool
	update(t, db, func(tx daemon.Tx) (err error) { more, err = tx.Expire(start.Add(30*24*time.Hour), 10); return err })
	if more {
		t.Error("there is said to be more")
	}
	want := map[string]bool{"of the young job": true, "a young query": true, "of a route": true}
	err := db.View(context.Background(), func(tx daemon.ReadTx) error {
		for name, c := range commands {
			if _, ok, err := tx.Command(c.ID); ok != want[name] || err != nil {
				t.Errorf("command %s: %v, %v", name, ok, err)
			}
		}
		for name, j := range map[string]daemon.JobRow{"young": young, "closing": closing, "active": active, "old": old} {
			if _, ok, err := tx.Job(j.ID); ok != (name != "old") || err != nil {
				t.Errorf("job %s: %v, %v", name, ok, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDurableOrNothing(t *testing.T) {
	t.Parallel()
	broken := errors.New("the disk is gone")
	fail := false
	db := open(t, daemonstore.Options{Hooks: store.Hooks{BeforeCommit: func([]string) error {
		if fail {
			return broken
		}
		return nil
	}}})
	fail = true
	if err := db.Update(context.Background(), "test", func(tx daemon.Tx) error { return tx.SetLastGeneration(9) }); err == nil {
		t.Fatal("a failed commit was reported as done")
	}
	fail = false
	if i := view(t, db, identity); i.LastGeneration != 0 {
		t.Errorf("generation %d of a transaction that failed", i.LastGeneration)
	}
}
