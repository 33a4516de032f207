package appliance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/fire"
	"signalbox/appliance/agent/schedule"
	"signalbox/appliance/notify"
	"signalbox/appliance/secret"
	"signalbox/store"
	"signalbox/transport"
	"signalbox/transport/notifysend"
)

// notifications are the parts that tell people what happened.
type notifications struct {
	service *notify.Service
	sender  *notifysend.Sender
}

// buildNotify makes the notifications. It comes before the agent plane, whose transactions collect
// causes.
func (a *Appliance) buildNotify() error {
	box, err := secret.NewSealer(a.master.Current, a.master.Previous...)
	if err != nil {
		return fmt.Errorf("key of notification channels: %w", err)
	}
	m, err := newNotifyMetrics(a)
	if err != nil {
		return err
	}
	n := &a.notify
	n.sender = notifysend.New(notifysend.Options{Version: a.opts.Version, Clock: a.clock})
	n.service = notify.New(store.Bind[notify.Tx, notify.ReadTx](a.db), store.BindUpkeep[notify.Tx, notify.ReadTx](a.db), n.sender, box,
		a.auditLog, a.hub, notify.Options{Grace: a.cfg.Agent.OfflineAlertGrace.Std(), Clock: a.clock, Observer: m})
	return nil
}

// readNotify reads the rules. It comes last, when nothing has been collected yet.
func (a *Appliance) readNotify(ctx context.Context) error {
	resealed, unreadable, err := a.notify.service.Start(ctx)
	if err != nil {
		return fmt.Errorf("notification rules: %w", err)
	}
	if resealed > 0 {
		a.log.Info().Int("channels", resealed).Msg("notification channels are sealed under the present master secret now")
	}
	if unreadable > 0 {
		a.log.Error().Int("channels", unreadable).Msg("notification channels cannot be opened under the present master secret: " +
			"name the previous one among the previous secrets, or set their settings again")
	}
	return nil
}

// channelTests is the bucket of tests of channels; nil admits all.
func (a *Appliance) channelTests() *transport.RateBucket {
	if g := a.cfg.Agent; g.RateLimits {
		return transport.NewRateBucket("channel-tests", g.ChannelTestRateLimit, rateWindow, a.clock)
	}
	return nil
}

// startNotify starts what sends.
func (a *Appliance) startNotify() {
	n := a.notify.service
	a.group.start("notifications", n.Run)
	a.group.start("offline agents", n.WatchOffline)
	a.group.start("system trouble", func(ctx context.Context) error {
		return n.WatchTrouble(ctx, []notify.Probe{{Name: notify.TroubleDatabase, Check: a.databaseTrouble},
			{Name: notify.TroubleDisk, Check: a.diskTrouble}})
	})
}

func (a *Appliance) notifyWorkers() []worker {
	return []worker{{"notification retention", retentionEvery, func(ctx context.Context) (int, error) {
		return a.notify.service.Prune(ctx, a.daysAgo(a.cfg.Agent.NotificationRetentionDays))
	}}}
}

// databaseFailed ends the appliance after its database was damaged, and tells of it: nothing else will.
func (a *Appliance) databaseFailed(err error) {
	if n := a.notify.service; n != nil {
		n.Direct(notify.TroubleDamage, "The appliance stops. Look at its log and restore a backup when the disk is sound.")
	}
	a.group.fail(err)
}

// close waits for messages that are on their way and are in no outbox.
func (n *notifications) close() {
	if n.service != nil {
		ctx, cancel := context.WithTimeout(context.Background(), notifyGrace)
		defer cancel()
		n.service.WaitDirect(ctx)
		n.sender.Close()
	}
}

func (a *Appliance) databaseTrouble() string {
	if a.db.Trouble() == nil {
		return ""
	}
	return "Writes fail: a full or failing disk, or a lock of another program. What is not stored is not acknowledged. " +
		"The log of the appliance tells more."
}

// diskTrouble looks at the free space of the data directory.
func (a *Appliance) diskTrouble() string {
	least := a.cfg.Agent.DiskFreeWarning.Bytes()
	var fs unix.Statfs_t
	if least == 0 || unix.Statfs(a.cfg.DataDir, &fs) != nil {
		return ""
	}
	free := uint64(fs.Bavail) * uint64(fs.Bsize)
	if free >= uint64(least) {
		return ""
	}
	return fmt.Sprintf("The data directory has %d MiB left, less than the %d MiB of agent.disk_free_warning.", free>>20, least>>20)
}

// projectChanged has the rules of a project follow it.
func (a *Appliance) projectChanged(tx agent.DirectoryTx, p agent.Project) error {
	return a.notify.service.ProjectChanged(any(tx).(notify.Tx), p)
}

// timedOutCommands collects commands that had no result in time.
type timedOutCommands struct{ n *notify.Service }

// CommandEnded implements agent.CommandHook.
func (t timedOutCommands) CommandEnded(tx agent.CommandTx, cmd agent.Command) error {
	return t.n.CommandEnded(any(tx).(notify.CollectTx), cmd)
}

// CommandAnswered implements agent.CommandHook.
func (timedOutCommands) CommandAnswered(agent.CommandTx, agent.Command, bool, *string) error {
	return nil
}

// fireNews collects what people want to know of fires.
type fireNews struct{ n *notify.Service }

func newsOf(f *fire.Fire, reason string) notify.Fire {
	return notify.Fire{ProjectNo: f.ProjectNo, ScheduleID: f.ScheduleID, ScheduleName: f.ScheduleName, FireID: f.FireID,
		ScheduledFor: f.ScheduledFor, Reason: reason}
}

// FireBuffered implements fire.News.
func (x fireNews) FireBuffered(tx agent.CommandTx, f fire.Fire) error {
	return x.n.FireBuffered(any(tx).(notify.CollectTx), newsOf(&f, "No online agent lists the engine "+f.Engine+"."))
}

// FireExpired implements fire.News.
func (x fireNews) FireExpired(tx agent.CommandTx, f fire.Fire) error {
	return x.n.FireExpired(any(tx).(notify.CollectTx), newsOf(&f, "No online agent listed the engine "+f.Engine+" before the buffer time ran out."))
}

// BreakerTripped implements fire.News.
func (x fireNews) BreakerTripped(tx agent.CommandTx, s schedule.Schedule, reason string) error {
	return x.n.BreakerTripped(any(tx).(notify.CollectTx), notify.Fire{ProjectNo: s.ProjectNo, ScheduleID: s.ID, ScheduleName: s.Name,
		Reason: reason})
}

// notifyMetrics observes the notifications.
type notifyMetrics struct {
	log   zerolog.Logger
	sent  *prometheus.CounterVec
	tries *prometheus.CounterVec
}

func newNotifyMetrics(a *Appliance) (*notifyMetrics, error) {
	m := &notifyMetrics{log: a.log.With().Str("part", "notify").Logger(),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "z4j_notifications_sent_total",
			Help: "Notifications that a receiver accepted, by the kind of channel."}, []string{"channel"}),
		tries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_notification_attempts_total",
			Help: "Attempts to send a notification: sent, failed (tried again) or dead (given up)."}, []string{"channel", "outcome"})}
	waiting := scraped("signalbox_notifications_pending", "Notifications that wait to be sent.", func(ctx context.Context) (float64, error) {
		n, err := a.notify.service.Waiting(ctx)
		return float64(n), err
	})
	if err := errors.Join(a.registry.Register(m.sent), a.registry.Register(m.tries), a.registry.Register(waiting)); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return m, nil
}

// NotificationTried implements notify.Observer.
func (m *notifyMetrics) NotificationTried(kind notify.Kind, outcome string) {
	m.tries.WithLabelValues(string(kind), outcome).Inc()
	if outcome == notify.OutcomeSent {
		m.sent.WithLabelValues(string(kind)).Inc()
	}
}

// NotifyTrouble implements notify.Observer.
func (m *notifyMetrics) NotifyTrouble(what string, err error) {
	m.log.Warn().Err(err).Str("what", what).Msg("notifications are in trouble; it will be tried again")
}

// notifyGrace bounds the wait for the last messages at the end.
const notifyGrace = 10 * time.Second
