package api

import (
	"context"

	"github.com/google/uuid"

	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/inventory"
	"signalbox/appliance/archive/job"
	"signalbox/appliance/archive/preflight"
	"signalbox/appliance/archive/registry"
	ways "signalbox/appliance/archive/route"
	"signalbox/appliance/fault"
)

// ArchiveDaemons knows the daemons; *registry.Registry is one.
type ArchiveDaemons interface {
	Daemons(ctx context.Context) ([]registry.Daemon, error)
	Daemon(ctx context.Context, id uuid.UUID) (registry.Daemon, error)
	Forget(ctx context.Context, id uuid.UUID) error
	Alerts(ctx context.Context, f registry.AlertFilter) ([]registry.Alert, error)
	Dismiss(ctx context.Context, alertNo int64) error
}

// ArchiveCommands knows what daemons were and are to be told; *command.Queue is one.
type ArchiveCommands interface {
	Find(ctx context.Context, low, high uuid.UUID) ([]uuid.UUID, error)
	Explain(ctx context.Context, id uuid.UUID) (command.Explanation, error)
}

// ArchiveInventory asks daemons and keeps their answers; *inventory.Inventory is one.
type ArchiveInventory interface {
	Query(ctx context.Context, daemon uuid.UUID, q *pb.InventoryQuery, purpose pb.InventoryPurpose) (
		id uuid.UUID, wait func(context.Context) (inventory.Result, error), err error)
	Resources(ctx context.Context, f inventory.Filter, token string, limit int) (inventory.Page, error)
	Files(ctx context.Context, daemon uuid.UUID, resourceID, revision string, from int64, limit int) (inventory.FilePage, error)
	Storage(ctx context.Context, daemon uuid.UUID) ([]inventory.Storage, error)
	Views(ctx context.Context, daemon uuid.UUID) ([]inventory.View, error)
}

// ArchiveRoutes keeps routes; *ways.Routes is one.
type ArchiveRoutes interface {
	Create(ctx context.Context, n ways.New) (uuid.UUID, error)
	List(ctx context.Context, removed bool) ([]ways.View, error)
	Show(ctx context.Context, name string) (ways.View, []ways.Update, error)
	Test(ctx context.Context, id uuid.UUID) error
	Remove(ctx context.Context, id uuid.UUID, provisioned bool) error
}

// ArchiveJobs moves jobs; *job.Engine is one. It wakes archive.JobKey on the hub of the Services.
type ArchiveJobs interface {
	Start(ctx context.Context, previewID uuid.UUID, o job.StartOptions, by job.By) (uuid.UUID, error)
	Cancel(ctx context.Context, id uuid.UUID, reason string, by job.By) error
	Retry(ctx context.Context, id uuid.UUID, attempts int, by job.By) error
	Resolve(ctx context.Context, id uuid.UUID, d job.Decision, reason string, by job.By) error

	List(ctx context.Context, f job.Filter, cursor string, limit int) (job.Page, error)
	Show(ctx context.Context, id uuid.UUID) (job.Detail, error)
	Timeline(ctx context.Context, id uuid.UUID, cursor string, limit int) (entries []job.Entry, next string, err error)
	Watch(ctx context.Context, id uuid.UUID, cursor string) (*job.Watch, error)
}

// ArchivePreviews makes and keeps previews of jobs; *preflight.Preflight is one.
type ArchivePreviews interface {
	PreviewFiles(ctx context.Context, req job.Request, patterns []string, by string) (uuid.UUID, error)
	Wait(ctx context.Context, id uuid.UUID) (preflight.Preview, error)
	Show(ctx context.Context, id uuid.UUID) (preflight.Preview, error)
	Files(ctx context.Context, id uuid.UUID, after int64, limit int) ([]preflight.PlannedFile, error)
}

var (
	_ ArchiveDaemons   = (*registry.Registry)(nil)
	_ ArchiveCommands  = (*command.Queue)(nil)
	_ ArchiveInventory = (*inventory.Inventory)(nil)
	_ ArchiveRoutes    = (*ways.Routes)(nil)
	_ ArchiveJobs      = (*job.Engine)(nil)
	_ ArchivePreviews  = (*preflight.Preflight)(nil)
)

// Archive are the services of the archive plane; all nil where the plane is turned off.
type Archive struct {
	Daemons   ArchiveDaemons
	Commands  ArchiveCommands
	Inventory ArchiveInventory
	Routes    ArchiveRoutes
	Jobs      ArchiveJobs
	Previews  ArchivePreviews
}

// archive refuses routes of the archive plane where it is turned off.
func (a *API) archive() (*Archive, error) {
	if a.Archive.Daemons == nil {
		return nil, fault.New(fault.NotFound, "the archive plane is turned off (archive.enabled)")
	}
	return &a.Archive, nil
}

// by is who decides, for the audit log.
func by(c *call) job.By {
	return job.By{Principal: c.who.ID, SourceIP: c.who.SourceIP, UserAgent: c.who.UserAgent}
}
