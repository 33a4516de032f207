package preflight

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/pathrule"
	"signalbox/appliance/archive/torrent"
)

// profile is what the file system of the destination can do; nil when the root is not known.
func (f *Facts) profile() *pb.FilesystemProfile {
	return root(f.TargetStorage, f.Destination.GetContentRootId()).GetProfile()
}

// built yields the files that the job makes at the target: requested ones, and padding that is synthesized there.
func (f *Facts) built(yield func(*File) bool) {
	padding := f.synthesizes()
	for i := range f.SourceTree.Files {
		s := &f.SourceTree.Files[i]
		if f.Requested.Contains(s.Index) || padding && s.Kind == pb.FileKind_FILE_KIND_PADDING {
			if !yield(s) {
				return
			}
		}
	}
}

// synthesizes reports whether the target makes padding files.
func (f *Facts) synthesizes() bool { return f.Target.Has(archive.CapPaddingSynthesis) }

// destinationPath is where a file ends below its root.
func (f *Facts) destinationPath(path string) string {
	if dir := f.Destination.GetRelativeDir(); dir != "" {
		return dir + "/" + path
	}
	return path
}

// pathFailure turns a broken path rule into a detail.
func pathFailure(err error, next string) *pb.ErrorDetail {
	var e *pathrule.Error
	if !errors.As(err, &e) {
		return failure(pb.ErrorCode_ERROR_CODE_PATH_UNSAFE, next, err.Error())
	}
	d := failure(e.Code, next, e.Error())
	d.Details = e.Details()
	return d
}

func checkPaths(f *Facts) *pb.ErrorDetail {
	dest := f.Destination
	entry := root(f.TargetStorage, dest.GetContentRootId())
	switch {
	case entry == nil || entry.GetRootKind() != pb.RootKind_ROOT_KIND_CONTENT:
		return failure(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "name one of its content roots",
			fmt.Sprintf("daemon %s has no content root %s", f.Target.Name, quote(dest.GetContentRootId())), "root_id", dest.GetContentRootId())
	case entry.GetError() != nil:
		return failure(pb.ErrorCode_ERROR_CODE_UNAVAILABLE, "look at that directory on its machine",
			fmt.Sprintf("content root %s of daemon %s is not usable: %s", dest.GetContentRootId(), f.Target.Name, entry.GetError().GetMessage()), "root_id", dest.GetContentRootId())
	case !entry.GetWritable():
		return failure(pb.ErrorCode_ERROR_CODE_PERMISSION_DENIED, "let the daemon write there, or choose another root",
			fmt.Sprintf("daemon %s cannot write to content root %s", f.Target.Name, dest.GetContentRootId()), "root_id", dest.GetContentRootId())
	}
	if err := pathrule.CheckDir(dest.GetRelativeDir()); err != nil {
		return pathFailure(err, "choose another directory")
	}
	const next = "leave the file out, or choose a target that can hold it"
	var paths []string
	var broken *pb.ErrorDetail
	f.built(func(s *File) bool {
		path := f.destinationPath(s.Path)
		err := pathrule.Check(s.Path)
		if err == nil {
			err = pathrule.Check(path)
		}
		if err == nil {
			err = pathrule.CheckTarget(path, 0, entry.GetProfile())
		}
		if err != nil {
			broken = pathFailure(err, next)
			return false
		}
		paths = append(paths, path)
		return true
	})
	if broken != nil {
		return broken
	}
	if found := pathrule.Conflicts(paths, entry.GetProfile()); len(found) > 0 {
		return pathFailure(found[0], "leave one of them out, or choose a target that tells them apart")
	}
	return nil
}

func checkSizes(f *Facts) *pb.ErrorDetail {
	var broken *pb.ErrorDetail
	f.built(func(s *File) bool {
		if err := pathrule.CheckTarget(f.destinationPath(s.Path), s.Logical, f.profile()); err != nil {
			broken = pathFailure(err, "leave the file out, or choose a target that can hold it")
			return false
		}
		return true
	})
	if broken != nil || f.Policies.GetSparsePolicy() != pb.SparsePolicy_SPARSE_POLICY_REQUIRE || f.profile().GetSupportsSparse() {
		return broken
	}
	for index := range f.Requested.All() {
		if s, ok := f.SourceTree.find(index); ok && s.Sparse {
			return failure(pb.ErrorCode_ERROR_CODE_SPARSE_LOST, "choose the sparse policy PREFER, or another target",
				fmt.Sprintf("file %s has holes, which the file system of daemon %s cannot keep", quote(s.Path), f.Target.Name), "path", s.Path)
		}
	}
	return nil
}

// gaps are the pieces with requested bytes that requested files and padding do not cover.
func (f *Facts) gaps() []torrent.Gap {
	facts := f.SourceTree.Header.GetTorrent()
	if facts == nil || facts.GetMetaVersion() == 2 || facts.GetV1LayoutAligned() {
		return nil
	}
	spans := make([]torrent.PieceSpan, len(f.SourceTree.Files))
	for i := range f.SourceTree.Files {
		s := &f.SourceTree.Files[i]
		spans[i] = torrent.PieceSpan{Bytes: s.Logical, First: s.First, Last: s.Last, Padding: s.Kind == pb.FileKind_FILE_KIND_PADDING,
			Requested: f.Requested.Contains(s.Index)}
	}
	return torrent.Coverage(spans, nil)
}

// partfile decides what happens to pieces that requested files do not cover, and how many there are.
func (f *Facts) partfile() (mode pb.PartfileMode, gaps int, d *pb.ErrorDetail) {
	mode = f.Policies.GetPartfileMode()
	list := f.gaps()
	if len(list) == 0 {
		return mode, 0, nil
	}
	if f.Operation == adopt {
		return f.dropped(list, "the content at the target has no bytes of it")
	}
	stored := f.SourceTree.Header.GetPartfile()
	kept := stored.GetPresent() && uint64(stored.GetPiecesStored()) >= uint64(len(list))
	copies := f.Source.Has(archive.CapPartfileCopy) && f.Target.Has(archive.CapPartfileCopy)
	explodes := f.Source.Has(archive.CapPartfileExplode) && f.Target.Has(archive.CapPartfileExplode)
	switch mode {
	case pb.PartfileMode_PARTFILE_MODE_AUTO:
		switch {
		case copies && kept:
			return pb.PartfileMode_PARTFILE_MODE_COPY, len(list), nil
		case explodes && (kept || f.neighboursComplete(list)):
			return pb.PartfileMode_PARTFILE_MODE_EXPLODE, len(list), nil
		}
	case pb.PartfileMode_PARTFILE_MODE_COPY:
		if kept {
			return mode, len(list), nil
		}
	case pb.PartfileMode_PARTFILE_MODE_EXPLODE:
		if kept || f.neighboursComplete(list) {
			return mode, len(list), nil
		}
	}
	return f.dropped(list, "no daemon can bring the missing bytes")
}

// dropped gives the pieces up if the operator accepts that.
func (f *Facts) dropped(list []torrent.Gap, why string) (pb.PartfileMode, int, *pb.ErrorDetail) {
	if f.AcceptDrop {
		return pb.PartfileMode_PARTFILE_MODE_DROP, len(list), nil
	}
	g := list[0]
	wanted, missing := &f.SourceTree.Files[g.For], &f.SourceTree.Files[g.File]
	return 0, len(list), failure(pb.ErrorCode_ERROR_CODE_PARTFILE_MISMATCH,
		"request that file too, or accept that these pieces can be neither verified nor seeded (DROP)",
		fmt.Sprintf("piece %d of file %s also holds bytes of file %s, which is not requested, and %s; this is so for %d pieces", g.Piece,
			quote(wanted.Path), quote(missing.Path), why, len(list)),
		"path", wanted.Path, "other_path", missing.Path, "piece", fmt.Sprint(g.Piece), "pieces", fmt.Sprint(len(list)))
}

// neighboursComplete reports whether the source has all bytes of the pieces, in files that are not requested.
func (f *Facts) neighboursComplete(list []torrent.Gap) bool {
	for i := range f.SourceTree.Files {
		s := &f.SourceTree.Files[i]
		if s.Kind == pb.FileKind_FILE_KIND_PADDING || s.Logical == 0 || f.Requested.Contains(s.Index) || s.complete() {
			continue
		}
		at, _ := slices.BinarySearchFunc(list, s.First, func(g torrent.Gap, piece uint32) int { return cmp.Compare(g.Piece, piece) })
		if at < len(list) && list[at].Piece <= s.Last {
			return false
		}
	}
	return true
}

// torrentBackend reports whether the daemon hands content to a torrent client, which needs the torrent file and may
// download what it misses.
func torrentBackend(p *Peer) bool {
	return p.Has(archive.CapAddVerified) || p.Has(archive.CapPartfileCopy)
}

func checkPieces(f *Facts) *pb.ErrorDetail {
	mode, gaps, d := f.partfile()
	if d != nil {
		return d
	}
	if mode == pb.PartfileMode_PARTFILE_MODE_DROP && gaps > 0 && torrentBackend(&f.Target) &&
		f.Policies.GetActivation() == pb.ActivationPolicy_ACTIVATION_POLICY_START {
		return failure(pb.ErrorCode_ERROR_CODE_PARTFILE_MISMATCH, "leave it stopped (LEAVE_STOPPED), or request the files beside them too",
			fmt.Sprintf("%d pieces are given up, and the client of daemon %s would download them when it is started", gaps, f.Target.Name))
	}
	return nil
}

func checkFormat(f *Facts) *pb.ErrorDetail {
	id := f.SourceTree.Header.GetResource().GetIdentity()
	if f.SourceTree.Header.GetTorrent() != nil && id.GetInfohashV1() == "" && id.GetInfohashV2() != "" && !f.Target.Has(archive.CapV2) {
		return failure(pb.ErrorCode_ERROR_CODE_UNSUPPORTED_FORMAT, "choose another target",
			fmt.Sprintf("daemon %s cannot hold torrents of version 2", f.Target.Name), "capability", archive.CapV2)
	}
	return nil
}

func checkMetainfo(f *Facts) *pb.ErrorDetail {
	h := f.SourceTree.Header
	switch {
	case h.GetMetainfoAvailable() || !torrentBackend(&f.Target):
		return nil
	case h.GetTorrent() == nil:
		return failure(pb.ErrorCode_ERROR_CODE_UNSUPPORTED_FORMAT, "supply the torrent file, or choose a target without a torrent client",
			fmt.Sprintf("the content at daemon %s belongs to no torrent, and daemon %s hands content to a torrent client", f.Source.Name, f.Target.Name))
	}
	return failure(pb.ErrorCode_ERROR_CODE_UNSUPPORTED_FORMAT, "supply the torrent file",
		fmt.Sprintf("daemon %s cannot export the torrent file of this resource", f.Source.Name))
}
