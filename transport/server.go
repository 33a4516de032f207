package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// Names of the listeners in Addresses.
const (
	ListenerMain    = "http"
	ListenerAdmin   = "admin"
	ListenerMetrics = "metrics"
)

// ErrDraining is the cause that ends parked requests when the server goes down.
var ErrDraining = errors.New("server is draining")

// ErrShutdownForced is a shutdown whose deadline passed: requests were cut off.
var ErrShutdownForced = errors.New("requests cut off by force")

// Limits of a connection that no request handler can set.
const (
	readHeaderTimeout = 10 * time.Second
	keepAliveTimeout  = 2 * time.Minute // longer than the 60 s between an agent's polls
	maxHeaderBytes    = 32 << 10
)

// ServerConfig says what to bind and what to serve there. An empty address binds nothing.
type ServerConfig struct {
	Listen        string        // host:port of the main listener; port 0 lets the system choose
	TLS           *Certificates // of the main listener; nil is plain HTTP
	Handler       http.Handler  // of the main listener
	AdminSocket   string        // path of the local admin socket
	AdminHandler  http.Handler  // its requests are marked for IsLocalAdmin
	MetricsListen string        // host:port of the metrics listener
	Metrics       http.Handler
	Readiness     *Readiness
	// DrainSessions tells the live sessions to come back and waits for their end; it runs beside the requests in flight.
	DrainSessions func(context.Context) error
	Log           zerolog.Logger
}

// Server owns the listeners. Requests get contexts that end, with cause ErrDraining, when a shutdown is forced; those
// made by Parked already when it begins.
type Server struct {
	cfg      ServerConfig
	fronts   []*front
	base     context.Context
	cancel   context.CancelCauseFunc
	drain    context.Context
	stopPark context.CancelFunc
	once     sync.Once
	closed   error
}

// front is one bound listener.
type front struct {
	name     string
	listener net.Listener
	server   *http.Server
	last     bool // stays up until all else is down
}

// NewServer binds all listeners, so that a port in use is an error here. It serves nothing until Serve; Shutdown frees
// the ports.
func NewServer(cfg ServerConfig) (*Server, error) {
	s := &Server{cfg: cfg}
	s.base, s.cancel = context.WithCancelCause(context.Background())
	s.drain, s.stopPark = context.WithCancel(context.Background())
	if err := s.bind(); err != nil {
		for _, f := range s.fronts {
			_ = f.listener.Close()
		}
		s.cancel(err)
		s.stopPark()
		return nil, err
	}
	return s, nil
}

func (s *Server) bind() error {
	if s.cfg.Listen != "" {
		l, err := listenTCP(ListenerMain, s.cfg.Listen)
		if err != nil {
			return err
		}
		var outer net.Listener = l
		if s.cfg.TLS != nil {
			outer = tls.NewListener(l, s.cfg.TLS.Config())
		}
		s.add(ListenerMain, headListener{outer}, s.cfg.Handler, false)
	}
	if s.cfg.AdminSocket != "" {
		l, err := listenUnix(s.cfg.AdminSocket)
		if err != nil {
			return err
		}
		s.add(ListenerAdmin, l, markLocal(s.cfg.AdminHandler), false)
	}
	if s.cfg.MetricsListen != "" {
		l, err := listenTCP(ListenerMetrics, s.cfg.MetricsListen)
		if err != nil {
			return err
		}
		s.add(ListenerMetrics, l, s.cfg.Metrics, true)
	}
	return nil
}

func (s *Server) add(name string, l net.Listener, h http.Handler, last bool) {
	log := s.cfg.Log.With().Str("listener", name).Logger()
	s.fronts = append(s.fronts, &front{name: name, listener: l, last: last, server: &http.Server{
		Handler:           s.withDrain(h),
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       keepAliveTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		BaseContext:       func(net.Listener) context.Context { return s.base },
		ErrorLog:          stdlog.New(debugWriter{log}, "", 0),
	}})
}

// withDrain makes the drain known to Parked.
func (s *Server) withDrain(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r, info := withInfo(r)
		info.drain = s.drain
		h.ServeHTTP(w, r)
	})
}

func markLocal(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r, info := withInfo(r)
		info.local = true
		h.ServeHTTP(w, r)
	})
}

// debugWriter takes what net/http has to say: broken handshakes and the like, the peers' doing.
type debugWriter struct{ log zerolog.Logger }

// Write logs one line.
func (d debugWriter) Write(p []byte) (int, error) {
	d.log.Debug().Msg(string(p))
	return len(p), nil
}

// Addresses returns what was bound, by listener name: host:port, or the path of the admin socket.
func (s *Server) Addresses() map[string]string {
	bound := make(map[string]string, len(s.fronts))
	for _, f := range s.fronts {
		bound[f.name] = f.listener.Addr().String()
	}
	return bound
}

// Serve serves all listeners until Shutdown, then returns nil; or until one of them fails, then it returns the error
// and the caller must shut down.
func (s *Server) Serve() error {
	failed := make(chan error, len(s.fronts))
	for _, f := range s.fronts {
		go func() {
			err := f.server.Serve(f.listener)
			if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) { // Shutdown's doing
				err = nil
			} else {
				err = fmt.Errorf("serve %s listener: %w", f.name, err)
			}
			failed <- err
		}()
	}
	for range s.fronts {
		if err := <-failed; err != nil {
			return err
		}
	}
	return nil
}

// forceReserve is the part of a shutdown's deadline kept for requests to notice that their context has ended.
const forceReserve = 500 * time.Millisecond

// Shutdown goes down in order: stop accepting; readiness off; parked requests answer and sessions are told; requests in
// flight finish; and shortly before ctx ends, what is left loses its context and then its connection. The metrics
// listener goes last. A second call returns what the first did.
func (s *Server) Shutdown(ctx context.Context) error {
	s.once.Do(func() { s.closed = s.shutdown(ctx) })
	return s.closed
}

func (s *Server) shutdown(ctx context.Context) error {
	soft, cancel := softDeadline(ctx)
	defer cancel()
	done := make(chan error, len(s.fronts)+1)
	pending := 0
	for _, f := range s.fronts {
		if f.last {
			continue
		}
		pending++
		_ = f.listener.Close() // no later than readiness goes off
		go func() { done <- f.stop(soft, ctx, s.cancel) }()
	}
	if s.cfg.Readiness != nil {
		s.cfg.Readiness.Drain()
	}
	s.stopPark()
	if s.cfg.DrainSessions != nil {
		pending++
		go func() { done <- s.cfg.DrainSessions(ctx) }()
	}
	var errs []error
	for range pending {
		errs = append(errs, <-done)
	}
	for _, f := range s.fronts {
		if f.last {
			errs = append(errs, f.stop(soft, ctx, s.cancel))
		}
	}
	s.cancel(ErrDraining)
	return errors.Join(errs...)
}

// stop waits for the requests in flight until soft ends, then takes their context away, and at the end of hard their
// connections.
func (f *front) stop(soft, hard context.Context, cancel context.CancelCauseFunc) error {
	_ = f.listener.Close() // Shutdown does not know one that was never served
	if f.server.Shutdown(soft) == nil {
		return nil
	}
	cancel(ErrDraining)
	if f.server.Shutdown(hard) == nil {
		return nil
	}
	_ = f.server.Close()
	return fmt.Errorf("shut down %s listener: %w", f.name, ErrShutdownForced)
}

// softDeadline ends forceReserve before ctx does, or halfway when there is less.
func softDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	left := time.Until(deadline)
	return context.WithTimeout(ctx, left-min(forceReserve, left/2))
}
