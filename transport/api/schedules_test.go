package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/store"
)

const newSchedule = `{"name":"%s","engine":"celery","kind":"interval","expression":"5m","task_name":"app.x"}`

func (g *rig) schedule(name string) schedulePublic {
	g.t.Helper()
	r := g.do(g.admin, "POST", "/projects/one/schedules", fmt.Sprintf(newSchedule, name))
	var s schedulePublic
	if err := json.Unmarshal([]byte(r.body), &s); err != nil || r.status != http.StatusCreated {
		g.t.Fatalf("%d %s", r.status, r.body)
	}
	return s
}

func TestScheduleRefusalsAreAudited(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	viewer := g.key(agent.NewAPIKey{Role: agent.Viewer})
	s := g.schedule("a")
	base := "/projects/one/schedules"
	for _, c := range []struct {
		method, path, key, body string
		status                  int
		action                  string
	}{
		{"POST", base, viewer, fmt.Sprintf(newSchedule, "b"), 403, "schedules.access.denied"},
		{"POST", base + "/" + s.ID + "/trigger", viewer, "", 403, "schedules.access.denied"},
		{"POST", base, g.admin, fmt.Sprintf(newSchedule, "a"), 409, "schedules.access.invalid"},
		{"POST", base, g.admin, `{"name":"b","colour":"red"}`, 422, "schedules.access.invalid"},
		{"PATCH", base + "/" + s.ID, g.admin, `{"scheduler":"x"}`, 422, "schedules.access.invalid"},
		{"PATCH", base + "/" + s.ID, g.admin, `{"expression":"never"}`, 422, "schedules.access.invalid"},
		{"DELETE", base + "/" + uuid.NewString(), g.admin, "", 404, "schedules.access.not_found"},
		{"POST", "/projects/none/schedules", g.admin, "{}", 404, "schedules.access.not_found"},
		{"POST", base + ":import", viewer, `{"source":"x","schedules":[]}`, 403, "schedules.access.denied"},
		{"POST", base + ":diff", viewer, `{"source":"x","schedules":[]}`, 200, ""},
		{"GET", base + "/" + uuid.NewString(), g.admin, "", 404, ""},
	} {
		before := g.refusedSchedules()
		if r := g.do(c.key, c.method, c.path, c.body); r.status != c.status {
			t.Errorf("%s %s: %d %s, want %d", c.method, c.path, r.status, r.body, c.status)
		}
		var want []string
		if c.action != "" {
			want = []string{c.action}
		}
		if got := g.refusedSchedules()[len(before):]; !slices.Equal(got, want) {
			t.Errorf("%s %s left %v, want %v", c.method, c.path, got, want)
		}
	}
}

func (g *rig) refusedSchedules() (out []string) {
	g.t.Helper()
	g.must(g.db.View(context.Background(), func(tx *store.ReadTx) error {
		rows, err := tx.AuditRows(0, 1000)
		for _, row := range rows {
			if strings.HasPrefix(row.Action, "schedules.access.") {
				out = append(out, row.Action)
			}
		}
		return err
	}))
	return out
}

func TestScheduleCursor(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	for _, name := range []string{"b|x", "a", "c", "d"} {
		g.schedule(name)
	}
	var names []string
	for cursor := ""; ; {
		r := g.do(g.admin, "GET", "/projects/one/schedules?limit=2"+cursor, "")
		var page list[schedulePublic]
		g.must(json.Unmarshal([]byte(r.body), &page))
		for _, s := range page.Items {
			names = append(names, s.Name)
		}
		if page.NextCursor == nil || len(names) > 10 {
			break
		}
		cursor = "&cursor=" + *page.NextCursor
	}
	if !slices.Equal(names, []string{"a", "b|x", "c", "d"}) {
		t.Errorf("names are %v", names)
	}
	for _, bad := range []string{"x", "bmFtZQ", strings.Repeat("a", 2000), "bmFtZXx6eg"} {
		if name, id := decodeScheduleCursor(bad); name != "" || id != uuid.Nil {
			t.Errorf("%.20q is the place %q", bad, name)
		}
	}
}

func TestScheduleTriggerAnswersWithItsFire(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	s := g.schedule("a")
	id := uuid.NewString()
	for i, want := range []string{`"repeated":false`, `"repeated":true`} {
		r := g.do(g.admin, "POST", "/projects/one/schedules/"+s.ID+"/trigger", `{"fire_id":"`+id+`"}`)
		body := r.body
		if r.status != 200 || !strings.Contains(body, want) || !strings.Contains(body, `"fire_id":"`+id+`"`) || !strings.Contains(body, `"total_runs":1`) {
			t.Errorf("trigger %d: %d %s", i, r.status, body)
		}
		if r := g.do(g.admin, "POST", "/projects/one/schedules/"+s.ID+"/trigger", ""); r.status != 429 || r.header.Get("Retry-After") == "" {
			t.Errorf("again at once: %d %v", r.status, r.header)
		}
	}
}

func TestScheduleWarnings(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	const base = "/projects/one/schedules"
	warnings := func(method, path, body string) []string {
		t.Helper()
		r := g.do(g.admin, method, path, body)
		var got struct{ Warnings []string }
		if err := json.Unmarshal([]byte(r.body), &got); err != nil || r.status >= 300 || got.Warnings == nil {
			t.Fatalf("%s %s: %d %s", method, path, r.status, r.body)
		}
		return got.Warnings
	}
	const never = "No agent of the project lists the engine %s, so fires wait until one does, 60 min at most (worker-1 has never connected)."
	is := func(got []string, engines ...string) {
		t.Helper()
		want := []string{}
		for _, e := range engines {
			want = append(want, fmt.Sprintf(never, e))
		}
		if !slices.Equal(got, want) {
			t.Errorf("warned of %q, want %q", got, want)
		}
	}
	s := g.schedule("a")
	is(warnings("PATCH", base+"/"+s.ID, `{"queue":"slow"}`), "celery")
	is(warnings("PATCH", base+"/"+s.ID, `{"engine":"rq"}`), "rq")
	is(warnings("POST", base+"/"+s.ID+"/enable", ""), "rq")
	const set = `{"source":"git","schedules":[` + newSchedule + "," + newSchedule + "," + newSchedule + `]}`
	body := fmt.Sprintf(set, "b", "c", "d")
	is(warnings("POST", base+":diff", body), "celery")
	is(warnings("POST", base+":import", body), "celery")
	is(warnings("POST", base, `{"name":"e","engine":"huey","scheduler":"beat","kind":"interval","expression":"5m","task_name":"x"}`))
	g.online()
	is(warnings("PATCH", base+"/"+s.ID, `{"engine":"celery"}`))
}
