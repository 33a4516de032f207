package appliance

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"signalbox/appliance/fault"
	"signalbox/transport"
	"signalbox/transport/api"
)

// newAPI makes the operators' surface; bulk is the limit of its bucket.
func (a *Appliance) newAPI(bulk int) *api.API {
	g, r := a.cfg.Agent, &a.rooms
	return api.New(api.Services{Directory: a.directory, Commands: a.commands, BulkRetries: a.bulkRetries, Records: a.records,
		Failures: a.failures.service, Fires: a.fires.service, Schedules: a.schedules.service,
		Audit: api.BindAudit(a.auditLog, a.auditDB), Presence: presence{a}, System: system{a}, Upkeep: a.db, Hub: a.hub,
		Notifications: a.notify.service,
		Rooms: api.RoomServices{Identity: r.identity, Directory: r.directory, Timeline: r.timeline, Feed: r.feed,
			Connections: r.connections}, Archive: a.archiveServices()},
		api.Options{Allow: transport.NewAllowlist("api", a.allowAPI, a.metrics.transport), Refusals: a.refusals,
			Bulk:         transport.NewRateBucket("bulk", bulk, rateWindow, a.clock),
			ChannelTests: a.channelTests(),
			DefaultPage:  g.DefaultPageSize, MaxPage: g.MaxPageSize, Epoch: a.db.Epoch(), KnownAgentVersion: wireVersion,
			Clock: a.clock, Log: a.log.With().Str("part", "api").Logger()})
}

// system tells how the process is.
type system struct{ a *Appliance }

// Status looks at files, tables in memory and counts of rows; it fails only when the database cannot be read.
func (s system) Status(ctx context.Context) (api.Status, error) {
	a := s.a
	st := api.Status{Version: a.opts.Version, StartedAt: a.start, StorePath: a.db.Path(),
		WebSockets: a.websocket.Count(), LongPolls: a.longpoll.Count(), Degraded: []string{}}
	var err error
	if st.StoreBytes, err = fileSize(a.db.Path()); err != nil {
		return api.Status{}, fault.Wrap(fault.Internal, err, "the database file cannot be read")
	}
	if st.WALBytes, err = fileSize(a.db.Path() + "-wal"); err != nil {
		return api.Status{}, fault.Wrap(fault.Internal, err, "the write-ahead log cannot be read")
	}
	if st.RoomAgents, st.Rooms, err = a.roomCounts(ctx); err != nil {
		return api.Status{}, err
	}
	st.MediaBytes = a.rooms.media.Used()
	st.SchemaVersion = a.db.SchemaVersion()
	if reason := a.readiness.Reason(ctx); reason != "" {
		st.Degraded = append(st.Degraded, reason)
	}
	return st, nil
}

func fileSize(path string) (int64, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // the log is there only while it is needed
	}
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// pruneRecords applies retention in slices, giving way to other writes between them.
func (a *Appliance) pruneRecords(ctx context.Context) (int, error) {
	total := 0
	for _, prune := range []func(context.Context) (int, bool, error){
		a.upkeep.records.PruneEvents, a.upkeep.records.PruneTasks, a.upkeep.records.PruneAgentStatus, a.failures.upkeep.Prune} {
		for more := true; more; {
			var n int
			var err error
			begun := a.clock.Now()
			if n, more, err = prune(ctx); err != nil {
				return total, err
			}
			total += n
			if more {
				if err := a.breathe(ctx, a.clock.Now().Sub(begun)); err != nil {
					return total, nil
				}
			}
		}
	}
	return total, nil
}

// pruneShare and minPruneGap make the pause between two slices of retention: as long as it takes for the slice to have
// been a tenth of the time.
const (
	pruneShare  = 9
	minPruneGap = 10 * time.Millisecond
)

func (a *Appliance) breathe(ctx context.Context, slice time.Duration) error {
	t := a.clock.NewTimer(max(pruneShare*slice, minPruneGap))
	defer t.Stop()
	select {
	case <-t.C():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
