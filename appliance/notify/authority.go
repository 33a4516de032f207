package notify

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"

	"signalbox/appliance/fault"
)

const (
	maxCA     = 64 << 10 // bytes
	maxCACert = 20
)

// checkCA returns the certificates of a PEM text without what stands around them. "" stays "". tls tells whether they have
// a use.
func checkCA(text string, tls bool) (string, error) {
	const field = "settings.ca"
	switch {
	case text == "":
		return "", nil
	case !tls:
		return "", fault.Field(field, "has no use without TLS")
	case len(text) > maxCA:
		return "", fault.Field(field, "must have at most %d bytes", maxCA)
	}
	var out bytes.Buffer
	n := 0
	for rest := []byte(text); ; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return "", fault.Field(field, "must hold certificates only")
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return "", fault.Field(field, "has a certificate that cannot be read")
		}
		_ = pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes}) // a buffer takes it
	}
	if n < 1 || n > maxCACert {
		return "", fault.Field(field, "must have 1..%d certificates in PEM", maxCACert)
	}
	return out.String(), nil
}
