package commands

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"signalbox/appliance/config"
	"signalbox/appliance/fault"
)

// options is what all commands share: the global flags and the world they run in.
type options struct {
	stdio  Stdio
	assets Assets
	now    func() time.Time
	out    *printer

	json           bool
	configFile     string
	dataDir        string
	server         string
	apiKey         string
	apiKeyFile     string
	caFile         string
	project        string
	requestTimeout time.Duration
	retryDelay     time.Duration // first pause before a stream reconnects; doubles up to 20 times this
}

// Execute runs the command line and returns the exit code of the process. It blocks until the command is done or ctx
// ends. Commands that have something to say on SIGINT and SIGTERM catch them themselves.
func Execute(ctx context.Context, args []string, stdio Stdio, assets Assets) int {
	return newOptions(stdio, assets).execute(ctx, args)
}

func newOptions(stdio Stdio, assets Assets) *options {
	opts := &options{stdio: stdio, assets: assets, now: time.Now, retryDelay: 500 * time.Millisecond}
	opts.out = &printer{stdio: stdio, opts: opts}
	return opts
}

func (o *options) execute(ctx context.Context, args []string) int {
	root := newRootCommand(o)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil {
		// A flag that cannot be read ends the reading: --json may stand behind it.
		o.json = o.json || asksForJSON(args)
		nameFlags(cmd, err)
		o.report(cmd, err)
	}
	return exitCode(err)
}

// asksForJSON tells whether the arguments hold the bare --json flag.
func asksForJSON(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.Contains(args, "--json")
}

func newRootCommand(opts *options) *cobra.Command {
	root := &cobra.Command{
		Use:   "signalbox",
		Short: "Durable command and event plane for task-queue agents, and rooms for agents and people",
		Long: `Signalbox keeps what agents of a task queue report, and hands them commands that survive a crash. It keeps rooms in which
agents and people talk, and tells every agent what is said there, without a silent loss.

Commands talk to a running appliance: over the unix socket in its data directory, without a token and as administrator,
or to a remote one with --server and an API key.

` + exitCodesHelp,
		Example: `  signalbox serve
  signalbox agents mint web-1
  signalbox commands issue retry-task --agent web-1 --engine celery --task-id 3f1c2d4e-0b0e-4b7e-9c58-5a1d0d1b7f10 --wait
  signalbox commands explain 7d2a
  signalbox rooms chat plaza`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          knownSubcommand,
	}
	version := root.Flags().Bool("version", false, "show the version of this binary")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if *version {
			return opts.showVersion()
		}
		return cmd.Help()
	}
	root.SetIn(opts.stdio.In)
	root.SetOut(opts.stdio.Out)
	root.SetErr(opts.stdio.Err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err: wordFlagError(err)} })
	opts.addGlobalFlags(root)
	root.AddCommand(
		newServeCommand(opts),
		newConfigCommand(opts),
		newStatusCommand(opts),
		newHealthcheckCommand(opts),
		newProjectsCommand(opts),
		newAgentsCommand(opts),
		newCommandsCommand(opts),
		newSchedulesCommand(opts),
		newBulkRetriesCommand(opts),
		newDeadLettersCommand(opts),
		newEventsCommand(opts),
		newTasksCommand(opts),
		newFailuresCommand(opts),
		newFiresCommand(opts),
		newWorkersCommand(opts),
		newQueuesCommand(opts),
		newAuditCommand(opts),
		newAPIKeysCommand(opts),
		newNotificationsCommand(opts),
		newRoomsCommand(opts),
		newPeopleCommand(opts),
		newRoomAgentsCommand(opts),
		newConnectionsCommand(opts),
		newDaemonCommand(opts),
		newDaemonsCommand(opts),
		newInventoryCommand(opts),
		newRoutesCommand(opts),
		newJobsCommand(opts),
		newManifestCommand(opts),
		newBackupCommand(opts),
		newRestoreCommand(opts),
		newDBCommand(opts),
		newBenchCommand(opts),
		newConformanceCommand(opts),
		newVersionCommand(opts),
		newCompletionCommand(opts),
	)
	root.CompletionOptions.DisableDefaultCmd = true
	checkUsage(root)
	return root
}

func (o *options) addGlobalFlags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.BoolVar(&o.json, "json", false, "write one JSON document (streams: one object a line)")
	f.StringVar(&o.configFile, "config", "", "TOML configuration file of the local appliance (SIGNALBOX_CONFIG)")
	f.StringVar(&o.dataDir, "data-dir", "", "data directory of the local appliance (SIGNALBOX_DATA_DIR)")
	f.StringVar(&o.server, "server", "", "base URL of a remote appliance (SIGNALBOX_SERVER)")
	f.StringVar(&o.apiKey, "api-key", "", "API key for --server (SIGNALBOX_API_KEY); prefer --api-key-file, arguments show in process lists")
	f.StringVar(&o.apiKeyFile, "api-key-file", "", "file with the API key (SIGNALBOX_API_KEY_FILE)")
	f.StringVar(&o.caFile, "ca-file", "", "PEM file with the authority that signed the server's certificate (SIGNALBOX_CA_FILE)")
	f.StringVar(&o.project, "project", "", "project slug (SIGNALBOX_PROJECT; default: the only or oldest project)")
	durationVar(f, &o.requestTimeout, "request-timeout", 30*time.Second, "longest wait for one answer of the server")
	_ = root.RegisterFlagCompletionFunc("project", o.completeProjects)
	root.MarkFlagsMutuallyExclusive("api-key", "api-key-file")
}

// checkUsage makes wrong arguments and unknown subcommands usage errors. Cobra reports them as plain errors, and it lets a
// group command swallow an unknown subcommand as an argument. A group that does nothing itself shows its help.
func checkUsage(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		checkUsage(sub)
	}
	cmd.SuggestionsMinimumDistance = 2
	if cmd.HasSubCommands() && cmd.HasParent() {
		own := cmd.RunE
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if err := knownSubcommand(cmd, args); err != nil {
				return err
			}
			if own != nil {
				return own(cmd, args)
			}
			return cmd.Help()
		}
		return
	}
	check := cmd.Args
	if check == nil {
		check = cobra.NoArgs
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &usageError{err: wordArgsError(cmd, args, err)}
		}
		if err := cmd.ValidateRequiredFlags(); err != nil {
			return &usageError{err: err}
		}
		if err := cmd.ValidateFlagGroups(); err != nil {
			return &usageError{err: err}
		}
		return nil
	}
}

// knownSubcommand refuses an argument of a group: it was meant to be a subcommand.
func knownSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return usagef("unknown command %q for %q; did you mean %s?", args[0], cmd.CommandPath(), near[0])
	}
	return usagef("unknown command %q for %q", args[0], cmd.CommandPath())
}

// wordArgsError says which argument is missing or too much, by the names in the command's usage line; another mistake
// stays as it is.
func wordArgsError(cmd *cobra.Command, args []string, err error) error {
	var usage *usageError
	if errors.As(err, &usage) {
		return err
	}
	path := strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
	names := strings.Fields(cmd.Use)[1:]
	switch {
	case len(args) < len(names) && !strings.HasPrefix(names[len(args)], "["):
		return fmt.Errorf("%s needs %s", path, names[len(args)])
	case len(args) > len(names) && len(names) == 0:
		return fmt.Errorf("%s takes no arguments, got %q", path, args[0])
	case len(args) > len(names):
		return fmt.Errorf("%s takes only %s, and %q is too much", path, strings.Join(names, " "), args[len(names)])
	}
	return err
}

// report tells about a failed command: text on stderr, and with --json the document on stdout that a script still expects.
func (o *options) report(cmd *cobra.Command, err error) {
	if o.json && !o.out.wrote {
		_ = o.out.object("error", errorDocument(err))
	}
	msg := printable(err.Error()) // a server may have worded it, from what peers call themselves
	if msg == "" {
		return
	}
	fmt.Fprintf(o.stdio.Err, "signalbox: %s\n", msg)
	if hint := hintOf(err); hint != "" {
		fmt.Fprintf(o.stdio.Err, "hint: %s\n", hint)
	}
	var (
		usage   *usageError
		invalid *config.InvalidError
	)
	if errors.As(err, &usage) && !errors.As(err, &invalid) && cmd != nil {
		fmt.Fprintf(o.stdio.Err, "Run '%s --help' for usage.\n", cmd.CommandPath())
	}
}

type errorDoc struct {
	Code      string         `json:"code"`
	Message   string         `json:"message"`
	Details   map[string]any `json:"details,omitempty"`
	RequestID string         `json:"request_id,omitempty"`
	ExitCode  int            `json:"exit_code"`
}

func errorDocument(err error) errorDoc {
	doc := errorDoc{Message: err.Error(), ExitCode: exitCode(err)}
	var (
		api         *apiError
		usage       *usageError
		unreachable *unreachableError
		exit        *exitError
	)
	switch {
	case errors.As(err, &exit):
		doc.Code = exitName(exit.code)
	case errors.As(err, &usage):
		doc.Code = "usage"
	case errors.As(err, &unreachable):
		doc.Code = "unreachable"
	default:
		doc.Code = string(fault.CodeOf(err))
	}
	if errors.As(err, &api) {
		doc.RequestID, doc.Details, doc.Code = api.requestID, api.fault.Details, api.wireCode
	}
	return doc
}

// hintOf is the next step worth suggesting after an error, "" when there is none.
func hintOf(err error) string {
	var (
		unreachable *unreachableError
		exit        *exitError
		api         *apiError
		authority   x509.UnknownAuthorityError
	)
	switch {
	case errors.As(err, &exit):
		return exit.hint
	case errors.As(err, &unreachable):
		return unreachable.hint
	case errors.As(err, &api) && api.hint != "":
		return api.hint
	case errors.As(err, &api) && api.fault.Retry > 0:
		return "try again in " + api.fault.Retry.String()
	case errors.As(err, &authority):
		return hintAuthority
	}
	return ""
}
