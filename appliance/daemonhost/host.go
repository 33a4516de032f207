// Package daemonhost is the composition root of an archive daemon: it builds the engine, the workers, the directory
// backend and the connection to control from a configuration, runs them, and takes them down in order.
package daemonhost

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/backend/directory"
	"signalbox/appliance/archive/beneath"
	"signalbox/appliance/archive/copyfile"
	"signalbox/appliance/archive/daemon"
	"signalbox/appliance/archive/daemon/work"
	"signalbox/appliance/archive/verify"
	"signalbox/appliance/clock"
	"signalbox/appliance/daemonconfig"
	"signalbox/store"
	"signalbox/store/daemonstore"
	"signalbox/transport/archiveclient"
)

// DatabaseFile is the daemon's database, in its data directory.
const DatabaseFile = "daemon.db"

// Options are what a host is built from. Config is required.
type Options struct {
	Config  *daemonconfig.Config
	Version string
	Log     zerolog.Logger
	Clock   clock.Clock // nil: the system's

	// Dialer, Store and Hooks are for tests.
	Dialer daemon.Dialer // nil: a WebSocket to Config.Control
	Hooks  daemon.Hooks
	Store  store.Hooks
	// Files gives the hook of a root, or of a shared outbox by its marker; nil: none has one.
	Files func(root string) beneath.Hook
	// Reached is called at the named points of the work on files.
	Reached func(point string)
	// QuietWith replaces the clock of the two scans before content is staged; nil: Clock.
	QuietWith clock.Clock
}

// Host is one daemon. Close frees what is open and may be called more than once.
type Host struct {
	o      Options
	log    zerolog.Logger
	db     *daemonstore.DB
	roots  *roots
	others []*beneath.Root
	engine *daemon.Daemon
	// content is the backend, with what it refuses told once.
	content *told
	status  *statusServer
	fatal   chan error
}

// New opens the database and the roots and builds the daemon; nothing runs yet and control is not called.
func New(ctx context.Context, o Options) (*Host, error) {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	h := &Host{o: o, log: o.Log, fatal: make(chan error, 1)}
	if err := h.open(ctx); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

func (h *Host) open(ctx context.Context) error {
	c := h.o.Config
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	id, err := uuid.Parse(c.ClientID)
	if err != nil {
		return fmt.Errorf("client_id: %w", err)
	}
	h.db, err = daemonstore.Open(ctx, daemonstore.Options{Path: filepath.Join(c.DataDir, DatabaseFile), ClientID: id, Clock: h.o.Clock,
		Log: h.log.With().Str("part", "store").Logger(), Hooks: h.o.Store, OnFatal: h.fail})
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	if h.roots, err = openRoots(c, h.o.Files); err != nil {
		return err
	}
	content, err := h.backend()
	if err != nil {
		return err
	}
	h.content = &told{Backend: content, tell: h.refused}
	about, err := content.Describe(ctx)
	if err != nil {
		return fmt.Errorf("backend: %w", err)
	}
	capabilities, err := h.capabilities(ctx, about.Capabilities)
	if err != nil {
		return err
	}
	worker, err := h.worker(content)
	if err != nil {
		return err
	}
	dialer := h.o.Dialer
	if dialer == nil {
		if dialer, err = archiveclient.New(archiveclient.Options{URL: c.Control, AllowPlain: c.AllowPlain, TokenFile: c.TokenFile,
			CAFile: c.TLS.CAFile, PinSHA256: c.TLS.CertificateSHA256}); err != nil {
			return err
		}
	}
	list, shares := h.roots.engineRoots()
	h.engine, err = daemon.New(ctx, daemon.Options{Name: c.Name, Software: "signalbox/" + h.o.Version, Role: roles[c.Role], Capabilities: capabilities,
		Store: h.db, Dialer: dialer, Steps: worker, Inventory: h.content, Roots: list,
		Routes:  map[pb.RouteKind]daemon.RouteKind{pb.RouteKind_ROUTE_KIND_SHARED_DIRECTORY: daemon.NewSharedDirectory(list, shares)},
		Workers: daemon.Workers{TransfersPerRoot: c.Work.TransfersPerRoot, VerifiesPerRoot: c.Work.VerifiesPerRoot}, Clock: h.o.Clock,
		Notify: h.notice, Hooks: h.o.Hooks})
	return err
}

var roles = map[string]pb.ClientRole{
	"source":            pb.ClientRole_CLIENT_ROLE_SOURCE,
	"target":            pb.ClientRole_CLIENT_ROLE_TARGET,
	"source_and_target": pb.ClientRole_CLIENT_ROLE_SOURCE_AND_TARGET,
}

// backend makes the directory backend.
func (h *Host) backend() (*directory.Backend, error) {
	c := h.o.Config
	quiet := h.o.QuietWith
	if quiet == nil {
		quiet = h.o.Clock
	}
	mode, err := bits("backend.library_mode", c.Backend.LibraryMode)
	if err != nil {
		return nil, err
	}
	depth := c.Backend.SearchDepth
	if depth == 0 {
		depth = -1 // only the root itself
	}
	o := directory.Options{Cache: h.db.HashCache(), Clock: quiet, QuietTime: c.Backend.QuietTime.Std(), LibraryMode: uint32(mode),
		SearchDepth: depth, CheckOpenFiles: c.Backend.CheckOpenFiles, Verify: verify.Options{BytesPerSecond: c.Work.ReadRate.Bytes()}}
	for _, r := range h.roots.list {
		if r.Kind == daemonconfig.Content {
			if err := sweep(r.dir); err != nil {
				return nil, fmt.Errorf("root %s (%s): %w", r.ID, r.Path, err)
			}
			o.Roots = append(o.Roots, directory.Root{ID: r.ID, Dir: r.dir})
		}
	}
	for _, d := range []struct {
		key, path string
		to        **beneath.Root
	}{{"backend.metainfo_dir", c.Backend.MetainfoDir, &o.Metainfo}, {"backend.library_dir", c.Backend.LibraryDir, &o.Library}} {
		if d.path == "" {
			continue
		}
		dir, err := beneath.Open(d.path, beneath.Options{})
		if err != nil {
			return nil, fmt.Errorf("%s (%s): %w", d.key, d.path, err)
		}
		h.others = append(h.others, dir)
		*d.to = dir
	}
	return directory.New(o)
}

// worker makes what does the steps.
func (h *Host) worker(content *directory.Backend) (*work.Worker, error) {
	c := h.o.Config
	file, err := bits("publish.file_mode", c.Publish.FileMode)
	if err != nil {
		return nil, err
	}
	dir, err := bits("publish.directory_mode", c.Publish.DirectoryMode)
	if err != nil {
		return nil, err
	}
	group, err := groupID(c.Publish.Group)
	if err != nil {
		return nil, fmt.Errorf("publish.group: %w", err)
	}
	rate := c.Work.WriteRate.Bytes()
	if rate == 0 {
		rate = c.Work.ReadRate.Bytes()
	}
	return work.New(work.Options{Roots: h.roots, Backend: content, Clock: h.o.Clock, Cache: h.db.HashCache(),
		Read: copyfile.NewBucket(h.o.Clock, c.Work.ReadRate.Bytes()), ReadRate: c.Work.ReadRate.Bytes(), Write: copyfile.NewBucket(h.o.Clock, rate),
		FileMode: file, DirMode: dir, Group: group, StartsWhole: c.Backend.LibraryDir != "", Reached: h.o.Reached}), nil
}

// bits reads octal permission bits.
func bits(key, text string) (fs.FileMode, error) {
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", key, err)
	}
	return fs.FileMode(n), nil
}

// groupID finds a group by name or number; -1 for none.
func groupID(group string) (int, error) {
	if group == "" {
		return -1, nil
	}
	if n, err := strconv.Atoi(group); err == nil && n >= 0 {
		return n, nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(g.Gid)
}

// capabilities adds what the roots can do, as measured, to what the backend brings. Nothing is announced that is not there
// (product rule P7).
func (h *Host) capabilities(ctx context.Context, list []string) ([]string, error) {
	sparse := true
	var hard, clone bool
	for _, r := range h.roots.list {
		m, err := r.dir.Probe(ctx)
		if err != nil {
			return nil, fmt.Errorf("root %s (%s): %w", r.ID, r.Path, err)
		}
		sparse = sparse && m.Profile.GetSupportsSparse()
		hard = hard || m.Profile.GetSupportsHardlink()
		clone = clone || m.Profile.GetSupportsReflink()
	}
	for name, there := range map[string]bool{archive.CapSparse: sparse, archive.CapHardlink: hard, archive.CapReflink: clone,
		archive.CapEviction: h.o.Config.Role != "target"} {
		if there {
			list = append(list, name)
		}
	}
	return list, nil
}

// fail ends the run: the database can no longer be trusted.
func (h *Host) fail(err error) {
	select {
	case h.fatal <- err:
	default:
	}
}

// Run serves until ctx ends; ready is called once the daemon works. An error is what ended it early.
func (h *Host) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var err error
	if h.status, err = serveStatus(ctx, filepath.Join(h.o.Config.DataDir, SocketFile), h.engine, h.o.Config.Control, h.content.Refused,
		h.roots); err != nil {
		return err
	}
	defer h.status.close()
	go func() {
		select {
		case err := <-h.fatal:
			cancel(err)
		case <-ctx.Done():
		}
	}()
	if ready != nil {
		ready()
	}
	err = h.engine.Run(ctx)
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// Close frees everything. It must not be called while Run runs.
func (h *Host) Close() error {
	var err error
	if h.db != nil {
		err = h.db.Close()
		h.db = nil
	}
	if h.roots != nil {
		h.roots.close()
		h.roots = nil
	}
	for _, r := range h.others {
		_ = r.Close()
	}
	h.others = nil
	return err
}

// refused logs a torrent file that the backend does not use.
func (h *Host) refused(err error) { h.log.Warn().Err(err).Msg("torrent file is not used") }

// notice logs what the engine tells.
func (h *Host) notice(n daemon.Notice) {
	level := zerolog.InfoLevel
	switch n.What {
	case daemon.WhatDisconnected, daemon.WhatCommand, daemon.WhatCleanup, daemon.WhatInventory, daemon.WhatProtocol, daemon.WhatStepFailed:
		level = zerolog.WarnLevel
	case daemon.WhatRefused, daemon.WhatConflict, daemon.WhatHeld, daemon.WhatStore:
		level = zerolog.ErrorLevel
	}
	e := h.log.WithLevel(level)
	if n.Job != uuid.Nil {
		e = e.Stringer("job", n.Job)
	}
	if n.Step != 0 {
		e = e.Str("step", n.Step.String())
	}
	if n.Command != uuid.Nil {
		e = e.Stringer("command", n.Command)
	}
	if n.Code != 0 {
		e = e.Str("code", n.Code.String())
	}
	if n.Generation != 0 {
		e = e.Uint64("generation", n.Generation)
	}
	e.Err(n.Err).Msg(n.What)
}
