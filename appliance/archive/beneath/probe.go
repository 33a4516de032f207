package beneath

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	pb "signalbox/appliance/archive/archivepb"
)

// Measured is what a root's file system was seen to do.
type Measured struct {
	Profile       *pb.FilesystemProfile // shared: do not change it
	DurableRename bool                  // a directory can be flushed
}

const (
	probePrefix = "probe-"
	probeStale  = time.Hour // age from which a probe directory is what a killed process left
	sparseBytes = 8 << 20   // length of the file that shows whether holes take blocks
)

// Probe measures the file system by doing in ControlDir what jobs do, and removes everything again (daemon protocol 7.4).
// The result is kept: later calls return it without touching the disk. Failures for want of space or rights are returned
// and not taken for a property of the file system.
func (r *Root) Probe(ctx context.Context) (*Measured, error) {
	r.probing.Lock() // one that ends takes away the directory that another would need
	defer r.probing.Unlock()
	r.mu.Lock()
	known := r.known
	r.mu.Unlock()
	if known != nil {
		return known, nil
	}
	m, err := r.probe(ctx)
	if err != nil {
		return nil, fmt.Errorf("probe %s: %w", r.dir, err)
	}
	r.mu.Lock()
	r.known = m
	r.mu.Unlock()
	return m, nil
}

func (r *Root) probe(ctx context.Context) (m *Measured, err error) {
	made, err := r.MkdirAll(ControlDir, ownDirPerm)
	if err != nil {
		return nil, err
	}
	dir := ControlDir + "/" + probePrefix + random()
	if err := r.Mkdir(dir, ownDirPerm); err != nil {
		return nil, err
	}
	defer func() {
		clean := r.RemoveAll(context.WithoutCancel(ctx), dir)
		if clean == nil && len(made) > 0 {
			if e := r.Rmdir(ControlDir); CodeOf(e) != PathConflict { // somebody else may use it by now
				clean = ignoreNotFound(e)
			}
		}
		if err = errors.Join(err, clean); err != nil {
			m = nil
		}
	}()
	p := &prober{root: r, dir: dir + "/"}
	if err := r.removeStaleProbes(ctx, dir); err != nil {
		return nil, err
	}
	for _, step := range []func() error{p.letterCase, p.normalForm, p.windowsNames, p.nameLength, p.links, p.rename, p.files} {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := step(); err != nil {
			return nil, err
		}
	}
	durable, err := r.SyncDir(dir)
	return &Measured{Profile: &p.found, DurableRename: durable}, err
}

// removeStaleProbes removes what a process that was killed during a probe left, by the age of the directory on the file
// system's own clock.
func (r *Root) removeStaleProbes(ctx context.Context, own string) error {
	now, err := r.Lstat(own)
	if err != nil {
		return err
	}
	return r.ReadDir(ControlDir, func(e Entry) error {
		name := ControlDir + "/" + e.Name
		if !e.Type.IsDir() || !strings.HasPrefix(e.Name, probePrefix) {
			return nil
		}
		st, err := r.Lstat(name)
		if err != nil || now.MtimeNS-st.MtimeNS < probeStale.Nanoseconds() {
			return ignoreNotFound(err)
		}
		return r.RemoveAll(ctx, name)
	})
}

type prober struct {
	root  *Root
	dir   string
	found pb.FilesystemProfile
}

// put makes an empty file.
func (p *prober) put(name string) error {
	f, err := p.root.Create(p.dir+name, ownPerm)
	if err != nil {
		return err
	}
	return f.Close()
}

// sees reports whether a look-up by this name finds something.
func (p *prober) sees(name string) (bool, error) {
	_, err := p.root.Lstat(p.dir + name)
	if err == nil {
		return true, nil
	}
	if refusesName(err) {
		return false, nil
	}
	return false, ignoreNotFound(err)
}

// lists reports whether a listing shows exactly this name.
func (p *prober) lists(name string) (found bool, err error) {
	err = p.root.ReadDir(strings.TrimSuffix(p.dir, "/"), func(e Entry) error {
		found = found || e.Name == name
		return nil
	})
	return found, err
}

// refusesName reports an answer about the name itself, not about space, rights or the medium.
func refusesName(err error) bool {
	code := CodeOf(err)
	return code == PathUnsafe || code == FilesystemLimit || errors.Is(err, unix.EINVAL)
}

func (p *prober) letterCase() error {
	if err := p.put("case-Probe"); err != nil {
		return err
	}
	other, err := p.sees("CASE-pROBE")
	p.found.CaseSensitive = !other
	return err
}

func (p *prober) normalForm() error {
	const decomposed, composed = "form-e\u0301", "form-\u00e9"
	if err := p.put(decomposed); err != nil {
		if refusesName(err) {
			return nil // names that are not kept are not preserved
		}
		return err
	}
	other, err := p.sees(composed)
	if err != nil {
		return err
	}
	same, err := p.lists(decomposed)
	p.found.NormalizationPreserving = same && !other
	return err
}

func (p *prober) windowsNames() error {
	for _, name := range []string{`win:a`, `win*?"<>|`, "win-dot.", "win-space ", "nul"} {
		if err := p.put(name); err != nil {
			if refusesName(err) || IsNotFound(err) || CodeOf(err) == PathConflict {
				p.found.WindowsNames = true
				continue
			}
			return err
		}
		same, err := p.lists(name)
		if err != nil {
			return err
		}
		if !same {
			p.found.WindowsNames = true
		}
	}
	return nil
}

// nameLength finds the longest name, in bytes, that can be made.
func (p *prober) nameLength() error {
	low, high := 0, 255
	for low < high {
		n := (low + high + 1) / 2
		if low == 0 && high == 255 {
			n = 255 // nearly always right
		}
		name := strings.Repeat("n", n)
		err := p.put(name)
		switch {
		case err == nil:
			low = n
			if err := p.root.Unlink(p.dir + name); err != nil {
				return err
			}
		case refusesName(err):
			high = n - 1
		default:
			return err
		}
	}
	p.found.MaxNameBytes = uint32(low)
	return nil
}

func (p *prober) links() error {
	if err := p.put("link-old"); err != nil {
		return err
	}
	err := p.root.Link(p.dir+"link-old", p.root, p.dir+"link-new")
	p.found.SupportsHardlink = err == nil
	if err == nil || IsUnsupported(err) {
		return nil
	}
	return err
}

func (p *prober) rename() error {
	if err := errors.Join(p.put("rename-old"), p.put("rename-taken")); err != nil {
		return err
	}
	onto := func(name string) error {
		return p.root.pair(OpRename, p.dir+"rename-old", p.root, p.dir+name, renameNoReplace)
	}
	switch err := onto("rename-taken"); {
	case IsUnsupported(err):
		return nil
	case CodeOf(err) != PathConflict:
		return err // nil: it replaced, so it is of no use
	}
	err := onto("rename-new")
	p.found.SupportsNoreplaceRename = err == nil
	if IsUnsupported(err) {
		return nil
	}
	return err
}

func (p *prober) files() error {
	f, err := p.root.Create(p.dir+"sparse", ownPerm)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("data"), sparseBytes); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	first, _, err := f.NextData(0, st.Size)
	if err != nil {
		return err
	}
	p.found.SupportsSparse = first > 0 && st.Allocated < sparseBytes/2

	clone, err := p.root.Create(p.dir+"clone", ownPerm)
	if err != nil {
		return err
	}
	defer clone.Close()
	err = f.Reflink(clone)
	p.found.SupportsReflink = err == nil
	if err != nil && !IsUnsupported(err) {
		return err
	}
	p.found.MaxFileBytes = f.longest()
	return nil
}

// longest finds the largest length of a file: the largest offset that can be sought to, which writes nothing.
func (f *File) longest() uint64 {
	low, high := int64(0), int64(math.MaxInt64)
	for low < high {
		n := low + (high-low+1)/2
		if low == 0 && high == math.MaxInt64 {
			n = high
		}
		if _, err := unix.Seek(f.fd, n, unix.SEEK_SET); err == nil {
			low = n
		} else {
			high = n - 1
		}
	}
	return uint64(low)
}
