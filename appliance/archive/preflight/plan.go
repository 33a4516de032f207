package preflight

import (
	"fmt"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

// PlannedFile is what is planned for one file of the source's tree.
type PlannedFile struct {
	Index   uint32
	Path    string
	Action  pb.DeltaAction
	Method  pb.MaterializeMethod // expected at the target; 0: none
	Logical uint64
	Warning string
}

// Summary is what a preview tells beside the files. Sizes are in bytes.
type Summary struct {
	Files          int      `json:"files"` // of the tree, padding included
	Requested      uint64   `json:"requested"`
	RequestedBytes uint64   `json:"requested_bytes"`
	Present        uint64   `json:"present"` // of the requested ones at the target
	PresentBytes   uint64   `json:"present_bytes"`
	Transfer       uint64   `json:"transfer"`
	TransferBytes  uint64   `json:"transfer_bytes"`
	Synthesized    uint64   `json:"synthesized"`
	Omitted        uint64   `json:"omitted"`
	DroppedPieces  int      `json:"dropped_pieces,omitempty"`
	PartfileMode   string   `json:"partfile_mode,omitempty"`
	StageMethod    string   `json:"stage_method,omitempty"`
	Materialize    string   `json:"materialize_method,omitempty"`
	SharesBytes    bool     `json:"shares_bytes,omitempty"` // the files of both sides will be names of the same bytes, by hard links
	Needs          []Need   `json:"needs,omitempty"`
	Patterns       []string `json:"patterns,omitempty"` // by which files were chosen
}

// plan lists what happens to every file, in the order of the tree. The checks have passed.
func plan(f *Facts, yield func(PlannedFile) bool) {
	present := f.present()
	var made pb.MaterializeMethod
	switch f.Operation {
	case transfer:
		made = f.materializeMethod()
	case adopt:
		made = pb.MaterializeMethod_MATERIALIZE_METHOD_ALREADY_PRESENT
	}
	occupied := map[string]bool{}
	if f.OccupantTree != nil {
		for i := range f.OccupantTree.Files {
			occupied[f.OccupantTree.Files[i].Path] = true
		}
	}
	for i := range f.SourceTree.Files {
		s := &f.SourceTree.Files[i]
		p := PlannedFile{Index: s.Index, Path: s.Path, Logical: s.Logical, Action: pb.DeltaAction_DELTA_ACTION_OMIT}
		switch {
		case s.Kind == pb.FileKind_FILE_KIND_PADDING:
			if f.Operation != evict && f.synthesizes() {
				p.Action, p.Method = pb.DeltaAction_DELTA_ACTION_SYNTHESIZE, pb.MaterializeMethod_MATERIALIZE_METHOD_SYNTHESIZED
			}
		case !f.Requested.Contains(s.Index):
			if s.Kind == pb.FileKind_FILE_KIND_SYMLINK {
				p.Warning = "symbolic links are not copied"
			}
		case f.Operation != transfer || present.Contains(s.Index):
			p.Action, p.Method = pb.DeltaAction_DELTA_ACTION_PRESENT_AT_TARGET, pb.MaterializeMethod_MATERIALIZE_METHOD_ALREADY_PRESENT
			if f.Operation == evict {
				p.Method = 0
			}
		default:
			p.Action, p.Method = pb.DeltaAction_DELTA_ACTION_TRANSFER, made
			p.Warning = f.fileWarning(s, occupied[s.Path])
		}
		if !yield(p) {
			return
		}
	}
}

func (f *Facts) fileWarning(s *File, occupied bool) string {
	switch {
	case occupied:
		return "a file of this name and size is there already; it is used if its digest is the same"
	case s.Sparse && !f.sparseKept(f.contentRoot()):
		return fmt.Sprintf("it has holes, and takes all of its %s at the target", archive.SizeText(s.Logical))
	}
	return ""
}

// summarize adds the plan up.
func summarize(f *Facts) Summary {
	s := Summary{Files: len(f.SourceTree.Files), Requested: f.Requested.Count()}
	present := f.present()
	plan(f, func(p PlannedFile) bool {
		if f.Requested.Contains(p.Index) {
			s.RequestedBytes += p.Logical
		}
		if present.Contains(p.Index) {
			s.Present++
			s.PresentBytes += p.Logical
		}
		switch p.Action {
		case pb.DeltaAction_DELTA_ACTION_TRANSFER:
			s.Transfer++
			s.TransferBytes += p.Logical
		case pb.DeltaAction_DELTA_ACTION_SYNTHESIZE:
			s.Synthesized++
		case pb.DeltaAction_DELTA_ACTION_OMIT:
			s.Omitted++
		}
		return true
	})
	if f.Operation == transfer {
		s.Needs = append(f.sourceNeeds(), f.targetNeeds()...)
		s.StageMethod, s.Materialize = methodText(f.stageMethod()), methodText(f.materializeMethod())
		s.SharesBytes = f.sharesBytes()
	}
	if f.Operation != evict {
		if mode, gaps, _ := f.partfile(); gaps > 0 {
			s.PartfileMode = trimPrefix(mode.String(), "PARTFILE_MODE_")
			if mode == pb.PartfileMode_PARTFILE_MODE_DROP {
				s.DroppedPieces = gaps
			}
		}
	}
	return s
}

func methodText(m pb.MaterializeMethod) string {
	return trimPrefix(m.String(), "MATERIALIZE_METHOD_")
}

func trimPrefix(s, prefix string) string {
	if len(s) > len(prefix) && s[:len(prefix)] == prefix {
		return s[len(prefix):]
	}
	return s
}

// warnings are what an operator should know of a plan that passed.
func warnings(f *Facts) []string {
	out := []string{}
	add := func(format string, args ...any) { out = append(out, clip(fmt.Sprintf(format, args...))) }
	if n := countFiles(f.SourceTree, func(s *File) bool { return s.Kind == pb.FileKind_FILE_KIND_SYMLINK }); n > 0 && f.Operation != evict {
		add("%d symbolic links are left out", n)
	}
	if n := countFiles(f.SourceTree, func(s *File) bool {
		return s.Kind == pb.FileKind_FILE_KIND_REGULAR && s.Selected && !f.Requested.Contains(s.Index)
	}); n > 0 {
		add("%d files that are selected at daemon %s are not requested", n, f.Source.Name)
	}
	if f.sharesBytes() {
		add("the outbox of daemon %s and the receive root of daemon %s are on one file system, it seems: the files are linked, not copied, and both "+
			"sides share their bytes; a disk that fails takes both, and who writes into one changes the other. Copy them instead with "+
			"--copy (policies.stage_methods: copy_sparse)", f.Source.Name, f.Target.Name)
	}
	if f.Operation == transfer {
		if sparse := countFiles(f.SourceTree, func(s *File) bool { return s.Sparse && f.Requested.Contains(s.Index) }); sparse > 0 && !f.sparseKept(f.contentRoot()) {
			add("%d files have holes, which the target does not keep", sparse)
		}
		if f.OccupantTree != nil {
			add("the name %s is taken at daemon %s; files of the same size are compared, and nothing is written over", quote(f.SourceTree.top()), f.Target.Name)
		}
		if f.SourceTree.Header.GetTorrent() != nil && !f.SourceTree.Header.GetMetainfoAvailable() {
			add("daemon %s cannot export the torrent file: the target checks digests only", f.Source.Name)
		}
	}
	if f.Operation != evict {
		if mode, gaps, _ := f.partfile(); gaps > 0 {
			switch mode {
			case pb.PartfileMode_PARTFILE_MODE_DROP:
				add("%d pieces can be neither verified nor seeded, as you accepted", gaps)
			default:
				add("%d pieces also hold bytes of files that are not requested; these bytes go along (%s)", gaps, trimPrefix(mode.String(), "PARTFILE_MODE_"))
			}
		}
	}
	if f.Operation == evict {
		if n := countFiles(f.SourceTree, func(s *File) bool { return s.Links > 1 }); n > 0 {
			add("%d files have other names, which stay", n)
		}
		if f.Commit.GetContentRevision() != "" && f.TargetTree != nil && f.Commit.GetContentRevision() != f.TargetTree.Revision {
			add("the content at daemon %s has changed since its commit; it is verified again before anything is given up", f.Target.Name)
		}
	}
	if f.Operation != evict && archive.Identified(f.SourceTree.Header.GetResource().GetIdentity()) && f.SourceTree.Header.GetTorrent() == nil {
		add("the content belongs to no torrent: it is verified by its digests")
	}
	return out
}

func countFiles(t *Tree, want func(*File) bool) (n int) {
	for i := range t.Files {
		if want(&t.Files[i]) {
			n++
		}
	}
	return n
}
