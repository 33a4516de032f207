package appliance

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"

	"github.com/google/uuid"

	"signalbox/appliance/archive"
	pb "signalbox/appliance/archive/archivepb"
	"signalbox/appliance/archive/command"
	"signalbox/appliance/archive/inventory"
	"signalbox/appliance/archive/job"
	"signalbox/appliance/archive/preflight"
	"signalbox/appliance/archive/registry"
	"signalbox/appliance/archive/route"
	"signalbox/appliance/secret"
	"signalbox/store"
	"signalbox/transport/api"
	"signalbox/transport/archiveconn"
)

// DaemonTokenFile holds the token of daemons in the data directory, when none is configured.
const DaemonTokenFile = "daemon.token"

// archivePlane are the parts of Archive Control; all nil when it is turned off.
type archivePlane struct {
	registry  *registry.Registry
	commands  *command.Queue
	inventory *inventory.Inventory
	routes    *route.Routes
	preflight *preflight.Preflight
	jobs      *job.Engine
	conn      *archiveconn.Server
	metrics   *archiveMetrics
}

// buildArchive makes the services of the archive plane and takes up what the last run left.
func (a *Appliance) buildArchive(ctx context.Context) error {
	c := a.cfg.Archive
	if !c.Enabled {
		return nil
	}
	epoch, err := uuid.Parse(a.db.Epoch())
	if err != nil {
		return fmt.Errorf("epoch of the database: %w", err)
	}
	tokens, err := a.daemonTokens()
	if err != nil {
		return err
	}
	p := &a.archive
	log := a.log.With().Str("part", "archive").Logger()
	if p.metrics, err = newArchiveMetrics(a.registry, a, log); err != nil {
		return err
	}
	p.registry = registry.New(store.Bind[registry.Tx, registry.ReadTx](a.db), registry.Options{Tokens: tokens, ServerID: uuid.New(),
		ServerEpoch: epoch, Clock: a.clock, Hub: a.hub, Observer: p.metrics.conn,
		Limits: &pb.Limits{MaxEnvelopeBytes: uint32(c.MaxEnvelopeSize.Bytes()), MaxChunkEntries: uint32(c.MaxChunkEntries),
			MaxOutboundEnvelopes: uint32(c.MaxOutboundEnvelopes), MaxOutboundBytes: uint32(c.MaxOutboundSize.Bytes()),
			MaxActiveCursors: uint32(c.MaxActiveJobs)},
		Liveness: registry.Liveness{HeartbeatInterval: c.HeartbeatInterval.Std(), OfflineThreshold: c.OfflineThreshold.Std(),
			StableReset: c.StableReset.Std(), ReconnectInitial: c.ReconnectInitial.Std(), ReconnectCap: c.ReconnectCap.Std(),
			CommandRetry: c.CommandRetry.Std(), CommandAttempts: uint32(c.CommandAttempts), RegistrationDeadline: c.RegistrationDeadline.Std()}})
	p.commands = command.NewQueue(store.Bind[command.Tx, command.ReadTx](a.db), p.registry,
		command.Options{Clock: a.clock, Hub: a.hub, Observer: p.metrics.conn})
	p.inventory = inventory.New(store.Bind[inventory.Tx, inventory.ReadTx](a.db), inventory.Options{
		Commands: inventory.Queued{Queue: p.commands}, Clock: a.clock, Hub: a.hub, Observer: p.metrics,
		Upkeep: store.BindUpkeep[inventory.Tx, inventory.ReadTx](a.db),
		Fence: func(tx inventory.Tx, link archive.Link) error {
			return p.registry.Fence(any(tx).(registry.FenceTx), link)
		},
		OnRoutes: func(tx inventory.Tx, link archive.Link, requestNo int64, list []*pb.RouteSnapshot) error {
			return p.routes.OnRoutes(any(tx).(route.Tx), link, requestNo, list)
		}})
	p.routes = route.NewRoutes(store.Bind[route.Tx, route.ReadTx](a.db), route.Options{Commands: route.Queued{Queue: p.commands}, Hub: a.hub,
		Fence: func(tx route.Tx, link archive.Link) error { return p.registry.Fence(tx, link) },
		Ask: func(tx route.Tx, daemon archive.DaemonRef) (int64, error) {
			r, err := p.inventory.Ask(any(tx).(inventory.Tx), daemon, &pb.InventoryQuery{Scope: pb.InventoryScope_INVENTORY_SCOPE_ROUTES},
				pb.InventoryPurpose_INVENTORY_PURPOSE_RECONCILIATION)
			return r.No, err
		},
		OnChange: func(tx route.Tx, routeNo int64, _ bool) error { return p.jobs.OnRoute(tx, routeNo) },
		Alert: func(tx route.Tx, daemonNo int64, detail string) error {
			if detail == "" {
				return p.registry.ClearAlert(any(tx).(registry.AlertTx), archive.AlertRouteQuarantine, daemonNo, 0)
			}
			return p.registry.RaiseAlert(any(tx).(registry.AlertTx), archive.AlertRouteQuarantine, daemonNo, 0, detail)
		}})
	p.preflight = preflight.New(store.Bind[preflight.Tx, preflight.ReadTx](a.db), preflight.Options{Inventory: p.inventory, Routes: p.routes,
		Hub: a.hub, Upkeep: store.BindUpkeep[preflight.Tx, preflight.ReadTx](a.db),
		Trouble: func(err error) { p.metrics.Trouble("preview", err) }})
	p.jobs = job.New(job.Parts{Store: store.Bind[job.Tx, job.ReadTx](a.db), Commands: p.commands, Daemons: p.registry, Audit: a.auditLog,
		Hub: a.hub, Preflight: p.preflight, Storage: p.preflight, Routes: jobRoutes{p.routes}},
		job.Options{Clock: a.clock, Observer: p.metrics, CommandRetry: c.CommandRetry.Std()})
	p.handleCommands()
	p.registry.SetHooks(p.hooks())
	for _, start := range []func(context.Context) error{p.registry.Start, p.inventory.Start, p.preflight.Start} {
		if err := start(ctx); err != nil {
			return fmt.Errorf("archive plane: %w", err)
		}
	}
	return nil
}

// daemonTokens takes the token from the configuration, or from its file, which is made at the first start.
func (a *Appliance) daemonTokens() ([]registry.Digest, error) {
	c := a.cfg.Archive
	token := c.Token.Reveal()
	if c.Token.IsZero() {
		text, minted, err := ensureSecret(filepath.Join(a.cfg.DataDir, DaemonTokenFile), secret.NewToken)
		if err != nil {
			return nil, fmt.Errorf("token of daemons: %w", err)
		}
		if minted {
			a.log.Info().Str("file", filepath.Join(a.cfg.DataDir, DaemonTokenFile)).Msg("token of archive daemons made; each daemon needs a copy")
		}
		token = text.Reveal()
	}
	tokens := []registry.Digest{registry.DigestOf([]byte(token))}
	for _, t := range c.PreviousTokens {
		tokens = append(tokens, registry.DigestOf([]byte(t.Reveal())))
	}
	return tokens, nil
}

// handleCommands tells the queue whose commands are whose.
func (p *archivePlane) handleCommands() {
	for _, kind := range job.Kinds() {
		p.commands.Handle(kind, p.jobs)
	}
	p.commands.Handle(archive.InventoryQuery, p.inventory)
	for _, kind := range []command.Kind{archive.CreateRoute, archive.UpdateRoute, archive.RemoveRoute} {
		p.commands.Handle(kind, p.routes)
	}
}

// hooks join the parts in the registry's transactions.
func (p *archivePlane) hooks() registry.Hooks {
	return registry.Hooks{
		OnRegister: func(tx registry.Tx, link archive.Link, cursors []*pb.JobCursor, found registry.Rollback) ([]*pb.JobCursor, error) {
			if err := p.inventory.OnRegister(any(tx).(inventory.Tx), link); err != nil {
				return nil, err
			}
			came := route.Same
			switch {
			case found.NewEpoch:
				came = route.NewDatabase
			case found.Daemon || found.Control:
				came = route.OldCopy
			}
			if err := p.routes.OnRegister(any(tx).(route.Tx), link, came); err != nil {
				return nil, err
			}
			if found.Daemon || found.NewEpoch {
				if err := p.inventory.Reread(any(tx).(inventory.Tx), link.Daemon); err != nil {
					return nil, err
				}
			}
			return p.jobs.OnRegister(tx, link, cursors, found)
		},
		OnOffline: []func(registry.Tx, int64) error{
			func(tx registry.Tx, no int64) error { return p.inventory.OnOffline(any(tx).(inventory.Tx), no) },
			func(tx registry.Tx, no int64) error { return p.routes.OnOffline(any(tx).(route.Tx), no) },
			p.jobs.OnOffline,
		},
		OnForget: []func(registry.Tx, int64) error{
			func(tx registry.Tx, no int64) error { return p.inventory.OnForget(any(tx).(inventory.Tx), no) },
			func(tx registry.Tx, no int64) error { return p.routes.OnForget(any(tx).(route.Tx), no) },
		},
	}
}

// jobRoutes are the routes as the job engine asks about them.
type jobRoutes struct{ routes *route.Routes }

// Ready implements job.Routes.
func (r jobRoutes) Ready(tx job.ReadTx, routeNo int64) (bool, string, error) {
	return r.routes.Ready(any(tx).(route.ReadTx), routeNo)
}

// Reconciled implements job.Routes.
func (r jobRoutes) Reconciled(tx job.ReadTx, routeNo, _ int64) (bool, error) {
	return r.routes.Reconciled(any(tx).(route.ReadTx), routeNo)
}

// buildArchiveTransport makes what daemons connect to.
func (a *Appliance) buildArchiveTransport(context.Context) error {
	p := &a.archive
	if p.registry == nil {
		return nil
	}
	log := a.log.With().Str("part", "archive").Logger()
	p.conn = archiveconn.New(a.sessions, archiveconn.Services{Registry: p.registry, Commands: p.commands, Jobs: p.jobs,
		Inventory: p.inventory, Routes: p.routes, Hub: a.hub, Clock: a.clock, Log: log, Metrics: p.metrics.conn})
	return nil
}

// archiveRoutes are the routes of daemons on the main listener.
func (a *Appliance) archiveRoutes(mux *http.ServeMux) {
	if a.archive.conn != nil {
		a.archive.conn.Routes(mux)
	}
}

// archiveServices are the services behind the operators' routes.
func (a *Appliance) archiveServices() api.Archive {
	p := &a.archive
	if p.registry == nil {
		return api.Archive{}
	}
	return api.Archive{Daemons: p.registry, Commands: p.commands, Inventory: p.inventory, Routes: p.routes, Jobs: p.jobs, Previews: p.preflight}
}

// startArchive starts what goes on in the background.
func (a *Appliance) startArchive() {
	p := &a.archive
	if p.registry == nil {
		return
	}
	for _, w := range []struct {
		name string
		run  func(context.Context) error
	}{{"daemon liveness", p.registry.Run}, {"daemon commands", p.commands.Run}, {"daemon inventory", p.inventory.Run},
		{"preflights", p.preflight.Run}, {"archive jobs", p.jobs.Run}} {
		a.group.start(w.name, w.run)
	}
}

// archiveWorkers are the periodic work of the archive plane.
func (a *Appliance) archiveWorkers() []worker {
	p := &a.archive
	if p.registry == nil {
		return nil
	}
	return []worker{
		{"inventory retention", retentionEvery, p.inventory.Prune},
		{"preview retention", retentionEvery, p.preflight.Prune},
		{"daemon command retention", retentionEvery, func(ctx context.Context) (int, error) {
			n, err := p.commands.Prune(ctx, a.daysAgo(a.cfg.Agent.EventRetentionDays), commandPruneRows)
			return int(n), err
		}},
	}
}

// commandPruneRows is what one transaction of the retention of daemon commands removes at most.
const commandPruneRows = 500
