package store

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the store's figures, named signalbox_store_*. Operation names are constants of the code.
type metrics struct {
	commits     prometheus.Histogram
	batch       prometheus.Histogram
	views       prometheus.Histogram
	ops         *prometheus.CounterVec
	panics      prometheus.Counter
	checkpoints *prometheus.CounterVec
	wal         prometheus.Gauge

	counters map[opResult]prometheus.Counter // of the writer's goroutine
}

type opResult struct{ op, result string }

// newMetrics makes the figures and registers them. queueLen is asked at each scrape.
func newMetrics(r prometheus.Registerer, queueLen func() float64) (*metrics, error) {
	m := &metrics{
		commits: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "signalbox_store_commit_seconds",
			Help:    "Time of one group commit: running its callers, COMMIT with fsync, hooks.",
			Buckets: prometheus.ExponentialBuckets(0.0002, 2.5, 12)}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "signalbox_store_batch_callers",
			Help: "Callers that shared one commit.", Buckets: prometheus.ExponentialBuckets(1, 2, 12)}),
		views: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "signalbox_store_view_seconds",
			Help: "Time a read snapshot was open.", Buckets: prometheus.ExponentialBuckets(0.00005, 4, 9)}),
		ops: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_store_ops_total",
			Help: "Write operations by name and result: ok, refused (by its own rules), failed (with its batch)."},
			[]string{"op", "result"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{Name: "signalbox_store_panics_total",
			Help: "Panics contained in transactions and after-commit functions."}),
		checkpoints: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_store_checkpoints_total",
			Help: "Checkpoints by mode and result: complete, partial (readers or the writer in the way), failed."},
			[]string{"mode", "result"}),
		wal: prometheus.NewGauge(prometheus.GaugeOpts{Name: "signalbox_store_wal_bytes",
			Help: "Size of the write-ahead log when last looked at."}),
		counters: map[opResult]prometheus.Counter{},
	}
	if r == nil {
		return m, nil
	}
	queue := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "signalbox_store_queue_depth",
		Help: "Writes waiting for the writer."}, queueLen)
	var errs []error
	for _, c := range []prometheus.Collector{m.commits, m.batch, m.views, m.ops, m.panics, m.checkpoints, m.wal, queue} {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register store metrics: %w", err)
	}
	return m, nil
}

func (m *metrics) commit(d time.Duration, callers int) {
	m.commits.Observe(d.Seconds())
	m.batch.Observe(float64(callers))
}

// op counts one write. Only the writer's goroutine calls it.
func (m *metrics) op(op, result string) {
	k := opResult{op, result}
	c, ok := m.counters[k]
	if !ok {
		c = m.ops.WithLabelValues(op, result)
		m.counters[k] = c
	}
	c.Inc()
}
