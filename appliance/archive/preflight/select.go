package preflight

import (
	"fmt"
	"path"
	"strings"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/fault"
)

// MaxPatterns is the most patterns of one request.
const MaxPatterns = 100

// validPatterns checks the patterns of a request. They are those of path.Match, over the whole path of a file as its tree
// names it, or over what follows the resource's own directory; "**" stands for any number of directories, also none.
func validPatterns(list []string) error {
	if len(list) > MaxPatterns {
		return fault.Field("files", "at most %d patterns, got %d", MaxPatterns, len(list))
	}
	for _, p := range list {
		if p == "" || len(p) > 4096 {
			return fault.Field("files", "a pattern has 1 to 4096 bytes")
		}
		for part := range strings.SplitSeq(p, "/") {
			if _, err := path.Match(part, ""); err != nil {
				return fault.Field("files", "%q is no pattern", p)
			}
		}
	}
	return nil
}

// matches reports whether a path fits the pattern, both split at slashes. After a "**" has failed to stand for so many
// directories it is tried with one more, and only the last one needs that: the cost is bounded by the product of both
// lengths.
func matches(pattern, name []string) bool {
	p, n := 0, 0
	star, from := -1, 0 // the last "**", and where in name what follows it was tried
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == "**":
			star, from = p, n
			p++
			continue
		case p < len(pattern):
			if ok, err := path.Match(pattern[p], name[n]); err == nil && ok {
				p++
				n++
				continue
			}
		}
		if star < 0 {
			return false
		}
		from++
		p, n = star+1, from
	}
	for p < len(pattern) && pattern[p] == "**" {
		p++
	}
	return p == len(pattern)
}

// fits reports whether the pattern fits the whole path, or the path below the resource's own directory.
func fits(pattern, name []string) bool {
	return matches(pattern, name) || len(name) > 1 && matches(pattern, name[1:])
}

// choose resolves what is requested: the set that was named, the files that fit a pattern, or every selected file. Padding
// and symbolic links are never among the files that a pattern or the default chooses. A pattern that fits no file is an
// error: it was meant to.
func choose(t *Tree, named *pb.IndexSet, patterns []string) (archive.IndexSet, *pb.ErrorDetail) {
	if named != nil {
		set, err := archive.ReadIndexSet("requested", named)
		if err != nil {
			return set, failure(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "", err.Error())
		}
		return set, nil
	}
	split := make([][]string, len(patterns))
	used := make([]bool, len(patterns))
	for i, p := range patterns {
		split[i] = strings.Split(p, "/")
	}
	var list []uint32
	for i := range t.Files {
		f := &t.Files[i]
		if f.Kind != pb.FileKind_FILE_KIND_REGULAR {
			continue
		}
		want := len(patterns) == 0 && f.Selected
		if len(patterns) > 0 {
			name := strings.Split(f.Path, "/")
			for j := range split {
				if fits(split[j], name) {
					want, used[j] = true, true
				}
			}
		}
		if want {
			list = append(list, f.Index)
		}
	}
	for i, ok := range used {
		if !ok {
			return archive.IndexSet{}, failure(pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT, "look at the paths of the tree",
				fmt.Sprintf("the pattern %s fits no file", quote(patterns[i])), "pattern", patterns[i])
		}
	}
	return archive.Indices(list...), nil
}
