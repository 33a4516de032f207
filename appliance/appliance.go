// Package appliance is the composition root: it builds every part of Signalbox from a configuration, joins them, and
// takes them up and down in order. No rule of any plane lives here.
package appliance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/rs/zerolog"

	"signalbox/appliance/agent"
	"signalbox/appliance/agent/bulkretry"
	"signalbox/appliance/audit"
	"signalbox/appliance/clock"
	"signalbox/appliance/config"
	"signalbox/appliance/secret"
	"signalbox/appliance/wake"
	"signalbox/store"
	"signalbox/transport"
	"signalbox/transport/agentconn"
	"signalbox/transport/api"
	"signalbox/transport/session"
)

// Options are what an appliance is built from. Config and Schema are required.
type Options struct {
	Config   *config.Config
	Schema   string         // text of schema.sql
	Version  string         // of this program
	Log      zerolog.Logger // the zero value is silent
	LogLevel *LogLevel      // moved by Reload; nil when nothing is to be moved
	Clock    clock.Clock    // nil: the system's
	Getenv   func(string) string
	Hooks    store.Hooks // failpoints of tests
}

// FirstRun says what New made because it was not there.
type FirstRun struct {
	Project  string      // slug of the first project; "" when there was one
	AdminKey secret.Text // the first admin API key; empty when there was a key
}

// Appliance is one Signalbox. New builds it, Run serves until its context ends, Close frees what is left; Close may be
// called at any time and more than once.
type Appliance struct {
	opts  Options
	cfg   *config.Config // of the start; what Reload may change is not read from here
	log   zerolog.Logger
	clock clock.Clock
	start time.Time
	first FirstRun

	master   agent.SecretSet
	registry *prometheus.Registry
	db       *store.DB
	hub      *wake.Hub
	group    *group
	metrics  *metrics

	auditLog    *audit.Log
	auditDB     audit.Store
	directory   *agent.Directory
	router      *agent.Router
	records     *agent.Records
	commands    *agent.Commands
	upkeep      upkeep
	bulkRetries *bulkretry.Service
	failures    failures
	fires       fires
	schedules   schedules
	rooms       rooms
	archive     archivePlane
	notify      notifications

	sessions  *session.Group
	websocket *agentconn.WebSocket
	longpoll  *agentconn.LongPoll
	api       *api.API
	refusals  *transport.RefusalWindow

	allowAgent, allowAPI *transport.Networks
	certificates         *transport.Certificates
	metricsHandler       *transport.MetricsHandler
	readiness            *transport.Readiness
	server               *transport.Server
	notifier             *transport.Notifier

	reload sync.Mutex
	effect *config.Config // what is in effect, under reload
	once   sync.Once
	closed error
}

// upkeep are the parts that retention works through: the same rows, by the store's lane of maintenance.
type upkeep struct {
	records  *agent.Records
	commands *agent.Commands
	audit    audit.Store
}

// New builds everything and binds the listeners, but serves nothing yet: a port in use, a broken database or a secret
// that others can read is an error here. What was opened is closed again on error.
func New(ctx context.Context, o Options) (*Appliance, error) {
	a := &Appliance{opts: o, cfg: o.Config, effect: o.Config, log: o.Log, clock: o.Clock, hub: wake.New(), group: newGroup(),
		registry: prometheus.NewRegistry()}
	if a.clock == nil {
		a.clock = clock.System()
	}
	if o.Getenv == nil {
		a.opts.Getenv = func(string) string { return "" }
	}
	a.start = a.clock.Now()
	a.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, step := range []func(context.Context) error{a.openData, a.buildDomain, a.buildRetries, a.buildFailures, a.buildFires, a.buildSchedules, a.buildRooms, a.buildArchive,
		a.buildTransport, a.buildRoomTransport, a.buildArchiveTransport, a.bootstrap,
		a.readNotify, a.bind} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, a.Close())
		}
	}
	return a, nil
}

// openData prepares the data directory, the master secret and the database.
func (a *Appliance) openData(ctx context.Context) error {
	if err := prepareDataDir(a.cfg.DataDir); err != nil {
		return err
	}
	if err := a.loadSecrets(); err != nil {
		return err
	}
	s := a.cfg.Store
	db, err := store.Open(ctx, store.Options{
		Path: filepath.Join(a.cfg.DataDir, DatabaseFile), Schema: a.opts.Schema, Clock: a.clock,
		Log: a.log.With().Str("part", "store").Logger(), Readers: s.Readers,
		Limits: store.Limits{Queue: s.QueueMaxWrites, BatchCallers: s.BatchMaxWrites, BatchRows: s.BatchMaxRows},
		Hooks:  a.opts.Hooks, OnFatal: a.databaseFailed, Registerer: a.registry})
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	a.db = db
	// What a run that was killed has left. Only now is the directory ours.
	return errors.Join(removeAddresses(a.cfg.DataDir), removeTemporary(a.cfg.DataDir))
}

// loadSecrets takes the master secret from the configuration, or from its file, which is made at the first start.
func (a *Appliance) loadSecrets() error {
	for _, p := range a.cfg.Secret.PreviousSecrets {
		a.master.Previous = append(a.master.Previous, secret.NewBytes([]byte(p.Reveal())))
	}
	if s := a.cfg.Secret.Secret; !s.IsZero() {
		a.master.Current = secret.NewBytes([]byte(s.Reveal()))
		return nil
	}
	path := filepath.Join(a.cfg.DataDir, SecretFile)
	if _, err := os.Stat(filepath.Join(a.cfg.DataDir, DatabaseFile)); err == nil {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("master secret: %s is missing beside an existing database: a new one would make every token and "+
				"key void; put the file back, or set secret.secret", path)
		}
	}
	text, minted, err := ensureSecret(path, secret.NewToken)
	if err != nil {
		return fmt.Errorf("master secret: %w", err)
	}
	if len(text.Reveal()) < secret.MinMasterBytes {
		return fmt.Errorf("master secret: %s: must hold at least %d bytes", path, secret.MinMasterBytes)
	}
	if minted {
		a.log.Info().Str("file", path).Msg("master secret made; losing it makes every agent's credentials void")
	}
	a.master.Current = secret.NewBytes([]byte(text.Reveal()))
	return nil
}

// bootstrap makes what a first start needs and tidies what a crash may have left.
func (a *Appliance) bootstrap(ctx context.Context) error {
	if broken, err := a.auditLog.CheckEnd(ctx, a.auditDB); err != nil {
		return fmt.Errorf("end of the audit log: %w", err)
	} else if broken != nil && broken.Reason == audit.UnknownKey {
		a.log.Error().Int64("audit_row", broken.No).Msg("this master secret is not the one the database was written under: " +
			"agents and API keys made before are refused; put the right secret back, or name it among the previous ones")
	}
	made, err := a.directory.EnsureFirstProject(ctx)
	if err != nil {
		return fmt.Errorf("first project: %w", err)
	}
	if made {
		a.first.Project = "default"
	}
	// The key's file comes before its row: a crash between the two leaves a file that the next start adopts.
	fresh, err := a.directory.HasNoAPIKey(ctx)
	if err != nil {
		return fmt.Errorf("first API key: %w", err)
	}
	if fresh {
		key, _, err := ensureSecret(filepath.Join(a.cfg.DataDir, AdminKeyFile), secret.NewAPIKey)
		if err != nil {
			return fmt.Errorf("first API key: %w", err)
		}
		if err := a.directory.EnsureAdminKey(ctx, key); err != nil {
			return fmt.Errorf("first API key: %w", err)
		}
		a.first.AdminKey = key
	}
	if n, err := a.commands.Rescue(ctx); err != nil {
		return fmt.Errorf("rescue commands: %w", err)
	} else if n > 0 {
		a.log.Info().Int("commands", n).Msg("commands that the last run had sent and no agent acknowledged are pending again")
	}
	if n, err := a.directory.ResetWorkers(ctx); err != nil {
		return fmt.Errorf("reset workers: %w", err)
	} else if n > 0 {
		a.log.Info().Int("workers", n).Msg("workers that the last run left online are offline until they connect")
	}
	return nil
}

// bind takes the ports.
func (a *Appliance) bind(context.Context) error {
	c := a.cfg
	var err error
	if c.Server.TLS() {
		if a.certificates, err = transport.LoadCertificates(c.Server.TLSCertFile, c.Server.TLSKeyFile, a.clock, a.log); err != nil {
			return err
		}
	}
	cfg := transport.ServerConfig{
		Listen: c.Server.Listen, TLS: a.certificates, Handler: a.front().Wrap(transport.Mux(a.routes())),
		AdminSocket: c.AdminSocketPath(), AdminHandler: a.adminFront().Wrap(transport.Mux(a.adminRoutes())),
		Readiness: a.readiness, DrainSessions: a.drainSessions, Log: a.log,
	}
	if c.Metrics.Enabled && c.Metrics.Listen != "" {
		cfg.MetricsListen, cfg.Metrics = c.Metrics.Listen, transport.Mux(a.metricsRoutes())
	}
	a.server, err = transport.NewServer(cfg)
	return err
}

// drainSpread is the time over which sessions are asked to come back, so that they do not do it all at once.
const drainSpread = 2 * time.Second

// answerWait is the longest wait for agents to answer what they were handed, before their sessions are closed.
const answerWait = 3 * time.Second

// drainSessions hands nothing over any more, then closes the sessions.
func (a *Appliance) drainSessions(ctx context.Context) error {
	spread, answers := drainSpread, answerWait
	if deadline, ok := ctx.Deadline(); ok {
		spread, answers = min(spread, time.Until(deadline)/4), min(answers, time.Until(deadline)/4)
	}
	wait, cancel := context.WithTimeout(ctx, max(answers, 0))
	defer cancel()
	if n := a.commands.Quiesce(wait); n > 0 {
		a.log.Warn().Int("commands", n).Msg("agents have not answered commands that are handed over once only; they will time out unless done")
	}
	tools := make(chan error, 1)
	go func() { tools <- a.rooms.drainMCP(ctx) }()
	return errors.Join(a.sessions.Drain(ctx, max(spread, 0)), <-tools)
}

// AddressURL is the name, among the addresses, of the main listener's base URL.
const AddressURL = "url"

// Addresses returns every bound address by the listener's name, and the base URL of the main one under AddressURL.
func (a *Appliance) Addresses() map[string]string {
	addresses := a.server.Addresses()
	scheme := "http"
	if a.certificates != nil {
		scheme = "https"
	}
	host, port, err := net.SplitHostPort(addresses[transport.ListenerMain])
	if err != nil {
		return addresses
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	addresses[AddressURL] = scheme + "://" + net.JoinHostPort(host, port)
	return addresses
}

// FirstRun returns what this start made.
func (a *Appliance) FirstRun() FirstRun { return a.first }
