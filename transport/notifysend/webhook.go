package notifysend

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"signalbox/appliance/notify"
)

// The headers of a webhook, as the Standard Webhooks specification names them.
const (
	HeaderID        = "webhook-id"        // the message's id, the same over all attempts
	HeaderTimestamp = "webhook-timestamp" // of the attempt, in seconds since 1970
	HeaderSignature = "webhook-signature" // "v1," and base64 of the HMAC
)

// maxAnswer is how much of an answer is read; nothing of it is kept.
const maxAnswer = 64 << 10

// Sign is the signature of a webhook: "v1," and base64 of HMAC-SHA256 over "<id>.<timestamp>.<body>".
func Sign(key []byte, id, timestamp string, body []byte) string {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(id + "." + timestamp + "."))
	h.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(h.Sum(nil))
}

// sendWebhook posts the message's body. Every status of 200 to 299 accepts it; redirects are not followed.
func (s *Sender) sendWebhook(ctx context.Context, w *notify.WebhookSettings, m notify.Message) error {
	const who = "the receiver"
	key, err := notify.SigningKey(w.Secret)
	if err != nil {
		return &notify.SendError{Msg: "the signing secret is not usable", Permanent: true}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL.Reveal(), bytes.NewReader(m.Body))
	if err != nil {
		return &notify.SendError{Msg: "the URL is not usable", Permanent: true}
	}
	id, at := m.ID.String(), strconv.FormatInt(s.opts.Clock.Now().Unix(), 10)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "Signalbox/"+s.opts.Version)
	req.Header.Set(HeaderID, id)
	req.Header.Set(HeaderTimestamp, at)
	req.Header.Set(HeaderSignature, Sign(key, id, at, m.Body))
	c := s.http
	if w.CA != "" { // a connection of its own: those of others may have been trusted for another reason
		t := s.http.Transport.(*http.Transport).Clone()
		t.TLSClientConfig, t.DisableKeepAlives = s.trust(w.CA), true
		c = client(t)
	}
	resp, err := c.Do(req)
	if err != nil {
		return networkError(who, err)
	}
	defer resp.Body.Close()
	// Read a little, so that the connection can be used again. What is told comes from the status alone.
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	return statusError(who, resp.StatusCode, resp.Header.Get("Retry-After"))
}

// permanent are the statuses after which the same request would fail again. Others may pass: a proxy that has no backend,
// a receiver that is deployed, a bucket that is empty.
func permanent(status int) bool {
	switch status {
	case 400, 405, 406, 410, 411, 413, 414, 415, 422, 431, 451, 501, 505:
		return true
	}
	return status >= 300 && status < 400
}

func statusError(who string, status int, retryAfter string) error {
	if status >= 200 && status < 300 {
		return nil
	}
	e := &notify.SendError{Msg: fmt.Sprintf("%s answered %d", who, status), Permanent: permanent(status)}
	if text := http.StatusText(status); text != "" {
		e.Msg += " " + text
	}
	if status >= 300 && status < 400 {
		e.Msg += "; redirects are not followed"
	}
	if n, err := strconv.Atoi(retryAfter); err == nil && n > 0 && n < 1<<20 {
		e.RetryAfter = time.Duration(n) * time.Second
	}
	return e
}
