package inventory_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/inventory"
	"signalbox/appliance/fault"
	"signalbox/store"
)

func code(err error) pb.ErrorCode {
	var e *inventory.QueryError
	if err == nil {
		return 0
	}
	if !asError(err, &e) {
		return -1
	}
	return e.Detail.GetCode()
}

func TestFullViewMarksAbsent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.daemon("nas")
	c, wait := d.query(resourcesQuery)
	a := d.answer(c, 7)
	a.send(d.resources("a", "b"), false)
	if got := d.names(); got != nil {
		t.Errorf("half an answer counts already: %v", got)
	}
	a.send(d.resources("c"), true)
	if res, err := wait(); err != nil || res.Revision != 7 || res.Entries != 3 || res.Epoch != d.link.Epoch {
		t.Fatalf("%+v, %v", res, err)
	}
	if n := r.count(`SELECT count(*) FROM inventory_staging`); n != 0 {
		t.Errorf("%d chunks stay staged", n)
	}

	c, wait = d.query(resourcesQuery)
	d.answer(c, 8).send(d.resources("a", "d"), true)
	if _, err := wait(); err != nil {
		t.Fatal(err)
	}
	if got := d.names(); !slices.Equal(got, []string{"a", "b*", "c*", "d"}) {
		t.Errorf("stored: %v", got)
	}
	v, err := r.inv.Views(ctx, d.link.Daemon.ID)
	if err != nil || len(v) != 1 || v[0].Revision != 8 || v[0].Entries != 2 || v[0].Epoch != d.link.Epoch {
		t.Errorf("view: %+v, %v", v, err)
	}

	// Absent resources go, except those that an active job reserves.
	r.exec(`INSERT INTO archive_jobs (job_no, id, operation, title, request, state, created_at) VALUES (1, ?, 1, '', '{}', 30, 0)`, uuid.New())
	r.exec(`INSERT INTO archive_reservations (job_no, daemon_no, kind, name) VALUES (1, ?, 'infohash_v1', ?)`, d.link.Daemon.No,
		d.resource("b").GetResource().GetIdentity().GetInfohashV1())
	if _, err := r.inv.Prune(ctx); err != nil {
		t.Fatal(err)
	}
	if got := d.names(); !slices.Equal(got, []string{"a", "b*", "d"}) {
		t.Errorf("after pruning: %v", got)
	}
	r.exec(`UPDATE archive_reservations SET released_at = 1`)
	if _, err := r.inv.Prune(ctx); err != nil {
		t.Fatal(err)
	}
	if got := d.names(); !slices.Equal(got, []string{"a", "d"}) {
		t.Errorf("after the job: %v", got)
	}
}

func TestPartialViewReplacesOnlyWhatWasAsked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.daemon("nas")
	c, _ := d.query(resourcesQuery)
	d.answer(c, 1).send(d.resources("a", "b", "c"), true)

	filtered := scope(pb.InventoryScope_INVENTORY_SCOPE_RESOURCES)
	filtered.Filter = &pb.ResourceFilter{Text: "b"}
	c, _ = d.query(filtered)
	d.answer(c, 2).send(d.resources("b"), true)
	if got := d.names(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("a filtered view marked others: %v", got)
	}
	some := scope(pb.InventoryScope_INVENTORY_SCOPE_RESOURCES)
	some.ResourceIds = []string{"a", "c", "x"}
	c, _ = d.query(some)
	d.answer(c, 2).send(d.resources("c"), true)
	if got := d.names(); !slices.Equal(got, []string{"a*", "b", "c"}) {
		t.Errorf("named ones: %v", got)
	}
}

func TestPagesOfOneRevision(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.daemon("nas")
	c, wait := d.query(resourcesQuery)
	if got := c.GetInventoryQuery().GetPageSize(); got != inventory.DefaultPage {
		t.Errorf("page size %d", got)
	}
	a := d.answer(c, 7)
	last := a.part(d.resources("a"), true)
	last.NextPageToken = "p2"
	d.chunk(last)
	if got := d.names(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("a complete page counts: %v", got)
	}
	c = d.one()
	if q := c.GetInventoryQuery(); q.GetPageToken() != "p2" || q.GetExpectedRevision() != 7 {
		t.Fatalf("second page: %v", q)
	}
	// The inventory changes between the pages: everything begins anew.
	d.answer(c, 8).send(d.resources("b"), true)
	c = d.one()
	if q := c.GetInventoryQuery(); q.GetPageToken() != "" || q.GetExpectedRevision() != 0 {
		t.Fatalf("not begun anew: %v", q)
	}
	a = d.answer(c, 8)
	last = a.part(d.resources("b"), true)
	last.NextPageToken = "p2"
	d.chunk(last)
	d.answer(d.one(), 8).send(d.resources("c"), true)
	if res, err := wait(); err != nil || res.Entries != 2 || res.Revision != 8 {
		t.Fatalf("%+v, %v", res, err)
	}
	if got := d.names(); !slices.Equal(got, []string{"a*", "b", "c"}) {
		t.Errorf("stored: %v", got)
	}
}

func TestTreeIsReplacedAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.daemon("nas")
	fetch := func(revision string, n int) {
		t.Helper()
		c, wait := d.query(treeQuery("r"))
		a := d.answer(c, 3)
		a.send(d.tree("r", revision, true, 0, n/2), false)
		last := a.part(d.tree("r", revision, false, n/2+1, n-3), true)
		last.NextPageToken = "more"
		d.chunk(last)
		d.answer(d.one(), 3).send(d.tree("r", revision, false, n-2, n-1), true)
		if _, err := wait(); err != nil {
			t.Fatal(err)
		}
	}
	fetch(treeRevision, 20)
	all := func(limit int) (out []uint32) {
		t.Helper()
		for from, revision := int64(0), ""; from >= 0; {
			p, err := r.inv.Files(ctx, d.link.Daemon.ID, "r", revision, from, limit)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range p.Files {
				out = append(out, f.GetIndex())
			}
			from, revision = p.Next, p.Tree.ContentRevision
		}
		return out
	}
	for _, limit := range []int{1, 3, 20, 1000} {
		if got := all(limit); len(got) != 20 || got[0] != 0 || got[19] != 19 {
			t.Errorf("pages of %d: %v", limit, got)
		}
	}
	next := strings.Repeat("b", 64)
	fetch(next, 10)
	if got := all(7); len(got) != 10 {
		t.Errorf("the new tree: %v", got)
	}
	if n := r.count(`SELECT count(*) FROM inventory_staging`); n != 3 {
		t.Errorf("%d chunks are kept, want the 3 of the new tree", n)
	}
	if _, err := r.inv.Files(ctx, d.link.Daemon.ID, "r", treeRevision, 5, 10); !fault.Is(err, fault.Stale) {
		t.Errorf("a page of the replaced tree: %v", err)
	}
	tree, err := r.inv.Tree(ctx, d.link.Daemon.ID, "r")
	if err != nil || tree.Files != 10 || tree.ContentRevision != next {
		t.Errorf("%+v, %v", tree, err)
	}
	n := 0
	if err := r.inv.EachFile(ctx, tree, func(f *pb.FileEntry) error { n++; return nil }); err != nil || n != 10 {
		t.Errorf("each file: %d, %v", n, err)
	}
}

func TestStorageRoutesAndJobs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.daemon("nas")
	root := func(id string) *pb.StorageEntry {
		return &pb.StorageEntry{RootId: id, RootKind: pb.RootKind_ROOT_KIND_CONTENT}
	}
	for _, roots := range [][]*pb.StorageEntry{{root("a"), root("b")}, {root("b"), root("c")}} {
		c, wait := d.query(scope(pb.InventoryScope_INVENTORY_SCOPE_STORAGE))
		d.answer(c, 1).send(roots, true)
		if _, err := wait(); err != nil {
			t.Fatal(err)
		}
	}
	list, err := r.inv.Storage(ctx, d.link.Daemon.ID)
	if err != nil || len(list) != 2 || list[0].Entry.GetRootId() != "b" || list[1].Entry.GetRootId() != "c" {
		t.Errorf("storage: %v, %v", list, err)
	}
	c, wait := d.query(scope(pb.InventoryScope_INVENTORY_SCOPE_ROUTES))
	d.answer(c, 1).send([]*pb.RouteSnapshot{{RouteId: "x"}}, true)
	if _, err := wait(); err != nil || len(r.routes) != 1 || len(r.routes[0]) != 1 {
		t.Errorf("routes: %v, %v", r.routes, err)
	}
	c, wait = d.query(scope(pb.InventoryScope_INVENTORY_SCOPE_ACTIVE_JOBS))
	a := d.answer(c, 1)
	a.send([]*pb.JobCursor{{JobId: "1"}}, false)
	a.send([]*pb.JobCursor{{JobId: "2"}}, true)
	res, err := wait()
	if err != nil {
		t.Fatal(err)
	}
	if jobs, err := r.inv.Jobs(ctx, res.RequestNo); err != nil || len(jobs) != 2 || jobs[1].GetJobId() != "2" {
		t.Errorf("jobs: %v, %v", jobs, err)
	}
}

// Whatever goes wrong, what was staged goes and what was known stays.
func TestInterruptedAnswers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		break_ func(t *testing.T, r *rig, d *daemon, a *answer)
		again  bool // the request begins anew by itself, with a new query and a new command
		code   pb.ErrorCode
	}{
		{"a gap", func(_ *testing.T, _ *rig, d *daemon, a *answer) { a.next++; a.send(d.resources("x"), false) }, true, 0},
		{"a changed revision", func(_ *testing.T, _ *rig, d *daemon, a *answer) { a.revision++; a.send(d.resources("x"), false) }, true, 0},
		{"a wrong total", func(_ *testing.T, _ *rig, d *daemon, a *answer) { a.total++; a.send(d.resources("x"), true) }, true, 0},
		{"the inventory changed", func(_ *testing.T, _ *rig, d *daemon, a *answer) {
			c := a.part(nil, true)
			c.EntriesTotal, c.Error = 0, &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_STALE_REVISION}
			d.chunk(c)
		}, true, 0},
		{"an error", func(_ *testing.T, _ *rig, d *daemon, a *answer) {
			c := a.part(nil, true)
			c.EntriesTotal, c.Error = 0, &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_READ_ERROR}
			d.chunk(c)
		}, false, pb.ErrorCode_ERROR_CODE_READ_ERROR},
		{"a disconnect", func(t *testing.T, r *rig, d *daemon, _ *answer) {
			r.inv.OnDetach(d.link)
		}, false, pb.ErrorCode_ERROR_CODE_TIMEOUT},
		{"a new generation", func(_ *testing.T, _ *rig, d *daemon, _ *answer) { d.reconnect() }, false, pb.ErrorCode_ERROR_CODE_TIMEOUT},
		{"silence", func(t *testing.T, r *rig, d *daemon, _ *answer) {
			r.clock.BlockUntil(1)
			r.clock.Advance(inventory.ChunkIdle)
		}, false, pb.ErrorCode_ERROR_CODE_TIMEOUT},
		{"the daemon goes offline", func(t *testing.T, r *rig, d *daemon, _ *answer) {
			if err := r.db.Update(ctx, "offline", func(tx *store.Tx) error { return r.inv.OnOffline(tx, d.link.Daemon.No) }); err != nil {
				t.Fatal(err)
			}
		}, false, pb.ErrorCode_ERROR_CODE_UNAVAILABLE},
		{"control restarts", func(_ *testing.T, r *rig, d *daemon, _ *answer) { r.restart() }, false, pb.ErrorCode_ERROR_CODE_UNAVAILABLE},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			d := r.daemon("nas")
			c, _ := d.query(resourcesQuery)
			d.answer(c, 1).send(d.resources("a", "b"), true)

			id, _, err := r.inv.Query(ctx, d.link.Daemon.ID, resourcesQuery, pb.InventoryPurpose_INVENTORY_PURPOSE_USER_FLOW)
			if err != nil {
				t.Fatal(err)
			}
			c = d.one()
			a := d.answer(c, 5)
			a.send(d.resources("c"), false)
			if n := r.count(`SELECT count(*) FROM inventory_staging`); n != 1 {
				t.Fatalf("%d chunks staged", n)
			}
			test.break_(t, r, d, a)
			no := r.count(`SELECT request_no FROM inventory_requests WHERE id = ?`, id)
			if !test.again {
				if _, err := r.inv.Wait(ctx, no); code(err) != test.code {
					t.Errorf("%v, want %s", err, test.code)
				}
			}
			if n := r.count(`SELECT count(*) FROM inventory_staging`); n != 0 {
				t.Errorf("%d chunks stay staged", n)
			}
			if got := d.names(); !slices.Equal(got, []string{"a", "b"}) {
				t.Errorf("what was known changed: %v", got)
			}
			// The rest of the broken answer changes nothing.
			if err := r.inv.Chunk(ctx, d.link, a.part(d.resources("y"), true)); err != nil {
				t.Fatal(err)
			}
			if got := d.names(); !slices.Equal(got, []string{"a", "b"}) {
				t.Errorf("a late chunk changed what was known: %v", got)
			}
			if !test.again {
				d.connect()
				d.none()
				return
			}
			again := d.one()
			if again.GetCommandId() == c.GetCommandId() || again.GetInventoryQuery().GetQueryId() == c.GetInventoryQuery().GetQueryId() {
				t.Error("the repeated query is the same one")
			}
			d.answer(again, 6).send(d.resources("b", "c"), true)
			if _, err := r.inv.Wait(ctx, no); err != nil {
				t.Fatal(err)
			}
			if got := d.names(); !slices.Equal(got, []string{"a*", "b", "c"}) {
				t.Errorf("after the repetition: %v", got)
			}
		})
	}
}

func TestFaultyPeerIsAskedOnceMore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.daemon("nas")
	c, wait := d.query(resourcesQuery)
	for range 2 {
		a := d.answer(c, 5)
		a.next = 3
		a.send(d.resources("c"), false)
		if list := d.take(); len(list) > 0 {
			c = list[0]
		}
	}
	if _, err := wait(); code(err) != pb.ErrorCode_ERROR_CODE_PROTOCOL_VIOLATION {
		t.Errorf("%v", err)
	}
	d.none()
}

func TestChangingInventoryEndsInTheEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.daemon("nas")
	c, wait := d.query(resourcesQuery)
	asked := 0
	for c != nil {
		asked++
		e := d.answer(c, 5).part(nil, true)
		e.EntriesTotal, e.Error = 0, &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_STALE_REVISION}
		d.chunk(e)
		list := d.take()
		c = nil
		if len(list) > 0 {
			c = list[0]
		}
	}
	if _, err := wait(); code(err) != pb.ErrorCode_ERROR_CODE_STALE_REVISION || asked != 4 {
		t.Errorf("asked %d times: %v", asked, err)
	}
	// Who expects a revision is told at once.
	q := scope(pb.InventoryScope_INVENTORY_SCOPE_RESOURCES)
	q.ExpectedRevision = 4
	c, wait = d.query(q)
	e := d.answer(c, 5).part(nil, true)
	e.EntriesTotal, e.Error = 0, &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_STALE_REVISION}
	d.chunk(e)
	if _, err := wait(); code(err) != pb.ErrorCode_ERROR_CODE_STALE_REVISION {
		t.Errorf("%v", err)
	}
}

func TestAnswersOnlyToWhoAsked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d, other := r.daemon("nas"), r.daemon("box")
	c, _ := d.query(resourcesQuery)
	for name, fn := range map[string]func(a *answer){
		"another daemon":  func(a *answer) { a.d = other },
		"another command": func(a *answer) { a.c.CommandId = uuid.NewString() },
		"another query":   func(a *answer) { a.c.GetInventoryQuery().QueryId = uuid.NewString() },
	} {
		a := d.answer(clone(c), 5)
		fn(a)
		if err := r.inv.Chunk(ctx, a.d.link, a.part(d.resources("x"), true)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := r.count(`SELECT count(*) FROM daemon_resources`); n != 0 {
		t.Errorf("%d resources were stored", n)
	}
	stale := d.link
	stale.Generation--
	if err := r.inv.Chunk(ctx, stale, d.answer(c, 5).part(d.resources("x"), true)); !fault.Is(err, fault.Stale) {
		t.Errorf("a chunk of an old connection: %v", err)
	}
}

func TestRefusedAndUnansweredQueries(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.daemon("nas")
	_, wait, err := r.inv.Query(ctx, d.link.Daemon.ID, resourcesQuery, pb.InventoryPurpose_INVENTORY_PURPOSE_USER_FLOW)
	if err != nil {
		t.Fatal(err)
	}
	d.ack(d.receive()[0], pb.AckStatus_ACK_STATUS_REJECTED, &pb.ErrorDetail{Code: pb.ErrorCode_ERROR_CODE_UNSUPPORTED, Message: "no"})
	if _, err := wait(ctx); code(err) != pb.ErrorCode_ERROR_CODE_UNSUPPORTED {
		t.Errorf("%v", err)
	}
	_, wait, err = r.inv.Query(ctx, d.link.Daemon.ID, resourcesQuery, pb.InventoryPurpose_INVENTORY_PURPOSE_USER_FLOW)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if n := len(d.receive()); n != 1 {
			t.Fatalf("sent %d", n)
		}
		r.clock.Advance(15 * time.Second)
	}
	if n := len(d.receive()); n != 0 {
		t.Fatalf("sent a fourth time")
	}
	if _, err := wait(ctx); code(err) != pb.ErrorCode_ERROR_CODE_TIMEOUT {
		t.Errorf("%v", err)
	}
	// Accepted, and then nothing.
	_, wait2 := d.query(resourcesQuery)
	r.clock.BlockUntil(1)
	r.clock.Advance(inventory.FirstChunk)
	if _, err := wait2(); code(err) != pb.ErrorCode_ERROR_CODE_TIMEOUT || !strings.Contains(err.Error(), "10m") {
		t.Errorf("%v", err)
	}
}

func TestOpenSnapshotsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.daemon("nas")
	ask := func(i int) error {
		_, _, err := r.inv.Query(ctx, d.link.Daemon.ID, treeQuery(fmt.Sprint("r", i)), pb.InventoryPurpose_INVENTORY_PURPOSE_USER_FLOW)
		return err
	}
	for i := range inventory.MaxWaiting {
		if err := ask(i); err != nil {
			t.Fatal(err)
		}
	}
	if err := ask(99); !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "BUSY") {
		t.Errorf("one more: %v", err)
	}
	open := d.take()
	if len(open) != inventory.MaxOpen {
		t.Fatalf("%d are asked at once, want %d", len(open), inventory.MaxOpen)
	}
	d.none()
	q := open[0].GetInventoryQuery()
	d.answer(open[0], 1).send(d.tree(q.GetResourceIds()[0], treeRevision, true, 0, 0), true)
	if n := len(d.take()); n != 1 {
		t.Errorf("%d are asked for a free slot", n)
	}
}

func TestReconciliationOutlivesItsConnection(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(r *rig, d *daemon){
		"disconnect": func(r *rig, d *daemon) { d.reconnect() },
		"restart":    func(r *rig, d *daemon) { r.restart(); d.reconnect() },
	} {
		r := newRig(t)
		d := r.daemon("nas")
		var no int64
		if err := r.db.Update(ctx, "ask", func(tx *store.Tx) error {
			req, err := r.inv.Ask(tx, d.link.Daemon, scope(pb.InventoryScope_INVENTORY_SCOPE_ROUTES), pb.InventoryPurpose_INVENTORY_PURPOSE_RECONCILIATION)
			no = req.No
			return err
		}); err != nil {
			t.Fatal(err)
		}
		old := d.one()
		d.answer(old, 1).send([]*pb.RouteSnapshot{{RouteId: "x"}}, false)
		cut(r, d)
		c := d.one()
		if c.GetCommandId() == old.GetCommandId() {
			t.Errorf("%s: the old command is sent again", name)
		}
		d.answer(c, 1).send([]*pb.RouteSnapshot{{RouteId: "x"}}, true)
		if _, err := r.inv.Wait(ctx, no); err != nil || len(r.routes) != 1 {
			t.Errorf("%s: %v, %v", name, err, r.routes)
		}
	}
}
