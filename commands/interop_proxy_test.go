//go:build interop

package commands

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/secret"
	"signalbox/transport/roomclient"
)

// defaultProxyIdle is how long a stream stays quiet behind a proxy before the next event: longer than the 60 s after which
// nginx gives up a silent upstream unless told otherwise. docs/operations.md gives the long form.
const defaultProxyIdle = 75 * time.Second

// TestInteropProxies puts the proxies of deploy/ in front of the real binary, with those very files, and has room agents of
// both transports wait behind them: idle for long, then each event within a second. A proxy that strips Upgrade leaves
// the older transport working.
func TestInteropProxies(t *testing.T) {
	idle := defaultProxyIdle
	if text := os.Getenv("SIGNALBOX_PROXY_IDLE"); text != "" {
		var err error
		if idle, err = time.ParseDuration(text); err != nil {
			t.Fatalf("SIGNALBOX_PROXY_IDLE: %v", err)
		}
	}
	binary := buildBinary(t)
	for _, c := range []struct {
		name  string
		start func(p *proxied)
		strip bool
	}{
		{"nginx", (*proxied).startNginx, false},
		{"nginx without upgrade", (*proxied).startNginx, true},
		{"caddy", (*proxied).startCaddy, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newProxied(t, binary)
			p.strip = c.strip
			c.start(p)
			p.check(idle)
		})
	}
}

// proxied is a server, a proxy in front of it, and a room with two agents behind the proxy.
type proxied struct {
	t      *testing.T
	server *process
	dir    string
	port   int
	strip  bool
	tls    *tls.Config
	late   []string // events that took longer than a second
}

func newProxied(t *testing.T, binary string) *proxied {
	t.Helper()
	p := &proxied{t: t, dir: shortDir(t), port: freePort(t)}
	p.server = newProcess(t, binary)
	p.server.args = []string{"--server-behind-proxy", "--server-trusted-proxies", "127.0.0.1"}
	p.server.start()
	p.tls = p.certificate()
	return p
}

// certificate makes the proxy's certificate and what its clients trust.
func (p *proxied) certificate() *tls.Config {
	p.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "signalbox.example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), DNSNames: []string{"localhost"},
		IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		p.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		p.t.Fatal(err)
	}
	p.write("cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	p.write("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})))
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		p.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return &tls.Config{RootCAs: roots}
}

func (p *proxied) write(name, content string) string {
	p.t.Helper()
	path := filepath.Join(p.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return path
}

// example reads a file of deploy/ and replaces what is different on this machine; each replacement must be found.
func (p *proxied) example(name string, replace ...string) string {
	p.t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "deploy", name))
	if err != nil {
		p.t.Fatal(err)
	}
	text := string(content)
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(text, replace[i]) {
			p.t.Fatalf("deploy/%s has no %q", name, replace[i])
		}
		text = strings.ReplaceAll(text, replace[i], replace[i+1])
	}
	return text
}

func (p *proxied) startNginx() {
	site := p.example("nginx.conf",
		"listen 443 ssl;", fmt.Sprintf("listen 127.0.0.1:%d ssl;", p.port),
		"/etc/ssl/signalbox/cert.pem", filepath.Join(p.dir, "cert.pem"),
		"/etc/ssl/signalbox/key.pem", filepath.Join(p.dir, "key.pem"),
		"server 127.0.0.1:7700;", "server "+p.server.listen+";")
	if p.strip {
		lines := strings.Split(site, "\n")
		kept := lines[:0]
		for _, line := range lines {
			if !strings.Contains(line, "proxy_set_header Upgrade") && !strings.Contains(line, "proxy_set_header Connection") {
				kept = append(kept, line)
			}
		}
		site = strings.Join(kept, "\n") + "\n"
	}
	path := p.write("nginx.conf", fmt.Sprintf("daemon off;\nuser root;\nerror_log %[1]s/error.log;\npid %[1]s/nginx.pid;\n"+
		"events {}\nhttp {\naccess_log off;\nclient_body_temp_path %[1]s/body;\nproxy_temp_path %[1]s/proxy;\n"+
		"fastcgi_temp_path %[1]s/f;\nuwsgi_temp_path %[1]s/u;\nscgi_temp_path %[1]s/s;\n%[2]s}\n", p.dir, site))
	p.run("nginx", "-p", p.dir, "-c", path)
}

func (p *proxied) startCaddy() {
	site := p.example("Caddyfile",
		"signalbox.example.com {", fmt.Sprintf("https://localhost:%d {\n\ttls %s %s", p.port,
			filepath.Join(p.dir, "cert.pem"), filepath.Join(p.dir, "key.pem")),
		"127.0.0.1:7700 {", p.server.listen+" {")
	path := p.write("Caddyfile", "{\n\tadmin off\n\tauto_https off\n}\n"+site)
	p.run("caddy", "run", "--config", path, "--adapter", "caddyfile")
}

// run starts the proxy and waits until it listens.
func (p *proxied) run(program string, args ...string) {
	p.t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		if path, err = exec.LookPath("/usr/sbin/" + program); err != nil {
			p.t.Fatalf("%s is not installed: %v", program, err)
		}
	}
	log, err := os.Create(filepath.Join(p.dir, program+".log"))
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "HOME="+p.dir, "XDG_DATA_HOME="+p.dir, "XDG_CONFIG_HOME="+p.dir)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		log.Close()
		if p.t.Failed() {
			for _, name := range []string{log.Name(), filepath.Join(p.dir, "error.log"), p.server.log.Name()} {
				content, _ := os.ReadFile(name)
				p.t.Logf("%s:\n%s", name, tail(content, 3000))
			}
		}
	})
	deadline := time.Now().Add(patience)
	for {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p.port))
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%s does not listen: %v", program, err)
		}
		time.Sleep(50 * time.Millisecond) // another program's start gives no event to wait for
	}
}

// agent registers an agent and returns it as a client behind the proxy.
func (p *proxied) agent(name string) *roomclient.Config {
	p.t.Helper()
	var made struct {
		Env map[string]string `json:"env"`
	}
	p.cli(&made, "roomagents", "register", name, "--json")
	id, err := uuid.Parse(made.Env["SWITCH_AGENT_ID"])
	if err != nil {
		p.t.Fatal(err)
	}
	return &roomclient.Config{Endpoint: fmt.Sprintf("https://localhost:%d", p.port),
		Token: secret.NewText(made.Env["SWITCH_API_TOKEN"]), AgentID: id, TLS: p.tls,
		HTTP: &http.Client{Transport: &http.Transport{TLSClientConfig: p.tls}}}
}

func (p *proxied) cli(into any, args ...string) {
	p.t.Helper()
	out, err := p.server.cli(args...)
	if err != nil {
		p.t.Fatalf("%v: %v\n%s", args, err, out)
	}
	if into == nil {
		return
	}
	if err := json.Unmarshal(out, into); err != nil {
		p.t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

// say posts in the room. Every stream must have it, and what has it later than within a second is noted.
func (p *proxied) say(text string, streams map[string]*roomclient.Stream) {
	p.t.Helper()
	p.cli(nil, "rooms", "say", "Proxied", text)
	said := time.Now()
	for name, s := range streams {
		ctx, cancel := context.WithTimeout(p.t.Context(), patience)
		f, err := s.NextEvent(ctx)
		cancel()
		if err != nil {
			p.t.Fatalf("%s: %v", name, err)
		}
		if late := time.Since(said); late > time.Second {
			p.late = append(p.late, fmt.Sprintf("%s: %q came after %v", name, text, late))
		}
		if !strings.Contains(string(f.Data), text) {
			p.t.Errorf("%s: got %s, want %q", name, f.Data, text)
		}
		s.Processed(f.ID)
	}
}

func (p *proxied) check(idle time.Duration) {
	ctx, cancel := context.WithCancel(p.t.Context())
	defer cancel()
	socket, events := p.agent("socket"), p.agent("events")
	p.cli(nil, "rooms", "create", "Proxied", "--agent", "socket", "--agent", "events")
	streams := map[string]*roomclient.Stream{}
	open := func(name string, cfg *roomclient.Config, dial func(context.Context, *roomclient.Config, roomclient.Open) (*roomclient.Stream, error)) {
		o := roomclient.Current(uuid.NewString())
		o.Scope = "all"
		s, err := dial(ctx, cfg, o)
		if err != nil {
			p.t.Fatalf("%s: %v", name, err)
		}
		if _, err := s.AwaitState(ctx); err != nil {
			p.t.Fatalf("%s: %v", name, err)
		}
		streams[name] = s
	}
	if p.strip {
		o := roomclient.Current(uuid.NewString())
		if s, err := roomclient.Dial(ctx, socket, o); err == nil {
			if _, err = s.AwaitState(ctx); err == nil {
				p.t.Fatal("a socket opened through a proxy that strips Upgrade")
			}
		}
	} else {
		open("socket", socket, roomclient.Dial)
	}
	open("events", events, roomclient.DialSSE)
	p.say("first", streams)
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for name, s := range streams {
		select {
		case <-s.Done():
			p.t.Fatalf("%s: ended while idle", name)
		case <-timer.C:
			timer.Reset(0) // for the others
		}
	}
	for i := range 5 {
		p.say(fmt.Sprintf("after the silence %d", i), streams)
	}
	if len(p.late) > 2 { // a proxy that holds events back holds all of them back; one may fall into a stall of the machine
		p.t.Errorf("later than within a second: %q", p.late)
	}
}
