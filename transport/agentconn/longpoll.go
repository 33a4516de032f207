package agentconn

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"signalbox/appliance/agent"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/appliance/secret"
	"signalbox/appliance/wake"
	"signalbox/transport"
	"signalbox/transport/wire"
)

// Paths of the long-poll routes (agent protocol F).
const (
	EventsPath   = "/api/v1/agent/events"
	CommandsPath = "/api/v1/agent/commands"
)

// LongPollOptions configure the long-poll transport.
type LongPollOptions struct {
	Limits        LPLimits
	ProjectSecret func(project uuid.UUID) secret.Bytes
}

// LongPoll serves the two long-poll routes. Create it with NewLongPoll.
type LongPoll struct {
	opts      LongPollOptions
	gate      *Gate
	directory Directory
	router    Router
	commands  Commands
	hub       *wake.Hub
	clock     clock.Clock
	log       zerolog.Logger
	metrics   *Metrics
	registry  *lpRegistry[*lpState]
	room      *uploadRoom
	worker    string // X-Z4J-LongPoll-Worker
}

// lpState is what a valid session holds beside its place in the registry.
type lpState struct {
	peer     agent.Peer
	remote   string
	signer   *wire.Signer
	verifier *wire.Verifier

	verifying sync.Mutex // uploads of one session are verified one after the other

	mu      sync.Mutex
	touched time.Time
	retry   []string // engines of the last claiming poll's retry contracts
}

// touchDue reports whether the liveness is to be written again, and takes note that it will be.
func (s *lpState) touchDue(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.touched.IsZero() && now.Sub(s.touched) < touchEvery {
		return false
	}
	s.touched = now
	return true
}

func (s *lpState) touchFailed() {
	s.mu.Lock()
	s.touched = time.Time{}
	s.mu.Unlock()
}

func (s *lpState) setRetry(engines []string) {
	s.mu.Lock()
	s.retry = engines
	s.mu.Unlock()
}

// NewLongPoll makes the transport.
func NewLongPoll(gate *Gate, s Services, o LongPollOptions) *LongPoll {
	l := &LongPoll{opts: o, gate: gate, directory: s.Directory, router: s.Router, commands: s.Commands, hub: s.Hub,
		clock: s.Clock, log: s.Log, metrics: s.Metrics, registry: newLPRegistry[*lpState](o.Limits, s.Clock),
		room: newUploadRoom(), worker: strconv.Itoa(os.Getpid())}
	s.Metrics.watchLongPoll(l)
	return l
}

// Routes adds both routes.
func (l *LongPoll) Routes(mux *http.ServeMux) {
	mux.HandleFunc("POST "+EventsPath, l.guarded(l.serveEvents))
	mux.HandleFunc("GET "+CommandsPath, l.guarded(l.serveCommands))
	// A GET pattern takes HEAD as well: it would claim commands and throw them away with the body.
	mux.HandleFunc("HEAD "+CommandsPath, func(w http.ResponseWriter, r *http.Request) {
		transport.RefuseMethod(w, r, http.MethodGet)
	})
}

// guarded runs the checks that come before anything of the request is read: rate bucket, then allowlist (agent protocol
// F.3; the body's size was checked before). It renders the handler's error.
func (l *LongPoll) guarded(serve func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := callerOf(r)
		err := l.gate.rate(c)
		if err == nil {
			err = l.gate.admitAddress(r.Context(), c)
		}
		if err == nil {
			err = serve(w, r)
		}
		if err == nil {
			return
		}
		if code := fault.CodeOf(err); code == fault.Internal || code == fault.Corrupt || code == fault.OutcomeUnknown {
			l.log.Error().Err(err).Str("path", r.URL.Path).Str("request", transport.RequestID(r.Context())).Msg("long-poll request failed")
		}
		transport.WriteError(w, r, err)
	}
}

func (l *LongPoll) authenticate(r *http.Request) (agent.Identity, error) {
	return l.gate.authenticate(r.Context(), callerOf(r), false)
}

// lease finds or makes the session of the request's nonce. The caller releases it.
func (l *LongPoll) lease(id agent.Identity, r *http.Request, probe bool) (*lpSession[*lpState], error) {
	nonce := r.Header.Get(headerNonce)
	if len(nonce) > maxNonce {
		return nil, transport.Validation(transport.ValidationItem{Type: "string_too_long", Loc: []any{"header", headerNonce},
			Msg: headerNonce + ": must be at most " + strconv.Itoa(maxNonce) + " bytes"})
	}
	return l.registry.acquire(id.Agent.ID, nonce, probe, func() *lpState {
		b := binding(l.opts.ProjectSecret, id, nonce)
		return &lpState{peer: peerOf(id, agent.LongPoll, nonce, ""),
			remote: transport.AddrKey(transport.ClientAddr(r.Context())),
			signer: wire.NewSigner(b), verifier: wire.NewVerifier(b)}
	})
}

// identify sets the headers of a 200; refusals never carry them (agent protocol F.2).
func (l *LongPoll) identify(w http.ResponseWriter, id agent.Identity) {
	h := w.Header()
	h.Set(headerAgentID, id.Agent.ID.String())
	h.Set(headerProject, id.Project.ID.String())
	h.Set(headerWorker, l.worker)
}

// Sessions lists the valid sessions of an agent, in no order.
func (l *LongPoll) Sessions(agentID uuid.UUID) []agent.SessionInfo {
	var out []agent.SessionInfo
	l.registry.sessions(agentID, func(s *lpSession[*lpState], i lpInfo) {
		s.State.mu.Lock()
		retry := s.State.retry
		s.State.mu.Unlock()
		out = append(out, agent.SessionInfo{Transport: agent.LongPoll, Session: i.nonce, Remote: s.State.remote,
			ConnectedAt: i.opened, LastFrameAt: i.lastUse, RetryEngines: retry, Polling: i.polling})
	})
	return out
}

// Count returns the number of entries in the session registry.
func (l *LongPoll) Count() int { return l.registry.size() }

// draining tells whether a parked request ended because the process goes down.
func draining(ctx context.Context) bool { return errors.Is(context.Cause(ctx), transport.ErrDraining) }

// readBody reads the whole body; its size was bounded before the handler.
func readBody(r *http.Request) ([]byte, error) {
	if r.ContentLength >= 0 {
		buf := make([]byte, r.ContentLength)
		if _, err := io.ReadFull(r.Body, buf); err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "the request body broke off")
		}
		return buf, nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "the request body broke off")
	}
	return body, nil
}

func bodyError(kind string, loc []any, msg string) error {
	return transport.Validation(transport.ValidationItem{Type: kind, Loc: loc, Msg: msg})
}

func queryError(kind, name, msg, input string) error {
	return transport.Validation(transport.ValidationItem{Type: kind, Loc: []any{"query", name}, Msg: msg, Input: input})
}

func writeJSON(w http.ResponseWriter, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	_, _ = w.Write(body) // a client that has gone asks again; what it was told is durable
}
