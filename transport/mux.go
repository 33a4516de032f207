package transport

import (
	"bytes"
	"net/http"

	"signalbox/appliance/fault"
)

// Mux serves the routes of mux, and answers unknown paths with a JSON 404 and wrong methods with a JSON 405 and Allow.
func Mux(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		miss := &missWriter{header: http.Header{}}
		h.ServeHTTP(miss, r)
		switch {
		case miss.status == http.StatusMethodNotAllowed:
			RefuseMethod(w, r, miss.header.Get("Allow"))
		case miss.status >= 300 && miss.status < 400:
			w.Header().Set("Location", miss.header.Get("Location"))
			w.WriteHeader(miss.status)
		default:
			WriteError(w, r, fault.New(fault.NotFound, "no such path"))
		}
	})
}

// RefuseMethod answers 405; allow lists the methods that the path takes.
func RefuseMethod(w http.ResponseWriter, r *http.Request, allow string) {
	w.Header().Set("Allow", allow)
	writeStatus(w, r, http.StatusMethodNotAllowed, "method_not_allowed", "this path does not take the method "+r.Method)
}

// missWriter learns how net/http would have answered a request without a route.
type missWriter struct {
	header http.Header
	status int
}

func (m *missWriter) Header() http.Header         { return m.header }
func (m *missWriter) Write(p []byte) (int, error) { return len(p), nil }
func (m *missWriter) WriteHeader(status int)      { m.status = status }

// missBody keeps the body too.
type missBody struct {
	missWriter
	body bytes.Buffer
}

// Write keeps p.
func (m *missBody) Write(p []byte) (int, error) { return m.body.Write(p) }
