package notifysend

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestTrust: a receiver with a certificate of its own is refused, unless its channel names that certificate; and that trust is
// no other channel's.
func TestTrust(t *testing.T) {
	t.Parallel()
	srv := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer srv.Close()
	s := newSender(t)
	plain := webhook(srv.URL)
	refused := func() {
		t.Helper()
		if err := s.Send(context.Background(), plain, message); err == nil ||
			err.Error() != "the receiver has a certificate that is not trusted" {
			t.Errorf("without the certificate: %v", err)
		}
	}
	refused()
	known := webhook(srv.URL)
	known.Webhook.CA = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}))
	if err := s.Send(context.Background(), known, message); err != nil {
		t.Errorf("with the certificate: %v", err)
	}
	refused()
	known.Webhook.URL = webhook(strings.Replace(srv.URL, "127.0.0.1", "localhost", 1)).Webhook.URL
	if err := s.Send(context.Background(), known, message); err == nil ||
		err.Error() != "the receiver has a certificate for another name" {
		t.Errorf("under another name: %v", err)
	}
}
