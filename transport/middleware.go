package transport

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"signalbox/appliance/fault"
)

// Middleware wraps a handler.
type Middleware func(http.Handler) http.Handler

// Chain wraps the handler so that the first middleware is the outermost.
func Chain(h http.Handler, around ...Middleware) http.Handler {
	for i := len(around) - 1; i >= 0; i-- {
		h = around[i](h)
	}
	return h
}

// Front is what every request of a listener passes before its handler, in the order of the package comment.
type Front struct {
	Log     zerolog.Logger
	Metrics *Metrics
	Hosts   []string  // allowed Host names; empty allows every one
	Trusted *Networks // proxies whose X-Forwarded-For is believed; nil is none
	Bodies  *Bodies   // nil leaves bodies unbounded
}

// Wrap puts the front before the handler.
func (f Front) Wrap(h http.Handler) http.Handler {
	around := []Middleware{Observe(f.Log, f.Metrics), RequestIDs, Recover(f.Log, f.Metrics)}
	if len(f.Hosts) > 0 {
		around = append(around, Hosts(f.Hosts))
	}
	trusted := f.Trusted
	if trusted == nil {
		trusted = &Networks{}
	}
	around = append(around, ClientAddresses(trusted))
	if f.Bodies != nil {
		around = append(around, f.Bodies.Middleware)
	}
	return Chain(h, around...)
}

// maxRequestID is the longest id kept from a caller (agent protocol H.1).
const maxRequestID = 64

// HeaderRequestID carries the request's id both ways (agent protocol H.1).
const HeaderRequestID = "X-Request-Id"

// RequestIDs gives every request an id: the caller's when it is 1 to 64 printable ASCII characters, otherwise
// req_<16 hex>. It is echoed in the response.
func RequestIDs(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r, info := withInfo(r)
		info.id = r.Header.Get(HeaderRequestID)
		if !validRequestID(info.id) {
			info.id = newRequestID()
		}
		w.Header().Set(HeaderRequestID, info.id)
		next.ServeHTTP(w, r)
	})
}

func validRequestID(id string) bool {
	if id == "" || len(id) > maxRequestID {
		return false
	}
	for i := range len(id) {
		if id[i] < 0x20 || id[i] > 0x7e {
			return false
		}
	}
	return true
}

func newRequestID() string {
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // never fails since Go 1.24
	return "req_" + hex.EncodeToString(raw[:])
}

// writeTimeout bounds each piece of a response. There is no limit on the whole: a poll may park for a minute.
const writeTimeout = 30 * time.Second

// response watches what a handler answers, and renews the write deadline at each piece.
type response struct {
	http.ResponseWriter
	control  *http.ResponseController
	status   int
	bytes    int64
	hijacked bool
}

// Unwrap is for http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader notes the status.
func (w *response) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.renew()
	w.ResponseWriter.WriteHeader(status)
}

// Write counts the bytes.
func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	w.renew()
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// FlushError sends what is buffered.
func (w *response) FlushError() error {
	w.renew()
	return w.control.Flush()
}

// Flush sends what is buffered.
func (w *response) Flush() { _ = w.FlushError() }

// Hijack hands the connection over; nothing here touches it afterwards.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := w.control.Hijack()
	if err == nil {
		w.hijacked = true
		w.status = http.StatusSwitchingProtocols
	}
	return conn, rw, err
}

func (w *response) renew() {
	if !w.hijacked {
		_ = w.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // not every writer in tests has one
	}
}

// Observe counts and logs (at debug) every request once it is answered, and bounds each write of its response.
func Observe(log zerolog.Logger, m *Metrics) Middleware {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r, info := withInfo(r)
			start := time.Now()
			rw := &response{ResponseWriter: w, control: http.NewResponseController(w)}
			rw.renew()
			defer func() {
				rw.renew() // the server flushes after us, and a kept connection must not inherit a passed deadline
				m.request(rw.status)
				if e := log.Debug(); e.Enabled() {
					e.Str("request", info.id).Str("method", r.Method).Str("path", r.URL.Path).Int("status", rw.status).
						Int64("bytes", rw.bytes).Dur("took_ms", time.Since(start)).
						Str("client", AddrKey(info.addr)).Msg("request")
				}
			}()
			next.ServeHTTP(rw, r)
			if rw.status == 0 { // net/http answers for a handler that wrote nothing; one that was cut off does not get here
				rw.status = http.StatusOK
			}
		})
	}
}

// Recover answers a panic in a handler with 500, logs it with its stack and counts it. A response that has begun is cut
// off instead, so that the peer cannot take it for whole.
func Recover(log zerolog.Logger, m *Metrics) Middleware {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				v := recover()
				if v == nil {
					return
				}
				if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
					panic(v)
				}
				m.panicked()
				log.Error().Str("request", RequestID(r.Context())).Str("method", r.Method).Str("path", r.URL.Path).
					Interface("panic", v).Bytes("stack", debug.Stack()).Msg("panic in a request handler")
				rw, ok := w.(*response)
				if ok && rw.hijacked {
					return
				}
				if ok && rw.status != 0 {
					panic(http.ErrAbortHandler)
				}
				WriteError(w, r, fault.New(fault.Internal, "internal error"))
			}()
			next.ServeHTTP(w, r)
		})
	}
}

// Hosts refuses with 400 every request whose Host, without port and case, is not in the list. *.example.com stands for
// all names below example.com.
func Hosts(allowed []string) Middleware {
	exact := map[string]bool{}
	var below []string
	for _, h := range allowed {
		h = strings.ToLower(h)
		if rest, ok := strings.CutPrefix(h, "*"); ok {
			below = append(below, rest)
		} else {
			exact[hostName(h)] = true
		}
	}
	ok := func(host string) bool {
		if exact[host] {
			return true
		}
		for _, suffix := range below {
			if suffix == "" || len(host) > len(suffix) && strings.HasSuffix(host, suffix) {
				return true
			}
		}
		return false
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !ok(hostName(strings.ToLower(r.Host))) {
				writeStatus(w, r, http.StatusBadRequest, "invalid_host", "this host name is not served here")
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// hostName strips the port, the brackets of an IPv6 address and a trailing dot.
func hostName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimPrefix(strings.TrimSuffix(host, "]"), "[")
	return strings.TrimSuffix(host, ".")
}

// ClientAddresses resolves the client's address (agent protocol I.3) for ClientAddr.
func ClientAddresses(trusted *Networks) Middleware {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r, info := withInfo(r)
			info.addr = ResolveClient(r, trusted)
			next.ServeHTTP(w, r)
		})
	}
}
