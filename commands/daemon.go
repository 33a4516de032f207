package commands

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"signalbox/appliance"
	"signalbox/appliance/clock"
	"signalbox/appliance/config"
	"signalbox/appliance/daemonconfig"
	"signalbox/appliance/daemonhost"
	"signalbox/store"
	"signalbox/transport"
)

// newDaemonCommand groups what is done on the daemon's own machine. It has a --config of its own: the daemon's file.
func newDaemonCommand(opts *options) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "Run and look after an archive daemon on this machine",
		Long: `A daemon holds content on one machine and does the work of archive jobs there. It connects out to Archive Control, which is
part of "signalbox serve", keeps its own database, and needs one configuration file.

What control knows of daemons is shown by "signalbox daemons".`,
		Example: `  signalbox daemon init --config nas.toml --control wss://box.example/daemon/v2 --name nas --content media=/srv/media
  signalbox daemon check --config nas.toml
  signalbox daemon run --config nas.toml`,
	}
	cmd.PersistentFlags().StringVar(&file, "config", "", "configuration file of the daemon (SIGNALBOX_DAEMON_CONFIG)")
	load := func() (*daemonconfig.Config, error) { return opts.loadDaemonConfig(file) }
	cmd.AddCommand(newDaemonRunCommand(opts, load), newDaemonInitCommand(opts, &file), newDaemonCheckCommand(opts, load),
		newDaemonAcceptCommand(opts, load), newDaemonStatusCommand(opts, load))
	return cmd
}

// daemonFile is the daemon's configuration file as the flag or the environment names it.
func (o *options) daemonFile(flag string) (string, error) {
	if flag == "" {
		flag = o.stdio.env("SIGNALBOX_DAEMON_CONFIG")
	}
	if flag == "" {
		return "", usagef("name the daemon's configuration file with --config or SIGNALBOX_DAEMON_CONFIG; signalbox daemon init makes one")
	}
	return flag, nil
}

func (o *options) loadDaemonConfig(flag string) (*daemonconfig.Config, error) {
	file, err := o.daemonFile(flag)
	if err != nil {
		return nil, err
	}
	c, err := daemonconfig.Load(file)
	if invalid := (*config.InvalidError)(nil); errors.As(err, &invalid) || errors.Is(err, os.ErrNotExist) {
		return nil, &usageError{err: err}
	}
	return c, err
}

func newDaemonRunCommand(opts *options, load func() (*daemonconfig.Config, error)) *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Run the daemon",
		Long: `Run the daemon until SIGTERM or SIGINT. It takes up the steps that an earlier run left, connects to control, and keeps
connecting for as long as it runs. A crash needs no repair: the next run goes on from the journal.

Steps that run when it stops are cut off where they are and gone on with by the next run. Under systemd it tells when it is
ready (Type=notify).`,
		Example: `  signalbox daemon run --config /etc/signalbox/daemon.toml
  SIGNALBOX_DAEMON_CONFIG=nas.toml signalbox daemon run`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := load()
			if err != nil {
				return err
			}
			return opts.runDaemon(cmd.Context(), c)
		},
	}
}

func (o *options) runDaemon(ctx context.Context, c *daemonconfig.Config) error {
	log, _ := appliance.NewLogger(o.stdio.Err, config.Log{Level: c.Log.Level, Format: c.Log.Format}, o.stdio.IsTerminal)
	version := readVersion(o.assets.Version).Version
	h, err := daemonhost.New(ctx, daemonhost.Options{Config: c, Version: version, Log: log})
	if store.InUse(err) {
		return &exitError{code: ExitConflict, msg: err.Error(), hint: "one daemon runs on a data directory; stop that process, or name another data_dir"}
	}
	if err != nil {
		return err
	}
	ctx, stop := handleSignals(ctx, log, func() { log.Info().Msg("SIGHUP: a daemon takes its configuration only when it starts") })
	defer stop()
	notifier := transport.NewNotifier(o.stdio.env, os.Getpid())
	watching, quiet := context.WithCancel(ctx)
	defer quiet()
	err = h.Run(ctx, func() {
		log.Info().Str("version", version).Str("name", c.Name).Str("client_id", c.ClientID).Str("control", c.Control).Str("data_dir", c.DataDir).Msg("ready")
		if err := notifier.Ready(); err != nil {
			log.Warn().Err(err).Msg("systemd was not told")
		}
		go notifier.Watchdog(watching, clock.System(), func() bool { return true })
	})
	_ = notifier.Stopping() // it is on its way out
	if err := errors.Join(err, h.Close()); err != nil {
		return fmt.Errorf("daemon: %w", err)
	}
	log.Info().Msg("stopped")
	return nil
}

func newDaemonStatusCommand(opts *options, load func() (*daemonconfig.Config, error)) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show what the running daemon is doing",
		Long: `Show the running daemon's connection, jobs, routes and how much waits to be delivered, read over the socket in its data
directory. Exit code 6 when it does not run.

Directories that jobs have left are listed too: those of jobs that this daemon does not work on, and those that it put aside
below .archive-control/leftovers of a root because a database that was lost had made them. Nothing removes them by itself.`,
		Example: `  signalbox daemon status --config nas.toml
  signalbox daemon status --config nas.toml --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := load()
			if err != nil {
				return err
			}
			s, err := daemonhost.ReadStatus(cmd.Context(), daemonSocket(c))
			if errors.Is(err, daemonhost.ErrNotRunning) {
				return &unreachableError{target: "the daemon at " + daemonSocket(c), hint: "start it with: signalbox daemon run", err: err}
			}
			if err != nil {
				return err
			}
			return opts.showDaemonStatus(s)
		},
	}
}

func (o *options) showDaemonStatus(s daemonhost.Status) error {
	if o.json {
		return o.out.object("daemon", s)
	}
	err := o.out.facts([2]string{"Client ID", s.ClientID}, [2]string{"State epoch", s.StateEpoch}, [2]string{"Control", s.Control},
		[2]string{"Connection", s.Connection}, [2]string{"Generation", fmt.Sprint(s.Generation)},
		[2]string{"Inventory revision", fmt.Sprint(s.InventoryRevision)}, [2]string{"Events to deliver", fmt.Sprint(s.OutboxDepth)},
		[2]string{"Busy workers", fmt.Sprint(s.BusyWorkers)})
	if err != nil {
		return err
	}
	if len(s.Jobs) > 0 {
		rows := make([][]string, 0, len(s.Jobs))
		for _, j := range s.Jobs {
			committed := ""
			if j.Committed {
				committed = "committed"
			}
			rows = append(rows, []string{j.JobID, j.Role, j.State, j.Step, fmt.Sprint(j.Sequence), committed})
		}
		fmt.Fprintln(o.stdio.Out)
		if err := o.out.table([]string{"JOB", "ROLE", "STATE", "STEP", "SEQUENCE", ""}, rows); err != nil {
			return err
		}
	}
	if len(s.Closing) > 0 {
		fmt.Fprintf(o.stdio.Out, "\nRemoving the working files of ended jobs: %s\n", strings.Join(s.Closing, ", "))
	}
	if len(s.Routes) > 0 {
		rows := make([][]string, 0, len(s.Routes))
		for _, r := range s.Routes {
			rows = append(rows, []string{r.Name, r.Side, r.State, fmt.Sprint(r.Sequence), r.RouteID})
		}
		fmt.Fprintln(o.stdio.Out)
		if err := o.out.table([]string{"ROUTE", "SIDE", "STATE", "SEQUENCE", "ID"}, rows); err != nil {
			return err
		}
	}
	if len(s.Reading) > 0 {
		rows := make([][]string, 0, len(s.Reading))
		for _, r := range s.Reading {
			name, size, state := r.Name, "-", "waits for its turn"
			if name == "" {
				name = r.ResourceID
			}
			if r.Bytes > 0 {
				size = sizeText(r.Bytes)
			}
			if r.Active {
				state = "being read"
			}
			rows = append(rows, []string{name, size, state})
		}
		fmt.Fprintln(o.stdio.Out)
		if err := o.out.table([]string{"TO BE LISTED", "SIZE", "STATE"}, rows); err != nil {
			return err
		}
	}
	if len(s.Leftovers) > 0 {
		rows := make([][]string, 0, len(s.Leftovers))
		for _, l := range s.Leftovers {
			rows = append(rows, []string{l.Path, l.RootID})
		}
		fmt.Fprintln(o.stdio.Out)
		return o.out.table([]string{"LEFT BY A JOB", "ROOT"}, rows)
	}
	return nil
}
