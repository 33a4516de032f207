package transport

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"signalbox/appliance/fault"
)

// Metrics counts what passes through the transport. A nil *Metrics counts nothing.
type Metrics struct {
	requests *prometheus.CounterVec
	panics   prometheus.Counter
	denied   *prometheus.CounterVec
}

// NewMetrics registers signalbox_http_requests_total, signalbox_http_panics_total and z4j_auth_ip_denied_total.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_http_requests_total",
			Help: "Answered HTTP requests by class of status."}, []string{"class"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{Name: "signalbox_http_panics_total",
			Help: "Panics in HTTP handlers."}),
		denied: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "z4j_auth_ip_denied_total",
			Help: "Requests and connects refused by an address allowlist."}, []string{"surface"}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.requests, m.panics, m.denied} {
		errs = append(errs, reg.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register transport metrics: %w", err)
	}
	return m, nil
}

// statusClasses are the label values by the status's first digit; 0 is a response that was cut off.
var statusClasses = [...]string{"none", "1xx", "2xx", "3xx", "4xx", "5xx"}

func (m *Metrics) request(status int) {
	if m == nil {
		return
	}
	class := status / 100
	if class < 0 || class >= len(statusClasses) {
		class = 0
	}
	m.requests.WithLabelValues(statusClasses[class]).Inc()
}

func (m *Metrics) panicked() {
	if m != nil {
		m.panics.Inc()
	}
}

func (m *Metrics) deniedInit(surface string) {
	if m != nil {
		m.denied.WithLabelValues(surface)
	}
}

func (m *Metrics) ipDenied(surface string) {
	if m != nil {
		m.denied.WithLabelValues(surface).Inc()
	}
}

// MetricsHandler serves the gathered metrics as Prometheus text. While a token is set, a scraper must present it as a
// bearer.
type MetricsHandler struct {
	inner http.Handler
	token atomic.Pointer[[sha256.Size]byte]
}

// NewMetricsHandler returns a handler; an empty token asks for none.
func NewMetricsHandler(g prometheus.Gatherer, token string) *MetricsHandler {
	h := &MetricsHandler{inner: promhttp.HandlerFor(g, promhttp.HandlerOpts{MaxRequestsInFlight: 4})}
	h.SetToken(token)
	return h
}

// SetToken replaces the token; empty asks for none from now on.
func (h *MetricsHandler) SetToken(token string) {
	if token == "" {
		h.token.Store(nil)
		return
	}
	sum := sha256.Sum256([]byte(token))
	h.token.Store(&sum)
}

// ServeHTTP answers with the metrics, or 401 without the token.
func (h *MetricsHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.Guard(h.inner).ServeHTTP(w, r)
}

// Guard puts the token before another handler. Digests are compared, so that neither content nor length can be timed.
func (h *MetricsHandler) Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if want := h.token.Load(); want != nil {
			scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
			sum := sha256.Sum256([]byte(given))
			if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(sum[:], want[:]) != 1 {
				w.Header().Set("WWW-Authenticate", "Bearer")
				WriteError(w, r, fault.New(fault.Unauthenticated, "metrics need a bearer token"))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
