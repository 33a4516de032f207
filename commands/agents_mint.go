package commands

import (
	"encoding/json"
	"fmt"
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
	var brainURL string
	cmd := &cobra.Command{
		Use:   "mint NAME",
		Short: "Create an agent and print the environment it connects with",
		Long: `Create an agent and print its environment, ready to paste into a shell, an env file or a unit.

The token and the HMAC secret are shown this once. The address is the one given with --brain-url, else the server's own.`,
		Example: `  signalbox agents mint web-1
  signalbox agents mint web-1 --brain-url https://signalbox.example.com > web-1.env
  signalbox agents mint web-1 --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if brainURL != "" {
				if _, err := parseServer(brainURL); err != nil {
					return usagef("--brain-url: %w", err)
				}
			}
			s, err := opts.newScope(cmd.Context())
			if err != nil {
				return err
			}
			var m minted
			if err := s.post(cmd.Context(), s.path("agents"), map[string]any{"name": args[0]}, &m); err != nil {
				return err
			}
			if brainURL == "" {
				brainURL = opts.findBrainURL(s.client)
			}
			env := mintedEnvironment(brainURL, s.slug, m)
			if opts.json {
				return opts.out.document(field{"agent", m.Agent}, field{"token", m.Token},
					field{"hmac_secret", m.HMACSecret}, field{"env", env})
			}
			opts.showMinted(args[0], brainURL, env)
			return nil
		},
	}
	cmd.Flags().StringVar(&brainURL, "brain-url", "", "address the agent will use, when it differs from what this command sees")
	return cmd
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

func (o *options) showMinted(name, brainURL string, env envList) {
	for _, pair := range env {
		o.out.text("export %s=%s", pair[0], shellQuote(pair[1]))
	}
	o.out.text("# WebSocket is the default. Behind a proxy that strips Upgrade headers, use long-poll (over https only):")
	o.out.text("# export Z4J_TRANSPORT=longpoll")
	o.out.say("agent %s minted; the token and the secret are not shown again", oneLine(name))
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
