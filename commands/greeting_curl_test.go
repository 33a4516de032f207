package commands

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestCurlIsToldWhatItNeeds(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	sign := func(names []string, ips ...net.IP) (path string, cert *x509.Certificate) {
		template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
			DNSNames: names, IPAddresses: ips, BasicConstraintsValid: true, IsCA: true}
		der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		if err == nil {
			cert, err = x509.ParseCertificate(der)
		}
		path = filepath.Join(t.TempDir(), "cert.pem")
		if err == nil {
			err = os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return path, cert
	}
	local, cert := sign([]string{"localhost"}, net.IPv4(127, 0, 0, 1))
	named, _ := sign([]string{"*.example.com", "nas.example.com"})
	addressed, _ := sign(nil, net.ParseIP("2001:db8::7"))
	nameless, _ := sign(nil)
	trusted := x509.NewCertPool()
	trusted.AddCert(cert)
	for _, c := range []struct {
		base, file      string
		roots           *x509.CertPool
		options, target string
	}{
		{"http://127.0.0.1:7700", "", nil, "", "http://127.0.0.1:7700"},
		{"https://127.0.0.1:7700", local, nil, "--cacert " + local + " ", "https://127.0.0.1:7700"},
		{"https://127.0.0.1:7700", local, trusted, "", "https://127.0.0.1:7700"},
		{"https://localhost:7700", named, nil, "--cacert " + named + " --connect-to nas.example.com:7700:localhost:7700 ",
			"https://nas.example.com:7700"},
		{"https://[::1]:7700", addressed, nil, "--cacert " + addressed + " --connect-to [2001:db8::7]:7700:[::1]:7700 ", "https://[2001:db8::7]:7700"},
		{"https://127.0.0.1:7700", nameless, nil, "--cacert " + nameless + " ", "https://127.0.0.1:7700"},
		{"https://127.0.0.1:7700", "/nowhere/cert.pem", nil, "", "https://127.0.0.1:7700"},
	} {
		roots := c.roots
		if roots == nil {
			roots = x509.NewCertPool()
		}
		if options, target := curlTarget(c.base, c.file, roots); options != c.options || target != c.target {
			t.Errorf("%s with %s: %q %q, want %q %q", c.base, c.file, options, target, c.options, c.target)
		}
	}
}
