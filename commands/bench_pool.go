package commands

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/transport/agentclient"
)

// benchPool are the agents of a bench, and how to get rid of them.
type benchPool struct {
	configs []agentclient.Config
	scope   *scope   // nil without an API
	ids     []string // of the agents, in the order of configs
	minted  []string // those of them to be revoked
}

// openPool mints the agents, or reads those that were given.
func (b *benchAgents) openPool(ctx context.Context, opts *options) (*benchPool, error) {
	pool := &benchPool{}
	if len(b.envFiles) > 0 {
		for _, file := range b.envFiles {
			cfg, id, err := b.readEnv(file)
			if err != nil {
				return nil, err
			}
			pool.configs, pool.ids = append(pool.configs, cfg), append(pool.ids, id)
		}
		if b.commands > 0 {
			s, err := opts.newScope(ctx)
			if err != nil {
				return nil, err
			}
			pool.scope = s
		}
		return b.prepare(opts, pool)
	}
	s, err := opts.newScope(ctx)
	if err != nil {
		return nil, err
	}
	pool.scope = s
	run := uuid.NewString()[:8]
	for i := range b.agents {
		if err := b.mint(ctx, opts, pool, fmt.Sprintf("bench-%s-%d", run, i+1)); err != nil {
			return nil, errors.Join(err, pool.close())
		}
	}
	return b.prepare(opts, pool)
}

func (b *benchAgents) mint(ctx context.Context, opts *options, pool *benchPool, name string) error {
	var m minted
	if err := pool.scope.post(ctx, pool.scope.path("agents"), map[string]any{"name": name}, &m); err != nil {
		return fmt.Errorf("mint %s: %w", name, err)
	}
	pool.ids, pool.minted = append(pool.ids, m.Agent.V.ID), append(pool.minted, m.Agent.V.ID)
	url := b.url
	if url == "" {
		url = opts.findBrainURL(pool.scope.client)
	}
	if url == "" {
		return usagef("--agent-url: needed, for the server's own address is not known here")
	}
	token, key, err := benchSecret(m.Token, m.HMACSecret)
	if err != nil {
		return err
	}
	pool.configs = append(pool.configs, agentclient.Config{URL: url, Token: token, ProjectSecret: key})
	return nil
}

// readEnv reads the file that `agents mint` printed.
func (b *benchAgents) readEnv(path string) (agentclient.Config, string, error) {
	f, err := os.Open(path)
	if err != nil {
		return agentclient.Config{}, "", usagef("--agent-env: %w", err)
	}
	defer f.Close()
	env := map[string]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(lines.Text()), "export "), "=")
		if ok && !strings.HasPrefix(name, "#") {
			env[name] = strings.Trim(value, `'"`)
		}
	}
	for _, name := range []string{"Z4J_BRAIN_URL", "Z4J_TOKEN", "Z4J_HMAC_SECRET", "Z4J_AGENT_ID"} {
		if env[name] == "" {
			return agentclient.Config{}, "", usagef("--agent-env: %s: %s is missing", path, name)
		}
	}
	url := env["Z4J_BRAIN_URL"]
	if b.url != "" {
		url = b.url
	}
	token, key, err := benchSecret(env["Z4J_TOKEN"], env["Z4J_HMAC_SECRET"])
	if err != nil {
		return agentclient.Config{}, "", usagef("--agent-env: %s: %w", path, err)
	}
	return agentclient.Config{URL: url, Token: token, ProjectSecret: key}, env["Z4J_AGENT_ID"], nil
}

// prepare completes the configurations with what all agents share.
func (b *benchAgents) prepare(opts *options, pool *benchPool) (*benchPool, error) {
	tlsConfig, err := opts.benchTLS()
	if err != nil {
		return nil, errors.Join(err, pool.close())
	}
	shared := &http.Client{Transport: &http.Transport{TLSClientConfig: tlsConfig, MaxIdleConnsPerHost: 2 * len(pool.configs)}}
	for i := range pool.configs {
		c := &pool.configs[i]
		c.TLS, c.Client = tlsConfig, shared
		c.Engines = []string{"celery"}
		c.Capabilities = map[string][]string{"celery": {"cancel_task", "retry_task", "retry_by_reference_v1"}}
		c.RetryContracts = c.Engines
	}
	return pool, nil
}

func (o *options) benchTLS() (*tls.Config, error) {
	file := o.caFile
	if file == "" {
		file = o.stdio.env("SIGNALBOX_CA_FILE")
	}
	if file == "" {
		return nil, nil
	}
	pool, err := readAuthorities(file)
	if err != nil {
		return nil, err
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// close revokes the agents that were minted.
func (p *benchPool) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	for _, id := range p.minted {
		if err := p.scope.do(ctx, http.MethodDelete, p.scope.path("agents", id), nil, nil, nil); err != nil {
			errs = append(errs, fmt.Errorf("revoke %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}
