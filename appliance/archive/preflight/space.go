package preflight

import (
	"fmt"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// Need is what a job writes below one root, and what is free there.
type Need struct {
	Daemon    string `json:"daemon"`
	RootID    string `json:"root_id"`
	Kind      string `json:"kind"` // outbox, receive or content
	Bytes     uint64 `json:"bytes"`
	KeepFree  uint64 `json:"keep_free"` // that stay free besides
	FreeBytes uint64 `json:"free_bytes"`
	// With is the other root on the same file system whose bytes are counted here; empty: none.
	With string `json:"with,omitempty"`
}

// sparseKept reports whether holes survive on the file system of a root under the policy.
func (f *Facts) sparseKept(e *pb.StorageEntry) bool {
	return f.Policies.GetSparsePolicy() != pb.SparsePolicy_SPARSE_POLICY_DENSE && e.GetProfile().GetSupportsSparse()
}

// sharesBytes tells whether the files at the target will be further names of those at the source: they are staged by hard
// links, carried by hard links where outbox and receive root are on one file system, and not copied into their place. No
// message says whether roots of two daemons are on one file system; the same size with the same room left does.
func (f *Facts) sharesBytes() bool {
	if f.Operation != transfer || f.stageMethod() != pb.MaterializeMethod_MATERIALIZE_METHOD_HARDLINK || f.delta().Count() == 0 {
		return false
	}
	switch f.materializeMethod() {
	case pb.MaterializeMethod_MATERIALIZE_METHOD_RENAME, pb.MaterializeMethod_MATERIALIZE_METHOD_HARDLINK:
	default:
		return false
	}
	from, to := f.outboxRoot(), f.receiveRoot()
	apart := max(from.GetFreeBytes(), to.GetFreeBytes()) - min(from.GetFreeBytes(), to.GetFreeBytes())
	return from.GetTotalBytes() != 0 && from.GetTotalBytes() == to.GetTotalBytes() && apart <= max(from.GetTotalBytes()/1000, 64<<20)
}

// deltaBytes is what the files to bring take below the root.
func (f *Facts) deltaBytes(e *pb.StorageEntry) uint64 {
	var sum uint64
	for index := range f.delta().All() {
		if s, ok := f.SourceTree.find(index); ok {
			sum += s.footprint(f.sparseKept(e))
		}
	}
	return sum
}

// method is the first of the list that can be used between two roots of a daemon.
func method(list []pb.MaterializeMethod, from, to *pb.StorageEntry, p *Peer) pb.MaterializeMethod {
	same, profile := sameFilesystem(from, to), to.GetProfile()
	for _, m := range list {
		if g := gate(m); g != "" && !p.Has(g) {
			continue
		}
		switch m {
		case pb.MaterializeMethod_MATERIALIZE_METHOD_RENAME:
			if !same {
				continue
			}
		case pb.MaterializeMethod_MATERIALIZE_METHOD_HARDLINK:
			if !same || !profile.GetSupportsHardlink() {
				continue
			}
		case pb.MaterializeMethod_MATERIALIZE_METHOD_REFLINK:
			if !same || !profile.GetSupportsReflink() {
				continue
			}
		}
		return m
	}
	return 0
}

// copies reports whether a method takes room for a second copy.
func copies(m pb.MaterializeMethod) bool {
	return m == pb.MaterializeMethod_MATERIALIZE_METHOD_COPY || m == pb.MaterializeMethod_MATERIALIZE_METHOD_COPY_SPARSE
}

// receiveRoot, outboxRoot and contentRoots name the roots that a transfer uses.
func (f *Facts) receiveRoot() *pb.StorageEntry {
	return root(f.TargetStorage, f.Route.Message.GetTarget().GetRootId())
}

func (f *Facts) outboxRoot() *pb.StorageEntry {
	return root(f.SourceStorage, f.Route.Message.GetSource().GetRootId())
}

func (f *Facts) sourceRoot() *pb.StorageEntry {
	return root(f.SourceStorage, f.Resource.GetContentRootId())
}

func (f *Facts) contentRoot() *pb.StorageEntry {
	return root(f.TargetStorage, f.Destination.GetContentRootId())
}

// stageMethod is how a file gets into the outbox, materializeMethod how it leaves the receive root; 0: no way.
func (f *Facts) stageMethod() pb.MaterializeMethod {
	return method(f.Policies.GetStageMethods(), f.sourceRoot(), f.outboxRoot(), &f.Source)
}

func (f *Facts) materializeMethod() pb.MaterializeMethod {
	return method(f.Policies.GetMaterializeMethods(), f.receiveRoot(), f.contentRoot(), &f.Target)
}

// targetNeeds are the bytes that a transfer takes at the target: one copy in the receive root, and a second one below the
// content root unless the first is renamed or linked there. Roots of one file system share their room.
func (f *Facts) targetNeeds() []Need {
	receive, content := f.receiveRoot(), f.contentRoot()
	keep := f.Policies.GetKeepFreeBytes()
	first := Need{Daemon: f.Target.Name, RootID: receive.GetRootId(), Kind: "receive", Bytes: f.deltaBytes(receive) + f.artifactBytes(),
		KeepFree: keep, FreeBytes: receive.GetFreeBytes()}
	second := Need{Daemon: f.Target.Name, RootID: content.GetRootId(), Kind: "content", KeepFree: keep, FreeBytes: content.GetFreeBytes()}
	if copies(f.materializeMethod()) {
		second.Bytes = f.deltaBytes(content)
	}
	if !sameFilesystem(receive, content) {
		return []Need{first, second}
	}
	first.Bytes += second.Bytes
	first.With = second.RootID
	first.FreeBytes = min(first.FreeBytes, second.FreeBytes)
	return []Need{first}
}

// artifactBytes are those of the partfile that goes along.
func (f *Facts) artifactBytes() uint64 {
	if mode, n, _ := f.partfile(); n > 0 && mode == pb.PartfileMode_PARTFILE_MODE_COPY {
		return f.SourceTree.Header.GetPartfile().GetBytes()
	}
	return 0
}

// sourceNeeds are the bytes that staging takes: none when files are linked.
func (f *Facts) sourceNeeds() []Need {
	outbox := f.outboxRoot()
	n := Need{Daemon: f.Source.Name, RootID: outbox.GetRootId(), Kind: "outbox", FreeBytes: outbox.GetFreeBytes()}
	if copies(f.stageMethod()) {
		n.Bytes = f.deltaBytes(outbox)
	}
	n.Bytes += f.artifactBytes()
	return []Need{n}
}

// usable checks that a root is there, whole and writable.
func usable(e *pb.StorageEntry, p *Peer, id, kind string, want pb.RootKind) *pb.ErrorDetail {
	switch {
	case e == nil || e.GetRootKind() != want:
		return failure(pb.ErrorCode_ERROR_CODE_ROUTE_NOT_READY, "configure it, or create the route again with another root",
			fmt.Sprintf("daemon %s no longer has the %s root %s", p.Name, kind, quote(id)), "root_id", id)
	case e.GetError() != nil:
		return failure(pb.ErrorCode_ERROR_CODE_UNAVAILABLE, "look at that directory on its machine",
			fmt.Sprintf("%s root %s of daemon %s is not usable: %s", kind, id, p.Name, e.GetError().GetMessage()), "root_id", id)
	case !e.GetWritable():
		return failure(pb.ErrorCode_ERROR_CODE_PERMISSION_DENIED, "let the daemon write there",
			fmt.Sprintf("daemon %s cannot write to %s root %s", p.Name, kind, id), "root_id", id)
	}
	return nil
}

func checkTargetSpace(f *Facts) *pb.ErrorDetail {
	id := f.Route.Message.GetTarget().GetRootId()
	if d := usable(f.receiveRoot(), &f.Target, id, "receive", pb.RootKind_ROOT_KIND_RECEIVE); d != nil {
		return d
	}
	if f.materializeMethod() == 0 {
		return failure(pb.ErrorCode_ERROR_CODE_UNSUPPORTED, "allow COPY_SPARSE too",
			fmt.Sprintf("none of the materialize methods works between the receive root and the content root of daemon %s", f.Target.Name))
	}
	return enough(f.targetNeeds())
}

func checkSourceSpace(f *Facts) *pb.ErrorDetail {
	id := f.Route.Message.GetSource().GetRootId()
	if d := usable(f.outboxRoot(), &f.Source, id, "outbox", pb.RootKind_ROOT_KIND_OUTBOX); d != nil {
		return d
	}
	if f.stageMethod() == 0 {
		return failure(pb.ErrorCode_ERROR_CODE_UNSUPPORTED, "allow COPY_SPARSE too",
			fmt.Sprintf("none of the stage methods works between the content and the outbox root of daemon %s", f.Source.Name))
	}
	return enough(f.sourceNeeds())
}

// enough checks that every root has room for its needs.
func enough(needs []Need) *pb.ErrorDetail {
	for _, n := range needs {
		if n.Bytes == 0 || n.FreeBytes >= n.KeepFree && n.FreeBytes-n.KeepFree >= n.Bytes {
			continue
		}
		what := fmt.Sprintf("%s root %s", n.Kind, n.RootID)
		if n.With != "" {
			what += " and content root " + n.With + " on the same file system"
		}
		kept := ""
		if n.KeepFree > 0 {
			kept = fmt.Sprintf(" beside the %s that stay free", archive.SizeText(n.KeepFree))
		}
		return failure(pb.ErrorCode_ERROR_CODE_NO_SPACE, "make room, or request fewer files",
			fmt.Sprintf("daemon %s needs %s for %s%s, and has %s", n.Daemon, archive.SizeText(n.Bytes), what, kept, archive.SizeText(n.FreeBytes)),
			"root_id", n.RootID, "needed_bytes", fmt.Sprint(n.Bytes), "keep_free_bytes", fmt.Sprint(n.KeepFree), "free_bytes", fmt.Sprint(n.FreeBytes),
			"daemon", n.Daemon)
	}
	return nil
}
