package commands

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"signalbox/appliance"
	"signalbox/appliance/config"
	"signalbox/store"
)

func newServeCommand(opts *options) *cobra.Command {
	var settings settingFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the appliance",
		Long: `Run the appliance until SIGTERM or SIGINT. It then finishes what is in flight within server.drain_timeout; a second
signal ends it at once. SIGHUP takes over the log level, the TLS files, the allowlists and the metrics token.

Without any configuration it listens on loopback and keeps everything in the data directory: database, minted secrets,
the first admin API key (admin.key), the admin socket, and, while it is ready, addresses.json.`,
		Example: `  signalbox serve
  signalbox serve --config /etc/signalbox/signalbox.toml
  signalbox serve --data-dir /var/lib/signalbox --listen 127.0.0.1:7800 --log-level debug`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runServe(cmd.Context(), opts, &settings) },
	}
	settings.add(cmd)
	return cmd
}

func runServe(ctx context.Context, opts *options, settings *settingFlags) error {
	cfg, _, warnings, err := opts.loadConfig(settings)
	if err != nil {
		return &usageError{err: err}
	}
	log, level := appliance.NewLogger(opts.stdio.Err, cfg.Log, opts.stdio.IsTerminal)
	for _, w := range warnings {
		log.Warn().Msg(w.String())
	}
	version := readVersion(opts.assets.Version).Version
	greeting := readGreeting(cfg.DataDir)
	a, err := appliance.New(ctx, appliance.Options{Config: cfg, Schema: opts.assets.Schema, Version: version, Log: log,
		LogLevel: level, Getenv: opts.stdio.env})
	switch {
	case store.InUse(err): // the key that may be there now is the other process's to tell of
		return explainStart(err)
	case err != nil:
		return errors.Join(explainStart(err), greeting.keepForLater())
	}
	defer a.Close() // Run has closed it already, unless it panicked
	ctx, stop := handleSignals(ctx, log, func() { reload(opts, settings, a, log) })
	defer stop()
	err = a.Run(ctx, func() {
		log.Info().Str("version", version).Str("data_dir", cfg.DataDir).Interface("addresses", a.Addresses()).Msg("ready")
		opts.welcome(cfg, a, greeting)
	})
	return errors.Join(err, greeting.keepForLater())
}

// explainStart gives the two most likely mistakes of a start their next step.
func explainStart(err error) error {
	switch {
	case store.InUse(err):
		return &exitError{code: ExitConflict, msg: err.Error(),
			hint: "one server runs on a data directory; stop that process, or name another directory with --data-dir"}
	case errors.Is(err, syscall.EADDRINUSE):
		return &exitError{code: ExitConflict, msg: err.Error(), hint: "choose another address with --listen"}
	}
	return err
}

// handleSignals ends the returned context at the first SIGTERM or SIGINT and the process at the second. SIGHUP calls
// reload.
func handleSignals(ctx context.Context, log zerolog.Logger, reload func()) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for sig := range signals {
			switch {
			case sig == syscall.SIGHUP:
				reload()
			case ctx.Err() == nil:
				log.Info().Stringer("signal", sig).Msg("stopping; once more ends at once")
				cancel()
			default:
				// The orderly way is taken already and somebody does not want to wait: die by the signal itself, which
				// is what the service manager expects to see. Everything acknowledged is on disk.
				signal.Reset(sig)
				_ = syscall.Kill(os.Getpid(), sig.(syscall.Signal))
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		<-done
		cancel()
	}
}

func reload(opts *options, settings *settingFlags, a *appliance.Appliance, log zerolog.Logger) {
	next, _, warnings, err := opts.loadConfig(settings)
	for _, w := range warnings {
		log.Warn().Msg(w.String())
	}
	var waiting []string
	if err == nil {
		waiting, err = a.Reload(next)
	}
	if err != nil {
		log.Error().Err(err).Msg("configuration not reloaded; the one before stays in effect")
		return
	}
	log.Info().Strs("waiting_for_restart", waiting).Msg("configuration reloaded")
}

// welcome tells, at a first start, what was made and what to do next. The admin key is shown this once, to a terminal
// only; it stays in its file. Later starts tell a terminal the address.
func (o *options) welcome(cfg *config.Config, a *appliance.Appliance, g *greeting) {
	first := a.FirstRun()
	url := a.Addresses()[appliance.AddressURL]
	say := func(format string, args ...any) { fmt.Fprintf(o.stdio.Out, format+"\n", args...) }
	key, due := g.take(first.AdminKey)
	if first.Project == "" && !due {
		if o.stdio.IsTerminal {
			say("Signalbox is ready at %s", url)
		}
		return
	}
	say("")
	say("Signalbox is ready at %s", url)
	if first.Project != "" {
		say("Project %q was created.", first.Project)
	}
	keyFile := filepath.Join(cfg.DataDir, appliance.AdminKeyFile)
	switch {
	case !due:
	case o.stdio.IsTerminal:
		say("First admin API key (shown once, kept in %s):", keyFile)
		say("  %s", key.Reveal())
	default: // what is not a terminal is a log, and a log keeps no secrets
		say("First admin API key: in %s", keyFile)
	}
	program := programName()
	dir := ""
	if abs, err := filepath.Abs(cfg.DataDir); err == nil && cfg.DataDir != config.Default().DataDir {
		dir = " --data-dir " + shellQuote(abs)
		keyFile = filepath.Join(abs, appliance.AdminKeyFile) // the other terminal may stand elsewhere
	}
	say("")
	say("Next, in another terminal:")
	say("  %s agents mint my-agent%s        # prints the environment for a z4j-bare agent", program, dir)
	say("  %s rooms create plaza%s          # makes a room to speak in", program, dir)
	say("  %s status%s", program, dir)
	trust, target := curlTarget(url, cfg.Server.TLSCertFile, nil)
	say("  curl %s-H \"Authorization: Bearer $(cat %s)\" %s/api/v1/projects", trust, shellQuote(keyFile), target)
	say("")
}

func programName() string {
	if len(os.Args) > 0 && os.Args[0] != "" {
		return os.Args[0]
	}
	return "signalbox"
}
