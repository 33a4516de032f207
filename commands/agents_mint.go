package commands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

func newAgentsMintCommand(opts *options) *cobra.Command {
	var brainURL, format, outPath string
	cmd := &cobra.Command{
		Use:   "mint NAME",
		Short: "Create an agent and print the environment it connects with",
		Long: `Create an agent and print its environment: as lines to paste into a shell, or with --format env as NAME=VALUE lines for
the EnvironmentFile of a unit or the env file of a container.

The token is shown this once; the HMAC secret can be shown again with "agents secret". With --out they go to a new file that only its owner can read, and not
to the terminal. The address is the one given with --brain-url, else the server's own.`,
		Example: `  signalbox agents mint web-1
  signalbox agents mint web-1 --brain-url https://signalbox.example.com --format env --out web-1.env
  signalbox agents mint web-1 --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if brainURL != "" {
				if _, err := parseServer(brainURL); err != nil {
					return usagef("--brain-url: %w", err)
				}
			}
			if format != formatShell && format != formatEnv {
				return usagef("--format: must be shell or env, got %q", format)
			}
			return opts.mint(cmd.Context(), args[0], mintTo{brainURL: brainURL, format: format, path: outPath})
		},
	}
	cmd.Flags().StringVar(&brainURL, "brain-url", "", "address the agent will use, when it differs from what this command sees")
	cmd.Flags().StringVar(&format, "format", formatShell, "shell: export lines; env: NAME=VALUE lines for an env file")
	cmd.Flags().StringVar(&outPath, "out", "", "new file for the environment, readable by its owner only; never overwrites")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{formatShell, formatEnv}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// Forms of a minted environment.
const (
	formatShell = "shell"
	formatEnv   = "env"
)

// mintTo says where a minted environment goes and in what form; path is empty for stdout.
type mintTo struct{ brainURL, format, path string }

func (o *options) mint(ctx context.Context, name string, to mintTo) (err error) {
	s, err := o.newScope(ctx)
	if err != nil {
		return err
	}
	var file *os.File
	if to.path != "" {
		// Made before the agent: what is minted is shown once and must have a place to go to.
		if file, err = createPrivate(to.path); err != nil {
			return err
		}
		defer func() {
			err = errors.Join(err, file.Close())
			if err != nil {
				err = errors.Join(err, os.Remove(to.path))
			}
		}()
	}
	var m minted
	if err := s.post(ctx, s.path("agents"), map[string]any{"name": name}, &m); err != nil {
		return err
	}
	if to.brainURL == "" {
		to.brainURL = o.findBrainURL(s.client)
	}
	env := mintedEnvironment(to.brainURL, s.slug, m)
	if file != nil {
		if err := errors.Join(writeEnvironment(file, to.format, env), file.Sync()); err != nil {
			return fmt.Errorf("write the environment of agent %s: %w", m.Agent.V.ID, err)
		}
		if o.json {
			return o.out.document(field{"agent", m.Agent}, field{"path", to.path})
		}
		o.out.text("%s", to.path)
	} else if o.json {
		return o.out.document(field{"agent", m.Agent}, field{"token", m.Token},
			field{"hmac_secret", m.HMACSecret}, field{"env", env})
	} else {
		o.out.wrote = true
		if err := writeEnvironment(o.stdio.Out, to.format, env); err != nil {
			return fmt.Errorf("write result: %w", err)
		}
	}
	o.adviseMinted(name, to.brainURL)
	return nil
}

// createPrivate makes a new file of mode 0600.
func createPrivate(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, exitf(ExitConflict, "%s exists already; it was left as it is, and no agent was minted", path)
	}
	if err != nil {
		return nil, usagef("--out: %w", err)
	}
	return file, nil
}

// envList is an environment in order; as JSON it is an object.
type envList [][2]string

func (e envList) MarshalJSON() ([]byte, error) {
	var b strings.Builder
	b.WriteByte('{')
	for i, pair := range e {
		if i > 0 {
			b.WriteByte(',')
		}
		value, err := marshal(pair[1])
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%q:%s", pair[0], value)
	}
	b.WriteByte('}')
	return []byte(b.String()), nil
}

func mintedEnvironment(brainURL, slug string, m minted) envList {
	if brainURL == "" {
		brainURL = "https://REPLACE-WITH-THIS-SERVER"
	}
	env := envList{
		{"Z4J_BRAIN_URL", brainURL},
		{"Z4J_PROJECT_ID", slug},
		{"Z4J_AGENT_ID", m.Agent.V.ID},
		{"Z4J_TOKEN", m.Token},
		{"Z4J_HMAC_SECRET", m.HMACSecret},
	}
	const longestAgentName = 64 // what the agent software takes; the name here may be longer
	if name := m.Agent.V.Name; utf8.RuneCountInString(name) <= longestAgentName {
		env = append(env, [2]string{"Z4J_AGENT_NAME", name})
	}
	return env
}

// writeEnvironment writes the variables in a form. In an env file a value stands as it is: what reads such files differs
// on quotes, so a name that would need them is left out; the agent then goes without one.
func writeEnvironment(w io.Writer, format string, env envList) error {
	prefix := ""
	if format == formatShell {
		prefix = "export "
	}
	var b strings.Builder
	for _, pair := range env {
		value := shellQuote(pair[1])
		if format == formatEnv && value != pair[1] {
			fmt.Fprintf(&b, "# %s is left out: its value holds characters that readers of env files take differently\n", pair[0])
			continue
		}
		fmt.Fprintf(&b, "%s%s=%s\n", prefix, pair[0], value)
	}
	b.WriteString("# WebSocket is the default. Behind a proxy that strips Upgrade headers, use long-poll (over https only):\n")
	b.WriteString("# " + prefix + "Z4J_TRANSPORT=longpoll\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (o *options) adviseMinted(name, brainURL string) {
	o.out.say("agent %s minted; the token is not shown again", oneLine(name))
	if brainURL == "" {
		o.out.say("set Z4J_BRAIN_URL to the address the agent reaches this server at")
	} else if strings.HasPrefix(brainURL, "http://") {
		o.out.say("agents accept plain http only to a loopback host, and long-poll needs https always")
	}
}

// shellQuote leaves plain words as they are and puts anything else in single quotes.
func shellQuote(s string) string {
	plain := s != ""
	for _, r := range s {
		if !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./:=@+,", r) {
			plain = false
		}
	}
	if plain {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// findBrainURL is the address agents may use: of the remote server as given, of a local one as it told in addresses.json.
func (o *options) findBrainURL(c *client) string {
	if strings.HasPrefix(c.target, "http") {
		return c.base
	}
	address, err := o.readAddress()
	if err != nil {
		return ""
	}
	return address
}

// readAddress finds the main listener in the data directory's addresses.json, an object of names to URLs or host:port.
func (o *options) readAddress() (string, error) {
	cfg, err := o.localConfig()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cfg.DataDir, "addresses.json")
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	var raw map[string]any
	if err := json.Unmarshal(data, &raw); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	for _, name := range []string{"url", "https", "http", "server", "main", "public"} {
		value, ok := raw[name].(string)
		if !ok || value == "" {
			continue
		}
		if name == "http" && o.servesTLS() {
			name = "https" // the listener's name does not tell
		}
		if u := addressURL(name, value); u != "" {
			return u, nil
		}
	}
	return "", fmt.Errorf("read %s: it names no main listener: %w", path, fs.ErrNotExist)
}

// servesTLS judges by the configuration that this process sees, which in a container is the server's own.
func (o *options) servesTLS() bool {
	cfg, _, _, err := o.loadConfig(nil)
	return err == nil && cfg.Server.TLS()
}

func addressURL(name, value string) string {
	if u, err := url.Parse(value); err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" {
		return strings.TrimRight(value, "/")
	}
	host, port, err := net.SplitHostPort(value)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		host = "127.0.0.1"
	}
	scheme := "http"
	if name == "https" {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}
