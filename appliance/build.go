package appliance

import (
	"context"
	"net/http"
	"net/http/pprof"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/agent"
	"signalbox/appliance/audit"
	"signalbox/appliance/secret"
	"signalbox/store"
	"signalbox/transport"
	"signalbox/transport/agentconn"
	"signalbox/transport/roomhttp"
	"signalbox/transport/session"
)

// presence joins the sessions of both transports: WebSocket first, for it is what takes a command soonest.
type presence struct{ a *Appliance }

// Sessions lists the live sessions of an agent.
func (p presence) Sessions(agentID uuid.UUID) []agent.SessionInfo {
	return append(p.a.websocket.Sessions(agentID), p.a.longpoll.Sessions(agentID)...)
}

// buildDomain makes the services of the agent plane.
func (a *Appliance) buildDomain(context.Context) (err error) {
	g := a.cfg.Agent
	a.metrics, err = newMetrics(a.registry, a)
	if err != nil {
		return err
	}
	a.auditLog = audit.New(a.master.AuditKeys())
	a.auditDB = store.Bind[audit.PruneTx, audit.ReadTx](a.db)
	if err := a.buildNotify(); err != nil {
		return err
	}
	a.directory = agent.NewDirectory(store.Bind[agent.DirectoryTx, agent.DirectoryReadTx](a.db), a.master, a.auditLog, a.hub,
		agent.DirectoryOptions{OfflineTimeout: g.OfflineTimeout.Std(), StalePruneDays: g.StalePruneDays,
			Trouble: a.metrics.trouble, ProjectChanged: a.projectChanged})
	a.commands = agent.NewCommands(store.Bind[agent.CommandTx, agent.CommandReadTx](a.db), presence{a}, a.auditLog, a.hub,
		agent.CommandOptions{Timeout: g.CommandTimeout.Std(), RedispatchWindow: g.RedispatchWindow.Std(),
			RedispatchMinInterval: g.RedispatchMinInterval.Std(), Clock: a.clock, PurgeToken: a.purgeToken, Observer: a.metrics})
	a.commands.AddHook(timedOutCommands{a.notify.service})
	a.router, err = agent.NewRouter(store.Bind[agent.RouterTx, agent.RouterReadTx](a.db), a.commands, a.hub,
		agent.RouterOptions{ExtraPatterns: g.RedactionExtraKeyPatterns, Clock: a.clock, Observer: a.metrics, OnFailure: a.onFailure})
	if err != nil {
		return err
	}
	records := agent.RecordsOptions{RetentionDays: g.EventRetentionDays, Clock: a.clock}
	if a.records, err = agent.NewRecords(store.Bind[agent.RecordsTx, agent.RecordsReadTx](a.db), records); err != nil {
		return err
	}
	a.upkeep.audit = store.BindUpkeep[audit.PruneTx, audit.ReadTx](a.db)
	a.upkeep.commands = agent.NewCommands(store.BindUpkeep[agent.CommandTx, agent.CommandReadTx](a.db), presence{a}, a.auditLog,
		a.hub, agent.CommandOptions{Clock: a.clock})
	a.upkeep.records, err = agent.NewRecords(store.BindUpkeep[agent.RecordsTx, agent.RecordsReadTx](a.db), records)
	return err
}

func (a *Appliance) projectSecret(project uuid.UUID) secret.Bytes {
	return secret.ProjectSecret(a.master.Current.Reveal(), project)
}

func (a *Appliance) purgeToken(project uuid.UUID, queue string, depth int64) string {
	return secret.PurgeToken(a.projectSecret(project), queue, depth)
}

// Windows of the rate buckets (agent protocol I.1).
const rateWindow = time.Minute

// buildTransport makes both agent transports and the operators' API on top of the services.
func (a *Appliance) buildTransport(context.Context) (err error) {
	g, srv := a.cfg.Agent, a.cfg.Server
	if a.sessions, err = session.NewGroup(a.clock, a.log.With().Str("part", "session").Logger(), a.registry); err != nil {
		return err
	}
	a.refusals = transport.NewRefusalWindow(a.clock, transport.RefusalRowWindow)
	a.allowAgent, a.allowAPI = transport.NewNetworks(srv.AgentIPAllowlist), transport.NewNetworks(srv.APIIPAllowlist)
	a.notifier = transport.NewNotifier(a.opts.Getenv, os.Getpid())
	a.readiness = transport.NewReadiness(func(ctx context.Context) error {
		if err := a.db.Trouble(); err != nil { // it can be read and not written: a full disk
			return err
		}
		return a.db.View(ctx, func(*store.ReadTx) error { return nil })
	})
	a.metricsHandler = transport.NewMetricsHandler(a.registry, a.cfg.Metrics.AuthToken.Reveal())
	connects, bulk := 0, 0 // zero admits everything
	if g.RateLimits {
		connects, bulk = g.ConnectRateLimit, g.BulkRateLimit
	}
	gate := &agentconn.Gate{Bucket: transport.NewRateBucket("agent-connect", connects, rateWindow, a.clock),
		Allow:    transport.NewAllowlist("agent", a.allowAgent, a.metrics.transport),
		Refusals: a.refusals, Directory: a.directory, Log: a.log}
	connMetrics, err := agentconn.NewMetrics(a.registry)
	if err != nil {
		return err
	}
	services := agentconn.Services{Directory: a.directory, Router: a.router, Commands: a.commands, Hub: a.hub,
		Clock: a.clock, Log: a.log.With().Str("part", "agent").Logger(), Metrics: connMetrics}
	a.websocket = agentconn.NewWebSocket(a.sessions, gate, services, agentconn.WebSocketOptions{
		Version: wireVersion, Heartbeat: heartbeat, MaxFrame: int(g.FrameCap()), IdleTimeout: g.WSIdleTimeout.Std(),
		FirstFrame: g.WSFirstFrameTimeout.Std(), PerAgentCap: g.WSPerAgentCap, IngestQueue: g.WSIngestQueue,
		ProjectSecret: a.projectSecret})
	a.longpoll = agentconn.NewLongPoll(gate, services, agentconn.LongPollOptions{
		Limits:        agentconn.LPLimits{PerAgent: g.LongPollSessionsPerAgent, Total: g.LongPollSessions, Idle: g.LongPollSessionIdle.Std()},
		ProjectSecret: a.projectSecret})
	a.api = a.newAPI(bulk)
	return nil
}

// wireVersion is the version of the agent protocol's world that we speak for: agents compare its major and minor with
// their own and warn in their log when they differ.
const wireVersion = "1.13.0"

// heartbeat is what hello_ack asks for (agent protocol B.3).
const heartbeat = 10 * time.Second

// front is what every request of the main listener passes; adminFront is that of the admin socket, where no host is named
// and no proxy stands.
func (a *Appliance) front() transport.Front {
	f := a.adminFront()
	f.Hosts, f.Trusted = a.cfg.Server.AllowedHosts, transport.NewNetworks(a.cfg.Server.TrustedProxies)
	return f
}

func (a *Appliance) adminFront() transport.Front {
	srv := a.cfg.Server
	return transport.Front{Log: a.log.With().Str("part", "http").Logger(), Metrics: a.metrics.transport,
		Bodies: transport.NewBodies(func(r *http.Request) int64 {
			switch {
			case r.URL.Path == agentconn.EventsPath:
				return srv.EventsBodyLimit.Bytes()
			case isUpload(r):
				return roomhttp.UploadLimit(a.rooms.media.MaxFile(), a.rooms.media.MaxFiles())
			case takesSchedules(r):
				return max(scheduleBodyLimit, srv.MaxPayloadSize.Bytes())
			case takesRoomTexts(r):
				return max(a.roomBodyLimit(), srv.MaxPayloadSize.Bytes())
			case strings.HasSuffix(r.URL.Path, "/bulk-retry-requests"): // 10,000 task ids
				return max(bulkRetryBody, srv.MaxPayloadSize.Bytes())
			default:
				return srv.MaxPayloadSize.Bytes()
			}
		}, isUpload)}
}

// bulkRetryBody is the largest request for a bulk retry: 10,000 task ids of 200 characters, with room for what holds them.
const bulkRetryBody = 4 << 20

// routes are those of the main listener.
func (a *Appliance) routes() *http.ServeMux {
	mux := a.adminRoutes()
	mux.Handle(agentconn.WebSocketPath, a.websocket)
	a.longpoll.Routes(mux)
	a.roomRoutes(mux)
	a.archiveRoutes(mux)
	if m := a.cfg.Metrics; m.Enabled && m.Public {
		mux.Handle("GET /metrics", a.metricsHandler)
	}
	return mux
}

// metricsRoutes are those of the metrics listener: metrics, health, and profiles of the running process, which never are
// on the main listener.
func (a *Appliance) metricsRoutes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", a.metricsHandler)
	a.readiness.Routes(mux)
	mux.Handle("GET /debug/pprof/", a.metricsHandler.Guard(http.HandlerFunc(pprof.Index)))
	mux.Handle("GET /debug/pprof/profile", a.metricsHandler.Guard(http.HandlerFunc(pprof.Profile)))
	mux.Handle("GET /debug/pprof/trace", a.metricsHandler.Guard(http.HandlerFunc(pprof.Trace)))
	return mux
}

// adminRoutes are those of the admin socket: no agent connects there.
func (a *Appliance) adminRoutes() *http.ServeMux {
	mux := http.NewServeMux()
	a.readiness.Routes(mux)
	a.api.Routes(mux)
	return mux
}
