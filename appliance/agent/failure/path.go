package failure

import (
	"strings"
	"unicode/utf8"
)

// libraryDirs hold what an environment installs; what stands before them is where the environment happens to be.
var libraryDirs = []string{"/site-packages/", "/dist-packages/"}

// placeOf returns what is the same of a source file wherever it is installed, and whether it belongs to a library: of
// libraries the path below the environment, of other files the name and its directory.
func placeOf(path string) (place string, library bool) {
	if strings.HasPrefix(path, "<") { // <string>, <frozen importlib._bootstrap>, <ipython-input-3-5a1d0d1b>
		return withoutValues(path), strings.HasPrefix(path, "<frozen ")
	}
	path = strings.ReplaceAll(path, `\`, "/")
	for _, dir := range libraryDirs {
		if i := strings.LastIndex(path, dir); i >= 0 {
			return belowEgg(path[i+len(dir):]), true
		}
	}
	if rest, ok := belowStandard(path); ok {
		return rest, true
	}
	dirs, name := "", path
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		dirs, name = path[:i], path[i+1:]
	}
	dir := dirs[strings.LastIndexByte(dirs, '/')+1:]
	if dir == "" || dir == "." {
		return name, false
	}
	return withoutRelease(dir) + "/" + name, false
}

// belowEgg leaves out the archive that some installers put a library into.
func belowEgg(path string) string {
	dir, rest, ok := strings.Cut(path, "/")
	if !ok {
		return path
	}
	for _, suffix := range []string{".egg", ".whl", ".zip"} {
		if len(dir) > len(suffix) && strings.HasSuffix(dir, suffix) {
			return rest
		}
	}
	return path
}

// belowStandard returns the path below the directory of Python's own library, which pyenv, conda, Debian and Windows put into
// different places: lib/python3.12, Python312/Lib, python312.zip. ok is false for a file outside of it.
func belowStandard(path string) (rest string, ok bool) {
	windows := -1             // where it begins below a directory of the less certain kinds
	for end := len(path); ; { // from the innermost directory outwards
		end = strings.LastIndexByte(path[:end], '/')
		if end < 0 {
			break
		}
		dir, above := lastDir(path[:end])
		parent, _ := lastDir(above)
		switch {
		case isPythonVersion(dir) && (parent == "lib" || parent == "lib64"):
			return path[end+1:], true
		case windows < 0 && (isPythonZip(dir) || strings.EqualFold(dir, "lib") && isPythonDir(parent)):
			windows = end + 1
		}
	}
	if windows < 0 {
		return "", false
	}
	return path[windows:], true
}

// lastDir splits the last name off a path.
func lastDir(path string) (name, above string) {
	i := strings.LastIndexByte(path, '/')
	return path[i+1:], path[:max(i, 0)]
}

// isPythonVersion tells python3, python3.12.
func isPythonVersion(name string) bool {
	rest, ok := strings.CutPrefix(name, "python")
	for ok {
		n := digits(rest)
		if n == 0 || n == len(rest) {
			return n > 0
		}
		rest, ok = strings.CutPrefix(rest[n:], ".")
	}
	return false
}

// isPythonDir tells Python312, python3.12-amd64 and the like, in either case of letters.
func isPythonDir(name string) bool {
	const python = "python"
	return len(name) > len(python) && strings.EqualFold(name[:len(python)], python) && isDigit(name[len(python)])
}

// isPythonZip tells python312.zip.
func isPythonZip(name string) bool {
	if !isPythonDir(name) {
		return false
	}
	rest := name[len("python"):]
	return strings.EqualFold(rest[digits(rest):], ".zip")
}

// withoutRelease puts # for parts of a directory's name that a new release or another host has otherwise: numbers, and
// hashes and ids of seven or more hex digits with a number at their beginning or end.
func withoutRelease(name string) string {
	if !strings.ContainsAny(name, "0123456789") {
		return name
	}
	const enough = 6 // digits before or after the number
	out := make([]byte, 0, len(name))
	for i := 0; i < len(name); {
		end := i
		first, last := -1, -1
		for ; end < len(name) && isHex(name[end]); end++ {
			if isDigit(name[end]) {
				if first < 0 {
					first = end
				}
				last = end
			}
		}
		switch {
		case end == i:
			out = append(out, name[i])
			i++
		case first >= 0 && (end-first > enough || last-i >= enough):
			out = append(out, '#')
			i = end
		default:
			for i < end {
				if n := digits(name[i:end]); n > 0 {
					out = append(out, '#')
					i += n
				} else {
					out = append(out, name[i])
					i++
				}
			}
		}
	}
	return string(out)
}

// withoutValues puts # for what a name of no file has in it: addresses, hashes and numbers.
func withoutValues(name string) string {
	if !strings.ContainsAny(name, "0123456789abcdef") {
		return name
	}
	const hash = 8 // hex digits of the shortest
	out := make([]byte, 0, len(name))
	for i := 0; i < len(name); {
		n := 0
		if strings.HasPrefix(name[i:], "0x") {
			if n = hexDigits(name[i+2:]); n > 0 {
				n += 2
			}
		}
		if n == 0 {
			if n = lowerHexDigits(name[i:]); n < hash {
				n = digits(name[i:])
			}
		}
		if n > 0 {
			out = append(out, '#')
			i += n
		} else {
			out = append(out, name[i])
			i++
		}
	}
	return string(out)
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isLowerHex(c byte) bool { return isDigit(c) || 'a' <= c && c <= 'f' }

func isHex(c byte) bool { return isLowerHex(c) || 'A' <= c && c <= 'F' }

// digits, hexDigits and lowerHexDigits count those that a text begins with.
func digits(s string) int { return span(s, isDigit) }

func hexDigits(s string) int { return span(s, isHex) }

func lowerHexDigits(s string) int { return span(s, isLowerHex) }

func span(s string, in func(byte) bool) (n int) {
	for n < len(s) && in(s[n]) {
		n++
	}
	return n
}

// clip cuts a text to at most n bytes, at the boundary of a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
