package gateway

import (
	"net/http"
	"strconv"
	"testing"
)

func FuzzParsePosition(f *testing.F) {
	f.Add("0190a000-0000-7000-8000-000000000000:12")
	f.Add("{0190a000-0000-7000-8000-000000000000}:0")
	f.Add(":")
	f.Fuzz(func(t *testing.T, text string) {
		id, seq, ok := parsePosition(text)
		if !ok {
			return
		}
		if seq < 0 || seq >= 1<<53 {
			t.Errorf("%q has the position %d", text, seq)
		}
		if id2, seq2, ok := parsePosition(id.String() + ":" + strconv.FormatInt(seq, 10)); !ok || id2 != id || seq2 != seq {
			t.Errorf("%q does not come back", text)
		}
	})
}

func TestUploadsAreRecognised(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		method, path string
		want         bool
	}{
		{"POST", "/gateway/rooms/x/media", true},
		{"GET", "/gateway/rooms/x/media", false},
		{"POST", "/gateway/rooms/x/agents", false},
		{"POST", "/gateway/rooms/x/media/y", false},
		{"POST", "/agents/x/rooms/y/media", false},
		{"POST", "/", false},
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, "http://host"+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := IsUpload(r); got != c.want {
			t.Errorf("%s %s: %v", c.method, c.path, got)
		}
	}
}
