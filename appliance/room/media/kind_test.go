package media

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestCleanFilename(t *testing.T) {
	for in, want := range map[string]string{
		"report.pdf":                      "report.pdf",
		"../../etc/passwd":                "passwd",
		`C:\temp\a.txt`:                   "a.txt",
		"a\r\nX-Evil: 1":                  "aX-Evil: 1",
		"":                                "file",
		"..":                              "file",
		"/":                               "file",
		" . ":                             "file",
		".bashrc":                         ".bashrc",
		"räksmörgås.png":                  "räksmörgås.png",
		"gpj.\u202eexe":                   "gpj.exe",
		"a\u00a0b.txt":                    "a b.txt",
		"bad\xffbyte":                     "bad_byte",
		strings.Repeat("é", 300):          strings.Repeat("é", 100),
		strings.Repeat("a", 300) + ".tar": strings.Repeat("a", 196) + ".tar",
	} {
		if got := CleanFilename(in); got != want {
			t.Errorf("CleanFilename(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzCleanFilename(f *testing.F) {
	for _, s := range []string{"a.txt", "../x", "\x00\x7f", strings.Repeat("é", 150) + ".x", "a." + strings.Repeat("b", 300)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got := CleanFilename(in)
		if got == "" || got == "." || got == ".." || len(got) > maxFilename || !utf8.ValidString(got) ||
			strings.ContainsAny(got, `/\`) {
			t.Fatalf("CleanFilename(%q) = %q", in, got)
		}
		if strings.IndexFunc(got, unicode.IsControl) >= 0 {
			t.Fatalf("CleanFilename(%q) = %q has a control character", in, got)
		}
		if again := CleanFilename(got); again != got {
			t.Fatalf("CleanFilename(%q) = %q, then %q", in, got, again)
		}
	})
}

func TestMediaType(t *testing.T) {
	png := "\x89PNG\r\n\x1a\n...."
	for _, c := range []struct{ declared, head, want string }{
		{"", png, "image/png"},
		{"application/octet-stream", png, "image/png"},
		{"image/png", png, "image/png"},
		{"IMAGE/JPG", "\xff\xd8\xff\xe0", "image/jpeg"},
		{"image/jpeg", png, "image/png"},
		{"image/png", "<html>", unknownType},
		{"image/svg+xml", "<svg>", "image/svg+xml"},
		{"text/html", "<html>", "text/html"},
		{"Text/HTML; Charset=UTF-8; x=y", "<html>", "text/html; charset=utf-8"},
		{"text/plain; charset=\"a\\\"b\"", "x", "text/plain"},
		{"nonsense", "words", "text/plain; charset=utf-8"},
		{"a/b\r\nX: y", "\x00\x01", unknownType},
		{"", "\x00\x01", unknownType},
		{"", strings.Repeat("é", 300)[:sniffLen-1] + "\xc3", "text/plain; charset=utf-8"},
		{"application/x-custom", "%PDF-1.7", "application/x-custom"},
		{"", "%PDF-1.7", "application/pdf"},
	} {
		if got := MediaType(c.declared, []byte(c.head)); got != c.want {
			t.Errorf("MediaType(%q, %q) = %q, want %q", c.declared, c.head, got, c.want)
		}
	}
	for kind, want := range map[string]string{"image/png": "m.image", "image/svg+xml": "m.file", "video/mp4": "m.file"} {
		if got := messageType(kind); got != want {
			t.Errorf("messageType(%q) = %q", kind, got)
		}
	}
}

func FuzzMediaType(f *testing.F) {
	f.Add("text/plain; charset=utf-8", []byte("x"))
	f.Add("image/png\r\nx:y", []byte{0x89})
	f.Fuzz(func(t *testing.T, declared string, head []byte) {
		got := MediaType(declared, head)
		if len(got) > maxMimetype+len("; charset=") || strings.IndexFunc(got, func(r rune) bool { return r < ' ' || r > '~' }) >= 0 ||
			strings.Count(got, "/") != 1 {
			t.Fatalf("MediaType(%q) = %q", declared, got)
		}
	})
}
