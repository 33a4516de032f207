package roomhttp

import (
	"io"
	"mime/multipart"
	"net/http/httptest"
	"strings"
	"testing"

	"signalbox/appliance/fault"
)

// FuzzReceive feeds strangers' bytes to the reader of uploads: it never fails but with an error for the caller, and what
// it keeps is bounded.
func FuzzReceive(f *testing.F) {
	good := "--b\r\nContent-Disposition: form-data; name=\"files\"; filename=\"a\"\r\n\r\nx\r\n--b\r\n" +
		"Content-Disposition: form-data; name=\"caption\"\r\n\r\nhi\r\n--b--\r\n"
	for _, seed := range []string{good, good[:len(good)-6], "", "--b--", "--b\r\n\r\n", strings.Repeat("--b\r\nX: y\r\n\r\n\r\n",
		70)} {
		f.Add("multipart/form-data; boundary=b", seed)
	}
	f.Add("text/plain", good)
	f.Fuzz(func(t *testing.T, kind, body string) {
		r := httptest.NewRequest("POST", "/", strings.NewReader(body))
		r.Header.Set("Content-Type", kind)
		files := 0
		texts, err := receive(r, map[string]int64{"caption": 100, "thread_id": 10}, func(p *multipart.Part) error {
			files++
			if _, err := io.Copy(io.Discard, p); err != nil {
				return fault.Wrap(fault.Invalid, err, "broken")
			}
			return nil
		})
		if err != nil && fault.CodeOf(err) != fault.Invalid {
			t.Fatalf("%v", err)
		}
		if files > maxParts || len(texts["caption"]) > 100 || len(texts["thread_id"]) > 10 {
			t.Fatalf("%d files, texts %v", files, texts)
		}
	})
}
