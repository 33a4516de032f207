package pathrule

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	pb "signalbox/appliance/archive/archivepb"
)

// CheckTarget asks whether a file system with this profile can hold a file of size bytes under a path that passed Check:
// PATH_UNSAFE for names it cannot represent, FILESYSTEM_LIMIT for names or files too long. A limit of 0 in the profile is
// one that is not known.
func CheckTarget(path string, size uint64, profile *pb.FilesystemProfile) error {
	if most := profile.GetMaxFileBytes(); most > 0 && size > most {
		return &Error{Code: pb.ErrorCode_ERROR_CODE_FILESYSTEM_LIMIT, Path: path,
			Rule: fmt.Sprintf("file of %d bytes, the target holds files of at most %d", size, most)}
	}
	first := true
	for part := range strings.SplitSeq(path, "/") {
		if most := profile.GetMaxNameBytes(); most > 0 && uint64(len(part)) > uint64(most) {
			return &Error{Code: pb.ErrorCode_ERROR_CODE_FILESYSTEM_LIMIT, Path: path,
				Rule: fmt.Sprintf("name of %d bytes, the target holds names of at most %d", len(part), most)}
		}
		if profile.GetWindowsNames() {
			if rule := windowsRule(part); rule != "" {
				return unsafe(path, "%s", rule)
			}
		}
		if first && Fold(part, profile) == ControlDir {
			return unsafe(path, "begins with %s as the target reads names", ControlDir)
		}
		first = false
	}
	return nil
}

// windowsRule returns why Windows refuses a name, or "".
func windowsRule(name string) string {
	if i := strings.IndexAny(name, `<>:"|?*`); i >= 0 {
		return fmt.Sprintf("the target does not allow %q in names", name[i])
	}
	if last := name[len(name)-1]; last == '.' || last == ' ' {
		return "the target does not allow names that end in a dot or a space"
	}
	stem, _, _ := strings.Cut(name, ".")
	stem = strings.ToUpper(strings.TrimRight(stem, " "))
	switch stem {
	case "CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$":
		return "the target reserves " + stem + " for a device"
	}
	if device := strings.TrimPrefix(strings.TrimPrefix(stem, "COM"), "LPT"); len(device) == len(stem)-3 {
		switch device {
		case "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "\u00b9", "\u00b2", "\u00b3":
			return "the target reserves " + stem + " for a device"
		}
	}
	return ""
}

// Folds reports whether a file system with this profile may take two different names for the same.
func Folds(profile *pb.FilesystemProfile) bool {
	return !profile.GetCaseSensitive() || !profile.GetNormalizationPreserving()
}

// Fold returns what two paths have in common when a file system with this profile may take them for the same: the path
// in normal form C with its letter case folded, or the path itself where names are compared byte by byte.
func Fold(path string, profile *pb.FilesystemProfile) string {
	if !Folds(profile) {
		return path
	}
	if isASCII(path) {
		return strings.ToLower(path)
	}
	return norm.NFC.String(cases.Fold().String(norm.NFD.String(path)))
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// MaxConflicts is how many conflicts Conflicts returns at most.
const MaxConflicts = 100

// Conflicts finds the paths of files that cannot stand side by side on a file system with this profile: equal after Fold,
// or one being needed as a directory by the other. Each is a PATH_CONFLICT that names both, the earlier one in Other. It
// returns the first MaxConflicts in the order of paths, nil when there are none. Memory grows with the number of paths
// and of their directories.
func Conflicts(paths []string, profile *pb.FilesystemProfile) []*Error {
	files := make(map[string]int, len(paths)) // folded path of a file -> its position
	dirs := map[string]int{}                  // folded directory -> position of the first path below it
	var found []*Error
	add := func(i, j int, rule string) {
		found = append(found, &Error{Code: pb.ErrorCode_ERROR_CODE_PATH_CONFLICT, Path: paths[i], Other: paths[j], Rule: rule})
	}
	for i, path := range paths {
		if len(found) >= MaxConflicts {
			break
		}
		folded := Fold(path, profile)
		if j, ok := files[folded]; ok {
			if paths[j] == path {
				add(i, j, "the same path twice")
			} else {
				add(i, j, "differ only by letter case or normal form, which the target does not tell apart")
			}
			continue
		}
		if j, ok := dirs[folded]; ok {
			add(i, j, "one is a file where the other needs a directory")
			continue
		}
		files[folded] = i
		for at := strings.LastIndexByte(folded, '/'); at > 0; at = strings.LastIndexByte(folded[:at], '/') {
			dir := folded[:at]
			if j, ok := files[dir]; ok {
				add(i, j, "one is a file where the other needs a directory")
				break
			}
			if _, ok := dirs[dir]; ok {
				break // so are all above it
			}
			dirs[dir] = i
		}
	}
	return found
}
