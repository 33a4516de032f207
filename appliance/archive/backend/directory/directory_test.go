package directory

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"signalbox/appliance/archive/backend/backendtest"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/clock"
)

// dirs is a backend on fresh directories.
type dirs struct {
	*Backend
	root, metainfo, library string
	clock                   *clock.Fake
}

func openRoot(t testing.TB, dir string) *beneath.Root {
	t.Helper()
	r, err := beneath.Open(dir, beneath.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func setup(t testing.TB, change func(*Options)) *dirs {
	t.Helper()
	base := t.TempDir()
	d := &dirs{root: filepath.Join(base, "content"), metainfo: filepath.Join(base, "metainfo"), library: filepath.Join(base, "library"),
		clock: clock.NewFake(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))}
	for _, dir := range []string{d.root, d.metainfo, d.library} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	o := Options{Roots: []Root{{ID: "main", Dir: openRoot(t, d.root)}}, Metainfo: openRoot(t, d.metainfo), Library: openRoot(t, d.library), Clock: d.clock}
	if change != nil {
		change(&o)
	}
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	d.Backend = b
	return d
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Options){
		"with library":    nil,
		"without library": func(o *Options) { o.Library, o.Metainfo = nil, nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backendtest.Run(t, func(t *testing.T) backendtest.Fixture {
				d := setup(t, change)
				return backendtest.Fixture{Backend: d.Backend, RootID: "main", RootDir: d.root, Pass: func() {
					d.clock.BlockUntil(1)
					d.clock.Advance(5 * time.Second)
				}}
			})
		})
	}
}
