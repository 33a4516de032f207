package commands

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"signalbox/appliance/config"
)

const (
	apiPrefix = "/api/v1"
	// maxAnswer bounds what one answer may take of our memory: a page of 500 commands with large payloads fits.
	maxAnswer = 64 << 20
	// maxSecretFile bounds reading a key file, so that a wrong path to a device or log does not.
	maxSecretFile = 64 << 10
)

// client speaks the operator REST surface of one appliance.
type client struct {
	http    *http.Client
	base    string // scheme and authority, with an optional path prefix, no trailing slash
	target  string // what to call it in messages
	hint    string // what to do when it cannot be reached
	token   string // API key; empty over the unix socket
	timeout time.Duration
}

// newClient picks the transport. A flag wins over the environment as a whole: --data-dir means the socket even when
// SIGNALBOX_SERVER is set.
func (o *options) newClient() (*client, error) {
	server := o.server
	if server == "" && o.dataDir == "" {
		server = o.stdio.env("SIGNALBOX_SERVER")
	}
	if server == "" {
		return o.newSocketClient()
	}
	if o.server != "" && o.dataDir != "" {
		return nil, usagef("--server and --data-dir exclude each other: one is remote, one is local")
	}
	origin := "--server"
	if o.server == "" {
		origin = "SIGNALBOX_SERVER"
	}
	return o.newRemoteClient(origin, server)
}

func (o *options) newSocketClient() (*client, error) {
	cfg, err := o.localConfig()
	if err != nil {
		return nil, err
	}
	path := cfg.AdminSocketPath()
	dialer := &net.Dialer{}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", path)
		},
		DisableCompression: true,
	}
	return &client{
		http:    &http.Client{Transport: transport, CheckRedirect: refuseRedirect},
		base:    "http://signalbox",
		target:  path,
		hint:    "is `signalbox serve` running? Name another data directory with --data-dir, a remote appliance with --server",
		timeout: o.requestTimeout,
	}, nil
}

// localConfig is the configuration of the local appliance as far as clients need it: where its data directory and its
// socket are. A configuration file counts only when it was named; the rest of the environment is serve's to judge.
func (o *options) localConfig() (*config.Config, error) {
	if o.configFile != "" || o.stdio.env("SIGNALBOX_CONFIG") != "" {
		cfg, _, _, err := o.loadConfig(nil)
		if err != nil {
			return nil, &usageError{err: err}
		}
		return cfg, nil
	}
	cfg := config.Default()
	if o.dataDir != "" {
		cfg.DataDir = o.dataDir
		return cfg, nil
	}
	if dir := o.stdio.env("SIGNALBOX_DATA_DIR"); dir != "" {
		cfg.DataDir = dir
	}
	cfg.Server.AdminSocket = o.stdio.env("SIGNALBOX_SERVER_ADMIN_SOCKET")
	return cfg, nil
}

func (o *options) newRemoteClient(origin, server string) (*client, error) {
	base, err := parseServer(server)
	if err != nil {
		return nil, usagef("%s: %w", origin, err)
	}
	token, err := o.findAPIKey()
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   true,
	}
	caFile := o.caFile
	if caFile == "" {
		caFile = o.stdio.env("SIGNALBOX_CA_FILE")
	}
	if caFile != "" {
		pool, err := readAuthorities(caFile)
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	if token != "" && base.Scheme == "http" && !isLoopback(base.Hostname()) {
		o.out.say("warning: sending the API key to %s without TLS", base.Host)
	}
	return &client{
		http:    &http.Client{Transport: transport, CheckRedirect: refuseRedirect},
		base:    strings.TrimRight(base.String(), "/"),
		target:  base.Scheme + "://" + base.Host,
		hint:    "check the address, and that `signalbox serve` listens there",
		token:   token,
		timeout: o.requestTimeout,
	}, nil
}

// parseServer checks the base URL of a server. Its errors do not show it: it may hold a password.
func parseServer(server string) (*url.URL, error) {
	// Before parsing: of an address without a scheme the parser would tell something else.
	if !strings.HasPrefix(server, "http://") && !strings.HasPrefix(server, "https://") {
		return nil, errors.New("begin with https:// or http://")
	}
	base, err := url.Parse(server)
	switch {
	case err != nil:
		return nil, errors.New("not a URL") // the parser's message would show a password
	case base.Host == "":
		return nil, errors.New("names no host")
	case base.User != nil:
		return nil, errors.New("must not carry a user or password; use --api-key-file")
	case base.RawQuery != "" || base.Fragment != "":
		return nil, errors.New("must not have a query or fragment")
	}
	return base, nil
}

// refuseRedirect keeps the key on the host it was meant for. The API never redirects.
func refuseRedirect(req *http.Request, _ []*http.Request) error {
	return fmt.Errorf("redirected to %s://%s, which the API never does", req.URL.Scheme, req.URL.Host)
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func readAuthorities(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, usagef("ca-file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, usagef("ca-file: %s holds no PEM certificate", path)
	}
	return pool, nil
}

// findAPIKey takes the key from the first place that has one: the flags, then the environment.
func (o *options) findAPIKey() (string, error) {
	if o.apiKey != "" {
		return cleanAPIKey("--api-key", o.apiKey)
	}
	if o.apiKeyFile != "" {
		return readAPIKey("--api-key-file", o.apiKeyFile)
	}
	if key := o.stdio.env("SIGNALBOX_API_KEY"); key != "" {
		return cleanAPIKey("SIGNALBOX_API_KEY", key)
	}
	if path := o.stdio.env("SIGNALBOX_API_KEY_FILE"); path != "" {
		return readAPIKey("SIGNALBOX_API_KEY_FILE", path)
	}
	return "", nil
}

func readAPIKey(origin, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", usagef("%s: %w", origin, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSecretFile))
	if err != nil {
		return "", usagef("%s: %w", origin, err)
	}
	return cleanAPIKey(origin, string(text))
}

// cleanAPIKey refuses a key that could not be a header value. The message never shows it.
func cleanAPIKey(origin, key string) (string, error) {
	key = strings.TrimSpace(key)
	if key == "" {
		return "", usagef("%s: is empty", origin)
	}
	for _, r := range key {
		if r <= ' ' || r > '~' {
			return "", usagef("%s: holds a space or an unprintable character", origin)
		}
	}
	return key, nil
}

// get decodes the answer of a GET into out.
func (c *client) get(ctx context.Context, path string, query url.Values, out any) error {
	return c.do(ctx, http.MethodGet, path, query, nil, out)
}

// post sends body as JSON and decodes the answer into out; both may be nil.
func (c *client) post(ctx context.Context, path string, body, out any) error {
	return c.do(ctx, http.MethodPost, path, nil, body, out)
}

// do sends one request and never repeats it: only the caller knows whether that is safe. Path is below the API prefix.
func (c *client) do(ctx context.Context, method, path string, query url.Values, body, out any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, errAnswerTimeout)
	defer cancel()
	resp, err := c.send(ctx, method, path, query, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return c.transportError(ctx, fmt.Errorf("read answer: %w", err))
	}
	if len(data) > maxAnswer {
		return fmt.Errorf("%s %s: answer is larger than %d bytes", method, path, maxAnswer)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return c.refusal(resp, data)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("%s %s: answer is not what this client expects; is %s a Signalbox server? %w", method, path, c.target, err)
	}
	return nil
}

var errAnswerTimeout = errors.New("no answer within the request timeout")

// send returns the response with its body open, whatever its status.
func (c *client) send(ctx context.Context, method, path string, query url.Values, body any) (*http.Response, error) {
	target := c.base + apiPrefix + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	var reader io.Reader
	if body != nil {
		text, err := marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		reader = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, target, reader)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json, application/x-ndjson")
	req.Header.Set("User-Agent", "signalbox-cli")
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.transportError(ctx, err)
	}
	return resp, nil
}

// Next steps after trouble with TLS.
const (
	hintHTTPS     = "the server may speak https there: write https:// instead of http://"
	hintAuthority = "give the authority that signed the certificate with --ca-file"
)

// refusal is the error of an answer that is none of success, with the next step that only the asking side knows.
func (c *client) refusal(resp *http.Response, body []byte) error {
	api := decodeError(resp, body)
	switch {
	case api.status == http.StatusUnauthorized && c.token == "":
		api.fault.Msg = "no API key given"
		api.hint = "give an API key with --api-key-file or SIGNALBOX_API_KEY_FILE"
	case api.status == http.StatusUnauthorized:
		api.hint = "the server does not know this key: wrong, revoked or expired"
	case api.status == http.StatusBadRequest && api.bare && strings.HasPrefix(c.target, "http://"):
		api.hint = hintHTTPS // what Go's TLS listeners answer to a plain request is no document of the API
	}
	return api
}

// transportError tells a caller that gave up from a server that is not there.
func (c *client) transportError(ctx context.Context, err error) error {
	// The target is named by the message already; what is left of the chain is the reason.
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		err = op.Err
		var call *os.SyscallError
		if errors.As(err, &call) {
			err = call.Err
		}
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errAnswerTimeout):
		err = cause
	case ctx.Err() != nil:
		return ctx.Err()
	}
	hint := c.hint
	var authority x509.UnknownAuthorityError
	switch {
	case errors.As(err, &authority):
		hint = hintAuthority
	case errors.Is(err, http.ErrSchemeMismatch):
		hint = "the server speaks plain http there: write http:// instead of https://"
	case strings.HasPrefix(c.target, "http://") && errors.Is(err, io.EOF):
		hint = hintHTTPS // what a TLS port does with a plain request
	}
	return &unreachableError{target: c.target, hint: hint, err: err}
}
