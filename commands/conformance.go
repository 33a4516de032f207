package commands

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"signalbox/appliance/secret"
	"signalbox/transport/roomclient"
	"signalbox/transport/roomclient/conformance"
)

func newConformanceCommand(opts *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "conformance",
		Short: "Check that a server keeps to a protocol",
		Long: `Check that a server keeps to a protocol, from the outside, as its clients see it.

Conformance makes real agents and rooms. It takes away what it made, as far as the server lets it.`,
		Example: "  signalbox conformance rooms --server https://signalbox.example.com --key-file registration.key",
	}
	cmd.AddCommand(newConformanceRoomsCommand(opts))
	return cmd
}

// conformanceRooms are the settings of `conformance rooms`.
type conformanceRooms struct {
	key, keyFile string
	agentKeys    []string
	only         []int
	timeout      time.Duration
}

func newConformanceRoomsCommand(opts *options) *cobra.Command {
	var c conformanceRooms
	cmd := &cobra.Command{
		Use:   "rooms",
		Short: "Replay the acceptance vectors of the rooms protocol against a server",
		Long: `Replay the acceptance vectors of the rooms protocol against any server that speaks it, knowing its address and a
registration key. Two agents are registered, rooms are made, one agent speaks and the other listens; at the end the agents
are deleted and the rooms archived. Where no key can be had, --agent-key names two agents that exist.

One line is written per vector: its number, pass, FAIL or skipped, its name, and under it the section that was broken with
what was seen, or why it was skipped. A run takes about two minutes, most of them waiting for what must not happen.`,
		Example: `  signalbox conformance rooms --server https://signalbox.example.com --key-file registration.key
  signalbox conformance rooms --server http://127.0.0.1:7700 --key-file registration.key --only 5,7 --json
  signalbox conformance rooms --server https://rooms.example.com \
    --agent-key 5b0c1f6e-33a1-4a53-8b7e-0d1f8f3a9c11=KEY --agent-key 8d3e7a52-71c4-4f0a-9a57-2f6f0c1b7e22=KEY`,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context(), opts) },
	}
	f := cmd.Flags()
	f.StringVar(&c.key, "key", "", "registration key; prefer --key-file, arguments show in process lists")
	f.StringVar(&c.keyFile, "key-file", "", "file with the registration key")
	f.StringArrayVar(&c.agentKeys, "agent-key", nil, "ID=KEY of an agent that exists; give it twice")
	f.IntSliceVar(&c.only, "only", nil, "only the vectors of these numbers")
	durationVar(f, &c.timeout, "timeout", conformance.DefaultTimeout, "longest time for one vector, beside what it has to wait")
	return cmd
}

// options reads the flags.
func (c *conformanceRooms) options(opts *options) (o conformance.Options, err error) {
	known := len(conformance.Vectors())
	for _, n := range c.only {
		if n < 1 || n > known {
			return o, usagef("--only: the vectors are numbered 1 to %d, got %d", known, n)
		}
	}
	if c.timeout < time.Second {
		return o, usagef("--timeout: must be at least 1s, got %s", c.timeout)
	}
	if err := c.checkKeys(); err != nil {
		return o, err
	}
	o.Only, o.Timeout = c.only, c.timeout
	text := ""
	switch {
	case c.key != "":
		text, err = cleanAPIKey("--key", c.key)
	case c.keyFile != "":
		text, err = readAPIKey("--key-file", c.keyFile)
	case len(c.agentKeys) != 2:
		return o, usagef("--agent-key: two agents are needed, got %d", len(c.agentKeys))
	}
	if err != nil {
		return o, err
	}
	o.Key = secret.NewText(text)
	for _, pair := range c.agentKeys {
		a, err := readAgentKey(pair)
		if err != nil {
			return o, err
		}
		if slices.ContainsFunc(o.Agents, func(other conformance.Agent) bool { return other.ID == a.ID }) {
			return o, usagef("--agent-key: the two agents must differ")
		}
		o.Agents = append(o.Agents, a)
	}
	return o, c.reach(opts, &o)
}

// checkKeys wants exactly one way to have agents.
func (c *conformanceRooms) checkKeys() error {
	ways := 0
	for _, given := range []bool{c.key != "", c.keyFile != "", len(c.agentKeys) > 0} {
		if given {
			ways++
		}
	}
	switch ways {
	case 0:
		return usagef("a registration key is needed: make one with `signalbox roomagents keys mint conformance --out registration.key` " +
			"and give it with --key-file; where none can be had, name two agents that exist with --agent-key")
	case 1:
		return nil
	}
	return usagef("give only one of --key, --key-file and --agent-key")
}

// readAgentKey reads ID=KEY. Its errors show no key.
func readAgentKey(pair string) (conformance.Agent, error) {
	id, key, ok := strings.Cut(pair, "=")
	if !ok {
		return conformance.Agent{}, usagef("--agent-key: must be ID=KEY")
	}
	parsed, err := uuid.Parse(id)
	if err != nil {
		return conformance.Agent{}, usagef("--agent-key: %q is not the id of an agent", cut(oneLine(id), 40))
	}
	key, err = cleanAPIKey("--agent-key", key)
	return conformance.Agent{ID: parsed, Key: secret.NewText(key)}, err
}

// reach sets how the server is reached. There is no local way: what is asked is what clients of the network see.
func (c *conformanceRooms) reach(opts *options, o *conformance.Options) error {
	server, origin := opts.server, "--server"
	if server == "" {
		server, origin = opts.stdio.env("SIGNALBOX_SERVER"), "SIGNALBOX_SERVER"
	}
	if server == "" {
		return usagef("--server: is required, the base URL that agents use")
	}
	remote, err := opts.newRemoteClient(origin, server)
	if err != nil {
		return err
	}
	base, err := url.Parse(remote.base)
	if err != nil {
		return usagef("%s: not a URL", origin)
	}
	if base.Scheme == "http" && !isLoopback(base.Hostname()) {
		opts.out.say("warning: sending keys to %s without TLS", base.Host)
	}
	o.Endpoint, o.HTTP = remote.base, remote.http
	if t, ok := remote.http.Transport.(*http.Transport); ok && t.TLSClientConfig != nil {
		o.TLS = &tls.Config{RootCAs: t.TLSClientConfig.RootCAs, MinVersion: tls.VersionTLS12}
	}
	return nil
}

func (c *conformanceRooms) run(ctx context.Context, opts *options) error {
	o, err := c.options(opts)
	if err != nil {
		return err
	}
	defer o.HTTP.CloseIdleConnections()
	if !opts.json {
		o.Report = func(r conformance.Result) { opts.out.vector(&r) }
	}
	report, err := conformance.Run(ctx, o)
	for _, left := range report.Left {
		opts.out.say("left behind: %s", oneLine(left))
	}
	if err != nil && len(report.Results) == 0 {
		return conformanceTrouble(o.Endpoint, err)
	}
	failed := report.Failures()
	if e := opts.showReport(o.Endpoint, &report); e != nil {
		return e
	}
	switch {
	case err != nil:
		return fmt.Errorf("broken off: %w", err)
	case failed > 0:
		return exitf(ExitFailed, "%d of %d vectors failed", failed, len(report.Results))
	}
	return nil
}

// conformanceTrouble is why nothing could be replayed.
func conformanceTrouble(server string, err error) error {
	var (
		refused *roomclient.StatusError
		network *url.Error
	)
	switch {
	case errors.As(err, &refused) && (refused.Status == http.StatusUnauthorized || refused.Status == http.StatusForbidden):
		e := exitf(ExitAuth, "%s", oneLine(err.Error()))
		e.hint = "a registration key is made with `signalbox roomagents keys mint`, or in the gateway with POST /gateway/api-keys; an agent's own key " +
			"registers nothing"
		return e
	case errors.As(err, &refused):
		e := exitf(ExitFailed, "%s", oneLine(err.Error()))
		e.hint = "is this the address of a server that speaks the rooms protocol?"
		return e
	case errors.As(err, &network):
		return &unreachableError{target: server, err: err, hint: "check the address, and that a server listens there"}
	}
	return err
}

// vector writes the line of one result, and under it what there is to say.
func (p *printer) vector(r *conformance.Result) {
	p.text("%2d  %-7s  %s", r.Number, r.Outcome, r.Name)
	detail := cut(oneLine(r.Detail), 600)
	switch {
	case r.Rule != "":
		p.text("             %s: %s", r.Rule, detail)
	case detail != "":
		p.text("             %s", detail)
	}
}

// showReport writes the sums, or the whole document.
func (o *options) showReport(server string, r *conformance.Report) error {
	sums := map[conformance.Outcome]int{}
	for i := range r.Results {
		sums[r.Results[i].Outcome]++
	}
	if o.json {
		return o.out.document(field{"server", server}, field{"passed", sums[conformance.Passed]}, field{"failed", sums[conformance.Failed]},
			field{"skipped", sums[conformance.Skipped]}, field{"vectors", nonNil(r.Results)}, field{"left", nonNil(r.Left)})
	}
	o.out.text("%s passed, %s failed, %s skipped", strconv.Itoa(sums[conformance.Passed]), strconv.Itoa(sums[conformance.Failed]),
		strconv.Itoa(sums[conformance.Skipped]))
	return nil
}
