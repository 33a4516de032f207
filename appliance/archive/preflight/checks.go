package preflight

import (
	"fmt"
	"time"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// check is one row of the table of daemon protocol 3.3.
type check struct {
	no   int
	name string
	ops  []pb.JobOperation
	run  func(*Facts) *pb.ErrorDetail
}

var all = []pb.JobOperation{transfer, adopt, evict}

// registryChecks need nothing of the daemons. They come first: a daemon that is away cannot be asked.
var registryChecks = []check{
	{1, "participants", all, checkParticipants},
	{2, "capabilities", all, checkCapabilities},
	{3, "route", []pb.JobOperation{transfer}, checkRoute},
	{4, "reservations", all, checkReservations},
}

// contentChecks need both content trees and storage.
var contentChecks = []check{
	{5, "source revision", all, checkSource},
	{6, "target", all, checkTarget},
	{7, "requested files", all, checkRequested},
	{8, "backend state", all, checkBackend},
	{9, "paths", []pb.JobOperation{transfer, adopt}, checkPaths},
	{10, "file sizes", []pb.JobOperation{transfer, adopt}, checkSizes},
	{11, "piece coverage", []pb.JobOperation{transfer, adopt}, checkPieces},
	{12, "torrent version", []pb.JobOperation{transfer, adopt}, checkFormat},
	{13, "space at the target", []pb.JobOperation{transfer}, checkTargetSpace},
	{14, "space at the source", []pb.JobOperation{transfer}, checkSourceSpace},
	{15, "metainfo", []pb.JobOperation{transfer, adopt}, checkMetainfo},
}

// requestedCheck is check 7 alone.
var requestedCheck = []check{{7, "requested files", all, checkRequested}}

// run applies the checks of the operation in order; the first that fails ends it.
func run(checks []check, f *Facts) *pb.ErrorDetail {
	for _, c := range checks {
		for _, op := range c.ops {
			if op != f.Operation {
				continue
			}
			if d := c.run(f); d != nil {
				if d.Details == nil {
					d.Details = map[string]string{}
				}
				d.Details["check"] = fmt.Sprint(c.no)
				return d
			}
		}
	}
	return nil
}

func checkParticipants(f *Facts) *pb.ErrorDetail {
	one := func(p *Peer, wrong pb.ClientRole, what string) *pb.ErrorDetail {
		switch {
		case !p.Online:
			return failure(pb.ErrorCode_ERROR_CODE_UNAVAILABLE, "start it, or wait until it is back",
				fmt.Sprintf("daemon %s is offline", p.Name), "daemon", p.Name)
		case p.Role == wrong:
			return failure(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "choose another daemon, or give it the role in its configuration",
				fmt.Sprintf("daemon %s cannot be the %s", p.Name, what), "daemon", p.Name)
		case p.Paused:
			return failure(pb.ErrorCode_ERROR_CODE_UNAVAILABLE, "stop the other daemon that runs with its ID",
				fmt.Sprintf("daemon %s gets no jobs while two databases answer to its ID", p.Name), "daemon", p.Name)
		}
		return nil
	}
	if f.Operation != adopt {
		if d := one(&f.Source, pb.ClientRole_CLIENT_ROLE_TARGET, "source"); d != nil {
			return d
		}
		if f.Source.Ref.ID == f.Target.Ref.ID {
			return failure(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "", "source and target must be two daemons")
		}
	}
	return one(&f.Target, pb.ClientRole_CLIENT_ROLE_SOURCE, "target")
}

// needed are the capabilities that a job requires of both daemons, as far as they are known before the content is.
func needed(f *Facts) (both, sourceOnly, targetOnly []string) {
	if f.Operation == transfer && f.Route != nil {
		both = append(both, archive.RouteCapability(f.Route.Message.GetKind()))
	}
	if f.Operation == transfer && f.Policies.GetSparsePolicy() == pb.SparsePolicy_SPARSE_POLICY_REQUIRE {
		both = append(both, archive.CapSparse)
	}
	if f.Operation == evict {
		sourceOnly = append(sourceOnly, archive.CapEviction)
	}
	if f.Operation == transfer {
		switch f.Policies.GetPartfileMode() {
		case pb.PartfileMode_PARTFILE_MODE_COPY:
			both = append(both, archive.CapPartfileCopy)
		case pb.PartfileMode_PARTFILE_MODE_EXPLODE:
			both = append(both, archive.CapPartfileExplode)
		}
		if f.ChoseStage {
			sourceOnly = append(sourceOnly, gatesOf(f.Policies.GetStageMethods())...)
		}
		if f.ChoseMaterialize {
			targetOnly = append(targetOnly, gatesOf(f.Policies.GetMaterializeMethods())...)
		}
	}
	return both, sourceOnly, targetOnly
}

// gate is the capability that a method needs; "" for none.
func gate(m pb.MaterializeMethod) string {
	switch m {
	case pb.MaterializeMethod_MATERIALIZE_METHOD_HARDLINK:
		return archive.CapHardlink
	case pb.MaterializeMethod_MATERIALIZE_METHOD_REFLINK:
		return archive.CapReflink
	}
	return ""
}

func gatesOf(methods []pb.MaterializeMethod) (out []string) {
	for _, m := range methods {
		if g := gate(m); g != "" {
			out = append(out, g)
		}
	}
	return out
}

func checkCapabilities(f *Facts) *pb.ErrorDetail {
	both, sourceOnly, targetOnly := needed(f)
	for _, side := range []struct {
		p    *Peer
		list [][]string
	}{{&f.Source, [][]string{both, sourceOnly}}, {&f.Target, [][]string{both, targetOnly}}} {
		for _, list := range side.list {
			for _, c := range list {
				if !side.p.Has(c) {
					return failure(pb.ErrorCode_ERROR_CODE_UNSUPPORTED, "use other options, or a daemon that has it",
						fmt.Sprintf("daemon %s does not announce %s, which this job needs", side.p.Name, c), "daemon", side.p.Name, "capability", c)
				}
			}
		}
	}
	return nil
}

func checkRoute(f *Facts) *pb.ErrorDetail {
	r := f.Route
	switch {
	case r == nil:
		return failure(pb.ErrorCode_ERROR_CODE_NOT_FOUND, "create one between these daemons", "the route does not exist")
	case r.Message.GetSourceClientId() != f.Source.Ref.ID.String() || r.Message.GetTargetClientId() != f.Target.Ref.ID.String():
		return failure(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "name a route between these daemons",
			fmt.Sprintf("route %s does not lead from daemon %s to daemon %s", r.Name, f.Source.Name, f.Target.Name), "route", r.Name)
	case !r.Ready:
		return failure(pb.ErrorCode_ERROR_CODE_ROUTE_NOT_READY, "test the route, or wait until it is ready",
			fmt.Sprintf("route %s is not ready: %s", r.Name, r.Why), "route", r.Name)
	}
	return nil
}

func checkReservations(f *Facts) *pb.ErrorDetail {
	if h := f.Holder; h != nil {
		return failure(pb.ErrorCode_ERROR_CODE_BUSY, "wait until it has ended", fmt.Sprintf("job %s holds %s", h.Job, h.What), "job_id", h.Job.String())
	}
	for _, p := range []*Peer{&f.Source, &f.Target} {
		if most := int(p.Limits.GetMaxActiveCursors()); most > 0 && p.ActiveJobs >= most {
			return failure(pb.ErrorCode_ERROR_CODE_BUSY, "wait until one has ended",
				fmt.Sprintf("daemon %s takes part in %d jobs, which is all that it can", p.Name, p.ActiveJobs), "daemon", p.Name)
		}
	}
	return nil
}

func checkSource(f *Facts) *pb.ErrorDetail {
	if f.Resource == nil || f.SourceTree == nil {
		return failure(pb.ErrorCode_ERROR_CODE_NOT_FOUND, "refresh the inventory and choose again",
			fmt.Sprintf("daemon %s does not have the resource", f.Source.Name), "daemon", f.Source.Name)
	}
	if f.Previewed && f.SourceTree.Revision != f.PreviewedSource {
		return failure(pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT, "make a new preview",
			fmt.Sprintf("the content at daemon %s has changed since the preview", f.Source.Name), "expected", f.PreviewedSource,
			"found", f.SourceTree.Revision)
	}
	if !archive.Identified(f.SourceTree.Header.GetResource().GetIdentity()) {
		return failure(pb.ErrorCode_ERROR_CODE_UNSUPPORTED_FORMAT, "", fmt.Sprintf("daemon %s gives the resource no identity", f.Source.Name))
	}
	return nil
}

func checkTarget(f *Facts) *pb.ErrorDetail {
	found := ""
	if f.TargetTree != nil {
		found = f.TargetTree.Revision
	}
	if f.Previewed && f.Operation != adopt && found != f.PreviewedTarget {
		return failure(pb.ErrorCode_ERROR_CODE_STALE_FINGERPRINT, "make a new preview",
			fmt.Sprintf("what daemon %s has of the content has changed since the preview", f.Target.Name), "expected", f.PreviewedTarget, "found", found)
	}
	source := f.SourceTree.Header.GetResource().GetIdentity()
	if f.TargetTree != nil && archive.IdentityConflict(source, f.TargetTree.Header.GetResource().GetIdentity()) {
		return failure(pb.ErrorCode_ERROR_CODE_RESOURCE_CONFLICT, "compare the torrent files of both daemons",
			fmt.Sprintf("daemon %s has a resource that agrees with this one in one identity and differs in another", f.Target.Name),
			"resource_id", f.TargetResource.GetResource().GetResourceId())
	}
	switch f.Operation {
	case transfer:
		if d := checkExisting(f); d != nil {
			return d
		}
		return checkOccupant(f)
	case evict:
		return checkKept(f)
	}
	return nil
}

// checkExisting looks at the resource that the target has already.
func checkExisting(f *Facts) *pb.ErrorDetail {
	if f.TargetTree == nil {
		return nil
	}
	r := f.TargetResource
	if !f.atDestination(r) {
		return failure(pb.ErrorCode_ERROR_CODE_RESOURCE_CONFLICT, "adopt it where it is, or choose that place as the destination",
			fmt.Sprintf("daemon %s has this content already, in root %s, directory %s", f.Target.Name, r.GetContentRootId(), quote(r.GetRelativeDir())),
			"resource_id", r.GetResource().GetResourceId(), "found", r.GetContentRootId()+"/"+r.GetRelativeDir())
	}
	state := f.TargetTree.Header.GetBackendState()
	switch state {
	case pb.BackendState_BACKEND_STATE_CHECKING, pb.BackendState_BACKEND_STATE_MOVING, pb.BackendState_BACKEND_STATE_DOWNLOADING:
		return failure(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, "wait for it, or stop it there",
			fmt.Sprintf("the client of daemon %s is at work on this content (%s)", f.Target.Name, stateText(state)))
	}
	if state != pb.BackendState_BACKEND_STATE_NOT_MANAGED {
		for index := range f.Requested.All() {
			if t, ok := f.TargetTree.find(index); ok && !t.Selected {
				return failure(pb.ErrorCode_ERROR_CODE_RESOURCE_CONFLICT, "select the file there, or leave it out",
					fmt.Sprintf("daemon %s has this content with another selection: file %s is not wanted there", f.Target.Name, quote(t.Path)), "path", t.Path)
			}
		}
	}
	if f.delta().Empty() && !f.Requested.Empty() {
		return failure(pb.ErrorCode_ERROR_CODE_RESOURCE_CONFLICT, "adopt it there instead of copying it",
			fmt.Sprintf("daemon %s has every requested file already", f.Target.Name), "resource_id", r.GetResource().GetResourceId())
	}
	return nil
}

// checkOccupant looks for other content under the names that the job would take.
func checkOccupant(f *Facts) *pb.ErrorDetail {
	if f.OccupantTree == nil {
		return nil
	}
	there := make(map[string]*File, len(f.OccupantTree.Files))
	for i := range f.OccupantTree.Files {
		there[f.OccupantTree.Files[i].Path] = &f.OccupantTree.Files[i]
	}
	for index := range f.delta().All() {
		s, ok := f.SourceTree.find(index)
		if !ok {
			continue
		}
		t, ok := there[s.Path]
		if !ok || t.Present == pb.DiskPresence_DISK_PRESENCE_ABSENT && t.Disk == 0 && t.Logical > 0 {
			continue
		}
		size := max(t.Disk, t.Logical)
		if size == s.Logical && f.Policies.GetConflictPolicy() == pb.ConflictPolicy_CONFLICT_POLICY_ADOPT_IDENTICAL {
			continue // its digest decides; nothing is written over it
		}
		return failure(pb.ErrorCode_ERROR_CODE_PATH_CONFLICT, "choose another destination, or move that file away",
			fmt.Sprintf("daemon %s has another file under the name %s: %d bytes of %s there, %d bytes of %s at the source", f.Target.Name,
				quote(s.Path), size, dateText(t.Mtime), s.Logical, dateText(s.Mtime)),
			"path", s.Path, "expected", fmt.Sprint(s.Logical), "found", fmt.Sprint(size),
			"expected_mtime", dateText(s.Mtime), "found_mtime", dateText(t.Mtime))
	}
	return nil
}

// checkKept makes sure that what the source gives up is at the target.
func checkKept(f *Facts) *pb.ErrorDetail {
	switch {
	case f.Commit == nil:
		return failure(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "name a completed job", "an eviction rests on the commit of a transfer or an adoption")
	case f.Commit.GetClientId() != f.Target.Ref.ID.String():
		return failure(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "name the daemon that keeps the content",
			fmt.Sprintf("the commit is not of daemon %s", f.Target.Name))
	case !archive.IdentityMatch(f.Commit.GetResource().GetIdentity(), f.SourceTree.Header.GetResource().GetIdentity()):
		return failure(pb.ErrorCode_ERROR_CODE_RESOURCE_CONFLICT, "compare both resources",
			fmt.Sprintf("what daemon %s would give up is not what the job has brought to daemon %s", f.Source.Name, f.Target.Name))
	case f.TargetTree == nil:
		return failure(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, "copy it again first",
			fmt.Sprintf("daemon %s no longer has the content", f.Target.Name))
	}
	for i := range f.SourceTree.Files {
		s := &f.SourceTree.Files[i]
		if s.Kind == pb.FileKind_FILE_KIND_PADDING || s.Completed == 0 && s.Disk == 0 {
			continue
		}
		if !s.Selected && !s.complete() {
			continue // fragments of pieces that it shares with selected files
		}
		t, ok := f.TargetTree.find(s.Index)
		if s.Kind == pb.FileKind_FILE_KIND_REGULAR && f.Requested.Contains(s.Index) && ok && t.Path == s.Path && t.Logical == s.Logical && t.complete() {
			continue
		}
		return failure(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, "copy it too, or remove it at the source by hand",
			fmt.Sprintf("daemon %s has file %s, which daemon %s does not keep: it would be lost", f.Source.Name, quote(s.Path), f.Target.Name), "path", s.Path)
	}
	return nil
}

func checkRequested(f *Facts) *pb.ErrorDetail {
	if f.Requested.Empty() {
		return failure(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "choose files that are there", "no file is requested")
	}
	for index := range f.Requested.All() {
		s, ok := f.SourceTree.find(index)
		switch {
		case !ok:
			return failure(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "choose files of the tree", fmt.Sprintf("the resource has no file %d", index),
				"index", fmt.Sprint(index))
		case s.Kind == pb.FileKind_FILE_KIND_PADDING:
			return failure(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "leave it out", fmt.Sprintf("file %d is padding", index), "path", s.Path)
		case s.Kind != pb.FileKind_FILE_KIND_REGULAR:
			return failure(pb.ErrorCode_ERROR_CODE_UNSUPPORTED_FORMAT, "leave it out: symbolic links are not copied",
				fmt.Sprintf("file %s is a symbolic link", quote(s.Path)), "path", s.Path)
		case f.Operation == adopt && (s.Present != pb.DiskPresence_DISK_PRESENCE_FINAL_NAME && s.Logical > 0 || s.Disk != s.Logical):
			return failure(pb.ErrorCode_ERROR_CODE_RESOURCE_INCOMPLETE, "leave it out, or complete it first",
				fmt.Sprintf("file %s has %d of %d bytes", quote(s.Path), s.Disk, s.Logical), "path", s.Path, "expected", fmt.Sprint(s.Logical), "found", fmt.Sprint(s.Disk))
		case f.Operation == transfer && !s.complete():
			return failure(pb.ErrorCode_ERROR_CODE_RESOURCE_INCOMPLETE, "leave it out, or wait until it is complete",
				fmt.Sprintf("file %s is not complete at daemon %s: %d of %d bytes", quote(s.Path), f.Source.Name, s.Completed, s.Logical),
				"path", s.Path, "expected", fmt.Sprint(s.Logical), "found", fmt.Sprint(s.Completed))
		}
	}
	return nil
}

func checkBackend(f *Facts) *pb.ErrorDetail {
	state := f.SourceTree.Header.GetBackendState()
	ok := false
	switch state {
	case pb.BackendState_BACKEND_STATE_SEEDING, pb.BackendState_BACKEND_STATE_STOPPED_COMPLETE, pb.BackendState_BACKEND_STATE_NOT_MANAGED:
		ok = true
	case pb.BackendState_BACKEND_STATE_STOPPED_INCOMPLETE:
		ok = true // check 7 has found every requested file complete
	}
	if !ok {
		return failure(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, "wait until its client is done, or stop the torrent there",
			fmt.Sprintf("the content at daemon %s is in state %s", f.Source.Name, stateText(state)), "found", stateText(state))
	}
	if f.Operation != evict {
		return nil
	}
	if shared := f.SourceTree.Header.GetSharedWith(); len(shared) > 0 {
		return failure(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, "remove the other entry first",
			fmt.Sprintf("resource %s of daemon %s uses the same files", quote(shared[0]), f.Source.Name), "resource_id", shared[0])
	}
	if !f.AllowLibraryLinks {
		for i := range f.SourceTree.Files {
			if s := &f.SourceTree.Files[i]; s.Links > 1 && s.Kind == pb.FileKind_FILE_KIND_REGULAR {
				return failure(pb.ErrorCode_ERROR_CODE_UNSAFE_STATE, "allow library links (--allow-library-links) if the other names are to stay",
					fmt.Sprintf("file %s has %d names at daemon %s", quote(s.Path), s.Links, f.Source.Name), "path", s.Path)
			}
		}
	}
	return nil
}

func stateText(s pb.BackendState) string {
	const prefix = "BACKEND_STATE_"
	return s.String()[len(prefix):]
}

func dateText(micros int64) string {
	if micros == 0 {
		return "unknown date"
	}
	return time.UnixMicro(micros).UTC().Format("2006-01-02 15:04:05 UTC")
}
