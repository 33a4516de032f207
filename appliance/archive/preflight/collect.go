package preflight

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/inventory"
	"signalbox/appliance/archive/job"
	"signalbox/appliance/archive/pathrule"
	"signalbox/appliance/fault"
)

// order is what a preflight is made for.
type order struct {
	jobNo    int64 // 0: a preview
	request  job.Request
	patterns []string
	parent   *pb.JobDefinition // EVICT
	commit   *pb.CommitEvidence
	// previewed is the preview that a job was started from; nil: plan afresh.
	previewed *Preview
}

// collector gathers the facts of one preflight.
type collector struct {
	*Preflight
	// patient has a daemon that must read content first (BUSY) be asked again after a while.
	patient bool
}

// collect gathers the facts and applies the checks as soon as they can be applied. detail is why the job cannot be done
// now; an error is none of the job's.
func (p *collector) collect(ctx context.Context, o order) (f *Facts, detail *pb.ErrorDetail, err error) {
	f = &Facts{Operation: o.request.Operation, AcceptDrop: o.request.AcceptDrop, Parent: o.parent, Commit: o.commit,
		MaxVerifyAge: o.request.MaxVerifyAge, AllowLibraryLinks: o.request.AllowLibraryLinks}
	if f.MaxVerifyAge == 0 {
		f.MaxVerifyAge = archive.DefaultMaxVerifyAge
	}
	if o.request.Parent != uuid.Nil {
		f.ParentID = o.request.Parent.String()
	}
	if o.previewed != nil {
		f.Previewed, f.PreviewedSource, f.PreviewedTarget = true, o.previewed.SourceRev, o.previewed.TargetRev
	}
	if err := p.store.View(ctx, func(tx ReadTx) error { return p.registryFacts(tx, f, o) }); err != nil {
		return f, asDetail(err), notOfJob(err)
	}
	asked := o.request.Policies
	if o.previewed != nil {
		asked = o.previewed.Draft.GetPolicies()
	}
	completePolicies(f, asked)
	if d := run(registryChecks, f); d != nil {
		return f, d, nil
	}
	if d, err := p.contents(ctx, f, o); d != nil || err != nil {
		return f, d, err
	}
	if err := p.store.View(ctx, func(tx ReadTx) error { return p.holder(tx, f, o) }); err != nil {
		return f, nil, err
	}
	if d := run(registryChecks[3:], f); d != nil {
		return f, d, nil
	}
	return f, run(contentChecks, f), nil
}

// asDetail turns a missing row into a detail of the job; nil for errors of the database.
func asDetail(err error) *pb.ErrorDetail {
	if fault.Is(err, fault.NotFound) {
		return failure(pb.ErrorCode_ERROR_CODE_NOT_FOUND, "", fault.Message(err))
	}
	return nil
}

func notOfJob(err error) error {
	if asDetail(err) != nil {
		return nil
	}
	return err
}

// registryFacts reads what control knows by itself.
func (p *collector) registryFacts(tx ReadTx, f *Facts, o order) error {
	for _, side := range []struct {
		id   uuid.UUID
		into *Peer
	}{{o.request.Source, &f.Source}, {o.request.Target, &f.Target}} {
		peer, ok, err := tx.PreflightPeer(side.id, o.jobNo)
		if err != nil {
			return err
		}
		if !ok {
			return fault.New(fault.NotFound, "there is no daemon %s", side.id)
		}
		*side.into = peer
	}
	if f.Operation != transfer {
		return nil
	}
	row, ok, err := tx.RouteByID(o.request.Route)
	if err != nil || !ok {
		return err
	}
	f.Route = &RouteFacts{No: row.No, Name: row.Name, Message: row.Message}
	f.Route.Ready, f.Route.Why, err = p.o.Routes.Ready(tx, row.No)
	return err
}

// holder finds a job that holds a name which this one needs. A job that has its reservations already is not asked.
func (p *collector) holder(tx ReadTx, f *Facts, o order) error {
	if o.jobNo != 0 {
		return nil
	}
	h, ok, err := tx.PreflightHolder(names(f), o.jobNo)
	if ok {
		f.Holder = &h
	}
	return err
}

// names are those that the job would reserve: its identities at both daemons, its resources, and the name it builds.
func names(f *Facts) (out []Name) {
	id := f.SourceTree.Header.GetResource().GetIdentity()
	for _, no := range []int64{f.Source.Ref.No, f.Target.Ref.No} {
		out = append(out, Name{no, "infohash_v1", id.GetInfohashV1()}, Name{no, "infohash_v2", id.GetInfohashV2()},
			Name{no, "tree", id.GetTreeFingerprint()})
	}
	out = append(out, Name{f.Source.Ref.No, "resource", f.SourceTree.Header.GetResource().GetResourceId()})
	if f.Destination != nil && id.GetDisplayName() != "" {
		name := path.Join(f.Destination.GetContentRootId(), f.Destination.GetRelativeDir(), id.GetDisplayName())
		out = append(out, Name{f.Target.Ref.No, "destination", name}, Name{f.Target.Ref.No, "destination", strings.ToLower(name)})
	}
	return out
}

// contents fetches trees, resources and storage afresh, and resolves what the operator left open.
func (p *collector) contents(ctx context.Context, f *Facts, o order) (*pb.ErrorDetail, error) {
	if d, err := p.source(ctx, f, o); d != nil || err != nil || f.SourceTree == nil {
		if d == nil && err == nil {
			d = checkSource(f)
		}
		return d, err
	}
	if d := p.requested(f, o); d != nil {
		return d, nil
	}
	if f.Operation != evict {
		if d, err := p.storage(ctx, f, o); d != nil || err != nil {
			return d, err
		}
	}
	if f.Operation == adopt {
		return nil, nil
	}
	if d, err := p.target(ctx, f); d != nil || err != nil {
		return d, err
	}
	if f.Operation == transfer {
		return p.occupant(ctx, f)
	}
	return nil, nil
}

func (p *collector) requested(f *Facts, o order) (d *pb.ErrorDetail) {
	named := o.request.Requested
	switch {
	case o.previewed != nil:
		named = o.previewed.Draft.GetRequested()
	case named == nil && len(o.patterns) == 0 && f.Operation == evict:
		named = o.parent.GetRequested()
	}
	f.Requested, d = choose(f.SourceTree, named, o.patterns)
	if d == nil && f.Requested.Count() > uint64(len(f.SourceTree.Files)) {
		// Some index names no file. Said now: what follows looks at every index, and there may be billions.
		d = run(requestedCheck, f)
	}
	return d
}

// source fetches the resource and its tree.
func (p *collector) source(ctx context.Context, f *Facts, o order) (d *pb.ErrorDetail, err error) {
	f.Resource, f.SourceTree, d, err = p.resource(ctx, &f.Source, o.request.ResourceID)
	return d, err
}

// resource fetches the tree of a resource and then its summary; both are nil when the daemon does not have it. The tree
// comes first: content without a torrent has no identity, and so no summary, until the daemon has read it.
func (p *collector) resource(ctx context.Context, peer *Peer, id string) (*pb.ResourceSummary, *Tree, *pb.ErrorDetail, error) {
	tree, d, err := p.tree(ctx, peer, id)
	if d.GetCode() == pb.ErrorCode_ERROR_CODE_NOT_FOUND {
		return nil, nil, nil, err
	}
	if d != nil || err != nil {
		return nil, nil, d, err
	}
	res, d, err := p.ask(ctx, peer, &pb.InventoryQuery{Scope: pb.InventoryScope_INVENTORY_SCOPE_RESOURCES, ResourceIds: []string{id}})
	if d != nil || err != nil {
		return nil, nil, d, err
	}
	row, err := p.o.Inventory.Resource(ctx, peer.Ref.ID, id)
	if fault.Is(err, fault.NotFound) || err == nil && (row.Absent || row.FirstQuery < res.FirstQuery) {
		return nil, nil, nil, nil
	}
	return row.Summary, tree, nil, err
}

// tree fetches a content tree afresh.
func (p *collector) tree(ctx context.Context, peer *Peer, resourceID string) (*Tree, *pb.ErrorDetail, error) {
	res, d, err := p.ask(ctx, peer, &pb.InventoryQuery{Scope: pb.InventoryScope_INVENTORY_SCOPE_CONTENT_TREE, ResourceIds: []string{resourceID}})
	if d != nil || err != nil {
		return nil, d, err
	}
	stored, err := p.o.Inventory.Tree(ctx, peer.Ref.ID, resourceID)
	if err != nil {
		return nil, nil, err
	}
	t := &Tree{Header: stored.Header, Revision: stored.ContentRevision, Files: make([]File, 0, res.Entries)}
	err = p.o.Inventory.EachFile(ctx, stored, func(e *pb.FileEntry) error {
		t.Files = append(t.Files, fileOf(e))
		return nil
	})
	if fault.Is(err, fault.Stale) {
		return nil, failure(pb.ErrorCode_ERROR_CODE_BUSY, "try again", fmt.Sprintf("the content tree of daemon %s was fetched anew meanwhile", peer.Name)), nil
	}
	return t, nil, err
}

// storage fetches the roots and decides where the content goes.
func (p *collector) storage(ctx context.Context, f *Facts, o order) (d *pb.ErrorDetail, err error) {
	if f.TargetStorage, d, err = p.roots(ctx, &f.Target); d != nil || err != nil {
		return d, err
	}
	if f.Operation == transfer {
		if f.SourceStorage, d, err = p.roots(ctx, &f.Source); d != nil || err != nil {
			return d, err
		}
	} else {
		f.SourceStorage = f.TargetStorage
	}
	asked := o.request.Destination
	if o.previewed != nil {
		asked = o.previewed.Draft.GetDestination()
	}
	f.Destination, d = destination(f, asked)
	return d, nil
}

func (p *collector) roots(ctx context.Context, peer *Peer) ([]*pb.StorageEntry, *pb.ErrorDetail, error) {
	if _, d, err := p.ask(ctx, peer, &pb.InventoryQuery{Scope: pb.InventoryScope_INVENTORY_SCOPE_STORAGE}); d != nil || err != nil {
		return nil, d, err
	}
	list, err := p.o.Inventory.Storage(ctx, peer.Ref.ID)
	out := make([]*pb.StorageEntry, 0, len(list))
	for _, s := range list {
		out = append(out, s.Entry)
	}
	return out, nil, err
}

// destination completes what the operator asked: the same directory as at the source, below the only content root.
func destination(f *Facts, asked *pb.Destination) (*pb.Destination, *pb.ErrorDetail) {
	d := &pb.Destination{RelativeDir: f.Resource.GetRelativeDir(), Category: f.Resource.GetCategory(), Labels: f.Resource.GetLabels(), PreserveLayout: true}
	if f.Operation == adopt {
		d.ContentRootId = f.Resource.GetContentRootId()
	}
	if asked != nil {
		root := d.ContentRootId
		d = proto.CloneOf(asked)
		if d.ContentRootId == "" {
			d.ContentRootId = root
		}
	}
	if f.Operation == adopt && (d.ContentRootId != f.Resource.GetContentRootId() || d.RelativeDir != f.Resource.GetRelativeDir()) {
		return d, failure(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "leave the destination out",
			fmt.Sprintf("an adoption leaves the content where it is: root %s, directory %s", f.Resource.GetContentRootId(), quote(f.Resource.GetRelativeDir())))
	}
	if d.ContentRootId != "" {
		return d, nil
	}
	var ids []string
	for _, e := range f.TargetStorage {
		if e.GetRootKind() == pb.RootKind_ROOT_KIND_CONTENT {
			ids = append(ids, e.GetRootId())
		}
	}
	if len(ids) != 1 {
		return d, failure(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "name the content root",
			fmt.Sprintf("daemon %s has %d content roots: %s", f.Target.Name, len(ids), strings.Join(ids, ", ")))
	}
	d.ContentRootId = ids[0]
	return d, nil
}

// target finds the resource of the same identity at the target, or proves that there is none.
func (p *collector) target(ctx context.Context, f *Facts) (*pb.ErrorDetail, error) {
	id := proto.CloneOf(f.SourceTree.Header.GetResource().GetIdentity())
	id.DisplayName = ""
	if kept := f.Commit.GetResource().GetResourceId(); f.Operation == evict && kept != "" {
		var d *pb.ErrorDetail
		var err error
		f.TargetResource, f.TargetTree, d, err = p.resource(ctx, &f.Target, kept)
		if d != nil || err != nil || f.TargetTree != nil {
			return d, err
		}
	}
	found, d, err := p.seen(ctx, &f.Target, &pb.ResourceFilter{Identity: id}, inventory.Filter{Identity: id})
	if d != nil || err != nil {
		return d, err
	}
	if len(found) == 0 {
		return nil, nil
	}
	f.TargetResource = found[0].Summary
	for _, r := range found[1:] {
		if f.Operation == transfer && f.atDestination(r.Summary) {
			f.TargetResource = r.Summary
		}
	}
	f.TargetTree, d, err = p.tree(ctx, &f.Target, f.TargetResource.GetResource().GetResourceId())
	return gone(d, func() { f.TargetResource = nil }), err
}

// gone takes NOT_FOUND for proof that the resource has gone meanwhile.
func gone(d *pb.ErrorDetail, fn func()) *pb.ErrorDetail {
	if d.GetCode() != pb.ErrorCode_ERROR_CODE_NOT_FOUND {
		return d
	}
	fn()
	return nil
}

// occupant finds other content at the name that the job would build.
func (p *collector) occupant(ctx context.Context, f *Facts) (*pb.ErrorDetail, error) {
	top := f.SourceTree.top()
	if top == "" || f.TargetTree != nil && f.atDestination(f.TargetResource) {
		return nil, nil
	}
	rootID := f.Destination.GetContentRootId()
	found, d, err := p.seen(ctx, &f.Target, &pb.ResourceFilter{Text: top, ContentRootIds: []string{rootID}}, inventory.Filter{})
	if d != nil || err != nil {
		return d, err
	}
	want := pathrule.Fold(f.destinationPath(top), f.profile())
	for _, r := range found {
		s := r.Summary
		at := s.GetResource().GetIdentity().GetDisplayName()
		if dir := s.GetRelativeDir(); dir != "" {
			at = dir + "/" + at
		}
		if s.GetContentRootId() != rootID || pathrule.Fold(at, f.profile()) != want {
			continue
		}
		f.Occupant = s
		f.OccupantTree, d, err = p.tree(ctx, &f.Target, s.GetResource().GetResourceId())
		return gone(d, func() { f.Occupant = nil }), err
	}
	return nil, nil
}

// seen asks a daemon for resources and returns those that this very answer showed.
func (p *collector) seen(ctx context.Context, peer *Peer, filter *pb.ResourceFilter, stored inventory.Filter) ([]inventory.Resource, *pb.ErrorDetail, error) {
	res, d, err := p.ask(ctx, peer, &pb.InventoryQuery{Scope: pb.InventoryScope_INVENTORY_SCOPE_RESOURCES, Filter: filter})
	if d != nil || err != nil || res.Entries == 0 {
		return nil, d, err
	}
	stored.DaemonNo = peer.Ref.No
	var out []inventory.Resource
	for token := ""; ; {
		page, err := p.o.Inventory.Resources(ctx, stored, token, inventory.MaxPage)
		if err != nil {
			return nil, nil, err
		}
		for _, r := range page.Resources {
			if r.FirstQuery >= res.FirstQuery {
				out = append(out, r)
			}
		}
		if token = page.Next; token == "" {
			return out, nil, nil
		}
	}
}

const (
	// askTimes is how often a question is asked whose answer was cut off.
	askTimes = 2
	// patience is how long a preview waits in all for a daemon that reads content before it can answer, and longestWait
	// how long at a time.
	patience    = 10 * time.Minute
	longestWait = 15 * time.Second
)

// ask asks a daemon for the preflight and waits. A cut-off answer is asked for once more.
func (p *collector) ask(ctx context.Context, peer *Peer, q *pb.InventoryQuery) (inventory.Result, *pb.ErrorDetail, error) {
	waited := time.Duration(0)
	for n, delay := 1, time.Second; ; {
		res, failed, err := p.once(ctx, peer, q)
		if failed == nil || err != nil {
			return res, nil, err
		}
		switch code := failed.GetCode(); {
		case n < askTimes && code == pb.ErrorCode_ERROR_CODE_TIMEOUT:
			n++
			continue
		case p.patient && waited < patience && code == pb.ErrorCode_ERROR_CODE_BUSY:
			if err := p.rest(ctx, delay); err != nil {
				return res, nil, err
			}
			waited += delay
			delay = min(2*delay, longestWait)
			continue
		}
		return res, failed, nil
	}
}

// once asks one time.
func (p *collector) once(ctx context.Context, peer *Peer, q *pb.InventoryQuery) (inventory.Result, *pb.ErrorDetail, error) {
	_, wait, err := p.o.Inventory.Query(ctx, peer.Ref.ID, q, pb.InventoryPurpose_INVENTORY_PURPOSE_PREFLIGHT)
	if fault.Is(err, fault.Unavailable) {
		code := pb.ErrorCode_ERROR_CODE_UNAVAILABLE
		if errors.Is(err, inventory.ErrBusy) {
			code = pb.ErrorCode_ERROR_CODE_BUSY
		}
		return inventory.Result{}, failure(code, "try again later", fault.Message(err), "daemon", peer.Name), nil
	}
	if err != nil {
		return inventory.Result{}, nil, err
	}
	res, err := wait(ctx)
	var failed *inventory.QueryError
	if !errors.As(err, &failed) {
		return res, nil, err
	}
	d := proto.CloneOf(failed.Detail)
	d.Message = clip(fmt.Sprintf("daemon %s: %s", peer.Name, d.GetMessage()))
	return res, d, nil
}

// rest is pause without the preview's slot, so that a daemon that reads for long keeps no other preview waiting.
func (p *collector) rest(ctx context.Context, d time.Duration) error {
	select {
	case p.resting <- struct{}{}:
	default:
		return p.pause(ctx, d) // many rest already, each with a tree in memory
	}
	<-p.slots
	err := p.pause(ctx, d)
	p.slots <- struct{}{} // also after an error: whoever runs the preview gives it back
	<-p.resting
	return err
}

func (p *collector) pause(ctx context.Context, d time.Duration) error {
	timer := p.o.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return fault.Wrap(fault.Canceled, context.Cause(ctx), "the preflight was ended")
	}
}

// revisions are what a preview is valid for; target is empty when the target has nothing of the content.
func (f *Facts) revisions() (source, target string) {
	if f.SourceTree != nil {
		source = f.SourceTree.Revision
	}
	if f.TargetTree != nil {
		target = f.TargetTree.Revision
	}
	return source, target
}
