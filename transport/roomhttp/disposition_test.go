package roomhttp

import (
	"mime"
	"strings"
	"testing"

	"signalbox/appliance/room/media"
)

func TestDispositionKind(t *testing.T) {
	for kind, want := range map[string]string{
		"image/png": "inline", "text/plain; charset=utf-8": "inline", "application/pdf": "inline", "application/octet-stream": "inline",
		"video/mp4": "inline", "application/json": "inline",
		"text/html": "attachment", "application/xhtml+xml": "attachment", "image/svg+xml": "attachment", "text/xml": "attachment",
		"text/javascript": "attachment", "application/ecmascript": "attachment", "application/wasm": "attachment", "": "attachment",
	} {
		if got := dispositionKind(kind); got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
	}
}

// FuzzDisposition holds the header to what RFC 6266 parsers read back: one plain line, and the name itself.
func FuzzDisposition(f *testing.F) {
	for _, s := range []string{"a.txt", `a"b\c.txt`, "é%20.png", "a\r\nX: y", "\xff\x00", "'", "a;b=c", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		h := disposition("inline", raw)
		if strings.IndexFunc(h, func(r rune) bool { return r < ' ' || r > '~' }) >= 0 {
			t.Fatalf("%q has characters that do not belong into a header", h)
		}
		name := media.CleanFilename(raw)
		kind, params, err := mime.ParseMediaType(disposition("inline", name))
		if err != nil || kind != "inline" || params["filename"] != name {
			t.Fatalf("%q reads as %q, %v (%v)", name, params["filename"], err, kind)
		}
	})
}
