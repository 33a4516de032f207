package pathrule_test

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"testing"
	"unicode/utf8"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/pathrule"
)

const (
	conflict = pb.ErrorCode_ERROR_CODE_PATH_CONFLICT
	notSafe  = pb.ErrorCode_ERROR_CODE_PATH_UNSAFE
	limit    = pb.ErrorCode_ERROR_CODE_FILESYSTEM_LIMIT
)

func code(err error) pb.ErrorCode {
	var e *pathrule.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

func TestSyntax(t *testing.T) {
	long := strings.Repeat("x", 255)
	for _, good := range []string{"a", "a/b", "a b", "...", ".hidden", "a..b/..c", long, long + "/" + long, "é/e\u0301", "ab:c", "1:x", "é:x",
		"a/.archive-control", ".archive-control2", "CON", "a.", strings.Repeat(long+"/", 16)} {
		good = strings.TrimSuffix(good, "/")
		if err := pathrule.Check(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
		if err := pathrule.CheckDir(good); (err == nil) != (pathrule.Check(good) == nil) {
			t.Errorf("%q as a directory: %v", good, err)
		}
	}
	for bad, rule := range map[string]string{
		"":                               "must not be empty",
		strings.Repeat("a/", 2048) + "a": "at most 4096 bytes",
		"a\xff":                          "UTF-8",
		"/a":                             "relative",
		"a\\b":                           "backslash",
		"C:":                             "drive letter",
		"c:/x":                           "drive letter",
		"a:b":                            "drive letter",
		"a\x00b":                         "control characters, has one at byte 1",
		"a\nb":                           "control",
		"a\x7f":                          "control",
		"a\u0085":                        "control",
		"a//b":                           "empty component",
		"a/":                             "empty component",
		"./a":                            `component "."`,
		"a/../b":                         `component ".."`,
		"..":                             `component ".."`,
		"a/" + long + "x":                "at most 255 bytes",
		".archive-control":               "must not begin with",
		".archive-control/work":          "must not begin with",
	} {
		err := pathrule.Check(bad)
		if code(err) != notSafe || !strings.Contains(err.Error(), rule) {
			t.Errorf("%q: %v, want %q", bad, err, rule)
		}
		var e *pathrule.Error
		if errors.As(err, &e) {
			for key, value := range e.Details() {
				if len(value) > 1024 || !utf8.ValidString(value) {
					t.Errorf("%q: detail %s is %q", bad, key, value)
				}
			}
		}
	}
	if err := pathrule.CheckDir(""); err != nil {
		t.Error(err)
	}
}

func TestSymlinks(t *testing.T) {
	for _, c := range []struct {
		path, target string
		ok           bool
	}{
		{"t/link", "t/file", true},
		{"t/a/link", "t/b/file", true},
		{"t/link", "t", false},
		{"t/link", "other/file", false},
		{"t/link", "../x", false},
		{"t/link", "t/../../x", false},
		{"t/link", "/etc/passwd", false},
		{"t/link", "", false},
		{"link", "file", false},
		{"link", "link/file", false},
		{"../link", "t/file", false},
	} {
		err := pathrule.CheckSymlink(c.path, c.target)
		if c.ok != (err == nil) || !c.ok && code(err) != notSafe {
			t.Errorf("%s -> %s: %v", c.path, c.target, err)
		}
	}
}

func TestTargetProfile(t *testing.T) {
	linux := &pb.FilesystemProfile{CaseSensitive: true, NormalizationPreserving: true, MaxNameBytes: 255}
	windows := &pb.FilesystemProfile{NormalizationPreserving: true, WindowsNames: true, MaxNameBytes: 255, MaxFileBytes: 1<<32 - 1}
	short := &pb.FilesystemProfile{CaseSensitive: true, NormalizationPreserving: true, MaxNameBytes: 143}
	for _, c := range []struct {
		path    string
		size    uint64
		profile *pb.FilesystemProfile
		want    pb.ErrorCode
	}{
		{"CON/a:b.", 1 << 40, linux, 0},
		{"a/" + strings.Repeat("x", 143), 0, short, 0},
		{"a/" + strings.Repeat("x", 144), 0, short, limit},
		{"big", 1<<32 - 1, windows, 0},
		{"big", 1 << 32, windows, limit},
		{".ARCHIVE-control/x", 0, linux, 0},
		{".ARCHIVE-control/x", 0, windows, notSafe},
		{"x/.ARCHIVE-control", 0, windows, 0},
		{"con", 0, windows, notSafe},
		{"x/Nul.txt", 0, windows, notSafe},
		{"x/aux /y", 0, windows, notSafe},
		{"aux .txt", 0, windows, notSafe},
		{"com1", 0, windows, notSafe},
		{"LPT\u00b9.x", 0, windows, notSafe},
		{"conin$", 0, windows, notSafe},
		{"com", 0, windows, 0},
		{"com10", 0, windows, 0},
		{"lptcom1", 0, windows, 0},
		{"comlpt1", 0, windows, 0},
		{"console", 0, windows, 0},
		{".con", 0, windows, 0},
		{"x./y", 0, windows, notSafe},
		{"x/y ", 0, windows, notSafe},
		{"x*", 0, windows, notSafe},
		{`q"`, 0, windows, notSafe},
		{"what?", 0, windows, notSafe},
		{"é.mkv", 0, windows, 0},
	} {
		err := pathrule.CheckTarget(c.path, c.size, c.profile)
		if code(err) != c.want || (err == nil) != (c.want == 0) {
			t.Errorf("%q of %d bytes: %v, want %v", c.path, c.size, err, c.want)
		}
	}
}

func TestConflicts(t *testing.T) {
	exact := &pb.FilesystemProfile{CaseSensitive: true, NormalizationPreserving: true}
	folding := &pb.FilesystemProfile{NormalizationPreserving: true}
	normalizing := &pb.FilesystemProfile{CaseSensitive: true}
	for _, c := range []struct {
		paths   []string
		profile *pb.FilesystemProfile
		pair    string // "path|other" of the one conflict
	}{
		{[]string{"t/A", "t/a", "t/é", "t/e\u0301"}, exact, ""},
		{[]string{"t/A", "t/b", "t/a"}, folding, "t/a|t/A"},
		{[]string{"T/x", "t/x"}, folding, "t/x|T/x"},
		{[]string{"T/x", "t/y"}, folding, ""},
		{[]string{"t/Ä", "t/a\u0308"}, folding, "t/a\u0308|t/Ä"},
		{[]string{"t/é", "t/e\u0301"}, normalizing, "t/e\u0301|t/é"},
		{[]string{"t/STRASSE", "t/straße"}, folding, "t/straße|t/STRASSE"},
		{[]string{"t/Σ", "t/ς"}, folding, "t/ς|t/Σ"},
		{[]string{"t/x", "t/x"}, exact, "t/x|t/x"},
		{[]string{"t/a", "t/a/b"}, exact, "t/a/b|t/a"},
		{[]string{"t/a/b/c", "t/a"}, exact, "t/a|t/a/b/c"},
		{[]string{"t/a/b", "t/A"}, exact, ""},
		{[]string{"t/a/b", "t/A"}, folding, "t/A|t/a/b"},
		{[]string{"t/a/b", "t/a/c", "t/ab"}, folding, ""},
		{nil, folding, ""},
	} {
		found := pathrule.Conflicts(c.paths, c.profile)
		got := ""
		for _, e := range found {
			got += e.Path + "|" + e.Other
			if e.Code != conflict || !strings.Contains(e.Error(), fmt.Sprintf("%q", e.Other)) || !strings.Contains(e.Error(), fmt.Sprintf("%q", e.Path)) {
				t.Errorf("%q: %v", c.paths, e)
			}
		}
		if got != c.pair {
			t.Errorf("%q: %q, want %q", c.paths, got, c.pair)
		}
	}
	many := make([]string, 1000)
	for i := range many {
		many[i] = "same"
	}
	if n := len(pathrule.Conflicts(many, exact)); n != pathrule.MaxConflicts {
		t.Errorf("%d conflicts", n)
	}
}

func FuzzPaths(f *testing.F) {
	for _, s := range []string{"a/b", "../x", "A/é", "e\u0301", "con.txt", "C:\\x", ".archive-control/x", "ΐ", "\u0345\u0301", "a\u0315\u0300", "ﬃ/ſ", "İ"} {
		f.Add(s, s)
	}
	windows := &pb.FilesystemProfile{WindowsNames: true, MaxNameBytes: 255}
	f.Fuzz(func(t *testing.T, a, b string) {
		if err := pathrule.Check(a); err != nil {
			if code(err) != notSafe {
				t.Fatalf("%q: %v", a, err)
			}
			return
		}
		if path.IsAbs(a) || path.Clean(a) != a || path.Clean("root/"+a) == "root" || !strings.HasPrefix(path.Join("root", a), "root/") {
			t.Fatalf("%q passed", a)
		}
		if pathrule.CheckTarget(a, 0, windows) == nil && strings.ContainsAny(a, `<>:"|?*\`) {
			t.Fatalf("%q passed for Windows", a)
		}
		if pathrule.Check(b) != nil {
			return
		}
		if pathrule.CheckSymlink(a, b) == nil && strings.Split(a, "/")[0] != strings.Split(b, "/")[0] {
			t.Fatalf("%q -> %q", a, b)
		}
		fa, fb := pathrule.Fold(a, windows), pathrule.Fold(b, windows)
		if again := pathrule.Fold(fa, windows); again != fa {
			t.Fatalf("%q folds to %q, then to %q", a, fa, again)
		}
		if strings.Count(fa, "/") != strings.Count(a, "/") {
			t.Fatalf("%q folds to %q", a, fa)
		}
		if fa == fb && len(pathrule.Conflicts([]string{a, b}, windows)) == 0 {
			t.Fatalf("%q and %q fold to %q without a conflict", a, b, fa)
		}
	})
}
