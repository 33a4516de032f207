package agentclient

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox/appliance/rawjson"
	"signalbox/appliance/secret"
	"signalbox/transport/wire"
)

// Headers of the long-poll routes (agent protocol F.1, F.2).
const (
	headerNonce   = "X-Z4J-Session-Nonce"
	headerFeature = "X-Z4J-Runtime-Features"
	headerRetry   = "X-Z4J-Retry-Contracts"
	headerAgent   = "X-Z4J-Agent-Id"
	headerProject = "X-Z4J-Project-Id"
)

// LP is one long-poll session. Polls and uploads may overlap; uploads are to be made one at a time, for frames must
// arrive in the order they were signed.
type LP struct {
	AgentID   uuid.UUID
	ProjectID uuid.UUID
	Nonce     string

	cfg      Config
	client   *http.Client
	signer   *wire.Signer
	verifier *wire.Verifier
}

// Outgoing is one frame to upload. Payload is in any spelling.
type Outgoing struct {
	Type    wire.Type
	ID      string
	Payload []byte
}

// Upload is the answer to an upload.
type Upload struct {
	Accepted  int      `json:"accepted"`
	Rejected  int      `json:"rejected"`
	Errors    []string `json:"errors"`
	ErrorCode *string  `json:"error_code"`
}

// OpenLP makes a fresh nonce and probes. A refusal is a *StatusError.
func OpenLP(ctx context.Context, cfg Config) (*LP, error) {
	return OpenLPNonce(ctx, cfg, secret.NewToken().Reveal()[:22])
}

// OpenLPNonce is OpenLP under a nonce of the caller's; "" is the legacy session.
func OpenLPNonce(ctx context.Context, cfg Config, nonce string) (*LP, error) {
	l := &LP{cfg: cfg, client: cfg.Client, Nonce: nonce}
	if l.client == nil {
		l.client = &http.Client{Transport: &http.Transport{TLSClientConfig: cfg.TLS}}
	}
	resp, _, err := l.get(ctx, 0, 0)
	if err != nil {
		return nil, err
	}
	if l.AgentID, err = uuid.Parse(resp.Get(headerAgent)); err != nil {
		return nil, fmt.Errorf("probe: %s: %w", headerAgent, err)
	}
	if l.ProjectID, err = uuid.Parse(resp.Get(headerProject)); err != nil {
		return nil, fmt.Errorf("probe: %s: %w", headerProject, err)
	}
	b := wire.Binding{Secret: cfg.ProjectSecret, AgentID: l.AgentID, ProjectID: l.ProjectID, Session: nonce}
	l.signer, l.verifier = wire.NewSigner(b), wire.NewVerifier(b)
	return l, nil
}

// Sign makes the wire text of a frame of this session.
func (l *LP) Sign(o Outgoing) (string, error) {
	payload, err := canonical(string(o.Payload))
	if err != nil {
		return "", err
	}
	return string(l.signer.Sign(l.cfg.now(), o.Type, o.ID, payload)), nil
}

// Upload signs and uploads frames.
func (l *LP) Upload(ctx context.Context, frames ...Outgoing) (Upload, error) {
	texts := make([]string, len(frames))
	for i, f := range frames {
		text, err := l.Sign(f)
		if err != nil {
			return Upload{}, err
		}
		texts[i] = text
	}
	return l.UploadRaw(ctx, texts...)
}

// UploadRaw uploads frame texts as they are.
func (l *LP) UploadRaw(ctx context.Context, frames ...string) (Upload, error) {
	body := append([]byte(nil), `{"frames":[`...)
	for i, f := range frames {
		if i > 0 {
			body = append(body, ',')
		}
		body = rawjson.AppendString(body, f)
	}
	return l.UploadBody(ctx, append(body, `]}`...))
}

// UploadBody posts a body as it is.
func (l *LP) UploadBody(ctx context.Context, body []byte) (Upload, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.cfg.base()+"/api/v1/agent/events", bytes.NewReader(body))
	if err != nil {
		return Upload{}, fmt.Errorf("upload: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	_, data, err := l.do(req)
	if err != nil {
		return Upload{}, err
	}
	var u Upload
	if err := json.Unmarshal(data, &u); err != nil {
		return Upload{}, fmt.Errorf("upload: %w", err)
	}
	return u, nil
}

// Poll takes commands, waiting up to wait (whole seconds) for at most limit of them.
func (l *LP) Poll(ctx context.Context, wait time.Duration, limit int) ([]Command, error) {
	_, data, err := l.get(ctx, wait, limit)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Frames []string `json:"frames"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, fmt.Errorf("poll: %w", err)
	}
	commands := make([]Command, 0, len(answer.Frames))
	for _, text := range answer.Frames {
		c, err := l.verify(text)
		if err != nil {
			return nil, err
		}
		commands = append(commands, c)
	}
	return commands, nil
}

func (l *LP) verify(text string) (Command, error) {
	f, err := wire.ParseFrame([]byte(text))
	if err != nil {
		return Command{}, err
	}
	defer f.Release()
	if err := l.verifier.Verify(&f, l.cfg.now()); err != nil {
		return Command{}, err
	}
	return readCommand(&f)
}

func (l *LP) get(ctx context.Context, wait time.Duration, limit int) (http.Header, []byte, error) {
	url := l.cfg.base() + "/api/v1/agent/commands?wait=" + strconv.Itoa(int(wait/time.Second)) + "&max_frames=" + strconv.Itoa(limit)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("poll: %w", err)
	}
	return l.do(req)
}

// do adds the headers that the agent sends on every request.
func (l *LP) do(req *http.Request) (http.Header, []byte, error) {
	maps.Copy(req.Header, l.cfg.Header)
	req.Header.Set("Authorization", "Bearer "+l.cfg.Token.Reveal())
	if l.Nonce != "" {
		req.Header.Set(headerNonce, l.Nonce)
	}
	req.Header.Set(headerFeature, strings.Join(l.cfg.Features, ","))
	pairs := make([]string, len(l.cfg.RetryContracts))
	for i, engine := range l.cfg.RetryContracts {
		pairs[i] = engine + "=1"
	}
	req.Header.Set(headerRetry, strings.Join(pairs, ","))
	resp, err := l.client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, nil, statusError(resp)
	}
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, fmt.Errorf("read response: %w", err)
	}
	return resp.Header, data, nil
}

// maxErrorBody bounds what is kept of a refusal.
const maxErrorBody = 4 << 10

func statusError(resp *http.Response) error {
	e := &StatusError{Status: resp.StatusCode, RetryAfter: resp.Header.Get("Retry-After")}
	e.Body, _ = io.ReadAll(io.LimitReader(resp.Body, maxErrorBody)) // what came is what there is
	var body struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(e.Body, &body) == nil {
		e.Code = body.Error
	}
	return e
}
