// Package pathrule holds the rules for names that come from strangers: torrents, manifests and job definitions (daemon
// protocol 7.4). It touches no file system.
//
// A path is relative, separated by "/", and named byte for byte as in the torrent: nothing here changes a name. Check is
// the syntax that holds everywhere; CheckTarget and Conflicts ask whether one file system can hold the names.
package pathrule

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	pb "signalbox/appliance/archive/archivepb"
)

// Limits of the syntax, in bytes.
const (
	MaxPath      = 4096
	MaxComponent = 255
)

// ControlDir is the name of this product's own directory at the top of every root; no content may be named so.
const ControlDir = ".archive-control"

// Error is a path that broke a rule. Code is PATH_UNSAFE, PATH_CONFLICT or FILESYSTEM_LIMIT.
type Error struct {
	Code  pb.ErrorCode
	Path  string
	Other string // for PATH_CONFLICT: the path it collides with
	Rule  string // what the path must be, or why it cannot be
}

// Error names the path, quoted and cut to 200 bytes, and the rule.
func (e *Error) Error() string {
	if e.Other != "" {
		return fmt.Sprintf("path %s and path %s: %s", quote(e.Path), quote(e.Other), e.Rule)
	}
	return fmt.Sprintf("path %s: %s", quote(e.Path), e.Rule)
}

// Details returns the facts for ErrorDetail.details.
func (e *Error) Details() map[string]string {
	d := map[string]string{"path": text(e.Path), "rule": e.Rule}
	if e.Other != "" {
		d["other_path"] = text(e.Other)
	}
	return d
}

// text makes any bytes fit for a detail: valid UTF-8 of at most 1024 bytes.
func text(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= 1024 {
		return s
	}
	cut := 1021
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}

func quote(s string) string {
	if len(s) > 200 {
		return fmt.Sprintf("%q...", strings.ToValidUTF8(s[:200], ""))
	}
	return fmt.Sprintf("%q", s)
}

func unsafe(path, format string, args ...any) error {
	return &Error{Code: pb.ErrorCode_ERROR_CODE_PATH_UNSAFE, Path: path, Rule: fmt.Sprintf(format, args...)}
}

// Check holds a path to the syntax rules. The error is an *Error with PATH_UNSAFE.
func Check(path string) error {
	switch {
	case path == "":
		return unsafe(path, "must not be empty")
	case len(path) > MaxPath:
		return unsafe(path, "must be at most %d bytes long, is %d", MaxPath, len(path))
	case !utf8.ValidString(path):
		return unsafe(path, "must be valid UTF-8")
	case path[0] == '/':
		return unsafe(path, "must be relative")
	case strings.IndexByte(path, '\\') >= 0:
		return unsafe(path, "must not contain a backslash")
	case len(path) > 1 && path[1] == ':' && isLetter(path[0]):
		return unsafe(path, "must not begin with a drive letter")
	}
	if i := strings.IndexFunc(path, unicode.IsControl); i >= 0 {
		return unsafe(path, "must not contain control characters, has one at byte %d", i)
	}
	first := true
	for part := range strings.SplitSeq(path, "/") {
		switch {
		case part == "":
			return unsafe(path, "must not have an empty component")
		case part == "." || part == "..":
			return unsafe(path, "must not have the component %q", part)
		case len(part) > MaxComponent:
			return unsafe(path, "components must be at most %d bytes long, one has %d", MaxComponent, len(part))
		case first && part == ControlDir:
			return unsafe(path, "must not begin with %s", ControlDir)
		}
		first = false
	}
	return nil
}

// CheckDir is Check for relative_dir, which may be empty.
func CheckDir(dir string) error {
	if dir == "" {
		return nil
	}
	return Check(dir)
}

// CheckSymlink holds a symbolic link and its target to the rules. Both are paths relative to the directory that holds
// the torrent; the target must lie inside the torrent's own directory, which is the first component of path.
func CheckSymlink(path, target string) error {
	if err := Check(path); err != nil {
		return err
	}
	if err := Check(target); err != nil {
		e := *err.(*Error)
		e.Path, e.Rule = path, "target of the symbolic link "+e.Rule
		return &e
	}
	top, _, inside := strings.Cut(path, "/")
	if to, _, below := strings.Cut(target, "/"); !inside || !below || to != top {
		return unsafe(path, "target of the symbolic link must lie inside the torrent's directory, is %s", quote(target))
	}
	return nil
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
