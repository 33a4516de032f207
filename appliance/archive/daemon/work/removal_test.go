package work

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"signalbox/appliance/archive/backend/hashcache"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/beneath/beneathtest"
	"signalbox/appliance/archive/layout"
)

// What an interrupted removal of a job directory leaves is never complete: its marker goes before the first of its payload.
func TestRemovalBeginsWithTheMarker(t *testing.T) {
	t.Parallel()
	const dir = "jobs/0d9e4d8c-8e0a-4f3e-9f4b-2c7b4c5d6e7f-3"
	w := &Worker{o: Options{Cache: hashcache.NewMemory()}}
	for n := 1; ; n++ {
		r := beneathtest.Open(t, t.TempDir())
		for _, name := range []string{"jobs", dir, dir + "/payload", dir + "/aux"} {
			if err := r.Mkdir(name, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"payload/00000000", "payload/00000001", "aux/metainfo", layout.ManifestFile, layout.MarkerFile} {
			beneathtest.Write(t, r, dir+"/"+name, []byte(name))
		}
		hook, reached := beneathtest.Stop(n)
		dying, err := beneath.Open(r.Dir(), beneath.Options{Hook: hook})
		if err == nil {
			err = w.removeTree(t.Context(), dying, dir)
			dying.Close()
		}
		if !reached() {
			if err != nil {
				t.Fatal(err)
			}
			return
		}
		_, markerErr := os.Stat(filepath.Join(r.Dir(), dir, layout.MarkerFile))
		left, _ := filepath.Glob(filepath.Join(r.Dir(), dir, "*/*"))
		if markerErr == nil && len(left) != 3 {
			t.Fatalf("call %d: a marker beside %q", n, left)
		}
		for range 2 {
			if err := w.removeTree(t.Context(), r, dir); err != nil {
				t.Fatalf("call %d: again: %v", n, err)
			}
		}
		if _, err := os.Stat(filepath.Join(r.Dir(), dir)); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("call %d: %v", n, err)
		}
	}
}
