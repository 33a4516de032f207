package appliance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"signalbox/appliance/config"
)

// Run serves until ctx ends, then goes down in order within the drain timeout and returns nil; or until a part fails,
// and returns why. ready, when not nil, is called once everything is served. Run once.
func (a *Appliance) Run(ctx context.Context, ready func()) error {
	a.startWorkers()
	served := make(chan error, 1)
	go func() { served <- a.server.Serve() }()
	if err := writeAddresses(a.cfg.DataDir, a.Addresses()); err != nil {
		return errors.Join(err, a.shutdown(served))
	}
	a.readiness.Ready()
	if err := a.notifier.Ready(); err != nil {
		a.log.Warn().Err(err).Msg("service manager not told that we are ready")
	}
	if ready != nil {
		ready()
	}
	var failure error
	select {
	case <-ctx.Done():
		a.log.Info().Msg("going down: connections are finished, then everything is closed")
	case <-a.group.failed():
		failure = a.group.err()
	case err := <-served:
		failure = err
		served <- nil
	}
	return errors.Join(failure, a.shutdown(served))
}

// shutdown takes everything down under one deadline: listeners and sessions, then the workers, then the database.
func (a *Appliance) shutdown(served <-chan error) error {
	if err := a.notifier.Stopping(); err != nil {
		a.log.Debug().Err(err).Msg("service manager not told that we stop")
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.cfg.Server.DrainTimeout.Std())
	defer cancel()
	errs := []error{removeAddresses(a.cfg.DataDir)}
	if err := a.server.Shutdown(ctx); err != nil {
		a.log.Warn().Err(err).Msg("drain cut short")
	}
	<-served
	errs = append(errs, a.Close())
	a.log.Info().Dur("up_ms", a.clock.Now().Sub(a.start)).Msg("stopped")
	return errors.Join(errs...)
}

// closeGrace bounds the end of the background work of an appliance whose drain is over.
const closeGrace = 5 * time.Second

// Close frees what the appliance holds. After Run has returned there is nothing left to do.
func (a *Appliance) Close() error {
	a.once.Do(func() { a.closed = a.close() })
	return a.closed
}

func (a *Appliance) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	var errs []error
	if a.server != nil {
		errs = append(errs, a.server.Shutdown(ctx)) // done already after a Run
	}
	if a.websocket != nil {
		a.websocket.Close()
	}
	errs = append(errs, a.rooms.close(ctx), a.group.stop(ctx))
	a.notify.close()
	if a.sessions != nil {
		a.sessions.Close()
	}
	if a.db != nil {
		errs = append(errs, a.db.Close())
	}
	if a.server != nil {
		if err := os.Remove(a.cfg.AdminSocketPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// startWorkers starts what goes on in the background.
func (a *Appliance) startWorkers() {
	g := a.cfg.Agent
	a.group.start("command deadlines", func(ctx context.Context) error {
		return deadlines(ctx, a.commands, a.hub, g.CommandTimeoutSweep.Std(), a.clock, a.log)
	})
	a.group.start("room connections", a.sweepConnections)
	a.group.start("bulk retries", a.bulkRetries.Run)
	a.group.start("fires", func(ctx context.Context) error { a.fires.service.Run(ctx); return nil })
	a.group.start("scheduler", a.schedules.runner.Run)
	a.group.start("deleted schedules", a.schedules.upkeep.RunPurge)
	a.startArchive()
	a.startNotify()
	for _, w := range slices.Concat(a.workers(), a.retryWorkers(), a.fireWorkers(), a.scheduleWorkers(), a.roomWorkers(), a.archiveWorkers(),
		a.notifyWorkers()) {
		a.group.start(w.name, func(ctx context.Context) error { return w.run(ctx, a.clock, a.log) })
	}
	a.group.start("watchdog", func(ctx context.Context) error {
		a.notifier.Watchdog(ctx, a.clock, func() bool { return a.readiness.Reason(ctx) == "" })
		return nil
	})
}

// retentionEvery is how often old rows are looked for. Each turn works in slices between other writes.
const retentionEvery = time.Hour

// auditPruneRows is what one transaction of audit retention removes at most.
const auditPruneRows = 100

func (a *Appliance) workers() []worker {
	g := a.cfg.Agent
	return []worker{
		{"agent liveness", g.HealthSweep.Std(), a.directory.SweepOffline},
		{"worker liveness", time.Minute, a.records.SweepWorkers},
		{"pending commands", g.RegistryReconcileInterval.Std(), a.commands.WakePending},
		{"agent hygiene", g.HygieneSweep.Std(), a.hygiene},
		{"event retention", retentionEvery, a.pruneRecords},
		{"command retention", retentionEvery, func(ctx context.Context) (int, error) {
			return a.upkeep.commands.PruneCommands(ctx, a.daysAgo(g.EventRetentionDays))
		}},
		{"audit retention", retentionEvery, func(ctx context.Context) (int, error) {
			n, err := a.auditLog.Prune(ctx, a.upkeep.audit, a.daysAgo(g.AuditRetentionDays), auditPruneRows)
			return int(n), err
		}},
	}
}

func (a *Appliance) daysAgo(days int) time.Time { return a.clock.Now().AddDate(0, 0, -days) }

func (a *Appliance) hygiene(ctx context.Context) (int, error) {
	revoked, err := a.directory.PruneStale(ctx)
	if err != nil {
		return revoked, err
	}
	workers, err := a.directory.PruneWorkers(ctx)
	return revoked + workers, err
}

// Reload takes over what a running appliance can take over of a new configuration: log level, TLS files, allowlists and
// the metrics token. It returns the changed keys that wait for a restart.
func (a *Appliance) Reload(next *config.Config) (waiting []string, err error) {
	a.reload.Lock()
	defer a.reload.Unlock()
	if err := a.notifier.Reloading(); err != nil {
		a.log.Debug().Err(err).Msg("service manager not told that we reload")
	}
	defer func() {
		if err := a.notifier.Ready(); err != nil {
			a.log.Debug().Err(err).Msg("service manager not told that we are ready")
		}
	}()
	merged := config.Reload(a.effect, next)
	if err := merged.Validate(); err != nil {
		return nil, fmt.Errorf("reload: %w", err)
	}
	if a.certificates != nil {
		if err := a.certificates.Use(merged.Server.TLSCertFile, merged.Server.TLSKeyFile); err != nil {
			return nil, fmt.Errorf("reload: %w", err)
		}
	}
	a.allowAgent.Set(merged.Server.AgentIPAllowlist)
	a.allowAPI.Set(merged.Server.APIIPAllowlist)
	a.metricsHandler.SetToken(merged.Metrics.AuthToken.Reveal())
	if a.opts.LogLevel != nil {
		a.opts.LogLevel.Set(merged.Log.Level)
	}
	waiting = config.Diff(a.effect, next).Restart
	a.effect = merged
	return waiting, nil
}
