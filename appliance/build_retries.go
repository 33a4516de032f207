package appliance

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox/appliance/agent/bulkretry"
	"signalbox/store"
)

// buildRetries makes the service of bulk retries and removes what a run that was killed had begun to write of one. It
// comes before anything is served.
func (a *Appliance) buildRetries(ctx context.Context) error {
	g := a.cfg.Agent
	a.bulkRetries = bulkretry.New(store.Bind[bulkretry.Tx, bulkretry.ReadTx](a.db), a.commands, a.hub, bulkretry.Options{
		MaxInFlight: g.BulkRetryMaxInFlight, ParentTimeout: g.BulkRetryTimeout.Std(), Scan: g.BulkRetryScan.Std(),
		ScanBatch: g.BulkRetryScanBatch, ConfirmAbove: g.BulkRetryConfirmAbove, Clock: a.clock, Trouble: a.metrics.trouble})
	n, err := a.bulkRetries.Recover(ctx)
	if err != nil {
		return fmt.Errorf("recover bulk retries: %w", err)
	}
	if n > 0 {
		a.log.Info().Int("bulk_retries", n).Msg("bulk retries that the last run had not finished storing are removed")
	}
	for _, c := range []prometheus.Collector{
		scraped("signalbox_bulk_retries_open", "Bulk retries that have not ended.", func(ctx context.Context) (float64, error) {
			n, err := a.bulkRetries.Counts(ctx)
			return float64(n.BulkRetries), err
		}),
		scraped("signalbox_bulk_retry_tasks_open", "Tasks of open bulk retries that wait or are under way.", func(ctx context.Context) (float64, error) {
			n, err := a.bulkRetries.Counts(ctx)
			return float64(n.Tasks), err
		}),
	} {
		if err := a.registry.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// SweepStarted asks once about tasks that have been running for longer than agent.reconcile_after, and returns how many.
func (a *Appliance) SweepStarted(ctx context.Context) (int, error) {
	return a.commands.SweepStarted(ctx, a.clock.Now().Add(-a.cfg.Agent.ReconcileAfter.Std()))
}

// retryWorkers is what goes on in the background beside the bulk retries themselves.
func (a *Appliance) retryWorkers() []worker {
	return []worker{{"started tasks", a.cfg.Agent.ReconcileSweep.Std(), a.SweepStarted}}
}
