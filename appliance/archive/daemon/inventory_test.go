package daemon_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/valid"
)

// files is a file list that is made on demand.
type files struct {
	n        int
	revision string
	name     func(i int) string
	entry    func(i int) // called before each
}

func (f *files) Len() int { return f.n }

func (f *files) Entry(i int) *pb.FileEntry {
	if f.entry != nil {
		f.entry(i)
	}
	return &pb.FileEntry{Index: uint32(i), Path: f.name(i), Kind: pb.FileKind_FILE_KIND_REGULAR, LogicalBytes: 10, Selected: true,
		Present: pb.DiskPresence_DISK_PRESENCE_FINAL_NAME, ContentRevision: f.revision}
}

func (f *files) DiskPath(i int) string { return f.name(i) }

func ref(id string) *pb.ResourceRef {
	return &pb.ResourceRef{ResourceId: id, Identity: &pb.ResourceIdentity{InfohashV1: fmt.Sprintf("%040x", len(id)), DisplayName: id}}
}

func tree(id string, f *files) *backend.Tree {
	f.revision = strings.Repeat("c", 64)
	return &backend.Tree{Header: &pb.ContentTree{Resource: ref(id), ContentRevision: f.revision}, Files: f}
}

func query(scope pb.InventoryScope, change func(*pb.InventoryQuery)) *pb.Command {
	q := &pb.InventoryQuery{QueryId: uuid.NewString(), Scope: scope, Purpose: pb.InventoryPurpose_INVENTORY_PURPOSE_USER_FLOW, PageSize: 10_000}
	if change != nil {
		change(q)
	}
	return &pb.Command{CommandId: uuid.NewString(), ClientId: self.String(), IssuedAt: timestamppb.New(epoch), Attempt: 1,
		Operation: &pb.Command_InventoryQuery{InventoryQuery: q}}
}

// answer collects the chunks of one answer and checks the rules of the stream.
func (w *wire) answer(c *pb.Command) []*pb.InventoryChunk {
	w.t.Helper()
	w.accepted(c)
	var list []*pb.InventoryChunk
	total := 0
	for {
		k := w.take("a chunk", func(e *pb.Envelope) bool { return e.GetInventoryChunk().GetCommandId() == c.GetCommandId() }).GetInventoryChunk()
		if int(k.GetChunkIndex()) != len(list) || k.GetQueryId() != c.GetInventoryQuery().GetQueryId() {
			w.t.Fatalf("chunk %d of query %s came as %d", k.GetChunkIndex(), k.GetQueryId(), len(list))
		}
		list = append(list, k)
		if k.GetSnapshotId() != list[0].GetSnapshotId() || k.GetError() == nil && k.GetRevision() != list[0].GetRevision() {
			w.t.Fatalf("chunk %v is of another view than %v", k, list[0])
		}
		total += len(k.GetResources().GetEntries()) + len(k.GetContentTree().GetFiles()) + len(k.GetJobs().GetEntries()) +
			len(k.GetRoutes().GetEntries()) + len(k.GetStorage().GetEntries())
		if k.GetLastChunk() {
			if k.GetError() == nil && int(k.GetEntriesTotal()) != total {
				w.t.Fatalf("%d entries are announced, %d came", k.GetEntriesTotal(), total)
			}
			return list
		}
	}
}

func lastOf(list []*pb.InventoryChunk) *pb.InventoryChunk { return list[len(list)-1] }

const (
	resourcesScope = pb.InventoryScope_INVENTORY_SCOPE_RESOURCES
	treeScope      = pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE
	jobsScope      = pb.InventoryScope_INVENTORY_SCOPE_ACTIVE_JOBS
	storageScope   = pb.InventoryScope_INVENTORY_SCOPE_STORAGE
	routesScope    = pb.InventoryScope_INVENTORY_SCOPE_ROUTES
)

// small limits make many chunks of few entries.
func small() *pb.Limits {
	l := valid.DefaultLimits()
	l.MaxEnvelopeBytes, l.MaxChunkEntries = valid.MinEnvelopeBytes, 100
	return l
}

func TestResourcesInPagesOfOneRevision(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.control.limits = small()
		for i := range 250 {
			r.content.resources = append(r.content.resources, &pb.ResourceSummary{Resource: ref(fmt.Sprintf("film %0*d", i/100+1, i)),
				Category: []string{"films", "music"}[i%2], ContentRevision: zeros, ContentRootId: "content"})
		}
		r.content.resources = append(r.content.resources, &pb.ResourceSummary{Resource: &pb.ResourceRef{ResourceId: "unhashed",
			Identity: &pb.ResourceIdentity{DisplayName: "unhashed"}}})
		r.content.busy, r.content.hashed = map[string]bool{"unhashed": true}, make(chan string, 1)
		r.start()
		w := r.accept()
		page := func(token string, change func(*pb.InventoryQuery)) []*pb.InventoryChunk {
			return w.answer(query(resourcesScope, func(q *pb.InventoryQuery) {
				q.PageSize, q.PageToken = 120, token
				if change != nil {
					change(q)
				}
			}))
		}
		seen := map[string]bool{}
		token, pages := "", 0
		for {
			list := page(token, nil)
			for _, k := range list {
				for _, e := range k.GetResources().GetEntries() {
					if seen[e.GetResource().GetResourceId()] || e.GetResource().GetClientId() != self.String() {
						t.Errorf("entry %v", e)
					}
					seen[e.GetResource().GetResourceId()] = true
				}
			}
			pages++
			if token = lastOf(list).GetNextPageToken(); token == "" {
				break
			}
		}
		if len(seen) != 250 || pages != 3 {
			t.Errorf("%d resources in %d pages", len(seen), pages)
		}
		// What has no identity yet is left out and identified in the background.
		if id := await(t, "the hashing", r.content.hashed); id != "unhashed" {
			t.Errorf("hashed %q", id)
		}

		first := page("", nil)
		token = lastOf(first).GetNextPageToken()
		music := page("", func(q *pb.InventoryQuery) { q.Filter = &pb.ResourceFilter{Categories: []string{"music"}} })
		if n := lastOf(music).GetEntriesTotal(); n != 120 {
			t.Errorf("%d entries of music", n)
		}
		for name, test := range map[string]struct {
			token  string
			change func(*pb.InventoryQuery)
			code   pb.ErrorCode
		}{
			"a token of another question": {token, func(q *pb.InventoryQuery) { q.Filter = &pb.ResourceFilter{Categories: []string{"music"}} },
				pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT},
			"a made-up token":  {"1.5.0123456789abcdef", nil, pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT},
			"no token at all":  {"x", nil, pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT},
			"another revision": {"", func(q *pb.InventoryQuery) { q.ExpectedRevision = 99 }, pb.ErrorCode_ERROR_CODE_STALE_REVISION},
		} {
			k := page(test.token, test.change)
			if e := lastOf(k).GetError(); len(k) != 1 || e.GetCode() != test.code {
				t.Errorf("%s: %v", name, k)
			}
		}
		before := lastOf(first).GetRevision()
		r.content.mu.Lock()
		r.content.token = "2"
		r.content.mu.Unlock()
		if k := page(token, nil); lastOf(k).GetError().GetCode() != pb.ErrorCode_ERROR_CODE_STALE_REVISION {
			t.Errorf("a page of an older revision: %v", k)
		}
		if k := page("", nil); k[0].GetRevision() != before+1 {
			t.Errorf("revision %d after %d", k[0].GetRevision(), before)
		}
	})
}

func TestContentTreeStream(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.control.limits = small()
		long := func(i int) string { return fmt.Sprintf("dir/%s/%06d", strings.Repeat("ü", 110), i) }
		r.content.trees = map[string]*backend.Tree{
			"films": tree("films", &files{n: 900, name: long}),
			"empty": tree("empty", &files{name: long}),
			"vast":  tree("vast", &files{n: valid.MaxFilesPerTree + 1, name: long}),
		}
		r.start()
		w := r.accept()
		ask := func(id string, change func(*pb.InventoryQuery)) []*pb.InventoryChunk {
			return w.answer(query(treeScope, func(q *pb.InventoryQuery) {
				q.ResourceIds = []string{id}
				if change != nil {
					change(q)
				}
			}))
		}
		list := ask("films", nil)
		var next uint32
		for i, k := range list {
			part := k.GetContentTree()
			if (part.GetHeader() != nil) != (i == 0) || len(part.GetFiles()) > 100 {
				t.Errorf("chunk %d: header %v, %d files", i, part.GetHeader() != nil, len(part.GetFiles()))
			}
			for _, f := range part.GetFiles() {
				if f.GetIndex() != next {
					t.Fatalf("file %d where %d was due", f.GetIndex(), next)
				}
				next++
			}
		}
		if next != 900 || list[0].GetContentTree().GetHeader().GetResource().GetClientId() != self.String() {
			t.Errorf("%d files, header %v", next, list[0].GetContentTree().GetHeader())
		}
		if k := ask("empty", nil); len(k) != 1 || k[0].GetContentTree().GetHeader() == nil || k[0].GetError() != nil {
			t.Errorf("an empty tree: %v", k)
		}
		if k := lastOf(ask("films", func(q *pb.InventoryQuery) { q.PageSize = 500 })); k.GetNextPageToken() == "" {
			t.Error("a page of a tree has no next one")
		} else if rest := ask("films", func(q *pb.InventoryQuery) { q.PageSize, q.PageToken = 500, k.GetNextPageToken() }); lastOf(rest).GetEntriesTotal() != 400 {
			t.Errorf("the second page has %d files", lastOf(rest).GetEntriesTotal())
		}
		for name, test := range map[string]struct {
			id     string
			change func(*pb.InventoryQuery)
			code   pb.ErrorCode
		}{
			"unknown":          {"nothing", nil, pb.ErrorCode_ERROR_CODE_NOT_FOUND},
			"too many files":   {"vast", nil, pb.ErrorCode_ERROR_CODE_LIMIT_EXCEEDED},
			"another revision": {"films", func(q *pb.InventoryQuery) { q.ExpectedContentRevision = zeros }, pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT},
		} {
			if e := lastOf(ask(test.id, test.change)).GetError(); e.GetCode() != test.code {
				t.Errorf("%s: %v", name, e)
			}
		}
	})
}

func TestChangesWhileATreeIsTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.control.limits = small()
		f := &files{n: 300, name: func(i int) string { return fmt.Sprintf("f%d", i) }}
		r.content.trees = map[string]*backend.Tree{"films": tree("films", f)}
		r.content.busy, r.content.hashed = map[string]bool{"films": true}, make(chan string, 1)
		r.start()
		w := r.accept()
		c := func() *pb.Command {
			return query(treeScope, func(q *pb.InventoryQuery) { q.ResourceIds = []string{"films"} })
		}
		// Content that is not hashed yet is BUSY, and answered once it is.
		if e := lastOf(w.answer(c())).GetError(); e.GetCode() != pb.ErrorCode_ERROR_CODE_BUSY || !e.GetRetryable() {
			t.Errorf("while it is not hashed: %v", e)
		}
		await(t, "the hashing", r.content.hashed)
		f.entry = func(i int) {
			if i != 250 {
				return
			}
			r.content.mu.Lock()
			r.content.token = "2"
			r.content.mu.Unlock()
			if _, _, err := r.d.Rescan(t.Context()); err != nil {
				t.Error(err)
			}
		}
		list := w.answer(c())
		if k := lastOf(list); len(list) != 3 || k.GetError().GetCode() != pb.ErrorCode_ERROR_CODE_STALE_REVISION {
			t.Errorf("after a change: %d chunks, %v", len(list), k)
		}
		f.entry = nil
		if k := lastOf(w.answer(c())); k.GetError() != nil || k.GetEntriesTotal() != 300 {
			t.Errorf("asked again: %v", k.GetError())
		}
	})
}

// What is left out of the list because it must be read first is shown by the daemon's own status.
func TestStatusShowsWhatIsReadToBeListed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		for _, name := range []string{"holiday", "tapes"} {
			r.content.resources = append(r.content.resources, &pb.ResourceSummary{LogicalBytes: 44, Resource: &pb.ResourceRef{ResourceId: name,
				Identity: &pb.ResourceIdentity{DisplayName: name}}})
		}
		r.content.busy, r.content.hashed = map[string]bool{"holiday": true, "tapes": true}, make(chan string)
		r.start()
		w := r.accept()
		if k := lastOf(w.answer(query(resourcesScope, nil))); k.GetEntriesTotal() != 0 || k.GetError() != nil {
			t.Errorf("%v", k)
		}
		reading := func() []daemon.Reading {
			t.Helper()
			s, err := r.d.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return s.Reading
		}
		if got := reading(); len(got) != 2 || got[0].Bytes != 44 || got[0].Name == got[1].Name {
			t.Errorf("%+v", got)
		}
		first := await(t, "the hashing", r.content.hashed)
		if id := await(t, "the hashing", r.content.hashed); id == first {
			t.Errorf("%s was read twice", id)
		}
		if got := reading(); len(got) > 1 || len(got) == 1 && (got[0].Name == first || !got[0].Active) {
			t.Errorf("%+v after %s was read", got, first)
		}
	})
}

func TestStorageAndJobs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		root := func(id string, kind pb.RootKind) daemon.Root {
			dir, err := beneath.Open(t.TempDir(), beneath.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { dir.Close() })
			return daemon.Root{ID: id, Kind: kind, Open: func() (*beneath.Root, error) { return dir, nil }}
		}
		gone := daemon.Root{ID: "gone", Kind: pb.RootKind_ROOT_KIND_RECEIVE, Open: func() (*beneath.Root, error) {
			return nil, backend.Fail("UNAVAILABLE", "the root is not mounted")
		}}
		r.options.Roots = []daemon.Root{root("content", pb.RootKind_ROOT_KIND_CONTENT), root("outbox", pb.RootKind_ROOT_KIND_OUTBOX), gone}
		r.start()
		w := r.accept()
		list := lastOf(w.answer(query(storageScope, nil))).GetStorage().GetEntries()
		if len(list) != 3 || !list[0].GetWritable() || list[0].GetFreeBytes() == 0 || list[0].GetProfile().GetMaxNameBytes() == 0 ||
			len(list[0].GetSameFilesystemAs()) != 1 || list[0].GetSameFilesystemAs()[0] != "outbox" {
			t.Errorf("storage: %v", list)
		}
		if e := list[2]; e.GetError().GetCode() != pb.ErrorCode_ERROR_CODE_UNAVAILABLE || e.GetWritable() || len(e.GetSameFilesystemAs()) != 0 {
			t.Errorf("a root that is gone: %v", e)
		}
		p := newAdopt()
		p.assigned(w)
		jobs := lastOf(w.answer(query(jobsScope, nil))).GetJobs().GetEntries()
		if len(jobs) != 1 || jobs[0].GetJobId() != p.id.String() || jobs[0].GetRevision() != 1 {
			t.Errorf("jobs: %v", jobs)
		}
	})
}

func TestAnswersBelongToTheirConnection(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		w := r.accept()
		c := query(jobsScope, nil)
		first := w.answer(c)
		w.command(c) // its acknowledgement was lost: the answer is not given twice here
		if a := w.ack(c); a.GetStatus() != pb.AckStatus_ACK_STATUS_DUPLICATE {
			t.Errorf("ack: %v", a)
		}
		w.noEvents()
		for _, e := range w.held {
			if e.GetInventoryChunk().GetCommandId() == c.GetCommandId() {
				t.Error("an answer was given twice on one connection")
			}
		}
		r.cut(w)
		w = r.redial()
		w.command(c)
		w.ack(c)
		again := w.take("the answer", func(e *pb.Envelope) bool { return e.GetInventoryChunk() != nil }).GetInventoryChunk()
		if again.GetSnapshotId() == first[0].GetSnapshotId() {
			t.Error("an answer of an earlier connection was carried on")
		}
	})
}

func TestSnapshotInParts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.control.limits = small()
		r.start()
		w := r.accept()
		p := newAdopt()
		p.assigned(w)
		p.done(r, w, materialize)
		for range 150 { // many commands, refused
			c := p.execute(verify, 1)
			c.Precondition.ExpectedRevision = 0
			w.command(c)
			w.ack(c)
		}
		x := p.execute(verify, 1)
		w.accepted(x)
		worker := r.call("run")
		p.took(w, started)
		r.cut(w)
		worker.task.Progress(bytesDone(100))
		r.until("an unsent PROGRESS", func() bool {
			list := r.outbox(p)
			return !list[len(list)-1].Sent && list[len(list)-1].Event.GetKind() == progress
		})
		w = r.redial()
		w.accepted(p.snapshot())
		var parts []*pb.JobSnapshot
		for len(parts) == 0 || !parts[len(parts)-1].GetLastPart() {
			s := w.take("a part", func(e *pb.Envelope) bool { return e.GetJobSnapshot() != nil }).GetJobSnapshot()
			if int(s.GetPartIndex()) != len(parts) {
				t.Fatalf("part %d came as %d", s.GetPartIndex(), len(parts))
			}
			parts = append(parts, s)
		}
		var events, commands, proofs int
		lease := pb.LeaseState_LEASE_STATE_UNSPECIFIED
		for _, s := range parts {
			events += len(s.GetEvents())
			commands += len(s.GetCommands())
			proofs += len(s.GetEvidence())
			if s.GetCursor().GetLastEventSequence() != 4 || s.GetStateEpoch() != w.request.GetStateEpoch() {
				t.Errorf("part %d: %v", s.GetPartIndex(), s.GetCursor())
			}
			for _, c := range s.GetCommands() {
				if c.GetCommandId() == x.GetCommandId() {
					lease = c.GetLeaseState()
				}
			}
		}
		// Assignment, two steps, the refusals and the request itself.
		if len(parts) < 2 || events != 4 || commands != 150+4 || proofs != 1 || lease != pb.LeaseState_LEASE_STATE_OPEN {
			t.Errorf("%d parts, %d events, %d commands, %d proofs, lease %v", len(parts), events, commands, proofs, lease)
		}
		// Control may keep what it has seen: the row must not change any more.
		if list := r.outbox(p); !list[3].Sent {
			t.Error("an event of a snapshot can still change")
		}
	})
}
