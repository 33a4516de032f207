package commands

import (
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// curlTarget returns the base URL by which curl reaches the server on this machine, and the options that it needs, with a
// space behind them: the certificate itself where no authority that the machine trusts has signed it, and the way to this machine
// where the certificate has another name than base. Roots are the machine's own when nil. What cannot be told leaves base.
func curlTarget(base, certFile string, roots *x509.CertPool) (options, target string) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "https" {
		return "", base
	}
	if abs, err := filepath.Abs(certFile); err == nil {
		certFile = abs
	}
	leaf, others := readChain(certFile)
	if leaf == nil {
		return "", base
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: others}); err != nil {
		options = "--cacert " + shellQuote(certFile) + " "
	}
	if name := certName(leaf); leaf.VerifyHostname(u.Hostname()) != nil && name != "" {
		named := net.JoinHostPort(name, u.Port())
		options += "--connect-to " + named + ":" + u.Host + " "
		u.Host = named
	}
	return options, u.String()
}

// readChain reads the certificates of a PEM file: the server's own, which is first, and those behind it. Nil when there is none.
func readChain(path string) (leaf *x509.Certificate, others *x509.CertPool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil
	}
	others = x509.NewCertPool()
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return leaf, others
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil:
		case leaf == nil:
			leaf = cert
		default:
			others.AddCert(cert)
		}
	}
}

// certName is a name or address that the certificate holds for; "" when it has none that can be written down.
func certName(cert *x509.Certificate) string {
	for _, name := range cert.DNSNames {
		if !strings.Contains(name, "*") {
			return name
		}
	}
	for _, ip := range cert.IPAddresses {
		return ip.String()
	}
	return ""
}
