package roomapi_test

import (
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/room"
)

const png = "\x89PNG\r\n\x1a\n0123456789"

func TestUploadBecomesOneMessage(t *testing.T) {
	r := newRig(t)
	a := r.send(part{"caption", "", "", "look"}, part{"files", "a.png", "image/png", png}, part{"files", "b.txt", "text/plain",
		"hello"})
	r.want("upload", a, 200, `"ok":true`)
	out := a.json(t)
	files := out["attachments"].([]any)
	if len(files) != 2 || files[0].(map[string]any)["filename"] != "a.png" || files[0].(map[string]any)["mxc"] != out["mxc"] ||
		files[1].(map[string]any)["event_id"] != out["event_id"] {
		t.Fatalf("answer %v", out)
	}
	it, err := r.log.Item(t.Context(), uuid.MustParse(out["event_id"].(string)))
	r.ok("item", err)
	var got []room.Attachment
	r.ok("attachments", json.Unmarshal(it.Attachments, &got))
	if it.Body != "look" || len(got) != 2 || got[0].Type != "m.image" || got[0].Mimetype != "image/png" ||
		got[0].Size != int64(len(png)) ||
		got[1].Type != "m.file" || got[1].Media != files[1].(map[string]any)["mxc"] {
		t.Errorf("item %q with %+v", it.Body, got)
	}
	single := r.send(part{"file", "", "", "no name"})
	r.want("one, without a name", single, 200, `"filename":"file"`)
	thread := r.send(part{"file", "c", "", "x"}, part{"thread_id", "", "", out["event_id"].(string)}, part{"other", "", "",
		"ignored"})
	r.want("in a thread", thread, 200, "event_id")
	it, err = r.log.Item(t.Context(), uuid.MustParse(thread.json(t)["event_id"].(string)))
	if err != nil || it.ThreadID.String() != out["event_id"] {
		t.Errorf("thread %v, %v", it.ThreadID, err)
	}
}

func TestUploadIsAllOrNothing(t *testing.T) {
	r := newRig(t)
	good := part{"files", "a", "", "x"}
	r.want("none", r.send(part{"caption", "", "", "look"}), 400, "at least one file")
	r.want("empty", r.send(good, part{"files", "b", "", ""}), 400, "is empty")
	r.want("oversize", r.send(good, part{"files", "b", "", strings.Repeat("x", maxFile+1)}), 400, "larger than 1048576")
	r.want("too many", r.send(good, good, good, good), 400, "at most 3")
	r.want("unknown thread", r.send(good, part{"thread_id", "", "", uuid.NewString()}), 400, "thread_id")
	r.want("long caption", r.send(good, part{"caption", "", "", strings.Repeat("x", 256<<10+1)}), 400, "caption")
	r.want("not multipart", r.do("POST", r.mediaPath(), r.keys["fox"], "{}", "Content-Type", "application/json"), 400, "multipart")
	r.want("cut", r.do("POST", r.mediaPath(), r.keys["fox"], "--b\r\nContent-Disposition: form-data; name=files\r\n\r\nhalf",
		"Content-Type",
		"multipart/form-data; boundary=b"), 400, "broke off")
	r.want("unknown room", r.do("POST", "/agents/"+r.fox.ID.String()+"/rooms/"+uuid.NewString()+"/media", r.keys["fox"], ""),
		404, "detail")
	r.want("stranger", r.do("POST", "/agents/"+r.owl.ID.String()+"/rooms/"+r.room.String()+"/media", r.keys["owl"], ""), 403,
		"detail")
	rows, items := r.count(`SELECT count(*) FROM room_media`), r.count(`SELECT count(*) FROM room_items`)
	if rows != 0 || items != 0 {
		t.Errorf("%d rows and %d items stay", rows, items)
	}
}

func TestDownload(t *testing.T) {
	r := newRig(t)
	a := r.send(part{"files", "re\u0301sume\u0301 \u201cx\u201d.txt", "text/plain; charset=utf-8", "hello world"}, part{"files",
		"x.html", "text/html", "<script>"},
		part{"files", "x.svg", "image/svg+xml", "<svg/>"})
	r.want("upload", a, 200, "ok")
	var keys []string
	for _, f := range a.json(t)["attachments"].([]any) {
		keys = append(keys, f.(map[string]any)["mxc"].(string))
	}
	get := func(key string, headers ...string) answer {
		return r.do("GET", r.mediaPath()+"?mxc="+url.QueryEscape(key), r.keys["fox"], "", headers...)
	}
	text := get(keys[0])
	r.want("text", text, 200, "hello world")
	for name, want := range map[string]string{
		"Content-Type": "text/plain; charset=utf-8",
		"Content-Disposition": `inline; filename="re_sume_ _x_.txt"; ` +
			`filename*=UTF-8''re%CC%81sume%CC%81%20%E2%80%9Cx%E2%80%9D.txt`,
		"X-Content-Type-Options":       "nosniff",
		"Content-Security-Policy":      "sandbox; default-src 'none'",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Cache-Control":                "private, max-age=31536000, immutable",
		"Accept-Ranges":                "bytes",
	} {
		if got := text.header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	etag := text.header.Get("ETag")
	r.want("unchanged", get(keys[0], "If-None-Match", etag), 304, "")
	r.want("range", get(keys[0], "Range", "bytes=6-"), 206, "world")
	r.want("bad range", get(keys[0], "Range", "bytes=60-"), 416, "")
	for _, key := range keys[1:] {
		if got := get(key).header.Get("Content-Disposition"); !strings.HasPrefix(got, "attachment;") {
			t.Errorf("active type: %s", got)
		}
	}
	r.want("unknown", get(uuid.NewString()), 404, "detail")
	r.want("no key", get(""), 400, "mxc")
	r.want("path", get("../../signalbox.db"), 404, "detail")
	r.want("stranger", r.do("GET", "/agents/"+r.owl.ID.String()+"/rooms/"+r.room.String()+"/media?mxc="+keys[0], r.keys["owl"],
		""), 403, "detail")
	r.want("another room", r.do("GET", "/agents/"+r.fox.ID.String()+"/rooms/"+uuid.NewString()+"/media?mxc="+keys[0],
		r.keys["fox"], ""), 404, "detail")
}

// TestUploadOfUnstatedLength holds the upload to streaming: nothing is collected before the handler, or left behind.
func TestUploadOfUnstatedLength(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // nobody else's files are in it
	r := newRig(t)
	in, out := io.Pipe()
	w := multipart.NewWriter(out)
	go func() {
		for range 3 {
			p, err := w.CreateFormFile("files", "big")
			if err == nil {
				_, err = io.Copy(p, strings.NewReader(strings.Repeat("x", maxFile)))
			}
			if err != nil {
				_ = out.CloseWithError(err)
				return
			}
		}
		_ = out.CloseWithError(w.Close())
	}()
	req, err := http.NewRequestWithContext(t.Context(), "POST", r.http.URL+r.mediaPath(), in)
	r.ok("request", err)
	req.Header.Set("Authorization", "Bearer "+r.keys["fox"])
	req.Header.Set("Content-Type", w.FormDataContentType())
	res, err := http.DefaultClient.Do(req)
	r.ok("upload", err)
	defer res.Body.Close()
	if b, _ := io.ReadAll(res.Body); res.StatusCode != 200 {
		t.Errorf("%d %s", res.StatusCode, b)
	}
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "multipart-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind %v, %v", left, err)
	}
}
