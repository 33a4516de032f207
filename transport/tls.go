package transport

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"signalbox/appliance/clock"
)

// certificateLook is how often, at most, handshakes look at the files for a change.
const certificateLook = 10 * time.Second

// Certificates is a key pair from two PEM files, loaded again when they change. A pair that cannot be loaded leaves the
// one before in use.
type Certificates struct {
	certFile, keyFile string
	clock             clock.Clock
	log               zerolog.Logger
	pair              atomic.Pointer[tls.Certificate]
	nextLook          atomic.Int64

	mu    sync.Mutex // one loader
	stamp [2]fileStamp
}

// fileStamp tells whether a file has changed.
type fileStamp struct {
	modified time.Time
	size     int64
}

// LoadCertificates reads the pair for the first time.
func LoadCertificates(certFile, keyFile string, c clock.Clock, log zerolog.Logger) (*Certificates, error) {
	t := &Certificates{certFile: certFile, keyFile: keyFile, clock: c, log: log}
	if err := t.Reload(); err != nil {
		return nil, err
	}
	return t, nil
}

// Use changes to other files, or reads the same ones again. On error the pair before stays in use, and so do its files.
func (t *Certificates) Use(certFile, keyFile string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := [2]string{t.certFile, t.keyFile}
	t.certFile, t.keyFile = certFile, keyFile
	stamp, err := t.stamps()
	if err == nil {
		err = t.load(stamp)
	}
	if err != nil {
		t.certFile, t.keyFile = before[0], before[1]
	}
	return err
}

// Reload reads the files now. On error the pair before stays in use.
func (t *Certificates) Reload() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	stamp, err := t.stamps()
	if err != nil {
		return err
	}
	return t.load(stamp)
}

// load runs under t.mu.
func (t *Certificates) load(stamp [2]fileStamp) error {
	pair, err := tls.LoadX509KeyPair(t.certFile, t.keyFile)
	if err != nil {
		return fmt.Errorf("load TLS certificate %s with key %s: %w", t.certFile, t.keyFile, err)
	}
	t.stamp = stamp
	t.pair.Store(&pair)
	t.nextLook.Store(t.clock.Now().Add(certificateLook).UnixNano())
	return nil
}

func (t *Certificates) stamps() (s [2]fileStamp, err error) {
	for i, name := range []string{t.certFile, t.keyFile} {
		fi, err := os.Stat(name)
		if err != nil {
			return s, fmt.Errorf("look at TLS file: %w", err)
		}
		s[i] = fileStamp{fi.ModTime(), fi.Size()}
	}
	return s, nil
}

// Config is the server configuration that uses the pair. HTTP/2 is not offered: WebSocket needs HTTP/1.1 and so do the
// agents.
func (t *Certificates) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: t.get}
}

// get returns the pair, after a look at the files when one is due. Only one handshake looks; the others go on with what
// there is.
func (t *Certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	now := t.clock.Now().UnixNano()
	due := t.nextLook.Load()
	if now >= due && t.nextLook.CompareAndSwap(due, now+int64(certificateLook)) {
		t.look()
	}
	return t.pair.Load(), nil
}

func (t *Certificates) look() {
	t.mu.Lock()
	defer t.mu.Unlock()
	stamp, err := t.stamps()
	if err == nil && stamp != t.stamp {
		if err = t.load(stamp); err == nil {
			t.log.Info().Str("file", t.certFile).Msg("TLS certificate reloaded")
		}
	}
	if err != nil {
		t.log.Error().Err(err).Msg("TLS certificate not reloaded, the one before stays in use")
	}
}
