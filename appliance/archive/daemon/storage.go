package daemon

import (
	"context"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend"
	"signalbox/appliance/archive/beneath"
)

// Root is a configured directory.
type Root struct {
	ID   string
	Kind pb.RootKind
	// Open returns the handle of the directory, verified: the same one as long as the directory is the same. The daemon
	// does not close it. An error means that the root is not available now.
	Open func() (*beneath.Root, error)
}

// storage measures every root. A root that cannot be used carries its error.
func (d *Daemon) storage(ctx context.Context) []*pb.StorageEntry {
	out := make([]*pb.StorageEntry, len(d.o.Roots))
	open := make([]*beneath.Root, len(d.o.Roots))
	for i, r := range d.o.Roots {
		e := &pb.StorageEntry{RootId: r.ID, RootKind: r.Kind}
		out[i] = e
		var err error
		if open[i], err = r.Open(); err != nil {
			e.Error = backend.Detail(err)
			continue
		}
		if e.TotalBytes, e.FreeBytes, err = open[i].Space(); err == nil {
			var m *beneath.Measured
			if m, err = open[i].Probe(ctx); err == nil {
				e.Profile, e.Writable = m.Profile, true
			}
		}
		if err != nil {
			e.Error = backend.Detail(err)
		}
	}
	for i, r := range open {
		for j, other := range open {
			if i != j && r != nil && other != nil && r.SameFilesystem(other) {
				out[i].SameFilesystemAs = append(out[i].SameFilesystemAs, out[j].RootId)
			}
		}
	}
	return out
}
