package preflight

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
)

func planned(f *Facts) (out []string) {
	plan(f, func(p PlannedFile) bool {
		out = append(out, fmt.Sprintf("%d %s %s", p.Index, trimPrefix(p.Action.String(), "DELTA_ACTION_"), methodText(p.Method)))
		return true
	})
	return out
}

func TestPlanOfEveryFile(t *testing.T) {
	t.Parallel()
	f := good()
	atTarget(f, 1)
	f.SourceTree.Files = append(f.SourceTree.Files, File{Index: 3, Path: "Show/.pad/4", Kind: pb.FileKind_FILE_KIND_PADDING, Logical: 4},
		File{Index: 4, Path: "Show/link", Kind: pb.FileKind_FILE_KIND_SYMLINK}, regular(5, "Show/extra.nfo", 9))
	f.Target.Capabilities = append(f.Target.Capabilities, archive.CapPaddingSynthesis)
	if d := conclude(f); d != nil {
		t.Fatal(d)
	}
	want := []string{"0 PRESENT_AT_TARGET ALREADY_PRESENT", "1 TRANSFER RENAME", "2 TRANSFER RENAME", "3 SYNTHESIZE SYNTHESIZED",
		"4 OMIT UNSPECIFIED", "5 OMIT UNSPECIFIED"}
	if got := planned(f); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	s := summarize(f)
	s.Needs = nil
	if !reflect.DeepEqual(s, Summary{Files: 6, Requested: 3, RequestedBytes: 300, Present: 1, PresentBytes: 100, Transfer: 2, TransferBytes: 200,
		Synthesized: 1, Omitted: 2, StageMethod: "HARDLINK", Materialize: "RENAME", SharesBytes: true}) {
		t.Errorf("summary %+v", s)
	}
	text := strings.Join(warnings(f), "\n")
	for _, want := range []string{"1 symbolic links are left out", "1 files that are selected at daemon seedbox are not requested"} {
		if !strings.Contains(text, want) {
			t.Errorf("no warning %q in:\n%s", want, text)
		}
	}
}

func TestBaselineIsOnlyWhatIsProven(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		edit func(f *Facts)
		want archive.IndexSet
	}{
		{"complete ones", func(*Facts) {}, archive.Indices(0, 1)},
		{"another path", func(f *Facts) { f.TargetTree.Files[0].Path = "Show/renamed.mkv" }, archive.Indices(1)},
		{"another size", func(f *Facts) { f.TargetTree.Files[0].Logical = 7 }, archive.Indices(1)},
		{"not under its final name", func(f *Facts) { f.TargetTree.Files[0].Present = pb.DiskPresence_DISK_PRESENCE_INCOMPLETE_NAME }, archive.Indices(1)},
		{"another identity", func(f *Facts) {
			f.TargetTree.Header.Resource.Identity = &pb.ResourceIdentity{InfohashV1: strings.Repeat("e", 40)}
		}, archive.IndexSet{}},
		{"another place", func(f *Facts) { f.TargetResource.RelativeDir = "films" }, archive.IndexSet{}},
		{"not requested", func(f *Facts) { f.Requested = archive.Indices(1, 2) }, archive.Indices(1)},
	} {
		f := good()
		atTarget(f, 2)
		test.edit(f)
		if got := f.present(); !got.Equal(test.want) {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

func TestDefinitions(t *testing.T) {
	t.Parallel()
	f := good()
	atTarget(f, 1)
	d := draft(f)
	if d.GetJobId() != "" || d.GetCreatedAt() != nil || d.GetRouteId() != f.Route.Message.RouteId || d.GetSourceContentRevision() != revision1 ||
		d.GetTargetClientId() != nas.String() || !proto.Equal(d.GetRequested(), archive.Span(0, 3).Message()) ||
		!proto.Equal(d.GetBaseline(), &pb.TargetBaseline{TargetContentRevision: revision2, Present: archive.Indices(0).Message(), FreeBytes: 1 << 40,
			BackendHasResource: true, FilesystemProfile: f.TargetStorage[0].Profile}) ||
		!slices.Equal(d.GetRequiredCapabilities(), []string{archive.CapRouteSharedDirectory}) || d.GetEviction() != nil ||
		d.GetDestination().GetContentRootId() != "archive" || !proto.Equal(d.GetPolicies(), f.Policies) {
		t.Errorf("transfer: %v", d)
	}
	f = good()
	if d := draft(f); d.GetBaseline().GetTargetContentRevision() != "" || d.GetBaseline().GetBackendHasResource() {
		t.Errorf("transfer to an empty target: %v", d)
	}
	f = good()
	f.Requested, f.AcceptDrop = archive.Indices(0), true
	if d := draft(f); d.GetPolicies().GetPartfileMode() != pb.PartfileMode_PARTFILE_MODE_DROP {
		t.Errorf("dropped pieces: %v", d.GetPolicies())
	}
	explodes(f)
	if d := draft(f); d.GetPolicies().GetPartfileMode() != pb.PartfileMode_PARTFILE_MODE_EXPLODE ||
		!slices.Contains(d.GetRequiredCapabilities(), archive.CapPartfileExplode) {
		t.Errorf("exploded pieces: %v", d)
	}
	f = goodAdoption()
	if d := draft(f); d.GetSource().GetClientId() != nas.String() || d.GetTargetClientId() != nas.String() || d.GetRouteId() != "" ||
		d.GetBaseline() != nil || d.GetDestination() == nil || d.GetSourceContentRevision() != revision2 {
		t.Errorf("adoption: %v", d)
	}
	f = goodEviction()
	f.AllowLibraryLinks, f.MaxVerifyAge = true, time.Hour
	if d := draft(f); d.GetParentJobId() != f.ParentID || d.GetDestination() != nil || d.GetBaseline() != nil ||
		!proto.Equal(d.GetEviction().GetTargetCommit(), f.Commit) || d.GetEviction().GetMaxVerifyAge().AsDuration() != time.Hour ||
		!d.GetEviction().GetAllowLibraryLinks() {
		t.Errorf("eviction: %v", d)
	}
}

func TestDefinitionMustFitAnEnvelope(t *testing.T) {
	t.Parallel()
	f := good()
	var every []uint32
	for i := range uint32(20_000) {
		every = append(every, 2*i)
	}
	f.Requested = archive.Indices(every...)
	d := draft(f)
	if e := checkDefinitionSize(f, d); e != nil {
		t.Errorf("20,000 ranges do not fit 1 MiB: %v", e)
	}
	f.Target.Limits.MaxEnvelopeBytes = 256 << 10
	e := checkDefinitionSize(f, d)
	if e.GetCode() != pb.ErrorCode_ERROR_CODE_LIMIT_EXCEEDED || !strings.Contains(e.GetMessage(), "nas takes 235929") || e.GetDetails()["ranges"] != "20000" {
		t.Errorf("%v", e)
	}
	f.Requested = archive.Span(0, 40_000)
	if e := checkDefinitionSize(f, draft(f)); e != nil {
		t.Errorf("one range: %v", e)
	}
}

func TestChooseFiles(t *testing.T) {
	t.Parallel()
	tree := &Tree{Files: []File{regular(0, "Show/a/1.mkv", 1), regular(1, "Show/a/1.nfo", 1), regular(2, "Show/a/b/2.mkv", 1), regular(3, "Show/c.mkv", 1),
		{Index: 4, Path: "Show/.pad/1", Kind: pb.FileKind_FILE_KIND_PADDING}, {Index: 5, Path: "Show/l.mkv", Kind: pb.FileKind_FILE_KIND_SYMLINK, Selected: true}}}
	tree.Files[3].Selected = false
	for _, test := range []struct {
		patterns []string
		want     archive.IndexSet
		fails    string
	}{
		{nil, archive.Span(0, 3), ""},
		{[]string{"Show/a/*.mkv"}, archive.Indices(0), ""},
		{[]string{"a/*.mkv"}, archive.Indices(0), ""},
		{[]string{"*.mkv"}, archive.Indices(3), ""},
		{[]string{"**/*.mkv"}, archive.Indices(0, 2, 3), ""},
		{[]string{"a/**"}, archive.Span(0, 3), ""},
		{[]string{"a/**/2.mkv", "c.mkv"}, archive.Indices(2, 3), ""},
		{[]string{"**/**/b/**/2.mkv"}, archive.Indices(2), ""},
		{[]string{"**"}, archive.Span(0, 4), ""},
		{[]string{"a/*.mkv", "x/*"}, archive.IndexSet{}, `"x/*" fits no file`},
		{[]string{".pad/*"}, archive.IndexSet{}, "fits no file"},
	} {
		got, d := choose(tree, nil, test.patterns)
		if !got.Equal(test.want) || (d == nil) != (test.fails == "") || !strings.Contains(d.GetMessage(), test.fails) {
			t.Errorf("%q: %v, %v", test.patterns, got.Message(), d)
		}
	}
	if got, d := choose(tree, archive.Indices(3).Message(), nil); d != nil || !got.Equal(archive.Indices(3)) {
		t.Errorf("named: %v, %v", got, d)
	}
	// A pattern of many "**" costs no more than the product of both lengths.
	deep := strings.Split(strings.Repeat("a/", 2000)+"b", "/")
	if matches(strings.Split(strings.Repeat("**/a/", 200)+"c", "/"), deep) {
		t.Error("fits")
	}
	for _, bad := range []string{"", "[", strings.Repeat("x", 5000)} {
		if err := validPatterns([]string{bad}); err == nil {
			t.Errorf("%.10q is taken for a pattern", bad)
		}
	}
}

// On one file system a copy made by hard links is none: a person must be told before, in words and to programs.
func TestPlanTellsThatBothSidesWouldShareTheirBytes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*Facts)
		want   bool
	}{
		{"one file system", func(*Facts) {}, true},
		{"another size", func(f *Facts) { f.TargetStorage[1].TotalBytes-- }, false},
		{"another room", func(f *Facts) { f.TargetStorage[1].FreeBytes /= 2 }, false},
		{"staged by copy", func(f *Facts) {
			f.Policies.StageMethods = []pb.MaterializeMethod{pb.MaterializeMethod_MATERIALIZE_METHOD_COPY_SPARSE}
		}, false},
		{"put in place by copy", func(f *Facts) {
			f.Policies.MaterializeMethods = []pb.MaterializeMethod{pb.MaterializeMethod_MATERIALIZE_METHOD_COPY}
		}, false},
		{"sizes are not known", func(f *Facts) { f.SourceStorage[1].TotalBytes, f.TargetStorage[1].TotalBytes = 0, 0 }, false},
	} {
		f := good()
		tt.change(f)
		told := slices.ContainsFunc(warnings(f), func(w string) bool {
			return strings.Contains(w, "share their bytes") && strings.Contains(w, "with --copy")
		})
		if s := summarize(f); s.SharesBytes != tt.want || told != tt.want {
			t.Errorf("%s: in the summary %v, told %v, want %v", tt.name, s.SharesBytes, told, tt.want)
		}
	}
}
