package layout_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/layout"
)

func TestPutAsideKeepsEverything(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root, err := beneath.Open(dir, beneath.Options{})
	must(t, err)
	defer func() { _ = root.Close() }()
	none := func(string) bool { return false }
	list := func(active func(string) bool) (names []string) {
		t.Helper()
		must(t, layout.Leftovers(root, active, func(_, name string) error { names = append(names, name); return nil }))
		slices.Sort(names)
		return names
	}
	if got := list(none); len(got) != 0 {
		t.Errorf("an empty root has leftovers: %v", got)
	}
	put := func(name, content string) {
		t.Helper()
		must(t, os.MkdirAll(filepath.Join(dir, name), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, name, "x"), []byte(content), 0o600))
	}
	job, work := layout.JobDir(jobID, 1), layout.WorkDir(jobID)
	for _, want := range []string{"", ".2", ".3"} {
		for name, to := range map[string]string{job: "jobs/" + jobID + "-1", work: "work/" + jobID} {
			put(name, want)
			got, err := layout.PutAside(root, name)
			must(t, err)
			if got != ".archive-control/leftovers/"+to+want {
				t.Errorf("%s is now %s", name, got)
			}
			if text, err := os.ReadFile(filepath.Join(dir, got, "x")); err != nil || string(text) != want {
				t.Errorf("%s: %q %v", got, text, err)
			}
		}
	}
	put(layout.JobDir(otherJob, 2), "")
	put(job, "")
	put(layout.WorkDir(otherJob), "")
	put("jobs/other", "")
	put(".archive-control/work/other", "")
	if got := list(func(id string) bool { return id == jobID }); len(got) != 8 || !slices.Contains(got, layout.JobDir(otherJob, 2)) ||
		!slices.Contains(got, layout.WorkDir(otherJob)) {
		t.Errorf("leftovers: %v", got)
	}
	if got := list(none); len(got) != 9 {
		t.Errorf("leftovers: %v", got)
	}
	must(t, os.WriteFile(filepath.Join(dir, layout.JobDir(jobID, 9)), nil, 0o600))
	for name, code := range map[string]beneath.Code{layout.JobDir(jobID, 5): beneath.NotFound, layout.JobDir(jobID, 9): beneath.PathConflict,
		"films": beneath.PathConflict, layout.TrashDir(jobID): beneath.PathConflict} {
		_, err := layout.PutAside(root, name)
		mustCode(t, name, err, code)
	}
}
