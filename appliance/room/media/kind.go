package media

import (
	"bytes"
	"mime"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	sniffLen    = 512
	maxFilename = 200
	maxMimetype = 100
	unknownType = "application/octet-stream"
)

// signatures are the images and documents that are told by their first bytes.
var signatures = []struct {
	mimetype string
	at       int
	magic    string
}{
	{"image/png", 0, "\x89PNG\r\n\x1a\n"},
	{"image/jpeg", 0, "\xff\xd8\xff"},
	{"image/gif", 0, "GIF87a"},
	{"image/gif", 0, "GIF89a"},
	{"image/webp", 8, "WEBPVP"},
	{"image/avif", 4, "ftypavif"},
	{"image/bmp", 0, "BM"},
	{"application/pdf", 0, "%PDF-"},
	{"application/zip", 0, "PK\x03\x04"},
	{"application/gzip", 0, "\x1f\x8b\x08"},
}

// checked are the image types that are taken only with the bytes of one.
var checked = map[string]bool{"image/png": true, "image/jpeg": true, "image/gif": true, "image/webp": true,
	"image/avif": true, "image/bmp": true}

// MediaType is the type a file is kept with: the declared one, in lower case and without parameters but charset. Where
// nothing useful is declared, and for the images that browsers show, the first bytes decide.
func MediaType(declared string, head []byte) string {
	found := sniff(head)
	kind := cleanType(declared)
	base, _, _ := strings.Cut(kind, ";")
	switch {
	case kind == "" || base == unknownType:
		return found
	case base == "image/jpg":
		base, kind = "image/jpeg", "image/jpeg"
	}
	if checked[base] && found != base {
		if checked[found] {
			return found
		}
		return unknownType
	}
	return kind
}

func sniff(head []byte) string {
	for _, s := range signatures {
		if len(head) >= s.at && bytes.HasPrefix(head[s.at:], []byte(s.magic)) {
			return s.mimetype
		}
	}
	if len(head) == sniffLen { // the last rune may be cut
		for i := 0; i < utf8.UTFMax-1 && !utf8.Valid(head); i++ {
			head = head[:len(head)-1]
		}
	}
	if utf8.Valid(head) && bytes.IndexFunc(head, func(r rune) bool {
		return r < 0x20 && !strings.ContainsRune("\t\n\r\f\x1b",
			r)
	}) < 0 {
		return "text/plain; charset=utf-8"
	}
	return unknownType
}

// cleanType is a media type in its plain form, "" for what is none.
func cleanType(declared string) string {
	base, params, err := mime.ParseMediaType(declared)
	if err != nil || len(base) > maxMimetype {
		return ""
	}
	major, minor, ok := strings.Cut(base, "/")
	if !ok || !plainToken(major) || !plainToken(minor) {
		return ""
	}
	if charset := strings.ToLower(params["charset"]); plainToken(charset) && len(base)+len(charset) < maxMimetype {
		return base + "; charset=" + charset
	}
	return base
}

// plainToken is a name as registered types have them: letters, digits and a few marks.
func plainToken(s string) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || strings.IndexByte(".+-_", c) >= 0) {
			return false
		}
	}
	return true
}

// messageType is the msgtype of an attachment (D.6). A drawing that can hold a program is a file.
func messageType(mimetype string) string {
	if strings.HasPrefix(mimetype, "image/") && !strings.HasPrefix(mimetype, "image/svg") {
		return "m.image"
	}
	return "m.file"
}

// CleanFilename is a name that is safe to show, to send in a header and to write to a disk: the last part of a path,
// without control and invisible characters, at most 200 bytes, its extension kept; "file" when nothing is left.
func CleanFilename(name string) string {
	name = strings.ToValidUTF8(name, "_")
	if i := strings.LastIndexAny(name, `/\`); i >= 0 {
		name = name[i+1:]
	}
	name = strings.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError || unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Cs, unicode.Zl, unicode.Zp):
			return -1
		case unicode.IsSpace(r):
			return ' '
		}
		return r
	}, name)
	name = strings.TrimRight(strings.TrimSpace(name), ". ")
	if len(name) > maxFilename {
		ext := path.Ext(name)
		if len(ext) > 20 {
			ext = ""
		}
		name = strings.TrimRight(cutRunes(name, maxFilename-len(ext)), ". ") + ext
	}
	if name == "" {
		return "file"
	}
	return name
}

// cutRunes cuts s to at most n bytes without splitting a character.
func cutRunes(s string, n int) string {
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
