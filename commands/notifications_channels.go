package commands

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// channelRow is NotificationChannel.
type channelRow struct {
	ID            string    `json:"id"`
	Name          string    `json:"name"`
	Kind          string    `json:"kind"`
	Target        string    `json:"target"`
	IsEnabled     bool      `json:"is_enabled"`
	Failures      int       `json:"failures"`
	CreatedAt     time.Time `json:"created_at"`
	Warnings      []string  `json:"warnings"`
	SigningSecret string    `json:"signing_secret"`
}

func (s *scope) channels(ctx context.Context) (rows []record[channelRow], err error) {
	err = s.get(ctx, s.path("notifications", "channels"), nil, &rows)
	return rows, err
}

func (s *scope) channel(ctx context.Context, arg string) (record[channelRow], error) {
	rows, err := s.channels(ctx)
	if err != nil {
		return record[channelRow]{}, err
	}
	return pick("channel", arg, rows, func(c channelRow) (string, string) { return c.ID, c.Name })
}

func (o *options) theChannel(ctx context.Context, arg string) (*scope, record[channelRow], error) {
	s, err := o.newScope(ctx)
	if err != nil {
		return nil, record[channelRow]{}, err
	}
	c, err := s.channel(ctx, arg)
	return s, c, err
}

func newChannelsCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "channels",
		Short:   "Create, list, change and delete ways to people",
		Example: "  signalbox notifications channels list",
	}
	cmd.AddCommand(newChannelsCreateCommand(opts), newChannelsListCommand(opts), newChannelsUpdateCommand(opts),
		newChannelsSwitchCommand(opts, "enable", true), newChannelsSwitchCommand(opts, "disable", false), newChannelsDeleteCommand(opts))
	return cmd
}

func newChannelsListCommand(opts *options) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List channels; their settings are never shown",
		Example: `  signalbox notifications channels list
  signalbox notifications channels list --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			rows, err := s.channels(cmd.Context())
			if err != nil {
				return err
			}
			if opts.json {
				return opts.out.document(field{"items", nonNil(rows)}, field{"next_cursor", nil})
			}
			table := make([][]string, 0, len(rows))
			for _, r := range rows {
				table = append(table, []string{r.V.Name, r.V.Kind, r.V.Target, r.V.state(), opts.out.when(&r.V.CreatedAt), r.V.ID})
			}
			return opts.out.table([]string{"NAME", "KIND", "TARGET", "STATE", "CREATED", "ID"}, table)
		},
	}
}

// state is on, off, or failing while attempts fail.
func (c *channelRow) state() string {
	if c.IsEnabled && c.Failures > 0 {
		return "failing"
	}
	return onOff(c.IsEnabled)
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// channelFlags are the settings of a channel.
type channelFlags struct {
	url, urlFile, secretFile, passwordFile string
	host, security, username, from, caFile string
	port                                   int
	to                                     []string
}

func (f *channelFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.url, "url", "", "webhook or service: its URL; other users of the machine can see arguments, so prefer --url-file for one with a token")
	fl.StringVar(&f.urlFile, "url-file", "", "file whose first line is the URL; - is stdin")
	fl.StringVar(&f.secretFile, "secret-file", "", "webhook: file with the signing secret (default: one is made and printed once); - is stdin")
	fl.StringVar(&f.host, "host", "", "email: the mail server")
	fl.IntVar(&f.port, "port", 0, "email: its port (default: 587 for starttls, 465 for tls, 25 for none)")
	fl.StringVar(&f.security, "security", "", "email: starttls (default), tls or none")
	fl.StringVar(&f.username, "username", "", "email: who signs in")
	fl.StringVar(&f.passwordFile, "password-file", "", "email: file with the password; - is stdin")
	fl.StringVar(&f.from, "from", "", "email: the sender's address")
	fl.StringSliceVar(&f.to, "to", nil, "email: an address to write to; repeatable")
	fl.StringVar(&f.caFile, "ca-file", "", "webhook, email: file with the certificates (PEM) to trust in place of the system's authorities; - is stdin")
	cmd.MarkFlagsMutuallyExclusive("url", "url-file")
}

// changed tells whether any of the settings was given.
func (f *channelFlags) changed(cmd *cobra.Command) bool {
	for _, name := range []string{"url", "url-file", "secret-file", "host", "port", "security", "username", "password-file", "from", "to",
		"ca-file"} {
		if cmd.Flags().Changed(name) {
			return true
		}
	}
	return false
}

// settings are those of the kind, as the server takes them.
func (f *channelFlags) settings(o *options, kind string) (map[string]any, error) {
	out := map[string]any{}
	put := func(name, value string) {
		if value != "" {
			out[name] = value
		}
	}
	hidden := func(name, flag, path string) error {
		if path == "" {
			return nil
		}
		line, err := o.firstLine(flag, path)
		out[name] = line
		return err
	}
	if f.caFile != "" {
		content, err := o.secretFile("--ca-file", f.caFile)
		if err != nil {
			return nil, err
		}
		put("ca", string(content))
	}
	if kind == "email" {
		put("host", f.host)
		put("security", f.security)
		put("username", f.username)
		put("from", f.from)
		if f.port != 0 {
			out["port"] = f.port
		}
		out["to"] = nonNil(f.to)
		return out, hidden("password", "--password-file", f.passwordFile)
	}
	put("url", f.url)
	if err := hidden("url", "--url-file", f.urlFile); err != nil {
		return nil, err
	}
	if kind == "webhook" {
		return out, hidden("secret", "--secret-file", f.secretFile)
	}
	return out, nil
}

// secretFile reads what a flag names, or stdin for "-".
func (o *options) secretFile(flag, path string) ([]byte, error) {
	in := o.stdio.In
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, usagef("%s: %w", flag, err)
		}
		defer f.Close()
		in = f
	}
	if in == nil {
		return nil, usagef("%s: there is no stdin", flag)
	}
	content, err := io.ReadAll(io.LimitReader(in, maxSecretFile))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return content, nil
}

// firstLine reads a secret from a file, or from stdin.
func (o *options) firstLine(flag, path string) (string, error) {
	content, err := o.secretFile(flag, path)
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(content), "\n")
	if line = strings.TrimSpace(line); line == "" {
		return "", usagef("%s: the first line is empty", flag)
	}
	return line, nil
}

var channelKinds = []string{"webhook", "email", "service"}

func newChannelsCreateCommand(opts *options) *cobra.Command {
	var (
		f    channelFlags
		kind string
		off  bool
	)
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a channel",
		Long: `Create a channel. Its settings are stored encrypted and never shown again. A webhook gets a signing secret, which is printed
this once; docs/notifications.md shows how a receiver checks the signature. The URL of a chat or push service names it:
slack://…, discord://…, telegram://…, ntfy://…, gotify://…, pushover://… and others.`,
		Example: `  signalbox notifications channels create ops --kind webhook --url https://hooks.example.com/signalbox > ops.secret
  signalbox notifications channels create mail --kind email --host mail.example.com --username bot --password-file bot.password \
    --from signalbox@example.com --to ops@example.com
  signalbox notifications channels create phone --kind service --url-file ntfy.url`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if kind == "" {
				return usagef("--kind: is required: %s", strings.Join(channelKinds, ", "))
			}
			settings, err := f.settings(opts, kind)
			if err != nil {
				return err
			}
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			var c record[channelRow]
			body := map[string]any{"name": args[0], "kind": kind, "settings": settings, "is_enabled": !off}
			if err := s.post(cmd.Context(), s.path("notifications", "channels"), body, &c); err != nil {
				return err
			}
			return opts.showChannel(c, "created")
		},
	}
	cmd.Flags().Var(&oneOf{into: &kind, words: channelKinds}, "kind", strings.Join(channelKinds, ", "))
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(channelKinds, cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().BoolVar(&off, "disabled", false, "create it turned off")
	f.add(cmd)
	return cmd
}

// showChannel tells of a channel that was made or changed. A minted secret alone goes to stdout.
func (o *options) showChannel(c record[channelRow], what string) error {
	for _, w := range c.V.Warnings {
		o.out.say("warning: %s", w)
	}
	if o.json {
		return o.out.object("channel", c)
	}
	if c.V.SigningSecret != "" {
		o.out.text("%s", c.V.SigningSecret)
		o.out.say("channel %s (%s) %s; its signing secret is not shown again", c.V.Name, c.V.Target, what)
		return nil
	}
	o.out.text("channel %s (%s) %s", oneLine(c.V.Name), oneLine(c.V.Target), what)
	return nil
}

func newChannelsUpdateCommand(opts *options) *cobra.Command {
	var (
		f    channelFlags
		name string
	)
	cmd := &cobra.Command{
		Use:   "update CHANNEL",
		Short: "Rename a channel, or give it new settings",
		Long: `Rename a channel, or give it new settings. Settings are replaced as a whole: what is stored is not shown and so cannot be
changed in parts. A webhook without --secret-file gets a new signing secret.`,
		Example: `  signalbox notifications channels update ops --name operations
  signalbox notifications channels update phone --url-file ntfy.url`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{}
			if name != "" {
				body["name"] = name
			}
			if name == "" && !f.changed(cmd) {
				return usagef("nothing to change: give --name or settings")
			}
			s, c, err := opts.theChannel(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if f.changed(cmd) {
				if body["settings"], err = f.settings(opts, c.V.Kind); err != nil {
					return err
				}
			}
			var out record[channelRow]
			if err := s.do(cmd.Context(), http.MethodPatch, s.path("notifications", "channels", c.V.ID), nil, body, &out); err != nil {
				return err
			}
			return opts.showChannel(out, "changed")
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "new name")
	f.add(cmd)
	return cmd
}

func newChannelsSwitchCommand(opts *options, verb string, on bool) *cobra.Command {
	short := "Turn a channel on"
	if !on {
		short = "Turn a channel off; what waits for it is given up"
	}
	return &cobra.Command{
		Use:   verb + " CHANNEL",
		Short: short,
		Example: fmt.Sprintf("  signalbox notifications channels %[1]s ops\n  signalbox notifications channels %[1]s ops --json",
			verb),
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, c, err := opts.theChannel(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var out record[channelRow]
			if err := s.do(cmd.Context(), http.MethodPatch, s.path("notifications", "channels", c.V.ID), nil,
				map[string]any{"is_enabled": on}, &out); err != nil {
				return err
			}
			return opts.showChannel(out, "turned "+onOff(on))
		},
	}
}

func newChannelsDeleteCommand(opts *options) *cobra.Command {
	var confirm confirmation
	cmd := &cobra.Command{
		Use:     "delete CHANNEL",
		Short:   "Delete a channel with its notifications",
		Example: "  signalbox notifications channels delete ops --yes",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, c, err := opts.theChannel(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return opts.deleteNamed(cmd.Context(), s, &confirm, "channel", "channels", c.V.ID, c.V.Name,
				" What was sent through it, and what waits, goes with it.")
		},
	}
	confirm.add(cmd)
	return cmd
}
