//go:build interop

package commands

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// tools is what all interop tests share.
type tools struct {
	binary string // the product
	python string // of a virtual environment that holds the published agent
	redis  string
	source string // directory of the Python files
}

// findTools builds the product and, unless an earlier run left it in the user's cache, the virtual environment.
func findTools(t *testing.T) tools {
	t.Helper()
	source, err := filepath.Abs("testdata/interop")
	if err != nil {
		t.Fatal(err)
	}
	redis, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatalf("install the redis-server of your distribution: %v", err)
	}
	python, err := virtualEnvironment(filepath.Join(source, "requirements.txt"))
	if err != nil {
		t.Fatal(err)
	}
	return tools{binary: buildBinary(t), python: python, redis: redis, source: source}
}

// virtualEnvironment returns the Python of an environment with the requirements. It is kept in the user's cache under a
// name made of the requirements and the Python version; a lock file lets test processes share it.
func virtualEnvironment(requirements string) (string, error) {
	base, err := exec.LookPath("python3")
	if err != nil {
		return "", fmt.Errorf("install Python 3: %w", err)
	}
	content, err := os.ReadFile(requirements)
	if err != nil {
		return "", err
	}
	ctx := context.Background()
	version, err := runProgram(ctx, os.Environ(), base, "-c", "import sys; print(sys.executable, sys.version)")
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", base, err, version)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	sum := sha256.Sum256(append(content, version...))
	dir := filepath.Join(cache, "signalbox-interop", hex.EncodeToString(sum[:8]))
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	python, complete := filepath.Join(dir, "bin", "python"), filepath.Join(dir, "complete")
	if _, err := os.Stat(complete); err == nil {
		return python, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if out, err := runProgram(ctx, os.Environ(), base, "-m", "venv", "--clear", dir); err != nil {
		return "", fmt.Errorf("make a virtual environment (Debian: install python3-venv): %w\n%s", err, out)
	}
	out, err := runProgram(ctx, os.Environ(), python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
		"--requirement", requirements)
	if err != nil {
		return "", fmt.Errorf("pip install: %w\n%s", err, out)
	}
	return python, os.WriteFile(complete, nil, 0o600)
}

// newCertificate makes an authority and a certificate of 127.0.0.1 that it signed. It sets r.caFile.
func (r *rig) newCertificate() (certFile, keyFile string) {
	r.t.Helper()
	now := time.Now()
	caKey, leafKey := r.newKey(), r.newKey()
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "interop authority"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign}
	caDER := r.sign(ca, ca, caKey, caKey)
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "signalbox"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	leafDER := r.sign(leaf, ca, leafKey, caKey)
	keyDER, err := x509.MarshalPKCS8PrivateKey(leafKey)
	if err != nil {
		r.t.Fatal(err)
	}
	r.caFile = r.writePEM("ca.pem", "CERTIFICATE", caDER)
	return r.writePEM("cert.pem", "CERTIFICATE", leafDER), r.writePEM("key.pem", "PRIVATE KEY", keyDER)
}

func (r *rig) newKey() *ecdsa.PrivateKey {
	r.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		r.t.Fatal(err)
	}
	return key
}

func (r *rig) sign(subject, issuer *x509.Certificate, key, issuerKey *ecdsa.PrivateKey) []byte {
	r.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, subject, issuer, &key.PublicKey, issuerKey)
	if err != nil {
		r.t.Fatal(err)
	}
	return der
}

func (r *rig) writePEM(name, kind string, der []byte) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return path
}
