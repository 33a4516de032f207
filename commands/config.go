package commands

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"signalbox/appliance/config"
)

// clientEnv are the SIGNALBOX_ variables that are no settings of the appliance: the ones clients read.
var clientEnv = [...]string{"SIGNALBOX_SERVER", "SIGNALBOX_API_KEY", "SIGNALBOX_API_KEY_FILE", "SIGNALBOX_CA_FILE", "SIGNALBOX_PROJECT"}

// settingFlags gives a command one flag for every setting of the appliance; those given are laid over file and environment.
type settingFlags struct{ given map[string]string }

// add defines the flags on cmd. The data directory has a global flag already.
func (s *settingFlags) add(cmd *cobra.Command) {
	s.given = map[string]string{}
	for _, key := range config.Keys() {
		if key.Path == "data_dir" {
			continue
		}
		cmd.Flags().Var(&settingFlag{into: s.given, path: key.Path, kind: key.Kind}, key.Flag, key.Doc)
		if key.Kind == "boolean" {
			cmd.Flags().Lookup(key.Flag).NoOptDefVal = "true"
		}
		if key.Secret {
			cmd.Flags().Var(&settingFlag{into: s.given, path: key.Path + "_file", kind: "file"}, key.Flag+"-file",
				"File that holds the value of --"+key.Flag+".")
		}
	}
}

// typeWord makes one word of a setting's kind: in a usage text, spaces would part the name of the value from the rest.
func typeWord(kind string) string {
	what, isList := strings.CutPrefix(kind, "list of ")
	switch {
	case !isList:
	case what == "CIDR ranges":
		return "cidrs"
	case what == "host names":
		return "hosts"
	}
	return strings.ReplaceAll(what, " ", "-")
}

type settingFlag struct {
	into map[string]string
	path string
	kind string
}

var _ pflag.Value = (*settingFlag)(nil)

func (f *settingFlag) String() string { return "" }
func (f *settingFlag) Type() string   { return typeWord(f.kind) }
func (f *settingFlag) Set(text string) error {
	f.into[f.path] = text
	return nil
}

// loadConfig loads the configuration with the global flags and the given setting flags on top. A configuration that breaks
// rules comes back as *config.InvalidError.
func (o *options) loadConfig(s *settingFlags) (*config.Config, *config.Origins, []config.Warning, error) {
	flags := map[string]string{}
	if s != nil {
		for path, text := range s.given {
			flags[path] = text
		}
	}
	if o.dataDir != "" {
		flags["data_dir"] = o.dataDir
	}
	return config.Load(config.LoadOptions{File: o.configFile, Env: o.stdio.Env, KnownEnv: clientEnv[:], Flags: flags})
}

func newConfigCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "config",
		Short:   "Show, check and start a configuration",
		Example: "  signalbox config show",
	}
	cmd.AddCommand(newConfigShowCommand(opts), newConfigCheckCommand(opts), newConfigInitCommand(opts))
	return cmd
}

func newConfigShowCommand(opts *options) *cobra.Command {
	var settings settingFlags
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show every setting in effect and where its value came from; secrets are masked",
		Example: `  signalbox config show
  signalbox config show --config /etc/signalbox/signalbox.toml --listen 127.0.0.1:7800 --json`,
		RunE: func(*cobra.Command, []string) error {
			cfg, origins, warnings, err := opts.loadConfig(&settings)
			if err != nil {
				return &usageError{err: err}
			}
			entries := config.Show(cfg, origins)
			if opts.json {
				return opts.out.document(field{"settings", entries}, field{"warnings", warningTexts(warnings)})
			}
			opts.sayWarnings(warnings)
			opts.out.wrote = true
			return config.WriteShow(opts.stdio.Out, entries)
		},
	}
	settings.add(cmd)
	return cmd
}

func newConfigCheckCommand(opts *options) *cobra.Command {
	var settings settingFlags
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the configuration and change nothing; every problem is told at once",
		Example: `  signalbox config check --config /etc/signalbox/signalbox.toml
  signalbox config check --json`,
		RunE: func(*cobra.Command, []string) error {
			_, _, warnings, err := opts.loadConfig(&settings)
			var invalid *config.InvalidError
			if err != nil && !errors.As(err, &invalid) {
				return err
			}
			if opts.json {
				if err := opts.out.document(field{"ok", err == nil}, field{"problems", problemDocs(invalid)},
					field{"warnings", warningTexts(warnings)}); err != nil {
					return err
				}
			} else {
				opts.sayWarnings(warnings)
			}
			if err != nil {
				return &usageError{err: err}
			}
			if !opts.json {
				opts.out.text("the configuration is valid")
			}
			return nil
		},
	}
	settings.add(cmd)
	return cmd
}

type problemDoc struct {
	Path    string `json:"path"`
	Origin  string `json:"origin,omitempty"`
	Message string `json:"message"`
}

func problemDocs(invalid *config.InvalidError) []problemDoc {
	docs := []problemDoc{}
	if invalid != nil {
		for _, p := range invalid.Problems {
			docs = append(docs, problemDoc{Path: p.Path, Origin: p.Origin, Message: p.Msg})
		}
	}
	return docs
}

func warningTexts(warnings []config.Warning) []string {
	texts := []string{}
	for _, w := range warnings {
		texts = append(texts, w.String())
	}
	return texts
}

func (o *options) sayWarnings(warnings []config.Warning) {
	for _, w := range warnings {
		o.out.say("warning: %s", w)
	}
}

func newConfigInitCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "init [FILE]",
		Short: "Write a commented configuration file with every default; never overwrites",
		Example: `  signalbox config init
  signalbox config init /etc/signalbox/signalbox.toml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			path := "signalbox.toml"
			if len(args) == 1 {
				path = args[0]
			}
			if opts.assets.ExampleConfig == "" {
				return exitf(ExitFailed, "this build carries no example configuration")
			}
			err := config.Init(path, []byte(opts.assets.ExampleConfig))
			if errors.Is(err, fs.ErrExist) {
				return exitf(ExitConflict, "%s exists already; it was left as it is", path)
			}
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.object("path", path)
			}
			opts.out.text("%s", path)
			opts.out.say("start with: signalbox serve --config %s", path)
			return nil
		},
	}
}
