package transport

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// writePair makes a self-signed pair with the serial number and returns the file names.
func writePair(t *testing.T, dir string, serial int64) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(serial),
		Subject:  pkix.Name{CommonName: strings.Repeat("n", int(serial))}, // so that the sizes differ too
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}},
		&x509.Certificate{SerialNumber: big.NewInt(serial)}, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der},
		keyFile: {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

func serialOf(t *testing.T, addr string) int64 {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

func TestTLSReload(t *testing.T) {
	dir := t.TempDir()
	c := fakeClock()
	var log bytes.Buffer
	certFile, keyFile := writePair(t, dir, 1)
	certs, err := LoadCertificates(certFile, keyFile, c, zerolog.New(&log))
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t, ServerConfig{Listen: "127.0.0.1:0", TLS: certs, Handler: http.NotFoundHandler()})
	addr := s.Addresses()[ListenerMain]
	if got := serialOf(t, addr); got != 1 {
		t.Fatalf("serial %d", got)
	}
	writePair(t, dir, 2)
	if got := serialOf(t, addr); got != 1 {
		t.Fatalf("looked again at once: serial %d", got)
	}
	c.Advance(certificateLook)
	if got := serialOf(t, addr); got != 2 {
		t.Fatalf("changed files not seen: serial %d", got)
	}
	writePair(t, dir, 3)
	if err := certs.Reload(); err != nil {
		t.Fatal(err)
	}
	if got := serialOf(t, addr); got != 3 {
		t.Fatalf("after Reload: serial %d", got)
	}
	if err := os.WriteFile(certFile, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := certs.Reload(); err == nil || !strings.Contains(err.Error(), certFile) {
		t.Fatalf("Reload of a broken file: %v", err)
	}
	c.Advance(certificateLook)
	if got := serialOf(t, addr); got != 3 {
		t.Fatalf("a broken file replaced the pair: serial %d", got)
	}
	if !strings.Contains(log.String(), "stays in use") {
		t.Fatal("nobody was told")
	}
}

func TestTLSServesRequests(t *testing.T) {
	certFile, keyFile := writePair(t, t.TempDir(), 1)
	certs, err := LoadCertificates(certFile, keyFile, fakeClock(), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t, ServerConfig{Listen: "127.0.0.1:0", TLS: certs, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) { WriteJSON(w, r, http.StatusOK, r.Proto) })})
	cl := client(t)
	cl.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	if status, body := fetch(t, cl, "https://"+s.Addresses()[ListenerMain]); status != 200 || body != "\"HTTP/1.1\"\n" {
		t.Fatalf("%d %s", status, body)
	}
}

func TestLoadCertificatesNamesTheFile(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.pem")
	if _, err := LoadCertificates(missing, missing, fakeClock(), zerolog.Nop()); err == nil ||
		!strings.Contains(err.Error(), missing) {
		t.Fatalf("got %v", err)
	}
}
