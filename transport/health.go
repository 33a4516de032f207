package transport

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"
)

// Reasons for not being ready (agent protocol H.7).
const (
	ReasonStarting = "starting"
	ReasonDatabase = "database"
	ReasonDraining = "draining"
)

// Readiness says whether the appliance takes work. It begins as starting; Ready and Drain move it on, and a database
// check is asked at each look. Safe for concurrent use.
type Readiness struct {
	state atomic.Int32
	check func(context.Context) error
}

const (
	stateStarting int32 = iota
	stateReady
	stateDraining
)

// readyCheckTimeout bounds the database check: an orchestrator's probe gives up after a few seconds.
const readyCheckTimeout = 2 * time.Second

// NewReadiness returns the state of an appliance that is starting. check asks the database for a sign of life and may be
// nil.
func NewReadiness(check func(context.Context) error) *Readiness { return &Readiness{check: check} }

// Ready ends the start. It does not undo a drain.
func (r *Readiness) Ready() { r.state.CompareAndSwap(stateStarting, stateReady) }

// Drain ends readiness for good.
func (r *Readiness) Drain() { r.state.Store(stateDraining) }

// Reason returns why the appliance is not ready, "" when it is.
func (r *Readiness) Reason(ctx context.Context) string {
	switch r.state.Load() {
	case stateStarting:
		return ReasonStarting
	case stateDraining:
		return ReasonDraining
	}
	if r.check == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, readyCheckTimeout)
	defer cancel()
	if r.check(ctx) != nil {
		return ReasonDatabase
	}
	return ""
}

// healthBody is the answer of all four health routes.
type healthBody struct {
	Status string `json:"status"`
	Reason string `json:"reason,omitempty"`
}

// Routes adds /healthz, /readyz, /api/v1/health and /api/v1/health/ready (agent protocol H.7).
func (r *Readiness) Routes(mux *http.ServeMux) {
	health := func(w http.ResponseWriter, req *http.Request) {
		WriteJSON(w, req, http.StatusOK, healthBody{Status: "ok"})
	}
	ready := func(w http.ResponseWriter, req *http.Request) {
		if reason := r.Reason(req.Context()); reason != "" {
			WriteJSON(w, req, http.StatusServiceUnavailable, healthBody{Status: "unready", Reason: reason})
			return
		}
		WriteJSON(w, req, http.StatusOK, healthBody{Status: "ready"})
	}
	mux.HandleFunc("GET /healthz", health)
	mux.HandleFunc("GET /api/v1/health", health)
	mux.HandleFunc("GET /health", health) // clients of rooms find the base URL by it (rooms protocol H.8)
	mux.HandleFunc("GET /readyz", ready)
	mux.HandleFunc("GET /api/v1/health/ready", ready)
}
