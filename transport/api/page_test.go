package api

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
)

func TestCursorForm(t *testing.T) {
	t.Parallel()
	c := agent.Cursor{At: start, ID: uuid.MustParse("8b7c1f64-0000-4000-8000-000000000001")}
	text := encodeCursor(c)
	decoded, err := base64.RawURLEncoding.DecodeString(text)
	if want := `[["dt","2026-06-01T12:00:00.123456Z"],"8b7c1f64-0000-4000-8000-000000000001"]`; err != nil || string(decoded) != want {
		t.Fatalf("%s %v, want %s", decoded, err, want)
	}
	if got := decodeCursor(text); got != c {
		t.Fatalf("%+v, want %+v", got, c)
	}
	upstream := `[["dt","2026-06-01T14:00:00.123456+02:00"],"8b7c1f64-0000-4000-8000-000000000001"]`
	if got := decodeCursor(base64.RawURLEncoding.EncodeToString([]byte(upstream))); got != c {
		t.Fatalf("another offset: %+v", got)
	}
	for _, bad := range []string{"", "!", "W10", base64.RawURLEncoding.EncodeToString([]byte(`[["null",null],"x"]`)),
		base64.RawURLEncoding.EncodeToString([]byte(`[["raw",7],"8b7c1f64-0000-4000-8000-000000000001"]`)),
		base64.RawURLEncoding.EncodeToString([]byte(`{"dt":1}`))} {
		if got := decodeCursor(bad); !got.IsZero() {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func FuzzCursor(f *testing.F) {
	f.Add(encodeCursor(agent.Cursor{At: start, ID: uuid.New()}))
	f.Add("W1siZHQiLG51bGxdLCIiXQ")
	f.Fuzz(func(t *testing.T, text string) {
		c := decodeCursor(text)
		if c.IsZero() {
			return
		}
		c.At = c.At.Truncate(time.Microsecond) // what we write
		if again := decodeCursor(encodeCursor(c)); again != c {
			t.Fatalf("%q: %+v became %+v", text, c, again)
		}
	})
}

func FuzzStreamCursor(f *testing.F) {
	for _, s := range []string{"", "0", "01234567.12", "x.1", "01234567.+1", "."} {
		f.Add(s)
	}
	a := New(Services{}, Options{Epoch: "0123456789"})
	f.Fuzz(func(t *testing.T, text string) {
		p, err := a.parseStreamCursor(text)
		if err != nil || p.head || p.other {
			return
		}
		if again, err := a.parseStreamCursor(a.streamCursor(p.seq)); err != nil || again != p || p.seq < 0 {
			t.Fatalf("%q: %+v became %+v, %v", text, p, again, err)
		}
	})
}

// walk reads every page of a list and returns the ids, and how many pages there were.
func (g *rig) walk(path string) (ids []string, pages int) {
	g.t.Helper()
	cursor := ""
	for {
		var page list[row]
		g.ok(http.StatusOK, "GET", path+"&cursor="+url.QueryEscape(cursor), "", &page)
		pages++
		for _, item := range page.Items {
			ids = append(ids, item.ID)
		}
		if page.NextCursor == nil || pages > 50 {
			return ids, pages
		}
		cursor = *page.NextCursor
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.online()
	var commands []string
	for i := range 6 {
		commands = append(commands, g.issue(fmt.Sprint("t-", i)).String())
		g.events("task.succeeded", fmt.Sprint("t-", i))
		if i%2 == 1 { // two of each time: the id breaks the tie
			g.clock.Advance(time.Second)
		}
	}
	for _, c := range []struct {
		path string
		rows int // -1: at least 6
	}{
		{"/projects/one/commands", 6}, {"/projects/one/events", 6}, {"/projects/one/tasks", 6},
		{"/projects/one/audit", -1}, {"/audit", -1},
	} {
		ids, pages := g.walk(c.path + "?limit=2")
		unique := slices.Compact(slices.Sorted(slices.Values(ids)))
		if len(unique) != len(ids) || c.rows >= 0 && len(ids) != c.rows || len(ids) < 6 {
			t.Errorf("%s: %d rows, %d different", c.path, len(ids), len(unique))
		}
		if want := len(ids)/2 + 1; pages != want { // the last full page has a next one, which is empty
			t.Errorf("%s: %d pages of %d rows", c.path, pages, len(ids))
		}
	}
	ids, _ := g.walk("/projects/one/commands?limit=4")
	slices.Reverse(commands)
	if len(ids) != 6 || !sameByPairs(ids, commands) {
		t.Errorf("commands come as %v, want newest first %v", ids, commands)
	}
	var page list[row]
	if g.ok(http.StatusOK, "GET", "/projects/one/commands", "", &page); len(page.Items) != 3 {
		t.Errorf("default page of %d", len(page.Items))
	}
	if g.ok(http.StatusOK, "GET", "/projects/one/commands?limit=5000", "", &page); len(page.Items) != 5 || page.NextCursor == nil {
		t.Errorf("clamped page of %d", len(page.Items))
	}
	if g.ok(http.StatusOK, "GET", "/projects/one/commands?cursor=garbage", "", &page); page.Items[0].ID != ids[0] {
		t.Error("a malformed cursor is not the first page")
	}
}

// sameByPairs compares lists whose neighbours of one time may come in either order.
func sameByPairs(got, want []string) bool {
	for i := 0; i+1 < len(want); i += 2 {
		if !slices.Contains(want[i:i+2], got[i]) || !slices.Contains(want[i:i+2], got[i+1]) {
			return false
		}
	}
	return true
}

// TestLargePage holds that a page of several chunks is the page that small ones add up to.
func TestLargePage(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(o *Options) { o.MaxPage = 500 })
	var ids []string
	for i := range 2*listChunk + 20 {
		ids = append(ids, fmt.Sprint("t-", i))
	}
	g.events("task.received", ids...)
	small, _ := g.walk("/projects/one/events?limit=7")
	for limit, wantNext := range map[int]bool{listChunk + 1: true, 2 * listChunk: true, len(ids): true, len(ids) + 1: false, 500: false} {
		var page list[row]
		g.ok(http.StatusOK, "GET", fmt.Sprint("/projects/one/events?limit=", limit), "", &page)
		var got []string
		for _, item := range page.Items {
			got = append(got, item.ID)
		}
		if !slices.Equal(got, small[:min(limit, len(small))]) {
			t.Errorf("limit %d: %d rows that differ from small pages", limit, len(got))
		}
		if (page.NextCursor != nil) != wantNext {
			t.Errorf("limit %d: next cursor %v", limit, page.NextCursor)
		}
	}
	large, pages := g.walk(fmt.Sprint("/projects/one/events?limit=", listChunk+10))
	if !slices.Equal(large, small) || pages != 3 {
		t.Errorf("%d rows in %d large pages, %d in small ones", len(large), pages, len(small))
	}
}

func TestFilters(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.online()
	g.issue("t-1")
	g.events("task.succeeded", "t-1")
	g.clock.Advance(time.Hour)
	second := g.issue("t-2")
	g.events("task.failed", "t-2")
	g.ok(http.StatusOK, "POST", "/projects/one/commands/"+second.String()+"/cancel", "", nil)
	later := url.QueryEscape(start.Add(time.Minute).Format(time.RFC3339Nano))
	for path, want := range map[string]int{
		"/projects/one/commands?status=pending":                        1,
		"/projects/one/commands?status=cancelled":                      1,
		"/projects/one/commands?action=retry_task":                     0,
		"/projects/one/commands?agent_id=" + g.agent.ID.String():       2,
		"/projects/one/commands?agent_id=" + uuid.NewString():          0,
		"/projects/one/commands?since=" + later:                        1,
		"/projects/one/commands?since=2026-06-01T14:01:00+02:00":       1, // the plus sign arrives as a space
		"/projects/one/events?kind=task.failed":                        1,
		"/projects/one/events?engine=celery&task_id=t-1":               1,
		"/projects/one/events?engine=rq":                               0,
		"/projects/one/tasks?state=failure":                            1,
		"/projects/one/tasks?queue=mail&name=mail.send":                2,
		"/projects/one/tasks?search=T-2":                               1,
		"/projects/one/tasks?until=" + later:                           1,
		"/projects/one/audit?action_prefix=command.issue":              2,
		"/projects/one/audit?action_prefix=command.issue&outcome=deny": 0,
		"/projects/one/audit?action_prefix=command.&since=" + later:    2,
		"/projects/two/audit?limit=5":                                  1,
		"/audit?action_prefix=project.created&user_id=local":           2,
	} {
		var page list[struct{}]
		if g.ok(http.StatusOK, "GET", path, "", &page); len(page.Items) != want {
			t.Errorf("%s: %d rows, want %d", path, len(page.Items), want)
		}
	}
}
