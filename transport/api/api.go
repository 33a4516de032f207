package api

import (
	"errors"
	"net"
	"net/http"
	"sync"

	"github.com/rs/zerolog"

	"signalbox/appliance/agent"
	"signalbox/appliance/clock"
	"signalbox/appliance/fault"
	"signalbox/transport"
)

// Prefix is where the surface begins (agent protocol H.1).
const Prefix = "/api/v1"

// Options are the settings of the surface.
type Options struct {
	Allow    *transport.Allowlist     // surface "api"; nil admits every address
	Refusals *transport.RefusalWindow // shared with the other surfaces; nil writes no audit rows of refusals
	Bulk     *transport.RateBucket    // of bulk actions (agent protocol I.1); nil admits all

	ChannelTests *transport.RateBucket // of tests of notification channels (agent protocol I.1); nil admits all

	DefaultPage int // rows of a page when the request names no limit; 0 is 50
	MaxPage     int // most rows of a page; 0 is 500
	MaxStreams  int // most streams and exports at once, a quarter of them for one principal; 0 is 256

	Epoch             string // of the database; the first 8 characters are in every stream cursor
	KnownAgentVersion string // agent software that version_status compares with

	Clock clock.Clock // nil is the system's
	Log   zerolog.Logger
}

// API serves the operators' routes. Safe for concurrent use.
type API struct {
	Services
	opts    Options
	epoch   string     // as cursors carry it
	streams *places    // of streams and exports
	verify  sync.Mutex // one audit verification at a time
	upkeep  sync.Mutex // one piece of upkeep of the database at a time
}

// New returns the surface. It starts nothing.
func New(s Services, o Options) *API {
	if o.DefaultPage <= 0 {
		o.DefaultPage = 50
	}
	if o.MaxPage <= 0 {
		o.MaxPage = 500
	}
	if o.MaxStreams <= 0 {
		o.MaxStreams = 256
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	return &API{Services: s.inLane(newLane()), opts: o, epoch: o.Epoch[:min(len(o.Epoch), epochLen)], streams: newPlaces(o.MaxStreams)}
}

// Routes adds every route to the mux.
func (a *API) Routes(mux *http.ServeMux) {
	for _, rt := range routes() {
		mux.Handle(rt.method+" "+Prefix+rt.path, a.handler(rt))
	}
}

// call is one authenticated request.
type call struct {
	*http.Request
	route   route
	who     agent.Principal
	project agent.Project // of routes inside a project
}

// handler serves one route.
func (a *API) handler(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := a.admit(rt, r)
		if err == nil {
			err = rt.handle(a, w, c)
		}
		if err != nil {
			if rt.changesSchedules() {
				a.recordScheduleRefusal(r, c, err)
			}
			a.fail(w, r, err)
		}
	})
}

// fail answers with an error.
func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	a.logTrouble(r, err, "request failed")
	if fault.Is(err, fault.Unauthenticated) {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	transport.WriteError(w, r, err)
}

// cutOff ends an answer that has begun and cannot be finished, so that the peer does not take it for whole.
func (a *API) cutOff(c *call, err error) {
	a.logTrouble(c.Request, err, "answer cut off")
	panic(http.ErrAbortHandler)
}

// logTrouble logs an error that the caller is not told the cause of. What callers do wrong, and that they go away, is
// for debugging only.
func (a *API) logTrouble(r *http.Request, err error, msg string) {
	level := zerolog.DebugLevel
	switch code := fault.CodeOf(err); {
	case r.Context().Err() != nil || isNetwork(err):
	case code == fault.Unavailable:
		level = zerolog.WarnLevel
	case code == fault.Internal, code == fault.Corrupt, code == fault.OutcomeUnknown:
		level = zerolog.ErrorLevel
	}
	a.opts.Log.WithLevel(level).Err(err).Str("request", transport.RequestID(r.Context())).Str("method", r.Method).
		Str("path", r.URL.Path).Msg(msg)
}

// isNetwork tells whether the error is of the connection to the peer.
func isNetwork(err error) bool {
	var e net.Error
	return errors.As(err, &e)
}

// reply answers with JSON.
func reply(w http.ResponseWriter, c *call, status int, v any) error {
	transport.WriteJSON(w, c.Request, status, v)
	return nil
}
