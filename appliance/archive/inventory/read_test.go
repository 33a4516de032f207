package inventory_test

import (
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

func TestQueryIsChecked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.daemon("nas")
	for field, q := range map[string]*pb.InventoryQuery{
		"scope":                     {},
		"resource_ids":              {Scope: pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE},
		"filter":                    {Scope: pb.InventoryScope_INVENTORY_SCOPE_STORAGE, Filter: &pb.ResourceFilter{}},
		"page_size":                 {Scope: pb.InventoryScope_INVENTORY_SCOPE_RESOURCES, PageSize: 10_001},
		"page_token":                {Scope: pb.InventoryScope_INVENTORY_SCOPE_RESOURCES, PageToken: "x"},
		"expected_content_revision": {Scope: pb.InventoryScope_INVENTORY_SCOPE_RESOURCES, ExpectedContentRevision: "x"},
	} {
		_, _, err := r.inv.Query(ctx, d.link.Daemon.ID, q, pb.InventoryPurpose_INVENTORY_PURPOSE_USER_FLOW)
		if !fault.Is(err, fault.Invalid) || !strings.HasPrefix(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, _, err := r.inv.Query(ctx, uuid.New(), resourcesQuery, pb.InventoryPurpose_INVENTORY_PURPOSE_USER_FLOW); !fault.Is(err, fault.NotFound) {
		t.Errorf("an unknown daemon: %v", err)
	}
	r.exec(`UPDATE daemons SET online = 0`)
	if _, _, err := r.inv.Query(ctx, d.link.Daemon.ID, resourcesQuery, pb.InventoryPurpose_INVENTORY_PURPOSE_USER_FLOW); !fault.Is(err, fault.Unavailable) {
		t.Errorf("an offline daemon: %v", err)
	}
	if n := r.count(`SELECT count(*) FROM inventory_requests`); n != 0 {
		t.Errorf("refused queries left %d rows", n)
	}
}

func TestListsPageAndFilter(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.daemon("nas")
	c, _ := d.query(resourcesQuery)
	d.answer(c, 1).send(d.resources("a", "b", "c", "d_x"), true)
	var got []string
	for token := ""; ; {
		p, err := r.inv.Resources(ctx, inventory.Filter{}, token, 3)
		if err != nil {
			t.Fatal(err)
		}
		for _, res := range p.Resources {
			got = append(got, res.Summary.GetResource().GetResourceId())
		}
		if token = p.Next; token == "" {
			break
		}
	}
	if !slices.Equal(got, []string{"a", "b", "c", "d_x"}) {
		t.Errorf("pages: %v", got)
	}
	for _, test := range []struct {
		f inventory.Filter
		n int
	}{{inventory.Filter{Text: "OF B"}, 1}, {inventory.Filter{Text: "_"}, 1}, {inventory.Filter{Text: "%"}, 0},
		{inventory.Filter{Identity: d.resource("c").Resource.Identity}, 1}, {inventory.Filter{Identity: &pb.ResourceIdentity{}}, 0},
		{inventory.Filter{DaemonNo: d.link.Daemon.No + 1}, 0}} {
		if p, err := r.inv.Resources(ctx, test.f, "", 0); err != nil || len(p.Resources) != test.n {
			t.Errorf("%+v: %d, %v", test.f, len(p.Resources), err)
		}
	}
	if _, err := r.inv.Resources(ctx, inventory.Filter{}, "x", 0); !fault.Is(err, fault.Invalid) {
		t.Errorf("a token of nobody: %v", err)
	}
}

func TestOldRequestsArePruned(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.daemon("nas")
	c, _ := d.query(treeQuery("r"))
	d.answer(c, 1).send(d.tree("r", treeRevision, true, 0, 3), true)
	c, _ = d.query(scope(pb.InventoryScope_INVENTORY_SCOPE_ACTIVE_JOBS))
	d.answer(c, 1).send([]*pb.JobCursor{{JobId: "1"}}, true)
	r.clock.Advance(8 * 24 * time.Hour)
	if _, err := r.inv.Prune(ctx); err != nil {
		t.Fatal(err)
	}
	if n := r.count(`SELECT count(*) FROM inventory_requests`); n != 1 {
		t.Errorf("%d requests are kept, want the one of the tree", n)
	}
	if p, err := r.inv.Files(ctx, d.link.Daemon.ID, "r", "", 0, 10); err != nil || len(p.Files) != 4 {
		t.Errorf("the tree: %v, %v", p.Files, err)
	}
	if n := r.count(`SELECT count(*) FROM inventory_staging`); n != 1 {
		t.Errorf("%d chunks are kept", n)
	}
}

// A job that waits for space looks at the storage once a minute, perhaps for weeks.
func TestLooksAtTheStorageDoNotAccumulate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.daemon("nas")
	entry := &pb.StorageEntry{RootId: "films", RootKind: pb.RootKind_ROOT_KIND_CONTENT, FreeBytes: 7}
	for range 150 {
		c, _ := d.query(scope(pb.InventoryScope_INVENTORY_SCOPE_STORAGE))
		d.answer(c, 1).send([]*pb.StorageEntry{entry}, true)
		r.clock.Advance(time.Minute)
	}
	if _, err := r.inv.Prune(ctx); err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"inventory_requests", "inventory_queries", "daemon_commands", "daemon_deliveries"} {
		if n := r.count(`SELECT count(*) FROM ` + table); n > 60 {
			t.Errorf("%s: %d rows are kept, of more than an hour", table, n)
		}
	}
	if list, err := r.inv.Storage(ctx, d.link.Daemon.ID); err != nil || len(list) != 1 || list[0].Entry.GetFreeBytes() != 7 {
		t.Errorf("what the last one told: %v, %v", list, err)
	}
	r.clock.Advance(time.Hour + time.Minute)
	if _, err := r.inv.Prune(ctx); err != nil {
		t.Fatal(err)
	}
	if n := r.count(`SELECT count(*) FROM daemon_commands`) + r.count(`SELECT count(*) FROM inventory_requests`); n != 0 {
		t.Errorf("%d rows are kept after the last look", n)
	}
}

func TestForgottenDaemonLeavesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.daemon("nas")
	c, _ := d.query(treeQuery("r"))
	d.answer(c, 1).send(d.tree("r", treeRevision, true, 0, 3), true)
	c, _ = d.query(resourcesQuery)
	d.answer(c, 1).send(d.resources("r"), true)
	if err := r.db.Update(ctx, "forget", func(tx *store.Tx) error { return r.inv.OnForget(tx, d.link.Daemon.No) }); err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"inventory_requests", "inventory_queries", "inventory_staging", "content_trees", "daemon_resources", "daemon_views"} {
		if n := r.count(`SELECT count(*) FROM ` + table); n != 0 {
			t.Errorf("%s: %d rows", table, n)
		}
	}
}

func TestReread(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.daemon("nas")
	reread := func() []*pb.Command {
		t.Helper()
		if err := r.db.Update(ctx, "reread", func(tx *store.Tx) error { return r.inv.Reread(tx, d.link.Daemon) }); err != nil {
			t.Fatal(err)
		}
		return d.take()
	}
	if list := reread(); len(list) != 0 {
		t.Errorf("asked for what was never stored: %v", list)
	}
	c, _ := d.query(resourcesQuery)
	d.answer(c, 9).send(d.resources("a", "b"), true)
	c, _ = d.query(treeQuery("a"))
	d.answer(c, 9).send(d.tree("a", treeRevision, true, 0, 1), true)
	list := reread()
	if len(list) != 1 || list[0].GetInventoryQuery().GetScope() != pb.InventoryScope_INVENTORY_SCOPE_RESOURCES {
		t.Fatalf("%v", list)
	}
	// The older database is at a lower revision: it is the one that counts now.
	d.answer(list[0], 2).send(d.resources("a"), true)
	if got := d.names(); !slices.Equal(got, []string{"a", "b*"}) {
		t.Errorf("stored: %v", got)
	}
}
